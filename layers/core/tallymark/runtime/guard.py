"""The rate limit of our own API: every well-formed write counts against its user, services excepted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Lock

from tallymark.errors import RateLimited
from tallymark.identity import Actor
from tallymark.limits import Taken, whole_seconds

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


def charge(service: str, actor: Actor, user_id: str) -> None:
    """Takes one call from the user's window; RateLimited if there is none left."""
    if not actor.service:
        taken = take(service, {user_id: 1})[user_id]
        if not taken.granted:
            raise rate_limited(taken)


def take(service: str, wanted: Mapping[str, int]) -> dict[str, Taken]:
    """As many of the calls that each user wants as that user may make now."""
    taken, process_only = wiring.take_for_users(wanted)
    if process_only:
        _fallbacks.note(service, sum(wanted.values()))
    return taken


def rate_limited(taken: Taken) -> RateLimited:
    seconds = whole_seconds(taken.retry_after_s)
    return RateLimited(f"too many calls for this user; try again in {seconds} s", seconds)
