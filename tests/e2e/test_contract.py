"""Identity, errors, cursors and the service's own paths, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Api

Item = dict[str, Any]


def fails(api: Api, status: int, code: str, field: str | None, method: str, path: str, **more: Any) -> str:
    """Checks an error's status and shape; its message."""
    response = api.client.request(method, path, **more)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error.get("field")) == (code, field)
    assert set(error) <= {"code", "message", "field"}
    return str(error["message"])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"user_id": None}, "user_id"),
        ({"user_id": ""}, "user_id"),
        ({"user_id": "x" * 257}, "user_id"),
        ({"user_id": "é" * 129}, "user_id"),
        ({"item_id": "."}, "item_id"),
        ({"item_id": "a\tb"}, "item_id"),
        ({"item_id": 1.5}, "item_id"),
        ({"item_id": 2**53}, "item_id"),
        ({"item_id": True}, "item_id"),
        ({"item_type": "Post"}, "item_type"),
        ({"item_type": None}, "item_type"),
        ({"reaction": "LIKE"}, "reaction"),
        ({"reaction": "👍👍"}, "reaction"),
        ({"reaction": "like\ufe0f"}, "reaction"),
    ],
)
def test_a_field_at_fault_is_named(api: Api, item: Item, user: str, change: Item, field: str) -> None:
    fails(api, 400, "invalid_request", field, "POST", "/v1/like", json={"user_id": user, **item, **change})


def test_a_number_and_its_decimal_string_are_one_id(api: Api, user: str) -> None:
    assert api.post("/v1/like", {"user_id": user, "item_id": 7, "item_type": "post"})["item_id"] == "7"
    assert api.post("/v1/like", {"user_id": user, "item_id": "7", "item_type": "post"})["changed"] is False
    assert api.post("/v1/like", {"user_id": user, "item_id": "007", "item_type": "post"})["changed"] is True


@pytest.mark.parametrize("content", ["", "[]", "{", "NaN", '{"a": 1e400}', "[" * 5000, '"x"', "\x00"])
def test_a_body_that_is_no_object_is_refused(api: Api, content: str) -> None:
    fails(
        api,
        400,
        "invalid_request",
        None if content != '{"a": 1e400}' else "user_id",
        "POST",
        "/v1/like",
        content=content.encode(),
        headers={"content-type": "application/json"},
    )


def test_unknown_paths_methods_and_types_answer_in_the_same_shape(api: Api) -> None:
    fails(api, 404, "not_found", None, "GET", "/v1/nothing")
    fails(api, 404, "not_found", None, "POST", "/")
    fails(api, 405, "method_not_allowed", None, "PUT", "/v1/like")
    fails(api, 405, "method_not_allowed", None, "POST", "/v1/users/ann/likes")
    fails(
        api,
        415,
        "unsupported_media_type",
        None,
        "POST",
        "/v1/like",
        content=b"{}",
        headers={"content-type": "text/plain"},
    )
    fails(api, 413, "payload_too_large", None, "POST", "/v1/like", content=b'{"a":"' + b"x" * 262_144 + b'"}')
    assert "allow" in api.client.put("/v1/like").headers


def test_a_query_parameter_may_be_given_once(api: Api) -> None:
    fails(api, 400, "invalid_request", "item_id", "GET", "/v1/count?item_id=1&item_type=post&item_id=1")
    fails(api, 400, "invalid_request", "fresh", "GET", "/v1/count?item_id=1&item_type=post&fresh=yes")
    for limit in ("0", "101", "01", "-1", "1.0", "x", "%2B5"):
        fails(api, 400, "invalid_request", "limit", "GET", f"/v1/users/ann/likes?limit={limit}")


def test_lists_hold_up_to_a_hundred_entries(api: Api, item: Item) -> None:
    fails(api, 400, "invalid_request", "items", "POST", "/v1/counts", json={"items": [item] * 101})
    fails(
        api,
        400,
        "invalid_request",
        "items[3].item_id",
        "POST",
        "/v1/counts",
        json={"items": [item] * 3 + [{**item, "item_id": ""}]},
    )
    fails(api, 400, "invalid_request", "operations", "POST", "/v1/batch", json={"operations": [{}] * 101})
    assert len(api.post("/v1/counts", {"items": [item] * 100})["counts"]) == 100
    assert api.post("/v1/batch", {"operations": []}) == {"results": []}


