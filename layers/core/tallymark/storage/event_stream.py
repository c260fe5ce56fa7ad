"""Events as items of their table, and what a record of the table's stream means for counters."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from tallymark.aggregation import Record, Unreadable
from tallymark.events import AddEvent, Viewed, ViewEvent
from tallymark.fold import Change
from tallymark.model import ALL, Counter, by_hour, named_counter
from tallymark.views import DIGEST_BYTES

from . import keys
from .dynamodb import Item
from .like_stream import place_of


def item_of(event: ViewEvent | AddEvent) -> Item:
    """The event as it is stored, without its time to live."""
    when = {"at": {"N": str(event.at_ms)}, "nonce": {"B": event.nonce}}
    if isinstance(event, AddEvent):
        return {"pk": {"S": keys.add_event_key(event.name, event.token)}, **when, "add": {"N": str(event.amount)}}
    viewed = {"L": [{"M": _stored(viewed)} for viewed in event.viewed]}
    return {"pk": {"S": keys.view_event_key(event.token)}, **when, "views": viewed}


def _stored(viewed: Viewed) -> Item:
    visitors = {"v": {"B": b"".join(viewed.visitors)}} if viewed.visitors else {}
    numbers = {"n": {"N": str(viewed.people)}, "b": {"N": str(viewed.bots)}}
    return {"t": {"S": keys.target_key(viewed.target)}, **numbers, **visitors}


def read_event(record: Record) -> Sequence[Change]:
    """The changes that a record of the NEW_IMAGE stream stands for; none for what is no new event.

    Unreadable if any part that is needed is missing or was not written by the table of events.
    """
    try:
        if record["eventName"] != "INSERT" or not is_event(record["dynamodb"]["Keys"]["pk"]["S"]):
            return ()
        body = record["dynamodb"]
        image = body["NewImage"]
        sequence, time_s = place_of(body)
        if "add" in image:
            name, _ = keys.parse_add_event_key(image["pk"]["S"])
            return (Change(named_counter(name), int(image["add"]["N"]), sequence, time_s),)
        at_ms = int(image["at"]["N"])
        return [
            change for entry in image["views"]["L"] for change in _changes(_read(entry["M"]), at_ms, sequence, time_s)
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def read_viewed(record: Record) -> tuple[int, list[Viewed]] | None:
    """When the views of a record were accepted (milliseconds since the epoch), and what; None for other records.

    KeyError, TypeError or ValueError for a record that the table of events never makes.
    """
    image = record["dynamodb"].get("NewImage", {})
    if record["eventName"] != "INSERT" or "views" not in image:
        return None
    return viewed_of(image)


def viewed_of(image: Item) -> tuple[int, list[Viewed]]:
    """The same of an item as the table, or its stream, has it."""
    return int(image["at"]["N"]), [_read(entry["M"]) for entry in image["views"]["L"]]


def is_event(key: str) -> bool:
    return key.startswith((keys.VIEW_EVENT, keys.ADD_EVENT))


def _read(entry: Item) -> Viewed:
    packed = entry.get("v", {}).get("B", b"")
    digests = base64.b64decode(packed, validate=True) if isinstance(packed, str) else bytes(packed)
    visitors = tuple(digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES))
    return Viewed(keys.parse_target_key(entry["t"]["S"]), int(entry["n"]["N"]), int(entry["b"]["N"]), visitors)


def _changes(viewed: Viewed, at_ms: int, sequence: int, time_s: int) -> list[Change]:
    total = Counter(viewed.target, ALL, "view")
    hours, hour = by_hour(viewed.target, "views-by-hour", at_ms)
    return [
        Change(counter, number, sequence, time_s, slot)
        for slot, number in (("n", viewed.people), ("b", viewed.bots))
        if number
        for counter, slot in ((total, slot), (hours, f"{slot}{hour}"))
    ]
