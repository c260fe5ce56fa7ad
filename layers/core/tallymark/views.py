"""Views: recorded as events, counted by the aggregator, read as totals or within a window, with their visitors."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from . import series
from .events import Events, Viewed, ViewEvent
from .model import ALL, Counter, HourlyMetric, Target

DIGEST_BYTES = 8  # of a visitor: among a billion visitors of one item, hardly one pair shares a digest by chance
VISITORS_ERROR = 0.0081  # standard error of a HyperLogLog with 2^14 registers: 1.04 / sqrt(2^14), Flajolet et al. 2007

ViewWindow = Literal["all", "24h", "7d", "30d"]


@dataclass(frozen=True, slots=True)
class View:
    """One view, by a visitor if one is known."""

    target: Target
    visitor_id: str | None = None
    bot: bool = False


@dataclass(frozen=True, slots=True)
class ViewCount:
    """Views of people and of bots, exact; and about how many people these were, None while that is unknown."""

    people: int
    bots: int
    visitors: int | None
    as_of_ms: int


def record_views(events: Events, views: Sequence[View], token: str | None, *, at_ms: int) -> bool:
    """Whether the views are new; of an empty list nothing is recorded. One write unit per KB: 100 views of one item."""
    return bool(views) and events.record(ViewEvent(at_ms, token, gather(views)))


def gather(views: Sequence[View]) -> tuple[Viewed, ...]:
    """The views target by target."""
    by_target: defaultdict[Target, list[View]] = defaultdict(list)
    for view in views:
        by_target[view.target].append(view)
    return tuple(_viewed(target, of_target) for target, of_target in by_target.items())


def _viewed(target: Target, views: Sequence[View]) -> Viewed:
    people = [view for view in views if not view.bot]
    known = {digest_of(view.visitor_id) for view in people if view.visitor_id is not None}
    return Viewed(target, len(people), len(views) - len(people), tuple(sorted(known)))


def digest_of(visitor_id: str) -> bytes:
    """What is kept of a visitor: enough to tell one from another."""
    return hashlib.blake2b(visitor_id.encode(), digest_size=DIGEST_BYTES, person=b"visitor").digest()


# --- reading ----------------------------------------------------------------------------------------------------


class Totals(Protocol):
    """The rows of counters, read and summed."""

    def total(self, counter: Counter, *, consistent: bool) -> dict[str, int]: ...

    def days(self, target: Target, metric: HourlyMetric, first: int, last: int) -> Mapping[int, Mapping[str, int]]: ...

    def each(
        self, asked: Sequence[tuple[Target, ViewWindow]], read: Callable[[tuple[Target, ViewWindow]], ViewCount]
    ) -> list[ViewCount | None]: ...


class Visitors(Protocol):
    """About how many people viewed a target within a window. Never raises."""

    def count(self, target: Target, window: ViewWindow, now_ms: int) -> int | None:
        """None while it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class ViewRows:
    """Views as they stand in the counters and sketches."""

    totals: Totals
    visitors: Visitors | None
    now_ms: Callable[[], int]

    def counts(self, asked: Sequence[tuple[Target, ViewWindow]], *, consistent: bool) -> list[ViewCount | None]:
        """Per target and window one Query; None where the store did not answer."""

        def count(key: tuple[Target, ViewWindow]) -> ViewCount:
            return self._count(*key, consistent=consistent)

        return self.totals.each(asked, count)

    def _count(self, target: Target, window: ViewWindow, *, consistent: bool) -> ViewCount:
        now_ms = self.now_ms()
        if window == "all":
            total = self.totals.total(Counter(target, ALL, "view"), consistent=consistent)
            people, bots = total["n"], total["b"]
        else:
            span = series.window(window, now_ms)
            days = self.totals.days(target, "views-by-hour", *span.days)
            people, bots = span.sum(days, "n"), span.sum(days, "b")
        visitors = self.visitors.count(target, window, now_ms) if self.visitors is not None else None
        return ViewCount(people, bots, visitors, now_ms)
