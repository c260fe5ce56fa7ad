"""Hours and days of UTC: windows over them, and how long they are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from .model import FIRST_DAY, MS_PER_HOUR, Counter, day_of_label

HOURS_PER_DAY = 24
SECONDS_PER_DAY = 86_400

WindowName = Literal["1h", "24h", "7d", "30d"]

# (length, step) in hours. A window begins at the start of the hour or UTC day that the moment so long ago lies in:
# it misses nothing of the time in its name, and reaches back less than one step further.
_WINDOWS: dict[WindowName, tuple[int, int]] = {"1h": (1, 1), "24h": (24, 1), "7d": (168, 24), "30d": (720, 24)}


@dataclass(frozen=True, slots=True)
class Window:
    """Hours since the epoch, from the first to the last, both included."""

    first_hour: int
    last_hour: int

    @property
    def days(self) -> tuple[int, int]:
        """Days since the epoch, from the first to the last."""
        return self.first_hour // HOURS_PER_DAY, self.last_hour // HOURS_PER_DAY

    def sum(self, days: Mapping[int, Mapping[str, int]], slot: str) -> int:
        """Of the slots n00 to n23 (or b00 to b23) of each day, those that lie within the window."""
        return sum(number for _, number in self.hours(days, slot))

    def hours(self, days: Mapping[int, Mapping[str, int]], slot: str) -> Iterator[tuple[int, int]]:
        """(hour since the epoch, its number), ascending, for every hour of the window."""
        for hour in range(self.first_hour, self.last_hour + 1):
            day, of_day = divmod(hour, HOURS_PER_DAY)
            yield hour, days.get(day, {}).get(f"{slot}{of_day:02d}", 0)


def window(name: WindowName, now_ms: int) -> Window:
    """The window that ends now."""
    length, step = _WINDOWS[name]
    last = now_ms // MS_PER_HOUR
    return Window((last - length) // step * step, last)


def span(until_ms: int, hours: int) -> Window:
    """So many hours, the last of them the one that a moment lies in; fewer where the calendar begins."""
    last = until_ms // MS_PER_HOUR
    return Window(max(last - hours + 1, FIRST_DAY * HOURS_PER_DAY), last)


def expiry_s(counter: Counter, series_days: int) -> int | None:
    """When the rows of a counter may go, in seconds since the epoch; None for those that stay."""
    if counter.metric not in ("likes-by-hour", "views-by-hour"):
        return None
    return (day_of_label(counter.label) + 1 + series_days) * SECONDS_PER_DAY
