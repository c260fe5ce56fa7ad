"""Builds the stores from the settings, each once, on first use; the only reader of the environment."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Container
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import RLock
from typing import Any, TypeVar, cast

from tallymark import tokens
from tallymark.counts import MOST_KEPT, CountRows, K, ProcessCache, Sources, V
from tallymark.errors import Unavailable
from tallymark.hot import Detector, HotItems, LikerBuckets
from tallymark.limits import MAX_WINDOW_S, RATE_LIMIT_WINDOW_S, Logs, ProcessWindows
from tallymark.lists import Cursors
from tallymark.model import Count, Target
from tallymark.quotas import ProcessMarks, Quotas
from tallymark.settings import Settings
from tallymark.signing import derived_key
from tallymark.storage import keys
from tallymark.storage.audit import AuditTables
from tallymark.storage.counter_table import CounterTable
from tallymark.storage.dynamodb import THREADS, connect, patience, transient_as_unavailable
from tallymark.storage.event_table import AdjustmentTable, EventTable, HeldTable, RunTable
from tallymark.storage.like_stream import LikeStream
from tallymark.storage.like_table import LikeTable
from tallymark.storage.live_sketches import ValkeySketches
from tallymark.storage.parked_queue import ParkedQueue
from tallymark.storage.quota_table import QuotaTable
from tallymark.storage.top_table import HotTable, TopTable
from tallymark.storage.valkey import (
    Form,
    ValkeyCounts,
    ValkeyMarks,
    ValkeyServer,
    ValkeyWindows,
    likes_form,
    sums_form,
    top_form,
    views_form,
)
from tallymark.storage.visitor_tables import SketchTable, VisitorLog
from tallymark.sums import Sum, SumRows
from tallymark.top import SLOTS, Top, TopKey, TopLists, TopRows
from tallymark.views import ViewCount, ViewRows, ViewWindow
from tallymark.visitors import SketchedVisitors, Stores

from . import telemetry
from .issuer import IssuerKeys, fetch

R = TypeVar("R")

_MOST_TOPS = 100  # top lists in a process, up to 40 KB each
_BACKGROUND_TIMEOUT_S = 2.0  # nobody waits for it, and sketches are up to 12 KB each

_built: dict[str, Any] = {}
_lock = RLock()  # two first calls at once must not build two of anything, such as two logs of one limit


def _once(build: Callable[[], R]) -> Callable[[], R]:
    """Keeps what the builder made, until reset()."""

    def built() -> R:
        try:
            return cast(R, _built[build.__name__])
        except KeyError:
            with _lock:
                if build.__name__ not in _built:
                    _built[build.__name__] = build()
                return cast(R, _built[build.__name__])

    return built


def reset() -> None:
    """Forgets everything built, so that the next use reads the environment anew."""
    with _lock:
        _built.clear()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@_once
def settings() -> Settings:
    return Settings.from_environment(os.environ)


@_once
def executor() -> Executor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="store")


@_once
def dynamodb() -> Any:
    return connect()


@_once
def like_table() -> LikeTable:
    return LikeTable(dynamodb(), settings().likes_table, executor(), liker_buckets())


@_once
def counter_table() -> CounterTable:
    return CounterTable(dynamodb(), settings().counters_table, executor(), now_ms, settings().series_days)


@_once
def top_table() -> TopTable:
    return TopTable(dynamodb(), settings().counters_table, executor())


@_once
def top_lists() -> TopLists:
    slot = random.randrange(SLOTS)  # noqa: S311 (spreads, hides nothing)
    return TopLists(top_table(), slot, lambda lost: telemetry.count("aggregator", "TopListsLost", lost))


@_once
def hot_table() -> HotTable:
    return HotTable(dynamodb(), settings().counters_table)


@_once
def hot_detector() -> Detector:
    return Detector(hot_table(), settings().hot_per_second)


@_once
def hot_items() -> HotItems:
    def failed(error: Exception) -> None:
        telemetry.count("hot-items", "HotItemsUnread")
        if not isinstance(error, Unavailable):
            telemetry.bug("hot-items", error)

    return HotItems(hot_table().buckets, now_ms, executor(), failed)


@_once
def liker_buckets() -> LikerBuckets:
    return LikerBuckets(settings().liker_buckets, hot_items().buckets, hot_table().widest)


@_once
def event_table() -> EventTable:
    return EventTable(dynamodb(), settings().events_table, settings().event_days)


@_once
def adjustment_table() -> AdjustmentTable:
    wanted = settings()
    return AdjustmentTable(dynamodb(), wanted.events_table, wanted.counters_table, wanted.series_days)


@_once
def held_table() -> HeldTable:
    return HeldTable(dynamodb(), settings().events_table)


@_once
def run_table() -> RunTable:
    return RunTable(dynamodb(), settings().events_table)


@_once
def audit_tables() -> AuditTables:
    return AuditTables(dynamodb(), settings().counters_table, settings().likes_table, like_table(), executor())


@_once
def like_stream() -> LikeStream:
    import boto3

    return LikeStream(boto3.client("dynamodbstreams", config=patience()), settings().likes_stream_arn)


@_once
def sqs() -> Any:
    import boto3

    return boto3.client("sqs", config=patience())


@_once
def parked_queue() -> ParkedQueue:
    return ParkedQueue(sqs(), settings().parked_queue_url)


@_once
def parked_dead_queue() -> ParkedQueue:
    return ParkedQueue(sqs(), settings().parked_dead_queue_url)


@_once
def valkey_server() -> ValkeyServer | None:
    return ValkeyServer(settings().cache_url) if settings().cache_url else None


@_once
def count_sources() -> Sources[Target, Count]:
    return _sources(counter_table(), likes_form(_cache_namespace()), settings().cache_ttl_ms, hot_items())


@_once
def view_sources() -> Sources[tuple[Target, ViewWindow], ViewCount]:
    """Half as old as likes at most: a view is seen within 2 s, the way through the stream included."""
    rows = ViewRows(counter_table(), visitors(), now_ms)
    return _sources(rows, views_form(_cache_namespace()), settings().cache_ttl_ms // 2)


@_once
def sum_sources() -> Sources[str, Sum]:
    return _sources(SumRows(counter_table(), now_ms), sums_form(_cache_namespace()), settings().cache_ttl_ms)


@_once
def top_sources() -> Sources[TopKey, Top]:
    rows = TopRows(top_table(), counter_table(), now_ms)
    return _sources(rows, top_form(_cache_namespace()), settings().cache_ttl_ms, most=_MOST_TOPS)


def _sources(
    rows: CountRows[K, V], form: Form[K, V], ttl_ms: int, hot: Container[K] = (), most: int = MOST_KEPT
) -> Sources[K, V]:
    server = valkey_server()
    shared = ValkeyCounts(server, form, ttl_ms) if server else None
    process = ProcessCache[K, V](min(ttl_ms, settings().process_cache_ttl_ms), hot, most)
    return Sources(process, shared, rows, now_ms, time.sleep)


@_once
def quotas() -> Quotas:
    server, pools = valkey_server(), settings().quota_pools
    table = QuotaTable(dynamodb(), settings().quotas_table, executor(), pools)
    marks = ValkeyMarks(server, _cache_namespace()) if server else ProcessMarks(lambda: time.monotonic_ns() // 1000)
    return Quotas(table, marks, now_ms, time.sleep, random.Random(), pools)  # noqa: S311 (spreads, hides nothing)


@_once
def visitors() -> SketchedVisitors | None:
    """Visitors as a reader asks for them; None without Valkey."""
    if not settings().cache_url:
        return None
    server = ValkeyServer(settings().cache_url, binary=True)
    return SketchedVisitors(ValkeySketches(server, _cache_namespace()), sketch_table())


@_once
def visitor_stores() -> Stores | None:
    """Visitors as they are kept; None without Valkey."""
    if not settings().cache_url:
        return None
    server = ValkeyServer(settings().cache_url, binary=True, timeout_s=_BACKGROUND_TIMEOUT_S)
    return Stores(ValkeySketches(server, _cache_namespace()), sketch_table(), visitor_log())


@_once
def sketch_table() -> SketchTable:
    return SketchTable(dynamodb(), settings().counters_table, executor(), settings().series_days)


@_once
def visitor_log() -> VisitorLog:
    return VisitorLog(dynamodb(), settings().events_table)


@_once
def cursors() -> Cursors:
    return Cursors(lambda: derived_key(secret(), "cursor"), keys.pack_stamp, keys.unpack_stamp)


@_once
def secret() -> str:
    """The deployment's secret, fetched once per process."""
    import boto3

    with transient_as_unavailable():
        answer = boto3.client("secretsmanager", config=patience()).get_secret_value(SecretId=settings().secret_arn)
    return str(answer["SecretString"])


