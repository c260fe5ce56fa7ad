"""Sending operations in the API's batch call until each has a final answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import SystemRandom
from typing import Any

from tallymark.cli.connection import ApiError, error_parts
from tallymark.cli.rows import Operation, Reject

BATCH_MAX_OPERATIONS = 100  # HTTP API, "lists in requests hold up to 100 entries"

_PASSING = frozenset({0, 429, 500, 502, 503, 504})  # 0: no answer came
_FAULT_OF_A_ROW = frozenset({400, 413})

Post = Callable[[list[dict[str, object]]], list[dict[str, Any]]]


class StoppedError(Exception):
    """Another thread ended the import."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of some operations: likes that are new, likes that were there already, and the refused."""

    liked: int = 0
    already: int = 0
    rejects: tuple[Reject, ...] = ()

    def __add__(self, other: Answered) -> Answered:
        return Answered(self.liked + other.liked, self.already + other.already, self.rejects + other.rejects)

    def __len__(self) -> int:
        return self.liked + self.already + len(self.rejects)


@dataclass(slots=True)
class Patience:
    """How long to wait between tries; after `give_up_s` without any final answer there are no more."""

    give_up_s: float = 180.0
    first_s: float = 0.25
    longest_s: float = 15.0
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = SystemRandom().random
    notice: Callable[[str], object] = len  # of no effect, unless somebody wants to know

    def pause(self, tries: int, since: float, error: ApiError) -> None:
        """Returns when it is time for the next try; raises the error when there shall be none."""
        ceiling = min(self.longest_s, self.first_s * 2.0 ** min(tries, 16))
        # Retry-After is the least to wait; the jitter above it keeps the connections from coming back as one.
        seconds = (error.retry_after or 0.0) + ceiling * (0.5 + self.random() / 2)
        if self.clock() - since + seconds > self.give_up_s:
            raise error
        self.notice(f"{error.message}; next try in {seconds:.1f} s")
        if self.stop.wait(seconds):
            raise StoppedError


def send(operations: Sequence[Operation], post: Post, patience: Patience) -> Answered:
    """The final answers to up to 100 operations.

    Operations that were put off (429, 503) go again, alone, before anything that follows. Raises ApiError
    when the API refuses the caller, or stays away for too long.
    """
    done, waiting, tries, since = Answered(), list(operations), 0, patience.clock()
    while waiting:
        if patience.stop.is_set():
            raise StoppedError
        try:
            answered, waiting, error = _judge(waiting, post([operation.body for operation in waiting]))
        except ApiError as refused:
            if refused.status in _FAULT_OF_A_ROW:
                return done + _send_parts(waiting, post, patience, refused)
            if refused.status not in _PASSING:
                raise
            answered, error = Answered(), refused
        done += answered
        if len(answered):
            tries, since = 0, patience.clock()
        if error is not None:
            patience.pause(tries, since, error)
            tries += 1
    return done


def _send_parts(waiting: list[Operation], post: Post, patience: Patience, refused: ApiError) -> Answered:
    """One row makes the API refuse its whole call, by its size perhaps: halves until it stands alone."""
    if len(waiting) == 1:
        return Answered(rejects=(_reject(waiting[0], refused.code, refused.reason, refused.field),))
    middle = len(waiting) // 2
    return send(waiting[:middle], post, patience) + send(waiting[middle:], post, patience)


def _judge(sent: list[Operation], results: list[dict[str, Any]]) -> tuple[Answered, list[Operation], ApiError | None]:
    """The final answers, what must go again, and the error of the last of those."""
    if len(results) != len(sent):
        raise ApiError(200, "unexpected_answer", f"{len(results)} results for {len(sent)} operations")
    liked, rejects, again, error = 0, [], [], None
    for operation, result in zip(sent, results, strict=True):
        status = result.get("status")
        if status == 200:
            liked += result.get("changed") is True
            continue
        code, message, field_name = error_parts(result.get("error") or {})
        if status in _PASSING:
            again.append(operation)
            error = ApiError(status, code, message, field_name)
        elif status in (401, 403):
            # No fault of the row: every other one would be refused as well.
            raise ApiError(status, code, message, field_name)
        else:
            rejects.append(_reject(operation, code, message, field_name))
    already = len(sent) - liked - len(rejects) - len(again)
    return Answered(liked, already, tuple(rejects)), again, error


def _reject(operation: Operation, code: str, message: str, field_name: str | None) -> Reject:
    return Reject(operation.line, code, message, field_name, operation.row)
