"""Top lists: what a batch adds to which, when they are stored, what an answer proves, and which items are hot."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import cast

import pytest

from tallymark import hot, series, top
from tallymark.errors import Unavailable
from tallymark.fold import Change, Delta, Lane, fold
from tallymark.hot import Detector, HotItems, LikerBuckets, buckets_for
from tallymark.model import MS_PER_HOUR, Counter, Target, by_hour
from tallymark.sketch import Summary, merged
from tallymark.top import Addition, ListKey, Place, Stored, TopLists, additions, first_of, most_reads

HOUR = 490_000
NOW_MS = HOUR * MS_PER_HOUR + 1
LANE = Lane("shard-1", 3)
PERIODS: list[tuple[top.Grain, int]] = [("hour", HOUR), ("day", HOUR // 24), ("all", 0)]
A, B = Target("post", "a"), Target("film", "b")


class MemoryLists:
    """The store of lists; every version is one's own."""

    def __init__(self) -> None:
        self.stored: dict[Place, Stored] = {}
        self.fault: Exception | None = None
        self.saves: list[Place] = []
        self.loads = 0

    def load(self, places: Sequence[Place]) -> list[Stored]:
        self._answer()
        self.loads += len(places)
        return [self.stored.get(place, Stored(Summary())) for place in places]

    def save(self, writes: Sequence[tuple[Place, Stored, Stored]]) -> list[Stored]:
        self._answer()
        for place, mine, known in writes:
            self.saves.append(place)
            if self.stored.get(place, Stored(Summary())).version == known.version:
                self.stored[place] = mine
        return [self.stored[place] for place, _, _ in writes]

    def _answer(self) -> None:
        if self.fault is not None:
            raise self.fault

    def list(self, grain: top.Grain = "hour", item_type: str | None = None) -> Summary[Target]:
        wanted = ("likes", grain, item_type)
        found = [s.summary for (k, _), s in self.stored.items() if (k.metric, k.grain, k.item_type) == wanted]
        return merged(found)


def none_lost(lists: int) -> None:
    raise AssertionError(f"{lists} lists were lost")


def lists_over(store: MemoryLists, slot: int = 0) -> TopLists:
    """Of a new process."""
    return TopLists(store, slot, none_lost)


def has_time() -> bool:
    return True


def add(lists: TopLists, target: Target, number: int, *, hour: int = HOUR, now_ms: int = NOW_MS) -> None:
    lists.add([Addition("likes", target, hour, number)], now_ms, has_time)


def liked(target: Target, number: int, *, seconds: int = 1, begin_s: int = 1_700_000_000) -> list[Delta]:
    """The deltas of so many likes, evenly over some seconds."""
    changes = []
    for n in range(number):
        time_s = begin_s + n * seconds // number
        counter, hour = by_hour(target, "likes-by-hour", time_s * 1000)
        changes += [
            Change(Counter(target, "like"), 1, n + 1, time_s),
            Change(counter, 1, n + 1, time_s, f"n{hour}"),
        ]
    return fold(changes)


# --- what a batch adds ------------------------------------------------------------------------------------------


def test_additions_are_what_came_by_hour_without_removals_and_bots() -> None:
    likes, hour = by_hour(A, "likes-by-hour", NOW_MS)
    views, _ = by_hour(B, "views-by-hour", NOW_MS)
    deltas = fold(
        [
            Change(Counter(A, "like"), 1, 1, 0),
            Change(likes, 1, 1, 0, f"n{hour}"),
            Change(likes, -1, 2, 0, f"n{hour}"),
            Change(likes, 1, 3, 0, f"n{hour}"),
            Change(views, 7, 4, 0, f"n{hour}"),
            Change(views, 9, 5, 0, f"b{hour}"),
        ]
    )
    assert additions(deltas) == [Addition("likes", A, HOUR, 2), Addition("views", B, HOUR, 7)]


def test_an_addition_belongs_to_lists_of_its_type_and_of_all() -> None:
    store = MemoryLists()
    add(lists_over(store), A, 1)
    assert {key for key, _ in store.stored} == {
        ListKey("likes", item_type, grain, period) for item_type in ("post", None) for grain, period in PERIODS
    }


def test_types_beyond_the_heaviest_of_a_batch_share_lists() -> None:
    """Callers make types up: 20,000 of them in a batch would be 60,000 lists."""
    store = MemoryLists()
    types = {f"t{n}": n + 1 for n in range(500)}
    lists = lists_over(store)
    lists.add([Addition("likes", Target(name, "x"), HOUR, n) for name, n in types.items()], NOW_MS, has_time)
    assert {key.item_type for key, _ in store.stored} == {None, top.OTHERS, *list(types)[-top.MOST_GROUPS :]}
    assert store.list("hour", top.OTHERS).bound(Target("t483", "x")) >= 484
    assert store.list().bound(Target("t499", "x")) >= 500


