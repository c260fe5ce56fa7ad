"""The consumer of parked records: settles each once, leaves in the queue what nobody can settle yet."""

from __future__ import annotations

import time
from typing import Any

from tallymark import parking
from tallymark.aggregation import Unreadable
from tallymark.errors import Unavailable
from tallymark.runtime import telemetry, wiring
from tallymark.storage.parked_queue import from_message
from tallymark.storage.records import reader_of

SERVICE = "parked"


@telemetry.silent_on_values(SERVICE)
def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Messages that fail come again, and after five times go to the dead queue, which has an alarm."""
    failures = []
    with telemetry.metrics(SERVICE) as metrics:
        for message in event["Records"]:
            try:
                counted = _settle(message["body"])
            except (Unreadable, parking.Undecidable, Unavailable, ValueError, LookupError, TypeError) as error:
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
    parked = from_message(body)
    return parking.settle(
        parked,
        read=reader_of(parked.lane_id),
        adjustments=wiring.adjustment_table(),
        now_s=wiring.now_ms() // 1000,
        sleep=time.sleep,
    )
