"""DynamoDB's expressions, as far as our adapters write them: parsed once, evaluated many times. The unknown raises.

An item is what the low-level client has: attribute name -> {"S": ...}. A missing operand is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Item = Mapping[str, Any]
Value = Mapping[str, Any]  # {"S": ...}, {"N": ...}, {"B": ...}, {"SS": ...}

_TOKEN = re.compile(r"""\s*(#\w+|:\w+|[A-Za-z_]\w*|<=|>=|<>|[=<>(),+\-]|"[^"]*"|'[^']*'|[?{}:*])""")
_WHOLE_NUMBER = re.compile(r"-?\d{1,38}")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Invalid(Exception):
    """DynamoDB would answer ValidationException, or this stand-in does not know the form."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression is evaluated over."""

    item: Item
    names: Mapping[str, str]
    values: Mapping[str, Value]


Operand = Callable[[Scope], Value | None]
Condition = Callable[[Scope], bool]


def number(text: str) -> int:
    """The tables hold whole numbers alone."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise Invalid(f"not a whole number of up to 38 digits: {text!r}")
    return int(text)


def plain(value: Value) -> tuple[str, Any]:
    """Type and a Python value: equal and ordered as DynamoDB has it, within one type."""
    ((kind, content),) = value.items()
    if kind == "S":
        return kind, content  # the order of code points is the order of UTF-8's bytes
    if kind == "B":
        return kind, bytes(content)
    if kind == "N":
        return kind, number(content)
    if kind == "SS":
        return kind, frozenset(content)
    raise Invalid(f"the stand-in knows no type {kind}")


def compare(operator: str, left: Value | None, right: Value | None) -> bool:
    """False where an operand is missing or types differ, except for <>."""
    if left is None or right is None:
        return operator == "<>"
    (left_kind, a), (right_kind, b) = plain(left), plain(right)
    if operator == "<>":
        return (left_kind, a) != (right_kind, b)
    if left_kind == "SS" and operator != "=":
        raise Invalid("sets have no order")
    return left_kind == right_kind and _COMPARISONS[operator](a, b)


# --- reading tokens ---------------------------------------------------------------------------------------------


class Tokens:
    """The tokens of an expression, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_split(text))
        self._at = 0

    def peek(self) -> str:
        """The next token; empty at the end. Words are compared in capitals."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self) -> str:
        token = self.peek()
        if not token:
            raise Invalid(f"ends too soon: {self._text}")
        self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Takes the words if they come next."""
        coming = [token.upper() for token in self._tokens[self._at : self._at + len(words)]]
        if coming != list(words):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise Invalid(f"{' '.join(words)} expected at token {self._at} of: {self._text}")

    def end(self) -> None:
        if self.peek():
            raise Invalid(f"not understood from {self.peek()!r} on: {self._text}")


def _split(text: str) -> Iterator[str]:
    at, stripped = 0, text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            raise Invalid(f"not understood: {text[at:]!r}")
        at = match.end()
        yield match[1]


# --- conditions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parsed:
    """A condition, and the placeholders that it uses. `equals` are the names that it binds to one value each."""

    holds: Condition
    placeholders: frozenset[str]
    equals: tuple[tuple[str, Operand], ...] = ()


