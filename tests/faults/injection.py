"""Faults of the SDK's transport: what may happen to a call between the function and the store.

Each kind happens to the bytes on their way, so everything above it is the real thing: the SDK's own retries, its
parsing, our adapters, the handlers. What "took effect" has really been sent to the store before the fault.
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from tests.hooks import hooked

THROTTLES = ("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded")
WRITERS, AGGREGATOR, CONSUMER = "writers", "aggregator", "consumer"
READS = ("GetItem", "BatchGetItem", "Query")
BATCH_READ, BATCH_WRITE, TRANSACTION, SEND = (
    "BatchGetItem",
    "BatchExecuteStatement",
    "TransactWriteItems",
    "SendMessageBatch",
)

RATE, RATE_OF_READS, RATE_OF_SENDS = 0.75, 0.35, 0.85  # of the calls that a kind is waiting for
RATE_AT_REST = 0.03
RATE_OF_WRITERS = 0.15  # they make the history; the functions are what is tried


class Died(BaseException):
    """The function dies at once: nothing in it can catch this."""


@dataclass(frozen=True)
class Sent:
    """A call on its way, and what really sends it."""

    request: Any
    operation: str
    client: Any
    rng: random.Random

    @property
    def body(self) -> Any:
        return json.loads(self.request.body)

    def send(self) -> Any:
        """The store's answer; the call has taken effect."""
        return self.client._endpoint.http_session.send(self.request)

    def send_changed(self, body: Any) -> Any:
        """The store's answer, as JSON, to another body in place of the caller's."""
        self.request.data = self.request.body = json.dumps(body).encode()
        self.request.headers["Content-Length"] = str(len(self.request.body))
        answer = self.send()
        return answer, json.loads(answer.content)

    def answer(self, status: int, body: Any) -> AWSResponse:
        headers = HTTPHeaders.from_dict({"Content-Type": "application/x-amz-json-1.0"})
        return AWSResponse(self.request.url, status, headers, _Raw(json.dumps(body).encode()))

    def error(self, status: int, code: str) -> AWSResponse:
        return self.answer(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "made up"})


