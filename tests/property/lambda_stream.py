"""A stream as Lambda delivers it, and stores that fail as DynamoDB and SQS can, all in memory.

Within a lane a batch never begins beyond what was acknowledged, so records come in order the first
time. What was acknowledged may come again at any time, cut in any way.
"""

from __future__ import annotations

import base64
import json
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tallymark import parking
from tallymark.aggregation import Parked, Record, Unreadable, aggregate, sequence_number
from tallymark.errors import Unavailable
from tallymark.events import AddEvent, Viewed, ViewEvent
from tallymark.fold import Added, Change, Deferred, Delta, Lane, Mark, Outcome, Passed, lane
from tallymark.model import Counter, Target
from tallymark.storage import keys
from tallymark.storage.event_stream import item_of
from tallymark.storage.records import reader_of

COUNTER_ROWS = ((0, 2),)
TARGETS = [Target("post", "1"), Target("post", "#")]
REACTIONS = ["like", "👍"]
NEWER = "👍"  # the reaction that an old version does not know
NEWER_NAME = "newer"  # and the counter
EVENTS = 2  # the lane that is one of events, the others are of likes
LANE_IDS = ("shardId-0", "shardId-1", "events/shardId-1")
BEGIN_S = 1_700_000_000

Slot = tuple[Counter, str]


class Died(Exception):
    """The function ended where it stood."""


# --- what happens -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delivery:
    """One invocation: records from a position (backwards from what is acknowledged) and how many."""

    lane: int
    back: int
    size: int
    hours_later: int
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """Lanes of records, and what is delivered of them when.

    The first `before_deployment` deliveries go to a version of the code that cannot read what carries NEWER.
    """

    lanes: tuple[tuple[Record, ...], ...]
    deliveries: tuple[Delivery, ...]
    settlements: tuple[int, ...]
    before_deployment: int = 0


def record(event: str, target: Target, reaction: str, sequence: int, time_s: int) -> Record:
    return {
        "eventID": f"id-{sequence}",
        "eventName": event,
        "dynamodb": {
            "ApproximateCreationDateTime": float(time_s),
            "Keys": {"pk": {"S": "someone"}, "sk": {"S": keys.like_sort_key(target, reaction)}},
            "SequenceNumber": f"{sequence:021d}",
        },
    }


def event_record(event: ViewEvent | AddEvent, sequence: int, time_s: int) -> Record:
    """The record of a new event, as Lambda delivers it from a stream of NEW_IMAGE: bytes in base64."""
    item = json.loads(json.dumps(item_of(event), default=lambda packed: base64.b64encode(packed).decode()))
    return {
        "eventID": f"id-{sequence}",
        "eventName": "INSERT",
        "dynamodb": {
            "ApproximateCreationDateTime": float(time_s),
            "Keys": {"pk": item["pk"]},
            "NewImage": item,
            "SequenceNumber": f"{sequence:021d}",
        },
    }


def _without(name: str, spoilt: Record) -> Record:
    return {**spoilt, "dynamodb": {k: v for k, v in spoilt["dynamodb"].items() if k != name}}


def _with(name: str, value: object, spoilt: Record) -> Record:
    return {**spoilt, "dynamodb": {**spoilt["dynamodb"], name: value}}


GARBAGE: dict[str, Callable[[Record], Record]] = {
    "no keys": lambda r: _without("Keys", r),
    "keys of another table": lambda r: _with("Keys", {"pk": {"S": "x"}}, r),
    "a key of no like": lambda r: _with("Keys", {"sk": {"S": "post#1"}}, r),
    "a key that is a number": lambda r: _with("Keys", {"sk": {"N": "7"}}, r),
    "no time": lambda r: _without("ApproximateCreationDateTime", r),
    "a time out of range": lambda r: _with("ApproximateCreationDateTime", 2.0**33, r),
    "an infinite time": lambda r: _with("ApproximateCreationDateTime", float("inf"), r),
    "an unknown event": lambda r: {**r, "eventName": "TRUNCATE"},
}


