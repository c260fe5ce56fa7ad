"""DynamoDB in memory, at the level of the boto3 client: the operations and forms that our adapters use, no others.

What it does not know raises at once, so that a new form in an adapter cannot pass unseen. It answers without
faults and without delay; faults.py puts those around it. tests/integration/test_simulated_engine.py compares its
answers with the emulator's.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import botocore.session
from botocore.errorfactory import ClientExceptionsFactory

from . import expressions
from .expressions import Invalid, Item, Parsed, Scope, Value, plain

Key = tuple[str, ...]  # the values of the key attributes
Listener = Callable[[str, Key, Item | None, Item | None], None]  # table, key, old, new

BATCH_STATEMENTS = 25  # DynamoDB API Reference, BatchExecuteStatement
BATCH_GET_KEYS = 100  # DynamoDB API Reference, BatchGetItem
TRANSACTION_ITEMS = 100  # DynamoDB API Reference, TransactWriteItems

_CONDITION_FAILED = "The conditional request failed"
_NO_ITEM: Item = {}


@cache
def exceptions() -> Any:
    """The error classes of a real client of DynamoDB, such as ConditionalCheckFailedException."""
    return ClientExceptionsFactory().create_client_exceptions(
        botocore.session.get_session().get_service_model("dynamodb")
    )


def error(code: str, operation: str, message: str = "", status: int = 400, **more: Any) -> Exception:
    """The ClientError that boto3 raises for an error code, of the code's own class."""
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": 0},
        **more,
    }
    made: Exception = exceptions().from_code(code)(response, operation)
    return made


class ConditionFailed(Exception):
    """A condition does not hold. The item is what is there."""

    def __init__(self, item: Item | None) -> None:
        super().__init__(_CONDITION_FAILED)
        self.item = item


@dataclass(frozen=True, slots=True)
class Index:
    """A secondary index that holds keys alone. A local one can be read consistently."""

    partition: str
    sort: str
    local: bool


@dataclass
class Table:
    """Items by key and by partition, and what the last write of each replaced."""

    name: str
    key: tuple[str, ...]  # partition key, then the sort key if there is one
    indexes: Mapping[str, Index] = field(default_factory=dict)
    items: dict[Key, Item] = field(default_factory=dict)
    before: dict[Key, Item | None] = field(default_factory=dict)
    partitions: defaultdict[str, dict[Key, Item]] = field(default_factory=lambda: defaultdict(dict))

    def key_of(self, item: Item) -> Key:
        """The key; Invalid if an attribute is missing or is no text."""
        try:
            key = tuple([item[attribute]["S"] for attribute in self.key])
        except KeyError:
            raise Invalid(f"a key attribute of {self.key} is missing or is no text: {sorted(item)}") from None
        if "" in key:
            raise Invalid(f"an empty key attribute of {self.key}")
        return key

    def exact_key(self, key: Item) -> Key:
        if len(key) != len(self.key):
            raise Invalid(f"the key of {self.name} is {self.key}")
        return self.key_of(key)


