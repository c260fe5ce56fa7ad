"""The consumer of parked records: settles each once, leaves in the queue what nobody can settle yet."""

from __future__ import annotations

import time
from typing import Any

from tallymark import parking
from tallymark.aggregation import Unreadable
from tallymark.errors import Unavailable
from tallymark.runtime import telemetry, wiring
from tallymark.storage.like_stream import read_change
from tallymark.storage.parked_queue import from_message

SERVICE = "parked"


@telemetry.silent_on_values(SERVICE)
def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Messages that fail come again, and after five times go to the dead queue, which has an alarm."""
    failures = []
    with telemetry.metrics(SERVICE) as metrics:
        for message in event["Records"]:
            try:
                counted = _settle(message["body"])
            except (Unreadable, parking.Undecidable, Unavailable, ValueError, KeyError, TypeError) as error:
                failures.append({"itemIdentifier": message["messageId"]})
                telemetry.logger(SERVICE).warning(
                    "not settled", message_id=message["messageId"], reason=telemetry.kinds(error)
                )
            else:
                metrics.count("RecordsSettled" if counted else "RecordsSettledBefore")
        if failures:
            metrics.count("RecordsUnsettled", len(failures))
    return {"batchItemFailures": failures}


def _settle(body: str) -> bool:
    return parking.settle(
        from_message(body),
        read=read_change,
        adjustments=wiring.adjustment_table(),
        now_s=wiring.now_ms() // 1000,
        sleep=time.sleep,
    )
