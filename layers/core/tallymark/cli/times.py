"""Times of input files, in the form that the API takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal

from tallymark.cli.values import number_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, where RFC 3339 ends

# Below, a number counts seconds (up to the year 5138), from there on milliseconds (from March 1973).
_SMALLEST_MS = 100_000_000_000

_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)


class TimeError(ValueError):
    """A text that is no time in the form asked for."""


def rfc3339_of(text: str, form: str = "auto") -> str:
    """The time as RFC 3339 in UTC with milliseconds, finer parts cut off; `form` is a key of TIME_FORMS."""
    return _spell(TIME_FORMS[form](text.strip(" \t")))


def _spell(milliseconds: int) -> str:
    if not 0 <= milliseconds <= _LAST_MS:
        raise TimeError("lies outside the years 1970 to 9999")
    seconds, rest = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:03d}Z"


def _detected(text: str) -> int:
    number = _epoch(text)
    if number is None:
        return _from_rfc3339(text)
    return _floor(number) if abs(number) >= _SMALLEST_MS else _floor(number * 1000)


def _from_seconds(text: str) -> int:
    return _floor(_required(_epoch(text), "epoch seconds") * 1000)


def _from_milliseconds(text: str) -> int:
    return _floor(_required(_epoch(text), "epoch milliseconds"))


def _from_rfc3339(text: str) -> int:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise TimeError("is no time: epoch seconds, epoch milliseconds or RFC 3339 (2015-03-09T22:51:00Z)")
    day, hour_minute, second, fraction, sign, off_hours, off_minutes = match.groups()
    leap = second == "60"  # RFC 3339 section 5.7 has leap seconds, datetime has none
    try:
        moment = datetime.fromisoformat(f"{day}T{hour_minute}:{'59' if leap else second}+00:00")
    except ValueError as error:
        raise TimeError(f"is no time: {error}") from error
    offset = _offset(sign, off_hours, off_minutes)
    since = moment - _EPOCH
    whole = since.days * 86_400 + since.seconds + leap - offset
    return whole * 1000 + int(((fraction or "") + "000")[:3])


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> int:
    if sign is None or hours is None or minutes is None:
        return 0
    if int(hours) > 23 or int(minutes) > 59:
        raise TimeError("is no time: its offset from UTC does not exist")
    seconds = int(timedelta(hours=int(hours), minutes=int(minutes)).total_seconds())
    return -seconds if sign == "-" else seconds


def _epoch(text: str) -> Decimal | None:
    if text.isdecimal() and text.isascii():
        return Decimal(text)
    # Past number_of's cache: no two times are alike, and they would push out what repeats.
    return number_of.__wrapped__(text)


def _required(number: Decimal | None, what: str) -> Decimal:
    if number is None:
        raise TimeError(f"is no number of {what}")
    return number


def _floor(number: Decimal) -> int:
    if abs(number) > 10 * _LAST_MS:  # int() of 1e999999 would take minutes
        raise TimeError("lies outside the years 1970 to 9999")
    return int(number.to_integral_value(ROUND_FLOOR))


TIME_FORMS: dict[str, Callable[[str], int]] = {
    "auto": _detected,
    "seconds": _from_seconds,
    "milliseconds": _from_milliseconds,
    "rfc3339": _from_rfc3339,
}
