"""The OpenAPI document as one HTML page: needs nothing from elsewhere and runs no script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from tallymark.settings import AuthMode

from .contract import Schema
from .openapi import document

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mute: #59636e; --link: #0b6e4f;
  --get: #0969da; --post: #0b6e4f; --put: #8a5a00; --delete: #c0303a; }
@media (prefers-color-scheme: dark) { :root { --mute: #9aa4af; --link: #4fd1a5;
  --get: #6cb6ff; --post: #4fd1a5; --put: #e3b341; --delete: #ff8b84; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 0 auto; padding: 2.5rem 1.25rem 6rem; }
h1 { margin: 0; font-size: 1.9rem; letter-spacing: -.02em; }
h2 { margin: 2.5rem 0 .6rem; font-size: 1.2rem; }
h3 { margin: 1.4rem 0 .4rem; font-size: .95rem; }
h3 span, .sub, .what, td:nth-child(2) { color: var(--mute); font-weight: 400; }
p { margin: .6rem 0; max-width: 44rem; }
a { color: var(--link); }
code, pre, .method, .path { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .86rem; }
pre { margin: 0; padding: .7rem .9rem; background: var(--soft); border-radius: 8px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: 8px; margin: .5rem 0; }
summary { display: grid; grid-template-columns: 4rem minmax(0, 1fr) auto; gap: .1rem .6rem; align-items: baseline;
  padding: .6rem .9rem; border-radius: 8px; cursor: pointer; list-style: none; }
summary::-webkit-details-marker { display: none; }
summary:hover { background: var(--soft); }
details[open] > summary { border-bottom: 1px solid var(--line); border-radius: 8px 8px 0 0; }
details > div { padding: .4rem .9rem 1.1rem; }
.method { font-weight: 700; }
.path { font-weight: 600; overflow-wrap: anywhere; }
.what { font-size: .92rem; }
.get { color: var(--get); } .post { color: var(--post); } .put { color: var(--put); } .delete { color: var(--delete); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td { padding: .4rem 1rem .4rem 0; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td:nth-child(1) { width: 32%; } td:nth-child(2) { width: 26%; }
tr:first-child td { border-top: 0; }
.errors td:nth-child(1) { width: 4rem; } .errors td:nth-child(2) { color: inherit; width: auto; }
.need { color: var(--delete); font-size: .8rem; }
@media (max-width: 40rem) {
  body { padding-top: 1.5rem; }
  summary { grid-template-columns: 4rem minmax(0, 1fr); }
  .what { grid-column: 2; }
  table:not(.errors) td { display: block; width: auto !important; padding: 0; border: 0; }
  table:not(.errors) tr { display: block; padding: .45rem 0; border-top: 1px solid var(--line); }
  table:not(.errors) tr:first-child { border-top: 0; }
}
"""
_WHO: dict[AuthMode, str] = {
    "open": "No identity is required: the `user_id` that a request names is believed.",
    "jwt": "What is about a person wants one of these, writes above all. What is public can be read without; "
    "one that is sent must be genuine all the same.",
    "iam": "Every request but those of the service itself is signed.",
}
_CURL: dict[AuthMode, tuple[str, ...]] = {
    "open": (),
    "jwt": ('-H "authorization: Bearer $TOKEN"',),
    "iam": (
        '--aws-sigv4 "aws:amz:$AWS_REGION:execute-api" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY"',
        '-H "x-amz-security-token: $AWS_SESSION_TOKEN"',
    ),
}
_ORIGIN = "https://origin.invalid"
_HOST = re.compile(r"https?://[\w.:\[\]-]+")

Row = tuple[str, str, str]


def content_security_policy() -> str:
    """What a browser may do with the page: apply the one style that is known by its hash, and nothing else."""
    style = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    # The icon is empty and inline, so that no browser asks for /favicon.ico.
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def page(mode: AuthMode, origin: str) -> str:
    """The page, with examples that call this origin."""
    return _page(mode).replace(_ORIGIN, origin if _HOST.fullmatch(origin) else "http://localhost")


