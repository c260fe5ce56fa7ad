"""Quotas over the real engines."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from infra.local.cache import Cache
from tallymark import quotas
from tallymark.errors import Conflict, Exhausted
from tallymark.quotas import MARK_LIFETIME_US, MAX_EXPIRY_S, Marks, ProcessMarks, Quotas
from tallymark.runtime import wiring
from tallymark.storage.quota_table import QuotaTable
from tallymark.storage.valkey import ValkeyMarks, ValkeyServer
from tests.bench.quota_race import race
from tests.hooks import hooked
from tests.integration.conftest import Tables
from tests.integration.streams import injected, lost_replies

LIFETIME_S = MARK_LIFETIME_US / 1e6


def over(tables: Tables, marks: Marks | None = None, pools: int = 3, later_ms: int = 0) -> Quotas:
    """A process, and how much later it is there."""
    process = ProcessMarks(lambda: time.monotonic_ns() // 1000)

    def now_ms() -> int:
        return wiring.now_ms() + later_ms

    return Quotas(tables.quotas, marks or process, now_ms, time.sleep, random.Random(1), pools)


@pytest.fixture
def name() -> str:
    return f"quota-{uuid.uuid4().hex}"


@pytest.fixture
def marks(valkey: Cache) -> ValkeyMarks:
    return ValkeyMarks(ValkeyServer(valkey.url), uuid.uuid4().hex)


def granted(here: Quotas, name: str, token: str, amount: int = 1) -> bool:
    try:
        quotas.acquire(here, name, token, amount)
    except Exhausted:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_at_once_get_fifty_whatever_fails_and_dies(tables: Tables, seed: int) -> None:
    """200 rounds of this: `python -m tests.bench.quota_race`."""
    outcome = race(tables.client, tables.outputs["QuotasTable"], seed)
    assert outcome.exact, outcome
    assert outcome.faults.total() > 20


def test_amounts_of_all_sizes_at_once_leave_nothing_that_would_have_fitted(tables: Tables, name: str) -> None:
    here = over(tables)
    quotas.put(here, name, 100)
    amounts = [random.Random(2).randint(1, 20) for _ in range(40)]
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda n: granted(here, name, f"token-{n}", amounts[n]), range(40)))
    used = sum(amount for amount, yes in zip(amounts, taken, strict=True) if yes)
    assert quotas.state(here, name).used == used <= 100
    assert all(amount > 100 - used for amount, yes in zip(amounts, taken, strict=True) if not yes)


def test_acquires_releases_and_limits_at_once_add_up(tables: Tables, name: str) -> None:
    here = over(tables)
    quotas.put(here, name, 30)

    def come_and_go(n: int) -> int:
        if n % 10 == 9:
            with suppress(Conflict):  # more may be used just then
                quotas.put(here, name, 28 + n % 5)
            return 0
        if not granted(here, name, f"token-{n}", 1 + n % 7):
            return 0
        return 0 if n % 2 and quotas.release(here, name, f"token-{n}") else 1 + n % 7

    with ThreadPoolExecutor(12) as pool:
        held = sum(pool.map(come_and_go, range(100)))
    assert quotas.state(here, name).used == held


@pytest.mark.parametrize("call", ["put", "acquire", "release", "confirm"])
def test_a_change_whose_reply_was_lost_is_made_once_and_said_to_be_made(tables: Tables, name: str, call: str) -> None:
    here = over(tables)
    quotas.put(here, name, 5)
    quotas.acquire(here, name, "held", 2, 60)
    with injected(tables.client, "TransactWriteItems", lost_replies(tables.client, 1)):
        match call:
            case "put":
                assert quotas.put(here, name, 6).remaining == 4
            case "acquire":
                assert quotas.acquire(here, name, "new", 2).remaining == 1
            case "release":
                assert quotas.release(here, name, "held")
            case "confirm":
                assert quotas.confirm(here, name, "held")
    used = {"put": 2, "acquire": 4, "release": 0, "confirm": 2}[call]
    assert quotas.state(here, name).used == used


def test_a_token_used_by_many_at_once_is_one_grant(tables: Tables, name: str) -> None:
    here = over(tables)
    quotas.put(here, name, 50)
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda _: granted(here, name, "token", 3), range(40)))
        released = list(pool.map(lambda _: quotas.release(here, name, "token"), range(40)))
    assert released.count(True) == 1
    assert quotas.state(here, name).used == 0


def test_reservations_that_fall_due_are_taken_back_once_by_whoever_comes(tables: Tables, name: str) -> None:
    here = over(tables)
    quotas.put(here, name, 100)
    for n in range(100):
        quotas.acquire(here, name, f"reserved-{n}", 1, MAX_EXPIRY_S)
    assert not granted(here, name, "early")
    tomorrow = over(tables, later_ms=MAX_EXPIRY_S * 1000)
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda n: granted(tomorrow, name, f"late-{n}"), range(20)))
    assert quotas.state(tomorrow, name).used == 20
    assert granted(tomorrow, name, "rest", 80)
    assert not granted(tomorrow, name, "too late")
    assert quotas.state(tomorrow, name).used == 100


def test_a_quota_keeps_its_pools_when_the_setting_changes(tables: Tables, name: str) -> None:
    quotas.put(over(tables, pools=6), name, 60)
    for pools in (2, 9):
        table = QuotaTable(tables.client, tables.outputs["QuotasTable"], ThreadPoolExecutor(4), pools)
        ledger, _ = table.read(name)
        assert ledger is not None
        assert [pool.free for pool in ledger.pools] == [10] * 6


def test_a_grant_costs_four_write_units_and_a_refusal_none(tables: Tables, name: str) -> None:
    here = over(tables)
    quotas.put(here, name, 1)
    with write_units(tables.client) as written:
        assert granted(here, name, "a")
        assert written == [4]
        assert not granted(here, name, "b")
        assert written == [4]


@contextmanager
def write_units(client: Any) -> Iterator[list[float]]:
    """Of each transaction meanwhile."""
    units: list[float] = []

    def ask(params: Any, **_: Any) -> None:
        params["ReturnConsumedCapacity"] = "TOTAL"

    def note(parsed: Any, **_: Any) -> None:
        units.extend(one["CapacityUnits"] for one in parsed["ConsumedCapacity"])

    call = "dynamodb.TransactWriteItems"
    with hooked(client, {f"before-parameter-build.{call}": ask, f"after-call.{call}": note}):
        yield units


# --- marks ------------------------------------------------------------------------------------------------------


def seen(marks: ValkeyMarks, remaining: int) -> int | None:
    """What is seen of a mark that is put; again where the machine was so slow that it was over."""
    for _ in range(20):
        marks.put("seats", remaining, marks.peek("seats"), MARK_LIFETIME_US)
        if (found := marks.peek("seats").remaining) is not None:
            return found
    return None


def test_a_mark_is_seen_by_all_and_ends_by_itself(marks: ValkeyMarks) -> None:
    assert seen(marks, 2**53 - 1) == 2**53 - 1
    time.sleep(LIFETIME_S)
    assert marks.peek("seats").remaining is None


def test_a_mark_lives_as_long_as_it_was_given(marks: ValkeyMarks) -> None:
    marks.put("seats", 0, marks.peek("seats"), 1_000)
    time.sleep(0.002)
    assert marks.peek("seats").remaining is None


def test_a_return_takes_the_mark_away_and_no_older_one_comes_after_it(marks: ValkeyMarks) -> None:
    asked = marks.peek("seats")
    marks.put("seats", 0, asked, MARK_LIFETIME_US)
    marks.clear("seats")
    assert marks.peek("seats").remaining is None
    marks.put("seats", 0, asked, MARK_LIFETIME_US)
    assert marks.peek("seats").remaining is None
    assert seen(marks, 1) == 1


def test_without_valkey_nothing_fails_and_nothing_is_remembered(tables: Tables, name: str) -> None:
    here = over(tables, ValkeyMarks(ValkeyServer("valkey://127.0.0.1:1"), "nobody"))
    quotas.put(here, name, 1)
    assert granted(here, name, "a")
    assert not granted(here, name, "b")
    assert quotas.release(here, name, "a")
    assert granted(here, name, "b")


@pytest.fixture
def deaf(tables: Tables) -> Quotas:
    """A process whose messages to Valkey are lost."""
    return over(tables, ValkeyMarks(ValkeyServer("valkey://127.0.0.1:1"), "nobody"))


def test_what_is_released_can_be_had_at_once_and_within_a_second_if_valkey_does_not_hear_of_it(
    tables: Tables, marks: ValkeyMarks, deaf: Quotas, name: str
) -> None:
    here = over(tables, marks)
    quotas.put(here, name, 1)
    for holder, next_one, process in (("a", "b", here), ("b", "c", deaf)):
        assert granted(here, name, holder)
        # Again where the machine was so slow that the mark is over.
        assert any(not granted(here, name, next_one) and marks.peek(name).remaining == 0 for _ in range(20))
        assert quotas.release(process, name, holder)
        if process is deaf:
            time.sleep(1.0)
        assert granted(here, name, next_one)
