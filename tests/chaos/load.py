"""The load: people who like, take back and repeat, one by one and in batches, at a pace that reaches the goal."""

from __future__ import annotations

import bisect
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.chaos.calls import Answer, Caller, Failures
from tests.chaos.truth import Key, Operation, Truth

ITEM_TYPE = "film"
ITEMS, USERS, BATCH = 400, 100_000, 100
REACTIONS = ("like", "👍", "party-parrot")
CLIENTS = 4  # half of them send batches; an emulator starts a process for each call that meets its function at work
SINGLES_PER_SECOND = 12.0  # of each such client
RETRY_AFTER_S = 20.0  # twice a function's timeout: what was lost is not under way any more
BACKOFF_S = (0.5, 2.0)
EARLY = 0.85  # of the time in which the goal is to be reached


class Pace:
    """How many acknowledged likes are due by now: the goal before the time is over, and so on after that."""

    def __init__(self, likes: int, seconds: float) -> None:
        self._per_second = likes / (EARLY * seconds)
        self._begun = time.monotonic()

    def due(self) -> float:
        """Likes that should have been acknowledged by now."""
        return (time.monotonic() - self._begun) * self._per_second


class Chooser:
    """Draws operations whose keys nobody else works on. Items follow a Zipf law: a few are hot."""

    def __init__(self, truth: Truth, rng: random.Random) -> None:
        self._truth, self._rng = truth, rng
        self._sums = list(itertools.accumulate(1 / (rank + 1) for rank in range(ITEMS)))

    def operations(self) -> list[Operation]:
        """Operations on one like, in order; more than one in 20 times."""
        drawn = self._rng.random()
        if drawn < 0.22:
            known = self._truth.standing(self._rng)
            if known is not None and self._truth.take(known):
                return [Operation(known, like=drawn < 0.04)]
        while not self._truth.take(key := self._any()):
            pass
        if drawn > 0.95:
            return [Operation(key, like) for like in (True, False, True)]
        return [Operation(key, like=True)]

    def _any(self) -> Key:
        item = bisect.bisect_left(self._sums, self._rng.random() * self._sums[-1])
        reaction = self._rng.choices(REACTIONS, (90, 7, 3))[0]
        return Key(f"user-{self._rng.randrange(USERS)}", f"item-{item}", reaction)


class Load:
    """Clients in threads, from `start` to `stop`."""

    def __init__(
        self, url: str, service_key: str, truth: Truth, failures: Failures, seed: int, *, clients: int = CLIENTS
    ) -> None:
        self.unexpected: list[str] = []
        self._url, self._as_service = url, {"tallymark-service-key": service_key}
        self._truth, self._failures = truth, failures
        self._pace: Pace
        self._stop = threading.Event()
        self._retries: deque[tuple[float, Operation]] = deque()
        kinds = [self._single, self._batch] * (clients // 2)
        self._threads = [
            threading.Thread(target=kind, args=(random.Random(f"{seed}-{n}"),), name=f"client-{n}", daemon=True)
            for n, kind in enumerate(kinds)
        ]

    def start(self, pace: Pace) -> None:
        """Begins."""
        self._pace = pace
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends, once the calls that are under way are answered."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    # --- one by one ---------------------------------------------------------------------------------------------

    def _single(self, rng: random.Random) -> None:
        caller, chooser = Caller(self._url, self._failures), Chooser(self._truth, rng)
        while not self._stop.is_set():
            begun = time.monotonic()
            operations = self._due_retry() or chooser.operations()
            for operation in operations:
                answer = self._send(caller, operation, rng)
                self._take_in([operation], [(answer.status, answer.status == 200 and answer.body["changed"])])
                if answer.lost:
                    break
            self._give_back(operations)
            self._stop.wait(max(0.0, begun + len(operations) / SINGLES_PER_SECOND - time.monotonic()))
            self._after(answer, rng)
        caller.close()

    def _due_retry(self) -> list[Operation]:
        """An operation whose answer was lost, once it cannot be under way any more: clients ask again."""
        try:
            due, operation = self._retries.popleft()
        except IndexError:
            return []
        if due <= time.monotonic():
            return [operation]
        self._retries.appendleft((due, operation))
        return []

    def _send(self, caller: Caller, operation: Operation, rng: random.Random) -> Answer:
        body: dict[str, Any] = fields(operation.key)
        if rng.random() < 0.3:
            return caller.call("POST", "/v1/toggle", {**body, "like": operation.like})
        if operation.like:
            return caller.call("POST", "/v1/like", body)
        return caller.call("DELETE", "/v1/like", body)

    # --- in batches ---------------------------------------------------------------------------------------------

    def _batch(self, rng: random.Random) -> None:
        """Every second batch comes from a service, the others from people, of whom each has a few likes in it."""
        callers = [Caller(self._url, self._failures, headers) for headers in (self._as_service, {})]
        chooser = Chooser(self._truth, rng)
        for caller in itertools.cycle(callers):
            while self._truth.likes > self._pace.due() and not self._stop.wait(0.05):
                pass
            if self._stop.is_set():
                break
            operations: list[Operation] = []
            while len(operations) < BATCH - 2:
                operations += chooser.operations()
            answer = caller.call("POST", "/v1/batch", {"operations": [_entry(operation) for operation in operations]})
            self._take_in(operations, _results(answer, len(operations)))
            self._give_back(operations)
            self._after(answer, rng)
        for caller in callers:
            caller.close()

    # --- answers ------------------------------------------------------------------------------------------------

    def _after(self, answer: Answer, rng: random.Random) -> None:
        """Clients wait after a failure: functions that start anew would not come to it while all ask again at once."""
        if answer.lost:
            self._stop.wait(rng.uniform(*BACKOFF_S))

    def _give_back(self, operations: Sequence[Operation]) -> None:
        last = {operation.key: operation for operation in operations}
        for key in self._truth.give_back(last):
            self._retries.append((time.monotonic() + RETRY_AFTER_S, last[key]))

    def _take_in(self, operations: Sequence[Operation], results: Sequence[tuple[int, bool]]) -> None:
        for operation, (status, changed) in zip(operations, results, strict=True):
            if status == 200:
                self._truth.answered(operation, changed)
            elif status == 0 or status >= 500:
                self._truth.lost_answer(operation)
            elif status != 429:  # refused: nothing was done
                self.unexpected.append(f"{operation}: status {status}")


def fields(key: Key) -> dict[str, str]:
    """The body that names a like."""
    return {"user_id": key.user, "item_id": key.item, "item_type": ITEM_TYPE, "reaction": key.reaction}


def _entry(operation: Operation) -> dict[str, str]:
    return {"action": "like" if operation.like else "unlike", **fields(operation.key)}


def _results(answer: Answer, size: int) -> list[tuple[int, bool]]:
    """Of each operation its status and whether it changed anything."""
    if answer.status != 200:
        return [(answer.status, False)] * size
    return [(result["status"], result.get("changed", False)) for result in answer.body["results"]]
