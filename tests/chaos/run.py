"""One run: load, faults one after the other, each until counts follow again, then the verdict."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.calls import Failures
from tests.chaos.faults import KINDS, Circumstances, Fault, plan
from tests.chaos.load import CLIENTS, Load, Pace
from tests.chaos.probe import Counted, Prober
from tests.chaos.scene import Scene, scene
from tests.chaos.truth import Truth
from tests.chaos.verdict import SETTLE_S, Verdict, judge

PROGRESS_S = 10.0
BETWEEN_S = (0.5, 3.0)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What a run must reach, and what counts as having recovered."""

    minutes: float
    likes: int
    kills: int
    seed: int
    clients: int = CLIENTS
    lag_s: float = 3.0
    patience_s: float = 120.0


@dataclass(frozen=True)
class Made:
    """A fault that was made, and what followed. Times of the monotonic clock."""

    fault: Fault
    what: str
    begun: float
    over: float
    back: float | None  # None: counts were not back in time
    worst_lag: float
    failed: int  # calls without an answer, or with a 5xx, until counts were back
    probes: tuple[str, ...]  # the probes that were written from its beginning until then


@dataclass(frozen=True)
class Outcome:
    """A run as it went."""

    wanted: Wanted
    seconds: float
    made: list[Made]
    verdict: Verdict
    truth: Truth
    failures: dict[str, int]
    unexpected: list[str]
    killed: int
    delivered_again: int

    @property
    def kills(self) -> int:
        """Faults that ended processes by force."""
        return sum(made.fault.kills for made in self.made)

    @property
    def faults(self) -> list[str]:
        """Why the run is not as it must be; empty where it is."""
        verdict, wanted = self.verdict, self.wanted
        reasons = {
            f"error {verdict.error}": verdict.error,
            f"answers of an unexpected status, such as {self.unexpected[:1]}": self.unexpected,
            f"messages left in the queues of parked records: {verdict.parked}": verdict.parked,
            f"lag not back under {wanted.lag_s:g} s after each fault": [m for m in self.made if m.back is None],
            f"only {self.truth.likes:,} likes acknowledged": self.truth.likes < wanted.likes,
            f"only {self.kills} kills": self.kills < wanted.kills,
        }
        return [reason for reason, holds in reasons.items() if holds]


def run(
    wanted: Wanted,
    home: Path,
    say: Say,
    after: Callable[[Scene, Truth], None] = lambda _scene, _truth: None,
    *,
    settle_s: float = SETTLE_S,
) -> Outcome:
    """Makes the faults and judges. `after` is called when the verdict is spoken and all still runs.

    Raises StartError or DeployError where the stack does not start.
    """
    say("starting a stack ...")
    with scene(home) as stage:
        truth, failures = Truth(), Failures()
        prober = Prober(stage.url, truth, failures)
        load = Load(stage.url, stage.service_key, truth, failures, wanted.seed, clients=wanted.clients)
        at = Circumstances(stage, prober, random.Random(wanted.seed))
        try:
            prober.start()
            _wait_until_counted(prober, 0.0, wanted)  # functions that start for the first time are no fault
            begun = time.monotonic()
            load.start(Pace(wanted.likes, wanted.minutes * 60))
            with _progress(say, begun, truth, prober, failures):
                made = _make_faults(wanted, at, truth, failures, begun, say)
        finally:
            load.stop()
            prober.stop()
        seconds = time.monotonic() - begun
        say("load is over; comparing every count and every record ...")
        verdict = judge(stage, truth, random.Random(wanted.seed), settle_s=settle_s)
        after(stage, truth)
        return Outcome(
            wanted, seconds, made, verdict, truth, failures.by_status(), load.unexpected, at.killed, at.delivered_again
        )


def _make_faults(
    wanted: Wanted, at: Circumstances, truth: Truth, failures: Failures, begun: float, say: Say
) -> list[Made]:
    """All that are planned, then any until time is over and likes are enough; at most three times the time."""
    made: list[Made] = []
    planned, seconds = plan(wanted.kills, wanted.minutes, at.rng), wanted.minutes * 60
    gap = max(0.0, seconds / len(planned) - 30)  # short runs have few faults: they may stand apart
    while True:
        elapsed = time.monotonic() - begun
        if elapsed > 3 * seconds + 60:
            say(f"{elapsed:6.0f} s  stopped: this takes three times as long as it should")
            return made
        if not planned and elapsed >= seconds and truth.likes >= wanted.likes:
            return made
        fault = planned.pop() if planned else at.rng.choice(KINDS)
        made.append(_make(fault, wanted, at, failures))
        say(_line(made[-1], begun))
        time.sleep(gap + at.rng.uniform(*BETWEEN_S))


def _make(fault: Fault, wanted: Wanted, at: Circumstances, failures: Failures) -> Made:
    begun, failed_before = time.monotonic(), failures.total
    what = fault.make(at)
    over = time.monotonic()
    back = _wait_until_counted(at.prober, over, wanted)
    until = time.monotonic() if back is None else back.seen
    probes = [probe for probe in list(at.prober.counted) if probe.seen >= begun and probe.sent <= until]
    return Made(
        fault,
        what,
        begun,
        over,
        None if back is None else until,
        max([probe.lag for probe in probes] + ([at.prober.lag()] if back is None else [])),
        failures.total - failed_before,
        tuple(probe.key.item for probe in probes),
    )


def _wait_until_counted(prober: Prober, since: float, wanted: Wanted) -> Counted | None:
    """The first like sent after that time which was counted soon enough; None where there is none in time."""
    deadline = time.monotonic() + wanted.patience_s
    while time.monotonic() < deadline:
        for probe in list(prober.counted):
            if probe.sent >= since and probe.lag < wanted.lag_s:
                return probe
        time.sleep(0.1)
    return None


def _line(made: Made, begun: float) -> str:
    back = "NOT BACK" if made.back is None else f"back in {made.back - made.over:.1f} s"
    return (
        f"{made.begun - begun:6.0f} s  {made.fault.name}: {made.what}; lag at worst {made.worst_lag:.1f} s, "
        f"{back}, {made.failed} calls failed"
    )


@contextlib.contextmanager
def _progress(say: Say, begun: float, truth: Truth, prober: Prober, failures: Failures) -> Iterator[None]:
    """A line each ten seconds."""
    stop = threading.Event()

    def tell() -> None:
        before, then = 0, begun
        while not stop.wait(PROGRESS_S):
            likes, now = truth.likes, time.monotonic()
            say(
                f"{now - begun:6.0f} s  {likes:,} likes acknowledged, {(likes - before) / (now - then):.0f}/s; "
                f"lag {prober.lag():.1f} s; {failures.total} calls failed"
            )
            before, then = likes, now

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
