"""Writes of likes and events, hits of limits: parse, one conditional write, answer. Nothing here touches a count."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tallymark import identity, likes, limits, sums, views
from tallymark.errors import Forbidden, InvalidRequest, RateLimited, TallymarkError
from tallymark.identifiers import parse_name, parse_token
from tallymark.identity import Actor
from tallymark.likes import Operation
from tallymark.model import LikeKey, format_time
from tallymark.runtime import contract, guard, wiring
from tallymark.runtime.crawlers import is_crawler
from tallymark.runtime.http import STATUSES, Call, HttpApp, error_body, operation, without_nulls
from tallymark.runtime.requests import (
    check_action,
    parse_addend,
    parse_hit,
    parse_like_key,
    parse_list,
    parse_object,
    parse_operation,
    parse_views,
    parse_wanted,
)

SERVICE = "write-api"
_LIKE_FIELDS = frozenset({"user_id", "item_id", "item_type", "reaction"})

app = HttpApp(SERVICE)


@operation(app, contract.LIKE)
def like(call: Call) -> dict[str, Any]:
    """Idempotent: a repeat answers changed=false and the time of the first like."""
    return _like(call, parse_operation(call.body(), call.actor, like=True))


@operation(app, contract.UNLIKE)
def unlike(call: Call) -> dict[str, Any]:
    """Idempotent. Takes all its fields from the body if there is one, else from the query."""
    query = call.query
    fields = call.body() if call.has_body else query
    key = parse_like_key(fields, call.actor)
    if call.has_body and not _LIKE_FIELDS.isdisjoint(query) and not _names(query, call.actor, key):
        raise InvalidRequest("the body and the query name different likes; send one of them")
    return _unlike(call, key)


@operation(app, contract.TOGGLE)
def toggle(call: Call) -> dict[str, Any]:
    """Idempotent: `like` is the wanted state."""
    fields = call.body()
    wanted = fields.get("like") is not False
    parsed = parse_operation(fields, call.actor, like=wanted)
    return _like(call, parsed) if parse_wanted(fields) else _unlike(call, parsed.key)


@operation(app, contract.BATCH)
def batch(call: Call) -> dict[str, Any]:
    """Idempotent as a whole; one bad operation spoils no other."""
    entries = parse_list(call.body(), "operations", lambda raw, _: raw)
    results: list[dict[str, Any]] = [{}] * len(entries)
    parsed: dict[int, Operation] = {}
    for i, entry in enumerate(entries):
        try:
            parsed[i] = _parse_entry(entry, call.actor)
        except TallymarkError as error:
            results[i] = _refused(error)
    if not call.actor.service:
        for i, refusal in _over_limit(parsed).items():
            results[i] = _refused(refusal)
            del parsed[i]
    outcomes = likes.apply_all(wiring.like_table(), list(parsed.values()), now_ms=wiring.now_ms())
    for (i, made), outcome in zip(parsed.items(), outcomes, strict=True):
        if isinstance(outcome, TallymarkError):
            results[i] = _refused(outcome)
        else:
            results[i] = {"status": 200, "liked": made.like, "changed": outcome}
    return {"results": results}


@operation(app, contract.POST_VIEWS)
def post_views(call: Call) -> dict[str, Any]:
    """Idempotent with a token; all views or none."""
    fields = call.body()
    seen = parse_views(fields, sent_by_crawler=lambda: is_crawler(call.user_agent))
    token = None if fields.get("token") is None else parse_token(fields["token"], "token")
    changed = views.record_views(wiring.event_table(), seen, token, at_ms=wiring.now_ms())
    return {"accepted": len(seen), "changed": changed}


@operation(app, contract.ADD)
def add_to_counter(call: Call) -> dict[str, Any]:
    """Idempotent by its token."""
    name = parse_name(call.path["name"], "name")
    fields = call.body()
    amount, token = parse_addend(fields), parse_token(fields.get("token"), "token")
    return {"accepted": True, "changed": sums.add(wiring.event_table(), name, amount, token, at_ms=wiring.now_ms())}


@operation(app, contract.ANONYMOUS)
def anonymous(_call: Call) -> dict[str, Any]:
    """A new identity each time; nothing is stored."""
    if not wiring.settings().allow_anonymous:
        raise Forbidden("this deployment takes no anonymous identities")
    user_id, token = identity.new_anonymous(wiring.secret())
    return {"user_id": user_id, "token": token}


@operation(app, contract.LIMIT_HIT)
def hit_limit(call: Call) -> dict[str, Any]:
    """Every call is a hit: one whose answer was lost may have been counted."""
    key, limit, window_s = parse_hit(call.path["name"], call.body())
    taken = guard.hit(SERVICE, key, limit, window_s)
    return {
        "allowed": taken.granted == 1,
        "remaining": taken.remaining,
        "reset_after_seconds": limits.seconds(taken.reset_after_us),
    }


def _names(query: dict[str, str], actor: Actor, key: LikeKey) -> bool:
    """Whether the query, by itself, names this like."""
    try:
        return parse_like_key(query, actor) == key
    except InvalidRequest:
        return False


def _like(call: Call, wanted: Operation) -> dict[str, Any]:
    guard.charge(SERVICE, call.actor, wanted.key)
    at_ms = wiring.now_ms() if wanted.liked_at_ms is None else wanted.liked_at_ms
    made = likes.like(wiring.like_table(), wanted.key, at_ms=at_ms)
    answer = _described(wanted.key, liked=True, changed=made.changed)
    return {**answer, "liked_at": format_time(made.liked_at_ms)}


def _unlike(call: Call, key: LikeKey) -> dict[str, Any]:
    guard.charge(SERVICE, call.actor, key)
    return _described(key, liked=False, changed=likes.unlike(wiring.like_table(), key))


def _described(key: LikeKey, *, liked: bool, changed: bool) -> dict[str, Any]:
    return {
        "liked": liked,
        "changed": changed,
        "user_id": key.user_id,
        "item_id": key.target.item_id,
        "item_type": key.target.item_type,
        "reaction": key.reaction,
    }


def _parse_entry(entry: object, actor: Actor) -> Operation:
    fields = without_nulls(parse_object(entry, "operation"))
    parsed = parse_operation(fields, actor, like=fields.get("action") != "unlike")
    check_action(fields)
    return parsed


def _over_limit(parsed: dict[int, Operation]) -> dict[int, RateLimited]:
    """The operations, by position, that their users may not make now: the last ones of each."""
    by_limit: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, made in parsed.items():
        by_limit[guard.limit_on(made.key.target)][made.key.user_id].append(i)
    refused: dict[int, RateLimited] = {}
    for limit, by_user in by_limit.items():
        taken = guard.take(SERVICE, {user_id: len(positions) for user_id, positions in by_user.items()}, limit)
        refused |= {
            i: guard.rate_limited(taken[user_id])
            for user_id, positions in by_user.items()
            for i in positions[taken[user_id].granted :]
        }
    return refused


def _refused(error: TallymarkError) -> dict[str, Any]:
    return {"status": STATUSES[type(error)], "error": error_body(error)}
