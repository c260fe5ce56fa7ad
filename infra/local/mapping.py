"""A stream pump: Lambda's event source mapping for DynamoDB streams, as AWS documents it.

The emulator's own mapping has no windows, no partial batch response, no bisecting and no shard id, so it
cannot show whether the aggregator is right. This one follows the pages of the AWS Lambda Developer Guide
named beside each rule. What AWS leaves open is decided here towards the harder case and said where it is
decided.

A lane is one shard. Each lane is a small state machine: `Lane.step(now)` does what is due and says when to
come back; nothing in it sleeps, so tests drive it with a clock of their own. `Pump` finds the shards, gives
each lane a thread, and tells how far behind the lanes are.

Positions are kept in memory only. A pump that starts again at TRIM_HORIZON delivers everything once more,
which is what "at least once" allows and what the aggregator must bear.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from infra.local.filters import compile_filters
from infra.local.invoking import FunctionFailed, Invoker, NotInvoked

if TYPE_CHECKING:
    from mypy_boto3_dynamodbstreams import DynamoDBStreamsClient

logger = logging.getLogger(__name__)

PAYLOAD_MAX_BYTES = 6 * 1024 * 1024  # Lambda quotas, "Invocation payload", synchronous
STATE_MAX_BYTES = 1024 * 1024  # services-ddb-windows
RETENTION_SECONDS = 24 * 3600  # DynamoDB Developer Guide, "Data retention limit for DynamoDB Streams"
POLL_SECONDS = 0.25  # with-ddb: a base rate of 4 times per second
PAGE_MAX_RECORDS = 1000  # DynamoDB Streams API Reference, GetRecords
ENVELOPE_BYTES = 1024  # the window's fields around Records and state
DISCOVERY_SECONDS = 10.0

# AWS does not publish its backoff. Short at first, so that a local stack recovers at once.
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0


# --- the stream ---------------------------------------------------------------------------------------------


class IteratorExpired(Exception):
    """The iterator is older than 15 minutes: get one after the last record that was read."""


class DataTrimmed(Exception):
    """The position lies before the oldest record that the stream still has."""


class StreamUnavailable(Exception):
    """The stream could not be read; try again later."""


@dataclass(frozen=True)
class Shard:
    """One shard of a stream."""

    shard_id: str
    parent_id: str | None = None
    closed: bool = False


@dataclass(frozen=True)
class Page:
    """What one read returned; a shard that has ended gives no next iterator."""

    records: Sequence[Mapping[str, Any]]
    next_iterator: str | None


class Stream(Protocol):
    """The part of DynamoDB Streams that the pump needs.

    Records are in the form in which Lambda hands them to a function, without eventSourceARN.
    Every method may raise StreamUnavailable.
    """

    arn: str

    def shards(self) -> Sequence[Shard]:
        """Every shard of the stream."""

    def iterator(self, shard_id: str, after: str | None, start: str) -> str:
        """An iterator after sequence number `after`, or where that is None at `start`.

        `start` is TRIM_HORIZON or LATEST. Raises DataTrimmed.
        """

    def read(self, iterator: str) -> Page:
        """The next records. Raises IteratorExpired or DataTrimmed."""


class DynamoDBStream:
    """A DynamoDB stream read with boto3."""

    def __init__(self, client: DynamoDBStreamsClient, arn: str) -> None:
        self.arn = arn
        self._client = client
        # The JSON that DynamoDB Streams sends is the form in which Lambda hands records on: binary values in
        # base64, times as numbers. Taking it before botocore turns it into Python types is both exact and
        # cheap.
        # The id keeps it from being registered twice: the second would find nothing left to take.
        event = "before-parse.dynamodb-streams.GetRecords"
        client.meta.events.register(event, _keep_json, unique_id="tallymark-keep-json")

    def shards(self) -> list[Shard]:
        """Every shard, all pages."""
        found: list[Shard] = []
        request: dict[str, Any] = {"StreamArn": self.arn}
        while True:
            description = self._call(self._client.describe_stream, **request)["StreamDescription"]
            for shard in description["Shards"]:
                ended = "EndingSequenceNumber" in shard.get("SequenceNumberRange", {})
                found.append(Shard(shard["ShardId"], shard.get("ParentShardId"), ended))
            if "LastEvaluatedShardId" not in description:
                return found
            request["ExclusiveStartShardId"] = description["LastEvaluatedShardId"]

    def iterator(self, shard_id: str, after: str | None, start: str) -> str:
        """An iterator after `after`, else at `start`."""
        where = {"ShardIteratorType": start}
        if after is not None:
            where = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": after}
        answer = self._call(self._client.get_shard_iterator, StreamArn=self.arn, ShardId=shard_id, **where)
        iterator: str = answer["ShardIterator"]
        return iterator

    def read(self, iterator: str) -> Page:
        """Up to 1,000 records or 1 MB."""
        answer = self._call(self._client.get_records, ShardIterator=iterator, Limit=PAGE_MAX_RECORDS)
        raw = answer["Raw"]
        return Page(raw.get("Records") or (), raw.get("NextShardIterator"))

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: dict[str, Any] = operation(**arguments)
        except ClientError as error:
            kind = {"ExpiredIteratorException": IteratorExpired, "TrimmedDataAccessException": DataTrimmed}
            raise kind.get(error.response["Error"]["Code"], StreamUnavailable)(str(error)) from error
        except BotoCoreError as error:
            raise StreamUnavailable(str(error)) from error
        return answer


def _keep_json(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] == 200:
        customized_response_dict["Raw"] = json.loads(response_dict["body"])
        response_dict["body"] = b"{}"


# --- settings -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The mapping's properties (services-ddb-params), -1 meaning without limit."""

    starting_position: str = "TRIM_HORIZON"
    batch_size: int = 100
    batching_window_seconds: float = 0
    tumbling_window_seconds: int = 0
    bisect: bool = False
    maximum_retry_attempts: int = -1
    maximum_record_age_seconds: float = -1
    partial_responses: bool = False
    filter_criteria: Mapping[str, Any] | None = None
    on_failure_arn: str | None = None

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Settings:
        """The settings from a template's resolved properties.

        Raises ValueError for ParallelizationFactor above 1: batches of one shard at the same time break the
        order that the aggregator's marks need, and Lambda refuses it together with a tumbling window.
        """
        if int(properties.get("ParallelizationFactor", 1)) != 1:
            raise ValueError("the stream pump knows ParallelizationFactor 1 only")
        destination = (properties.get("DestinationConfig") or {}).get("OnFailure") or {}
        return cls(
            starting_position=properties.get("StartingPosition", "TRIM_HORIZON"),
            batch_size=int(properties.get("BatchSize", 100)),
            batching_window_seconds=float(properties.get("MaximumBatchingWindowInSeconds", 0)),
            tumbling_window_seconds=int(properties.get("TumblingWindowInSeconds", 0)),
            bisect=str(properties.get("BisectBatchOnFunctionError", False)).lower() == "true",
            maximum_retry_attempts=int(properties.get("MaximumRetryAttempts", -1)),
            maximum_record_age_seconds=float(properties.get("MaximumRecordAgeInSeconds", -1)),
            partial_responses="ReportBatchItemFailures" in (properties.get("FunctionResponseTypes") or ()),
            filter_criteria=properties.get("FilterCriteria"),
            on_failure_arn=destination.get("Destination"),
        )

    @property
    def age_limit_seconds(self) -> float:
        """The age at which a record is given up: the mapping's limit, or the stream's retention."""
        if self.maximum_record_age_seconds < 0:
            return RETENTION_SECONDS
        return min(self.maximum_record_age_seconds, RETENTION_SECONDS)


