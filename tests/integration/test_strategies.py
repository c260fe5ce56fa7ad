"""The strategies of `make bench-strategies` in small: what each counts, with and without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.bench.strategies.engine import running
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
def test_under_faults_ours_and_transactions_are_exact_and_the_others_are_not(
    engine: tuple[Engine, Callable[[], None]], way: Way
) -> None:
    strategy = way.make(engine[0], f"faults {way.name}")
    counted, true = faulted(engine[0], strategy, 300, 1, engine[1]), 300 * strategy.increments
    if way.ours or way.name == "row and record":
        assert counted == true
    elif way.name == "one Valkey key":
        assert counted < 0.6 * true
    else:
        assert counted > true


def test_a_seed_gives_the_same_count_every_time(engine: tuple[Engine, Callable[[], None]]) -> None:
    one_row = WAYS[0]
    counted = {faulted(engine[0], one_row.make(engine[0], f"again {n}"), 150, 2, engine[1]) for n in range(2)}
    assert len(counted) == 1
