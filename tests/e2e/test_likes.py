"""Likes over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest
import valkey

from infra.local.cache import Cache
from tests.e2e.conftest import Api, eventually

Item = dict[str, Any]


def test_a_like_is_there_at_once_and_counted_soon(api: Api, item: Item, user: str) -> None:
    first = api.post("/v1/like", {"user_id": user, **item})
    assert first == {
        "liked": True, "changed": True, "user_id": user, **item, "reaction": "like", "liked_at": first["liked_at"],
    }  # fmt: skip
    repeat = api.post("/v1/like", {"user_id": user, **item})
    assert repeat == {**first, "changed": False}
    liked = api.post("/v1/has_liked", {"user_id": user, "item_ids": [item["item_id"], "no"], "item_type": "post"})
    assert liked == {"liked": {item["item_id"]: True, "no": False}}
    eventually(lambda: api.count(item), {"like": 1})


def test_a_like_taken_back_and_given_again_is_one_like(api: Api, item: Item, user: str) -> None:
    body = {"user_id": user, **item}
    api.post("/v1/like", body)
    assert api.call("DELETE", "/v1/like", body)[1]["changed"] is True
    assert api.call("DELETE", "/v1/like", params=body)[1] == {
        "liked": False, "changed": False, **body, "reaction": "like",
    }  # fmt: skip
    assert api.post("/v1/toggle", {**body, "like": True})["changed"] is True
    assert api.post("/v1/toggle", {**body, "like": True})["changed"] is False
    eventually(lambda: api.count(item), {"like": 1})


def test_fifty_likes_of_one_person_at_once_are_one(api: Api, item: Item, user: str) -> None:
    with ThreadPoolExecutor(api.at_once) as pool:
        answers = list(pool.map(lambda _: api.post("/v1/like", {"user_id": user, **item}), range(50)))
    assert sum(answer["changed"] for answer in answers) == 1
    assert len({answer["liked_at"] for answer in answers}) == 1
    eventually(lambda: api.count(item), {"like": 1})


def test_two_hundred_people_like_and_half_of_them_take_it_back(api: Api, item: Item, user: str) -> None:
    people = [f"{user}-{n}" for n in range(200)]
    with ThreadPoolExecutor(api.at_once) as pool:
        liked = list(pool.map(lambda one: api.post("/v1/like", {"user_id": one, **item})["changed"], people))
        unliked = list(
            pool.map(lambda one: api.call("DELETE", "/v1/like", {"user_id": one, **item})[1]["changed"], people[::2])
        )
    assert (sum(liked), sum(unliked)) == (200, 100)
    eventually(lambda: api.count(item), {"like": 100})


def test_reactions_are_counted_apart_and_together(api: Api, item: Item, user: str) -> None:
    for reaction in ("like", "👍", "👍\ufe0f", "party-parrot"):
        api.post("/v1/like", {"user_id": user, **item, "reaction": reaction})
    eventually(lambda: api.count(item), {"like": 1, "👍": 1, "party-parrot": 1})
    (entry,) = api.post("/v1/counts", {"items": [item], "user_id": user})["counts"]
    assert (entry["count"], entry["liked"], set(entry["reactions"])) == (3, True, {"like", "👍", "party-parrot"})


def test_counts_stand_in_the_order_asked_and_may_repeat(api: Api, item: Item, user: str) -> None:
    api.post("/v1/like", {"user_id": user, **item})
    other = {"item_id": "never-" + item["item_id"], "item_type": "post"}
    eventually(lambda: api.count(item), {"like": 1})
    entries = api.post("/v1/counts", {"items": [other, item, other, item]})["counts"]
    assert [(e["item_id"], e["count"]) for e in entries] == [
        (other["item_id"], 0), (item["item_id"], 1), (other["item_id"], 0), (item["item_id"], 1),
    ]  # fmt: skip
    assert api.post("/v1/counts", {"items": []}) == {"counts": []}


def test_a_batch_answers_each_operation_in_its_place(api: Api, item: Item, user: str) -> None:
    operations = [
        {"action": "like", "user_id": user, **item},
        {"action": "like", "user_id": user, **item, "item_type": "NOT VALID"},
        {"action": "unlike", "user_id": user, **item},
        {"action": "unlike", "user_id": user, **item},
        {"action": "like", "user_id": user, **item, "reaction": "👍"},
    ]
    results = api.post("/v1/batch", {"operations": operations})["results"]
    assert results[0] == {"status": 200, "liked": True, "changed": True}
    assert (results[1]["status"], results[1]["error"]["field"]) == (400, "item_type")
    assert results[2:4] == [{"status": 200, "liked": False, "changed": c} for c in (True, False)]
    eventually(lambda: api.count(item), {"👍": 1})


def test_the_likes_of_a_batch_are_counted(api: Api, item: Item, user: str) -> None:
    operations = [{"action": "like", "user_id": f"{user}-{n}", **item} for n in range(100)]
    for changed in (True, False):
        results = api.post("/v1/batch", {"operations": operations})["results"]
        assert [result["changed"] for result in results] == [changed] * 100
    eventually(lambda: api.count(item), {"like": 100})


def test_lists_come_newest_first_in_pages(api: Api, item: Item, user: str) -> None:
    times = [f"2020-01-{day:02d}T00:00:00.000Z" for day in range(1, 26)]
    operations = [
        {"action": "like", "user_id": user, "item_id": f"{item['item_id']}-{n}", "item_type": "post", "liked_at": at}
        for n, at in enumerate(times)
    ]
    results = api.post("/v1/batch", {"operations": operations}, headers=api.as_service)["results"]
    assert all(result.get("changed") for result in results)
    got: list[str] = []
    cursor: str | None = None
    sizes = []
    while True:
        page = api.get(f"/v1/users/{user}/likes", limit=10, **({"cursor": cursor} if cursor else {}))
        got += [like["liked_at"] for like in page["likes"]]
        sizes.append(len(page["likes"]))
        cursor = page["cursor"]
        if cursor is None:
            break
    assert (got, sizes) == (times[::-1], [10, 10, 5])


def test_an_items_likers_are_listed_by_reaction_too(api: Api, item: Item, user: str) -> None:
    api.post("/v1/like", {"user_id": user, **item})
    api.post("/v1/like", {"user_id": f"{user}-2", **item, "reaction": "👍"})
    path = f"/v1/items/post/{item['item_id']}/likers"

    def likers(**query: Any) -> list[tuple[str, str]]:
        return [(liker["user_id"], liker["reaction"]) for liker in api.get(path, **query)["likers"]]

    eventually(likers, [(f"{user}-2", "👍"), (user, "like")])
    assert likers(reaction="👍") == [(f"{user}-2", "👍")]


HOSTILE = ["a/b", "a#b", "a,b", "a b", "50%", "50%25", "a+b", "é🎉", "~1#~0", "a?b=c&d", "../x", "{x}"]


def test_an_id_means_the_same_in_a_path_a_query_and_a_body(api: Api, user: str) -> None:
    """Lists come by the path. The emulator's gateway, like AWS's own, cuts a decoded path at a question mark."""
    in_paths = [hostile for hostile in HOSTILE if not ("?" in hostile and "_aws" in api.url)]
    likes = {h: {"user_id": f"{user}-{h}", "item_id": f"{user}{h}", "item_type": "post"} for h in HOSTILE}
    for like in likes.values():
        assert api.post("/v1/like", like)["item_id"] == like["item_id"]
    for hostile in in_paths:
        got = api.get(f"/v1/users/{quote(likes[hostile]['user_id'], safe='')}/likes")["likes"]
        assert [like["item_id"] for like in got] == [likes[hostile]["item_id"]]
        likers = api.get(f"/v1/items/post/{quote(likes[hostile]['item_id'], safe='')}/likers")["likers"]
        assert [liker["user_id"] for liker in likers] == [likes[hostile]["user_id"]]
    for like in likes.values():
        item = {"item_id": like["item_id"], "item_type": "post"}
        eventually(lambda item=item: api.count(item), {"like": 1})  # type: ignore[misc]
        assert api.call("DELETE", "/v1/like", params=like)[1]["changed"] is True


def test_a_user_has_a_hundred_calls_in_a_minute_and_no_more(api: Api, item: Item, user: str) -> None:
    if api.get("/health")["dependencies"]["cache"] == "off":
        pytest.skip("without Valkey each process of a function has a limit of its own")
    operations = [{"action": "like", "user_id": user, **item}] * 95
    assert {r["status"] for r in api.post("/v1/batch", {"operations": operations})["results"]} == {200}
    with ThreadPoolExecutor(min(10, api.at_once)) as pool:
        answers = list(pool.map(lambda _: api.client.post("/v1/like", json={"user_id": user, **item}), range(20)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 15
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert refused[0].json()["error"]["code"] == "rate_limited"
    results = api.post("/v1/batch", {"operations": operations[:2]})["results"]
    assert [result["status"] for result in results] == [429, 429]
    assert api.call("POST", "/v1/like", {"user_id": user, **item}, headers=api.as_service)[0] == 200


def test_counts_that_were_read_fresh_pass_the_caches(api: Api, item: Item, user: str) -> None:
    assert api.count(item) == {}
    api.post("/v1/like", {"user_id": user, **item})
    eventually(lambda: api.count(item, fresh="true"), {"like": 1})
    eventually(lambda: api.count(item), {"like": 1})


def test_readers_and_writers_notice_nothing_when_valkey_goes(api: Api, item: Item, user: str) -> None:
    if api.cache is None:
        pytest.skip("this stack's Valkey is not ours to stop")
    cache, errors = api.cache, list[Any]()

    def use(n: int) -> None:
        status, answer = api.call("POST", "/v1/like", {"user_id": f"{user}-{n}", **item})
        status2, answer2 = api.call("GET", "/v1/count", params=item)
        errors.extend(a for s, a in ((status, answer), (status2, answer2)) if s != 200)

    with ThreadPoolExecutor(min(8, api.at_once)) as pool:
        list(pool.map(use, range(40)))
        running = [pool.submit(use, n) for n in range(40, 120)]
        cache.stop()
        for job in running:
            job.result()
        assert api.get("/health") == {**api.get("/health"), "status": "degraded"}
        list(pool.map(use, range(120, 160)))
        eventually(lambda: api.count(item), {"like": 160})
        cache.start()
        list(pool.map(use, range(160, 200)))
    assert errors == []
    eventually(lambda: api.count(item), {"like": 200})
    eventually(lambda: api.get("/health")["status"], "ok")
    eventually(lambda: api.count(item) == {"like": 200} and _cached(cache), True)


def _cached(cache: Cache) -> bool:
    """Whether counts are in Valkey again."""
    with closing(valkey.Valkey.from_url(cache.url)) as client:
        return any(b"/count/" in key for key in client.scan_iter(count=1000))
