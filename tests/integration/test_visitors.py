"""Visitors through the function itself, over the tables of an emulator and a real Valkey."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.local.cache import Cache
from tallymark.errors import Unavailable
from tallymark.events import ViewEvent
from tallymark.model import Target
from tallymark.runtime import wiring
from tallymark.storage import keys
from tallymark.storage.event_stream import item_of
from tallymark.storage.valkey import ValkeyDown, ValkeyServer
from tallymark.storage.visitor_tables import SketchTable, VisitorLog
from tallymark.views import View, ViewWindow, gather
from tallymark.visitors import Rebuild, Sketch, Snapshot, Standing, Turn, hour_label
from tests.bench.events import function, http_event
from tests.integration.conftest import Tables, new_target
from tests.integration.streams import Context, event_record, injected, lost_replies

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WINDOWS: tuple[ViewWindow, ...] = ("all", "24h", "7d", "30d")


class Service:
    """The function of visitors and the one that reads, as new processes, over one Valkey and the package's tables."""

    def __init__(self, tables: Tables, cache: Cache) -> None:
        self.tables, self.cache = tables, cache
        self.handler = function("visitors").handler
        self.read_api = function("read_api").app
        self.waiting: list[dict[str, Any]] = []
        self.now_ms = wiring.now_ms()

    def view(self, target: Target, *people: str, bot: bool = False) -> None:
        """Accepted: in the table, and on its way through the stream."""
        views = [View(target, person, bot) for person in people]
        event = ViewEvent(self.now_ms, uuid.uuid4().hex, gather(views))
        assert wiring.event_table().record(event)
        self.waiting.append(event_record(item_of(event), event.at_ms / 1000))

    def deliver(self, *, twice: bool = False) -> None:
        for _ in range(2 if twice else 1):
            assert self.handler({"Records": self.waiting}, Context(40_000)) == {}
        self.waiting = []

    def scheduled(self, **event: bool) -> dict[str, Any]:
        answer: dict[str, Any] = self.handler({"scheduled": True, **event}, Context(40_000))
        return answer

    def visitors(self, target: Target, window: ViewWindow = "all") -> int | None:
        """As GET /v1/views answers it."""
        query = f"item_type={target.item_type}&item_id={target.item_id}&window={window}"
        self._forget_counts()
        answer = self.read_api(http_event("GET", "/v1/views", query=query), None)
        assert answer["statusCode"] == 200, answer
        visitors: int | None = json.loads(answer["body"])["visitors"]
        return visitors

    def _forget_counts(self) -> None:
        """The caches in front of it hold an answer for a second."""
        wiring._built.pop("view_sources", None)
        with contextlib.suppress(ValkeyDown):
            self.ask(lambda client: [client.delete(key) for key in client.scan_iter("*/views/*")])

    def flush(self) -> None:
        self.ask(lambda client: client.flushall())

    def ask(self, work: Callable[[Any], Any]) -> Any:
        return ValkeyServer(self.cache.url, binary=True).call(work)