class Database:
    """Tables, and one method per operation that our adapters call."""

    def __init__(self, tables: Iterable[Table], listener: Listener | None = None) -> None:
        self._tables = {table.name: table for table in tables}
        self._listener = listener
        self._done: set[str] = set()  # tokens of transactions

    @property
    def exceptions(self) -> Any:
        return exceptions()

    def table(self, name: str) -> Table:
        try:
            return self._tables[name]
        except KeyError:
            raise Invalid(f"there is no table {name!r}") from None

    # --- one write ------------------------------------------------------------------------------------------

    def _store(self, table: Table, key: Key, new: Item | None) -> None:
        old = table.items.get(key)
        if new is None:
            table.items.pop(key, None)
            table.partitions[key[0]].pop(key, None)
        else:
            table.items[key] = new
            table.partitions[key[0]][key] = new
        table.before[key] = old
        if self._listener is not None:
            self._listener(table.name, key, old, new)

    def _check(self, condition: str | None, old: Item | None, names: Any, values: Any, used: frozenset[str]) -> None:
        """ConditionFailed if the condition does not hold; Invalid if placeholders are unknown or left over."""
        parsed = expressions.condition(condition) if condition else None
        _match_placeholders(names, values, used | (parsed.placeholders if parsed else frozenset()))
        if parsed is not None and not parsed.holds(Scope(old or _NO_ITEM, names, values)):
            raise ConditionFailed(old)

    def _put(self, table: str, item: Item, condition: str | None = None, names: Any = None, values: Any = None) -> None:
        place = self.table(table)
        key = place.key_of(item)
        self._check(condition, place.items.get(key), names or {}, values or {}, frozenset())
        self._store(place, key, dict(item))

    def _delete(self, table: str, key: Item, condition: str | None, names: Any, values: Any) -> Item | None:
        place = self.table(table)
        exact = place.exact_key(key)
        old = place.items.get(exact)
        self._check(condition, old, names or {}, values or {}, frozenset())
        if old is not None:
            self._store(place, exact, None)
        return old

    def _update(
        self, table: str, key: Item, expression: str, condition: str | None, names: Any, values: Any
    ) -> tuple[Item | None, Item]:
        place = self.table(table)
        exact = place.exact_key(key)
        old = place.items.get(exact)
        names, values = names or {}, values or {}
        update = expressions.update(expression)
        self._check(condition, old, names, values, update.placeholders)
        new = update.apply(Scope(old if old is not None else key, names, values))
        if place.key_of(new) != exact:
            raise Invalid("an update of a key")
        self._store(place, exact, new)
        return old, new

    # --- single items ---------------------------------------------------------------------------------------

    def get_item(self, *, TableName: str, Key: Item, ConsistentRead: bool = False) -> dict[str, Any]:
        table = self.table(TableName)
        found = table.items.get(table.exact_key(Key))
        return answer() if found is None else answer(Item=dict(found))

    def put_item(
        self,
        *,
        TableName: str,
        Item: Item,
        ConditionExpression: str | None = None,
        ExpressionAttributeNames: Any = None,
        ExpressionAttributeValues: Any = None,
        ReturnValuesOnConditionCheckFailure: str = "NONE",
    ) -> dict[str, Any]:
        with _client_errors("PutItem", ReturnValuesOnConditionCheckFailure):
            self._put(TableName, Item, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues)
        return answer()

    def delete_item(
        self,
        *,
        TableName: str,
        Key: Item,
        ConditionExpression: str | None = None,
        ExpressionAttributeNames: Any = None,
        ExpressionAttributeValues: Any = None,
        ReturnValuesOnConditionCheckFailure: str = "NONE",
    ) -> dict[str, Any]:
        with _client_errors("DeleteItem", ReturnValuesOnConditionCheckFailure):
            self._delete(TableName, Key, ConditionExpression, ExpressionAttributeNames, ExpressionAttributeValues)
        return answer()

    def update_item(
        self,
        *,
        TableName: str,
        Key: Item,
        UpdateExpression: str,
        ConditionExpression: str | None = None,
        ExpressionAttributeNames: Any = None,
        ExpressionAttributeValues: Any = None,
        ReturnValues: str = "NONE",
        ReturnValuesOnConditionCheckFailure: str = "NONE",
    ) -> dict[str, Any]:
        with _client_errors("UpdateItem", ReturnValuesOnConditionCheckFailure):
            old, new = self._update(
                TableName,
                Key,
                UpdateExpression,
                ConditionExpression,
                ExpressionAttributeNames,
                ExpressionAttributeValues,
            )
        match ReturnValues:
            case "NONE":
                return answer()
            case "ALL_OLD":
                return answer(**({"Attributes": dict(old)} if old is not None else {}))
            case "ALL_NEW":
                return answer(Attributes=dict(new))
        raise Invalid(f"ReturnValues {ReturnValues}")

    # --- many items -----------------------------------------------------------------------------------------

    def batch_get_item(self, *, RequestItems: Mapping[str, Any]) -> dict[str, Any]:
        answers: dict[str, list[Item]] = {}
        for name, wanted in RequestItems.items():
            if unknown := set(wanted) - {"Keys", "ConsistentRead"}:
                raise Invalid(f"BatchGetItem with {unknown}")
            table = self.table(name)
            exact = [table.exact_key(key) for key in wanted["Keys"]]
            if not 1 <= len(exact) <= BATCH_GET_KEYS or len(set(exact)) < len(exact):
                raise error("ValidationException", "BatchGetItem", "too many keys, none, or one twice")
            answers[name] = [dict(item) for key in exact if (item := table.items.get(key)) is not None]
        return answer(Responses=answers, UnprocessedKeys={})

    def batch_execute_statement(self, *, Statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not 1 <= len(Statements) <= BATCH_STATEMENTS:
            raise error("ValidationException", "BatchExecuteStatement", f"{len(Statements)} statements")
        return answer(Responses=[self.execute(statement) for statement in Statements])

    def execute(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of one statement of a batch: they stand or fail each by itself."""
        statement = expressions.statement(request["Statement"])
        parameters = request["Parameters"]
        if len(parameters) != statement.parameters:
            raise Invalid(f"{len(parameters)} parameters for {request['Statement']}")
        table = self.table(statement.table)
        if statement.verb == "INSERT":
            item = dict(zip(statement.attributes, parameters, strict=True))
            key = table.key_of(item)
            if key in table.items:
                return _refused("DuplicateItem", "Duplicate primary key exists in table", table.name)
            self._store(table, key, item)
            return {"TableName": table.name}
        bound = {attribute: parameters[position] for attribute, position in statement.equals}
        key = table.key_of(bound)
        old = table.items.get(key)
        others = [(name, value) for name, value in bound.items() if name not in table.key]
        holds = old is not None and all(expressions.compare("=", old.get(name), value) for name, value in others)
        if old is None or not holds or not statement.holds(old, parameters):
            if statement.verb == "DELETE" and old is None:
                return {"TableName": table.name}
            shown = old if request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" else None
            return _refused("ConditionalCheckFailed", _CONDITION_FAILED, table.name, shown)
        if statement.verb == "DELETE":
            self._store(table, key, None)
            return {"TableName": table.name, **({"Item": dict(old)} if statement.returning else {})}
        self._store(table, key, statement.updated(old, parameters))
        return {"TableName": table.name}

    def transact_write_items(
        self, *, TransactItems: Sequence[Mapping[str, Any]], ClientRequestToken: str | None = None
    ) -> dict[str, Any]:
        if not 1 <= len(TransactItems) <= TRANSACTION_ITEMS:
            raise error("ValidationException", "TransactWriteItems", f"{len(TransactItems)} items")
        if ClientRequestToken is not None and ClientRequestToken in self._done:
            return answer()
        actions = [next(iter(item.items())) for item in TransactItems]
        reasons = [self._reason(kind, action) for kind, action in actions]
        if any(reason["Code"] != "None" for reason in reasons):
            codes = ", ".join(reason["Code"] for reason in reasons)
            raise error(
                "TransactionCanceledException",
                "TransactWriteItems",
                f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
                CancellationReasons=reasons,
            )
        for kind, action in actions:
            self._act(kind, action)
        if ClientRequestToken is not None:
            self._done.add(ClientRequestToken)
        return answer()

    def _reason(self, kind: str, action: Mapping[str, Any]) -> dict[str, Any]:
        """Why this part of a transaction would fail; the code None if it would not."""
        table = self.table(action["TableName"])
        key = table.key_of(action["Item"]) if kind == "Put" else table.exact_key(action["Key"])
        old = table.items.get(key)
        used = expressions.update(action["UpdateExpression"]).placeholders if kind == "Update" else frozenset()
        try:
            self._check(
                action.get("ConditionExpression"),
                old,
                action.get("ExpressionAttributeNames", {}),
                action.get("ExpressionAttributeValues", {}),
                used,
            )
        except ConditionFailed:
            shown = old is not None and action.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
            return {
                "Code": "ConditionalCheckFailed",
                "Message": _CONDITION_FAILED,
                **({"Item": dict(old or {})} if shown else {}),
            }
        return {"Code": "None"}

    def _act(self, kind: str, action: Mapping[str, Any]) -> None:
        names, values = action.get("ExpressionAttributeNames"), action.get("ExpressionAttributeValues")
        condition = action.get("ConditionExpression")
        match kind:
            case "Put":
                self._put(action["TableName"], action["Item"], condition, names, values)
            case "Update":
                self._update(action["TableName"], action["Key"], action["UpdateExpression"], condition, names, values)
            case "Delete":
                self._delete(action["TableName"], action["Key"], condition, names, values)
            case "ConditionCheck":
                pass  # checked with all others before anything was written
            case _:
                raise Invalid(f"no action of a transaction: {kind}")

    # --- lists ----------------------------------------------------------------------------------------------

    def query(
        self,
        *,
        TableName: str,
        KeyConditionExpression: str,
        ExpressionAttributeValues: Mapping[str, Value],
        ExpressionAttributeNames: Mapping[str, str] | None = None,
        FilterExpression: str | None = None,
        ProjectionExpression: str | None = None,
        IndexName: str | None = None,
        ScanIndexForward: bool = True,
        ConsistentRead: bool = False,
        Limit: int | None = None,
        ExclusiveStartKey: Item | None = None,
    ) -> dict[str, Any]:
        table = self.table(TableName)
        names = ExpressionAttributeNames or {}
        keys, filters = expressions.condition(KeyConditionExpression), _filter(FilterExpression)
        _match_placeholders(names, ExpressionAttributeValues, keys.placeholders | filters.placeholders)
        index = None if IndexName is None else table.indexes[IndexName]
        if index is not None and not index.local and ConsistentRead:
            raise error("ValidationException", "Query", "Consistent reads are not supported on global indexes")
        partition = index.partition if index is not None else table.key[0]
        bound = {names.get(name, name): operand for name, operand in keys.equals}
        if partition not in bound:
            raise Invalid(f"the key condition does not bind {partition}: {KeyConditionExpression}")
        scope = Scope(_NO_ITEM, names, ExpressionAttributeValues)
        wanted = bound[partition](scope)
        if wanted is None or "S" not in wanted:
            raise Invalid(f"a partition is named by a text, not by {wanted}")
        position = _position(table, index)
        found = [
            item
            for item in _entries(table, index, wanted["S"])
            if keys.holds(Scope(item, names, ExpressionAttributeValues))
        ]
        found.sort(key=position, reverse=not ScanIndexForward)
        if ExclusiveStartKey is not None:
            start = position(ExclusiveStartKey)
            found = [i for i in found if (position(i) > start if ScanIndexForward else position(i) < start)]
        return _page(table, index, found, Limit, filters, names, ExpressionAttributeValues, ProjectionExpression)

    def scan(
        self,
        *,
        TableName: str,
        IndexName: str | None = None,
        ExpressionAttributeNames: Mapping[str, str] | None = None,
        ExpressionAttributeValues: Mapping[str, Value] | None = None,
        FilterExpression: str | None = None,
        ProjectionExpression: str | None = None,
        ConsistentRead: bool = False,
        Limit: int | None = None,
        ExclusiveStartKey: Item | None = None,
    ) -> dict[str, Any]:
        table = self.table(TableName)
        names, values, filters = (
            ExpressionAttributeNames or {},
            ExpressionAttributeValues or {},
            _filter(FilterExpression),
        )
        index = None if IndexName is None else table.indexes[IndexName]
        if index is not None and not index.local and ConsistentRead:
            raise error("ValidationException", "Scan", "Consistent reads are not supported on global indexes")
        order = _scattered(table, index)
        found = sorted(_entries(table, index, None), key=order)
        if ExclusiveStartKey is not None:
            start = order(ExclusiveStartKey)
            found = [item for item in found if order(item) > start]
        return _page(table, index, found, Limit, filters, names, values, ProjectionExpression)


# --- lists ------------------------------------------------------------------------------------------------------

_ALL = Parsed(lambda _: True, frozenset())


def _filter(expression: str | None) -> Parsed:
    return _ALL if expression is None else expressions.condition(expression)


def _entries(table: Table, index: Index | None, partition: str | None) -> list[Item]:
    """The items of one partition, or of all; of an index, their keys."""
    if index is None or (index.local and partition is not None):
        items = list(table.items.values() if partition is None else table.partitions[partition].values())
        if index is None:
            return items
    else:
        items = list(table.items.values())
    kept = dict.fromkeys((*table.key, index.partition, index.sort))
    return [
        {name: item[name] for name in kept}
        for item in items
        if index.sort in item and (partition is None or item.get(index.partition) == {"S": partition})
    ]


def _position(table: Table, index: Index | None) -> Callable[[Item], tuple[Any, ...]]:
    """What items are ordered by within a partition."""
    if index is not None:
        return lambda item: (plain(item[index.sort]), table.key_of(item))
    return lambda item: table.key_of(item)[1:]


def _scattered(table: Table, index: Index | None) -> Callable[[Item], tuple[Any, ...]]:
    """The order of a scan: partitions by hash, in no order that a caller could rely on."""
    position = _position(table, index)
    partition = index.partition if index is not None else table.key[0]
    return lambda item: (hashlib.md5(item[partition]["S"].encode()).digest(), position(item))  # noqa: S324


def _page(
    table: Table,
    index: Index | None,
    found: list[Item],
    limit: int | None,
    filters: Parsed,
    names: Mapping[str, str],
    values: Mapping[str, Value],
    projection: str | None,
) -> dict[str, Any]:
    """One page. The limit counts what is read, before the filter; a full page names its last key."""
    page = found if limit is None else found[:limit]
    kept = [item for item in page if filters.holds(Scope(item, names, values))]
    items = [dict(item) for item in kept]
    if projection is not None:
        attributes = [names.get(name.strip(), name.strip()) for name in projection.split(",")]
        items = [{name: item[name] for name in attributes if name in item} for item in kept]
    made = answer(Items=items, Count=len(items), ScannedCount=len(page))
    if limit is not None and page and len(page) == limit:
        last = dict.fromkeys((*table.key, *((index.partition, index.sort) if index is not None else ())))
        made["LastEvaluatedKey"] = {name: page[-1][name] for name in last}
    return made


# --- answers ----------------------------------------------------------------------------------------------------


def answer(**parts: Any) -> dict[str, Any]:
    return {**parts, "ResponseMetadata": {"HTTPStatusCode": 200, "RetryAttempts": 0}}


def _refused(code: str, message: str, table: str, item: Item | None = None) -> dict[str, Any]:
    shown = {} if item is None else {"Item": dict(item)}
    return {"Error": {"Code": code, "Message": message, **shown}, "TableName": table}


def _match_placeholders(names: Mapping[str, str], values: Mapping[str, Value], used: frozenset[str]) -> None:
    """DynamoDB refuses a placeholder that is not defined as well as a definition that is not used."""
    if used != names.keys() | values.keys():
        raise Invalid(f"placeholders {sorted(used ^ (names.keys() | values.keys()))} do not match")


class _client_errors:
    """Turns what the tables raise into what the client raises."""

    def __init__(self, operation: str, on_failure: str) -> None:
        self._operation, self._on_failure = operation, on_failure

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: Any, raised: BaseException | None, _trace: Any) -> None:
        if isinstance(raised, ConditionFailed):
            shown = self._on_failure == "ALL_OLD" and raised.item is not None
            more: dict[str, Any] = {"Item": dict(raised.item or {})} if shown else {}
            raise error("ConditionalCheckFailedException", self._operation, _CONDITION_FAILED, **more) from None
