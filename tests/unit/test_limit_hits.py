"""Limits that callers ask for, by the function (api.md, line by line); the windows themselves: tests/property."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tallymark.identity import new_anonymous
from tallymark.model import LimitKey
from tallymark.runtime import guard, wiring
from tests.unit.core.service import SECRET, SERVICE_KEY, Answer, Service

HIT = {"key": "ann", "limit": 3, "window_seconds": 60}
PATH = "/v1/limits/login/hit"
_, TOKEN = new_anonymous(SECRET)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    yield Service(monkeypatch)
    wiring.reset()


def hit(service: Service, path: str = PATH, **more: Any) -> dict[str, Any]:
    answer = service.call("POST", path, body={**HIT, **more})
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def test_hits_are_allowed_up_to_the_limit_and_say_when_there_is_more(service: Service) -> None:
    assert hit(service) == {"allowed": True, "remaining": 2, "reset_after_seconds": 60}
    service.clock_s = 10.25
    assert hit(service) == {"allowed": True, "remaining": 1, "reset_after_seconds": 49.75}
    assert hit(service) == {"allowed": True, "remaining": 0, "reset_after_seconds": 49.75}
    service.clock_s = 20.0
    assert [hit(service) for _ in range(5)] == [{"allowed": False, "remaining": 0, "reset_after_seconds": 40}] * 5
    service.clock_s = 60.0
    assert hit(service) == {"allowed": True, "remaining": 0, "reset_after_seconds": 10.25}


def test_each_hit_is_judged_by_its_own_numbers_over_one_log(service: Service) -> None:
    assert [hit(service, limit=2, window_seconds=1)["remaining"] for _ in range(2)] == [1, 0]
    service.clock_s = 2.0
    assert hit(service, limit=1, window_seconds=1) == {"allowed": True, "remaining": 0, "reset_after_seconds": 1}
    refused = {"allowed": False, "remaining": 0}
    assert hit(service, limit=3, window_seconds=86_400) == {**refused, "reset_after_seconds": 86_398}
    assert hit(service, limit=1, window_seconds=60) == {**refused, "reset_after_seconds": 60}, "the newest has to go"
    assert hit(service, limit=5, window_seconds=60) == {"allowed": True, "remaining": 1, "reset_after_seconds": 58}
    service.clock_s = 86_400.0
    assert hit(service, limit=3, window_seconds=86_400)["allowed"], "two went a moment ago, two are left"


def test_names_and_keys_have_logs_of_their_own(service: Service) -> None:
    others: list[tuple[str, object]] = [
        ("/v1/limits/Login/hit", "ann"), ("/v1/limits/user/hit", "ann"), ("/v1/limits/a.b:c-d_e/hit", "ann"),
        (PATH, "Ann"), (PATH, "a/n#n"), (PATH, 7), (PATH, "007"), (PATH, "👍" * 64),
    ]  # fmt: skip
    for path, key in [(PATH, "ann"), *others]:
        assert hit(service, path, key=key, limit=1)["allowed"], (path, key)
        assert not hit(service, path, key=key, limit=1)["allowed"], (path, key)
    assert not hit(service, key="7", limit=1)["allowed"], "a number is its decimal string"


def test_hits_take_nothing_from_a_persons_rate_limit_nor_likes_from_a_limit(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="1")
    like = {"user_id": "ann", "item_id": "1", "item_type": "post"}
    for path in (PATH, "/v1/limits/user/hit"):
        assert [hit(service, path, limit=2)["allowed"] for _ in range(3)] == [True, True, False]
    assert [service.call("POST", "/v1/like", body=like).status for _ in range(2)] == [200, 429]


WRONG: dict[str, list[Any]] = {
    "key": [None, "", ".", "a\tb", "x" * 257, 1.5, -1, True, [], 2**53],
    "limit": [None, 0, -1, 1_000_001, 1.5, "3", True, [3], 10**20],
    "window_seconds": [None, 0, -1, 86_401, 0.5, "60", True, {}, 10**20],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_at_fault_is_named(service: Service, field: str, value: object) -> None:
    assert service.call("POST", PATH, body={**HIT, field: value}).error == (400, "invalid_request", field)


@pytest.mark.parametrize("number", ["3.0", "3e0", "30e-1", "-0"])
def test_a_number_is_written_without_fraction_and_exponent(service: Service, number: str) -> None:
    body = f'{{"key": "ann", "window_seconds": 60, "limit": {number}}}'
    assert service.call("POST", PATH, body=body).error == (400, "invalid_request", "limit")


@pytest.mark.parametrize("name", ["@user", ".a", "-a", "_a", "a b", "é", "a%25b", "x" * 129])
def test_a_name_at_fault_is_named(service: Service, name: str) -> None:
    assert service.call("POST", f"/v1/limits/{name}/hit", body=HIT).error == (400, "invalid_request", "name")


def test_the_bounds_themselves_are_taken(service: Service) -> None:
    for limit, window_s in ((1, 1), (1_000_000, 86_400)):
        answer = hit(service, f"/v1/limits/{'x' * 128}/hit", key=limit, limit=limit, window_seconds=window_s)
        assert answer == {"allowed": True, "remaining": limit - 1, "reset_after_seconds": window_s}


def test_limits_have_one_method_and_one_path(service: Service) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = service.call(method, PATH)
        assert answer.error == (405, "method_not_allowed", None)
        assert answer.headers["allow"] == "POST"
    for path in ("/v1/limits/login", "/v1/limits/hit", "/v1/limits/login/hits", "/v1/limits/a/b/hit"):
        assert service.call("POST", path, body=HIT).error == (404, "not_found", None)


def test_in_jwt_mode_limits_are_for_services(service: Service) -> None:
    service.configure(AUTH_MODE="jwt")

    def asked(**more: Any) -> Answer:
        return service.call("POST", PATH, **{"body": HIT, **more})

    assert asked(jwt={"sub": "importer", "scope": "tallymark:service"}).json["remaining"] == 2
    assert asked(jwt={"sub": "ann"}).error == (403, "forbidden", None)
    assert asked(jwt={"sub": "ann"}, body={}).error == (403, "forbidden", None), "before what is wrong with the body"
    assert asked(headers={"Tallymark-Anonymous": TOKEN}).error == (403, "forbidden", None)
    assert asked().error == (401, "unauthorized", None)
    assert asked(headers={"Tallymark-Service-Key": SERVICE_KEY}).error == (401, "unauthorized", None)


def test_in_open_mode_limits_are_for_anybody_and_in_iam_mode_for_whoever_signs(service: Service) -> None:
    for headers in ({}, {"Tallymark-Anonymous": TOKEN}, {"Tallymark-Service-Key": SERVICE_KEY}):
        assert service.call("POST", PATH, body=HIT, headers=headers).status == 200
    service.configure(AUTH_MODE="iam")
    assert service.call("POST", PATH, body=HIT).error == (401, "unauthorized", None)
    assert service.call("POST", PATH, body=HIT, authorizer={"iam": {"userArn": "arn"}}).status == 200


class Down:
    """A cache that does not answer."""

    def run(self, *_: object) -> list[Any]:
        from tallymark.storage.valkey import ValkeyDown

        raise ValkeyDown


@pytest.mark.parametrize("cache", [None, Down()])
def test_without_valkey_a_process_judges_by_itself_or_refuses_as_the_deployment_chose(
    service: Service, monkeypatch: pytest.MonkeyPatch, cache: Down | None
) -> None:
    monkeypatch.setattr(wiring, "valkey_server", lambda: cache)
    counted: list[int] = []
    monkeypatch.setattr(guard._fallbacks, "note", lambda _, decisions: counted.append(decisions))
    assert [hit(service)["remaining"] for _ in range(3)] == [2, 1, 0]
    assert not hit(service)["allowed"]
    assert counted == [1] * 4
    wiring.reset()
    service.configure(LIMITS_WITHOUT_CACHE="closed")
    answer = service.call("POST", PATH, body=HIT)
    assert answer.error == (503, "unavailable", None)
    assert int(answer.headers["retry-after"]) >= 1
    like = {"user_id": "ann", "item_id": "1", "item_type": "post"}
    assert service.call("POST", "/v1/like", body=like).status == 200, "likes go on"


def test_a_log_of_our_own_keeps_a_minute_and_one_that_callers_ask_for_a_day(service: Service) -> None:
    key = LimitKey("login", "ann")
    for logs, longest_s in ((wiring.user_logs(), 60), (wiring.limit_logs(), 86_400)):
        assert logs.own is not None
        service.clock_s = 0.0
        assert logs.own.take({key: 1}, 1, 1)[key].granted == 1
        service.clock_s = longest_s - 1e-6
        assert logs.own.take({key: 1}, 1, longest_s)[key].granted == 0
