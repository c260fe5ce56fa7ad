"""Named counters: additions recorded as events under a token, their sum exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .events import AddEvent, Events
from .model import Counter, named_counter


@dataclass(frozen=True, slots=True)
class Sum:
    """The value of a named counter as of a moment, in milliseconds since the epoch."""

    value: int
    as_of_ms: int


def add(events: Events, name: str, amount: int, token: str, *, at_ms: int) -> bool:
    """Whether the addition is new. One write unit."""
    return events.record(AddEvent(at_ms, token, name, amount))


class Totals(Protocol):
    """The rows of counters, read and summed."""

    def total(self, counter: Counter, *, consistent: bool) -> dict[str, int]: ...

    def each(self, asked: Sequence[str], read: Callable[[str], Sum]) -> list[Sum | None]: ...


@dataclass(frozen=True, slots=True)
class SumRows:
    """Named counters as they stand in the rows."""

    totals: Totals
    now_ms: Callable[[], int]

    def counts(self, asked: Sequence[str], *, consistent: bool) -> list[Sum | None]:
        """Per name one Query; None where the store did not answer."""

        def read(name: str) -> Sum:
            as_of_ms = self.now_ms()
            return Sum(self.totals.total(named_counter(name), consistent=consistent)["n"], as_of_ms)

        return self.totals.each(asked, read)