class _Parser:
    """Conditions: OR, AND, NOT, parentheses, comparisons, BETWEEN and functions."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.placeholders: set[str] = set()
        self.equals: list[tuple[str, Operand]] = []
        self._nested = False

    def either(self) -> Condition:
        sides = [self._both()]
        while self.tokens.accept("OR"):
            self._nested = True
            sides.append(self._both())
        return sides[0] if len(sides) == 1 else lambda scope: any(side(scope) for side in sides)

    def _both(self) -> Condition:
        sides = [self._negated()]
        while self.tokens.accept("AND"):
            sides.append(self._negated())
        return sides[0] if len(sides) == 1 else lambda scope: all(side(scope) for side in sides)

    def _negated(self) -> Condition:
        if self.tokens.accept("NOT"):
            self._nested = True
            inner = self._negated()
            return lambda scope: not inner(scope)
        if self.tokens.accept("("):
            inner = self.either()
            self.tokens.expect(")")
            return inner
        return self._function() or self._comparison()

    def _function(self) -> Condition | None:
        if self.tokens.accept("ATTRIBUTE_EXISTS", "("):
            operand = self._last_operand()
            return lambda scope: operand(scope) is not None
        if self.tokens.accept("ATTRIBUTE_NOT_EXISTS", "("):
            operand = self._last_operand()
            return lambda scope: operand(scope) is None
        if self.tokens.accept("BEGINS_WITH", "("):
            operand = self.operand()
            self.tokens.expect(",")
            prefix = self._last_operand()
            return lambda scope: _begins_with(operand(scope), prefix(scope))
        return None

    def _last_operand(self) -> Operand:
        operand = self.operand()
        self.tokens.expect(")")
        return operand

    def _comparison(self) -> Condition:
        name = self.tokens.peek()
        left = self.operand()
        if self.tokens.accept("BETWEEN"):
            low = self.operand()
            self.tokens.expect("AND")
            high = self.operand()
            return lambda scope: compare(">=", left(scope), low(scope)) and compare("<=", left(scope), high(scope))
        operator = self.tokens.take()
        if operator not in _COMPARISONS and operator != "<>":
            raise Invalid(f"no comparison: {operator!r}")
        right = self.operand()
        if operator == "=" and not name.startswith(":"):
            self.equals.append((name, right))
        return lambda scope: compare(operator, left(scope), right(scope))

    def operand(self) -> Operand:
        token = self.tokens.take()
        if token.startswith((":", "#")) and len(token) > 1:
            self.placeholders.add(token)
        if token.startswith(":"):
            return lambda scope: scope.values[token]
        name = self._name(token)
        return lambda scope: scope.item.get(name(scope.names))

    def name(self) -> Callable[[Mapping[str, str]], str]:
        token = self.tokens.take()
        if token.startswith("#"):
            self.placeholders.add(token)
        return self._name(token)

    def _name(self, token: str) -> Callable[[Mapping[str, str]], str]:
        if token.startswith("#"):
            return lambda names: names[token]
        if not (token[0].isalpha() or token[0] == "_"):
            raise Invalid(f"no name: {token!r}")
        return lambda _: token

    def parsed(self) -> Parsed:
        holds = self.either()
        self.tokens.end()
        return Parsed(holds, frozenset(self.placeholders), () if self._nested else tuple(self.equals))


def _begins_with(value: Value | None, prefix: Value | None) -> bool:
    if value is None or prefix is None:
        return False
    (kind, text), (prefix_kind, start) = plain(value), plain(prefix)
    if prefix_kind not in ("S", "B"):
        raise Invalid(f"begins_with takes no {prefix_kind}")
    return kind == prefix_kind and bool(text.startswith(start))


@lru_cache(maxsize=1024)
def condition(text: str) -> Parsed:
    """A condition, filter or key condition."""
    return _Parser(Tokens(text)).parsed()


# --- updates ----------------------------------------------------------------------------------------------------

Action = Callable[[Scope, dict[str, Any]], str]  # changes the new item, returns the attribute's name


@dataclass(frozen=True, slots=True)
class Update:
    """What UpdateItem does to an item."""

    actions: tuple[Action, ...]
    placeholders: frozenset[str]

    def apply(self, scope: Scope) -> dict[str, Any]:
        """The new item; every operand sees the old one. Invalid if two actions meet on one attribute."""
        new = dict(scope.item)
        touched = [action(scope, new) for action in self.actions]
        if len(set(touched)) < len(touched):
            raise Invalid("two actions on one attribute")
        return new


def _summed(operator: str, left: Value | None, right: Value | None) -> Value:
    if left is None or right is None or not {"N"} == {*left, *right}:
        raise Invalid("an operand of the sum is missing or is no number")
    a, b = number(left["N"]), number(right["N"])
    return {"N": str(number(str(a + b if operator == "+" else a - b)))}


def _sum(operator: str, left: Operand, right: Operand) -> Operand:
    return lambda scope: _summed(operator, left(scope), right(scope))


def _set(parser: _Parser) -> Action:
    name = parser.name()
    parser.tokens.expect("=")
    result = _set_operand(parser)
    if parser.tokens.peek() in ("+", "-"):
        result = _sum(parser.tokens.take(), result, _set_operand(parser))

    def act(scope: Scope, new: dict[str, Any]) -> str:
        attribute, value = name(scope.names), result(scope)
        if value is None:
            raise Invalid(f"SET {attribute} to an attribute that is not there")
        new[attribute] = value
        return attribute

    return act


def _set_operand(parser: _Parser) -> Operand:
    if not parser.tokens.accept("IF_NOT_EXISTS", "("):
        return parser.operand()
    present = parser.operand()
    parser.tokens.expect(",")
    otherwise = parser.operand()
    parser.tokens.expect(")")

    def first(scope: Scope) -> Value | None:
        value = present(scope)
        return otherwise(scope) if value is None else value

    return first


def _add(parser: _Parser) -> Action:
    name, operand = parser.name(), parser.operand()

    def act(scope: Scope, new: dict[str, Any]) -> str:
        attribute, value = name(scope.names), operand(scope)
        old = scope.item.get(attribute)
        if value is None or not ("N" in value or "SS" in value):
            raise Invalid("ADD takes a number or a set of strings")
        if "N" in value:
            new[attribute] = _summed("+", {"N": "0"} if old is None else old, value)
        elif old is None or "SS" in old:
            new[attribute] = {"SS": sorted({*(old or {"SS": ()})["SS"], *value["SS"]})}
        else:
            raise Invalid("ADD of a set to something else")
        return attribute

    return act


def _remove(parser: _Parser) -> Action:
    name = parser.name()

    def act(scope: Scope, new: dict[str, Any]) -> str:
        attribute = name(scope.names)
        new.pop(attribute, None)
        return attribute

    return act


_SECTIONS = {"SET": _set, "ADD": _add, "REMOVE": _remove}


@lru_cache(maxsize=1024)
def update(text: str) -> Update:
    """An UpdateExpression: each of SET, ADD and REMOVE at most once."""
    parser = _Parser(Tokens(text))
    actions: list[Action] = []
    seen: set[str] = set()
    while parser.tokens.peek():
        section = parser.tokens.take().upper()
        if section not in _SECTIONS or section in seen:
            raise Invalid(f"no section of an update, or a second one: {section}")
        seen.add(section)
        actions.append(_SECTIONS[section](parser))
        while parser.tokens.accept(","):
            actions.append(_SECTIONS[section](parser))
    return Update(tuple(actions), frozenset(parser.placeholders))


# --- PartiQL ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    """A PartiQL statement. Parameters stand in the order of the question marks.

    `attributes` are an INSERT's, `sets` an UPDATE's, `key` and `conditions` the WHERE of the other two.
    """

    verb: str
    table: str
    parameters: int
    attributes: tuple[str, ...] = ()
    sets: tuple[tuple[str, bool, int], ...] = ()  # attribute, whether the parameter is added, its position
    equals: tuple[tuple[str, int], ...] = ()
    conditions: tuple[tuple[str, str, int], ...] = ()  # attribute, comparison or IS [NOT] MISSING, position
    returning: bool = False

    def holds(self, item: Item, parameters: Sequence[Value]) -> bool:
        """Whether the conditions beside the key are met."""
        for attribute, operator, position in self.conditions:
            if operator == "IS MISSING":
                met = attribute not in item
            elif operator == "IS NOT MISSING":
                met = attribute in item
            else:
                met = compare(operator, item.get(attribute), parameters[position])
            if not met:
                return False
        return True

    def updated(self, item: Item, parameters: Sequence[Value]) -> dict[str, Any]:
        new = dict(item)
        for attribute, added, position in self.sets:
            operand = parameters[position]
            new[attribute] = _summed("+", item.get(attribute), operand) if added else operand
        return new


class _PartiQL:
    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text)
        self.parameters = 0

    def parsed(self) -> Statement:
        if self.tokens.accept("INSERT", "INTO"):
            made = self._insert()
        elif self.tokens.accept("UPDATE"):
            made = self._update()
        elif self.tokens.accept("DELETE", "FROM"):
            made = self._delete()
        else:
            raise Invalid(f"no statement begins with {self.tokens.peek()!r}")
        self.tokens.end()
        return made

    def _parameter(self) -> int:
        self.tokens.expect("?")
        self.parameters += 1
        return self.parameters - 1

    def _name(self) -> str:
        token = self.tokens.take()
        if token.startswith('"'):
            return token[1:-1]
        if not token[0].isalpha():
            raise Invalid(f"no name: {token!r}")
        return token

    def _insert(self) -> Statement:
        table = self._name()
        self.tokens.expect("VALUE", "{")
        attributes = [self._attribute()]
        while self.tokens.accept(","):
            attributes.append(self._attribute())
        self.tokens.expect("}")
        return Statement("INSERT", table, self.parameters, attributes=tuple(attributes))

    def _attribute(self) -> str:
        token = self.tokens.take()
        if not token.startswith("'"):
            raise Invalid(f"no quoted attribute: {token!r}")
        self.tokens.expect(":")
        self._parameter()
        return token[1:-1]

    def _update(self) -> Statement:
        table, sets = self._name(), []
        while self.tokens.accept("SET"):
            attribute = self._name()
            self.tokens.expect("=")
            added = self.tokens.peek() != "?"
            if added:
                if self._name() != attribute:
                    raise Invalid("a sum of another attribute")
                self.tokens.expect("+")
            sets.append((attribute, added, self._parameter()))
        equals, conditions = self._where()
        return Statement("UPDATE", table, self.parameters, sets=tuple(sets), equals=equals, conditions=conditions)

    def _delete(self) -> Statement:
        table = self._name()
        equals, conditions = self._where()
        returning = self.tokens.accept("RETURNING", "ALL", "OLD", "*")
        return Statement("DELETE", table, self.parameters, equals=equals, conditions=conditions, returning=returning)

    def _where(self) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str, int], ...]]:
        self.tokens.expect("WHERE")
        equals, conditions = [], []
        while True:
            attribute = self._name()
            if self.tokens.accept("IS", "MISSING"):
                conditions.append((attribute, "IS MISSING", -1))
            elif self.tokens.accept("IS", "NOT", "MISSING"):
                conditions.append((attribute, "IS NOT MISSING", -1))
            elif self.tokens.accept("="):
                equals.append((attribute, self._parameter()))
            else:
                operator = self.tokens.take()
                if operator not in _COMPARISONS:
                    raise Invalid(f"no comparison: {operator!r}")
                conditions.append((attribute, operator, self._parameter()))
            if not self.tokens.accept("AND"):
                return tuple(equals), tuple(conditions)


@lru_cache(maxsize=4096)
def statement(text: str) -> Statement:
    """A PartiQL statement with parameters alone: INSERT, UPDATE or DELETE of one item."""
    return _PartiQL(text).parsed()