@pytest.fixture
def service(tables: Tables, valkey: Cache, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("CACHE_URL", valkey.url)
    wiring.reset()
    tables.client.delete_item(TableName=tables.outputs["EventsTable"], Key={"pk": {"S": keys.VISITORS_TURN}})
    service = Service(tables, valkey)
    service.flush()
    monkeypatch.setattr(wiring, "now_ms", lambda: service.now_ms)
    wiring.reset()
    yield service
    if not valkey.running:
        valkey.start()
    wiring.reset()


def test_a_visitor_is_seen_at_once_and_once(service: Service, target: Target) -> None:
    service.view(target, "ann", "bob", "ann")
    service.view(target, "cid", bot=True)
    service.deliver(twice=True)
    for window in WINDOWS:
        assert service.visitors(target, window) == 2
    assert service.visitors(new_target()) == 0


def test_a_first_view_by_nobody_known_makes_visitors_known_to_be_none(service: Service, target: Target) -> None:
    assert service.visitors(target) is None
    event = ViewEvent(service.now_ms, uuid.uuid4().hex, gather([View(target)]))
    assert wiring.event_table().record(event)
    service.waiting.append(event_record(item_of(event), event.at_ms / 1000))
    service.deliver()
    assert service.visitors(target) == 0


def test_without_valkey_nothing_is_done_and_visitors_are_not_known(
    service: Service, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_URL", "")
    wiring.reset()
    service.view(target, "ann")
    assert service.scheduled() == {}
    service.deliver()
    assert wiring.visitors() is None


def test_an_outage_of_valkey_is_answered_by_unknown_and_loses_nobody(service: Service, target: Target) -> None:
    service.view(target, "ann")
    service.deliver()
    service.view(target, "bob")
    service.cache.stop()
    with pytest.raises(Unavailable):
        service.deliver()
    with pytest.raises(Unavailable):
        service.scheduled()
    assert service.visitors(target) is None
    service.cache.start()  # empty
    wiring.reset()
    assert service.visitors(target) is None
    service.deliver()
    assert service.visitors(target) == 2


def test_a_flush_is_mended_from_snapshots_and_events(service: Service, target: Target) -> None:
    people = [f"p{n}" for n in range(500)]
    service.view(target, *people[:100])
    service.deliver()
    service.now_ms += 2 * DAY_MS
    service.view(target, *people[100:300])
    service.deliver()
    service.now_ms += 10 * 60_000
    assert service.scheduled()["stored"]
    service.view(target, *people[300:])
    service.deliver()
    before = {window: service.visitors(target, window) for window in ("all", "24h", "7d")}
    service.flush()
    assert service.visitors(target) is None
    assert service.scheduled()["whole"]
    assert {window: service.visitors(target, window) for window in ("all", "24h", "7d")} == before
    assert before["all"] == pytest.approx(500, rel=0.03)
    assert before["24h"] == pytest.approx(400, rel=0.03)


@pytest.mark.parametrize(
    ("window", "hours", "inside"),
    [
        ("24h", 24, True),
        ("24h", 25, False),
        ("7d", 7 * 24, True),
        ("7d", 9 * 24, False),
        ("30d", 30 * 24, True),
        ("30d", 32 * 24, False),
    ],
)
def test_windows_follow_the_clock(
    service: Service, target: Target, window: ViewWindow, hours: int, inside: bool
) -> None:
    """The very bounds of the totals: a window begins with the hour, or the day, of the moment so long ago."""
    service.view(target, "ann")
    service.deliver()
    service.now_ms += hours * HOUR_MS
    service.scheduled()
    service.view(target, "bob")
    service.deliver()
    assert service.visitors(target, window) == (2 if inside else 1)
    assert service.visitors(target) == 2


def test_what_a_snapshot_holds_is_what_one_pfadd_makes(service: Service, target: Target) -> None:
    people = [f"p{n}" for n in range(3000)]
    for first in range(0, 3000, 300):
        service.view(target, *people[first : first + 300])
        service.deliver()
        service.now_ms += 3 * 60_000
        service.scheduled()
    service.now_ms += 3 * 60_000
    service.scheduled()
    stored = wiring.sketch_table().get([Sketch(target, "all")])[Sketch(target, "all")]
    (viewed,) = gather([View(target, person) for person in people])
    key = os.urandom(8).hex()
    service.ask(lambda client: client.pfadd(key, *viewed.visitors))
    once = service.ask(lambda client: client.get(key))
    assert stored.data[16:] == once[16:]  # before it: magic, encoding, and the cardinality that was last computed


def test_a_first_replay_is_as_old_as_it_is(
    service: Service, target: Target, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as old as the epoch, which would ring an alarm at each first deployment."""
    service.view(target, "ann")
    with monkeypatch.context() as busy:
        busy.setattr("tallymark.visitors.store", lambda *_: False)
        capsys.readouterr()
        service.scheduled()
        service.now_ms += 7 * 60_000
        answer = service.scheduled()
    ages = [json.loads(line)["VisitorsUnstored"] for line in capsys.readouterr().out.splitlines() if "Unstored" in line]
    assert ages == [[0.0], [420.0]]
    assert (answer["whole"], answer["stored"], answer["since"]) == (True, False, None)


def test_reads_of_made_up_ids_leave_the_cache_as_it_is(service: Service, target: Target) -> None:
    service.view(target, "ann")
    service.deliver()
    for window in WINDOWS:
        service.visitors(target, window)
    before = service.ask(lambda client: set(client.scan_iter("*")))
    for window in WINDOWS:
        assert service.visitors(new_target(), window) == 0
    service._forget_counts()
    assert service.ask(lambda client: set(client.scan_iter("*"))) <= before


def test_a_record_that_cannot_be_read_holds_up_nobody(service: Service, target: Target) -> None:
    service.view(target, "ann")
    broken = {**service.waiting[0], "dynamodb": {"NewImage": {"views": {"L": [{"M": {}}]}, "at": {"N": "1"}}}}
    service.waiting.insert(0, broken)
    service.deliver()
    assert service.visitors(target) == 1


# --- the tables -------------------------------------------------------------------------------------------------


@pytest.fixture
def sketches(service: Service) -> SketchTable:
    return wiring.sketch_table()


def test_a_snapshot_is_replaced_only_as_it_was_read(sketches: SketchTable, target: Target) -> None:
    sketch = Sketch(target, "all")
    assert sketches.put([(sketch, b"1", None)]) == [True]
    assert sketches.put([(sketch, b"2", None)]) == [False]
    first = sketches.get([sketch])[sketch]
    assert sketches.put([(sketch, b"2", first)]) == [True]
    assert sketches.put([(sketch, b"3", first)]) == [False]
    assert sketches.get([sketch])[sketch].data == b"2"


def test_a_snapshot_whose_reply_was_lost_may_be_stored_again(
    sketches: SketchTable, service: Service, target: Target
) -> None:
    service.view(target, "ann")
    service.deliver()
    service.now_ms += 10 * 60_000
    with injected(wiring.dynamodb(), "PutItem", lost_replies(wiring.dynamodb(), 3)):
        service.scheduled()
    assert service.scheduled()["stored"]
    service.flush()
    service.scheduled()
    assert service.visitors(target) == 1


def test_snapshots_are_read_by_their_range(sketches: SketchTable, target: Target) -> None:
    hours = [hour_label(hour) for hour in range(23, 27)]
    labels = ["all", "day-1970-01-01", "day-1970-01-02", *hours]
    sketches.put([(Sketch(target, label), label.encode(), None) for label in labels])
    assert set(sketches.between(target, hours[1], hours[2])) == set(hours[1:3])
    assert set(sketches.between(target, "day-1970-01-01", "day-1970-01-02")) == {"day-1970-01-01", "day-1970-01-02"}
    assert sketches.between(target, "all", "all") == {"all": b"all"}


def test_snapshots_of_hours_and_days_expire_and_that_of_all_time_does_not(
    service: Service, sketches: SketchTable, target: Target
) -> None:
    labels = ["all", "day-2026-01-31", "hour-2026-01-31T12"]
    sketches.put([(Sketch(target, label), b"", None) for label in labels])
    items = service.tables.client.query(
        TableName=service.tables.outputs["CountersTable"],
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"S": keys.target_key(target)}},
    )["Items"]
    ttl = {keys.parse_sketch_sort_key(item["sk"]["S"]): item.get("ttl") for item in items}
    end_of_day_s = 1_769_904_000
    assert ttl == {
        "all": None,
        "day-2026-01-31": {"N": str(end_of_day_s + 35 * 86400)},
        "hour-2026-01-31T12": {"N": str(end_of_day_s + 2 * 86400)},
    }


@pytest.fixture
def log(service: Service) -> VisitorLog:
    return wiring.visitor_log()


def take(log: VisitorLog, now_ms: int) -> Turn:
    turn = log.take_turn(now_ms, now_ms + 10)
    assert turn is not None
    return turn


def test_one_at_a_time_has_the_turn_until_it_ends_or_its_time_does(log: VisitorLog) -> None:
    turn = take(log, 100)
    assert log.take_turn(110, 120) is None
    assert take(log, 111).number == turn.number + 1
    second = take(log, 130)
    log.end(turn)  # no longer its
    assert log.take_turn(131, 140) is None
    log.end(second)
    assert log.take_turn(131, 140) is not None


@pytest.mark.parametrize(
    "act",
    [
        lambda log, turn: log.save(turn, Rebuild("era")),
        lambda log, turn: log.save(turn, None),
        lambda log, turn: log.restart(turn, 7),
    ],
)
def test_whose_turn_was_taken_over_can_change_nothing(log: VisitorLog, act: Callable[[VisitorLog, Turn], Any]) -> None:
    turn = take(log, 100)
    other = log.save(take(log, 200), Rebuild("theirs", "key"))
    log.move_on(other, 150)
    assert not log.move_on(turn, 7)
    with pytest.raises(Unavailable):
        act(log, turn)
    assert log.standing().since_ms == 150
    assert take(log, 300).rebuild == Rebuild("theirs", "key")


def test_after_a_restart_everything_is_replayed_until_a_turn_moves_on(log: VisitorLog) -> None:
    assert log.standing() == Standing()
    turn = take(log, 100)
    assert log.move_on(turn, 90)
    turn = log.restart(log.save(turn, Rebuild("era", "key")), 105)
    assert (turn.since_ms, turn.standing, turn.rebuild) == (0, Standing(90, 0, 105, is_replaying=True), None)
    turn = take(log, 200)
    assert (turn.since_ms, turn.standing.unstored_from_ms) == (0, 105)
    assert log.move_on(turn, 190)
    assert log.standing() == Standing(190, 0, 105)


def test_since_moves_back_and_no_turn_that_was_under_way_moves_it_on(log: VisitorLog) -> None:
    assert log.retreat(50) == 1  # nothing is stored: everything is replayed anyway
    turn = take(log, 100)
    assert log.move_on(turn, 90)
    assert log.retreat(95) == 2
    assert log.standing().since_ms == 90
    assert not log.move_on(turn, 99)
    turn = log.save(turn, None)  # which tells how things stand
    assert log.move_on(turn, 99)
    assert log.retreat(70) == 3
    assert log.standing().since_ms == 70
    assert not log.move_on(turn, 99)


def test_the_log_has_the_views_since_a_moment_page_by_page(service: Service, log: VisitorLog, target: Target) -> None:
    moments = [service.now_ms + n for n in range(40)]
    for moment in moments:
        service.now_ms = moment
        service.view(target, *(f"{moment}-{n}" * 8 for n in range(100)))
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        page = log.events(moments[10], cursor)
        found += [at_ms for at_ms, viewed in page.events if viewed[0].target == target]
        cursor, pages = page.cursor, pages + 1
    assert sorted(found) == moments[10:]


def test_a_snapshot_that_is_read_is_what_was_stored(sketches: SketchTable, target: Target) -> None:
    data = os.urandom(12_304)
    sketch = Sketch(target, "day-2026-01-31")
    sketches.put([(sketch, data, None)])
    found = sketches.get([sketch, Sketch(target, "all")])
    assert found == {sketch: Snapshot(data, found[sketch].version)}
