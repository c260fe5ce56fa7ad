"""Ways to write counter rows: one UpdateItem each, several at a time, against our batches of PartiQL.

    .venv/bin/python -m tests.bench.fold_rows

Each way writes the same deltas to rows of its own, over an emulator of its own. "new" rows are met for the first time,
"known" ones again. Rounds are outermost; medians. Basis of docs/decisions/0003.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tallymark.fold import Added, Change, Delta, Lane
from tallymark.model import Counter, Target
from tallymark.storage import keys
from tallymark.storage.counter_table import CounterTable, pack_mark
from tests.bench.tables import own_table

ROUNDS, ROWS = 5, 400
LANE = Lane("shardId-00000001573689847184-864758bb", 0)
NOW_S = 1_700_000_000


def main() -> int:
    with own_table("counters") as client:
        samples: dict[str, list[tuple[float, float]]] = {}
        for round_number in range(ROUNDS):
            for name, write in ways(client).items():
                for kind, sequence in (("new", 1), ("known", 2)):
                    deltas = [delta(f"{name}-{round_number}-{row}", sequence) for row in range(ROWS)]
                    samples.setdefault(f"{name}, {kind} rows", []).append(measured(write, deltas))
    print(f"{ROWS} rows, median of {ROUNDS} rounds; {platform.machine()}, Python {platform.python_version()}")
    for name, sample in samples.items():
        rows, cpu = (statistics.median(column) for column in zip(*sample, strict=True))
        print(f"  {name:32} {rows:8,.0f} rows/s   {cpu:7.3f} ms of CPU in the function per row")
    return 0


def delta(item: str, sequence: int) -> Delta:
    counter = Counter(Target("post", item), "like")
    return Delta(counter, (Change(counter, 1, sequence, NOW_S),))


def measured(write: Callable[[list[Delta]], None], deltas: list[Delta]) -> tuple[float, float]:
    """Rows a second, and milliseconds of this process's CPU per row."""
    begun, cpu = time.perf_counter(), time.process_time()
    write(deltas)
    return len(deltas) / (time.perf_counter() - begun), (time.process_time() - cpu) * 1000 / len(deltas)


def ways(client: Any) -> dict[str, Callable[[list[Delta]], None]]:
    executor = ThreadPoolExecutor(16)
    table = CounterTable(client, "counters", executor, lambda: NOW_S * 1000, 35)

    def batches(deltas: list[Delta]) -> None:
        outcomes = table.add(LANE, deltas, NOW_S)
        assert all(isinstance(outcome, Added) for outcome in outcomes), outcomes

    def update(one: Delta) -> None:
        client.update_item(
            TableName="counters",
            Key={
                "pk": {"S": keys.target_key(one.counter.target)},
                "sk": {"S": keys.counter_sort_key(one.counter, LANE.row)},
            },
            UpdateExpression="ADD n :amount SET #mark = :last",
            ConditionExpression="attribute_not_exists(#mark) OR #mark < :first",
            ExpressionAttributeNames={"#mark": keys.mark_name(LANE.id)},
            ExpressionAttributeValues={
                ":amount": {"N": str(one.amounts["n"])},
                ":first": {"B": pack_mark(one.mark)},
                ":last": {"B": pack_mark(one.mark)},
            },
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    def updates(deltas: list[Delta]) -> None:
        list(executor.map(update, deltas))

    return {"UpdateItem, 16 at a time": updates, "PartiQL, 25 to a call": batches}


if __name__ == "__main__":
    sys.exit(main())
