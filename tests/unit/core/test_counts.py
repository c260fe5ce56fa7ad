from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tallymark import counts
from tallymark.counts import Peeked, ProcessCache, Sources, counts_of, fresh_counts_of
from tallymark.model import Count, Target

A, B = Target("post", "a"), Target("post", "b")
TTL_MS = 200

LikePeeked = Peeked[Count]


class Clock:
    """Milliseconds that pass when told to, or when something sleeps."""

    def __init__(self) -> None:
        self.ms = 10_000

    def now_ms(self) -> int:
        return self.ms

    def sleep(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


@dataclass
class Rows:
    """The table; `down` holds targets that it does not answer for."""

    clock: Clock
    likes: dict[Target, int] = field(default_factory=dict)
    down: set[Target] = field(default_factory=set)
    asked: list[tuple[Target, bool]] = field(default_factory=list)

    def counts(self, targets: Sequence[Target], *, consistent: bool) -> list[Count | None]:
        self.asked += [(target, consistent) for target in targets]
        return [
            None if target in self.down else Count({"like": self.likes.get(target, 0)}, self.clock.ms)
            for target in targets
        ]


@dataclass
class Shared:
    """A shared cache that answers from a script; an answer of None is a cache that is gone."""

    clock: Clock
    script: dict[Target, list[LikePeeked | None]]
    filled: list[tuple[Target, int, Count]] = field(default_factory=list)
    peeks: list[list[Target]] = field(default_factory=list)

    def peek(self, targets: Sequence[Target], now_ms: int) -> list[LikePeeked] | None:
        assert now_ms == self.clock.ms
        self.peeks.append(list(targets))
        answers = [
            self.script[target].pop(0) if len(self.script[target]) > 1 else self.script[target][0] for target in targets
        ]
        return None if None in answers else [answer for answer in answers if answer is not None]

    def fill(self, filled: Sequence[tuple[Target, int, Count]]) -> None:
        self.filled += filled


@dataclass
class World:
    """Sources over one clock."""

    script: dict[Target, list[LikePeeked | None]] | None = None

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.rows = Rows(self.clock, {A: 5, B: 7})
        self.shared = None if self.script is None else Shared(self.clock, self.script)
        self.sources = Sources[Target, Count](
            ProcessCache(TTL_MS), self.shared, self.rows, self.clock.now_ms, self.clock.sleep
        )

    def totals(self, *targets: Target) -> list[int | None]:
        return [None if found is None else found.total for found in counts_of(self.sources, targets)]


def count(likes: int, as_of_ms: int = 9_000) -> Count:
    return Count({"like": likes}, as_of_ms)


FRESH: LikePeeked = Peeked(count(3), None)
STALE: LikePeeked = Peeked(count(3), 41)
FIRST: LikePeeked = Peeked(None, 41)
HERD: LikePeeked = Peeked(None, None)


# --- this process -----------------------------------------------------------------------------------------------


def test_a_count_is_kept_in_the_process_for_a_moment() -> None:
    world = World()
    assert world.totals(A) == [5]
    world.rows.likes[A] = 6
    world.clock.ms += TTL_MS - 1
    assert world.totals(A) == [5]
    world.clock.ms += 1
    assert world.totals(A) == [6]


def test_an_older_count_never_overwrites_a_newer_one_in_the_process() -> None:
    cache = ProcessCache[Target, Count](TTL_MS)
    cache.put(A, count(6, as_of_ms=200))
    cache.put(A, count(5, as_of_ms=100))
    assert cache.get(A, 201) == count(6, as_of_ms=200)


def test_what_is_hot_stays_in_the_process_longer_than_a_short_age() -> None:
    cache = ProcessCache[Target, Count](0, {A})
    for target in (A, B):
        cache.put(target, count(6, as_of_ms=100))
    assert [cache.get(A, 100 + counts.HOT_AGE_MS - age) is not None for age in (1, 0)] == [True, False]
    assert cache.get(B, 100) is None


def test_the_process_keeps_the_counts_that_were_put_last() -> None:
    cache = ProcessCache[Target, Count](TTL_MS, most=2)
    for i in range(3):
        cache.put(Target("post", str(i)), count(i))
    assert [cache.get(Target("post", str(i)), 0) is not None for i in range(3)] == [False, True, True]


def test_each_target_is_asked_for_once_and_answered_in_the_order_asked() -> None:
    world = World()
    assert world.totals(B, A, B) == [7, 5, 7]
    assert world.rows.asked == [(B, False), (A, False)]
    assert world.totals() == []


def test_a_count_that_cannot_be_had_is_unknown_and_is_asked_for_again() -> None:
    world = World()
    world.rows.down = {A}
    assert world.totals(A, B) == [None, 7]
    world.rows.down = set()
    assert world.totals(A, B) == [5, 7]


def test_fresh_counts_pass_every_cache_and_are_read_consistently() -> None:
    world = World({A: [FRESH]})
    assert world.totals(A) == [3]
    (found,) = fresh_counts_of(world.sources, [A])
    assert found is not None
    assert found.total == 5
    assert world.rows.asked == [(A, True)]
    assert world.totals(A) == [5], "what was read is the newest that this process knows"


# --- the shared cache -------------------------------------------------------------------------------------------


def test_a_count_in_the_shared_cache_is_served_without_a_query() -> None:
    world = World({A: [FRESH]})
    assert world.totals(A) == [3]
    assert world.rows.asked == []
    assert world.shared is not None
    assert world.shared.filled == []


@pytest.mark.parametrize("peeked", [STALE, FIRST])
def test_who_holds_the_token_refreshes_and_fills_under_it(peeked: LikePeeked) -> None:
    world = World({A: [peeked]})
    assert world.totals(A) == [5]
    assert world.rows.asked == [(A, False)]
    assert world.shared is not None
    assert world.shared.filled == [(A, 41, count(5, world.clock.ms))]


def test_a_stale_count_is_served_when_the_refresh_fails_and_nothing_is_filled() -> None:
    world = World({A: [STALE]})
    world.rows.down = {A}
    assert world.totals(A) == [3]
    assert world.shared is not None
    assert world.shared.filled == []


def test_the_herd_waits_for_the_one_that_reads_first() -> None:
    world = World({A: [HERD, HERD, FRESH]})
    began_ms = world.clock.ms
    assert world.totals(A) == [3]
    assert world.rows.asked == []
    assert world.clock.ms - began_ms == 30


def test_only_the_targets_that_another_reads_are_waited_for() -> None:
    world = World({A: [HERD, FRESH], B: [FRESH]})
    assert world.totals(A, B) == [3, 3]
    assert world.shared is not None
    assert world.shared.peeks == [[A, B], [A]]


def test_who_waited_takes_over_when_the_first_reader_died() -> None:
    world = World({A: [HERD, FIRST]})
    assert world.totals(A) == [5]
    assert world.shared is not None
    assert [(target, token) for target, token, _ in world.shared.filled] == [(A, 41)]


def test_the_wait_has_an_end_and_then_the_rows_are_read_without_filling() -> None:
    world = World({A: [HERD]})
    began_ms = world.clock.ms
    assert world.totals(A) == [5]
    assert world.clock.ms - began_ms == 150
    assert world.shared is not None
    assert world.shared.filled == []


@pytest.mark.parametrize("script", [[None], [HERD, None]])
def test_a_shared_cache_that_is_gone_fails_nothing(script: list[LikePeeked | None]) -> None:
    world = World({A: script, B: script[:]})
    assert world.totals(A, B) == [5, 7]
    assert world.shared is not None
    assert world.shared.filled == []


def test_a_process_does_not_go_back_behind_a_count_that_it_has_shown() -> None:
    world = World({A: [FRESH]})
    fresh_counts_of(world.sources, [A])
    world.clock.ms += TTL_MS
    assert world.totals(A) == [5]
