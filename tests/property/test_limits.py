"""Sliding windows: never more than the limit in any window, and what is refused uses up nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.limits import ProcessWindows, whole_seconds

WINDOW_S = 10
# Steps of quarters: exact in binary, so that a window's edge is hit and not nearly hit.
steps = st.lists(
    st.tuples(st.integers(0, 60).map(lambda quarters: quarters / 4), st.sampled_from(["a", "b"]), st.integers(0, 5)),
    max_size=60,
)
limits = st.integers(1, 6)


class VirtualClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@given(steps, limits)
def test_no_window_ever_holds_more_than_the_limit(calls: list[tuple[float, str, int]], limit: int) -> None:
    clock = VirtualClock()
    windows = ProcessWindows(clock)
    allowed: dict[str, list[float]] = {"a": [], "b": []}
    for pause_s, key, wanted in calls:
        clock.now_s += pause_s
        granted = windows.take({key: wanted}, limit, WINDOW_S)[key].granted
        assert 0 <= granted <= wanted
        allowed[key] += [clock.now_s] * granted
    for log in allowed.values():
        for begin in log:
            assert sum(begin <= moment < begin + WINDOW_S for moment in log) <= limit


@given(steps, limits)
def test_a_call_is_refused_only_where_the_window_is_full_of_allowed_calls(
    calls: list[tuple[float, str, int]], limit: int
) -> None:
    """So refused calls use up nothing."""
    clock = VirtualClock()
    windows = ProcessWindows(clock)
    allowed: dict[str, list[float]] = {"a": [], "b": []}
    for pause_s, key, wanted in calls:
        clock.now_s += pause_s
        taken = windows.take({key: wanted}, limit, WINDOW_S)[key]
        in_window = sum(clock.now_s - WINDOW_S < moment for moment in allowed[key])
        assert taken.granted == min(wanted, limit - in_window)
        allowed[key] += [clock.now_s] * taken.granted


@given(steps, limits)
def test_after_the_wait_that_a_refusal_names_a_call_is_allowed_and_a_moment_before_it_is_not(
    calls: list[tuple[float, str, int]], limit: int
) -> None:
    clock = VirtualClock()
    windows = ProcessWindows(clock)
    for pause_s, key, wanted in calls:
        clock.now_s += pause_s
        taken = windows.take({key: wanted}, limit, WINDOW_S)[key]
        if taken.granted == wanted:
            assert taken.retry_after_s == 0
            continue
        assert 0 < taken.retry_after_s <= WINDOW_S
        clock.now_s += taken.retry_after_s - 0.125
        assert windows.take({key: 1}, limit, WINDOW_S)[key].granted == 0
        clock.now_s += 0.125
        assert windows.take({key: 1}, limit, WINDOW_S)[key].granted == 1


@given(steps, limits)
def test_keys_taken_together_are_judged_each_by_itself(calls: list[tuple[float, str, int]], limit: int) -> None:
    clock = VirtualClock()
    together, apart = ProcessWindows(clock), ProcessWindows(clock)
    for pause_s, _, wanted in calls:
        clock.now_s += pause_s
        both = {"a": wanted, "b": 1}
        assert together.take(both, limit, WINDOW_S) == {
            key: apart.take({key: n}, limit, WINDOW_S)[key] for key, n in both.items()
        }


@given(st.floats(0, 1e6))
def test_a_retry_after_is_whole_and_never_too_early(seconds: float) -> None:
    assert whole_seconds(seconds) >= max(1, seconds)
