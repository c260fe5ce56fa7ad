"""Ids and types as callers may send them, checked and brought into their one spelling."""

from __future__ import annotations

import re
import unicodedata

from .errors import InvalidRequest

MAX_ID_BYTES = 256
MAX_SAFE_INTEGER = 2**53 - 1
MAX_TOKEN_BYTES = 128
ITEM_TYPE_PATTERN = "^[a-z][a-z0-9_-]{0,31}$"
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"  # of counters, quotas, limits

_ITEM_TYPE = re.compile(ITEM_TYPE_PATTERN.removeprefix("^").removesuffix("$"))
_NAME = re.compile(NAME_PATTERN.removeprefix("^").removesuffix("$"))
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # Unicode category Cc, whole


def parse_item_type(raw: object, field: str) -> str:
    """The item type; InvalidRequest if it does not match the pattern."""
    if isinstance(raw, str) and _ITEM_TYPE.fullmatch(raw):
        return raw
    if raw is None:
        raise InvalidRequest("is required", field)
    raise InvalidRequest(f"must match {ITEM_TYPE_PATTERN}", field)


def parse_name(raw: str, field: str) -> str:
    """The name of a counter, quota or limit; InvalidRequest if it does not match the pattern."""
    if not _NAME.fullmatch(raw):
        raise InvalidRequest(f"must match {NAME_PATTERN}", field)
    return raw


def parse_id(raw: object, field: str) -> str:
    """The id in Unicode NFC; a whole JSON number becomes its decimal string."""
    if isinstance(raw, str):
        return _parse_text_id(raw, field)
    if raw is None:
        raise InvalidRequest("is required", field)
    if isinstance(raw, int) and not isinstance(raw, bool):
        if not 0 <= raw <= MAX_SAFE_INTEGER:
            raise InvalidRequest(f"a number must be from 0 to {MAX_SAFE_INTEGER}; send a larger id as a string", field)
        return str(raw)
    raise InvalidRequest(
        f"must be a string, or a whole number from 0 to {MAX_SAFE_INTEGER} without fraction or exponent "
        "(send a larger id as a string)",
        field,
    )


def _parse_text_id(raw: str, field: str) -> str:
    if raw.isascii() and raw.isprintable() and 2 < len(raw) <= MAX_ID_BYTES:
        return raw  # the common case, which needs none of what follows
    text = raw if raw.isascii() else unicodedata.normalize("NFC", raw)
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("holds a lone surrogate, which no UTF-8 text has", field) from error
    if not 1 <= length <= MAX_ID_BYTES:
        raise InvalidRequest(f"must have 1 to {MAX_ID_BYTES} bytes of UTF-8, not {length}", field)
    if _CONTROL.search(text):
        raise InvalidRequest("must not hold control characters", field)
    if text in (".", ".."):
        raise InvalidRequest("must not be . or .., which URLs cannot carry", field)
    return text


def parse_token(raw: object, field: str) -> str:
    """A caller's idempotency token, as sent."""
    if raw is None:
        raise InvalidRequest("is required", field)
    if not isinstance(raw, str):
        raise InvalidRequest("must be a string", field)
    try:
        length = len(raw.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("holds a lone surrogate, which no UTF-8 text has", field) from error
    if not 1 <= length <= MAX_TOKEN_BYTES:
        raise InvalidRequest(f"must have 1 to {MAX_TOKEN_BYTES} bytes of UTF-8, not {length}", field)
    return raw
