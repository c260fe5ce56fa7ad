"""Unique visitors: sketches that are live in Valkey and kept in the table of counters by a write-behind.

A sketch is a HyperLogLog of one target and one hour, one day or all time. Adding to it and merging into it may be
repeated at will, so only losses have to be guarded against. Two rules make that none can happen:

- Every view that was acknowledged is in a sketch that is stored, or it was accepted at or after the moment `since`,
  from which on the events are replayed when live sketches were lost. `since` moves on when all that was live has
  been stored.
- Before a view that is older than that is added (the stream is behind, or brings it again), `since` moves back to it.

Live sketches stand in groups, each with a book that says which of its sketches are not stored yet. A group begins an
era when it is rebuilt, and the era ends with anything of it that was lost: until the next is whole, nobody is told a
number. One process at a time has the turn to rebuild and to store; a turn that was taken over can do no harm, since it
cannot move `since` any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from . import series
from .errors import Unavailable
from .events import Viewed
from .model import ALL, MS_PER_HOUR, Target, day_label, day_of_label
from .views import ViewWindow

LATE_MS = 60_000  # the stream brings a view within a second or so; what takes longer moves `since` back
# The stream forgets after 24 h. What was out of sight for nearly as long is no longer taken to come by it.
FORGOTTEN_MS = 20 * MS_PER_HOUR
MS_PER_DAY = series.SECONDS_PER_DAY * 1000

_HOURS_KEPT_S = 2 * series.SECONDS_PER_DAY  # the window of 24 h reaches back 25
_AT_ONCE = 1_000  # digests of one addition
_STORED_AT_ONCE = 50  # sketches of up to 12 KB
_UNSTORED_AT_MOST = 2_000  # sketches of a rebuild: up to 24 MB that Valkey may not evict
_TRIES = 3  # of a reader whose snapshots are stored anew meanwhile


@dataclass(frozen=True, slots=True)
class Sketch:
    """Which sketch: `all`, `day-2026-01-31` or `hour-2026-01-31T12` of a target."""

    target: Target
    label: str


@dataclass(frozen=True, slots=True)
class Addition:
    """Digests of people who viewed a target within one hour, and when the first of these views was accepted."""

    sketches: tuple[Sketch, ...]
    first_ms: int
    visitors: tuple[bytes, ...]

    @property
    def target(self) -> Target:
        return self.sketches[0].target


@dataclass(frozen=True, slots=True)
class Added:
    """The era that took an addition; None if it is late, or if its group is not whole."""

    era: str | None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """A live sketch as one value: its bytes, and the mark by which a later change is told."""

    mark: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored sketch, and the version by which another is told."""

    data: bytes
    version: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """What live sketches say: a count, or which of them have to be loaded first; neither: it is not known."""

    count: int | None = None
    missing: tuple[str, ...] = ()
    is_nobody_live: bool = False  # all are missing, and none has anything that is not stored
    era: str = ""
    stores: str = ""  # of the group so far: snapshots that were read before one more of them may be out of date


@dataclass(frozen=True, slots=True)
class Rebuild:
    """How far the events have been replayed into an era."""

    era: str
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Moments in milliseconds since the epoch."""

    since_ms: int | None = None  # what was acknowledged and accepted before is stored; None: nothing ever was
    retreats: int = 0  # how often `since_ms` was moved back
    replayed_ms: int = 0  # when a replay of all events that were kept was last begun
    is_replaying: bool = False  # until everything is stored again

    @property
    def unstored_from_ms(self) -> int | None:
        """Since when it has not come about that everything was stored; None: nobody has tried."""
        return max(self.since_ms or 0, self.replayed_ms) or None


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to rebuild and to store, and how things stand."""

    number: int
    standing: Standing
    rebuild: Rebuild | None = None

    @property
    def since_ms(self) -> int:
        """From when on events have to be replayed."""
        return 0 if self.standing.is_replaying else self.standing.since_ms or 0


@dataclass(frozen=True, slots=True)
class Page:
    """Views as recorded: (when accepted, what), and where the next page begins."""

    events: Sequence[tuple[int, Sequence[Viewed]]]
    cursor: str | None


