"""The real aggregator over a real table: every record counts once, whatever deliveries are made of it."""

from __future__ import annotations

import json
import random
from collections import Counter as Tally
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tallymark.aggregation import LaneUnknown
from tallymark.fold import Mark
from tallymark.model import Target
from tallymark.runtime import wiring
from tallymark.runtime.telemetry import HandlerFailed
from tallymark.storage import counter_table
from tests.bench.events import function
from tests.hooks import hooked
from tests.integration.conftest import Tables, new_target
from tests.integration.streams import LANE, Context, batch, injected, lost_replies, record


@pytest.fixture
def aggregator(tables: Tables) -> Iterator[Any]:
    """The handler as in a new process."""
    wiring.reset()
    yield function("aggregator").handler
    wiring.reset()


@pytest.fixture
def parked(tables: Tables) -> Any:
    """Takes what waits in the parked queue and hands it to the consumer, as Lambda does."""
    consumer, sqs, url = function("parked").handler, boto3.client("sqs"), tables.outputs["ParkedQueueUrl"]
    sqs.purge_queue(QueueUrl=url)

    def settle(times: int = 1) -> list[dict[str, Any]]:
        messages = []
        while got := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0).get("Messages"):
            messages += got
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        events = [{"messageId": m["MessageId"], "body": m["Body"]} for m in messages]
        for _ in range(times):
            failed = {f["itemIdentifier"] for f in consumer({"Records": events}, Context())["batchItemFailures"]}
        return [event for event in events if event["messageId"] in failed] if events else []

    return settle


def count(tables: Tables, target: Target) -> dict[str, int]:
    return tables.counters.count(target, consistent=True).by_reaction


def test_a_batch_delivered_twice_counts_once(tables: Tables, aggregator: Any, target: Target) -> None:
    event = batch([record(target, f"user-{n}") for n in range(8)])
    for _ in range(3):
        assert aggregator(event, Context()) == {"state": {}, "batchItemFailures": []}
    assert count(tables, target) == {"like": 8}


def test_a_batch_that_is_cut_again_and_overlaps_counts_each_record_once(
    tables: Tables, aggregator: Any, target: Target
) -> None:
    records = [record(target, f"user-{n}") for n in range(10)]
    for low, high in [(0, 4), (0, 6), (3, 5), (2, 10), (0, 10), (9, 10)]:
        aggregator(batch(records[low:high]), Context())
    assert count(tables, target) == {"like": 10}


def test_repeats_may_come_out_of_order(tables: Tables, aggregator: Any, target: Target) -> None:
    records = [record(target, "user", event) for event in ("INSERT", "REMOVE", "INSERT", "REMOVE", "INSERT")]
    aggregator(batch(records[:2]), Context())  # adds up to nothing, and must be remembered all the same
    aggregator(batch(records[1:2]), Context())
    aggregator(batch(records[:1]), Context())
    aggregator(batch(records[2:]), Context())
    aggregator(batch(records[3:4]), Context())
    assert count(tables, target) == {"like": 1}


def test_a_record_twice_within_one_batch_counts_once(tables: Tables, aggregator: Any, target: Target) -> None:
    records = [record(target, f"user-{n}") for n in range(4)]
    aggregator(batch(records + records[::-1]), Context())
    assert count(tables, target) == {"like": 4}


def test_lanes_count_side_by_side(tables: Tables, aggregator: Any, target: Target) -> None:
    lanes = [f"shardId-0000000157368984{n:04d}-864758bb" for n in range(100)]
    events = [batch([record(target, f"user-{n}-{m}") for m in range(2)], lane) for n, lane in enumerate(lanes)]
    random.Random(1).shuffle(events)
    for event in [*events, *events[::3]]:
        aggregator(event, Context())
    assert count(tables, target) == {"like": 200}