@pytest.mark.parametrize(("window", "grain"), [("1h", "hour"), ("24h", "hour"), ("7d", "day")])
def test_a_list_is_there_as_long_as_a_window_reaches_back_to_it(window: series.WindowName, grain: top.Grain) -> None:
    span = series.window(window, NOW_MS)
    period = span.first_hour if grain == "hour" else span.days[0]
    expiry_s = ListKey("likes", None, grain, period).expiry_s
    assert expiry_s is not None
    assert expiry_s * 1000 > NOW_MS


def test_what_no_window_reaches_any_more_is_in_no_list() -> None:
    store = MemoryLists()
    add(lists_over(store), A, 1, hour=HOUR - 25)
    assert {key.grain for key, _ in store.stored} == {"day", "all"}
    add(lists_over(store), A, 1, hour=HOUR - 24 * 9)
    assert store.list("day").bound(A) == 2, "of the first alone"


# --- when a list is stored --------------------------------------------------------------------------------------


def test_an_item_is_stored_with_its_first_like_and_twice_over_before_it_has_more_than_is_stored() -> None:
    store = MemoryLists()
    lists = lists_over(store)
    stored = []
    for number in range(1, 17):
        add(lists, A, 1)
        stored.append(store.list().bound(A))
        assert number <= stored[-1] <= 2 * number
    assert stored == [2, 2, 6, 6, 6, 6, 14, 14, 14, 14, 14, 14, 14, 14, 30, 30]


def test_a_hundred_likes_in_a_hundred_process_lives_are_bounded() -> None:
    store = MemoryLists()
    for _ in range(100):
        add(lists_over(store), A, 1)
    assert 100 <= store.list().bound(A) <= 200


def test_processes_that_share_a_slot_lose_nothing_of_each_other() -> None:
    store = MemoryLists()
    one, two = lists_over(store), lists_over(store)
    add(one, A, 5)
    add(two, B, 5)
    add(one, A, 7)
    add(two, A, 20)
    add(one, B, 20)
    assert 32 <= store.list().bound(A) <= 64
    assert 25 <= store.list().bound(B) <= 50


def test_processes_that_take_turns_store_no_more_often_for_it() -> None:
    store = MemoryLists()
    one, two = lists_over(store), lists_over(store)
    for _ in range(500):
        add(one, A, 1)
        add(two, A, 1)
    assert 1_000 <= store.list().bound(A) <= 2_000
    assert len(store.saves) <= 6 * 2 * 2 * 10


def test_slots_meet_in_the_reader_alone() -> None:
    store = MemoryLists()
    add(lists_over(store, 3), A, 5)
    add(lists_over(store, 4), A, 6)
    assert {slot for _, slot in store.stored} == {3, 4}
    assert store.list().bound(A) == 22


def test_what_the_store_did_not_take_is_stored_when_it_does_and_it_rests_meanwhile() -> None:
    store = MemoryLists()
    lists = lists_over(store)
    store.fault = Unavailable("made up")
    with pytest.raises(Unavailable):
        add(lists, A, 2)
    add(lists, A, 3)  # at rest: asks nothing, fails nothing
    store.fault = None
    add(lists, B, 1, now_ms=NOW_MS + 10_000)
    assert dict(store.list().bounds) == {A: 10, B: 2}


def test_what_there_was_no_time_for_is_stored_with_a_later_batch() -> None:
    store = MemoryLists()
    lists = lists_over(store)
    with pytest.raises(Unavailable):
        lists.add([Addition("likes", A, HOUR, 3)], NOW_MS, lambda: False)
    assert (store.loads, store.saves) == (0, [])
    add(lists, B, 1, now_ms=NOW_MS + 10_000)
    assert store.list().bound(A) == 6


def test_a_look_at_the_clock_comes_before_every_few_lists() -> None:
    store = MemoryLists()
    lists, looks = lists_over(store), iter([True] * 3)
    added = [Addition("likes", Target(f"t{n}", "x"), HOUR, 1) for n in range(15)]
    with pytest.raises(Unavailable):
        lists.add(added, NOW_MS, lambda: next(looks, False))
    assert (store.loads, store.saves) == (48, [])


def test_a_list_that_leaves_memory_comes_back_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "MOST_LISTS", 6)
    store = MemoryLists()
    lists = lists_over(store)
    for _ in range(4):
        add(lists, A, 1)
        add(lists, B, 1)
        assert len(lists._lists) == 6
    assert 4 <= store.list("hour", "post").bound(A) <= 8


