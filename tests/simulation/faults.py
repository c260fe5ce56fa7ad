"""What goes wrong at a call of the tables or of the queue, drawn from the seed, and the clients at which it does."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from . import dynamodb
from .dynamodb import Database

ENDPOINT = "https://store.invalid"
TRIES = 2  # of one call of the SDK: storage/dynamodb.py
SILENCE_S = 2.0  # until the SDK gives a try up
LANDS_WITHIN_S = 20.0  # a write whose sender gave up
SHARDS_AT_ONCE = 3  # of a page: DynamoDB has 100
MESSAGES_AT_ONCE = 10  # SQS API Reference, SendMessageBatch

_ANY = ("throttled", "server error", "unreachable", "reply lost", "died before a call", "died after a call")
_WRITE = (*_ANY, "repeated by the SDK", "landed late", "transaction conflict")
_BATCH = (*_WRITE, "statements refused", "statements refused", "landed in part", "landed in part")
POSSIBLE: Mapping[str, tuple[str, ...]] = {
    "get_item": _ANY,
    "batch_get_item": (*_ANY, "keys unprocessed", "keys unprocessed", "stale read", "stale read"),
    "query": _ANY,
    "scan": _ANY,
    "put_item": _WRITE,
    "delete_item": _WRITE,
    "update_item": _WRITE,
    "transact_write_items": _WRITE,
    "batch_execute_statement": _BATCH,
    "describe_stream": _ANY,
    "get_shard_iterator": _ANY,
    "get_records": _ANY,
    "get_queue_attributes": _ANY,
    "send_message_batch": (*_ANY, "repeated by the SDK", "messages refused", "messages refused"),
}
BUSY: Mapping[str, tuple[str, ...]] = {  # of a store that is asked for more than it can give
    "batch_execute_statement": ("throttled", "statements refused", "statements refused"),
    "batch_get_item": ("throttled", "keys unprocessed"),
    "update_item": ("throttled",),
    "transact_write_items": ("throttled", "transaction conflict"),
    "send_message_batch": ("throttled", "messages refused"),
}
# What a caller that must know its write's fate cannot be given: see World.write.
LATE = "landed late"
KINDS = tuple(dict.fromkeys(kind for kinds in POSSIBLE.values() for kind in kinds))

_THROTTLED = ("ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded")
_REFUSED = ("ThrottlingError", "ProvisionedThroughputExceeded", "InternalServerError", "TransactionConflict")


class Died(BaseException):
    """The function ends where it stands. No handler catches it."""


class Surroundings(Protocol):
    """The world around a call."""

    rng: random.Random

    def draw(self, operation: str) -> str | None:
        """The fault of this call, if there is one."""
        ...

    def between(self) -> None:
        """Before a call reaches its store: time passes, others act, the function's own time may run out."""
        ...

    def wait(self, seconds: float) -> None: ...

    def land(self, write: Callable[[], Any]) -> None:
        """Makes the write in a while, when nobody waits for its answer."""
        ...


def _lost(rng: random.Random) -> Exception:
    return rng.choice((ConnectionClosedError, ReadTimeoutError))(endpoint_url=ENDPOINT)


class FlakyDynamoDB:
    """A client of the tables as one process has it. `noted` is told before each write is made."""

    def __init__(
        self, name: str, database: Database, around: Surroundings, noted: Callable[[], Callable[[], None]]
    ) -> None:
        self._name, self._database, self._around, self._noted = name, database, around, noted
        self._tokens = 0

    @property
    def exceptions(self) -> Any:
        return dynamodb.exceptions()

    def get_item(self, **request: Any) -> Any:
        return self._call("get_item", request)

    def batch_get_item(self, **request: Any) -> Any:
        return self._call("batch_get_item", request)

    def query(self, **request: Any) -> Any:
        return self._call("query", request)

    def scan(self, **request: Any) -> Any:
        return self._call("scan", request)

    def put_item(self, **request: Any) -> Any:
        return self._call("put_item", request)

    def delete_item(self, **request: Any) -> Any:
        return self._call("delete_item", request)

    def update_item(self, **request: Any) -> Any:
        return self._call("update_item", request)

    def batch_execute_statement(self, **request: Any) -> Any:
        return self._call("batch_execute_statement", request)

    def transact_write_items(self, **request: Any) -> Any:
        # The SDK gives every call a token of its own, and a repeat within the call has the same.
        self._tokens += 1
        return self._call("transact_write_items", {"ClientRequestToken": f"{self._name}-{self._tokens}", **request})

    def _call(self, operation: str, request: dict[str, Any]) -> Any:
        self._around.between()
        fault = self._around.draw(operation)
        note = self._noted()

        def work() -> Any:
            note()
            return getattr(self._database, operation)(**request)

        if fault is None:
            return work()
        if fault in _REFUSE:
            _REFUSE[fault](operation, self._around)
        if fault in _SHAPED:
            return _SHAPED[fault](self._database, request, self._around, note)
        return _after(fault, work, self._around)


