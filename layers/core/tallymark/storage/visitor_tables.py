"""What is kept of visitors in the tables: snapshots of sketches, the events to replay, and whose turn it is."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tallymark import visitors
from tallymark.errors import Unavailable
from tallymark.model import Target
from tallymark.visitors import Page, Rebuild, Sketch, Snapshot, Standing, Turn

from . import keys
from .dynamodb import Item, batch_get, query, spread, transient_as_unavailable
from .event_stream import viewed_of

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class SketchTable:
    """Snapshots in the table of counters, beside the counts of their target."""

    def __init__(self, client: DynamoDBClient, table: str, executor: Executor, series_days: int) -> None:
        self._client, self._table, self._executor, self._series_days = client, table, executor, series_days

    def get(self, sketches: Sequence[Sketch]) -> dict[Sketch, Snapshot]:
        """Those of up to 100 that are stored, read consistently: a read unit per 4 KB."""
        if not sketches:
            return {}
        found = batch_get(self._client, self._table, [_key(sketch) for sketch in sketches], consistent=True)
        by_key = {(item["pk"]["S"], item["sk"]["S"]): item for item in found}
        items = {sketch: by_key.get(_plain(_key(sketch))) for sketch in sketches}
        return {
            sketch: Snapshot(bytes(item["hll"]["B"]), bytes(item["version"]["B"]))
            for sketch, item in items.items()
            if item is not None
        }

    def put(self, changes: Sequence[tuple[Sketch, bytes, Snapshot | None]]) -> list[bool]:
        """Per (sketch, bytes, what is stored as far as is known) whether it is stored now; a write unit per KB."""
        return spread(self._executor, self._put, changes)

    def _put(self, change: tuple[Sketch, bytes, Snapshot | None]) -> bool:
        sketch, data, before = change
        version = os.urandom(8)
        item: Item = {**_key(sketch), "hll": {"B": data}, "version": {"B": version}}
        if (expiry_s := visitors.expiry_s(sketch.label, self._series_days)) is not None:
            item["ttl"] = {"N": str(expiry_s)}
        unchanged: dict[str, Any] = (
            {"ConditionExpression": "attribute_not_exists(pk)"}
            if before is None
            else {
                "ConditionExpression": "version = :before",
                "ExpressionAttributeValues": {":before": {"B": before.version}},
            }
        )
        with transient_as_unavailable():
            try:
                self._client.put_item(TableName=self._table, Item=item, **unchanged)
            except self._client.exceptions.ConditionalCheckFailedException:
                return False  # also where an attempt of this call landed: it is then stored once more
        return True

    def between(self, target: Target, first: str, last: str) -> dict[str, bytes]:
        """By label the snapshots of a target, from one label to another: one consistent Query, a unit per 4 KB."""
        values: Item = {
            ":target": {"S": keys.target_key(target)},
            ":first": {"S": keys.sketch_sort_key(first)},
            ":last": {"S": keys.sketch_sort_key(last)},
        }
        between = "pk = :target AND sk BETWEEN :first AND :last"
        found = query(self._client, self._table, between, values, consistent=True)
        return {keys.parse_sketch_sort_key(item["sk"]["S"]): bytes(item["hll"]["B"]) for item in found}


class VisitorLog:
    """The views that the table of events still has, and the item that says whose turn it is."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._client, self._table = client, table
        self._turn = {"pk": {"S": keys.VISITORS_TURN}}

    def events(self, since_ms: int, cursor: str | None) -> Page:
        """The next views accepted at or after a moment: a page of the table, of 1 MB or 256 read units.

        Read consistently: what a stream brought before is there.
        """
        start: dict[str, Any] = {} if cursor is None else {"ExclusiveStartKey": {"pk": {"S": cursor}}}
        with transient_as_unavailable():
            answer = self._client.scan(
                TableName=self._table,
                FilterExpression="begins_with(pk, :views) AND #at >= :since",
                ExpressionAttributeNames={"#at": "at"},
                ExpressionAttributeValues={":views": {"S": keys.VIEW_EVENT}, ":since": {"N": str(since_ms)}},
                ConsistentRead=True,
                **start,
            )
        last = answer.get("LastEvaluatedKey")
        return Page([viewed_of(item) for item in answer["Items"]], last["pk"]["S"] if last is not None else None)

    # --- turns ---

    def standing(self) -> Standing:
        """How far everything is stored. One read unit."""
        with transient_as_unavailable():
            answer = self._client.get_item(TableName=self._table, Key=self._turn, ConsistentRead=True)
        return _standing(answer.get("Item", {}))

    def take_turn(self, now_ms: int, until_ms: int) -> Turn | None:
        """The turn until it is ended, or until a moment; None while another has it. One write unit, as all below."""
        with transient_as_unavailable():
            try:
                answer = self._client.update_item(
                    TableName=self._table,
                    Key=self._turn,
                    UpdateExpression="ADD turn :one SET busy = :until",
                    ConditionExpression="attribute_not_exists(busy) OR busy < :now",
                    ExpressionAttributeValues={
                        ":one": {"N": "1"},
                        ":now": {"N": str(now_ms)},
                        ":until": {"N": str(until_ms)},
                    },
                    ReturnValues="ALL_NEW",
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return None
        return _turn(answer["Attributes"])

    def restart(self, turn: Turn, now_ms: int) -> Turn:
        """Everything that is kept has to be replayed, until the turn that moves on."""
        return self._update(turn, "SET replaying = :now, replayed = :now REMOVE progress", {":now": now_ms})

    def save(self, turn: Turn, rebuild: Rebuild | None) -> Turn:
        """How far a rebuild is; None: at its end. Returns also how things stand by now."""
        if rebuild is None:
            return self._update(turn, "REMOVE progress", {})
        return self._update(turn, "SET progress = :progress", {":progress": json.dumps(asdict(rebuild))})

    def move_on(self, turn: Turn, since_ms: int) -> bool:
        """Whatever was acknowledged and accepted before is stored; False if `since` was moved back during the turn."""
        with transient_as_unavailable():
            try:
                self._client.update_item(
                    TableName=self._table,
                    Key=self._turn,
                    UpdateExpression="SET since = :since, retreats = :retreats REMOVE replaying",
                    ConditionExpression="turn = :turn AND (attribute_not_exists(retreats) OR retreats = :retreats)",
                    ExpressionAttributeValues={
                        ":since": {"N": str(since_ms)},
                        ":turn": {"N": str(turn.number)},
                        ":retreats": {"N": str(turn.standing.retreats)},
                    },
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def retreat(self, since_ms: int) -> int:
        """Moves `since` back there, unless it is there; returns how often that was asked. Up to two write units.

        In two steps: from the first on no turn that is under way can move `since`, so the second is not undone.
        """
        with transient_as_unavailable():
            answer = self._client.update_item(
                TableName=self._table,
                Key=self._turn,
                UpdateExpression="ADD retreats :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
                ReturnValues="ALL_NEW",
            )
        standing = _standing(answer["Attributes"])
        if standing.since_ms is not None and standing.since_ms > since_ms:
            with (
                transient_as_unavailable(),
                contextlib.suppress(self._client.exceptions.ConditionalCheckFailedException),
            ):
                self._client.update_item(
                    TableName=self._table,
                    Key=self._turn,
                    UpdateExpression="SET since = :since",
                    ConditionExpression="since > :since",
                    ExpressionAttributeValues={":since": {"N": str(since_ms)}},
                )
        return standing.retreats

    def end(self, turn: Turn) -> None:
        """Lets others have their turn; nothing if one has taken it."""
        try:
            self._update(turn, "REMOVE busy", {})
        except Unavailable:
            return  # it ends by itself

    def _update(self, turn: Turn, expression: str, values: dict[str, int | str]) -> Turn:
        """On condition that nobody has taken a turn since; else Unavailable."""
        typed = {name: {"N": str(v)} if isinstance(v, int) else {"S": v} for name, v in values.items()}
        with transient_as_unavailable():
            try:
                answer = self._client.update_item(
                    TableName=self._table,
                    Key=self._turn,
                    UpdateExpression=expression,
                    ConditionExpression="turn = :turn",
                    ExpressionAttributeValues={**typed, ":turn": {"N": str(turn.number)}},
                    ReturnValues="ALL_NEW",
                )
            except self._client.exceptions.ConditionalCheckFailedException as error:
                raise Unavailable("another process keeps the visitors now; try again") from error
        return _turn(answer["Attributes"])


def _turn(item: Item) -> Turn:
    rebuild = Rebuild(**json.loads(item["progress"]["S"])) if "progress" in item else None
    return Turn(int(item["turn"]["N"]), _standing(item), rebuild)


def _standing(item: Item) -> Standing:
    return Standing(
        since_ms=int(item["since"]["N"]) if "since" in item else None,
        retreats=int(item["retreats"]["N"]) if "retreats" in item else 0,
        replayed_ms=int(item["replayed"]["N"]) if "replayed" in item else 0,
        is_replaying="replaying" in item,
    )


def _key(sketch: Sketch) -> Item:
    return {"pk": {"S": keys.target_key(sketch.target)}, "sk": {"S": keys.sketch_sort_key(sketch.label)}}


def _plain(key: Item) -> tuple[str, str]:
    return key["pk"]["S"], key["sk"]["S"]
