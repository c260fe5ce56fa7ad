"""The real functions over the real engine, and faults injected between them; in the end every count is compared.

    make faults                                        100,000 likes and unlikes, 5,000 faults of each kind
    .venv/bin/python -m tests.faults --likes 2000 --faults 100 --seed 7

The work is shared by one process for each of two cores. Each has an emulator of its own and a seed that makes its run
the same every time: `--seed 8 --workers 1` repeats what the second of them did with seed 7.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from infra.local.deploy import build_layer
from tests.faults.injection import AGGREGATOR, CONSUMER, WRITERS
from tests.faults.process import work
from tests.faults.world import KINDS, UNFINISHED, Plan, Report


def main() -> int:
    """Prints what was done to which calls; 1 if anything is wrong or too little was done."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--likes", type=int, default=100_000, help="likes and unlikes that change something")
    parser.add_argument("--faults", type=int, default=5_000, help="of each kind, in the functions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(
        f"seed {options.seed}, {options.workers} workers, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}",
        flush=True,
    )
    build_layer()  # once, before all workers want it
    share = partial(Plan, likes=math.ceil(options.likes / options.workers), prefix="f")
    plans = [
        share(seed=options.seed + n, faults=math.ceil(options.faults / options.workers)) for n in range(options.workers)
    ]
    begun = time.monotonic()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        reports = list(pool.map(work, plans))
    show(reports, time.monotonic() - begun)
    return verdict(reports, options.likes, options.faults)


def show(reports: list[Report], seconds: float) -> None:
    made = made_in(reports)
    print(f"\n  {'kind of fault':36} {'aggregator':>10} {'consumer':>10} {'functions':>10}   {'writers':>10}")
    for kind in (*KINDS, UNFINISHED):
        aggregator, consumer, writers = (made[kind, where] for where in (AGGREGATOR, CONSUMER, WRITERS))
        print(f"  {kind:36} {aggregator:10,} {consumer:10,} {aggregator + consumer:10,}   {writers:10,}")
    calls = sum((report.calls for report in reports), Counter[str]())
    print("\n  calls of the SDK: " + ", ".join(f"{operation} {n:,}" for operation, n in calls.most_common()))
    print(
        f"  {sum(r.changes for r in reports):,} likes and unlikes, {sum(r.records for r in reports):,} records, "
        f"delivered {sum(r.delivered for r in reports):,} times in {sum(r.invocations for r in reports):,} calls; "
        f"{sum(r.parked for r in reports):,} messages parked; {made.total():,} faults; {seconds:.0f} s"
    )


def made_in(reports: list[Report]) -> Counter[tuple[str, str]]:
    return sum((report.made for report in reports), Counter[tuple[str, str]]())


def verdict(reports: list[Report], likes: int, faults: int) -> int:
    """The exit code; says why."""
    made = made_in(reports)
    short = [kind for kind in KINDS if made[kind, AGGREGATOR] + made[kind, CONSUMER] < faults]
    wrong = [(report.seed, line) for report in reports for line in report.wrong]
    for seed, line in wrong[:20]:
        print(f"  WRONG   seed {seed}: {line}")
    if short or sum(report.records for report in reports) < likes:
        print(f"  TOO FEW {short or 'records of the stream'}")
    counters = sum(report.counters for report in reports)
    print(f"  error   {len(wrong):8,} of {counters:,} counters compared with the table of likes and with a dictionary")
    return int(bool(wrong or short or sum(report.records for report in reports) < likes))


if __name__ == "__main__":
    sys.exit(main())
