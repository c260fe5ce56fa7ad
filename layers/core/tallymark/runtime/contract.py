"""Every operation of the HTTP API, once: the functions route by it, the document is made from it.

A test compares it with the routes in template.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tallymark.identifiers import (
    ITEM_TYPE_PATTERN,
    MAX_ID_BYTES,
    MAX_SAFE_INTEGER,
    MAX_TOKEN_BYTES,
    NAME_PATTERN,
)
from tallymark.limits import MAX_CALLS, MAX_WINDOW_S
from tallymark.quotas import MAX_EXPIRY_S
from tallymark.reactions import MAX_EMOJI_BYTES, WORD_PATTERN
from tallymark.top import TopMetric, TopWindow
from tallymark.views import VISITORS_ERROR, ViewWindow

Schema = dict[str, Any]

ERROR_CODES = (
    "invalid_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "method_not_allowed",
    "conflict",
    "exhausted",
    "payload_too_large",
    "unsupported_media_type",
    "rate_limited",
    "unavailable",
)
MAX_BODY_BYTES = 256 * 1024
MAX_ENTRIES = 100
DEFAULT_LIMIT = 20
VIEW_WINDOWS: tuple[ViewWindow, ...] = ("all", "24h", "7d", "30d")
SERIES_METRICS: tuple[Literal["likes", "views"], ...] = ("likes", "views")
DEFAULT_SERIES_HOURS = 24
MAX_SERIES_HOURS = 744  # 31 days
TOP_METRICS: tuple[TopMetric, ...] = ("likes", "views")
TOP_WINDOWS: tuple[TopWindow, ...] = ("24h", "1h", "7d", "all")
DEFAULT_TOP = 10

_ID_PATTERN = r"^(?!\.{1,2}$)[^\x00-\x1f\x7f-\x9f]+$"
_TIME_EXAMPLE = "2026-01-31T12:00:00.000Z"

TEXT_ID: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES, "pattern": _ID_PATTERN}
ID: Schema = {
    "description": f"1 to {MAX_ID_BYTES} bytes of UTF-8, or a whole number, which is the same as its decimal string.",
    "anyOf": [TEXT_ID, {"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}],
}
USER_ID: Schema = {**ID, "examples": ["ann"]}
ITEM_ID: Schema = {**ID, "examples": ["post-1"]}
TEXT_USER_ID: Schema = {**TEXT_ID, "examples": ["ann"]}
TEXT_ITEM_ID: Schema = {**TEXT_ID, "examples": ["post-1"]}
_SENT = f"1 to {MAX_ID_BYTES} bytes of UTF-8."
ITEM_TYPE: Schema = {"type": "string", "pattern": ITEM_TYPE_PATTERN, "examples": ["post"]}
# What is one emoji, no pattern says that a person could read: here anything without ASCII.
REACTION: Schema = {
    "description": (
        "A word of a-z, 0-9, _ and - that begins with a letter, at most 32 long, "
        f"or one emoji of at most {MAX_EMOJI_BYTES} bytes."
    ),
    "anyOf": [
        {"type": "string", "pattern": WORD_PATTERN},
        {"type": "string", "pattern": r"^[^\x00-\x7f]+$", "maxLength": 32},
    ],
    "examples": ["like", "👍"],
}
TIME: Schema = {"type": "string", "format": "date-time", "examples": [_TIME_EXAMPLE]}
SIGNED: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"}
CURSOR: Schema = {**SIGNED, "description": "The cursor of the page before, of the same list and filters."}


def _object(properties: dict[str, Schema], *optional: str, **more: Any) -> Schema:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        **more,
    }


def or_null(schema: Schema) -> Schema:
    """An optional field; null means absent."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_WHOLE: Schema = {"type": "integer", "minimum": 0}
_COUNT: Schema = {**_WHOLE, "examples": [5]}
_COUNTS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "integer", "minimum": 1},
    "description": "Likes by reaction; holds those above 0.",
    "examples": [{"like": 3, "👍": 2}],
}


