"""The reconciler over real tables and their real stream: what it finds, what it corrects, what it leaves alone."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from infra.local.emulator import Emulator
from infra.local.mapping import DynamoDBStream
from tallymark import likes
from tallymark.aggregation import Parked
from tallymark.errors import InvalidRequest
from tallymark.model import LikeKey, Target
from tallymark.runtime import wiring
from tallymark.storage import keys
from tallymark.storage.parked_queue import to_message
from tests.bench.events import function
from tests.hooks import hooked
from tests.integration.conftest import Tables, deployed_as, environment_of, new_target, tables_of
from tests.integration.streams import Context, batch, record

Answer = dict[str, Any]


class Feed:
    """Hands the stream's new records to the aggregator when it is told to."""

    def __init__(self, stream: DynamoDBStream) -> None:
        self._stream = stream
        (self._shard,) = stream.shards()
        self._iterator: str | None = stream.iterator(self._shard.shard_id, None, "LATEST")

    def __call__(self, withhold: Callable[[Any], bool] = lambda _: False) -> list[Any]:
        """Delivers all but what is withheld, which is returned."""
        records: list[Any] = []
        while self._iterator and (page := self._stream.read(self._iterator)).records:
            records += page.records
            self._iterator = page.next_iterator
        kept = [r for r in records if withhold(r)]
        self.deliver([r for r in records if not withhold(r)])
        return kept

    def deliver(self, records: list[Any]) -> None:
        if records:
            function("aggregator").handler(batch(records, self._shard.shard_id), Context())


@pytest.fixture(scope="module")
def outputs(emulator: Emulator) -> dict[str, str]:
    """Of a stack of its own: a run looks at everything that other tests left."""
    return deployed_as("reconciler-tests", emulator)


@pytest.fixture(scope="module")
def tables(emulator: Emulator, outputs: dict[str, str]) -> Iterator[Tables]:
    with environment_of("reconciler-tests", emulator):
        yield tables_of(outputs)


@pytest.fixture
def feed(tables: Tables) -> Feed:
    return Feed(DynamoDBStream(boto3.client("dynamodbstreams"), tables.outputs["LikesStreamArn"]))


