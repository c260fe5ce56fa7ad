"""Folding stream changes into counter rows, each change exactly once.

Lambda delivers the changes of a lane at least once: repeated, cut differently, or again after the
writes landed and the reply was lost. A counter row therefore keeps, beside its number, a mark for
each lane: the last change of that lane which the number holds. Number and mark change in one
conditional write, so a repeat finds itself at or below the mark and is trimmed away.

This rests on what docs/architecture.md lists: one reader order per lane, a row for a lane that
never changes, and no change discarded on the way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from .model import Counter

PRUNE_AFTER_S = 48 * 3600  # twice what DynamoDB keeps in a stream (24 h): no replay reaches further back
STALE_AFTER_S = 36 * 3600  # well before pruning: what is older cannot be judged by its mark any more

_CREATION_TIME = re.compile(r"shardId-0*(\d{1,15})-[0-9a-f]+")  # as Flink's ShardUtils reads it


@dataclass(frozen=True, slots=True)
class Change:
    """What one stream record does to one slot of a counter: it moves by `delta`.

    `sequence` is the record's number within its lane, `time_s` its creation in seconds since the epoch.
    """

    counter: Counter
    delta: int
    sequence: int
    time_s: int
    slot: str = "n"


@dataclass(frozen=True, slots=True)
class Mark:
    """The last change of a lane that a row holds, and the newest creation time folded up to there."""

    sequence: int
    time_s: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One shard of one stream. Its row number is fixed for its life: marks are found there on every repeat."""

    id: str
    row: int


def lane(shard_id: str, counter_rows: Sequence[tuple[int, int]], stream: str = "") -> Lane:
    """The lane of a shard; the number of rows is the one in force when the shard was created.

    `counter_rows` is the ascending list of (since, in milliseconds; number of rows). A shard id that
    carries no creation time belongs to the first entry. `stream` tells shards of two streams apart.
    """
    match = _CREATION_TIME.fullmatch(shard_id)
    created_ms = int(match[1]) if match else 0
    rows = next(rows for since_ms, rows in reversed(counter_rows) if since_ms <= created_ms)
    digest = hashlib.blake2b(shard_id.encode(), digest_size=8, person=b"row").digest()
    return Lane(f"{stream}{shard_id}", int.from_bytes(digest, "big") % rows)


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of one counter in one batch, ascending, to be written as one."""

    counter: Counter
    changes: tuple[Change, ...]

    @property
    def amounts(self) -> dict[str, int]:
        """By how much each slot that is touched moves."""
        amounts: dict[str, int] = {}
        for change in self.changes:
            amounts[change.slot] = amounts.get(change.slot, 0) + change.delta
        return amounts

    @property
    def first_sequence(self) -> int:
        return self.changes[0].sequence

    @property
    def mark(self) -> Mark:
        """The mark that a row holds once this delta is in it."""
        return Mark(self.changes[-1].sequence, max(change.time_s for change in self.changes))

    def after(self, mark: Mark | None) -> Delta | None:
        """What of this delta lies beyond the mark; None when nothing does."""
        if mark is None or mark.sequence < self.first_sequence:
            return self
        rest = tuple(change for change in self.changes if change.sequence > mark.sequence)
        return Delta(self.counter, rest) if rest else None


def fold(changes: Iterable[Change]) -> list[Delta]:
    """One delta per counter. A delta of 0 stays: its mark must move, or a later repeat of half of it would count."""
    by_counter: dict[Counter, dict[tuple[int, str], Change]] = {}
    for change in changes:
        by_counter.setdefault(change.counter, {}).setdefault((change.sequence, change.slot), change)
    return [
        Delta(counter, tuple(by_place[place] for place in sorted(by_place))) for counter, by_place in by_counter.items()
    ]


def is_stale(time_s: int, now_s: int) -> bool:
    """Whether a change is too old to be judged by a mark, which may have been pruned."""
    return now_s - time_s > STALE_AFTER_S


def is_prunable(mark: Mark, now_s: int) -> bool:
    """Whether no repeat can reach the mark any more."""
    return now_s - mark.time_s > PRUNE_AFTER_S


@dataclass(frozen=True, slots=True)
class Added:
    """The delta and its mark are in the row."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The row was left as it is, because it has this mark, which is not below the delta's first change.

    None, or a mark below: something else in the row moved meanwhile; try the same again.
    """

    mark: Mark | None


@dataclass(frozen=True, slots=True)
class Deferred:
    """The store did not take the write now, or it is not known whether it did."""


Outcome = Added | Passed | Deferred


class CounterRows(Protocol):
    """Where the rows are kept."""

    def add(self, lane: Lane, deltas: Sequence[Delta], now_s: int) -> list[Outcome]:
        """What became of each delta: per delta one conditional write of one row."""
        ...


def apply(
    rows: CounterRows,
    lane: Lane,
    deltas: Sequence[Delta],
    *,
    now_s: int,
    pauses: Iterator[float],
    sleep: Callable[[float], None],
) -> list[Delta]:
    """The deltas that could not be written before the pauses (seconds) ran out; none, as a rule.

    Safe to repeat with any delta, whatever became of it before.
    """
    pending = list(deltas)
    while pending:
        outcomes = rows.add(lane, pending, now_s)
        left = [(delta, rest) for delta, o in zip(pending, outcomes, strict=True) if (rest := _rest(delta, o))]
        pending = [rest for _, rest in left]
        if any(rest is delta for delta, rest in left):  # no progress: the store is busy, or the row is contended
            pause = next(pauses, None)
            if pause is None:
                break
            sleep(pause)
    return pending


def _rest(delta: Delta, outcome: Outcome) -> Delta | None:
    match outcome:
        case Added():
            return None
        case Passed(mark):
            return delta.after(mark)
        case Deferred():
            return delta