@st.composite
def _records(draw: st.DrawFn, lane_number: int) -> tuple[Record, ...]:
    records: list[Record] = []
    sequence = lane_number
    for _ in range(draw(st.integers(0, 8))):
        sequence += draw(st.sampled_from([1, 2, 10**20]))
        event = draw(st.sampled_from(["INSERT", "INSERT", "REMOVE", "MODIFY"]))
        target, reaction = draw(st.sampled_from(TARGETS)), draw(st.sampled_from(REACTIONS))
        made = record(event, target, reaction, sequence, BEGIN_S + draw(st.integers(0, 3600)))
        spoil = draw(st.none() | st.none() | st.sampled_from(sorted(GARBAGE)))
        records.append(GARBAGE[spoil](made) if spoil else made)
    return tuple(records)


EVENT_GARBAGE: dict[str, Callable[[Record], Record]] = {
    "no image": lambda r: _without("NewImage", r),
    "an image of nothing": lambda r: _with("NewImage", {"pk": r["dynamodb"]["Keys"]["pk"]}, r),
    "no time": lambda r: _without("ApproximateCreationDateTime", r),
    "no number": lambda r: _without("SequenceNumber", r),
}
_viewed = st.builds(Viewed, st.sampled_from(TARGETS), st.integers(0, 3), st.integers(0, 2), st.just((b"somebody",)))
_events = st.builds(
    ViewEvent, st.sampled_from([BEGIN_S * 1000, BEGIN_S * 1000 + 3_600_000]), st.none(),
    st.lists(_viewed, max_size=2, unique_by=lambda viewed: viewed.target).map(tuple),
) | st.builds(
    AddEvent, st.just(BEGIN_S * 1000), st.just("token"), st.sampled_from(["n", NEWER_NAME]),
    st.sampled_from([5, -7, 2**60]),
)  # fmt: skip


@st.composite
def _event_records(draw: st.DrawFn) -> tuple[Record, ...]:
    records: list[Record] = []
    sequence = 0
    for event in draw(st.lists(_events, max_size=8)):
        sequence += draw(st.sampled_from([1, 2, 10**20]))
        made = event_record(event, sequence, BEGIN_S + draw(st.integers(0, 3600)))
        spoil = draw(st.none() | st.none() | st.sampled_from(sorted(EVENT_GARBAGE)))
        records.append(EVENT_GARBAGE[spoil](made) if spoil else made)
    return tuple(records)


FAULTS = ["ok", "ok", "busy", "lost", "moved", "dies before", "dies after"]
FAULTS += ["park fails", "park lost", "hold fails", "hold lost"]
_deliveries = st.builds(
    Delivery,
    lane=st.integers(0, 2),
    back=st.sampled_from([0, 0, 1, 2, 8]),
    size=st.integers(1, 8),
    hours_later=st.sampled_from([0, 0, 0, 20, 37]),
    faults=st.lists(st.sampled_from(FAULTS), max_size=5).map(tuple),
)
scenarios = st.builds(
    Scenario,
    lanes=st.tuples(_records(0), _records(1), _event_records()),
    deliveries=st.lists(_deliveries, max_size=8).map(tuple),
    settlements=st.lists(st.integers(0, 30), max_size=10).map(tuple),
    before_deployment=st.integers(0, 8),
)


Reader = Callable[[Record], Sequence[Change]]


def as_old_version(read: Reader) -> Reader:
    def reads(made: Record) -> Sequence[Change]:
        changes = read(made)
        if any(change.counter.label == NEWER or change.counter.target.item_id == NEWER_NAME for change in changes):
            raise Unreadable("what is this?")
        return changes

    return reads


def _counts(parked: Parked) -> bool:
    return not _garbled(parked) and bool(reader_of(parked.lane_id)(parked.record))


def _garbled(parked: Parked) -> bool:
    try:
        reader_of(parked.lane_id)(parked.record)
    except Unreadable:
        return True
    return False