@cache
def _page(mode: AuthMode) -> str:
    described = document(mode)
    info = described["info"]
    by_tag: dict[str, list[str]] = {}
    for path, entries in described["paths"].items():
        for method, entry in entries.items():
            by_tag.setdefault(entry["tags"][0], []).append(_operation(method.upper(), path, entry, mode))
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in by_tag.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{info["title"]} API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body><h1>{info['title']} API</h1>"
        f'<p class="sub">Version {info["version"]} · <code>{_ORIGIN}</code> · '
        f'<a href="openapi.json">openapi.json</a></p><p>{_text(info["description"])}</p>'
        f"<h2>Who calls</h2><p>{_text(_WHO[mode])}</p>{_schemes(described)}"
        f"<h2>Errors</h2><p>An error, from every path and method, is</p><pre>{escape(_ERROR_EXAMPLE)}</pre>"
        f"<p>{_text(_ERRORS_BESIDE)}</p>{sections}</body></html>"
    )


_ERROR_EXAMPLE = '{"error": {"code": "invalid_request", "message": "is required", "field": "item_id"}}'
_ERRORS_BESIDE = (
    "`field` is there where one field is at fault. An unknown path is 404 `not_found`; a method that a path "
    "does not have is 405 `method_not_allowed`."
)


def _schemes(described: dict[str, Any]) -> str:
    rows = [
        (
            f"<code>{scheme.get('name', 'authorization').title()}</code>",
            scheme.get("scheme", "header"),
            scheme["description"],
        )
        for scheme in described["components"]["securitySchemes"].values()
    ]
    return _table(rows)


def _operation(method: str, path: str, entry: dict[str, Any], mode: AuthMode) -> str:
    """What can be folded out: an example first, then what may be sent, then what comes back."""
    parts = [f"<p>{_text(entry['description'])}</p>"] if "description" in entry else []
    parts.append(f"<h3>Example</h3><pre>{escape(_curl(method, path, entry, mode))}</pre>")
    if parameters := entry.get("parameters"):
        parts.append(f"<h3>Parameters</h3>{_table([_parameter_row(parameter) for parameter in parameters])}")
    if (body := entry.get("requestBody")) is not None:
        parts.append(f"<h3>Body <span>JSON{'' if body['required'] else ', optional'}</span></h3>")
        parts.append(_table([_sent(*row) for row in _rows(_json_schema(body))]))
    errors = []
    for status, answer in entry["responses"].items():
        if (schema := _json_schema(answer)) is None or "$ref" in schema:
            errors.append((status, answer["description"]))
        elif rows := list(_rows(schema)):
            parts.append(f"<h3>Answer <span>{status}</span></h3><pre>{escape(_json(_example(schema)))}</pre>")
            parts.append(_table([_answered(*row) for row in rows]))
    parts.append(f"<h3>Errors</h3>{_error_table(errors)}")
    return (
        f'<details><summary><span class="method {method.lower()}">{method}</span>'
        f'<span class="path">{escape(path)}</span><span class="what">{escape(entry["summary"])}</span></summary>'
        f"<div>{''.join(parts)}</div></details>"
    )


# --- tables ---------------------------------------------------------------------------------------------------


def _parameter_row(parameter: dict[str, Any]) -> Row:
    schema = {**parameter["schema"], "description": parameter.get("description", "")}
    name, kind, about = _sent(parameter["name"], schema, parameter["required"])
    return name, f"{parameter['in']}, {kind}", about


def _sent(name: str, schema: Schema, required: bool) -> Row:
    note = ' <span class="need">required</span>' if required else ""
    about = f"{schema.get('description', '')} {_bounds(schema)}"
    return f"<code>{escape(name)}</code>{note}", _type(schema).removesuffix(" or null"), about


def _answered(name: str, schema: Schema, always: bool) -> Row:
    note = "" if always else ' <span class="sub">not always</span>'
    return f"<code>{escape(name)}</code>{note}", _type(schema), schema.get("description", "")


