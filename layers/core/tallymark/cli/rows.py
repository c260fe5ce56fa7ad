"""Rows of an input file, and the likes that they ask for."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn
from unicodedata import normalize

from tallymark.cli.filters import CannotCompareError, Condition
from tallymark.cli.times import TimeError, rfc3339_of
from tallymark.cli.values import text_of

Row = Mapping[str, object]

_UNDECODED = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of bytes that are no UTF-8


class ColumnError(ValueError):
    """The file as a whole lacks what the options name."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One row that could not be imported, and why; `line` is where it starts in the file, from 1."""

    line: int
    code: str
    message: str
    field: str | None = None
    row: Row | None = None


class Record(NamedTuple):
    """One row as the file has it; a tuple, since it is made for every row."""

    line: int
    row: Row


class Operation(NamedTuple):
    """One like to send. Operations with the same `person` must reach the API in the order of the file."""

    line: int
    person: str
    body: dict[str, object]
    row: Row


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column holds what. A constant, where one is given, stands instead of its column."""

    user: str
    item: str
    type_column: str | None
    type_constant: str | None
    reaction_column: str | None
    reaction_constant: str | None
    time: str | None
    time_form: str

    def names(self) -> list[str]:
        """The columns that every row must have."""
        named = [self.user, self.item, self.type_column, self.reaction_column, self.time]
        return [name for name in named if name is not None]


def read_csv(lines: Iterable[str], delimiter: str, wanted: Sequence[str]) -> Iterator[Record | Reject]:
    """The rows below the header but blank lines; raises ColumnError when the header lacks a wanted column."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)  # else a quote left open takes the rest in silence
    try:
        header = next(reader)
    except (StopIteration, csv.Error) as error:
        raise ColumnError("a CSV file starts with a line of column names; this one does not") from error
    _check_header(header, wanted)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Reject(line, "invalid_row", f"is no CSV: {error}{_stretch(line, reader.line_num)}")
            continue
        if cells is None:
            return
        if len(cells) == len(header):
            yield Record(line, dict(zip(header, cells, strict=True)))
        elif cells:
            columns = f"has {len(cells)} columns where the header has {len(header)}"
            fault = f"{columns}{_stretch(line, reader.line_num)}"
            yield Reject(line, "invalid_row", fault, row=dict(zip(header, cells, strict=False)))


def _stretch(first: int, last: int) -> str:
    """What to say of a bad row that is several lines: most often nobody meant it to be."""
    if last <= first:
        return ""
    return f"; lines {first} to {last} were read as one row, since a quote opens there, and none of them is imported"


def _check_header(header: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if header.count(name) != 1:
            fault = "has no column" if name not in header else "has more than one column"
            raise ColumnError(f"the file {fault} {name!r}; its columns are: {', '.join(header)}")


def read_json_lines(lines: Iterable[str]) -> Iterator[Record | Reject]:
    """One row per line that is not blank, each an object."""
    for line, text in enumerate(lines, start=1):
        if text.isspace():
            continue
        try:
            row = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            yield Reject(line, "invalid_row", f"is no JSON: {error}")
            continue
        if isinstance(row, dict):
            yield Record(line, row)
        else:
            yield Reject(line, "invalid_row", "is no JSON object")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def matches(record: Record, conditions: Iterable[Condition]) -> bool | Reject:
    """Whether a row passes all conditions, or why that cannot be said."""
    try:
        for condition in conditions:
            if not condition.holds(record.row):
                return False
    except CannotCompareError as error:
        return Reject(record.line, "invalid_row", str(error), row=record.row)
    return True


def operation_of(record: Record, columns: Columns) -> Operation | Reject:
    """The like that a row asks for. Absence and encoding are seen here; what makes an id valid, the API says."""
    try:
        body = _body(record.row, columns)
        _check_text(body)
    except _FieldError as error:
        return Reject(record.line, "invalid_row", str(error), error.field, record.row)
    return Operation(record.line, normalize("NFC", str(body["user_id"])), body, record.row)


class _FieldError(ValueError):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _body(row: Row, columns: Columns) -> dict[str, object]:
    body: dict[str, object] = {
        "action": "like",
        "user_id": _id(row, columns.user, "user_id"),
        "item_id": _id(row, columns.item, "item_id"),
        "item_type": columns.type_constant,
    }
    if columns.type_column is not None:
        body["item_type"] = _text(row, columns.type_column, "item_type")
    if columns.reaction_constant is not None:
        body["reaction"] = columns.reaction_constant
    if columns.reaction_column is not None and row.get(columns.reaction_column) not in (None, ""):
        body["reaction"] = _text(row, columns.reaction_column, "reaction")
    if columns.time is not None:
        body["liked_at"] = _time(row, columns.time, columns.time_form)
    return body


def _check_text(body: Mapping[str, object]) -> None:
    for field, value in body.items():
        if isinstance(value, str) and not value.isascii() and _UNDECODED.search(value):
            raise _FieldError(field, "is not UTF-8, in which the file must be saved")


def _id(row: Row, column: str, field: str) -> str | int:
    value = _present(row, column, field)
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _FieldError(field, f"{column} is neither text nor a whole number")


def _text(row: Row, column: str, field: str) -> str:
    value = _present(row, column, field)
    if isinstance(value, str):
        return value
    raise _FieldError(field, f"{column} is no text")


def _time(row: Row, column: str, form: str) -> str:
    text = text_of(_present(row, column, "liked_at"))
    try:
        return rfc3339_of(text or "", form)
    except TimeError as error:
        raise _FieldError("liked_at", f"{column} {error}") from error


def _present(row: Row, column: str, field: str) -> object:
    value = row.get(column)
    if value is None or value == "":
        raise _FieldError(field, f"{column} is {'empty' if column in row else 'missing'}")
    return value