@_once
def token_keys() -> tokens.Keys:
    """Of the deployment if it has some, else of the issuer."""
    given = settings().jwt_keys
    return tokens.FixedKeys(given) if given else IssuerKeys(settings().jwt_issuer, fetch, time.monotonic)


def claims(token: str) -> tokens.Claims:
    """The claims of a bearer token that the issuer signed, now and for this deployment; else Unauthorized."""
    wanted = settings()
    return tokens.verify(
        token, token_keys(), issuer=wanted.jwt_issuer, audience=wanted.jwt_audience, now_s=time.time_ns() / 1e9
    )


@_once
def user_logs() -> Logs:
    """Of our own API's limit. Likes go on without the cache, each process judging by itself."""
    return Logs(_shared_windows(RATE_LIMIT_WINDOW_S), ProcessWindows(_monotonic_us, RATE_LIMIT_WINDOW_S))


@_once
def limit_logs() -> Logs:
    """Of the limits that callers ask for."""
    own = ProcessWindows(_monotonic_us, MAX_WINDOW_S) if settings().limits_without_cache == "open" else None
    return Logs(_shared_windows(MAX_WINDOW_S), own)


def _shared_windows(longest_window_s: int) -> ValkeyWindows | None:
    server = valkey_server()
    return ValkeyWindows(server, _cache_namespace(), longest_window_s) if server else None


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


def _cache_namespace() -> str:
    """Two stacks may share one cache: the generated table name tells them apart."""
    return settings().counters_table
