"""Quotas, as callers meet them: the real rules and adapter over the simulated engine, without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tallymark import quotas
from tallymark.identity import new_anonymous
from tallymark.quotas import MARK_LIFETIME_US, ProcessMarks
from tallymark.runtime import wiring
from tests.unit.core.service import NOW_MS, SECRET, Answer, Service

Json = dict[str, Any]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    yield Service(monkeypatch)
    wiring.reset()


def put(service: Service, limit: Any, name: str = "seats") -> Answer:
    return service.call("PUT", f"/v1/quotas/{name}", body={"limit": limit})


def post(service: Service, call: str, body: Json, name: str = "seats") -> Answer:
    return service.call("POST", f"/v1/quotas/{name}/{call}", body=body)


def acquire(service: Service, token: str, amount: int = 1, **more: Any) -> Answer:
    return post(service, "acquire", {"amount": amount, "token": token, **more})


def used(service: Service) -> int:
    answer = service.call("GET", "/v1/quotas/seats").json
    assert answer["used"] + answer["remaining"] == answer["limit"]
    return int(answer["used"])


def pools(service: Service) -> list[int]:
    items = service.quotas_database.table("quotas").items
    return [int(item["units"]["N"]) for (_, sk), item in sorted(items.items()) if sk == "pool"]


def test_a_limit_is_split_evenly_over_the_pools(service: Service) -> None:
    assert put(service, 5).json == {"name": "seats", "limit": 5, "used": 0, "remaining": 5}
    assert pools(service) == [2, 2, 1]


def test_what_is_granted_is_used_until_it_is_released_once(service: Service) -> None:
    put(service, 5)
    assert acquire(service, "a", 2).json == {"granted": True, "remaining": 3}
    assert post(service, "release", {"token": "a"}).json == {"released": True}
    assert post(service, "release", {"token": "a"}).json == {"released": False}
    assert used(service) == 0
    assert acquire(service, "a", 2).error == (409, "conflict", "token")


def test_a_repeated_token_answers_the_first_grant_and_what_remains_now(service: Service) -> None:
    put(service, 5)
    acquire(service, "a", 2)
    acquire(service, "b", 1)
    assert acquire(service, "a", 5).json == {"granted": True, "remaining": 2}
    assert used(service) == 3


def test_an_amount_that_no_single_pool_has_comes_from_several_and_goes_back_whole(service: Service) -> None:
    put(service, 5)
    assert acquire(service, "a", 4).json == {"granted": True, "remaining": 1}
    assert acquire(service, "b", 2).error == (409, "exhausted", "amount")
    assert post(service, "release", {"token": "a"}).json == {"released": True}
    assert pools(service) == [2, 2, 1]


def test_a_token_that_was_refused_may_try_again(service: Service) -> None:
    put(service, 1)
    acquire(service, "a")
    assert acquire(service, "b").error == (409, "exhausted", "amount")
    post(service, "release", {"token": "a"})
    assert acquire(service, "b").status == 200


def test_a_release_before_its_acquire_is_false_and_blocks_nothing(service: Service) -> None:
    put(service, 1)
    assert post(service, "release", {"token": "a"}).json == {"released": False}
    assert acquire(service, "a").status == 200


def test_a_token_belongs_to_its_quota_and_is_compared_as_sent(service: Service) -> None:
    put(service, 9)
    put(service, 9, "beds")
    for token in ("a", "A", "é", "e\u0301", "a#b", "#", " ", "\t"):
        assert acquire(service, token).status == 200
    assert used(service) == 8
    assert post(service, "acquire", {"amount": 9, "token": "a"}, "beds").json == {"granted": True, "remaining": 0}


def test_a_limit_rises_and_falls_but_not_below_what_is_used(service: Service) -> None:
    put(service, 5)
    acquire(service, "a", 3)
    assert put(service, 2).error == (409, "conflict", "limit")
    assert put(service, 3).json == {"name": "seats", "limit": 3, "used": 3, "remaining": 0}
    assert put(service, 3).status == 200
    assert put(service, 12).json["remaining"] == 9
    assert pools(service) == [3, 3, 3], "what is free is spread anew"
    assert put(service, 2**53 - 1).json["remaining"] == 2**53 - 4
    assert acquire(service, "b", 2**53 - 4).json["remaining"] == 0


def test_a_quota_of_nothing_refuses_everything(service: Service) -> None:
    assert put(service, 0).status == 200
    assert acquire(service, "a").error == (409, "exhausted", "amount")


def test_a_reservation_ends_by_itself_unless_it_is_confirmed(service: Service) -> None:
    put(service, 2)
    reserved = acquire(service, "a", expires_in_seconds=10).json
    assert reserved == {"granted": True, "remaining": 1, "expires_at": "2026-01-31T12:00:10.000Z"}
    assert acquire(service, "b", expires_in_seconds=10).json["remaining"] == 0
    assert post(service, "confirm", {"token": "b"}).json == {"confirmed": True}
    assert acquire(service, "c").error == (409, "exhausted", "amount")
    service.clock_s = 9.999
    assert acquire(service, "a").status == 200
    service.clock_s = 10.0
    assert acquire(service, "a").error == (409, "conflict", "token")
    assert post(service, "confirm", {"token": "a"}).json == {"confirmed": False}
    assert acquire(service, "c").json == {"granted": True, "remaining": 0}, "taken back before refusing"
    assert post(service, "confirm", {"token": "b"}).json == {"confirmed": True}
    assert post(service, "release", {"token": "a"}).json == {"released": False}
    assert used(service) == 2


def test_a_reservation_whose_time_is_over_is_not_used(service: Service) -> None:
    put(service, 5)
    acquire(service, "a", 4, expires_in_seconds=1)
    acquire(service, "b", 1, expires_in_seconds=1)
    service.clock_s = 1.0
    assert post(service, "release", {"token": "b"}).json == {"released": False}
    assert used(service) == 0
    assert pools(service) == [2, 2, 1]
    assert put(service, 0).status == 200


def slow(service: Service, monkeypatch: pytest.MonkeyPatch, *calls: str, seconds: float = 0.02) -> None:
    """Each of these calls of the store takes so long."""
    for call in calls:
        real = getattr(service.quotas_database, call)

        def slowed(real: Any = real, **request: Any) -> Any:
            service.clock_s += seconds
            return real(**request)

        monkeypatch.setattr(service.quotas_database, call, slowed)


@pytest.mark.parametrize("asked", ["get", "put", "acquire"])
def test_hundreds_of_reservations_that_are_over_are_taken_back_within_one_call(
    service: Service, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    put(service, 400)
    for n in range(400):
        quotas.acquire(wiring.quotas(), "seats", f"cart-{n}", 1, 60)
    service.clock_s = 60.0
    slow(service, monkeypatch, "transact_write_items", "batch_get_item")
    match asked:
        case "get":
            assert service.call("GET", "/v1/quotas/seats").json["used"] == 0
        case "put":
            assert put(service, 300).json == {"name": "seats", "limit": 300, "used": 0, "remaining": 300}
        case "acquire":
            assert acquire(service, "all", 400).json == {"granted": True, "remaining": 0}
    assert not [key for key in service.quotas_database.table("quotas").items if key[0].startswith("due#")]


def test_who_finds_more_than_can_be_taken_back_in_time_is_told_to_try_again_and_gets_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, 96)
    for n in range(96):
        quotas.acquire(wiring.quotas(), "seats", f"cart-{n}", 1, 60)
    service.clock_s = 60.0
    slow(service, monkeypatch, "transact_write_items", seconds=2.0)
    assert service.call("GET", "/v1/quotas/seats").status == 503
    assert service.clock_s == 64.0, "two batches, and none is begun after 3 s"
    assert [service.call("GET", "/v1/quotas/seats").status for _ in range(3)] == [503, 503, 200]


def test_a_quota_is_told_though_one_reservation_after_the_other_ends(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, 1000)
    for n in range(300):
        service.clock_s = n * 0.02
        quotas.acquire(wiring.quotas(), "seats", f"cart-{n}", 1, 10)
    service.clock_s = 10.0
    slow(service, monkeypatch, "transact_write_items", "batch_get_item", "query")
    assert used(service) > 200


def test_what_is_taken_back_together_leaves_out_what_was_kept_or_ended_before(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their notes stayed, because the function died before it removed them."""
    put(service, 60)
    acquire(service, "split", 25, expires_in_seconds=10)
    for n in range(15):
        acquire(service, f"cart-{n}", 2, expires_in_seconds=10)
    with monkeypatch.context() as dying:
        dying.setattr(service.quotas_database, "delete_item", lambda **_: None)
        post(service, "confirm", {"token": "cart-3"})
        post(service, "release", {"token": "cart-4"})
    service.clock_s = 10.0
    assert used(service) == 2
    assert post(service, "confirm", {"token": "cart-3"}).json == {"confirmed": True}
    assert sum(pools(service)) == 58
    assert not [key for key in service.quotas_database.table("quotas").items if key[0].startswith("due#")]


