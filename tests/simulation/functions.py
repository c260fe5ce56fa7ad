"""The real functions in simulated processes: each process has its own stores and what they remember."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar
from unittest import mock

from functions.aggregator import app as aggregator
from functions.parked import app as parked
from functions.reconciler import app as reconciler
from tallymark.aggregation import Record, Unreadable
from tallymark.fold import Change, Delta, Lane, Outcome
from tallymark.runtime import telemetry, wiring
from tallymark.settings import Settings
from tallymark.storage import counter_table, keys
from tallymark.storage.counter_table import CounterTable
from tallymark.storage.like_stream import LikeStream
from tests.bench.events import ENVIRONMENT

T = TypeVar("T")
P = ParamSpec("P")

Attempted = dict[tuple[str, str, bytes], tuple[str, Delta]]  # row key and mark -> lane and delta on its way there

NEWER_REACTION = "love"  # an old version of the code cannot read what carries it


@dataclass
class Process:
    """One sandbox of a function: `built` is what wiring keeps in it."""

    function: str
    name: str
    built: dict[str, Any]
    old_version: bool
    skew_ms: int
    attempted: Attempted = field(default_factory=dict)


class Timing(Protocol):
    """The clock of a world as the functions see it."""

    rng: random.Random

    @property
    def running(self) -> Process: ...

    def now_ms(self) -> int: ...

    def wait(self, seconds: float) -> None: ...


@contextmanager
def installed(world: Timing) -> Iterator[None]:
    """Puts a world beneath the handlers: its clock, its seed, its processes."""
    state = random.getstate()
    random.seed(world.rng.getrandbits(64))  # the handlers draw their jitter from it
    with ExitStack() as stack:
        for place, name, value in (
            (wiring, "now_ms", world.now_ms),
            (wiring, "CounterTable", _observed(counter_table.CounterTable, world)),
            (wiring, "_built", {}),
            (time, "sleep", world.wait),
            (telemetry, "metrics", _no_metrics),
            (telemetry, "logger", lambda _service: _Quiet()),
            (aggregator, "reader_of", _versioned(vars(aggregator)["reader_of"], world)),
            (parked, "reader_of", _versioned(vars(parked)["reader_of"], world)),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        try:
            yield
        finally:
            random.setstate(state)


def process(
    function: str,
    name: str,
    *,
    counter_rows: str,
    old_version: bool,
    world: Timing,
    dynamodb: Any,
    sqs: Any,
    streams: Any,
) -> Process:
    """A process that has served no call yet. Its stores are made by wiring, on first use."""
    settings = Settings.from_environment({**ENVIRONMENT, "COUNTER_ROWS": counter_rows})
    built = {
        "settings": settings,
        "executor": Interleaved(world.rng),
        "dynamodb": dynamodb,
        "sqs": sqs,
        "like_stream": LikeStream(streams, settings.likes_stream_arn),
    }
    return Process(function, name, built, old_version, world.rng.randint(-2000, 2000))


@contextmanager
def running(made: Process) -> Iterator[None]:
    """What wiring builds meanwhile is this process's own."""
    before = wiring._built
    wiring._built = made.built
    try:
        yield
    finally:
        wiring._built = before


def handler(function: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    return {"aggregator": aggregator.handler, "parked": parked.handler, "reconciler": reconciler.handler}[function]


@dataclass(frozen=True)
class Context:
    """What a handler asks of Lambda's context."""

    remaining_ms: Callable[[], int]

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms()


class Interleaved:
    """Stands for the pool of threads: each piece of work is done at once or when its result is asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def submit(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        future = _Lazy(lambda: work(*arguments, **named))
        if self._rng.random() < 0.5:
            future.begin()
        return future


class _Lazy(Future[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work = work

    def begin(self) -> None:
        """A function that dies (no Exception) dies here."""
        try:
            self.set_result(self._work())
        except Exception as error:  # noqa: BLE001 (raised where the result is asked for, as a pool does)
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self.begin()
        return super().result(timeout)


def _observed(real: type[CounterTable], world: Timing) -> type[CounterTable]:
    """The real table, which tells its process which delta goes where, so that each record can be followed."""

    class Observed(real):  # type: ignore[misc,valid-type]
        def add(self, lane: Lane, deltas: list[Delta], now_s: int) -> list[Outcome]:
            world.running.attempted = {
                (
                    keys.target_key(delta.counter.target),
                    keys.counter_sort_key(delta.counter, lane.row),
                    counter_table.pack_mark(delta.mark),
                ): (lane.id, delta)
                for delta in deltas
            }
            outcomes: list[Outcome] = super().add(lane, deltas, now_s)
            return outcomes

    return Observed


Reader = Callable[[Record], Sequence[Change]]


def _versioned(reader_of: Callable[[str], Reader], world: Timing) -> Callable[[str], Reader]:
    def versioned(lane_id: str) -> Reader:
        read = reader_of(lane_id)

        def reads(record: Record) -> Sequence[Change]:
            changes = read(record)
            if world.running.old_version and any(change.counter.label == NEWER_REACTION for change in changes):
                raise Unreadable(f"what is {NEWER_REACTION}?")
            return changes

        return reads

    return versioned


class _Quiet:
    """Takes metrics and log lines, keeps none."""

    def count(self, name: str, value: float = 1) -> None: ...

    def seconds(self, name: str, value: float) -> None: ...

    def info(self, message: str, **details: Any) -> None: ...

    def warning(self, message: str, **details: Any) -> None: ...

    def error(self, message: str, **details: Any) -> None: ...


@contextmanager
def _no_metrics(_service: str) -> Iterator[_Quiet]:
    yield _Quiet()
