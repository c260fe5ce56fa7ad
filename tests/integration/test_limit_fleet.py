"""A limit over processes that share nothing but Valkey: tests/bench/limit_fleet.py, made small."""

from __future__ import annotations

from collections import Counter

import pytest

from infra.local.cache import Cache
from tests.bench.limit_fleet import SECOND, Outcome, Plan, run, verdict

SMALL = Plan(processes=6, limit=20, window_s=2, windows=2.5)


def test_processes_together_get_the_limit_in_any_window_and_not_a_hit_more(valkey: Cache) -> None:
    lines, faults = verdict(SMALL, run(SMALL, valkey.url))
    assert not faults, "\n".join([*lines, *faults])


def log(*starts_us: int) -> list[int]:
    """Twenty hits from each start on, a millisecond apart."""
    return [start + n * 1000 for start in starts_us for n in range(SMALL.limit)]


@pytest.mark.parametrize(
    ("found", "answered", "right"),
    [
        (log(0, 2 * SECOND), 40, True),
        (log(0, 2 * SECOND), 41, False),
        (log(0, 2 * SECOND), 39, False),
        (log(0, 2 * SECOND - 1), 40, False),
        (log(0), 20, False),
        ([*log(0, 2 * SECOND)[:-1]], 39, False),
        ([], 0, False),
    ],
)
def test_the_verdict_sees_a_hit_too_many_and_one_too_few(found: list[int], answered: int, right: bool) -> None:
    outcome = Outcome(Counter(allowed=answered, refused=9), found, 5 * SECOND)
    assert (not verdict(SMALL, outcome)[1]) == right