class _Raw(io.BytesIO):
    """A body as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


# --- kinds ----------------------------------------------------------------------------------------------------


def throttled(call: Sent) -> Any:
    return call.error(400, call.rng.choice(THROTTLES))


def failed_before(call: Sent) -> Any:
    return call.error(500, "InternalServerError")


def lost_before(call: Sent) -> Any:
    url = call.request.url
    raise call.rng.choice(
        [
            ConnectionClosedError(endpoint_url=url),
            EndpointConnectionError(endpoint_url=url, error="refused"),
            ConnectTimeoutError(endpoint_url=url),
        ]
    )


def failed_after(call: Sent) -> Any:
    call.send()
    return call.error(500, "InternalServerError")


def reply_lost(call: Sent) -> Any:
    call.send()
    raise ConnectionClosedError(endpoint_url=call.request.url)


def read_timeout(call: Sent) -> Any:
    call.send()
    raise ReadTimeoutError(endpoint_url=call.request.url)


def read_fails(call: Sent) -> Any:
    return call.rng.choice((throttled, failed_before, lost_before, failed_after, reply_lost, read_timeout))(call)


def keys_unprocessed(call: Sent) -> Any:
    """Some of the keys, or all, come back as UnprocessedKeys."""
    body = call.body
    ((table, wanted),) = body["RequestItems"].items()
    kept, left = _divided(wanted["Keys"], call.rng)
    rest = {table: {**wanted, "Keys": left}}
    if not kept:
        return call.answer(200, {"Responses": {table: []}, "UnprocessedKeys": rest})
    answer, found = call.send_changed({**body, "RequestItems": {table: {**wanted, "Keys": kept}}})
    return call.answer(200, {**found, "UnprocessedKeys": rest}) if answer.status_code == 200 else answer


def statements_refused(call: Sent) -> Any:
    """Some statements of the batch, or all, are not carried out, and say so one by one."""
    body = call.body
    statements = body["Statements"]
    kept, left = _divided(range(len(statements)), call.rng)
    responses: dict[int, Any] = {
        i: {"Error": {"Code": call.rng.choice(("ThrottlingError", "ProvisionedThroughputExceeded")), "Message": "no"}}
        for i in left
    }
    if kept:
        answer, done = call.send_changed({**body, "Statements": [statements[i] for i in kept]})
        if answer.status_code != 200:
            return answer
        responses |= dict(zip(kept, done["Responses"], strict=True))
    return call.answer(200, {"Responses": [responses[i] for i in range(len(statements))]})


def transaction_in_conflict(call: Sent) -> Any:
    reasons = [{"Code": "None"}, {"Code": "TransactionConflict", "Message": "made up"}]
    return call.answer(
        400,
        {
            "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
            "message": "Transaction cancelled, please refer cancellation reasons for specific reasons",
            "CancellationReasons": reasons,
        },
    )


def dies_before(_call: Sent) -> Any:
    raise Died


def dies_after(call: Sent) -> Any:
    call.send()
    raise Died


def queue_fails(call: Sent) -> Any:
    """The queue takes none of the messages, or not all of them."""
    if call.rng.random() < 0.5:
        return call.rng.choice((failed_before, lost_before))(call)
    body = call.body
    kept, left = _divided(body["Entries"], call.rng)
    failed = [{"Id": entry["Id"], "Code": "InternalError", "SenderFault": False} for entry in left]
    if not kept:
        return call.answer(200, {"Successful": [], "Failed": failed})
    answer, done = call.send_changed({**body, "Entries": kept})
    return call.answer(200, {**done, "Failed": failed}) if answer.status_code == 200 else answer


def queue_reply_lost(call: Sent) -> Any:
    return call.rng.choice((reply_lost, read_timeout, failed_after))(call)


def _divided(whole: Sequence[Any], rng: random.Random) -> tuple[list[Any], list[Any]]:
    """What is kept, and at least one that is not."""
    unlucky = rng.randrange(len(whole))
    left = [i for i in range(len(whole)) if i == unlucky or rng.random() < 0.5]
    return [entry for i, entry in enumerate(whole) if i not in left], [whole[i] for i in left]


@dataclass(frozen=True)
class Kind:
    """What happens, and to which calls."""

    name: str
    act: Callable[[Sent], Any]
    fits: Callable[[str], bool]
    shares: Mapping[str, float]  # of those that are wanted, where


def _to(*operations: str) -> Callable[[str], bool]:
    return lambda operation: operation in operations


def _to_writes(operation: str) -> bool:
    return operation not in (*READS, SEND)


def _to_all(_operation: str) -> bool:
    return True


BOTH = {AGGREGATOR: 0.65, CONSUMER: 0.35}
IN_AGGREGATOR, IN_CONSUMER = {AGGREGATOR: 1.0}, {CONSUMER: 1.0}
TRANSPORT = (
    Kind("write throttled", throttled, _to_writes, BOTH),
    Kind("error 500 before the write", failed_before, _to_writes, BOTH),
    Kind("connection lost before the write", lost_before, _to_writes, BOTH),
    Kind("error 500 after the write", failed_after, _to_writes, BOTH),
    Kind("reply lost after the write", reply_lost, _to_writes, BOTH),
    Kind("read timeout after the write", read_timeout, _to_writes, BOTH),
    Kind("statements of a batch refused", statements_refused, _to(BATCH_WRITE), IN_AGGREGATOR),
    Kind("transaction in conflict", transaction_in_conflict, _to(TRANSACTION), IN_CONSUMER),
    Kind("read fails", read_fails, _to(*READS), IN_AGGREGATOR),
    Kind("keys of a read left unprocessed", keys_unprocessed, _to(BATCH_READ), IN_AGGREGATOR),
    Kind("function dies before a call", dies_before, _to_all, BOTH),
    Kind("function dies after a call", dies_after, _to_all, BOTH),
    Kind("queue takes not all messages", queue_fails, _to(SEND), IN_AGGREGATOR),
    Kind("queue takes all, reply lost", queue_reply_lost, _to(SEND), IN_AGGREGATOR),
)


# --- how often ------------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """How often each kind was made; a run asks for `wanted` of each by its end."""

    wanted: int
    made: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind, where)
    progress: float = 0.0  # of the run, 0 to 1

    def note(self, kind: str, where: str) -> None:
        self.made[kind, where] += 1

    def in_functions(self, kind: str) -> int:
        """How often it was made, not counting those that met the writers."""
        return self.made[kind, AGGREGATOR] + self.made[kind, CONSUMER]

    def behind(self, kind: str, where: str, share: float = 1.0) -> float:
        """How many more there should have been by now."""
        return max(0.0, self.wanted * self.progress * share - self.made[kind, where])


class Injector:
    """Sits between clients and the store. Does nothing but inside `during`."""

    def __init__(self, ledger: Ledger, rng: random.Random) -> None:
        self.calls: Counter[str] = Counter()  # operation -> how often the SDK was about to send it
        self._ledger, self._rng = ledger, rng
        self._where: str | None = None

    @contextmanager
    def over(self, *clients: Any) -> Iterator[None]:
        """Registers with the clients, which are left as they were."""
        with ExitStack() as stack:
            for client in clients:
                service = client.meta.service_model
                hooks = {
                    f"before-send.{service.service_id.hyphenize()}.{operation}": self._hook(client, operation)
                    for operation in service.operation_names
                }
                stack.enter_context(hooked(client, hooks))
            yield

    @contextmanager
    def during(self, where: str) -> Iterator[None]:
        """Makes faults, and notes them under this name."""
        self._where = where
        try:
            yield
        finally:
            self._where = None

    def _hook(self, client: Any, operation: str) -> Callable[..., Any]:
        def before_send(request: Any, **_: Any) -> Any:
            if self._where is None:
                return None
            self.calls[operation] += 1
            kind = self._choose(operation, self._where)
            if kind is None:
                return None
            self._ledger.note(kind.name, self._where)
            return kind.act(Sent(request, operation, client, self._rng))

        return before_send

    def _choose(self, operation: str, where: str) -> Kind | None:
        kinds = [kind for kind in TRANSPORT if kind.fits(operation)]
        if where == WRITERS:
            return self._rng.choice(kinds) if self._rng.random() < RATE_OF_WRITERS else None
        weights = [self._ledger.behind(kind.name, where, kind.shares.get(where, 0)) for kind in kinds]
        if not any(weights):
            return self._rng.choice(kinds) if self._rng.random() < RATE_AT_REST else None
        rate = RATE_OF_READS if operation in READS else RATE_OF_SENDS if operation == SEND else RATE
        if self._rng.random() >= rate:
            return None
        (kind,) = self._rng.choices(kinds, weights)
        return kind
