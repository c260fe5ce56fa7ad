"""One run: likes written, their stream delivered at least once, every count compared.

The handlers, the adapters, the SDK and the engine are the real ones; between them is `injection`. Made up are the
clock, which nothing waits for, and the deliverer. It reads the real stream, deals its records out to lanes by their
person, as shards do, and hands them on as Lambda may: batches of any size, again, cut differently, older ones again,
to several environments of the function with memories of their own. Lanes end and others begin; the function is out
for a day and a half at times, and comes back in a version that reads what the one before had to park. All of it
follows from one seed.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import random
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from infra.local.mapping import DynamoDBStream
from tallymark import likes
from tallymark.aggregation import Unreadable
from tallymark.errors import TallymarkError, Unavailable
from tallymark.fold import Change
from tallymark.hot import LikerBuckets
from tallymark.likes import Operation
from tallymark.model import Counter, LikeKey, Target
from tallymark.runtime import wiring
from tallymark.storage import keys
from tallymark.storage.counter_table import CounterTable
from tallymark.storage.dynamodb import connect
from tallymark.storage.like_stream import read_like
from tallymark.storage.like_table import LikeTable
from tests.bench.events import function
from tests.faults.injection import (
    AGGREGATOR,
    BATCH_READ,
    CONSUMER,
    SEND,
    TRANSPORT,
    WRITERS,
    Died,
    Injector,
    Ledger,
)

# One for all runs: shards are named after their time, and a name's hash is the row. Far ahead, so that nothing expires.
BEGIN_MS = 4_000_000_000_000
SERIES_DAYS = 35
LAST_DAY = 99_999  # since the epoch
LANES = 4
ENVIRONMENTS = 2  # of the aggregator, each with a memory of its own
REACTIONS = ("like", "like", "like", "like", "👍")
OUTAGE_S = 37 * 3600  # long enough for what waited to be judged by its row (fold.STALE_AFTER_S)
RECENT_S = 40 * 3600  # what is delivered again is younger: a stream keeps records for 24 h, an outage comes on top

AGAIN, CUT, OLDER, TWICE = (
    "batch delivered again",
    "batch cut differently",
    "older batch again",
    "parked message again",
)
UNFINISHED = "batch left unfinished"  # the function's time was over: no fault by itself, so none is asked for
QUEUE_KINDS = [kind.name for kind in TRANSPORT if kind.fits(SEND) and not kind.fits(BATCH_READ)]
KINDS = (*(kind.name for kind in TRANSPORT), AGAIN, CUT, OLDER, TWICE)


@dataclass(frozen=True)
class Plan:
    """What a run does. Ids begin with `prefix`: others may use the same tables."""

    seed: int
    likes: int  # and unlikes, that change something
    faults: int  # of each kind, in functions
    prefix: str
    items: int = 400
    people: int = 3000


@dataclass(frozen=True)
class Engine:
    """The deployed tables and queue."""

    client: Any  # without faults
    streams: Any
    sqs: Any
    outputs: dict[str, str]


@dataclass
class Report:
    """What a run did, and what was wrong in the end."""

    seed: int
    changes: int = 0
    records: int = 0
    delivered: int = 0
    invocations: int = 0
    parked: int = 0
    counters: int = 0
    made: Tally[tuple[str, str]] = field(default_factory=Tally)
    calls: Tally[str] = field(default_factory=Tally)
    wrong: list[str] = field(default_factory=list)


class Clock:
    """Time that passes only by sleeping and by outages."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)

    @property
    def now_s(self) -> int:
        return self.now_ms // 1000


class Context:
    """Lambda's context: the time that is left goes by with the clock."""

    def __init__(self, clock: Clock, remaining_ms: int) -> None:
        self._clock, self._ends_ms = clock, clock.now_ms + remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        return self._ends_ms - self._clock.now_ms


