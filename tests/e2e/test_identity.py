"""Who may do what where callers are told apart: tokens of an issuer, signed requests, anonymous people.

Each attack is one that a deployment meets; what stands against it is taken away in tests/mutants.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from infra.local.emulator import ACCESS_KEY, REGION, SECRET_KEY
from tallymark.runtime.issuer import LOOK_AGAIN_S
from tests.e2e.conftest import Api, eventually
from tests.e2e.issuer import Issuer, encoded, jwk, private_key, signed, unsigned

Item = dict[str, Any]
Call = tuple[str, str, dict[str, Any]]

TOKENS = pytest.mark.parametrize("api", ["in_process:jwt-mode", "deployed:jwt-mode"], indirect=True)
SIGNATURES = pytest.mark.parametrize("api", ["in_process:iam-mode", "deployed:iam-mode"], indirect=True)
EVERYWHERE = pytest.mark.parametrize(
    "api",
    [f"{where}{mode}" for where in ("in_process", "deployed") for mode in ("", ":jwt-mode", ":iam-mode")],
    indirect=True,
)


@pytest.fixture
def issuer(api: Api) -> Issuer:
    assert api.issuer is not None
    return api.issuer


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def answer(api: Api, call: Call, **more: Any) -> tuple[int, Any]:
    method, path, sent = call
    return api.call(method, path, **sent, **more)


def is_refused(answered: tuple[int, Any], status: int) -> bool:
    """Whether it is this refusal, in the form of all errors."""
    code = {400: "invalid_request", 401: "unauthorized", 403: "forbidden"}[status]
    found, body = answered
    return found == status and set(body) == {"error"} and body["error"]["code"] == code


def calls(user_id: str | None, item: Item) -> dict[str, Call]:
    """Of every operation that can be about a person, a call about this one; about the caller for None."""
    of = {} if user_id is None else {"user_id": user_id}
    likes = {
        "POST /v1/like": ("POST", "/v1/like", {"json": {**item, **of}}),
        "POST /v1/toggle": ("POST", "/v1/toggle", {"json": {**item, **of, "like": True}}),
        "POST /v1/has_liked": (
            "POST",
            "/v1/has_liked",
            {"json": {**of, "item_ids": [item["item_id"]], "item_type": "post"}},
        ),
        "POST /v1/counts": ("POST", "/v1/counts", {"json": {**of, "items": [item]}}),
        "DELETE /v1/like": ("DELETE", "/v1/like", {"json": {**item, **of}}),
        "DELETE /v1/like by query": ("DELETE", "/v1/like", {"params": {**item, **of}}),
    }
    if user_id is not None:
        likes["GET /v1/users/{user_id}/likes"] = ("GET", f"/v1/users/{quote(user_id, safe='')}/likes", {})
    return likes


HIT: Call = ("POST", "/v1/limits/login/hit", {"json": {"key": "ann", "limit": 1_000_000, "window_seconds": 60}})


def batch(*operations: Item) -> Call:
    return "POST", "/v1/batch", {"json": {"operations": [{"action": "like", **operation} for operation in operations]}}


# --- keys that change -------------------------------------------------------------------------------------------


@TOKENS
def test_a_key_that_the_issuer_begins_to_use_is_taken_without_a_deployment(
    api: Api, issuer: Issuer, item: Item, user: str
) -> None:
    assert answer(api, calls(None, item)["POST /v1/like"], headers=bearer(issuer.token(user)))[0] == 200
    issuer.keys = [jwk("first"), jwk("second")]
    headers = bearer(issuer.token(user, key="second"))
    # At once, unless somebody has just made the functions look for a key that there is not.
    eventually(lambda: answer(api, calls(None, item)["POST /v1/like"], headers=headers)[0], 200, LOOK_AGAIN_S + 15)
    assert answer(api, calls(None, item)["POST /v1/like"], headers=bearer(issuer.token(user)))[0] == 200


@TOKENS
def test_while_the_issuer_is_down_its_tokens_are_taken_and_false_ones_are_not(
    api: Api, issuer: Issuer, item: Item, user: str
) -> None:
    call = calls(None, item)["POST /v1/like"]
    assert answer(api, call, headers=bearer(issuer.token(user)))[0] == 200
    issuer.down = True
    try:
        assert answer(api, call, headers=bearer(issuer.token(user)))[0] == 200
        for key in ("unpublished", "first"):
            forged = signed({"alg": "RS256", "kid": key}, issuer.claims(user), "unpublished")
            assert is_refused(answer(api, call, headers=bearer(forged)), 401)
    finally:
        issuer.down = False


@TOKENS
def test_a_flood_of_tokens_with_made_up_keys_does_not_reach_the_issuer(
    api: Api, issuer: Issuer, item: Item, user: str
) -> None:
    call = calls(None, item)["POST /v1/like"]
    assert answer(api, call, headers=bearer(issuer.token(user)))[0] == 200
    before, started = issuer.requests.total(), time.monotonic()
    for n in range(50):
        forged = signed({"alg": "RS256", "kid": f"made-up-{n}"}, issuer.claims(user), "forger")
        assert is_refused(answer(api, call, headers=bearer(forged)), 401)
    looks = 1 + (time.monotonic() - started) / LOOK_AGAIN_S
    assert issuer.requests.total() - before <= 2 * looks, "each look is two requests: the document and the keys"


# --- tokens -----------------------------------------------------------------------------------------------------


@TOKENS
def test_a_token_acts_for_its_subject(api: Api, issuer: Issuer, item: Item, user: str) -> None:
    headers = bearer(issuer.token(user))
    assert api.post("/v1/like", item, headers=headers)["user_id"] == user
    assert api.post("/v1/like", {**item, "user_id": user}, headers=headers)["changed"] is False
    (entry,) = api.post("/v1/counts", {"items": [item]}, headers=headers)["counts"]
    assert entry["liked"] is True
    status, listed = api.call("GET", f"/v1/users/{user}/likes", headers=headers)
    assert (status, [like["item_id"] for like in listed["likes"]]) == (200, [item["item_id"]])
    eventually(lambda: api.count(item), {"like": 1})


def public_pem() -> bytes:
    return private_key("first").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed_with_public_key(issuer: Issuer) -> str:
    message = unsigned({"alg": "HS256", "kid": "first"}, issuer.claims("ann"))
    return f"{message}.{encoded(hmac.digest(public_pem(), message.encode(), hashlib.sha256))}"


def with_payload_of_another(issuer: Issuer) -> str:
    head, _, signature = issuer.token("bob").split(".")
    return ".".join((head, issuer.token("ann").split(".")[1], signature))


RS256 = {"alg": "RS256", "kid": "first"}
ATTACKS: dict[str, Callable[[Issuer], str]] = {
    "another audience": lambda issuer: issuer.token("ann", aud="other-app"),
    "another issuer": lambda issuer: issuer.token("ann", iss="https://other.example"),
    "another issuer's key under our key's name": lambda issuer: signed(RS256, issuer.claims("ann"), "forger"),
    "a key that is not published": lambda issuer: issuer.token("ann", key="forger"),
    "a key that the token brings along": lambda issuer: signed(
        {**RS256, "jwk": jwk("forger"), "jku": f"{issuer.url}/forged"}, issuer.claims("ann"), "forger"
    ),
    "no algorithm": lambda issuer: f"{unsigned({'alg': 'none', 'kid': 'first'}, issuer.claims('ann'))}.",
    "no algorithm, with a signature": lambda issuer: signed({**RS256, "alg": "none"}, issuer.claims("ann"), "first"),
    "the public key as a secret": signed_with_public_key,
    "the payload of another token": with_payload_of_another,
    "expired": lambda issuer: issuer.token("ann", exp=int(time.time()) - 1),
    "never expires": lambda issuer: signed(RS256, {"iss": issuer.url, "aud": "tallymark-tests", "sub": "ann"}, "first"),
    "not valid yet": lambda issuer: issuer.token("ann", nbf=int(time.time()) + 600),
    "issued in the future": lambda issuer: issuer.token("ann", iat=int(time.time()) + 600),
    "no subject": lambda issuer: issuer.token(None),
    "no subject and another scope": lambda issuer: issuer.token(None, scope="tallymark:services"),
    "a subject that is no id": lambda issuer: issuer.token("a\tb"),
    "a critical extension": lambda issuer: signed({**RS256, "crit": ["exp"]}, issuer.claims("ann"), "first"),
    "too long": lambda issuer: issuer.token("ann", pad="x" * 8192),
    "a signature that is cut": lambda issuer: issuer.token("ann")[:-4],
    "no signature": lambda issuer: issuer.token("ann").rpartition(".")[0] + ".",
    "no token": lambda _: "x",
}


@TOKENS
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_false_token_is_refused_everywhere(api: Api, issuer: Issuer, item: Item, attack: str) -> None:
    headers = bearer(ATTACKS[attack](issuer))
    about_ann = calls("ann", item)
    for name in ("POST /v1/like", "DELETE /v1/like", "GET /v1/users/{user_id}/likes"):
        assert is_refused(answer(api, about_ann[name], headers=headers), 401), name
    for method, path in (("GET", "/v1/count"), ("GET", "/v1/items/post/1/likers"), ("GET", "/v1/users/a%2Fb/likes")):
        assert is_refused(api.call(method, path, params=item, headers=headers), 401), path
    assert is_refused(answer(api, batch(item), headers=headers), 401)


@TOKENS
@pytest.mark.parametrize("header", ["", "Bearer", "Basic YW5uOg==", "{token}", "Token {token}", "Bearer {token} x"])
def test_a_header_that_is_no_bearer_token_is_refused(api: Api, issuer: Issuer, item: Item, header: str) -> None:
    headers = {"authorization": header.format(token=issuer.token("ann"))}
    assert is_refused(answer(api, calls("ann", item)["POST /v1/like"], headers=headers), 401)


def about_a_person(document: dict[str, Any]) -> Iterator[str]:
    """The operations that name a person, anywhere in what is sent."""
    for path, entries in document["paths"].items():
        for method, entry in entries.items():
            sent = {"parameters": entry.get("parameters"), "body": entry.get("requestBody")}
            if "user_id" in json.dumps(sent):
                yield f"{method.upper()} {path}"


@TOKENS
def test_another_persons_id_is_forbidden_in_every_operation_that_takes_one(
    api: Api, issuer: Issuer, item: Item, user: str
) -> None:
    mine, theirs = bearer(issuer.token(user)), bearer(issuer.token(f"{user}-other"))
    tried = calls(user, item)
    for name, call in tried.items():
        assert is_refused(answer(api, call, headers=theirs), 403), name
        assert answer(api, call, headers=mine)[0] == 200, name
    status, results = answer(api, batch({**item, "user_id": user}, item), headers=theirs)
    assert status == 200
    assert [result["status"] for result in results["results"]] == [403, 200], "a 403 is that operation's"
    described = set(about_a_person(api.get("/openapi.json")))
    assert described == {name.removesuffix(" by query") for name in tried} | {"POST /v1/batch"}
    likers = api.get(f"/v1/items/post/{item['item_id']}/likers")["likers"]
    assert [liker["user_id"] for liker in likers] == [f"{user}-other"], "the batch liked for its own caller alone"


@TOKENS
@pytest.mark.parametrize("scope", [{"scope": "read tallymark:service"}, {"scp": ["tallymark:service"]}])
def test_a_token_with_the_service_scope_acts_for_anyone(
    api: Api, issuer: Issuer, item: Item, user: str, scope: dict[str, Any]
) -> None:
    for sub in ("importer", None):
        headers = bearer(issuer.token(sub, **scope))
        for name, call in calls(user, item).items():
            assert answer(api, call, headers=headers)[0] == 200, name
        body = {**item, "user_id": user, "liked_at": "2001-02-03T04:05:06.789Z"}
        assert api.post("/v1/like", body, headers=headers)["liked_at"] == body["liked_at"]
        assert is_refused(answer(api, calls(None, item)["POST /v1/like"], headers=headers), 400), "for whom, then?"
        assert answer(api, calls(user, item)["DELETE /v1/like"], headers=headers)[0] == 200


@TOKENS
def test_a_person_is_no_service(api: Api, issuer: Issuer, item: Item, user: str) -> None:
    headers = bearer(issuer.token(user))
    body = {**item, "liked_at": "2001-02-03T04:05:06.789Z"}
    assert is_refused(api.call("POST", "/v1/like", body, headers=headers), 403)
    key = {"tallymark-service-key": api.service_key}
    assert is_refused(api.call("POST", "/v1/like", {**body, "user_id": user}, headers=key), 401)
    assert is_refused(api.call("POST", "/v1/like", {**body, "user_id": user}, headers={**key, **headers}), 403)


@TOKENS
def test_limits_are_hit_by_services_alone(api: Api, issuer: Issuer, user: str) -> None:
    anonymous = {"tallymark-anonymous": api.post("/v1/anonymous", None)["token"]}
    assert answer(api, HIT, headers=bearer(issuer.token("gateway", scope="tallymark:service")))[0] == 200
    assert is_refused(answer(api, HIT, headers=bearer(issuer.token(user))), 403)
    assert is_refused(answer(api, HIT, headers=anonymous), 403)
    assert is_refused(answer(api, HIT), 401)


# --- visitors ---------------------------------------------------------------------------------------------------


@TOKENS
def test_without_a_token_what_is_public_is_read_and_nothing_else(
    api: Api, issuer: Issuer, item: Item, user: str
) -> None:
    api.post("/v1/like", item, headers=bearer(issuer.token(user)))
    eventually(lambda: api.get("/v1/count", **item)["count"], 1)
    (entry,) = api.post("/v1/counts", {"items": [item]})["counts"]
    assert set(entry) == {"item_id", "item_type", "count", "counts"}
    likers = api.get(f"/v1/items/post/{item['item_id']}/likers")["likers"]
    assert [liker["user_id"] for liker in likers] == [user]
    for name, call in calls(user, item).items():
        assert is_refused(answer(api, call), 401), name
    for name, call in calls(None, item).items():
        if name != "POST /v1/counts":
            assert is_refused(answer(api, call), 401), name
    assert is_refused(answer(api, batch({**item, "user_id": user})), 401)


# --- anonymous people -------------------------------------------------------------------------------------------


def raw(token: str) -> tuple[bytes, bytes]:
    """Signature and id of an anonymous token."""
    whole = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    return whole[:16], whole[16:]


@pytest.mark.parametrize("api", ["in_process", "in_process:jwt-mode", "deployed:jwt-mode"], indirect=True)
def test_an_anonymous_identity_can_be_neither_forged_nor_swapped(api: Api, item: Item) -> None:
    one, two = api.post("/v1/anonymous", None), api.post("/v1/anonymous", None)
    (signature, user_id), (other_signature, other_id) = raw(one["token"]), raw(two["token"])
    assert (user_id.decode(), other_id.decode()) == (one["user_id"], two["user_id"])
    call = calls(None, item)["POST /v1/like"]
    forged = {
        "signature of another": encoded(other_signature + user_id),
        "id of another": encoded(signature + other_id),
        "id that somebody chose": encoded(signature + b"anon_chosen"),
        "id of a person": encoded(signature + b"ann"),
        "no id": encoded(signature),
        "no signature": encoded(user_id),
        "zeros": encoded(bytes(16) + user_id),
        "signed with nothing": encoded(hmac.digest(b"", user_id, hashlib.sha256)[:16] + user_id),
        "a longer signature": encoded(signature + signature + user_id),
        "padding": one["token"] + "=",
        "the id itself": one["user_id"],
        "nothing": "",
    }
    for name, token in forged.items():
        assert is_refused(answer(api, call, headers={"tallymark-anonymous": token}), 401), name
    for person in (one, two):
        status, liked = answer(api, call, headers={"tallymark-anonymous": person["token"]})
        assert (status, liked["user_id"]) == (200, person["user_id"])


@TOKENS
def test_anonymous_people_stand_beside_those_with_a_token_and_are_not_each_other(
    api: Api, issuer: Issuer, item: Item, user: str
) -> None:
    person = api.post("/v1/anonymous", None)
    anonymous, ann = {"tallymark-anonymous": person["token"]}, bearer(issuer.token(user))
    for name, call in calls(person["user_id"], item).items():
        assert answer(api, call, headers=anonymous)[0] == 200, name
        assert is_refused(answer(api, call, headers=ann), 403), name
    for name, call in calls(user, item).items():
        assert is_refused(answer(api, call, headers=anonymous), 403), name
    like = calls(None, item)["POST /v1/like"]
    assert answer(api, like, headers={**anonymous, **ann})[1]["user_id"] == user, "a bearer token goes first"
    forged = bearer(issuer.token(user, aud="other-app"))
    assert is_refused(answer(api, like, headers={**anonymous, **forged}), 401), "and is not passed over when false"
    assert is_refused(answer(api, like, headers=bearer(person["token"])), 401)
    as_anonymous = {"tallymark-anonymous": issuer.token(user)}
    assert is_refused(answer(api, like, headers=as_anonymous), 401)


# --- cursors ----------------------------------------------------------------------------------------------------


@TOKENS
def test_a_cursor_opens_no_other_list_and_cannot_be_made(api: Api, issuer: Issuer, item: Item, user: str) -> None:
    people = {name: bearer(issuer.token(name)) for name in (user, f"{user}-other")}
    pages = {}
    for name, headers in people.items():
        for n in range(3):
            api.post("/v1/like", {**item, "item_id": f"{item['item_id']}-{n}"}, headers=headers)
        pages[name] = api.call("GET", f"/v1/users/{name}/likes", params={"limit": 1}, headers=headers)[1]
    mine, theirs = (page["cursor"] for page in pages.values())
    whole = base64.urlsafe_b64decode(mine + "=" * (-len(mine) % 4))
    other = base64.urlsafe_b64decode(theirs + "=" * (-len(theirs) % 4))
    forged = {
        "of another person's list": theirs,
        "signature of another": encoded(other[:16] + whole[16:]),
        "place in another list": encoded(whole[:16] + other[16:]),
        "the newest there could be": encoded(whole[:16] + b"\xff" * len(whole[16:])),
        "no signature": encoded(whole[16:]),
        "zeros": encoded(bytes(len(whole))),
        "one bit": encoded(whole[:-1] + bytes([whole[-1] ^ 1])),
        "longer": encoded(whole + b"\x00"),
        "an anonymous token": api.post("/v1/anonymous", None)["token"],
    }
    path, headers = f"/v1/users/{user}/likes", people[user]
    assert api.call("GET", path, params={"cursor": mine}, headers=headers)[0] == 200
    for name, cursor in forged.items():
        assert is_refused(api.call("GET", path, params={"cursor": cursor}, headers=headers), 400), name
    # Who may not see the list learns nothing from a cursor of it.
    other_list = f"/v1/users/{user}-other/likes"
    for cursor in (mine, theirs, "x"):
        assert is_refused(api.call("GET", other_list, params={"cursor": cursor}, headers=headers), 403)
    likers = f"/v1/items/post/{item['item_id']}-0/likers"
    cursor = api.get(likers, limit=1)["cursor"]
    assert len(api.get(likers, cursor=cursor)["likers"]) == 1
    for wrong in (mine, cursor[:-1] + ("A" if cursor[-1] != "A" else "Q")):
        assert is_refused(api.call("GET", likers, params={"cursor": wrong}), 400)
    assert is_refused(api.call("GET", path, params={"cursor": cursor}, headers=headers), 400)


# --- ids with slashes -------------------------------------------------------------------------------------------


class Signed(httpx.Auth):
    """Signs requests as an AWS SDK does."""

    requires_request_body = True

    def __init__(
        self, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, service: str = "execute-api"
    ) -> None:
        self._signer = SigV4Auth(Credentials(access_key, secret_key), service, REGION)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        url = f"{request.url.scheme}://{request.url.netloc.decode()}{request.url.raw_path.decode()}"
        to_sign = AWSRequest(request.method, url, {"host": request.headers["host"]}, request.content)
        self._signer.add_auth(to_sign)
        request.headers.update(dict(to_sign.headers.items()))
        yield request


def proof(api: Api, user_id: str) -> dict[str, Any]:
    """What lets the caller act for this person, in the mode of the API."""
    if api.issuer is not None:
        return {"headers": bearer(api.issuer.token(user_id))}
    unsigned_answer = api.call("GET", "/v1/count", params={"item_id": "1", "item_type": "post"})
    return {"auth": Signed()} if unsigned_answer[0] == 403 else {}


@EVERYWHERE
@pytest.mark.parametrize("end", ["/b", "/", "//c", "/likes", "/%2F", "/likers/x"])
def test_lists_of_ids_with_slashes_are_there_for_those_who_may_see_them(
    api: Api, item: Item, user: str, end: str
) -> None:
    user, item = user + end, {**item, "item_id": item["item_id"] + end}
    allowed = proof(api, user)
    assert answer(api, calls(user, item)["POST /v1/like"], **allowed)[0] == 200
    call = calls(user, item)["GET /v1/users/{user_id}/likes"]
    status, listed = answer(api, call, **allowed)
    assert (status, [like["item_id"] for like in listed["likes"]]) == (200, [item["item_id"]])
    status, listed = api.call("GET", f"/v1/items/post/{quote(item['item_id'], safe='')}/likers", **allowed)
    assert (status, [liker["user_id"] for liker in listed["likers"]]) == (200, [user])
    if api.issuer is not None:
        assert is_refused(answer(api, call), 401)
        assert is_refused(answer(api, call, **proof(api, "someone else")), 403)
    elif allowed:
        assert answer(api, call) == FORBIDDEN


# --- signed requests --------------------------------------------------------------------------------------------

FORBIDDEN = (403, {"message": "Forbidden"})  # API Gateway's own words
# The emulator's own gateway asks whether there is a signature and not whether it is right.
IN_PROCESS = pytest.mark.parametrize("api", ["in_process:iam-mode"], indirect=True)


@SIGNATURES
def test_a_signed_request_is_that_of_a_service(api: Api, item: Item, user: str) -> None:
    for name, call in calls(user, item).items():
        assert answer(api, call, auth=Signed())[0] == 200, name
    body = {**item, "user_id": user, "liked_at": "2001-02-03T04:05:06.789Z"}
    assert api.post("/v1/like", body, auth=Signed())["liked_at"] == body["liked_at"]
    assert is_refused(answer(api, calls(None, item)["POST /v1/like"], auth=Signed()), 400)
    assert answer(api, HIT, auth=Signed())[0] == 200
    status, counted = api.call("GET", "/v1/count", params={**item, "fresh": "true"}, auth=Signed())
    assert (status, counted["item_id"]) == (200, item["item_id"])


@SIGNATURES
def test_an_unsigned_request_is_refused_by_the_gateway(api: Api, item: Item, user: str) -> None:
    public = [
        ("GET", "/v1/count", {"params": item}),
        ("GET", "/v1/items/post/1/likers", {}),
    ]
    assert answer(api, ("POST", "/v1/anonymous", {})) == FORBIDDEN
    for call in [*calls(user, item).values(), *public, batch({**item, "user_id": user}), HIT]:
        assert answer(api, call) == FORBIDDEN, call
        for headers in ({"tallymark-service-key": api.service_key}, {"tallymark-anonymous": "x"}, bearer("a.b.c")):
            # 401: what the emulator's gateway lets through, the function refuses.
            assert answer(api, call, headers=headers)[0] in (401, 403), (call, headers)


@SIGNATURES
def test_what_is_open_and_what_is_nowhere_needs_no_signature(api: Api) -> None:
    assert api.get("/health")["status"] == "ok"
    assert api.get("/openapi.json")["openapi"].startswith("3.1")
    assert api.client.get("/docs").status_code == 200
    status, body = api.call("GET", "/v1/nothing")
    assert (status, body["error"]["code"]) == (404, "not_found")
    status, body = api.call("PUT", "/v1/like")
    assert (status, body["error"]["code"]) == (405, "method_not_allowed")


@IN_PROCESS
@pytest.mark.parametrize(
    "signature", [Signed(access_key="other"), Signed(secret_key="other"), Signed(service="dynamodb")]
)
def test_a_signature_of_other_keys_or_for_another_service_is_refused(
    api: Api, item: Item, user: str, signature: Signed
) -> None:
    assert answer(api, calls(user, item)["POST /v1/like"], auth=signature)[0] == 403


@IN_PROCESS
def test_a_signed_request_that_is_altered_is_refused(api: Api, item: Item, user: str) -> None:
    request = api.client.build_request("POST", "/v1/like", json={**item, "user_id": user})
    request = next(Signed().auth_flow(request))
    assert api.client.send(request).status_code == 200
    altered = [
        ("POST", "/v1/like", request.content.replace(user.encode(), b"x" * len(user)), {}),
        ("POST", "/v1/toggle", request.content, {}),
        ("DELETE", "/v1/like", request.content, {}),
        ("POST", "/v1/like?x=1", request.content, {}),
        ("POST", "/v1/like", request.content, {"x-amz-date": "20200101T000000Z"}),
    ]
    for method, path, content, headers in altered:
        sent = {**dict(request.headers), **headers}
        sent.pop("content-length")
        assert api.client.request(method, path, content=content, headers=sent).status_code == 403, (method, path)


@IN_PROCESS
@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_signature_of_another_time_is_refused(
    api: Api, item: Item, user: str, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime.now(UTC) + timedelta(minutes=minutes)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: at)
    assert answer(api, calls(user, item)["POST /v1/like"], auth=Signed()) == FORBIDDEN
