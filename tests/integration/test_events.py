"""Events over real tables: recorded once, folded once, kept in their hours, and gone without a trace in the counts."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tallymark import fold, sums, views
from tallymark.events import AddEvent, ViewEvent
from tallymark.fold import Change, lane
from tallymark.model import ALL, Counter, Target, by_hour, named_counter
from tallymark.runtime import wiring
from tallymark.storage.event_stream import item_of
from tallymark.storage.event_table import EventTable
from tallymark.views import View, gather
from tests.bench.events import function
from tests.integration.conftest import Tables
from tests.integration.streams import LANE, Context, injected, lost_replies
from tests.integration.test_capacity import metered
from tests.property.lambda_stream import event_record

NOW_MS = time.time_ns() // 1_000_000
DAY_MS = 86_400_000
_numbers = itertools.count(10**20 + time.time_ns())


@pytest.fixture
def events(tables: Tables) -> EventTable:
    return EventTable(tables.client, tables.outputs["EventsTable"], 7)


@pytest.fixture
def handlers(tables: Tables) -> Iterator[Any]:
    wiring.reset()
    yield function("aggregator").handler, function("parked").handler
    wiring.reset()


def record(tables: Tables, event: ViewEvent | AddEvent, *, age_s: float = 0.0) -> dict[str, Any]:
    """What the stream says of it, as Lambda delivers it."""
    arn = f"arn:aws:dynamodb:us-east-1:000000000000:table/{tables.outputs['EventsTable']}/stream/now"
    return {**event_record(event, next(_numbers), int(time.time() - age_s)), "eventSourceARN": arn}


def batch(*records: dict[str, Any]) -> dict[str, Any]:
    return {"Records": list(records), "shardId": LANE, "state": {}}


def view_event(*seen: View, at_ms: int = NOW_MS) -> ViewEvent:
    return ViewEvent(at_ms, None, gather(seen))


def viewed(tables: Tables, target: Target) -> tuple[int, int]:
    total = tables.counters.total(Counter(target, ALL, "view"), consistent=True)
    return total["n"], total["b"]


# --- recorded ---------------------------------------------------------------------------------------------------


def test_a_token_is_recorded_once(events: EventTable, target: Target) -> None:
    token = uuid.uuid4().hex
    assert views.record_views(events, [View(target)], token, at_ms=1)
    assert not views.record_views(events, [View(target), View(target)], token, at_ms=2)
    assert sums.add(events, "n", 1, token, at_ms=1)
    assert not sums.add(events, "n", 2, token, at_ms=2)
    assert sums.add(events, "m", 2, token, at_ms=2)


def test_an_event_whose_reply_was_lost_is_new_all_the_same(tables: Tables, events: EventTable) -> None:
    with injected(tables.client, "PutItem", lost_replies(tables.client, 1)):
        assert sums.add(events, "n", 1, uuid.uuid4().hex, at_ms=1)


@pytest.mark.parametrize("seen", [25, 80])
def test_views_of_one_item_by_known_visitors_cost_one_write_unit(
    tables: Tables, events: EventTable, target: Target, seen: int
) -> None:
    with metered(tables.client) as calls:
        everybody = [View(target, f"a visitor with a long id: {uuid.uuid4()}") for _ in range(seen)]
        views.record_views(events, everybody, uuid.uuid4().hex, at_ms=NOW_MS)
    assert [(name, capacity["CapacityUnits"]) for name, capacity in calls] == [("PutItem", 1)]


def test_an_event_expires_after_its_days(tables: Tables, events: EventTable) -> None:
    name = uuid.uuid4().hex
    sums.add(events, name, 1, "t", at_ms=NOW_MS)
    key = item_of(AddEvent(NOW_MS, "t", name, 1))["pk"]
    item = tables.client.get_item(TableName=tables.outputs["EventsTable"], Key={"pk": key})["Item"]
    assert int(item["ttl"]["N"]) == (NOW_MS + 7 * DAY_MS) // 1000


def test_the_longest_events_fit_into_the_parked_queue(tables: Tables, handlers: Any) -> None:
    """Parked change by change, each message with the whole record: more than one call takes."""
    aggregate, _ = handlers
    everything = [View(Target("t" * 32, f"{i:03d}" + "#" * 253), f"visitor {i}") for i in range(100)]
    made = record(
        tables, view_event(*everything, *(View(view.target, bot=True) for view in everything)), age_s=37 * 3600
    )
    assert aggregate(batch(made), Context())["batchItemFailures"] == []
    wiring.sqs().purge_queue(QueueUrl=tables.outputs["ParkedQueueUrl"])


# --- folded -----------------------------------------------------------------------------------------------------


def test_an_event_counts_once_however_its_batches_are_cut_and_repeated(
    tables: Tables, handlers: Any, target: Target
) -> None:
    aggregate, _ = handlers
    other, name = Target("post", uuid.uuid4().hex), uuid.uuid4().hex
    records = [
        record(tables, view_event(View(target), View(target, "v"), View(target, bot=True), View(other, bot=True))),
        record(tables, view_event(View(target, bot=True), View(other))),
        record(tables, AddEvent(NOW_MS, "t", name, 2**60)),
        record(tables, AddEvent(NOW_MS, "u", name, -5)),
    ]
    for part in (records[:1], records[:3], records, records[1:], records[::-1]):
        assert aggregate(batch(*part), Context())["batchItemFailures"] == []
    assert (viewed(tables, target), viewed(tables, other)) == ((2, 2), (1, 1))
    assert tables.counters.total(named_counter(name), consistent=True) == {"n": 2**60 - 5}


def test_each_hour_has_its_views_and_the_day_its_expiry(tables: Tables, handlers: Any, target: Target) -> None:
    aggregate, _ = handlers
    midnight = NOW_MS // DAY_MS * DAY_MS
    moments = [midnight, midnight + 3_600_000, midnight + 3_600_000, midnight - 1]
    for at_ms in moments:
        answer = aggregate(batch(record(tables, view_event(View(target), at_ms=at_ms))), Context())
        assert answer["batchItemFailures"] == []
    today = midnight // DAY_MS
    days = tables.counters.days(target, "views-by-hour", today - 1, today)
    assert {day: {slot: n for slot, n in slots.items() if n} for day, slots in days.items()} == {
        today - 1: {"n23": 1},
        today: {"n00": 1, "n01": 2},
    }
    assert set(tables.counters.days(target, "views-by-hour", today, today)) == {today}
    counter, _ = by_hour(target, "views-by-hour", midnight)
    found = tables.client.query(
        TableName=tables.outputs["CountersTable"],
        KeyConditionExpression="pk = :pk AND begins_with(sk, :day)",
        ExpressionAttributeValues={
            ":pk": {"S": f"post#{target.item_id}"},
            ":day": {"S": f"views-by-hour#{counter.label}#"},
        },
    )["Items"]
    assert [int(item["ttl"]["N"]) for item in found] == [(today + 36) * 86_400]


def test_old_events_are_counted_once_through_the_queue_each_change_by_itself(
    tables: Tables, handlers: Any, target: Target
) -> None:
    """The batch died after one of the two rows, and came again when its marks could not be judged by any more."""
    aggregate, settle = handlers
    made = record(tables, view_event(View(target), View(target, bot=True)), age_s=37 * 3600)
    total, number = Counter(target, ALL, "view"), int(made["dynamodb"]["SequenceNumber"])
    then_s = int(made["dynamodb"]["ApproximateCreationDateTime"])
    counted = fold.fold([Change(total, 1, number, then_s, "n"), Change(total, 1, number, then_s, "b")])
    this_lane = lane(LANE, wiring.settings().counter_rows, "events/")
    assert fold.apply(
        tables.new_counters(), this_lane, counted, now_s=then_s, pauses=iter(()), sleep=lambda _: None
    ) == []  # fmt: skip
    aggregate(batch(made), Context())
    sqs, url = wiring.sqs(), tables.outputs["ParkedQueueUrl"]
    bodies = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        bodies += [m["Body"] for m in messages if made["eventID"] in m["Body"]]
    assert len(bodies) == 2  # the hours of people and of bots
    for _ in range(2):
        records = [{"messageId": str(i), "body": body} for i, body in enumerate(bodies)]
        assert settle({"Records": records}, None)["batchItemFailures"] == []
    assert viewed(tables, target) == (1, 1)
    _, hour = by_hour(target, "views-by-hour", NOW_MS)
    day = NOW_MS // DAY_MS
    slots = tables.counters.days(target, "views-by-hour", day, day)[day]
    assert {slot: n for slot, n in slots.items() if n} == {f"n{hour}": 1, f"b{hour}": 1}
