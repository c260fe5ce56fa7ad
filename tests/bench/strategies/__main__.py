"""`make bench-strategies`: the usual strategies for counting a hot item, over one emulator and one Valkey.

    make bench-strategies
    make bench-strategies ARGS="--write"     also into docs/strategies.md and its plot

Rounds are outermost, so that a slow stretch of the machine meets all strategies. Without faults every strategy has to
be exact, and under faults ours; the exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.bench.strategies import report
from tests.bench.strategies.engine import running
from tests.bench.strategies.measuring import Run, fast, faulted
from tests.bench.strategies.ways import WAYS, Way


def compare(plan: report.Plan) -> list[report.Line]:
    runs: dict[Way, list[Run]] = {way: [] for way in WAYS}
    lines = []
    with running() as (engine, restart_valkey):
        for way in WAYS:
            fast(engine, way.make(engine, f"warm-{time.time_ns()}"), plan.calls // 4)
        for _ in range(plan.rounds):
            for way in WAYS:
                runs[way].append(fast(engine, way.make(engine, f"round-{time.time_ns()}"), plan.calls))
        for way in WAYS:
            strategy = way.make(engine, f"faults-{time.time_ns()}")
            counted = faulted(engine, strategy, plan.faulted, plan.seed, restart_valkey)
            true = plan.faulted * strategy.increments
            lines.append(report.Line.of(way, runs[way], runs[WAYS[0]], true, counted))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2_000, help="of each strategy in a round")
    parser.add_argument("--faulted", type=int, default=4_000, help="calls under faults")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--write", action="store_true", help="put table and plot into docs/")
    options = parser.parse_args()
    plan = report.Plan(options.rounds, options.calls, options.faulted, options.seed)
    measured = report.setting(plan)
    print(measured, flush=True)
    lines = compare(plan)
    print(report.text(lines))
    faults = [fault for line in lines for fault in line.faults]
    for fault in faults:
        print(f"  WRONG  {fault}")
    if options.write and not faults:
        report.write(lines, plan, measured)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
