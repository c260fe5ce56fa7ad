"""Lambda's event source mapping for SQS, and scheduled calls: what feeds functions besides the stream.

AWS Lambda Developer Guide, "Using Lambda with Amazon SQS" (with-sqs).
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from infra.local.filters import compile_filters
from infra.local.invoking import FunctionFailed, Invoker, NotInvoked
from infra.local.template import Schedule

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

RECEIVE_MAX_MESSAGES = 10  # SQS API Reference, ReceiveMessage
LONG_POLL_SECONDS = 1  # Lambda waits up to 20 s; a short one lets the stack stop soon
PAUSE_AFTER_ERROR_SECONDS = 1.0

Message = Mapping[str, Any]


class Queue(Protocol):
    """The part of SQS that the poller needs."""

    arn: str

    def receive(self, most: int, wait_seconds: float) -> Sequence[Message]:
        """Up to `most` messages, waiting for the first."""

    def delete(self, receipts: Sequence[str]) -> None:
        """Removes messages for good."""


class SQSQueue:
    """A queue of SQS, by boto3."""

    def __init__(self, client: SQSClient, arn: str) -> None:
        self.arn = arn
        self._client = client
        *_, account_id, name = arn.split(":")
        self._url = client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account_id)["QueueUrl"]

    def receive(self, most: int, wait_seconds: float) -> Sequence[Message]:
        """Up to 10 messages."""
        answer = self._client.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=min(most, RECEIVE_MAX_MESSAGES),
            WaitTimeSeconds=int(wait_seconds),
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return answer.get("Messages", [])

    def delete(self, receipts: Sequence[str]) -> None:
        """Removes up to 10 messages at a time."""
        for first in range(0, len(receipts), RECEIVE_MAX_MESSAGES):
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt}
                for number, receipt in enumerate(receipts[first : first + RECEIVE_MAX_MESSAGES])
            ]
            self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)  # type: ignore[arg-type]


@dataclass(frozen=True)
class QueueSettings:
    """The mapping's properties for a queue."""

    batch_size: int = 10
    batching_window_seconds: float = 0
    partial_responses: bool = False
    filter_criteria: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> QueueSettings:
        """The settings from a template's resolved properties."""
        return cls(
            batch_size=int(properties.get("BatchSize", 10)),
            batching_window_seconds=float(properties.get("MaximumBatchingWindowInSeconds", 0)),
            partial_responses="ReportBatchItemFailures" in (properties.get("FunctionResponseTypes") or ()),
            filter_criteria=properties.get("FilterCriteria"),
        )


