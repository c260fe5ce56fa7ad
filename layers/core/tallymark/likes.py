"""Liking and unliking: one conditional write each, whose condition is the dedup."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import TallymarkError
from .model import Like, LikeKey, Stamp, Target


class LikeRecords(Protocol):
    """The likes as they are recorded; a record is the truth."""

    def put(self, like: Like) -> Like:
        """The like that stands now: this one, or an earlier one of the same key. One write unit per table and index."""
        ...

    def delete(self, key: LikeKey) -> bool:
        """Whether there was a like to delete."""
        ...

    def write_many(self, writes: Sequence[Like | LikeKey]) -> list[bool | TallymarkError]:
        """Per write (a key is a deletion) whether it changed anything, or why it was not made. Keys must differ."""
        ...

    def liked(self, keys: Sequence[LikeKey]) -> set[LikeKey]:
        """Those of the keys that are recorded, read consistently."""
        ...

    def reactions(self, user_id: str, targets: Sequence[Target]) -> dict[Target, list[str]]:
        """The person's reactions to each target, read consistently."""
        ...


@dataclass(frozen=True, slots=True)
class Liked:
    """A like stands. `liked_at_ms` is the time of the first one."""

    changed: bool
    liked_at_ms: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A like, or with `like` false its removal. `liked_at_ms` is None for now."""

    key: LikeKey
    like: bool
    liked_at_ms: int | None = None

    def write(self, now_ms: int) -> Like | LikeKey:
        if not self.like:
            return self.key
        return Like(self.key, Stamp.at(now_ms if self.liked_at_ms is None else self.liked_at_ms))


def like(records: LikeRecords, key: LikeKey, *, at_ms: int) -> Liked:
    """Makes sure that the like is recorded. Safe to repeat; a repeat says changed=False."""
    mine = Like(key, Stamp.at(at_ms))
    standing = records.put(mine)
    return Liked(changed=standing.stamp == mine.stamp, liked_at_ms=standing.stamp.ms)


def unlike(records: LikeRecords, key: LikeKey) -> bool:
    """Makes sure that the like is not recorded; whether it was. Safe to repeat.

    When the store's reply is lost and the call is repeated beneath, the answer may be False although
    this call removed the like: nothing is left that could tell.
    """
    return records.delete(key)


def apply_all(records: LikeRecords, operations: Sequence[Operation], *, now_ms: int) -> list[bool | TallymarkError]:
    """Per operation whether it changed anything, or why it was not made.

    Operations on one like take effect in their order: the second waits for the first, and so on.
    """
    results: list[bool | TallymarkError] = [False] * len(operations)
    for turn in _turns(operations):
        outcomes = records.write_many([operations[i].write(now_ms) for i in turn])
        for i, outcome in zip(turn, outcomes, strict=True):
            results[i] = outcome
    return results


def _turns(operations: Sequence[Operation]) -> list[Sequence[int]]:
    """Positions grouped so that no group holds two operations on one like."""
    if len({operation.key for operation in operations}) == len(operations):
        return [range(len(operations))] if operations else []
    seen: Tally[LikeKey] = Tally()
    turns: defaultdict[int, list[int]] = defaultdict(list)
    for i, operation in enumerate(operations):
        turns[seen[operation.key]].append(i)
        seen[operation.key] += 1
    return list(turns.values())


def has_liked(records: LikeRecords, user_id: str, targets: Sequence[Target], reaction: str) -> Mapping[Target, bool]:
    """Per target whether the person's like with this reaction is recorded; reads one's own writes."""
    keys = {target: LikeKey(user_id, target, reaction) for target in targets}
    liked = records.liked(list(keys.values()))
    return {target: key in liked for target, key in keys.items()}
