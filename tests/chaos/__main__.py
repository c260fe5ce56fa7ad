"""Chaos on the running stack: load over HTTP while its parts are killed, stopped, throttled and fed old batches.

    make chaos                                    ten minutes, 100,000 likes, 20 kills
    make chaos ARGS="--minutes 3 --likes 25000 --kills 8 --seed 7"

Starts a stack of its own: the template deployed to an emulator, functions and all, Valkey, a proxy before DynamoDB,
and the pump as a process. Prints a line each ten seconds and for each fault, then a table. Exits 1 where a count or a
record is not what the clients were told, or counts did not come back to a lag under 3 s.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.local.deploy import DeployError
from infra.local.processes import StartError
from tests.chaos.faults import KINDS
from tests.chaos.run import Made, Outcome, Wanted, run

COLUMNS = f"  {'fault':26}{'times':>6}{'calls failed':>14}{'lag at worst':>14}{'back in, longest':>18}{'wrong':>7}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 where nothing was lost, nothing counted twice, and counts were back each time."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="at least (10)")
    parser.add_argument("--likes", type=int, default=100_000, help="to be acknowledged with changed: true (100000)")
    parser.add_argument("--kills", type=int, default=20, help="at least (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the load and of the faults' order and size (1)")
    parser.add_argument("--home", type=Path, help="where logs stay; a folder that is removed otherwise")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):  # they end everything in order, as Ctrl-C does
        signal.signal(number, _interrupt)
    wanted = Wanted(options.minutes, options.likes, options.kills, options.seed)
    print(
        f"{wanted.minutes:g} minutes, {wanted.likes:,} likes, {wanted.kills} kills, seed {wanted.seed}; "
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as temporary:
        try:
            outcome = run(wanted, options.home or Path(temporary), lambda line: print(f"  {line}", flush=True))
        except KeyboardInterrupt:
            print("\nStopped; nothing is left running.")
            return 130
        except (StartError, DeployError) as error:
            print(error, file=sys.stderr)
            return 1
    print("\n".join(["", *table(outcome)]))
    return int(bool(outcome.faults))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def table(outcome: Outcome) -> list[str]:
    """The outcome for people."""
    verdict, truth = outcome.verdict, outcome.truth
    lines = [COLUMNS]
    for kind in KINDS:
        of_kind = [made for made in outcome.made if made.fault is kind]
        lines += [_row(kind.name, of_kind, verdict.wrong_probes)] if of_kind else []
    lines += [
        _row("all", outcome.made, verdict.wrong_probes),
        "",
        f"  time        {outcome.seconds:10,.0f} s   {len(outcome.made)} faults, {outcome.kills} of them kills "
        f"({outcome.killed} processes); {outcome.delivered_again:,} old records delivered again",
        f"  told        {truth.likes:10,} likes and {truth.unlikes:,} unlikes acknowledged with changed: true, "
        f"{truth.repeats:,} repeats with changed: false",
        f"  lost        {truth.lost:10,} operations without an answer ({_statuses(outcome.failures)}); of the likes "
        f"they left in doubt, {verdict.resolved:,} were settled by has_liked",
        f"  unsaid      {truth.unsaid.total():10,} answers changed: false where the change was made and the store's "
        f"reply lost ({truth.unsaid[True]} likes, {truth.unsaid[False]} unlikes)",
        f"  counts      {verdict.counts:10,} compared, {verdict.likes:,} likes in them; exact "
        f"{verdict.settled_s:.1f} s after the load",
        f"  wrong       {len(verdict.wrong):10,} counts; {verdict.records_missing} records missing, "
        f"{verdict.records_surplus} too many, {len(verdict.contradictions)} contradicting answers",
        f"  error       {verdict.error:10,}",
    ]
    lines += [f"  WRONG       {difference}" for difference in verdict.wrong[:10]]
    lines += [f"  WRONG       {text}" for text in verdict.contradictions[:10]]
    lines += [f"  FAILED      {reason}" for reason in outcome.faults]
    return lines


def _row(name: str, made: Sequence[Made], wrong_probes: Sequence[str]) -> str:
    """One line; `wrong` are probes written from the fault's beginning until recovery whose count is not 1."""
    late = any(one.back is None for one in made)
    longest = max((one.back - one.over for one in made if one.back is not None), default=0.0)
    wrong = {probe for one in made for probe in one.probes} & {*wrong_probes}
    failed, worst = sum(one.failed for one in made), max((one.worst_lag for one in made), default=0.0)
    back = "NOT BACK" if late else f"{longest:.1f} s"
    return f"  {name:26}{len(made):6}{failed:14,}{worst:12.1f} s{back:>18}{len(wrong):7}"


def _statuses(failures: dict[str, int]) -> str:
    return "calls by status: " + (", ".join(f"{status} {n:,}" for status, n in failures.items()) or "none failed")


if __name__ == "__main__":
    sys.exit(main())
