"""Which records come by which lane, and what they mean for counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tallymark.aggregation import Record
from tallymark.fold import Change

from .event_stream import read_event
from .like_stream import read_like

_EVENTS = "events/"  # before the shard's id in the lanes of the events' stream; nothing in those of the likes'


def stream_of(record: dict[str, Any], events_table: str) -> str:
    """What tells the record's stream in its lane's id."""
    return _EVENTS if f":table/{events_table}/" in record.get("eventSourceARN", "") else ""


def reader_of(lane_id: str) -> Callable[[Record], Sequence[Change]]:
    """What reads the lane's records: into the same changes in each version, for a parked one is named by its place."""
    return read_event if lane_id.startswith(_EVENTS) else read_like
