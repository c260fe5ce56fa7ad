"""Runs of one strategy: as fast as it goes, and under faults."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from unittest.mock import patch

from botocore.retries.standard import ExponentialBackoff

from tallymark.aggregation import Record
from tallymark.fold import Lane
from tests.bench.strategies.faults import FATES, UNANSWERED, Fate, Faults, fates
from tests.bench.strategies.ways import Aggregator, Engine, Folded, Strategy, lane_of
from tests.bench.units import read_units, written
from tests.faults.injection import Died
from tests.integration.test_capacity import metered

CLIENTS = 8
BATCH = 100  # records of a lane that are folded together; a busier stream has more
READS = 100
POLL_S = 0.1  # Lambda reads a stream 4 times a second

# Deliveries under faults, of which there are far fewer than calls.
ENVIRONMENTS = 2
MOST_RECORDS = 50
DELIVERED_AGAIN, CUT_DIFFERENTLY, MEETS_A_FAULT = 0.25, 0.25, 0.25


@dataclass(frozen=True)
class Run:
    """Some calls, as fast as they went, until all that they add was in the count."""

    increments: int
    seconds: float
    units: float
    counted: int
    read_units: float
    read_ms: float

    @property
    def per_second(self) -> float:
        return self.increments / self.seconds

    @property
    def units_per_1000(self) -> float:
        return self.units * 1000 / self.increments


def fast(engine: Engine, strategy: Strategy, calls: int) -> Run:
    """Eight clients, and for ours an aggregator beside them."""
    made_before = isinstance(strategy, Folded) and not strategy.recorded
    if made_before:
        for number in range(calls):
            strategy.write(number)
    numbers = iter(range(calls))
    with ExitStack() as meters:
        noted = [meters.enter_context(metered(client)) for client in (engine.client, engine.folder)]
        begun = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(_client, strategy, numbers) for _ in range(0 if made_before else CLIENTS)]
            if isinstance(strategy, Folded):
                _deliver(strategy, Aggregator(engine), lambda: all(client.done() for client in clients))
            for client in clients:
                client.result()
        seconds = time.perf_counter() - begun
        units = sum(sum(written(calls_of).values()) for calls_of in noted)
    items = strategy.items()
    return Run(
        increments=calls * strategy.increments,
        seconds=seconds,
        units=units,
        counted=strategy.read(),
        read_units=read_units(items) if items else 0.0,
        read_ms=statistics.median(_timed_read(strategy) for _ in range(READS)),
    )


def _client(strategy: Strategy, numbers: Iterator[int]) -> None:
    for number in numbers:
        strategy.write(number)


def _timed_read(strategy: Strategy) -> float:
    begun = time.perf_counter()
    strategy.read()
    return (time.perf_counter() - begun) * 1000


def _deliver(strategy: Folded, aggregator: Aggregator, finished: Callable[[], bool]) -> None:
    """Full batches as they fill, and the rest once nothing more comes."""
    waiting: dict[Lane, list[Record]] = {}
    while True:
        last = finished()  # before the look: what was written by then is seen
        arrived = strategy.arrived()
        for record in arrived:
            waiting.setdefault(lane_of(record), []).append(record)
        for lane, records in waiting.items():
            while len(records) >= BATCH or (last and records):
                aggregator.take(records[:BATCH], lane)
                del records[:BATCH]
        if last:
            return
        time.sleep(POLL_S)


# --- under faults ---------------------------------------------------------------------------------------------


def faulted(engine: Engine, strategy: Strategy, calls: int, seed: int, restart_valkey: Callable[[], None]) -> int:
    """What is counted in the end. One call at a time and no pauses, so that a seed gives the same count every time.

    Each call is made until it is answered. Valkey restarts in the middle.
    """
    plan = fates(seed)
    recorded = not isinstance(strategy, Folded) or strategy.recorded
    with (
        engine.faults.over(engine.client),
        engine.faults.over(engine.folder),
        patch.object(ExponentialBackoff, "delay_amount", lambda *_: 0.0),
    ):
        for number in range(calls):
            if number == calls // 2:
                restart_valkey()
            if recorded:
                _call(engine.faults, strategy, number, next(plan))
            else:
                strategy.write(number)
        if isinstance(strategy, Folded):
            _deliver_under_faults(engine, strategy, random.Random(seed))
    return strategy.read()


def _call(faults: Faults, strategy: Strategy, number: int, fate: Fate) -> None:
    faults.coming.extend(fate.attempts)
    while True:
        try:
            strategy.write(number)
        except UNANSWERED:
            faults.coming.clear()
        else:
            break
    if fate.sent_twice:
        strategy.write(number)


def _deliver_under_faults(engine: Engine, strategy: Folded, rng: random.Random) -> None:
    """In order the first time; again, cut differently, and to processes with memories of their own."""
    lanes: dict[Lane, list[Record]] = {}
    for record in strategy.arrived():
        lanes.setdefault(lane_of(record), []).append(record)
    taken = dict.fromkeys(lanes, 0)
    environments = [Aggregator(engine) for _ in range(ENVIRONMENTS)]
    while open_lanes := [lane for lane in lanes if taken[lane] < len(lanes[lane])]:
        lane = rng.choice(open_lanes)
        end = taken[lane] + rng.randint(1, MOST_RECORDS)
        back = rng.randint(0, MOST_RECORDS) if rng.random() < CUT_DIFFERENTLY else 0
        batch = lanes[lane][max(0, taken[lane] - back) : end]
        if rng.random() < MEETS_A_FAULT:
            engine.faults.coming.extend(rng.choice([fate.attempts for fate in FATES if fate.attempts]))
        environment = rng.randrange(ENVIRONMENTS)
        try:
            environments[environment].take(batch, lane)
        except Died:
            environments[environment] = Aggregator(engine)
            continue
        except UNANSWERED:
            continue
        finally:
            engine.faults.coming.clear()
        if rng.random() >= DELIVERED_AGAIN:
            taken[lane] = end