def test_a_list_that_the_store_does_not_take_stays_in_memory_until_that_is_far_too_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(top, "MOST_LISTS", 6)
    store, lost = MemoryLists(), list[int]()
    lists = TopLists(store, 0, lost.append)
    store.fault = Unavailable("made up")
    with pytest.raises(Unavailable):
        add(lists, A, 1)
    for n in range(2):
        add(lists, Target(f"t{n}", "x"), 1)
    assert (len(lists._lists), lost) == (12, [])
    add(lists, Target("more", "x"), 1)
    assert (len(lists._lists), lost) == (12, [3]), "those of A's type"
    store.fault = None
    add(lists, Target("more", "x"), 1, now_ms=NOW_MS + 10_000)
    assert len(lists._lists) == 6
    assert [store.list("hour", name).bound(Target(name, "x")) for name in ("post", "t0", "t1", "more")] == [0, 2, 2, 4]
    assert store.list().bound(A) == 2


def test_a_list_in_the_store_is_bounded_and_its_floor_says_what_it_leaves_out() -> None:
    store = MemoryLists()
    lists = lists_over(store)
    lists.add([Addition("likes", Target("post", str(n)), HOUR, n + 1) for n in range(1_000)], NOW_MS, has_time)
    assert len(store.list().bounds) == top.KEPT
    assert store.list().floor == 2 * (1_000 - top.KEPT)


# --- what an answer proves --------------------------------------------------------------------------------------


def answered(numbers: Mapping[str, int], summary: Summary[Target], limit: int) -> tuple[list[str], int, int]:
    reads = 0

    def numbers_of(targets: Sequence[Target]) -> list[int]:
        nonlocal reads
        reads += len(targets)
        return [numbers.get(target.item_id, 0) for target in targets]

    first, proven = first_of(summary, limit, numbers_of)
    return [target.item_id for target, _ in first], proven, reads


def summary_of(bounds: Mapping[str, int], floor: int = 0) -> Summary[Target]:
    return Summary({Target("post", name): bound for name, bound in bounds.items()}, floor)


