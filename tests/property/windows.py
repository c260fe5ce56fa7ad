"""What sliding windows are, written as plainly as possible, and calls to compare them with."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tallymark.limits import Taken
from tallymark.model import LimitKey

SECOND = 1_000_000
LONGEST_S = 10
MOST = 6  # calls that a limit may allow here: small, so that logs reach it
A, B = LimitKey("login", "a"), LimitKey("login", "b")


@dataclass(frozen=True)
class Step:
    """After a pause of microseconds a key wants some calls under these numbers."""

    pause_us: int
    key: LimitKey
    wanted: int
    limit: int
    window_s: int


@dataclass
class Model:
    """Remembers all that was ever allowed and counts it anew for each call. No time passes while a clock is back."""

    allowed: dict[LimitKey, list[int]] = field(default_factory=lambda: defaultdict(list))

    def take(self, step: Step, clock: int) -> Taken:
        log, window = self.allowed[step.key], step.window_s * SECOND
        now = max([clock, *log])
        in_window = sum(moment > now - window for moment in log)
        granted = max(0, min(step.wanted, step.limit - in_window))
        log += [now] * granted
        in_window += granted
        remaining = max(0, step.limit - in_window)
        # The number that remains grows when the oldest leaves of those that fill the limit.
        leaves = log[-min(step.limit, in_window)]
        return Taken(granted, remaining, leaves + window - clock)


# Whole seconds and a microsecond beside them: a window's edge is hit, and missed on both sides.
pauses = st.builds(lambda s, us: max(0, s * SECOND + us), st.integers(0, 12), st.integers(-1, 1))
steps_back = st.integers(1, 30).map(lambda s: -s * SECOND)
keys = st.sampled_from([A, B])


def steps(pauses: st.SearchStrategy[int]) -> st.SearchStrategy[list[Step]]:
    """Calls with differing numbers on shared logs."""
    made = st.builds(Step, pauses, keys, st.integers(1, 4), st.integers(1, MOST), st.integers(1, LONGEST_S))
    return st.lists(made, min_size=15, max_size=40)  # left to itself, Hypothesis makes lists of five
