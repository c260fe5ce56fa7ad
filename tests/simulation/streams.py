"""The stream of the table of likes and Lambda's mapping of it: shards with lineage, positions, batches, windows."""

from __future__ import annotations

import random
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.bench.events import ENVIRONMENT

Record = dict[str, Any]
Invoke = Callable[[dict[str, Any]], dict[str, Any] | None]  # None: the call failed

FIRST_NUMBER = 10**21 - 10**20  # 21 digits; some hundred records later 22
LONGEST_GAP = 10**18
REPLAYED_WITHIN_S = 24 * 3600 - 60  # what a stream keeps


@dataclass
class Shard:
    """Records in their order. `made_s` is when each was written."""

    id: str
    parents: tuple[Shard, ...] = ()
    records: list[Record] = field(default_factory=list)
    made_s: list[float] = field(default_factory=list)
    closed: bool = False


class Stream:
    """The shards, and which of them each user's changes go to now."""

    def __init__(self, rng: random.Random, clock: Callable[[], float], shards: int) -> None:
        self._rng, self._clock = rng, clock
        self._number = FIRST_NUMBER
        self.shards: list[Shard] = []
        self._live = [self._new() for _ in range(shards)]
        self._of_user: dict[str, Shard] = {}

    def _new(self, *parents: Shard) -> Shard:
        """A shard whose id tells its creation, as DynamoDB's do."""
        shard = Shard(f"shardId-{int(self._clock() * 1000):020d}-{self._rng.getrandbits(32):08x}", parents)
        self.shards.append(shard)
        return shard

    def append(self, user: str, event: str, keys: dict[str, Any]) -> tuple[Shard, Record]:
        """The next record, in the shard of its user."""
        shard = self._of_user.get(user) or self._of_user.setdefault(user, self._rng.choice(self._live))
        self._number += self._rng.randint(1, LONGEST_GAP)
        record = {
            "eventID": f"{self._number:032x}",
            "eventName": event,
            "eventSource": "aws:dynamodb",
            "awsRegion": "eu-central-1",
            "dynamodb": {
                "ApproximateCreationDateTime": float(int(self._clock()) + self._rng.choice((0, 0, 0, -1, 1))),
                "Keys": keys,
                "SequenceNumber": str(self._number),
                "SizeBytes": 60,
                "StreamViewType": "KEYS_ONLY",
            },
        }
        shard.records.append(record)
        shard.made_s.append(self._clock())
        return shard, record

    def rotate(self) -> None:
        """A shard ends and has one child."""
        self._divide(1)

    def split(self) -> None:
        """A shard ends and has two children, which share its users."""
        self._divide(2)

    def _divide(self, children: int) -> None:
        old = self._rng.choice(self._live)
        old.closed = True
        self._live.remove(old)
        new = [self._new(old) for _ in range(children)]
        self._live += new
        for user, shard in self._of_user.items():
            if shard is old:
                self._of_user[user] = self._rng.choice(new)


@dataclass
class Reader:
    """Where a mapping is in a shard: everything before `position` is acknowledged, or was once before a rewind."""

    shard: Shard
    position: int = 0
    acknowledged: int = 0  # the furthest position ever
    pieces: list[tuple[int, int]] = field(default_factory=list)  # of the batch under way
    state: dict[str, Any] | None = None  # of the open window
    busy: bool = False  # factor 1: two batches of one shard never run at once

    @property
    def ended(self) -> bool:
        return self.shard.closed and self.position >= len(self.shard.records) and self.state is None

    @property
    def due(self) -> bool:
        return not self.busy and (self.position < len(self.shard.records) or self.state is not None)


