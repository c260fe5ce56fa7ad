"""HTTP API events in, JSON answers out, and each error's one status.

API Gateway sends payload format 2.0; Chalice routes by format 1.0. HttpApp stands between them and
finds the operation in the contract, so that unknown paths and methods answer in our shape too.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from chalice.app import Chalice, Response

from tallymark import errors, identity
from tallymark.errors import InvalidRequest, MethodNotAllowed, NotFound, RetryLater, TallymarkError

from . import wiring
from .contract import MAX_BODY_BYTES, OPERATIONS, Operation, Schema
from .telemetry import bug, logger

STATUSES: dict[type[TallymarkError], int] = {
    errors.InvalidRequest: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.Conflict: 409,
    errors.Exhausted: 409,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.RateLimited: 429,
    errors.Unavailable: 503,
}

_JSON_HEADERS = {"content-type": "application/json"}
# On every answer that a function gives. No cache between keeps what a person was told, nor an older count that
# could be served after a newer one; nothing is guessed to be HTML; nothing of it is framed or names its visitors.
GUARDS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_BAD_GATEWAY_ESCAPE = re.compile(r"%(?!25)")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MAX_DIGITS = 16  # of 2**53 - 1; longer numbers are refused, not computed
_POSITION = re.compile(r"\[\d+\]")
_BY_KEY = {operation.key: operation for operation in OPERATIONS}

Event = dict[str, Any]
Answer = dict[str, Any]


class Call:
    """One request of one operation: who calls, and what was sent."""

    def __init__(self, operation: Operation, event: Event, path: Mapping[str, str]) -> None:
        self.operation = operation
        self.path = path
        self._event = event
        self._headers: Mapping[str, str] = event.get("headers") or {}
        raw = event.get("body") or ""
        self._raw_body: str | bytes = _decode_base64(raw) if event.get("isBase64Encoded") else raw
        self._check_body()
        self.actor = identity.Actor() if operation.open else _actor_of(self._headers, event, operation)

    def _check_body(self) -> None:
        size = len(self._raw_body)
        if size * 4 > MAX_BODY_BYTES and isinstance(self._raw_body, str):
            size = len(self._raw_body.encode("utf-8", "surrogatepass"))
        if size > MAX_BODY_BYTES:
            raise errors.PayloadTooLarge(f"a body has at most {MAX_BODY_BYTES} bytes")
        if self._raw_body or (self.operation.body is not None and self.operation.body_required):
            media_type = self._headers.get("content-type", "").partition(";")[0].strip().lower()
            if media_type and media_type != "application/json" and not _is_json_suffix(media_type):
                raise errors.UnsupportedMediaType(f"send application/json, not {media_type[:100]}")

    @property
    def origin(self) -> str:
        """Scheme, host and port as the caller spelt them."""
        scheme = self._headers.get("x-forwarded-proto", "http")
        return f"{scheme}://{self._headers.get('host', '')}"

    @property
    def user_agent(self) -> str:
        return self._headers.get("user-agent", "")

    @property
    def has_body(self) -> bool:
        return bool(self._raw_body)

    def body(self) -> dict[str, Any]:
        """The fields of the JSON body; those that are null are left out."""
        if not self._raw_body:
            raise InvalidRequest("a JSON object is required as the body")
        try:
            text = self._raw_body if isinstance(self._raw_body, str) else self._raw_body.decode()
            fields = json.loads(text, parse_int=_parse_whole, parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise InvalidRequest("the body is not UTF-8") from error
        except RecursionError as error:
            raise InvalidRequest("the body is nested too deeply") from error
        except ValueError as error:
            raise InvalidRequest(f"the body is not JSON: {error}"[:300]) from error
        if not isinstance(fields, dict):
            raise InvalidRequest("the body must be a JSON object")
        return without_nulls(fields)

    @cached_property
    def query(self) -> dict[str, str]:
        """The query's parameters, decoded; InvalidRequest for one that is given twice."""
        fields: dict[str, str] = {}
        for part in (self._event.get("rawQueryString") or "").split("&"):
            if part:
                raw_name, _, raw_value = part.partition("=")
                name = _percent_decoded(raw_name.replace("+", " "), None)
                if name in fields:
                    raise InvalidRequest("is given twice", name[:100])
                fields[name] = _percent_decoded(raw_value.replace("+", " "), name[:100])
        return fields


