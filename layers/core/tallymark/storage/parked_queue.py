"""The queue of parked records: one JSON message each, kept with all that is needed to settle it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tallymark.aggregation import Parked
from tallymark.errors import Unavailable

from .dynamodb import transient_as_unavailable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType

BATCH_MESSAGES = 10  # SQS API Reference, SendMessageBatch
BATCH_BYTES = 256 * 1024  # a fourth of what SQS takes since 2025, all of what it took before
_COUNTS: list[QueueAttributeNameType] = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
]


class ParkedQueue:
    """Puts records into the queue; Lambda takes them out."""

    def __init__(self, client: SQSClient, url: str) -> None:
        self._client, self._url = client, url

    def put(self, parked: Sequence[Parked]) -> None:
        """Returns when all are stored; Unavailable otherwise. A repeat stores them twice, which settles once."""
        for messages in _batches([to_message(one) for one in parked]):
            entries = [{"Id": str(i), "MessageBody": message} for i, message in enumerate(messages)]
            with transient_as_unavailable():
                answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)  # type: ignore[arg-type]
            if failed := answer.get("Failed"):
                raise Unavailable(f"the parked queue refused a record: {failed[0].get('Code')}")

    def waiting(self) -> int:
        """About how many messages are in the queue, those being worked on and delayed ones included."""
        with transient_as_unavailable():
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=_COUNTS)
        return sum(int(number) for number in answer["Attributes"].values())


def _batches(messages: Sequence[str]) -> Iterator[list[str]]:
    """As few as hold them all. A message alone is never too long: an event has at most 100 views of 256-byte ids."""
    batch: list[str] = []
    size = 0
    for message in messages:
        length = len(message.encode())
        if batch and (len(batch) == BATCH_MESSAGES or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch


def to_message(parked: Parked) -> str:
    part = {} if parked.part is None else {"part": parked.part}
    message = {"reason": parked.reason, "lane_id": parked.lane_id, **part, "record": parked.record}
    return json.dumps(message, ensure_ascii=False)


def from_message(body: str) -> Parked:
    """ValueError or KeyError for a message that put() never made."""
    message = json.loads(body)
    return Parked(message["reason"], message["lane_id"], message["record"], message.get("part"))
