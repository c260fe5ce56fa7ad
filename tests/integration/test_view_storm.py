"""A small storm of views through a stack of its own: what `make bench-storm` prints, without the times."""

from __future__ import annotations

from tests.bench.view_storm import storm


def test_a_storm_of_views_is_counted_exactly_for_few_write_units() -> None:
    done = storm(views=2_010, clients=8, singles=0, seed=7)
    assert done.faults == []
    assert (done.calls, done.seen) == (81, 2_010)
    assert done.calls <= done.units["events"] <= done.calls + 20  # beside events, whose turn it is to keep visitors