class QueuePoller:
    """Hands a queue's messages to a function and deletes those that it took."""

    def __init__(self, queue: Queue, invoke: Invoker, settings: QueueSettings) -> None:
        self._queue = queue
        self._invoke = invoke
        self._settings = settings
        self._wanted = compile_filters(settings.filter_criteria)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def poll(self) -> int:
        """Receives one batch, calls the function, deletes; returns how many messages it deleted.

        What failed stays in the queue and comes again when its visibility timeout is over; the queue's
        redrive policy decides how often.
        """
        messages = self._gather()
        if not messages:
            return 0
        events = [(message["ReceiptHandle"], self._event(message)) for message in messages]
        unwanted = [receipt for receipt, event in events if self._wanted and not self._wanted(_parsed(event))]
        batch = [(receipt, event) for receipt, event in events if receipt not in set(unwanted)]
        done = unwanted + (self._deliver(batch) if batch else [])
        if done:
            self._queue.delete(done)
        return len(done)

    def _gather(self) -> list[Message]:
        window = self._settings.batching_window_seconds
        messages = list(self._queue.receive(self._settings.batch_size, LONG_POLL_SECONDS))
        deadline = time.monotonic() + window
        while messages and len(messages) < self._settings.batch_size and not self._stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            messages += self._queue.receive(self._settings.batch_size - len(messages), min(left, 1))
        return messages

    def _event(self, message: Message) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": dict(message.get("Attributes", {})),
            "messageAttributes": {
                name: {key[0].lower() + key[1:]: value for key, value in attribute.items()}
                for name, attribute in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message.get("MD5OfBody", ""),
            "eventSource": "aws:sqs",
            "eventSourceARN": self._queue.arn,
            "awsRegion": self._queue.arn.split(":")[3],
        }

    def _deliver(self, batch: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
        """The receipts of the messages that the function took."""
        try:
            answer = self._invoke(json.dumps({"Records": [event for _, event in batch]}))
        except (FunctionFailed, NotInvoked) as error:
            logger.warning("%d messages stay in the queue: %s", len(batch), error)
            return []
        if not self._settings.partial_responses:
            return [receipt for receipt, _ in batch]
        failed = _failed_ids(answer, {event["messageId"] for _, event in batch})
        if failed is None:
            logger.warning("%d messages stay in the queue: the answer cannot be used", len(batch))
            return []
        return [receipt for receipt, event in batch if event["messageId"] not in failed]

    def start(self) -> None:
        """Begins to poll, on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="queue", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        while not self._stop.is_set():
            try:
                self.poll()
            except (BotoCoreError, ClientError) as error:
                if not self._stop.is_set():
                    logger.warning("cannot poll the queue: %s", error)
                self._stop.wait(PAUSE_AFTER_ERROR_SECONDS)
            except Exception:
                # A fault of the poller must not end it in silence.
                logger.exception("the queue poller itself failed")
                self._stop.wait(PAUSE_AFTER_ERROR_SECONDS)

    def stop(self, timeout: float = 10.0) -> None:
        """Ends polling; a batch under way is finished."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)


def _failed_ids(answer: Any, known: set[str]) -> set[str] | None:
    """The message ids that an answer reports as failed; None where all count as failed.

    with-sqs, "Implementing partial batch responses": an empty or null list, or no answer, is success; an
    empty, null, missing or unknown identifier fails the whole batch.
    """
    if answer is None:
        return set()
    if not isinstance(answer, Mapping):
        return None
    try:
        failed = {item["itemIdentifier"] for item in answer.get("batchItemFailures") or ()}
    except (KeyError, TypeError):
        return None
    return failed if failed <= known else None


def _parsed(event: dict[str, Any]) -> dict[str, Any]:
    """The event as filters see it: a body of JSON as an object (invocation-eventfiltering)."""
    try:
        return {**event, "body": json.loads(event["body"])}
    except ValueError:
        return event


# --- schedules ----------------------------------------------------------------------------------------------

RATE = re.compile(r"rate\((\d+) (second|minute|hour|day)s?\)")
UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


def rate_seconds(expression: str) -> float | None:
    """The pause of a rate expression; None for a cron expression, which the local stack does not run."""
    match = RATE.fullmatch(expression)
    return int(match[1]) * UNITS[match[2]] if match else None


class Scheduler:
    """Calls functions at the rates of the template, the first time after one pause, as EventBridge does."""

    def __init__(self, entries: Sequence[tuple[Schedule, Invoker]], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._due: list[tuple[float, float, Schedule, Invoker]] = []
        for schedule, invoke in entries:
            pause = rate_seconds(schedule.expression)
            if pause is None:
                logger.warning("%s: %s is not run locally", schedule.name, schedule.expression)
            elif schedule.enabled:
                self._due.append((clock() + pause, pause, schedule, invoke))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Makes the calls that are due."""
        now = self._clock()
        for index, (due, pause, schedule, invoke) in enumerate(self._due):
            if due > now:
                continue
            self._due[index] = (due + pause, pause, schedule, invoke)
            try:
                invoke(schedule.input or _scheduled_event(schedule, now))
            except (FunctionFailed, NotInvoked) as error:
                logger.warning("%s: %s", schedule.name, error)

    def start(self) -> None:
        """Begins, on a thread of its own; nothing where the template has no schedule."""
        if self._due:
            self._thread = threading.Thread(target=self._run, name="schedules", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            self.step()

    def stop(self, timeout: float = 10.0) -> None:
        """Ends; a call under way is finished."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)


def _scheduled_event(schedule: Schedule, now: float) -> str:
    return json.dumps(
        {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "time": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "resources": [schedule.name],
            "detail": {},
        }
    )
