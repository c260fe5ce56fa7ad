"""A world: people who like, a stream, mappings, a queue and the real functions, all drawn from one seed.

Its time is virtual and its parts take turns, so a seed gives the same history every time. Where functions would run at
the same time, one runs whole between two calls of another, up to two levels deep.

What a world may do is what docs/architecture.md assumes of Lambda and DynamoDB. Two things it leaves out, because they
need two attempts at one record on both sides of the moment when it turns 36 hours old, within seconds: a write that
lands after its sender gave up, and two mappings in the same record.
"""

from __future__ import annotations

import hashlib
import json
import random
from bisect import bisect_right, insort
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tallymark.errors import TallymarkError, Unavailable
from tallymark.fold import STALE_AFTER_S
from tallymark.hot import LikerBuckets
from tallymark.model import Counter, Like, LikeKey, Stamp, Target
from tallymark.storage.counter_table import CounterTable
from tallymark.storage.keys import (
    LIKE_METRIC,
    MARK_PREFIX,
    parse_counter_sort_key,
    parse_like_sort_key,
    parse_target_key,
)
from tallymark.storage.like_table import LikeTable
from tests.bench.events import ENVIRONMENT

from . import faults, functions
from .dynamodb import Database, Index, Key, Table
from .expressions import Item
from .faults import Died, FlakyDynamoDB, FlakySQS, FlakyStreams
from .functions import NEWER_REACTION, Attempted, Interleaved, Process
from .streams import Mapping, Reader, Record, Stream

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BEGIN_S = 1_767_225_600.0
SERIES_DAYS = 35
LAST_DAY = 99_999  # since the epoch: after any that a world reaches
HOUR_S = 3600.0
QUEUE_KEEPS_S = 13 * 86_400.0  # a day less than template.yaml says
READ_WITHIN_S = 20 * HOUR_S  # an outage is over before the stream forgets
READ_LATE_WITHIN_S = 41 * HOUR_S  # a stream that forgets late: old records are parked, not folded
STREAM_KEEPS_S = 24 * HOUR_S
STREAM_KEEPS_LATE_S = 48 * HOUR_S
NEAR_STALE_S = 900.0
RECEIVED_AT_MOST = 5  # maxReceiveCount of the parked queue, template.yaml
WRITER = "writer"  # the process that likes and unlikes
WALK_FAULT_RATE = 0.02  # a walk of the reconciler makes hundreds of calls
MOST_TRIES = 200  # of a walk of the reconciler that is killed again and again
DEEPEST = 2  # calls of functions between two calls of another
TIMEOUT_S = 25.0  # of the aggregator: less than in template.yaml, or it would do nothing but wait
IDLE_TURNS = 150  # without any progress: a lane is stuck

# What must have occurred in a fixed set of worlds, or the set proves little: faults of calls, of delivery, of time.
FAULT_KINDS = (
    *faults.KINDS,
    "batch bisected",
    "batch grown",
    "batch repeated",
    "batch shrunk",
    "interleaved",
    "message delivered twice",
    "message to the dead queue",
    "newer version deployed",
    "outages",
    "partial batch response",
    "position rewound",
    "refused in an outage",
    "rows changed",
    "shard replayed",
    "shard rotated",
    "shard split",
    "store busy",
    "timed out",
)
CHANGES = 2  # of a record: the count, and the hour
RecordId = tuple[str, int, int]  # lane, number, and place of the change within the record


@dataclass(frozen=True)
class Plan:
    """What kind of world a seed makes."""

    seed: int
    users: int
    items: int
    shards: int
    turns: int
    fault_rate: float
    interleaved: float
    mappings: int
    rows: str
    reactions: tuple[str, ...]
    late: bool
    old_version: bool
    garbage: float
    longest_batch: int
    short_of_time: float
    reconciled: bool

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        rng = random.Random(seed)
        return cls(
            seed=seed,
            users=rng.choice((5, 20, 100, 400)),
            items=rng.choice((1, 3, 10, 40)),
            shards=rng.randint(1, 4),
            turns=rng.randint(150, 400),
            fault_rate=rng.choice((0.0, 0.01, 0.05, 0.05, 0.2)),
            interleaved=rng.choice((0.0, 0.01, 0.05)),
            mappings=rng.choice((1, 1, 2)),
            rows=rng.choice(("0:1", "0:2", "0:4", "0:64")),
            reactions=rng.choice((("like",), ("like", NEWER_REACTION))),
            late=rng.random() < 0.4,
            old_version=rng.random() < 0.4,
            garbage=rng.choice((0.0, 0.0, 0.02)),
            longest_batch=rng.choice((5, 100, 500, 2000)),
            short_of_time=rng.choice((0.0, 0.2, 0.5)),
            reconciled=rng.random() < 0.25,
        )


