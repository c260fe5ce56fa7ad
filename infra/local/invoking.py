"""Calling a function: in this process, or deployed, by Lambda's Invoke."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from random import getrandbits
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

logger = logging.getLogger(__name__)


class FunctionFailed(Exception):
    """The function was called and answered with an error."""


class NotInvoked(Exception):
    """The call did not reach the function (throttled, not there, no connection)."""


class Invoker(Protocol):
    """Calls one function and waits for its answer."""

    @property
    def function_arn(self) -> str:
        """The function's ARN."""

    def __call__(self, payload: str) -> Any:
        """The function's answer to the event in `payload` (JSON).

        Raises FunctionFailed or NotInvoked.
        """


def _request_id() -> str:
    # uuid4 asks the kernel for each; this only has to tell calls apart.
    return str(uuid.UUID(int=getrandbits(128), version=4))


@dataclass(frozen=True)
class Context:
    """What a function gets as its second argument, as far as Lambda documents it for Python."""

    function_name: str
    invoked_function_arn: str
    memory_limit_in_mb: int
    deadline: float
    aws_request_id: str = field(default_factory=_request_id)
    function_version: str = "$LATEST"
    log_stream_name: str = "local"
    identity: None = None
    client_context: None = None

    @property
    def log_group_name(self) -> str:
        """Where the function's log would be."""
        return f"/aws/lambda/{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds left of the function's timeout; nothing stops a call in process that goes over it."""
        return max(0, int((self.deadline - monotonic()) * 1000))


@dataclass(frozen=True)
class InProcess:
    """Calls a handler in this process."""

    handler: Callable[[Any, Any], Any]
    function_name: str
    function_arn: str
    timeout_seconds: int = 60
    memory_mb: int = 128

    def context(self) -> Context:
        """A fresh context, for one call."""
        deadline = monotonic() + self.timeout_seconds
        return Context(self.function_name, self.function_arn, self.memory_mb, deadline)

    def __call__(self, payload: str) -> Any:
        """The handler's answer; event and answer go through JSON, as they do for a deployed function."""
        try:
            return json.loads(json.dumps(self.handler(json.loads(payload), self.context())))
        except Exception as error:
            logger.exception("%s failed", self.function_name)
            raise FunctionFailed(repr(error)) from error


@dataclass(frozen=True)
class LambdaInvoke:
    """Calls a deployed function by Invoke and waits for its answer."""

    client: LambdaClient
    function_name: str
    function_arn: str

    def __call__(self, payload: str) -> Any:
        """The function's answer.

        Raises FunctionFailed where Lambda reports a function error, NotInvoked for every other failure.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self.client.invoke(FunctionName=self.function_name, Payload=payload.encode())
            body = answer["Payload"].read()
        except (BotoCoreError, ClientError) as error:
            raise NotInvoked(f"{self.function_name}: {error}") from error
        if answer.get("FunctionError"):
            logger.error("%s failed: %s", self.function_name, body[:2000].decode("utf-8", "replace"))
            raise FunctionFailed(f"{self.function_name}: {answer['FunctionError']}")
        return json.loads(body) if body else None
