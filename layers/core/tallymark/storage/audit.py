"""Counters and likes read for reconciliation, and the two things that it writes: corrections and what it verified.

A target's rows are found by a scan of the counters, 1,000 rows to a page; the records of a target through its
index. Beside its rows a target has one item that says when they were last found right, so that a run passes
over what has not changed since.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tallymark.errors import InvalidRequest
from tallymark.fold import Lane
from tallymark.model import Counter, Like, Target
from tallymark.reconciliation import Page

from . import keys
from .counter_table import unpack_mark
from .dynamodb import Item, query, spread, transient_as_unavailable
from .like_table import LIKERS_INDEX, LikeTable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_PAGE_ITEMS = 1_000
VERIFIED_FOR_S = 30 * 86400  # after that a target is looked at again though its rows are the same


@dataclass(frozen=True)
class TargetRows:
    """A target's rows as stored."""

    items: Mapping[str, Item]

    @cached_property
    def counted(self) -> dict[str, int]:
        by_reaction: dict[str, int] = {}
        for sort_key, item in self.items.items():
            reaction, _ = keys.parse_counter_sort_key(sort_key)
            by_reaction[reaction] = by_reaction.get(reaction, 0) + int(item["n"]["N"])
        return by_reaction

    @cached_property
    def digest(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for sort_key, item in sorted(self.items.items()):
            marks = {name: bytes(v["B"]).hex() for name, v in item.items() if name.startswith(keys.MARK_PREFIX)}
            digest.update(json.dumps([sort_key, item["n"]["N"], sorted(marks.items())]).encode())
        return digest.digest()

    def adjustment(self, counter: Counter) -> int | None:
        item = self.items.get(keys.adjustment_sort_key(counter))
        return None if item is None else int(item["n"]["N"])

    def holds(self, lane: Lane, counter: Counter, sequence: int) -> bool:
        mark = self.items.get(keys.counter_sort_key(counter, lane.row), {}).get(keys.mark_name(lane.id))
        return mark is not None and unpack_mark(bytes(mark["B"])).sequence >= sequence


class AuditTables:
    """The counters and the likes' index, as the reconciler needs them."""

    def __init__(
        self, client: DynamoDBClient, counters_table: str, likes_table: str, likes: LikeTable, executor: Executor
    ) -> None:
        self._client, self._counters_table, self._likes_table = client, counters_table, likes_table
        self._likes, self._executor = likes, executor

    # --- one target -------------------------------------------------------------------------------

    def rows(self, target: Target) -> TargetRows:
        """One consistent Query: a read unit per 4 KB of rows."""
        return TargetRows({item["sk"]["S"]: item for item in self._items(keys.target_key(target), keys.LIKE_METRIC)})

    def _items(self, target_key: str, prefix: str = "") -> Iterator[Item]:
        condition, values = "pk = :target", {":target": {"S": target_key}}
        if prefix:
            condition, values = f"{condition} AND begins_with(sk, :prefix)", {**values, ":prefix": {"S": prefix}}
        return query(self._client, self._counters_table, condition, values, consistent=True)

    def records(self, target: Target) -> Iterator[Like]:
        """Half a read unit per 4 KB of the index."""
        return self._likes.everyone(target)

    def correct(self, counter: Counter, by: int, seen: int | None) -> bool:
        """One conditional addition to the adjustment row: one write unit."""
        untouched = "attribute_not_exists(n)" if seen is None else "n = :seen"
        try:
            with transient_as_unavailable():
                self._client.update_item(
                    TableName=self._counters_table,
                    Key=_key(counter.target, keys.adjustment_sort_key(counter)),
                    UpdateExpression="ADD n :by",
                    ConditionExpression=untouched,
                    ExpressionAttributeValues={
                        ":by": {"N": str(by)},
                        **({} if seen is None else {":seen": {"N": str(seen)}}),
                    },
                )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    # --- what was verified ------------------------------------------------------------------------

    def verified(self, digests: Mapping[Target, bytes], now_s: int) -> None:
        """Remembers which rows were found right: one write unit each."""

        def remember(target: Target) -> None:
            item = {**_key(target, keys.VERIFIED), "digest": {"B": digests[target]}, "at": {"N": str(now_s)}}
            with transient_as_unavailable():
                self._client.put_item(TableName=self._counters_table, Item=item)

        spread(self._executor, remember, list(digests))

    def wrong_since(self, target: Target, now_s: int) -> int:
        """When the target was first found wrong, in seconds since the epoch; now, if it was right before."""
        with transient_as_unavailable():
            answer = self._client.update_item(
                TableName=self._counters_table,
                Key=_key(target, keys.VERIFIED),
                UpdateExpression="SET #since = if_not_exists(#since, :now) REMOVE #digest",
                ExpressionAttributeNames={"#since": "since", "#digest": "digest"},
                ExpressionAttributeValues={":now": {"N": str(now_s)}},
                ReturnValues="ALL_NEW",
            )
        return int(answer["Attributes"]["since"]["N"])

    # --- all targets ------------------------------------------------------------------------------

    def counted_page(self, cursor: str | None, *, skip_unchanged: bool, now_s: int) -> Page:
        """The next targets that have counter rows; without the unchanged ones, if these may be skipped.

        Half a read unit per 4 KB of rows. Raises InvalidRequest for a cursor that is none.
        """
        request: dict[str, Any] = {"TableName": self._counters_table, "Limit": _PAGE_ITEMS}
        start = _unpack_cursor(cursor)
        with transient_as_unavailable():
            answer = self._client.scan(**request, **start)
        begun = start["ExclusiveStartKey"]["pk"] if start else None  # the page before looked at all of it
        last = answer.get("LastEvaluatedKey")
        targets, unchanged = [], 0
        for key, group in itertools.groupby(answer["Items"], lambda item: item["pk"]):
            items = list(group)
            if key == begun or not key["S"][0].isalpha():  # named counters and lists of the top are no targets
                continue
            if last is not None and key == last["pk"]:  # the page may have cut it
                items = list(self._items(key["S"]))
            rows = [item for item in items if _is_row(item)]
            if skip_unchanged and _is_verified(items, rows, now_s):
                unchanged += 1
            elif rows:
                targets.append(keys.parse_target_key(key["S"]))
        return Page(tuple(targets), unchanged, _pack_cursor(last))

    def uncounted_page(self, cursor: str | None) -> Page:
        """The next targets of the index of likes that have no counter row at all."""
        request: dict[str, Any] = {
            "TableName": self._likes_table,
            "IndexName": LIKERS_INDEX,
            "Limit": _PAGE_ITEMS,
            "ProjectionExpression": "lk",
        }
        with transient_as_unavailable():
            answer = self._client.scan(**request, **_unpack_cursor(cursor))
        targets = list(dict.fromkeys(keys.parse_likers_key(item["lk"]["S"]) for item in answer["Items"]))
        counted = spread(self._executor, lambda target: bool(self.rows(target).items), targets)
        uncounted = tuple(target for target, is_counted in zip(targets, counted, strict=True) if not is_counted)
        return Page(uncounted, len(targets) - len(uncounted), _pack_cursor(answer.get("LastEvaluatedKey")))


def _key(target: Target, sort_key: str) -> Item:
    return {"pk": {"S": keys.target_key(target)}, "sk": {"S": sort_key}}


def _is_row(item: Item) -> bool:
    return str(item["sk"]["S"]).startswith(keys.LIKE_METRIC)


def _is_verified(items: Sequence[Item], rows: Sequence[Item], now_s: int) -> bool:
    found = next((item for item in items if item["sk"]["S"] == keys.VERIFIED), None)
    if found is None or "digest" not in found or now_s - int(found["at"]["N"]) > VERIFIED_FOR_S:
        return False
    return bytes(found["digest"]["B"]) == TargetRows({item["sk"]["S"]: item for item in rows}).digest


def _pack_cursor(key: Any) -> str | None:
    """A key of the store as text: binary values in base64, as the store's own JSON has them."""
    if key is None:
        return None
    plain = {
        name: {kind: base64.b64encode(bytes(v)).decode() if kind == "B" else v for kind, v in value.items()}
        for name, value in key.items()
    }
    return base64.urlsafe_b64encode(json.dumps(plain).encode()).decode()


def _unpack_cursor(cursor: str | None) -> dict[str, Any]:
    if cursor is None:
        return {}
    try:
        plain = json.loads(base64.urlsafe_b64decode(cursor))
        key = {
            name: {kind: base64.b64decode(v) if kind == "B" else v for kind, v in value.items()}
            for name, value in plain.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest("is not one that the reconciler gave", "cursor") from error
    return {"ExclusiveStartKey": key}
