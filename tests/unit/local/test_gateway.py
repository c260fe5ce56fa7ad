"""The gateway: requests become payload 2.0 events, answers become HTTP, CORS is the gateway's own."""

from __future__ import annotations

import base64
import http.client
import io
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import pytest

from infra.local.gateway import BODY_MAX_BYTES, Endpoint, Gateway, Server
from infra.local.template import Route

ROUTES = [
    Route("POST /v1/like", "POST", "/v1/like", "Write"),
    Route("GET /v1/users/{user_id}/likes", "GET", "/v1/users/{user_id}/likes", "Read"),
    Route("GET /v1/items/{item_type}/{item_id}/likers", "GET", "/v1/items/{item_type}/{item_id}/likers", "Read"),
    Route("$default", "$default", "", "Other"),
]
CORS = {
    "AllowOrigins": ["https://a.example"],
    "AllowMethods": ["GET", "POST"],
    "AllowHeaders": ["content-type"],
    "ExposeHeaders": ["retry-after"],
    "MaxAge": "600",
}


class Answer:
    """What a client gets."""

    def __init__(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = int(status.split()[0])
        self.headers = dict(headers)
        self.header_list = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends requests to a gateway whose functions all answer alike and note what they were called with."""

    def __init__(self, answer: Any = None, cors: Mapping[str, Any] | None = None, delay: float = 0) -> None:
        self.delay = delay
        self.answer = answer if answer is not None else {"statusCode": 200, "body": "{}"}
        self.events: list[dict[str, Any]] = []
        self.called: list[str] = []
        endpoints = {name: Endpoint(self.handler(name), object) for name in ("Write", "Read", "Other")}
        self.gateway = Gateway(ROUTES, endpoints, cors)

    def handler(self, name: str) -> Callable[[Any, Any], Any]:
        def handle(event: dict[str, Any], _: Any) -> Any:
            self.called.append(name)
            self.events.append(event)
            time.sleep(self.delay)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return handle

    def send(self, method: str, uri: str, body: bytes = b"", **headers: str) -> Answer:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "REQUEST_URI": uri,
            "QUERY_STRING": uri.partition("?")[2],
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.input": io.BytesIO(body),
        }
        if body:
            environ["CONTENT_LENGTH"] = str(len(body))
        for name, value in headers.items():
            environ[name if name == "CONTENT_TYPE" else f"HTTP_{name.upper()}"] = value
        seen: list[Any] = []
        chunks = self.gateway(environ, lambda status, items: seen.extend((status, items)))
        return Answer(seen[0], seen[1], b"".join(chunks))

    @property
    def event(self) -> dict[str, Any]:
        (event,) = self.events
        return event


# --- events ---


def test_an_event_has_the_form_of_payload_2_0() -> None:
    client = Client()
    client.send(
        "POST",
        "/v1/like?x=1",
        b'{"a":1}',
        CONTENT_TYPE="application/json",
        USER_AGENT="me",
        COOKIE="a=1; b=2",
    )
    event = client.event
    context = event.pop("requestContext")
    assert event == {
        "version": "2.0",
        "routeKey": "POST /v1/like",
        "rawPath": "/v1/like",
        "rawQueryString": "x=1",
        "queryStringParameters": {"x": "1"},
        "cookies": ["a=1", "b=2"],
        "headers": {"content-type": "application/json", "content-length": "7", "user-agent": "me"},
        "body": '{"a":1}',
        "isBase64Encoded": False,
    }
    assert context["http"] == {
        "method": "POST",
        "path": "/v1/like",
        "protocol": "HTTP/1.1",
        "sourceIp": "127.0.0.1",
        "userAgent": "me",
    }
    assert context["routeKey"] == "POST /v1/like"
    assert context["stage"] == "$default"
    assert {"accountId", "apiId", "domainName", "requestId", "time", "timeEpoch"} <= set(context)


def test_what_has_no_value_is_left_out() -> None:
    client = Client()
    client.send("GET", "/v1/users/u/likes")
    assert not {"body", "cookies", "queryStringParameters"} & set(client.event)


def test_a_repeated_query_parameter_stays_visible() -> None:
    client = Client()
    client.send("GET", "/v1/users/u/likes?limit=1&limit=2&q=a%2Bb+c&empty=")
    assert client.event["rawQueryString"] == "limit=1&limit=2&q=a%2Bb+c&empty="
    assert client.event["queryStringParameters"] == {"limit": "1,2", "q": "a+b c", "empty": ""}


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "text/plain", "application/xml"])
def test_text_arrives_as_text(content_type: str) -> None:
    client = Client()
    client.send("POST", "/v1/like", "é".encode(), CONTENT_TYPE=content_type)
    assert client.event["body"] == "é"
    assert client.event["isBase64Encoded"] is False


@pytest.mark.parametrize("content_type", ["", "application/x-www-form-urlencoded", "image/png"])
def test_anything_else_arrives_in_base64(content_type: str) -> None:
    client = Client()
    client.send("POST", "/v1/like", b"abc", CONTENT_TYPE=content_type)
    assert base64.b64decode(client.event["body"]) == b"abc"
    assert client.event["isBase64Encoded"] is True


def test_bytes_that_are_no_text_are_kept() -> None:
    client = Client()
    client.send("POST", "/v1/like", b"\xff", CONTENT_TYPE="application/json")
    assert base64.b64decode(client.event["body"]) == b"\xff"
    assert client.event["isBase64Encoded"] is True


# --- routes ---


@pytest.mark.parametrize(
    ("uri", "user_id"),
    [
        ("/v1/users/42/likes", "42"),
        ("/v1/users/a%2Fb/likes", "a/b"),
        ("/v1/users/a%23%3F%2C%20b/likes?x=1", "a#?, b"),
        ("/v1/users/%F0%9F%91%8D/likes", "👍"),
        ("/v1/users/a+b/likes", "a+b"),
        ("/v1/users/50%25/likes", "50%25"),
        ("/v1/users/%252F/likes", "%252F"),
        ("/v1/users/%E2%80%A8/likes", "\u2028"),
        ("/v1/users/%0A/likes", "\n"),
    ],
)
def test_path_parameters_are_decoded_by_segment_except_for_percent_signs(uri: str, user_id: str) -> None:
    client = Client()
    client.send("GET", uri)
    assert client.event["routeKey"] == "GET /v1/users/{user_id}/likes"
    assert client.event["pathParameters"] == {"user_id": user_id}


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", "/"),
        ("GET", "/v1/like"),
        ("HEAD", "/v1/users/u/likes"),
        ("POST", "/v1/like/"),
        ("GET", "/v1/users//likes"),
        ("GET", "/v1/users/a/b/likes"),
        ("OPTIONS", "/v1/like"),
        ("BREW", "/v1/like"),
    ],
)
def test_what_no_route_fits_goes_to_default(method: str, uri: str) -> None:
    client = Client()
    client.send(method, uri)
    assert client.called == ["Other"]
    assert client.event["routeKey"] == "$default"
    assert "pathParameters" not in client.event


@pytest.mark.parametrize("uri", ["/v1/users/%/likes", "/v1/users/%zz/likes", "/v1/users/%FF/likes", "/x/%C3%28", "/é"])
def test_a_path_that_is_not_encoded_utf_8_is_refused(uri: str) -> None:
    client = Client()
    answer = client.send("GET", uri)
    assert answer.status == 400
    assert answer.json["error"]["code"] == "invalid_request"
    assert client.events == []


def test_a_body_over_10_mb_is_refused() -> None:
    client = Client()
    answer = client.send("POST", "/v1/like", b"x" * (BODY_MAX_BYTES + 1), CONTENT_TYPE="application/json")
    assert (answer.status, answer.json["error"]["code"]) == (413, "payload_too_large")
    assert client.events == []


# --- answers ---


def test_status_headers_cookies_and_body_come_back() -> None:
    answer = Client(
        {"statusCode": 429, "headers": {"Retry-After": 3}, "cookies": ["a=1", "b=2"], "body": '{"x":1}'}
    ).send("POST", "/v1/like")
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == "7"
    assert [value for name, value in answer.header_list if name == "set-cookie"] == ["a=1", "b=2"]
    assert answer.body == b'{"x":1}'


def test_a_body_in_base64_is_decoded() -> None:
    answer = Client({"statusCode": 200, "body": base64.b64encode(b"\x00\x01").decode(), "isBase64Encoded": True})
    assert answer.send("GET", "/").body == b"\x00\x01"


@pytest.mark.parametrize("status", [204, 304])
def test_what_has_no_body_by_its_status_has_none(status: int) -> None:
    answer = Client({"statusCode": status, "headers": {"Content-Length": "5"}, "body": "hello"}).send("GET", "/")
    assert (answer.status, answer.body) == (status, b"")
    assert "content-length" not in answer.headers


def test_an_answer_without_a_status_is_the_body() -> None:
    answer = Client({"x": 1}).send("GET", "/")
    assert (answer.status, answer.json, answer.headers["content-type"]) == (200, {"x": 1}, "application/json")


def test_headers_of_the_older_form_come_back() -> None:
    answer = Client({"statusCode": 200, "multiValueHeaders": {"X-A": ["1", "2"]}, "body": ""}).send("GET", "/")
    assert [value for name, value in answer.header_list if name == "x-a"] == ["1", "2"]


def test_a_function_that_fails_is_a_500_without_its_reason() -> None:
    answer = Client(ValueError("secret")).send("GET", "/")
    assert answer.status == 500
    assert answer.json == {"error": {"code": "internal_error", "message": "The request failed."}}


def test_head_has_no_body() -> None:
    answer = Client({"statusCode": 404, "body": "{}"}).send("HEAD", "/")
    assert (answer.status, answer.body) == (404, b"")


# --- CORS ---


def test_preflight_is_answered_by_the_gateway() -> None:
    client = Client(cors=CORS)
    answer = client.send("OPTIONS", "/v1/like", ORIGIN="https://a.example", ACCESS_CONTROL_REQUEST_METHOD="POST")
    assert client.events == []
    assert answer.status == 204
    assert answer.headers == {
        "access-control-allow-origin": "https://a.example",
        "vary": "origin",
        "access-control-expose-headers": "retry-after",
        "access-control-allow-methods": "GET,POST",
        "access-control-allow-headers": "content-type",
        "access-control-max-age": "600",
    }


def test_answers_carry_cors_headers_for_allowed_origins_only() -> None:
    client = Client({"statusCode": 200, "headers": {"Access-Control-Allow-Origin": "function"}}, cors=CORS)
    allowed = client.send("POST", "/v1/like", ORIGIN="https://a.example").headers
    assert allowed["access-control-allow-origin"] == "https://a.example"
    for headers in (
        client.send("POST", "/v1/like", ORIGIN="https://b.example").headers,
        client.send("POST", "/v1/like").headers,
    ):
        assert not [name for name in headers if name.startswith("access-control-")]


def test_errors_of_the_gateway_carry_cors_headers_too() -> None:
    answer = Client(cors=CORS).send("GET", "/%zz", ORIGIN="https://a.example")
    assert answer.headers["access-control-allow-origin"] == "https://a.example"


@pytest.mark.parametrize(
    ("origins", "origin", "expected"),
    [
        (["*"], "https://x", "*"),
        (["https://*"], "https://x", "https://x"),
        (["https://*"], "http://x", None),
        (["https://x"], "https://x.evil", None),
    ],
)
def test_origins(origins: list[str], origin: str, expected: str | None) -> None:
    answer = Client(cors={"AllowOrigins": origins}).send("GET", "/", ORIGIN=origin)
    assert answer.headers.get("access-control-allow-origin") == expected


def test_all_methods_are_named_for_a_star() -> None:
    client = Client(cors={"AllowOrigins": ["*"], "AllowMethods": ["*"]})
    answer = client.send("OPTIONS", "/", ORIGIN="https://x", ACCESS_CONTROL_REQUEST_METHOD="PUT")
    assert "PUT" in answer.headers["access-control-allow-methods"]


# --- the server ---


def test_requests_come_through_a_real_server_and_it_stops() -> None:
    client = Client({"statusCode": 200, "body": '{"ok":true}'})
    server = Server(client.gateway, "127.0.0.1", 0, threads=2)
    server.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", "/v1/users/a%2Fb/likes?x=%C3%A9")
    assert json.loads(connection.getresponse().read()) == {"ok": True}
    connection.close()
    server.stop()
    assert client.event["pathParameters"] == {"user_id": "a/b"}
    assert client.event["queryStringParameters"] == {"x": "é"}
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=5).connect()


def talk(client: Client, *pieces: bytes) -> tuple[int, Any]:
    """Status and body of what a real server answers to these bytes; each piece arrives by itself."""
    ((status, body),) = answers(client, *pieces)
    return status, body


def answers(client: Client, *pieces: bytes, wanted: int = 1) -> list[tuple[int, Any]]:
    """So many answers on one connection, read once all is sent; fewer where the server closes it before."""
    with conversation(client) as (connection, stream):
        for piece in pieces[:-1]:
            connection.sendall(piece)
            time.sleep(0.02)
        connection.sendall(pieces[-1])
        return [answer for _ in range(wanted) if (answer := read_answer(stream))]


@contextmanager
def conversation(client: Client) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A connection to a real server before this client's gateway, and what comes back on it."""
    server = Server(client.gateway, "127.0.0.1", 0, threads=1)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection.makefile("rb") as stream:
                yield connection, stream
    finally:
        server.stop()


def read_answer(stream: BinaryIO) -> tuple[int, Any] | None:
    """The next status and body; None where the connection has ended."""
    line = stream.readline()
    if not line:
        return None
    headers = http.client.parse_headers(stream)
    return int(line.split()[1]), json.loads(stream.read(int(headers["content-length"])))


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 7\r\n", b'{"a":1}'),
        (b"Transfer-Encoding: chunked\r\n", b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\nX-User: eve\r\n\r\n'),
        (b"Content-Length: 7\r\n" + UPGRADE, b'{"a":1}'),
    ],
)
def test_a_request_arrives_whole_however_it_is_sent(head: bytes, body: bytes) -> None:
    client = Client()
    start = b"POST /v1/like HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-A: 1\r\nX-A:  2 \r\n"
    status, _ = talk(client, start + head + b"\r\n" + body)
    assert (status, client.called) == (200, ["Write"])
    assert client.event["body"] == '{"a":1}'
    assert client.event["headers"]["x-a"] == "1, 2"
    assert "x-user" not in client.event["headers"]


