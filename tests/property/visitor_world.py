"""Views, a stream that repeats and delays them, tables in memory, and a Valkey that forgets."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from valkey import Valkey

from tallymark import visitors
from tallymark.errors import Unavailable
from tallymark.events import Viewed
from tallymark.model import MS_PER_HOUR, Target
from tallymark.storage.live_sketches import ValkeySketches
from tallymark.storage.valkey import ValkeyServer
from tallymark.views import ViewWindow, digest_of
from tallymark.visitors import (
    Kept,
    Page,
    Rebuild,
    Sketch,
    SketchedVisitors,
    Snapshot,
    Standing,
    Stores,
    Turn,
    additions_of,
)

BEGIN_MS = 1_769_860_800_000
WINDOWS: tuple[ViewWindow, ...] = ("all", "24h", "7d", "30d")
EVENT_DAYS = 7
PAGE = 3  # events


class Killed(Exception):
    """The process ends here."""


@dataclass
class Fate:
    """How many more calls of a store succeed before the process is killed, before or after the last takes effect."""

    calls_left: float = float("inf")
    after: bool = False

    def watch(self, store: Any) -> Any:
        return _Watched(store, self)


class _Watched:
    def __init__(self, store: Any, fate: Fate) -> None:
        self._store, self._fate = store, fate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._fate.calls_left -= 1
            if self._fate.calls_left < 0 and not self._fate.after:
                raise Killed
            answer = method(*arguments, **options)
            if self._fate.calls_left < 0:
                raise Killed
            return answer

        return call


def told_apart(client: Valkey, number: int) -> list[bytes]:
    """So many digests that a HyperLogLog counts exactly, all and any of them: each in a register of its own."""
    key = os.urandom(8).hex()
    found: list[bytes] = []
    for n in itertools.count():
        client.pfadd(key, digest := digest_of(str(n)))
        if client.pfcount(key) == len(found) + 1:
            found.append(digest)
        if len(found) == number:
            client.delete(key)
            return found
    raise AssertionError


class MemorySketches:
    """Snapshots by sketch."""

    def __init__(self) -> None:
        self.snapshots: dict[Sketch, Snapshot] = {}

    def get(self, sketches: Sequence[Sketch]) -> dict[Sketch, Snapshot]:
        return {sketch: self.snapshots[sketch] for sketch in sketches if sketch in self.snapshots}

    def put(self, changes: Sequence[tuple[Sketch, bytes, Snapshot | None]]) -> list[bool]:
        return [self._put(*change) for change in changes]

    def _put(self, sketch: Sketch, data: bytes, before: Snapshot | None) -> bool:
        if self.snapshots.get(sketch) != before:
            return False
        self.snapshots[sketch] = Snapshot(data, os.urandom(8))
        return True

    def between(self, target: Target, first: str, last: str) -> dict[str, bytes]:
        return {
            sketch.label: snapshot.data
            for sketch, snapshot in self.snapshots.items()
            if sketch.target == target and first <= sketch.label <= last
        }


class MemoryLog:
    """Events in the order of a hash, and the turn."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, Sequence[Viewed]]] = {}
        self.turn = Turn(0, Standing())
        self.busy_ms = 0

    def events(self, since_ms: int, cursor: str | None) -> Page:
        later = sorted(key for key in self.kept if key > (cursor or ""))
        some = later[:PAGE]
        found = [self.kept[key] for key in some if self.kept[key][0] >= since_ms]
        return Page(found, some[-1] if len(later) > PAGE else None)

    def standing(self) -> Standing:
        return self.turn.standing

    def take_turn(self, now_ms: int, until_ms: int) -> Turn | None:
        if now_ms <= self.busy_ms:
            return None
        self.busy_ms = until_ms
        self.turn = replace(self.turn, number=self.turn.number + 1)
        return self.turn

    def restart(self, turn: Turn, now_ms: int) -> Turn:
        standing = replace(self.turn.standing, replayed_ms=now_ms, is_replaying=True)
        return self._update(turn, standing=standing, rebuild=None)

    def save(self, turn: Turn, rebuild: Rebuild | None) -> Turn:
        return self._update(turn, rebuild=rebuild)

    def move_on(self, turn: Turn, since_ms: int) -> bool:
        if (turn.number, turn.standing.retreats) != (self.turn.number, self.turn.standing.retreats):
            return False
        self._update(turn, standing=replace(self.turn.standing, since_ms=since_ms, is_replaying=False))
        return True

    def retreat(self, since_ms: int) -> int:
        standing = self.turn.standing
        earlier_ms = None if standing.since_ms is None else min(standing.since_ms, since_ms)
        self.turn = replace(self.turn, standing=replace(standing, since_ms=earlier_ms, retreats=standing.retreats + 1))
        return self.turn.standing.retreats

    def end(self, turn: Turn) -> None:
        if turn.number == self.turn.number:
            self.busy_ms = 0

    def _update(self, turn: Turn, **changes: Any) -> Turn:
        if turn.number != self.turn.number:
            raise Unavailable("not your turn")
        self.turn = replace(self.turn, **changes)
        return self.turn


