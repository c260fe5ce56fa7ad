"""An HTTP API of API Gateway, in this process: requests in, payload 2.0 events to the handlers, answers out.

Amazon API Gateway Developer Guide: "Create AWS Lambda proxy integrations for HTTP APIs" (payload format 2.0),
"Create routes for HTTP APIs", "Configure CORS for HTTP APIs". Which content types arrive as text is in no
guide; it was measured on AWS (ministack pull request 766).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import re
import socket
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, unquote_to_bytes

import h11
import httptools
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from infra.local.processes import StartError
from infra.local.template import Route

if TYPE_CHECKING:
    from infra.local.authorizers import Signatures

logger = logging.getLogger(__name__)

BODY_MAX_BYTES = 10 * 1024 * 1024  # API Gateway quotas for HTTP APIs, "Payload size"
HEAD_MAX_BYTES = 64 * 1024  # request line and headers, so that no client fills the memory
TEXT_TYPES = frozenset({"application/json", "application/xml", "application/javascript"})
BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
ALL_METHODS = "DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT"
NO_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
REASONS = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}

Environ = dict[str, Any]
Headers = list[tuple[str, str]]
StartResponse = Callable[[str, Headers], Any]
WSGIApplication = Callable[[Environ, StartResponse], Iterable[bytes]]


@dataclass(frozen=True)
class Endpoint:
    """A function as the gateway calls it: its handler, and what makes a context for one call."""

    handler: Callable[[Any, Any], Any]
    context: Callable[[], Any]


class BadPath(ValueError):
    """The path is not percent-encoded UTF-8."""


# --- routes -------------------------------------------------------------------------------------------------


class Router:
    """Finds the route of a request. Segments are compared as they were sent, so an id may hold an encoded
    slash.

    Without variables first, then the first in the template that fits, those that take any number of segments
    (`{proxy+}`) last; `$default` for the rest.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact = {route.key: route for route in routes if "{" not in route.path}
        self._default = self._exact.get("$default")
        variable = sorted((route for route in routes if "{" in route.path), key=lambda route: "+}" in route.path)
        self._variable = [(route, _matcher(route.path)) for route in variable]

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]] | None:
        """The route and its path parameters, decoded; None where nothing fits and there is no `$default`.

        Raises BadPath.
        """
        _check(raw_path)
        route = self._exact.get(f"{method} {raw_path}") or self._exact.get(f"ANY {raw_path}")
        if route is not None:
            return route, {}
        for candidate, matcher in self._variable:
            if candidate.method not in (method, "ANY"):
                continue
            match = matcher.fullmatch(raw_path)
            if match is not None:
                return candidate, {name: decode(value) for name, value in match.groupdict().items()}
        return (self._default, {}) if self._default else None


def _matcher(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{([^}]+)\}", path)
    pattern = "".join(
        re.escape(part) if index % 2 == 0 else f"(?P<{part.rstrip('+')}>{'.+' if part.endswith('+') else '[^/]+'})"
        for index, part in enumerate(parts)
    )
    return re.compile(pattern)


def decode(text: str) -> str:
    """Percent-decoded, except that %25 stays, as HTTP APIs hand paths on. Raises BadPath where it is not UTF-8."""
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode("utf-8").replace("%", "%25")
    except UnicodeDecodeError:
        raise BadPath("the path is not UTF-8") from None


def _check(raw_path: str) -> None:
    if BAD_ESCAPE.search(raw_path):
        raise BadPath("% in a path is followed by two hexadecimal digits")
    if not raw_path.isascii():
        raise BadPath("characters outside ASCII are percent-encoded in a path")
    decode(raw_path)


# --- CORS ---------------------------------------------------------------------------------------------------


