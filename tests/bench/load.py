"""The whole pipeline under load: likes, then counts, by 32 clients; then every count is compared.

    make bench                      starts a stack of its own
    make bench ARGS="--url http://127.0.0.1:8000"   takes one that runs

Users and items follow a Zipf law over 100,000 and 1,000; readers look at the 100 items liked most, then ("cold")
at any item alike. Each user is an ordinary one: identity, rate limit and all. Exits 1 when a count is wrong or
late, or a call fails; rates are printed beside what the machine does by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import itertools
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.local.emulator import session
from infra.local.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
ITEMS, USERS, FRONT_PAGE, LATEST = 1_000, 100_000, 100, 100
PARTS = {
    "api": b"infra.local\0api",
    "streams": b"infra.local\0pump",
    "emulator": b"ministack_server",
    "valkey": b"valkey-server",
}  # in commands
LIKES_TARGET, COUNTS_TARGET, SETTLE_S, YARDSTICK_S = 500, 2_000, 3.0, 2.0


@dataclass
class Measured:
    """What one phase did."""

    name: str
    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    cpu_s: dict[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """Answers of status 200; refusals are not what was asked for."""
        return self.statuses[200] / self.seconds

    def __str__(self) -> str:
        ordered = sorted(self.latencies_ms)
        cpu = ", ".join(f"{name} {s * 1000 / len(ordered):.2f}" for name, s in self.cpu_s.items())
        return (
            f"  {self.name:7} {self.per_second:8,.0f}/s   median {statistics.median(ordered):6.1f} ms   "
            f"p99 {ordered[int(len(ordered) * 0.99)]:6.1f} ms   answers {dict(self.statuses)}"
            + (f"\n          CPU ms per call: {cpu}" if cpu else "")
        )


@dataclass(frozen=True)
class Where:
    """What is loaded. Only of a stack of its own does the bench know the processes and the emulator."""

    host: str
    port: int
    processes: dict[str, list[int]] = field(default_factory=dict)
    endpoint_url: str | None = None


class Zipf:
    """Draws 0..n-1, the first ones most often."""

    def __init__(self, n: int, rng: random.Random) -> None:
        self._sums = list(itertools.accumulate(1 / (k + 1) for k in range(n)))
        self._rng = rng

    def draw(self) -> int:
        return bisect.bisect_left(self._sums, self._rng.random() * self._sums[-1])


class Connection:
    """One kept-alive HTTP/1.1 connection: bytes out, status and body in."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head[9:12]), await self._reader.readexactly(length)


