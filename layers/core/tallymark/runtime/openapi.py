"""The contract as an OpenAPI 3.1 document, and that document as a page."""

from __future__ import annotations

import html
import json
from functools import cache
from typing import Any

from tallymark import __version__
from tallymark.identity import ANONYMOUS_HEADER, SERVICE_KEY_HEADER
from tallymark.settings import AuthMode

from .contract import ERROR_ANSWER, OPERATIONS, Operation, Parameter, Schema

_ABOUT = (
    "Counts likes exactly: a like is idempotent per person, item and reaction, and every count equals the likes "
    "recorded. Writes may be repeated at will. Counts follow within 3 seconds; a person's own state is there at once."
)
_ERRORS: dict[int, str] = {
    400: "The request is not well formed; `field` names what is at fault.",
    401: "The caller's identity is missing or forged.",
    403: "The caller may not act for this person.",
    405: "The path exists, but not with this method.",
    413: "The body has more than 256 KiB.",
    415: "The body is declared as something other than JSON.",
    429: "This user made too many calls; Retry-After says when to try again.",
    503: "A store does not answer; nothing was lost. Try again.",
}
_SECURITY: dict[AuthMode, dict[str, Any]] = {
    "open": {
        "serviceKey": {
            "type": "apiKey",
            "in": "header",
            "name": SERVICE_KEY_HEADER,
            "description": "Acts for anyone.",
        }
    },
    "jwt": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
    "iam": {
        "sigv4": {
            "type": "apiKey",
            "in": "header",
            "name": "authorization",
            "description": "AWS Signature V4.",
        }
    },
}
_ANONYMOUS = {
    "type": "apiKey",
    "in": "header",
    "name": ANONYMOUS_HEADER,
    "description": "The token of POST /v1/anonymous; the user_id is then that person's.",
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
        "security": [] if operation.open else _requirements(mode),
    }
    if operation.description:
        described["description"] = operation.description
    if operation.parameters:
        described["parameters"] = [_parameter(parameter, mode) for parameter in operation.parameters]
    if operation.body is not None:
        schema = _by_mode(operation.body, mode)
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return described


def _requirements(mode: AuthMode) -> list[dict[str, list[str]]]:
    """Alternatives; the empty one means that no identity is needed."""
    required: list[dict[str, list[str]]] = [{name: []} for name in _SECURITY[mode]]
    if mode != "iam":
        required.append({"anonymous": []})
    return [{}, *required] if mode == "open" else required


