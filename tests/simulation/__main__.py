"""python -m tests.simulation: many worlds, until as many as wanted have been run and records delivered.

Exits with 1 if any world miscounts, and says how to run that world alone.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .world import FAULT_KINDS, Report, World, run

SHOWN_EVERY_S = 2.0


@dataclass
class Total:
    """The sum of the worlds that have ended."""

    worlds: int = 0
    records: int = 0
    delivered: int = 0
    settled: int = 0
    error: int = 0
    lost: int = 0
    twice: int = 0
    tally: Tally[str] = field(default_factory=Tally)
    inexact: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.worlds += 1
        self.records += report.records
        self.delivered += report.delivered
        self.settled += report.settled
        self.error += report.error
        self.lost += report.lost
        self.twice += report.twice
        self.tally += report.tally
        if not report.exact:
            self.inexact.append(report)

    @property
    def faults(self) -> int:
        return sum(self.tally[kind] for kind in FAULT_KINDS)


def reports(first_seed: int, jobs: int) -> Iterator[Report]:
    """The worlds of all seeds from the first on, without an end, in the order in which they end."""
    if jobs == 1:
        yield from map(run, itertools.count(first_seed))
    with multiprocessing.get_context("fork").Pool(jobs, _end_with, (os.getpid(),)) as pool:
        for start in itertools.count(first_seed, 100 * jobs):
            yield from pool.imap_unordered(run, range(start, start + 100 * jobs), chunksize=5)


def _end_with(parent: int) -> None:
    """A process of the pool ends when its parent is gone, however that ended."""

    def watch() -> None:
        never = threading.Event()
        while os.getppid() == parent:
            never.wait(1.0)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent
    threading.Thread(target=watch, daemon=True).start()


def simulate(first_seed: int, worlds: int, records: int, jobs: int) -> Total:
    """Runs worlds until both numbers are reached, and shows how far it is."""
    total = Total()
    began = shown = time.monotonic()
    for report in reports(first_seed, jobs):
        total.add(report)
        if not report.exact:
            print(f"\nworld {report.seed} miscounts:", *report.problems, sep="\n  ")
            print(f"  reproduce it alone: python -m tests.simulation --world {report.seed} -v", flush=True)
        done = total.worlds >= worlds and total.delivered >= records
        if done or time.monotonic() - shown > SHOWN_EVERY_S:
            shown = time.monotonic()
            end = "\r" if sys.stdout.isatty() else "\n"
            print(
                f"{shown - began:4.0f} s  {total.worlds:,} worlds  {total.delivered:,} records delivered  "
                f"{total.faults:,} faults  error {total.error}  lost {total.lost}  twice {total.twice}  ",
                end=end,
                flush=True,
            )
        if done:
            break
    print(f"\nin {time.monotonic() - began:.0f} s, seeds from {first_seed}")
    return total


def show(total: Total) -> None:
    rows = [
        ("worlds", total.worlds),
        ("likes and unlikes recorded", total.records),
        ("records delivered to the aggregator", total.delivered),
        ("parked records settled", total.settled),
        ("", None),
        *sorted(total.tally.items()),
        ("", None),
        ("faults in all", total.faults),
        ("error: sum of the differences between counts and records", total.error),
        ("records lost", total.lost),
        ("records counted twice", total.twice),
        ("worlds that are not exact", len(total.inexact)),
    ]
    for name, number in rows:
        print(f"{name:60}{'' if number is None else format(number, ',')}".rstrip())
    if total.inexact:
        print("\nnot exact:", *(f"python -m tests.simulation --world {r.seed} -v" for r in total.inexact), sep="\n  ")


def alone(seed: int, *, verbose: bool) -> Report:
    """One world, with its history where wanted."""
    report = World(seed, say=print if verbose else None).run()
    print(
        f"world {seed}: {report.records} likes and unlikes, {report.delivered} delivered, error {report.error}, "
        f"lost {report.lost}, twice {report.twice}, history {report.digest}"
    )
    for problem in report.problems:
        print(f"  {problem}")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=2_000, help="run at least so many (%(default)s)")
    parser.add_argument("--records", type=int, default=5_000_000, help="deliver at least so many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first world (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--world", type=int, metavar="SEED", help="run this world alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --world: tell its whole history")
    chosen = parser.parse_args(arguments)
    if chosen.world is not None:
        return 0 if alone(chosen.world, verbose=chosen.verbose).exact else 1
    total = simulate(chosen.seed, chosen.worlds, chosen.records, chosen.jobs)
    show(total)
    return 1 if total.inexact else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
