"""Top lists and hot items over the real engine: from the aggregator's handler to the readers'."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tallymark import lists
from tallymark.events import Viewed, ViewEvent
from tallymark.fold import Lane
from tallymark.hot import LikerBuckets
from tallymark.model import MS_PER_HOUR, Like, LikeKey, Stamp, Target
from tallymark.runtime import wiring
from tallymark.sketch import Summary
from tallymark.storage.event_stream import item_of
from tallymark.storage.keys import BUCKETS
from tallymark.storage.like_table import LikeTable
from tallymark.storage.top_table import HotTable, TopTable
from tallymark.top import KEPT, MOST_GROUPS, NOTHING, ListKey, Stored
from tests.bench.events import function, http_event
from tests.integration.conftest import Tables, new_target
from tests.integration.streams import LANE, Context, batch, injected, record

OTHER_LANE = "shardId-00000001573689847185-00000002"
EVENTS_ARN = "arn:aws:dynamodb:us-east-1:000000000000:table/{}/stream/now"
DAY_MS = 24 * MS_PER_HOUR


@pytest.fixture
def kind() -> str:
    """An item type that no other test uses."""
    return f"k{uuid.uuid4().hex[:12]}"


@pytest.fixture
def aggregator(tables: Tables) -> Iterator[Any]:
    """The handler as in a new process."""
    wiring.reset()
    yield function("aggregator").handler
    wiring.reset()


def like(aggregator: Any, *named: tuple[Target, int], lane: str = LANE) -> None:
    records = [record(target, f"user-{uuid.uuid4()}") for target, number in named for _ in range(number)]
    aggregator(batch(records, lane), Context())


def view(tables: Tables, aggregator: Any, at_ms: int, *named: tuple[Target, int]) -> None:
    """What the stream of events has of views at a moment, bots beside them."""
    image = item_of(ViewEvent(at_ms, uuid.uuid4().hex, tuple(Viewed(target, n, 100) for target, n in named)))
    made = record(new_target(), "nobody")
    made |= {"eventSourceARN": EVENTS_ARN.format(tables.outputs["EventsTable"])}
    made["dynamodb"] |= {"Keys": {"pk": image["pk"]}, "NewImage": image, "ApproximateCreationDateTime": at_ms / 1000}
    aggregator(batch([made]), Context())


def answer(query: str) -> dict[str, Any]:
    """The read function's, as in a new process."""
    wiring.reset()
    answered = function("read_api").app(http_event("GET", "/v1/top", query=query), None)
    assert answered["statusCode"] == 200, answered
    made: dict[str, Any] = json.loads(answered["body"])
    return made


def top(query: str) -> dict[str, int]:
    """Item -> number, in order, of an answer that is proven."""
    answered = answer(query)
    assert answered["approximate"] is False
    return {entry["item_id"]: entry["count"] for entry in answered["top"]}


def fails(_request: Any) -> None:
    raise ConnectionClosedError(endpoint_url="made up")


# --- top lists --------------------------------------------------------------------------------------------------


def test_what_was_liked_is_in_every_window_at_once(aggregator: Any, kind: str) -> None:
    like(aggregator, (Target(kind, "a"), 2), (Target(kind, "b#1"), 3), (Target(kind, "c"), 1))
    for window in ("1h", "24h", "7d", "all"):
        assert top(f"item_type={kind}&window={window}") == {"b#1": 3, "a": 2, "c": 1}
    assert top(f"item_type={kind}&limit=1") == {"b#1": 3}
    assert top(f"item_type={kind}&metric=views") == {}


def test_what_is_taken_back_goes_down_and_out(aggregator: Any, kind: str) -> None:
    first, second = Target(kind, "first"), Target(kind, "second")
    like(aggregator, (first, 3), (second, 2))
    aggregator(batch([record(first, f"user-{n}", "REMOVE") for n in range(2)]), Context())
    assert top(f"item_type={kind}") == {"second": 2, "first": 1}
    aggregator(batch([record(first, "user", "REMOVE")]), Context())
    assert top(f"item_type={kind}") == {"second": 2}


def test_a_batch_that_comes_again_changes_no_number(aggregator: Any, kind: str) -> None:
    event = batch([record(Target(kind, "a"), f"user-{n}") for n in range(3)])
    for _ in range(3):
        aggregator(event, Context())
    assert top(f"item_type={kind}") == {"a": 3}


def test_two_lanes_and_new_processes_add_up(aggregator: Any, kind: str) -> None:
    a, b = Target(kind, "a"), Target(kind, "b")
    like(aggregator, (a, 5), (b, 4))
    like(aggregator, (b, 3), lane=OTHER_LANE)
    wiring.reset()
    like(aggregator, (a, 1), (Target(kind, "c"), 1))
    assert top(f"item_type={kind}") == {"b": 7, "a": 6, "c": 1}


