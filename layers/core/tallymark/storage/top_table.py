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
from .dynamodb import BATCH_GET_KEYS, Item, batch_get, spread, transient_as_unavailable

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
        """One Query, half a read unit per 4 KB."""
        low, high = keys.top_range(item_type, grain, first, last)
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "pk = :lists AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": {
                ":lists": {"S": keys.top_key(metric, grain)},
                ":low": {"S": low},
                ":high": {"S": high},
            },
        }
        found: list[Summary[Target]] = []
        while True:
            with transient_as_unavailable():
                answer = self._client.query(**request)
            found += [_stored(item).summary for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                return found
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


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
    """What lanes report of their items, in one item of the table, and each item's own record of its buckets."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client, self._table = client, table

    def report(self, lane: Lane, rates: Mapping[Target, int], now_s: int) -> dict[Target, int]:
        """One write unit per KB of all lanes' reports; those that have run out are taken away with the next."""
        together: Tally[Target] = Tally()
        for said in self._tell(keys.rates_name(lane.id), rates, now_s, keys.RATES_PREFIX, RATES_LAST_S):
            together.update(said)
        return dict(together)

    def announce(self, lane: Lane, buckets: Mapping[Target, int], now_s: int) -> None:
        """As report()."""
        self._tell(keys.buckets_name(lane.id), buckets, now_s, keys.BUCKETS_PREFIX, LASTS_S)

    def _tell(
        self, name: str, numbers: Mapping[Target, int], now_s: int, prefix: str, lasts_s: int
    ) -> list[dict[Target, int]]:
        """Sets one attribute; what all of its kind say then."""
        named = {keys.target_key(target): number for target, number in numbers.items()}
        with transient_as_unavailable():
            answer = self._client.update_item(
                TableName=self._table,
                Key=_HOT,
                UpdateExpression="SET #name = :said, #ttl = :ttl",
                ExpressionAttributeNames={"#name": name, "#ttl": "ttl"},
                ExpressionAttributeValues={
                    ":said": {"S": json.dumps([now_s, named], ensure_ascii=False, separators=(",", ":"))},
                    ":ttl": {"N": str(now_s + 3600)},
                },
                ReturnValues="ALL_NEW",
            )
        self._forget_old(answer["Attributes"], now_s)
        return _said(answer["Attributes"], prefix, now_s - lasts_s)

    def _forget_old(self, item: Item, now_s: int) -> None:
        """Takes away what lanes said that are long gone: one more write, about as often as a shard ends."""
        old = [name for name in item if _is_told(name) and now_s - json.loads(item[name]["S"])[0] > _FORGOTTEN_S]
        if old:
            with transient_as_unavailable():
                self._client.update_item(
                    TableName=self._table,
                    Key=_HOT,
                    UpdateExpression="REMOVE " + ", ".join(f"#old{i}" for i in range(len(old))),
                    ExpressionAttributeNames={f"#old{i}": name for i, name in enumerate(old)},
                )

    def buckets(self, now_s: int) -> dict[Target, int]:
        """Of every hot item. Half a read unit per 4 KB."""
        with transient_as_unavailable():
            answer = self._client.get_item(TableName=self._table, Key=_HOT)
        found: dict[Target, int] = {}
        for said in _said(answer.get("Item", {}), keys.BUCKETS_PREFIX, now_s - LASTS_S):
            for target, number in said.items():
                found[target] = max(number, found.get(target, 0))
        return found

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


_HOT: Item = {"pk": {"S": keys.HOT}, "sk": {"S": keys.HOT}}
_FORGOTTEN_S = 10 * LASTS_S


def _record(target: Target) -> Item:
    return {"pk": {"S": keys.target_key(target)}, "sk": {"S": keys.BUCKETS}}


def _is_told(name: str) -> bool:
    return name.startswith((keys.RATES_PREFIX, keys.BUCKETS_PREFIX))


def _said(item: Any, prefix: str, since_s: int) -> list[dict[Target, int]]:
    """What lanes have said since a moment."""
    told = [json.loads(value["S"]) for name, value in item.items() if name.startswith(prefix)]
    return [
        {keys.parse_target_key(name): number for name, number in named.items()}
        for at_s, named in told
        if at_s >= since_s
    ]