def _responses(operation: Operation) -> dict[str, Any]:
    content = {operation.media_type: {"schema": operation.answer or {}}}
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": content}}
    for status in _statuses(operation):
        error = {"description": _ERRORS[status], "content": {"application/json": {"schema": _ref("Error")}}}
        if status in (429, 503):
            error["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
        responses[str(status)] = error
    for status, schema in operation.other_answers.items():
        responses[str(status)] = {"description": "Down.", "content": {"application/json": {"schema": schema}}}
    return responses


def _statuses(operation: Operation) -> list[int]:
    always = [400, 401, 405, 413, 415]
    if operation.tag == "Service":
        return always
    return sorted([*always, 403, *([429] if operation.limited else []), 503])


def _parameter(parameter: Parameter, mode: AuthMode) -> dict[str, Any]:
    required = parameter.required and not (mode == "jwt" and _is_own_id(parameter.name, parameter.place))
    return {"name": parameter.name, "in": parameter.place, "required": required, "schema": parameter.schema}


def _by_mode(body: Schema, mode: AuthMode) -> Schema:
    """With a JWT the user_id may be left out, wherever it stands."""
    if mode != "jwt":
        return body
    copied = {key: _by_mode(part, mode) if isinstance(part, dict) else part for key, part in body.items()}
    if isinstance(required := body.get("required"), list):
        copied["required"] = [name for name in required if not _is_own_id(name, "body")]
    return copied


def _is_own_id(name: str, place: str) -> bool:
    return name == "user_id" and place != "path"


def _operation_id(operation: Operation) -> str:
    words = [part.strip("{}").replace(".", "_") for part in operation.path.split("/") if part and part != "v1"]
    return "_".join([operation.method.lower(), *words])


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


# --- the page -----------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --line: #8883; --soft: #8881; --accent: #0a7f5a; }
@media (prefers-color-scheme: dark) { :root { --accent: #4fd1a5; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { margin: 0 0 .25rem; letter-spacing: -.02em; }
h2 { margin: 2.5rem 0 .5rem; font-size: 1.1rem; text-transform: uppercase; letter-spacing: .06em; opacity: .7; }
a { color: var(--accent); }
details { border: 1px solid var(--line); border-radius: 10px; margin: .5rem 0; overflow: hidden; }
summary { padding: .7rem 1rem; cursor: pointer; display: flex; gap: .8rem; align-items: baseline; flex-wrap: wrap; }
summary:hover { background: var(--soft); }
details > div { padding: 0 1rem 1rem; }
.method { font: 600 .8rem ui-monospace, monospace; min-width: 4.2rem; color: var(--accent); }
.path { font-family: ui-monospace, monospace; font-weight: 600; overflow-wrap: anywhere; }
.what { opacity: .75; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td, th { text-align: left; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
code, pre { font: .88rem/1.5 ui-monospace, monospace; }
pre { background: var(--soft); padding: .8rem 1rem; border-radius: 8px; overflow-x: auto; }
h3 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
"""


@cache
def page(mode: AuthMode) -> str:
    """One HTML page of the document; needs nothing from elsewhere and runs no script."""
    described = document(mode)
    by_tag: dict[str, list[str]] = {}
    for operation in OPERATIONS:
        by_tag.setdefault(operation.tag, []).append(_section(operation, described))
    sections = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(parts)}" for tag, parts in by_tag.items())
    info = described["info"]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{info["title"]} API</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{info['title']} API</h1><p class=what>Version {info['version']} · identity mode <code>{mode}</code> · "
        f'<a href="openapi.json">openapi.json</a></p><p>{html.escape(info["description"])}</p>{sections}</body></html>'
    )


def _section(operation: Operation, described: dict[str, Any]) -> str:
    entry = described["paths"][operation.path][operation.method.lower()]
    parts = [f"<p>{html.escape(operation.description)}</p>" if operation.description else ""]
    if parameters := entry.get("parameters"):
        parts.append(
            _table(
                "Parameters",
                [
                    (
                        p["name"],
                        f"{p['in']}, {_type(p['schema'])}" + (", required" if p["required"] else ""),
                        p["schema"].get("description", ""),
                    )
                    for p in parameters
                ],
            )
        )
    if "requestBody" in entry:
        schema = entry["requestBody"]["content"]["application/json"]["schema"]
        parts.append(_table("Body", _rows(schema)))
        parts.append(f"<h3>Example</h3><pre>{html.escape(_curl(operation, schema))}</pre>")
    if operation.answer and operation.media_type == "application/json" and operation.answer.get("properties"):
        parts.append(_table("Answer", _rows(operation.answer)))
    errors = [(code, answer["description"], "") for code, answer in entry["responses"].items() if code != "200"]
    parts.append(_table("Errors", errors))
    return (
        f'<details><summary><span class="method">{operation.method}</span><span class="path">'
        f'{html.escape(operation.path)}</span><span class="what">{html.escape(operation.summary)}</span></summary>'
        f"<div>{''.join(parts)}</div></details>"
    )


def _rows(schema: Schema) -> list[tuple[str, str, str]]:
    required = schema.get("required", [])
    return [
        (name, _type(part) + ("" if name in required else ", optional"), part.get("description", ""))
        for name, part in schema.get("properties", {}).items()
    ]


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(kind)}</td><td>{html.escape(about)}</td></tr>"
        for name, kind, about in rows
    )
    return f"<h3>{title}</h3><table>{cells}</table>" if rows else ""


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(part) for part in schema["anyOf"]))
    kind = schema.get("type", "any")
    kinds = [k for k in ([kind] if isinstance(kind, str) else kind) if k != "null"]
    if kinds == ["array"]:
        return f"list of {_type(schema['items'])}"
    return " or ".join(kinds)


def _curl(operation: Operation, schema: Schema) -> str:
    body = json.dumps(_example(schema), ensure_ascii=False)
    return f"curl -X {operation.method} $URL{operation.path} -H 'content-type: application/json' -d '{body}'"


def _example(schema: Schema) -> Any:
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if "properties" in schema:
        return {name: _example(part) for name, part in schema["properties"].items() if name in schema["required"]}
    if schema.get("type") == "array":
        return [_example(schema["items"])]
    return {"boolean": True, "integer": 1}.get(str(schema.get("type")), "text")
