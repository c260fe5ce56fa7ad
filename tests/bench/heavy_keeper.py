"""HeavyKeeper (Gong et al., USENIX ATC 2018): what Space-Saving was measured against."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

DECAY = 1.08  # as in the paper

_WORD = 2**64 - 1
_MIX = 0x9E3779B97F4A7C15  # odd: multiplication by it spreads what differs in low bits over the high ones


class HeavyKeeper(Generic[K]):
    """The `capacity` items with the largest estimates, out of `depth` rows of 2^`width_bits` counters that decay.

    A counter belongs to one fingerprint. Another item that meets it lowers it with a probability that falls with its
    size, and takes it over at 0: mice wear each other down, elephants stay.
    """

    def __init__(self, capacity: int, width_bits: int, random: Random, depth: int = 2) -> None:
        self._capacity, self._shift, self._random = capacity, 64 - width_bits, random
        self._salts = [random.getrandbits(64) for _ in range(depth)]
        self._prints = [array("L", bytes(8 << width_bits)) for _ in range(depth)]
        self._counts = [array("L", bytes(8 << width_bits)) for _ in range(depth)]
        self.estimates: dict[K, int] = {}
        self._least = 0  # of the estimates, when there are as many as fit

    def add(self, item: K, weight: int) -> None:
        hashed = hash(item) & _WORD
        fingerprint = (hashed * _MIX & _WORD) >> 32 | 1
        estimate = 0
        for salt, prints, counts in zip(self._salts, self._prints, self._counts, strict=True):
            place = ((hashed ^ salt) * _MIX & _WORD) >> self._shift
            if prints[place] == fingerprint:
                counts[place] += weight
                estimate = max(estimate, counts[place])
            elif left := self._decayed(counts, place, weight):
                prints[place], counts[place] = fingerprint, left
                estimate = max(estimate, left)
        self._list(item, estimate)

    def _decayed(self, counts: array[int], place: int, weight: int) -> int:
        """Lowers a counter by up to `weight` trials; how many are left when it has reached 0."""
        size = counts[place]
        while size:
            chance = DECAY**-size if size < 5_000 else 0.0
            if chance < 1e-12:
                return 0
            # Trials until one succeeds, in one draw.
            trials = 1 + int(math.log(1 - self._random.random()) / math.log1p(-chance)) if chance < 1 else 1
            if trials > weight:
                return 0
            weight -= trials
            size = counts[place] = size - 1
        return weight

    def _list(self, item: K, estimate: int) -> None:
        if item in self.estimates:
            self.estimates[item] = max(estimate, self.estimates[item])
        elif len(self.estimates) < self._capacity:
            self.estimates[item] = estimate
        elif estimate > self._least:
            lightest = min(self.estimates, key=self.estimates.__getitem__)
            self._least = self.estimates[lightest]
            if estimate > self._least:
                del self.estimates[lightest]
                self.estimates[item] = estimate
