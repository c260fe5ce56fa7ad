"""Event patterns of FilterCriteria, as a test of one event.

AWS Lambda Developer Guide, "Control which events Lambda sends to your function" (invocation-eventfiltering),
and Amazon EventBridge User Guide, "Comparison operators for use in event patterns".
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
Predicate = Callable[[Event], bool]
_Rule = Callable[[Any], bool]

_ABSENT = object()
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class PatternError(ValueError):
    """A filter pattern that Lambda would refuse when the mapping is made."""


def compile_filters(criteria: Mapping[str, Any] | None) -> Predicate | None:
    """A test that tells whether Lambda sends an event to the function; None where everything is sent.

    An event is sent if any one of the filters matches it.
    """
    patterns = [json.loads(item["Pattern"]) for item in (criteria or {}).get("Filters") or []]
    if not patterns:
        return None
    tests = [_compile_object(pattern) for pattern in patterns]
    return lambda event: any(test(event) for test in tests)


def _compile_object(pattern: Any) -> _Rule:
    if not isinstance(pattern, Mapping):
        raise PatternError(f"a pattern is an object, not {pattern!r}")
    fields = [(name, _compile_field(rule)) for name, rule in pattern.items() if name != "$or"]
    alternatives = [_compile_object(option) for option in pattern.get("$or", ())]

    def matches(value: Any) -> bool:
        if not isinstance(value, Mapping):
            value = {}
        if alternatives and not any(option(value) for option in alternatives):
            return False
        return all(test(value.get(name, _ABSENT)) for name, test in fields)

    return matches


def _compile_field(rule: Any) -> _Rule:
    if isinstance(rule, Mapping):
        return _compile_object(rule)
    if isinstance(rule, list):
        choices = [_compile_choice(choice) for choice in rule]
        return lambda value: any(choice(value) for choice in choices)
    raise PatternError(f"a rule is a list or an object, not {rule!r}")


def _compile_choice(choice: Any) -> _Rule:
    if not isinstance(choice, Mapping):
        return lambda value: value is not _ABSENT and _same(value, choice)
    if len(choice) != 1:
        raise PatternError(f"one comparison operator at a time: {choice!r}")
    (name, argument), *_ = choice.items()
    try:
        return _OPERATORS[name](argument)
    except KeyError:
        raise PatternError(f"unknown comparison operator {name!r}") from None


def _same(value: Any, wanted: Any) -> bool:
    """Exact comparison without coercion: true is not 1, and a list matches by any of its items."""
    if isinstance(value, list):
        return any(_same(item, wanted) for item in value)
    return type(value) is type(wanted) and bool(value == wanted)


def _exists(wanted: Any) -> _Rule:
    # A leaf exists; an object in its place does not count (EventBridge tests leaf nodes only).
    return lambda value: (value is not _ABSENT and not isinstance(value, Mapping)) is bool(wanted)


def _text_rule(test: Callable[[str, str], bool]) -> Callable[[Any], _Rule]:
    return lambda argument: lambda value: isinstance(value, str) and test(value, argument)


def _numeric(argument: Sequence[Any]) -> _Rule:
    if not argument or len(argument) % 2:
        raise PatternError(f"numeric takes pairs of comparison and number, not {argument!r}")
    pairs = [(_COMPARISONS[sign], limit) for sign, limit in zip(argument[::2], argument[1::2], strict=True)]

    def matches(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return all(compare(value, limit) for compare, limit in pairs)

    return matches


def _anything_but(argument: Any) -> _Rule:
    if isinstance(argument, Mapping):
        inner = _compile_choice(argument)
        return lambda value: value is not _ABSENT and not inner(value)
    refused = argument if isinstance(argument, list) else [argument]
    return lambda value: value is not _ABSENT and not any(_same(value, item) for item in refused)


_OPERATORS: dict[str, Callable[[Any], _Rule]] = {
    "exists": _exists,
    "prefix": _text_rule(str.startswith),
    "suffix": _text_rule(str.endswith),
    "equals-ignore-case": _text_rule(lambda value, wanted: value.casefold() == wanted.casefold()),
    "numeric": _numeric,
    "anything-but": _anything_but,
}
