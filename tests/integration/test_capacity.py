"""What a like costs, as the engine counts it. A cost that grows is a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tallymark import likes
from tallymark.fold import Change, Delta, Lane, Mark, apply
from tallymark.model import Counter, LikeKey, Target
from tallymark.storage.counter_table import CounterTable, pack_mark
from tests.hooks import hooked
from tests.integration.conftest import Tables

MARK_BYTES = 12 + 21  # name and value
LONGEST = "#" * 256  # bytes of the character that keys must escape


@contextmanager
def metered(client: Any) -> Iterator[list[tuple[str, Any]]]:
    """Every call's name and consumed capacity, which each call is made to report."""
    seen: list[tuple[str, Any]] = []

    def ask(params: dict[str, Any], model: Any, **_: Any) -> None:
        params["ReturnConsumedCapacity"] = "INDEXES"

    def note(parsed: dict[str, Any], model: Any, **_: Any) -> None:
        seen.append((model.name, parsed.get("ConsumedCapacity")))

    with hooked(client, {"before-parameter-build.dynamodb": ask, "after-call.dynamodb": note}):
        yield seen


def delta(target: Target, sequence: int) -> Delta:
    counter = Counter(target, "like")
    return Delta(counter, (Change(counter, 1, sequence, 1_700_000_000),))


def add(
    table: CounterTable, target: Target, sequence: int, lane: str = "shardId-00000001573689847184-864758bb"
) -> None:
    undone = apply(
        table, Lane(lane, 0), [delta(target, sequence)], now_s=1_700_000_000, pauses=iter(()), sleep=lambda _: None
    )
    assert undone == []


@pytest.mark.parametrize("user", ["user-1", LONGEST])
def test_a_like_costs_one_write_unit_on_the_table_and_one_per_index(tables: Tables, target: Target, user: str) -> None:
    longest = Target("t" * 32, (target.item_id + LONGEST)[:256])
    key = LikeKey(user, longest, "r" * 32) if user == LONGEST else LikeKey(user, target, "like")
    with metered(tables.client) as calls:
        likes.like(tables.likes, key, at_ms=1)
    ((name, capacity),) = calls
    assert name == "PutItem"
    assert capacity["Table"]["CapacityUnits"] == 1
    assert {i: c["CapacityUnits"] for i, c in capacity["LocalSecondaryIndexes"].items()} == {"by-time": 1}
    assert {i: c["CapacityUnits"] for i, c in capacity["GlobalSecondaryIndexes"].items()} == {"likers": 1}
    assert capacity["CapacityUnits"] == 3


def test_an_unlike_costs_the_same(tables: Tables, target: Target) -> None:
    key = LikeKey("user", target, "like")
    likes.like(tables.likes, key, at_ms=1)
    with metered(tables.client) as calls:
        likes.unlike(tables.likes, key)
    assert [(name, capacity["CapacityUnits"]) for name, capacity in calls] == [("DeleteItem", 3)]


def test_a_like_in_a_batch_is_one_statement_of_an_item_under_one_kilobyte(tables: Tables, target: Target) -> None:
    """The emulator leaves indexes out of a statement's units, so the item's size is what is checked."""
    operations = [likes.Operation(LikeKey(f"user-{n}", target, "like"), like=True) for n in range(50)]
    with metered(tables.client) as calls:
        likes.apply_all(tables.likes, operations, now_ms=1)
    assert [name for name, _ in calls] == ["BatchExecuteStatement"] * 2
    assert sum(table["CapacityUnits"] for _, capacity in calls for table in capacity) == 50
    (item,) = tables.client.query(
        TableName=tables.outputs["LikesTable"], KeyConditionExpression="pk = :u",
        ExpressionAttributeValues={":u": {"S": "user-7"}}, Limit=1, ScanIndexForward=False,
    )["Items"]  # fmt: skip
    assert set(item) == {"pk", "sk", "lk", "at"}
    assert sum(len(name) + len(next(iter(value.values()))) for name, value in item.items()) < 200


def written(calls: list[tuple[str, Any]]) -> float:
    """Write units of the statements; reads stand apart."""
    assert {name for name, _ in calls} <= {"BatchGetItem", "BatchExecuteStatement"}
    units = [table["CapacityUnits"] for name, tables in calls if name == "BatchExecuteStatement" for table in tables]
    return float(sum(units))


def test_a_row_update_costs_one_write_unit_whether_the_row_is_new_or_known(tables: Tables, target: Target) -> None:
    counters = tables.new_counters()
    for sequence in (1, 2, 3):
        with metered(tables.client) as calls:
            add(counters, target, sequence)
        assert written(calls) == 1  # no condition fails, nothing is written twice
        assert [name for name, _ in calls if name == "BatchGetItem"] == ["BatchGetItem"] * (sequence == 1)
    with metered(tables.client) as calls:
        add(tables.new_counters(), target, 4)
    assert written(calls) == 1


def test_a_row_with_the_marks_of_two_days_still_fits_one_write_unit(tables: Tables, target: Target) -> None:
    """100 lanes, a new one in place of each every 4 h, over 64 rows: 19 marks a row."""
    for n in range(19):
        add(tables.new_counters(), target, 1, f"shardId-{n:020d}-864758bb")
    (item,) = tables.client.query(
        TableName=tables.outputs["CountersTable"],
        KeyConditionExpression="pk = :t",
        ExpressionAttributeValues={":t": {"S": f"post#{target.item_id}"}},
    )["Items"]
    assert len(item) == 3 + 19
    assert sum(len(name) + len(next(iter(value.values()))) for name, value in item.items()) < 1024
    assert len("@" + "x" * 11) + len(pack_mark(Mark(1, 1))) == MARK_BYTES


def test_a_cold_count_costs_one_query(tables: Tables, target: Target) -> None:
    add(tables.new_counters(), target, 1)
    with metered(tables.client) as calls:
        (count,) = tables.counters.counts([target], consistent=False)
    assert count is not None
    assert count.total == 1
    assert [(name, capacity["CapacityUnits"]) for name, capacity in calls] == [("Query", 0.5)]