def test_a_reservation_can_be_released_like_any_grant(service: Service) -> None:
    put(service, 1)
    acquire(service, "a", expires_in_seconds=10)
    assert post(service, "release", {"token": "a"}).json == {"released": True}
    service.clock_s = 20.0
    assert used(service) == 0


def test_a_reservation_that_is_confirmed_meanwhile_is_not_taken_back(service: Service) -> None:
    put(service, 1)
    acquire(service, "a", expires_in_seconds=10)
    ledgers = wiring.quotas().ledgers
    seen = ledgers.grant("seats", "a")
    assert seen is not None
    post(service, "confirm", {"token": "a"})
    assert not ledgers.give_back([seen])
    assert used(service) == 1


def test_a_grant_for_good_is_confirmed_already_and_an_unknown_token_is_not(service: Service) -> None:
    put(service, 1)
    acquire(service, "a")
    assert post(service, "confirm", {"token": "a"}).json == {"confirmed": True}
    assert post(service, "confirm", {"token": "b"}).json == {"confirmed": False}


def test_an_unknown_quota_is_not_found(service: Service) -> None:
    assert service.call("GET", "/v1/quotas/seats").error == (404, "not_found", None)
    assert acquire(service, "a").error == (404, "not_found", None)
    for call in ("release", "confirm"):
        assert post(service, call, {"token": "a"}).error == (404, "not_found", None)


