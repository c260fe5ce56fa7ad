"""Both streams folded into counter rows: each record counts once, however often it is delivered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from aws_lambda_powertools.utilities.data_classes import DynamoDBStreamEvent

from tallymark import fold, top
from tallymark.aggregation import Aggregated, aggregate, sequence_number
from tallymark.errors import Unavailable
from tallymark.runtime import streams, telemetry, wiring
from tallymark.storage.records import reader_of, stream_of

SERVICE = "aggregator"
TOP_NEEDS_MS = 15_000  # twice what one round of calls takes at worst; the function must answer in its time


@telemetry.silent_on_values(SERVICE)
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """One batch of one lane. Fails whole if the lane is unknown; else names the first record not yet counted."""
    records = [record.raw_event for record in DynamoDBStreamEvent(event).records] if event.get("Records") else []
    if not records:
        return streams.window_response(event.get("state"), None)
    settings = wiring.settings()
    stream = stream_of(records[0], settings.events_table)
    lane = fold.lane(streams.lane_id_of(event, settings.single_lane), settings.counter_rows, stream)
    now_ms = wiring.now_ms()
    done = aggregate(
        records,
        lane,
        read=reader_of(lane.id),
        rows=wiring.counter_table(),
        held=wiring.held_table(),
        parking=wiring.parked_queue(),
        now_s=now_ms // 1000,
        pauses=streams.pauses(context.get_remaining_time_in_millis),
        sleep=time.sleep,
    )
    _report(done, len(records))
    _follow(lane, done.folded, now_ms, lambda: context.get_remaining_time_in_millis() > TOP_NEEDS_MS)
    return streams.window_response(event.get("state"), done.failed_sequence)


def _follow(lane: fold.Lane, folded: Sequence[fold.Delta], now_ms: int, has_time: Callable[[], bool]) -> None:
    """Tells the top lists and the detector of hot items; whatever fails there, the batch is counted."""

    def note() -> None:
        wiring.top_lists().add(top.additions(folded), now_ms, has_time)

    def look() -> None:
        if not has_time():
            raise Unavailable("no time is left")
        wiring.hot_detector().look(lane, folded, now_ms // 1000)

    for name, follow in ("TopListsFailed", note), ("HotItemsFailed", look):
        try:
            follow()
        except Unavailable:
            telemetry.count(SERVICE, name)
        except Exception as error:  # noqa: BLE001 (a bug here is no reason to count a batch late)
            telemetry.count(SERVICE, name)
            telemetry.bug(SERVICE, error)


def _report(done: Aggregated, records: int) -> None:
    with telemetry.metrics(SERVICE) as metrics:
        metrics.count("RecordsReceived", records)
        metrics.count("RowsWritten", done.rows)
        if done.newest_s is not None:
            metrics.seconds("FoldLag", max(0.0, wiring.now_ms() / 1000 - done.newest_s))
        if done.parked:
            metrics.count("RecordsParked", len({id(parked.record) for parked in done.parked}))
    if done.parked:
        telemetry.logger(SERVICE).warning(  # enough to find them in the queue; their keys name people
            "parked records",
            reasons=sorted({parked.reason for parked in done.parked}),
            sequence_numbers=list(dict.fromkeys(sequence_number(parked.record) for parked in done.parked))[:20],
        )
    if done.failed_sequence is not None:
        telemetry.logger(SERVICE).warning("batch left unfinished", failed_sequence=done.failed_sequence)
