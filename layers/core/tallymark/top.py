"""What was liked or viewed most within a window: found by bounded lists, counted by the rows.

The aggregator adds what it folds to lists of an hour, of a day and of all time, one set for each item type and one
for all types together. A list holds bounds (sketch.py): no item has been added to more often than its bound says, and
none that is missing more often than the floor. What is stored bounds what was folded, also what comes after: a process
stores as much on top as it has added itself, and stores anew before it adds more than that. So whatever ends a process,
no stored bound is too low, and none is more than twice what its item got, and the floor.

A reader takes candidates in the order of their bounds and reads their numbers from the counter rows, until nobody who
was not read can be among the first. The numbers are exact; an answer is called approximate unless it is proven that it
names the right items.

Bounds know no removals, which only lower a number, and count a repeated batch twice, which only raises a bound.
"""

from __future__ import annotations

import os
from collections import Counter as Tally
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal, Protocol

from . import series
from .errors import Unavailable
from .fold import Delta
from .model import ALL, Count, Counter, HourlyMetric, Metric, Target, day_of_label
from .sketch import SpaceSaving, Summary, merged

TopMetric = Literal["likes", "views"]
TopWindow = Literal["1h", "24h", "7d", "all"]
Grain = Literal["hour", "day", "all"]

SLOTS = 16  # of each list in the store: processes share them, so that their number is bounded, however many come
CAPACITY = 2_048  # items of a list in memory: measured in docs/decisions/0018
KEPT = 256  # of them in the store: 1 to 75 KB, as long as the ids are; for 40 bytes 5 KB
MOST_LISTS = 64  # in memory, up to 90 MB
MOST_GROUPS = 16  # of a batch, that have lists of their own: types come from callers, and each in use has three lists
OTHERS = "+"  # in place of an item type: what batches with more than that added to the rest of them
AT_ONCE = 16  # lists written between two looks at the clock: as many as there are threads (storage/dynamodb.py)
_ROUNDS = 3  # of saving a list that others save too
_REST_MS = 10_000  # after the store failed
_FAR_ABOVE = 2  # times its bound: more than an item is liked between the reading of a list and of its number

_METRICS: dict[Metric, TopMetric] = {"likes-by-hour": "likes", "views-by-hour": "views"}
_BY_HOUR: dict[TopMetric, HourlyMetric] = {"likes": "likes-by-hour", "views": "views-by-hour"}
_GRAINS: dict[TopWindow, Grain] = {"1h": "hour", "24h": "hour", "7d": "day", "all": "all"}
_REACH = {"hour": 24, "day": 7}  # how many periods back the longest window of a grain begins


@dataclass(frozen=True, slots=True)
class ListKey:
    """A list: of one item type, of OTHERS, or with None of all; of an hour or a day since the epoch, or of all time
    (period 0).
    """

    metric: TopMetric
    item_type: str | None
    grain: Grain
    period: int

    @property
    def expiry_s(self) -> int | None:
        """From when on no window reaches back to it, in seconds since the epoch; None: never."""
        if self.grain == "all":
            return None
        seconds = 3600 if self.grain == "hour" else series.SECONDS_PER_DAY
        return (self.period + 1 + _REACH[self.grain]) * seconds

    def is_open(self, now_ms: int) -> bool:
        """Whether a window reaches it: some views come very late."""
        return self.expiry_s is None or now_ms < self.expiry_s * 1000


@dataclass(frozen=True, slots=True)
class Addition:
    """What was added to an item in an hour (since the epoch)."""

    metric: TopMetric
    target: Target
    hour: int
    number: int


