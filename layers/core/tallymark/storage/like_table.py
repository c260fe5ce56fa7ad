"""The table of likes: one record per person, target and reaction, and its two indexes by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from tallymark.errors import TallymarkError, Unavailable
from tallymark.hot import LikerBuckets
from tallymark.lists import Page
from tallymark.model import Like, LikeKey, Stamp, Target

from . import keys
from .dynamodb import (
    BATCH_GET_KEYS,
    BATCH_STATEMENTS,
    Item,
    batch_get,
    ping,
    spread,
    transient_as_unavailable,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import BatchStatementRequestTypeDef, BatchStatementResponseTypeDef

BY_TIME_INDEX = "by-time"
LIKERS_INDEX = "likers"

_FILTERED_ITEMS = 100  # that the first Query of a filtered page reads at least; each further one twice as many
_MOST_ITEMS = 2_000  # that one Query reads
_FILTERED_READS = 20  # Queries for one filtered page, over 30,000 items, before it comes back short
_LAST_CHARACTER = "\U0010ffff"
_READ_AT_ONCE = 2_000
_READ_AHEAD = 200  # items of a person's partition that one Query may read for a few targets


class LikeTable:
    """Puts, deletes and reads of likes."""

    def __init__(self, client: DynamoDBClient, table: str, executor: Executor, buckets: LikerBuckets) -> None:
        self._client, self._table, self._executor, self._buckets = client, table, executor, buckets
        self._insert = f"INSERT INTO \"{table}\" VALUE {{'pk': ?, 'sk': ?, 'lk': ?, 'at': ?}}"
        self._delete = f'DELETE FROM "{table}" WHERE "pk" = ? AND "sk" = ? RETURNING ALL OLD *'  # noqa: S608 (our own table name)

    def ping(self) -> None:
        """Raises Unavailable if the table cannot be reached. Half a read unit."""
        ping(self._client, self._table)

    # --- writes -----------------------------------------------------------------------------------

    def put(self, like: Like) -> Like:
        """The like that stands now. One write unit on the table and one per index, also if it stood before."""
        with transient_as_unavailable():
            try:
                self._client.put_item(
                    TableName=self._table,
                    Item=self._item(like),
                    ConditionExpression="attribute_not_exists(pk)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except self._client.exceptions.ConditionalCheckFailedException as error:
                return Like(like.key, keys.unpack_stamp(error.response["Item"]["at"]["B"]))  # type: ignore[typeddict-item]
        return like

    def delete(self, key: LikeKey) -> bool:
        """Whether there was a like. One write unit on the table and one per index if there was."""
        with transient_as_unavailable():
            try:
                self._client.delete_item(
                    TableName=self._table, Key=_key(key), ConditionExpression="attribute_exists(pk)"
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def write_many(self, writes: Sequence[Like | LikeKey]) -> list[bool | TallymarkError]:
        """Per write whether it changed anything, or why it was not made. Units as for single writes."""
        chunks = [writes[i : i + BATCH_STATEMENTS] for i in range(0, len(writes), BATCH_STATEMENTS)]
        return [result for results in spread(self._executor, self._write_chunk, chunks) for result in results]

    def _write_chunk(self, writes: Sequence[Like | LikeKey]) -> list[bool | TallymarkError]:
        try:
            with transient_as_unavailable():
                answer = self._client.batch_execute_statement(Statements=[self._statement(write) for write in writes])
        except Unavailable as error:
            return [error] * len(writes)
        results = [_changed(write, response) for write, response in zip(writes, answer["Responses"], strict=True)]
        if answer["ResponseMetadata"]["RetryAttempts"]:
            self._find_own(writes, results)
        return results

    def _find_own(self, writes: Sequence[Like | LikeKey], results: list[bool | TallymarkError]) -> None:
        """Corrects `changed` where a first attempt landed, its reply was lost, and the repeat found its own like."""
        unsure = {write.key: i for i, write in enumerate(writes) if isinstance(write, Like) and results[i] is False}
        try:
            for like in self._get(list(unsure)):
                write = writes[unsure[like.key]]
                results[unsure[like.key]] = isinstance(write, Like) and like.stamp == write.stamp
        except Unavailable:
            return  # the writes were made; only whether this call or an earlier one made them stays unknown

    def _statement(self, write: Like | LikeKey) -> BatchStatementRequestTypeDef:
        if isinstance(write, LikeKey):
            key = _key(write)
            return {"Statement": self._delete, "Parameters": [key["pk"], key["sk"]]}
        item = self._item(write)
        return {"Statement": self._insert, "Parameters": [item["pk"], item["sk"], item["lk"], item["at"]]}

    def _item(self, like: Like) -> Item:
        key = like.key
        return {
            **_key(key),
            "lk": {"S": keys.likers_key(key.target, keys.bucket_of(key, self._buckets.now(key.target)))},
            "at": {"B": keys.pack_stamp(like.stamp)},
        }

    # --- single likes -----------------------------------------------------------------------------

    def liked(self, wanted: Sequence[LikeKey]) -> set[LikeKey]:
        """Those that are recorded, read consistently: one read unit per 4 KB of each record."""
        return {like.key for like in self._get(list(dict.fromkeys(wanted)))}

    def _get(self, wanted: Sequence[LikeKey]) -> list[Like]:
        parts = [wanted[i : i + BATCH_GET_KEYS] for i in range(0, len(wanted), BATCH_GET_KEYS)]
        return [
            _like(item)
            for part in parts
            for item in batch_get(self._client, self._table, [_key(key) for key in part], consistent=True)
        ]

    def reactions(self, user_id: str, targets: Sequence[Target]) -> dict[Target, list[str]]:
        """The person's reactions to each target, read consistently.

        One Query covers a person with few likes; for what lies beyond it, one Query per target.
        """
        found: dict[Target, list[str]] = {target: [] for target in targets}
        if not found:
            return found
        ordered = sorted(found, key=lambda target: keys.target_prefix(target).encode())
        low, high = keys.target_prefix(ordered[0]), keys.target_prefix(ordered[-1])
        items, ended = self._between(user_id, low, high, _READ_AHEAD)
        covered = None if ended else items[-1]["sk"]["S"].encode()
        beyond = [t for t in ordered if covered is not None and _past(t) > covered]
        found |= zip(beyond, spread(self._executor, lambda t: self._of(user_id, t), beyond), strict=True)
        for item in items:
            target, reaction = keys.parse_like_sort_key(item["sk"]["S"])
            if target in found and target not in beyond:
                found[target].append(reaction)
        return found

    def _of(self, user_id: str, target: Target) -> list[str]:
        prefix = keys.target_prefix(target)
        items, _ = self._between(user_id, prefix, prefix, None)
        return [keys.parse_like_sort_key(item["sk"]["S"])[1] for item in items]

    def _between(self, user_id: str, low: str, high: str, limit: int | None) -> tuple[list[Item], bool]:
        """Records from `low` to the last that begins with `high`, and whether these are all of them."""
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "pk = :user AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": {
                ":user": {"S": user_id},
                ":low": {"S": low},
                ":high": {"S": high + _LAST_CHARACTER},
            },
            "ProjectionExpression": "sk",
            "ConsistentRead": True,
        }
        if limit is not None:
            request["Limit"] = limit
        items: list[Item] = []
        while True:
            with transient_as_unavailable():
                answer = self._client.query(**request)
            items += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return items, True
            if limit is not None:
                return items, False
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    # --- lists ------------------------------------------------------------------------------------

    def of_user(self, user_id: str, item_type: str | None, before: Stamp | None, limit: int) -> Page:
        """Up to `limit` likes of a person, newest first, read consistently."""
        filters = {"type": {"S": f"{item_type}#"}} if item_type else {}
        return self._page("pk", user_id, BY_TIME_INDEX, "begins_with(sk, :type)", filters, before, limit)

    def of_target(self, target: Target, bucket: int, reaction: str | None, before: Stamp | None, limit: int) -> Page:
        """Up to `limit` likes of an item from one bucket, newest first; soon consistent, as indexes are."""
        filters = {"sk": {"S": keys.like_sort_key(target, reaction)}} if reaction else {}
        return self._page("lk", keys.likers_key(target, bucket), LIKERS_INDEX, "sk = :sk", filters, before, limit)

    def everyone(self, target: Target) -> Iterator[Like]:
        """Every like of an item, bucket by bucket, as its index shows them: half a read unit per 4 KB."""
        for bucket in range(self._buckets.ever(target)):
            before: Stamp | None = None
            while True:
                page = self.of_target(target, bucket, None, before, _READ_AT_ONCE)
                yield from page.likes
                if page.resume is None:
                    break
                before = page.resume

    def _page(
        self,
        attribute: str,
        value: str,
        index: str,
        filter_expression: str,
        filters: Item,
        before: Stamp | None,
        limit: int,
    ) -> Page:
        """One page of an index. Stamps are unique, so a page resumes below one and keeps no other position."""
        request: dict[str, Any] = {
            "TableName": self._table,
            "IndexName": index,
            "ScanIndexForward": False,
            "ConsistentRead": index == BY_TIME_INDEX,
            "Limit": max(limit, _FILTERED_ITEMS) if filters else limit,
            **({"FilterExpression": filter_expression} if filters else {}),
        }
        likes: list[Like] = []
        for _ in range(_FILTERED_READS):
            with transient_as_unavailable():
                answer = self._client.query(**request, **_below(attribute, value, before, filters))
            likes += [_like(item) for item in answer["Items"]]
            if len(likes) >= limit:
                return Page(tuple(likes[:limit]), likes[limit - 1].stamp)
            if "LastEvaluatedKey" not in answer:
                return Page(tuple(likes), None)
            before = keys.unpack_stamp(answer["LastEvaluatedKey"]["at"]["B"])
            request["Limit"] = min(_MOST_ITEMS, 2 * request["Limit"])
        return Page(tuple(likes), before)


def _key(key: LikeKey) -> Item:
    return {"pk": {"S": key.user_id}, "sk": {"S": keys.like_sort_key(key.target, key.reaction)}}


def _like(item: Any) -> Like:
    target, reaction = keys.parse_like_sort_key(item["sk"]["S"])
    return Like(LikeKey(item["pk"]["S"], target, reaction), keys.unpack_stamp(item["at"]["B"]))


def _below(attribute: str, value: str, before: Stamp | None, filters: Item) -> dict[str, Any]:
    """The conditions of a page: one partition of the index, from a stamp downwards."""
    values: Item = {":value": {"S": value}, **{f":{name}": operand for name, operand in filters.items()}}
    if before is None:
        return {"KeyConditionExpression": f"{attribute} = :value", "ExpressionAttributeValues": values}
    return {
        "KeyConditionExpression": f"{attribute} = :value AND #at < :before",
        "ExpressionAttributeNames": {"#at": "at"},
        "ExpressionAttributeValues": {**values, ":before": {"B": keys.pack_stamp(before)}},
    }


def _past(target: Target) -> bytes:
    """Above every sort key of the target."""
    return keys.target_prefix(target).encode() + b"\xff"


def _changed(write: Like | LikeKey, response: BatchStatementResponseTypeDef) -> bool | TallymarkError:
    """What a statement's answer means: an INSERT that met its like, a DELETE that returned one, a refusal."""
    if "Error" not in response:
        return isinstance(write, Like) or "Item" in response
    code = response["Error"].get("Code", "")
    if code == "DuplicateItem":
        return False
    return Unavailable(f"the store did not take this operation: {code}")