class LiveSketches(Protocol):
    """Sketches in Valkey. Every call raises Unavailable while it does not answer, and may be repeated."""

    def add(self, additions: Sequence[Addition], *, era: str | None = None) -> list[Added]: ...
    def missing(self) -> list[int]: ...
    def group_of(self, target: Target) -> int: ...
    def begin(self, groups: Sequence[int], era: str) -> bool: ...
    def finish(self, groups: Sequence[int], era: str, since_ms: int, retreats: int) -> None: ...
    def forget(self) -> None: ...
    def late_before(self, since_ms: int, retreats: int) -> list[str | None]: ...
    def retreat(self, since_ms: int, retreats: int) -> None: ...
    def unstored(self, eras: Mapping[int, str]) -> dict[Sketch, str]: ...
    def merge(self, sketches: Mapping[Sketch, str], stored: Mapping[Sketch, Snapshot]) -> dict[Sketch, Live] | None: ...
    def stored(self, marks: Mapping[Sketch, tuple[str, str]]) -> None: ...
    def count(self, target: Target, labels: Sequence[str]) -> Seen: ...
    def load(self, target: Target, seen: Seen, stored: Mapping[str, bytes]) -> None: ...


class StoredSketches(Protocol):
    """Snapshots in the table of counters."""

    def get(self, sketches: Sequence[Sketch]) -> dict[Sketch, Snapshot]: ...
    def put(self, changes: Sequence[tuple[Sketch, bytes, Snapshot | None]]) -> list[bool]: ...
    def between(self, target: Target, first: str, last: str) -> dict[str, bytes]: ...


class Log(Protocol):
    """The events that are kept, and whose turn it is."""

    def events(self, since_ms: int, cursor: str | None) -> Page: ...
    def take_turn(self, now_ms: int, until_ms: int) -> Turn | None: ...
    def restart(self, turn: Turn, now_ms: int) -> Turn: ...
    def save(self, turn: Turn, rebuild: Rebuild | None) -> Turn: ...
    def move_on(self, turn: Turn, since_ms: int) -> bool: ...
    def retreat(self, since_ms: int) -> int: ...
    def end(self, turn: Turn) -> None: ...
    def standing(self) -> Standing: ...


@dataclass(frozen=True)
class Stores:
    """What visitors are kept in."""

    live: LiveSketches
    stored: StoredSketches
    log: Log


# --- labels -----------------------------------------------------------------------------------------------------


def hour_label(hour: int) -> str:
    day, of_day = divmod(hour, series.HOURS_PER_DAY)
    return f"hour-{day_label(day)}T{of_day:02d}"


def labels_of(window: ViewWindow, now_ms: int) -> list[str]:
    """The sketches whose union a window is, ascending: hours for 24h, days for 7d and 30d."""
    if window == "all":
        return [ALL]
    span = series.window(window, now_ms)
    if window == "24h":
        return [hour_label(hour) for hour in range(span.first_hour, span.last_hour + 1)]
    first, last = span.days
    return [f"day-{day_label(day)}" for day in range(first, last + 1)]


def expiry_s(label: str, series_days: int) -> int | None:
    """When a snapshot may go, in seconds since the epoch; None for that of all time."""
    kind, _, moment = label.partition("-")
    if kind == ALL:
        return None
    end_s = (day_of_label(moment[:10]) + 1) * series.SECONDS_PER_DAY
    return end_s + (_HOURS_KEPT_S if kind == "hour" else series_days * series.SECONDS_PER_DAY)


def _labels_at(hour: int, now_ms: int) -> Iterator[str]:
    """The sketches that views of an hour are in: those that a window reaches, or did an hour or a day ago."""
    yield ALL
    day = hour // series.HOURS_PER_DAY
    if day >= series.window("30d", now_ms).days[0] - 1:
        yield f"day-{day_label(day)}"
    if hour >= series.window("24h", now_ms).first_hour - 1:
        yield hour_label(hour)


