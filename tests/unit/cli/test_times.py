from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.cli.times import TimeError, rfc3339_of

moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 30)).map(  # noqa: DTZ001 - hypothesis wants naive bounds
    lambda moment: moment.replace(tzinfo=UTC, microsecond=moment.microsecond // 1000 * 1000)
)
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def spelt(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@settings(deadline=None)  # the machine may be busy
@given(moments, st.sampled_from(["auto", "rfc3339"]), st.sampled_from("T t"), offsets)
def test_a_time_with_any_offset_becomes_the_same_moment_in_utc(
    moment: datetime, form: str, separator: str, offset: timezone
) -> None:
    if moment.year in (1970, 9999):
        moment = moment.replace(year=2000)
    text = moment.astimezone(offset).isoformat(sep=separator, timespec="microseconds")
    assert rfc3339_of(text, form) == spelt(moment)


@settings(deadline=None)  # the machine may be busy
@given(moments)
def test_epoch_milliseconds_and_seconds_name_the_same_moment(moment: datetime) -> None:
    count = milliseconds(moment)
    assert rfc3339_of(str(count), "milliseconds") == spelt(moment)
    assert rfc3339_of(f"{count // 1000}.{count % 1000:03}", "seconds") == spelt(moment)


@settings(deadline=None)  # the machine may be busy
@given(st.datetimes(datetime(1973, 4, 1), datetime(5000, 1, 1)))  # noqa: DTZ001 - hypothesis wants naive bounds
def test_seconds_and_milliseconds_are_told_apart_by_their_size(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC, microsecond=0)
    count = milliseconds(moment)
    assert rfc3339_of(str(count)) == rfc3339_of(str(count // 1000)) == spelt(moment)


@settings(deadline=None)  # the machine may be busy
@given(st.text())
def test_any_text_is_a_time_or_a_refusal(text: str) -> None:
    with contextlib.suppress(TimeError):
        assert rfc3339_of(text).endswith("Z")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("964982703", "2000-07-30T18:45:03.000Z"),
        ("964982703.5", "2000-07-30T18:45:03.500Z"),
        ("964982703123", "2000-07-30T18:45:03.123Z"),
        ("9.64982703e8", "2000-07-30T18:45:03.000Z"),
        ("0", "1970-01-01T00:00:00.000Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"),
        ("2015-03-09 22:51:00.123999+02:00", "2015-03-09T20:51:00.123Z"),
        ("2015-03-09t22:51:00z", "2015-03-09T22:51:00.000Z"),
    ],
)
def test_a_time_is_detected(text: str, time: str) -> None:
    assert rfc3339_of(text) == time


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", "auto"),
        ("yesterday", "auto"),
        ("2015-03-09", "auto"),
        ("2015-03-09T22:51:00", "auto"),
        ("2015-02-30T00:00:00Z", "auto"),
        ("2015-03-09T25:00:00Z", "auto"),
        ("2015-03-09T22:51:00+24:00", "auto"),
        ("-1", "auto"),
        ("1e999999", "auto"),
        ("253402300800", "seconds"),
        ("2015-03-09T22:51:00Z", "seconds"),
        ("2015-03-09T22:51:00Z", "milliseconds"),
        ("964982703", "rfc3339"),
    ],
)
def test_what_is_no_time_is_refused(text: str, form: str) -> None:
    with pytest.raises(TimeError):
        rfc3339_of(text, form)
