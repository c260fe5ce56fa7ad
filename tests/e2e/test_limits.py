"""The limit of a person's calls, from many callers at once: single calls and batches draw from one window."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import Api

Item = dict[str, Any]
CALLERS = 50
SINGLES, BATCHES, IN_A_BATCH = 120, 8, 10
LIMIT = 100


def test_fifty_callers_of_one_person_get_the_limit_and_not_a_call_more(api: Api, item: Item, user: str) -> None:
    """Deployed, fewer callers meet several processes of the function, which share nothing but Valkey."""
    if api.cache is None:
        pytest.skip("without Valkey each process of a function has a limit of its own")
    like = {"user_id": user, **item}

    def single(n: int) -> int:
        path, body = ("/v1/toggle", {**like, "like": bool(n % 4)}) if n % 2 else ("/v1/like", like)
        status, _ = api.call("POST", path, body)
        return int(status == 200)

    def batch(n: int) -> int:
        entries = [{"action": "like", **like, "item_id": f"{item['item_id']}-{n}-{i}"} for i in range(IN_A_BATCH)]
        results = api.post("/v1/batch", {"operations": entries})["results"]
        assert {result["status"] for result in results} <= {200, 429}
        return sum(result["status"] == 200 for result in results)

    calls: list[tuple[Callable[[int], int], int]] = [(single, n) for n in range(SINGLES)]
    for n in range(BATCHES):
        calls.insert(n * 16, (batch, n))
    with ThreadPoolExecutor(CALLERS if api.at_once > 4 else api.at_once) as pool:
        allowed = list(pool.map(lambda call: call[0](call[1]), calls))
    assert sum(allowed) == LIMIT
    assert api.call("POST", "/v1/like", like)[0] == 429
    assert api.call("POST", "/v1/like", {**like, "user_id": f"{user}-other"})[0] == 200, "nobody else is held back"
