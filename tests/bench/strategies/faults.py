"""What happens to calls on their way, the same for every strategy: the k-th call meets the k-th fate of a seed.

A fault happens to the bytes: above it are the client libraries as they are, with the two attempts that both have here.
What "took effect" has really been sent before the fault.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import BotoCoreError, ClientError
from valkey.connection import Connection
from valkey.exceptions import ConnectionError, TimeoutError, ValkeyError

from tallymark.errors import Unavailable
from tests.faults.injection import Died, Sent, dies_after, dies_before, failed_before, read_timeout, reply_lost
from tests.hooks import hooked

Attempt = Literal["fails before", "reply lost", "times out", "dies before", "dies after"]


@dataclass(frozen=True)
class Fate:
    """What the attempts of a call meet, in their order; later ones meet nothing."""

    name: str
    share: float  # of the calls
    attempts: tuple[Attempt, ...]
    sent_twice: bool = False  # it succeeds, and whoever called does not learn it

    @property
    def effects(self) -> int:
        """How often a call without a token takes effect, until it is answered."""
        return (
            1 + self.sent_twice + sum(attempt in ("reply lost", "times out", "dies after") for attempt in self.attempts)
        )


FATES = (
    Fate("fails before its effect, the library repeats it", 0.01, ("fails before",)),
    Fate("takes effect, its reply is lost, the library repeats it", 0.01, ("reply lost",)),
    Fate("takes effect twice, both replies time out, the caller repeats it", 0.01, ("times out", "times out")),
    Fate("succeeds, and the caller sends it again all the same", 0.01, (), sent_twice=True),
    Fate("its process dies before the write, the caller repeats it", 0.005, ("dies before",)),
    Fate("its process dies after the write, the caller repeats it", 0.005, ("dies after",)),
)
UNHARMED = Fate("nothing happens", 1 - sum(fate.share for fate in FATES), ())

UNANSWERED = (BotoCoreError, ClientError, Unavailable, ValkeyError, Died)
"""How a caller sees that a call was not answered."""


def fates(seed: int) -> Iterator[Fate]:
    """One per call, without end."""
    rng = random.Random(seed)
    while True:
        yield rng.choices((*FATES, UNHARMED), [fate.share for fate in (*FATES, UNHARMED)])[0]


class Faults:
    """What the coming attempts meet, over both transports; nothing unless told."""

    def __init__(self) -> None:
        self.coming: deque[Attempt] = deque()

    def next(self) -> Attempt | None:
        return self.coming.popleft() if self.coming else None

    @contextmanager
    def over(self, client: Any) -> Iterator[None]:
        """Puts them between a client of the SDK and the store, and leaves the client as it was."""
        acts = {
            "fails before": failed_before,
            "reply lost": reply_lost,
            "times out": read_timeout,
            "dies before": dies_before,
            "dies after": dies_after,
        }

        def before_send(request: Any, **_: Any) -> Any:
            attempt = self.next()
            if attempt is None:
                return None
            operation = request.headers["X-Amz-Target"].decode().rpartition(".")[2]
            return acts[attempt](Sent(request, operation, client, random.Random(0)))

        with hooked(client, {"before-send.dynamodb": before_send}):
            yield


class FaultyConnection(Connection):
    """A connection to Valkey on which replies are lost and processes die."""

    def __init__(self, *, faults: Faults, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._faults, self._greeting = faults, False
        self._meets: Attempt | None = None

    def on_connect(self) -> None:
        """By commands of the library's own, which meet nothing."""
        self._greeting = True
        try:
            super().on_connect()  # type: ignore[no-untyped-call]
        finally:
            self._greeting = False

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._greeting:
            if not self._sock:
                self.connect()  # type: ignore[no-untyped-call]
            self._meets = self._faults.next()
        if self._meets in ("fails before", "dies before"):
            self._break()
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        answer = super().read_response(*arguments, **options)  # type: ignore[no-untyped-call]
        if self._meets is not None:
            self._break()
        return answer

    def _break(self) -> None:
        met, self._meets = self._meets, None
        self.disconnect()  # type: ignore[no-untyped-call]
        if met in ("dies before", "dies after"):
            raise Died
        raise (TimeoutError if met == "times out" else ConnectionError)("made up")