def without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """An optional field that is null is absent."""
    return {name: value for name, value in fields.items() if value is not None}


class HttpApp(Chalice):
    """A Chalice app for HTTP API events of payload format 2.0. Safe between threads."""

    def __init__(self, service: str) -> None:
        self._here = threading.local()
        super().__init__(app_name=service, configure_logs=False, env={})
        self.service = service

    @property
    def current_request(self) -> Any:
        return getattr(self._here, "request", None)

    @current_request.setter
    def current_request(self, request: Any) -> None:
        self._here.request = request

    def __call__(self, event: Event, context: Any) -> Answer:
        try:
            operation, path = _route(event)
            if operation.path not in self.routes or operation.method not in self.routes[operation.path]:
                raise NotFound(f"{operation.key} is served by another function")
        except TallymarkError as error:
            return _guarded(refusal(error, self.service).to_dict())
        return _guarded(super().__call__(_to_format_1(event, operation, path), context))


def operation(app: HttpApp, described: Operation) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Routes an operation of the contract to a view, which takes the Call and returns the answer's JSON.

    Chalice makes a 500 of its own of any exception that leaves a view, so all are answered here.
    """

    def register(view: Callable[[Call], Any]) -> Callable[[Call], Any]:
        def answered(**path: str) -> Response:
            event = app.current_request.to_original_event()["event"]
            try:
                call = Call(described, event, path)
                if not any(parameter.place == "query" for parameter in described.parameters):
                    call.query  # noqa: B018 (a malformed query is refused also where nothing in it is used)
                result = view(call)
            except TallymarkError as error:
                return refusal(error, app.service)
            except Exception as error:  # noqa: BLE001 (the last stop: logged, and answered in our shape)
                bug(app.service, error, operation=described.key)
                return _error(500, "internal_error", "something went wrong here; it has been logged", None, {})
            return result if isinstance(result, Response) else ok(result)

        answered.__name__ = view.__name__
        app.route(described.path, methods=[described.method], content_types=[])(answered)
        return view

    return register


def ok(body: Any, status: int = 200) -> Response:
    """The answer with this JSON."""
    return Response(json.dumps(body, ensure_ascii=False, separators=(",", ":")), dict(_JSON_HEADERS), status)


def refusal(error: TallymarkError, service: str) -> Response:
    """The error's answer, and one line of log."""
    headers = {}
    if isinstance(error, RetryLater):
        headers["retry-after"] = str(error.retry_after_seconds)
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    logger(service).info("refused", code=error.code, field=_for_log(error.field))
    return _error(STATUSES[type(error)], error.code, error.message, error.field, headers)


def _for_log(field: str | None) -> str | None:
    """A field as the log may name it: a parameter that the contract does not know is the caller's own words."""
    names = _POSITION.sub("", field or "").split(".")
    return ".".join(names) if _field_names().issuperset(names) else "unknown" if field else None


@cache
def _field_names() -> frozenset[str]:
    """Of every parameter and every field of a body."""

    def within(schema: Schema) -> Iterator[str]:
        for name, part in schema.get("properties", {}).items():
            yield name
            yield from within(part)
        yield from within(schema["items"]) if "items" in schema else ()

    parameters = {parameter.name for operation in OPERATIONS for parameter in operation.parameters}
    return frozenset(parameters.union(*(within(operation.body or {}) for operation in OPERATIONS)))


def error_body(error: TallymarkError) -> dict[str, Any]:
    """What stands under `error` in an answer or in a batch's result."""
    body = {"code": error.code, "message": error.message}
    return {**body, "field": error.field} if error.field else body


def _error(status: int, code: str, message: str, field: str | None, headers: dict[str, str]) -> Response:
    body = {"code": code, "message": message, **({"field": field} if field else {})}
    response = ok({"error": body}, status)
    response.headers.update(headers)
    return response


