"""From one batch of a stream to counts: what cannot be counted is parked, the rest is folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .fold import Change, CounterRows, Lane, Mark, apply, fold, is_prunable, is_stale
from .model import Counter

Record = dict[str, Any]  # a stream record as Lambda delivers it

ParkReason = Literal["unreadable", "uncounted", "undecidable"]


class Unreadable(Exception):
    """The record is not one that the likes table writes."""


class LaneUnknown(Exception):
    """The batch does not say which stream shard it comes from, so nothing in it can be counted safely."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A record set aside, with all that is needed to settle it later.

    unreadable   its keys or its number make no sense to this version of the code
    uncounted    over 36 h old, and its row shows that it has not been counted
    undecidable  so old that the mark may be pruned: only a recount of the item can tell
    """

    reason: ParkReason
    lane_id: str
    record: Record


class Rows(CounterRows, Protocol):
    """Counter rows that can also be asked for their marks."""

    def marks(self, lane: Lane, counters: Sequence[Counter]) -> list[tuple[bool, Mark | None]]:
        """Per counter: whether the lane's row exists, and its mark, read consistently."""
        ...


class Parking(Protocol):
    """A durable queue."""

    def put(self, parked: Sequence[Parked]) -> None:
        """Returns when all are stored; raises Unavailable otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Aggregated:
    """What became of a batch. `failed_sequence` is the number, as delivered, of the first record to deliver again."""

    changes: int
    rows: int
    parked: tuple[Parked, ...]
    newest_s: int | None
    failed_sequence: str | None


def aggregate(
    records: Sequence[Record],
    lane: Lane,
    *,
    read: Callable[[Record], Change | None],
    rows: Rows,
    parking: Parking,
    now_s: int,
    pauses: Iterator[float],
    sleep: Callable[[float], None],
) -> Aggregated:
    """Counts each record of the batch once, however often it comes.

    Parking comes before any row moves: a batch that dies in between is delivered again, and what is
    parked twice is settled once.
    """
    changes: list[Change] = []
    sources: dict[int, Record] = {}
    parked: list[Parked] = []
    for record in records:
        try:
            change = read(record)
        except Unreadable:
            parked.append(Parked("unreadable", lane.id, record))
            continue
        if change is not None:
            changes.append(change)
            sources[change.sequence] = record
    stale = [change for change in changes if is_stale(change.time_s, now_s)]
    if stale:
        parked += _park_stale(stale, sources, lane, rows, now_s)
        changes = [change for change in changes if not is_stale(change.time_s, now_s)]
    if parked:
        parking.put(parked)
    deltas = fold(changes)
    undone = apply(rows, lane, deltas, now_s=now_s, pauses=pauses, sleep=sleep)
    failed = min((delta.first_sequence for delta in undone), default=None)
    return Aggregated(
        changes=len(changes),
        rows=len(deltas) - len(undone),
        parked=tuple(parked),
        newest_s=max((change.time_s for change in changes), default=None),
        failed_sequence=None if failed is None else sources[failed]["dynamodb"]["SequenceNumber"],
    )


def _park_stale(
    stale: Sequence[Change], sources: dict[int, Record], lane: Lane, rows: Rows, now_s: int
) -> list[Parked]:
    counters = list({change.counter: None for change in stale})
    marks = dict(zip(counters, rows.marks(lane, counters), strict=True))
    parked = []
    for change in stale:
        row_exists, mark = marks[change.counter]
        if mark is not None and change.sequence <= mark.sequence:
            continue
        # Without a mark the change was never counted, unless a pruned mark could have covered it.
        decidable = mark is not None or not row_exists or not is_prunable(Mark(0, change.time_s), now_s)
        parked.append(Parked("uncounted" if decidable else "undecidable", lane.id, sources[change.sequence]))
    return parked
