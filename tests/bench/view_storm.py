"""A view storm: 200,000 views of one item, 25 to a call, through a stack of its own.

    make bench-storm
    make bench-storm ARGS="--views 20000 --clients 16"

Each call has a token of its own, and half of its views a visitor. Readers watch the total through the API, caches and
all. The units are those that each call of the SDK reports, the writers' and the aggregator's. Exits with 1 when the
total is wrong, when 1,000 views cost more than 60 write units, or when the total is exact later than 3 s after the last
call.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.local.stack import Stack
from tallymark.model import Target
from tallymark.runtime import wiring
from tallymark.storage import keys
from tests.bench.load import Connection
from tests.bench.units import UNIT_BYTES, size_of, written
from tests.integration.test_capacity import metered

VIEWS_A_CALL, VISITORS = 25, 50_000
UNITS_TARGET, LAG_TARGET_S, SEEN_TARGET_S = 60.0, 3.0, 2.0
PATIENCE_S = 60.0
SINGLE_VIEWS, WATCHERS = 50, 5  # views one by one, and how many items get them at the same time
POLL_S = 0.02
ITEM_TYPE = "film"


@dataclass(frozen=True)
class Storm:
    """What was sent, and what came of it."""

    views: int
    calls: int
    seconds: float
    refused: Counter[int]  # answers other than 200, by status
    seen: int
    lag_s: float
    units: dict[str, float]  # write units by table
    row_bytes: int  # of the largest counter row
    delays_s: tuple[float, ...]  # of single views

    @property
    def units_per_1000(self) -> float:
        return sum(self.units.values()) * 1000 / self.views

    @property
    def faults(self) -> list[str]:
        """What must not be, whatever the machine: sentences, none if all is well."""
        faults = []
        if self.seen != self.views or self.refused:
            faults.append(f"WRONG: {self.seen:,} views counted, answers other than 200: {dict(self.refused)}")
        if self.units_per_1000 > UNITS_TARGET:
            faults.append(f"DEAR: {self.units_per_1000:.1f} write units per 1,000 views, {UNITS_TARGET:.0f} wanted")
        if self.row_bytes > UNIT_BYTES:
            faults.append(f"LARGE: a row of {self.row_bytes} bytes, each of whose writes costs more than one unit")
        return faults

    @property
    def late(self) -> list[str]:
        """What was slow; on a busy machine that says little about the code."""
        return [f"LATE: {self.lag_s:.2f} s, {LAG_TARGET_S:.0f} s wanted"] if self.lag_s > LAG_TARGET_S else []


def storm(views: int, clients: int, singles: int, seed: int) -> Storm:
    """Starts a stack, sends the views, waits for their total, and stops the stack. What functions log goes nowhere."""
    with tempfile.TemporaryFile("w") as log, contextlib.redirect_stdout(log), Stack() as stack:
        host, _, port = stack.url.removeprefix("http://").partition(":")
        with metered(wiring.dynamodb()) as noted:
            sent = asyncio.run(_send(host, int(port), views, clients, seed))
            lag_s, seen = asyncio.run(_settle(host, int(port), "storm", views, sent.last_s))
            stack.wait_drained()
            calls = list(noted)
        names = {stack.outputs["EventsTable"]: "events", stack.outputs["CountersTable"]: "counters"}
        return Storm(
            views=views,
            calls=sent.calls,
            seconds=sent.seconds,
            refused=sent.refused,
            seen=seen,
            lag_s=lag_s,
            units={names.get(table, table): units for table, units in written(calls).items()},
            row_bytes=max(map(size_of, _rows(stack.outputs["CountersTable"], "storm"))),
            delays_s=asyncio.run(_delays(host, int(port), singles)),
        )


# --- the storm ------------------------------------------------------------------------------------------------


@dataclass
class _Sent:
    calls: int
    refused: Counter[int]
    seconds: float
    last_s: float  # time.monotonic() of the last answer


async def _send(host: str, port: int, views: int, clients: int, seed: int) -> _Sent:
    requests = _requests(views, random.Random(seed))
    statuses: Counter[int] = Counter()

    async def client() -> None:
        async with Connection(host, port) as connection:
            for request in requests:
                status, _ = await connection.ask(request)
                statuses[status] += 1

    reader = asyncio.create_task(_look(host, port))
    begun = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    last_s = time.monotonic()
    reader.cancel()
    refused = Counter({status: n for status, n in statuses.items() if status != 200})
    return _Sent(statuses.total(), refused, last_s - begun, last_s)


def _requests(views: int, rng: random.Random) -> Iterator[bytes]:
    """One after the other, for all clients together."""
    for call in itertools.count():
        size = min(VIEWS_A_CALL, views - call * VIEWS_A_CALL)
        if size <= 0:
            return
        yield _post("storm", size, f"call-{call}", rng)


def _post(item: str, size: int, token: str, rng: random.Random) -> bytes:
    view = {"item_type": ITEM_TYPE, "item_id": item}
    seen = [{**view, "visitor_id": f"visitor-{rng.randrange(VISITORS)}"} if n % 2 else view for n in range(size)]
    body = json.dumps({"views": seen, "token": token})
    return (
        "POST /v1/views HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def _total(connection: Connection, item: str) -> int:
    """What a reader sees, through the caches."""
    request = f"GET /v1/views?item_type={ITEM_TYPE}&item_id={item} HTTP/1.1\r\nhost: bench\r\n\r\n"
    status, body = await connection.ask(request.encode())
    views: int = json.loads(body)["views"] if status == 200 else -1
    return views


async def _look(host: str, port: int) -> None:
    """Reads the total all along, so that the caches hold a count that is about to be old."""
    async with Connection(host, port) as connection:
        while True:
            await _total(connection, "storm")
            await asyncio.sleep(POLL_S)


async def _settle(host: str, port: int, item: str, wanted: int, since_s: float) -> tuple[float, int]:
    """Seconds until readers saw the total, and what they saw in the end."""
    async with Connection(host, port) as connection:
        while True:
            seen = await _total(connection, item)
            answered_s = time.monotonic() - since_s
            if seen == wanted or answered_s > PATIENCE_S:
                return answered_s, seen
            await asyncio.sleep(POLL_S)


async def _delays(host: str, port: int, views: int) -> tuple[float, ...]:
    """Per view, the seconds from its answer until a reader saw it, whose last look had left the caches filled."""
    share, rng = -(-views // WATCHERS), random.Random(0)

    async def watch(item: str) -> list[float]:
        async with Connection(host, port) as connection:
            delays = []
            for number in range(1, share + 1):
                await _total(connection, item)
                status, body = await connection.ask(_post(item, 1, f"{item}-{number}", rng))
                assert status == 200, body
                delay_s, _ = await _settle(host, port, item, number, time.monotonic())
                delays.append(delay_s)
            return delays

    found = await asyncio.gather(*(watch(f"quiet-{n}") for n in range(WATCHERS)))
    return tuple(delay_s for delays in found for delay_s in delays)[:views]


def _rows(table: str, item: str) -> list[dict[str, Any]]:
    answer = wiring.dynamodb().query(
        TableName=table,
        KeyConditionExpression="pk = :target",
        ExpressionAttributeValues={":target": {"S": keys.target_key(Target(ITEM_TYPE, item))}},
    )
    # Beside its rows, which have marks, an item has snapshots of its visitors.
    return [item for item in answer["Items"] if any(name.startswith(keys.MARK_PREFIX) for name in item)]


# --- the command ----------------------------------------------------------------------------------------------


def report(done: Storm) -> None:
    by_table = ", ".join(f"{table} {units:,.0f}" for table, units in sorted(done.units.items()))
    print(f"  views   {done.views / done.seconds:10,.0f}/s   {done.calls:,} calls, {done.calls / done.seconds:,.0f}/s")
    print(f"  total   {done.seen:10,}     of {done.views:,}")
    print(
        f"  units   {done.units_per_1000:10.1f}     write units per 1,000 views ({by_table}); "
        f"target: {UNITS_TARGET:.0f}"
    )
    print(f"  row     {done.row_bytes:10,}     bytes, the largest counter row; up to {UNIT_BYTES:,} cost one unit")
    print(
        f"  lag     {done.lag_s:10.2f} s   from the last answer until readers saw the total; target: {LAG_TARGET_S} s"
    )
    if done.delays_s:
        ordered = sorted(done.delays_s)
        p99 = ordered[-(-len(ordered) * 99 // 100) - 1]
        print(
            f"  seen    {statistics.median(ordered):10.2f} s   until a single view was seen, median of {len(ordered)}; "
            f"p99 {p99:.2f} s; target: {SEEN_TARGET_S} s"
        )
    for fault in (*done.faults, *done.late):
        print(f"  {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--singles", type=int, default=SINGLE_VIEWS, help="views one by one afterwards")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(
        f"{options.views:,} views of one item, {VIEWS_A_CALL} to a call, {options.clients} clients; {machine}, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    done = storm(options.views, options.clients, options.singles, options.seed)
    report(done)
    return int(bool(done.faults or done.late))


if __name__ == "__main__":
    sys.exit(main())
