"""Signatures on one machine: what an AWS SDK signs passes, and nothing that differs from it in any part."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from infra.local.authorizers import WINDOW, Signatures
from infra.local.gateway import Endpoint, Gateway
from infra.local.template import Route

SIGNATURES = Signatures("key", "secret", "us-east-1", "123456789012")
URL = "http://127.0.0.1:8000/v1/users/a%2Fb%20%F0%9F%91%8D/likes?limit=1&cursor=a%2Bb&limit=0"


def signed(
    method: str = "POST",
    url: str = URL,
    body: bytes = b'{"a": 1}',
    *,
    keys: tuple[str, str] = ("key", "secret"),
    service: str = "execute-api",
    region: str = "us-east-1",
    headers: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The headers that an SDK would send, names in small letters."""
    host = url.split("/")[2]
    request = AWSRequest(method, url, {"host": host, "content-type": "application/json", **(headers or {})}, body)
    SigV4Auth(Credentials(*keys), service, region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def caller(
    headers: Mapping[str, str],
    method: str = "POST",
    url: str = URL,
    body: bytes = b'{"a": 1}',
    late: timedelta = timedelta(),
) -> Any:
    return SIGNATURES.caller(method, url, headers, body, datetime.now(UTC) + late)


def test_a_signed_request_tells_its_caller_as_api_gateway_does() -> None:
    assert caller(signed()) == {
        "accessKey": "key",
        "accountId": "123456789012",
        "callerId": "123456789012",
        "cognitoIdentity": None,
        "principalOrgId": None,
        "userArn": "arn:aws:iam::123456789012:root",
        "userId": "123456789012",
    }


@pytest.mark.parametrize("url", [URL, "http://h/", "http://h/a//b/../c", "http://h/%25?a&b=&a=%20", "http://h/é"])
def test_whatever_was_signed_passes(url: str) -> None:
    assert caller(signed("GET", url, b""), "GET", url, b"")
    assert caller({**signed(url=url), "user-agent": "x", "unsigned": "y"}, url=url)


def test_a_digest_that_is_sent_along_is_that_of_the_body() -> None:
    def with_digest(digest: str) -> dict[str, str]:
        return signed(headers={"x-amz-content-sha256": digest})

    assert caller(with_digest(hashlib.sha256(b'{"a": 1}').hexdigest()))
    for digest in (hashlib.sha256(b"other").hexdigest(), "UNSIGNED-PAYLOAD", "", "é"):
        assert caller(with_digest(digest)) is None


@pytest.mark.parametrize("late", [WINDOW - timedelta(seconds=5), -WINDOW + timedelta(seconds=5)])
def test_clocks_may_differ_by_a_quarter_of_an_hour(late: timedelta) -> None:
    assert caller(signed(), late=late)
    assert caller(signed(), late=late * 1.02) is None


@pytest.mark.parametrize(
    "other",
    [
        {"method": "DELETE"},
        {"url": URL.replace("likes", "liked")},
        {"url": URL.replace("%2F", "/")},
        {"url": URL.replace("limit=1", "limit=2")},
        {"url": URL + "&x"},
        {"url": URL.partition("?")[0]},
        {"body": b'{"a": 2}'},
        {"body": b""},
    ],
    ids=str,
)
def test_a_request_that_was_altered_on_its_way_is_refused(other: dict[str, Any]) -> None:
    assert caller(signed(), **other) is None


@pytest.mark.parametrize("name", ["host", "content-type", "x-amz-date"])
def test_a_signed_header_that_was_altered_or_dropped_is_refused(name: str) -> None:
    headers = signed()
    assert caller({**headers, name: headers[name] + "1"}) is None
    assert caller({other: value for other, value in headers.items() if other != name}) is None


@pytest.mark.parametrize(
    "signer",
    [{"keys": ("other", "secret")}, {"keys": ("key", "other")}, {"service": "dynamodb"}, {"region": "eu-west-1"}],
    ids=str,
)
def test_other_keys_and_scopes_are_refused(signer: dict[str, Any]) -> None:
    assert caller(signed(**signer)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
        ("AWS4-HMAC-SHA256 ", ""),
        ("AWS4-HMAC-SHA256", "Bearer"),
        ("content-type;", ""),
        ("host;", ""),
        ("Signature=", "Signature=0"),
        ("Signature=", "signature="),
        (", ", ""),
        ("aws4_request", "aws4"),
    ],
)
def test_an_authorization_that_was_altered_is_refused(old: str, new: str) -> None:
    headers = signed()
    assert old in headers["authorization"]
    assert caller({**headers, "authorization": headers["authorization"].replace(old, new)}) is None


