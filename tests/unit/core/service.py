"""The write and read functions over stores in memory, called as API Gateway calls them.

Every answer is compared with the OpenAPI document on its way back.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode

import pytest
from jsonschema import Draft202012Validator

from functions.quota_api.app import app as quota_app
from functions.read_api.app import app as read_app
from functions.write_api.app import app as write_app
from tallymark.counts import ProcessCache, Sources
from tallymark.errors import TallymarkError, Unavailable
from tallymark.events import AddEvent, ViewEvent
from tallymark.fold import Change, fold
from tallymark.hot import LikerBuckets
from tallymark.identity import service_key
from tallymark.lists import Page
from tallymark.model import Count, Counter, HourlyMetric, Like, LikeKey, Stamp, Target, day_of_label
from tallymark.quotas import ProcessMarks, Quotas
from tallymark.runtime import openapi, wiring
from tallymark.runtime.contract import OPERATIONS, Operation
from tallymark.settings import Settings
from tallymark.sketch import Summary
from tallymark.storage.dynamodb import Item
from tallymark.storage.event_stream import item_of, read_event
from tallymark.storage.quota_table import QuotaTable
from tallymark.top import Grain, TopMetric, additions
from tests.e2e.issuer import jwk, signed
from tests.property.quota_steps import InTurn
from tests.simulation.dynamodb import Database, Table

SECRET = "made up"
SERVICE_KEY = service_key(SECRET, 1)
NOW_MS = 1_769_860_800_000
NOW = "2026-01-31T12:00:00.000Z"
ISSUER = "https://issuer.example"
AUDIENCE = "my-app"

_ENVIRONMENT = {
    "LIKES_TABLE": "likes",
    "LIKES_STREAM_ARN": "",
    "EVENTS_TABLE": "events",
    "COUNTERS_TABLE": "counters",
    "QUOTAS_TABLE": "quotas",
    "PARKED_QUEUE_URL": "",
    "PARKED_DEAD_QUEUE_URL": "",
    "CACHE_URL": "",
    "CACHE_TTL_MS": "1000",
    "PROCESS_CACHE_TTL_MS": "0",
    "COUNTER_ROWS": "0:64",
    "LIKER_BUCKETS": "1",
    "EVENT_DAYS": "7",
    "SERIES_DAYS": "35",
    "SINGLE_LANE": "",
    "RATE_LIMIT_PER_MINUTE": "100",
    "LIMITS_WITHOUT_CACHE": "open",
    "QUOTA_POOLS": "3",
    "HOT_PER_SECOND": "300",
    "HOT_RATE_LIMIT_PER_MINUTE": "0",
    "AUTH_MODE": "open",
    "ALLOW_ANONYMOUS": "true",
    "JWT_ISSUER": ISSUER,
    "JWT_AUDIENCE": AUDIENCE,
    "JWT_KEYS": json.dumps({"keys": [jwk("issuer")]}),
    "SECRET_ARN": "",
    "SERVICE_KEY_GENERATION": "1",
    "LOG_LEVEL": "CRITICAL",
}
WRITES = {("POST", "/v1/like"), ("DELETE", "/v1/like"), ("POST", "/v1/toggle"), ("POST", "/v1/batch")} | {
    ("POST", "/v1/anonymous"),
    ("POST", "/v1/views"),
    ("POST", "/v1/counters/{name}/add"),
    ("POST", "/v1/limits/{name}/hit"),
}
FOR_SLASHES = ("GET /v1/users/{proxy+}", "GET /v1/items/{proxy+}")


# --- stores -----------------------------------------------------------------------------------------------------


class MemoryLikes:
    """The table of likes, and its counts as they will be once the stream is folded."""

    def __init__(self) -> None:
        self.standing: dict[LikeKey, Like] = {}
        self.fault: Exception | None = None

    def _answer(self) -> None:
        if self.fault is not None:
            raise self.fault

    def ping(self) -> None:
        self._answer()

    def put(self, like: Like) -> Like:
        self._answer()
        return self.standing.setdefault(like.key, like)

    def delete(self, key: LikeKey) -> bool:
        self._answer()
        return self.standing.pop(key, None) is not None

    def write_many(self, writes: Sequence[Like | LikeKey]) -> list[bool | TallymarkError]:
        if isinstance(self.fault, Unavailable):
            return [self.fault for _ in writes]
        return [self.put(write) == write if isinstance(write, Like) else self.delete(write) for write in writes]

    def liked(self, keys: Sequence[LikeKey]) -> set[LikeKey]:
        self._answer()
        return {key for key in keys if key in self.standing}

    def reactions(self, user_id: str, targets: Sequence[Target]) -> dict[Target, list[str]]:
        self._answer()
        return {t: [k.reaction for k in self.standing if (k.user_id, k.target) == (user_id, t)] for t in targets}

    def of_user(self, user_id: str, item_type: str | None, before: Stamp | None, limit: int) -> Page:
        mine = [
            like
            for key, like in self.standing.items()
            if key.user_id == user_id and item_type in (None, key.target.item_type)
        ]
        return self._page(mine, before, limit)

    def of_target(self, target: Target, bucket: int, reaction: str | None, before: Stamp | None, limit: int) -> Page:
        assert bucket == 0
        here = [
            like for key, like in self.standing.items() if key.target == target and reaction in (None, key.reaction)
        ]
        return self._page(here, before, limit)

    def _page(self, likes: list[Like], before: Stamp | None, limit: int) -> Page:
        self._answer()
        below = [like for like in likes if before is None or like.stamp < before]
        newest = sorted(below, key=lambda like: like.stamp, reverse=True)[:limit]
        return Page(tuple(newest), newest[-1].stamp if len(newest) == limit else None)


class MemoryEvents:
    """The table of events, by the keys of its items."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.fault: Exception | None = None

    def record(self, event: ViewEvent | AddEvent) -> bool:
        if self.fault is not None:
            raise self.fault
        item = item_of(event)
        return self.items.setdefault(item["pk"]["S"], item) is item

    def changes(self) -> Iterator[Change]:
        """What the stream makes of them."""
        for sequence, item in enumerate(self.items.values()):
            body: Item = {"Keys": {"pk": item["pk"]}, "NewImage": item, "SequenceNumber": str(sequence)}
            body["ApproximateCreationDateTime"] = NOW_MS / 1000
            yield from read_event({"eventName": "INSERT", "dynamodb": body})