def additions_of(events: Iterable[tuple[int, Sequence[Viewed]]], now_ms: int) -> list[Addition]:
    """What events add to sketches, target by target and hour by hour, in parts of 1,000 digests."""
    visitors: defaultdict[tuple[Target, int], dict[bytes, None]] = defaultdict(dict)
    first_ms: dict[tuple[Target, int], int] = {}
    for at_ms, viewed in events:
        for one in viewed:
            if one.visitors:
                place = (one.target, at_ms // MS_PER_HOUR)
                visitors[place] |= dict.fromkeys(one.visitors)
                first_ms[place] = min(first_ms.get(place, at_ms), at_ms)
    additions = []
    for (target, hour), digests in visitors.items():
        sketches = tuple(Sketch(target, label) for label in _labels_at(hour, now_ms))
        parts = _parts(tuple(digests), _AT_ONCE)
        additions += [Addition(sketches, first_ms[target, hour], part) for part in parts]
    return additions


# --- what the stream brings -------------------------------------------------------------------------------------


def record(
    stores: Stores,
    additions: Sequence[Addition],
    *,
    keep: Callable[[], Kept | None],
    pauses: Iterator[float],
    sleep: Callable[[float], None],
) -> None:
    """Adds them; when it returns they outlive every loss of Valkey. Safe to repeat.

    `keep` takes the turn. Raises Unavailable if a rebuild takes longer than the pauses: the batch then comes again.
    Views by nobody known add nothing, but find out as well that sketches are missing, as on the first day.
    """
    if not additions and stores.live.missing():
        keep()
    todo = additions
    while todo := _left(stores, todo):
        kept = keep()
        if kept is not None and kept.whole:
            continue
        if (pause := next(pauses, None)) is None:
            raise Unavailable("the visitors are being rebuilt; try again")
        sleep(pause)


def _left(stores: Stores, additions: Sequence[Addition]) -> list[Addition]:
    """Adds them; returns those for which that could not be done now."""
    left, late = _add(stores.live, additions)
    while late:  # once, as a rule: a turn that was taken between these lines makes them late again
        oldest_ms = min(one.first_ms for one in late)
        stores.live.retreat(oldest_ms, stores.log.retreat(oldest_ms))
        more, late = _add(stores.live, late)
        left += more
    return left


def _add(live: LiveSketches, additions: Sequence[Addition]) -> tuple[list[Addition], list[Addition]]:
    """Adds them; returns those whose group is not whole, and those that are late."""
    answers = live.add(additions)
    refused = [(one, added.late) for one, added in zip(additions, answers, strict=True) if added.era is None]
    return [one for one, is_late in refused if not is_late], [one for one, is_late in refused if is_late]


# --- storing ----------------------------------------------------------------------------------------------------


def settle(stores: Stores, sketches: Mapping[Sketch, str], is_time_over: Callable[[], bool]) -> bool:
    """Stores what these sketches hold now, each of its era; False if an era has ended, or time.

    Per sketch one read unit per 4 KB and one write unit per KB: 13 for a full one of 12 KB. Ending anywhere is
    harmless: a sketch leaves the book after it is stored, and only as it was stored.
    """
    todo = list(sketches)
    while todo:
        part, todo = todo[:_STORED_AT_ONCE], todo[_STORED_AT_ONCE:]
        before = stores.stored.get(part)
        live = stores.live.merge({sketch: sketches[sketch] for sketch in part}, before)
        if live is None or is_time_over():
            return False
        # On condition that the snapshot is still the one merged: a fuller one is never replaced by a poorer.
        put = stores.stored.put([(sketch, one.data, before.get(sketch)) for sketch, one in live.items()])
        done = {sketch for sketch, is_put in zip(live, put, strict=True) if is_put}
        stores.live.stored({sketch: (sketches[sketch], live[sketch].mark) for sketch in done})
        todo += [sketch for sketch in live if sketch not in done]
    return True


def store(stores: Stores, turn: Turn, now_ms: int, is_time_over: Callable[[], bool]) -> bool:
    """Stores all that is live and not stored, and lets `since` move on; False if that has to be tried again.

    So it has when something late comes meanwhile: while the stream is behind, `since` stays where it is.
    """
    since_ms, retreats = max(turn.since_ms, now_ms - LATE_MS), turn.standing.retreats
    # From here on nothing accepted before `since` comes in, unless `since` is moved back first, which this turn then
    # fails to move on. So what is unstored now is all that has to be stored before `since` may move there.
    eras = stores.live.late_before(since_ms, retreats)
    whole = {group: era for group, era in enumerate(eras) if era is not None}
    if len(whole) < len(eras):
        return False
    if not settle(stores, stores.live.unstored(whole), is_time_over):
        return False
    return stores.live.late_before(since_ms, retreats) == eras and stores.log.move_on(turn, since_ms)


# --- rebuilding -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Kept:
    """What came of a turn."""

    whole: bool = False  # every group has all its visitors
    stored: bool = False  # and all that they held as the turn began is stored
    replayed: int = 0  # events
    is_server_doubted: bool = False  # it seemed to be another so often that its name is no longer looked at


def keep(
    stores: Stores,
    *,
    again: bool,
    now_ms: int,
    until_ms: int,
    event_days: int,
    new_era: Callable[[], str],
    is_time_over: Callable[[], bool],
    tell_lost: Callable[[int, int], None],
) -> Kept | None:
    """One turn: rebuilds what is missing, then stores what is new. None while another has the turn.

    `again` replays every event that is kept, into new eras. So does a `since` that is as old as what the stream
    forgets, because no turn could move it on, or because a view came so late: others before it may be gone. A replay
    reads the table of events once, a read unit per 4 KB. `tell_lost` is told of the time, from and to in milliseconds,
    whose views may be missing for good: their events have expired.
    """
    turn = stores.log.take_turn(now_ms, until_ms)
    if turn is None:
        return None
    kept = Kept()
    try:
        since_ms, from_ms = turn.standing.since_ms, turn.standing.unstored_from_ms
        if again or from_ms is None or now_ms - from_ms > FORGOTTEN_MS:
            oldest_ms = now_ms - event_days * MS_PER_DAY
            if since_ms is not None and since_ms < oldest_ms:
                tell_lost(since_ms, oldest_ms)
            stores.live.forget()  # first: dying between the two, the next turn comes here again
            turn = stores.log.restart(turn, now_ms)
        kept.whole = _rebuild(stores, turn, kept, now_ms, new_era, is_time_over)
        kept.stored = kept.whole and store(stores, turn, now_ms, is_time_over)
    finally:
        stores.log.end(turn)
    return kept


def _rebuild(
    stores: Stores, turn: Turn, kept: Kept, now_ms: int, new_era: Callable[[], str], is_time_over: Callable[[], bool]
) -> bool:
    """Replays into every group that is not whole the events since `since`; False if time is over before.

    Stores what it has while it goes on, and first what an earlier turn left: until it is stored Valkey has no room
    to make. What is stored of an era that is not whole is some of what it will hold, and merged as everything is.
    """
    is_room = turn.rebuild is None
    while not is_time_over():
        missing = stores.live.missing()
        if not missing:
            return True
        if (rebuild := turn.rebuild) is None:
            rebuild = Rebuild(new_era())
            # This also reads how far `since` may have been moved back for a group that has been lost since.
            turn = stores.log.save(turn, rebuild)
            kept.is_server_doubted |= stores.live.begin(missing, rebuild.era)
        unstored = stores.live.unstored(dict.fromkeys(missing, rebuild.era))
        if not is_room or len(unstored) > _UNSTORED_AT_MOST:
            settle(stores, unstored, is_time_over)
            is_room = True
            continue
        page = stores.log.events(turn.since_ms, rebuild.cursor)
        kept.replayed += len(page.events)
        additions = [one for one in additions_of(page.events, now_ms) if stores.live.group_of(one.target) in missing]
        turn = _replayed(stores, turn, rebuild, page.cursor, additions, missing)
    return False


def _replayed(
    stores: Stores, turn: Turn, rebuild: Rebuild, cursor: str | None, additions: list[Addition], groups: list[int]
) -> Turn:
    """Adds a page; after the last the groups are whole, unless their era has ended meanwhile."""
    if any(added.era is None for added in stores.live.add(additions, era=rebuild.era)):
        return stores.log.save(turn, None)
    if cursor is not None:
        return stores.log.save(turn, replace(rebuild, cursor=cursor))
    stores.live.finish(groups, rebuild.era, turn.since_ms, turn.standing.retreats)
    return stores.log.save(turn, None)


# --- reading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SketchedVisitors:
    """About how many people viewed a target within a window: 0.81 % standard error. Never raises."""

    live: LiveSketches
    stored: StoredSketches

    def count(self, target: Target, window: ViewWindow, now_ms: int) -> int | None:
        """None while it is not known. As a rule one call of Valkey; the first in an hour also reads the snapshots."""
        labels = labels_of(window, now_ms)
        try:
            for _ in range(_TRIES):
                seen = self.live.count(target, labels)
                if not seen.missing:
                    return seen.count
                stored = self.stored.between(target, seen.missing[0], seen.missing[-1])
                if seen.is_nobody_live and not stored:
                    return 0  # and nothing to load: ids that are made up take no memory
                self.live.load(target, seen, stored)
        except Unavailable:
            return None
        return None


def _parts(whole: tuple[bytes, ...], size: int) -> Iterator[tuple[bytes, ...]]:
    return (whole[i : i + size] for i in range(0, len(whole), size))
