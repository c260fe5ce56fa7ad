"""A limit of 1,000,000, granted one by one: from one row, and from pools.

    .venv/bin/python -m tests.bench.quota_pools

Twice over an emulator of its own. First as it is: it has one thread and no limits, so the number of pools makes no
difference there, and what is seen is what a grant costs. Then with the limits of DynamoDB's items, a 25th of each, put
between the SDK and the emulator: an item takes 40 write units and 120 read units a second (1,000 and 3,000 there), and
while a transaction holds an item, any other that wants it is cancelled. "One row" is a quota of one pool: the same
code, tokens and all. Exits 1 unless all that was granted is used, and nothing else.
"""

from __future__ import annotations

import platform
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from tallymark import quotas
from tallymark.errors import Unavailable
from tallymark.quotas import ProcessMarks, Quotas
from tallymark.runtime.wiring import now_ms
from tallymark.storage.dynamodb import connect
from tallymark.storage.quota_table import QuotaTable
from tests.bench.tables import own_table
from tests.faults.injection import Sent, transaction_in_conflict
from tests.hooks import hooked

LIMIT, SECONDS, CALLERS = 1_000_000, 8.0, 32
POOLS = (1, 2, 4, 8)
SCALE = 25
WRITE_UNITS, READ_UNITS = 1000 / SCALE, 3000 / SCALE  # a second, of one item


@dataclass(frozen=True)
class Measured:
    """Of one number of pools."""

    seconds: float
    by_pool: Sequence[int]
    busy: int  # calls that were told to try again
    exact: bool


def main() -> int:
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    print(f"limit {LIMIT:,}, {CALLERS} callers, {SECONDS:.0f} s each; {machine}")
    exact = True
    with own_table("quotas") as client:
        for title, limits in (
            ("the emulator as it is", None),
            (f"items with a {SCALE}th of DynamoDB's limits", Limits()),
        ):
            print(
                f"\n{title}\n  pools    grants/s   of each pool     tried again   cancelled, throttled, reads put off"
            )
            for pools in POOLS:
                with over(client, limits) as met:
                    measured = measure(client, pools)
                exact &= measured.exact
                _print(pools, measured, met)
    print("\n  EXACT: what was granted is what is used" if exact else "\n  WRONG: what was granted is not what is used")
    return int(not exact)


def _print(pools: int, measured: Measured, met: Counter[str]) -> None:
    rates = [grants / measured.seconds for grants in measured.by_pool]
    name = "one row" if pools == 1 else f"{pools}"
    print(
        f"  {name:7} {sum(rates):9.1f}   {min(rates):5.1f} to {max(rates):5.1f}   {measured.busy:11}   "
        f"{met['cancelled']:9}, {met['throttled']:9}, {met['put off']:8}"
    )


def measure(client: Any, pools: int) -> Measured:
    """Grants of 1 to a new token each, by callers who begin anew at once."""
    name, until = f"pools-{uuid.uuid4().hex}", time.monotonic() + SECONDS
    with ThreadPoolExecutor(4) as executor, ThreadPoolExecutor(CALLERS) as callers:
        marks = ProcessMarks(lambda: time.monotonic_ns() // 1000)
        table = QuotaTable(client, "quotas", executor, pools)
        here = Quotas(table, marks, now_ms, time.sleep, random.Random(1), pools)
        quotas.put(here, name, LIMIT)
        begun = time.monotonic()

        def ask(caller: int) -> tuple[Counter[int], int]:
            granted: Counter[int] = Counter()
            busy = n = 0
            while time.monotonic() < until:
                n += 1
                try:
                    granted.update(quotas.acquire(here, name, f"{caller}-{n}", 1).grant.parts)
                except Unavailable:
                    busy += 1
            return granted, busy

        answers = list(callers.map(ask, range(CALLERS)))
        seconds = time.monotonic() - begun
        used = _used(name)
    by_pool: Counter[int] = sum((granted for granted, _ in answers), Counter())
    busy = sum(busy for _, busy in answers)
    return Measured(seconds, [by_pool[pool] for pool in range(pools)], busy, by_pool.total() == used)


def _used(name: str) -> int:
    """Read past the limits."""
    with ThreadPoolExecutor(1) as executor:
        ledger, _ = QuotaTable(connect(), "quotas", executor, max(POOLS)).read(name)
    assert ledger is not None
    return ledger.limit - ledger.free


# --- what DynamoDB allows an item -------------------------------------------------------------------------------


class Limits:
    """Units that an item has left, and which items a transaction holds. Safe between threads."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], tuple[float, float]] = {}
        self._held: set[str] = set()
        self._lock = Lock()

    def write(self, call: Sent, met: Counter[str]) -> Any:
        writes = [next(iter(entry.values())) for entry in call.body["TransactItems"]]
        items = [(write.get("Item") or write["Key"])["pk"]["S"] for write in writes]
        with self._lock:
            if not self._held.isdisjoint(items):
                met["cancelled"] += 1
                return transaction_in_conflict(call)
            if not self._take(items, "write", 2, WRITE_UNITS):
                met["throttled"] += 1
                return call.error(400, "ProvisionedThroughputExceededException")
            self._held.update(items)
        try:
            return call.send()
        finally:
            with self._lock:
                self._held.difference_update(items)

    def read(self, call: Sent, met: Counter[str]) -> Any:
        ((table, wanted),) = call.body["RequestItems"].items()
        with self._lock:
            now = [key for key in wanted["Keys"] if self._take([key["pk"]["S"]], "read", 1, READ_UNITS)]
        later = [key for key in wanted["Keys"] if key not in now]
        if not later:
            return call.send()
        met["put off"] += len(later)
        rest = {table: {**wanted, "Keys": later}}
        if not now:
            return call.answer(200, {"Responses": {table: []}, "UnprocessedKeys": rest})
        _, found = call.send_changed({"RequestItems": {table: {**wanted, "Keys": now}}})
        return call.answer(200, {**found, "UnprocessedKeys": rest})

    def _take(self, items: Sequence[str], kind: str, units: int, per_second: float) -> bool:
        """From all or none. What is not used in a second is lost."""
        now_s = time.monotonic()
        left = {}
        for item in items:
            before, at_s = self._left.get((item, kind), (per_second, now_s))
            left[item, kind] = min(per_second, before + (now_s - at_s) * per_second) - units, now_s
        if any(units_left < 0 for units_left, _ in left.values()):
            return False
        self._left |= left
        return True


@contextmanager
def over(client: Any, limits: Limits | None) -> Iterator[Counter[str]]:
    """Puts the limits between the client and its store; counts what met them."""
    met: Counter[str] = Counter()
    if limits is None:
        yield met
        return
    rng = random.Random(1)

    def write(request: Any, **_: Any) -> Any:
        return limits.write(Sent(request, "TransactWriteItems", client, rng), met)

    def read(request: Any, **_: Any) -> Any:
        return limits.read(Sent(request, "BatchGetItem", client, rng), met)

    hooks = {"before-send.dynamodb.TransactWriteItems": write, "before-send.dynamodb.BatchGetItem": read}
    with hooked(client, hooks):
        yield met


if __name__ == "__main__":
    sys.exit(main())