def like_request(user: int, item: int) -> bytes:
    body = f'{{"user_id":"user-{user}","item_id":"{item}","item_type":"film"}}'
    return (
        f"POST /v1/like HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


def count_request(item: int) -> bytes:
    return f"GET /v1/count?item_type=film&item_id={item} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()


async def load(
    name: str,
    host: str,
    port: int,
    clients: int,
    seconds: float,
    processes: dict[str, list[int]],
    one: Callable[[Connection], Awaitable[int]],
) -> Measured:
    """Keeps each client busy for the time."""
    measured = Measured(name)
    until = time.perf_counter() + seconds

    async def client() -> None:
        async with Connection(host, port) as connection:
            while (begun := time.perf_counter()) < until:
                measured.statuses[await one(connection)] += 1
                measured.latencies_ms.append((time.perf_counter() - begun) * 1000)

    begun, cpu = time.perf_counter(), cpu_of(processes)
    await asyncio.gather(*(client() for _ in range(clients)))
    measured.seconds = time.perf_counter() - begun
    measured.cpu_s = {name: spent - cpu[name] for name, spent in cpu_of(processes).items() if name in cpu}
    return measured


def cpu_of(processes: dict[str, list[int]]) -> dict[str, float]:
    """CPU seconds of each process so far (Linux; nothing elsewhere)."""
    spent = {}
    for name, pids in processes.items():
        with contextlib.suppress(OSError):
            stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
            spent[name] = sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")
    return spent


def family(pid: int) -> dict[str, list[int]]:
    """The stack's processes by what they are (Linux; nothing elsewhere)."""
    found = {"client": [os.getpid()]}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            name = next((name for name, mark in PARTS.items() if mark in command), "")
            if name and _descends(int(path.parent.name), pid) and b"guard.py" not in command:
                found.setdefault(name, []).append(int(path.parent.name))
    return found


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == ancestor


async def run(where: Where, clients: int, seconds: float, seed: int) -> int:
    """The exit code."""
    host, port, processes, endpoint_url = where.host, where.port, where.processes, where.endpoint_url
    rng = random.Random(seed)
    items, users, front_page = Zipf(ITEMS, rng), Zipf(USERS, rng), Zipf(FRONT_PAGE, rng)
    async with Connection(host, port) as connection:
        expected = Counter(await counts_of(connection, [str(item) for item in range(ITEMS)]))

    latest: dict[str, None] = {}

    async def like(connection: Connection) -> int:
        item = items.draw()
        status, body = await connection.ask(like_request(users.draw(), item))
        if status == 200 and json.loads(body)["changed"]:
            expected[str(item)] += 1
            latest.pop(str(item), None)
            latest[str(item)] = None  # at the end again
        return status

    async def count(connection: Connection) -> int:
        return (await connection.ask(count_request(front_page.draw())))[0]

    async def cold_count(connection: Connection) -> int:
        return (await connection.ask(count_request(rng.randrange(ITEMS))))[0]

    yardsticks = [put_items(endpoint_url)]
    likes = await load("likes", host, port, clients, seconds, processes, like)
    async with Connection(host, port) as connection:
        # Reading every item takes longer than counts take to settle; those liked last show the lag.
        lag_s, _ = await settle(connection, expected, list(latest)[-LATEST:])
        _, wrong = await settle(connection, expected, sorted(expected))
    yardsticks.append(put_items(endpoint_url))
    counts = await load("counts", host, port, clients, seconds, processes, count)
    yardsticks.append(put_items(endpoint_url))
    cold = await load("cold", host, port, clients, seconds / 2, processes, cold_count)
    for measured in (likes, counts, cold):
        print(measured)
    report_rates(likes, counts, statistics.median(yardsticks))
    late = f"   LATE: more than {SETTLE_S} s" if lag_s > SETTLE_S else ""
    print(f"  lag     {lag_s:8.2f} s   from the last like until the {LATEST} items liked last were exact{late}")
    print(f"  exact   {len(expected) - len(wrong):8,}     of {len(expected):,} counts, {expected.total():,} likes")
    if wrong:
        print(f"  WRONG   {len(wrong)} counts, (expected, seen) such as {dict(list(wrong.items())[:3])}")
    failed = sorted({*likes.statuses} - {200, 429} | {*counts.statuses, *cold.statuses} - {200})
    if failed:
        print(f"  FAILED  answers of status {failed}")
    return int(bool(wrong or failed or late))


def report_rates(likes: Measured, counts: Measured, yardstick: float) -> None:
    """The rates beside their targets, and beside what the machine does by itself."""
    if yardstick:
        print(
            f"  machine {yardstick:8,.0f}/s   PutItem by one client of the SDK, straight to the emulator; "
            f"likes {likes.per_second / yardstick:.2f} and counts {counts.per_second / yardstick:.2f} times that"
        )
    for measured, target in ((likes, LIKES_TARGET), (counts, COUNTS_TARGET)):
        verdict = "reached" if measured.per_second >= target else "MISSED on this machine today"
        print(f"  {measured.name:7} {target:8,}/s   target: {verdict}")


def put_items(endpoint_url: str | None) -> float:
    """PutItem a second by one client of the SDK, for comparing machines; 0 without an emulator."""
    if endpoint_url is None:
        return 0.0
    client = session(endpoint_url).client("dynamodb")
    with contextlib.suppress(client.exceptions.ResourceInUseException):
        client.create_table(
            TableName="yardstick",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    begun, puts = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < YARDSTICK_S:
        item = {"pk": {"S": f"{begun}-{puts}"}}
        client.put_item(TableName="yardstick", Item=item, ConditionExpression="attribute_not_exists(pk)")
        puts += 1
    return puts / elapsed


async def counts_of(connection: Connection, items: list[str]) -> dict[str, int]:
    """What a reader sees, through the caches."""
    seen: dict[str, int] = {}
    for low in range(0, len(items), 100):
        body = json.dumps({"items": [{"item_id": item, "item_type": "film"} for item in items[low : low + 100]]})
        request = f"POST /v1/counts HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        _, answer = await connection.ask(request.encode())
        seen |= {entry["item_id"]: entry["count"] for entry in json.loads(answer)["counts"]}
    return seen


async def settle(connection: Connection, expected: Counter[str], items: list[str]) -> tuple[float, dict[str, Any]]:
    """Seconds until these counts were exact for readers; those that never were, with (expected, seen)."""
    begun = time.perf_counter()
    while True:
        asked = time.perf_counter() - begun
        seen = await counts_of(connection, items)
        wrong: dict[str, Any] = {item: (expected[item], n) for item, n in seen.items() if expected[item] != n}
        if not wrong or asked > 10 * SETTLE_S:
            return asked, wrong
        items = sorted(wrong)
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def own_stack() -> Iterator[Where]:
    """A stack in a process of its own, as `make up` starts it."""
    with tempfile.TemporaryDirectory() as home:
        port, emulator_port = free_port(), free_port()
        command = [
            sys.executable,
            "-m",
            "infra.local",
            "up",
            "--port",
            str(port),
            "--emulator-port",
            str(emulator_port),
        ]
        log = Path(home) / "log"
        with log.open("wb") as out:
            stack = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, "XDG_STATE_HOME": home}
            )
            try:
                _wait(f"http://127.0.0.1:{port}/health", stack, log)
                yield Where("127.0.0.1", port, family(stack.pid), f"http://127.0.0.1:{emulator_port}")
            finally:
                stack.send_signal(signal.SIGINT)
                stack.wait(20)


def _wait(url: str, stack: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if stack.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310 (our own)
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the stack did not start:\n{log.read_text()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a running stack")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="per phase")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{options.clients} clients, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    )
    with contextlib.ExitStack() as stack:
        if options.url:
            host, _, port = options.url.removeprefix("http://").rstrip("/").partition(":")
            where = Where(host, int(port or 80))
        else:
            print("  starting a stack ...", flush=True)
            where = stack.enter_context(own_stack())
        return asyncio.run(run(where, options.clients, options.seconds, options.seed))


if __name__ == "__main__":
    sys.exit(main())