@pytest.mark.parametrize(
    ("call", "body", "field"),
    [
        ("acquire", {"token": "a"}, "amount"),
        ("acquire", {"amount": 0, "token": "a"}, "amount"),
        ("acquire", {"amount": 1.0, "token": "a"}, "amount"),
        ("acquire", {"amount": "1", "token": "a"}, "amount"),
        ("acquire", {"amount": True, "token": "a"}, "amount"),
        ("acquire", {"amount": 2**53, "token": "a"}, "amount"),
        ("acquire", {"amount": 1}, "token"),
        ("acquire", {"amount": 1, "token": 7}, "token"),
        ("acquire", {"amount": 1, "token": ""}, "token"),
        ("acquire", {"amount": 1, "token": "é" * 65}, "token"),
        ("acquire", {"amount": 1, "token": "\ud800"}, "token"),
        ("acquire", {"amount": 1, "token": "a", "expires_in_seconds": 0}, "expires_in_seconds"),
        ("acquire", {"amount": 1, "token": "a", "expires_in_seconds": 86_401}, "expires_in_seconds"),
        ("release", {}, "token"),
        ("confirm", {"token": "x" * 129}, "token"),
    ],
)
def test_a_field_at_fault_is_named(service: Service, call: str, body: Json, field: str) -> None:
    put(service, 5)
    assert post(service, call, body).error == (400, "invalid_request", field)


@pytest.mark.parametrize("limit", [None, -1, 1.5, "5", False, 2**53])
def test_a_limit_is_a_whole_number(service: Service, limit: Any) -> None:
    assert put(service, limit).error == (400, "invalid_request", "limit")


def test_a_name_has_its_pattern(service: Service) -> None:
    assert put(service, 1, "a" * 128).status == 200
    for name in ("a" * 129, "-a", "a b", "a%23b", "ä"):
        assert put(service, 1, name).error == (400, "invalid_request", "name")


def test_quotas_are_for_services_where_callers_are_told_apart(service: Service) -> None:
    anonymous = {"tallymark-anonymous": new_anonymous(SECRET)[1]}
    assert service.call("PUT", "/v1/quotas/seats", body={"limit": 1}, headers=anonymous).status == 200
    service.configure(AUTH_MODE="jwt")
    path = "/v1/quotas/seats"
    assert service.call("GET", path).error[:2] == (401, "unauthorized")
    assert service.call("GET", path, jwt={"sub": "ann"}).error == (403, "forbidden", None)
    assert service.call("GET", path, headers=anonymous).error == (403, "forbidden", None)
    assert service.call("GET", path, jwt={"scope": "tallymark:service"}).status == 200
    service.configure(AUTH_MODE="iam")
    assert service.call("GET", path, authorizer={"iam": {"userArn": "arn"}}).status == 200


