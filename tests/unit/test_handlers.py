"""The write and read functions, called with events of API Gateway over stores in memory (api.md, line by line)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import quote

import pytest

from tallymark.errors import Unavailable
from tallymark.identity import new_anonymous
from tallymark.model import LikeKey, Target
from tallymark.runtime import telemetry, wiring
from tallymark.settings import AuthMode
from tests.unit.core.service import NOW, SECRET, SERVICE_KEY, Service, token

ITEM = {"item_id": "456", "item_type": "post"}
LIKE = {"user_id": "ann", **ITEM}
LIKED = {"user_id": "ann", **ITEM, "reaction": "like"}
BODY_CALLS = [("POST", f"/v1/{name}") for name in ("like", "toggle", "batch", "counts", "has_liked")]
AS_SERVICE = {"Tallymark-Service-Key": SERVICE_KEY}
PERSON, TOKEN = new_anonymous(SECRET)
AS_PERSON = {"Tallymark-Anonymous": TOKEN}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    yield Service(monkeypatch)
    wiring.reset()


# --- likes ------------------------------------------------------------------------------------------------------


def test_the_first_like_changes_and_a_repeat_gives_its_time(service: Service) -> None:
    first = service.call("POST", "/v1/like", body=LIKE)
    assert (first.status, first.json) == (200, {"liked": True, "changed": True, **LIKED, "liked_at": NOW})
    service.liked("ann", "9", ms=5)
    again = service.call("POST", "/v1/like", body={**LIKE, "item_id": 9})
    assert again.json == {
        "liked": True,
        "changed": False,
        **LIKED,
        "item_id": "9",
        "liked_at": "1970-01-01T00:00:00.005Z",
    }


@pytest.mark.parametrize("by_query", [True, False])
def test_an_unlike_changes_once_by_body_and_by_query(service: Service, by_query: bool) -> None:
    service.liked("ann", "456")
    sent: dict[str, Any] = {"query": LIKE} if by_query else {"body": LIKE}
    for changed in (True, False):
        answer = service.call("DELETE", "/v1/like", **sent)
        assert (answer.status, answer.json) == (200, {"liked": False, "changed": changed, **LIKED})


@pytest.mark.parametrize(
    ("body", "query", "status"),
    [
        (LIKE, LIKE, 200),
        (LIKE, {**LIKE, "reaction": "like"}, 200),
        ({**LIKE, "item_id": 456}, LIKE, 200),
        ({**LIKE, "reaction": None}, LIKE, 200),
        (LIKE, {"unknown": "1"}, 200),
        (LIKE, {**LIKE, "item_id": "457"}, 400),
        (LIKE, {**LIKE, "reaction": "👍"}, 400),
        (LIKE, {"item_id": "456"}, 400),
        ({}, LIKE, 400),
        ({"user_id": "ann"}, LIKE, 400),
    ],
)
def test_an_unlike_by_body_and_query_is_taken_if_both_say_the_same(
    service: Service, body: Any, query: dict[str, str], status: int
) -> None:
    assert service.call("DELETE", "/v1/like", body=body, query=query).status == status


@pytest.mark.parametrize("like", [True, False])
def test_a_toggle_makes_the_wanted_state_and_a_repeat_is_harmless(service: Service, like: bool) -> None:
    if not like:
        service.liked("ann", "456")
    for changed in (True, False):
        answer = service.call("POST", "/v1/toggle", body={**LIKE, "like": like})
        wanted = {"liked": like, "changed": changed, **LIKED, **({"liked_at": NOW} if like else {})}
        assert (answer.status, answer.json) == (200, wanted)


@pytest.mark.parametrize("like", [None, 1, 0, "true", "", [], {}])
def test_a_toggle_without_a_wanted_state_is_refused(service: Service, like: object) -> None:
    assert service.call("POST", "/v1/toggle", body={**LIKE, "like": like}).error == (400, "invalid_request", "like")
    assert service.likes.standing == {}


def test_reactions_of_one_person_are_likes_of_their_own(service: Service) -> None:
    for reaction in ("like", "👍", "👍\ufe0f", "👍🏽"):
        service.call("POST", "/v1/like", body={**LIKE, "reaction": reaction})
    assert service.call("GET", "/v1/count", query=ITEM).json == {
        **ITEM,
        "count": 3,
        "counts": {"like": 1, "👍": 1, "👍🏽": 1},
        "age_ms": 7,
    }


@pytest.mark.parametrize("name", ["reaction", "liked_at"])
def test_an_optional_field_that_is_null_is_absent(service: Service, name: str) -> None:
    answer = service.call("POST", "/v1/like", body={**LIKE, name: None, "unknown": {"a": [0.5, -7, 7e99]}})
    assert answer.json == {"liked": True, "changed": True, **LIKED, "liked_at": NOW}


def test_a_service_may_say_when_it_was_liked(service: Service) -> None:
    body = {**LIKE, "liked_at": "1969-12-31T23:59:59.9995-00:30"}
    answer = service.call("POST", "/v1/like", body=body, headers=AS_SERVICE)
    assert answer.json["liked_at"] == "1970-01-01T00:29:59.999Z"


@pytest.mark.parametrize("liked_at", ["yesterday", "2016-12-31T23:59:60Z", "", 5, 5.5, True, [], {}])
def test_a_time_that_does_not_exist_is_refused(service: Service, liked_at: object) -> None:
    for path, body in (("/v1/like", LIKE), ("/v1/toggle", {**LIKE, "like": True})):
        answer = service.call("POST", path, body={**body, "liked_at": liked_at}, headers=AS_SERVICE)
        assert answer.error == (400, "invalid_request", "liked_at")


# --- ids --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "item_id"),
    [
        ("7", "7"),
        ('"7"', "7"),
        ('"007"', "007"),
        ("0", "0"),
        ("9007199254740991", "9007199254740991"),
        ('"9007199254740992"', "9007199254740992"),
        ('"e\\u0301"', "é"),
        ('"\\ud83d\\udc4d"', "👍"),
        ('"a/b,c#d e"', "a/b,c#d e"),
    ],
)
def test_a_number_is_its_decimal_string(service: Service, raw: str, item_id: str) -> None:
    body = f'{{"user_id": "ann", "item_type": "post", "item_id": {raw}}}'
    assert service.call("POST", "/v1/like", body=body).json["item_id"] == item_id


@pytest.mark.parametrize(
    "raw",
    [
        "7.0",
        "7e0",
        "7E2",
        "-0",
        "-1",
        "-7.5",
        "9007199254740992",
        "1e400",
        "-1e400",
        "1" * 5000,
        "-" + "1" * 5000,
        "1" * 16,
        "1" * 17,
        "1" * 18,
        "true",
        "false",
        "null",
        "[]",
        "{}",
        '""',
        '"."',
        '".."',
        '"\\u0000"',
        '"\\ud800"',
        '"a\\udc00b"',
        json.dumps("a" * 257),
        json.dumps("漢" * 300),
        "0." + "0" * 5000,
        "1e" + "9" * 5000,
    ],
)
@pytest.mark.parametrize("name", ["item_id", "user_id"])
def test_what_is_no_id_is_refused(service: Service, raw: str, name: str) -> None:
    fields = {"user_id": '"ann"', "item_type": '"post"', "item_id": '"1"', name: raw}
    if raw == "1" * 16:
        fields[name] = "9" * 16
    body = "{" + ", ".join(f'"{field}": {value}' for field, value in fields.items()) + "}"
    for method, path in (("POST", "/v1/like"), ("DELETE", "/v1/like"), ("POST", "/v1/toggle")):
        answer = service.call(method, path, body=body)
        assert answer.error == (400, "invalid_request", name)
    assert service.likes.standing == {}


@pytest.mark.parametrize("raw", ["07", "+7", ".7", "7.", "0x7", "NaN", "Infinity", "-Infinity", "'7'", "7_0", "--7"])
def test_a_number_that_json_does_not_know_is_refused(service: Service, raw: str) -> None:
    body = f'{{"user_id": "ann", "item_type": "post", "item_id": {raw}}}'
    assert service.call("POST", "/v1/like", body=body).error == (400, "invalid_request", None)


@pytest.mark.parametrize("item_type", ["", "Post", "9", "a" * 33, "a#", "a b", "é", 7, True, [], {}, None])
def test_what_is_no_item_type_is_refused_the_same_on_every_path(service: Service, item_type: object) -> None:
    error = (400, "invalid_request", "item_type")
    assert service.call("POST", "/v1/like", body={**LIKE, "item_type": item_type}).error == error
    has_liked = {"user_id": "ann", "item_ids": [], "item_type": item_type}
    assert service.call("POST", "/v1/has_liked", body=has_liked).error == error
    if isinstance(item_type, str):
        assert service.call("GET", "/v1/count", query={**ITEM, "item_type": item_type}).error == error
        assert service.call("GET", "/v1/users/ann/likes", query={"item_type": item_type}).error == error


@pytest.mark.parametrize(
    "reaction", ["", "Like", "7", "7\ufe0f\u20e3", "like\ufe0f", "👍👍", "👍" * 17, 7, True, [], {}]
)
def test_what_is_no_reaction_is_refused_the_same_on_every_path(service: Service, reaction: object) -> None:
    error = (400, "invalid_request", "reaction")
    assert service.call("POST", "/v1/like", body={**LIKE, "reaction": reaction}).error == error
    has_liked = {"user_id": "ann", "item_ids": [], "item_type": "post", "reaction": reaction}
    assert service.call("POST", "/v1/has_liked", body=has_liked).error == error
    if isinstance(reaction, str):
        assert service.call("DELETE", "/v1/like", query={**LIKE, "reaction": reaction}).error == error
        assert service.call("GET", "/v1/items/post/1/likers", query={"reaction": reaction}).error == error


HOSTILE = [
    "a/b",
    "a#b",
    "a,b",
    "a b",
    "👍",
    "é",
    "100%",
    "%25",
    "%2F",
    "a+b",
    "a?b=c&d",
    "~1",
    "..a",
    "/",
    "a//",
    "/likes",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_id_means_the_same_in_a_path_a_query_and_a_body(service: Service, text: str) -> None:
    service.call("POST", "/v1/like", body={"user_id": text, "item_id": text, "item_type": "post"})
    item = {"item_id": text, "item_type": "post"}
    assert service.call("GET", "/v1/count", query=item).json["count"] == 1
    assert service.call("POST", "/v1/counts", body={"items": [item]}).json["counts"][0]["count"] == 1
    path = quote(text, safe="")
    (like,) = service.call("GET", f"/v1/users/{path}/likes").json["likes"]
    assert like == {"item_type": "post", "item_id": text, "reaction": "like", "liked_at": NOW}
    (liker,) = service.call("GET", f"/v1/items/post/{path}/likers").json["likers"]
    assert liker == {"user_id": text, "reaction": "like", "liked_at": NOW}
    assert service.call("DELETE", "/v1/like", query={"user_id": text, **item}).json["changed"] is True


@pytest.mark.parametrize("bad", ["a" * 257, "漢" * 86, "%00", "%7F", "%C2%85"])
def test_an_id_in_a_path_is_held_to_the_same_rule(service: Service, bad: str) -> None:
    path = bad if bad.startswith("%") else quote(bad)
    assert service.call("GET", f"/v1/users/{path}/likes").error == (400, "invalid_request", "user_id")
    assert service.call("GET", f"/v1/items/post/{path}/likers").error == (400, "invalid_request", "item_id")


# --- bodies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), BODY_CALLS)
@pytest.mark.parametrize(
    "body",
    [
        "",
        " ",
        "{",
        "null",
        "7",
        '"text"',
        "[]",
        "[{}]",
        "\ufeff{}",
        "{'a': 1}",
        '{"a": NaN}',
        "{}{}",
        "true",
        "\x00",
        "[" * 100000,
        '{"a":' * 40000,
        '{"a": "\t"}',
        "{\xa0}",
        b"\xff{}",
        b'{"user_id": "\xc3"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(service: Service, method: str, path: str, body: Any) -> None:
    assert service.call(method, path, body=body).error == (400, "invalid_request", None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff{}", "the body is not UTF-8"),
        ("[" * 100_000, "the body is nested too deeply"),
        ("{", "the body is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_a_refused_body_is_told_what_is_wrong(service: Service, body: Any, message: str) -> None:
    assert service.call("POST", "/v1/like", body=body).json["error"]["message"] == message


@pytest.mark.parametrize("depth", [10, 900, 5_000, 60_000])
def test_deep_nesting_in_a_field_that_nobody_reads_is_no_failure(service: Service, depth: int) -> None:
    body = json.dumps(LIKE)[:-1] + ', "unknown": ' + "[" * depth + "]" * depth + "}"
    assert service.call("POST", "/v1/like", body=body).status in (200, 400)


def test_a_body_may_come_in_base64(service: Service) -> None:
    assert service.call("POST", "/v1/like", body={**LIKE, "item_id": "é"}, base64_body=True).json["item_id"] == "é"


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/json;x",
        "application/merge-patch+json",
    ],
)
def test_json_may_be_declared_or_not(service: Service, content_type: str | None) -> None:
    assert service.call("POST", "/v1/like", body=LIKE, content_type=content_type).status == 200


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "text/json", "application/x-www-form-urlencoded", "x", "multipart/form-data; boundary=x"],
)
@pytest.mark.parametrize(("method", "path"), [*BODY_CALLS, ("DELETE", "/v1/like")])
def test_any_other_content_type_is_refused(service: Service, content_type: str, method: str, path: str) -> None:
    answer = service.call(method, path, body=LIKE, content_type=content_type)
    assert answer.error == (415, "unsupported_media_type", None)


@pytest.mark.parametrize("base64_body", [False, True])
@pytest.mark.parametrize("letter", ["a", "é", "漢", "👍"])
def test_a_body_may_have_256_kib_and_not_a_byte_more(service: Service, base64_body: bool, letter: str) -> None:
    def body(size: int) -> str:
        frame = json.dumps({**LIKE, "unknown": ""})
        room = size - len(frame)
        width = len(letter.encode())
        return frame[:-2] + letter * (room // width) + "a" * (room % width) + frame[-2:]

    assert len(body(262_144).encode()) == 262_144
    assert service.call("POST", "/v1/like", body=body(262_144), base64_body=base64_body).status == 200
    refused = service.call("POST", "/v1/like", body=body(262_145), base64_body=base64_body)
    assert refused.error == (413, "payload_too_large", None)


# --- queries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "item_id"),
    [
        ("item_id=a+b&item_type=post", "a b"),
        ("item_id=a%2Bb&item_type=post", "a+b"),
        ("item_id=a%20b&item_type=post", "a b"),
        ("item_id=%F0%9F%91%8D&item_type=post", "👍"),
        ("item_id=👍&item_type=post", "👍"),
        ("item_id=e%CC%81&item_type=post", "é"),
        ("item_id=a=b&item_type=post", "a=b"),
        ("item%5Fid=7&item_type=post", "7"),
        ("&&item_id=7.0&item_type=post&", "7.0"),
        ("item_id=%2525&item_type=post", "%25"),
        ("item_id=%25&item_type=post", "%"),
    ],
)
def test_a_query_is_decoded_once(service: Service, query: str, item_id: str) -> None:
    assert service.call("GET", "/v1/count", query=query).json["item_id"] == item_id


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("item_id=1&item_id=1&item_type=post", "item_id"),
        ("item_id=1&item_type=post&item%5Ftype=post", "item_type"),
        ("item_id=1&item_type=post&x&x", "x"),
        ("item_id=%&item_type=post", "item_id"),
        ("item_id=%4&item_type=post", "item_id"),
        ("item_id=%zz&item_type=post", "item_id"),
        ("item_id=%FF&item_type=post", "item_id"),
        ("item_id=%ED%A0%80&item_type=post", "item_id"),
        ("item_id=%C3&item_type=post", "item_id"),
        ("item_id=1&item_type=post&x=%", "x"),
        ("item_id=1&item_type=post&%=x", None),
        ("item_id=&item_type=post", "item_id"),
        ("item_id&item_type=post", "item_id"),
        ("item_type=post", "item_id"),
        ("item_id=1", "item_type"),
        ("", "item_id"),
        ("item_id=1&item_type=post&fresh=", "fresh"),
        ("item_id=1&item_type=post&fresh=1", "fresh"),
        ("item_id=1&item_type=post&fresh=True", "fresh"),
    ],
)
def test_a_query_that_is_not_well_formed_is_refused_with_its_field(
    service: Service, query: str, field: str | None
) -> None:
    assert service.call("GET", "/v1/count", query=query).error == (400, "invalid_request", field)


def test_a_parameter_given_twice_is_refused_also_where_an_unlike_has_a_body(service: Service) -> None:
    answer = service.call("DELETE", "/v1/like", body=LIKE, query="item_id=456&item_id=456")
    assert answer.error == (400, "invalid_request", "item_id")


# --- counts -----------------------------------------------------------------------------------------------------


def test_fresh_passes_the_caches(service: Service) -> None:
    service.call("GET", "/v1/count", query={**ITEM, "fresh": "false"})
    service.call("GET", "/v1/count", query={**ITEM, "fresh": "true"})
    assert service.counts.asked == [False, True]


def test_a_count_that_cannot_be_had_is_503_alone_and_null_among_many_never_0(service: Service) -> None:
    service.counts.unknown = {Target("post", "456")}
    alone = service.call("GET", "/v1/count", query=ITEM)
    assert alone.error == (503, "unavailable", None)
    assert int(alone.headers["retry-after"]) >= 1
    many = service.call("POST", "/v1/counts", body={"items": [ITEM, {**ITEM, "item_id": 1}]})
    assert many.json["counts"] == [
        {**ITEM, "count": None, "counts": None},
        {**ITEM, "item_id": "1", "count": 0, "counts": {}},
    ]


def test_many_counts_stand_in_the_order_asked_repeats_included(service: Service) -> None:
    service.liked("ann", "1")
    service.liked("ann", "1", "👍")
    service.liked("bob", "2")
    items = [{"item_id": i, "item_type": "post"} for i in (2, 1, "2", 3)]
    answer = service.call("POST", "/v1/counts", body={"items": items, "user_id": "ann"})
    assert [(e["item_id"], e["count"], e["liked"], sorted(e["reactions"])) for e in answer.json["counts"]] == [
        ("2", 1, False, []),
        ("1", 2, True, ["like", "👍"]),
        ("2", 1, False, []),
        ("3", 0, False, []),
    ]


@pytest.mark.parametrize("extra", [{}, {"user_id": None}])
def test_many_counts_say_nothing_of_a_person_unless_asked(service: Service, extra: dict[str, None]) -> None:
    (entry,) = service.call("POST", "/v1/counts", body={"items": [ITEM], **extra}).json["counts"]
    assert entry == {**ITEM, "count": 0, "counts": {}}


def test_many_counts_are_of_the_person_whose_token_is_sent(service: Service) -> None:
    service.liked(PERSON, "456")
    (entry,) = service.call("POST", "/v1/counts", body={"items": [ITEM]}, headers=AS_PERSON).json["counts"]
    assert entry["liked"] is True


def test_has_liked_answers_by_id(service: Service) -> None:
    service.liked("ann", "456")
    service.liked("ann", "7", "👍")
    body = {"user_id": "ann", "item_ids": ["456", 456, 789, 7], "item_type": "post"}
    assert service.call("POST", "/v1/has_liked", body=body).json == {"liked": {"456": True, "789": False, "7": False}}
    answer = service.call("POST", "/v1/has_liked", body={**body, "reaction": "👍\ufe0f"})
    assert answer.json == {"liked": {"456": False, "789": False, "7": True}}


LISTS: list[tuple[str, str, dict[str, Any], Any, Any]] = [
    ("/v1/counts", "items", {}, ITEM, {"counts": []}),
    ("/v1/has_liked", "item_ids", {"user_id": "ann", "item_type": "post"}, "1", {"liked": {}}),
    ("/v1/batch", "operations", {}, {"action": "like", **LIKE}, {"results": []}),
]


@pytest.mark.parametrize(("path", "name", "rest", "entry", "nothing"), LISTS)
def test_a_list_may_hold_nothing_or_100_entries_and_no_more(
    service: Service, path: str, name: str, rest: dict[str, Any], entry: Any, nothing: Any
) -> None:
    assert service.call("POST", path, body={**rest, name: []}).json == nothing
    assert service.call("POST", path, body={**rest, name: [entry] * 100}).status == 200
    refused = service.call("POST", path, body={**rest, name: [entry] * 101})
    assert refused.error == (400, "invalid_request", name)


@pytest.mark.parametrize(("path", "name", "rest", "entry", "nothing"), LISTS)
@pytest.mark.parametrize("value", [None, {}, "a", 7, True, {"0": 1}])
def test_what_is_no_list_is_refused(
    service: Service, path: str, name: str, rest: dict[str, Any], entry: Any, nothing: Any, value: object
) -> None:
    assert service.call("POST", path, body={**rest, name: value}).error == (400, "invalid_request", name)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/counts", {"items": [ITEM, ITEM, ITEM, {"item_type": "post"}]}, "items[3].item_id"),
        ("/v1/counts", {"items": [ITEM, {**ITEM, "item_id": 7.5}]}, "items[1].item_id"),
        ("/v1/counts", {"items": [{**ITEM, "item_type": None}]}, "items[0].item_type"),
        ("/v1/counts", {"items": [7]}, "items[0]"),
        ("/v1/counts", {"items": [None]}, "items[0]"),
        ("/v1/counts", {"items": [[ITEM]]}, "items[0]"),
        ("/v1/has_liked", {"user_id": "a", "item_type": "post", "item_ids": ["1", ""]}, "item_ids[1]"),
        ("/v1/has_liked", {"user_id": "a", "item_type": "post", "item_ids": [None]}, "item_ids[0]"),
        ("/v1/has_liked", {"item_type": "post", "item_ids": []}, "user_id"),
        ("/v1/counts", {"items": [], "user_id": ""}, "user_id"),
    ],
)
def test_the_entry_at_fault_is_named(service: Service, path: str, body: Any, field: str) -> None:
    assert service.call("POST", path, body=body).error == (400, "invalid_request", field)


# --- lists ------------------------------------------------------------------------------------------------------


def pages(service: Service, path: str, name: str, **query: str) -> list[list[Any]]:
    found = []
    while True:
        answer = service.call("GET", path, query=query).json
        found.append(answer[name])
        if answer["cursor"] is None:
            return found
        query["cursor"] = answer["cursor"]


@pytest.mark.parametrize(("likes", "lengths"), [(0, [0]), (1, [1]), (2, [2]), (3, [2, 1]), (4, [2, 2])])
def test_lists_come_newest_first_in_pages_and_a_full_last_page_has_no_cursor(
    service: Service, likes: int, lengths: list[int]
) -> None:
    for i in range(likes):
        service.liked("ann", str(i), ms=i)
        service.liked(f"user-{i}", "x", "👍", ms=i)
    liked = pages(service, "/v1/users/ann/likes", "likes", limit="2")
    likers = pages(service, "/v1/items/post/x/likers", "likers", limit="2")
    assert [len(page) for page in liked] == [len(page) for page in likers] == lengths
    newest_first = [str(i) for i in reversed(range(likes))]
    assert [like["item_id"] for page in liked for like in page] == newest_first
    assert [liker["user_id"] for page in likers for liker in page] == [f"user-{i}" for i in newest_first]


def test_lists_may_be_filtered(service: Service) -> None:
    service.liked("ann", "1")
    service.liked("ann", "1", "👍")
    service.liked("ann", "2", item_type="page")
    assert [len(page) for page in pages(service, "/v1/users/ann/likes", "likes", item_type="page")] == [1]
    assert [len(page) for page in pages(service, "/v1/items/post/1/likers", "likers", reaction="👍\ufe0f")] == [1]


def test_a_list_holds_20_entries_unless_asked_for_more(service: Service) -> None:
    for i in range(120):
        service.liked("ann", str(i), ms=i)
    for query, length in [
        ({}, 20),
        ({"limit": "1"}, 1),
        ({"limit": "9"}, 9),
        ({"limit": "99"}, 99),
        ({"limit": "100"}, 100),
    ]:
        assert len(service.call("GET", "/v1/users/ann/likes", query=query).json["likes"]) == length


@pytest.mark.parametrize("path", ["/v1/users/ann/likes", "/v1/items/post/1/likers"])
@pytest.mark.parametrize(
    "limit",
    ["", "0", "101", "01", "+5", "-5", "1e1", "5.0", " 5", "5 ", "1000", "0x5", "five", "\u0665", "1_0", "null"],
)
def test_any_other_limit_is_refused(service: Service, path: str, limit: str) -> None:
    assert service.call("GET", path, query={"limit": limit}).error == (400, "invalid_request", "limit")


def test_a_cursor_belongs_to_its_list_and_filters(service: Service) -> None:
    for i in range(4):
        service.liked("ann", str(i), ms=i)
        service.liked("bob", str(i), ms=i)
        service.liked(f"user-{i}", "1", ms=i)
    mine = "/v1/users/ann/likes"
    cursor = service.call("GET", mine, query={"limit": "1", "item_type": "post"}).json["cursor"]
    assert service.call("GET", mine, query={"limit": "3", "item_type": "post", "cursor": cursor}).status == 200
    altered = cursor[:-1] + ("A" if cursor[-1] != "A" else "Q")
    for path, query in [
        (mine, {"cursor": cursor}),
        (mine, {"cursor": cursor, "item_type": "page"}),
        ("/v1/users/bob/likes", {"cursor": cursor, "item_type": "post"}),
        ("/v1/items/post/ann/likers", {"cursor": cursor}),
        (mine, {"cursor": altered, "item_type": "post"}),
        (mine, {"cursor": cursor + "=", "item_type": "post"}),
        (mine, {"cursor": "", "item_type": "post"}),
        (mine, {"cursor": "👍", "item_type": "post"}),
    ]:
        assert service.call("GET", path, query=query).error == (400, "invalid_request", "cursor")


# --- batches ----------------------------------------------------------------------------------------------------


def batch(service: Service, *operations: Any, **call: Any) -> list[Any]:
    answer = service.call("POST", "/v1/batch", body={"operations": list(operations)}, **call)
    assert answer.status == 200
    results: list[Any] = answer.json["results"]
    return results


def like(item_id: object = "1", **more: object) -> dict[str, object]:
    return {"action": "like", "user_id": "ann", "item_type": "post", "item_id": item_id, **more}


def unlike(item_id: object = "1", **more: object) -> dict[str, object]:
    return {**like(item_id, **more), "action": "unlike"}


def test_operations_on_one_like_take_effect_in_their_order(service: Service) -> None:
    assert batch(service, like(), like(), unlike(2), unlike(), unlike(), like(2)) == [
        {"status": 200, "liked": True, "changed": True},
        {"status": 200, "liked": True, "changed": False},
        {"status": 200, "liked": False, "changed": False},
        {"status": 200, "liked": False, "changed": True},
        {"status": 200, "liked": False, "changed": False},
        {"status": 200, "liked": True, "changed": True},
    ]
    assert list(service.likes.standing) == [LikeKey("ann", Target("post", "2"))]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (like(item_id=""), "item_id"),
        (like(item_id=2**53), "item_id"),
        (like(item_type="Post"), "item_type"),
        (like(reaction="👍👍"), "reaction"),
        (like(user_id=None), "user_id"),
        ({**like(), "action": "love"}, "action"),
        ({**like(), "action": None}, "action"),
        ({**like(), "action": ["like"]}, "action"),
        ({}, "user_id"),
        (7, "operation"),
        (None, "operation"),
        ([], "operation"),
    ],
)
def test_one_bad_operation_spoils_no_other_and_its_field_is_relative(service: Service, bad: object, field: str) -> None:
    first, refused, last = batch(service, like(1), bad, like(2))
    assert first == last == {"status": 200, "liked": True, "changed": True}
    assert (refused["status"], refused["error"]["code"], refused["error"]["field"]) == (400, "invalid_request", field)


def test_an_operation_for_another_person_is_forbidden_by_itself(service: Service) -> None:
    refused, done = batch(service, like(), like(user_id=None), headers=AS_PERSON)
    assert (refused["status"], refused["error"]["code"]) == (403, "forbidden")
    assert done["status"] == 200
    assert {key.user_id for key in service.likes.standing} == {PERSON}


def test_an_operation_with_a_time_is_a_services_alone(service: Service) -> None:
    operations = [like(liked_at="1970-01-01T00:00:00Z"), unlike(2, liked_at="1970-01-01T00:00:00Z")]
    assert [result["status"] for result in batch(service, *operations)] == [403, 200]
    assert [result["status"] for result in batch(service, *operations, headers=AS_SERVICE)] == [200, 200]
    assert [made.stamp.ms for made in service.likes.standing.values()] == [0]


def test_in_a_batch_too_a_403_wins_over_a_400(service: Service) -> None:
    (refused,) = batch(service, {**like(), "action": "love"}, headers=AS_PERSON)
    assert refused["status"] == 403


def test_the_last_operations_over_the_limit_are_refused_and_use_up_nothing(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="3")
    results = batch(service, like(1), like(item_id=""), like(2), unlike(1), like(3), like(9, user_id="bob"), unlike(9))
    assert [result["status"] for result in results] == [200, 400, 200, 200, 429, 200, 429]
    assert {key.target.item_id for key in service.likes.standing} == {"2", "9"}
    service.clock_s += 59.9
    assert [result["status"] for result in batch(service, like(3))] == [429]
    service.clock_s += 0.2
    assert [result["status"] for result in batch(service, *map(like, "3456"))] == [200, 200, 200, 429]


def test_a_store_that_is_down_refuses_each_operation(service: Service) -> None:
    service.likes.fault = Unavailable("busy")
    (refused,) = batch(service, like())
    assert (refused["status"], refused["error"]["code"]) == (503, "unavailable")


# --- rate limit -------------------------------------------------------------------------------------------------


def test_over_the_limit_every_write_answers_429_with_retry_after(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="3")
    assert service.call("POST", "/v1/like", body=LIKE).status == 200
    service.clock_s = 20.0
    assert service.call("DELETE", "/v1/like", query=LIKE).status == 200
    assert service.call("POST", "/v1/toggle", body={**LIKE, "like": False}).status == 200
    service.clock_s = 20.5
    for method, path, body in [
        ("POST", "/v1/like", LIKE),
        ("DELETE", "/v1/like", LIKE),
        ("POST", "/v1/toggle", {**LIKE, "like": True}),
    ]:
        answer = service.call(method, path, body=body)
        assert answer.error == (429, "rate_limited", None)
        assert answer.headers["retry-after"] == "40"
    assert service.likes.standing == {}
    assert service.call("POST", "/v1/like", body={**LIKE, "user_id": "bob"}).status == 200, "each user's own"
    service.clock_s = 60.0
    assert [service.call("POST", "/v1/like", body=LIKE).status for _ in range(2)] == [200, 429]


def test_what_is_not_well_formed_counts_against_nobody(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="1")
    for _ in range(3):
        assert service.call("POST", "/v1/like", body={**LIKE, "item_id": ""}).status == 400
        assert service.call("POST", "/v1/toggle", body=LIKE).status == 400
    assert service.call("POST", "/v1/like", body=LIKE).status == 200


def test_a_service_is_exempt(service: Service) -> None:
    service.configure(RATE_LIMIT_PER_MINUTE="1")
    assert {service.call("POST", "/v1/like", body=LIKE, headers=AS_SERVICE).status for _ in range(3)} == {200}
    assert {result["status"] for result in batch(service, *[like()] * 5, headers=AS_SERVICE)} == {200}


# --- identity ---------------------------------------------------------------------------------------------------

ANN = {"sub": "ann"}
SERVICE_JWT = {"sub": "importer", "scope": "tallymark:service"}
PERSONAL: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/like", LIKE),
    ("DELETE", "/v1/like", LIKE),
    ("POST", "/v1/toggle", {**LIKE, "like": True}),
    ("POST", "/v1/has_liked", {"user_id": "ann", "item_type": "post", "item_ids": []}),
    ("POST", "/v1/counts", {"user_id": "ann", "items": []}),
]


@pytest.mark.parametrize(("method", "path", "body"), PERSONAL)
def test_with_a_token_the_user_id_may_be_left_out_and_must_be_its_own(
    service: Service, method: str, path: str, body: dict[str, Any]
) -> None:
    service.configure(AUTH_MODE="jwt")
    without = {name: value for name, value in body.items() if name != "user_id"}
    assert service.call(method, path, body=body, jwt=ANN).status == 200
    assert service.call(method, path, body=without, jwt=ANN).status == 200
    assert service.call(method, path, body=body, jwt={"sub": "bob"}).error == (403, "forbidden", "user_id")
    assert service.call(method, path, body=body, jwt=SERVICE_JWT).status == 200
    assert service.call(method, path, body=body).error == (401, "unauthorized", None)
    assert service.call(method, path, body=body, headers=AS_SERVICE).error == (401, "unauthorized", None)


@pytest.mark.parametrize("mode", ["open", "jwt"])
@pytest.mark.parametrize(("method", "path", "body"), PERSONAL)
def test_an_anonymous_person_is_the_tokens(
    service: Service, mode: str, method: str, path: str, body: dict[str, Any]
) -> None:
    service.configure(AUTH_MODE=mode)
    without = {name: value for name, value in body.items() if name != "user_id"}
    answer = service.call(method, path, body=without, headers=AS_PERSON)
    assert answer.status == 200
    assert answer.json.get("user_id", PERSON) == PERSON
    assert service.call(method, path, body={**body, "user_id": PERSON}, headers=AS_PERSON).status == 200
    assert service.call(method, path, body=body, headers=AS_PERSON).error == (403, "forbidden", "user_id")
    forged = {"Tallymark-Anonymous": TOKEN[:-2] + "AA"}
    assert service.call(method, path, body=without, headers=forged).error == (401, "unauthorized", None)
    service.configure(AUTH_MODE=mode, ALLOW_ANONYMOUS="false")
    assert service.call(method, path, body=without, headers=AS_PERSON).error == (401, "unauthorized", None)


def test_an_anonymous_person_gets_an_identity_that_works(service: Service) -> None:
    made = service.call("POST", "/v1/anonymous")
    assert made.status == 200
    assert made.json["user_id"].startswith("anon_")
    answer = service.call("POST", "/v1/like", body=ITEM, headers={"tallymark-anonymous": made.json["token"]})
    assert answer.json["user_id"] == made.json["user_id"]


def test_a_deployment_may_take_no_anonymous_people(service: Service) -> None:
    service.configure(ALLOW_ANONYMOUS="false")
    assert service.call("POST", "/v1/anonymous").error == (403, "forbidden", None)


@pytest.mark.parametrize("liked_at", [NOW, "nonsense", 7, {}])
def test_only_a_service_may_say_when_it_was_liked(service: Service, liked_at: object) -> None:
    for path in ("/v1/like", "/v1/toggle"):
        answer = service.call("POST", path, body={**LIKE, "like": True, "liked_at": liked_at})
        assert answer.error == (403, "forbidden", "liked_at")


def test_a_persons_liked_list_is_for_that_person_and_services_outside_open_mode(service: Service) -> None:
    mine = "/v1/users/ann/likes"
    assert service.call("GET", mine).status == 200
    assert service.call("GET", mine, headers=AS_PERSON).status == 200
    service.configure(AUTH_MODE="jwt")
    assert service.call("GET", mine, jwt=ANN).status == 200
    assert service.call("GET", mine, jwt=SERVICE_JWT).status == 200
    assert service.call("GET", mine, jwt={"sub": "bob"}).error == (403, "forbidden", "user_id")
    assert service.call("GET", mine, headers=AS_PERSON).error == (403, "forbidden", "user_id")
    assert service.call("GET", mine).error == (401, "unauthorized", None)
    assert service.call("GET", "/v1/items/post/1/likers", jwt={"sub": "bob"}).status == 200, "likers lists are public"


PUBLIC: list[tuple[str, str, Any]] = [
    ("GET", "/v1/count?item_id=1&item_type=post", None),
    ("POST", "/v1/counts", {"items": [{"item_id": 1, "item_type": "post"}]}),
    ("GET", "/v1/items/post/1/likers", None),
]


@pytest.mark.parametrize(("method", "path", "body"), PUBLIC)
def test_in_jwt_mode_what_is_public_is_read_without_a_token_but_not_with_a_false_one(
    service: Service, method: str, path: str, body: Any
) -> None:
    service.configure(AUTH_MODE="jwt")
    path, _, query = path.partition("?")

    def status(jwt: Any = None, **headers: str) -> int:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return service.call(method, path, query=query, body=body, jwt=jwt, headers=sent).status

    assert status() == status(ANN) == status(SERVICE_JWT) == status(tallymark_anonymous=TOKEN) == 200
    assert status({"sub": "ann", "exp": 1}) == status(authorization="Bearer forged") == 401
    assert status(tallymark_anonymous="forged") == 401
    service.configure(AUTH_MODE="iam")
    assert status() == 401


@pytest.mark.parametrize("user_id", ["ann", "", 7.5])
def test_in_jwt_mode_a_visitor_is_told_nothing_about_a_person(service: Service, user_id: object) -> None:
    service.configure(AUTH_MODE="jwt")
    body = {"items": [ITEM], "user_id": user_id}
    assert service.call("POST", "/v1/counts", body=body).error == (401, "unauthorized", None)
    (entry,) = service.call("POST", "/v1/counts", body={"items": [ITEM]}).json["counts"]
    assert set(entry) == {"item_id", "item_type", "count", "counts"}
    operations = {"operations": [like()]}
    assert service.call("POST", "/v1/batch", body=operations).error == (401, "unauthorized", None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://other.example"},
        {"aud": "other-app"},
        {"exp": 1},
        {"nbf": 4_000_000_000},
        {"sub": None},
        {"sub": "a\tb"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("method", "path", "body"), PERSONAL)
def test_a_token_that_is_not_for_here_and_now_is_refused(
    service: Service, method: str, path: str, body: dict[str, Any], wrong: dict[str, Any]
) -> None:
    service.configure(AUTH_MODE="jwt")
    assert service.call(method, path, body=body, jwt={**ANN, **wrong}).error == (401, "unauthorized", None)


def test_without_the_issuers_keys_tokens_are_503_and_everything_else_goes_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_: str) -> bytes:
        raise OSError("the issuer is down")

    monkeypatch.setattr(wiring, "fetch", down)
    service.configure(AUTH_MODE="jwt", JWT_KEYS="")
    answer = service.call("POST", "/v1/like", body=LIKE, jwt=ANN)
    assert answer.error == (503, "unavailable", None)
    assert int(answer.headers["retry-after"]) >= 1
    assert service.call("POST", "/v1/like", body=ITEM, headers=AS_PERSON).status == 200
    assert service.call("GET", "/v1/count", query=ITEM).status == 200


def test_signed_requests_act_for_anyone(service: Service) -> None:
    service.configure(AUTH_MODE="iam")
    answer = service.call("POST", "/v1/like", body={**LIKE, "liked_at": NOW}, authorizer={"iam": {"userArn": "arn"}})
    assert answer.status == 200


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/docs"])
def test_in_jwt_mode_nobody_needs_a_token_for_what_is_open(service: Service, path: str) -> None:
    service.configure(AUTH_MODE="jwt")
    assert service.call("GET", path).status == 200


def test_in_jwt_mode_an_anonymous_person_can_get_an_identity(service: Service) -> None:
    service.configure(AUTH_MODE="jwt")
    assert service.call("POST", "/v1/anonymous").status == 200


@pytest.mark.parametrize("mode", ["jwt", "iam"])
@pytest.mark.parametrize("path", ["/v1/users/a%2Fb/likes", "/v1%2Fusers/ann/likes"])
def test_a_path_that_comes_by_default_is_not_open_to_everybody(service: Service, mode: str, path: str) -> None:
    """$default has no authorizer; a slash sent encoded leads there, also in a path that has none decoded."""
    service.configure(AUTH_MODE=mode)
    decoded = path.replace("%2F", "/")
    event = {
        "routeKey": "$default",
        "rawPath": decoded,
        "rawQueryString": "",
        "headers": {},
        "requestContext": {"http": {"method": "GET", "path": path}},
    }
    assert service.send(event).status == 401


# --- which fault wins -------------------------------------------------------------------------------------------

TOO_LARGE = "x" * 262_145


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "headers", "status"),
    [
        ("GET", "/v1/nothing", TOO_LARGE, "text/plain", {"tallymark-service-key": "forged"}, 404),
        ("PUT", "/v1/like", TOO_LARGE, "text/plain", {"tallymark-service-key": "forged"}, 405),
        ("POST", "/v1/like", TOO_LARGE, "text/plain", {"tallymark-service-key": "forged"}, 413),
        ("POST", "/v1/like", "{", "text/plain", {"tallymark-service-key": "forged"}, 415),
        ("POST", "/v1/like", "{", "application/json", {"tallymark-service-key": "forged"}, 401),
        ("POST", "/v1/like", {"user_id": "b"}, "application/json", AS_PERSON, 403),
        ("POST", "/v1/toggle", {"user_id": "b", "like": 7}, "application/json", AS_PERSON, 403),
        ("DELETE", "/v1/like", {"user_id": "b", "reaction": ""}, "application/json", AS_PERSON, 403),
        ("POST", "/v1/has_liked", {"user_id": "b", "item_ids": 7}, "application/json", AS_PERSON, 403),
        ("POST", "/v1/counts", {"user_id": "b", "items": [7]}, "application/json", AS_PERSON, 403),
        ("POST", "/v1/like", {"liked_at": 7}, "application/json", {}, 403),
        ("POST", "/v1/like", {}, "application/json", AS_PERSON, 400),
    ],
)
def test_the_fault_that_wins(
    service: Service, method: str, path: str, body: Any, content_type: str, headers: dict[str, str], status: int
) -> None:
    answer = service.call(method, path, body=body, content_type=content_type, headers=headers)
    assert answer.status == status


@pytest.mark.parametrize("query", ["limit=0", "cursor=x", "item_type=X", "x=1&x=1", "%"])
def test_another_persons_list_is_forbidden_before_its_query_is_judged(service: Service, query: str) -> None:
    service.configure(AUTH_MODE="jwt")
    answer = service.call("GET", "/v1/users/ann/likes", query=query, jwt={"sub": "bob"})
    assert answer.error == (403, "forbidden", "user_id")


# --- paths and methods ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/like", "DELETE, POST"),
        ("PUT", "/v1/like", "DELETE, POST"),
        ("HEAD", "/v1/count", "GET"),
        ("OPTIONS", "/v1/count", "GET"),
        ("POST", "/v1/count", "GET"),
        ("GET", "/v1/batch", "POST"),
        ("PATCH", "/v1/users/a%2Fb/likes", "GET"),
        ("DELETE", "/v1/items/post/1/likers", "GET"),
        ("BREW", "/health", "GET"),
        ("get", "/health", "GET"),
    ],
)
def test_a_method_that_a_path_does_not_know_is_405_with_those_that_it_does(
    service: Service, method: str, path: str, allow: str
) -> None:
    answer = service.call(method, path)
    assert answer.error == (405, "method_not_allowed", None)
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "BREW"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/v1",
        "/v2/like",
        "/v1/like/",
        "//v1/like",
        "/v1/Like",
        "/v1/users//likes",
        "/v1/users/a",
        "/v1/%00",
        "/v1/items/post/likers",
        "/v1/items/post/",
        "/v1/%F0%9F%91%8D",
        "/v1/likes",
        "/health\n",
        "/" + "x" * 5000,
    ],
)
def test_an_unknown_path_is_404_in_our_shape(service: Service, method: str, path: str) -> None:
    assert service.call(method, path).error == (404, "not_found", None)


@pytest.mark.parametrize("item_id", ["a/b", "a/likers", "/", "a//b", "likers", "a/likers/b"])
def test_an_id_with_slashes_is_found_through_the_routes_for_them(service: Service, item_id: str) -> None:
    service.liked("x/y", item_id)
    (liker,) = service.call("GET", f"/v1/items/post/{quote(item_id, safe='')}/likers").json["likers"]
    assert liker["user_id"] == "x/y"
    (liked,) = service.call("GET", "/v1/users/x%2Fy/likes").json["likes"]
    assert liked["item_id"] == item_id


@pytest.mark.parametrize("route", ["$default", "GET /v1/users/{proxy+}"])
def test_in_every_mode_an_id_in_a_path_may_hold_a_slash(service: Service, route: str) -> None:
    event = {
        "routeKey": route,
        "rawPath": "/v1/users/a/b/likes",
        "rawQueryString": "",
        "headers": {"authorization": f"Bearer {token({'sub': 'a/b'})}"},
        "pathParameters": {"proxy": "a/b/likes"},
        "requestContext": {
            "http": {"method": "GET", "path": "/v1/users/a%2Fb/likes"},
            "authorizer": {"iam": {"userArn": "arn"}},
        },
    }
    service.liked("a/b", "1")
    for mode in get_args(AuthMode):
        service.configure(AUTH_MODE=mode)
        assert [like["item_id"] for like in service.send(event).json["likes"]] == ["1"]
    service.configure(AUTH_MODE="jwt")
    event["headers"] = {"authorization": f"Bearer {token({'sub': 'a'})}"}
    assert service.send(event).error == (403, "forbidden", "user_id")


def test_an_operation_of_the_other_function_is_not_found_here(service: Service) -> None:
    """As it is when a path of the write function comes by $default to the read function."""
    event = {
        "routeKey": "$default",
        "rawPath": "/v1/like",
        "rawQueryString": "",
        "headers": {},
        "requestContext": {"http": {"method": "POST", "path": "/v1/like"}},
    }
    assert service.send(event).error == (404, "not_found", None)


# --- stores that fail -------------------------------------------------------------------------------------------

STORE_CALLS: list[tuple[str, str, Any]] = [
    *PERSONAL[:3],
    ("POST", "/v1/has_liked", {"user_id": "ann", "item_type": "post", "item_ids": ["1"]}),
    ("POST", "/v1/counts", {"user_id": "ann", "items": [ITEM]}),
    ("GET", "/v1/users/ann/likes", None),
    ("GET", "/v1/items/post/1/likers", None),
]


@pytest.mark.parametrize(("method", "path", "body"), STORE_CALLS)
def test_a_store_that_does_not_answer_is_503_with_retry_after(
    service: Service, method: str, path: str, body: Any
) -> None:
    service.likes.fault = Unavailable("the store does not answer; try again")
    answer = service.call(method, path, body=body)
    assert answer.error == (503, "unavailable", None)
    assert int(answer.headers["retry-after"]) >= 1


def test_a_fault_of_our_own_is_500_in_our_shape_and_tells_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []

    class Silent:
        def error(self, message: str, **about: Any) -> None:
            logged.append((message, about))

    monkeypatch.setattr(telemetry, "logger", lambda _: Silent())
    service.likes.fault = RuntimeError("secret detail")
    with pytest.raises(AssertionError) as answered:  # the harness takes every 500 for a failure
        service.call("POST", "/v1/like", body=LIKE)
    assert "internal_error" in str(answered.value)
    assert "secret detail" not in str(answered.value)
    ((message, about),) = logged
    assert (message, about["error"], about["operation"]) == ("unexpected failure", "RuntimeError", "POST /v1/like")
    assert "raise self.fault" in about["traceback"][-1], "the log says where"
    assert "secret detail" not in str(about)


# --- health -----------------------------------------------------------------------------------------------------


def test_health_without_a_cache_is_ok(service: Service) -> None:
    answer = service.call("GET", "/health")
    assert answer.status == 200
    assert answer.json["status"] == "ok"
    assert answer.json["dependencies"] == {"dynamodb": "ok", "cache": "off"}


@pytest.mark.parametrize(("up", "status", "cache"), [(True, "ok", "ok"), (False, "degraded", "down")])
def test_a_cache_that_is_down_only_degrades(service: Service, up: bool, status: str, cache: str) -> None:
    service.with_cache(up=up)
    answer = service.call("GET", "/health")
    assert (answer.status, answer.json["status"], answer.json["dependencies"]["cache"]) == (200, status, cache)


@pytest.mark.parametrize("table", ["likes", "counts"])
def test_tables_that_cannot_be_reached_are_503(service: Service, table: str) -> None:
    getattr(service, table).fault = Unavailable("gone")
    answer = service.call("GET", "/health")
    assert (answer.status, answer.json["status"]) == (503, "down")
    assert answer.json["dependencies"]["dynamodb"] == "down"
