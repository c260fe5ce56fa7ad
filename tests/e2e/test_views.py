"""Views and named counters over HTTP."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import Api, eventually

Item = dict[str, Any]


def seen(api: Api, item: Item, window: str = "all") -> tuple[int, int]:
    answer = api.get("/v1/views", **item, window=window)
    return answer["views"], answer["bot_views"]


def test_views_count_soon_in_the_total_in_each_window_and_in_their_hour(api: Api, item: Item) -> None:
    views = [{**item, "visitor_id": n} for n in range(3)] + [{**item, "bot": True}, item]
    assert api.post("/v1/views", {"views": views}) == {"accepted": 5, "changed": True}
    for window in ("all", "24h", "7d", "30d"):
        eventually(lambda window=window: seen(api, item, window), (4, 1))  # type: ignore[misc]
    series = api.get("/v1/series", **item, metric="views", hours=2)["series"]
    assert [sum(entry[name] for entry in series) for name in ("count", "bot_views")] == [4, 1]


def test_each_visitor_counts_once_and_bots_and_unknown_people_do_not(api: Api, item: Item) -> None:
    if api.cache is None:
        pytest.skip("whether this stack has a cache is not known")
    known = [{**item, "visitor_id": n} for n in (1, 2, "2", 3)]
    api.post("/v1/views", {"views": [*known, item, {**item, "visitor_id": 4, "bot": True}]})
    api.post("/v1/views", {"views": known})
    for window in ("all", "24h", "7d", "30d"):
        eventually(lambda window=window: api.get("/v1/views", **item, window=window)["visitors"], 3)  # type: ignore[misc]


@pytest.mark.parametrize("api", ["in_process"], indirect=True)
def test_visitors_outlive_the_cache(api: Api, item: Item) -> None:
    """Until they are rebuilt they are not known; a view, or the schedule, has that done."""
    assert api.cache is not None

    def visitors() -> int | None:
        found: int | None = api.get("/v1/views", **item)["visitors"]
        return found

    api.post("/v1/views", {"views": [{**item, "visitor_id": n} for n in range(3)]})
    eventually(visitors, 3)
    api.cache.stop()
    eventually(visitors, None)
    assert seen(api, item) == (3, 0)
    api.post("/v1/views", {"views": [{**item, "visitor_id": 3}]})
    api.cache.start()
    eventually(visitors, 4)


def test_a_like_is_counted_in_its_hour_and_its_unlike_takes_it_back(api: Api, item: Item, user: str) -> None:
    def liked() -> int:
        return sum(entry["count"] for entry in api.get("/v1/series", **item, hours=2)["series"])

    api.post("/v1/like", {"user_id": user, **item})
    eventually(liked, 1)
    api.call("DELETE", "/v1/like", {"user_id": user, **item})
    eventually(liked, 0)


def test_a_token_sent_many_times_at_once_counts_once(api: Api, item: Item) -> None:
    token = uuid.uuid4().hex
    with ThreadPoolExecutor(api.at_once) as pool:
        answers = list(pool.map(lambda _: api.post("/v1/views", {"views": [item], "token": token}), range(20)))
    assert sum(answer["changed"] for answer in answers) == 1
    eventually(lambda: seen(api, item), (1, 0))


def test_many_views_at_once_are_all_counted(api: Api, item: Item) -> None:
    with ThreadPoolExecutor(api.at_once) as pool:
        list(pool.map(lambda _: api.post("/v1/views", {"views": [item] * 25}), range(40)))
    eventually(lambda: seen(api, item), (1000, 0))


def test_a_named_counter_goes_up_and_down_once_per_token(api: Api) -> None:
    name = f"n.{uuid.uuid4().hex}"
    for token, amount in (("a", 5), ("a", 5), ("b", -7), ("c", 2**53 - 1), ("d", 2**53 - 1)):
        api.post(f"/v1/counters/{name}/add", {"amount": amount, "token": token})
    eventually(lambda: api.get(f"/v1/counters/{name}")["value"], 2 * (2**53 - 1) - 2)


@pytest.mark.parametrize("api", ["in_process"], indirect=True)
def test_a_view_is_seen_within_seconds(api: Api, item: Item) -> None:
    """About 2 s; the bound is wide, for a busy machine."""
    api.post("/v1/views", {"views": [item]})
    began = time.monotonic()
    eventually(lambda: seen(api, item), (1, 0))
    assert time.monotonic() - began < 10
