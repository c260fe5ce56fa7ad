from __future__ import annotations

import contextlib
import operator
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.cli.filters import CannotCompareError, ConditionError, parse_condition
from tallymark.cli.values import number_of

OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "!=": operator.ne,
}
numbers = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30)
symbols = st.sampled_from(list(OPERATORS))
spaces = st.sampled_from(["", " ", "  "])


@settings(deadline=None)  # the machine may be busy
@given(symbols, numbers, numbers, spaces, spaces)
def test_two_numbers_compare_as_numbers(symbol: str, left: Decimal, right: Decimal, a: str, b: str) -> None:
    condition = parse_condition(f"rating{a}{symbol}{b}{right}")
    assert condition.holds({"rating": str(left)}) is OPERATORS[symbol](left, right)


@settings(deadline=None)  # the machine may be busy
@given(symbols, st.text(), st.text(st.characters(exclude_characters="'\"")))
def test_a_quoted_constant_compares_as_text(symbol: str, left: str, right: str) -> None:
    assert parse_condition(f'name{symbol}"{right}"').holds({"name": left}) is OPERATORS[symbol](left, right)


@settings(deadline=None)  # the machine may be busy
@given(st.text())
def test_any_text_is_a_condition_or_a_clear_refusal(source: str) -> None:
    with contextlib.suppress(ConditionError):
        condition = parse_condition(source)
        assert condition.column
        assert condition.operator in OPERATORS


@pytest.mark.parametrize(
    ("source", "row", "passes"),
    [
        ("rating>=4", {"rating": "4.0"}, True),
        ("rating>=4", {"rating": "10"}, True),
        ("rating>=4", {"rating": 3.5}, False),
        ("rating>=4", {"rating": ""}, False),
        ("rating<4", {"rating": None}, False),
        ("rating==4", {"rating": 4}, True),
        ("rating!=4", {"rating": "n/a"}, True),
        ("n=9007199254740993", {"n": "9007199254740992"}, False),
        ("kind=film", {"kind": "film"}, True),
        ("kind != film", {"kind": "song"}, True),
        ("kind=", {"kind": ""}, True),
        ("day>=2015-06-01", {"day": "2015-12-24"}, True),
        ("public=true", {"public": True}, True),
        ("a b>=1", {"a b": "1"}, True),
    ],
)
def test_a_condition_judges(source: str, row: dict[str, object], passes: bool) -> None:
    assert parse_condition(source).holds(row) is passes


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"rating": "n/a"}, "no number"),
        ({"other": "4"}, "no rating"),
        ({"rating": [4]}, "a list"),
    ],
)
def test_what_cannot_be_compared_is_said_and_not_guessed(row: dict[str, object], reason: str) -> None:
    with pytest.raises(CannotCompareError, match=reason):
        parse_condition("rating>=4").holds(row)


@pytest.mark.parametrize("source", ["", "rating", ">=4", "rating=>4", "rating<>4"])
def test_a_text_that_is_no_condition_is_refused(source: str) -> None:
    with pytest.raises(ConditionError):
        parse_condition(source)


@pytest.mark.parametrize("text", ["nan", "inf", "1_000", "٤", "", ".", "1e", "0x10", "1,5", "--1"])
def test_what_only_looks_like_a_number_is_text(text: str) -> None:
    assert number_of(text) is None
