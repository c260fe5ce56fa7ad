"""The table of events, and what it keeps beside them: records held back or settled, the reconciler's progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from tallymark import series
from tallymark.errors import Unavailable
from tallymark.events import AddEvent, ViewEvent
from tallymark.fold import Change
from tallymark.parking import KEPT_S

from . import keys
from .dynamodb import TRANSIENT_CODES, Item, transient_as_unavailable
from .event_stream import item_of

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class EventTable:
    """Records events, each once under its key, until their time to live is over."""

    def __init__(self, client: DynamoDBClient, table: str, event_days: int) -> None:
        self._client, self._table, self._event_days = client, table, event_days

    def record(self, event: ViewEvent | AddEvent) -> bool:
        """False if an earlier call recorded its token. One write unit per KB, also then."""
        item = item_of(event)
        expiry_s = event.at_ms // 1000 + self._event_days * series.SECONDS_PER_DAY
        with transient_as_unavailable():
            try:
                self._client.put_item(
                    TableName=self._table,
                    Item={**item, "ttl": {"N": str(expiry_s)}},
                    ConditionExpression="attribute_not_exists(pk)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except self._client.exceptions.ConditionalCheckFailedException as error:
                # Its own nonce: an attempt of this call landed, and only the reply was lost.
                standing: Item = error.response["Item"]  # type: ignore[typeddict-item]
                return bytes(standing["nonce"]["B"]) == event.nonce
        return True


class HeldTable:
    """The sequence numbers of a lane's unreadable records: one item per lane, absent for nearly all.

    An item holds 9,000 of them at least (400 KB). A lane with more is not one with a bad record: the write
    fails, the lane stands, and its alarm calls for a version that reads what is written.
    """

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client, self._table = client, table

    def numbers(self, lane_id: str) -> Set[str]:
        """One read unit, as a rule for finding nothing."""
        with transient_as_unavailable():
            answer = self._client.get_item(
                TableName=self._table, Key={"pk": {"S": keys.held_key(lane_id)}}, ConsistentRead=True
            )
        return frozenset(answer.get("Item", {}).get("numbers", {}).get("SS", ()))

    def hold(self, lane_id: str, numbers: Set[str], now_s: int) -> None:
        """Adds to the lane's set, which is kept for 30 days after the last addition."""
        with transient_as_unavailable():
            self._client.update_item(
                TableName=self._table,
                Key={"pk": {"S": keys.held_key(lane_id)}},
                UpdateExpression="ADD numbers :numbers SET #ttl = :ttl",
                ExpressionAttributeNames={"#ttl": "ttl"},
                ExpressionAttributeValues={":numbers": {"SS": sorted(numbers)}, ":ttl": {"N": str(now_s + KEPT_S)}},
            )


class RunTable:
    """Where the reconciler's scheduled run stands."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client, self._table = client, table

    def load(self) -> dict[str, Any]:
        """The run as it was saved last; empty before the first."""
        with transient_as_unavailable():
            answer = self._client.get_item(
                TableName=self._table, Key={"pk": {"S": keys.RECONCILER_RUN}}, ConsistentRead=True
            )
        return json.loads(answer["Item"]["run"]["S"]) if "Item" in answer else {}

    def save(self, run: Mapping[str, Any]) -> None:
        item = {"pk": {"S": keys.RECONCILER_RUN}, "run": {"S": json.dumps(run)}}
        with transient_as_unavailable():
            self._client.put_item(TableName=self._table, Item=item)


class AdjustmentTable:
    """Adds single changes to adjustment rows, once each."""

    def __init__(self, client: DynamoDBClient, events_table: str, counters_table: str, series_days: int) -> None:
        self._client, self._events_table, self._counters_table = client, events_table, counters_table
        self._series_days = series_days

    def add_once(self, event_id: str, change: Change, expires_s: int) -> bool:
        """False if the id was claimed before. Transactional: four write units."""
        claim = {"pk": {"S": keys.claim_key(event_id)}, "ttl": {"N": str(expires_s)}}
        counter = change.counter
        row = {"pk": {"S": keys.target_key(counter.target)}, "sk": {"S": keys.adjustment_sort_key(counter)}}
        expression, names, values = f"ADD {change.slot} :delta", {}, {":delta": {"N": str(change.delta)}}
        if (row_expiry_s := series.expiry_s(counter, self._series_days)) is not None:
            expression, names = f"{expression} SET #ttl = :ttl", {"ExpressionAttributeNames": {"#ttl": "ttl"}}
            values[":ttl"] = {"N": str(row_expiry_s)}
        with transient_as_unavailable():
            try:
                self._client.transact_write_items(
                    TransactItems=[
                        {
                            "Put": {
                                "TableName": self._events_table,
                                "Item": claim,
                                "ConditionExpression": "attribute_not_exists(pk)",
                            }
                        },
                        {
                            "Update": {
                                "TableName": self._counters_table,
                                "Key": row,
                                "UpdateExpression": expression,
                                "ExpressionAttributeValues": values,
                                **names,  # type: ignore[typeddict-item]
                            }
                        },
                    ]
                )
            except self._client.exceptions.TransactionCanceledException as error:
                codes = {reason.get("Code") for reason in error.response["CancellationReasons"]}
                if error.response["CancellationReasons"][0].get("Code") == "ConditionalCheckFailed":
                    return False
                if codes <= {"None", None, *TRANSIENT_CODES}:
                    raise Unavailable("another correction of this item is under way; try again") from error
                raise
        return True
