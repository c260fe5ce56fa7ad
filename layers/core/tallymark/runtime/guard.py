"""Limits over the fleet: that of our own API, by user, services excepted, and those that callers ask for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Lock

from tallymark import limits
from tallymark.errors import RateLimited
from tallymark.identity import Actor
from tallymark.limits import OWN_LIMIT, RATE_LIMIT_WINDOW_S, Logs, Taken, whole_seconds
from tallymark.model import LikeKey, LimitKey, Target

from . import telemetry, wiring

_REPORT_EVERY_S = 10.0


class _Fallbacks:
    """Counts decisions made without Valkey; says so at the first, then every 10 s, not in a line each."""

    def __init__(self) -> None:
        self._unreported = 0
        self._next_report_s = 0.0
        self._lock = Lock()

    def note(self, service: str, decisions: int) -> None:
        with self._lock:
            self._unreported += decisions
            now_s = time.monotonic()
            if now_s < self._next_report_s:
                return
            reported, self._unreported = self._unreported, 0
            self._next_report_s = now_s + _REPORT_EVERY_S
        telemetry.count(service, "RateLimitPerProcess", reported)


_fallbacks = _Fallbacks()


def charge(service: str, actor: Actor, key: LikeKey) -> None:
    """Takes one call from the user's window; RateLimited if there is none left."""
    if not actor.service:
        taken = take(service, {key.user_id: 1}, limit_on(key.target))[key.user_id]
        if not taken.granted:
            raise rate_limited(taken)


def limit_on(target: Target) -> int:
    """How many calls a user may have made in any 60 s for one more on this item: fewer on a hot one, if so set."""
    settings = wiring.settings()
    stricter = settings.hot_rate_limit_per_minute
    if stricter and target in wiring.hot_items():
        return min(stricter, settings.rate_limit_per_minute)
    return settings.rate_limit_per_minute


def take(service: str, wanted: Mapping[str, int], limit: int) -> dict[str, Taken]:
    """As many of the calls that each user wants as that user may make now."""
    calls = {LimitKey(OWN_LIMIT, user_id): number for user_id, number in wanted.items()}
    taken = _take(service, wiring.user_logs(), calls, limit, RATE_LIMIT_WINDOW_S)
    return {key.key: of_user for key, of_user in taken.items()}


def hit(service: str, key: LimitKey, limit: int, window_s: int) -> Taken:
    """One call under a caller's own limit; Unavailable where the deployment allows none without the shared log."""
    return _take(service, wiring.limit_logs(), {key: 1}, limit, window_s)[key]


def rate_limited(taken: Taken) -> RateLimited:
    seconds = whole_seconds(taken.reset_after_us)
    return RateLimited(f"too many calls for this user; try again in {seconds} s", seconds)


def _take(service: str, logs: Logs, wanted: Mapping[LimitKey, int], limit: int, window_s: int) -> dict[LimitKey, Taken]:
    taken, by_fleet = limits.take(logs, wanted, limit, window_s)
    if not by_fleet:
        _fallbacks.note(service, sum(wanted.values()))
    return taken