def test_processes_that_keep_one_list_by_turns_lose_nothing(
    tables: Tables, aggregator: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "SLOTS", 1)
    built: list[dict[str, Any]] = [{}, {}]
    for turn in range(6):
        wiring.reset()
        wiring._built.update(built[turn % 2])
        like(aggregator, *((Target(kind, str(n)), turn + 1) for n in range(turn + 1)))
        built[turn % 2] = dict(wiring._built)
    assert top(f"item_type={kind}") == {str(n): sum(range(n + 1, 7)) for n in range(6)}


def test_likes_of_a_quiet_item_whose_process_ends_after_each_are_in_the_list(aggregator: Any, kind: str) -> None:
    like(aggregator, *((Target(kind, f"other-{n}"), 20) for n in range(16)))
    for _ in range(30):
        wiring.reset()
        like(aggregator, (Target(kind, "first"), 1))
    assert top(f"item_type={kind}&limit=1") == {"first": 30}


def test_items_of_types_beyond_the_heaviest_of_a_batch_are_in_the_list_of_their_type(
    aggregator: Any, kind: str
) -> None:
    like(aggregator, *((Target(f"{kind}-{n}", "busy"), 3) for n in range(MOST_GROUPS)), (Target(kind, "calm"), 2))
    like(aggregator, (Target(kind, "also"), 1))
    assert top(f"item_type={kind}") == {"calm": 2, "also": 1}
    assert top(f"item_type={kind}-0") == {"busy": 3}


def test_lists_of_all_types_hold_each(aggregator: Any, kind: str) -> None:
    like(aggregator, (Target(f"{kind}-x", "many"), 300), (Target(f"{kind}-y", "more"), 400))
    entries = answer("limit=2")["top"]
    assert [(entry["item_type"], entry["count"]) for entry in entries] == [(f"{kind}-y", 400), (f"{kind}-x", 300)]