class Cors:
    """The CORS answers that the gateway gives by itself, from the API's CorsConfiguration."""

    def __init__(self, configuration: Mapping[str, Any] | None) -> None:
        configuration = configuration or {}
        self._origins: list[str] = [str(origin) for origin in configuration.get("AllowOrigins") or ()]
        self._credentials = str(configuration.get("AllowCredentials", False)).lower() == "true"
        self._exposed = _listed(configuration, "ExposeHeaders")
        self._preflight: Headers = []
        methods = _listed(configuration, "AllowMethods")
        if methods:
            self._preflight.append(("access-control-allow-methods", ALL_METHODS if methods == "*" else methods))
        if allowed := _listed(configuration, "AllowHeaders"):
            self._preflight.append(("access-control-allow-headers", allowed))
        if "MaxAge" in configuration:
            self._preflight.append(("access-control-max-age", str(configuration["MaxAge"])))

    @property
    def active(self) -> bool:
        """Whether the API has a CORS configuration."""
        return bool(self._origins)

    def _allowed_origin(self, origin: str) -> str | None:
        if "*" in self._origins:
            return "*"
        wild = (allowed[:-1] for allowed in self._origins if allowed.endswith("//*"))
        fits = origin in self._origins or any(origin.startswith(start) for start in wild)
        return origin if fits else None

    def headers(self, origin: str | None) -> Headers:
        """What is added to an answer for a page of `origin`; nothing where that is not allowed."""
        allowed = self._allowed_origin(origin) if origin else None
        if allowed is None:
            return []
        added = [("access-control-allow-origin", allowed)]
        if allowed != "*":
            added.append(("vary", "origin"))
        if self._credentials:
            added.append(("access-control-allow-credentials", "true"))
        if self._exposed:
            added.append(("access-control-expose-headers", self._exposed))
        return added

    def preflight(self, origin: str) -> Headers:
        """The headers of the answer to a preflight request."""
        added = self.headers(origin)
        return [*added, *self._preflight] if added else []


def _listed(configuration: Mapping[str, Any], name: str) -> str:
    return ",".join(str(item) for item in configuration.get(name) or ())


# --- events -------------------------------------------------------------------------------------------------


class Events:
    """Makes payload 2.0 events of WSGI requests."""

    def __init__(self, domain: str, account_id: str = "000000000000", api_id: str = "local") -> None:
        self._domain = domain
        self._fixed = {"accountId": account_id, "apiId": api_id, "domainName": domain, "domainPrefix": api_id}
        self._numbers = count(1)

    def event(
        self, environ: Environ, route: Route, raw_path: str, parameters: dict[str, str], body: bytes
    ) -> dict[str, Any]:
        """The event for one request; what has no value (body, query, cookies) is left out, as on AWS."""
        headers, cookies = _headers(environ)
        path = decode(raw_path)
        now = time.time()
        key = route.key
        query = environ.get("QUERY_STRING", "")
        event: dict[str, Any] = {
            "version": "2.0",
            "routeKey": key,
            "rawPath": path,
            "rawQueryString": query,
            "headers": headers,
            "requestContext": {
                **self._fixed,
                "http": {
                    "method": environ["REQUEST_METHOD"],
                    "path": path,
                    "protocol": environ.get("SERVER_PROTOCOL", "HTTP/1.1"),
                    "sourceIp": environ.get("REMOTE_ADDR", ""),
                    "userAgent": headers.get("user-agent", ""),
                },
                "requestId": f"local-{int(now * 1000):x}-{next(self._numbers)}",
                "routeKey": key,
                "stage": "$default",
                "time": _common_log_time(now),
                "timeEpoch": int(now * 1000),
            },
            "isBase64Encoded": False,
        }
        if cookies:
            event["cookies"] = cookies
        if query:
            event["queryStringParameters"] = _query(query)
        if parameters:
            event["pathParameters"] = parameters
        if body:
            _put_body(event, body, headers.get("content-type", ""))
        return event


def _headers(environ: Environ) -> tuple[dict[str, str], list[str]]:
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    if content_type := environ.get("CONTENT_TYPE"):
        headers["content-type"] = content_type
    if length := environ.get("CONTENT_LENGTH"):
        headers["content-length"] = length
    cookie = headers.pop("cookie", "")
    return headers, [part.strip() for part in cookie.split(";")] if cookie else []


def _query(raw: str) -> dict[str, str]:
    """Decoded, with the values of a repeated name joined by commas; rawQueryString still tells them apart."""
    values: dict[str, str] = {}
    for part in raw.split("&"):
        name, _, value = part.partition("=")
        if not part:
            continue
        name, value = unquote_plus(name), unquote_plus(value)
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


