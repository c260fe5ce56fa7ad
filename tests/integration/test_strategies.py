"""The strategies of `make bench-strategies` in small: what each counts, with and without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from tests.bench.strategies.engine import running
from tests.bench.strategies.faults import fates
from tests.bench.strategies.measuring import fast, faulted
from tests.bench.strategies.ways import WAYS, Engine, Way

UNITS = {"one row": 1000, "64 rows": 1000, "row and record": 4000, "one Valkey key": 0}


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Engine, Callable[[], None]]]:
    with running() as made:
        yield made


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_strategy_is_exact_while_nothing_fails(engine: tuple[Engine, Callable[[], None]], way: Way) -> None:
    run = fast(engine[0], way.make(engine[0], f"calm {way.name}"), 120)
    assert run.counted == run.increments
    if way.name in UNITS:
        assert run.units_per_1000 == UNITS[way.name]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_under_faults_a_token_keeps_the_count_exact_and_without_one_each_repeat_counts(
    engine: tuple[Engine, Callable[[], None]], way: Way
) -> None:
    calls, seed = 300, 39  # with which every fate comes in both halves
    strategy = way.make(engine[0], f"faults {way.name}")
    counted = faulted(engine[0], strategy, calls, seed, engine[1])
    effects = [fate.effects for fate in islice(fates(seed), calls)]
    if way.ours or way.name == "row and record":
        assert counted == calls * strategy.increments
    elif way.name == "one Valkey key":
        assert counted == sum(effects[calls // 2 :])  # it restarted in the middle
    else:
        assert counted == sum(effects)
