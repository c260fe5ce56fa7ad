"""The reconciler over real tables: what it finds, and that it changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tallymark import likes
from tallymark.errors import InvalidRequest
from tallymark.model import LikeKey, Target
from tests.bench.events import function
from tests.integration.conftest import Tables
from tests.integration.streams import Context, batch, record


@pytest.fixture
def recount(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> Any:
    handler = function("reconciler").handler
    monkeypatch.setitem(handler.__globals__, "SETTLE_S", 0.05)

    def recount(target: Target) -> dict[str, Any]:
        answer: dict[str, Any] = handler({"item": {"item_type": "post", "item_id": target.item_id}}, Context())
        return answer

    return recount


def like(tables: Tables, target: Target, users: int, reaction: str = "like") -> None:
    for n in range(users):
        likes.like(tables.likes, LikeKey(f"user-{n}", target, reaction), at_ms=n)


def count(target: Target, users: int, reaction: str = "like") -> None:
    function("aggregator").handler(
        batch([record(target, f"user-{n}", reaction=reaction) for n in range(users)]), Context()
    )


def test_an_exact_count_has_no_drift(tables: Tables, recount: Any, target: Target) -> None:
    like(tables, target, 3)
    like(tables, target, 2, "👍")
    count(target, 3)
    count(target, 2, "👍")
    found = recount(target)
    assert found["counted"] == found["recorded"] == {"like": 3, "👍": 2}
    assert (found["drift"], found["settled"]) == ({}, True)


@pytest.mark.parametrize(
    ("recorded", "counted", "drift"), [(3, 5, {"like": 2}), (3, 0, {"like": -3}), (0, 1, {"like": 1})]
)
def test_drift_is_found_and_left_as_it_is(
    tables: Tables, recount: Any, target: Target, recorded: int, counted: int, drift: dict[str, int]
) -> None:
    like(tables, target, recorded)
    if counted:
        count(target, counted)
    for _ in range(2):
        found = recount(target)
        assert (found["drift"], found["settled"]) == (drift, True)


def test_a_like_on_its_way_is_no_drift(
    tables: Tables, recount: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    like(tables, target, 2)
    handler = function("reconciler").handler
    monkeypatch.setitem(handler.__globals__, "SETTLE_S", 0.0)
    monkeypatch.setattr(handler.__globals__["time"], "sleep", lambda _: count(target, 2))
    found = handler({"item": {"item_type": "post", "item_id": target.item_id}}, Context())
    assert (found["drift"], found["settled"]) == ({}, True)


def test_it_says_what_it_wants(tables: Tables) -> None:
    with pytest.raises(InvalidRequest, match="must be an object"):
        function("reconciler").handler({}, Context())
