"""Visitors over a real Valkey: whatever dies, repeats and is forgotten, they come out as if nothing had."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from valkey import Valkey

from infra.local.cache import Cache
from tallymark.errors import Unavailable
from tallymark.model import Target
from tallymark.storage import keys, live_sketches
from tests.property.visitor_world import WINDOWS, Killed, World

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
LONG_MS = 5 * MINUTE_MS  # between turns


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    home = tmp_path_factory.mktemp("valkey")
    with pytest.MonkeyPatch.context() as few:
        few.setattr(live_sketches, "GROUPS", 3)  # so that a run meets groups of several targets, and of none
        few.setattr(live_sketches, "FEW", 4)  # and sketches of both kinds
        with Cache(home=home, log=home / "valkey.log") as running:
            yield running


@pytest.fixture(scope="module")
def new_world(valkey: Cache) -> Iterator[Callable[[int], World]]:
    with Valkey.from_url(valkey.url) as client:
        yield lambda seed: World(valkey.url, client, seed)


@pytest.fixture
def world(new_world: Callable[[int], World]) -> World:
    """Three targets, of which the first has two visitors, who are live and stored."""
    world = new_world(1)
    world.view(2, world.targets[0])
    world.deliver(1)
    later(world)
    return world


def later(world: World, ms: int = LONG_MS) -> None:
    """A turn some minutes on."""
    world.now_ms += ms
    kept = world.keep()
    assert kept is not None
    assert kept.stored


def meanwhile(monkeypatch: pytest.MonkeyPatch, store: Any, method: str, act: Callable[[], Any], *, after: bool) -> None:
    """Acts once, before or after the next call of a store's method."""
    real, left = getattr(store, method), iter([act])

    def call(*arguments: Any, **options: Any) -> Any:
        if not after and (due := next(left, None)):
            due()
        answer = real(*arguments, **options)
        if after and (due := next(left, None)):
            due()
        return answer

    monkeypatch.setattr(store, method, call)


def die() -> None:
    raise Killed


# --- what is lost of Valkey -------------------------------------------------------------------------------------


def test_a_flush_is_answered_by_unknown_and_then_by_everybody(world: World) -> None:
    world.view(3, world.targets[0])
    world.deliver(1)
    world.flush()
    assert world.count() is None
    world.recovered()


def test_what_is_stored_may_vanish_and_is_loaded(world: World) -> None:
    world.expire()
    assert world.count() == 2
    world.expire()
    world.view(3, world.targets[0])
    world.deliver(1)
    world.check()  # the new ones stand alone, until those of before are merged in
    assert world.count() is not None


def test_what_is_added_to_a_vanished_sketch_is_stored_together_with_those_of_before(world: World) -> None:
    world.expire()
    world.view(3, world.targets[0])
    world.deliver(1)
    later(world)
    world.expire()
    world.recovered()


def test_what_is_added_to_a_stored_sketch_does_not_expire(world: World) -> None:
    world.view(3, world.targets[0])
    world.deliver(1)
    world.expire()
    world.check()
    assert world.count() is not None


def vanish(world: World) -> None:
    """The first target's unstored sketches are evicted."""
    for key in world.client.scan_iter(match=f"{world.namespace}/*/*/all/post#a"):
        world.client.delete(key)


@pytest.mark.parametrize("then", ["add", "read", "store"])
def test_what_is_not_stored_and_has_vanished_is_found_missing(world: World, then: str) -> None:
    world.view(3, world.targets[0])
    world.deliver(1)
    vanish(world)
    if then == "add":
        world.view(5, world.targets[0])
        world.deliver(1)
    elif then == "store":
        world.now_ms += LONG_MS
        world.keep()
    world.check()
    world.recovered()


def test_another_server_that_lacks_the_last_moments_is_found_out(world: World) -> None:
    world.view(3, world.targets[0])
    copies = {key: world.client.dump(key) for key in world.client.scan_iter(match=f"{world.namespace}/*")}
    world.deliver(1)
    world.flush()
    for key, copy in copies.items():
        world.client.restore(key, 0, copy)  # type: ignore[arg-type]
        if key.endswith(b"}"):
            world.client.hset(key.decode(), "#server", "the one before")
    assert world.count() is None
    world.recovered()