# --- the stores -------------------------------------------------------------------------------------------------


class Faults:
    """What goes wrong next; nothing, once the list is used up."""

    def __init__(self) -> None:
        self._coming: list[str] = []

    def set(self, coming: Sequence[str]) -> None:
        self._coming = list(coming)

    def next(self, *possible: str) -> str:
        if self._coming and self._coming[0] in (*possible, "ok"):
            return self._coming.pop(0)
        return "ok"


@dataclass
class Row:
    """Number and marks, which change together."""

    n: Tally[str] = field(default_factory=Tally)
    marks: dict[str, Mark] = field(default_factory=dict)


class MemoryRows:
    """Counter rows with the table's condition."""

    def __init__(self, faults: Faults, *, conditional: bool = True) -> None:
        self.rows: dict[tuple[Counter, int], Row] = {}
        self._faults, self._conditional = faults, conditional

    def add(self, lane: Lane, deltas: Sequence[Delta], now_s: int) -> list[Outcome]:
        return [self._add(lane, delta) for delta in deltas]

    def _add(self, lane: Lane, delta: Delta) -> Outcome:
        fault = self._faults.next("busy", "lost", "moved", "dies before", "dies after")
        if fault == "dies before":
            raise Died
        if fault == "busy":
            return Deferred()
        row = self.rows.get((delta.counter, lane.row))
        mark = row.marks.get(lane.id) if row else None
        holds = mark is None or mark.sequence < delta.first_sequence
        if self._conditional and (fault == "moved" or not holds):
            return Passed(mark)
        row = self.rows.setdefault((delta.counter, lane.row), Row())
        row.n.update(delta.amounts)
        row.marks[lane.id] = delta.mark
        if fault == "dies after":
            raise Died
        return Deferred() if fault == "lost" else Added()

    def marks(self, lane: Lane, counters: Sequence[Counter]) -> list[tuple[bool, Mark | None]]:
        found = [self.rows.get((counter, lane.row)) for counter in counters]
        return [(row is not None, row.marks.get(lane.id) if row else None) for row in found]


class MemoryQueue:
    """Parked records; a put may fail, or be stored and look failed."""

    def __init__(self, faults: Faults) -> None:
        self.parked: list[Parked] = []
        self._faults = faults

    def put(self, parked: Sequence[Parked]) -> None:
        fault = self._faults.next("park fails", "park lost")
        if fault != "park fails":
            self.parked += parked
        if fault != "ok":
            raise Unavailable("the queue did not answer")


class MemoryHeld:
    """Records held back from folding; a write may fail, or be stored and look failed."""

    def __init__(self, faults: Faults) -> None:
        self.held: set[tuple[str, str]] = set()
        self._faults = faults

    def numbers(self, lane_id: str) -> Set[str]:
        return {number for lane, number in self.held if lane == lane_id}

    def hold(self, lane_id: str, numbers: Set[str], now_s: int) -> None:
        fault = self._faults.next("hold fails", "hold lost")
        if fault != "hold fails":
            self.held |= {(lane_id, number) for number in numbers}
        if fault != "ok":
            raise Unavailable("the table did not answer")


class MemoryAdjustments:
    """Claims and adjustment rows, moved together."""

    def __init__(self) -> None:
        self.claims: Tally[str] = Tally()
        self.added: Tally[Slot] = Tally()

    def add_once(self, event_id: str, change: Change, expires_s: int) -> bool:
        if event_id in self.claims:
            return False
        self.claims[event_id] += 1
        self.added[change.counter, change.slot] += change.delta
        return True


# --- the run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """Counts as readers sum them and as the records say, and how often each parked record was settled."""

    counted: dict[Slot, int]
    recorded: dict[Slot, int]
    settled: Tally[str]
    settleable: set[str]
    unreadable: set[str]

    @property
    def exact(self) -> bool:
        return self.counted == self.recorded