def test_windows_move_with_the_clock(
    tables: Tables, aggregator: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = (wiring.now_ms() // DAY_MS) * DAY_MS + 12 * MS_PER_HOUR + 5
    ages = {"now": 0, "hour": MS_PER_HOUR, "hours": 2 * MS_PER_HOUR, "day": DAY_MS, "days": 26 * MS_PER_HOUR}
    ages |= {"week": 7 * DAY_MS, "weeks": 8 * DAY_MS}
    for place, (name, age_ms) in enumerate(sorted(ages.items(), key=lambda entry: -entry[1])):
        monkeypatch.setattr(wiring, "now_ms", lambda at_ms=now_ms - age_ms: at_ms)
        view(tables, aggregator, now_ms - age_ms, (Target(kind, name), place + 1))
    monkeypatch.setattr(wiring, "now_ms", lambda: now_ms)
    asked = f"item_type={kind}&metric=views&window="
    assert list(top(f"{asked}1h")) == ["now", "hour"]
    assert list(top(f"{asked}24h")) == ["now", "hour", "hours", "day"]
    assert list(top(f"{asked}7d")) == ["now", "hour", "hours", "day", "days", "week"]
    assert list(top(f"{asked}all")) == ["now", "hour", "hours", "day", "days", "week", "weeks"]
    monkeypatch.setattr(wiring, "now_ms", lambda: now_ms + MS_PER_HOUR)
    assert list(top(f"{asked}1h")) == ["now"]
    assert list(top(f"{asked}24h")) == ["now", "hour", "hours"]


def test_more_items_than_a_list_keeps_leave_the_first_right(aggregator: Any, kind: str) -> None:
    heavy = [(Target(kind, f"heavy-{n}"), 40 + n) for n in range(12)]
    for begin in range(0, 3 * KEPT, KEPT):
        like(aggregator, *((Target(kind, f"light-{begin + n}"), 1) for n in range(KEPT)), *heavy[begin // KEPT :: 3])
    found = answer(f"item_type={kind}")
    assert found["approximate"] is False, "forty is more than any that is not in the list can have"
    assert [entry["item_id"] for entry in found["top"]] == [f"heavy-{n}" for n in range(11, 1, -1)]
    assert answer(f"item_type={kind}&limit=100")["approximate"] is True


def test_a_list_that_cannot_be_written_or_read_fails_no_batch(
    tables: Tables, aggregator: Any, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target(kind, "a")
    with injected(wiring.dynamodb(), "PutItem", fails):
        like(aggregator, (target, 3))
    assert tables.counters.count(target, consistent=True).total == 3
    assert '"TopListsFailed":[1.0]' in capsys.readouterr().out
    wiring.top_lists()._rests_until_ms = 0
    like(aggregator, (target, 1))
    assert top(f"item_type={kind}") == {"a": 4}, "what was not stored at first is stored with the next"


def test_a_function_that_has_little_time_left_counts_and_answers(tables: Tables, aggregator: Any, kind: str) -> None:
    aggregator(batch([record(Target(kind, "a"), "user")]), Context(remaining_ms=15_000))
    assert tables.counters.count(Target(kind, "a"), consistent=True).total == 1
    assert top(f"item_type={kind}") == {}


def test_a_list_whose_reply_was_lost_is_ones_own(tables: Tables, kind: str) -> None:
    table = TopTable(tables.client, tables.outputs["CountersTable"], ThreadPoolExecutor(2))
    place = (ListKey("likes", kind, "all", 0), 0)
    first = Stored(Summary({Target(kind, "é#1"): 5}, 2), b"first")
    assert table.save([(place, first, NOTHING)]) == [first]
    assert table.save([(place, first, NOTHING)]) == [first]
    second = Stored(Summary({}, 9), b"second")
    assert table.save([(place, second, NOTHING)]) == [first], "somebody else's stays"
    assert table.save([(place, second, first)]) == [second]
    assert table.load([place, (place[0], 1)]) == [second, NOTHING]
    assert table.between("likes", kind, "all", 0, 0) == [second.summary]
    gone = (place[0], 7)
    assert table.save([(gone, second, first)]) == [NOTHING], "what was known has expired"


def test_the_longest_list_there_can_be_fits_into_an_item(tables: Tables) -> None:
    kind = "k" * 32
    bounds = {
        Target(kind, f"{n:04d}" + "".join(chr(0x10000 + (n * 67 + m * 7919) % 60_000) for m in range(63))): 2**53
        for n in range(KEPT)
    }
    stored = Stored(Summary(bounds, 2**53), b"v")
    table = TopTable(tables.client, tables.outputs["CountersTable"], ThreadPoolExecutor(2))
    place = (ListKey("views", kind, "day", 20_000), 15)
    assert table.save([(place, stored, NOTHING)]) == [stored]
    assert table.load([place]) == [stored]


# --- hot items --------------------------------------------------------------------------------------------------


@pytest.fixture
def hot(tables: Tables) -> HotTable:
    return HotTable(tables.client, tables.outputs["CountersTable"])


def likers(tables: Tables, buckets: LikerBuckets, target: Target) -> set[str]:
    """All of an item's likers, page by page."""
    found: set[str] = set()
    before = None
    while True:
        page = lists.likers_of(
            tables.likes, target, reaction=None, before=before, limit=30, buckets=buckets.ever(target),
            executor=ThreadPoolExecutor(8),
        )  # fmt: skip
        found |= {like.key.user_id for like in page.likes}
        if page.resume is None:
            return found
        before = page.resume


def test_a_hot_item_spreads_its_likers_and_nobody_is_lost(tables: Tables, hot: HotTable, aggregator: Any) -> None:
    target = new_target()
    now_s = int(time.time())
    buckets = LikerBuckets(1, lambda t: hot.buckets(now_s).get(t, 0), hot.widest)
    table = LikeTable(tables.client, tables.outputs["LikesTable"], ThreadPoolExecutor(8), buckets)

    def write(first: int, last: int) -> None:
        writes = [Like(LikeKey(f"user-{n:03d}", target), Stamp.at(1_000 + n)) for n in range(first, last)]
        assert all(table.write_many(writes))

    write(0, 50)
    assert (buckets.now(target), buckets.ever(target)) == (1, 1)
    like(aggregator, (target, 700))  # in one second, or two
    assert buckets.now(target) in (4, 8)
    assert buckets.ever(target) == buckets.now(target)
    write(50, 100)
    spread = [len(table.of_target(target, n, None, None, 100).likes) for n in range(buckets.ever(target))]
    assert sum(spread) == 100
    assert min(spread) > 0
    assert len(likers(tables, buckets, target)) == 100
    assert table.delete(LikeKey("user-001", target)), "one that was made when there was one bucket"
    assert table.put(Like(LikeKey("user-002", target), Stamp.at(9))).stamp.ms == 1_002, "and one that is repeated"
    now_s += 120
    assert (buckets.now(target), buckets.ever(target) > 1) == (1, True), "it cools down, its likers stay"
    write(100, 110)
    assert len(likers(tables, buckets, target)) == 109
    assert len(list(table.everyone(target))) == 109


def test_the_reconciler_sees_every_bucket(tables: Tables, hot: HotTable, aggregator: Any) -> None:
    target = new_target()
    hot.widen(target, 8)
    table = LikeTable(tables.client, tables.outputs["LikesTable"], ThreadPoolExecutor(8), LikerBuckets(8))
    table.write_many([Like(LikeKey(f"user-{n}", target), Stamp.at(n)) for n in range(40)])
    aggregator(batch([record(target, f"user-{n}") for n in range(40)]), Context())
    event = {"item": {"item_type": target.item_type, "item_id": target.item_id}}
    verdict = function("reconciler").handler(event, Context())
    assert (verdict["verdict"], verdict["recorded"]) == ("exact", {"like": 40})


def test_the_functions_themselves_write_and_read_by_what_is_hot(tables: Tables, hot: HotTable) -> None:
    target = new_target()
    hot.widen(target, 4)
    hot.announce(target, 4, int(time.time()))
    wiring.reset()
    write, read = function("write_api").app, function("read_api").app
    wiring.hot_items().buckets(target)
    wiring.executor().submit(lambda: None).result()
    for n in range(20):
        body = {"user_id": f"user-{n}", "item_type": target.item_type, "item_id": target.item_id}
        assert write(http_event("POST", "/v1/like", body), None)["statusCode"] == 200
    in_first = tables.likes.of_target(target, 0, None, None, 100).likes
    assert 0 < len(in_first) < 20
    event = http_event("GET", "/v1/items/post/x/likers", query="limit=100")
    event |= {
        "routeKey": "GET /v1/items/{item_type}/{item_id}/likers",
        "rawPath": f"/v1/items/post/{target.item_id}/likers",
    }
    event["pathParameters"] = {"item_type": "post", "item_id": target.item_id}
    assert len(json.loads(read(event, None)["body"])["likers"]) == 20
    wiring.reset()


def test_buckets_are_never_lowered(hot: HotTable) -> None:
    target = new_target()
    assert hot.widest(target) == 0
    for buckets, widest in ((4, 4), (16, 16), (8, 16)):
        hot.widen(target, buckets)
        assert hot.widest(target) == widest


def test_lanes_add_up_what_they_report_and_forget_what_is_old(hot: HotTable) -> None:
    one, other, target, also = Lane(uuid.uuid4().hex, 1), Lane(uuid.uuid4().hex, 2), new_target(), new_target()
    now_s = int(time.time())
    assert hot.report(one, {target: 100, also: 7}, now_s)[target] == 100
    together = hot.report(other, {target: 120}, now_s + 10)
    assert (together[target], together[also]) == (220, 7)
    together = hot.report(other, {target: 120}, now_s + 11)
    assert together[target] == 120
    assert also not in together


def test_each_hot_item_stays_hot_for_a_minute_after_it_was_last_found_so(hot: HotTable) -> None:
    first, second, now_s = new_target(), new_target(), int(time.time())
    hot.announce(first, 4, now_s)
    hot.announce(second, 4, now_s)
    hot.announce(second, 8, now_s + 2)
    known = hot.buckets(now_s + 60)
    assert (known[first], known[second]) == (4, 8)
    known = hot.buckets(now_s + 61)
    assert first not in known
    assert known[second] == 8
    assert second not in hot.buckets(now_s + 63)


def test_a_like_waits_for_no_look_at_what_is_hot(tables: Tables) -> None:
    wiring.reset()
    write = function("write_api").app
    asked, answered = Event(), Event()

    def hangs(_request: Any) -> None:
        asked.set()
        answered.wait(10)

    with injected(wiring.dynamodb(), "Query", hangs):
        body = {"user_id": "ann", "item_id": new_target().item_id, "item_type": "post"}
        assert write(http_event("POST", "/v1/like", body), None)["statusCode"] == 200
        assert asked.wait(10)
        assert not answered.is_set()
        answered.set()
    wiring.executor().shutdown()
    wiring.reset()


def test_a_look_at_what_is_hot_that_is_refused_fails_no_like(
    tables: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    wiring.reset()
    write = function("write_api").app

    def refuses(_request: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "Query")

    with injected(wiring.dynamodb(), "Query", refuses):
        body = {"user_id": "ann", "item_id": new_target().item_id, "item_type": "post"}
        assert write(http_event("POST", "/v1/like", body), None)["statusCode"] == 200
        wiring.executor().shutdown()
    assert '"HotItemsUnread":[1.0]' in capsys.readouterr().out
    wiring.reset()


def test_a_detector_that_fails_fails_no_batch(
    tables: Tables, aggregator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    target = new_target()
    with injected(wiring.dynamodb(), "UpdateItem", fails):
        like(aggregator, (target, 500))
    assert tables.counters.count(target, consistent=True).total == 500
    assert '"HotItemsFailed":[1.0]' in capsys.readouterr().out
    key = {"pk": {"S": f"post#{target.item_id}"}, "sk": {"S": BUCKETS}}
    assert "Item" not in tables.client.get_item(TableName=tables.outputs["CountersTable"], Key=key)
