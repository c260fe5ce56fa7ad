"""Any order, repetition and cut of deliveries, with crashes and lost replies: counts equal the records."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st

from tallymark import aggregation
from tallymark.aggregation import Unreadable
from tallymark.events import AddEvent
from tallymark.fold import Change, Delta, Mark, fold
from tallymark.model import Counter, Target
from tallymark.storage.event_stream import read_event
from tallymark.storage.like_stream import read_like
from tallymark.storage.records import reader_of

from .lambda_stream import (
    BEGIN_S,
    EVENT_GARBAGE,
    GARBAGE,
    LANE_IDS,
    TARGETS,
    Delivery,
    MemoryHeld,
    Scenario,
    Stream,
    event_record,
    record,
    scenarios,
)


def likes(*numbers: int) -> tuple[dict[str, object], ...]:
    return tuple(record("INSERT", TARGETS[0], "like", number, BEGIN_S) for number in numbers)


LOST_REPLY = Scenario(
    lanes=(likes(1, 2, 3), ()),
    deliveries=(Delivery(0, 0, 2, 0, ("dies after",)), Delivery(0, 0, 3, 0, ())),
    settlements=(),
)
STALE_AFTER_LOST_REPLY = Scenario(
    lanes=(likes(1, 2, 3), ()),
    deliveries=(Delivery(0, 0, 2, 0, ("dies after",)), Delivery(0, 0, 3, 37, ("park lost",))),
    settlements=(1, 0),
)


@settings(max_examples=150)
@given(scenarios)
@example(LOST_REPLY)
@example(STALE_AFTER_LOST_REPLY)
def test_counts_equal_the_records_whatever_the_deliveries(scenario: Scenario) -> None:
    result = Stream(scenario).run()
    assert result.exact
    assert {event_id for event_id, times in result.settled.items() if times} == result.settleable
    assert all(times <= 1 for times in result.settled.values())


@settings(max_examples=50)
@given(scenarios)
def test_every_record_that_cannot_be_read_is_kept(scenario: Scenario) -> None:
    assert Stream(scenario).run().unreadable == {
        made["eventID"]
        for lane_id, records in zip(LANE_IDS, scenario.lanes, strict=False)
        for made in records
        if not _readable(lane_id, made)
    }


def _readable(lane_id: str, made: dict[str, object]) -> bool:
    try:
        reader_of(lane_id)(made)
    except Unreadable:
        return False
    return True


def test_the_scenarios_reach_what_they_are_about() -> None:
    """Records over 36 h old: one that was not counted, and two that were counted in one of their two rows."""
    not_counted, hour = f"shardId-0#{3:021d}", "#1"
    of_two = {f"shardId-0#{number:021d}{hour}" for number in (1, 2)}
    assert Stream(STALE_AFTER_LOST_REPLY).run().settleable == {not_counted, not_counted + hour} | of_two


# --- the properties see what they are for: each part left out miscounts ---------------------------------------


def assert_miscounts(**options: bool) -> None:
    """Some scenario comes out wrong; NoSuchExample if none is found."""
    find(
        scenarios,
        lambda scenario: not Stream(scenario, **options).run().exact,
        settings=settings(max_examples=2000, phases=[Phase.generate], database=None, deadline=None),
        random=random.Random(10),
    )


def test_without_the_condition_it_miscounts() -> None:
    assert_miscounts(conditional=False)


def test_dropping_a_whole_delta_at_a_mark_miscounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(delta: Delta, mark: Mark | None) -> Delta | None:
        return delta if mark is None or mark.sequence < delta.first_sequence else None

    monkeypatch.setattr(Delta, "after", drop)
    assert_miscounts()


def test_skipping_deltas_of_zero_miscounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_zeros(changes: Iterable[Change]) -> list[Delta]:
        return [delta for delta in fold(changes) if any(delta.amounts.values())]

    monkeypatch.setattr(aggregation, "fold", without_zeros)
    assert_miscounts()


def test_folding_what_an_earlier_version_parked_miscounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryHeld, "numbers", lambda _self, _lane_id: frozenset())
    assert_miscounts()


# --- pieces -----------------------------------------------------------------------------------------------------

counters = st.sampled_from([Counter(Target("post", "1"), "like"), Counter(Target("post", "2"), "like")])
changes = st.lists(
    st.builds(Change, counters, st.sampled_from([1, -1]), st.integers(0, 9), st.integers(0, 9)),
    unique_by=lambda change: change.sequence,
)


@given(changes, st.randoms(use_true_random=False))
def test_folding_knows_neither_order_nor_repeats(batch: list[Change], chance: random.Random) -> None:
    shuffled = [*batch, *(change for change in batch if chance.random() < 0.5)]
    chance.shuffle(shuffled)
    assert {delta.counter: delta for delta in fold(shuffled)} == {delta.counter: delta for delta in fold(batch)}


@given(changes, st.integers(-1, 10), st.integers(0, 9))
def test_what_lies_after_a_mark_is_what_the_mark_does_not_hold(batch: list[Change], sequence: int, time_s: int) -> None:
    for delta in fold(batch):
        rest = delta.after(Mark(sequence, time_s))
        assert (rest.changes if rest else ()) == tuple(c for c in delta.changes if c.sequence > sequence)


@pytest.mark.parametrize("fault", sorted(GARBAGE))
def test_a_record_that_no_likes_table_wrote_is_unreadable(fault: str) -> None:
    with pytest.raises(Unreadable):
        read_like(GARBAGE[fault](record("INSERT", TARGETS[0], "like", 1, BEGIN_S)))


@pytest.mark.parametrize(
    "digits",
    ["", "-1", "+1", " 1", "1_0", "1.0", "0x1", "\u0661", "9" * 41, "9" * 5000, None],
)
def test_a_sequence_number_is_digits_and_nothing_else(digits: object) -> None:
    made = record("INSERT", TARGETS[0], "like", 1, BEGIN_S)
    made["dynamodb"]["SequenceNumber"] = digits
    with pytest.raises(Unreadable):
        read_like(made)


@pytest.mark.parametrize("time_s", [-1, 2**32, float("nan"), "soon", None])
def test_a_creation_time_fits_into_a_mark(time_s: object) -> None:
    made = record("INSERT", TARGETS[0], "like", 1, BEGIN_S)
    made["dynamodb"]["ApproximateCreationDateTime"] = time_s
    with pytest.raises(Unreadable):
        read_like(made)


@pytest.mark.parametrize("fault", sorted(EVENT_GARBAGE))
def test_a_record_that_no_events_table_wrote_is_unreadable(fault: str) -> None:
    made = event_record(AddEvent(BEGIN_S * 1000, "token", "n", 1), 1, BEGIN_S)
    with pytest.raises(Unreadable):
        read_event(EVENT_GARBAGE[fault](made))


@pytest.mark.parametrize("what", ["REMOVE", "MODIFY", "held#lane", "parked#1", "reconciler"])
def test_what_is_no_new_event_changes_no_count(what: str) -> None:
    """An event that expires least of all."""
    made = event_record(AddEvent(BEGIN_S * 1000, "token", "n", 1), 1, BEGIN_S)
    if what.isupper():
        made["eventName"] = what
    else:
        made["dynamodb"]["Keys"]["pk"]["S"] = what
    assert read_event(made) == ()


def test_a_record_that_changes_no_like_changes_no_count() -> None:
    assert read_like(record("MODIFY", TARGETS[0], "like", 1, BEGIN_S)) == ()