class MemoryCounts:
    """Counts that follow the records at once; `unknown` holds targets that the store does not answer for."""

    def __init__(self, likes: MemoryLikes, events: MemoryEvents) -> None:
        self.likes = likes
        self.events = events
        self.unknown: set[Target] = set()
        self.fault: Exception | None = None
        self.asked: list[bool] = []

    def ping(self) -> None:
        if self.fault is not None:
            raise self.fault

    def counts(self, targets: Sequence[Target], *, consistent: bool) -> list[Count | None]:
        self.asked.append(consistent)
        return [None if target in self.unknown else self._count(target) for target in targets]

    def _count(self, target: Target) -> Count:
        by_reaction: dict[str, int] = {}
        for key in self.likes.standing:
            if key.target == target:
                by_reaction[key.reaction] = by_reaction.get(key.reaction, 0) + 1
        return Count(by_reaction, NOW_MS - 7)

    def count(self, target: Target, *, consistent: bool) -> Count:
        self.asked.append(consistent)
        if target in self.unknown:
            raise Unavailable("made up")
        return self._count(target)

    def total(self, counter: Counter, *, consistent: bool) -> dict[str, int]:
        self.ping()
        total = dict.fromkeys(counter.slots, 0)
        for change in self.events.changes():
            if change.counter == counter:
                total[change.slot] += change.delta
        return total

    def days(self, target: Target, metric: HourlyMetric, first: int, last: int) -> dict[int, dict[str, int]]:
        self.ping()
        days: dict[int, dict[str, int]] = {}
        for change in self.events.changes():
            counter = change.counter
            if (counter.target, counter.metric) == (target, metric) and first <= day_of_label(counter.label) <= last:
                slots = days.setdefault(day_of_label(counter.label), {})
                slots[change.slot] = slots.get(change.slot, 0) + change.delta
        return days

    def each(self, asked: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
        def one(key: Any) -> Any:
            try:
                return None if isinstance(self.fault, Unavailable) else read(key)
            except Unavailable:
                return None

        return [one(key) for key in asked]


class MemoryTop:
    """Top lists that follow the records at once, of whatever period they are asked for."""

    def __init__(self, likes: MemoryLikes, events: MemoryEvents) -> None:
        self._likes, self._events = likes, events

    def between(
        self, metric: TopMetric, item_type: str | None, _grain: Grain, _first: int, _last: int
    ) -> list[Summary[Target]]:
        liked = Tally(key.target for key in self._likes.standing)
        viewed = Tally[Target]()
        for addition in additions(fold(self._events.changes())):
            viewed[addition.target] += addition.number
        bounds = liked if metric == "likes" else viewed
        return [Summary({target: n for target, n in bounds.items() if item_type in (None, target.item_type)})]


class Cache:
    """A cache that can be asked whether it is there."""

    def __init__(self, up: bool) -> None:
        self._up = up

    def ping(self) -> bool:
        return self._up


# --- calls ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What the gateway would send."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, str, str | None]:
        """Status, code and field."""
        error = self.json["error"]
        return self.status, error["code"], error.get("field")


@dataclass
class Service:
    """Both functions; `settings` are changed by `configure`."""

    monkeypatch: pytest.MonkeyPatch
    likes: MemoryLikes = field(default_factory=MemoryLikes)
    settings: Settings = field(default_factory=lambda: Settings.from_environment(_ENVIRONMENT))
    clock_s: float = 0.0
    now_ms: int = NOW_MS
    quotas_database: Database = field(default_factory=lambda: Database([Table("quotas", ("pk", "sk"))]))
    hot: set[Target] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.events = MemoryEvents()
        self.counts = MemoryCounts(self.likes, self.events)
        wiring.reset()
        clock = SimpleNamespace(
            monotonic=lambda: self.clock_s,
            monotonic_ns=lambda: round(self.clock_s * 1e9),
            time_ns=lambda: self.now_ms * 1_000_000,
            sleep=None,
        )
        sources = Sources[Target, Count](ProcessCache(0), None, self.counts, lambda: NOW_MS, lambda _: None)
        quotas = self._quotas()
        for name, value in {
            "settings": lambda: self.settings,
            "like_table": lambda: self.likes,
            "counter_table": lambda: self.counts,
            "event_table": lambda: self.events,
            "count_sources": lambda: sources,
            "quotas": lambda: quotas,
            "valkey_server": lambda: None,
            "secret": lambda: SECRET,
            "top_table": lambda: MemoryTop(self.likes, self.events),
            "hot_items": lambda: self.hot,
            "liker_buckets": lambda: LikerBuckets(self.settings.liker_buckets),
            "dynamodb": _no_client,
            "time": clock,
        }.items():
            self.monkeypatch.setattr(wiring, name, value)

    def _quotas(self) -> Quotas:
        """Over the simulated engine; a pause takes its time."""

        def sleep(seconds: float) -> None:
            self.clock_s += seconds

        client: Any = self.quotas_database
        table, marks = QuotaTable(client, "quotas", InTurn(), 3), ProcessMarks(lambda: round(self.clock_s * 1e6))
        return Quotas(table, marks, lambda: NOW_MS + round(self.clock_s * 1000), sleep, random.Random(1), 3)

    def configure(self, **environment: str) -> None:
        self.settings = Settings.from_environment({**_ENVIRONMENT, **environment})

    def with_cache(self, *, up: bool) -> None:
        self.monkeypatch.setattr(wiring, "valkey_server", lambda: Cache(up))

    def liked(
        self, user_id: str, item_id: str, reaction: str = "like", ms: int = NOW_MS, item_type: str = "post"
    ) -> None:
        self.likes.put(Like(LikeKey(user_id, Target(item_type, item_id), reaction), Stamp.at(ms)))

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: str | Mapping[str, str] = "",
        jwt: Mapping[str, Any] | None = None,
        authorizer: Mapping[str, Any] | None = None,
        base64_body: bool = False,
        content_type: str | None = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """`body` is JSON of anything but text and bytes, which are sent as they are; `jwt` are claims of a token."""
        raw_query = query if isinstance(query, str) else urlencode(query, quote_via=quote)
        if jwt is not None:
            headers = {**(headers or {}), "Authorization": f"Bearer {token(jwt)}"}
        event = event_of(method, path, raw_query, authorizer)
        event["headers"] = {name.lower(): value for name, value in (headers or {}).items()}
        if body is not None:
            raw = body if isinstance(body, str | bytes) else json.dumps(body)
            if content_type is not None:
                event["headers"]["content-type"] = content_type
            if base64_body or isinstance(raw, bytes):
                encoded = raw if isinstance(raw, bytes) else raw.encode()
                event |= {"body": base64.b64encode(encoded).decode(), "isBase64Encoded": True}
            else:
                event["body"] = raw
        return self.send(event)

    def send(self, event: dict[str, Any]) -> Answer:
        """The answer to an event, which is found to be what the document promises."""
        operation = event["routeKey"].split(" ")
        quota = operation[-1].startswith("/v1/quotas/")
        app = quota_app if quota else write_app if tuple(operation) in WRITES else read_app
        made = app(event, None)
        assert set(made) == {"statusCode", "headers", "body"}
        answer = Answer(made["statusCode"], made["headers"], made["body"])
        assert answer.status < 500 or answer.status == 503, answer.text
        assert answer.headers["content-type"] in ("application/json", "text/html; charset=utf-8")
        check_described(event["routeKey"], answer, self.settings.auth_mode)
        return answer


def token(claims: Mapping[str, Any]) -> str:
    """A token of the issuer, good for an hour unless the claims say otherwise."""
    now_s = NOW_MS // 1000
    good = {"iss": ISSUER, "aud": AUDIENCE, "iat": now_s, "exp": now_s + 3600}
    return signed({"alg": "RS256", "kid": "issuer"}, {**good, **claims}, "issuer")


def _no_client() -> Any:
    raise AssertionError("a unit test opens no client")


def event_of(method: str, path: str, raw_query: str, authorizer: Mapping[str, Any] | None) -> dict[str, Any]:
    """A request as an HTTP API hands it on: decoded, except that %25 stays, and routed by what it is then."""
    found = _route(method, _decoded(path))
    return {
        "version": "2.0",
        "routeKey": found[0].key if found else _catching(method, _decoded(path)),
        "rawPath": _decoded(path),
        "rawQueryString": raw_query,
        "headers": {},
        **({"pathParameters": found[1]} if found and found[1] else {}),
        "requestContext": {
            "http": {"method": method, "path": path},
            **({"authorizer": dict(authorizer)} if authorizer else {}),
        },
        "isBase64Encoded": False,
    }


def _route(method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
    for operation in OPERATIONS:
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.path.replace(".", r"\."))
        if operation.method == method and (match := re.fullmatch(pattern, path)):
            return operation, match.groupdict()
    return None


def _catching(method: str, path: str) -> str:
    """The route of what fits no operation's own."""
    fitting = (route for route in FOR_SLASHES if f"{method} {path}".startswith(route.removesuffix("{proxy+}")))
    return next(fitting, "$default")


def _decoded(text: str) -> str:
    return unquote_to_bytes(text.replace("%25", "%2525")).decode()


# --- the document -----------------------------------------------------------------------------------------------


def check_described(route: str, answer: Answer, mode: Any) -> None:
    """The answer has a status that the document names for the route, and the shape that it gives there."""
    document = openapi.document(mode)
    method, _, path = route.partition(" ")
    described = document["paths"].get(path, {}).get(method.lower())
    if described is None:
        assert answer.status in (404, 405) or route in ("$default", *FOR_SLASHES)
        schema = document["components"]["schemas"]["Error"]
        if answer.status >= 400:
            validate(schema, answer.json, document)
        return
    assert str(answer.status) in described["responses"], f"{route} answers {answer.status}"
    ((media_type, content),) = described["responses"][str(answer.status)]["content"].items()
    assert answer.headers["content-type"].startswith(media_type)
    validate(content["schema"], answer.text if media_type == "text/html" else answer.json, document)


def validate(schema: Mapping[str, Any], value: Any, document: Mapping[str, Any]) -> None:
    """AssertionError if the value is not what the schema describes."""
    whole = {**schema, "components": document["components"]}
    Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)