LIKE = b"POST /v1/like HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 7\r\n"


def like(n: int, more: bytes = b"") -> bytes:
    """A whole request, told from others by its body."""
    return LIKE + more + b'\r\n{"a":%d}' % n


@pytest.mark.parametrize("first", [UPGRADE, b""])
def test_a_connection_goes_on_whatever_was_offered_on_it(first: bytes) -> None:
    client = Client()
    request = LIKE + first + b'\r\n{"a":1}'
    with conversation(client) as (connection, stream):
        for pieces in ([request[:30], request[30:-4], request[-4:]], [like(2)], [like(3, UPGRADE)], [like(4)]):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.01)
            answer = read_answer(stream)
            assert answer is not None
            assert answer[0] == 200
    assert [event["body"] for event in client.events] == [f'{{"a":{n}}}' for n in (1, 2, 3, 4)]


AHEAD = [
    [like(1) + like(2)],
    [like(1), like(2)],
    [like(1) + like(2, UPGRADE)],
    [like(1) + like(2, UPGRADE)[:-7], b'{"a":2}'],
    [like(1) + like(2, UPGRADE)[:-7], b"GET /evil HTTP/1.1\r\n\r\n"],
    [like(1), b"GET / HTTP/1.1\r\nX-A: " + b"a" * 40_000, b"a" * 40_000],
    [like(1) + b"NONSENSE\r\n\r\n"],
    [like(1), b"{}{}\r\n\r\n"],
]


