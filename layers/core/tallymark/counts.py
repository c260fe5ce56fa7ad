"""Counts for readers: process memory, then the shared cache, then one Query of the rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from .model import Count, Target

_MAX_PROCESS_COUNTS = 10_000
_HERD_WAITS_S = (0.01, 0.02, 0.04, 0.08)  # how long to wait for another's refresh when there is nothing stale


class CountRows(Protocol):
    """The counters as the aggregator writes them."""

    def counts(self, targets: Sequence[Target], *, consistent: bool) -> list[Count | None]:
        """Per target the sum of its rows, by one Query each; None where the store did not answer."""
        ...


@dataclass(frozen=True, slots=True)
class Peeked:
    """What the shared cache knows of a target.

    A `token` makes this caller the one that refreshes; the count is then stale. Without a token the
    count may be served. Neither: another is reading it just now for the first time.
    """

    count: Count | None
    token: int | None


class SharedCache(Protocol):
    """Counts shared by all processes. Never raises."""

    def peek(self, targets: Sequence[Target], now_ms: int) -> list[Peeked] | None:
        """Per target what is known; None when the cache does not answer."""
        ...

    def fill(self, filled: Sequence[tuple[Target, int, Count]]) -> None:
        """Stores counts under the tokens that peek gave; an older token never overwrites a newer one."""
        ...


class ProcessCache:
    """Counts in this process's memory, each until it has reached an age. Safe between threads."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_ms = max_age_ms
        self._counts: OrderedDict[Target, Count] = OrderedDict()
        self._lock = Lock()

    def get(self, target: Target, now_ms: int) -> Count | None:
        """The count, if it is young enough."""
        count = self._counts.get(target)
        return count if count is not None and now_ms < count.as_of_ms + self._max_age_ms else None

    def put(self, target: Target, count: Count) -> Count:
        """Keeps the newer of this count and the one that is here, and returns it."""
        with self._lock:
            known = self._counts.get(target)
            newer = count if known is None or known.as_of_ms <= count.as_of_ms else known
            self._counts[target] = newer
            self._counts.move_to_end(target)
            if len(self._counts) > _MAX_PROCESS_COUNTS:
                self._counts.popitem(last=False)
            return newer


@dataclass(frozen=True, slots=True)
class Sources:
    """Where counts come from, nearest first."""

    process: ProcessCache
    shared: SharedCache | None
    rows: CountRows
    now_ms: Callable[[], int]
    sleep: Callable[[float], None]


def counts_of(sources: Sources, targets: Sequence[Target]) -> list[Count | None]:
    """Per target its count, at most about 1.5 times the cache's lifetime old; None: it could not be had."""
    now_ms = sources.now_ms()
    found = {target: count for target in targets if (count := sources.process.get(target, now_ms)) is not None}
    missing = [target for target in dict.fromkeys(targets) if target not in found]
    if missing:
        found |= _remembered(sources, _fetch(sources, missing))
    return [found.get(target) for target in targets]


def fresh_counts_of(sources: Sources, targets: Sequence[Target]) -> list[Count | None]:
    """Per target its count straight from the rows, read consistently."""
    found = _remembered(sources, _query(sources, list(dict.fromkeys(targets)), consistent=True))
    return [found.get(target) for target in targets]


def _fetch(sources: Sources, targets: Sequence[Target]) -> dict[Target, Count]:
    peeked = _peek(sources, targets)
    servable = {t: p.count for t, p in peeked.items() if p.token is None and p.count is not None}
    stale = {t: p.count for t, p in peeked.items() if p.token is not None and p.count is not None}
    queried = _query(sources, [target for target in targets if target not in servable], consistent=False)
    filled = [
        (t, token, count) for t, count in queried.items() if t in peeked and (token := peeked[t].token) is not None
    ]
    if filled and sources.shared is not None:
        sources.shared.fill(filled)
    return stale | servable | queried


def _peek(sources: Sources, targets: Sequence[Target]) -> dict[Target, Peeked]:
    """What the shared cache says, after a short wait where another reads a count for the first time."""
    peeked: dict[Target, Peeked] = {}
    waiting = list(targets)
    for wait_s in (*_HERD_WAITS_S, None):
        answers = sources.shared.peek(waiting, sources.now_ms()) if sources.shared is not None else None
        if answers is None:
            break
        peeked |= zip(waiting, answers, strict=True)
        waiting = [target for target in waiting if peeked[target].token is None and peeked[target].count is None]
        if not waiting or wait_s is None:
            break
        sources.sleep(wait_s)
    return peeked


def _query(sources: Sources, targets: Sequence[Target], *, consistent: bool) -> dict[Target, Count]:
    if not targets:
        return {}
    answers = sources.rows.counts(targets, consistent=consistent)
    return {target: count for target, count in zip(targets, answers, strict=True) if count is not None}


def _remembered(sources: Sources, found: dict[Target, Count]) -> dict[Target, Count]:
    """The counts, or where this process knows one of a later reading, that one."""
    return {target: sources.process.put(target, count) for target, count in found.items()}
