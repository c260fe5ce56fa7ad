"""Settling what the aggregator parked: each record once, beside the rows that the lanes write."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from .aggregation import Parked, Record
from .errors import Unavailable
from .fold import Change

_PAUSES_S = (0.05, 0.2, 0.8)
KEPT_S = 30 * 86400  # claims and holds: longer than stream retention (24 h) and twice queue retention (14 d)


class Undecidable(Exception):
    """Whether the record was counted cannot be told; the reconciler's recount of the item decides."""


class Adjustments(Protocol):
    """Corrections outside the lanes' rows."""

    def add_once(self, event_id: str, change: Change, expires_s: int) -> bool:
        """Claims the event id and adds the change to the adjustment row in one transaction.

        False if the id was claimed before. Two write units for the claim and two for the row.
        """
        ...


def settle(
    parked: Parked,
    *,
    read: Callable[[Record], Change | None],
    adjustments: Adjustments,
    now_s: int,
    sleep: Callable[[float], None],
) -> bool:
    """Counts the parked record; False if that had been done before or there is nothing to count.

    Raises Unreadable or Undecidable if it must stay in the queue.
    """
    if parked.reason == "undecidable":
        raise Undecidable(f"record {parked.record.get('eventID')} of lane {parked.lane_id} is too old to be judged")
    change = read(parked.record)
    if change is None:
        return False
    for longest_pause_s in _PAUSES_S:
        try:
            return adjustments.add_once(event_id(parked), change, now_s + KEPT_S)
        except Unavailable:
            sleep(random.uniform(0, longest_pause_s))  # noqa: S311 (jitter: corrections of one item meet on its row)
    return adjustments.add_once(event_id(parked), change, now_s + KEPT_S)


def event_id(parked: Parked) -> str:
    """What tells this record from every other: its lane and its number there."""
    return f"{parked.lane_id}#{parked.record['dynamodb']['SequenceNumber']}"
