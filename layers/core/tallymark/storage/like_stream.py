"""The stream of the table of likes: what a record means for a counter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tallymark.aggregation import MAX_DIGITS, Record, Unreadable
from tallymark.fold import Change
from tallymark.model import Counter, LikeKey, by_hour

from . import keys
from .dynamodb import error_code, transient_as_unavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodbstreams import DynamoDBStreamsClient

_PAGE_RECORDS = 1_000  # DynamoDB Streams API Reference, GetRecords
# In a row, that are taken for the end of an open shard. GetRecords may answer none though more lie ahead ("it might
# take multiple calls", API Reference) and gives no bound; readers of such streams take five for the end.
_EMPTY_PAGES = 10

_DELTAS = {"INSERT": 1, "REMOVE": -1, "MODIFY": 0}


def read_like(record: Record) -> Sequence[Change]:
    """The changes that a record of the KEYS_ONLY stream stands for: the count, and the hour. None that change no count.

    Unreadable if any part that is needed is missing or was not written by the table of likes.
    """
    try:
        delta = _DELTAS[record["eventName"]]
        body = record["dynamodb"]
        target, reaction = keys.parse_like_sort_key(body["Keys"]["sk"]["S"])
        sequence, time_s = place_of(body)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    if not delta:
        return ()
    hours, hour = by_hour(target, "likes-by-hour", time_s * 1000)
    return (
        Change(Counter(target, reaction), delta, sequence, time_s),
        Change(hours, delta, sequence, time_s, f"n{hour}"),
    )


def place_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """A record's number in its lane, and its creation in seconds since the epoch; ValueError for what is none."""
    digits, time_s = body["SequenceNumber"], int(body["ApproximateCreationDateTime"])
    if not (isinstance(digits, str) and digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS):
        raise ValueError(f"sequence number {digits!r}")
    if not 0 <= time_s < 2**32:
        raise ValueError(f"time {time_s}")
    return int(digits), time_s


def like_of(record: Record) -> tuple[LikeKey, bool]:
    """The like that a record, which read_like could read, is about, and whether it stands after it."""
    key = record["dynamodb"]["Keys"]
    target, reaction = keys.parse_like_sort_key(key["sk"]["S"])
    return LikeKey(key["pk"]["S"], target, reaction), record["eventName"] != "REMOVE"


class LikeStream:
    """The stream of the table of likes from its oldest record to its newest: the last 24 hours."""

    def __init__(self, client: DynamoDBStreamsClient, arn: str) -> None:
        self._client, self._arn = client, arn

    def records(self) -> Iterator[tuple[str, Record]]:
        """(shard id, record), parents before their children; one Streams read unit per page of up to 1,000.

        What is written while this reads may be missing from the end.
        """
        for shard_id, ended in self._shards():
            with transient_as_unavailable():
                start = self._client.get_shard_iterator(
                    StreamArn=self._arn, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
                )
            yield from ((shard_id, record) for record in self._read(start["ShardIterator"], ended))

    def _shards(self) -> list[tuple[str, bool]]:
        """Every shard that can still be read, each after its parent, and whether it is closed."""
        parents: dict[str, str | None] = {}
        ended: set[str] = set()
        request: dict[str, Any] = {"StreamArn": self._arn}
        while True:
            with transient_as_unavailable():
                description = self._client.describe_stream(**request)["StreamDescription"]
            for shard in description["Shards"]:
                parents[shard["ShardId"]] = shard.get("ParentShardId")
                if "EndingSequenceNumber" in shard.get("SequenceNumberRange", {}):
                    ended.add(shard["ShardId"])
            if "LastEvaluatedShardId" not in description:
                break
            request["ExclusiveStartShardId"] = description["LastEvaluatedShardId"]
        ordered: dict[str, None] = {}
        for shard_id in parents:
            lineage = [shard_id]
            while (parent := parents[lineage[-1]]) in parents and parent not in ordered:
                lineage.append(str(parent))
            ordered |= dict.fromkeys(reversed(lineage))
        return [(shard_id, shard_id in ended) for shard_id in ordered]

    def _read(self, iterator: str | None, ended: bool) -> Iterator[Record]:
        empty = 0
        while iterator and (ended or empty < _EMPTY_PAGES):  # a closed shard ends by itself
            try:
                with transient_as_unavailable():
                    page = self._client.get_records(ShardIterator=iterator, Limit=_PAGE_RECORDS)
            except Exception as error:
                if error_code(error) != "TrimmedDataAccessException":
                    raise
                return  # the shard has been forgotten since it was listed
            empty = 0 if page["Records"] else empty + 1
            yield from (_as_delivered(record) for record in page["Records"])
            iterator = page.get("NextShardIterator")


def _as_delivered(record: Any) -> Record:
    """The record with its time as a number, as Lambda hands it on."""
    body = record["dynamodb"]
    time_s = body["ApproximateCreationDateTime"].timestamp()
    return {**record, "dynamodb": {**body, "ApproximateCreationDateTime": time_s}}
