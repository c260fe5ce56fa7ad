"""Sliding windows: never more than so many calls in any stretch of time."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from .errors import Unavailable
from .model import LimitKey

MAX_CALLS = 1_000_000  # that a limit may allow in its window: no judgement asks for more of a log than so many
MAX_WINDOW_S = 86_400
RATE_LIMIT_WINDOW_S = 60
OWN_LIMIT = "@user"  # of our own API, by user; no caller can spell it (identifiers.NAME_PATTERN)

_MAX_PROCESS_KEYS = 50_000
_MAX_PROCESS_CALLS = MAX_CALLS  # in all logs together, about 40 MB


@dataclass(frozen=True, slots=True)
class Taken:
    """How many of the calls asked for are allowed, how many more would be, and when that number next grows.

    `reset_after_us` is in microseconds, above 0. Where nothing remains, a call is allowed after it and no sooner.
    """

    granted: int
    remaining: int
    reset_after_us: int


class Windows(Protocol):
    """Logs of the calls that were allowed, by key.

    A log is one, whatever numbers its calls come with: each is judged by its own, over all that were allowed before.
    What no judgement can ask for is forgotten: what is older than the longest window that a call may have, and all but
    the newest `MAX_CALLS`.
    """

    def take(self, wanted: Mapping[LimitKey, int], limit: int, window_s: int) -> dict[LimitKey, Taken] | None:
        """Per key logs and allows as many of the wanted calls, at least 1, as fit; those refused use up nothing.

        None when the log does not answer; then some may have been logged.
        """
        ...


class ProcessWindows:
    """Windows in this process's memory: exact here, blind to other processes. Safe between threads.

    When memory is full, the log that was not used longest is forgotten.
    """

    def __init__(self, now_us: Clock, longest_window_s: int) -> None:
        self._now_us, self._longest_us = now_us, longest_window_s * 1_000_000
        self._logs: OrderedDict[LimitKey, list[int]] = OrderedDict()
        self._calls = 0
        self._lock = Lock()

    def take(self, wanted: Mapping[LimitKey, int], limit: int, window_s: int) -> dict[LimitKey, Taken]:
        with self._lock:
            now, window = self._now_us(), window_s * 1_000_000
            taken = {key: self._take(key, calls, limit, window, now) for key, calls in wanted.items()}
            self._make_room()
            return taken

    def _take(self, key: LimitKey, wanted: int, limit: int, window: int, now: int) -> Taken:
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = []
        else:
            self._logs.move_to_end(key)
        before = len(log)
        held = before - bisect_right(log, now - window, lo=max(0, before - limit))
        granted = min(wanted, limit - held)
        log.extend([now] * granted)
        del log[: max(bisect_right(log, now - self._longest_us), len(log) - MAX_CALLS)]
        held += granted
        self._calls += len(log) - before
        return Taken(granted, limit - held, log[-held] + window - now)

    def _make_room(self) -> None:
        while len(self._logs) > _MAX_PROCESS_KEYS or self._calls > _MAX_PROCESS_CALLS:
            _, forgotten = self._logs.popitem(last=False)
            self._calls -= len(forgotten)


class Clock(Protocol):
    """Microseconds that never go back."""

    def __call__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Logs:
    """Where calls are logged: for all processes, where there is a cache, and for this one when that does not answer.

    Without a log of its own (None) a process allows nothing that the shared one does not.
    """

    shared: Windows | None
    own: ProcessWindows | None


def take(logs: Logs, wanted: Mapping[LimitKey, int], limit: int, window_s: int) -> tuple[dict[LimitKey, Taken], bool]:
    """What each key may take, and whether the shared log said so; Unavailable where nothing else may."""
    taken = None if logs.shared is None else logs.shared.take(wanted, limit, window_s)
    if taken is not None:
        return taken, True
    if logs.own is None:
        raise Unavailable("the log of this limit does not answer, and without it nothing is allowed here")
    return logs.own.take(wanted, limit, window_s), False


def whole_seconds(us: int) -> int:
    """For Retry-After: microseconds, rounded up."""
    return -(-us // 1_000_000)


def seconds(us: int) -> int | float:
    """Microseconds rounded up to a millisecond, so that who waits as long has waited enough."""
    ms = -(-us // 1000)
    return ms / 1000 if ms % 1000 else ms // 1000