class Mapping:
    """Lambda's event source mapping with factor 1, a tumbling window, bisecting and partial batch responses."""

    def __init__(self, stream: Stream, rng: random.Random, tally: Tally[str]) -> None:
        self._stream, self._rng, self._tally = stream, rng, tally
        self._readers: dict[str, Reader] = {}
        self.delivered = 0
        self.longest_batch = 100

    def readers(self) -> list[Reader]:
        """Of all shards, whose reading may have begun or not."""
        for shard in self._stream.shards[len(self._readers) :]:
            self._readers[shard.id] = Reader(shard)
        return list(self._readers.values())

    def due(self) -> list[Reader]:
        """Readers with something to deliver: a child's turn comes when its parents are read to their end.

        Once begun, a child goes on beside a parent that is replayed.
        """
        readers = self.readers()
        return [
            reader
            for reader in readers
            if reader.due
            and (reader.acknowledged or all(self._readers[parent.id].ended for parent in reader.shard.parents))
        ]

    def oldest_unread_s(self) -> float | None:
        """When the oldest record was made that has never been acknowledged."""
        made = [r.shard.made_s[r.acknowledged] for r in self.readers() if r.acknowledged < len(r.shard.records)]
        return min(made, default=None)

    def progress(self) -> int:
        """Grows with each record that is acknowledged and each window that is closed."""
        return sum(reader.position - (reader.state is not None) for reader in self.readers())

    # --- one call -------------------------------------------------------------------------------------------

    def deliver(self, reader: Reader, invoke: Invoke) -> None:
        """One call of the function for the shard."""
        reader.busy = True
        try:
            self._deliver(reader, invoke)
        finally:
            reader.busy = False

    def _deliver(self, reader: Reader, invoke: Invoke) -> None:
        shard = reader.shard
        if not reader.pieces and reader.position < len(shard.records):
            reader.pieces = [(reader.position, self._batch_end(reader, reader.position))]
        if not reader.pieces:
            if self._call(reader, [], invoke, final=True) is not None:
                reader.state = None
                self._tally["windows closed"] += 1
            return
        low, high = reader.pieces[0]
        records = shard.records[low:high]
        self.delivered += len(records)
        answer = self._call(reader, records, invoke, final=False)
        if answer is None:
            self._failed(reader)
        elif not answer["batchItemFailures"]:
            self._reached(reader, high)
            reader.pieces.pop(0)
        else:
            self._failed_from(reader, answer["batchItemFailures"])

    def _call(self, reader: Reader, records: list[Record], invoke: Invoke, *, final: bool) -> dict[str, Any] | None:
        state = reader.state if reader.state is not None else {}
        answer = invoke(
            {
                "Records": records,
                "shardId": reader.shard.id,
                "eventSourceARN": ENVIRONMENT["LIKES_STREAM_ARN"],
                "window": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:05:00Z"},
                "state": state,
                "isFinalInvokeForWindow": final,
                "isWindowTerminatedEarly": False,
            }
        )
        if answer is not None:
            reader.state = answer["state"]
        return answer

    def _batch_end(self, reader: Reader, low: int) -> int:
        return min(len(reader.shard.records), low + self._rng.randint(1, self.longest_batch))

    def _reached(self, reader: Reader, position: int) -> None:
        reader.position = position
        reader.acknowledged = max(reader.acknowledged, position)

    def _failed(self, reader: Reader) -> None:
        """The batch comes again: as it was, in halves, or cut anew, shorter or longer."""
        low, high = reader.pieces[0]
        what = self._rng.choice(("batch repeated", "batch bisected", "batch cut anew"))
        self._tally[what] += 1
        if what == "batch bisected" and high - low > 1:
            middle = (low + high) // 2
            reader.pieces[:1] = [(low, middle), (middle, high)]
        elif what == "batch cut anew":
            end = self._batch_end(reader, low)
            self._tally["batch grown" if end > high else "batch shrunk"] += 1
            reader.pieces = [(low, end)]

    def _failed_from(self, reader: Reader, failures: list[dict[str, Any]]) -> None:
        """Lambda takes the lowest number as the checkpoint; one that is not of the batch fails it whole."""
        self._tally["partial batch response"] += 1
        low, high = reader.pieces[0]
        numbers = [record["dynamodb"]["SequenceNumber"] for record in reader.shard.records[low:high]]
        try:
            first = min(numbers.index(failure["itemIdentifier"]) for failure in failures)
        except ValueError:
            self._tally["partial batch response not of the batch"] += 1
            self._failed(reader)
            return
        if first:
            self._reached(reader, low + first)
        reader.pieces[0] = (low + first, high)

    # --- pollers that fail ----------------------------------------------------------------------------------

    def rewind(self, reader: Reader, now_s: float, *, whole: bool) -> None:
        """A new poller starts further back, at most where the stream begins."""
        first = self._first_kept(reader, now_s)
        if reader.busy or first >= reader.position:
            return
        reader.pieces = []
        reader.position = first if whole else self._rng.randint(first, reader.position)
        self._tally["shard replayed" if whole else "position rewound"] += 1

    def _first_kept(self, reader: Reader, now_s: float) -> int:
        made = reader.shard.made_s
        return next((i for i in range(len(made)) if now_s - made[i] < REPLAYED_WITHIN_S), len(made))

    def time_jumped(self, now_s: float) -> None:
        """What was acknowledged and is older than the stream keeps does not come again."""
        for reader in self.readers():
            reader.pieces = []
            reader.position = max(reader.position, min(reader.acknowledged, self._first_kept(reader, now_s)))
