"""The stream of the table of likes: what a record means for a counter."""

from __future__ import annotations

from tallymark.aggregation import MAX_DIGITS, Record, Unreadable
from tallymark.fold import Change
from tallymark.model import Counter

from . import keys

_DELTAS = {"INSERT": 1, "REMOVE": -1, "MODIFY": 0}


def read_change(record: Record) -> Change | None:
    """The change that a record of the KEYS_ONLY stream stands for; None for one that changes no count.

    Unreadable if any part that is needed is missing or was not written by the table of likes.
    """
    try:
        delta = _DELTAS[record["eventName"]]
        body = record["dynamodb"]
        target, reaction = keys.parse_like_sort_key(body["Keys"]["sk"]["S"])
        sequence = _sequence(body["SequenceNumber"])
        time_s = int(body["ApproximateCreationDateTime"])
        if not 0 <= time_s < 2**32:
            raise ValueError(f"time {time_s}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return Change(Counter(target, reaction), delta, sequence, time_s) if delta else None


def _sequence(digits: object) -> int:
    if not (isinstance(digits, str) and digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS):
        raise ValueError(f"sequence number {digits!r}")
    return int(digits)
