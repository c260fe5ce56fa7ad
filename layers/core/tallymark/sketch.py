"""The heaviest of a stream in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi 2005), kept as upper bounds.

A sketch says of any item that it weighs at most so much. Numbers that are exact have to come from elsewhere; what
the bounds are good for is to know when nobody else can be among the first. docs/decisions/0018 compares it with
HeavyKeeper.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Summary(Generic[K]):
    """Bounds of all items: of those listed each its own, of every other the floor. A floor of 0: there is no other."""

    bounds: Mapping[K, int] = field(default_factory=dict)
    floor: int = 0

    def bound(self, item: K) -> int:
        """No item weighs more than this."""
        return self.bounds.get(item, self.floor)

    def of(self, wanted: Callable[[K], bool]) -> Summary[K]:
        """Bounds of the wanted items alone."""
        return Summary({item: bound for item, bound in self.bounds.items() if wanted(item)}, self.floor)

    def cut(self, most: int) -> Summary[K]:
        """The heaviest so many; the floor rises to the heaviest of the rest."""
        if len(self.bounds) <= most:
            return self
        ordered = sorted(self.bounds.items(), key=lambda entry: -entry[1])
        return Summary(dict(ordered[:most]), ordered[most][1])


def merged(summaries: Iterable[Summary[K]]) -> Summary[K]:
    """The bounds of what all of them saw together."""
    floor = 0
    above: dict[K, int] = {}
    for summary in summaries:
        floor += summary.floor
        for item, bound in summary.bounds.items():
            above[item] = above.get(item, 0) + bound - summary.floor
    return Summary({item: floor + more for item, more in above.items()}, floor)


class SpaceSaving(Generic[K]):
    """A summary of at most `capacity` items that grows by additions.

    An item that is added while all places are taken gets the place of the lightest, whose bound becomes the floor
    and the newcomer's beginning. So an item heavier than (all weight) / capacity is listed for certain, and a bound
    is never too low, and too high by no more than the floor.
    """

    def __init__(self, capacity: int, start: Summary[K] | None = None) -> None:
        given: Summary[K] = Summary() if start is None else start.cut(capacity)
        self._capacity, self.floor = capacity, given.floor
        self._bounds = dict(given.bounds)
        self._serial = count()  # so that items need no order of their own
        # Bounds as they were when they were pushed: an item's own has only grown since, so the least true one is
        # found by lifting what is at the top until nothing needs to be.
        self._lightest = [(bound, next(self._serial), item) for item, bound in self._bounds.items()]
        heapq.heapify(self._lightest)

    def __len__(self) -> int:
        return len(self._bounds)

    def bound(self, item: K) -> int:
        return self._bounds.get(item, self.floor)

    def add(self, item: K, weight: int) -> int:
        """The item's new bound. `weight` is above 0."""
        if item in self._bounds:
            self._bounds[item] += weight
            return self._bounds[item]
        if len(self._bounds) == self._capacity:
            self.floor = self._evict()
        bound = self._bounds[item] = self.floor + weight
        heapq.heappush(self._lightest, (bound, next(self._serial), item))
        return bound

    def _evict(self) -> int:
        """Takes the lightest item out; its bound."""
        while True:
            pushed, _, item = self._lightest[0]
            bound = self._bounds[item]
            if pushed == bound:
                heapq.heappop(self._lightest)
                del self._bounds[item]
                return bound
            heapq.heapreplace(self._lightest, (bound, next(self._serial), item))

    def summary(self) -> Summary[K]:
        return Summary(dict(self._bounds), self.floor)
