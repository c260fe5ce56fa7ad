"""The nouns of the service as frozen values: targets, likes, counters, lanes' changes."""

from __future__ import annotations

import datetime as dt
import os
import re
from dataclasses import dataclass
from typing import Literal, Self

from .errors import InvalidRequest

DEFAULT_REACTION = "like"
MS_PER_HOUR = 3_600_000

_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt]([01]\d:[0-5]\d:[0-5]\d|2[0-3]:[0-5]\d:[0-5]\d)(?:\.(\d+))?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


def format_time(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, of milliseconds since the epoch."""
    return (_EPOCH + dt.timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def parse_time(text: str, field: str | None = None) -> int:
    """Milliseconds since the epoch of an RFC 3339 time with any offset; finer digits are cut off."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise InvalidRequest("must be an RFC 3339 time, such as 2026-01-31T12:00:00.000Z", field)
    day, clock, fraction, offset = match.groups()
    try:
        moment = dt.datetime.fromisoformat(f"{day}T{clock}{'+00:00' if offset in 'Zz' else offset}")
        since = moment - _EPOCH
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"is not a moment that exists: {text}", field) from error
    ms = since // _MILLISECOND + int(((fraction or "") + "000")[:3])
    if not _FIRST_MS <= ms <= _LAST_MS:
        raise InvalidRequest("must lie within the years 1 to 9999 of UTC", field)
    return ms


FIRST_DAY = (dt.date.min - _EPOCH.date()).days  # since the epoch, of the year 1
_FIRST_MS = (dt.datetime(1, 1, 1, tzinfo=dt.UTC) - _EPOCH) // _MILLISECOND
_LAST_MS = (dt.datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC) - _EPOCH) // _MILLISECOND


@dataclass(frozen=True, slots=True)
class Target:
    """What is liked or viewed."""

    item_type: str
    item_id: str


@dataclass(frozen=True, slots=True)
class LikeKey:
    """One person's reaction to one target: the identity of a like."""

    user_id: str
    target: Target
    reaction: str = DEFAULT_REACTION


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """When a like was made, made unique: orders lists, and tells one write's record from another's.

    `nonce` is 8 random bytes. A write that finds its own stamp in the store knows that an earlier
    attempt of the same call landed and only the reply was lost.
    """

    ms: int
    nonce: bytes

    @classmethod
    def at(cls, ms: int) -> Self:
        return cls(ms, os.urandom(8))


@dataclass(frozen=True, slots=True)
class Like:
    """A like as it is stored."""

    key: LikeKey
    stamp: Stamp


NAMED = "+"  # the item type of named counters; callers can send none that begins so
ALL = "all"  # the label of a metric that is not divided further

HourlyMetric = Literal["likes-by-hour", "views-by-hour"]
Metric = Literal["like", "view", "sum"] | HourlyMetric

_HOURS = tuple(f"{hour:02d}" for hour in range(24))
_SLOTS: dict[Metric, tuple[str, ...]] = {
    "like": ("n",),
    "view": ("n", "b"),
    "sum": ("n",),
    "likes-by-hour": tuple(f"n{hour}" for hour in _HOURS),
    "views-by-hour": tuple(f"{slot}{hour}" for hour in _HOURS for slot in "nb"),
}


@dataclass(frozen=True, slots=True)
class LimitKey:
    """Whose calls a limit holds back: those of one name and key are counted together."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Counter:
    """The numbers of a target that are kept in one row and move together, each in a slot of its own.

    like           per reaction, which is the label: the likes (n)
    view           the views of people (n) and of bots (b)
    sum            a named counter (n)
    likes-by-hour  per UTC day, which is the label: likes less unlikes by hour (n00 to n23)
    views-by-hour  the same of views (n00 to n23, b00 to b23)
    """

    target: Target
    label: str
    metric: Metric = "like"

    @property
    def slots(self) -> tuple[str, ...]:
        return slots_of(self.metric)


def slots_of(metric: Metric) -> tuple[str, ...]:
    return _SLOTS[metric]


def named_counter(name: str) -> Counter:
    """The counter that callers add to under a name."""
    return Counter(Target(NAMED, name), ALL, "sum")


def by_hour(target: Target, metric: HourlyMetric, ms: int) -> tuple[Counter, str]:
    """The counter of the UTC day of a moment, and the hour as two digits, with which its slots end."""
    day, hour = divmod(ms // MS_PER_HOUR, 24)
    return Counter(target, day_label(day), metric), f"{hour:02d}"


def day_label(day: int) -> str:
    """The date of a day since the epoch, as counters are labelled by it."""
    return (_EPOCH + dt.timedelta(days=day)).date().isoformat()


def day_of_label(label: str) -> int:
    """The inverse of day_label."""
    return (dt.date.fromisoformat(label) - _EPOCH.date()).days


@dataclass(frozen=True, slots=True)
class Count:
    """The likes of one target by reaction, as of a moment (milliseconds since the epoch)."""

    by_reaction: dict[str, int]
    as_of_ms: int

    @property
    def total(self) -> int:
        return sum(self.by_reaction.values())

    @property
    def above_zero(self) -> dict[str, int]:
        return {reaction: n for reaction, n in self.by_reaction.items() if n > 0}