OnFailure = Callable[[str, dict[str, Any]], None]
"""Delivers (destination ARN, invocation record)."""


# --- a lane -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """A record that waits to be delivered: its JSON, and what is decided by."""

    text: str
    sequence_number: str
    created: float
    size: int


@dataclass
class Piece:
    """Records that are delivered together, and how often that was tried."""

    records: list[Record]
    failures: int = 0  # counted against MaximumRetryAttempts
    invocations: int = 0
    refusals: int = 0  # calls that did not reach the function: never counted against the limit
    function_error: str | None = None

    def split(self, at: int) -> list[Piece]:
        """The records before and from `at` as two pieces, which inherit the count of failures."""
        halves = (self.records[:at], self.records[at:])
        return [Piece(half, self.failures, self.invocations) for half in halves if half]


@dataclass
class Window:
    """A tumbling window that is open in a lane."""

    start: float
    end: float
    state: Any = field(default_factory=dict)

    def span(self) -> dict[str, str]:
        """Start and end as the event has them."""
        return {"start": _zulu(self.start), "end": _zulu(self.end)}


@dataclass(frozen=True)
class Lag:
    """How far a lane, or a pump, is behind."""

    records_behind: int = 0
    oldest_age_seconds: float = 0.0


class Lane:
    """One shard's way to the function."""

    def __init__(
        self,
        shard_id: str,
        stream: Stream,
        invoke: Invoker,
        settings: Settings,
        *,
        start: str = "TRIM_HORIZON",
        poll_seconds: float = POLL_SECONDS,
        on_failure: OnFailure | None = None,
        now: float = 0.0,
    ) -> None:
        self.shard_id = shard_id
        self.closed = False  # the shard has ended; there may still be records to deliver
        self.idle_since = -math.inf  # start of the last read that found nothing, with nothing waiting
        self.delivered = 0
        self._stream = stream
        self._invoke = invoke
        self._settings = settings
        self._start = start
        self._poll_seconds = poll_seconds
        self._on_failure = on_failure
        self._wanted = compile_filters(settings.filter_criteria)
        self._iterator: str | None = None
        self._last_read: str | None = None
        self._next_poll = now
        self._poll_failures = 0
        self._buffer: deque[Record] = deque()
        self._buffered_bytes = 0
        self._batch_due = math.inf  # when the batching window of the buffered records ends
        self._pieces: deque[Piece] = deque()
        self._next_try = now
        self._window: Window | None = None
        self._final: Piece | None = None  # the closing call of a window, while it is to be made
        self._final_early = False

    # --- what others ask ---

    @property
    def drained(self) -> bool:
        """Whether the shard has ended and everything of it is delivered, closing calls included."""
        return self.closed and not (self._buffer or self._pieces or self._final or self._window)

    @property
    def waiting(self) -> int:
        """How many records have been read and are not yet delivered."""
        return len(self._buffer) + sum(len(piece.records) for piece in self._pieces)

    def lag(self, now: float) -> Lag:
        """How many records wait, and the age of the oldest."""
        oldest = self._pieces[0].records[0] if self._pieces else self._buffer[0] if self._buffer else None
        return Lag(self.waiting, max(0.0, now - oldest.created) if oldest else 0.0)

    # --- one step ---

    def step(self, now: float) -> float:
        """Does what is due at `now` and returns when to call again."""
        if self._pieces or self._final:
            if now < self._next_try:
                return self._next_try
            self._deliver(now)
            return now if not (self._pieces or self._final) else self._next_try
        if self._may_read() and now >= self._next_poll:
            self._read(now)
        self._close_window_if_over(now)
        if not self._final:
            self._form_batch(now)
        if self._pieces or self._final:
            self._next_try = now
            return now
        return min(self._next_poll if self._may_read() else math.inf, self._batch_due, self._window_due())

    def _may_read(self) -> bool:
        full = len(self._buffer) >= self._settings.batch_size or self._buffered_bytes >= PAYLOAD_MAX_BYTES
        return not self.closed and not full

    def _window_due(self) -> float:
        """When an open window without waiting records must be closed: after a read that found nothing."""
        if self._window is None or self._buffer:
            return math.inf
        return max(self._window.end, self._next_poll) if not self.closed else -math.inf

    # --- reading ---

    def _read(self, now: float) -> None:
        try:
            if self._iterator is None:
                self._iterator = self._stream.iterator(self.shard_id, self._last_read, self._start)
            page = self._stream.read(self._iterator)
        except IteratorExpired:
            self._iterator = None
            self._next_poll = now
        except DataTrimmed:
            # Records are gone before they were read: what is left is all there is.
            logger.error("%s: records were trimmed before they were read", self.shard_id)
            self._iterator, self._last_read, self._start = None, None, "TRIM_HORIZON"
            self._next_poll = now
        except StreamUnavailable as error:
            if self._poll_failures == 0:
                logger.warning("%s: cannot read the stream: %s", self.shard_id, error)
            self._poll_failures += 1
            self._next_poll = now + max(self._poll_seconds, _backoff(self._poll_failures))
        else:
            self._poll_failures = 0
            self._take(page, now)

    def _take(self, page: Page, now: float) -> None:
        self._iterator = page.next_iterator
        self.closed = page.next_iterator is None
        for event in page.records:
            self._last_read = event["dynamodb"]["SequenceNumber"]
            if self._wanted is None or self._wanted(event):
                self._add(event, now)
        full = len(page.records) >= PAGE_MAX_RECORDS
        self._next_poll = now if full else now + self._poll_seconds
        if not page.records and not self._buffer:
            self.idle_since = now

    def _add(self, event: Mapping[str, Any], now: float) -> None:
        change = event["dynamodb"]
        text = json.dumps({**event, "eventSourceARN": self._stream.arn}, separators=(",", ":"))
        record = Record(text, change["SequenceNumber"], change["ApproximateCreationDateTime"], len(text) + 1)
        if not self._buffer:
            # Lambda's window runs from the end of the previous call (invocation-eventsourcemapping, "Batching
            # behavior"), so the first record after a pause waits for less than a whole window. Here every
            # first record waits for a whole one: the longest that Lambda may take.
            self._batch_due = now + self._settings.batching_window_seconds
        self._buffer.append(record)
        self._buffered_bytes += record.size

    # --- forming a batch ---

    def _form_batch(self, now: float) -> None:
        if not self._buffer:
            return
        self._open_window()
        count, may_grow = self._fitting()
        if not count:
            return
        if may_grow and not self.closed and now < self._batch_due:
            return
        records = [self._buffer.popleft() for _ in range(count)]
        self._buffered_bytes -= sum(record.size for record in records)
        self._batch_due = now + self._settings.batching_window_seconds if self._buffer else math.inf
        self._pieces.append(Piece(records))

    def _fitting(self) -> tuple[int, bool]:
        """How many of the buffered records fit into one batch, and whether more could join them."""
        room = PAYLOAD_MAX_BYTES - ENVELOPE_BYTES
        if self._window is not None:
            room -= len(_compact(self._window.state))
        count = 0
        for record in self._buffer:
            if count == self._settings.batch_size or (count and record.size > room):
                return count, False
            if self._window is not None and record.created >= self._window.end:
                return count, False
            room -= record.size
            count += 1
        return count, count < self._settings.batch_size

    # --- tumbling windows (services-ddb-windows) ---

    def _open_window(self) -> None:
        """Opens the window of the first buffered record if none is open.

        Boundaries are multiples of the length, by the records' approximate creation time. A record that
        claims an older time than the open window belongs to the open one: a window that has closed stays
        closed.
        """
        length = self._settings.tumbling_window_seconds
        if length and self._window is None:
            start = self._buffer[0].created // length * length
            self._window = Window(start, start + length)

    def _close_window_if_over(self, now: float) -> None:
        """Plans the closing call where the window is over.

        It is over when the next record belongs to a later one; when its end has passed and a read after that
        found nothing; or when the shard has ended ("the child shards start their own window in a fresh
        state").
        """
        window = self._window
        if window is None or self._pieces or self._final:
            return
        if self._buffer:
            over = self._buffer[0].created >= window.end
        else:
            over = self.closed or (now >= window.end and self.idle_since >= window.end)
        if over:
            self._final, self._final_early = Piece([]), False

    def _store_state(self, state: Any) -> None:
        if self._window is None:
            return
        self._window.state = {} if state is None else state
        if len(_compact(self._window.state)) > STATE_MAX_BYTES:
            # The window ends early: its closing call is made with this state, and the rest of the same span
            # begins with a fresh one.
            self._final, self._final_early = Piece([]), True

    # --- delivering ---

    def _deliver(self, now: float) -> None:
        closing = self._final if self._final is not None and (not self._pieces or self._final_early) else None
        piece = closing or self._pieces[0]
        if self._give_up_old(piece, now):
            return
        piece.invocations += 1
        try:
            answer = self._invoke(self._payload(piece, closing is not None))
        except NotInvoked as error:
            # services-dynamodb-errors: what did not reach the function is tried until it is too old.
            if piece.refusals == 0:
                logger.warning("%s: %s", self.shard_id, error)
            piece.invocations -= 1
            piece.refusals += 1
            self._next_try = now + _backoff(piece.refusals)
            return
        except FunctionFailed as error:
            piece.function_error = "Unhandled"
            self._failed(piece, now, str(error))
            return
        piece.function_error = None
        self._answered(piece, closing is not None, answer, now)

    def _payload(self, piece: Piece, final: bool) -> str:
        records = '{"Records":[' + ",".join(record.text for record in piece.records) + "]"
        if self._window is None:
            return records + "}"
        envelope = {
            "window": self._window.span(),
            "state": self._window.state,
            "shardId": self.shard_id,
            "eventSourceARN": self._stream.arn,
            "isFinalInvokeForWindow": final,
            "isWindowTerminatedEarly": final and self._final_early,
        }
        return records + "," + _compact(envelope)[1:]

    def _answered(self, piece: Piece, final: bool, answer: Any, now: float) -> None:
        if self._window is not None and not (isinstance(answer, Mapping) and "state" in answer):
            # services-ddb-windows: an answer without a state is a failed invocation.
            self._failed(piece, now, "the answer has no state")
            return
        if final:
            self._window_closed()
            return
        done = len(piece.records)
        if self._settings.partial_responses:
            done = _succeeded(answer, piece.records)
        if done == 0:
            self._failed(piece, now, "every record reported as failed")
            return
        self.delivered += done
        if isinstance(answer, Mapping):
            self._store_state(answer.get("state"))
        self._pieces.popleft()
        if done < len(piece.records):
            self._retry_rest(piece, done, now)

    def _retry_rest(self, piece: Piece, done: int, now: float) -> None:
        """Tries the records from the checkpoint on again.

        services-ddb-batchfailurereporting: with bisecting the batch is cut at the checkpoint, and a cut does
        not use up a retry (services-dynamodb-errors); without it this is a retry like any other.
        """
        rest = Piece(piece.records[done:], piece.failures, piece.invocations)
        self._pieces.appendleft(rest)
        if self._settings.bisect:
            self._next_try = now + BACKOFF_FIRST_SECONDS
        else:
            self._count_failure(rest, now)

    def _window_closed(self) -> None:
        window, early = self._window, self._final_early
        self._window = Window(window.start, window.end) if window and early else None
        self._final, self._final_early = None, False

    def _failed(self, piece: Piece, now: float, why: str) -> None:
        if self._settings.bisect and len(piece.records) > 1:
            logger.info("%s: %d records failed (%s): split in two", self.shard_id, len(piece.records), why)
            self._pieces.popleft()
            self._pieces.extendleft(reversed(piece.split(math.ceil(len(piece.records) / 2))))
            self._next_try = now + BACKOFF_FIRST_SECONDS
        else:
            logger.info("%s: %d records failed (%s)", self.shard_id, len(piece.records), why)
            self._count_failure(piece, now)

    def _count_failure(self, piece: Piece, now: float) -> None:
        piece.failures += 1
        limit = self._settings.maximum_retry_attempts
        if 0 <= limit < piece.failures:
            self._discard(piece, piece.records, "RetryAttemptsExhausted", now)
        else:
            self._next_try = now + _backoff(piece.failures)

    def _give_up_old(self, piece: Piece, now: float) -> bool:
        """Whether records of `piece` are too old and were given up; those behind them are kept."""
        limit = self._settings.age_limit_seconds
        kept = next((i for i, record in enumerate(piece.records) if now - record.created <= limit), None)
        if not piece.records or kept == 0:
            return False
        self._discard(piece, piece.records[:kept], "RecordAgeExceeded", now)
        return True

    def _discard(self, piece: Piece, records: list[Record], condition: str, now: float) -> None:
        if piece is self._final:
            self._window_closed()
            return
        logger.error("%s: %d records given up: %s", self.shard_id, len(records), condition)
        if self._on_failure is not None and self._settings.on_failure_arn is not None:
            document = self._invocation_record(piece, records, condition, now)
            self._on_failure(self._settings.on_failure_arn, document)
        self._next_try = now
        self._pieces.popleft()
        if len(records) < len(piece.records):
            rest = Piece(piece.records[len(records) :], piece.failures, piece.invocations)
            self._pieces.appendleft(rest)

    def _invocation_record(self, piece: Piece, records: list[Record], condition: str, now: float) -> dict[str, Any]:
        """The document for the on-failure destination: where the records are, never the records themselves.

        Form: services-dynamodb-errors, "Example Amazon SNS and Amazon SQS invocation record".
        """
        response: dict[str, Any] = {"statusCode": 200, "executedVersion": "$LATEST"}
        if piece.function_error:
            response["functionError"] = piece.function_error
        return {
            "requestContext": {
                "requestId": str(uuid.uuid4()),
                "functionArn": self._invoke.function_arn,
                "condition": condition,
                "approximateInvokeCount": piece.invocations,
            },
            "responseContext": response,
            "version": "1.0",
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "DDBStreamBatchInfo": {
                "shardId": self.shard_id,
                "startSequenceNumber": records[0].sequence_number,
                "endSequenceNumber": records[-1].sequence_number,
                "approximateArrivalOfFirstRecord": _zulu(records[0].created),
                "approximateArrivalOfLastRecord": _zulu(records[-1].created),
                "batchSize": len(records),
                "streamArn": self._stream.arn,
            },
        }


