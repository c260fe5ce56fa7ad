"""Events and functions as Lambda has them, for benches that call handlers directly."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENT = {
    "LIKES_STREAM_ARN": "arn:aws:dynamodb:us-east-1:000000000000:table/likes/stream/now",
    "LIKES_TABLE": "likes",
    "EVENTS_TABLE": "events",
    "COUNTERS_TABLE": "counters",
    "QUOTAS_TABLE": "quotas",
    "PARKED_QUEUE_URL": "http://127.0.0.1/queue",
    "PARKED_DEAD_QUEUE_URL": "http://127.0.0.1/dead-queue",
    "CACHE_URL": "",
    "CACHE_TTL_MS": "1000",
    "PROCESS_CACHE_TTL_MS": "1000",
    "COUNTER_ROWS": "0:64",
    "LIKER_BUCKETS": "1",
    "EVENT_DAYS": "7",
    "SERIES_DAYS": "35",
    "SINGLE_LANE": "",
    "RATE_LIMIT_PER_MINUTE": "100",
    "LIMITS_WITHOUT_CACHE": "open",
    "QUOTA_POOLS": "8",
    "HOT_PER_SECOND": "300",
    "HOT_RATE_LIMIT_PER_MINUTE": "0",
    "AUTH_MODE": "open",
    "ALLOW_ANONYMOUS": "true",
    "JWT_ISSUER": "",
    "JWT_AUDIENCE": "",
    "JWT_KEYS": "",
    "SECRET_ARN": "secret",
    "SERVICE_KEY_GENERATION": "1",
    "LOG_LEVEL": "WARNING",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Context:
    """What a handler asks of Lambda's context."""

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def function(name: str) -> ModuleType:
    """functions/NAME/app.py as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"function_{name}", ROOT / "functions" / name / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def http_event(method: str, path: str, body: Any = None, query: str = "") -> dict[str, Any]:
    """A request as API Gateway hands it over, payload format 2.0."""
    return {
        "version": "2.0",
        "routeKey": f"{method} {path}",
        "rawPath": path,
        "rawQueryString": query,
        "headers": {"content-type": "application/json", "host": "api.example.com", "user-agent": "bench"},
        "requestContext": {"http": {"method": method, "path": path, "sourceIp": "192.0.2.1"}, "requestId": "r"},
        "body": None if body is None else json.dumps(body),
        "isBase64Encoded": False,
    }
