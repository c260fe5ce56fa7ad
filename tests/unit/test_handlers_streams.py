"""The aggregator and the consumer of parked records, called with events of Lambda over stores in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from functions.aggregator import app as aggregator
from functions.parked import app as parked
from tallymark.aggregation import LaneUnknown, Parked, Record, Unreadable
from tallymark.errors import Unavailable
from tallymark.events import AddEvent
from tallymark.fold import Change, Delta, lane
from tallymark.model import Counter, Target, named_counter
from tallymark.runtime import streams, wiring
from tallymark.storage.parked_queue import to_message
from tests.property.lambda_stream import (
    BEGIN_S,
    EVENT_GARBAGE,
    GARBAGE,
    Faults,
    MemoryAdjustments,
    MemoryHeld,
    MemoryQueue,
    MemoryRows,
    event_record,
    record,
)
from tests.unit.core.service import Service

TARGET = Target("post", "1")
COUNTER = Counter(TARGET, "like")
SHARD = "shardId-00000001700000000000-abcdef"


class World:
    """Both functions over one set of stores; the clock stands an hour after the first record."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service = Service(monkeypatch)
        self.faults = Faults()
        self.rows = MemoryRows(self.faults)
        self.queue = MemoryQueue(self.faults)
        self.held = MemoryHeld(self.faults)
        self.adjustments = MemoryAdjustments()
        self.remaining_ms = 60_000
        for name, value in {
            "counter_table": lambda: self.rows,
            "held_table": lambda: self.held,
            "parked_queue": lambda: self.queue,
            "adjustment_table": lambda: self.adjustments,
            "now_ms": lambda: (BEGIN_S + 3600) * 1000,
        }.items():
            monkeypatch.setattr(wiring, name, value)
        monkeypatch.setattr(aggregator, "time", SimpleNamespace(sleep=lambda _: None))

    def deliver(self, records: list[Record], **envelope: Any) -> dict[str, Any]:
        event = {"Records": records, "shardId": SHARD, "state": {}, **envelope}
        return aggregator.handler(event, SimpleNamespace(get_remaining_time_in_millis=lambda: self.remaining_ms))

    def settle(self, *bodies: str) -> list[str]:
        messages = [{"messageId": str(i), "body": body} for i, body in enumerate(bodies)]
        failures = parked.handler({"Records": messages}, None)["batchItemFailures"]
        return [failure["itemIdentifier"] for failure in failures]

    @property
    def counted(self) -> int:
        rows = (row for (counter, _), row in self.rows.rows.items() if counter.metric == "like")
        return sum(row.n["n"] for row in rows) + self.adjustments.added[COUNTER, "n"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield World(monkeypatch)
    wiring.reset()


def like(number: int, time_s: int = BEGIN_S) -> Record:
    return record("INSERT", TARGET, "like", number, time_s)


# --- the aggregator ---------------------------------------------------------------------------------------------


def test_a_batch_is_counted_once_however_often_it_comes(world: World) -> None:
    for batch in ([like(1), like(2)], [like(1), like(2)], [like(1)], [like(2), like(3)]):
        assert world.deliver(batch) == {"state": {}, "batchItemFailures": []}
    assert world.counted == 3


def test_a_window_gets_its_state_back_also_from_a_call_without_records(world: World) -> None:
    final = {"isFinalInvokeForWindow": True, "state": {"kept": 1}}
    assert world.deliver([], **final) == {"state": {"kept": 1}, "batchItemFailures": []}
    assert world.deliver([], state=None, shardId=None) == {"state": {}, "batchItemFailures": []}
    assert world.deliver([like(1)], state={"kept": 1})["state"] == {"kept": 1}


def test_an_event_that_names_no_shard_counts_nothing_and_fails(world: World) -> None:
    with pytest.raises(LaneUnknown):
        world.deliver([like(1)], shardId=None)
    assert world.rows.rows == {}


def test_a_stream_declared_to_have_one_lane_needs_no_shard(world: World) -> None:
    world.service.settings = replace(world.service.settings, single_lane="the-lane")
    world.deliver([like(1)], shardId=None)
    assert [list(row.marks) for row in world.rows.rows.values()] == [["the-lane"], ["the-lane"]]


def test_the_first_record_that_could_not_be_written_is_named_as_it_was_delivered(world: World) -> None:
    other = record("INSERT", Target("post", "2"), "like", 2, BEGIN_S)
    world.remaining_ms = 0
    world.faults.set(["ok", "ok", "busy"])
    answer = world.deliver([like(1), other, like(3)])
    assert answer["batchItemFailures"] == [{"itemIdentifier": f"{2:021d}"}]
    assert world.deliver([other, like(3)])["batchItemFailures"] == []
    assert world.counted == 3


def test_of_several_records_that_could_not_be_written_the_first_is_named(world: World) -> None:
    others = [record("INSERT", Target("post", str(number)), "like", number, BEGIN_S) for number in (2, 3)]
    world.remaining_ms = 0
    world.faults.set(["ok", "ok", "busy", "ok", "busy"])
    assert world.deliver([like(1), *others])["batchItemFailures"] == [{"itemIdentifier": f"{2:021d}"}]


def test_a_store_that_is_busy_is_asked_again_while_there_is_time(world: World) -> None:
    world.faults.set(["busy", "lost", "busy"])
    assert world.deliver([like(1)])["batchItemFailures"] == []
    assert world.counted == 1


@pytest.mark.parametrize("fault", sorted(GARBAGE))
def test_a_record_that_cannot_be_read_is_parked_and_the_rest_is_counted(world: World, fault: str) -> None:
    spoilt = GARBAGE[fault](like(2))
    assert world.deliver([like(1), spoilt, like(3)])["batchItemFailures"] == []
    assert world.queue.parked == [Parked("unreadable", SHARD, spoilt)]
    assert world.counted == 2


def test_nothing_is_counted_before_what_must_be_parked_is_safe(world: World) -> None:
    world.faults.set(["park fails"])
    with pytest.raises(Unavailable):
        world.deliver([like(1), GARBAGE["no keys"](like(2))])
    assert world.rows.rows == {}


@pytest.mark.parametrize(
    ("hours", "others", "reason", "hour"),
    [
        (35, [], None, None),
        (37, [], "uncounted", "uncounted"),
        (49, [], "uncounted", "uncounted"),
        (49, [like(5)], "undecidable", "uncounted"),  # the row of the day before holds nothing yet
    ],
)
def test_an_old_record_is_parked_and_says_whether_it_can_be_judged(
    world: World, hours: int, others: list[Record], reason: str | None, hour: str | None
) -> None:
    """The row of `others` holds no mark of the lane that the old record comes from."""
    world.service.settings = replace(world.service.settings, counter_rows=((0, 1),))
    world.deliver(others, shardId="shardId-2")
    world.deliver([like(1, BEGIN_S + 3600 - hours * 3600)])
    assert [(p.reason, p.part) for p in world.queue.parked] == ([(reason, 0), (hour, 1)] if reason else [])


def test_a_sequence_number_that_is_no_string_is_parked_like_any_other_garbage(world: World) -> None:
    spoilt = like(2)
    spoilt["dynamodb"]["SequenceNumber"] = 2
    world.deliver([spoilt])
    assert [p.reason for p in world.queue.parked] == ["unreadable"]


# --- parked records ---------------------------------------------------------------------------------------------


def test_a_parked_record_is_settled_once(world: World) -> None:
    body = to_message(Parked("uncounted", SHARD, like(1)))
    assert world.settle(body, body) == []
    assert world.settle(body) == []
    assert world.counted == 1


def test_the_same_number_in_two_lanes_is_two_records(world: World) -> None:
    assert world.settle(*(to_message(Parked("uncounted", lane_id, like(1))) for lane_id in ("a", "b"))) == []
    assert world.counted == 2


def test_what_cannot_be_settled_stays_in_the_queue_alone(world: World) -> None:
    bodies = [
        to_message(Parked("uncounted", SHARD, like(1))),
        to_message(Parked("undecidable", SHARD, like(2))),
        to_message(Parked("unreadable", SHARD, GARBAGE["no keys"](like(3)))),
        "not json",
        "{}",
        "[]",
        json.dumps({"reason": "uncounted", "lane_id": SHARD, "record": None}),
        to_message(Parked("uncounted", SHARD, like(4))),
    ]
    assert world.settle(*bodies) == ["1", "2", "3", "4", "5", "6"]
    assert world.counted == 2


def test_records_of_one_number_in_shards_of_one_name_are_told_apart_by_their_stream(world: World) -> None:
    added = event_record(AddEvent(BEGIN_S * 1000, "token", "n", 5), 1, BEGIN_S)
    aws = {"eventSourceARN": "arn:aws:dynamodb:us-east-1:000000000000:table/events/stream/now"}
    spoilt, spoilt_event = GARBAGE["a key of no like"](like(1)), {**EVENT_GARBAGE["no image"](added), **aws}
    world.deliver([spoilt])
    world.deliver([spoilt_event])
    assert [parked.lane_id for parked in world.queue.parked] == [SHARD, f"events/{SHARD}"]
    bodies = [to_message(Parked("uncounted", SHARD, like(1)))]
    bodies += [to_message(Parked("uncounted", parked.lane_id, added)) for parked in world.queue.parked[1:]]
    assert world.settle(*bodies) == []
    assert world.counted == 1
    assert world.adjustments.added[named_counter("n"), "n"] == 5


def test_an_unreadable_record_is_settled_once_a_later_version_can_read_it(world: World) -> None:
    assert world.settle(to_message(Parked("unreadable", SHARD, like(1)))) == []
    assert world.counted == 1


@pytest.mark.parametrize("fault", ["hold fails", "hold lost", "park fails", "park lost"])
def test_a_record_parked_before_a_deployment_and_read_after_it_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    with monkeypatch.context() as old_version:
        old_version.setattr(aggregator, "reader_of", lambda _lane_id: _unreadable)
        world.faults.set([fault])
        with pytest.raises(Unavailable):
            world.deliver([like(1)])
    world.deliver([like(1)])
    world.settle(*map(to_message, world.queue.parked))
    assert world.counted == 1


def _unreadable(made: Record) -> None:

    raise Unreadable(str(made))


# --- lanes and waits --------------------------------------------------------------------------------------------


def test_a_lane_keeps_the_number_of_rows_of_the_time_that_it_was_created() -> None:
    created_ms = 1_700_000_000_000
    before, after = ((0, 1),), ((0, 1), (created_ms + 1, 1000))
    assert lane(SHARD, before) == lane(SHARD, after)
    assert lane(SHARD, ((0, 1), (created_ms, 1000))).row != 0
    assert lane("a lane without a time", after).row == 0


def test_lanes_spread_over_the_rows() -> None:
    rows = {lane(f"shardId-{1_700_000_000_000 + i:020d}-abcdef", ((0, 16),)).row for i in range(200)}
    assert rows == set(range(16))


def test_waits_grow_and_end_while_there_is_time_to_answer() -> None:
    waits = streams.pauses(lambda: 60_000)
    grown = [next(waits) for _ in range(2000)]
    assert 0.025 <= grown[0] <= 0.05
    assert all(1.0 <= wait <= 2.0 for wait in grown[8:])
    assert list(streams.pauses(lambda: 5_000)) == []


def test_a_delta_knows_the_newest_time_and_the_last_number() -> None:
    changes = (Change(COUNTER, 1, 1, 9), Change(COUNTER, -1, 2, 8))
    delta = Delta(COUNTER, changes)
    assert (delta.amounts["n"], delta.first_sequence, delta.mark.sequence, delta.mark.time_s) == (0, 1, 2, 9)