def test_a_server_that_seems_another_each_time_is_not_rebuilt_without_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rebuild is a scan of all events."""
    known = "local function server() return"
    assert known in live_sketches._BOOK
    monkeypatch.setattr(
        live_sketches, "_BOOK", live_sketches._BOOK.replace(known, f"{known} redis.call('INCR', book .. '/n') ..")
    )
    began: list[bool] = []
    real = world.live.begin

    def begin(groups: Sequence[int], era: str) -> bool:
        assert len(began) < 3
        began.append(real(groups, era))
        return began[-1]

    monkeypatch.setattr(world.live, "begin", begin)
    later(world)
    assert began == [False, False, True]
    later(world)
    assert world.count() == 2


def test_a_server_may_be_another_now_and_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sketches, "_EARLY_S", 0)
    for _ in range(5):
        world.fail_over()
        assert world.count() is None
        world.recovered()


def test_the_sketches_of_an_era_that_has_ended_are_not_left_behind(world: World) -> None:
    world.view(3, world.targets[0])
    world.deliver(1)
    world.keep(again=True)
    world.expire()
    books = {keys.cache_book_key(world.namespace, group).encode() for group in range(3)}
    assert set(world.client.scan_iter(match=f"{world.namespace}/*")) == books


@pytest.mark.parametrize("people", [4, 5, 30])
def test_sketches_of_both_kinds_are_stored_loaded_and_united(world: World, people: int) -> None:
    """Few visitors a day in sets, many in a HyperLogLog, and both in one window."""
    for some in (people, 1, 2):
        world.now_ms += 25 * HOUR_MS
        world.view(some, world.targets[0])
        world.deliver(1)
        later(world)
        world.expire()
        world.view(1, world.targets[0])
        world.deliver(1)
    world.recovered()


# --- what comes late --------------------------------------------------------------------------------------------


def test_a_view_that_comes_late_outlives_a_flush(world: World) -> None:
    world.view(3, world.targets[0])
    later(world)
    world.deliver(1)
    world.flush()
    world.recovered()


def test_a_stream_that_is_behind_is_read_without_storing_and_since_waits_for_it(world: World) -> None:
    """Else each batch would store all its sketches, be slower for it, and find itself further behind."""
    begin_ms = world.now_ms
    for _ in range(60):
        world.view(2)
        world.now_ms += MINUTE_MS
    while world.waiting:
        before = dict(world.stored.snapshots)
        world.deliver(5)
        assert world.stored.snapshots == before
        world.now_ms += MINUTE_MS
        kept = world.keep()
        assert kept is not None
        assert kept.whole
        since_ms = world.log.standing().since_ms
        assert since_ms is not None
        if world.waiting:
            world.deliver(1)
            since_ms = world.log.standing().since_ms
            assert since_ms is not None
            assert begin_ms - MINUTE_MS <= since_ms <= world.acknowledged[-1][0]
    later(world)
    assert world.log.standing().since_ms == world.now_ms - MINUTE_MS
    world.recovered()


def late_one(world: World) -> None:
    """A view of some minutes ago is delivered."""
    world.waiting.sort(key=lambda event: event[0])
    world.deliver(1)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["take_turn", "missing", "late_before", "unstored", "get", "merge", "put", "stored"])
def test_a_late_view_that_comes_during_a_turn_is_not_passed_over_by_it(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    world.view(3, world.targets[0])
    later(world)
    world.view(1, world.targets[0])
    world.now_ms += LONG_MS
    store = next(one for one in (world.log, world.live, world.stored) if hasattr(one, call))
    world.waiting.reverse()
    world.deliver(1)
    meanwhile(monkeypatch, store, call, lambda: late_one(world), after=after)
    world.keep()
    assert not world.waiting
    world.flush()
    world.recovered()


@pytest.mark.parametrize("call", ["late_before", "move_on"])
def test_a_late_view_that_comes_as_a_turn_ends_is_not_passed_over_by_it(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    world.view(3, world.targets[0])
    later(world)
    world.now_ms += LONG_MS
    # The second call of late_before, after everything was stored.
    first = [lambda: meanwhile(monkeypatch, world.live, call, lambda: late_one(world), after=False)]
    if call == "late_before":
        meanwhile(monkeypatch, world.live, call, first[0], after=True)
    else:
        meanwhile(monkeypatch, world.log, call, lambda: late_one(world), after=False)
    kept = world.keep()
    assert not world.waiting
    assert kept is not None
    assert not kept.stored
    world.flush()
    world.recovered()


def test_a_turn_between_the_steps_of_moving_back_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows of the retreat and moves on all the same: groups that it has told so do not go back by that one."""
    world.view(3, world.targets[0])
    later(world)
    world.now_ms += LONG_MS
    meanwhile(monkeypatch, world.log, "retreat", world.keep, after=True)
    world.deliver(1)
    world.flush()
    world.recovered()


