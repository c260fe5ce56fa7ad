"""Reads: counts through the caches, a person's own state straight from the records."""

from __future__ import annotations

from typing import Any

from chalice.app import Response

from tallymark import __version__, counts, likes, lists
from tallymark.errors import Forbidden, Unavailable
from tallymark.identifiers import parse_id, parse_item_type
from tallymark.identity import may_act_for, user_for
from tallymark.model import DEFAULT_REACTION, Count, Like, Target, format_time
from tallymark.runtime import contract, docs_page, health, openapi, telemetry, wiring
from tallymark.runtime.http import Call, HttpApp, ok, operation
from tallymark.runtime.requests import (
    parse_fresh,
    parse_item_ids,
    parse_limit,
    parse_optional_item_type,
    parse_optional_reaction,
    parse_target,
    parse_targets,
)

app = HttpApp("read-api")


@operation(app, contract.COUNT)
def count(call: Call) -> dict[str, Any]:
    """At most about 1.5 s old; with fresh=true straight from the rows."""
    query = call.query
    target = parse_target(query)
    counts_of = counts.fresh_counts_of if parse_fresh(query) else counts.counts_of
    (found,) = counts_of(wiring.count_sources(), [target])
    if found is None:
        raise Unavailable("the count cannot be read just now; try again")
    return {**_counted(target, found), "age_ms": max(0, wiring.now_ms() - found.as_of_ms)}


@operation(app, contract.COUNTS)
def counts_of_many(call: Call) -> dict[str, Any]:
    """Counts may be a little old; `liked` reads the person's own writes."""
    fields = call.body()
    asks_for_person = "user_id" in fields or call.actor.user_id is not None
    user_id = user_for(call.actor, fields.get("user_id")) if asks_for_person else None
    targets = parse_targets(fields)
    entries = [
        _counted(target, found)
        for target, found in zip(targets, counts.counts_of(wiring.count_sources(), targets), strict=True)
    ]
    if user_id is not None:
        reactions = wiring.like_table().reactions(user_id, targets)
        for target, entry in zip(targets, entries, strict=True):
            entry |= {"liked": bool(reactions[target]), "reactions": reactions[target]}
    return {"counts": entries}


@operation(app, contract.HAS_LIKED)
def has_liked(call: Call) -> dict[str, Any]:
    """Reads the person's own writes."""
    fields = call.body()
    user_id = user_for(call.actor, fields.get("user_id"))
    reaction = parse_optional_reaction(fields) or DEFAULT_REACTION
    liked = likes.has_liked(wiring.like_table(), user_id, parse_item_ids(fields), reaction)
    return {"liked": {target.item_id: answer for target, answer in liked.items()}}


@operation(app, contract.USER_LIKES)
def user_likes(call: Call) -> dict[str, Any]:
    """Newest first; outside `open` mode only for the person and for services."""
    user_id = parse_id(call.path["user_id"], "user_id")
    if wiring.settings().auth_mode != "open" and not may_act_for(call.actor, user_id):
        raise Forbidden("a person's likes are for that person and for services", "user_id")
    query = call.query
    item_type = parse_optional_item_type(query)
    context = _context("user", user_id, item_type)
    before = wiring.cursors().decode(query.get("cursor"), context)
    page = lists.liked_by(wiring.like_table(), user_id, item_type=item_type, before=before, limit=parse_limit(query))
    return {
        "likes": [_like_entry(like) for like in page.likes],
        "cursor": wiring.cursors().encode(page.resume, context),
    }


@operation(app, contract.ITEM_LIKERS)
def item_likers(call: Call) -> dict[str, Any]:
    """Newest first; public."""
    item_id = parse_id(call.path["item_id"], "item_id")
    target = Target(parse_item_type(call.path["item_type"], "item_type"), item_id)
    query = call.query
    reaction = parse_optional_reaction(query)
    context = _context("item", target.item_type, target.item_id, reaction)
    before = wiring.cursors().decode(query.get("cursor"), context)
    page = lists.likers_of(
        wiring.like_table(),
        target,
        reaction=reaction,
        before=before,
        limit=parse_limit(query),
        buckets=wiring.settings().liker_buckets,
        executor=wiring.executor(),
    )
    likers = [
        {"user_id": like.key.user_id, "reaction": like.key.reaction, "liked_at": format_time(like.stamp.ms)}
        for like in page.likes
    ]
    return {"likers": likers, "cursor": wiring.cursors().encode(page.resume, context)}


@operation(app, contract.HEALTH)
def health_of_service(_call: Call) -> Response:
    """503 when the tables cannot be reached; a cache that is down only degrades."""
    found = health.check(wiring.like_table(), wiring.counter_table(), wiring.valkey_server())
    return ok(
        {"status": found.status, "version": __version__, "dependencies": found.dependencies},
        found.http_status,
    )


@operation(app, contract.OPENAPI)
def openapi_document(_call: Call) -> dict[str, Any]:
    """OpenAPI 3.1, made from the contract that routes."""
    return openapi.document(wiring.settings().auth_mode)


@operation(app, contract.DOCS)
def docs(call: Call) -> Response:
    """The document as a page that needs nothing from elsewhere."""
    page = docs_page.page(wiring.settings().auth_mode, call.origin)
    policy = docs_page.content_security_policy()
    return Response(page, {"content-type": "text/html; charset=utf-8", "content-security-policy": policy})


def _counted(target: Target, found: Count | None) -> dict[str, Any]:
    if found is not None and min(found.by_reaction.values(), default=0) < 0:
        telemetry.count(app.service, "NegativeCount")  # it has an alarm: nothing hides it behind a 0
    return {
        "item_id": target.item_id,
        "item_type": target.item_type,
        "count": None if found is None else found.total,
        "counts": None if found is None else found.above_zero,
    }


def _like_entry(like: Like) -> dict[str, Any]:
    target = like.key.target
    return {
        "item_type": target.item_type,
        "item_id": target.item_id,
        "reaction": like.key.reaction,
        "liked_at": format_time(like.stamp.ms),
    }


def _context(*parts: str | None) -> str:
    """What a cursor is bound to: lengths keep ("a", "bc") and ("ab", "c") apart."""
    return "".join(f"{len(part)}:{part}" if part is not None else "-" for part in parts)