def _succeeded(answer: Any, records: Sequence[Record]) -> int:
    """How many records, from the first, an answer with partial responses lets pass.

    services-ddb-batchfailurereporting: a missing, null or empty list, or no answer, is success; the lowest
    sequence number is the checkpoint; an empty, null or missing identifier is a complete failure. So is one
    that is not in the batch: there is no position to continue from.
    """
    if answer is None or answer == {}:
        return len(records)
    if not isinstance(answer, Mapping):
        return 0
    failures = answer.get("batchItemFailures")
    if failures is None or failures == []:
        return len(records)
    positions = {record.sequence_number: index for index, record in enumerate(records)}
    try:
        return min(positions[item["itemIdentifier"]] for item in failures)
    except (KeyError, TypeError):
        return 0


def _backoff(failures: int) -> float:
    return min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(failures - 1, 16))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _zulu(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- all lanes ----------------------------------------------------------------------------------------------


class Pump:
    """All lanes of one stream, in order of their lineage: a parent is drained before its children begin."""

    def __init__(
        self,
        stream: Stream,
        invoke: Invoker,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
        poll_seconds: float = POLL_SECONDS,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.lanes: dict[str, Lane] = {}
        self._stream = stream
        self._invoke = invoke
        self._settings = settings
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._on_failure = on_failure
        self._shards: Sequence[Shard] = ()
        self._finished: set[str] = set()
        self._discovered = False
        self._stale = True  # a lane has ended since the shards were listed
        self._listing = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- finding shards ---

    def discover(self) -> list[Lane]:
        """Lists the shards and returns the lanes that may begin now.

        Raises StreamUnavailable. The first time, StartingPosition says where lanes begin; a shard that
        appears later is read from its first record, since all of it is new.
        """
        with self._listing:
            return self._discover()

    def _discover(self) -> list[Lane]:
        self._stale = False
        try:
            self._shards = self._stream.shards()
        except StreamUnavailable:
            self._stale = True
            raise
        start = "TRIM_HORIZON" if self._discovered else self._settings.starting_position
        if start == "LATEST":
            self._finished |= {shard.shard_id for shard in self._shards if shard.closed}
        self._discovered = True
        known = {shard.shard_id for shard in self._shards}
        ready = []
        for shard in self._shards:
            unread_parent = shard.parent_id in known and shard.parent_id not in self._finished
            if shard.shard_id in self.lanes or shard.shard_id in self._finished or unread_parent:
                continue
            ready.append(self._begin(shard, start))
        return ready

    def _begin(self, shard: Shard, start: str) -> Lane:
        lane = Lane(
            shard.shard_id,
            self._stream,
            self._invoke,
            self._settings,
            start=start,
            poll_seconds=self._poll_seconds,
            on_failure=self._on_failure,
            now=self._clock(),
        )
        self.lanes[shard.shard_id] = lane
        return lane

    def _finish(self, lane: Lane) -> None:
        self._finished.add(lane.shard_id)
        self.lanes.pop(lane.shard_id, None)
        self._stale = True

    # --- driven by a test: everything in one thread, on a clock of its own ---

    def step(self) -> float:
        """Steps every lane once, finds new shards, and returns the earliest time that something is due."""
        now = self._clock()
        if self._stale:
            self.discover()
        due = math.inf
        for lane in list(self.lanes.values()):
            due = min(due, lane.step(now))
            if lane.drained:
                self._finish(lane)
                due = now
        return due

    # --- driven by threads ---

    def start(self) -> None:
        """Begins to pump: one thread that looks for shards, and one for each lane."""
        self._spawn("shards", self._look_for_shards)

    def stop(self, timeout: float = 10.0) -> None:
        """Ends all threads; a call that is under way is waited for."""
        self._stop.set()
        deadline = time.monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _spawn(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"pump-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _look_for_shards(self) -> None:
        wait = 0.0
        failures = 0
        while not self._stop.wait(wait):
            try:
                for lane in self.discover():
                    self._spawn(lane.shard_id, self._run, lane)
                failures, wait = 0, 0.05 if self._stale else DISCOVERY_SECONDS
            except StreamUnavailable as error:
                failures += 1
                wait = _backoff(failures)
                logger.warning("cannot list the shards: %s", error)

    def _run(self, lane: Lane) -> None:
        while not self._stop.is_set():
            try:
                due = lane.step(self._clock())
            except Exception:
                # A fault of the pump must not end the lane in silence.
                logger.exception("%s: the pump itself failed", lane.shard_id)
                due = self._clock() + 1.0
            if lane.drained:
                self._finish(lane)
                self._look_again()
                return
            self._stop.wait(max(0.0, min(due - self._clock(), 60.0)))

    def _look_again(self) -> None:
        try:
            for lane in self.discover():
                self._spawn(lane.shard_id, self._run, lane)
        except StreamUnavailable:
            logger.warning("cannot list the shards after one has ended; trying again later")

    # --- how far behind ---

    def lag(self) -> Lag:
        """Records that were read and not delivered, and the age of the oldest, over all lanes."""
        now = self._clock()
        lags = [lane.lag(now) for lane in list(self.lanes.values())]
        return Lag(
            sum(lag.records_behind for lag in lags),
            max((lag.oldest_age_seconds for lag in lags), default=0.0),
        )

    def drained(self, since: float) -> bool:
        """Whether everything written before `since` (a time of the clock) has been delivered.

        True once every lane has read the stream after `since`, found nothing, and has nothing waiting.
        """
        lanes = list(self.lanes.values())
        idle: Iterable[bool] = (lane.waiting == 0 and lane.idle_since >= since for lane in lanes)
        return self._discovered and not self._stale and all(idle)

    def wait_drained(self, timeout: float) -> bool:
        """Waits until everything written before this call is delivered; False if that takes longer."""
        since = self._clock()
        deadline = time.monotonic() + timeout
        while not self.drained(since):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True


# --- on-failure destination ---------------------------------------------------------------------------------


def sqs_destination(session: Any, endpoint_url: str | None = None) -> OnFailure:
    """Delivers invocation records to an SQS queue by its ARN; a failure is logged, as Lambda drops it too."""
    client = session.client("sqs", endpoint_url=endpoint_url)

    def deliver(arn: str, document: dict[str, Any]) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        *_, account_id, name = arn.split(":")
        try:
            url = client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account_id)["QueueUrl"]
            client.send_message(QueueUrl=url, MessageBody=_compact(document))
        except (BotoCoreError, ClientError):
            logger.exception("the on-failure destination %s did not take the record", name)

    return deliver
