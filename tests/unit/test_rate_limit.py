"""A person's window cannot be dodged: not by another spelling, another way to call, or many calls at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tallymark import limits
from tallymark.errors import InvalidRequest
from tallymark.identifiers import parse_name
from tallymark.identity import ANONYMOUS_HEADER, SERVICE_KEY_HEADER, new_anonymous
from tallymark.limits import OWN_LIMIT, ProcessWindows
from tallymark.model import LimitKey
from tallymark.runtime import wiring
from tests.unit.core.service import SECRET, Service

ITEM = {"item_id": "1", "item_type": "post"}
COMPOSED, DECOMPOSED = "andr\u00e9", "andre\u0301"
PERSON, TOKEN = new_anonymous(SECRET)
ANN = LimitKey(OWN_LIMIT, "ann")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service(monkeypatch)
    made.configure(RATE_LIMIT_PER_MINUTE="3")
    yield made
    wiring.reset()


def like(service: Service, user_id: object, **more: Any) -> int:
    return service.call("POST", "/v1/like", body={**ITEM, "user_id": user_id}, **more).status


@pytest.mark.parametrize(
    ("one", "other"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED), (7, "7"), ("7", 7), ("\u212b", "\u00c5")]
)
def test_another_spelling_of_an_id_is_the_same_person(service: Service, one: object, other: object) -> None:
    assert [like(service, one), like(service, other), like(service, one)] == [200] * 3
    assert like(service, one) == like(service, other) == 429


def test_an_id_in_a_query_is_the_same_person_however_it_is_encoded(service: Service) -> None:
    assert [like(service, COMPOSED) for _ in range(3)] == [200] * 3
    for spelt in ("andr%C3%A9", "andre%CC%81", "%61ndr%c3%a9", COMPOSED):
        query = f"user_id={spelt}&item_id=1&item_type=post"
        assert service.call("DELETE", "/v1/like", query=query).status == 429


def test_every_way_to_write_draws_from_one_window(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="7")
    body = {**ITEM, "user_id": "ann"}
    ways: list[tuple[str, str, Any]] = [
        ("POST", "/v1/like", body),
        ("POST", "/v1/like", {**body, "reaction": "\U0001f44d", "item_id": "2", "item_type": "film"}),
        ("DELETE", "/v1/like", body),
        ("POST", "/v1/toggle", {**body, "like": True}),
        ("POST", "/v1/toggle", {**body, "like": False}),
        ("POST", "/v1/batch", {"operations": [{"action": action, **body} for action in ("like", "unlike")]}),
    ]
    for method, path, sent in ways:
        answer = service.call(method, path, body=sent)
        assert answer.status == 200
        assert all(result["status"] == 200 for result in answer.json.get("results", []))
    for method, path, sent in ways:
        answer = service.call(method, path, body=sent)
        assert answer.status == 429 or {result["status"] for result in answer.json.get("results", [])} == {429}


def test_a_batch_asks_for_as_many_calls_as_it_holds_however_ids_are_spelt(service: Service) -> None:
    operations = [{"action": "like", **ITEM, "user_id": user_id} for user_id in (7, "7", 7, "7", 7)]
    results = service.call("POST", "/v1/batch", body={"operations": operations}).json["results"]
    assert [result["status"] for result in results] == [200, 200, 200, 429, 429]


def test_an_anonymous_person_has_one_window_with_and_without_the_id(service: Service) -> None:
    token = {ANONYMOUS_HEADER: TOKEN}
    for user_id in (None, PERSON, None):
        assert like(service, user_id, headers=token) == 200
    assert like(service, None, headers=token) == like(service, PERSON, headers=token) == 429


def test_a_service_key_that_is_none_exempts_nobody(service: Service) -> None:
    for key in ("", "x", SECRET):
        assert like(service, "ann", headers={SERVICE_KEY_HEADER: key}) == 401


def test_what_is_refused_for_its_form_or_its_caller_uses_up_nothing(service: Service) -> None:
    """Else anybody could lock out somebody else with requests that are never carried out."""
    for _ in range(5):
        service.call("POST", "/v1/like", body={**ITEM, "user_id": "ann", "item_type": "?"})
        assert like(service, "ann", headers={ANONYMOUS_HEADER: TOKEN}) == 403
    assert [like(service, "ann") for _ in range(4)] == [200, 200, 200, 429]


def test_many_threads_get_the_limit_and_not_a_call_more() -> None:
    windows = ProcessWindows(lambda: time.monotonic_ns() // 1000, 60)
    with ThreadPoolExecutor(50) as pool:
        taken = list(pool.map(lambda n: windows.take({ANN: 1 + n % 3}, 100, 60)[ANN].granted, range(400)))
    assert sum(taken) == 100


def remaining(windows: ProcessWindows, key: str, wanted: int) -> int:
    """Of ten calls in a minute, after these."""
    limit_key = LimitKey(OWN_LIMIT, key)
    return windows.take({limit_key: wanted}, 10, 60)[limit_key].remaining


def test_a_process_keeps_so_many_logs_and_forgets_the_one_not_used_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MAX_PROCESS_KEYS", 3)
    windows = ProcessWindows(lambda: 0, 60)
    assert [remaining(windows, key, 1) for key in ("a", "b", "c", "a", "d")] == [9, 9, 9, 8, 9]
    assert [remaining(windows, key, 1) for key in ("a", "c", "d", "b")] == [7, 8, 8, 9]


def test_a_process_keeps_so_many_calls_and_forgets_the_log_not_used_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MAX_PROCESS_CALLS", 12)
    clock = [0]
    windows = ProcessWindows(lambda: clock[0], 60)
    assert [remaining(windows, key, 4) for key in ("a", "b", "c")] == [6, 6, 6]
    assert remaining(windows, "a", 1) == 5, "with it there are thirteen: b is forgotten"
    assert [remaining(windows, "c", 1), remaining(windows, "b", 1)] == [5, 9]
    clock[0] += 60_000_000
    assert [remaining(windows, key, 4) for key in ("b", "a", "c")] == [6, 6, 6], "what left its window takes no room"
    assert [remaining(windows, key, 1) for key in ("b", "a", "c")] == [5, 9, 5], "thirteen again: a is forgotten"


def test_no_caller_can_name_the_limit_of_our_own_api() -> None:
    with pytest.raises(InvalidRequest):
        parse_name(OWN_LIMIT, "name")
