"""The conditions of `--where`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tallymark.cli.values import number_of, text_of

_CONDITION = re.compile(r"\s*(?P<column>[^\s<>=!].*?)\s*(?P<operator>>=|<=|!=|==|=|>|<)\s*(?P<value>.*?)\s*", re.DOTALL)
_QUOTES = "\"'"

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "!=": operator.ne,
}


class ConditionError(ValueError):
    """A `--where` that is none; the message says what is wrong."""


class CannotCompareError(ValueError):
    """A row that a condition cannot judge; the message says why."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a column with a constant; `number` is None where the constant is text."""

    column: str
    operator: str
    value: str
    number: Decimal | None

    def holds(self, row: Mapping[str, object]) -> bool:
        """Whether a row passes; raises CannotCompareError instead of guessing.

        Two numbers compare as numbers, anything else as text. An order against a number is asked of numbers
        only: as text, `n/a` would be above 4. An empty cell is unknown, so it is neither above nor below.
        """
        text = self._text(row)
        compare = _OPERATORS[self.operator]
        if self.number is None:
            return compare(text, self.value)
        number = number_of(text)
        if number is not None:
            return compare(number, self.number)
        if self.operator in ("=", "!="):
            return compare(text, self.value)
        if not text.strip():
            return False
        raise CannotCompareError(
            f"{self.column} is {text[:40]!r}, which is no number to compare with {self.value} "
            f'(to compare as text, quote it: {self.column}{self.operator}"{self.value}")'
        )

    def _text(self, row: Mapping[str, object]) -> str:
        if self.column not in row:
            raise CannotCompareError(f"there is no {self.column}, which --where asks for")
        text = text_of(row[self.column])
        if text is None:
            raise CannotCompareError(f"{self.column} is a list or an object, which --where cannot compare")
        return text


def parse_condition(source: str) -> Condition:
    """The condition that `rating>=4` spells; a quoted constant (`year>="2015"`) is text in any case."""
    match = _CONDITION.fullmatch(source)
    if match is None:
        raise ConditionError(f"{source!r} is no condition: COLUMN, one of >= <= > < = !=, and a value, as in rating>=4")
    value = match["value"]
    if value[:1] in ("<", ">", "=", "!"):
        raise ConditionError(f"{source!r} has an operator that does not exist; quote a value that starts with one")
    symbol = "=" if match["operator"] == "==" else match["operator"]
    if len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
        return Condition(match["column"], symbol, value[1:-1], None)
    return Condition(match["column"], symbol, value, number_of(value))
