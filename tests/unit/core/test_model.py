from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.errors import InvalidRequest
from tallymark.model import Count, Stamp, format_time, parse_time

FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01T00:00:00.0019999Z", 1),
        ("1970-01-01T00:00:00.5Z", 500),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("1970-01-01T05:30:00+05:30", 0),
        ("1969-12-31T14:00:00-10:00", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("0001-01-01T00:00:00.000Z", FIRST_MS),
        ("0001-01-01T01:00:00+01:00", FIRST_MS),
        ("9999-12-31T23:59:59.999Z", LAST_MS),
        ("9999-12-31T23:59:59.9999999Z", LAST_MS),
        ("9999-12-31T22:59:59.999-01:00", LAST_MS),
    ],
)
def test_a_time_with_any_offset_is_a_moment(text: str, ms: int) -> None:
    assert parse_time(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "1970-01-01",
        "1970-01-01T00:00:00",
        "1970-01-01 00:00:00Z",
        "1970-01-01T00:00Z",
        "1970-01-01T00:00:00.Z",
        "1970-01-01T00:00:00,5Z",
        "1970-01-01T00:00:00+0530",
        "1970-01-01T00:00:00+05",
        "1970-01-01T00:00:00+24:00",
        "1970-01-01T00:00:00Z\n",
        " 1970-01-01T00:00:00Z",
        "70-01-01T00:00:00Z",
        "01970-01-01T00:00:00Z",
        "-1970-01-01T00:00:00Z",
        "1970-W01-1T00:00:00Z",
        "1970-001T00:00:00Z",
        "1970-02-30T00:00:00Z",
        "1970-13-01T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:60:00Z",
        "2016-12-31T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "\uff11\uff19\uff17\uff10-01-01T00:00:00Z",
        "1970-01-01T00:00:00.\u0661Z",
    ],
)
def test_what_is_no_moment_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_time(text, "liked_at")
    assert refused.value.field == "liked_at"


def test_an_offset_has_at_most_59_minutes() -> None:
    try:
        taken: int | None = parse_time("1970-01-01T00:00:00+00:99")
    except InvalidRequest:
        taken = None
    assert taken is None


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-1001, "1969-12-31T23:59:58.999Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
        (FIRST_MS, "0001-01-01T00:00:00.000Z"),
        (-30_610_224_000_001, "0999-12-31T23:59:59.999Z"),
        (LAST_MS, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_moment_is_written_in_utc_with_milliseconds(ms: int, text: str) -> None:
    assert format_time(ms) == text


@settings(deadline=None)
@given(st.integers(FIRST_MS, LAST_MS))
def test_what_is_written_is_read_as_the_same_moment(ms: int) -> None:
    assert parse_time(format_time(ms)) == ms
    assert len(format_time(ms)) == 24


@settings(deadline=None)
@given(
    st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31)),  # noqa: DTZ001 - hypothesis wants naive bounds
    st.integers(-1439, 1439),
)
def test_a_moment_is_the_same_in_every_offset(moment: dt.datetime, minutes: int) -> None:
    utc = moment.replace(tzinfo=dt.UTC)
    elsewhere = utc.astimezone(dt.timezone(dt.timedelta(minutes=minutes)))
    assert parse_time(elsewhere.isoformat(timespec="microseconds")) == parse_time(
        utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def test_stamps_of_one_millisecond_differ() -> None:
    assert len({Stamp.at(0) for _ in range(1000)}) == 1000


def test_stamps_are_ordered_by_time_first() -> None:
    assert Stamp(-1, b"\xff" * 8) < Stamp(0, bytes(8)) < Stamp(0, b"\x01" + bytes(7))


def test_a_total_hides_no_negative_count() -> None:
    count = Count({"like": 3, "👍": 0, "love": -1}, 0)
    assert count.total == 2
    assert count.above_zero == {"like": 3}
    assert Count({"like": -1}, 0).total == -1
