"""What the sketch promises of any stream, and what the lists promise whatever processes keep them."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark import top
from tallymark.errors import Unavailable
from tallymark.model import MS_PER_HOUR, Target
from tallymark.sketch import SpaceSaving, Summary, merged
from tallymark.top import Addition, Place, Stored, first_of
from tests.unit.core.test_top import MemoryLists, lists_over

HOUR = 490_000
NOW_MS = HOUR * MS_PER_HOUR
TARGETS = [Target("post", str(n)) for n in range(60)]

streams = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 50)), max_size=200)
capacities = st.integers(1, 12)


def seen(stream: Sequence[tuple[int, int]], capacity: int) -> tuple[Tally[int], SpaceSaving[int]]:
    truth, sketch = Tally[int](), SpaceSaving[int](capacity)
    for item, weight in stream:
        truth[item] += weight
        sketch.add(item, weight)
    return truth, sketch


@given(streams, capacities)
def test_a_bound_is_never_too_low_and_too_high_by_the_floor_at_most(
    stream: Sequence[tuple[int, int]], capacity: int
) -> None:
    truth, sketch = seen(stream, capacity)
    for item in range(31):
        assert truth[item] <= sketch.bound(item) <= truth[item] + sketch.floor


@given(streams, capacities)
def test_memory_is_bounded_and_whoever_has_more_than_a_share_is_listed(
    stream: Sequence[tuple[int, int]], capacity: int
) -> None:
    truth, sketch = seen(stream, capacity)
    summary = sketch.summary()
    assert len(sketch) == len(summary.bounds) <= capacity
    assert sketch.floor <= truth.total() / capacity
    assert all(item in summary.bounds for item, number in truth.items() if number > truth.total() / capacity)


@given(streams, capacities)
def test_as_long_as_there_is_room_bounds_are_exact(stream: Sequence[tuple[int, int]], capacity: int) -> None:
    truth, sketch = seen(stream, capacity)
    if len(truth) <= capacity:
        assert sketch.summary() == Summary(dict(truth), 0)


@given(st.lists(streams, max_size=4), capacities, st.integers(0, 12))
def test_summaries_merged_cut_and_gone_on_from_bound_what_all_saw(
    parts: Sequence[Sequence[tuple[int, int]]], capacity: int, most: int
) -> None:
    truth, sketches = Tally[int](), []
    for part in parts:
        of_part, sketch = seen(part, capacity)
        truth += of_part
        sketches.append(sketch.summary().cut(most))
    summary = merged(sketches)
    again = SpaceSaving(capacity, summary)
    for item in range(31):
        assert truth[item] <= summary.bound(item) <= again.bound(item)
    for item, weight in ((1, 5), (77, 1)):
        assert again.bound(item) + weight <= again.add(item, weight) + again.floor
    assert all(truth[item] <= again.bound(item) for item in range(31))


def test_summaries_that_are_merged_add_their_floors_once() -> None:
    one, other = Summary({"a": 9, "b": 5}, 4), Summary({"a": 20}, 3)
    assert merged([one, other]) == Summary({"a": 29, "b": 8}, 7)
    assert merged([one, Summary()]) == one


class BusyLists(MemoryLists):
    """A store that others write to between a process's reading and its writing."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile, self._busy = meanwhile, False

    def save(self, writes: Sequence[tuple[Place, Stored, Stored]]) -> list[Stored]:
        if not self._busy:
            self._busy = True
            self._meanwhile()
            self._busy = False
        return super().save(writes)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 2), st.integers(1, 40), st.integers(1, 40))
def test_what_is_stored_bounds_what_was_folded_whenever_processes_end(
    seed: int, processes: int, slots: int, capacity: int, most: int
) -> None:
    """Several share a slot and write at the same time, and any may end after any batch, with what it has in memory."""
    rng, truth, adding = Random(seed), Tally[Target](), list[int]()

    def add(which: int) -> None:
        adding.append(which)
        batch = [(rng.choice(TARGETS), rng.choice([1, 1, 1, 5, 40])) for _ in range(rng.choice([1, 1, 4]))]
        living[which].add([Addition("likes", target, HOUR, number) for target, number in batch], NOW_MS, lambda: True)
        for target, number in batch:
            truth[target] += number
        adding.pop()

    def meanwhile() -> None:
        which = rng.randrange(processes)
        if which not in adding:
            add(which)

    store = BusyLists(meanwhile)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"CAPACITY": capacity, "KEPT": most, "_ROUNDS": 100}.items():
            patched.setattr(top, name, value)
        living = [lists_over(store, rng.randrange(slots)) for _ in range(processes)]
        for _ in range(rng.randrange(1, 40)):
            which = rng.randrange(processes)
            add(which)
            if rng.random() < 0.2:
                living[which] = lists_over(store, rng.randrange(slots))
            stored = store.list()
            assert all(truth[target] <= stored.bound(target) for target in TARGETS)


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_what_the_store_refused_for_a_while_is_stored_in_the_end(seed: int, slots: int) -> None:
    rng, store, truth = Random(seed), MemoryLists(), Tally[Target]()
    now_ms, processes = NOW_MS, [lists_over(store, slot) for slot in range(slots)]
    for _ in range(rng.randrange(1, 60)):
        target, number = rng.choice(TARGETS), rng.choice([1, 1, 1, 5, 40])
        store.fault = Unavailable("made up") if rng.random() < 0.3 else None
        with suppress(Unavailable):
            rng.choice(processes).add([Addition("likes", target, HOUR, number)], now_ms, lambda: True)
        truth[target] += number
        now_ms += rng.choice([0, 1_000, 20_000])
    store.fault = None
    for process in processes:
        process.add([], now_ms + 10_000, lambda: True)
    assert all(truth[t] <= store.list().bound(t) for t in TARGETS)


@given(
    st.dictionaries(st.sampled_from(TARGETS), st.tuples(st.integers(0, 30), st.integers(0, 30))),
    st.integers(0, 10),
    st.integers(1, 20),
)
def test_an_answer_that_is_proven_is_what_a_look_at_everything_gives(
    items: dict[Target, tuple[int, int]], floor: int, limit: int
) -> None:
    """Of each item its number, and by how much more it was added to than is left; some are below the floor."""
    numbers = {target: number for target, (number, _) in items.items()}
    bounds = {target: max(1, number + more) for target, (number, more) in items.items()}
    listed = Summary({target: bound for target, bound in bounds.items() if bound >= floor}, floor)
    first, proven = first_of(listed, limit, lambda targets: [numbers[target] for target in targets])
    everything = [(t, n) for t, n in numbers.items() if n > 0]
    everything.sort(key=lambda entry: (-entry[1], entry[0].item_type, entry[0].item_id))
    assert first[:proven] == everything[:proven]
    if proven == limit:
        assert first == everything[:limit]
    assert first == [entry for entry in everything if entry in first]
