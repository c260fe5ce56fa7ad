"""What was liked or viewed most within a window: found by bounded lists, counted by the rows.

The aggregator adds what it folds to lists of an hour, of a day and of all time, one set for each item type and one
for all types together. A list holds bounds (sketch.py): no item has been added to more often than its bound says, and
none that is missing more often than the floor. A list is stored when one of its bounds has more than doubled since, so
what is stored tells no less than half of what was folded; and at the latest after a minute, so that little is lost with
a process that ends.

A reader takes candidates in the order of their bounds and reads their numbers from the counter rows, until nobody who
was not read can be among the first. The numbers are exact; an answer is called approximate unless it is proven that it
names the right items.

Bounds know no removals, which only lower a number, and count a repeated batch twice, which only raises a bound.
"""

from __future__ import annotations

import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal, Protocol

from . import series
from .errors import Unavailable
from .fold import Delta, Lane
from .model import ALL, Count, Counter, HourlyMetric, Metric, Target, day_of_label
from .sketch import SpaceSaving, Summary, merged

TopMetric = Literal["likes", "views"]
TopWindow = Literal["1h", "24h", "7d", "all"]
Grain = Literal["hour", "day", "all"]

SLOTS = 16  # of each list in the store: lanes share them, so that their number is bounded, however many shards come
CAPACITY = 2_048  # items of a list in memory: measured in docs/decisions/0018
KEPT = 256  # of them in the store: 1 to 75 KB, as long as the ids are; for 40 bytes 5 KB
MOST_LISTS = 64  # in memory, up to 60 MB
SLACK = 2  # how much more than its stored bound an item may have
_LATEST_MS = 60_000
_ROUNDS = 3  # of saving a list that others save too
_REST_MS = 10_000  # after the store failed

_METRICS: dict[Metric, TopMetric] = {"likes-by-hour": "likes", "views-by-hour": "views"}
_BY_HOUR: dict[TopMetric, HourlyMetric] = {"likes": "likes-by-hour", "views": "views-by-hour"}
_GRAINS: dict[TopWindow, Grain] = {"1h": "hour", "24h": "hour", "7d": "day", "all": "all"}
_REACH = {"hour": 24, "day": 7}  # how many periods back the longest window of a grain begins


@dataclass(frozen=True, slots=True)
class ListKey:
    """A list: of one item type, or with None of all; of an hour or a day since the epoch, or of all time (period 0)."""

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