@dataclass
class Message:
    """A message of the parked queue; `settled` is one that is delivered again although it was deleted."""

    id: str
    body: str
    received: int = 0
    settled: bool = False


@dataclass(frozen=True)
class Report:
    """What came of a world. Empty problems and zeros: every record counted once."""

    seed: int
    records: int
    delivered: int
    settled: int
    error: int
    lost: int
    twice: int
    problems: tuple[str, ...]
    tally: Tally[str]
    digest: str

    @property
    def exact(self) -> bool:
        return not (self.error or self.lost or self.twice or self.problems)


@dataclass
class _Call:
    """A call under way."""

    process: Process
    deadline_s: float
    careful: bool = False  # holds records that are about to turn stale


def tables() -> list[Table]:
    """The tables of template.yaml."""
    indexes = {"by-time": Index("pk", "at", local=True), "likers": Index("lk", "at", local=False)}
    return [Table("likes", ("pk", "sk"), indexes), Table("counters", ("pk", "sk")), Table("events", ("pk",))]


class World:
    """One seed's history. run() once."""

    def __init__(self, seed: int, *, say: Callable[[str], None] | None = None) -> None:
        self.plan = Plan.drawn(seed)
        self.rng = random.Random(f"world {seed}")
        self.tally: Tally[str] = Tally()
        self.problems: list[str] = []
        self.clock_s = BEGIN_S + self.rng.random() * 86_400
        self.database = Database(tables(), self._changed)
        self.stream = Stream(self.rng, lambda: self.clock_s, self.plan.shards)
        self.mappings = [Mapping(self.stream, self.rng, self.tally) for _ in range(self.plan.mappings)]
        for mapping in self.mappings:
            mapping.longest_batch = self.plan.longest_batch
        self.counted: Tally[RecordId] = Tally()
        self.expected: dict[RecordId, str] = {}  # records that change a count
        self.garbage: set[str] = set()  # event ids of records that no version reads
        self.liked: set[LikeKey] = set()
        self.messages: list[Message] = []
        self.dead: list[Message] = []
        self._say = say
        self._digest = hashlib.blake2b(digest_size=16)
        self._fault_rate = self.plan.fault_rate
        self._interleaved = self.plan.interleaved
        self._calls: list[_Call] = []
        self._idle: list[Process] = []
        self._processes = 0
        self._old = {"aggregator": self.plan.old_version, "parked": self.plan.old_version}
        self._rows = self.plan.rows
        self._attempted: Attempted = {}
        self._airborne: list[tuple[float, int, Callable[[], Any]]] = []
        self._airborne_ever = 0
        self._outage_until_s = 0.0
        self._busy_until_s = 0.0
        self._stamps = 0
        self._settled = 0
        self._open_items: list[dict[str, Any]] = []  # of the reconciler's last walk
        self._over = False  # nobody likes anything any more
        self._message_ids = 0
        self._in_hand = 0  # messages that a consumer has
        self._pool = cast("Executor", Interleaved(self.rng))
        self._writer = self._made_writer()

    # --- the run ----------------------------------------------------------------------------------------------

    def run(self) -> Report:
        with functions.installed(self):
            self._note("begins", self.plan)
            for _ in range(self.plan.turns):
                self._turn()
            self._end()
            return self._report()

    def _turn(self) -> None:
        turns, weights = zip(*_TURNS, strict=True)
        turn = self.rng.choices(turns, weights)[0]
        turn(self)
        self.clock_s += self.rng.expovariate(1 / 2.0)

    def _note(self, what: str, *details: Any) -> None:
        """A line of the history, which is the same for the same seed."""
        line = f"{self.clock_s - BEGIN_S:12.3f} {'  ' * len(self._calls)}{what} {' '.join(map(str, details))}"
        self._digest.update(line.encode())
        if self._say is not None:
            self._say(line)

    def _problem(self, text: str) -> None:
        self._note("PROBLEM", text)
        self.problems.append(text)

    # --- time and faults, as clients and functions see them ------------------------------------------------------

    @property
    def running(self) -> Process:
        return self._calls[-1].process

    def now_ms(self) -> int:
        skew = self._calls[-1].process.skew_ms if self._calls else 0
        return int(self.clock_s * 1000) + skew

    def wait(self, seconds: float) -> None:
        if self._calls and self._calls[-1].process.function == "reconciler" and not self._over:
            self._interleave()
        self.clock_s += seconds
        self._die_if_out_of_time()

    def _die_if_out_of_time(self) -> None:
        if self._calls and self.clock_s > self._calls[-1].deadline_s:
            self.tally["timed out"] += 1
            raise Died("out of time")

    def between(self) -> None:
        self.clock_s += 0.02 * self.rng.random()
        self._land_due()
        if self.rng.random() < self._interleaved and self._may_interleave:
            self._interleave()
        self._die_if_out_of_time()

    @property
    def _careful(self) -> bool:
        return any(call.careful for call in self._calls)

    @property
    def _may_interleave(self) -> bool:
        return len(self._calls) <= DEEPEST and self.running.function != WRITER and not self._careful

    def draw(self, operation: str) -> str | None:
        if self.clock_s < self._outage_until_s:
            self.tally["refused in an outage"] += 1
            return self.rng.choice(("throttled", "server error", "unreachable"))
        kinds, rate = faults.POSSIBLE[operation], self._fault_rate
        if self.clock_s < self._busy_until_s:
            kinds, rate = faults.BUSY.get(operation, kinds), 0.7
        if rate == 0.0 or self.rng.random() >= rate:
            return None
        kind = self.rng.choice(kinds)
        if kind == faults.LATE and (self.running.function == WRITER or self._careful):
            return None
        self.tally[kind] += 1
        self._note("fault", operation, kind)
        return kind

    def land(self, write: Callable[[], Any]) -> None:
        self._airborne_ever += 1
        due_s = self.clock_s + self.rng.uniform(0, faults.LANDS_WITHIN_S)
        insort(self._airborne, (due_s, self._airborne_ever, write), key=lambda entry: entry[:2])

    def _land_due(self, *, all_of_them: bool = False) -> None:
        while self._airborne and (all_of_them or self._airborne[0][0] <= self.clock_s):
            _, _, write = self._airborne.pop(0)
            faults.quietly(write)

    def _interleave(self) -> None:
        """Somebody else acts while a function waits for its store; their time passes at the same time."""
        began_s = self.clock_s
        what = self.rng.choice((World._deliver, World._deliver, World._settle, World._like))
        self.tally["interleaved"] += 1
        what(self)
        self._calls[-1].deadline_s += self.clock_s - began_s

    # --- what the tables tell -------------------------------------------------------------------------------------

    def _changed(self, table: str, key: Key, old: Item | None, new: Item | None) -> None:
        if table == "likes":
            self._like_changed(key, old, new)
        elif table == "counters":
            self._row_changed(key, old, new)
        elif table == "events" and key[0].startswith("parked#") and new is not None:
            lane_id, number, *place = key[0].removeprefix("parked#").split("#")
            self.counted[lane_id, int(number), int(place[0]) if place else 0] += 1

    def _like_changed(self, key: Key, old: Item | None, new: Item | None) -> None:
        event = "REMOVE" if new is None else "INSERT" if old is None else "MODIFY"
        shard, record = self.stream.append(key[0], event, {"pk": {"S": key[0]}, "sk": {"S": key[1]}})
        if event != "MODIFY":
            for place in range(CHANGES):
                self.expected[shard.id, int(record["dynamodb"]["SequenceNumber"]), place] = key[1]

    def _row_changed(self, key: Key, old: Item | None, new: Item | None) -> None:
        if new is None:
            self._problem(f"row {key} was deleted")
            return
        for name, value in new.items():
            if name.startswith(MARK_PREFIX) and (made := self._attempted.get((key[0], key[1], value["B"]))) is not None:
                lane_id, delta = made
                for change in delta.changes:
                    self.counted[lane_id, change.sequence, int(change.counter.metric != "like")] += 1
        if old is not None and (pruned := [n for n in old if n not in new and n.startswith(MARK_PREFIX)]):
            self.tally["marks pruned"] += len(pruned)

    # --- people ---------------------------------------------------------------------------------------------------

    def _like(self) -> None:
        """Some likes and unlikes, one by one or in a batch, each repeated until the store has answered."""
        if self.clock_s < self._outage_until_s or self._over:
            return
        wanted = {self._some_like(): self.rng.random() < 0.6 for _ in range(self.rng.randint(1, 60))}
        self._note("likes", len(wanted))
        keys = list(wanted)
        together = keys if self.rng.random() < 0.8 else []
        alone = self.rng.sample(keys, len(keys) // 10) if together else keys  # some are said twice
        self._calls.append(_Call(self._writer, float("inf")))
        try:
            table: LikeTable = self._writer.built["like_table"]
            while together:
                together = self._write_many(table, together, wanted)
            for key in alone:
                self._write(table, key, like=wanted[key])
        finally:
            self._calls.pop()
        for key, like in wanted.items():
            (self.liked.add if like else self.liked.discard)(key)

    def _some_like(self) -> LikeKey:
        """Some people like more than others, some items are liked by nearly all."""
        user = int(self.plan.users * self.rng.random() ** 2)
        item = int(self.plan.items * self.rng.random() ** 3)
        reaction = self.plan.reactions[-1 if self.rng.random() < 0.15 else 0]
        return LikeKey(f"user-{user}", Target("post", f"#{item}"), reaction)

    def _stamped(self, key: LikeKey) -> Like:
        self._stamps += 1
        return Like(key, Stamp(int(self.clock_s * 1000), self._stamps.to_bytes(8, "big")))

    def _write_many(self, table: LikeTable, keys: list[LikeKey], wanted: dict[LikeKey, bool]) -> list[LikeKey]:
        """The keys whose fate is not known."""
        try:
            results = table.write_many([self._stamped(key) if wanted[key] else key for key in keys])
        except Died:
            return keys
        return [key for key, result in zip(keys, results, strict=True) if isinstance(result, TallymarkError)]

    def _write(self, table: LikeTable, key: LikeKey, *, like: bool) -> None:
        while True:
            try:
                if like:
                    table.put(self._stamped(key))
                else:
                    table.delete(key)
            except (Died, Unavailable):
                continue
            return

    def _litter(self) -> None:
        """Somebody else's hand in the stream: records that no version understands, and one that changes nothing."""
        if self.rng.random() >= self.plan.garbage * 10:
            return
        keys = {"pk": {"S": "somebody"}, "sk": {"S": "post#0#like"}}
        shard, record = self.stream.append("somebody", self.rng.choice(("INSERT", "MODIFY", "TRUNCATE")), keys)
        spoil = self.rng.randrange(4)
        body = record["dynamodb"]
        if spoil == 0:
            del body["Keys"]["sk"]
        elif spoil == 1:
            body["Keys"]["sk"] = {"S": "post#0"}
        elif spoil == 2:
            body["ApproximateCreationDateTime"] = 2.0**33
        else:
            record["eventName"] = self.rng.choice(("MODIFY", "TRUNCATE"))
        if record["eventName"] != "MODIFY" or spoil != 3:
            self.garbage.add(record["eventID"])
        self._note("litter", shard.id, record["eventName"], spoil)

    # --- the functions --------------------------------------------------------------------------------------------

    def _invoke(
        self, function: str, event: dict[str, Any], *, seconds: float, careful: bool = False
    ) -> dict[str, Any] | None:
        """What the function answers; None if it failed, died or ran out of time."""
        process = self._taken(function)
        call = _Call(process, self.clock_s + seconds, careful)
        self._calls.append(call)
        try:
            with functions.running(process):
                answer = functions.handler(function)(
                    event, functions.Context(lambda: max(0, int((call.deadline_s - self.clock_s) * 1000)))
                )
        except Died as death:
            self._note(function, process.name, "died", death)
            return None
        except Unavailable:
            self._note(function, process.name, "failed")
            self._idle.append(process)
            return None
        except Exception as error:  # noqa: BLE001 (no handler may raise anything else; the world goes on and says so)
            self._problem(f"{function} raised {type(error).__name__}: {error}")
            return None
        finally:
            self._calls.pop()
        if self.rng.random() < 0.97:
            self._idle.append(process)
        return answer

    def _taken(self, function: str) -> Process:
        """An idle process of the function, or a new one."""
        idle = [process for process in self._idle if process.function == function]
        if idle and self.rng.random() < 0.9:
            chosen = self.rng.choice(idle)
            self._idle.remove(chosen)
            return chosen
        return self._new_process(function)

    def _new_process(self, function: str) -> Process:
        self._processes += 1
        self.tally["processes"] += 1
        name = f"{function}-{self._processes}"

        def noted() -> Callable[[], None]:
            attempted = made.attempted

            def note() -> None:
                self._attempted = attempted

            return note

        made = functions.process(
            function,
            name,
            counter_rows=self._rows,
            old_version=self._old.get(function, False),
            world=self,
            dynamodb=FlakyDynamoDB(name, self.database, self, noted),
            sqs=FlakySQS(self._park, self._waiting, self),
            streams=FlakyStreams(self._parents, self._still_kept, self),
        )
        return made

    def _made_writer(self) -> Process:
        writer = self._new_process(WRITER)
        writer.built["like_table"] = LikeTable(writer.built["dynamodb"], "likes", self._pool, LikerBuckets(1))
        return writer

    def _deploy(self) -> None:
        """All processes are new ones from here on, as after a change of code or settings."""
        self._idle.clear()

    # --- lanes ----------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        mapping = self.rng.choice(self.mappings)
        if due := mapping.due():
            self._deliver_from(mapping, self.rng.choice(due))

    def _deliver_from(self, mapping: Mapping, reader: Reader) -> None:
        def invoke(event: dict[str, Any]) -> dict[str, Any] | None:
            short = self.rng.random() < self.plan.short_of_time
            answer = self._invoke(
                "aggregator",
                event,
                seconds=self.rng.uniform(2.0, 12.0) if short else TIMEOUT_S,
                careful=self._near_stale(reader),
            )
            failed = None if answer is None else [f["itemIdentifier"] for f in answer["batchItemFailures"]]
            self._note("delivered", self.mappings.index(mapping), reader.shard.id, len(event["Records"]), failed)
            if answer is not None and answer["state"] != event["state"]:
                self._problem(f"the window's state {event['state']} came back as {answer['state']}")
            return answer

        mapping.deliver(reader, invoke)

    def _near_stale(self, reader: Reader) -> bool:
        """Whether some record that may be in the next batch is about to turn stale."""
        made = reader.shard.made_s
        if reader.position >= len(made) or self.clock_s - made[reader.position] < STALE_AFTER_S - NEAR_STALE_S:
            return False
        last = min(len(made) - 1, reader.position + self.plan.longest_batch)
        return self.clock_s - made[last] < STALE_AFTER_S + 60

    def _rewind(self) -> None:
        self._move_back(whole=False)

    def _replay(self) -> None:
        self._move_back(whole=True)

    def _move_back(self, *, whole: bool) -> None:
        mapping = self.rng.choice(self.mappings)
        reader = self.rng.choice(mapping.readers())
        mapping.rewind(reader, self.clock_s, whole=whole)
        self._note("replay" if whole else "rewind", reader.shard.id, reader.position)

    def _rotate(self) -> None:
        self.tally["shard rotated"] += 1
        self.stream.rotate()

    def _split(self) -> None:
        if len(self.stream.shards) < 24:
            self.tally["shard split"] += 1
            self.stream.split()

    # --- the queue ------------------------------------------------------------------------------------------------

    def _park(self, body: str) -> None:
        self._message_ids += 1
        self.messages.append(Message(f"message-{self._message_ids}", body))
        reason = json.loads(body)["reason"]
        self.tally[f"parked {reason}"] += 1
        if reason == "undecidable":
            self._problem("a record over 48 hours old: this world delivers later than it may")

    def _settle(self) -> None:
        """The queue hands over a few messages, in no order; those that fail come again, five times at most."""
        if not self.messages:
            return
        taken = [
            self.messages.pop(self.rng.randrange(len(self.messages)))
            for _ in range(min(len(self.messages), self.rng.randint(1, 10)))
        ]
        event = {"Records": [{"messageId": message.id, "body": message.body} for message in taken]}
        self._in_hand += len(taken)
        answer = self._invoke("parked", event, seconds=60.0)
        self._in_hand -= len(taken)
        failed = (
            {message.id for message in taken}
            if answer is None
            else {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        )
        self._note("settled", len(taken), len(failed))
        for message in taken:
            self._after_settling(message, failed=message.id in failed)

    def _after_settling(self, message: Message, *, failed: bool) -> None:
        message.received += 1
        if not failed:
            self._settled += not message.settled
            if self.rng.random() < 0.1:
                self.tally["message delivered twice"] += 1
                self.messages.append(Message(message.id, message.body, settled=True))
        elif message.received < RECEIVED_AT_MOST:
            self.messages.append(message)
        else:
            self.tally["message to the dead queue"] += 1
            self.dead.append(message)

    def _redrive(self) -> None:
        """Somebody moves what lies in the dead queue back."""
        self.messages += [Message(message.id, message.body) for message in self.dead]
        self.dead.clear()

    def _waiting(self, url: str) -> int:
        if url == ENVIRONMENT["PARKED_DEAD_QUEUE_URL"]:
            return len(self.dead)
        return len(self.messages) + self._in_hand

    # --- the reconciler -------------------------------------------------------------------------------------------

    def _parents(self) -> dict[str, str | None]:
        return {shard.id: shard.parents[0].id if shard.parents else None for shard in self.stream.shards}

    def _still_kept(self, shard_id: str, after: int, limit: int) -> list[Record]:
        """Some records of a shard after a number, as far as the stream has not forgotten them."""
        (shard,) = (shard for shard in self.stream.shards if shard.id == shard_id)
        forgotten_s = self.clock_s - (STREAM_KEEPS_LATE_S if self.plan.late else STREAM_KEEPS_S)
        first = max(
            bisect_right(shard.made_s, forgotten_s),
            bisect_right(shard.records, after, key=lambda record: int(record["dynamodb"]["SequenceNumber"])),
        )
        return shard.records[first : first + limit]

    def _reconcile(self) -> None:
        """A walk over all items beside everything else: what is merely on its way is no drift."""
        if not self.plan.reconciled:
            return
        self._redrive()
        for finding in self._walk(repair=False):
            if not any(self._is_readable(message) for message in self.dead):
                self._problem(f"the reconciler found drift where there is none: {finding}")

    def _is_readable(self, message: Message) -> bool:
        return json.loads(message.body)["record"]["eventID"] not in self.garbage

    def _walk(self, *, repair: bool, patience: int = 3) -> list[dict[str, Any]]:
        """What the reconciler finds from the first piece to the last; a piece that fails is repeated."""
        found: list[dict[str, Any]] = []
        event: dict[str, Any] = {"all": True, "cursor": None, "repair": repair}
        self._fault_rate = min(self._fault_rate, WALK_FAULT_RATE)
        while patience:
            answer = self._invoke("reconciler", event, seconds=900.0)
            if answer is None:
                self.tally["reconciler began again"] += 1
                self._fault_rate *= 0.9
                patience -= 1
                continue
            self._note("reconciled", answer["checked"], answer["found"], len(answer["open"]))
            self.tally["items reconciled"] += answer["checked"]
            found += answer["found"]
            self._open_items = answer["open"]
            event["cursor"] = answer["cursor"]
            if answer["cursor"] is None:
                break
        else:
            self._open_items = [{"verdict": "walk broken off"}]
        self._fault_rate = self.plan.fault_rate
        return found

    def _reconcile_finally(self) -> None:
        """All is exact. Then numbers are changed by hand, found, and corrected, be the reconciler killed or not."""
        if not self.plan.reconciled:
            return
        self.dead.clear()  # somebody purges what nobody can read
        self._pass(STREAM_KEEPS_LATE_S)
        found = self._walk(repair=False, patience=MOST_TRIES)
        if found or self._open_items:
            self._problem(f"the reconciler says of exact counts: {found} {self._open_items}")
        spoilt = self._spoil()
        for _ in range(2):
            for finding in self._walk(repair=True, patience=MOST_TRIES):
                by = spoilt.get(finding["item_id"], {})  # of two reactions one may have been corrected before it died
                if not finding["drift"].items() <= by.items():
                    self._problem(f"the reconciler found {finding}, spoilt was {by}")
                self.tally["items found wrong"] += 1
                self.tally["items repaired"] += finding["repaired"]
        if left := self._walk(repair=False, patience=MOST_TRIES):
            self._problem(f"the reconciler repaired and still finds: {left}")

    def _spoil(self) -> dict[str, dict[str, int]]:
        """Changes some rows' numbers by hand; by how much, per item and reaction."""
        rows = sorted(key for key in self.database.table("counters").items if key[1].startswith(LIKE_METRIC))
        spoilt: dict[str, dict[str, int]] = {}
        for key in self.rng.sample(rows, min(len(rows), self.rng.randint(0, 5))):
            target = parse_target_key(key[0])
            reaction, _ = parse_counter_sort_key(key[1])
            if reaction in spoilt.get(target.item_id, {}):
                continue
            by = self.rng.choice((-3, -1, 1, 2))
            self._attempted = {}
            self.database.update_item(
                TableName="counters",
                Key={"pk": {"S": key[0]}, "sk": {"S": key[1]}},
                UpdateExpression="ADD n :by",
                ExpressionAttributeValues={":by": {"N": str(by)}},
            )
            spoilt.setdefault(target.item_id, {})[reaction] = by
            self.tally["counts spoilt"] += 1
        return spoilt

    # --- what happens now and then --------------------------------------------------------------------------------

    def _jump(self) -> None:
        """Nobody does anything for hours, after some likes that nobody has read yet."""
        self._like()
        longest = READ_LATE_WITHIN_S if self.plan.late else READ_WITHIN_S
        self._pass(HOUR_S * self.rng.choice((self.rng.uniform(0.2, 4), self.rng.uniform(4, longest / HOUR_S - 1), 49)))

    def _pass(self, seconds: float) -> None:
        """The clock jumps, after all is read that would else be read too late."""
        unread = [made for mapping in self.mappings if (made := mapping.oldest_unread_s()) is not None]
        allowed = READ_LATE_WITHIN_S if self.plan.late else READ_WITHIN_S
        if unread and self.clock_s + seconds - min(unread) > allowed:
            self._catch_up()
        self._land_due(all_of_them=True)
        self.clock_s += seconds
        self.tally["hours jumped"] += int(seconds / HOUR_S)
        for mapping in self.mappings:
            mapping.time_jumped(self.clock_s)
        self._note("hours later", f"{seconds / HOUR_S:.1f}")

    def _outage(self) -> None:
        """The store and the queue answer nobody for hours; Lambda keeps trying."""
        hours = self.rng.uniform(0.5, 20)
        self._note("outage", f"{hours:.1f}")
        self.tally["outages"] += 1
        parts = self.rng.randint(1, 4)
        until_s = self.clock_s + hours * HOUR_S
        for _ in range(parts):
            self._outage_until_s = 0.0  # so that what has to be read before the jump can be
            self._pass((until_s - self.clock_s) / parts if until_s > self.clock_s else 60.0)
            self._outage_until_s = max(until_s, self.clock_s + 300)
            self._deliver()
            self._settle()
        self._land_due(all_of_them=True)
        self.clock_s = max(self.clock_s, self._outage_until_s)
        self._outage_until_s = 0.0

    def _busy(self) -> None:
        """The store takes part of what it is asked for, for some minutes."""
        self._busy_until_s = self.clock_s + self.rng.uniform(5, 120)
        self.tally["store busy"] += 1
        self._note("busy")

    def _newer_version(self) -> None:
        """A deployment: from here on one of the functions reads what carries the newer reaction."""
        old = [function for function, is_old in self._old.items() if is_old]
        if old:
            self._old[self.rng.choice(old)] = False
            self.tally["newer version deployed"] += 1
            self._deploy()

    def _more_rows(self) -> None:
        """COUNTER_ROWS gets an entry, with a time to come."""
        if self._rows.count(",") < 2:
            since_ms = int((self.clock_s + self.rng.uniform(60, 3600)) * 1000)
            last_since_ms = int(self._rows.rpartition(",")[2].partition(":")[0])
            self._rows += f",{max(since_ms, last_since_ms + 1)}:{self.rng.choice((1, 3, 8, 100))}"
            self.tally["rows changed"] += 1
            self._note("rows", self._rows)
            self._deploy()

    # --- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """All is delivered, all is settled; messages may wait for days before."""
        self._over = True
        self._catch_up()
        self._land_due(all_of_them=True)
        self._old = dict.fromkeys(self._old, False)
        self._deploy()
        if self.rng.random() < 0.3:
            self._wait_for_days()
        self._settle_all()
        if self.rng.random() < 0.2:
            self._replay_all()
            self._wait_for_days()
            self._settle_all()
        self._land_due(all_of_them=True)
        self._check_queue()
        self._reconcile_finally()
        self._land_due(all_of_them=True)

    def _wait_for_days(self) -> None:
        left_s = QUEUE_KEEPS_S - (self.clock_s - BEGIN_S)
        if left_s > 0:
            self._pass(self.rng.uniform(0, left_s))

    def _replay_all(self) -> None:
        for mapping in self.mappings:
            for reader in mapping.readers():
                mapping.rewind(reader, self.clock_s, whole=True)
        self._catch_up()

    def _catch_up(self) -> None:
        """Delivers until nothing is left; faults and likes meanwhile become rarer, so that it ends."""
        self._until_done(self._all_read, self._deliver)

    def _all_read(self) -> bool:
        return not any(mapping.due() for mapping in self.mappings)

    def _settle_all(self) -> None:
        """Settles until only what nobody can settle is left."""
        for _ in range(3):
            self._redrive()
            self._until_done(lambda: not self.messages, self._settle)

    def _until_done(self, done: Callable[[], bool], act: Callable[[], None]) -> None:
        patience = IDLE_TURNS // 3 if self.problems else IDLE_TURNS  # what is wrong already need not be shown at length
        turns, idle, reached = 0, 0, self._progress()
        while not done() and idle < patience:
            act()
            self.clock_s += 0.5
            turns += 1
            if turns % 100 == 0:
                self._fault_rate /= 2
                self._interleaved /= 2
            before, reached = reached, self._progress()
            idle = idle + 1 if reached == before else 0
        if not done():
            self._problem("stuck: something is never read or never settled")
        self._fault_rate, self._interleaved = self.plan.fault_rate, self.plan.interleaved

    def _progress(self) -> tuple[int, ...]:
        """Changes whenever something has been read or a message has been used up."""
        return (*(mapping.progress() for mapping in self.mappings), self._settled, len(self.dead))

    def _report(self) -> Report:
        missing = [record for record in self.expected if not self.counted[record]]
        twice = [record for record, times in self.counted.items() if times > 1 or record not in self.expected]
        error = self._check_counts()
        for what, records in (("lost", missing), ("counted twice", twice)):
            for record in records[:10]:
                self._problem(f"{what}: {record} {self.expected.get(record)}, counted {self.counted[record]} times")
        self._note("ends", error, len(missing), len(twice), sorted(self.tally.items()))
        return Report(
            seed=self.plan.seed,
            records=len(self.expected) // CHANGES,
            delivered=sum(mapping.delivered for mapping in self.mappings),
            settled=self._settled,
            error=error,
            lost=len(missing),
            twice=len(twice),
            problems=tuple(self.problems),
            tally=self.tally,
            digest=self._digest.hexdigest(),
        )

    def _check_counts(self) -> int:
        """The sum of the differences: each count is what is recorded, and that is what people wanted."""
        recorded: Tally[Counter] = Tally()
        for item in self.database.table("likes").items.values():
            recorded[Counter(*parse_like_sort_key(item["sk"]["S"]))] += 1
        if recorded != Tally(Counter(key.target, key.reaction) for key in self.liked):
            self._problem("the table of likes is not what people wanted")
        table = CounterTable(cast("DynamoDBClient", self.database), "counters", self._pool, self.now_ms, SERIES_DAYS)
        targets = [Target("post", f"#{item}") for item in range(self.plan.items)]
        counted = _counted(table, targets)
        for target in targets:
            self._check_hours(table, target, sum(n for counter, n in counted.items() if counter.target == target))
        wrong = {c: counted[c] - recorded[c] for c in counted | recorded if counted[c] != recorded[c]}
        for counter, difference in wrong.items():
            self._problem(f"{counter} is off by {difference:+d} of {recorded[counter]}")
        return sum(map(abs, wrong.values()))

    def _check_hours(self, table: CounterTable, target: Target, total: int) -> None:
        """What all hours add up to is what is counted."""
        days = table.days(target, "likes-by-hour", 0, LAST_DAY)
        by_hour = sum(number for slots in days.values() for number in slots.values())
        if by_hour != total:
            self._problem(f"the hours of {target} add up to {by_hour}, counted are {total}")

    def _check_queue(self) -> None:
        """What is left is exactly what nobody can read."""
        left = {json.loads(message.body)["record"]["eventID"] for message in self.dead}
        if left != self.garbage:
            self._problem(f"left in the queue: {sorted(left - self.garbage)}, missing: {sorted(self.garbage - left)}")


def _counted(table: CounterTable, targets: Iterable[Target]) -> Tally[Counter]:
    """The counts as readers sum them."""
    counted: Tally[Counter] = Tally()
    for target in targets:
        for reaction, number in table.count(target, consistent=True).by_reaction.items():
            counted[Counter(target, reaction)] = number
    return counted


def run(seed: int) -> Report:
    """One world from its beginning to its end."""
    return World(seed).run()


_TURNS: tuple[tuple[Callable[[World], None], float], ...] = (
    (World._like, 7.0),
    (World._deliver, 16.0),
    (World._settle, 3.0),
    (World._litter, 1.0),
    (World._rewind, 2.0),
    (World._replay, 4.0),
    (World._rotate, 0.3),
    (World._split, 0.3),
    (World._jump, 0.2),
    (World._outage, 0.1),
    (World._busy, 0.3),
    (World._deploy, 0.3),
    (World._reconcile, 0.1),
    (World._newer_version, 0.3),
    (World._more_rows, 0.2),
)
