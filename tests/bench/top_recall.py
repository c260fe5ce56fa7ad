"""How many of the true top 100 the top lists know, and which sketch finds them in how little memory.

    .venv/bin/python -m tests.bench.top_recall
    .venv/bin/python -m tests.bench.top_recall --events 300000

The views of MovieLens, in the file's order (user by user, which is hard), and synthetic events by a Zipf law over a
million items. Events come as the aggregator folds them, 1,000 to a batch. Two tables: the sketches by themselves, each
in about the memory of the others (Space-Saving against HeavyKeeper), and the lists of the service end to end: kept by
`TopLists`, stored as they are stored, gone on with by one process after another, read by `TopRows`. Exit code 1 when
the service's recall is below 0.98. Basis of docs/decisions/0018.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import platform
import sys
import time
import tracemalloc
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from tallymark.model import MS_PER_HOUR, Count, Counter, HourlyMetric, Target
from tallymark.sketch import SpaceSaving, Summary, merged
from tallymark.storage.top_table import _pack
from tallymark.top import CAPACITY, KEPT, Addition, Grain, Place, Stored, TopKey, TopLists, TopMetric, TopRows
from tests.bench.events import ROOT
from tests.bench.heavy_keeper import HeavyKeeper

DATA = Path(os.environ.get("TALLYMARK_DATA") or ROOT.parent / "shared" / "data" / "movielens-small")
RATINGS = DATA / "ratings.csv"
BATCH, FIRST, WANTED = 1_000, 100, 0.98
UNIVERSE = 1_000_000
SECONDS = 5  # between batches: 200 events a second
LIFE = 1_000  # batches that one process folds, 80 minutes; half of them where there are fewer
NOW_MS = 490_000 * MS_PER_HOUR

Batch = Mapping[Target, int]
S = TypeVar("S", SpaceSaving[Target], HeavyKeeper[Target])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="synthetic events")
    parser.add_argument("--skew", type=float, default=1.0, help="exponent of the Zipf law")
    asked = parser.parse_args(arguments)
    print(f"{platform.machine()}, Python {platform.python_version()}; recall of the true top {FIRST}")
    streams = {f"{asked.events:,} events, Zipf {asked.skew}": zipf(asked.events, asked.skew)}
    if RATINGS.exists():
        streams["MovieLens views"] = movielens()
    missed = False
    for name, batches in streams.items():
        print(f"\n{name}")
        for found in compared(batches):
            print(found)
        served = service(batches)
        print(served)
        missed |= served.recall < WANTED
    print(f"\nthe service's recall is {'below' if missed else 'at least'} {WANTED} {'somewhere' if missed else ''}")
    return int(missed)


def zipf(events: int, skew: float) -> list[Batch]:
    rng = Random(1)
    cumulated = list(itertools.accumulate(rank**-skew for rank in range(1, UNIVERSE + 1)))
    items = [Target("item", str(number)) for number in range(UNIVERSE)]
    return [Tally(rng.choices(items, cum_weights=cumulated, k=BATCH)) for _ in range(events // BATCH)]


def movielens() -> list[Batch]:
    with RATINGS.open(newline="") as file:
        films = [Target("film", row["movieId"]) for row in csv.DictReader(file)]
    return [Tally(films[i : i + BATCH]) for i in range(0, len(films), BATCH)]


def truth_of(batches: Sequence[Batch]) -> Tally[Target]:
    truth = Tally[Target]()
    for batch in batches:
        truth.update(batch)
    return truth


def recall(found: Sequence[Target], truth: Mapping[Target, int]) -> float:
    """Who has as much as the last of the first counts as one of them."""
    ordered = sorted(truth.values(), reverse=True)[:FIRST]
    return sum(truth[target] >= ordered[-1] for target in found[:FIRST]) / len(ordered)


# --- sketches by themselves -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """One row of the table."""

    name: str
    recall: float
    bytes: int
    per_second: float
    more: str = ""

    def __str__(self) -> str:
        return (
            f"  {self.name:34} recall {self.recall:5.3f}   {self.bytes / 1024:7,.0f} KB   "
            f"{self.per_second:9,.0f} updates/s   {self.more}"
        )


def compared(batches: Sequence[Batch]) -> Iterator[Found]:
    truth = truth_of(batches)
    for capacity in (CAPACITY // 4, CAPACITY // 2, CAPACITY):
        sketch, seconds = kept(lambda c=capacity: SpaceSaving[Target](c), batches)  # type: ignore[misc]
        first = ranked(sketch.summary().bounds, truth)
        size = memory(lambda c=capacity: SpaceSaving[Target](c), batches)  # type: ignore[misc]
        yield Found(f"Space-Saving, {capacity:,} items", recall(first, truth), size, updates(batches) / seconds)
    for bits in (11, 13, 15):
        keeper, seconds = kept(lambda b=bits: HeavyKeeper[Target](KEPT, b, Random(1)), batches)  # type: ignore[misc]
        first = ranked(keeper.estimates, truth)
        size = memory(lambda b=bits: HeavyKeeper[Target](KEPT, b, Random(1)), batches)  # type: ignore[misc]
        yield Found(
            f"HeavyKeeper, {KEPT} items, 2 x {1 << bits:,}", recall(first, truth), size, updates(batches) / seconds
        )


def kept(make: Callable[[], S], batches: Sequence[Batch]) -> tuple[S, float]:
    sketch, begun = make(), time.perf_counter()
    for batch in batches:
        for target, number in batch.items():
            sketch.add(target, number)
    return sketch, time.perf_counter() - begun


def updates(batches: Sequence[Batch]) -> int:
    return sum(len(batch) for batch in batches)


def ranked(estimates: Mapping[Target, int], truth: Mapping[Target, int]) -> list[Target]:
    """As an answer is made: the heaviest as the sketch has them, 350 of them, by their true numbers."""
    candidates = sorted(estimates, key=lambda target: -estimates[target])[: 3 * FIRST + 50]
    return sorted(candidates, key=lambda target: -truth[target])


def memory(make: Callable[[], SpaceSaving[Target] | HeavyKeeper[Target]], batches: Sequence[Batch]) -> int:
    """Bytes of a full sketch with items of its own, as a process has them."""
    tracemalloc.start()
    sketch = make()
    for batch in batches[:100]:
        for target, number in batch.items():
            sketch.add(Target(target.item_type, "".join(target.item_id)), number)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


# --- the service's lists ----------------------------------------------------------------------------------------


class Store:
    """What the lists are stored in, and what storing them costs."""

    def __init__(self) -> None:
        self.lists: dict[Place, Stored] = {}
        self.saves = self.units = 0

    def load(self, places: Sequence[Place]) -> list[Stored]:
        return [self.lists.get(place, Stored(Summary())) for place in places]

    def save(self, writes: Sequence[tuple[Place, Stored, Stored]]) -> list[Stored]:
        for place, mine, _ in writes:
            self.lists[place] = mine
            self.saves += 1
            self.units += -(-len(_pack(mine.summary)) // 1024)
        return [mine for _, mine, _ in writes]

    def between(
        self, metric: TopMetric, item_type: str | None, grain: Grain, first: int, last: int
    ) -> list[Summary[Target]]:
        return [
            stored.summary
            for (key, _), stored in self.lists.items()
            if (key.metric, key.item_type, key.grain) == (metric, item_type, grain) and first <= key.period <= last
        ]


@dataclass(frozen=True)
class Truth:
    """Exact totals, in place of the counter rows."""

    numbers: Mapping[Target, int]

    def count(self, target: Target, *, consistent: bool) -> Count:
        return Count({"like": self.numbers[target]}, NOW_MS)

    def total(self, counter: Counter, *, consistent: bool) -> dict[str, int]:
        return {"n": self.numbers[counter.target]}

    def days(self, target: Target, metric: HourlyMetric, first: int, last: int) -> dict[int, dict[str, int]]:
        return {NOW_MS // MS_PER_HOUR // 24: {f"n{NOW_MS // MS_PER_HOUR % 24:02d}": self.numbers[target]}}

    def each(self, asked: Sequence[Target], read: Callable[[Target], int]) -> list[int | None]:
        return [read(target) for target in asked]


def none_lost(lists: int) -> None:
    raise AssertionError(f"{lists} lists found no room, though the store takes all")


def service(batches: Sequence[Batch]) -> Found:
    """All events counted for one hour, whenever they come; the answer for the last 24 hours."""
    store, truth = Store(), truth_of(batches)
    lists, seconds, hour = TopLists(store, 0, none_lost), 0.0, NOW_MS // MS_PER_HOUR
    for number, batch in enumerate(batches):
        if number % min(LIFE, len(batches) // 2) == 0:
            lists = TopLists(store, 0, none_lost)
        added = [Addition("views", target, hour, views) for target, views in batch.items()]
        begun = time.perf_counter()
        lists.add(added, NOW_MS + 1_000 * SECONDS * number, lambda: True)
        seconds += time.perf_counter() - begun
    tops = TopRows(store, Truth(truth), lambda: NOW_MS)
    (top,) = tops.counts([TopKey("views", "24h", None, FIRST)], consistent=False)
    (ten,) = tops.counts([TopKey("views", "24h", None, 10)], consistent=False)
    assert top is not None
    assert ten is not None
    found = [target for target, _ in top.entries]
    size = sum(len(_pack(stored.summary)) for stored in store.lists.values())
    floor = merged(store.between("views", None, "hour", hour, hour)).floor
    proven = f"proven: {ten.proven} of 10, {top.proven} of 100"
    more = f"{store.units:,} write units in {store.saves:,} writes; floor {floor:,}; {proven}"
    return Found("the service, six lists stored", recall(found, truth), size, updates(batches) / seconds, more)


if __name__ == "__main__":
    sys.exit(main())
