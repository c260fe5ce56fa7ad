"""Write units of a run, table by table, as the engine counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

UNIT_BYTES = 1024  # DynamoDB Developer Guide, capacity unit consumption: 1 KB to a write unit, rounded up
READ_UNIT_BYTES = 4096
READS = frozenset({"BatchGetItem", "GetItem", "Query"})


def written(calls: Iterable[tuple[str, Any]]) -> Counter[str]:
    """Write units by table, of the calls that `metered` noted.

    An answer that is an error names no units: a write that was refused, on whatever condition, is under `refused`, as
    the one unit that it costs at least.
    """
    units: Counter[str] = Counter()
    for name, capacity in calls:
        if name in READS:
            continue
        if capacity is None:
            units["refused"] += 1
        for table in capacity if isinstance(capacity, list) else [capacity] if capacity else []:
            units[table["TableName"]] += table["CapacityUnits"]
    return units


def size_of(item: dict[str, Any]) -> int:
    """Bytes of an item of strings, numbers and binary values: its names and its values, numbers at their largest."""
    return sum(len(name.encode()) + _value(*next(iter(value.items()))) for name, value in item.items())


def _value(kind: str, value: Any) -> int:
    if kind == "N":
        return len(value) // 2 + 2
    return len(value.encode()) if kind == "S" else len(value)


def read_units(items: Iterable[dict[str, Any]]) -> float:
    """What reading these by one call costs, eventually consistent: the emulator's own number knows no sizes."""
    return 0.5 * max(1, -(-sum(map(size_of, items)) // READ_UNIT_BYTES))
