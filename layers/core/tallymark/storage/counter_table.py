"""The table of counters: rows that hold a number and the marks of the lanes folded into it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from tallymark import series
from tallymark.errors import Unavailable
from tallymark.fold import Added, Deferred, Delta, Lane, Mark, Outcome, Passed, is_prunable
from tallymark.model import Count, Counter, HourlyMetric, Metric, Target, day_label, day_of_label, slots_of
from tallymark.storage.dynamodb import (
    BATCH_GET_KEYS,
    BATCH_STATEMENTS,
    TRANSIENT_CODES,
    Item,
    batch_get,
    ping,
    query,
    spread,
    transient_as_unavailable,
)

from . import keys

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import BatchStatementRequestTypeDef, BatchStatementResponseTypeDef

K = TypeVar("K")
V = TypeVar("V")

_SEQUENCE_BYTES = 17  # hold 40 digits
_TIME_BYTES = 4
_REMEMBERED_ROWS = 50_000  # about 25 MB
_PRUNED_AT_ONCE = 10


def pack_mark(mark: Mark) -> bytes:
    """21 bytes in the order of the sequence numbers: big-endian number, then the time."""
    return mark.sequence.to_bytes(_SEQUENCE_BYTES, "big") + mark.time_s.to_bytes(_TIME_BYTES, "big")


def unpack_mark(packed: bytes) -> Mark:
    return Mark(int.from_bytes(packed[:_SEQUENCE_BYTES], "big"), int.from_bytes(packed[_SEQUENCE_BYTES:], "big"))


@dataclass(frozen=True, slots=True)
class _Row:
    """What this process knows of a row, for one lane.

    A hint that chooses the statement; its condition decides. A mark seen once may only have grown since.
    """

    exists: bool
    mark: bytes | None = None
    prunable: tuple[tuple[str, bytes], ...] = ()


class CounterTable:
    """Adds deltas to rows, once each, and sums rows.

    PartiQL writes 25 rows to a call at a tenth of UpdateItem's CPU, but knows no upsert. So rows that this
    process has not seen are read first, 100 to a call, and then inserted or updated (docs/decisions/0003).
    """

    def __init__(
        self, client: DynamoDBClient, table: str, executor: Executor, now_ms: Callable[[], int], series_days: int
    ) -> None:
        self._client, self._table, self._executor, self._now_ms = client, table, executor, now_ms
        self._series_days = series_days
        self._known: OrderedDict[tuple[str, str, str], _Row] = OrderedDict()
        self._lock = Lock()

    def ping(self) -> None:
        """Raises Unavailable if the table cannot be reached. Half a read unit."""
        ping(self._client, self._table)

    # --- folding ----------------------------------------------------------------------------------

    def add(self, lane: Lane, deltas: Sequence[Delta], now_s: int) -> list[Outcome]:
        """What became of each delta. One write unit per row of up to 1 KB, also where the condition fails.

        Rows that this process meets for the first time cost half a read unit per 4 KB beside it.
        """
        mark = keys.mark_name(lane.id)
        try:
            rows = self._rows(lane, mark, [delta.counter for delta in deltas], now_s)
        except Unavailable:
            return [Deferred()] * len(deltas)
        outcomes: list[Outcome] = [Passed(unpack_mark(row.mark)) if row.mark else Deferred() for row in rows]
        to_write = [i for i, (row, d) in enumerate(zip(rows, deltas, strict=True)) if not _holds(row, d)]
        plain = [i for i in to_write if not rows[i].prunable]
        chunks = [plain[i : i + BATCH_STATEMENTS] for i in range(0, len(plain), BATCH_STATEMENTS)]
        chunks += [[i] for i in to_write if rows[i].prunable]

        def write(chunk: list[int]) -> list[Outcome]:
            writes = [(lane, mark, deltas[i], rows[i]) for i in chunk]
            return [self._write_and_prune(*writes[0])] if writes[0][3].prunable else self._write(writes)

        for chunk, done in zip(chunks, spread(self._executor, write, chunks), strict=True):
            for i, outcome in zip(chunk, done, strict=True):
                outcomes[i] = outcome
        return outcomes

    def _write(self, writes: Sequence[tuple[Lane, str, Delta, _Row]]) -> list[Outcome]:
        try:
            with transient_as_unavailable():
                answer = self._client.batch_execute_statement(Statements=[self._statement(*write) for write in writes])
        except Unavailable:
            return [Deferred()] * len(writes)
        return [
            self._outcome(*write[:3], response) for write, response in zip(writes, answer["Responses"], strict=True)
        ]

    def _statement(self, lane: Lane, mark: str, delta: Delta, row: _Row) -> BatchStatementRequestTypeDef:
        pk, sk = _row_key(lane, delta.counter)
        amounts, last = delta.amounts, {"B": pack_mark(delta.mark)}
        if not row.exists:
            # All slots at once, for an UPDATE of PartiQL adds to none that is missing.
            slots = {slot: amounts.get(slot, 0) for slot in delta.counter.slots} | self._ttl(delta.counter)
            names = "".join(f", '{name}': ?" for name in slots)
            return {
                "Statement": f"INSERT INTO \"{self._table}\" VALUE {{'pk': ?, 'sk': ?{names}, '{mark}': ?}}",
                "Parameters": [{"S": pk}, {"S": sk}, *({"N": str(number)} for number in slots.values()), last],
            }
        # Only a mark below the delta's first change lets it in; a lane new to the row has none.
        fresh = f'"{mark}" IS MISSING' if row.mark is None else f'"{mark}" < ?'
        floor = [] if row.mark is None else [{"B": _floor(delta)}]
        additions = "".join(f"SET {slot} = {slot} + ? " for slot in amounts)
        return {
            "Statement": (f'UPDATE "{self._table}" {additions}SET "{mark}" = ? WHERE pk = ? AND sk = ? AND {fresh}'),
            "Parameters": [*({"N": str(n)} for n in amounts.values()), last, {"S": pk}, {"S": sk}, *floor],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _write_and_prune(self, lane: Lane, mark: str, delta: Delta, row: _Row) -> Outcome:
        """Adds the delta and removes marks that nobody needs any more, in one UpdateItem."""
        pk, sk = _row_key(lane, delta.counter)
        amounts = delta.amounts
        old = {f"old{j}": mark_of_old for j, mark_of_old in enumerate(row.prunable[:_PRUNED_AT_ONCE])}
        fresh = "(attribute_not_exists(#mark) OR #mark < :first)"
        # Only the value that was seen to be too old may go: its lane could be moving it right now.
        unmoved = "".join(f" AND #{alias} = :{alias}" for alias in old)
        try:
            with transient_as_unavailable():
                self._client.update_item(
                    TableName=self._table,
                    Key={"pk": {"S": pk}, "sk": {"S": sk}},
                    UpdateExpression="ADD "
                    + ", ".join(f"{slot} :{slot}" for slot in amounts)
                    + " SET #mark = :last REMOVE "
                    + ", ".join(f"#{alias}" for alias in old),
                    ConditionExpression=fresh + unmoved,
                    ExpressionAttributeNames={"#mark": mark, **{f"#{alias}": name for alias, (name, _) in old.items()}},
                    ExpressionAttributeValues={
                        **{f":{slot}": {"N": str(amount)} for slot, amount in amounts.items()},
                        ":first": {"B": _floor(delta)},
                        ":last": {"B": pack_mark(delta.mark)},
                        **{f":{alias}": {"B": packed} for alias, (_, packed) in old.items()},
                    },
                )
        except self._client.exceptions.ConditionalCheckFailedException:
            self._forget((pk, sk, mark))  # the next try reads the row and finds out which condition it was
            return Passed(None)
        except Unavailable:
            return Deferred()
        left = row.prunable[_PRUNED_AT_ONCE:]
        self._remember((pk, sk, mark), _Row(exists=True, mark=pack_mark(delta.mark), prunable=left))
        return Added()

    def _ttl(self, counter: Counter) -> dict[str, int]:
        expiry_s = series.expiry_s(counter, self._series_days)
        return {} if expiry_s is None else {"ttl": expiry_s}

    def _outcome(self, lane: Lane, mark: str, delta: Delta, response: BatchStatementResponseTypeDef) -> Outcome:
        known = (*_row_key(lane, delta.counter), mark)
        if "Error" not in response:
            self._remember(known, _Row(exists=True, mark=pack_mark(delta.mark)))
            return Added()
        self._forget(known)
        code = response["Error"].get("Code", "")
        if code == "ConditionalCheckFailed":
            item: Item = response["Error"].get("Item") or {}
            return Passed(unpack_mark(item[mark]["B"]) if mark in item else None)
        if code == "DuplicateItem":
            return Passed(None)
        if code in TRANSIENT_CODES:
            return Deferred()
        raise RuntimeError(f"{code}: {response['Error'].get('Message')}")

    # --- what is known of rows --------------------------------------------------------------------

    def _rows(self, lane: Lane, mark: str, counters: Sequence[Counter], now_s: int) -> list[_Row]:
        """The rows of one lane, read where this process does not know them."""
        identities = [(*_row_key(lane, counter), mark) for counter in counters]
        rows = {key: row for key in identities if (row := self._known.get(key)) is not None}
        unknown = [key for key in identities if key not in rows]
        parts = [unknown[i : i + BATCH_GET_KEYS] for i in range(0, len(unknown), BATCH_GET_KEYS)]
        for part, items in zip(parts, spread(self._executor, self._read, parts), strict=True):
            rows |= {key: _row(items.get(key[:2]), mark, now_s) for key in part}
        return [rows[key] for key in identities]

    def _read(self, rows: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str], Item]:
        found = batch_get(self._client, self._table, [{"pk": {"S": pk}, "sk": {"S": sk}} for pk, sk, _ in rows])
        return {(item["pk"]["S"], item["sk"]["S"]): item for item in found}

    def _remember(self, key: tuple[str, str, str], row: _Row) -> None:
        with self._lock:
            self._known[key] = row
            self._known.move_to_end(key)
            if len(self._known) > _REMEMBERED_ROWS:
                self._known.popitem(last=False)

    def _forget(self, key: tuple[str, str, str]) -> None:
        with self._lock:
            self._known.pop(key, None)

    def marks(self, lane: Lane, counters: Sequence[Counter]) -> list[tuple[bool, Mark | None]]:
        """Per counter: whether the lane's row exists, and its mark, read consistently."""
        mark = keys.mark_name(lane.id)
        wanted = [_row_key(lane, counter) for counter in counters]
        found: dict[tuple[str, str], Item] = {}
        for i in range(0, len(wanted), BATCH_GET_KEYS):
            part = [{"pk": {"S": pk}, "sk": {"S": sk}} for pk, sk in wanted[i : i + BATCH_GET_KEYS]]
            for item in batch_get(self._client, self._table, part, consistent=True):
                found[item["pk"]["S"], item["sk"]["S"]] = item
        items = [found.get(key) for key in wanted]
        return [
            (item is not None, unpack_mark(item[mark]["B"]) if item is not None and mark in item else None)
            for item in items
        ]

    # --- reading ----------------------------------------------------------------------------------

    def counts(self, targets: Sequence[Target], *, consistent: bool) -> list[Count | None]:
        """Per target the sum of its rows, by one Query each; None where the store did not answer."""
        return self.each(targets, lambda target: self.count(target, consistent=consistent))

    def count(self, target: Target, *, consistent: bool) -> Count:
        """The likes of a target: one Query, half a read unit (consistent: one) per 4 KB of rows."""
        as_of_ms = self._now_ms()
        by_reaction: dict[str, int] = {}
        for label, numbers in self._rows_from(target, "like", consistent=consistent):
            by_reaction[label] = by_reaction.get(label, 0) + numbers["n"]
        return Count(by_reaction, as_of_ms)

    def total(self, counter: Counter, *, consistent: bool = False) -> dict[str, int]:
        """The sum of each slot of a counter that has no other labels beside it; units as for count()."""
        total = dict.fromkeys(counter.slots, 0)
        for _, numbers in self._rows_from(counter.target, counter.metric, consistent=consistent):
            total = {slot: total[slot] + numbers.get(slot, 0) for slot in total}
        return total

    def days(self, target: Target, metric: HourlyMetric, first: int, last: int) -> dict[int, dict[str, int]]:
        """The slots of each day from first to last (days since the epoch), where anything was counted.

        One Query, half a read unit per 4 KB: a day has one row per lane, of about 300 bytes for likes, 500 for views.
        """
        found: dict[int, dict[str, int]] = {}
        for label, numbers in self._rows_from(target, metric, between=(day_label(first), day_label(last))):
            of_day = found.setdefault(day_of_label(label), {})
            for slot, number in numbers.items():
                of_day[slot] = of_day.get(slot, 0) + number
        return found

    def each(self, asked: Sequence[K], read: Callable[[K], V]) -> list[V | None]:
        """What reading each gives, all at the same time; None where the store did not answer."""

        def one(key: K) -> V | None:
            try:
                return read(key)
            except Unavailable:
                return None

        return spread(self._executor, one, asked)

    def _rows_from(
        self, target: Target, metric: Metric, *, between: tuple[str, str] | None = None, consistent: bool = False
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Label and numbers of each row of a metric, or of those whose labels lie between two, both included."""
        first, last = keys.row_range(metric, between)
        values: Item = {":target": {"S": keys.target_key(target)}, ":first": {"S": first}, ":last": {"S": last}}
        condition = "pk = :target AND sk BETWEEN :first AND :last"
        for item in query(self._client, self._table, condition, values, consistent=consistent):
            label, _ = keys.parse_counter_sort_key(item["sk"]["S"])
            yield label, {name: int(item[name]["N"]) for name in slots_of(metric) if name in item}


def _row_key(lane: Lane, counter: Counter) -> tuple[str, str]:
    return keys.target_key(counter.target), keys.counter_sort_key(counter, lane.row)


def _row(item: Item | None, mark: str, now_s: int) -> _Row:
    """What a stored row says of a lane, and the marks of other lanes that nobody needs any more."""
    if item is None:
        return _Row(exists=False)
    marks = {name: bytes(value["B"]) for name, value in item.items() if name.startswith(keys.MARK_PREFIX)}
    prunable = [(n, p) for n, p in marks.items() if n != mark and is_prunable(unpack_mark(p), now_s)]
    return _Row(exists=True, mark=marks.get(mark), prunable=tuple(prunable))


def _holds(row: _Row, delta: Delta) -> bool:
    """Whether the row is known to hold some of the delta, so that writing it whole would fail."""
    return row.mark is not None and row.mark >= _floor(delta)


def _floor(delta: Delta) -> bytes:
    """Above every mark that is below the delta's first change, at or below every other."""
    return pack_mark(Mark(delta.first_sequence, 0))
