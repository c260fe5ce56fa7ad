"""From one batch of a stream to counts: what cannot be counted is parked, the rest is folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .fold import Change, CounterRows, Delta, Lane, Mark, apply, fold, is_prunable, is_stale
from .model import Counter

Record = dict[str, Any]  # a stream record as Lambda delivers it

MAX_DIGITS = 40  # of a sequence number: DynamoDB Streams API Reference, StreamRecord

ParkReason = Literal["unreadable", "uncounted", "undecidable"]


class Unreadable(Exception):
    """The record is not one that our tables write."""


class LaneUnknown(Exception):
    """The batch does not say which stream shard it comes from, so nothing in it can be counted safely."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A record set aside, with all that is needed to settle it later.

    unreadable   its keys or its number make no sense to this version of the code, or did not to an earlier one
    uncounted    over 36 h old, and its row shows that it has not been counted
    undecidable  so old that the mark may be pruned: only a recount of the item can tell

    `part` is the one change of the record that is meant, by its place among them; None means all of them.
    """

    reason: ParkReason
    lane_id: str
    record: Record
    part: int | None = None


class Rows(CounterRows, Protocol):
    """Counter rows that can also be asked for their marks."""

    def marks(self, lane: Lane, counters: Sequence[Counter]) -> list[tuple[bool, Mark | None]]:
        """Per counter: whether the lane's row exists, and its mark, read consistently."""
        ...


class Held(Protocol):
    """Which records of a lane were parked as unreadable. What is held is never folded, by any later version."""

    def numbers(self, lane_id: str) -> Set[str]:
        """Their sequence numbers as delivered, read consistently."""
        ...

    def hold(self, lane_id: str, numbers: Set[str], now_s: int) -> None:
        """Returns when all are stored; safe to repeat. Raises Unavailable otherwise."""
        ...


class Parking(Protocol):
    """A durable queue."""

    def put(self, parked: Sequence[Parked]) -> None:
        """Returns when all are stored; raises Unavailable otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Aggregated:
    """How many records of a batch were folded, what they added to which rows, and what was parked.

    `failed_sequence` is the number, as delivered, of the first record to deliver again.
    """

    records: int
    folded: tuple[Delta, ...]
    parked: tuple[Parked, ...]
    newest_s: int | None
    failed_sequence: str | None

    @property
    def rows(self) -> int:
        return len(self.folded)


def aggregate(
    records: Sequence[Record],
    lane: Lane,
    *,
    read: Callable[[Record], Sequence[Change]],
    rows: Rows,
    held: Held,
    parking: Parking,
    now_s: int,
    pauses: Iterator[float],
    sleep: Callable[[float], None],
) -> Aggregated:
    """Counts each record of the batch once, however often it comes.

    Parking comes before any row moves: a batch that dies in between is delivered again, and what is
    parked twice is settled once. A record is held before it is parked, so that a version which can read
    it parks it once more and leaves the counting to the consumer.
    """
    read_records: list[tuple[Record, Sequence[Change]]] = []
    parked: list[Parked] = []
    known = held.numbers(lane.id)
    for record in records:
        try:
            changes = read(record)
        except Unreadable:
            parked.append(Parked("unreadable", lane.id, record))
            continue
        if known and sequence_number(record) in known:
            parked.append(Parked("unreadable", lane.id, record))
        elif changes:
            read_records.append((record, changes))
    if unheld := {number for p in parked if (number := sequence_number(p.record))} - known:
        held.hold(lane.id, unheld, now_s)
    if stale := [(record, changes) for record, changes in read_records if is_stale(changes[0].time_s, now_s)]:
        parked += _park_stale(stale, lane, rows, now_s)
        read_records = [(record, changes) for record, changes in read_records if not is_stale(changes[0].time_s, now_s)]
    if parked:
        parking.put(parked)
    deltas = fold(change for _, changes in read_records for change in changes)
    undone = apply(rows, lane, deltas, now_s=now_s, pauses=pauses, sleep=sleep)
    left = {delta.counter for delta in undone}
    first_undone = min((delta.first_sequence for delta in undone), default=None)
    failed = next((record for record, changes in read_records if changes[0].sequence == first_undone), None)
    return Aggregated(
        records=len(read_records),
        folded=tuple(delta for delta in deltas if delta.counter not in left),
        parked=tuple(parked),
        newest_s=max((changes[0].time_s for _, changes in read_records), default=None),
        failed_sequence=None if failed is None else sequence_number(failed),
    )


def sequence_number(record: Record) -> str | None:
    """The record's number in its lane, as delivered; None if it has none that could be one."""
    try:
        number = record["dynamodb"]["SequenceNumber"]
    except (KeyError, TypeError):
        return None
    return number if isinstance(number, str) and 0 < len(number) <= MAX_DIGITS else None


def _park_stale(stale: Sequence[tuple[Record, Sequence[Change]]], lane: Lane, rows: Rows, now_s: int) -> list[Parked]:
    counters = list({change.counter: None for _, changes in stale for change in changes})
    marks = dict(zip(counters, rows.marks(lane, counters), strict=True))
    parked = []
    for record, changes in stale:
        for part, change in enumerate(changes):
            row_exists, mark = marks[change.counter]
            if mark is not None and change.sequence <= mark.sequence:
                continue
            # Without a mark the change was never counted, unless a pruned mark could have covered it.
            decidable = mark is not None or not row_exists or not is_prunable(Mark(0, change.time_s), now_s)
            parked.append(Parked("uncounted" if decidable else "undecidable", lane.id, record, part))
    return parked
