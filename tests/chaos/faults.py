"""What is done to the running stack. Each fault returns when the disturbance is over; recovery is watched by others."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.local.invoking import FunctionFailed, LambdaInvoke, NotInvoked
from infra.local.mapping import DynamoDBStream, IteratorExpired, Stream
from tests.chaos.probe import Prober
from tests.chaos.scene import PumpProcess, Scene

Record = Mapping[str, Any]

STOPPED_S = 20.0
THROTTLED_S = 8.0
THROTTLING = [
    {"service": "dynamodb", "probability": 0.25, "error": {"code": "ProvisionedThroughputExceededException"}},
    {"service": "dynamodb", "probability": 0.25, "error": {"code": "ThrottlingException"}},
    {"service": "dynamodb", "probability": 0.1, "error": {"code": "InternalServerError", "status": 500}},
]
# The request reaches the store and takes effect; its answer breaks off.
LOST_REPLIES = [{"service": "dynamodb", "probability": 0.25, "response": {"abort_bytes": 1}}]


@dataclass
class History:
    """Iterators at pages of the stream that lie behind, to read from again."""

    shard_id: str
    iterators: list[str] = field(default_factory=list)

    def extend(self, stream: Stream, until: float) -> None:
        """Reads on to the first page that holds a record of `until` (seconds since the epoch) or later."""
        iterator = self.iterators[-1] if self.iterators else stream.iterator(self.shard_id, None, "TRIM_HORIZON")
        while True:
            page = stream.read(iterator)
            if not page.records or page.next_iterator is None or not older(page.records[-1:], until):
                return
            if iterator not in self.iterators[-1:]:
                self.iterators.append(iterator)
            iterator = page.next_iterator


@dataclass
class Circumstances:
    """What faults need: the stack, the prober's knowledge, and the run's own randomness."""

    scene: Scene
    prober: Prober
    rng: random.Random
    killed: int = 0  # processes
    delivered_again: int = 0  # records, in old batches
    history: History | None = None

    @property
    def stream(self) -> DynamoDBStream:
        """The stream of the table of likes."""
        return DynamoDBStream(self.scene.client("dynamodbstreams"), self.scene.outputs["LikesStreamArn"])


def kill_valkey(at: Circumstances) -> str:
    """Valkey is killed and is back, empty, after some seconds on the same port."""
    pid = at.scene.cache_pid()
    os.kill(pid, signal.SIGKILL)
    at.killed += 1
    seconds = at.rng.uniform(2, 6)
    time.sleep(seconds)
    at.scene.cache.stop()
    at.scene.cache.start()
    return f"away for {seconds:.1f} s"


def kill_pump(at: Circumstances) -> str:
    """The pump is killed; the next one delivers the whole stream once more."""
    at.scene.pump.kill()
    at.killed += 1
    seconds = at.rng.uniform(0.2, 3)
    time.sleep(seconds)
    at.scene.pump.start()
    return f"away for {seconds:.1f} s, then everything from the beginning of the stream"


def kill_workers(at: Circumstances) -> str:
    """Processes of functions are killed, in the midst of whatever they do: one, some or all, up to three times."""
    killed = []
    for _ in range(at.rng.choice((1, 2, 3))):
        workers = at.scene.workers()
        chosen = at.rng.sample(workers, at.rng.choice((1, len(workers) // 2, len(workers))) if workers else 0)
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.append(len(chosen))
        time.sleep(at.rng.uniform(0.3, 1.5))
    at.killed += sum(killed)
    return f"processes killed: {', then '.join(map(str, killed))}"


def second_pump(at: Circumstances) -> str:
    """A second mapping of the same stream and queue works beside the first for a while."""
    seconds = at.rng.uniform(6, 14)
    with PumpProcess(at.scene.endpoint_url, at.scene.logs, f"second-pump-{time.monotonic_ns()}"):
        time.sleep(seconds)
    return f"for {seconds:.1f} s"


def throttle(at: Circumstances) -> str:
    """DynamoDB refuses half of all calls, and fails some."""
    return _under(at, THROTTLING)


def lose_replies(at: Circumstances) -> str:
    """DynamoDB does what it is asked, and a quarter of its answers break off."""
    return _under(at, LOST_REPLIES)


def _under(at: Circumstances, rules: Sequence[dict[str, Any]]) -> str:
    before = at.scene.throttle.fired()
    at.scene.throttle.set_rules(rules)
    try:
        time.sleep(THROTTLED_S)
    finally:
        at.scene.throttle.set_rules([])
    return f"{at.scene.throttle.fired() - before} calls in {THROTTLED_S:.0f} s"


def stop_pump(at: Circumstances) -> str:
    """The pump stands still; changes pile up."""
    os.kill(at.scene.pump.pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        os.kill(at.scene.pump.pid, signal.SIGCONT)
    return f"for {STOPPED_S:.0f} s"


# --- old batches --------------------------------------------------------------------------------------------------


def deliver_old(at: Circumstances) -> str:
    """Batches that were delivered long ago come again, cut elsewhere; some claim to be hours old.

    Only what is known to have been counted is taken: within a lane records come in their order the first time, so
    a later one before an earlier one is no fault that Lambda could make.
    """
    until, stream = at.prober.all_counted_until(), at.stream
    if at.history is None:
        (shard,) = stream.shards()
        at.history = History(shard.shard_id)
    invoke = _aggregator(at.scene)
    sizes: list[str] = []
    try:
        at.history.extend(stream, until)
        for _ in range(6):
            records = older(_read_again(stream, at.history, at.rng), until)
            low, high = sorted(at.rng.sample(range(len(records) + 1), 2)) if records else (0, 0)
            age_h = at.rng.choice((0, 0, at.rng.randrange(1, 23)))
            batch = [aged(record, age_h * 3600, stream.arn) for record in records[low:high]]
            with contextlib.suppress(FunctionFailed, NotInvoked):
                invoke(json.dumps(_window(batch, at.history.shard_id, stream.arn)))
                at.delivered_again += len(batch)
                sizes.append(f"{len(batch)}" + (f" ({age_h} h old)" if age_h else ""))
    except IteratorExpired:  # of a run of more than 15 minutes: begin anew next time
        at.history = None
    return "records: " + ", ".join(sizes)


def older(records: Sequence[Record], until: float) -> list[Record]:
    """The records before the first one of `until`; the stream tells whole seconds."""
    times = [record["dynamodb"]["ApproximateCreationDateTime"] for record in records]
    end = next((i for i, created in enumerate(times) if created >= int(until)), len(times))
    return list(records[:end])


def aged(record: Record, seconds: int, arn: str) -> Record:
    """The record as a function gets it, created earlier by so many seconds."""
    change = record["dynamodb"]
    created = change["ApproximateCreationDateTime"] - seconds
    return {**record, "eventSourceARN": arn, "dynamodb": {**change, "ApproximateCreationDateTime": created}}


def _read_again(stream: Stream, history: History, rng: random.Random) -> list[Record]:
    """One to three pages from somewhere in the past."""
    records: list[Record] = []
    if history.iterators:
        iterator: str | None = rng.choice(history.iterators)
        for _ in range(rng.choice((1, 1, 3))):
            if iterator is not None:
                page = stream.read(iterator)
                records += page.records
                iterator = page.next_iterator
    return records


def _window(records: Sequence[Record], shard_id: str, arn: str) -> dict[str, Any]:
    """The event of a tumbling window (Lambda Developer Guide, "time windows")."""
    return {
        "Records": records,
        "shardId": shard_id,
        "eventSourceARN": arn,
        "state": {},
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    }


def _aggregator(scene: Scene) -> LambdaInvoke:
    name = scene.outputs["AggregatorFunction"]
    return LambdaInvoke(scene.client("lambda"), name, name)


# --- which and how often ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A kind of fault; `kills` where it ends a process by force."""

    name: str
    make: Callable[[Circumstances], str]
    kills: bool = False


VALKEY = Fault("Valkey killed", kill_valkey, kills=True)
PUMP = Fault("pump killed", kill_pump, kills=True)
WORKERS = Fault("functions killed", kill_workers, kills=True)
OTHERS = (
    Fault("second pump beside", second_pump),
    Fault("DynamoDB throttled", throttle),
    Fault("replies of DynamoDB lost", lose_replies),
    Fault("old batches again", deliver_old),
    Fault("pump stopped", stop_pump),
)
KINDS = (VALKEY, PUMP, WORKERS, *OTHERS)


def plan(kills: int, minutes: float, rng: random.Random) -> list[Fault]:
    """The faults that must be made, in the order of this run: so many kills, and each other kind several times."""
    valkey, pump = (kills + 3) // 4, (kills + 2) // 4
    others = max(1, round(minutes * 0.3))
    faults = [VALKEY] * valkey + [PUMP] * pump + [WORKERS] * (kills - valkey - pump) + [*OTHERS] * others
    rng.shuffle(faults)
    return faults