# --- refused: nothing is done -----------------------------------------------------------------------------------


def _throttled(operation: str, around: Surroundings) -> None:
    raise dynamodb.error(around.rng.choice(_THROTTLED), operation)


def _server_error(operation: str, around: Surroundings) -> None:
    code, status = around.rng.choice((("InternalServerError", 500), ("ServiceUnavailable", 503)))
    raise dynamodb.error(code, operation, status=status)


def _unreachable(_operation: str, around: Surroundings) -> None:
    around.wait(1.0)
    raise EndpointConnectionError(endpoint_url=ENDPOINT)


def _died(_operation: str, _around: Surroundings) -> None:
    raise Died("before a call")


def _conflict(operation: str, _around: Surroundings) -> None:
    if operation == "transact_write_items":
        reasons = [{"Code": "None"}, {"Code": "TransactionConflict", "Message": "ongoing for the item"}]
        raise dynamodb.error("TransactionCanceledException", operation, "", CancellationReasons=reasons)
    raise dynamodb.error("TransactionConflictException", operation)


_REFUSE: Mapping[str, Callable[[str, Surroundings], None]] = {
    "throttled": _throttled,
    "server error": _server_error,
    "unreachable": _unreachable,
    "died before a call": _died,
    "transaction conflict": _conflict,
}

# --- done, and the answer goes astray ---------------------------------------------------------------------------


def _after(fault: str, work: Callable[[], Any], around: Surroundings) -> Any:
    match fault:
        case "died after a call":
            work()
            raise Died("after a call")
        case "reply lost":
            for _ in range(around.rng.randint(1, TRIES)):
                quietly(work)
            around.wait(TRIES * SILENCE_S)
            raise _lost(around.rng)
        case "landed late":
            around.land(work)
            around.wait(TRIES * SILENCE_S)
            raise _lost(around.rng)
        case "repeated by the SDK":
            quietly(work)
            around.wait(SILENCE_S)
            answer = work()
            answer["ResponseMetadata"]["RetryAttempts"] = 1
            return answer
    raise ValueError(f"no fault: {fault}")


def quietly(work: Callable[[], Any]) -> None:
    """Nobody hears the answer, be it an error."""
    try:
        work()
    except dynamodb.exceptions().ClientError:
        return


# --- done in part -----------------------------------------------------------------------------------------------


def _unprocessed(database: Database, request: dict[str, Any], around: Surroundings, _note: Callable[[], None]) -> Any:
    ((table, wanted),) = request["RequestItems"].items()
    keys = list(wanted["Keys"])
    around.rng.shuffle(keys)
    done = around.rng.randint(0, len(keys) - 1)
    answer = dynamodb.answer(Responses={})
    if done:
        answer = database.batch_get_item(RequestItems={table: {**wanted, "Keys": keys[:done]}})
    answer["UnprocessedKeys"] = {table: {**wanted, "Keys": keys[done:]}}
    return answer


def _stale(database: Database, request: dict[str, Any], around: Surroundings, _note: Callable[[], None]) -> Any:
    """What an eventually consistent read may show: for some items, what the last write replaced."""
    answer = database.batch_get_item(**request)
    for name, wanted in request["RequestItems"].items():
        if wanted.get("ConsistentRead"):
            continue
        table = database.table(name)
        old = {table.exact_key(key) for key in wanted["Keys"] if around.rng.random() < 0.5}
        shown = {table.key_of(item): item for item in answer["Responses"][name]}
        for key in sorted(old & table.before.keys()):
            shown.pop(key, None)
            if (replaced := table.before[key]) is not None:
                shown[key] = dict(replaced)
        answer["Responses"][name] = list(shown.values())
    return answer


def _statements_refused(
    database: Database, request: dict[str, Any], around: Surroundings, note: Callable[[], None]
) -> Any:
    note()
    responses = []
    for statement in request["Statements"]:
        if around.rng.random() < 0.5:
            responses.append({"Error": {"Code": around.rng.choice(_REFUSED), "Message": "not now"}})
        else:
            responses.append(database.execute(statement))
    return dynamodb.answer(Responses=responses)


def _landed_in_part(database: Database, request: dict[str, Any], around: Surroundings, note: Callable[[], None]) -> Any:
    """Statements of a batch stand by themselves: some are made, and nobody hears which."""
    note()
    for statement in request["Statements"]:
        if around.rng.random() < 0.5:
            database.execute(statement)
    if around.rng.random() < 0.3:
        raise Died("in the middle of a batch")
    around.wait(TRIES * SILENCE_S)
    raise _lost(around.rng)


