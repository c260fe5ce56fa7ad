"""Top lists over HTTP."""

from __future__ import annotations

import uuid

from tests.e2e.conftest import Api, eventually


def top(api: Api, **query: object) -> list[tuple[str, int]]:
    answer = api.get("/v1/top", **query)
    assert answer["approximate"] is False
    return [(entry["item_id"], entry["count"]) for entry in answer["top"]]


def test_what_is_liked_and_viewed_is_soon_in_its_lists_and_out_of_them_again(api: Api, user: str) -> None:
    kind = f"k{uuid.uuid4().hex[:12]}"
    for item_id, people in (("some", 2), ("most", 3), ("least / 1", 1)):
        for n in range(people):
            api.post("/v1/like", {"user_id": f"{user}-{n}", "item_type": kind, "item_id": item_id})
    views = [{"item_type": kind, "item_id": "seen", "bot": n < 5} for n in range(9)]
    api.post("/v1/views", {"views": views})
    for window in ("1h", "24h", "7d", "all"):
        eventually(
            lambda window=window: top(api, item_type=kind, window=window),  # type: ignore[misc]
            [("most", 3), ("some", 2), ("least / 1", 1)],
        )
    eventually(lambda: top(api, item_type=kind, metric="views", limit=1), [("seen", 4)])
    assert top(api, item_type=kind, limit=1) == [("most", 3)]
    for n in range(2):
        body = {"user_id": f"{user}-{n}", "item_type": kind, "item_id": "most"}
        api.call("DELETE", "/v1/like", body)
    eventually(lambda: top(api, item_type=kind), [("some", 2), ("least / 1", 1), ("most", 1)])


def test_lists_of_all_types_and_faults(api: Api) -> None:
    assert len(api.get("/v1/top", limit=100)["top"]) <= 100
    for query, field in (({"limit": 101}, "limit"), ({"window": "30d"}, "window"), ({"metric": "x"}, "metric")):
        status, answer = api.call("GET", "/v1/top", params=query)
        assert (status, answer["error"]["code"], answer["error"]["field"]) == (400, "invalid_request", field)
    status, answer = api.call("POST", "/v1/top", {})
    assert (status, answer["error"]["code"]) == (405, "method_not_allowed")