def _error(*codes: str) -> Schema:
    return _object(
        {
            "code": {"type": "string", "enum": list(codes)},
            "message": {"type": "string", "description": "For people; may change."},
            "field": {"type": "string", "description": "The field at fault, such as `items[3].item_id`."},
        },
        "field",
    )


ERROR_ANSWER: Schema = _object({"error": _error(*ERROR_CODES)})

_LIKE_FIELDS: dict[str, Schema] = {
    "user_id": USER_ID,
    "item_id": ITEM_ID,
    "item_type": ITEM_TYPE,
    "reaction": or_null({**REACTION, "default": "like"}),
}
_LIKED_AT: dict[str, Schema] = {"liked_at": or_null({**TIME, "description": "Services only: when it was liked."})}
_CHANGED: Schema = {"type": "boolean", "description": "Whether this request changed anything."}
_LIKED: dict[str, Schema] = {
    "changed": _CHANGED,
    "user_id": TEXT_USER_ID,
    "item_id": TEXT_ITEM_ID,
    "item_type": ITEM_TYPE,
    "reaction": REACTION,
}
_LIKE_ANSWER = _object({"liked": {"const": True}, **_LIKED, "liked_at": TIME})
_UNLIKE_ANSWER = _object({"liked": {"const": False}, **_LIKED})
_TARGET = _object({"item_id": ITEM_ID, "item_type": ITEM_TYPE})
_OPERATION = _object(
    {"action": {"type": "string", "enum": ["like", "unlike"]}, **_LIKE_FIELDS, **_LIKED_AT},
    "reaction",
    "liked_at",
)
_RESULT: Schema = {
    "oneOf": [
        _object({"status": {"const": 200}, "liked": {"type": "boolean"}, "changed": _CHANGED}),
        _object(
            {
                "status": {"type": "integer", "enum": [400, 403, 429, 503]},
                "error": _error("invalid_request", "forbidden", "rate_limited", "unavailable"),
            }
        ),
    ]
}
_LIKE_ENTRY = _object({"item_type": ITEM_TYPE, "item_id": TEXT_ITEM_ID, "reaction": REACTION, "liked_at": TIME})
_LIKER_ENTRY = _object({"user_id": TEXT_USER_ID, "reaction": REACTION, "liked_at": TIME})
_NEXT_CURSOR = {
    **or_null(SIGNED),
    "description": "For the next page; null when the list has ended.",
    "examples": [None],
}
_COUNT_ENTRY = _object(
    {
        "item_id": TEXT_ITEM_ID,
        "item_type": ITEM_TYPE,
        "count": or_null({**_COUNT, "description": "Likes of all reactions; null: could not be had just now."}),
        "counts": or_null(_COUNTS),
        "liked": {"type": "boolean", "description": "With user_id: whether that person has any reaction."},
        "reactions": {**_list(REACTION), "description": "With user_id: that person's reactions."},
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
    """One method on one path.

    An `open` operation needs no identity and looks at none that is sent. A `public` one needs none in `jwt` mode;
    one that is sent must be genuine. One `for_services` is forbidden to people, outside `open` mode. `refusals` are
    the statuses by which it refuses what is well formed.
    """

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
    public: bool = False
    for_services: bool = False
    refusals: tuple[int, ...] = ()
    media_type: str = "application/json"
    other_answers: dict[int, Schema] = field(default_factory=dict)

    @property
    def may_be_forbidden(self) -> bool:
        """Whether it names a person for whom the caller may not act, is for services, or is closed by a parameter."""
        names = {parameter.name for parameter in self.parameters} | set((self.body or {}).get("properties", ()))
        return "user_id" in names or self.for_services or self.tag == "Identity"

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"


_PAGE_PARAMETERS = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES, "default": DEFAULT_LIMIT}),
    Parameter("cursor", CURSOR),
)
_USER_PATH = Parameter("user_id", {**TEXT_USER_ID, "description": _SENT}, required=True, place="path")
_ITEM_PATH = (
    Parameter("item_type", ITEM_TYPE, required=True, place="path"),
    Parameter("item_id", {**TEXT_ITEM_ID, "description": _SENT}, required=True, place="path"),
)

