"""Quotas over HTTP, in this process and as deployed functions."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import Api, eventually


@pytest.fixture
def path() -> str:
    return f"/v1/quotas/seats:{uuid.uuid4().hex}"


def acquire(api: Api, path: str, token: str, amount: int = 1, **more: Any) -> tuple[int, Any]:
    return api.call("POST", f"{path}/acquire", {"amount": amount, "token": token, **more})


def test_a_quota_is_taken_and_given_back(api: Api, path: str) -> None:
    name = path.removeprefix("/v1/quotas/")
    assert api.call("GET", path)[0] == 404
    assert api.call("PUT", path, {"limit": 5}) == (200, {"name": name, "limit": 5, "used": 0, "remaining": 5})
    assert acquire(api, path, "a", 3) == (200, {"granted": True, "remaining": 2})
    assert acquire(api, path, "a", 3) == (200, {"granted": True, "remaining": 2})
    status, refusal = acquire(api, path, "b", 3)
    assert (status, refusal["error"]["code"]) == (409, "exhausted")
    assert api.get(path) == {"name": name, "limit": 5, "used": 3, "remaining": 2}
    assert api.call("PUT", path, {"limit": 2})[1]["error"]["code"] == "conflict"
    assert api.post(f"{path}/release", {"token": "a"}) == {"released": True}
    assert api.post(f"{path}/release", {"token": "a"}) == {"released": False}
    assert acquire(api, path, "a", 3)[1]["error"]["code"] == "conflict"
    eventually(lambda: acquire(api, path, "b", 3)[0], 200, seconds=2.0)


def test_more_at_once_than_there_is_get_all_that_there_is(api: Api, path: str) -> None:
    api.call("PUT", path, {"limit": 15})

    def ask(n: int) -> bool:
        while (status := acquire(api, path, f"token-{n}")[0]) == 503:
            time.sleep(0.1)
        assert status in (200, 409)
        return status == 200

    with ThreadPoolExecutor(api.at_once) as pool:
        granted = list(pool.map(ask, range(40)))
    assert granted.count(True) == 15
    assert api.get(path)["remaining"] == 0


def test_a_reservation_ends_by_itself_unless_it_is_confirmed(api: Api, path: str) -> None:
    api.call("PUT", path, {"limit": 2})
    assert "expires_at" in acquire(api, path, "kept", expires_in_seconds=60)[1]
    assert api.post(f"{path}/confirm", {"token": "kept"}) == {"confirmed": True}
    acquire(api, path, "left", expires_in_seconds=1)
    eventually(lambda: api.get(path)["used"], 1)
    assert api.post(f"{path}/confirm", {"token": "left"}) == {"confirmed": False}