def lists_of(metric: TopMetric, item_type: str, hour: int) -> Iterable[ListKey]:
    """Where an addition to an item of this type is noted."""
    for of_type in (item_type, None):
        yield ListKey(metric, of_type, "hour", hour)
        yield ListKey(metric, of_type, "day", hour // series.HOURS_PER_DAY)
        yield ListKey(metric, of_type, "all", 0)


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
    """A list in memory: all of it, and by itself what the store does not have. `stored` is None until it is loaded."""

    def __init__(self, now_ms: int) -> None:
        self.stored: Stored | None = None
        self._all = SpaceSaving[Target](CAPACITY)
        self._fresh = SpaceSaving[Target](CAPACITY)
        self._doubled = False
        self._settled_ms = now_ms

    def add(self, target: Target, number: int) -> None:
        self._fresh.add(target, number)
        self._judge(target, self._all.add(target, number))

    @property
    def has_more(self) -> bool:
        """Than the store."""
        return len(self._fresh) > 0

    def is_due(self, now_ms: int) -> bool:
        return self._doubled or (self.has_more and now_ms - self._settled_ms >= _LATEST_MS)

    def loaded(self, stored: Stored) -> None:
        """Goes on from what the store has, with what it has not."""
        self.stored = stored
        fresh = self._fresh.summary()
        self._all = SpaceSaving(CAPACITY, merged([stored.summary, fresh]))
        for target in fresh.bounds:
            self._judge(target, self._all.bound(target))

    def to_save(self) -> Stored:
        return Stored(self._all.summary().cut(KEPT), os.urandom(8))

    def saved(self, stored: Stored, now_ms: int) -> None:
        self.stored, self._settled_ms = stored, now_ms
        self._fresh, self._doubled = SpaceSaving(CAPACITY), False

    def _judge(self, target: Target, bound: int) -> None:
        if self.stored is not None and bound > SLACK * self.stored.summary.bound(target):
            self._doubled = True


class TopLists:
    """The lists of this process, each stored when it is due. Safe between threads.

    Two processes may add to one list, for a lane goes from one to another as Lambda likes: who finds that somebody
    else has saved meanwhile adds its own to that.
    """

    def __init__(self, store: ListStore) -> None:
        self._store = store
        self._lists: OrderedDict[Place, _List] = OrderedDict()
        self._lock = Lock()
        self._rests_until_ms = 0

    def add(self, lane: Lane, added: Iterable[Addition], now_ms: int) -> None:
        """Notes additions, and stores the lists that are due.

        One write unit per KB of each such list, and half a read unit per 4 KB of each that is met for the first time.
        Raises Unavailable when the store fails; nothing is lost as long as the process lives, and the store is left
        alone for 10 s.
        """
        with self._lock:
            self._note(lane.row % SLOTS, added, now_ms)
            if now_ms < self._rests_until_ms:
                return
            try:
                self._load({place: kept for place, kept in self._lists.items() if kept.stored is None})
                leaving = self._leaving()
                due = {place: kept for place, kept in self._lists.items() if kept.is_due(now_ms)}
                self._save(due | leaving, now_ms)
            except Unavailable:
                self._rests_until_ms = now_ms + _REST_MS
                raise

    def _note(self, slot: int, added: Iterable[Addition], now_ms: int) -> None:
        noted: dict[tuple[TopMetric, str, int], list[_List]] = {}
        for addition in added:
            which = (addition.metric, addition.target.item_type, addition.hour)
            if which not in noted:
                noted[which] = [self._used((key, slot), now_ms) for key in lists_of(*which) if key.is_open(now_ms)]
            for kept in noted[which]:
                kept.add(addition.target, addition.number)

    def _used(self, place: Place, now_ms: int) -> _List:
        if place not in self._lists:
            self._lists[place] = _List(now_ms)
        self._lists.move_to_end(place)
        return self._lists[place]

    def _leaving(self) -> dict[Place, _List]:
        """Makes room: those not used for longest, if they have anything that is not stored."""
        surplus = max(0, len(self._lists) - MOST_LISTS)
        leaving = dict(self._lists.popitem(last=False) for _ in range(surplus))
        return {place: kept for place, kept in leaving.items() if kept.has_more}

    def _load(self, unknown: Mapping[Place, _List]) -> None:
        for kept, stored in zip(unknown.values(), self._store.load(list(unknown)), strict=True):
            kept.loaded(stored)

    def _save(self, due: Mapping[Place, _List], now_ms: int) -> None:
        for _ in range(_ROUNDS):
            if not due:
                return
            writes = [(place, kept.to_save(), kept.stored or NOTHING) for place, kept in due.items()]
            contended = {}
            for (place, mine, _known), standing in zip(writes, self._store.save(writes), strict=True):
                if standing.version == mine.version:
                    due[place].saved(mine, now_ms)
                else:
                    due[place].loaded(standing)
                    contended[place] = due[place]
            due = contended


# --- reading them -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopKey:
    """Which list is asked for: without an item type, of all."""

    metric: TopMetric
    window: TopWindow
    item_type: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class Top:
    """Items and their exact numbers, largest first, then by type and id.

    `approximate`: it is not proven that no other item belongs among them.
    """

    entries: tuple[tuple[Target, int], ...]
    approximate: bool
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
        """Per key one Query of the lists and one for each candidate (most_reads); None: the store did not answer."""

        def top(key: TopKey) -> Top | None:
            try:
                return self._top(key, consistent=consistent)
            except Unavailable:
                return None

        return [top(key) for key in asked]

    def _top(self, key: TopKey, *, consistent: bool) -> Top:
        now_ms = self.now_ms()
        number_of: Callable[[Target], int]
        if key.window == "all":
            first, last = 0, 0

            def number_of(target: Target) -> int:
                if key.metric == "likes":
                    return self.totals.count(target, consistent=consistent).total
                return self.totals.total(Counter(target, ALL, "view"), consistent=consistent)["n"]
        else:
            span = series.window(key.window, now_ms)
            first, last = span.days if key.window == "7d" else (span.first_hour, span.last_hour)

            def number_of(target: Target) -> int:
                return span.sum(self.totals.days(target, _BY_HOUR[key.metric], *span.days), "n")

        lists = self.lists.between(key.metric, key.item_type, _GRAINS[key.window], first, last)

        def numbers_of(targets: Sequence[Target]) -> list[int]:
            numbers = [number for number in self.totals.each(targets, number_of) if number is not None]
            if len(numbers) < len(targets):
                raise Unavailable("the counts cannot be read just now; try again")
            return numbers

        entries, proven = first_of(merged(lists), key.limit, numbers_of)
        return Top(tuple(entries), not proven, now_ms)


def first_of(
    summary: Summary[Target], limit: int, numbers_of: Callable[[Sequence[Target]], Sequence[int]]
) -> tuple[list[tuple[Target, int]], bool]:
    """The first `limit` items by number, those above 0, and whether it is proven that no other belongs among them.

    It is, once the last of them has more than anybody who was not read can have.
    """
    candidates = sorted(summary.bounds, key=lambda target: (-summary.bounds[target], *_name(target)))
    read: list[tuple[Target, int]] = []
    while True:
        rest = candidates[len(read) : most_reads(limit)]
        unread = summary.bounds[candidates[len(read)]] if len(read) < len(candidates) else summary.floor
        first = sorted(((t, n) for t, n in read if n > 0), key=lambda entry: (-entry[1], *_name(entry[0])))[:limit]
        proven = unread == 0 or (len(first) == limit and first[-1][1] > SLACK * unread)
        if proven or not rest:
            return first, proven
        some = rest[: max(limit, 16)]
        read += zip(some, numbers_of(some), strict=True)


def _name(target: Target) -> tuple[str, str]:
    return target.item_type, target.item_id
