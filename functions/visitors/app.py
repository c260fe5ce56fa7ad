"""Visitors of views: the stream's into live sketches, live sketches into the table, and back where they were lost.

An event is a batch of the stream, or one of

{"scheduled": true}   rebuilds what is missing, stores what is new
{"rebuild": true}     the same after a replay of every event that is kept

Without Valkey there are no visitors, and nothing is done. An outage of it holds up nothing but visitors: the batch
fails and comes again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from tallymark import visitors
from tallymark.model import format_time
from tallymark.runtime import streams, telemetry, wiring
from tallymark.storage.event_stream import read_viewed
from tallymark.visitors import Kept, Stores

SERVICE = "visitors"
RESERVE_S = 20.0  # for the part that is under way when time runs out


@telemetry.silent_on_values(SERVICE)
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Fails whole if the batch could not be added: to add it again changes nothing."""
    stores = wiring.visitor_stores()
    if stores is None:
        return {}
    remaining_ms = context.get_remaining_time_in_millis
    if "Records" in event:
        _record(stores, event["Records"], remaining_ms)
        return {}
    return _scheduled(stores, bool(event.get("rebuild")), remaining_ms)


def _record(stores: Stores, records: list[dict[str, Any]], remaining_ms: Callable[[], int]) -> None:
    events, unreadable = [], 0
    for record in records:
        try:
            if (viewed := read_viewed(record)) is not None:
                events.append(viewed)
        except (KeyError, TypeError, ValueError, AttributeError):  # the aggregator parks it, where it can be looked at
            unreadable += 1
    if unreadable:
        telemetry.count(SERVICE, "RecordsUnreadable", unreadable)
    if not events:
        return
    visitors.record(
        stores,
        visitors.additions_of(events, wiring.now_ms()),
        keep=lambda: _keep(stores, False, remaining_ms),
        pauses=streams.pauses(remaining_ms),
        sleep=time.sleep,
    )


def _scheduled(stores: Stores, again: bool, remaining_ms: Callable[[], int]) -> dict[str, Any]:
    try:
        kept = _keep(stores, again, remaining_ms)
    finally:  # also while Valkey is down: this is what then grows
        standing = stores.log.standing()
        if (from_ms := standing.unstored_from_ms) is not None:
            with telemetry.metrics(SERVICE) as metrics:
                metrics.seconds("VisitorsUnstored", max(0.0, (wiring.now_ms() - from_ms) / 1000))
    return {
        "turn": kept is not None,
        "whole": kept is not None and kept.whole,
        "stored": kept is not None and kept.stored,
        "since": format_time(standing.since_ms) if standing.since_ms is not None else None,
    }


def _keep(stores: Stores, again: bool, remaining_ms: Callable[[], int]) -> Kept | None:
    now_ms = wiring.now_ms()
    kept = visitors.keep(
        stores,
        again=again,
        now_ms=now_ms,
        until_ms=now_ms + remaining_ms(),
        event_days=wiring.settings().event_days,
        new_era=lambda: os.urandom(8).hex(),
        is_time_over=lambda: remaining_ms() / 1000 < RESERVE_S,
        tell_lost=_tell_lost,
    )
    if kept is not None and kept.replayed:
        telemetry.count(SERVICE, "EventsReplayed", kept.replayed)
        telemetry.logger(SERVICE).info("replayed events", events=kept.replayed, whole=kept.whole)
    if kept is not None and kept.is_server_doubted:
        telemetry.logger(SERVICE).error("the cache's server seems another again and again; a failover is not noticed")
    return kept


def _tell_lost(from_ms: int, to_ms: int) -> None:
    telemetry.count(SERVICE, "VisitorsLost")
    telemetry.logger(SERVICE).error(
        "visitors may be missing for good", views_from=format_time(from_ms), views_to=format_time(to_ms)
    )