def test_reading_ends_when_nobody_unread_can_be_among_the_first() -> None:
    bounds = {f"{n:04d}": 10_000 // (n + 1) for n in range(1_000)}
    assert answered(bounds, summary_of(bounds, 9), 3) == (["0000", "0001", "0002"], 3, 16)


def test_bounds_that_are_too_high_are_read_past() -> None:
    bounds = {f"{n:04d}": 200 for n in range(40)}
    assert answered({**dict.fromkeys(bounds, 150), "0039": 199}, summary_of(bounds), 1) == (["0039"], 1, 40)


def test_an_answer_without_proof_says_so() -> None:
    bounds = {f"{n:04d}": 100 for n in range(1_000)}
    names, proven, reads = answered(dict.fromkeys(bounds, 90), summary_of(bounds, 100), 10)
    assert (len(names), proven, reads) == (10, 0, most_reads(10))
    assert answered({"a": 9}, summary_of({"a": 9}, 1), 2) == (["a"], 1, 1)
    assert answered({"a": 9}, summary_of({"a": 9}, 9), 1) == (["a"], 0, 1)


def test_of_an_answer_the_first_may_be_proven_alone() -> None:
    bounds = {"a": 100, "b": 80} | {f"{n:04d}": 10 for n in range(200)}
    numbers = {"a": 100, "b": 50} | {f"{n:04d}": 9 for n in range(200)}
    names, proven, _ = answered(numbers, summary_of(bounds, 10), 10)
    assert (names[:2], proven) == (["a", "b"], 2)


def test_two_answers_are_kept_and_the_others_are_their_beginnings() -> None:
    assert [top.kept_limit(limit) for limit in (1, 10, 11, 100)] == [10, 10, 100, 100]


def test_items_taken_back_drop_out() -> None:
    assert answered({"a": 0, "b": -1, "c": 1}, summary_of({"a": 5, "b": 5, "c": 1}), 10) == (["c"], 10, 3)


def test_bounds_that_a_number_is_far_above_prove_nothing() -> None:
    """It was counted before there were lists: others may have been, too."""
    assert answered({"a": 5, "b": 4}, summary_of({"a": 1, "b": 4}), 2) == (["a", "b"], 0, 2)
    assert answered({"a": 2, "b": 4}, summary_of({"a": 1, "b": 4}), 2) == (["b", "a"], 2, 2), "liked in between"


# --- hot items --------------------------------------------------------------------------------------------------


class MemoryHot:
    def __init__(self) -> None:
        self.reports: dict[str, Mapping[Target, int]] = {}
        self.calls: list[tuple[str, int]] = []

    def report(self, lane: Lane, rates: Mapping[Target, int], now_s: int) -> dict[Target, int]:
        self.reports[lane.id] = rates
        self.calls.append(("report", len(rates)))
        together = Tally[Target]()
        for said in self.reports.values():
            together.update(said)
        return dict(together)

    def widen(self, target: Target, buckets: int) -> None:
        self.calls.append(("widen", buckets))

    def announce(self, target: Target, buckets: int, now_s: int) -> None:
        self.calls.append(("announce", buckets))


def test_rates_go_by_the_times_of_the_records() -> None:
    assert hot.rates(liked(A, 600), 5) == {A: 600}
    assert hot.rates(liked(A, 600, seconds=60), 5) == {A: 10}
    assert hot.rates(liked(A, 60, seconds=60), 5) == {}
    assert hot.rates([], 5) == {}


def test_a_lane_reports_its_busiest_items_alone() -> None:
    deltas = [delta for n in range(20) for delta in liked(Target("post", str(n)), 10 + n)]
    assert set(hot.rates(deltas, 5)) == {Target("post", str(n)) for n in range(12, 20)}


@pytest.mark.parametrize(("rate", "buckets"), [(300, 4), (599, 4), (600, 8), (1_000, 8), (30_000, 64)])
def test_buckets_have_room_for_twice_the_rate_at_least(rate: int, buckets: int) -> None:
    assert buckets_for(rate, 300) == buckets


def test_an_items_record_is_widened_before_its_buckets_are_announced() -> None:
    store = MemoryHot()
    assert Detector(store, 300).look(LANE, liked(A, 400), 100) == {A: 4}
    assert store.calls == [("report", 1), ("widen", 4), ("announce", 4)]


def test_an_item_that_is_hot_over_many_lanes_is_hot() -> None:
    store = MemoryHot()
    found = [Detector(store, 300).look(Lane(f"shard-{n}", n), liked(A, 100), 100) for n in range(3)]
    assert found == [{}, {}, {A: 4}]


def test_where_nothing_is_liked_often_nothing_is_written_and_else_every_two_seconds() -> None:
    store = MemoryHot()
    detector = Detector(store, 300)
    assert detector.look(LANE, liked(A, 3), 100) == {}
    assert store.calls == []
    for now_s in (100, 101, 102, 103):
        detector.look(LANE, liked(A, 100), now_s)
    assert store.calls == [("report", 1)] * 2


class Hot:
    """What a process looks up, and the clock; a look is taken at once unless it is told to wait."""

    def __init__(self) -> None:
        self.now_ms, self.looks = 1_000_000, 0
        self.answer: Mapping[Target, int] | Exception = {A: 8}
        self.failures: list[Exception] = []
        self.waiting: list[Callable[[], None]] | None = None
        self.items = HotItems(self._read, lambda: self.now_ms, cast("Executor", self), self.failures.append)

    def submit(self, look: Callable[[int], None], now_ms: int) -> None:
        if self.waiting is None:
            look(now_ms)
        else:
            self.waiting.append(lambda: look(now_ms))

    def _read(self, _now_s: int) -> Mapping[Target, int]:
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_process_looks_every_two_seconds() -> None:
    made = Hot()
    assert (made.items.buckets(A), made.items.buckets(B), A in made.items, B in made.items) == (8, 0, True, False)
    made.now_ms, made.answer = made.now_ms + 1_999, {}
    assert (A in made.items, made.looks) == (True, 1)
    made.now_ms += 1
    assert (A in made.items, made.looks) == (False, 2)


@pytest.mark.parametrize("fault", [Unavailable("made up"), ValueError("a bug, or a right that is missing")])
def test_what_was_hot_stays_so_for_a_minute_when_looks_fail(fault: Exception) -> None:
    made = Hot()
    assert A in made.items
    begun_ms, made.answer = made.now_ms, fault
    made.now_ms = begun_ms + 2_000
    assert (A in made.items, made.looks, made.failures) == (True, 2, [fault])
    made.now_ms += 9_999
    assert (A in made.items, made.looks) == (True, 2), "left alone for 10 s"
    made.now_ms = begun_ms + 59_999
    assert A in made.items
    made.now_ms += 1
    assert A not in made.items
    made.now_ms, made.answer = made.now_ms + 10_000, {A: 4}
    assert made.items.buckets(A) == 4


def test_nobody_waits_for_a_look_and_no_second_is_begun_before_it_ends() -> None:
    made = Hot()
    made.waiting = []
    assert A not in made.items
    made.now_ms += 5_000
    assert A not in made.items
    (look,) = made.waiting
    look()
    assert A in made.items


def test_buckets_are_never_fewer_than_the_deployments() -> None:
    buckets = LikerBuckets(16, lambda _: 8, lambda _: 32)
    assert (buckets.now(A), buckets.ever(A)) == (16, 32)
    assert (LikerBuckets(2).now(A), LikerBuckets(2).ever(A)) == (2, 2)