class Stream:
    """Drives the real aggregation over a scenario."""

    def __init__(self, scenario: Scenario, *, conditional: bool = True) -> None:
        self._scenario = scenario
        self._faults = Faults()
        self._rows = MemoryRows(self._faults, conditional=conditional)
        self._queue = MemoryQueue(self._faults)
        self._held = MemoryHeld(self._faults)
        self._adjustments = MemoryAdjustments()
        self._acknowledged = [0] * len(scenario.lanes)
        self._now_s = BEGIN_S + 3600

    def run(self) -> Result:
        for i, delivery in enumerate(self._scenario.deliveries):
            self._now_s = min(self._now_s + delivery.hours_later * 3600, BEGIN_S + 47 * 3600)  # before marks are pruned
            start = max(0, self._acknowledged[delivery.lane] - delivery.back)
            old = i < self._scenario.before_deployment
            self._deliver(delivery.lane, start, start + delivery.size, delivery.faults, old_version=old)
        for lane_number, records in enumerate(self._scenario.lanes):
            while self._acknowledged[lane_number] < len(records):
                self._deliver(lane_number, self._acknowledged[lane_number], len(records), ())
        settled = self._settle()
        return Result(
            counted=self._counted(),
            recorded=self._recorded(),
            settled=settled,
            settleable={claim for p in self._queue.parked if _counts(p) for claim in _claims(p)},
            unreadable={p.record["eventID"] for p in self._queue.parked if _garbled(p)},
        )

    def _deliver(
        self, lane_number: int, start: int, end: int, faults: Sequence[str], *, old_version: bool = False
    ) -> None:
        stream, slash, shard_id = LANE_IDS[lane_number].rpartition("/")
        read = reader_of(LANE_IDS[lane_number])
        records = self._scenario.lanes[lane_number][start:end]
        self._faults.set(faults)
        try:
            done = aggregate(
                records,
                lane(shard_id, COUNTER_ROWS, stream + slash),
                read=as_old_version(read) if old_version else read,
                rows=self._rows,
                held=self._held,
                parking=self._queue,
                now_s=self._now_s,
                pauses=self._pauses(),
                sleep=lambda _: None,
            )
        except (Died, Unavailable):
            return
        finally:
            self._faults.set(())
        until = start + len(records)
        if done.failed_sequence is not None:
            numbers = [sequence_number(made) for made in records]
            until = start + numbers.index(done.failed_sequence)
        self._acknowledged[lane_number] = max(self._acknowledged[lane_number], until)

    @staticmethod
    def _pauses() -> Iterator[float]:
        return iter([0.1, 0.2])

    def _settle(self) -> Tally[str]:
        """Every parked record at least once, some again and in another order."""
        parked = self._queue.parked
        again = [parked[i % len(parked)] for i in self._scenario.settlements] if parked else []
        for entry in [*again, *reversed(parked), *again]:
            try:
                parking.settle(
                    entry,
                    read=reader_of(entry.lane_id),
                    adjustments=self._adjustments,
                    now_s=self._now_s,
                    sleep=lambda _: None,
                )
            except Unreadable:
                continue
        return self._adjustments.claims

    def _counted(self) -> dict[Slot, int]:
        sums = Tally(self._adjustments.added)
        for (counter, _), row in self._rows.rows.items():
            sums.update({(counter, slot): n for slot, n in row.n.items()})
        return {slot: n for slot, n in sums.items() if n}

    def _recorded(self) -> dict[Slot, int]:
        sums: Tally[Slot] = Tally()
        for lane_id, records in zip(LANE_IDS, self._scenario.lanes, strict=False):
            for made in records:
                try:
                    changes = reader_of(lane_id)(made)
                except Unreadable:
                    continue
                for change in changes:
                    sums[change.counter, change.slot] += change.delta
        return {slot: n for slot, n in sums.items() if n}


def _claims(parked: Parked) -> set[str]:
    parts = range(len(reader_of(parked.lane_id)(parked.record))) if parked.part is None else [parked.part]
    return {parking.claim_id(parked, part) for part in parts}
