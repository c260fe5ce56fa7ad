"""What a cell of an input file means: its text, and its number where it is one."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache

# Narrower than what Decimal takes: "NaN", "1_000" and digits of other scripts are text to us.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")


@lru_cache(maxsize=4096)
def number_of(text: str) -> Decimal | None:
    """The exact number that a text spells, or None. Cached, as a column of ratings holds ten texts."""
    stripped = text.strip(" \t")
    if not _NUMBER.fullmatch(stripped):
        return None
    try:
        return Decimal(stripped)
    except InvalidOperation:
        return None


def text_of(value: object) -> str | None:
    """A cell as text: null is empty, true is `true`; None for lists and objects, which are no cells."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return None
