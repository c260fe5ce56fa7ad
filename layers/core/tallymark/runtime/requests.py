"""What callers may send, parsed into the model; one function per shape.

Faults of identity (403) are looked for before faults of form (400).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tallymark.errors import Forbidden, InvalidRequest
from tallymark.identifiers import MAX_SAFE_INTEGER, parse_id, parse_item_type, parse_name, parse_token
from tallymark.identity import Actor, user_for
from tallymark.likes import Operation
from tallymark.limits import MAX_CALLS, MAX_WINDOW_S
from tallymark.model import DEFAULT_REACTION, LikeKey, LimitKey, Target, parse_time
from tallymark.quotas import MAX_EXPIRY_S
from tallymark.reactions import parse_reaction
from tallymark.views import View, ViewWindow

from .contract import DEFAULT_LIMIT, DEFAULT_SERIES_HOURS, MAX_ENTRIES, MAX_SERIES_HOURS, VIEW_WINDOWS

T = TypeVar("T")
Fields = Mapping[str, Any]

C = TypeVar("C", bound=str)

_HOURS = re.compile(r"[1-9][0-9]{0,3}")
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


def parse_limit(query: Mapping[str, str], default: int = DEFAULT_LIMIT) -> int:
    raw = query.get("limit")
    if raw is None:
        return default
    if not _LIMIT.fullmatch(raw):
        raise InvalidRequest(f"must be a whole number from 1 to {MAX_ENTRIES}", "limit")
    return int(raw)


def parse_fresh(query: Mapping[str, str]) -> bool:
    raw = query.get("fresh", "false")
    if raw not in ("true", "false"):
        raise InvalidRequest("must be true or false", "fresh")
    return raw == "true"


def parse_views(fields: Fields, *, sent_by_crawler: Callable[[], bool]) -> list[View]:
    """The entries of `views`. One that does not say whether it is a bot's is one if a crawler sent it."""

    def view(raw: object, field: str) -> View:
        entry = parse_object(raw, field)
        target = parse_target(entry, f"{field}.")
        visitor_id, bot = entry.get("visitor_id"), entry.get("bot")
        if bot is not None and not isinstance(bot, bool):
            raise InvalidRequest("must be true or false", f"{field}.bot")
        known = None if visitor_id is None else parse_id(visitor_id, f"{field}.visitor_id")
        return View(target, known, sent_by_crawler() if bot is None else bot)

    return parse_list(fields, "views", view)


def parse_addend(fields: Fields) -> int:
    amount = parse_whole(fields, "amount", -MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    if amount == 0:
        raise InvalidRequest("must not be 0", "amount")
    return amount


def parse_view_window(query: Mapping[str, str]) -> ViewWindow:
    return parse_choice(query, "window", VIEW_WINDOWS)


def parse_choice(query: Mapping[str, str], name: str, choices: Sequence[C]) -> C:
    """One of the choices; the first if the parameter is left out."""
    raw = query.get(name, choices[0])
    for choice in choices:
        if raw == choice:
            return choice
    raise InvalidRequest(f"must be one of {', '.join(choices)}", name)


def parse_hours(query: Mapping[str, str]) -> int:
    raw = query.get("hours")
    if raw is None:
        return DEFAULT_SERIES_HOURS
    if not _HOURS.fullmatch(raw) or int(raw) > MAX_SERIES_HOURS:
        raise InvalidRequest(f"must be a whole number from 1 to {MAX_SERIES_HOURS}", "hours")
    return int(raw)


def parse_until(query: Mapping[str, str], now_ms: int) -> int:
    """Milliseconds since the epoch; now if it is left out."""
    raw = query.get("until")
    return now_ms if raw is None else parse_time(raw, "until")


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


# --- quotas -----------------------------------------------------------------------------------------------------


def parse_quota(path: Mapping[str, str], fields: Fields) -> tuple[str, int]:
    """Name and limit."""
    return parse_name(path["name"], "name"), parse_whole(fields, "limit", 0, MAX_SAFE_INTEGER)


def parse_acquire(path: Mapping[str, str], fields: Fields) -> tuple[str, str, int, int | None]:
    """Name, token, amount, and for a reservation the seconds after which it ends."""
    name, amount = parse_name(path["name"], "name"), parse_whole(fields, "amount", 1, MAX_SAFE_INTEGER)
    token = parse_token(fields.get("token"), "token")
    expires = "expires_in_seconds"
    return name, token, amount, parse_whole(fields, expires, 1, MAX_EXPIRY_S) if expires in fields else None


def parse_holder(path: Mapping[str, str], fields: Fields) -> tuple[str, str]:
    """Name and token."""
    return parse_name(path["name"], "name"), parse_token(fields.get("token"), "token")
