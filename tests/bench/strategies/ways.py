"""The strategies: each counts increments of one hot item, and reads its count."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from valkey import Valkey
from valkey.backoff import NoBackoff
from valkey.exceptions import ConnectionError, TimeoutError
from valkey.retry import Retry

from infra.local.mapping import DynamoDBStream
from tallymark import sums, views
from tallymark.aggregation import Record
from tallymark.errors import Unavailable
from tallymark.events import AddEvent
from tallymark.fold import Lane, apply, fold, lane
from tallymark.model import ALL, Counter, Target, named_counter
from tallymark.runtime.wiring import now_ms
from tallymark.storage import keys
from tallymark.storage.counter_table import CounterTable
from tallymark.storage.event_stream import item_of, read_event
from tallymark.storage.event_table import EventTable
from tallymark.views import View
from tests.bench.strategies.faults import Faults, FaultyConnection

SHARDS = 64
LANES = 4  # shards of the stream, between which records are dealt out by their key
SERIES_DAYS, EVENT_DAYS = 35, 7
FRESH = "attribute_not_exists(pk)"


@dataclass(frozen=True)
class Engine:
    """One emulator and one Valkey, for all."""

    client: Any  # writes, as callers do
    folder: Any  # another client: the aggregator's
    streams: Any
    executor: Executor
    events: str  # tables
    counters: str
    stream_arn: str
    valkey_url: str
    faults: Faults


class Strategy(Protocol):
    """One counter. `write` may be called again with the same number, by who got no answer."""

    increments: int  # of one call

    def write(self, number: int) -> None:
        """Makes the call of this number: its increments, once or as often as it is called."""
        ...

    def read(self) -> int:
        """The count, as a reader without a cache gets it."""
        ...

    def items(self) -> list[dict[str, Any]]:
        """What a read reads; nothing of a store that knows no units."""
        ...


class OneRow:
    """`UpdateItem ADD n 1` on one row; a read is one `GetItem`."""

    increments = 1

    def __init__(self, engine: Engine, name: str) -> None:
        self._client, self._table = engine.client, engine.counters
        self.key = {"pk": {"S": f"one-row#{name}"}, "sk": {"S": "0"}}

    def write(self, number: int) -> None:
        _add(self._client, self._table, self.key)

    def read(self) -> int:
        return sum(int(item["n"]["N"]) for item in self.items())

    def items(self) -> list[dict[str, Any]]:
        answer = self._client.get_item(TableName=self._table, Key=self.key)
        return [answer["Item"]] if "Item" in answer else []


class ShardedRows:
    """The same on one of 64 rows, drawn anew for each call; a read is one `Query` and a sum."""

    increments = 1

    def __init__(self, engine: Engine, name: str) -> None:
        self._client, self._table, self._pk = engine.client, engine.counters, {"S": f"sharded#{name}"}
        self._rng = random.Random(name)

    def write(self, number: int) -> None:
        _add(self._client, self._table, {"pk": self._pk, "sk": {"S": f"{self._rng.randrange(SHARDS):02d}"}})

    def read(self) -> int:
        return sum(int(item["n"]["N"]) for item in self.items())

    def items(self) -> list[dict[str, Any]]:
        answer = self._client.query(
            TableName=self._table, KeyConditionExpression="pk = :pk", ExpressionAttributeValues={":pk": self._pk}
        )
        items: list[dict[str, Any]] = answer["Items"]
        return items


def _add(client: Any, table: str, key: Mapping[str, Any]) -> None:
    client.update_item(
        TableName=table, Key=key, UpdateExpression="ADD n :one", ExpressionAttributeValues={":one": {"N": "1"}}
    )


class Transaction:
    """A record under the call's token and `ADD n 1` on one row, in one transaction; a read is one `GetItem`."""

    increments = 1

    def __init__(self, engine: Engine, name: str) -> None:
        self._client, self._events, self._counters = engine.client, engine.events, engine.counters
        self._name, self._row = name, OneRow(engine, f"transaction-{name}")

    def write(self, number: int) -> None:
        record = {"pk": {"S": f"transaction#{self._name}#{number}"}, "ttl": {"N": str(now_ms() // 1000 + 86_400)}}
        update = {
            "TableName": self._counters,
            "Key": self._row.key,
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        put = {"TableName": self._events, "Item": record, "ConditionExpression": FRESH}
        try:
            self._client.transact_write_items(TransactItems=[{"Put": put}, {"Update": update}])
        except self._client.exceptions.TransactionCanceledException as error:
            if error.response["CancellationReasons"][0]["Code"] != "ConditionalCheckFailed":
                raise

    def read(self) -> int:
        return self._row.read()

    def items(self) -> list[dict[str, Any]]:
        return self._row.items()


class OneKey:
    """`INCR` on one key of Valkey; a read is one `GET`."""

    increments = 1

    def __init__(self, engine: Engine, name: str) -> None:
        self._client = Valkey.from_url(
            engine.valkey_url,
            connection_class=FaultyConnection,
            faults=engine.faults,
            socket_timeout=60,  # as for DynamoDB: no busy machine reaches it
            retry=Retry(NoBackoff(), 1),  # two attempts, as our client of DynamoDB makes
            retry_on_error=[ConnectionError, TimeoutError],
        )
        self._key = f"one-key/{name}"

    def write(self, number: int) -> None:
        self._client.incr(self._key)

    def read(self) -> int:
        value: Any = self._client.get(self._key)
        return int(value or 0)

    def items(self) -> list[dict[str, Any]]:
        return []


# --- ours -----------------------------------------------------------------------------------------------------


@dataclass
class Folded:
    """Calls leave records; batches of them are folded into the counter's rows, one for each lane."""

    engine: Engine
    counter: Counter
    increments: int
    write: Callable[[int], None]
    arrived: Callable[[], list[Record]]
    """What the stream has by now and has not handed out yet."""
    recorded: bool = True  # by the calls; else the records are there for their own sake

    def read(self) -> int:
        table = CounterTable(self.engine.client, self.engine.counters, self.engine.executor, now_ms, SERIES_DAYS)
        return table.total(self.counter)["n"]

    def items(self) -> list[dict[str, Any]]:
        first, last = keys.row_range(self.counter.metric, None)
        answer = self.engine.client.query(
            TableName=self.engine.counters,
            KeyConditionExpression="pk = :pk AND sk BETWEEN :first AND :last",
            ExpressionAttributeValues={
                ":pk": {"S": keys.target_key(self.counter.target)},
                ":first": {"S": first},
                ":last": {"S": last},
            },
        )
        items: list[dict[str, Any]] = answer["Items"]
        return items


def adds(engine: Engine, name: str) -> Folded:
    """One event per increment, as `POST /v1/counters/{name}/add` records it; the fold into the counter's rows."""
    events = EventTable(engine.client, engine.events, EVENT_DAYS)

    def write(number: int) -> None:
        sums.add(events, name, 1, f"token-{number}", at_ms=now_ms())

    return Folded(engine, named_counter(name), 1, write, _Stream(engine).arrived)


def views_of_25(engine: Engine, name: str) -> Folded:
    """One event for 25 increments, as `POST /v1/views` records it; the fold into the total's rows and the hours'."""
    events, target = EventTable(engine.client, engine.events, EVENT_DAYS), Target("film", name)

    def write(number: int) -> None:
        views.record_views(events, [View(target)] * 25, f"{name}-{number}", at_ms=now_ms())

    return Folded(engine, Counter(target, ALL, "view"), 25, write, _Stream(engine).arrived)


def fold_alone(engine: Engine, name: str) -> Folded:
    """The fold of records that are there anyway, as likes are; these are made up, and nothing is written for them."""
    made: list[Record] = []

    def write(number: int) -> None:
        item = item_of(AddEvent(now_ms(), f"token-{number}", name, 1))
        body = {"Keys": {"pk": item["pk"]}, "NewImage": item, "SequenceNumber": str(10**20 + number)}
        made.append({"eventName": "INSERT", "dynamodb": {"ApproximateCreationDateTime": time.time(), **body}})

    def arrived() -> list[Record]:
        records, made[:] = list(made), []
        return records

    return Folded(engine, named_counter(name), 1, write, arrived, recorded=False)


class _Stream:
    """The events' real stream, from now on."""

    def __init__(self, engine: Engine) -> None:
        self._reader = DynamoDBStream(engine.streams, engine.stream_arn)
        (shard,) = self._reader.shards()  # the emulator has one
        self._iterator = self._reader.iterator(shard.shard_id, None, "LATEST")

    def arrived(self) -> list[Record]:
        records: list[Record] = []
        while True:
            page = self._reader.read(self._iterator)
            if page.next_iterator is None:
                raise RuntimeError("the stream has ended")
            self._iterator = page.next_iterator
            if not page.records:
                return records
            records += map(dict, page.records)


def lane_of(record: Record) -> Lane:
    """The lane by which a record comes: its key's shard, one of 4."""
    digest = hashlib.blake2b(record["dynamodb"]["Keys"]["pk"]["S"].encode(), digest_size=2).digest()
    number = int.from_bytes(digest, "big") % LANES
    return lane(f"shardId-{1_700_000_000_000 + number:020d}-00000000", ((0, SHARDS),), "events/")


class Aggregator:
    """The fold in one process, with a memory of its own."""

    def __init__(self, engine: Engine) -> None:
        self._rows = CounterTable(engine.folder, engine.counters, engine.executor, now_ms, SERIES_DAYS)

    def take(self, records: Sequence[Record], lane: Lane) -> None:
        """Folds a batch of a lane; raises Unavailable where it has to come again."""
        deltas = fold(change for record in records for change in read_event(record))
        if apply(self._rows, lane, deltas, now_s=now_ms() // 1000, pauses=iter(()), sleep=time.sleep):
            raise Unavailable("the store is busy; try again")


@dataclass(frozen=True)
class Way:
    """A strategy as it is compared."""

    name: str
    make: Callable[[Engine, str], Strategy]
    says: str  # what it is, for a reader
    on_aws: str  # increments a second of one item that the limits of AWS leave it
    ours: bool = False


WAYS = (
    Way("one row", OneRow, "`UpdateItem ADD` on one row", "1,000: one item takes 1,000 units a second"),
    Way(
        "64 rows",
        ShardedRows,
        "`UpdateItem ADD` on one of 64 rows drawn at random; a read sums them",
        "1,000 while the rows share a partition; once it has been split for heat, up to the table's 40,000",
    ),
    Way(
        "row and record",
        Transaction,
        "a record under the call's token and `ADD` on one row, in one `TransactWriteItems`",
        "500: a transaction costs two units on the row; conflicts come on top",
    ),
    Way("one Valkey key", OneKey, "`INCR` on one key; nothing on disk", "no units; one core of one node"),
    Way(
        "folded",
        adds,
        "ours, one event per increment: a conditional put under the token, then the fold",
        "40,000: the default quota of a table; no row is hot",
        ours=True,
    ),
    Way(
        "folded, 25 a call",
        views_of_25,
        "ours, 25 views to an event under one token; the fold writes a row of the total and one of the hours",
        "1,000,000: the same quota",
        ours=True,
    ),
    Way(
        "fold alone",
        fold_alone,
        "ours where the record is there anyway, as a like is: what counting it adds",
        "whatever its records reach",
        ours=True,
    ),
)