def _rows(schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Every field, and whether it is required; those within lists and objects below their own."""
    properties, required = _fields(schema)
    for name, part in properties.items():
        yield f"{prefix}{name}", part, name in required
        yield from _rows(part.get("items", {}), f"{prefix}{name}[].")
        if "properties" in part:
            yield from _rows(part, f"{prefix}{name}.")


def _fields(schema: Schema) -> tuple[dict[str, Schema], list[str]]:
    """The fields, and which are required; of alternatives, all their fields and those that all require."""
    if "oneOf" not in schema:
        return schema.get("properties", {}), schema.get("required", [])
    found: dict[str, list[Schema]] = {}
    for alternative in schema["oneOf"]:
        for name, part in alternative["properties"].items():
            found.setdefault(name, []).append(part)
    required = [name for name in found if all(name in alternative["required"] for alternative in schema["oneOf"])]
    return {
        name: parts[0] if len(parts) == 1 else {**parts[0], "anyOf": parts} for name, parts in found.items()
    }, required


def _type(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(part) for part in schema["anyOf"]))
    if "oneOf" in schema:
        return "object"
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " or ".join(str(value) for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}s".replace(" or ", "s or ")
    kinds = [schema["type"]] if isinstance(schema["type"], str) else list(schema["type"])
    if isinstance(values := schema.get("additionalProperties"), dict):
        kinds[0] += f" of {_type(values)}s"
    if schema.get("format") == "date-time":
        kinds[0] = "RFC 3339 time"
    return " or ".join(kinds)


def _bounds(schema: Schema) -> str:
    """What a caller must keep to and no description tells."""
    said = []
    if "minimum" in schema and "maximum" in schema:
        said.append(f"{schema['minimum']} to {schema['maximum']}.")
    if "maxItems" in schema:
        said.append(f"At most {schema['maxItems']} entries.")
    if "pattern" in schema and not schema.get("description"):
        said.append(f"Matches `{schema['pattern']}`.")
    if "default" in schema:
        said.append(f"`{json.dumps(schema['default']).strip(chr(34))}` unless given.")
    return " ".join(said)


def _table(rows: list[Row]) -> str:
    """Names are HTML, kinds and descriptions text."""
    cells = [f"<tr><td>{name}</td><td>{_text(kind)}</td><td>{_text(about)}</td></tr>" for name, kind, about in rows]
    return f"<table>{''.join(cells)}</table>"


def _error_table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td><code>{status}</code></td><td>{_text(about)}</td></tr>" for status, about in rows)
    return f'<table class="errors">{cells}</table>'


def _text(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


# --- examples -------------------------------------------------------------------------------------------------


def _curl(method: str, path: str, entry: dict[str, Any], mode: AuthMode) -> str:
    """A command that can be pasted."""
    examples = {p["name"]: str(_example(p["schema"])) for p in entry.get("parameters", []) if p["required"]}
    in_path = {name: quote(examples.pop(name), safe="") for name in re.findall(r"{(\w+)}", path)}
    query = f"?{urlencode(examples)}" if examples else ""
    url = f"{_ORIGIN}{path.format(**in_path)}{query}"
    body = entry.get("requestBody")
    told = "" if method == ("GET" if body is None else "POST") else f"-X {method} "
    parts = [f"curl {told}'{url}'"]
    if entry["security"] and {} not in entry["security"]:
        parts += _CURL[mode]
    if body is not None:
        # Only in `open` mode nothing else tells the person.
        sent = _example(_json_schema(body), also="user_id" if mode == "open" else "", only_required=True)
        parts += ["-H 'content-type: application/json'", f"-d {shlex.quote(_json(sent))}"]
    return " \\\n  ".join(parts)


def _example(schema: Schema, *, also: str = "", only_required: bool = False) -> Any:
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "oneOf" in schema:
        return _example(schema["oneOf"][0])
    if "properties" in schema:
        names = [n for n in schema["properties"] if not only_required or n == also or n in schema.get("required", ())]
        return {name: _example(schema["properties"][name], also=also, only_required=only_required) for name in names}
    if schema.get("type") == "array":
        return [_example(schema["items"], also=also, only_required=only_required)]
    return {"boolean": True, "integer": 1}.get(str(schema.get("type")), "text")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_schema(described: dict[str, Any]) -> Any:
    return described["content"].get("application/json", {}).get("schema")
