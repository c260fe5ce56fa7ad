"""Event patterns: what Lambda sends to a function and what it passes over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.local.filters import PatternError, compile_filters


def matches(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    test = compile_filters({"Filters": [{"Pattern": json.dumps(pattern)}]})
    assert test is not None
    return test(event)


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (["a", "b"], "b", True),
        (["a"], "c", False),
        ([1], 1, True),
        ([1], True, False),
        ([None], None, True),
        ([""], "", True),
        (["a"], ["x", "a"], True),
        ([{"prefix": "us-"}], "us-east-1", True),
        ([{"prefix": "us-"}], "eu", False),
        ([{"prefix": "1"}], 1, False),
        ([{"suffix": ".png"}], "a.png", True),
        ([{"equals-ignore-case": "ab"}], "AB", True),
        ([{"numeric": ["=", 100]}], 100.0, True),
        ([{"numeric": [">", 10, "<=", 20]}], 20, True),
        ([{"numeric": [">", 10, "<=", 20]}], 10, False),
        ([{"numeric": [">", 10]}], "11", False),
        ([{"anything-but": ["x", "y"]}], "z", True),
        ([{"anything-but": "x"}], "x", False),
        ([{"anything-but": {"prefix": "x"}}], "xy", False),
        ([{"exists": True}], "x", True),
        ([{"exists": False}], "x", False),
        (["a", {"prefix": "b"}], "bc", True),
    ],
)
def test_rules(rule: list[Any], value: Any, expected: bool) -> None:
    assert matches({"field": rule}, {"field": value}) is expected


def test_a_missing_field_matches_only_a_rule_that_says_so() -> None:
    assert matches({"userIdentity": [{"exists": False}]}, {})
    for rule in ([{"exists": True}], ["a"], [None], [{"anything-but": "a"}]):
        assert not matches({"userIdentity": rule}, {})


def test_every_field_of_a_pattern_must_match_and_others_are_ignored() -> None:
    pattern = {"eventName": ["INSERT"], "dynamodb": {"Keys": {"pk": {"S": [{"prefix": "u#"}]}}}}
    event = {"eventName": "INSERT", "awsRegion": "x", "dynamodb": {"Keys": {"pk": {"S": "u#1"}}}}
    assert matches(pattern, event)
    assert not matches(pattern, {**event, "eventName": "REMOVE"})
    assert not matches(pattern, {"eventName": "INSERT"})


def test_or_takes_any_of_its_patterns() -> None:
    pattern = {"$or": [{"a": [1]}, {"b": [2]}], "c": [3]}
    assert matches(pattern, {"b": 2, "c": 3})
    assert not matches(pattern, {"c": 3})


def test_an_event_needs_one_of_the_filters() -> None:
    test = compile_filters({"Filters": [{"Pattern": '{"a":[1]}'}, {"Pattern": '{"b":[1]}'}]})
    assert test is not None
    assert test({"b": 1})
    assert not test({"c": 1})


@pytest.mark.parametrize("criteria", [None, {}, {"Filters": []}])
def test_without_filters_everything_is_sent(criteria: Any) -> None:
    assert compile_filters(criteria) is None


@pytest.mark.parametrize("pattern", [{"a": "x"}, {"a": [{"unknown": 1}]}, {"a": [{"numeric": [">"]}]}, ["x"]])
def test_patterns_that_lambda_refuses_are_refused(pattern: Any) -> None:
    with pytest.raises(PatternError):
        compile_filters({"Filters": [{"Pattern": json.dumps(pattern)}]})
