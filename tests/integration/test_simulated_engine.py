"""The simulator's tables answer as the emulator's do: one list of calls made to both, answer by answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import Tables
from tests.simulation.dynamodb import Database
from tests.simulation.world import tables as simulated_tables

CALLS = 700
USERS, ITEMS, LANES = 4, 3, 3
NEVER = {"N": "4102444800"}  # the engine removes what has expired, at a moment of its own


class Calls:
    """Calls in every form that our adapters use, over so few keys that conditions fail about as often as they hold."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._space = f"{seed}-{self._rng.getrandbits(64):016x}"  # keys of its own in the emulator's tables
        self._stamps = 0

    def next(self) -> tuple[str, dict[str, Any]]:
        """An operation and its request."""
        return self._rng.choice(self._forms())()

    def _forms(self) -> list[Callable[[], tuple[str, dict[str, Any]]]]:
        return [
            self._put_like, self._put_like, self._delete_like, self._like_statements, self._row_statements,
            self._row_statements, self._add_and_prune, self._settle, self._hold, self._correct, self._since,
            self._get, self._get_many, self._of_user, self._between, self._of_target, self._rows, self._all_rows,
            self._check_and_delete,
        ]  # fmt: skip

    # --- likes ------------------------------------------------------------------------------------------------

    def _user(self) -> str:
        return f"user-{self._space}-{self._rng.randrange(USERS)}"

    def _item(self) -> str:
        return f"post#{self._space}-{self._rng.randrange(ITEMS)}"

    def _like_key(self) -> dict[str, Any]:
        return {"pk": {"S": self._user()}, "sk": {"S": f"{self._item()}#{self._rng.choice(('like', '👍'))}"}}

    def _like(self) -> dict[str, Any]:
        self._stamps += 1
        key = self._like_key()
        bucket = {"S": key["sk"]["S"].rpartition("#")[0] + "#0"}
        return {**key, "lk": bucket, "at": {"B": self._rng.randbytes(8) + self._stamps.to_bytes(8, "big")}}

    def _put_like(self) -> tuple[str, dict[str, Any]]:
        return "put_item", {
            "TableName": "likes",
            "Item": self._like(),
            "ConditionExpression": "attribute_not_exists(pk)",
            "ReturnValuesOnConditionCheckFailure": self._rng.choice(("ALL_OLD", "NONE")),
        }

    def _delete_like(self) -> tuple[str, dict[str, Any]]:
        return "delete_item", {
            "TableName": "likes", "Key": self._like_key(), "ConditionExpression": "attribute_exists(pk)",
        }  # fmt: skip

    def _like_statements(self) -> tuple[str, dict[str, Any]]:
        by_key = {(like["pk"]["S"], like["sk"]["S"]): like for like in (self._like() for _ in range(4))}
        return "batch_execute_statement", {"Statements": [self._like_statement(like) for like in by_key.values()]}

    def _like_statement(self, like: dict[str, Any]) -> dict[str, Any]:
        if self._rng.random() < 0.5:
            statement = 'DELETE FROM "likes" WHERE "pk" = ? AND "sk" = ? RETURNING ALL OLD *'
            return {"Statement": statement, "Parameters": [like["pk"], like["sk"]]}
        return {
            "Statement": "INSERT INTO \"likes\" VALUE {'pk': ?, 'sk': ?, 'lk': ?, 'at': ?}",
            "Parameters": [like["pk"], like["sk"], like["lk"], like["at"]],
        }

    # --- counter rows -----------------------------------------------------------------------------------------

    def _row_key(self) -> dict[str, Any]:
        return {"pk": {"S": self._item()}, "sk": {"S": f"like#like#{self._rng.choice(('000', '001', 'adj'))}"}}

    def _mark(self) -> dict[str, bytes]:
        """Of two widths, so that byte order is not the order of lengths."""
        return {"B": self._rng.randbytes(self._rng.choice((3, 21)))}

    def _row_statements(self) -> tuple[str, dict[str, Any]]:
        by_key = {(row["pk"]["S"], row["sk"]["S"]): row for row in (self._row_key() for _ in range(3))}
        return "batch_execute_statement", {"Statements": [self._row_statement(row) for row in by_key.values()]}

    def _row_statement(self, row: dict[str, Any]) -> dict[str, Any]:
        mark, amount = f"@lane_-{self._rng.randrange(LANES)}", {"N": str(self._rng.randint(-3, 3))}
        form = self._rng.randrange(3)
        if form == 0:
            return {
                "Statement": f"INSERT INTO \"counters\" VALUE {{'pk': ?, 'sk': ?, 'n': ?, '{mark}': ?}}",
                "Parameters": [row["pk"], row["sk"], amount, self._mark()],
            }
        fresh, floor = (f'"{mark}" IS MISSING', []) if form == 1 else (f'"{mark}" < ?', [self._mark()])
        return {
            "Statement": f'UPDATE "counters" SET n = n + ? SET "{mark}" = ? WHERE pk = ? AND sk = ? AND {fresh}',  # noqa: S608
            "Parameters": [amount, self._mark(), row["pk"], row["sk"], *floor],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _add_and_prune(self) -> tuple[str, dict[str, Any]]:
        old, mark = self._rng.sample(range(LANES), 2)
        return "update_item", {
            "TableName": "counters",
            "Key": self._row_key(),
            "UpdateExpression": "ADD n :amount SET #mark = :last REMOVE #old0",
            "ConditionExpression": "(attribute_not_exists(#mark) OR #mark < :first)"
            + self._rng.choice((" AND #old0 > :old0", " AND NOT #old0 = :old0")),
            "ExpressionAttributeNames": {"#mark": f"@lane_-{mark}", "#old0": f"@lane_-{old}"},
            "ExpressionAttributeValues": {
                ":amount": {"N": "2"}, ":first": self._mark(), ":last": self._mark(), ":old0": self._mark(),
            },
        }  # fmt: skip

    def _correct(self) -> tuple[str, dict[str, Any]]:
        seen = self._rng.choice((None, -1, 0, 1, 2))
        return "update_item", {
            "TableName": "counters",
            "Key": self._row_key(),
            "UpdateExpression": "ADD n :by",
            "ConditionExpression": "attribute_not_exists(n)" if seen is None else "n = :seen",
            "ExpressionAttributeValues": {
                ":by": {"N": str(self._rng.randint(-2, 2))},
                **({} if seen is None else {":seen": {"N": str(seen)}}),
            },
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _since(self) -> tuple[str, dict[str, Any]]:
        return "update_item", {
            "TableName": "counters",
            "Key": {"pk": {"S": self._item()}, "sk": {"S": "verified"}},
            "UpdateExpression": "SET #since = if_not_exists(#since, :now) REMOVE #digest",
            "ExpressionAttributeNames": {"#since": "since", "#digest": "digest"},
            "ExpressionAttributeValues": {":now": {"N": str(self._rng.randrange(10**10))}},
            "ReturnValues": "ALL_NEW",
        }

    # --- events -----------------------------------------------------------------------------------------------

    def _event_key(self) -> dict[str, Any]:
        return {"pk": {"S": f"parked#{self._space}#{self._rng.randrange(40)}"}}

    def _settle(self) -> tuple[str, dict[str, Any]]:
        put = {
            "TableName": "events",
            "Item": {**self._event_key(), "ttl": NEVER},
            "ConditionExpression": "attribute_not_exists(pk)",
        }
        update = {
            "TableName": "counters",
            "Key": self._row_key(),
            "UpdateExpression": "ADD n :delta",
            "ExpressionAttributeValues": {":delta": {"N": str(self._rng.choice((-1, 1)))}},
        }
        return "transact_write_items", {"TransactItems": [{"Put": put}, {"Update": update}]}

    def _check_and_delete(self) -> tuple[str, dict[str, Any]]:
        check = {
            "TableName": "counters",
            "Key": self._row_key(),
            "ConditionExpression": "n BETWEEN :low AND :high",
            "ExpressionAttributeValues": {":low": {"N": "-3"}, ":high": {"N": "10"}},
        }
        delete = {"TableName": "events", "Key": self._event_key()}
        return "transact_write_items", {"TransactItems": [{"ConditionCheck": check}, {"Delete": delete}]}

    def _hold(self) -> tuple[str, dict[str, Any]]:
        numbers = {str(self._rng.randrange(9, 12)) for _ in range(2)}
        return "update_item", {
            "TableName": "events",
            "Key": {"pk": {"S": f"held#{self._space}"}},
            "UpdateExpression": "ADD numbers :numbers SET #ttl = :ttl",
            "ExpressionAttributeNames": {"#ttl": "ttl"},
            "ExpressionAttributeValues": {":numbers": {"SS": sorted(numbers)}, ":ttl": NEVER},
            "ReturnValues": "ALL_NEW",
        }

    # --- reads ------------------------------------------------------------------------------------------------

    def _get(self) -> tuple[str, dict[str, Any]]:
        table, key = self._rng.choice((("likes", self._like_key()), ("events", self._event_key())))
        return "get_item", {"TableName": table, "Key": key, "ConsistentRead": True}

    def _get_many(self) -> tuple[str, dict[str, Any]]:
        rows = {(row["pk"]["S"], row["sk"]["S"]): row for row in (self._row_key() for _ in range(5))}
        return "batch_get_item", {
            "RequestItems": {"counters": {"Keys": list(rows.values()), "ConsistentRead": self._rng.random() < 0.5}}
        }

    def _of_user(self) -> tuple[str, dict[str, Any]]:
        below = self._rng.random() < 0.5
        return "query", {
            "TableName": "likes",
            "IndexName": "by-time",
            "ScanIndexForward": False,
            "ConsistentRead": True,
            "KeyConditionExpression": "pk = :value" + (" AND #at < :before" if below else ""),
            "FilterExpression": "begins_with(sk, :type)",
            "ExpressionAttributeValues": {
                ":value": {"S": self._user()},
                ":type": {"S": self._item()},
                **({":before": {"B": self._rng.randbytes(16)}} if below else {}),
            },
            **({"ExpressionAttributeNames": {"#at": "at"}} if below else {}),
        }

    def _between(self) -> tuple[str, dict[str, Any]]:
        low, high = sorted((self._item(), self._item()))
        return "query", {
            "TableName": "likes",
            "KeyConditionExpression": "pk = :user AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": {
                ":user": {"S": self._user()},
                ":low": {"S": low},
                ":high": {"S": high + "\U0010ffff"},
            },
            "ProjectionExpression": "sk",
            "ConsistentRead": True,
        }

    def _of_target(self) -> tuple[str, dict[str, Any]]:
        return "query", {
            "TableName": "likes",
            "IndexName": "likers",
            "ScanIndexForward": self._rng.random() < 0.5,
            "KeyConditionExpression": "lk = :value",
            "ExpressionAttributeValues": {":value": {"S": self._item() + "#0"}},
        }

    def _rows(self) -> tuple[str, dict[str, Any]]:
        return "query", {
            "TableName": "counters",
            "KeyConditionExpression": "pk = :target AND begins_with(sk, :metric)",
            "ExpressionAttributeValues": {":target": {"S": self._item()}, ":metric": {"S": "like#"}},
            "ProjectionExpression": "sk, n",
            "ConsistentRead": True,
        }

    def _all_rows(self) -> tuple[str, dict[str, Any]]:
        return "query", {
            "TableName": "counters",
            "KeyConditionExpression": "pk = :target",
            "ExpressionAttributeValues": {":target": {"S": self._item()}},
            "ConsistentRead": True,
        }


def answer(client: Any, operation: str, request: dict[str, Any]) -> Any:
    """What the client answers or raises, without what no adapter reads."""
    try:
        got = dict(getattr(client, operation)(**request))
    except ClientError as error:
        told = error.response
        reasons = [(r.get("Code"), _item(r.get("Item"))) for r in told.get("CancellationReasons", [])]
        return (type(error).__name__, told["Error"]["Code"], _item(told.get("Item")), reasons)
    for name in ("ResponseMetadata", "ConsumedCapacity", "ItemCollectionMetrics", "UnprocessedKeys"):
        got.pop(name, None)
    if operation == "batch_execute_statement":
        return [_statement_answer(response) for response in got["Responses"]]
    if operation == "batch_get_item":
        return sorted(repr(_item(item)) for items in got["Responses"].values() for item in items)
    return {name: _items(value) for name, value in got.items()}


def _statement_answer(response: dict[str, Any]) -> Any:
    refusal = response.get("Error", {})
    return (refusal.get("Code"), _item(refusal.get("Item")), _item(response.get("Item")))


def _items(value: Any) -> Any:
    if isinstance(value, list):
        return [_item(item) for item in value]
    return _item(value) if isinstance(value, dict) else value


def _item(item: Any) -> Any:
    """The attributes in one order, sets too: neither has one."""
    if not item:
        return None
    return sorted((name, sorted(value["SS"]) if "SS" in value else value) for name, value in item.items())


@pytest.mark.parametrize("seed", [1, 2])
def test_the_simulated_tables_answer_as_the_engine_does(tables: Tables, seed: int) -> None:
    names = {
        "likes": tables.outputs["LikesTable"],
        "counters": tables.outputs["CountersTable"],
        "events": tables.outputs["EventsTable"],
    }
    simulated = Database(simulated_tables())
    calls = Calls(seed)
    outcomes: dict[str, set[bool]] = {}
    for number in range(CALLS):
        operation, request = calls.next()
        expected = answer(tables.client, operation, _renamed(request, names))
        assert answer(simulated, operation, request) == expected, f"call {number}: {operation} {request}"
        outcomes.setdefault(operation, set()).add(
            isinstance(expected, tuple) or "ConditionalCheckFailed" in str(expected)
        )
    assert len(outcomes) == 8
    for operation in ("put_item", "delete_item", "update_item", "transact_write_items", "batch_execute_statement"):
        assert outcomes[operation] == {True, False}, f"conditions of {operation} both hold and fail"


def _renamed(request: Any, names: dict[str, str]) -> Any:
    """The request with the emulator's names of the tables."""
    if isinstance(request, dict):
        return {
            names.get(key, key): names.get(value, value) if key == "TableName" else _renamed(value, names)
            for key, value in request.items()
        }
    if isinstance(request, list):
        return [_renamed(one, names) for one in request]
    if isinstance(request, str):
        for name, real in names.items():
            request = request.replace(f'"{name}"', f'"{real}"')
    return request