def lists_of(metric: TopMetric, item_type: str | None, hour: int) -> Iterable[ListKey]:
    """Where an addition of this hour is noted, of this type or with None of all."""
    yield ListKey(metric, item_type, "hour", hour)
    yield ListKey(metric, item_type, "day", hour // series.HOURS_PER_DAY)
    yield ListKey(metric, item_type, "all", 0)


def additions(deltas: Iterable[Delta]) -> list[Addition]:
    """What the deltas of a batch add to items, hour by hour, removals and bots left aside."""
    added: defaultdict[tuple[TopMetric, Target, int], int] = defaultdict(int)
    for delta in deltas:
        metric = _METRICS.get(delta.counter.metric)
        if metric is None:
            continue
        first_hour = day_of_label(delta.counter.label) * series.HOURS_PER_DAY
        for change in delta.changes:
            if change.delta > 0 and change.slot.startswith("n"):
                added[metric, delta.counter.target, first_hour + int(change.slot[1:])] += change.delta
    return [Addition(*which, number) for which, number in added.items()]


# --- keeping the lists ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """A list as it is in the store. Every writing has a version of its own; b"": nothing is stored."""

    summary: Summary[Target]
    version: bytes = b""


NOTHING = Stored(Summary())

Place = tuple[ListKey, int]  # a list and its slot


class ListStore(Protocol):
    """Where lists are kept. Raises Unavailable."""

    def load(self, places: Sequence[Place]) -> list[Stored]: ...

    def save(self, writes: Sequence[tuple[Place, Stored, Stored]]) -> list[Stored]:
        """Per (place, what to write, what is known to be there) what is there then: by its version, whose it is."""
        ...


class _List:
    """A list in memory. `stored` is None until it is loaded; `is_due`: the store does not bound what was added."""

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self.is_due = False
        self._all = SpaceSaving[Target](CAPACITY)
        self._fresh = SpaceSaving[Target](CAPACITY)  # what was added since the list was stored
        self._own: Summary[Target] = Summary()  # what was added before, by this process
        self._promised: Mapping[Target, int] = {}  # how much more of an item is stored, ever since, for this process

    def add(self, target: Target, number: int) -> None:
        self._fresh.add(target, number)
        self._judge(target, self._all.add(target, number))

    def loaded(self, stored: Stored) -> None:
        """Goes on from what the store has, with what it has not; what was promised there was promised for that."""
        together = merged([stored.summary, fresh := self._fresh.summary()])
        bounds = {t: max(together.floor, n - self._promised.get(t, 0)) for t, n in together.bounds.items()}
        self.stored, self._all = stored, SpaceSaving(CAPACITY, Summary(bounds, together.floor))
        for target in fresh.bounds:
            self._judge(target, self._all.bound(target))

    def to_save(self) -> Stored:
        """All that is known, and for what comes as much again as is one's own."""
        return Stored(merged([self._all.summary(), self._all_own()]).cut(KEPT), os.urandom(8))

    def saved(self, stored: Stored) -> None:
        self.stored, self.is_due = stored, False
        self._own, self._fresh = self._all_own(), SpaceSaving(CAPACITY)
        self._promised = {t: n for t, n in self._own.bounds.items() if t in stored.summary.bounds}

    def _all_own(self) -> Summary[Target]:
        return merged([self._own, self._fresh.summary()]).cut(CAPACITY)

    def _judge(self, target: Target, bound: int) -> None:
        if self.stored is not None and bound > self.stored.summary.bound(target):
            self.is_due = True


class TopLists:
    """The lists of this process, each stored when it is due. Safe between threads.

    A process takes a slot by chance, so that seldom two write one list at the same time; who finds that somebody else
    has saved meanwhile adds its own to that. `lost` is told how many lists memory had no room for before the store took
    them: what they had not stored is in no list.
    """

    def __init__(self, store: ListStore, slot: int, lost: Callable[[int], None]) -> None:
        self._store, self._slot, self._lost = store, slot, lost
        self._lists: OrderedDict[Place, _List] = OrderedDict()
        self._lock = Lock()
        self._rests_until_ms = 0

    def add(self, added: Sequence[Addition], now_ms: int, has_time: Callable[[], bool]) -> None:
        """Notes additions, and stores the lists that are due, as long as there is time.

        One write unit per KB of each such list, and half a read unit per 4 KB of each that is met for the first time.
        Raises Unavailable when the store fails or time is up; nothing is lost as long as the process lives, and the
        store is left alone for 10 s.
        """
        with self._lock:
            self._note(added, now_ms)
            try:
                if now_ms >= self._rests_until_ms:
                    self._settle(has_time)
            except Unavailable:
                self._rests_until_ms = now_ms + _REST_MS
                raise
            finally:
                self._make_room()

    def _note(self, added: Sequence[Addition], now_ms: int) -> None:
        weights: Tally[tuple[TopMetric, str, int]] = Tally()
        for addition in added:
            weights[addition.metric, addition.target.item_type, addition.hour] += addition.number
        own = {group for group, _ in weights.most_common(MOST_GROUPS)}
        noted: dict[tuple[TopMetric, str | None, int], list[_List]] = {}
        for addition in added:
            metric, item_type, hour = addition.metric, addition.target.item_type, addition.hour
            of_type = item_type if (metric, item_type, hour) in own else OTHERS
            for which in ((metric, of_type, hour), (metric, None, hour)):
                if which not in noted:
                    noted[which] = [self._used((key, self._slot)) for key in lists_of(*which) if key.is_open(now_ms)]
                for kept in noted[which]:
                    kept.add(addition.target, addition.number)

    def _used(self, place: Place) -> _List:
        if place not in self._lists:
            self._lists[place] = _List()
        self._lists.move_to_end(place)
        return self._lists[place]

    def _settle(self, has_time: Callable[[], bool]) -> None:
        unknown = [place for place, kept in self._lists.items() if kept.stored is None]
        for places in _at_once(unknown):
            _require(has_time)
            for place, stored in zip(places, self._store.load(places), strict=True):
                self._lists[place].loaded(stored)
        for places in _at_once([place for place, kept in self._lists.items() if kept.is_due]):
            self._save({place: self._lists[place] for place in places}, has_time)

    def _save(self, due: Mapping[Place, _List], has_time: Callable[[], bool]) -> None:
        for _ in range(_ROUNDS):
            if not due:
                return
            _require(has_time)
            writes = [(place, kept.to_save(), kept.stored or NOTHING) for place, kept in due.items()]
            contended = {}
            for (place, mine, _known), standing in zip(writes, self._store.save(writes), strict=True):
                if standing.version == mine.version:
                    due[place].saved(mine)
                else:
                    due[place].loaded(standing)
                    contended[place] = due[place]
            due = contended
        if due:
            raise Unavailable("others write the same lists; with the next batch")

    def _make_room(self) -> None:
        """Lets go of lists not used for longest; of those that the store does not have, only what is far too much."""
        surplus = len(self._lists) - MOST_LISTS
        stored = [place for place, kept in self._lists.items() if kept.stored is not None and not kept.is_due]
        for place in stored[: max(0, surplus)]:
            del self._lists[place]
        lost = max(0, len(self._lists) - 2 * MOST_LISTS)
        for _ in range(lost):
            self._lists.popitem(last=False)
        if lost:
            self._lost(lost)


def _at_once(places: Sequence[Place]) -> list[Sequence[Place]]:
    return [places[i : i + AT_ONCE] for i in range(0, len(places), AT_ONCE)]


def _require(has_time: Callable[[], bool]) -> None:
    if not has_time():
        raise Unavailable("no time is left; with the next batch")


# --- reading them -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopKey:
    """Which list is asked for: without an item type, of all."""

    metric: TopMetric
    window: TopWindow
    item_type: str | None
    limit: int  # one of LIMITS


LIMITS = (10, 100)  # answers that are kept: a shorter one is the beginning of one of them


def kept_limit(limit: int) -> int:
    """The shortest of the answers that are kept which begins with so many items."""
    return next(kept for kept in LIMITS if kept >= limit)


@dataclass(frozen=True, slots=True)
class Top:
    """Items and their exact numbers, largest first, then by type and id.

    `proven`: so many of the first are the right ones for certain; as many as were asked for, if there are no more.
    """

    entries: tuple[tuple[Target, int], ...]
    proven: int
    as_of_ms: int


class Lists(Protocol):
    """The stored lists."""

    def between(
        self, metric: TopMetric, item_type: str | None, grain: Grain, first: int, last: int
    ) -> list[Summary[Target]]:
        """Those of the periods from first to last, of every slot."""
        ...


class Totals(Protocol):
    """The rows of counters, read and summed."""

    def count(self, target: Target, *, consistent: bool) -> Count: ...

    def total(self, counter: Counter, *, consistent: bool) -> dict[str, int]: ...

    def days(self, target: Target, metric: HourlyMetric, first: int, last: int) -> Mapping[int, Mapping[str, int]]: ...

    def each(self, asked: Sequence[Target], read: Callable[[Target], int]) -> list[int | None]: ...


def most_reads(limit: int) -> int:
    """How many candidates' numbers one answer may read."""
    return 3 * limit + 50


@dataclass(frozen=True, slots=True)
class TopRows:
    """The first of the lists, with their numbers as they stand in the counters."""

    lists: Lists
    totals: Totals
    now_ms: Callable[[], int]

    def counts(self, asked: Sequence[TopKey], *, consistent: bool) -> list[Top | None]:
        """Per key one Query of the lists, two if it names a type, and one for each candidate (most_reads); None: the
        store did not answer.
        """

        def top(key: TopKey) -> Top | None:
            try:
                return self._top(key, consistent=consistent)
            except Unavailable:
                return None

        return [top(key) for key in asked]

    def _top(self, key: TopKey, *, consistent: bool) -> Top:
        now_ms = self.now_ms()
        number_of = self._number_of(key, now_ms, consistent=consistent)

        def numbers_of(targets: Sequence[Target]) -> list[int]:
            numbers = [number for number in self.totals.each(targets, number_of) if number is not None]
            if len(numbers) < len(targets):
                raise Unavailable("the counts cannot be read just now; try again")
            return numbers

        entries, proven = first_of(merged(self._lists_of(key, now_ms)), key.limit, numbers_of)
        return Top(tuple(entries), proven, now_ms)

    def _lists_of(self, key: TopKey, now_ms: int) -> list[Summary[Target]]:
        """The window's, for a type also what of it went into the lists of OTHERS."""
        grain, periods = _GRAINS[key.window], _periods(key.window, now_ms)
        lists = self.lists.between(key.metric, key.item_type, grain, *periods)
        if key.item_type is None:
            return lists
        others = self.lists.between(key.metric, OTHERS, grain, *periods)
        return lists + [summary.of(lambda target: target.item_type == key.item_type) for summary in others]

    def _number_of(self, key: TopKey, now_ms: int, *, consistent: bool) -> Callable[[Target], int]:
        """How to read the number by which an item is ranked."""
        if key.window != "all":
            span = series.window(key.window, now_ms)
            return lambda target: span.sum(self.totals.days(target, _BY_HOUR[key.metric], *span.days), "n")
        if key.metric == "likes":
            return lambda target: self.totals.count(target, consistent=consistent).total
        return lambda target: self.totals.total(Counter(target, ALL, "view"), consistent=consistent)["n"]


def _periods(window: TopWindow, now_ms: int) -> tuple[int, int]:
    """The first and the last period of the lists that a window is made of."""
    if window == "all":
        return 0, 0
    span = series.window(window, now_ms)
    return span.days if _GRAINS[window] == "day" else (span.first_hour, span.last_hour)


def first_of(
    summary: Summary[Target], limit: int, numbers_of: Callable[[Sequence[Target]], Sequence[int]]
) -> tuple[list[tuple[Target, int]], int]:
    """The first `limit` items by number, those above 0, and how many of these are proven (Top).

    Those are that have more than anybody who was not read can have. Nothing is proven by bounds that a number is
    far above: additions are missing in them, such as what was counted before there were lists.
    """
    candidates = sorted(summary.bounds, key=lambda target: (-summary.bounds[target], *_name(target)))
    read: list[tuple[Target, int]] = []
    while True:
        rest = candidates[len(read) : most_reads(limit)]
        unread = summary.bounds[candidates[len(read)]] if len(read) < len(candidates) else summary.floor
        first = sorted(((t, n) for t, n in read if n > 0), key=lambda entry: (-entry[1], *_name(entry[0])))[:limit]
        proven = limit if unread == 0 else sum(number > unread for _, number in first)
        if proven == limit or not rest:
            trusted = all(number <= _FAR_ABOVE * summary.bounds[target] for target, number in read)
            return first, proven if trusted else 0
        some = rest[: max(limit, 16)]
        read += zip(some, numbers_of(some), strict=True)


def _name(target: Target) -> tuple[str, str]:
    return target.item_type, target.item_id