def _guarded(answer: Answer) -> Answer:
    """The answer as it is sent; a view's own header stands above the one that all get."""
    answer.pop("multiValueHeaders", None)
    return {**answer, "headers": {**GUARDS, **answer["headers"]}}


# --- routing ------------------------------------------------------------------------------------------


def _route(event: Event) -> tuple[Operation, dict[str, str]]:
    """The operation and its path parameters; NotFound or MethodNotAllowed by the contract."""
    method, path = event["requestContext"]["http"]["method"], event["rawPath"]
    known = _BY_KEY.get(event.get("routeKey", ""))
    if known is not None:
        return known, {k: _from_gateway(v) for k, v in (event.get("pathParameters") or {}).items()}
    matches = {operation.method: (operation, match) for operation, match in _matches(path)}
    if not matches:
        raise NotFound(f"there is nothing at {path[:200]}; GET /docs lists what there is")
    if method not in matches:
        allowed = tuple(sorted(matches))
        raise MethodNotAllowed(f"{method[:20]} is not allowed here, but {', '.join(allowed)}", allowed)
    operation, match = matches[method]
    return operation, {name: _from_gateway(value) for name, value in match.groupdict().items()}


def _matches(path: str) -> list[tuple[Operation, re.Match[str]]]:
    return [(operation, match) for operation, pattern in _patterns() if (match := pattern.fullmatch(path))]


@cache
def _patterns() -> list[tuple[Operation, re.Pattern[str]]]:
    """API Gateway matches decoded paths, so an id with a slash matches no route of its own and comes by
    $default. Ids may hold slashes here; item types may not."""

    def pattern(path: str) -> str:
        escaped = re.escape(path).replace(r"\{", "{").replace(r"\}", "}")
        return re.sub(r"{(\w+)}", lambda m: f"(?P<{m[1]}>{'.+' if m[1].endswith('_id') else '[^/]+'})", escaped)

    return [(operation, re.compile(pattern(operation.path), re.DOTALL)) for operation in OPERATIONS]


def _from_gateway(value: str) -> str:
    """HTTP APIs decode paths, except that %25 stays as it is; any other % was no escape."""
    if _BAD_GATEWAY_ESCAPE.search(value):
        raise InvalidRequest("the path is not percent-encoded rightly: % needs two hexadecimal digits")
    return value.replace("%25", "%")


def _to_format_1(event: Event, operation: Operation, path: Mapping[str, str]) -> Event:
    """As much of payload format 1.0 as Chalice reads; the whole event goes along."""
    return {
        "event": event,
        "headers": {},
        "multiValueQueryStringParameters": None,
        "pathParameters": path,
        "stageVariables": None,
        "body": None,
        "requestContext": {"httpMethod": operation.method, "resourcePath": operation.path},
    }


# --- parsing ------------------------------------------------------------------------------------------


def _actor_of(headers: Mapping[str, str], event: Event, operation: Operation) -> identity.Actor:
    settings = wiring.settings()
    actor = identity.actor_of(
        headers,
        event["requestContext"].get("authorizer") or {},
        mode=settings.auth_mode,
        allow_anonymous=settings.allow_anonymous,
        service_key_generation=settings.service_key_generation,
        secret=wiring.secret,
        claims=wiring.claims,
        public=operation.public,
    )
    if operation.for_services:
        identity.check_service(actor, settings.auth_mode)
    return actor


def _percent_decoded(text: str, field: str | None) -> str:
    if "%" not in text and text.isascii():
        return text
    if _BAD_ESCAPE.search(text):
        raise InvalidRequest("is not percent-encoded rightly: % needs two hexadecimal digits", field)
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError as error:
        raise InvalidRequest("is not UTF-8", field) from error


def _decode_base64(raw: str) -> bytes:
    try:
        return base64.b64decode(raw)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("the body is not the base64 that it is declared to be") from error


def _is_json_suffix(media_type: str) -> bool:
    return media_type.startswith("application/") and media_type.endswith("+json")


def _parse_whole(digits: str) -> int | float:
    """A whole number; as a float, which no field takes, if it is -0 or has more digits than any field."""
    return float(digits) if digits == "-0" or len(digits) > _MAX_DIGITS + 1 else int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