_UNLESS_IN_BODY = "Required, unless the fields are in the body."

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
    "Safe to repeat. The fields come in the query or as a JSON body, which then holds them all; "
    "where both are sent, they must name the same like.",
    parameters=(
        Parameter("user_id", {**TEXT_USER_ID, "description": _UNLESS_IN_BODY}),
        Parameter("item_id", {**TEXT_ITEM_ID, "description": _UNLESS_IN_BODY}),
        Parameter("item_type", {**ITEM_TYPE, "description": _UNLESS_IN_BODY}),
        Parameter("reaction", {**REACTION, "default": "like"}),
    ),
    body=_object(_LIKE_FIELDS, "reaction"),
    body_required=False,
    limited=True,
)
TOGGLE = Operation(
    "POST",
    "/v1/toggle",
    "Set whether an item is liked",
    {"oneOf": [_LIKE_ANSWER, _UNLIKE_ANSWER]},
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
            "item_id": TEXT_ITEM_ID,
            "item_type": ITEM_TYPE,
            "count": {**_COUNT, "description": "Likes of all reactions."},
            "counts": _COUNTS,
            "age_ms": {
                **_WHOLE,
                "description": "How long ago the counters were read; likes reach them within 3 seconds.",
                "examples": [140],
            },
        }
    ),
    parameters=(
        Parameter("item_id", {**TEXT_ITEM_ID, "description": _SENT}, required=True),
        Parameter("item_type", ITEM_TYPE, required=True),
        Parameter("fresh", {"type": "boolean", "default": False, "description": "true passes the caches."}),
    ),
    public=True,
)
COUNTS = Operation(
    "POST",
    "/v1/counts",
    "Count the likes of many items",
    _object({"counts": _list(_COUNT_ENTRY)}),
    "With user_id, says of each item whether that person likes it; reads the person's own writes.",
    body=_object({"items": {**_list(_TARGET), "maxItems": MAX_ENTRIES}, "user_id": or_null(USER_ID)}, "user_id"),
    public=True,
)
HAS_LIKED = Operation(
    "POST",
    "/v1/has_liked",
    "Which of these items does a person like?",
    _object(
        {
            "liked": {
                "type": "object",
                "additionalProperties": {"type": "boolean"},
                "description": "By item_id; numbers as their decimal strings.",
                "examples": [{"post-1": True}],
            }
        }
    ),
    "Reads the person's own writes.",
    body=_object(
        {
            "user_id": USER_ID,
            "item_ids": {**_list(ITEM_ID), "maxItems": MAX_ENTRIES},
            "item_type": ITEM_TYPE,
            "reaction": or_null({**REACTION, "default": "like"}),
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
    public=True,
)
TOKEN: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_TOKEN_BYTES,
    "description": f"1 to {MAX_TOKEN_BYTES} bytes of UTF-8 of the caller's choice: a second call with it adds nothing.",
    "examples": ["5f0c8e1e-order-17"],
}


def _named(example: str) -> tuple[Parameter]:
    """The path's name of a counter, limit or quota."""
    name: Schema = {"type": "string", "pattern": NAME_PATTERN, "examples": [example]}
    return (Parameter("name", name, required=True, place="path"),)


_AGE_MS: Schema = {**_WHOLE, "description": "How long ago the counters were read.", "examples": [140]}
_ADDED: Schema = {"type": "boolean", "description": "Whether this request added anything; false for a known token."}
_ITEM_QUERY = (
    Parameter("item_id", {**TEXT_ITEM_ID, "description": _SENT}, required=True),
    Parameter("item_type", ITEM_TYPE, required=True),
)
POST_VIEWS = Operation(
    "POST",
    "/v1/views",
    "Count views",
    _object({"accepted": {**_WHOLE, "description": "Length of the list sent."}, "changed": _ADDED}),
    "All of them or none. With a token the call is safe to repeat. A view without `bot` is a bot's if the caller's "
    "user agent is a known crawler's.",
    tag="Views",
    body=_object(
        {
            "views": {
                **_list(
                    _object(
                        {
                            "item_id": ITEM_ID,
                            "item_type": ITEM_TYPE,
                            "visitor_id": or_null({**ID, "examples": ["visitor-1"]}),
                            "bot": or_null({"type": "boolean"}),
                        },
                        "visitor_id",
                        "bot",
                    )
                ),
                "maxItems": MAX_ENTRIES,
            },
            "token": or_null(TOKEN),
        },
        "token",
    ),
    public=True,
)
GET_VIEWS = Operation(
    "GET",
    "/v1/views",
    "Count the views of an item",
    _object(
        {
            "views": {**_COUNT, "description": "Views of people; exact."},
            "bot_views": {**_COUNT, "description": "Views of bots; exact."},
            "visitors": or_null({**_COUNT, "description": "About how many people these were; null: not known now."}),
            "visitors_error": {"const": VISITORS_ERROR, "description": "Standard error of `visitors`, as a share."},
            "age_ms": _AGE_MS,
        }
    ),
    "24h goes back to the beginning of the hour of UTC that began 24 to 25 hours ago, 7d and 30d to the beginning of "
    "the day of UTC 7 and 30 days ago.",
    tag="Views",
    parameters=(
        *_ITEM_QUERY,
        Parameter("window", {"type": "string", "enum": list(VIEW_WINDOWS), "default": VIEW_WINDOWS[0]}),
    ),
    public=True,
)
SERIES = Operation(
    "GET",
    "/v1/series",
    "Likes or views of an item by hour",
    _object(
        {
            "item_id": TEXT_ITEM_ID,
            "item_type": ITEM_TYPE,
            "metric": {"type": "string", "enum": list(SERIES_METRICS), "examples": ["views"]},
            "series": _list(
                _object(
                    {
                        "hour": {**TIME, "description": "When the hour begins, in UTC."},
                        "count": {"type": "integer", "description": "Likes less unlikes, or views of people."},
                        "bot_views": {**_WHOLE, "description": "Of the metric `views`."},
                    },
                    "bot_views",
                )
            ),
            "age_ms": _AGE_MS,
        }
    ),
    "Every hour from the first to the last, oldest first. A like belongs to the hour in which it was recorded, and so "
    "does an unlike; hours older than the deployment keeps are 0.",
    tag="Views",
    parameters=(
        *_ITEM_QUERY,
        Parameter("metric", {"type": "string", "enum": list(SERIES_METRICS), "default": SERIES_METRICS[0]}),
        Parameter(
            "hours",
            {"type": "integer", "minimum": 1, "maximum": MAX_SERIES_HOURS, "default": DEFAULT_SERIES_HOURS},
        ),
        Parameter("until", {**TIME, "description": "The last hour is the one of this moment; now, if left out."}),
    ),
    public=True,
)
TOP = Operation(
    "GET",
    "/v1/top",
    "The items most liked or viewed",
    _object(
        {
            "top": _list(
                _object(
                    {
                        "item_type": ITEM_TYPE,
                        "item_id": TEXT_ITEM_ID,
                        "count": {"type": "integer", "minimum": 1, "description": "Exact.", "examples": [5]},
                    }
                )
            ),
            "approximate": {
                "type": "boolean",
                "description": "false: these are proven to be the first. true: another item may belong among them.",
                "examples": [False],
            },
        }
    ),
    "What was added within the window, less what was taken back; bots do not count. Largest first, and equal ones by "
    "item_type, then item_id, in the order of their code points; only what is above 0. 1h and 24h go back to the "
    "beginning of the hour of UTC that began 1 to 2 and 24 to 25 hours ago, 7d to the beginning of the day of UTC "
    "7 days ago.",
    tag="Views",
    parameters=(
        Parameter("item_type", {**ITEM_TYPE, "description": "All types, if left out."}),
        Parameter("metric", {"type": "string", "enum": list(TOP_METRICS), "default": TOP_METRICS[0]}),
        Parameter("window", {"type": "string", "enum": list(TOP_WINDOWS), "default": TOP_WINDOWS[0]}),
        Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES, "default": DEFAULT_TOP}),
    ),
    public=True,
)
ADD = Operation(
    "POST",
    "/v1/counters/{name}/add",
    "Add to a named counter",
    _object({"accepted": {"const": True}, "changed": _ADDED}),
    "Safe to repeat: a known token adds nothing, whatever the amount, which is any whole number but 0.",
    tag="Counters",
    parameters=_named("signups"),
    body=_object(
        {
            "amount": {
                "type": "integer",
                "minimum": -MAX_SAFE_INTEGER,
                "maximum": MAX_SAFE_INTEGER,
                "not": {"const": 0},
                "examples": [1],
            },
            "token": TOKEN,
        }
    ),
    for_services=True,
)
GET_COUNTER = Operation(
    "GET",
    "/v1/counters/{name}",
    "The value of a named counter",
    _object(
        {
            "name": {"type": "string", "examples": ["signups"]},
            "value": {"type": "integer", "examples": [5]},
            "age_ms": _AGE_MS,
        }
    ),
    "0 for one never used. Exact, also beyond 2^53.",
    tag="Counters",
    parameters=_named("signups"),
    public=True,
)
_ANONYMOUS_ID: Schema = {
    "type": "string",
    "pattern": "^anon_[A-Za-z0-9_-]+$",
    "examples": ["anon_8vHkq3dYw0mPz1LrT5sXbA"],
}
ANONYMOUS = Operation(
    "POST",
    "/v1/anonymous",
    "Get an identity for a person who is not signed in",
    _object({"user_id": _ANONYMOUS_ID, "token": SIGNED}),
    "Keep the token and send it as the header `Tallymark-Anonymous`.",
    tag="Identity",
    open=True,
)