@dataclass
class World:
    """A service whose every part may die, repeat and forget; `now_ms` is its clock."""

    url: str
    client: Valkey
    seed: int
    now_ms: int = BEGIN_MS
    targets: tuple[Target, ...] = (Target("post", "a"), Target("post", "#/b"), Target("film", "c"))
    fate: Fate = field(default_factory=Fate)
    accepted: list[tuple[int, Viewed]] = field(default_factory=list)
    acknowledged: list[tuple[int, Viewed]] = field(default_factory=list)
    waiting: list[tuple[int, Viewed]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.namespace = os.urandom(8).hex()
        self.random = random.Random(self.seed)
        self.live = ValkeySketches(ValkeyServer(self.url, binary=True), self.namespace)
        self.stored, self.log = MemorySketches(), MemoryLog()
        watched = [self.fate.watch(store) for store in (self.live, self.stored, self.log)]
        self.stores = Stores(*cast(Any, watched))
        self.numbers = itertools.count()
        self.people = told_apart(self.client, 60)

    # --- what happens ---

    def view(self, people: int = 1, target: Target | None = None) -> None:
        """An event is accepted; the stream has it."""
        target = target or self.random.choice(self.targets)
        who = self.random.choices(self.people, k=people)
        event = (self.now_ms, Viewed(target, people, 0, tuple(sorted(set(who)))))
        self.log.kept[f"{self.random.random()}-{next(self.numbers)}"] = (event[0], [event[1]])
        self.accepted.append(event)
        self.waiting.append(event)

    def deliver(self, how_many: int, repeat: bool = False) -> None:
        """The next batch, which comes again unless it is acknowledged; or an old one once more."""
        source = self.acknowledged if repeat else self.waiting
        batch = source[-how_many:] if repeat else source[:how_many]
        visitors.record(
            self.stores,
            additions_of([(at_ms, [viewed]) for at_ms, viewed in batch], self.now_ms),
            keep=self.keep,
            pauses=iter([0.0] * 3),
            sleep=lambda _s: None,
        )
        if not repeat:
            self.acknowledged += batch
            del self.waiting[:how_many]

    def keep(self, again: bool = False) -> Kept | None:
        """A turn."""
        return visitors.keep(
            self.stores,
            again=again,
            now_ms=self.now_ms,
            until_ms=self.now_ms + 300_000,
            event_days=EVENT_DAYS,
            new_era=lambda: os.urandom(8).hex(),
            is_time_over=lambda: False,
            tell_lost=lambda from_ms, to_ms: self.lost.append((from_ms, to_ms)),
        )

    def flush(self) -> None:
        for key in self._keys():
            self.client.delete(key)

    def evict(self, how_many: int = 1) -> None:
        """Any keys, as a full server does; books among them."""
        for key in self.random.sample(there := sorted(self._keys()), min(how_many, len(there))):
            self.client.delete(key)

    def expire(self) -> None:
        """Everything that may expire."""
        for key in self._keys():
            if self.client.ttl(key) != -1:
                self.client.delete(key)

    def fail_over(self) -> None:
        """Another server takes over with everything but the last moments, if anything."""
        for key in self._keys():
            if key.endswith(b"}"):
                self.client.hset(key.decode(), "#server", "another")
        self.evict(2)

    def _keys(self) -> list[bytes]:
        return list(self.client.scan_iter(match=f"{self.namespace}/*", count=1000))

    def with_death(self, work: Callable[[], Any], calls: int, after: bool) -> None:
        """Does the work, killed after so many calls of stores if it makes more."""
        self.fate.calls_left, self.fate.after = calls, after
        try:
            work()
        except (Killed, Unavailable):
            pass
        finally:
            self.fate.calls_left = float("inf")

    # --- what must hold ---

    def expected(self, views: Sequence[tuple[int, Viewed]], target: Target, window: ViewWindow) -> int:
        """Of everything at once, by a window's bounds in milliseconds."""
        length_ms, step_ms = {"24h": (24, 1), "7d": (168, 24), "30d": (720, 24), "all": (10**6, 1)}[window]
        step_ms *= MS_PER_HOUR
        begin_ms = (self.now_ms // MS_PER_HOUR * MS_PER_HOUR - length_ms * MS_PER_HOUR) // step_ms * step_ms
        inside = (viewed for at_ms, viewed in views if viewed.target == target and at_ms >= begin_ms)
        return len({visitor for viewed in inside for visitor in viewed.visitors})

    def count(self, target: Target | None = None, window: ViewWindow = "all") -> int | None:
        """What a reader is told, of the first target unless another is named."""
        return SketchedVisitors(self.live, self.stored).count(target or self.targets[0], window, self.now_ms)

    def check(self, *targets: Target) -> Mapping[tuple[Target, ViewWindow], int | None]:
        """Every answer is unknown, or holds all that was acknowledged and nothing that was not accepted."""
        answers = {(t, w): self.count(t, w) for t in targets or self.targets for w in WINDOWS}
        for (target, window), answer in answers.items():
            if answer is not None:
                at_least = self.expected(self.acknowledged, target, window)
                at_most = self.expected(self.accepted, target, window)
                assert at_least <= answer <= at_most, (target, window, at_least, answer, at_most)
        return answers

    def recovered(self) -> None:
        """After whatever is under way has come to its end, everybody is there."""
        self.now_ms += 301_000  # a turn that died is over
        assert self.keep() is not None
        while self.waiting:
            self.deliver(10)
        for (target, window), answer in self.check().items():
            assert answer == self.expected(self.accepted, target, window), (target, window)
