"""The contract as an OpenAPI 3.1 document."""

from __future__ import annotations

from functools import cache
from typing import Any

from tallymark import __version__
from tallymark.identity import ANONYMOUS_HEADER, SERVICE_KEY_HEADER
from tallymark.settings import AuthMode

from .contract import ERROR_ANSWER, OPERATIONS, Operation, Parameter, Schema, or_null

_ABOUT = (
    "Counts likes, views and quotas exactly: a like is idempotent per person, item and reaction, and what carries a "
    "token counts once by it. Counts follow within 3 seconds; a person's own state is there at once."
)
_ERRORS: dict[int, str] = {
    400: "`invalid_request`: the request is not well formed; `field` names what is at fault.",
    401: "`unauthorized`: the caller's identity is missing or forged.",
    403: "`forbidden`: the caller may not act for this person, or is no service where one is needed.",
    404: "`not_found`: there is nothing of this name.",
    409: "`conflict` or `exhausted`: the request contradicts what is stored, or less remains than it asks for.",
    413: "`payload_too_large`: the body has more than 256 KiB.",
    415: "`unsupported_media_type`: the body is declared as something other than JSON.",
    429: "`rate_limited`: this user made too many calls; Retry-After says when to try again.",
    503: "`unavailable`: a store does not answer; nothing was lost. Try again.",
}
_OWN_ID: dict[AuthMode, str] = {
    "open": "Required, unless the token of an anonymous person tells it.",
    "jwt": "Required of services; a person's token tells it.",
    "iam": "",
}
_RETRY_AFTER = {"required": True, "description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
_SECURITY: dict[AuthMode, dict[str, Any]] = {
    "open": {
        "serviceKey": {
            "type": "apiKey",
            "in": "header",
            "name": SERVICE_KEY_HEADER,
            "description": "The deployment's service key: acts for anyone, without a rate limit.",
        }
    },
    "jwt": {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "Acts for its `sub`; with the scope `tallymark:service`, for anyone.",
        }
    },
    "iam": {
        "sigv4": {
            "type": "apiKey",
            "in": "header",
            "name": "authorization",
            "description": "AWS Signature Version 4, made by servers: acts for anyone.",
        }
    },
}
_ANONYMOUS = {
    "type": "apiKey",
    "in": "header",
    "name": ANONYMOUS_HEADER,
    "description": "The token of `POST /v1/anonymous`: acts for that person, whose `user_id` may be left out.",
}


@cache
def document(mode: AuthMode) -> dict[str, Any]:
    """The document as JSON values; what it requires of a caller depends on the mode."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, mode)
    schemes = dict(_SECURITY[mode])
    if mode != "iam":
        schemes["anonymous"] = _ANONYMOUS
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tallymark",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "MIT"},
        },
        "paths": paths,
        "components": {"schemas": {"Error": ERROR_ANSWER}, "securitySchemes": schemes},
    }


def _described(operation: Operation, mode: AuthMode) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
        "security": _requirements(operation, mode),
    }
    if operation.description:
        described["description"] = operation.description
    if operation.parameters:
        described["parameters"] = [_parameter(parameter, mode) for parameter in operation.parameters]
    if operation.body is not None:
        schema = _by_mode(operation.body, mode)
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def _requirements(operation: Operation, mode: AuthMode) -> list[dict[str, list[str]]]:
    """Alternatives; the empty one means that no identity is needed."""
    # In `iam` mode API Gateway wants a signature on every path but those of the service itself.
    if operation.open and not (mode == "iam" and operation.tag == "Identity"):
        return []
    required: list[dict[str, list[str]]] = [{name: []} for name in _SECURITY[mode]]
    if mode != "iam" and not operation.for_services:
        required.append({"anonymous": []})
    needless = mode == "open" or (mode == "jwt" and operation.public)
    return [{}, *required] if needless else required


def _responses(operation: Operation) -> dict[str, Any]:
    content = {operation.media_type: {"schema": operation.answer or {}}}
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": content}}
    for status in _statuses(operation):
        error = {"description": _ERRORS[status], "content": {"application/json": {"schema": _ref("Error")}}}
        if status in (429, 503):
            error["headers"] = {"Retry-After": _RETRY_AFTER}
        responses[str(status)] = error
    for status, schema in operation.other_answers.items():
        responses[str(status)] = {"description": "Not in order.", "content": {"application/json": {"schema": schema}}}
    return responses


def _statuses(operation: Operation) -> list[int]:
    """The errors that a request of this operation can meet; 404 and 405 are those of no operation."""
    found = {
        400: True,
        401: not operation.open,
        403: operation.may_be_forbidden,
        404: 404 in operation.refusals,
        409: 409 in operation.refusals,
        413: operation.method != "GET",
        415: operation.method != "GET",
        429: operation.limited,
        503: operation.tag != "Service",
    }
    return [status for status, possible in found.items() if possible]


def _parameter(parameter: Parameter, mode: AuthMode) -> dict[str, Any]:
    schema = dict(parameter.schema)
    about = [schema.pop("description", "")]
    if parameter.name == "user_id" and parameter.place == "query":
        about.append(_OWN_ID[mode])
    described = {"name": parameter.name, "in": parameter.place, "required": parameter.required, "schema": schema}
    return {**described, "description": text} if (text := _sentences(about)) else described


def _by_mode(body: Schema, mode: AuthMode) -> Schema:
    """Where a token can tell the user_id, it may be left out; that it may not without one, no schema can say."""
    if mode == "iam":
        return body
    copied = {key: _by_mode(part, mode) if isinstance(part, dict) else part for key, part in body.items()}
    if "user_id" in body.get("required", ()):
        own = body["properties"]["user_id"]
        described = {**own, "description": _sentences([own["description"], _OWN_ID[mode]])}
        copied["properties"]["user_id"] = or_null(described)
        copied["required"] = [name for name in body["required"] if name != "user_id"]
    return copied


def _sentences(parts: list[str]) -> str:
    return " ".join(part for part in parts if part)


def _operation_id(operation: Operation) -> str:
    words = [part.strip("{}").replace(".", "_") for part in operation.path.split("/") if part and part != "v1"]
    return "_".join([operation.method.lower(), *words])


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
