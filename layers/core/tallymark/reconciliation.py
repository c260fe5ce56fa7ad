"""Comparing counts with the records they come from. Reports; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from .model import Count, Target


class Records(Protocol):
    """The likes as recorded."""

    def tally(self, target: Target) -> Mapping[str, int]:
        """The number of the target's likes by reaction, as its index shows them."""
        ...


class Rows(Protocol):
    """The counters."""

    def count(self, target: Target, *, consistent: bool) -> Count: ...


@dataclass(frozen=True, slots=True)
class Recount:
    """What is counted and what is recorded, by reaction. Unsettled: it moved between two looks."""

    counted: Mapping[str, int]
    recorded: Mapping[str, int]
    settled: bool = True

    @property
    def drift(self) -> dict[str, int]:
        """Counted less recorded, where they differ. Anything here that stays is a bug."""
        reactions = sorted({*self.counted, *self.recorded})
        differences = {r: self.counted.get(r, 0) - self.recorded.get(r, 0) for r in reactions}
        return {reaction: difference for reaction, difference in differences.items() if difference}


def recount(
    records: Records, rows: Rows, target: Target, *, settle_s: float, sleep: Callable[[float], None]
) -> Recount:
    """Recounts one target from its records.

    A difference is looked at again after `settle_s`: likes may be on their way through the stream or
    into the index. `settled` says that both passes showed the same.
    """
    first = _pass(records, rows, target)
    if not first.drift:
        return first
    sleep(settle_s)
    second = _pass(records, rows, target)
    return replace(second, settled=second.drift == first.drift or not second.drift)


def _pass(records: Records, rows: Rows, target: Target) -> Recount:
    recorded = records.tally(target)
    return Recount(rows.count(target, consistent=True).by_reaction, recorded)