def test_a_group_that_was_rebuilt_between_the_steps_of_moving_back_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turns() -> None:
        world.keep()
        world.flush()
        meanwhile(monkeypatch, world.live, "late_before", die, after=False)
        world.with_death(world.keep, 10**6, after=False)
        world.log.busy_ms = 0

    world.view(3, world.targets[0])
    later(world)
    world.now_ms += LONG_MS
    meanwhile(monkeypatch, world.log, "retreat", turns, after=True)
    world.deliver(1)
    world.flush()
    world.recovered()


def test_what_came_late_into_a_group_that_is_then_lost_is_replayed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def come_and_go() -> None:
        world.deliver(1)
        world.flush()

    world.view(3, world.targets[0])
    later(world)
    world.now_ms += LONG_MS
    meanwhile(monkeypatch, world.live, "missing", come_and_go, after=False)
    world.keep()
    world.check()
    later(world)
    world.flush()
    world.recovered()


def test_a_view_that_comes_while_all_is_stored_is_late_already(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.view(3, world.targets[0])
    world.now_ms += LONG_MS
    meanwhile(monkeypatch, world.live, "unstored", lambda: world.deliver(1), after=True)
    world.keep()
    world.flush()
    world.recovered()


def test_what_the_stream_forgot_while_no_turn_was_taken_is_replayed(world: World) -> None:
    world.view(3, world.targets[0])
    world.waiting.clear()
    world.now_ms += 30 * HOUR_MS
    world.keep()
    world.recovered()


def test_what_the_stream_forgot_while_turns_were_taken_is_replayed_when_the_next_view_is_so_late(world: World) -> None:
    world.view(3, world.targets[0])
    world.waiting.clear()
    world.now_ms += HOUR_MS
    world.view(4, world.targets[0])
    for _ in range(23):
        later(world, HOUR_MS)
    world.deliver(1)
    world.recovered()


def test_a_replay_that_was_asked_for_is_made_however_often_it_dies(new_world: Callable[[int], World]) -> None:
    for calls in range(20):
        world = new_world(calls)
        later(world)
        world.view(3, world.targets[0])
        later(world)
        world.waiting.clear()  # the stream forgot it, and a turn was taken since
        world.now_ms += HOUR_MS
        world.view(4, world.targets[0])
        for _ in range(21):
            later(world, HOUR_MS)
        world.deliver(1)
        world.with_death(world.keep, calls, after=True)
        world.recovered()


def test_a_replay_does_not_forget_since_when_views_are_missing(world: World) -> None:
    """Nor is it said that nothing was stored since the epoch began."""
    since_ms = world.log.turn.standing.since_ms
    assert since_ms is not None
    world.now_ms += LONG_MS
    world.with_death(lambda: world.keep(again=True), 4, after=True)
    standing = world.log.standing()
    assert (standing.since_ms, standing.is_replaying, standing.unstored_from_ms) == (since_ms, True, world.now_ms)
    world.now_ms = since_ms + 8 * 24 * HOUR_MS
    world.keep()
    assert world.lost == [(since_ms, world.now_ms - 7 * 24 * HOUR_MS)]
    assert not world.log.standing().is_replaying


def test_views_whose_events_have_expired_before_they_were_stored_are_told_of(world: World) -> None:
    since_ms = world.log.turn.standing.since_ms
    world.now_ms += 8 * 24 * HOUR_MS
    world.keep()
    assert world.lost == [(since_ms, world.now_ms - 7 * 24 * HOUR_MS)]
    later(world)
    assert len(world.lost) == 1


# --- two at a time ----------------------------------------------------------------------------------------------


def test_what_is_added_while_a_sketch_is_stored_is_stored_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def add() -> None:
        world.view(5, world.targets[0])
        world.deliver(1)

    world.view(3, world.targets[0])
    world.deliver(1)
    meanwhile(monkeypatch, world.stored, "put", add, after=True)
    later(world)
    later(world)
    world.expire()
    world.recovered()


def test_a_fuller_snapshot_is_not_replaced_by_a_poorer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtake() -> None:
        """Another process takes the turn, while this one stands between reading a sketch and storing it."""
        world.view(5, world.targets[0])
        world.deliver(1)
        later(world, LONG_MS + 1)
        world.expire()

    world.view(3, world.targets[0])
    world.deliver(1)
    meanwhile(monkeypatch, world.stored, "put", overtake, after=False)
    world.now_ms += LONG_MS
    world.with_death(world.keep, 10**6, after=False)
    world.check()
    world.recovered()


def test_a_turn_that_was_taken_over_does_not_say_that_all_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake() -> None:
        world.now_ms += LONG_MS + 1
        world.flush()
        world.keep()

    before_ms = world.now_ms
    meanwhile(monkeypatch, world.log, "move_on", overtake, after=False)
    world.with_death(world.keep, 10**6, after=False)
    assert world.log.turn.standing.since_ms == world.now_ms - MINUTE_MS > before_ms
    world.recovered()


def test_a_flush_while_all_is_stored_is_not_taken_for_having_stored_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.view(3, world.targets[0])
    world.deliver(1)
    world.now_ms += LONG_MS
    meanwhile(monkeypatch, world.live, "unstored", world.flush, after=False)
    world.keep()
    world.recovered()


def test_a_flush_during_a_rebuild_begins_it_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(8):  # three pages
        world.view(2)
    world.deliver(8)
    world.flush()
    for _ in range(3):
        meanwhile(monkeypatch, world.log, "save", world.flush, after=True)
        meanwhile(monkeypatch, world.live, "finish", world.flush, after=False)
        world.keep()
        world.check()
    world.recovered()


def test_a_rebuild_that_was_taken_over_does_not_declare_the_other_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake() -> None:
        """Another process begins after one more flush, and has not read a page yet."""
        world.flush()
        world.now_ms += LONG_MS + 1
        meanwhile(monkeypatch, world.live, "begin", die, after=True)
        world.with_death(world.keep, 10**6, after=False)

    world.view(3, world.targets[0])
    world.deliver(1)
    world.flush()
    meanwhile(monkeypatch, world.live, "finish", overtake, after=False)
    world.with_death(world.keep, 10**6, after=False)
    world.check()
    world.recovered()


def test_a_rebuild_that_was_taken_over_does_not_undo_what_is_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake() -> None:
        """Another process goes on with it, and stores everything."""
        world.now_ms += LONG_MS + 1
        later(world, 0)

    world.view(3, world.targets[0])
    world.deliver(1)
    world.view(4, world.targets[0])
    world.flush()
    world.log.kept, kept = dict(list(world.log.kept.items())[:2]), world.log.kept  # written, but not yet to be read
    meanwhile(monkeypatch, world.live, "finish", overtake, after=False)
    world.with_death(world.keep, 10**6, after=False)
    world.log.kept = kept
    world.deliver(1)
    world.flush()
    world.recovered()


def test_a_sketch_of_another_era_is_not_taken_for_what_was_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes have the same numbers."""

    def overtake() -> None:
        world.view(5, world.targets[0])
        world.flush()
        world.now_ms += LONG_MS + 1
        meanwhile(monkeypatch, world.live, "late_before", die, after=False)
        world.with_death(world.keep, 10**6, after=False)

    world.flush()
    world.log.kept.clear()
    world.accepted.clear()
    world.acknowledged.clear()
    world.stored.snapshots.clear()
    world.keep()
    world.now_ms += LONG_MS
    world.view(3, world.targets[0])
    world.deliver(1)
    meanwhile(monkeypatch, world.live, "stored", overtake, after=False)
    world.with_death(world.keep, 10**6, after=False)
    world.deliver(1)
    later(world, LONG_MS + 1)
    later(world)
    world.flush()
    world.recovered()


def test_a_rebuild_that_died_goes_on_only_where_nothing_of_it_was_lost(new_world: Callable[[int], World]) -> None:
    for calls in range(6, 24):
        world = new_world(calls)
        for _ in range(9):
            world.view(2)
        world.deliver(9)
        world.flush()
        world.with_death(world.keep, calls, after=True)
        world.now_ms += LONG_MS + 1
        if calls % 2:
            world.flush()
        world.recovered()


def test_a_reader_does_not_take_old_snapshots_for_all_that_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store() -> None:
        world.view(5, world.targets[0])
        world.deliver(1)
        later(world)
        world.expire()
        world.view(3, world.targets[0])
        world.deliver(1)

    world.expire()
    meanwhile(monkeypatch, world.stored, "between", store, after=True)
    world.count()
    world.check()
    world.recovered()


@pytest.mark.parametrize("after", [False, True])
def test_death_at_any_call_loses_nobody(new_world: Callable[[int], World], after: bool) -> None:
    for calls in range(24):
        world = new_world(calls)
        world.view(2, world.targets[0])
        world.deliver(1)
        world.view(3, world.targets[0])
        later(world)  # what has not been delivered is late
        world.with_death(lambda world=world: world.deliver(1), calls, after)  # type: ignore[misc]
        world.view(4, world.targets[1])
        world.deliver(2)
        world.now_ms += LONG_MS
        world.with_death(world.keep, calls, after)
        world.expire()
        world.check()
        world.flush()
        world.recovered()


# --- little memory ----------------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[World, Callable[[int], None]]]:
    """A world of 2,000 targets, and how to leave its Valkey so many bytes."""
    with Cache(home=tmp_path, log=tmp_path / "valkey.log") as cache, Valkey.from_url(cache.url) as client:
        world = World(cache.url, client, 1, targets=tuple(Target("post", str(n)) for n in range(2000)))
        for _ in range(2):  # so that the server knows all scripts
            world.view(1)
            world.flush()
            later(world)
            world.deliver(1)

        def leave(free: int) -> None:
            client.config_set("maxmemory", client.info("memory")["used_memory"] + free)

        yield world, leave


def view_all(world: World) -> None:
    for target in world.targets:
        world.view(1, target)


def test_a_full_server_takes_no_more_until_a_turn_has_stored_what_it_holds(
    full: tuple[World, Callable[[int], None]],
) -> None:
    world, leave = full
    view_all(world)
    leave(400_000)
    with pytest.raises(Unavailable):
        world.deliver(2000)
    leave(-50_000)
    later(world)
    leave(400_000)
    for _ in range(50):
        later(world)
        with contextlib.suppress(Unavailable):
            world.deliver(50)
    assert not world.waiting
    leave(100_000_000)
    later(world)
    world.check(*world.targets[:20])
    assert world.count() is not None


def test_a_rebuild_goes_on_in_less_memory_than_all_its_sketches_need(
    full: tuple[World, Callable[[int], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, leave = full
    monkeypatch.setattr("tallymark.visitors._UNSTORED_AT_MOST", 200)
    monkeypatch.setattr("tests.property.visitor_world.PAGE", 100)
    view_all(world)
    world.flush()
    leave(600_000)
    kept = world.keep()
    assert kept is not None
    assert kept.stored
    assert sum(sketch.label == "all" for sketch in world.stored.snapshots) == 2000


def test_a_rebuild_that_found_no_memory_first_stores_what_it_left(
    full: tuple[World, Callable[[int], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, leave = full
    monkeypatch.setattr("tests.property.visitor_world.PAGE", 100)
    view_all(world)
    world.flush()
    leave(400_000)
    with pytest.raises(Unavailable):
        world.keep()
    for _ in range(20):
        world.with_death(world.keep, 10**6, after=False)
    kept = world.keep()
    assert kept is not None
    assert kept.stored
    assert sum(sketch.label == "all" for sketch in world.stored.snapshots) == 2000


def test_a_read_of_what_nobody_viewed_leaves_nothing_behind(world: World) -> None:
    before = set(world.client.scan_iter(match=f"{world.namespace}/*"))
    for window in WINDOWS:
        assert world.count(Target("post", "made up"), window) == 0
    assert set(world.client.scan_iter(match=f"{world.namespace}/*")) == before


# --- anything ---------------------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("view"), st.integers(1, 5)),
    st.tuples(st.just("view"), st.integers(1, 5)),
    st.tuples(st.just("deliver"), st.integers(1, 6)),
    st.tuples(st.just("deliver"), st.integers(1, 6)),
    st.tuples(st.just("repeat"), st.integers(1, 6)),
    st.tuples(st.just("keep"), st.booleans()),
    st.tuples(st.just("keep"), st.just(False)),
    st.tuples(st.just("wait"), st.sampled_from([1, MINUTE_MS + 1, LONG_MS + 1, HOUR_MS, 26 * HOUR_MS])),
    st.tuples(st.sampled_from(["flush", "evict", "expire", "fail_over"]), st.just(0)),
    st.tuples(st.just("die delivering"), st.tuples(st.integers(0, 25), st.booleans())),
    st.tuples(st.just("die keeping"), st.tuples(st.integers(0, 25), st.booleans())),
)


def do(world: World, name: str, argument: Any) -> None:
    if name == "view":
        world.view(argument)
    elif name == "wait":
        world.now_ms += argument
    elif name == "die delivering":
        world.with_death(lambda: world.deliver(4), *argument)
    elif name == "die keeping":
        world.with_death(world.keep, *argument)
    elif name in ("deliver", "repeat"):
        world.with_death(lambda: world.deliver(argument, repeat=name == "repeat"), 10**6, after=False)
    elif name == "keep":
        world.keep(argument)
    else:
        getattr(world, name)()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.lists(STEPS, min_size=5, max_size=40))
def test_no_visitor_is_lost_whatever_dies_repeats_and_is_forgotten(
    new_world: Callable[[int], World], seed: int, steps: list[tuple[str, Any]]
) -> None:
    world = new_world(seed)
    for name, argument in steps:
        do(world, name, argument)
        world.check(world.random.choice(world.targets))
    world.recovered()
