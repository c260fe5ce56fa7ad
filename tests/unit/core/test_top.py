"""Top lists: what a batch adds to which, when they are stored, what an answer proves, and which items are hot."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence

import pytest

from tallymark import hot, series, top
from tallymark.errors import Unavailable
from tallymark.fold import Change, Delta, Lane, fold
from tallymark.hot import Detector, HotItems, LikerBuckets, buckets_for
from tallymark.model import MS_PER_HOUR, Counter, Target, by_hour
from tallymark.sketch import Summary, merged
from tallymark.top import Addition, ListKey, Place, Stored, TopLists, additions, first_of, lists_of, most_reads

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


def add(lists: TopLists, target: Target, number: int, *, lane: Lane = LANE, hour: int = HOUR) -> None:
    lists.add(lane, [Addition("likes", target, hour, number)], NOW_MS)


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


def test_an_addition_belongs_to_six_lists() -> None:
    assert set(lists_of("views", "post", HOUR)) == {
        ListKey("views", item_type, grain, period) for item_type in ("post", None) for grain, period in PERIODS
    }


@pytest.mark.parametrize(("window", "grain"), [("1h", "hour"), ("24h", "hour"), ("7d", "day")])
def test_a_list_is_there_as_long_as_a_window_reaches_back_to_it(window: series.WindowName, grain: top.Grain) -> None:
    span = series.window(window, NOW_MS)
    period = span.first_hour if grain == "hour" else span.days[0]
    expiry_s = ListKey("likes", None, grain, period).expiry_s
    assert expiry_s is not None
    assert expiry_s * 1000 > NOW_MS


def test_what_no_window_reaches_any_more_is_in_no_list() -> None:
    store = MemoryLists()
    add(TopLists(store), A, 1, hour=HOUR - 25)
    assert {key.grain for key, _ in store.stored} == {"day", "all"}
    add(TopLists(store), A, 1, hour=HOUR - 24 * 9)
    assert store.list("day").bound(A) == 1


# --- when a list is stored --------------------------------------------------------------------------------------


def test_an_item_is_stored_with_its_first_like_and_whenever_it_has_more_than_doubled() -> None:
    store = MemoryLists()
    lists = TopLists(store)
    stored = []
    for _ in range(16):
        add(lists, A, 1)
        stored.append(store.list().bound(A))
    assert stored == [1, 1, 3, 3, 3, 3, 7, 7, 7, 7, 7, 7, 7, 7, 15, 15]


def test_a_new_process_goes_on_from_what_its_slot_has() -> None:
    store = MemoryLists()
    add(TopLists(store), A, 5)
    second = TopLists(store)
    add(second, A, 1)
    add(second, B, 6)
    assert dict(store.list().bounds) == {A: 6, B: 6}


def test_two_processes_that_share_a_list_lose_nothing_of_each_other() -> None:
    store = MemoryLists()
    one, two = TopLists(store), TopLists(store)
    add(one, A, 5)
    add(two, B, 5)
    add(one, A, 7)
    add(two, A, 20)
    add(one, B, 20)
    assert dict(store.list().bounds) == {A: 32, B: 25}


def test_lanes_of_different_slots_meet_in_the_reader_alone() -> None:
    store = MemoryLists()
    lists = TopLists(store)
    add(lists, A, 5)
    add(lists, A, 6, lane=Lane("shard-2", 4))
    add(lists, A, 50, lane=Lane("shard-3", 3 + top.SLOTS))
    assert {slot for _, slot in store.stored} == {3, 4}
    assert store.list().bound(A) == 61


def test_what_the_store_did_not_take_is_stored_when_it_does_and_it_rests_meanwhile() -> None:
    store = MemoryLists()
    lists = TopLists(store)
    store.fault = Unavailable("made up")
    with pytest.raises(Unavailable):
        add(lists, A, 2)
    add(lists, A, 3)  # at rest: asks nothing, fails nothing
    store.fault = None
    lists.add(LANE, [Addition("likes", B, HOUR, 1)], NOW_MS + 10_000)
    assert dict(store.list().bounds) == {A: 5, B: 1}


def test_what_has_not_doubled_is_stored_after_a_minute() -> None:
    store = MemoryLists()
    lists = TopLists(store)
    add(lists, A, 9)
    add(lists, A, 1)
    lists.add(LANE, [Addition("views", B, HOUR, 1)], NOW_MS + 59_999)
    assert store.list().bound(A) == 9
    lists.add(LANE, [], NOW_MS + 60_000)
    assert store.list().bound(A) == 10
    saves = len(store.saves)
    lists.add(LANE, [], NOW_MS + 900_000)
    assert len(store.saves) == saves


def test_a_list_that_leaves_memory_takes_to_the_store_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "MOST_LISTS", 6)
    store = MemoryLists()
    lists = TopLists(store)
    for _ in range(4):
        add(lists, A, 1)
    assert store.list("hour", "post").bound(A) == 3
    add(lists, B, 1)
    assert store.list("hour", "post").bound(A) == 4
    assert len(lists._lists) == 6


def test_a_list_in_the_store_is_bounded_and_its_floor_says_what_it_leaves_out() -> None:
    store = MemoryLists()
    lists = TopLists(store)
    lists.add(LANE, [Addition("likes", Target("post", str(n)), HOUR, n + 1) for n in range(1_000)], NOW_MS)
    assert len(store.list().bounds) == top.KEPT
    assert store.list().floor == 1_000 - top.KEPT


# --- what an answer proves --------------------------------------------------------------------------------------


def answered(numbers: Mapping[str, int], summary: Summary[Target], limit: int) -> tuple[list[str], bool, int]:
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
    assert answered(bounds, summary_of(bounds, 9), 3) == (["0000", "0001", "0002"], True, 16)


def test_bounds_that_lag_by_half_are_read_past() -> None:
    bounds = {f"{n:04d}": 100 for n in range(40)}
    names, proven, reads = answered({**dict.fromkeys(bounds, 150), "0039": 199}, summary_of(bounds), 1)
    assert (names, proven, reads) == (["0039"], True, 40)


def test_an_answer_without_proof_says_so() -> None:
    bounds = {f"{n:04d}": 100 for n in range(1_000)}
    names, proven, reads = answered(dict.fromkeys(bounds, 90), summary_of(bounds, 100), 10)
    assert (len(names), proven, reads) == (10, False, most_reads(10))
    assert answered({"a": 9}, summary_of({"a": 9}, 1), 2) == (["a"], False, 1)


def test_items_taken_back_drop_out() -> None:
    assert answered({"a": 0, "b": -1, "c": 1}, summary_of({"a": 5, "b": 5, "c": 1}), 10) == (["c"], True, 3)


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

    def announce(self, lane: Lane, buckets: Mapping[Target, int], now_s: int) -> None:
        self.calls.append(("announce", max(buckets.values())))


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


def test_a_process_looks_every_two_seconds_and_does_without_when_the_store_fails() -> None:
    now_ms, looks = 0, 0
    answer: Mapping[Target, int] | None = {A: 8}

    def read(_now_s: int) -> Mapping[Target, int]:
        nonlocal looks
        looks += 1
        if answer is None:
            raise Unavailable("made up")
        return answer

    items = HotItems(read, lambda: now_ms)
    assert (items.buckets(A), items.buckets(B), A in items, B in items, looks) == (8, 0, True, False, 1)
    now_ms, answer = 2_000, None
    assert (A in items, looks) == (False, 2)
    now_ms, answer = 11_999, {A: 8}
    assert (A in items, looks) == (False, 2)
    now_ms = 12_000
    assert (A in items, looks) == (True, 3)


def test_buckets_are_never_fewer_than_the_deployments() -> None:
    buckets = LikerBuckets(16, lambda _: 8, lambda _: 32)
    assert (buckets.now(A), buckets.ever(A)) == (16, 32)
    assert (LikerBuckets(2).now(A), LikerBuckets(2).ever(A)) == (2, 2)
