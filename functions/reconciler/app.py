"""Recounts an item from its records and reports the difference; repairs nothing."""

from __future__ import annotations

import time
from typing import Any

from tallymark import reconciliation
from tallymark.model import Target
from tallymark.runtime import telemetry, wiring
from tallymark.runtime.requests import parse_object, parse_target

SERVICE = "reconciler"
SETTLE_S = 3.0  # counts follow acknowledged writes within this time


@telemetry.silent_on_values(SERVICE)
def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Takes {"item": {"item_type", "item_id"}}. Drift that is settled is a bug; unsettled, likes are on their way."""
    target = parse_target(parse_object(event.get("item"), "item"), "item.")
    found = _recount(target)
    with telemetry.metrics(SERVICE) as metrics:
        metrics.count("Drift", sum(abs(difference) for difference in found.drift.values()) if found.settled else 0)
    return {
        "item": {"item_type": target.item_type, "item_id": target.item_id},
        "counted": dict(found.counted),
        "recorded": dict(found.recorded),
        "drift": found.drift,
        "settled": found.settled,
    }


def _recount(target: Target) -> reconciliation.Recount:
    return reconciliation.recount(
        wiring.like_table(), wiring.counter_table(), target, settle_s=SETTLE_S, sleep=time.sleep
    )