@pytest.mark.parametrize("known", [False, True], ids=["first fold into the row", "row known to the process"])
def test_a_reply_that_was_lost_after_the_write_landed_changes_nothing(
    tables: Tables, aggregator: Any, target: Target, *, known: bool
) -> None:
    if known:
        aggregator(batch([record(target, "before")]), Context())
    event = batch([record(target, f"user-{n}") for n in range(5)])
    with injected(wiring.dynamodb(), "BatchExecuteStatement", lost_replies(wiring.dynamodb(), 2)):
        aggregator(event, Context())
    assert count(tables, target) == {"like": 5 + known}


def test_a_function_that_dies_after_some_of_its_writes_is_completed(tables: Tables, aggregator: Any) -> None:
    targets = [new_target() for _ in range(80)]  # four batches of statements
    event = batch([record(target, "user") for target in targets])
    sent = iter(range(100))

    def dies(_request: Any) -> None:
        if next(sent) >= 2:
            raise KeyboardInterrupt

    with injected(wiring.dynamodb(), "BatchExecuteStatement", dies), pytest.raises(KeyboardInterrupt):
        aggregator(event, Context())
    aggregator(event, Context())
    assert [count(tables, target) for target in targets] == [{"like": 1}] * 80


def test_what_the_store_does_not_take_is_asked_for_again_from_its_first_record(tables: Tables, aggregator: Any) -> None:
    taken, refused = new_target(), new_target()
    records = [record(taken, "a"), record(refused, "b"), record(taken, "c"), record(refused, "d")]

    def throttles(*, parsed: dict[str, Any], **_: Any) -> None:
        for response, statement in zip(parsed["Responses"], sent[-1]["Statements"], strict=True):
            if refused.item_id in str(statement["Parameters"]):
                response["Error"] = {"Code": "ThrottlingError", "Message": "slow down"}

    sent: list[Any] = []

    def keeps_out(*, params: dict[str, Any], **_: Any) -> None:
        sent.append(dict(params))
        params["Statements"] = [
            {**one, "Statement": one["Statement"].replace("INSERT INTO", "SELECT FROM")}
            if refused.item_id in str(one["Parameters"])
            else one
            for one in params["Statements"]
        ]

    call = "dynamodb.BatchExecuteStatement"
    with hooked(wiring.dynamodb(), {f"before-parameter-build.{call}": keeps_out, f"after-call.{call}": throttles}):
        answer = aggregator(batch(records), Context(remaining_ms=5_200))
    assert answer["batchItemFailures"] == [{"itemIdentifier": records[1]["dynamodb"]["SequenceNumber"]}]
    aggregator(batch(records[1:]), Context())
    assert count(tables, taken) == count(tables, refused) == {"like": 2}


def test_garbage_in_a_batch_is_parked_and_the_rest_counted(
    tables: Tables, aggregator: Any, parked: Any, target: Target
) -> None:
    good = [record(target, f"user-{n}") for n in range(6)]
    garbage: list[Any] = [record(target, f"bad-{n}") for n in range(5)]
    del garbage[0]["dynamodb"]["Keys"]["sk"]
    garbage[1]["dynamodb"]["Keys"]["sk"]["S"] = "post#no-reaction"
    garbage[2]["eventName"] = "EXPLODE"
    garbage[3]["dynamodb"]["SequenceNumber"] = "12x"
    del garbage[4]["dynamodb"]
    mixed = [one for pair in zip(good, garbage, strict=False) for one in pair] + good[5:]
    for _ in range(2):
        assert aggregator(batch(mixed), Context())["batchItemFailures"] == []
    assert count(tables, target) == {"like": 6}
    left = parked()
    bodies = [json.loads(message["body"]) for message in left]
    assert len(bodies) == 10
    assert {body["reason"] for body in bodies} == {"unreadable"}
    assert [body["record"] for body in bodies[:5]] == garbage
    assert count(tables, target) == {"like": 6}


