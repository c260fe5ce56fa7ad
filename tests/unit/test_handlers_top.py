"""GET /v1/top as API Gateway calls it, over stores in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tallymark.errors import Unavailable
from tallymark.model import Target
from tallymark.runtime import wiring
from tests.unit.core.service import Service


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service(monkeypatch)
    monkeypatch.setattr(wiring, "now_ms", lambda: made.now_ms)
    yield made
    wiring.reset()


def view(service: Service, number: int, item_id: str, item_type: str = "post", *, bot: bool = False) -> None:
    views = [{"item_id": item_id, "item_type": item_type, "bot": bot} for _ in range(number)]
    assert service.call("POST", "/v1/views", body={"views": views}).status == 200


def top(service: Service, **query: str) -> list[tuple[str, str, int]]:
    answer = service.call("GET", "/v1/top", query=query)
    assert answer.status == 200
    assert answer.json["approximate"] is False
    return [(entry["item_type"], entry["item_id"], entry["count"]) for entry in answer.json["top"]]


def test_nothing_counted_is_an_empty_list_and_certain(service: Service) -> None:
    assert service.call("GET", "/v1/top").json == {"top": [], "approximate": False}


def test_the_largest_come_first_and_equal_ones_by_type_and_id(service: Service) -> None:
    for item_type, item_id, number in [("post", "b", 2), ("post", "a", 2), ("film", "z", 2), ("post", "c", 3)]:
        view(service, number, item_id, item_type)
    expected = [("post", "c", 3), ("film", "z", 2), ("post", "a", 2), ("post", "b", 2)]
    assert top(service, metric="views") == expected
    assert top(service, metric="views", limit="2") == expected[:2]
    assert top(service, metric="views", item_type="film") == [("film", "z", 2)]
    assert top(service, metric="views", item_type="none") == []


def test_bots_are_in_no_list(service: Service) -> None:
    view(service, 5, "crawled", bot=True)
    view(service, 1, "read")
    assert top(service, metric="views") == [("post", "read", 1)]


def test_likes_are_asked_for_unless_views_are(service: Service) -> None:
    view(service, 5, "seen")
    for person in ("ann", "bob"):
        service.liked(person, "liked")
    service.liked("ann", "liked", "👍")
    assert top(service, window="all") == [("post", "liked", 3)]


def test_ten_items_unless_more_are_asked_for(service: Service) -> None:
    for n in range(30):
        view(service, n + 1, str(n))
    assert len(top(service, metric="views")) == 10
    assert len(top(service, metric="views", limit="100")) == 30


def test_answers_of_any_length_come_from_two_that_are_kept(service: Service) -> None:
    service.configure(CACHE_TTL_MS="60000", PROCESS_CACHE_TTL_MS="60000")
    for n in range(12):
        view(service, n + 1, str(n))
    assert len(top(service, metric="views", limit="10")) == 10
    assert len(top(service, metric="views", limit="11")) == 11
    view(service, 99, "new")
    for limit in (3, 12):
        assert ("post", "new", 99) not in top(service, metric="views", limit=str(limit))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "101"),
        ("limit", "ten"),
        ("window", "30d"),
        ("window", ""),
        ("metric", "like"),
        ("item_type", "Post"),
        ("item_type", ""),
    ],
)
def test_what_is_none_of_the_choices_is_refused(service: Service, name: str, value: str) -> None:
    assert service.call("GET", "/v1/top", query={name: value}).error == (400, "invalid_request", name)


def test_a_number_that_cannot_be_read_makes_no_list_without_it(service: Service) -> None:
    service.liked("ann", "a")
    service.liked("ann", "b")
    service.counts.unknown.add(Target("post", "a"))
    assert service.call("GET", "/v1/top", query={"window": "all"}).error == (503, "unavailable", None)
    service.counts.fault = Unavailable("made up")
    assert service.call("GET", "/v1/top").error == (503, "unavailable", None)


# --- hot items --------------------------------------------------------------------------------------------------


def like(service: Service, user: str, item_id: str) -> int:
    body = {"user_id": user, "item_id": item_id, "item_type": "post"}
    return service.call("POST", "/v1/like", body=body).status


def batch(service: Service, user: str, *item_ids: str) -> list[int]:
    operations: list[dict[str, Any]] = [
        {"action": "like", "user_id": user, "item_id": item_id, "item_type": "post"} for item_id in item_ids
    ]
    results = service.call("POST", "/v1/batch", body={"operations": operations}).json["results"]
    return [result["status"] for result in results]


def test_a_stricter_limit_applies_to_hot_items_alone_and_judges_the_same_log(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="4", HOT_RATE_LIMIT_PER_MINUTE="2")
    service.hot = {Target("post", "hot")}
    assert [like(service, "ann", "hot") for _ in range(3)] == [200, 200, 429]
    assert [like(service, "ann", "cold") for _ in range(3)] == [200, 200, 429]
    assert batch(service, "bob", "hot", "cold", "hot", "hot", "cold", "cold") == [200, 200, 200, 429, 200, 429]


def test_without_a_stricter_limit_hot_items_are_like_others(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="2")
    service.hot = {Target("post", "hot")}
    assert [like(service, "ann", "hot") for _ in range(3)] == [200, 200, 429]


def test_a_stricter_limit_that_is_none_does_not_allow_more(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="2", HOT_RATE_LIMIT_PER_MINUTE="9")
    service.hot = {Target("post", "hot")}
    assert [like(service, "ann", "hot") for _ in range(3)] == [200, 200, 429]