LIMIT_HIT = Operation(
    "POST",
    "/v1/limits/{name}/hit",
    "May this call be made?",
    _object(
        {
            "allowed": {"type": "boolean", "description": "Whether this hit is allowed, and thereby counted."},
            "remaining": {**_WHOLE, "description": "Hits that would be allowed now, after this one.", "examples": [99]},
            "reset_after_seconds": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": (
                    "When `remaining` next grows, if no other hit comes first, to the millisecond. "
                    "For a hit that is refused: when it would be allowed."
                ),
                "examples": [60, 12.345],
            },
        }
    ),
    "Allows a hit if fewer than `limit` hits of this name and key were allowed in the last `window_seconds`: no window "
    "of that length, wherever it begins, holds more. A name and key have one log, over all processes; each hit is "
    "judged by its own `limit` and `window_seconds`. A refused hit uses up nothing. Every call is a hit, a repeat too: "
    "one whose answer was lost may have been counted. In `jwt` mode for services.",
    tag="Limits",
    parameters=_named("login"),
    body=_object(
        {
            "key": {**ID, "examples": ["ann"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_CALLS, "examples": [100]},
            "window_seconds": {"type": "integer", "minimum": 1, "maximum": MAX_WINDOW_S, "examples": [60]},
        }
    ),
    for_services=True,
)

