"""Everybody at once for too little: 200 acquires of 1 on a limit of 50, while calls fail and functions die.

    .venv/bin/python -m tests.bench.quota_race
    .venv/bin/python -m tests.bench.quota_race --rounds 20 --seed 7

Over an emulator of its own. A fault meets one call of the store in five: throttled, failed or lost before it or after
it took effect, in conflict, or the function dies before or after it. Whoever got no answer asks again with the same
token, as clients do. Exits 1 unless every round grants 50 and refuses 150.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tallymark import quotas
from tallymark.errors import Exhausted, Unavailable
from tallymark.quotas import ProcessMarks, Quotas
from tallymark.runtime.wiring import now_ms
from tallymark.storage.quota_table import QuotaTable
from tests.bench.tables import own_table
from tests.faults.injection import (
    Died,
    Sent,
    dies_after,
    dies_before,
    failed_after,
    failed_before,
    lost_before,
    read_timeout,
    reply_lost,
    throttled,
    transaction_in_conflict,
)
from tests.hooks import hooked

CALLERS, LIMIT, ROUNDS, PROCESSES, POOLS = 200, 50, 200, 8, 8
FAULT_RATE = 0.2
READS, WRITE = ("GetItem", "BatchGetItem", "Query"), "TransactWriteItems"
OF_ALL: Sequence[Callable[[Sent], Any]] = (throttled, failed_before, lost_before, reply_lost, dies_before, dies_after)
OF_WRITES = (*OF_ALL, failed_after, read_timeout, transaction_in_conflict)


@dataclass(frozen=True)
class Outcome:
    """Of one round."""

    granted: int
    refused: int
    used: int  # as the quota says in the end
    faults: Counter[str]

    @property
    def exact(self) -> bool:
        return (self.granted, self.refused, self.used) == (LIMIT, CALLERS - LIMIT, LIMIT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    with own_table("quotas") as client:
        for round_number in range(options.rounds):
            outcomes.append(race(client, "quotas", options.seed + round_number))
            if not outcomes[-1].exact or (round_number + 1) % 20 == 0:
                print(
                    f"  round {round_number + 1:4}  {time.monotonic() - begun:5.0f} s  {_said(outcomes[-1])}",
                    flush=True,
                )
    granted = Counter(outcome.granted for outcome in outcomes)
    faults = sum((outcome.faults for outcome in outcomes), Counter[str]())
    print(f"\n{CALLERS} acquires of 1 on a limit of {LIMIT}, {len(outcomes)} times; {time.monotonic() - begun:.0f} s")
    print("  granted   rounds")
    for number, rounds in sorted(granted.items()):
        print(f"  {number:7}   {rounds:6}")
    print(f"  faults  {faults.total():,}: " + ", ".join(f"{name} {n:,}" for name, n in faults.most_common()))
    wrong = [outcome for outcome in outcomes if not outcome.exact]
    print("  EXACT in every round" if not wrong else f"  WRONG in {len(wrong)} rounds")
    return int(bool(wrong))


def _said(outcome: Outcome) -> str:
    return f"granted {outcome.granted}, refused {outcome.refused}, used {outcome.used}, faults {outcome.faults.total()}"


def race(client: Any, table: str, seed: int) -> Outcome:
    """One round on a quota of its own: all begin together, and each asks until it has an answer."""
    name = f"race-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(POOLS * 2) as executor, ThreadPoolExecutor(CALLERS) as callers:
        processes = [_process(client, table, executor, random.Random(seed * 1000 + n)) for n in range(PROCESSES)]
        quotas.put(processes[0], name, LIMIT)

        def ask(n: int) -> bool:
            for attempt in range(1000):
                try:
                    quotas.acquire(processes[(n + attempt) % PROCESSES], name, f"token-{n}", 1)
                except Exhausted:
                    return False
                except (Unavailable, Died):
                    continue
                return True
            raise AssertionError("a call that is never answered")

        with faults(client, random.Random(seed)) as made:
            answers = list(callers.map(ask, range(CALLERS)))
        used = quotas.state(processes[0], name).used
    return Outcome(sum(answers), CALLERS - sum(answers), used, made)


def _process(client: Any, table: str, executor: ThreadPoolExecutor, rng: random.Random) -> Quotas:
    marks = ProcessMarks(lambda: time.monotonic_ns() // 1000)
    return Quotas(QuotaTable(client, table, executor, POOLS), marks, now_ms, time.sleep, rng, POOLS)


@contextmanager
def faults(client: Any, rng: random.Random) -> Iterator[Counter[str]]:
    """Makes them meanwhile, and counts them."""
    made: Counter[str] = Counter()

    def hook(operation: str) -> Callable[..., Any]:
        def before_send(request: Any, **_: Any) -> Any:
            if rng.random() >= FAULT_RATE:
                return None
            kind = rng.choice(OF_WRITES if operation == WRITE else OF_ALL)
            made[kind.__name__] += 1
            return kind(Sent(request, operation, client, rng))

        return before_send

    with hooked(client, {f"before-send.dynamodb.{operation}": hook(operation) for operation in (*READS, WRITE)}):
        yield made


if __name__ == "__main__":
    sys.exit(main())
