"""Top lists and hot items, kept in the table of counters beside its rows."""

from __future__ import annotations

import json
import zlib
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from tallymark.fold import Lane
from tallymark.hot import LASTS_S, RATES_LAST_S
from tallymark.model import Target
from tallymark.sketch import Summary
from tallymark.top import NOTHING, Grain, Place, Stored, TopMetric

from . import keys
from .dynamodb import BATCH_GET_KEYS, Item, batch_get, query, spread, transient_as_unavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class TopTable:
    """Lists, one item for each slot of each."""

    def __init__(self, client: DynamoDBClient, table: str, executor: Executor) -> None:
        self._client, self._table, self._executor = client, table, executor

    def load(self, places: Sequence[Place]) -> list[Stored]:
        """Half a read unit per 4 KB each. What is read may be a moment old: saving finds out."""
        found: dict[tuple[str, str], Item] = {}
        for i in range(0, len(places), BATCH_GET_KEYS):
            for item in batch_get(self._client, self._table, [_key(p) for p in places[i : i + BATCH_GET_KEYS]]):
                found[item["pk"]["S"], item["sk"]["S"]] = item
        items = [found.get((key["pk"]["S"], key["sk"]["S"])) for key in map(_key, places)]
        return [NOTHING if item is None else _stored(item) for item in items]

    def save(self, writes: Sequence[tuple[Place, Stored, Stored]]) -> list[Stored]:
        """One write unit per KB each, also where somebody else's is there."""
        return spread(self._executor, lambda write: self._save(*write), writes)

    def _save(self, place: Place, mine: Stored, known: Stored) -> Stored:
        key, _ = place
        untouched = "v = :known" if known.version else "attribute_not_exists(pk)"
        try:
            with transient_as_unavailable():
                self._client.put_item(
                    TableName=self._table,
                    Item={
                        **_key(place),
                        "v": {"B": mine.version},
                        "list": {"B": _pack(mine.summary)},
                        **({} if key.expiry_s is None else {"ttl": {"N": str(key.expiry_s)}}),
                    },
                    ConditionExpression=untouched,
                    **({"ExpressionAttributeValues": {":known": {"B": known.version}}} if known.version else {}),  # type: ignore[arg-type]
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
        except self._client.exceptions.ConditionalCheckFailedException as error:
            # None at all where what was known has expired.
            standing: Any = error.response
            return _stored(standing["Item"]) if "Item" in standing else NOTHING
        return mine

    def between(
        self, metric: TopMetric, item_type: str | None, grain: Grain, first: int, last: int
    ) -> list[Summary[Target]]:
        """A Query, half a read unit per 4 KB."""
        low, high = keys.top_range(item_type, grain, first, last)
        values = {":lists": {"S": keys.top_key(metric, grain)}, ":low": {"S": low}, ":high": {"S": high}}
        found = query(self._client, self._table, "pk = :lists AND sk BETWEEN :low AND :high", values)
        return [_stored(item).summary for item in found]


def _key(place: Place) -> Item:
    key, slot = place
    sort_key = keys.top_sort_key(key.item_type, key.grain, key.period, slot)
    return {"pk": {"S": keys.top_key(key.metric, key.grain)}, "sk": {"S": sort_key}}


def _pack(summary: Summary[Target]) -> bytes:
    named = {keys.target_key(target): bound for target, bound in summary.bounds.items()}
    return zlib.compress(json.dumps([summary.floor, named], ensure_ascii=False, separators=(",", ":")).encode())


def _stored(item: Any) -> Stored:
    floor, named = json.loads(zlib.decompress(bytes(item["list"]["B"])))
    bounds = {keys.parse_target_key(name): bound for name, bound in named.items()}
    return Stored(Summary(bounds, floor), bytes(item["v"]["B"]))


class HotTable:
    """What lanes report of their items, an item of the table each; what is announced, an item each; and each hot item's
    own record of its buckets. Reports and announcements are in partitions of their own, and expire.
    """

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client, self._table = client, table

    def report(self, lane: Lane, rates: Mapping[Target, int], now_s: int) -> dict[Target, int]:
        """One write unit per KB of the lane's own, and half a read unit per 4 KB of all lanes'."""
        named = {keys.target_key(target): {"N": str(rate)} for target, rate in rates.items()}
        self._tell(keys.RATES, keys.rates_sort_key(lane.id), {"rates": {"M": named}}, now_s)
        together: Tally[Target] = Tally()
        for item in self._told(keys.RATES, now_s - RATES_LAST_S):
            for name, rate in item["rates"]["M"].items():
                together[keys.parse_target_key(name)] += int(rate["N"])
        return dict(together)

    def announce(self, target: Target, buckets: int, now_s: int) -> None:
        """One write unit. Who announces last is believed."""
        self._tell(keys.HOT, keys.target_key(target), {"buckets": {"N": str(buckets)}}, now_s)

    def buckets(self, now_s: int) -> dict[Target, int]:
        """Of every hot item. Half a read unit per 4 KB, which is 30 items or more."""
        return {
            keys.parse_target_key(item["sk"]["S"]): int(item["buckets"]["N"])
            for item in self._told(keys.HOT, now_s - LASTS_S)
        }

    def _tell(self, pk: str, sk: str, said: Item, now_s: int) -> None:
        told = {"pk": {"S": pk}, "sk": {"S": sk}, "at": {"N": str(now_s)}, "ttl": {"N": str(now_s + LASTS_S)}}
        with transient_as_unavailable():
            self._client.put_item(TableName=self._table, Item=told | said)

    def _told(self, pk: str, since_s: int) -> list[Item]:
        """What was said since a moment; the table expires what is older in its own time."""
        found = query(self._client, self._table, "pk = :pk", {":pk": {"S": pk}})
        return [item for item in found if int(item["at"]["N"]) >= since_s]

    def widen(self, target: Target, buckets: int) -> None:
        """One write unit, also where the record says as many already."""
        try:
            with transient_as_unavailable():
                self._client.update_item(
                    TableName=self._table,
                    Key=_record(target),
                    UpdateExpression="SET buckets = :buckets",
                    ConditionExpression="attribute_not_exists(buckets) OR buckets < :buckets",
                    ExpressionAttributeValues={":buckets": {"N": str(buckets)}},
                )
        except self._client.exceptions.ConditionalCheckFailedException:
            return

    def widest(self, target: Target) -> int:
        """The largest number of buckets that a hot item ever had; 0: it never was hot. One read unit."""
        with transient_as_unavailable():
            answer = self._client.get_item(TableName=self._table, Key=_record(target), ConsistentRead=True)
        return int(answer["Item"]["buckets"]["N"]) if "Item" in answer else 0


def _record(target: Target) -> Item:
    return {"pk": {"S": keys.target_key(target)}, "sk": {"S": keys.BUCKETS}}
