"""What the clients were told: the record against which counts are compared when the chaos is over."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Key(NamedTuple):
    """One person's reaction to one item."""

    user: str
    item: str
    reaction: str

    @property
    def counter(self) -> tuple[str, str]:
        """The item and the reaction: what has a count."""
        return self.item, self.reaction


class Operation(NamedTuple):
    """A like, or with `like` false its removal."""

    key: Key
    like: bool


@dataclass(slots=True)
class _State:
    """What is known of a like; `sure` is false from a lost answer until the next one."""

    liked: bool = False
    sure: bool = True


class Truth:
    """Acknowledged operations, folded as their answers come in. Safe to use from many threads.

    A key is in the hands of one client at a time (`take`, `give_back`): two operations on one like that are under
    way together have no order that an answer could tell. A key whose answer was lost stays taken until it is known
    again what became of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[Key, _State] = {}
        self._taken: set[Key] = set()
        self._standing: list[Key] = []
        self._places: dict[Key, int] = {}
        self.likes = 0  # acknowledged with changed: true
        self.unlikes = 0
        self.repeats = 0  # acknowledged with changed: false
        self.lost = 0  # operations whose answer never came, or was a 5xx
        # The store's reply was lost beneath the service, which tried again and found its own change made already:
        # it cannot tell, and answers changed: false (docs of likes.unlike). The record is right all the same.
        self.unsaid: Counter[bool] = Counter()  # by whether it was a like
        self.contradictions: list[str] = []
        self.deltas: Counter[tuple[str, str]] = Counter()  # of answers with changed: true
        self.untold: Counter[tuple[str, str]] = Counter()  # of changes that no answer told, found out afterwards

    # --- who works on which like --------------------------------------------------------------------------------

    def take(self, key: Key) -> bool:
        """Whether the key is the caller's now."""
        with self._lock:
            if key in self._taken:
                return False
            self._taken.add(key)
            return True

    def give_back(self, keys: Iterable[Key]) -> list[Key]:
        """Frees the keys whose state is known, and returns those that stay taken because it is not."""
        unsure = []
        with self._lock:
            for key in keys:
                if key in self._states and not self._states[key].sure:
                    unsure.append(key)
                else:
                    self._taken.discard(key)
        return unsure

    def standing(self, rng: random.Random) -> Key | None:
        """Any like that stands; None while there is none."""
        with self._lock:
            return rng.choice(self._standing) if self._standing else None

    # --- what was answered --------------------------------------------------------------------------------------

    def answered(self, operation: Operation, changed: bool) -> None:
        """An answer of status 200."""
        with self._lock:
            state = self._states.setdefault(operation.key, _State())
            counter, step = operation.key.counter, 1 if operation.like else -1
            moved = int(operation.like) - int(state.liked)
            told = step if changed else 0
            if changed:
                self.likes += operation.like
                self.unlikes += not operation.like
                self.deltas[counter] += step
            else:
                self.repeats += 1
            if state.sure and changed and not moved:
                self.contradictions.append(f"{operation} changed something, though it was so already")
            elif state.sure and moved and not changed:
                self.unsaid[operation.like] += 1
            self.untold[counter] += moved - told
            self._set(operation.key, operation.like)

    def lost_answer(self, operation: Operation) -> None:
        """No answer, or one of status 5xx: it may have been done or not."""
        with self._lock:
            self.lost += 1
            self._states.setdefault(operation.key, _State()).sure = False

    def found(self, key: Key, liked: bool) -> None:
        """The service says, reading the record, whether the like stands."""
        with self._lock:
            state = self._states.setdefault(key, _State())
            if state.sure and state.liked != liked:
                self.contradictions.append(f"{key} stands: {liked}; the answers said {state.liked}")
            elif not state.sure:
                self.untold[key.counter] += int(liked) - int(state.liked)
                self._set(key, liked)

    def _set(self, key: Key, liked: bool) -> None:
        state = self._states[key]
        if liked and key not in self._places:
            self._places[key] = len(self._standing)
            self._standing.append(key)
        elif not liked and key in self._places:
            place, last = self._places.pop(key), self._standing.pop()
            if last != key:
                self._standing[place], self._places[last] = last, place
        state.liked, state.sure = liked, True

    # --- what must be so ----------------------------------------------------------------------------------------

    def unsure(self) -> list[Key]:
        """The likes of which nobody knows whether they stand."""
        with self._lock:
            return [key for key, state in self._states.items() if not state.sure]

    def sample(self, rng: random.Random, size: int) -> list[Key]:
        """Some of all likes that were ever asked for, standing or not."""
        with self._lock:
            return rng.sample(list(self._states), min(size, len(self._states)))

    def standing_likes(self) -> set[Key]:
        """Every like that stands."""
        with self._lock:
            return set(self._standing)

    def counts(self) -> Counter[tuple[str, str]]:
        """The number of standing likes of each item and reaction, 0 where all were taken back."""
        with self._lock:
            counts = Counter({key.counter: 0 for key in self._states})
            counts.update(key.counter for key in self._standing)
            return counts


class Difference(NamedTuple):
    """A count that is not what it must be."""

    counter: tuple[str, str]
    expected: int
    seen: int


def differences(expected: Counter[tuple[str, str]], seen: Counter[tuple[str, str]]) -> list[Difference]:
    """Every counter of either side that differs; one that a side does not name is 0 there."""
    counters = sorted({*expected, *seen})
    return [Difference(c, expected[c], seen[c]) for c in counters if expected[c] != seen[c]]


def error_of(found: Iterable[Difference]) -> int:
    """By how many likes the counts are wrong in all."""
    return sum(abs(difference.expected - difference.seen) for difference in found)