# --- quotas -----------------------------------------------------------------------------------------------------

_QUOTA_PATH = _named("seats")
_UNITS: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}
_REMAINING: Schema = {**_UNITS, "description": "What is free now.", "examples": [98]}
_QUOTA = _object(
    {
        "name": _QUOTA_PATH[0].schema,
        "limit": {**_UNITS, "examples": [100]},
        "used": {**_UNITS, "examples": [2]},
        "remaining": _REMAINING,
    }
)


def _token(example: str) -> Schema:
    about = f"1 to {MAX_TOKEN_BYTES} bytes of UTF-8, compared as sent. It belongs to this name."
    return {**TOKEN, "description": about, "examples": [example]}


PUT_QUOTA = Operation(
    "PUT",
    "/v1/quotas/{name}",
    "Set a quota's limit",
    _QUOTA,
    "Makes the quota, or changes its limit at any time; 409 `conflict` below what is used. Safe to repeat.",
    tag="Quotas",
    parameters=_QUOTA_PATH,
    body=_object({"limit": {**_UNITS, "examples": [100]}}),
    for_services=True,
    refusals=(409,),
)
QUOTA = Operation(
    "GET",
    "/v1/quotas/{name}",
    "How much of a quota is used?",
    _QUOTA,
    tag="Quotas",
    parameters=_QUOTA_PATH,
    for_services=True,
    refusals=(404,),
)
ACQUIRE = Operation(
    "POST",
    "/v1/quotas/{name}/acquire",
    "Take some of a quota",
    _object(
        {
            "granted": {"const": True},
            "remaining": _REMAINING,
            "expires_at": {**TIME, "description": "Of a reservation: when it ends by itself."},
        },
        "expires_at",
    ),
    "What is granted never passes the limit, and 409 `exhausted` comes only where less than `amount` remains in all; "
    "the token may then try again. Safe to repeat: a token that holds a grant answers it, whatever else is sent, and "
    "after its end is used up: 409 `conflict`. With `expires_in_seconds` the grant is a reservation: it ends by itself "
    "unless it is confirmed.",
    tag="Quotas",
    parameters=_QUOTA_PATH,
    body=_object(
        {
            "amount": {**_UNITS, "minimum": 1, "examples": [2]},
            "token": _token("order-1"),
            "expires_in_seconds": or_null({"type": "integer", "minimum": 1, "maximum": MAX_EXPIRY_S}),
        },
        "expires_in_seconds",
    ),
    for_services=True,
    refusals=(404, 409),
)
CONFIRM = Operation(
    "POST",
    "/v1/quotas/{name}/confirm",
    "Keep a reservation for good",
    _object({"confirmed": {"type": "boolean", "description": "Whether the token now holds its grant for good."}}),
    "Safe to repeat. false: the token holds nothing, because it is unknown, was released, or its time was over.",
    tag="Quotas",
    parameters=_QUOTA_PATH,
    body=_object({"token": _token("order-1")}),
    for_services=True,
    refusals=(404,),
)
RELEASE = Operation(
    "POST",
    "/v1/quotas/{name}/release",
    "Give back what a token holds",
    _object({"released": {"type": "boolean", "description": "Whether this request gave it back."}}),
    "false for a second release, an unknown token, or a reservation whose time was over.",
    tag="Quotas",
    parameters=_QUOTA_PATH,
    body=_object({"token": _token("order-2")}),
    for_services=True,
    refusals=(404,),
)


def _health(statuses: list[str], tables: str) -> Schema:
    dependencies = {
        "dynamodb": {"type": "string", "enum": [tables]},
        "cache": {"type": "string", "enum": ["ok", "off", "down"]},
    }
    return _object(
        {
            "status": {"type": "string", "enum": statuses},
            "version": {"type": "string", "examples": ["1.0.0"]},
            "dependencies": _object(dependencies),
        }
    )


HEALTH = Operation(
    "GET",
    "/health",
    "Is the service up?",
    _health(["ok", "degraded"], "ok"),
    "503 with the status `down` when the tables cannot be reached; a cache that is down only degrades.",
    tag="Service",
    open=True,
    other_answers={503: _health(["down"], "down")},
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
    POST_VIEWS,
    GET_VIEWS,
    SERIES,
    TOP,
    ADD,
    GET_COUNTER,
    ANONYMOUS,
    LIMIT_HIT,
    PUT_QUOTA,
    QUOTA,
    ACQUIRE,
    CONFIRM,
    RELEASE,
    HEALTH,
    OPENAPI,
    DOCS,
)
