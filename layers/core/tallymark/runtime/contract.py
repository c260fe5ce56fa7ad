"""Every operation of the HTTP API, once: the functions route by it, the document is made from it.

A test compares it with the routes in template.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tallymark.identifiers import ITEM_TYPE_PATTERN, MAX_ID_BYTES, MAX_SAFE_INTEGER

Schema = dict[str, Any]

MAX_BODY_BYTES = 256 * 1024
MAX_ENTRIES = 100
DEFAULT_LIMIT = 20

_ID_PATTERN = r"^(?!\.{1,2}$)[^\x00-\x1f\x7f-\x9f]+$"
_TIME_EXAMPLE = "2026-01-31T12:00:00.000Z"

TEXT_ID: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES, "pattern": _ID_PATTERN}
ID: Schema = {
    "description": f"1 to {MAX_ID_BYTES} bytes of UTF-8, or a whole number, which is the same as its decimal string.",
    "anyOf": [TEXT_ID, {"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}],
    "examples": ["post-1"],
}
ITEM_TYPE: Schema = {"type": "string", "pattern": ITEM_TYPE_PATTERN, "examples": ["post"]}
REACTION: Schema = {
    "type": "string",
    "description": "A word of a-z, 0-9, _ and - that begins with a letter, or one emoji.",
    "minLength": 1,
    "maxLength": 32,
    "examples": ["like", "👍"],
}
TIME: Schema = {"type": "string", "format": "date-time", "examples": [_TIME_EXAMPLE]}
CURSOR: Schema = {"type": "string", "description": "The cursor of the page before."}


def _object(properties: dict[str, Schema], *optional: str, **more: Any) -> Schema:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        **more,
    }


def _or_null(schema: Schema) -> Schema:
    """An optional field; null means absent."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_COUNTS: Schema = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}
_ERROR: Schema = _object(
    {"code": {"type": "string"}, "message": {"type": "string"}, "field": {"type": "string"}}, "field"
)
ERROR_ANSWER: Schema = _object({"error": _ERROR})

_LIKE_FIELDS: dict[str, Schema] = {
    "user_id": ID,
    "item_id": ID,
    "item_type": ITEM_TYPE,
    "reaction": _or_null({**REACTION, "default": "like"}),
}
_LIKED_AT: dict[str, Schema] = {"liked_at": _or_null({**TIME, "description": "Services only: when it was liked."})}
_LIKED: dict[str, Schema] = {
    "liked": {"type": "boolean"},
    "changed": {"type": "boolean", "description": "Whether this request changed anything."},
    "user_id": TEXT_ID,
    "item_id": TEXT_ID,
    "item_type": ITEM_TYPE,
    "reaction": REACTION,
}
_LIKE_ANSWER = _object({**_LIKED, "liked_at": TIME})
_UNLIKE_ANSWER = _object(_LIKED)
_TARGET = _object({"item_id": ID, "item_type": ITEM_TYPE})
_OPERATION = _object(
    {"action": {"type": "string", "enum": ["like", "unlike"]}, **_LIKE_FIELDS, **_LIKED_AT},
    "reaction",
    "liked_at",
)
_RESULT = _object(
    {
        "status": {"type": "integer"},
        "liked": {"type": "boolean"},
        "changed": {"type": "boolean"},
        "error": _ERROR,
    },
    "liked",
    "changed",
    "error",
)
_LIKE_ENTRY = _object({"item_type": ITEM_TYPE, "item_id": TEXT_ID, "reaction": REACTION, "liked_at": TIME})
_LIKER_ENTRY = _object({"user_id": TEXT_ID, "reaction": REACTION, "liked_at": TIME})
_NEXT_CURSOR: Schema = {
    "type": ["string", "null"],
    "description": "For the next page; null when the list has ended.",
}
_COUNT_ENTRY = _object(
    {
        "item_id": TEXT_ID,
        "item_type": ITEM_TYPE,
        "count": {"type": ["integer", "null"], "description": "null: could not be had just now."},
        "counts": {"type": ["object", "null"], "additionalProperties": {"type": "integer", "minimum": 1}},
        "liked": {"type": "boolean"},
        "reactions": _list(REACTION),
    },
    "liked",
    "reactions",
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query or the path."""

    name: str
    schema: Schema
    required: bool = False
    place: str = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path. `open` operations need no identity in any mode."""

    method: str
    path: str
    summary: str
    answer: Schema | None
    description: str = ""
    tag: str = "Likes"
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_required: bool = True
    limited: bool = False
    open: bool = False
    media_type: str = "application/json"
    other_answers: dict[int, Schema] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"


_PAGE_PARAMETERS = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES, "default": DEFAULT_LIMIT}),
    Parameter("cursor", CURSOR),
)
_USER_PATH = Parameter("user_id", TEXT_ID, required=True, place="path")
_ITEM_PATH = (
    Parameter("item_type", ITEM_TYPE, required=True, place="path"),
    Parameter("item_id", TEXT_ID, required=True, place="path"),
)

