"""What callers may send for likes, parsed into the model; one function per shape.

Faults of identity (403) are looked for before faults of form (400).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tallymark.errors import Forbidden, InvalidRequest
from tallymark.identifiers import parse_id, parse_item_type, parse_name
from tallymark.identity import Actor, user_for
from tallymark.likes import Operation
from tallymark.limits import MAX_CALLS, MAX_WINDOW_S
from tallymark.model import DEFAULT_REACTION, LikeKey, LimitKey, Target, parse_time
from tallymark.reactions import parse_reaction

from .contract import DEFAULT_LIMIT, MAX_ENTRIES

T = TypeVar("T")
Fields = Mapping[str, Any]

_LIMIT = re.compile(r"[1-9][0-9]?|100")


def parse_like_key(fields: Fields, actor: Actor) -> LikeKey:
    user_id = user_for(actor, fields.get("user_id"))
    return LikeKey(user_id, parse_target(fields), parse_optional_reaction(fields) or DEFAULT_REACTION)


def parse_operation(fields: Fields, actor: Actor, *, like: bool) -> Operation:
    """A like with its time, where a service sends one, or the removal of a like."""
    liked_at = fields.get("liked_at") if like else None
    if liked_at is not None and not actor.service:
        raise Forbidden("only a service may say when it was liked", "liked_at")
    key = parse_like_key(fields, actor)
    if liked_at is None:
        return Operation(key, like)
    if not isinstance(liked_at, str):
        raise InvalidRequest("must be an RFC 3339 time in a string", "liked_at")
    return Operation(key, like, parse_time(liked_at, "liked_at"))


def check_action(fields: Fields) -> None:
    if fields.get("action") not in ("like", "unlike"):
        raise InvalidRequest("must be like or unlike", "action")


def parse_wanted(fields: Fields) -> bool:
    wanted = fields.get("like")
    if not isinstance(wanted, bool):
        raise InvalidRequest("must be true or false: the wanted state", "like")
    return wanted


def parse_target(fields: Fields, prefix: str = "") -> Target:
    item_id = parse_id(fields.get("item_id"), f"{prefix}item_id")
    return Target(parse_item_type(fields.get("item_type"), f"{prefix}item_type"), item_id)


def parse_targets(fields: Fields) -> list[Target]:
    """The entries of `items`, each an object with item_id and item_type."""
    return parse_list(fields, "items", lambda raw, field: parse_target(parse_object(raw, field), f"{field}."))


def parse_item_ids(fields: Fields) -> list[Target]:
    item_type = parse_item_type(fields.get("item_type"), "item_type")
    return parse_list(fields, "item_ids", lambda raw, field: Target(item_type, parse_id(raw, field)))


def parse_object(raw: object, field: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidRequest("must be an object", field)
    return raw


def parse_list(fields: Fields, name: str, parse: Callable[[object, str], T]) -> list[T]:
    """The entries, at most 100."""
    raw = fields.get(name)
    if not isinstance(raw, list):
        raise InvalidRequest("must be a list" if raw is not None else "is required", name)
    if len(raw) > MAX_ENTRIES:
        raise InvalidRequest(f"holds {len(raw)} entries; at most {MAX_ENTRIES} are taken", name)
    return [parse(entry, f"{name}[{i}]") for i, entry in enumerate(raw)]


def parse_optional_reaction(fields: Fields) -> str | None:
    raw = fields.get("reaction")
    return None if raw is None else parse_reaction(raw, "reaction")


def parse_optional_item_type(fields: Fields) -> str | None:
    raw = fields.get("item_type")
    return None if raw is None else parse_item_type(raw, "item_type")


def parse_limit(query: Mapping[str, str]) -> int:
    raw = query.get("limit")
    if raw is None:
        return DEFAULT_LIMIT
    if not _LIMIT.fullmatch(raw):
        raise InvalidRequest(f"must be a whole number from 1 to {MAX_ENTRIES}", "limit")
    return int(raw)


def parse_fresh(query: Mapping[str, str]) -> bool:
    raw = query.get("fresh", "false")
    if raw not in ("true", "false"):
        raise InvalidRequest("must be true or false", "fresh")
    return raw == "true"


def parse_whole(fields: Fields, name: str, least: int, most: int) -> int:
    """A whole number within these bounds, written as one."""
    raw = fields.get(name)
    if raw is None:
        raise InvalidRequest("is required", name)
    if not isinstance(raw, int) or isinstance(raw, bool) or not least <= raw <= most:
        raise InvalidRequest(f"must be a whole number from {least} to {most}, without fraction or exponent", name)
    return raw


def parse_hit(name: str, fields: Fields) -> tuple[LimitKey, int, int]:
    """Whose call it is, how many calls are allowed, and in how many seconds."""
    key = LimitKey(parse_name(name, "name"), parse_id(fields.get("key"), "key"))
    return key, parse_whole(fields, "limit", 1, MAX_CALLS), parse_whole(fields, "window_seconds", 1, MAX_WINDOW_S)