# --- a name that is sold out ------------------------------------------------------------------------------------


def writes_and_reads(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the table is asked for from now on."""
    asked: list[str] = []
    for name in ("get_item", "batch_get_item", "query", "transact_write_items", "delete_item"):
        real = getattr(service.quotas_database, name)

        def listened(real: Any = real, name: str = name, **request: Any) -> Any:
            asked.append(name)
            return real(**request)

        monkeypatch.setattr(service.quotas_database, name, listened)
    return asked


def test_a_sold_out_name_is_refused_after_one_read_of_the_tokens_own_item(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, 3)
    acquire(service, "a", 2)
    asked = writes_and_reads(service, monkeypatch)
    assert acquire(service, "b", 2).status == 409
    assert "transact_write_items" not in asked, "a refusal writes nothing"
    asked.clear()
    for n in range(20):
        assert acquire(service, f"c-{n}", 2).error == (409, "exhausted", "amount")
    assert asked == ["get_item"] * 20
    assert acquire(service, "a", 2).json == {"granted": True, "remaining": 1}, "what is granted answers its grant"
    assert acquire(service, "d", 1).status == 200, "one is left"


@pytest.mark.parametrize("more", ["release", "put"])
def test_what_is_added_takes_the_mark_away(service: Service, more: str) -> None:
    put(service, 2)
    acquire(service, "a", 2)
    assert acquire(service, "b").status == 409
    _ = post(service, "release", {"token": "a"}) if more == "release" else put(service, 3)
    assert acquire(service, "b").status == 200


def test_a_return_elsewhere_is_known_within_a_second(service: Service) -> None:
    put(service, 1)
    acquire(service, "a")
    assert acquire(service, "b").status == 409
    ledgers = wiring.quotas().ledgers
    held = ledgers.grant("seats", "a")
    assert held is not None
    assert ledgers.give_back([held]), "by a process that this one does not hear of"
    assert acquire(service, "b").status == 409
    service.clock_s += 1.0
    assert acquire(service, "b").status == 200


def test_a_mark_counts_from_before_the_pools_were_read_and_never_after_a_return() -> None:
    clock = [0]
    marks = ProcessMarks(lambda: clock[0])
    asked = marks.peek("seats")
    clock[0] = MARK_LIFETIME_US - 1
    marks.put("seats", 2, asked, MARK_LIFETIME_US)
    assert marks.peek("seats").remaining == 2
    clock[0] += 1
    assert marks.peek("seats").remaining is None
    before = marks.peek("seats")
    marks.clear("seats")
    marks.put("seats", 0, before, MARK_LIFETIME_US)
    assert marks.peek("seats").remaining is None


def test_the_marks_that_were_put_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.quotas._MAX_PROCESS_MARKS", 2)
    marks = ProcessMarks(lambda: 0)
    for name in ("first", "second", "first", "third"):
        marks.put(name, 0, marks.peek(name), MARK_LIFETIME_US)
    assert [marks.peek(name).remaining for name in ("first", "second", "third")] == [0, None, 0]


def test_a_mark_does_not_outlive_the_reservation_that_ends_next(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, 2)
    acquire(service, "a", expires_in_seconds=1)
    acquire(service, "b", expires_in_seconds=60)
    service.clock_s = 0.9
    assert acquire(service, "c").status == 409
    asked = writes_and_reads(service, monkeypatch)
    service.clock_s = 0.999
    assert acquire(service, "c").error == (409, "exhausted", "amount")
    assert asked == ["get_item"], "by its mark"
    service.clock_s = 1.0
    assert acquire(service, "a").error == (409, "conflict", "token")
    assert acquire(service, "c").status == 200


def test_calls_that_only_meet_others_are_told_to_try_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    put(service, 5)
    monkeypatch.setattr(wiring.quotas().ledgers, "take", lambda _: False)
    answer = acquire(service, "a")
    assert (answer.error[:2], answer.headers["retry-after"]) == ((503, "unavailable"), "1")
    assert NOW_MS + 3_000 <= NOW_MS + service.clock_s * 1000 <= NOW_MS + 3_500
