"""The limit of a person's calls, and the limits that callers ask for, from many callers at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import Api, eventually

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


# --- limits that callers ask for --------------------------------------------------------------------------------

HIT = {"limit": 3, "window_seconds": 60}


def test_hits_are_allowed_up_to_the_limit(api: Api, user: str) -> None:
    path, hit = "/v1/limits/login/hit", {**HIT, "key": user}
    if api.cache is None:
        pytest.skip("without Valkey each process of a function judges by itself")
    answers = [api.post(path, hit) for _ in range(4)]
    assert [(made["allowed"], made["remaining"]) for made in answers] == [(True, 2), (True, 1), (True, 0), (False, 0)]
    for made in answers:
        assert set(made) == {"allowed", "remaining", "reset_after_seconds"}
        assert 0 < made["reset_after_seconds"] <= 60
    assert api.post(path, {**hit, "limit": 5})["remaining"] == 1, "each is judged by its own numbers"
    assert not api.post(path, {**hit, "limit": 4})["allowed"]
    assert api.post("/v1/limits/other/hit", hit)["remaining"] == 2
    assert api.post(path, {**hit, "key": f"{user}/#"})["remaining"] == 2


def test_a_limit_slides(api: Api, user: str) -> None:
    if api.cache is None:
        pytest.skip("without Valkey each process of a function judges by itself")
    path, hit = "/v1/limits/login/hit", {"key": user, "limit": 2, "window_seconds": 2}
    assert [api.post(path, hit)["allowed"] for _ in range(2)] == [True, True]
    refused = api.post(path, hit)
    assert not refused["allowed"]
    time.sleep(refused["reset_after_seconds"])
    assert api.post(path, hit)["allowed"], "after the time that was named"
    day = {**hit, "limit": 1000, "window_seconds": 86_400}
    assert api.post(path, day)["remaining"] == 1000 - 3 - 1, "hits with a short window made none forget"


def test_fifty_callers_of_one_limit_get_it_and_not_a_hit_more(api: Api, user: str) -> None:
    if api.cache is None:
        pytest.skip("without Valkey each process of a function judges by itself")
    hit = {"key": user, "limit": LIMIT, "window_seconds": 600}
    with ThreadPoolExecutor(CALLERS if api.at_once > 4 else api.at_once) as pool:
        answers = list(pool.map(lambda _: api.post("/v1/limits/storm/hit", hit), range(LIMIT + 50)))
    assert sum(made["allowed"] for made in answers) == LIMIT
    allowed = [made["remaining"] for made in answers if made["allowed"]]
    assert sorted(allowed) == list(range(LIMIT)), "each remainder is told once"


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("/v1/limits/login/hit", {"key": None}, "key"),
        ("/v1/limits/login/hit", {"limit": 0}, "limit"),
        ("/v1/limits/login/hit", {"limit": 1_000_001}, "limit"),
        ("/v1/limits/login/hit", {"limit": 1.0}, "limit"),
        ("/v1/limits/login/hit", {"window_seconds": 0}, "window_seconds"),
        ("/v1/limits/login/hit", {"window_seconds": 86_401}, "window_seconds"),
        ("/v1/limits/login/hit", {"window_seconds": "60"}, "window_seconds"),
        ("/v1/limits/.login/hit", {}, "name"),
        ("/v1/limits/log%20in/hit", {}, "name"),
        (f"/v1/limits/{'x' * 129}/hit", {}, "name"),
    ],
)
def test_what_is_wrong_with_a_hit_is_named(api: Api, user: str, path: str, change: Item, field: str) -> None:
    status, body = api.call("POST", path, {**HIT, "key": user, **change})
    assert (status, body["error"]["code"], body["error"].get("field")) == (400, "invalid_request", field)


def test_limits_answer_other_methods_and_paths_in_the_shape_of_all_errors(api: Api) -> None:
    for method in ("GET", "PUT", "DELETE"):
        status, body = api.call(method, "/v1/limits/login/hit")
        assert (status, body["error"]["code"]) == (405, "method_not_allowed")
    for path in ("/v1/limits/login", "/v1/limits/login/hits"):
        status, body = api.call("POST", path, {**HIT, "key": "1"})
        assert (status, body["error"]["code"]) == (404, "not_found")


IN_PROCESS = pytest.mark.parametrize("api", ["in_process"], indirect=True)


@IN_PROCESS
def test_without_valkey_hits_are_judged_by_the_process_and_nothing_fails(api: Api, user: str) -> None:
    hit = {**HIT, "key": user}
    assert api.cache is not None
    api.cache.stop()
    try:
        answers = [api.post("/v1/limits/login/hit", hit) for _ in range(4)]
    finally:
        api.cache.start()
        eventually(lambda: api.get("/health")["status"], "ok")
    assert [made["allowed"] for made in answers] == [True, True, True, False]
