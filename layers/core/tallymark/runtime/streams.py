"""Stream and queue events in, partial batch responses out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from tallymark.aggregation import LaneUnknown

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_RESERVE_S = 5.0  # left for the answer when time runs out


def lane_id_of(event: dict[str, Any], single_lane: str) -> str:
    """The stream shard that a batch comes from.

    Only a tumbling window's envelope carries it. Without it nothing may be counted, unless the
    deployment declares that its stream has one shard.
    """
    shard_id = event.get("shardId") or single_lane
    if not shard_id:
        raise LaneUnknown(
            "the event names no shardId; give the event source mapping a TumblingWindowInSeconds "
            "(or set SINGLE_LANE for a stream that has one shard only)"
        )
    return str(shard_id)


def pauses(remaining_ms: Callable[[], int]) -> Iterator[float]:
    """Growing, jittered waits in seconds between tries, until the function's time is nearly over."""
    for attempt in itertools.count():
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 10))
        pause = random.uniform(longest / 2, longest)  # noqa: S311 (jitter)
        if remaining_ms() / 1000 < pause + _RESERVE_S:
            return
        yield pause


def window_response(state: Any, failed_sequence: str | None) -> dict[str, Any]:
    """What a tumbling window needs back: its state as it came, and from where to deliver again."""
    failures = [] if failed_sequence is None else [{"itemIdentifier": failed_sequence}]
    return {"state": state or {}, "batchItemFailures": failures}