_SHAPED: Mapping[str, Callable[[Database, dict[str, Any], Surroundings, Callable[[], None]], Any]] = {
    "keys unprocessed": _unprocessed,
    "stale read": _stale,
    "statements refused": _statements_refused,
    "landed in part": _landed_in_part,
}

# --- the queue --------------------------------------------------------------------------------------------------


class FlakySQS:
    """A client of the queues of parked records."""

    def __init__(self, store: Callable[[str], None], waiting: Callable[[str], int], around: Surroundings) -> None:
        self._store, self._waiting, self._around = store, waiting, around

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: Sequence[str]) -> Any:
        """All that waits is told of as one attribute, the others are 0."""
        return _read(
            "get_queue_attributes",
            lambda: {
                "Attributes": dict.fromkeys(AttributeNames, "0") | {AttributeNames[0]: str(self._waiting(QueueUrl))}
            },
            self._around,
        )

    def send_message_batch(self, *, QueueUrl: str, Entries: Sequence[Mapping[str, str]]) -> Any:
        if not 1 <= len(Entries) <= MESSAGES_AT_ONCE or len({entry["Id"] for entry in Entries}) < len(Entries):
            raise dynamodb.error("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "SendMessageBatch")
        self._around.between()
        fault = self._around.draw("send_message_batch")

        def work() -> Any:
            for entry in Entries:
                self._store(entry["MessageBody"])
            return dynamodb.answer(Successful=[{"Id": entry["Id"]} for entry in Entries])

        if fault is None:
            return work()
        if fault in _REFUSE:
            _REFUSE[fault]("SendMessageBatch", self._around)
        if fault != "messages refused":
            return _after(fault, work, self._around)
        taken = [entry for entry in Entries[1:] if self._around.rng.random() < 0.5]
        for entry in taken:
            self._store(entry["MessageBody"])
        failed = [{"Id": e["Id"], "Code": "InternalError", "SenderFault": False} for e in Entries if e not in taken]
        return {"Successful": [{"Id": e["Id"]} for e in taken], "Failed": failed}


# --- the stream, as the reconciler reads it ---------------------------------------------------------------------


def _read(operation: str, work: Callable[[], Any], around: Surroundings) -> Any:
    around.between()
    fault = around.draw(operation)
    if fault is None:
        return work()
    if fault in _REFUSE:
        _REFUSE[fault](operation, around)
    return _after(fault, work, around)


class FlakyStreams:
    """A client of DynamoDB Streams.

    `parents` are the shards with their parents' ids; `records` reads some of a shard that the stream still has, after
    a number.
    """

    def __init__(
        self,
        parents: Callable[[], Mapping[str, str | None]],
        records: Callable[[str, int, int], Sequence[dict[str, Any]]],
        around: Surroundings,
    ) -> None:
        self._parents, self._records, self._around = parents, records, around

    def describe_stream(self, *, StreamArn: str, ExclusiveStartShardId: str | None = None) -> Any:
        def page() -> Any:
            parents = self._parents()
            ids = [shard_id for shard_id in parents if shard_id > (ExclusiveStartShardId or "")]
            shards = [
                {"ShardId": one, **({"ParentShardId": parent} if (parent := parents[one]) else {})}
                for one in sorted(ids)[:SHARDS_AT_ONCE]
            ]
            last = {"LastEvaluatedShardId": shards[-1]["ShardId"]} if len(ids) > SHARDS_AT_ONCE else {}
            return {"StreamDescription": {"Shards": shards, **last}}

        return _read("describe_stream", page, self._around)

    def get_shard_iterator(self, *, StreamArn: str, ShardId: str, ShardIteratorType: str) -> Any:
        if ShardIteratorType != "TRIM_HORIZON":
            raise ValueError(ShardIteratorType)
        return _read("get_shard_iterator", lambda: {"ShardIterator": f"{ShardId}/0"}, self._around)

    def get_records(self, *, ShardIterator: str, Limit: int) -> Any:
        """A page may be empty though more follows."""
        shard_id, _, number = ShardIterator.partition("/")

        def page() -> Any:
            taken = self._records(shard_id, int(number), self._around.rng.choice((0, 50, Limit, Limit)))
            last = taken[-1]["dynamodb"]["SequenceNumber"] if taken else number
            return {"Records": [_with_time(record) for record in taken], "NextShardIterator": f"{shard_id}/{last}"}

        return _read("get_records", page, self._around)


def _with_time(record: dict[str, Any]) -> dict[str, Any]:
    body = record["dynamodb"]
    made = dt.datetime.fromtimestamp(body["ApproximateCreationDateTime"], dt.UTC)
    return {**record, "dynamodb": {**body, "ApproximateCreationDateTime": made}}
