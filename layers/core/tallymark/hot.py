"""Hot items: those liked so often just now that one partition of an index, or one person, could spoil them for all.

Every lane says how often the items that it folds are liked a second, and so learns how often the other lanes fold them;
where it is too often in sum, it announces over how many buckets the item's likers are spread from now on. The number is
first written into the item's own record, where it only grows: it is how many buckets a reader of likers has to ask,
long after the item has cooled down.
"""

from __future__ import annotations

import heapq
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from .fold import Delta, Lane
from .model import Target

LASTS_S = 60  # an item stays hot for so long after it was last found so
RATES_LAST_S = 10  # what a lane said of its items
MOST_BUCKETS = 64
MOST_REPORTED = 8  # items of a lane
REPORTED_SHARE = 64  # of the threshold: an item just hot is found over as many lanes as that
_REPORT_EVERY_S = 2
_LOOK_EVERY_MS = 2_000
_LEFT_ALONE_MS = 10_000


def rates(deltas: Iterable[Delta], least: int) -> dict[Target, int]:
    """Likes a second of the items with `least` and more, by the times of their records: a late batch is no hot one."""
    tally: Tally[Target] = Tally()
    times: set[int] = set()
    for delta in deltas:
        if delta.counter.metric == "likes-by-hour":
            times.update(change.time_s for change in delta.changes)
            tally[delta.counter.target] += sum(change.delta for change in delta.changes if change.delta > 0)
    seconds = max(times) - min(times) + 1 if times else 1
    found = {target: number // seconds for target, number in tally.items() if number >= least * seconds}
    return dict(heapq.nlargest(MOST_REPORTED, found.items(), key=lambda entry: entry[1]))


def buckets_for(rate: int, hot_per_second: int) -> int:
    """A power of two, so many that each takes a quarter to a half of the threshold's rate, up to 64."""
    return min(MOST_BUCKETS, 1 << (2 * rate // hot_per_second).bit_length())


class HotStore(Protocol):
    """What the lanes tell each other. Raises Unavailable."""

    def report(self, lane: Lane, rates: Mapping[Target, int], now_s: int) -> dict[Target, int]:
        """Likes a second by item, of all lanes together."""
        ...

    def widen(self, target: Target, buckets: int) -> None:
        """Raises the largest number of buckets that was ever used for an item."""
        ...

    def announce(self, target: Target, buckets: int, now_s: int) -> None:
        """An item is hot, as of now."""
        ...


class Detector:
    """Marks hot items as one process finds them, a lane at a time. Safe between threads."""

    def __init__(self, store: HotStore, hot_per_second: int) -> None:
        self._store, self._hot_per_second = store, hot_per_second
        self._reported_s: dict[str, int] = {}
        self._lock = Lock()

    def look(self, lane: Lane, deltas: Iterable[Delta], now_s: int) -> dict[Target, int]:
        """The hot items among what a batch folded, and their buckets.

        Nothing is written as long as nothing is liked often. Else every 2 s a write unit per KB and a Query of what all
        lanes report, and two write units for each hot item. Raises Unavailable.
        """
        found = rates(deltas, max(1, self._hot_per_second // REPORTED_SHARE))
        if not found or not self._turn(lane, now_s):
            return {}
        together = self._store.report(lane, found, now_s)
        buckets = {
            target: buckets_for(rate, self._hot_per_second)
            for target in found
            if (rate := together[target]) >= self._hot_per_second
        }
        for target, number in buckets.items():  # first: from the announcement on, likes go there
            self._store.widen(target, number)
            self._store.announce(target, number, now_s)
        return buckets

    def _turn(self, lane: Lane, now_s: int) -> bool:
        with self._lock:
            if now_s - self._reported_s.get(lane.id, 0) < _REPORT_EVERY_S:
                return False
            self._reported_s = {
                lane_id: at for lane_id, at in self._reported_s.items() if now_s - at < _REPORT_EVERY_S
            } | {lane.id: now_s}
            return True


class HotItems:
    """What is hot, as this process knows it: looked up every 2 s while somebody asks, on the executor's time, so that
    nobody waits for it. Never raises: when a look fails, it says so to `failed`, and what was known stays for LASTS_S.
    Safe between threads.
    """

    def __init__(
        self,
        read: Callable[[int], Mapping[Target, int]],
        now_ms: Callable[[], int],
        executor: Executor,
        failed: Callable[[Exception], None],
    ) -> None:
        self._read, self._now_ms, self._executor, self._failed = read, now_ms, executor, failed
        self._known: Mapping[Target, int] = {}
        self._heard_ms = self._next_look_ms = 0
        self._lock = Lock()

    def __contains__(self, target: object) -> bool:
        return target in self._current()

    def buckets(self, target: Target) -> int:
        """Over how many buckets the likers of a hot item are spread; 0: it is not hot."""
        return self._current().get(target, 0)

    def _current(self) -> Mapping[Target, int]:
        now_ms = self._now_ms()
        if now_ms >= self._next_look_ms and self._turn(now_ms):
            self._executor.submit(self._look, now_ms)
        return self._known if now_ms - self._heard_ms < LASTS_S * 1000 else {}

    def _turn(self, now_ms: int) -> bool:
        """Whether this call is the one that looks; until its look has ended no other does."""
        with self._lock:
            if now_ms < self._next_look_ms:
                return False
            self._next_look_ms = now_ms + _LEFT_ALONE_MS
            return True

    def _look(self, now_ms: int) -> None:
        try:
            self._known = self._read(now_ms // 1000)
            self._heard_ms, self._next_look_ms = now_ms, now_ms + _LOOK_EVERY_MS
        except Exception as error:  # noqa: BLE001 (no like and no count fails because of it)
            self._failed(error)


@dataclass(frozen=True)
class LikerBuckets:
    """Over how many partitions of its index an item's likers are spread.

    `least` is the deployment's number; of a hot item `hot` says a larger one, and `widest` the largest there ever was.
    """

    least: int
    hot: Callable[[Target], int] = lambda _: 0
    widest: Callable[[Target], int] = lambda _: 0

    def now(self, target: Target) -> int:
        """For a like that is written now."""
        return max(self.least, self.hot(target))

    def ever(self, target: Target) -> int:
        """To find every liker. Raises Unavailable; one read unit."""
        return max(self.least, self.widest(target))
