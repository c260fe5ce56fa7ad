"""Quotas under any interleaving: never more granted than the limit, and no refusal while enough remained.

tests/property/quota_steps.py says what may happen between two steps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark import quotas
from tallymark.errors import Conflict, Exhausted, Unavailable
from tallymark.quotas import Granted, Ledger, Pool, Quotas, State, draw, shares
from tests.property.quota_steps import NAME, Call, World

Work = Callable[[Quotas], Any]
Asked = tuple[str, Any]  # what, and with which token or limit

tokens = st.sampled_from("abcdef")
asked = st.one_of(
    st.tuples(st.just("acquire"), st.tuples(tokens, st.integers(1, 5), st.sampled_from([None, None, 1]))),
    st.tuples(st.just("acquire"), st.tuples(tokens, st.integers(1, 2), st.sampled_from([None, None, 1]))),
    st.tuples(st.just("release"), tokens),
    st.tuples(st.just("confirm"), tokens),
    st.tuples(st.just("put"), st.integers(0, 12)),
    st.tuples(st.just("state"), st.none()),
)
rounds = st.lists(st.lists(asked, min_size=1, max_size=5), min_size=1, max_size=3)


def work(what: str, given_: Any) -> Work:
    match what:
        case "acquire":
            return lambda q: quotas.acquire(q, NAME, *given_)
        case "release":
            return lambda q: quotas.release(q, NAME, given_)
        case "confirm":
            return lambda q: quotas.confirm(q, NAME, given_)
        case "put":
            return lambda q: quotas.put(q, NAME, given_)
    return lambda q: quotas.state(q, NAME)


def check(world: World, what: str, given_: Any, call: Call) -> None:
    """That what a call was told was so at some moment of the call.

    With marks: of its round. What was given back before that is known, but not yet what is being given back.
    """
    during = world.history[world.round_began if world.marked else call.began : call.ended + 1]
    match call.outcome:
        case AssertionError():
            raise call.outcome
        case Exhausted():
            assert min(truth.remaining(call.began_ms) for truth in during) < given_[1]
        case Conflict() if what == "put":
            assert min(truth.remaining(call.began_ms) + given_ - truth.limit for truth in during) < 0
        case Granted(grant, remaining):
            assert any(given_[0] in truth.held for truth in during)
            assert remaining >= 0
            assert grant.token == given_[0]
        case State(limit, remaining):
            assert 0 <= remaining <= limit
        case Conflict() | Unavailable() | bool() | None:
            pass
        case unexpected:
            raise AssertionError(unexpected)


@settings(deadline=None)
@given(
    rounds,
    st.integers(0, 10),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.sampled_from([(0.0, False), (0.0, True), (0.02, False)]),
)
def test_no_interleaving_grants_too_much_or_refuses_too_early(
    asked_in_rounds: list[list[Asked]], limit: int, pools: int, seed: int, trouble_marked: tuple[float, bool]
) -> None:
    """Marks only without trouble: who dies after giving back cannot tell them."""
    trouble, marked = trouble_marked
    world = World(limit, pools, seed, crashes=trouble, lost=trouble, marked=marked)
    released: Counter[str] = Counter()
    granted: dict[str, int] = {}
    for asked_now in asked_in_rounds:
        calls = world.run([work(what, given_) for what, given_ in asked_now])
        for (what, given_), call in zip(asked_now, calls, strict=True):
            check(world, what, given_, call)
            if isinstance(call.outcome, Granted):
                assert granted.setdefault(given_[0], call.outcome.grant.amount) == call.outcome.grant.amount
            released[given_] += what == "release" and call.outcome is True
        world.now_ms += 700
    assert all(times <= 1 for times in released.values()), "released twice"
    ledger = world.ledger()
    assert ledger.whole
    assert ledger.limit == world.truth.limit
    assert ledger.free == world.truth.limit - sum(held.amount for held in world.truth.held.values())
    assert all(pool.free >= 0 for pool in ledger.pools)


def tight(seed: int) -> tuple[World, list[Asked]]:
    """Few units, some of them held, and calls that add and take at the same time: where a refusal goes wrong.

    Reservations are as they were made, about to end, or over. Every other world has marks, some from before.
    """
    rng = random.Random(seed)
    world = World(rng.randint(1, 4), pools=rng.randint(2, 3), seed=seed, marked=seed % 2 == 1)
    holders = [f"holder-{n}" for n in range(rng.randint(1, 3))]
    for token in holders:
        world.run([work("acquire", (token, rng.randint(1, 3), rng.choice([None, 1])))])
    ends = [held.expires_ms for held in world.truth.held.values() if held.expires_ms is not None]
    if ends and rng.random() < 0.7:
        world.now_ms = min(ends) + rng.choice([-20, -10, 100])
    if world.marked:
        world.run([work("acquire", ("early", rng.randint(1, 4), None))])
    asked: list[Asked] = [("acquire", (f"new-{n}", rng.randint(1, 3), None)) for n in range(rng.randint(2, 3))]
    asked += [("release", token) for token in holders if rng.random() < 0.7]
    asked += [("put", rng.randint(1, 8))] if rng.random() < 0.4 else []
    asked += [("confirm", rng.choice(holders))] if rng.random() < 0.4 else []
    asked += asked[:1] if rng.random() < 0.3 else []
    return world, asked


def test_a_thousand_tight_worlds_hold() -> None:
    """The seed of a world that does not is in the message."""
    for seed in range(1000):
        world, asked = tight(seed)
        try:
            for (what, given_), call in zip(asked, world.run([work(*one) for one in asked]), strict=True):
                check(world, what, given_, call)
                if what == "confirm" and call.outcome is True and ("release", given_) not in asked:
                    assert given_ in world.truth.held
            assert world.ledger().free == world.truth.remaining(0)
        except AssertionError as failure:
            raise AssertionError(f"world {seed}") from failure


def crowded(seed: int) -> tuple[World, list[Asked]]:
    """Many reservations, most of them over, and calls that want what several of them held."""
    rng = random.Random(seed)
    trouble = 0.02 if seed % 4 == 0 else 0.0
    world = World(rng.randint(4, 12), rng.randint(1, 3), seed, crashes=trouble, lost=trouble, marked=seed % 2 == 1)
    holders = [f"holder-{n}" for n in range(rng.randint(3, 8))]
    for token in holders:
        world.run([work("acquire", (token, rng.randint(1, 3), 1))])
    ends = [held.expires_ms for held in world.truth.held.values() if held.expires_ms is not None]
    if ends:
        world.now_ms = rng.choice([max(ends), max(ends), min(ends)]) + rng.choice([-20, -5, 0, 5, 100])
    asked: list[Asked] = [("acquire", (f"new-{n}", rng.randint(1, 8), None)) for n in range(rng.randint(1, 3))]
    asked += [("state", None)] * rng.randint(0, 2)
    asked += [(rng.choice(["release", "confirm"]), token) for token in holders if rng.random() < 0.3]
    asked += [("put", rng.randint(1, 12))] if rng.random() < 0.4 else []
    return world, asked


def test_three_hundred_crowded_worlds_hold() -> None:
    """The seed of a world that does not is in the message."""
    for seed in range(300):
        world, asked = crowded(seed)
        try:
            for (what, given_), call in zip(asked, world.run([work(*one) for one in asked]), strict=True):
                check(world, what, given_, call)
            assert world.ledger().whole
            assert world.ledger().free == world.truth.remaining(0)
        except AssertionError as failure:
            raise AssertionError(f"world {seed}") from failure


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 2**32))
def test_many_at_once_get_the_limit_to_the_last_unit(limit: int, pools: int, seed: int) -> None:
    """With crashes: those that got no answer ask again with their token."""
    world = World(limit, pools, seed, crashes=0.01, lost=0.05)
    waiting = [f"token-{n}" for n in range(2 * limit)]
    granted, refused = set(), set()
    while waiting:
        now, waiting = waiting[:12], waiting[12:]
        for token, call in zip(now, world.run([work("acquire", (token, 1)) for token in now]), strict=True):
            check(world, "acquire", (token, 1), call)
            match call.outcome:
                case Granted():
                    granted.add(token)
                case Exhausted():
                    refused.add(token)
                case _:
                    waiting.append(token)
    assert (len(granted), len(refused)) == (limit, limit)
    assert world.ledger().free == 0


@given(st.integers(0, 2**53), st.integers(1, 64))
def test_shares_differ_by_one_at_most_and_add_up(total: int, pools: int) -> None:
    split = shares(total, pools)
    assert sum(split) == total
    assert max(split) - min(split) <= 1
    assert shares(5, 3) == [2, 2, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 40), st.integers())
def test_what_is_drawn_is_there_and_comes_from_one_pool_where_it_can(free: list[int], amount: int, seed: int) -> None:
    parts = draw(Ledger(99, 1, tuple(Pool(n, 0, 1) for n in free)), amount, random.Random(seed))
    if parts is None:
        assert sum(free) < amount
        return
    assert sum(parts.values()) == amount
    assert all(0 <= part <= free[pool] for pool, part in parts.items())
    assert set(parts) == set(range(len(free))) if max(free) < amount else len(parts) == 1
