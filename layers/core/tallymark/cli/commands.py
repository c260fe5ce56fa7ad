"""The commands: options in, calls to the API, text or JSON out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import click
import httpx

from tallymark.cli.connection import ApiError, Settings, call, connect
from tallymark.cli.import_command import import_command
from tallymark.cli.options import Where, api_options, show
from tallymark.cli.reconcile_command import reconcile_command

_COUNTS_MAX_ITEMS = 100  # HTTP API, "lists in requests hold up to 100 entries"
_LATENCY_CALLS = 5


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tallymark")
def main() -> None:
    """Likes, over the HTTP API of Tallymark.

    The API is the one that `make up` runs on this machine, or the one that --url or TALLYMARK_URL names.
    """


main.add_command(import_command)
main.add_command(reconcile_command)


@main.command()
@click.argument("user")
@click.argument("item_type")
@click.argument("item_id")
@click.option("--reaction", help="A name or one emoji; `like` unless given.")
@click.option("--unlike", is_flag=True, help="Take the like back.")
@api_options
def like(
    user: str,
    item_type: str,
    item_id: str,
    reaction: str | None,
    unlike: bool,
    where: Where,
    as_json: bool,
) -> None:
    """Like an item as USER, or take a like back; a repeat changes nothing."""
    body = {"user_id": user, "item_type": item_type, "item_id": item_id, "reaction": reaction}
    with connect(where.settings()) as client:
        answer = call(client, "DELETE" if unlike else "POST", "/v1/like", body=body)
    show(answer, _like_text(answer), as_json=as_json)


def _like_text(answer: dict[str, Any]) -> str:
    state = "likes" if answer["liked"] else "does not like"
    reaction = "" if answer["reaction"] == "like" else f" ({answer['reaction']})"
    since = f" since {answer['liked_at']}" if answer.get("liked_at") else ""
    change = "" if answer["changed"] else " (nothing changed)"
    return f"{answer['user_id']} {state} {answer['item_type']} {answer['item_id']}{reaction}{since}{change}"


@main.command()
@click.argument("item_type")
@click.argument("item_ids", metavar="ITEM_ID...", nargs=-1, required=True)
@click.option("--fresh", is_flag=True, help="Pass the caches by; one call per item.")
@api_options
def count(item_type: str, item_ids: tuple[str, ...], fresh: bool, where: Where, as_json: bool) -> None:
    """How many likes items have. Exits with 1 if a count could not be had."""
    with connect(where.settings()) as client:
        counts = _fresh_counts(client, item_type, item_ids) if fresh else _counts(client, item_type, item_ids)
    show({"counts": counts}, "\n".join(_count_text(entry) for entry in counts), as_json=as_json)
    if any(entry["count"] is None for entry in counts):
        click.get_current_context().exit(1)


def _fresh_counts(client: httpx.Client, item_type: str, item_ids: Sequence[str]) -> list[dict[str, Any]]:
    queries = ({"item_type": item_type, "item_id": item_id, "fresh": "true"} for item_id in item_ids)
    return [call(client, "GET", "/v1/count", query=query) for query in queries]


def _counts(client: httpx.Client, item_type: str, item_ids: Sequence[str]) -> list[dict[str, Any]]:
    counts: list[dict[str, Any]] = []
    for first in range(0, len(item_ids), _COUNTS_MAX_ITEMS):
        some = item_ids[first : first + _COUNTS_MAX_ITEMS]
        items = [{"item_type": item_type, "item_id": item_id} for item_id in some]
        counts += call(client, "POST", "/v1/counts", body={"items": items})["counts"]
    return counts


def _count_text(entry: dict[str, Any]) -> str:
    number = "unknown" if entry["count"] is None else f"{entry['count']:,}"
    reactions = entry.get("counts") or {}
    detail = ", ".join(f"{name} {amount:,}" for name, amount in reactions.items())
    plain = not reactions or list(reactions) == ["like"]
    return f"{entry['item_type']} {entry['item_id']}: {number}" + ("" if plain else f" ({detail})")


@main.command()
@api_options
def status(where: Where, as_json: bool) -> None:
    """Whether the API answers, how fast, and as whom. Exits with 1 if it is down."""
    settings = where.settings()
    with connect(settings) as client:
        health, latency_ms = _health(client)
        acts_as = _acts_as(client, settings)
    answer = {
        "url": settings.url,
        "source": settings.source,
        "status": health.get("status", "down"),
        "version": health.get("version"),
        "dependencies": health.get("dependencies", {}),
        "latency_ms": latency_ms,
        "acts_as": acts_as,
    }
    show(answer, _status_text(answer), as_json=as_json)
    if answer["status"] == "down":
        click.get_current_context().exit(1)


def _health(client: httpx.Client) -> tuple[dict[str, Any], float]:
    """What `/health` says, and the median time of a call over an open connection."""
    health: dict[str, Any] = {}
    times = []
    for _ in range(1 + _LATENCY_CALLS):
        started = time.perf_counter()
        health = call(client, "GET", "/health", expected=(503,))
        times.append((time.perf_counter() - started) * 1000)
    return health, round(statistics.median(times[1:]), 2)


def _acts_as(client: httpx.Client, settings: Settings) -> str:
    """`service`, `caller` without a key, `refused` for a key that the API does not take, or `unknown`."""
    if settings.service_key is None:
        return "caller"
    try:
        call(client, "POST", "/v1/batch", body={"operations": []})
    except ApiError as error:
        return "refused" if error.status in (401, 403) else "unknown"
    return "service"


_ACTS_AS = {
    "service": "a service (no rate limit, may send liked_at)",
    "caller": "an ordinary caller (no service key)",
    "refused": "nobody: the API refuses this service key",
    "unknown": "unknown: the API did not say whether it takes the service key",
}


def _status_text(answer: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {state}" for name, state in answer["dependencies"].items())
    version = f" (version {answer['version']})" if answer["version"] else ""
    return "\n".join(
        [
            f"API      {answer['url']} ({answer['source']})",
            f"status   {answer['status']}{version}" + (f": {parts}" if parts else ""),
            f"latency  {answer['latency_ms']} ms",
            f"acts as  {_ACTS_AS[answer['acts_as']]}",
        ]
    )