class InOrder(Executor):
    """Does all work at once in the caller's thread, so that a seed makes the same run every time."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 (a pool hands on whatever ended the work)
            future.set_exception(error)
        return future


@dataclass
class Lane:
    """A shard's records, and how far they have been taken."""

    id: str
    records: list[Any] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    position: int = 0  # all before it were in a batch that succeeded
    furthest: int = 0  # all before it have been delivered
    last: tuple[int, int] = (0, 0)

    @property
    def waiting(self) -> int:
        return len(self.records) - self.position

    def recent(self, now_s: int) -> int:
        """The first record that may still be delivered again."""
        return next((i for i, time_s in enumerate(self.times) if now_s - time_s < RECENT_S), len(self.times))


def run(plan: Plan, engine: Engine, progress: Callable[[Report], None] = lambda _: None) -> Report:
    """Runs until there are as many changes and faults as the plan wants; then compares."""
    world = World(plan, engine)
    with world.installed():
        while not world.done:
            world.turn()
            progress(world.report)
        world.settle()
    world.compare()
    return world.report


class World:
    """The history, the deliverer and the functions."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self.plan, self.engine = plan, engine
        self.report = Report(plan.seed)
        self.standing: dict[LikeKey, None] = {}
        self._rng = random.Random(plan.seed)
        self._clock = Clock(BEGIN_MS)
        self._ledger = Ledger(plan.faults, self.report.made)
        self._injector = Injector(self._ledger, self._rng)
        self._aggregator, self._consumer = function("aggregator").handler, function("parked").handler
        self._items = [Target("post", f"{plan.prefix}-{n}") for n in range(plan.items)]
        self._popularity = list(itertools.accumulate(1 / (n + 1) for n in range(plan.items)))
        self._lane_numbers = itertools.count()
        self._ended: list[Lane] = []
        self._messages: list[dict[str, Any]] = []
        self._settled: list[dict[str, Any]] = []
        self._turns = 0
        self._novel: str | None = None  # a reaction that there was not before
        self._unknown: str | None = None  # one that the aggregator's version cannot read yet

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Clock, memories and faults in their places; the stream is read from here on."""
        jitter = random.getstate()
        random.seed(self.plan.seed)  # what the functions and the SDK draw their pauses from
        wiring.reset()
        self._client, self._sqs = wiring.dynamodb(), wiring.parked_queue()._client
        self._environments = [self._new_environment() for _ in range(ENVIRONMENTS)]
        self._likes = LikeTable(self._client, self.engine.outputs["LikesTable"], InOrder(), LikerBuckets(1))
        self._stream = DynamoDBStream(self.engine.streams, self.engine.outputs["LikesStreamArn"])
        (shard,) = self._stream.shards()
        self._iterator = self._stream.iterator(shard.shard_id, None, "LATEST")
        self._lanes = self._new_lanes()
        try:
            with (
                patch("time.sleep", self._clock.sleep),
                patch.object(wiring, "now_ms", lambda: self._clock.now_ms),
                patch.object(wiring, "counter_table", lambda: self._environment),
                patch.dict(inspect.unwrap(self._aggregator).__globals__, reader_of=lambda _lane_id: self._read),
                self._injector.over(self._client, self._sqs),
                contextlib.redirect_stdout(_Nothing()),  # metrics
            ):
                yield
        finally:
            wiring.reset()
            random.setstate(jitter)

    def _read(self, record: Any) -> Sequence[Change]:
        """What the aggregator's version makes of a record."""
        changes = read_like(record)
        if any(change.counter.label == self._unknown for change in changes):
            raise Unreadable("a reaction of a later version")
        return changes

    def _new_environment(self) -> CounterTable:
        table = self.engine.outputs["CountersTable"]
        return CounterTable(self._client, table, InOrder(), lambda: self._clock.now_ms, SERIES_DAYS)

    def _new_lanes(self) -> list[Lane]:
        """Shards that begin now, with names like DynamoDB's."""
        numbers = itertools.islice(self._lane_numbers, LANES)
        return [Lane(f"shardId-{self._clock.now_ms:020d}-{number:08x}") for number in numbers]

    @property
    def done(self) -> bool:
        behind = [kind for kind in KINDS if self._ledger.in_functions(kind) < self.plan.faults]
        return self.report.changes >= self.plan.likes and not behind

    # --- the history --------------------------------------------------------------------------------

    def turn(self) -> None:
        """Some likes, delivered; at times an outage, or new lanes."""
        self._turns += 1
        if self._turns % 10 == 3:
            self._unknown = self._novel = f"novel-{self._turns}"
        self._write(self._rng.randint(100, 300))
        if self._turns % 2:
            late = max(self._ledger.behind(kind, AGGREGATOR) for kind in QUEUE_KINDS)  # only what is parked meets them
            kept = self._rng.randint(1, 4) + min(20, int(late) // LANES)
            self._deliver_until(kept)
            self._clock.sleep(OUTAGE_S)
            self._unknown = None  # the aggregator is brought up to date
            self._write(self._rng.randint(1, 30))
        self._deliver_until(0)
        self._drain_queue(self._rng.randint(0, 40))
        if self._turns % 8 == 0:
            self._ended = [*self._ended, *self._lanes][-3 * LANES :]
            self._lanes = self._new_lanes()
            self._clock.sleep(self._rng.uniform(0, 20 * 3600))
        self._ledger.progress = min(1.0, self.report.changes / self.plan.likes)

    def settle(self) -> None:
        """Takes every message out of the queue."""
        self._drain_queue(0)

    def _write(self, how_many: int) -> None:
        """Likes and unlikes, each repeated until its outcome is known; then their records are read."""
        part: dict[LikeKey, Operation] = {}  # one operation of a key, so that a repeat undoes no later one
        size = 0
        for operation in [self._operation() for _ in range(how_many)]:
            if len(part) >= size or operation.key in part:
                self._make(list(part.values()))
                part, size = {}, 1 if self._rng.random() < 0.1 else self._rng.randint(2, 100)
            part[operation.key] = operation
        self._make(list(part.values()))
        self._read_stream()

    def _make(self, part: Sequence[Operation]) -> None:
        while part:
            part = self._undone(part)

    def _operation(self) -> Operation:
        if self.standing and self._rng.random() < 0.3:
            # Any will do; a recent one is found fast and is often undone while its record is on its way.
            recent = list(itertools.islice(reversed(self.standing), 1000))
            key, like = self._rng.choice(recent), False
        else:
            (target,) = self._rng.choices(self._items, cum_weights=self._popularity)
            person = f"{self.plan.prefix}-{self._rng.randrange(self.plan.people)}"
            reaction = self._novel if self._novel and self._rng.random() < 0.1 else self._rng.choice(REACTIONS)
            key, like = LikeKey(person, target, reaction), True
        self.report.changes += like != (key in self.standing)
        self.standing.pop(key, None)
        if like:
            self.standing[key] = None
        return Operation(key, like)

    def _undone(self, part: Sequence[Operation]) -> list[Operation]:
        """Those of the operations that have to be tried again, in their order."""
        try:
            with self._injector.during(WRITERS):
                outcomes = self._made(part)
        except Died:
            return list(part)
        failed = {made.key for made, outcome in zip(part, outcomes, strict=True) if isinstance(outcome, TallymarkError)}
        return [made for made in part if made.key in failed]

    def _made(self, part: Sequence[Operation]) -> list[bool | TallymarkError]:
        if len(part) > 1:
            return likes.apply_all(self._likes, part, now_ms=self._clock.now_ms)
        (made,) = part
        try:
            if made.like:
                return [likes.like(self._likes, made.key, at_ms=self._clock.now_ms).changed]
            return [likes.unlike(self._likes, made.key)]
        except Unavailable as error:
            return [error]

    def _read_stream(self) -> None:
        """The new records of the real stream, each to the lane of its person."""
        while True:
            page = self._stream.read(self._iterator)
            assert page.next_iterator is not None
            self._iterator = page.next_iterator
            for record in page.records:
                self._receive(dict(record))
            if not page.records:
                return

    def _receive(self, record: dict[str, Any]) -> None:
        person = record["dynamodb"]["Keys"]["pk"]["S"]
        if not person.startswith(f"{self.plan.prefix}-"):
            return
        record["dynamodb"]["ApproximateCreationDateTime"] = self._clock.now_s
        lane = self._lanes[int(person.rpartition("-")[2]) % LANES]
        lane.records.append(record)
        lane.times.append(self._clock.now_s)
        self.report.records += 1

    # --- the deliverer ------------------------------------------------------------------------------

    def _deliver_until(self, waiting: int) -> None:
        """Delivers until no lane has more records waiting than that."""
        while behind := [lane for lane in self._lanes if lane.waiting > waiting]:
            lane = self._rng.choice(behind)
            self._deliver(lane, *self._cut(lane, len(lane.records) - waiting))
            if self._ended and self._wants(OLDER):
                ended = self._rng.choice(self._ended)
                if (cut := self._older(ended)) is not None:
                    self._deliver(ended, *cut)

    def _wants(self, kind: str, where: str = AGGREGATOR) -> bool:
        return self._ledger.behind(kind, where) > 0 and self._rng.random() < 0.5

    def _cut(self, lane: Lane, end: int) -> tuple[int, int]:
        """Which records are delivered now: from the position, or some that were delivered before."""
        if self._wants(AGAIN) and lane.last[0] >= lane.recent(self._clock.now_s) and lane.last != (0, 0):
            return lane.last
        if self._wants(OLDER) and (cut := self._older(lane)) is not None:
            return cut
        low = lane.position
        if self._wants(CUT):
            low = self._rng.randint(min(low, max(lane.recent(self._clock.now_s), low - 20)), low)
        return low, min(end, lane.position + self._size(lane))

    def _size(self, lane: Lane) -> int:
        """Mostly small, so that there are many; smaller still of what goes to the queue."""
        if self._clock.now_s - lane.times[lane.position] >= OUTAGE_S:
            return self._rng.randint(1, 2)
        if self._rng.random() < 0.05:
            return self._rng.randint(60, 200)
        return self._rng.randint(1, 40)

    def _older(self, lane: Lane) -> tuple[int, int] | None:
        first = lane.recent(self._clock.now_s)
        if lane.position - first < 2:
            return None
        low = self._rng.randrange(first, lane.position - 1)
        return low, self._rng.randint(low + 1, min(lane.position - 1, low + 20))

    def _deliver(self, lane: Lane, low: int, high: int) -> None:
        if kind := _repetition(lane, low, high):
            self._ledger.note(kind, AGGREGATOR)
        lane.last, lane.furthest = (low, high), max(lane.furthest, high)
        taken = self._aggregate(lane.id, lane.records[low:high])
        lane.position = max(lane.position, low + taken) if low <= lane.position else lane.position

    def _aggregate(self, lane_id: str, records: Sequence[Any]) -> int:
        """How many of the records, from the first, the function took."""
        number = self._rng.randrange(ENVIRONMENTS)
        self._environment = self._environments[number]
        self.report.invocations += 1
        self.report.delivered += len(records)
        event = {"Records": list(records), "shardId": lane_id, "state": {}, "isFinalInvokeForWindow": False}
        remaining_ms = 5_300 if self._rng.random() < 0.05 else 60_000
        try:
            with self._injector.during(AGGREGATOR):
                answer = self._aggregator(event, Context(self._clock, remaining_ms))
        except Died:
            self._environments[number] = self._new_environment()
            return 0
        except Unavailable:
            return 0
        if not answer["batchItemFailures"]:
            return len(records)
        self._ledger.note(UNFINISHED, AGGREGATOR)
        (failure,) = answer["batchItemFailures"]
        return [record["dynamodb"]["SequenceNumber"] for record in records].index(failure["itemIdentifier"])

    # --- the parked queue ---------------------------------------------------------------------------

    def _drain_queue(self, left: int) -> None:
        """Hands the queue's messages to the consumer until it has taken them; so many may wait for another time."""
        self._receive_messages()
        while len(self._messages) > left:
            batch = [self._messages.pop() for _ in range(min(self._rng.randint(1, 5), len(self._messages)))]
            while self._settled and self._wants(TWICE, CONSUMER):
                batch.append(self._rng.choice(self._settled))
                self._ledger.note(TWICE, CONSUMER)
            self._rng.shuffle(batch)
            unsettled = self._consume(batch)
            self._messages += [message for message in batch if message["messageId"] in unsettled]
            self._settled = [*self._settled, *batch][-200:]
            self._rng.shuffle(self._messages)

    def _receive_messages(self) -> None:
        queue, url = self.engine.sqs, self.engine.outputs["ParkedQueueUrl"]
        while got := queue.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0).get("Messages"):
            entries = [{"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]} for i, message in enumerate(got)]
            queue.delete_message_batch(QueueUrl=url, Entries=entries)
            self._messages += [{"messageId": message["MessageId"], "body": message["Body"]} for message in got]
            self.report.parked += len(got)

    def _consume(self, batch: Sequence[Any]) -> set[str]:
        """The ids of the messages that come again."""
        try:
            with self._injector.during(CONSUMER):
                answer = self._consumer({"Records": list(batch)}, Context(self._clock, 30_000))
        except Died:
            return {message["messageId"] for message in batch}
        return {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}

    # --- in the end ---------------------------------------------------------------------------------

    def compare(self) -> None:
        """Stream, table and counts with the history."""
        self.report.calls = self._injector.calls
        if self.report.records != self.report.changes:
            self._wrong(f"{self.report.changes} changes made {self.report.records} records of the stream")
        expected = Tally(Counter(key.target, key.reaction) for key in self.standing)
        recorded = self._recorded()
        if recorded != set(self.standing):
            self._wrong(f"{len(recorded)} likes are recorded, {len(self.standing)} stand")
        rows = CounterTable(
            self.engine.client, self.engine.outputs["CountersTable"], InOrder(), wiring.now_ms, SERIES_DAYS
        )
        counted = self._counted(rows)
        for counter in sorted(expected.keys() | counted.keys(), key=str):
            self.report.counters += 1
            if expected[counter] != counted[counter]:
                self._wrong(f"{counter}: {expected[counter]} likes, counted {counted[counter]}")

        for target in self._items:
            days = rows.days(target, "likes-by-hour", 0, LAST_DAY)
            by_hour = sum(number for slots in days.values() for number in slots.values())
            total = sum(number for counter, number in counted.items() if counter.target == target)
            if by_hour != total:
                self._wrong(f"the hours of {target} add up to {by_hour}, counted are {total}")

    def _wrong(self, what: str) -> None:
        self.report.wrong.append(what)

    def _recorded(self) -> set[LikeKey]:
        """The likes of this run as the table has them."""
        found = set()
        pages = self.engine.client.get_paginator("scan").paginate(
            TableName=self.engine.outputs["LikesTable"], ConsistentRead=True
        )
        for item in itertools.chain.from_iterable(page["Items"] for page in pages):
            if item["pk"]["S"].startswith(f"{self.plan.prefix}-"):
                found.add(LikeKey(item["pk"]["S"], *keys.parse_like_sort_key(item["sk"]["S"])))
        return found

    def _counted(self, rows: CounterTable) -> Tally[Counter]:
        return Tally(
            {
                Counter(target, reaction): number
                for target in self._items
                for reaction, number in rows.count(target, consistent=True).by_reaction.items()
            }
        )


def _repetition(lane: Lane, low: int, high: int) -> str | None:
    """Which kind of repetition a delivery is; None if none of its records was delivered before."""
    if (low, high) == lane.last:
        return AGAIN
    if high < lane.position:
        return OLDER
    return CUT if low < lane.furthest else None


class _Nothing(io.TextIOBase):
    """Takes what is printed, and keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


def engine_of(outputs: dict[str, str]) -> Engine:
    """Clients of their own, without faults, for an emulator that the environment names."""
    import boto3

    return Engine(connect(), boto3.client("dynamodbstreams"), boto3.client("sqs"), outputs)
