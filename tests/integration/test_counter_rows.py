"""Rows that two processes write at the same moment, and marks that must stay or may go, over the real engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tallymark.fold import Change, Lane, apply, fold, lane
from tallymark.model import Counter, Target
from tallymark.storage.counter_table import CounterTable
from tests.integration.conftest import Tables
from tests.integration.streams import injected

ONE_ROW = ((0, 1),)  # so that lanes meet in it
# Shards that were created in 2019: a lane lives as long as its table is read.
LANE, OTHER = (lane(f"shardId-00000001573689847184-{n:08x}", ONE_ROW) for n in (1, 2))
NOW_S = 1_770_000_000
HOUR_S = 3600


@pytest.fixture
def counter(target: Target) -> Counter:
    return Counter(target, "like")


def deliver(rows: CounterTable, of: Lane, *changes: Change, now_s: int) -> None:
    left = apply(rows, of, fold(changes), now_s=now_s, pauses=iter([0.0] * 10), sleep=lambda _: None)
    assert left == []


def count(tables: Tables, counter: Counter) -> int:
    return tables.counters.count(counter.target, consistent=True).total


def meanwhile(act: Callable[[], None]) -> Callable[[Any], None]:
    """A fault that does nothing but let another process act, once, before the first request is sent."""
    turns: Iterator[Callable[[], None]] = iter([act])

    def fault(_request: Any) -> None:
        for turn in turns:
            turn()

    return fault


def test_two_lanes_that_make_a_row_at_the_same_moment_are_both_counted(tables: Tables, counter: Counter) -> None:
    def other_makes_it() -> None:
        deliver(tables.new_counters(), OTHER, Change(counter, 1, 1, NOW_S), now_s=NOW_S)

    with injected(tables.client, "BatchExecuteStatement", meanwhile(other_makes_it)):
        deliver(tables.new_counters(), LANE, Change(counter, 1, 1, NOW_S), now_s=NOW_S)
    assert count(tables, counter) == 2


def test_a_like_and_its_removal_in_two_lanes_add_up_to_nothing(tables: Tables, counter: Counter) -> None:
    apart = Lane(OTHER.id, OTHER.row + 1)
    deliver(tables.new_counters(), LANE, Change(counter, 1, 1, NOW_S), now_s=NOW_S)
    deliver(tables.new_counters(), apart, Change(counter, -1, 1, NOW_S), now_s=NOW_S)
    assert count(tables, counter) == 0


@pytest.mark.parametrize("hours", [0, 2, 24, 47])
def test_a_mark_stays_while_its_stream_can_repeat_what_it_covers(tables: Tables, counter: Counter, hours: int) -> None:
    like, later_s = Change(counter, 1, 1, NOW_S), NOW_S + hours * HOUR_S
    deliver(tables.new_counters(), LANE, like, now_s=NOW_S)
    deliver(tables.new_counters(), OTHER, Change(counter, 1, 1, later_s), now_s=later_s)
    deliver(tables.new_counters(), LANE, like, now_s=later_s)
    assert count(tables, counter) == 2


def test_a_mark_that_its_lane_moves_is_not_pruned(tables: Tables, counter: Counter) -> None:
    """The other lane sees an old mark; before it removes it, the lane has counted on."""
    later_s = NOW_S + 50 * HOUR_S
    old, new = Change(counter, 1, 1, NOW_S), Change(counter, 1, 2, later_s)
    deliver(tables.new_counters(), LANE, old, now_s=NOW_S)

    def lane_counts_on() -> None:
        deliver(tables.new_counters(), LANE, new, now_s=later_s)

    with injected(tables.client, "UpdateItem", meanwhile(lane_counts_on)):
        deliver(tables.new_counters(), OTHER, Change(counter, 1, 1, later_s), now_s=later_s)
    deliver(tables.new_counters(), LANE, new, now_s=later_s)
    assert count(tables, counter) == 3


def test_a_write_that_prunes_counts_nothing_that_another_delivery_has_counted_meanwhile(
    tables: Tables, counter: Counter
) -> None:
    later_s = NOW_S + 50 * HOUR_S
    deliver(tables.new_counters(), OTHER, Change(counter, 1, 1, NOW_S), now_s=NOW_S)
    slow = tables.new_counters()
    deliver(slow, LANE, Change(counter, 1, 1, NOW_S + 10 * HOUR_S), now_s=NOW_S + 10 * HOUR_S)  # nothing to prune yet
    again = Change(counter, 1, 2, later_s)

    def slow_delivers_it() -> None:
        deliver(slow, LANE, again, now_s=later_s)

    with injected(tables.client, "UpdateItem", meanwhile(slow_delivers_it)):
        deliver(tables.new_counters(), LANE, again, now_s=later_s)
    assert count(tables, counter) == 3


class Crash(BaseException):
    """The function dies: nothing catches it."""


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_consumer_that_dies_has_counted_once_when_its_record_comes_again(
    tables: Tables, counter: Counter, sent: int
) -> None:
    """It dies instead of sending one more request than that."""
    event_id, like = f"{counter.target.item_id}#1", Change(counter, 1, 1, NOW_S)
    left = iter(range(sent))

    def dies(_request: Any) -> None:
        if next(left, None) is None:
            raise Crash

    with injected(tables.client, "*", dies), contextlib.suppress(Crash):
        tables.adjustments.add_once(event_id, like, NOW_S)
    tables.adjustments.add_once(event_id, like, NOW_S)
    assert count(tables, counter) == 1
