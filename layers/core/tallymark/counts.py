"""Counts for readers: process memory, then the shared cache, then the rows.

What is counted (K) and what the answer is (V) differ: likes of a target, its views in a window, a named
counter. How an answer is found, shared and refreshed does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Dated(Protocol):
    """An answer as of a moment, in milliseconds since the epoch."""

    @property
    def as_of_ms(self) -> int: ...


K = TypeVar("K", bound=Hashable)
Asked = TypeVar("Asked", bound=Hashable, contravariant=True)
V = TypeVar("V", bound=Dated)
V_co = TypeVar("V_co", bound=Dated, covariant=True)

HOT_AGE_MS = 500  # what everybody asks for stays in a process so long, however short the deployment's own age is
MOST_KEPT = 10_000  # counts of one kind in a process
_HERD_WAITS_S = (0.01, 0.02, 0.04, 0.08)  # how long to wait for another's refresh when there is nothing stale


class CountRows(Protocol[Asked, V_co]):
    """The counters as the aggregator writes them."""

    def counts(self, asked: Sequence[Asked], *, consistent: bool) -> Sequence[V_co | None]:
        """Per key the sum of its rows; None where the store did not answer."""
        ...


@dataclass(frozen=True, slots=True)
class Peeked(Generic[V]):
    """What the shared cache knows of a key.

    A `token` makes this caller the one that refreshes; the count is then stale. Without a token the
    count may be served. Neither: another is reading it just now for the first time.
    """

    count: V | None
    token: int | None


class SharedCache(Protocol[Asked, V]):
    """Counts shared by all processes. Never raises."""

    def peek(self, asked: Sequence[Asked], now_ms: int) -> list[Peeked[V]] | None:
        """Per key what is known; None when the cache does not answer."""
        ...

    def fill(self, filled: Sequence[tuple[Asked, int, V]]) -> None:
        """Stores counts under the tokens that peek gave; an older token never overwrites a newer one."""
        ...


class ProcessCache(Generic[K, V]):
    """Counts in this process's memory, each until it has reached an age, which for what is `hot` is no less than
    HOT_AGE_MS. At most `most` of them. Safe between threads.
    """

    def __init__(self, max_age_ms: int, hot: Container[K] = (), most: int = MOST_KEPT) -> None:
        self._max_age_ms, self._hot, self._most = max_age_ms, hot, most
        self._counts: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K, now_ms: int) -> V | None:
        """The count, if it is young enough."""
        count = self._counts.get(key)
        if count is None:
            return None
        age_ms = now_ms - count.as_of_ms
        return count if age_ms < self._max_age_ms or (age_ms < HOT_AGE_MS and key in self._hot) else None

    def put(self, key: K, count: V) -> V:
        """Keeps the newer of this count and the one that is here, and returns it."""
        with self._lock:
            known = self._counts.get(key)
            newer = count if known is None or known.as_of_ms <= count.as_of_ms else known
            self._counts[key] = newer
            self._counts.move_to_end(key)
            if len(self._counts) > self._most:
                self._counts.popitem(last=False)
            return newer


@dataclass(frozen=True)
class Sources(Generic[K, V]):
    """Where counts come from, nearest first."""

    process: ProcessCache[K, V]
    shared: SharedCache[K, V] | None
    rows: CountRows[K, V]
    now_ms: Callable[[], int]
    sleep: Callable[[float], None]


def counts_of(sources: Sources[K, V], asked: Sequence[K]) -> list[V | None]:
    """Per key its count, at most about 1.5 times the cache's lifetime old; None: it could not be had."""
    now_ms = sources.now_ms()
    found = {key: count for key in asked if (count := sources.process.get(key, now_ms)) is not None}
    missing = [key for key in dict.fromkeys(asked) if key not in found]
    if missing:
        found |= _remembered(sources, _fetch(sources, missing))
    return [found.get(key) for key in asked]


def fresh_counts_of(sources: Sources[K, V], asked: Sequence[K]) -> list[V | None]:
    """Per key its count straight from the rows, read consistently."""
    found = _remembered(sources, _query(sources, list(dict.fromkeys(asked)), consistent=True))
    return [found.get(key) for key in asked]


def _fetch(sources: Sources[K, V], asked: Sequence[K]) -> dict[K, V]:
    peeked = _peek(sources, asked)
    servable = {t: p.count for t, p in peeked.items() if p.token is None and p.count is not None}
    stale = {t: p.count for t, p in peeked.items() if p.token is not None and p.count is not None}
    queried = _query(sources, [key for key in asked if key not in servable], consistent=False)
    filled = [
        (t, token, count) for t, count in queried.items() if t in peeked and (token := peeked[t].token) is not None
    ]
    if filled and sources.shared is not None:
        sources.shared.fill(filled)
    return stale | servable | queried


def _peek(sources: Sources[K, V], asked: Sequence[K]) -> dict[K, Peeked[V]]:
    """What the shared cache says, after a short wait where another reads a count for the first time."""
    peeked: dict[K, Peeked[V]] = {}
    waiting = list(asked)
    for wait_s in (*_HERD_WAITS_S, None):
        answers = sources.shared.peek(waiting, sources.now_ms()) if sources.shared is not None else None
        if answers is None:
            break
        peeked |= zip(waiting, answers, strict=True)
        waiting = [key for key in waiting if peeked[key].token is None and peeked[key].count is None]
        if not waiting or wait_s is None:
            break
        sources.sleep(wait_s)
    return peeked


def _query(sources: Sources[K, V], asked: Sequence[K], *, consistent: bool) -> dict[K, V]:
    if not asked:
        return {}
    answers = sources.rows.counts(asked, consistent=consistent)
    return {key: count for key, count in zip(asked, answers, strict=True) if count is not None}


def _remembered(sources: Sources[K, V], found: dict[K, V]) -> dict[K, V]:
    """The counts, or where this process knows one of a later reading, that one."""
    return {key: sources.process.put(key, count) for key, count in found.items()}
