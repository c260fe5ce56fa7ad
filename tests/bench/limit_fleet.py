"""`python -m tests.bench.limit_fleet`: one limit hit without end by many processes, judged by the log that it left.

Each process is a write function of its own, called as API Gateway calls it; they share nothing but a Valkey. The log
holds the server's microseconds of every hit that was allowed. Exits with 1 unless

1. no window, wherever it begins, holds more than the limit,
2. each window from the first hit on, one after the other, holds exactly the limit,
3. the hits that were answered as allowed are those in the log.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from valkey import Valkey

from infra.local.cache import Cache
from tallymark.model import LimitKey
from tallymark.storage import keys
from tests.bench.events import ENVIRONMENT, Context, function, http_event

SECOND = 1_000_000
KEY = LimitKey("fleet", "everybody")
PAUSE_S = 0.01  # between the hits of one process, which leaves the machine to others


@dataclass(frozen=True)
class Plan:
    """So many processes hit for so many windows."""

    processes: int = 16
    limit: int = 100
    window_s: int = 60
    windows: float = 2.5


@dataclass(frozen=True)
class Outcome:
    """What was answered (`allowed`, `refused`, `unavailable`), what was logged, and until when, in microseconds."""

    answers: Counter[str]
    log: Sequence[int]
    until_us: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=Plan.processes)
    parser.add_argument("--limit", type=int, default=Plan.limit)
    parser.add_argument("--window", type=int, default=Plan.window_s, help="seconds")
    parser.add_argument("--windows", type=float, default=Plan.windows)
    chosen = parser.parse_args()
    plan = Plan(chosen.processes, chosen.limit, chosen.window, chosen.windows)
    with tempfile.TemporaryDirectory() as home, Cache(home=Path(home), log=Path(home) / "log") as cache:
        outcome = run(plan, cache.url)
    lines, faults = verdict(plan, outcome)
    print(f"{plan.limit} in any {plan.window_s} s, {plan.processes} processes, {plan.windows} windows")
    print("\n".join([*lines, *(f"WRONG: {fault}" for fault in faults)]))
    return int(bool(faults))


def run(plan: Plan, cache_url: str) -> Outcome:
    """Hits the limit from all processes at once."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(plan.processes, mp_context=context) as pool:
        begin = manager.Barrier(plan.processes)
        running = [pool.submit(hits, plan, cache_url, begin) for _ in range(plan.processes)]
        answers = sum((process.result() for process in running), Counter[str]())
    with Valkey.from_url(cache_url, decode_responses=True) as client:
        log = cast(list[str], client.lrange(keys.cache_limit_key(ENVIRONMENT["COUNTERS_TABLE"], KEY), 0, -1))
        seconds, microseconds = cast(tuple[int, int], client.time())
    return Outcome(answers, [int(moment) for moment in log], seconds * SECOND + microseconds)


def hits(plan: Plan, cache_url: str, begin: threading.Barrier) -> Counter[str]:
    """One process: a function of its own that is called until the time is over."""
    # Closed: a process that met a slow server for a moment must not judge by itself.
    os.environ.update({**ENVIRONMENT, "CACHE_URL": cache_url, "LIMITS_WITHOUT_CACHE": "closed"})
    handler, context = function("write_api").app, Context()
    body = {"key": KEY.key, "limit": plan.limit, "window_seconds": plan.window_s}
    event = http_event("POST", f"/v1/limits/{KEY.name}/hit", body)
    answers: Counter[str] = Counter()
    begin.wait()
    until = time.monotonic() + plan.window_s * plan.windows
    while time.monotonic() < until:
        answer = handler(event, context)
        if answer["statusCode"] == 200:
            answers["allowed" if json.loads(answer["body"])["allowed"] else "refused"] += 1
        else:
            assert answer["statusCode"] == 503, answer
            answers["unavailable"] += 1
        time.sleep(PAUSE_S)
    return answers


def verdict(plan: Plan, outcome: Outcome) -> tuple[list[str], list[str]]:
    """What was seen, and what of it is wrong, in sentences."""
    log, window, answers = outcome.log, plan.window_s * SECOND, outcome.answers
    if list(log) != sorted(log) or not log:
        return [], ["the log is empty or out of order"]
    most = max(bisect_left(log, begin + window) - i for i, begin in enumerate(log))
    whole = [
        bisect_left(log, begin + window) - bisect_left(log, begin)
        for begin in range(log[0], outcome.until_us - window, window)
    ]
    idle = [later - earlier - window for earlier, later in zip(log, log[plan.limit :], strict=False)]
    faults = []
    if most > plan.limit:
        faults.append(f"a window holds {most}")
    if any(held != plan.limit for held in whole) or len(whole) < int(plan.windows):
        faults.append(f"the windows from the first hit on hold {whole}")
    if not 0 <= len(log) - answers["allowed"] <= answers["unavailable"]:
        faults.append(f"{answers['allowed']} were answered as allowed, {len(log)} are in the log")
    return [
        f"  answers        {answers['allowed']:,} allowed, {answers['refused']:,} refused, "
        f"{answers['unavailable']:,} unavailable; {len(log):,} in the log",
        f"  any window     {most} at most",
        f"  one by one     {', '.join(str(held) for held in whole)}",
        f"  a place that came free was taken after {max(idle, default=0) / 1000:.1f} ms at most",
    ], faults


if __name__ == "__main__":
    sys.exit(main())