def test_a_host_that_is_not_signed_could_be_another() -> None:
    """Signed rightly, but for no host: such a request could be sent on to any API of the same owner."""
    request = AWSRequest("GET", "http://h/", {"x-amz-date": datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")}, b"")
    signer = SigV4Auth(Credentials("key", "secret"), "execute-api", "us-east-1")
    request.context["timestamp"] = request.headers["x-amz-date"]
    canonical = f"GET\n/\n\nx-amz-date:{request.headers['x-amz-date']}\n\nx-amz-date\n{hashlib.sha256().hexdigest()}"
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders=x-amz-date, Signature={signature}"
    )
    headers = {"host": "h", "x-amz-date": request.headers["x-amz-date"], "authorization": authorization}
    assert caller(headers, "GET", "http://h/", b"") is None


@pytest.mark.parametrize("authorization", [None, "", "Bearer x", "AWS4-HMAC-SHA256", "é", "x" * 100_000])
def test_what_is_no_signature_is_refused(authorization: str | None) -> None:
    headers = {name: value for name, value in signed().items() if name != "authorization"}
    assert caller(headers if authorization is None else {**headers, "authorization": authorization}) is None


# --- the gateway ------------------------------------------------------------------------------------------------

ROUTES = [
    Route("GET /v1/users/{proxy+}", "GET", "/v1/users/{proxy+}", "Api", "AWS_IAM"),
    Route("GET /v1/users/{user_id}/likes", "GET", "/v1/users/{user_id}/likes", "Api", "AWS_IAM"),
    Route("GET /health", "GET", "/health", "Api"),
    Route("$default", "$default", "", "Api"),
]


def send(method: str, uri: str, headers: Mapping[str, str]) -> tuple[int, bytes, list[dict[str, Any]]]:
    """Status and body, and the events that reached the function."""
    events: list[dict[str, Any]] = []

    def handler(event: dict[str, Any], _: Any) -> Any:
        events.append(event)
        return {"statusCode": 200, "body": "{}"}

    gateway = Gateway(ROUTES, {"Api": Endpoint(handler, object)}, signatures=SIGNATURES)
    environ = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": uri,
        "QUERY_STRING": uri.partition("?")[2],
        "wsgi.input": io.BytesIO(),
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
    }
    seen: list[Any] = []
    body = b"".join(gateway(environ, lambda status, _: seen.append(status)))
    return int(seen[0].split()[0]), body, events


@pytest.mark.parametrize("uri", ["/v1/users/ann/likes", "/v1/users/a%2Fb/likes?limit=1", "/v1/users/a/b/likes"])
def test_the_gateway_lets_signed_requests_through_and_says_who_signed(uri: str) -> None:
    headers = signed("GET", f"http://h{uri}", b"")
    status, _, (event,) = send("GET", uri, headers)
    assert status == 200
    assert event["requestContext"]["authorizer"] == {"iam": caller(headers, "GET", f"http://h{uri}", b"")}
    assert send("GET", uri, {}) == (403, json.dumps({"message": "Forbidden"}, separators=(",", ":")).encode(), [])


def test_the_gateway_asks_no_signature_where_the_route_does_not() -> None:
    for uri in ("/health", "/v1/nothing"):
        status, _, (event,) = send("GET", uri, {"authorization": "Bearer x"})
        assert status == 200
        assert "authorizer" not in event["requestContext"]


def test_a_list_with_its_own_route_goes_before_the_one_for_slashes() -> None:
    headers = signed("GET", "http://h/v1/users/a%2Fb/likes", b"")
    _, _, (event,) = send("GET", "/v1/users/a%2Fb/likes", headers)
    assert event["routeKey"] == "GET /v1/users/{user_id}/likes"
    headers = signed("GET", "http://h/v1/users/a/b/likes", b"")
    _, _, (event,) = send("GET", "/v1/users/a/b/likes", headers)
    assert (event["routeKey"], event["pathParameters"]) == ("GET /v1/users/{proxy+}", {"proxy": "a/b/likes"})


@pytest.mark.parametrize("kind", ["AWS_IAM", "JWT", "CUSTOM"])
def test_a_gateway_that_cannot_check_what_a_route_asks_for_is_not_made(kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        Gateway([Route("GET /", "GET", "/", "Api", kind)], {})