def _put_body(event: dict[str, Any], body: bytes, content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind in TEXT_TYPES or kind.startswith("text/"):
        # API Gateway puts replacement characters in; base64 lets the function see what was sent.
        with contextlib.suppress(UnicodeDecodeError):
            event["body"] = body.decode("utf-8")
            return
    event["body"], event["isBase64Encoded"] = b64encode(body).decode("ascii"), True


def _common_log_time(now: float) -> str:
    # strftime would follow the locale, and costs twice as much.
    t = time.gmtime(now)
    date = f"{t.tm_mday:02d}/{MONTHS[t.tm_mon - 1]}/{t.tm_year}"
    return f"{date}:{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d} +0000"


# --- answers ------------------------------------------------------------------------------------------------


def _error(status: int, code: str, message: str) -> tuple[int, Headers, bytes]:
    body = json.dumps({"error": {"code": code, "message": message}}, separators=(",", ":")).encode()
    return status, [("content-type", "application/json")], body


def _answer(result: Any) -> tuple[int, Headers, bytes]:
    """Status, headers and body of what a function returned ("Lambda function response for format 2.0").

    Without a statusCode the whole value is the body, as JSON, with status 200.
    """
    if not isinstance(result, Mapping) or "statusCode" not in result:
        text = result if isinstance(result, str) else json.dumps(result)
        return 200, [("content-type", "application/json")], text.encode()
    headers = [(name.lower(), _header_text(value)) for name, value in (result.get("headers") or {}).items()]
    # Chalice answers in the older form as well; a handler behind it may leave lists there.
    for name, values in (result.get("multiValueHeaders") or {}).items():
        headers += [(name.lower(), _header_text(value)) for value in values]
    headers += [("set-cookie", cookie) for cookie in result.get("cookies") or ()]
    if not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", "application/json"))
    body = result.get("body") or ""
    if not isinstance(body, str):
        body = json.dumps(body)
    data = b64decode(body) if result.get("isBase64Encoded") else body.encode()
    return int(result["statusCode"]), headers, data


def _header_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


# --- the application ----------------------------------------------------------------------------------------


class Gateway:
    """A WSGI application that serves the template's routes with handlers of this process."""

    def __init__(
        self,
        routes: Sequence[Route],
        endpoints: Mapping[str, Endpoint],
        cors: Mapping[str, Any] | None = None,
        *,
        domain: str = "127.0.0.1",
        account_id: str = "000000000000",
        signatures: Signatures | None = None,
    ) -> None:
        wanted = {route.authorization for route in routes}
        if wanted - {"NONE", "AWS_IAM"} or ("AWS_IAM" in wanted and signatures is None):
            raise ValueError(f"nothing here checks what the routes ask for: {', '.join(sorted(wanted))}")
        self._router = Router(routes)
        self._signatures = signatures
        self._endpoints = endpoints
        self._cors = Cors(cors)
        self._events = Events(domain, account_id)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answers one request."""
        origin = environ.get("HTTP_ORIGIN")
        if self._is_preflight(environ):
            status, headers, body = 204, self._cors.preflight(origin or ""), b""
        else:
            status, headers, body = self._serve(environ)
            if self._cors.active:
                # What a function says about CORS is ignored where the API has a configuration.
                headers = [header for header in headers if not header[0].startswith("access-control-")]
                headers += self._cors.headers(origin)
        headers = [header for header in headers if header[0] != "content-length"]
        if status in NO_BODY:
            body = b""
        else:
            headers.append(("content-length", str(len(body))))
        start_response(REASONS.get(status, f"{status} Unknown"), headers)
        return [body] if environ["REQUEST_METHOD"] != "HEAD" else []

    def _is_preflight(self, environ: Environ) -> bool:
        return (
            environ["REQUEST_METHOD"] == "OPTIONS"
            and self._cors.active
            and "HTTP_ORIGIN" in environ
            and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ
        )

    def _serve(self, environ: Environ) -> tuple[int, Headers, bytes]:
        raw_path = _raw_path(environ)
        try:
            found = self._router.find(environ["REQUEST_METHOD"], raw_path)
            body = _body(environ)
            if found is None:
                return _error(404, "not_found", "There is nothing at this path.")
            if body is None:
                return _error(413, "payload_too_large", "A request holds 10 MB at most.")
            route, parameters = found
            event = self._events.event(environ, route, raw_path, parameters, body)
        except BadPath as error:
            return _error(400, "invalid_request", f"Invalid path: {error}.")
        if route.authorization != "NONE" and not self._authorize(event, environ, body):
            # API Gateway's own words, which no function can change.
            return 403, [("content-type", "application/json")], b'{"message":"Forbidden"}'
        return self._call(route, event)

    def _authorize(self, event: dict[str, Any], environ: Environ, body: bytes) -> bool:
        """Whether the request is signed; then the event says by whom."""
        if self._signatures is None:
            return False
        headers: dict[str, str] = event["headers"]
        query = event["rawQueryString"]
        url = f"http://{headers.get('host', '')}{_raw_path(environ)}{'?' if query else ''}{query}"
        caller = self._signatures.caller(environ["REQUEST_METHOD"], url, headers, body, datetime.now(UTC))
        if caller is None:
            return False
        event["requestContext"]["authorizer"] = {"iam": caller}
        return True

    def _call(self, route: Route, event: dict[str, Any]) -> tuple[int, Headers, bytes]:
        endpoint = self._endpoints[route.function]
        try:
            return _answer(endpoint.handler(event, endpoint.context()))
        except Exception:
            # A function that fails is a 500 for the caller, whatever it was, and the log says why.
            logger.exception("%s failed on %s", route.function, route.key)
            return _error(500, "internal_error", "The request failed.")


def _raw_path(environ: Environ) -> str:
    """The path as the client sent it, before any decoding."""
    uri: str = environ["REQUEST_URI"]
    if not uri.startswith("/"):
        # The absolute form, as a proxy's client sends it.
        _, _, uri = uri.partition("://")
        uri = "/" + uri.partition("/")[2]
    return uri.partition("?")[0]


def _body(environ: Environ) -> bytes | None:
    """The body; None where it is larger than API Gateway takes."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > BODY_MAX_BYTES:
        return None
    data: bytes = environ["wsgi.input"].read(length) if length else b""
    return data


# --- the server ---------------------------------------------------------------------------------------------


class _Refusals:
    """What this server says to a request that it cannot read: an answer in our error form."""

    transport: asyncio.Transport

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (it always says the same)
        """Refuses what a parser refused; both protocols of uvicorn call this."""
        error = sys.exc_info()[1]
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else None
        if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self.refuse_head()
        else:
            self._refuse(*_error(400, "invalid_request", "This is no HTTP request that can be read."))

    def refuse_head(self) -> None:
        """Refuses a head for its size."""
        self._refuse(*_error(413, "payload_too_large", f"The headers pass {HEAD_MAX_BYTES:,} bytes."))

    def _refuse(self, status: int, headers: Headers, body: bytes) -> None:
        headers += [("content-length", str(len(body))), ("connection", "close")]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self.transport.write(f"HTTP/1.1 {REASONS[status]}\r\n{head}\r\n".encode() + body)
        self.transport.close()


class _Upgradable(_Refusals, H11Protocol):
    """uvicorn's protocol over a parser in Python, for connections on which an upgrade was offered."""

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing: an offer of HTTP/2 may be passed over, and there are no WebSockets here to install."""


class _Protocol(_Refusals, HttpToolsProtocol):
    """uvicorn's protocol over a compiled parser, which reads a request in a fifth of the time of the one in Python.

    It stops at a request that offers an upgrade, as the first of Java's client does, and would lose its body:
    the connection then goes on with the other one. It sets no bound to a head, and takes trailers for headers.
    There is one request at a time: with the answer to it ends a connection on which more was sent ahead, and the
    client sends that again (RFC 9112, "Pipelining").
    """

    _undone = 0  # bytes since a head or a piece of a body was complete

    def data_received(self, data: bytes) -> None:
        """Reads on."""
        self._unset_keepalive_if_required()
        if self._answering:
            self.cycle.keep_alive = False
            return
        self._undone += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._go_on_in_python(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            if self._answering:
                self.cycle.keep_alive = False
            else:
                self.send_400_response(str(error))
        else:
            if self._undone > HEAD_MAX_BYTES:
                self.refuse_head()

    @property
    def _answering(self) -> bool:
        """Whether a whole request is there and its answer is not."""
        if self.cycle is None:
            return False
        return not (self.cycle.more_body or self.cycle.response_complete)

    def on_message_begin(self) -> None:
        """Begins a request."""
        if self._answering:
            raise BlockingIOError("ahead of an answer")  # ends the parser's work on these bytes
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; the parser leaves blanks behind it."""
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begins to answer."""
        self._undone = 0
        super().on_headers_complete()
        if not self.parser.should_upgrade():
            self.headers = []  # for trailers; the request keeps the list that it has

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body."""
        self._undone = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request."""
        super().on_message_complete()
        if not (self.parser.should_upgrade() or self.parser.should_keep_alive()):
            self.cycle.keep_alive = False  # a trailer may say so as well

    def _should_upgrade(self) -> bool:
        """Whether to leave a request with an offer alone."""
        return True

    def _go_on_in_python(self, rest: bytes) -> None:
        """Hands the connection over, with the head that was read and the bytes behind it."""
        head = [f"{self.scope['method']} ".encode(), self.url, f" HTTP/{self.scope['http_version']}\r\n".encode()]
        head += [b"%b: %b\r\n" % header for header in self.headers]
        self.connections.discard(self)
        protocol = _Upgradable(self.config, self.server_state, self.app_state)
        protocol.connection_made(self.transport)
        if self.flow.write_paused:
            protocol.pause_writing()
        self.transport.set_protocol(protocol)
        protocol.data_received(b"".join([*head, b"\r\n", rest]))


class Server:
    """Serves a WSGI application with uvicorn, on a thread of its own and with a pool of them for the application.

    Processes that `share_port` get a share of its connections each, as far as the system has it (Linux has).
    """

    def __init__(
        self, application: WSGIApplication, host: str, port: int, threads: int = 16, *, share_port: bool = False
    ) -> None:
        self._application = application
        self._threads = ThreadPoolExecutor(threads, "gateway")
        self._socket = socket.create_server((host, port), backlog=512, reuse_port=share_port)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._serve,
                interface="asgi3",
                http=_Protocol,
                h11_max_incomplete_event_size=HEAD_MAX_BYTES,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=3,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="gateway", daemon=True)

    def start(self) -> None:
        """Begins to serve. Raises StartError."""
        self._thread.start()
        while not self._server.started:
            if not self.running:
                raise StartError("The HTTP gateway did not start.")
            time.sleep(0.002)

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Answers the requests under way, takes no more, and gives the port back."""
        self._server.should_exit = True
        self._thread.join(10)
        self._threads.shutdown(wait=False)
        self._socket.close()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI's side of a request."""
        body = io.BytesIO()
        size, more = 0, True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            size += len(part["body"])
            if size <= BODY_MAX_BYTES:  # what is over is not kept: its size tells the gateway to refuse it
                body.write(part["body"])
            more = part["more_body"]
        body.seek(0)
        environ = _environ(scope, body, size)
        loop = asyncio.get_running_loop()
        status, headers, answer = await loop.run_in_executor(self._threads, self._answer, environ)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, environ: Environ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        started: list[tuple[str, Headers]] = []
        body = b"".join(self._application(environ, lambda status, headers: started.append((status, headers))))
        ((status, headers),) = started
        return int(status[:3]), [(name.encode(), value.encode("latin-1")) for name, value in headers], body


def _environ(scope: Any, body: io.BytesIO, size: int) -> Environ:
    """WSGI's form of a request, as far as the gateway reads it."""
    query = scope["query_string"].decode("latin-1")
    environ = {
        "REQUEST_METHOD": scope["method"],
        "REQUEST_URI": scope["raw_path"].decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": (scope["client"] or ("",))[0],
        "wsgi.input": body,
    }
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if "_" in name:
            continue  # else it would pass for the one with a hyphen
        key = f"HTTP_{name.upper().replace('-', '_')}"
        if key in environ:
            value = f"{environ[key]}{'; ' if name == 'cookie' else ', '}{value}"
        environ[key] = value
    if environ.pop("HTTP_CONTENT_LENGTH", None) or size:
        environ["CONTENT_LENGTH"] = str(size)
    if "HTTP_CONTENT_TYPE" in environ:
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    return environ
