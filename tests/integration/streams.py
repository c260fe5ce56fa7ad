"""Stream records and batches as Lambda delivers them, made up, and faults injected into the SDK."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ConnectionClosedError

from tallymark.model import Target
from tallymark.storage.keys import like_sort_key
from tests.hooks import hooked

LANE = "shardId-00000001573689847184-864758bb"
_numbers = itertools.count(10**20 + time.time_ns())


class Context:
    """What a handler asks of Lambda's context."""

    def __init__(self, remaining_ms: int = 60_000) -> None:
        self._remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        return self._remaining_ms


def record(
    target: Target, user: str, event: str = "INSERT", *, age_s: float = 0.0, reaction: str = "like"
) -> dict[str, Any]:
    """The next record of the stream: sequence numbers grow from call to call."""
    number = next(_numbers)
    return {
        "eventID": f"event-{number}",
        "eventName": event,
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "dynamodb": {
            "ApproximateCreationDateTime": time.time() - age_s,
            "Keys": {"pk": {"S": user}, "sk": {"S": like_sort_key(target, reaction)}},
            "SequenceNumber": str(number),
            "SizeBytes": 60,
            "StreamViewType": "KEYS_ONLY",
        },
    }


def event_record(item: dict[str, Any], created_s: float) -> dict[str, Any]:
    """What the stream of events makes of an item of its table: binary values in base64."""
    image = json.loads(json.dumps(item, default=lambda raw: base64.b64encode(raw).decode()))
    number = next(_numbers)
    return {
        "eventID": f"event-{number}",
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "dynamodb": {
            "ApproximateCreationDateTime": created_s,
            "Keys": {"pk": item["pk"]},
            "NewImage": image,
            "SequenceNumber": str(number),
            "StreamViewType": "NEW_IMAGE",
        },
    }


def batch(records: list[dict[str, Any]], lane: str = LANE) -> dict[str, Any]:
    """The event of a tumbling window."""
    return {"Records": records, "shardId": lane, "state": {}, "isFinalInvokeForWindow": False}


@contextmanager
def injected(client: Any, operation: str, fault: Callable[[Any], Any]) -> Iterator[None]:
    """Runs the fault before each request of an operation is sent; it may answer in the store's place, or raise."""

    def before_send(request: Any, **_: Any) -> Any:
        return fault(request)

    with hooked(client, {f"before-send.dynamodb.{operation}": before_send}):
        yield


def lost_replies(client: Any, how_many: int) -> Callable[[Any], Any]:
    """The first requests reach the store and take effect, but their answers never arrive."""
    left = iter(range(how_many))

    def fault(request: Any) -> None:
        if next(left, None) is not None:
            client._endpoint.http_session.send(request)
            raise ConnectionClosedError(endpoint_url=request.url)

    return fault
