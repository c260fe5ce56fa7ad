"""Claims of parked records in the table of events, each made in one transaction with its correction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallymark.errors import Unavailable
from tallymark.fold import Change

from . import keys
from .dynamodb import TRANSIENT_CODES, transient_as_unavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class AdjustmentTable:
    """Adds single changes to adjustment rows, once each."""

    def __init__(self, client: DynamoDBClient, events_table: str, counters_table: str) -> None:
        self._client, self._events_table, self._counters_table = client, events_table, counters_table

    def add_once(self, event_id: str, change: Change, expires_s: int) -> bool:
        """False if the id was claimed before. Transactional: four write units."""
        claim = {"pk": {"S": keys.claim_key(event_id)}, "ttl": {"N": str(expires_s)}}
        counter = change.counter
        row = {"pk": {"S": keys.target_key(counter.target)}, "sk": {"S": keys.adjustment_sort_key(counter)}}
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
                                "UpdateExpression": "ADD n :delta",
                                "ExpressionAttributeValues": {":delta": {"N": str(change.delta)}},
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