def test_a_cursor_belongs_to_its_list_and_cannot_be_altered(api: Api, item: Item, user: str) -> None:
    for n in range(3):
        api.post("/v1/like", {"user_id": user, **item, "item_id": f"{item['item_id']}-{n}"})
    cursor = api.get(f"/v1/users/{user}/likes", limit=1)["cursor"]
    assert api.get(f"/v1/users/{user}/likes", limit=1, cursor=cursor)["likes"]
    altered = ("B" if cursor[0] != "B" else "C") + cursor[1:]
    for path, bad in (
        (f"/v1/users/{user}/likes", altered),
        (f"/v1/users/{user}/likes", cursor + "A"),
        (f"/v1/users/{user}/likes", "x"),
        (f"/v1/users/{user}/likes?item_type=post", cursor),
        (f"/v1/users/{user}-other/likes", cursor),
        ("/v1/items/post/x/likers", cursor),
    ):
        fails(api, 400, "invalid_request", "cursor", "GET", path, params={**_query(path), "cursor": bad})


def _query(path: str) -> dict[str, str]:
    return dict(part.split("=") for part in path.partition("?")[2].split("&") if part)


def test_an_anonymous_person_is_who_the_token_says(api: Api, item: Item) -> None:
    person, other = api.post("/v1/anonymous", None), api.post("/v1/anonymous", None)
    assert person["user_id"].startswith("anon_")
    assert person["user_id"] != other["user_id"]
    headers = {"tallymark-anonymous": person["token"]}
    assert api.post("/v1/like", item, headers=headers)["user_id"] == person["user_id"]
    (entry,) = api.post("/v1/counts", {"items": [item]}, headers=headers)["counts"]
    assert entry["liked"] is True
    fails(api, 403, "forbidden", "user_id", "POST", "/v1/like", json={**item, "user_id": "ann"}, headers=headers)
    for token in (person["token"][:-1], other["token"][:20] + person["token"][20:], "x", ""):
        fails(api, 401, "unauthorized", None, "POST", "/v1/like", json=item, headers={"tallymark-anonymous": token})


def test_only_a_service_says_when_it_was_liked(api: Api, item: Item, user: str) -> None:
    body = {"user_id": user, **item, "liked_at": "2001-02-03T04:05:06.789Z"}
    fails(api, 403, "forbidden", "liked_at", "POST", "/v1/like", json=body)
    fails(api, 401, "unauthorized", None, "POST", "/v1/like", json=body, headers={"tallymark-service-key": "wrong"})
    assert api.post("/v1/like", body, headers=api.as_service)["liked_at"] == body["liked_at"]
    fails(
        api,
        400,
        "invalid_request",
        "liked_at",
        "POST",
        "/v1/like",
        json={**body, "liked_at": "yesterday"},
        headers=api.as_service,
    )


def test_the_service_describes_itself(api: Api) -> None:
    health = api.get("/health")
    assert health["status"] == "ok"
    assert health["dependencies"]["dynamodb"] == "ok"
    assert health["dependencies"]["cache"] in ("ok", "off")
    document = api.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    page = api.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert all(path in page.text for path in document["paths"])


def test_browsers_of_allowed_origins_may_call(api: Api) -> None:
    if not api.cors:
        pytest.skip("`sam deploy` by itself leaves an emulator's API without CORS")
    asked = {"origin": "https://shop.example", "access-control-request-method": "POST"}
    preflight = api.client.options("/v1/like", headers=asked)
    assert preflight.status_code in (200, 204)
    assert "POST" in preflight.headers["access-control-allow-methods"]
    answer = api.client.get("/health", headers={"origin": "https://shop.example"})
    assert answer.headers["access-control-allow-origin"] in ("*", "https://shop.example")