LIKE = Operation(
    "POST",
    "/v1/like",
    "Like an item",
    _LIKE_ANSWER,
    "Safe to repeat: a repeat answers changed=false and the time of the first like.",
    body=_object({**_LIKE_FIELDS, **_LIKED_AT}, "reaction", "liked_at"),
    limited=True,
)
UNLIKE = Operation(
    "DELETE",
    "/v1/like",
    "Take a like back",
    _UNLIKE_ANSWER,
    "Safe to repeat. The fields may come as a JSON body instead of the query.",
    parameters=(
        Parameter("user_id", TEXT_ID, required=True),
        Parameter("item_id", TEXT_ID, required=True),
        Parameter("item_type", ITEM_TYPE, required=True),
        Parameter("reaction", {**REACTION, "default": "like"}),
    ),
    limited=True,
)
TOGGLE = Operation(
    "POST",
    "/v1/toggle",
    "Set whether an item is liked",
    {"anyOf": [_LIKE_ANSWER, _UNLIKE_ANSWER]},
    "`like` is the wanted state, so a repeat is harmless.",
    body=_object({**_LIKE_FIELDS, "like": {"type": "boolean"}, **_LIKED_AT}, "reaction", "liked_at"),
    limited=True,
)
BATCH = Operation(
    "POST",
    "/v1/batch",
    "Like and unlike many items",
    _object({"results": _list(_RESULT)}),
    "Results stand in the order of the operations; operations on one like take effect in that order.",
    body=_object({"operations": {**_list(_OPERATION), "maxItems": MAX_ENTRIES}}),
)
COUNT = Operation(
    "GET",
    "/v1/count",
    "Count the likes of an item",
    _object(
        {
            "item_id": TEXT_ID,
            "item_type": ITEM_TYPE,
            "count": {"type": "integer"},
            "counts": _COUNTS,
            "age_ms": {"type": "integer", "minimum": 0, "description": "How old the count may be."},
        }
    ),
    parameters=(
        Parameter("item_id", TEXT_ID, required=True),
        Parameter("item_type", ITEM_TYPE, required=True),
        Parameter("fresh", {"type": "boolean", "default": False, "description": "true passes the caches."}),
    ),
)
COUNTS = Operation(
    "POST",
    "/v1/counts",
    "Count the likes of many items",
    _object({"counts": _list(_COUNT_ENTRY)}),
    "With user_id, says of each item whether that person likes it; reads the person's own writes.",
    body=_object({"items": {**_list(_TARGET), "maxItems": MAX_ENTRIES}, "user_id": _or_null(ID)}, "user_id"),
)
HAS_LIKED = Operation(
    "POST",
    "/v1/has_liked",
    "Which of these items does a person like?",
    _object({"liked": {"type": "object", "additionalProperties": {"type": "boolean"}}}),
    "Reads the person's own writes.",
    body=_object(
        {
            "user_id": ID,
            "item_ids": {**_list(ID), "maxItems": MAX_ENTRIES},
            "item_type": ITEM_TYPE,
            "reaction": _or_null({**REACTION, "default": "like"}),
        },
        "reaction",
    ),
)
USER_LIKES = Operation(
    "GET",
    "/v1/users/{user_id}/likes",
    "What a person likes, newest first",
    _object({"likes": _list(_LIKE_ENTRY), "cursor": _NEXT_CURSOR}),
    parameters=(_USER_PATH, Parameter("item_type", ITEM_TYPE), *_PAGE_PARAMETERS),
)
ITEM_LIKERS = Operation(
    "GET",
    "/v1/items/{item_type}/{item_id}/likers",
    "Who likes an item, newest first",
    _object({"likers": _list(_LIKER_ENTRY), "cursor": _NEXT_CURSOR}),
    parameters=(*_ITEM_PATH, Parameter("reaction", REACTION), *_PAGE_PARAMETERS),
)
ANONYMOUS = Operation(
    "POST",
    "/v1/anonymous",
    "Get an identity for a person who is not signed in",
    _object({"user_id": TEXT_ID, "token": {"type": "string"}}),
    "Keep the token and send it as the header Tallymark-Anonymous.",
    tag="Identity",
    open=True,
)
_HEALTH = _object(
    {
        "status": {"type": "string", "enum": ["ok", "degraded", "down"]},
        "version": {"type": "string"},
        "dependencies": _object(
            {
                "dynamodb": {"type": "string", "enum": ["ok", "down"]},
                "cache": {"type": "string", "enum": ["ok", "off", "down"]},
            }
        ),
    }
)
HEALTH = Operation(
    "GET", "/health", "Is the service up?", _HEALTH, tag="Service", open=True, other_answers={503: _HEALTH}
)
OPENAPI = Operation("GET", "/openapi.json", "This document", {"type": "object"}, tag="Service", open=True)
DOCS = Operation(
    "GET",
    "/docs",
    "This document as a page",
    {"type": "string"},
    tag="Service",
    open=True,
    media_type="text/html",
)

OPERATIONS: tuple[Operation, ...] = (
    LIKE,
    UNLIKE,
    TOGGLE,
    BATCH,
    COUNT,
    COUNTS,
    HAS_LIKED,
    USER_LIKES,
    ITEM_LIKERS,
    ANONYMOUS,
    HEALTH,
    OPENAPI,
    DOCS,
)
