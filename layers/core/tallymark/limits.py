"""Sliding windows: never more than so many calls in any stretch of time."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

RATE_LIMIT_WINDOW_S = 60
_MAX_PROCESS_KEYS = 50_000  # the log of a key that was not used longest goes first


@dataclass(frozen=True, slots=True)
class Taken:
    """How many of the calls asked for are allowed, and when the next one will be (0: now)."""

    granted: int
    retry_after_s: float


class Windows(Protocol):
    """Logs of recent calls by key."""

    def take(self, wanted: Mapping[str, int], limit: int, window_s: int) -> dict[str, Taken]:
        """Per key logs and allows as many of the wanted calls as fit; those refused use up nothing."""
        ...


class ProcessWindows:
    """Windows in this process's memory: exact here, blind to other processes. Safe between threads."""

    def __init__(self, now_s: Clock) -> None:
        self._now_s = now_s
        self._logs: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = Lock()

    def take(self, wanted: Mapping[str, int], limit: int, window_s: int) -> dict[str, Taken]:
        with self._lock:
            now = self._now_s()
            return {key: self._take(key, calls, limit, window_s, now) for key, calls in wanted.items()}

    def _take(self, key: str, wanted: int, limit: int, window_s: int, now: float) -> Taken:
        log = self._logs.setdefault(key, deque())
        self._logs.move_to_end(key)
        if len(self._logs) > _MAX_PROCESS_KEYS:
            self._logs.popitem(last=False)
        while log and log[0] <= now - window_s:
            log.popleft()
        granted = min(wanted, max(0, limit - len(log)))
        log.extend([now] * granted)
        return Taken(granted, log[0] + window_s - now if granted < wanted else 0.0)


class Clock(Protocol):
    """Seconds that never go back."""

    def __call__(self) -> float: ...


def whole_seconds(seconds: float) -> int:
    """For Retry-After: rounded up, at least 1."""
    return max(1, math.ceil(seconds))
