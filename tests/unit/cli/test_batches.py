from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest

from tallymark.cli.batches import Patience, StoppedError
from tallymark.cli.connection import ApiError
from tallymark.cli.progress import Progress


class Waits(threading.Event):
    """A stop that only notes how long it was waited for, and moves the clock by that."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False

    def now(self) -> float:
        return sum(self.seconds)


def pauses(count: int, error: ApiError, random: Callable[[], float]) -> list[float]:
    waits = Waits()
    patience = Patience(give_up_s=1e9, stop=waits, clock=waits.now, random=random)
    for tries in range(count):
        patience.pause(tries, 0.0, error)
    return waits.seconds


def test_pauses_grow_to_a_ceiling() -> None:
    assert pauses(8, ApiError(503, "unavailable", ""), lambda: 1.0) == [0.25, 0.5, 1, 2, 4, 8, 15, 15]


def test_half_of_a_pause_is_jitter() -> None:
    assert pauses(1, ApiError(503, "unavailable", ""), lambda: 0.0) == [0.125]


def test_retry_after_is_the_least_to_wait() -> None:
    assert pauses(1, ApiError(429, "rate_limited", "", retry_after=30), lambda: 0.0) == [30.125]


def test_patience_ends_with_the_error() -> None:
    waits = Waits()
    patience = Patience(give_up_s=60, stop=waits, clock=waits.now, random=lambda: 1.0)
    error = ApiError(503, "unavailable", "")
    for tries in range(8):
        patience.pause(tries, 0.0, error)
    with pytest.raises(ApiError, match="unavailable"):
        patience.pause(8, 0.0, error)
    assert 30 < sum(waits.seconds) <= 60


def test_a_pause_ends_when_the_import_does() -> None:
    patience = Patience()
    patience.stop.set()
    with pytest.raises(StoppedError):
        patience.pause(9, patience.clock(), ApiError(503, "unavailable", ""))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_rate_and_eta() -> None:
    out, now = Terminal(), [0.0]
    progress = Progress(out, 1000, clock=lambda: now[0])
    progress.start(0)
    progress.begin(500, 100)
    now[0] = 5.0
    progress.advance(50)
    assert out.getvalue().endswith("[######                  ]  25%  50 likes, 10/s  ETA 00:15")


def test_elsewhere_a_plain_line_now_and_then() -> None:
    out, now = io.StringIO(), [0.0]
    progress = Progress(out, None, clock=lambda: now[0])
    progress.start(0)
    for second in range(1, 13):
        now[0] = float(second)
        progress.advance(10)
    progress.finish()
    assert out.getvalue() == "50 likes, 10/s\n100 likes, 10/s\n120 likes, 10/s\n"
