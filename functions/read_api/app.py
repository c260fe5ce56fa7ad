"""Reads: counts through the caches, a person's own state straight from the records."""

from __future__ import annotations

from typing import Any

from chalice.app import Response

from tallymark import __version__, counts, likes, lists, series
from tallymark.counts import Dated, K, Sources, V
from tallymark.errors import Forbidden, Unavailable
from tallymark.identifiers import parse_id, parse_item_type, parse_name
from tallymark.identity import may_act_for, user_for
from tallymark.model import DEFAULT_REACTION, MS_PER_HOUR, Count, HourlyMetric, Like, Target, format_time
from tallymark.runtime import contract, docs_page, health, openapi, telemetry, wiring
from tallymark.runtime.http import Call, HttpApp, ok, operation
from tallymark.runtime.requests import (
    parse_choice,
    parse_fresh,
    parse_hours,
    parse_item_ids,
    parse_limit,
    parse_optional_item_type,
    parse_optional_reaction,
    parse_target,
    parse_targets,
    parse_until,
    parse_view_window,
)
from tallymark.top import TopKey, kept_limit
from tallymark.views import VISITORS_ERROR

app = HttpApp("read-api")


@operation(app, contract.COUNT)
def count(call: Call) -> dict[str, Any]:
    """At most about 1.5 s old; with fresh=true straight from the rows."""
    query = call.query
    target = parse_target(query)
    counts_of = counts.fresh_counts_of if parse_fresh(query) else counts.counts_of
    found = _had(*counts_of(wiring.count_sources(), [target]))
    return {**_counted(target, found), "age_ms": _age_ms(found)}


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
        buckets=wiring.liker_buckets().ever(target),
        executor=wiring.executor(),
    )
    likers = [
        {"user_id": like.key.user_id, "reaction": like.key.reaction, "liked_at": format_time(like.stamp.ms)}
        for like in page.likes
    ]
    return {"likers": likers, "cursor": wiring.cursors().encode(page.resume, context)}


@operation(app, contract.GET_VIEWS)
def get_views(call: Call) -> dict[str, Any]:
    """Totals and windows are exact, visitors are not."""
    query = call.query
    key = (parse_target(query), parse_view_window(query))
    found = _found(wiring.view_sources(), key)
    _report_negative(found.people, found.bots)
    return {
        "views": found.people,
        "bot_views": found.bots,
        "visitors": found.visitors,
        "visitors_error": VISITORS_ERROR,
        "age_ms": _age_ms(found),
    }


@operation(app, contract.GET_COUNTER)
def get_counter(call: Call) -> dict[str, Any]:
    """0 for one that was never used."""
    name = parse_name(call.path["name"], "name")
    found = _found(wiring.sum_sources(), name)
    return {"name": name, "value": found.value, "age_ms": _age_ms(found)}


@operation(app, contract.SERIES)
def get_series(call: Call) -> dict[str, Any]:
    """Straight from the rows: one Query."""
    query = call.query
    target = parse_target(query)
    metric = parse_choice(query, "metric", contract.SERIES_METRICS)
    read_at_ms = wiring.now_ms()
    span = series.span(parse_until(query, read_at_ms), parse_hours(query))
    by_hour: HourlyMetric = "likes-by-hour" if metric == "likes" else "views-by-hour"
    days = wiring.counter_table().days(target, by_hour, *span.days)
    entries = [{"hour": format_time(hour * MS_PER_HOUR), "count": n} for hour, n in span.hours(days, "n")]
    if metric == "views":
        for entry, (_, bots) in zip(entries, span.hours(days, "b"), strict=True):
            entry["bot_views"] = bots
    return {
        "item_id": target.item_id,
        "item_type": target.item_type,
        "metric": metric,
        "series": entries,
        "age_ms": max(0, wiring.now_ms() - read_at_ms),
    }


@operation(app, contract.TOP)
def top(call: Call) -> dict[str, Any]:
    """Exact numbers; whether these are the right items, `approximate` says."""
    query = call.query
    limit = parse_limit(query, contract.DEFAULT_TOP)
    key = TopKey(
        parse_choice(query, "metric", contract.TOP_METRICS),
        parse_choice(query, "window", contract.TOP_WINDOWS),
        parse_optional_item_type(query),
        kept_limit(limit),
    )
    found = _found(wiring.top_sources(), key)
    entries = [{"item_type": t.item_type, "item_id": t.item_id, "count": n} for t, n in found.entries[:limit]]
    return {"top": entries, "approximate": found.proven < limit}


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


def _found(sources: Sources[K, V], key: K) -> V:
    return _had(*counts.counts_of(sources, [key]))


def _had(found: V | None) -> V:
    if found is None:
        raise Unavailable("the count cannot be read just now; try again")
    return found


def _age_ms(found: Dated) -> int:
    return max(0, wiring.now_ms() - found.as_of_ms)


def _report_negative(*numbers: int) -> None:
    if min(numbers, default=0) < 0:
        telemetry.count(app.service, "NegativeCount")  # it has an alarm: nothing hides it behind a 0


def _counted(target: Target, found: Count | None) -> dict[str, Any]:
    if found is not None:
        _report_negative(*found.by_reaction.values())
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