@pytest.mark.parametrize("pieces", AHEAD)
def test_with_an_answer_ends_a_connection_on_which_more_was_sent_ahead(pieces: list[bytes]) -> None:
    client = Client(delay=0.5)  # so long the pieces have to arrive
    assert [status for status, _ in answers(client, *pieces, wanted=2)] == [200]
    assert [event["body"] for event in client.events] == ['{"a":1}']


@pytest.mark.parametrize("offer", [UPGRADE, b""])
def test_a_client_that_does_not_read_is_not_answered_into_memory(offer: bytes) -> None:
    client = Client({"statusCode": 200, "body": json.dumps("x" * 8_000_000)})
    with conversation(client) as (connection, stream):
        for n in range(1, 6):
            connection.sendall(like(n, offer if n > 1 else b""))
            time.sleep(0.3)  # until it is answered, or begins to wait for the reader
        assert [event["body"] for event in client.events] == ['{"a":1}', '{"a":2}']
        assert [answer[0] for _ in range(2) if (answer := read_answer(stream))] == [200, 200]


def test_a_trailer_may_close_the_connection() -> None:
    client = Client()
    chunked = (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nConnection: close\r\n\r\n"
    )
    with conversation(client) as (connection, stream):
        connection.sendall(chunked)
        assert read_answer(stream) is not None
        assert read_answer(stream) is None


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n7\r\n0\r\n"]
)
def test_headers_without_an_end_are_refused(start: bytes) -> None:
    client = Client()
    status, body = talk(client, start, *(b"X-A: " + b"a" * size + b"\r\n" for size in (30_000, 30_000, 6_000)))
    assert (status, body["error"]["code"]) == (413, "payload_too_large")
    assert client.events == []


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"NONSENSE\r\n\r\n", 400, "invalid_request"),
        (b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "invalid_request"),
        (b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "invalid_request"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, "invalid_request"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: " + b"a" * 300_000 + b"\r\n\r\n", 413, "payload_too_large"),
    ],
)
def test_what_is_no_request_is_refused_in_our_form(request_bytes: bytes, status: int, code: str) -> None:
    client = Client()
    answered, body = talk(client, request_bytes)
    assert (answered, body["error"]["code"]) == (status, code)
    assert client.events == []