@pytest.fixture
def reconciler(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The handler, without waits; both queues are empty."""
    wiring.reset()
    for queue in ("ParkedQueueUrl", "ParkedDeadQueueUrl"):
        boto3.client("sqs").purge_queue(QueueUrl=tables.outputs[queue])
    handler = function("reconciler").handler
    for pause in ("SETTLE_S", "SETTLE_TO_REPAIR_S"):
        monkeypatch.setitem(_globals(handler), pause, 0.0)
    yield handler
    wiring.reset()


def _globals(handler: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(handler, "__wrapped__", handler).__globals__
    return found


def item(reconciler: Any, target: Target, **options: Any) -> Answer:
    answer: Answer = reconciler({"item": {"item_type": "post", "item_id": target.item_id}, **options}, Context())
    return answer


def everything(reconciler: Any, **options: Any) -> Answer:
    """All pieces of a full run, put together."""
    whole: Answer = {"found": [], "open": [], "checked": 0}
    cursor = None
    while True:
        piece = reconciler({"all": True, "cursor": cursor, **options}, Context(900_000))
        whole = {name: whole[name] + piece[name] for name in whole}
        cursor = piece["cursor"]
        if cursor is None:
            return whole


def of(targets: list[Target], entries: list[Answer]) -> dict[str, Answer]:
    """Those entries that are about the targets, by item id."""
    wanted = {target.item_id for target in targets}
    return {entry["item_id"]: entry for entry in entries if entry["item_id"] in wanted}


def like(tables: Tables, target: Target, users: int, reaction: str = "like") -> None:
    for n in range(users):
        likes.like(tables.likes, LikeKey(f"user-{n}", target, reaction), at_ms=n)


def spoil(tables: Tables, target: Target, by: int, reaction: str = "like") -> None:
    """Makes a count wrong by hand, in the row that the aggregator wrote or in a new one."""
    row = f"like#{reaction}#000"
    for stored in tables.client.query(
        TableName=tables.outputs["CountersTable"],
        KeyConditionExpression="pk = :target",
        ExpressionAttributeValues={":target": {"S": keys.target_key(target)}},
    )["Items"]:
        if stored["sk"]["S"].startswith(f"like#{reaction}#"):
            row = stored["sk"]["S"]
    tables.client.update_item(
        TableName=tables.outputs["CountersTable"],
        Key={"pk": {"S": keys.target_key(target)}, "sk": {"S": row}},
        UpdateExpression="ADD n :by",
        ExpressionAttributeValues={":by": {"N": str(by)}},
    )


def count(tables: Tables, target: Target) -> dict[str, int]:
    return tables.counters.count(target, consistent=True).by_reaction


# --- one item ---------------------------------------------------------------------------------------------------


def test_an_exact_count_is_exact(tables: Tables, feed: Feed, reconciler: Any, target: Target) -> None:
    like(tables, target, 3)
    like(tables, target, 2, "👍")
    feed()
    found = item(reconciler, target, repair=True)
    assert found["counted"] == found["recorded"] == {"like": 3, "👍": 2}
    assert (found["verdict"], found["drift"], found["repair_refused"]) == ("exact", {}, None)


@pytest.mark.parametrize("by", [2, -3, -1])
def test_drift_is_reported_and_left_as_it_is(
    tables: Tables, feed: Feed, reconciler: Any, target: Target, by: int
) -> None:
    like(tables, target, 3)
    feed()
    spoil(tables, target, by)
    for _ in range(2):
        found = item(reconciler, target)
        assert (found["verdict"], found["drift"], found["repaired"]) == ("drift", {"like": by}, False)
    assert count(tables, target) == {"like": 3 + by}


def test_drift_is_corrected_on_request_by_an_addition_of_its_own(
    tables: Tables, feed: Feed, reconciler: Any, target: Target
) -> None:
    like(tables, target, 3)
    like(tables, target, 1, "👍")
    feed()
    spoil(tables, target, 5)
    spoil(tables, target, -1, "👍")
    spoil(tables, target, 2, "heart")
    assert item(reconciler, target, repair=True)["repaired"]
    assert item(reconciler, target, repair=True)["verdict"] == "exact"
    assert count(tables, target) == {"like": 3, "👍": 1, "heart": 0}
    like(tables, target, 5)
    feed()
    assert count(tables, target)["like"] == 5
    spoil(tables, target, 1)  # a second correction, to an adjustment row that is there
    assert item(reconciler, target, repair=True)["repaired"]
    assert count(tables, target)["like"] == 5


def test_since_is_the_first_time_that_it_was_found_and_is_forgotten_when_it_is_right(
    tables: Tables, feed: Feed, reconciler: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = wiring.now_ms()
    spoil(tables, target, 1)
    seen = []
    for later_s, repair in [(0, False), (100, False), (200, True), (300, False), (400, False)]:
        monkeypatch.setattr(wiring, "now_ms", lambda later_s=later_s: now // 1000 * 1000 + later_s * 1000)
        seen.append(item(reconciler, target, repair=repair).get("since"))
        if later_s == 300:
            spoil(tables, target, 1)
    assert seen[0] == seen[1] == seen[2]
    assert seen[3] is None
    assert str(seen[4]) > str(seen[0])


def test_a_like_on_its_way_through_the_stream_is_no_drift_however_long_it_takes(
    tables: Tables, feed: Feed, reconciler: Any, target: Target
) -> None:
    like(tables, target, 2)
    assert item(reconciler, target, repair=True)["verdict"] == "pending"
    feed()
    assert item(reconciler, target, repair=True)["verdict"] == "exact"
    likes.unlike(tables.likes, LikeKey("user-0", target))
    assert item(reconciler, target, repair=True)["verdict"] == "pending"
    feed()
    assert count(tables, target) == {"like": 1}


def test_drift_below_what_is_on_its_way_waits_for_it(
    tables: Tables, feed: Feed, reconciler: Any, target: Target
) -> None:
    like(tables, target, 2)
    feed()
    spoil(tables, target, 7)
    like(tables, target, 3)
    assert item(reconciler, target, repair=True)["verdict"] == "pending"
    feed()
    assert item(reconciler, target, repair=True)["repaired"]
    assert count(tables, target) == {"like": 3}


def test_an_item_that_moves_between_the_looks_is_left_alone(
    tables: Tables, feed: Feed, reconciler: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(tables, target, 7)
    users = itertools.count()
    touched = _globals(reconciler)["_touched"]

    def moving(*asked: Any) -> Any:
        said = touched(*asked)
        likes.like(tables.likes, LikeKey(f"user-{next(users)}", target), at_ms=1)
        feed()
        return said

    monkeypatch.setitem(_globals(reconciler), "_touched", moving)
    assert item(reconciler, target, repair=True)["verdict"] == "moving"
    assert count(tables, target) == {"like": 7 + next(users)}


def test_a_like_that_the_index_does_not_show_yet_is_no_drift(
    tables: Tables, feed: Feed, reconciler: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that it still shows. The index answers as it did before the last write."""
    for change in (lambda: like(tables, target, 3), lambda: likes.unlike(tables.likes, LikeKey("user-0", target))):
        before = list(tables.likes.everyone(target))
        change()
        feed()
        with monkeypatch.context() as behind:
            behind.setattr(type(tables.likes), "everyone", lambda _self, _target, before=before: iter(before))
            assert item(reconciler, target, repair=True)["verdict"] == "unindexed"
    assert count(tables, target) == {"like": 2}


def test_a_parked_record_is_waited_for(tables: Tables, feed: Feed, reconciler: Any, target: Target) -> None:
    spoil(tables, target, -1)
    like(tables, target, 1)
    feed()
    sqs, url = boto3.client("sqs"), tables.outputs["ParkedQueueUrl"]
    waiting = Parked("unreadable", "some lane", record(target, "user-0"))
    sqs.send_message(QueueUrl=url, MessageBody=to_message(waiting))
    assert item(reconciler, target, repair=True)["verdict"] == "pending"
    sqs.purge_queue(QueueUrl=url)
    assert item(reconciler, target)["verdict"] == "drift"


def test_a_record_that_dies_while_a_run_goes_on_stops_the_correction(
    tables: Tables, reconciler: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(tables, target, 1)
    sqs, url = boto3.client("sqs"), tables.outputs["ParkedDeadQueueUrl"]
    touched = _globals(reconciler)["_touched"]

    def dying(*asked: Any) -> Any:
        sqs.send_message(QueueUrl=url, MessageBody="{}")
        return touched(*asked)

    monkeypatch.setitem(_globals(reconciler), "_touched", dying)
    assert item(reconciler, target, repair=True)["verdict"] == "pending"
    assert count(tables, target) == {"like": 1}


def test_nothing_is_corrected_while_a_record_lies_in_the_dead_queue(
    tables: Tables, reconciler: Any, target: Target
) -> None:
    spoil(tables, target, 1)
    sqs, url = boto3.client("sqs"), tables.outputs["ParkedDeadQueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="{}")
    found = item(reconciler, target, repair=True)
    assert (found["verdict"], found["repaired"]) == ("drift", False)
    assert "1 parked records lie in the dead queue" in found["repair_refused"]
    assert count(tables, target) == {"like": 1}
    sqs.purge_queue(QueueUrl=url)
    assert item(reconciler, target, repair=True)["repair_refused"] is None


def test_two_that_correct_the_same_at_once_correct_it_once(
    tables: Tables, feed: Feed, reconciler: Any, target: Target
) -> None:
    like(tables, target, 3)
    feed()
    spoil(tables, target, 4)
    together = threading.Barrier(4)
    answers: list[Answer] = []

    def repair() -> None:
        together.wait()
        answers.append(item(reconciler, target, repair=True))

    threads = [threading.Thread(target=repair) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(tables, target) == {"like": 3}
    assert sum(answer.get("repaired", False) for answer in answers) == 1


@pytest.mark.parametrize(
    "event", [{}, {"item": "post/1"}, {"item": {}}, {"all": "yes"}, {"all": True, "cursor": "counted.x"}]
)
def test_it_says_what_it_wants(tables: Tables, reconciler: Any, event: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        reconciler(event, Context())


# --- all items --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.reconciliation.PIECE_TARGETS", 5)
    monkeypatch.setattr("tallymark.storage.audit._PAGE_ITEMS", 7)


@pytest.mark.usefixtures("small_pieces")
def test_a_full_run_finds_each_item_that_is_wrong_and_no_other(tables: Tables, feed: Feed, reconciler: Any) -> None:
    targets = [new_target() for _ in range(30)]
    for target in targets:
        like(tables, target, 2)
        like(tables, target, 1, "👍")
    feed()
    wrong = targets[::7]
    for target in wrong:
        spoil(tables, target, 3)
    lost = new_target()  # liked, and counted nowhere
    like(tables, lost, 2)
    feed(withhold=lambda r: r["dynamodb"]["Keys"]["sk"]["S"].startswith(keys.target_key(lost)))
    found = everything(reconciler)
    assert {i: entry["drift"] for i, entry in of(targets, found["found"]).items()} == {
        target.item_id: {"like": 3} for target in wrong
    }
    assert of([*targets, lost], found["open"]).keys() == {lost.item_id}  # still in the stream
    assert set(of(targets, everything(reconciler, repair=True)["found"])) == {target.item_id for target in wrong}
    assert of(targets, everything(reconciler)["found"]) == {}
    assert all(count(tables, target) == {"like": 2, "👍": 1} for target in targets)


class Died(BaseException):
    """The function ended where it stood."""


@contextmanager
def dying(client: Any, moment: str, calls: int) -> Iterator[None]:
    """The function dies at that moment of a call to the store, after so many that went well."""
    left = iter(range(calls))

    def dies(**_: Any) -> None:
        if next(left, None) is None:
            raise Died

    with hooked(client, {moment: dies}):
        yield


@pytest.mark.parametrize("moment", ["before-send.dynamodb", "needs-retry.dynamodb"], ids=["before", "after"])
def test_a_run_that_dies_at_any_call_and_starts_again_ends_right(
    tables: Tables, feed: Feed, reconciler: Any, moment: str
) -> None:
    targets = [new_target() for _ in range(4)]
    for target in targets:
        like(tables, target, 2)
    feed()
    for target in targets:
        spoil(tables, target, -1)
    deaths = 0
    for calls in itertools.count():
        try:
            with dying(wiring.dynamodb(), moment, calls):
                for target in targets:
                    item(reconciler, target, repair=True)
            break
        except Died:
            deaths += 1
    assert deaths > 10
    assert all(count(tables, target) == {"like": 2} for target in targets)


def test_a_walk_stops_when_time_is_over_though_it_found_nothing_to_look_at(
    tables: Tables, reconciler: Any, small_pieces: None
) -> None:
    """Each call reads a page at least, so that it gets on, and no more than its time allows."""
    cursor, calls = None, 0
    while cursor is not None or not calls:
        cursor = reconciler({"all": True, "cursor": cursor, "seconds": 1000}, Context(remaining_ms=0))["cursor"]
        calls += 1
    assert calls > 3


# --- the scheduled run ------------------------------------------------------------------------------------------


def scheduled(reconciler: Any, remaining_ms: int = 900_000) -> Answer:
    run: Answer = reconciler({"scheduled": True}, Context(remaining_ms))
    return run


@pytest.mark.usefixtures("small_pieces")
def test_the_scheduled_run_passes_over_what_it_found_right_and_has_not_changed(
    tables: Tables, feed: Feed, reconciler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = wiring.now_ms()
    day = itertools.count()
    looked_at: list[str] = []
    look = _globals(reconciler)["reconciliation"].look

    def noting(books: Any, target: Target, *more: Any) -> Any:
        looked_at.append(target.item_id)
        return look(books, target, *more)

    monkeypatch.setattr(_globals(reconciler)["reconciliation"], "look", noting)

    def next_day() -> Answer:
        offset = (1 + next(day)) * 86_400_000
        monkeypatch.setattr(wiring, "now_ms", lambda: now + offset)
        looked_at.clear()
        return scheduled(reconciler)

    quiet, busy, spoilt = (new_target() for _ in range(3))
    for target in (quiet, busy, spoilt):
        like(tables, target, 2)
    feed()
    next_day()
    assert {quiet.item_id, busy.item_id, spoilt.item_id} <= set(looked_at)
    like(tables, busy, 3)
    feed()
    spoil(tables, spoilt, 1)
    run = next_day()
    assert quiet.item_id not in looked_at
    assert {busy.item_id, spoilt.item_id} <= set(looked_at)
    assert of([quiet, busy, spoilt], run["found"]).keys() == {spoilt.item_id}
    assert count(tables, spoilt) == {"like": 3}  # reported, not corrected
    assert next_day()["drift"] >= 1  # and reported again: what is wrong is never taken for verified
    assert spoilt.item_id in looked_at


@pytest.mark.usefixtures("small_pieces")
def test_the_scheduled_run_goes_on_where_it_stood_and_then_rests_for_a_day(
    tables: Tables, feed: Feed, reconciler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [new_target() for _ in range(20)]
    for target in targets:
        like(tables, target, 1)
    feed()
    now = wiring.now_ms() + 40 * 86_400_000  # no verification is young enough
    monkeypatch.setattr(wiring, "now_ms", lambda: now)
    pieces = []
    for _ in range(1000):
        remaining = iter([900_000, 900_000])
        context = SimpleNamespace(get_remaining_time_in_millis=lambda remaining=remaining: next(remaining, 0))
        pieces.append(reconciler({"scheduled": True}, context))
        if pieces[-1].get("done_s"):
            break
    assert len(pieces) > 3
    assert [piece["checked"] for piece in pieces] == sorted(piece["checked"] for piece in pieces)
    assert pieces[-1]["checked"] >= 20
    assert pieces[-1]["full_s"] == now // 1000
    assert scheduled(reconciler) == pieces[-1] == json.loads(json.dumps(reconciler({"report": True}, Context())))
    monkeypatch.setattr(wiring, "now_ms", lambda: now + 86_400_000)
    assert scheduled(reconciler)["started_s"] > pieces[-1]["started_s"]
