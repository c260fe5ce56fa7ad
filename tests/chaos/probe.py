"""How far counts are behind: likes of items that nobody else likes, and when each of them is counted."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace

from tests.chaos.calls import Caller, Failures
from tests.chaos.load import fields
from tests.chaos.truth import Key, Operation, Truth

EVERY_S = 0.5
LOOK_S = 0.1
PROBE = "probe-"  # what the names of their items begin with


@dataclass(frozen=True, slots=True)
class Counted:
    """A like that was acknowledged and then seen in its count. Times are of the monotonic clock but for `at_epoch`."""

    key: Key
    sent: float
    written: float
    seen: float
    at_epoch: float  # when it was sent, as the stream tells time

    @property
    def lag(self) -> float:
        return self.seen - self.written


class Prober:
    """One thread writes a like each half second, another looks for the oldest that is not yet counted."""

    def __init__(self, url: str, truth: Truth, failures: Failures) -> None:
        self.counted: list[Counted] = []
        self._url, self._truth, self._failures = url, truth, failures
        self._waiting: deque[Counted] = deque()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"probe-{target.__name__}", daemon=True)
            for target in (self._write, self._look)
        ]

    def start(self) -> None:
        """Begins."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def lag(self) -> float:
        """Seconds that counts are behind now: the age of the oldest like not seen yet, or what the last one took."""
        try:
            waiting = time.monotonic() - self._waiting[0].written
        except IndexError:
            waiting = 0.0
        return max(waiting, self.counted[-1].lag if self.counted else 0.0)

    def all_counted_until(self) -> float:
        """Whatever was written before this time since the epoch has been counted, and its batch is over.

        A like that was sent after another had been seen in its count came in a later batch than that; so when it is
        counted itself, the earlier batch has been taken whole.
        """
        counted = list(self.counted)
        if not counted:
            return 0.0
        before = [probe for probe in counted if probe.seen < counted[-1].sent]
        return before[-1].at_epoch if before else 0.0

    def _write(self) -> None:
        caller, number = Caller(self._url, self._failures), 0
        while not self._stop.is_set():
            number += 1
            # Many people: one may like only a hundred times a minute.
            key = Key(f"prober-{number % 50}", f"{PROBE}{number}", "like")
            self._truth.take(key)  # for good: nobody else may take it back
            sent, at_epoch = time.monotonic(), time.time()
            answer = caller.call("POST", "/v1/like", fields(key))
            if answer.status == 200:
                self._truth.answered(Operation(key, like=True), answer.body["changed"])
                self._waiting.append(Counted(key, sent, time.monotonic(), 0.0, at_epoch))
            else:
                self._truth.lost_answer(Operation(key, like=True))
            self._stop.wait(max(0.0, sent + EVERY_S - time.monotonic()))
        caller.close()

    def _look(self) -> None:
        caller = Caller(self._url, self._failures)
        while not self._stop.is_set():
            if not self._waiting:
                self._stop.wait(LOOK_S / 2)
                continue
            oldest = self._waiting[0]
            query = {"item_id": oldest.key.item, "item_type": fields(oldest.key)["item_type"], "fresh": "true"}
            answer = caller.call("GET", "/v1/count", **query)
            if answer.status == 200 and answer.body["count"] > 0:
                self.counted.append(replace(oldest, seen=time.monotonic()))
                self._waiting.popleft()
            else:
                self._stop.wait(LOOK_S)
        caller.close()