def test_a_record_that_the_next_version_understands_is_counted_once_from_the_queue(
    tables: Tables, aggregator: Any, parked: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.aggregation import Unreadable

    def does_not_understand(_record: Any) -> None:
        raise Unreadable("a later version's record")

    event = batch([record(target, "user")])
    with monkeypatch.context() as old_version:
        old_version.setitem(aggregator.__wrapped__.__globals__, "reader_of", lambda _lane_id: does_not_understand)
        aggregator(event, Context())
        aggregator(event, Context())
    aggregator(event, Context())
    assert count(tables, target) == {}
    assert parked(times=2) == []
    assert count(tables, target) == {"like": 1}


def test_old_records_are_counted_once_through_the_queue(
    tables: Tables, aggregator: Any, parked: Any, target: Target
) -> None:
    old = [record(target, f"old-{n}", age_s=40 * 3600) for n in range(3)]
    new = [record(target, f"new-{n}") for n in range(2)]
    for _ in range(2):
        aggregator(batch(old + new), Context())
    assert count(tables, target) == {"like": 2}
    assert parked(times=2) == []
    assert count(tables, target) == {"like": 5}


def test_old_records_that_were_counted_in_their_time_are_not_counted_again(
    tables: Tables, aggregator: Any, parked: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [record(target, f"user-{n}", age_s=40 * 3600) for n in range(4)]
    now = wiring.now_ms()
    monkeypatch.setattr(wiring, "now_ms", lambda: now - 39 * 3_600_000)
    aggregator(batch(records), Context())
    monkeypatch.setattr(wiring, "now_ms", lambda: now)
    aggregator(batch(records), Context())
    assert parked() == []
    assert count(tables, target) == {"like": 4}


def test_a_record_whose_mark_may_have_been_pruned_waits_for_a_person(
    tables: Tables, aggregator: Any, parked: Any, target: Target
) -> None:
    aggregator(batch([record(target, "user")]), Context())
    other_lane = next(
        lane for n in range(10_000)
        if wiring_row(lane := f"shardId-00000001573689847184-{n:08x}") == wiring_row(LANE) and lane != LANE
    )  # fmt: skip
    aggregator(batch([record(target, "ancient", age_s=50 * 3600)], other_lane), Context())
    (left,) = parked()
    assert json.loads(left["body"])["reason"] == "undecidable"
    assert count(tables, target) == {"like": 1}


def wiring_row(lane: str) -> int:
    from tallymark.fold import lane as lane_of

    return lane_of(lane, wiring.settings().counter_rows).row


def test_marks_that_nobody_needs_any_more_are_pruned_in_the_same_write(
    tables: Tables, aggregator: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTER_ROWS", "0:1")
    wiring.reset()
    now = wiring.now_ms()
    lanes = [f"shardId-00000001573689847184-{n:08x}" for n in range(30)]
    monkeypatch.setattr(wiring, "now_ms", lambda: now - 49 * 3_600_000)
    for lane in lanes:
        aggregator(batch([record(target, lane, age_s=49 * 3600)], lane), Context())
    monkeypatch.setattr(wiring, "now_ms", lambda: now)
    for n in range(5):
        aggregator(batch([record(target, f"now-{n}")]), Context())
    rows = tables.client.query(
        TableName=tables.outputs["CountersTable"],
        KeyConditionExpression="pk = :pk AND begins_with(sk, :likes)",
        ExpressionAttributeValues={":pk": {"S": f"post#{target.item_id}"}, ":likes": {"S": "like#"}},
    )["Items"]
    marks = [name for name in rows[0] if name.startswith("@")]
    assert len(rows) == 1
    assert len(marks) == 1
    assert count(tables, target) == {"like": 35}


def test_a_batch_without_a_shard_id_counts_nothing(tables: Tables, aggregator: Any, target: Target) -> None:
    event = batch([record(target, "user")])
    del event["shardId"]
    with pytest.raises(LaneUnknown, match="shardId"):
        aggregator(event, Context())
    assert count(tables, target) == {}


def test_the_final_call_of_a_window_may_hold_no_records(aggregator: Any) -> None:
    event = {**batch([]), "state": {"kept": 1}, "isFinalInvokeForWindow": True}
    assert aggregator(event, Context()) == {"state": {"kept": 1}, "batchItemFailures": []}


def test_an_error_that_will_not_pass_fails_the_batch(tables: Tables, aggregator: Any, target: Target) -> None:
    def refuses(_request: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "BatchExecuteStatement")

    with injected(wiring.dynamodb(), "BatchExecuteStatement", refuses), pytest.raises(HandlerFailed, match="AccessDen"):
        aggregator(batch([record(target, "user")]), Context())


class Crash(BaseException):
    """The function dies: nothing catches it."""


class Delivery:
    """One made-up history of likes over lanes, and a poller that delivers it badly but in the end."""

    def __init__(self, seed: int, lanes: int, likes: int) -> None:
        self._rng = random.Random(seed)
        self.targets = [new_target() for _ in range(3)]
        self.truth: Tally[Target] = Tally(dict.fromkeys(self.targets, 0))
        self._streams: list[list[dict[str, Any]]] = [[] for _ in range(lanes)]
        liked: set[tuple[int, Target]] = set()
        for _ in range(likes):
            user, target = self._rng.randrange(20), self._rng.choice(self.targets)
            event = "REMOVE" if (user, target) in liked else "INSERT"
            liked ^= {(user, target)}
            self.truth[target] += 1 if event == "INSERT" else -1
            self._streams[user % lanes].append(record(target, f"user-{user}", event))
        self._done = [0] * lanes

    def run(self, handler: Any) -> None:
        """Delivers until every record was in a batch that succeeded."""
        while left := [n for n, stream in enumerate(self._streams) if self._done[n] < len(stream)]:
            lane = self._rng.choice(left)
            low = self._rng.randint(0, self._done[lane]) if self._rng.random() < 0.3 else self._done[lane]
            high = min(len(self._streams[lane]), low + self._rng.randint(1, 15))
            event = batch(self._streams[lane][low:high], f"shardId-0000000157368984718{lane}-864758bb")
            if self._deliver(handler, event):
                self._done[lane] = max(self._done[lane], high)

    def _deliver(self, handler: Any, event: dict[str, Any]) -> bool:
        client, sent = wiring.dynamodb(), iter(range(10_000))
        fatal, lands = self._rng.randrange(12), self._rng.random() < 0.5

        def fault(request: Any) -> None:
            if next(sent) == fatal:
                if lands:
                    client._endpoint.http_session.send(request)
                raise Crash

        try:
            with injected(client, "*", fault):
                return bool(handler(event, Context())["batchItemFailures"] == [])
        except Crash:
            if self._rng.random() < 0.3:
                wiring.reset()  # the next try runs in a new process
            return False


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(seed=st.integers(0, 2**32), lanes=st.integers(1, 3), likes=st.integers(1, 60))
def test_counts_equal_the_records_under_any_delivery(tables: Tables, seed: int, lanes: int, likes: int) -> None:
    """Batches cut anew, repeated and overlapping; crashes between writes; replies lost; new processes."""
    wiring.reset()
    delivery = Delivery(seed, lanes, likes)
    delivery.run(function("aggregator").handler)
    wiring.reset()
    counted = {target: tables.counters.count(target, consistent=True).total for target in delivery.targets}
    assert counted == dict(delivery.truth)


def test_marks_keep_the_order_of_sequence_numbers_of_any_length() -> None:
    numbers = [0, 9, 10, 10**20, 10**21 - 1, 10**21, 10**39, 10**40 - 1]
    packed = [counter_table.pack_mark(Mark(n, 2**32 - 1 - i)) for i, n in enumerate(numbers)]
    assert packed == sorted(packed)
    assert [counter_table.unpack_mark(p).sequence for p in packed] == numbers
