"""The shared cache and the sliding windows over a real Valkey."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.local.cache import Cache
from tallymark.counts import ProcessCache, Sources, counts_of
from tallymark.model import Count, Target
from tallymark.storage.valkey import ValkeyCounts, ValkeyDown, ValkeyServer, ValkeyWindows, likes_form
from tests.integration.conftest import new_target

LikeCounts = ValkeyCounts[Target, Count]


@pytest.fixture
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


def test_a_window_allows_its_limit_and_no_call_more_under_concurrency(server: ValkeyServer) -> None:
    windows = [ValkeyWindows(server, uuid.uuid4().hex, "user") for _ in range(1)] * 8
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda n: windows[n % 8].take({"someone": 1}, 50, 60)["someone"].granted, range(200)))
    assert sum(taken) == 50


def test_refused_calls_use_up_nothing_and_say_when_to_come_back(server: ValkeyServer) -> None:
    windows = ValkeyWindows(server, uuid.uuid4().hex, "user")
    assert windows.take({"a": 3, "b": 1}, 2, 1)["a"].granted == 2
    refused = windows.take({"a": 5}, 2, 1)["a"]
    assert refused.granted == 0
    assert 0 < refused.retry_after_s <= 1
    time.sleep(refused.retry_after_s + 0.01)
    assert windows.take({"a": 5}, 2, 1)["a"].granted == 2


def test_a_server_that_is_gone_is_left_alone_for_a_moment_and_found_again(
    tmp_path_factory: pytest.TempPathFactory, target: Target
) -> None:
    home = tmp_path_factory.mktemp("other")
    clock = [0.0]
    with Cache(home=home, log=home / "log") as cache:
        server = ValkeyServer(cache.url, lambda: clock[0])
        counts, windows = ValkeyCounts(server, likes_form("n"), 1000), ValkeyWindows(server, "n", "user")
        assert counts.peek([target], now_ms()) is not None
        cache.stop()
        assert counts.peek([target], now_ms()) is None
        counts.fill([(target, 1, Count({"like": 1}, now_ms()))])
        assert not server.ping()
        with pytest.raises(ValkeyDown):
            windows.take({"a": 1}, 1, 1)
        cache.start()
        assert counts.peek([target], now_ms()) is None
        clock[0] += 1.1
        assert counts.peek([target], now_ms()) is not None
