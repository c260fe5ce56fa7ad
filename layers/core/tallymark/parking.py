"""Settling what the aggregator parked: each record once, beside the rows that the lanes write."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
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
    read: Callable[[Record], Sequence[Change]],
    adjustments: Adjustments,
    now_s: int,
    sleep: Callable[[float], None],
) -> bool:
    """Counts the parked record; False if that had been done before or there is nothing to count.

    A record with many changes is settled change by change, each under a claim of its own.
    Raises Unreadable or Undecidable if it must stay in the queue.
    """
    if parked.reason == "undecidable":
        raise Undecidable(f"record {parked.record.get('eventID')} of lane {parked.lane_id} is too old to be judged")
    changes = read(parked.record)
    parts = range(len(changes)) if parked.part is None else [parked.part]
    counted = [_add_once(adjustments, claim_id(parked, part), changes[part], now_s, sleep) for part in parts]
    return any(counted)


def _add_once(
    adjustments: Adjustments, event_id: str, change: Change, now_s: int, sleep: Callable[[float], None]
) -> bool:
    for longest_pause_s in _PAUSES_S:
        try:
            return adjustments.add_once(event_id, change, now_s + KEPT_S)
        except Unavailable:
            sleep(random.uniform(0, longest_pause_s))  # noqa: S311 (jitter: corrections of one item meet on its row)
    return adjustments.add_once(event_id, change, now_s + KEPT_S)


def claim_id(parked: Parked, part: int) -> str:
    """What tells this change from every other: its lane, its record's number there, its place in the record.

    The first has no place in its id: records had one change each once, and claims of then still stand.
    """
    place = f"#{part}" if part else ""
    return f"{parked.lane_id}#{parked.record['dynamodb']['SequenceNumber']}{place}"
