"""The table of counters: rows that hold a number and the marks of the lanes folded into it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from tallymark.errors import Unavailable
from tallymark.fold import Added, Deferred, Delta, Lane, Mark, Outcome, Passed, is_prunable
from tallymark.model import Count, Counter, Target

from . import keys
from .dynamodb import BATCH_STATEMENTS, TRANSIENT_CODES, Item, transient_as_unavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import BatchStatementRequestTypeDef, BatchStatementResponseTypeDef

MAX_SEQUENCE_NUMBER = 10**40 - 1  # DynamoDB Streams API Reference, StreamRecord: at most 40 digits

_SEQUENCE_BYTES = 17  # hold 40 digits
_TIME_BYTES = 4
_REMEMBERED_ROWS = 200_000
_PRUNED_AT_ONCE = 10


def pack_mark(mark: Mark) -> bytes:
    """21 bytes in the order of the sequence numbers: big-endian number, then the time."""
    return mark.sequence.to_bytes(_SEQUENCE_BYTES, "big") + mark.time_s.to_bytes(_TIME_BYTES, "big")


def unpack_mark(packed: bytes) -> Mark:
    return Mark(int.from_bytes(packed[:_SEQUENCE_BYTES], "big"), int.from_bytes(packed[_SEQUENCE_BYTES:], "big"))


@dataclass(slots=True)
class _KnownRow:
    """What this process saw of a row: which marks it holds, and those that nobody needs any more.

    Only a hint for choosing the cheaper statement; the conditions of the writes decide.
    """

    marks: set[str] = field(default_factory=set)
    prunable: dict[str, bytes] = field(default_factory=dict)


class CounterTable:
    """Adds deltas to rows, once each, and sums rows.

    A row that is known to hold the lane's mark is updated by PartiQL, 25 to a call. PartiQL has no
    upsert, so every other row takes an UpdateItem, several at a time (docs/decisions/0003).
    """

    def __init__(self, client: DynamoDBClient, table: str, executor: Executor, now_ms: Callable[[], int]) -> None:
        self._client, self._table, self._executor, self._now_ms = client, table, executor, now_ms
        self._known: OrderedDict[tuple[str, str], _KnownRow] = OrderedDict()
        self._lock = Lock()

    def ping(self) -> None:
        """Raises Unavailable if the table cannot be reached. Half a read unit."""
        with transient_as_unavailable():
            self._client.get_item(TableName=self._table, Key={"pk": {"S": "#ping"}, "sk": {"S": "#ping"}})

    # --- folding ----------------------------------------------------------------------------------

    def add(self, lane: Lane, deltas: Sequence[Delta], now_s: int) -> list[Outcome]:
        """What became of each delta. One write unit per row of up to 1 KB, also where the condition fails."""
        mark = keys.mark_name(lane.id)
        outcomes: dict[int, Outcome] = {}
        batched: list[int] = []
        single: list[int] = []
        for i, delta in enumerate(deltas):
            known = self._known.get(_row_key(lane, delta.counter))
            (batched if known and mark in known.marks and not known.prunable else single).append(i)
        chunks = [batched[i : i + BATCH_STATEMENTS] for i in range(0, len(batched), BATCH_STATEMENTS)]
        work: list[Callable[[], list[tuple[int, Outcome]]]] = [
            *(lambda chunk=chunk: self._add_batch(lane, mark, deltas, chunk) for chunk in chunks),
            *(lambda i=i: [(i, self._add_single(lane, mark, deltas[i], now_s))] for i in single),
        ]
        for done in [work[0]()] if len(work) == 1 else self._executor.map(lambda job: job(), work):
            outcomes.update(done)
        return [outcomes[i] for i in range(len(deltas))]

    def _add_batch(self, lane: Lane, mark: str, deltas: Sequence[Delta], chunk: list[int]) -> list[tuple[int, Outcome]]:
        statements = [self._update_statement(lane, mark, deltas[i]) for i in chunk]
        try:
            with transient_as_unavailable():
                responses = self._client.batch_execute_statement(Statements=statements)["Responses"]
        except Unavailable:
            return [(i, Deferred()) for i in chunk]
        return [
            (i, self._batch_outcome(lane, mark, deltas[i], response))
            for i, response in zip(chunk, responses, strict=True)
        ]

    def _update_statement(self, lane: Lane, mark: str, delta: Delta) -> BatchStatementRequestTypeDef:
        pk, sk = _row_key(lane, delta.counter)
        return {
            "Statement": (
                f'UPDATE "{self._table}" SET n = n + ? SET "{mark}" = ? '  # noqa: S608 (our own names)
                f'WHERE pk = ? AND sk = ? AND "{mark}" < ?'
            ),
            "Parameters": [
                {"N": str(delta.amount)},
                {"B": pack_mark(delta.mark)},
                {"S": pk},
                {"S": sk},
                {"B": _floor(delta)},
            ],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _batch_outcome(self, lane: Lane, mark: str, delta: Delta, response: BatchStatementResponseTypeDef) -> Outcome:
        if "Error" not in response:
            return Added()
        code = response["Error"].get("Code", "")
        if code == "ConditionalCheckFailed":
            return self._passed(lane, mark, delta, response["Error"].get("Item") or {})
        if code in TRANSIENT_CODES:
            return Deferred()
        raise RuntimeError(f"{code}: {response['Error'].get('Message')}")

    def _add_single(self, lane: Lane, mark: str, delta: Delta, now_s: int) -> Outcome:
        pk, sk = _row_key(lane, delta.counter)
        known = self._known.get((pk, sk))
        prunable = list(known.prunable.items())[:_PRUNED_AT_ONCE] if known else []
        # A lane's mark is absent until its first fold into the row, and below `first` before the next.
        condition = "(attribute_not_exists(#mark) OR #mark < :first)"
        update = "ADD n :amount SET #mark = :last"
        names = {"#mark": mark}
        values: dict[str, Any] = {
            ":amount": {"N": str(delta.amount)},
            ":first": {"B": _floor(delta)},
            ":last": {"B": pack_mark(delta.mark)},
        }
        if prunable:
            # Only the value that was seen to be too old may go: its lane could be moving it right now.
            update += " REMOVE " + ", ".join(f"#old{j}" for j in range(len(prunable)))
            condition += "".join(f" AND #old{j} = :old{j}" for j in range(len(prunable)))
            names |= {f"#old{j}": name for j, (name, _) in enumerate(prunable)}
            values |= {f":old{j}": {"B": packed} for j, (_, packed) in enumerate(prunable)}
        try:
            with transient_as_unavailable():
                answer = self._client.update_item(
                    TableName=self._table,
                    Key={"pk": {"S": pk}, "sk": {"S": sk}},
                    UpdateExpression=update,
                    ConditionExpression=condition,
                    ExpressionAttributeNames=names,
                    ExpressionAttributeValues=values,
                    ReturnValues="ALL_NEW",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
        except self._client.exceptions.ConditionalCheckFailedException as error:
            return self._passed(lane, mark, delta, cast(Item, error.response.get("Item") or {}))
        except Unavailable:
            return Deferred()
        self._remember((pk, sk), answer["Attributes"], own=mark, now_s=now_s)
        return Added()

    def _passed(self, lane: Lane, mark: str, delta: Delta, item: Item) -> Passed:
        with self._lock:
            self._known.pop(_row_key(lane, delta.counter), None)
        return Passed(unpack_mark(item[mark]["B"]) if mark in item else None)

    def _remember(self, row: tuple[str, str], item: Any, *, own: str, now_s: int) -> None:
        packed = {name: bytes(value["B"]) for name, value in item.items() if name.startswith(keys.MARK_PREFIX)}
        prunable = {n: p for n, p in packed.items() if n != own and is_prunable(unpack_mark(p), now_s)}
        with self._lock:
            self._known[row] = _KnownRow(set(packed), prunable)
            self._known.move_to_end(row)
            if len(self._known) > _REMEMBERED_ROWS:
                self._known.popitem(last=False)

    def marks(self, lane: Lane, counters: Sequence[Counter]) -> list[tuple[bool, Mark | None]]:
        """Per counter: whether the lane's row exists, and its mark, read consistently."""
        return list(self._executor.map(lambda counter: self._mark(lane, counter), counters))

    def _mark(self, lane: Lane, counter: Counter) -> tuple[bool, Mark | None]:
        mark = keys.mark_name(lane.id)
        pk, sk = _row_key(lane, counter)
        with transient_as_unavailable():
            answer = self._client.get_item(
                TableName=self._table, Key={"pk": {"S": pk}, "sk": {"S": sk}}, ConsistentRead=True
            )
        item = answer.get("Item")
        if item is None:
            return False, None
        return True, unpack_mark(item[mark]["B"]) if mark in item else None

    # --- reading ----------------------------------------------------------------------------------

    def counts(self, targets: Sequence[Target], *, consistent: bool) -> list[Count | None]:
        """Per target the sum of its rows, by one Query each; None where the store did not answer."""

        def count(target: Target) -> Count | None:
            try:
                return self.count(target, consistent=consistent)
            except Unavailable:
                return None

        return [count(targets[0])] if len(targets) == 1 else list(self._executor.map(count, targets))

    def count(self, target: Target, *, consistent: bool) -> Count:
        """The sum of the target's rows: one Query, half a read unit (consistent: one) per 4 KB of rows."""
        as_of_ms = self._now_ms()
        by_reaction: dict[str, int] = {}
        start: dict[str, Any] = {}
        while True:
            with transient_as_unavailable():
                answer = self._client.query(
                    TableName=self._table,
                    KeyConditionExpression="pk = :target AND begins_with(sk, :metric)",
                    ExpressionAttributeValues={
                        ":target": {"S": keys.target_key(target)},
                        ":metric": {"S": keys.LIKE_METRIC},
                    },
                    ProjectionExpression="sk, n",
                    ConsistentRead=consistent,
                    **start,
                )
            for item in answer["Items"]:
                reaction, _ = keys.parse_counter_sort_key(item["sk"]["S"])
                by_reaction[reaction] = by_reaction.get(reaction, 0) + int(item["n"]["N"])
            if "LastEvaluatedKey" not in answer:
                return Count(by_reaction, as_of_ms)
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


def _row_key(lane: Lane, counter: Counter) -> tuple[str, str]:
    return keys.target_key(counter.target), keys.counter_sort_key(counter, lane.row)


def _floor(delta: Delta) -> bytes:
    """Above every mark that is below the delta's first change, at or below every other."""
    return pack_mark(Mark(delta.first_sequence, 0))
