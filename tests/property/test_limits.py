"""Sliding windows: never more than the limit in any window, and what is refused uses up nothing."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from tallymark import limits
from tallymark.limits import ProcessWindows, seconds, whole_seconds
from tallymark.model import LimitKey
from tests.property.windows import LONGEST_S, MOST, SECOND, A, B, Model, Step, keys, pauses, steps

WINDOW_S, WINDOW = LONGEST_S, LONGEST_S * SECOND
calls = st.lists(st.tuples(pauses, keys, st.integers(1, 5)), max_size=60)
limit = st.integers(1, 6)


class VirtualClock:
    """Microseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_us = 1000 * SECOND

    def __call__(self) -> int:
        return self.now_us


@given(calls, limit)
def test_no_window_ever_holds_more_than_the_limit(calls: list[tuple[int, LimitKey, int]], limit: int) -> None:
    clock = VirtualClock()
    windows = ProcessWindows(clock, WINDOW_S)
    allowed: dict[LimitKey, list[int]] = defaultdict(list)
    for pause_us, key, wanted in calls:
        clock.now_us += pause_us
        granted = windows.take({key: wanted}, limit, WINDOW_S)[key].granted
        assert 0 <= granted <= wanted
        allowed[key] += [clock.now_us] * granted
    for log in allowed.values():
        for begin in log:
            assert sum(begin <= moment < begin + WINDOW for moment in log) <= limit


@given(steps(pauses))
def test_each_call_is_judged_by_its_own_numbers_over_all_that_was_allowed(calls: list[Step]) -> None:
    clock, model = VirtualClock(), Model()
    with patch.object(limits, "MAX_CALLS", MOST):
        windows = ProcessWindows(clock, LONGEST_S)
        for step in calls:
            clock.now_us += step.pause_us
            taken = windows.take({step.key: step.wanted}, step.limit, step.window_s)[step.key]
            assert taken == model.take(step, clock.now_us)
            assert taken.reset_after_us > 0


@given(calls, limit)
def test_after_the_wait_that_a_refusal_names_a_call_is_allowed_and_a_moment_before_it_is_not(
    calls: list[tuple[int, LimitKey, int]], limit: int
) -> None:
    clock = VirtualClock()
    windows = ProcessWindows(clock, WINDOW_S)
    for pause_us, key, wanted in calls:
        clock.now_us += pause_us
        taken = windows.take({key: wanted}, limit, WINDOW_S)[key]
        if taken.granted == wanted:
            continue
        assert taken.remaining == 0
        assert taken.reset_after_us <= WINDOW
        clock.now_us += taken.reset_after_us - 1
        assert windows.take({key: 1}, limit, WINDOW_S)[key].granted == 0
        clock.now_us += 1
        assert windows.take({key: 1}, limit, WINDOW_S)[key].granted == 1


@given(calls, limit)
def test_keys_taken_together_are_judged_each_by_itself(calls: list[tuple[int, LimitKey, int]], limit: int) -> None:
    clock = VirtualClock()
    together, apart = ProcessWindows(clock, WINDOW_S), ProcessWindows(clock, WINDOW_S)
    for pause_us, _, wanted in calls:
        clock.now_us += pause_us
        both = {A: wanted, B: 1}
        assert together.take(both, limit, WINDOW_S) == {
            key: apart.take({key: n}, limit, WINDOW_S)[key] for key, n in both.items()
        }


@given(st.integers(1, 10**12))
def test_a_wait_is_rounded_up_and_never_too_early(us: int) -> None:
    assert us <= whole_seconds(us) * SECOND < us + SECOND
    assert us <= round(seconds(us) * SECOND) < us + 1000
    assert isinstance(seconds(us), float) == bool(seconds(us) % 1), "a whole number is written as one"
