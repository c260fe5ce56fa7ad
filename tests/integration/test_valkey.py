"""The shared cache and the sliding windows over a real Valkey."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from valkey import Valkey

from infra.local.cache import Cache
from tallymark.counts import ProcessCache, Sources, counts_of
from tallymark.limits import Taken
from tallymark.model import Count, LimitKey, Target
from tallymark.storage import valkey as valkey_storage
from tallymark.storage.keys import cache_limit_key
from tallymark.storage.valkey import ValkeyCounts, ValkeyServer, ValkeyWindows, likes_form
from tests.integration.conftest import new_target
from tests.property.windows import LONGEST_S, MOST, SECOND, A, B, Model, Step, pauses, steps, steps_back

LikeCounts = ValkeyCounts[Target, Count]


@pytest.fixture(scope="module")
def server(valkey: Cache) -> ValkeyServer:
    return ValkeyServer(valkey.url)


@pytest.fixture
def counts(server: ValkeyServer) -> LikeCounts:
    return ValkeyCounts(server, likes_form(uuid.uuid4().hex), ttl_ms=300)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def peek(counts: LikeCounts, target: Target) -> tuple[int | None, bool]:
    """The number known, and whether this caller is to refresh it."""
    (peeked,) = counts.peek([target], now_ms()) or []
    return None if peeked.count is None else peeked.count.total, peeked.token is not None


def test_one_caller_refreshes_and_the_others_see_it(counts: LikeCounts, target: Target) -> None:
    (mine,) = counts.peek([target], now_ms()) or []
    assert mine.token is not None
    assert peek(counts, target) == (None, False)
    counts.fill([(target, mine.token, Count({"like": 7, "👍": 2}, now_ms()))])
    assert peek(counts, target) == (9, False)


def test_a_stale_count_is_served_while_one_caller_refreshes_it(counts: LikeCounts, target: Target) -> None:
    (mine,) = counts.peek([target], now_ms()) or []
    assert mine.token is not None
    counts.fill([(target, mine.token, Count({"like": 1}, now_ms()))])
    time.sleep(0.32)  # fresh for at most 300 ms, known for 450
    assert peek(counts, target) == (1, True)
    assert peek(counts, target) == (1, False)
    time.sleep(0.2)
    assert peek(counts, target)[0] is None


def test_a_slow_read_never_overwrites_a_newer_one(counts: LikeCounts, target: Target) -> None:
    (slow,) = counts.peek([target], now_ms()) or []
    time.sleep(1.01)  # the lease of the slow one runs out
    (quick,) = counts.peek([target], now_ms()) or []
    assert slow.token is not None
    assert quick.token is not None
    counts.fill([(target, quick.token, Count({"like": 2}, now_ms()))])
    counts.fill([(target, slow.token, Count({"like": 1}, now_ms()))])
    assert peek(counts, target) == (2, False)


def test_a_herd_on_a_cold_item_reads_the_rows_once(server: ValkeyServer, target: Target) -> None:
    reads = []

    class Rows:
        """Rows that take a while to read."""

        def counts(self, targets: list[Target], *, consistent: bool) -> list[Count | None]:
            reads.append(list(targets))
            time.sleep(0.03)
            return [Count({"like": 5}, now_ms()) for _ in targets]

    namespace = uuid.uuid4().hex

    def read(_: int) -> int:
        shared = ValkeyCounts(server, likes_form(namespace), ttl_ms=1000)
        sources = Sources[Target, Count](ProcessCache(0), shared, Rows(), now_ms, time.sleep)  # type: ignore[arg-type]
        (count,) = counts_of(sources, [target])
        assert count is not None
        return count.total

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(read, range(48))) == {5}
    assert len(reads) == 1


def test_many_targets_take_one_round_trip_and_keep_their_order(counts: LikeCounts) -> None:
    targets = [new_target() for _ in range(40)]
    peeked = counts.peek(targets, now_ms()) or []
    filled = [(t, p.token, Count({"like": i}, now_ms())) for i, (t, p) in enumerate(zip(targets, peeked, strict=True))]
    counts.fill([(t, token, count) for t, token, count in filled if token is not None])
    again = counts.peek(targets[::-1], now_ms()) or []
    assert [p.count.total for p in again if p.count] == list(range(40))[::-1]


def take(windows: ValkeyWindows, key: LimitKey, wanted: int, limit: int, window_s: int) -> Taken:
    taken = windows.take({key: wanted}, limit, window_s)
    assert taken is not None
    return taken[key]


def test_a_window_allows_its_limit_and_no_call_more_under_concurrency(server: ValkeyServer) -> None:
    windows = [ValkeyWindows(server, uuid.uuid4().hex, 60)] * 8
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda n: take(windows[n % 8], A, 1, 50, 60).granted, range(200)))
    assert sum(taken) == 50


def test_a_call_with_a_short_window_makes_none_with_a_longer_one_forget(server: ValkeyServer) -> None:
    windows = ValkeyWindows(server, uuid.uuid4().hex, 60)
    assert take(windows, A, 3, 3, 1).granted == 3
    time.sleep(1.1)
    assert take(windows, A, 1, 1, 1).granted == 1, "of the last second there is nothing"
    assert take(windows, A, 1, 4, 60).granted == 0, "of the last minute there are four"
    assert take(windows, A, 1, 5, 60).granted == 1


def test_the_callers_clocks_do_not_matter(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = ValkeyWindows(server, uuid.uuid4().hex, 60)
    assert take(windows, A, 1, 1, 60).granted == 1
    for name, unit in (("time", 1), ("time_ns", 10**9)):
        now = getattr(time, name)()
        monkeypatch.setattr(time, name, lambda now=now, unit=unit: now + 3600 * unit)
    assert take(windows, A, 1, 1, 60).granted == 0


class MovedClock:
    """The scripts' clock in the place of the server's own, from 2096 on, so that no key expires meanwhile."""

    SCRIPT = "{string.match(redis.call('GET', 'clock'), '(%d+) (%d+)')}"

    def __init__(self, client: Valkey) -> None:
        self._client = client
        self.now_us = 4_000_000_000 * SECOND

    def advance(self, us: int) -> None:
        self.now_us += us
        self._client.set("clock", f"{self.now_us // SECOND} {self.now_us % SECOND}")


@pytest.fixture(scope="module")
def client(valkey: Cache) -> Iterator[Valkey]:
    with Valkey.from_url(valkey.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def clock(client: Valkey) -> Iterator[MovedClock]:
    assert valkey_storage._TAKE.count("redis.call('TIME')") == 1
    script = valkey_storage._TAKE.replace("redis.call('TIME')", MovedClock.SCRIPT)
    with patch.object(valkey_storage, "_TAKE", script), patch.object(valkey_storage, "MAX_CALLS", MOST):
        yield MovedClock(client)


def test_refused_calls_use_up_nothing_and_say_when_to_come_back(server: ValkeyServer, clock: MovedClock) -> None:
    windows = ValkeyWindows(server, uuid.uuid4().hex, LONGEST_S)
    clock.advance(0)
    both = windows.take({A: 3, B: 1}, 2, 10)
    assert both == {A: Taken(2, 0, 10 * SECOND), B: Taken(1, 1, 10 * SECOND)}
    for passed_s in range(1, 10):
        clock.advance(SECOND)
        assert take(windows, A, 5, 2, 10) == Taken(0, 0, (10 - passed_s) * SECOND)
    clock.advance(SECOND - 1)
    assert take(windows, A, 5, 2, 10) == Taken(0, 0, 1)
    clock.advance(1)
    assert take(windows, A, 5, 2, 10) == Taken(2, 0, 10 * SECOND)


def test_where_others_were_allowed_more_the_wait_is_until_fewer_than_the_limit_are_left(
    server: ValkeyServer, clock: MovedClock
) -> None:
    windows = ValkeyWindows(server, uuid.uuid4().hex, LONGEST_S)
    for _ in range(3):
        clock.advance(SECOND)
        assert take(windows, A, 1, 3, 10).granted == 1
    assert take(windows, A, 1, 3, 10) == Taken(0, 0, 8 * SECOND)
    assert take(windows, A, 1, 2, 10) == Taken(0, 0, 9 * SECOND)
    assert take(windows, A, 1, 1, 10) == Taken(0, 0, 10 * SECOND)


def test_a_log_holds_what_a_limit_can_ask_for_and_no_call_more(
    server: ValkeyServer, client: Valkey, clock: MovedClock
) -> None:
    namespace = uuid.uuid4().hex
    windows = ValkeyWindows(server, namespace, LONGEST_S)
    for _ in range(3):
        clock.advance(SECOND)
        assert take(windows, A, 4, 4, 1).granted == 4
    assert client.llen(cache_limit_key(namespace, A)) == MOST
    assert take(windows, A, 1, MOST, 10).granted == 0


def test_a_clock_that_steps_back_lets_no_time_pass(server: ValkeyServer, clock: MovedClock) -> None:
    windows = ValkeyWindows(server, uuid.uuid4().hex, LONGEST_S)
    clock.advance(0)
    assert take(windows, A, 2, 3, 10).granted == 2
    clock.advance(-3600 * SECOND)
    assert take(windows, A, 1, 3, 10) == Taken(1, 0, 3610 * SECOND)
    assert take(windows, A, 1, 3, 10) == Taken(0, 0, 3610 * SECOND)
    clock.advance(3605 * SECOND)
    assert take(windows, A, 1, 1, 10) == Taken(0, 0, 5 * SECOND), "the newest did not go before the others"
    clock.advance(5 * SECOND - 1)
    assert take(windows, A, 1, 3, 10) == Taken(0, 0, 1)
    clock.advance(1)
    assert take(windows, A, 3, 3, 10).granted == 3


# The clock is put in place once for all examples, each of which has a log of its own and later times.
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=steps(pauses | steps_back))
def test_each_call_is_judged_by_its_own_numbers_over_all_that_was_allowed(
    server: ValkeyServer, client: Valkey, clock: MovedClock, calls: list[Step]
) -> None:
    """The script and the plain model agree on everything, also while the server's clock is back."""
    model, namespace = Model(), uuid.uuid4().hex
    windows = ValkeyWindows(server, namespace, LONGEST_S)
    for step in calls:
        clock.advance(step.pause_us)
        taken = take(windows, step.key, step.wanted, step.limit, step.window_s)
        assert taken == model.take(step, clock.now_us)
        assert taken.reset_after_us > 0
        key = cache_limit_key(namespace, step.key)
        log = [int(moment) for moment in cast(list[str], client.lrange(key, 0, -1))]
        assert len(log) <= MOST
        assert log == model.allowed[step.key][-len(log) :]
        lives_until_us = client.pexpiretime(key) * 1000
        assert log[-1] + LONGEST_S * SECOND <= lives_until_us < log[-1] + LONGEST_S * SECOND + 1000


def test_a_server_that_is_gone_is_left_alone_for_a_moment_and_found_again(
    tmp_path_factory: pytest.TempPathFactory, target: Target
) -> None:
    home = tmp_path_factory.mktemp("other")
    clock = [0.0]
    with Cache(home=home, log=home / "log") as cache:
        server = ValkeyServer(cache.url, lambda: clock[0])
        counts, windows = ValkeyCounts(server, likes_form("n"), 1000), ValkeyWindows(server, "n", 60)
        assert counts.peek([target], now_ms()) is not None
        cache.stop()
        assert counts.peek([target], now_ms()) is None
        counts.fill([(target, 1, Count({"like": 1}, now_ms()))])
        assert not server.ping()
        assert windows.take({A: 1}, 1, 1) is None
        cache.start()
        assert counts.peek([target], now_ms()) is None
        clock[0] += 1.1
        assert counts.peek([target], now_ms()) is not None
