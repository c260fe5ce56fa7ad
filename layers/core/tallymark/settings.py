"""The deployment's settings, read once from the environment that template.yaml sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, Self, cast, get_args

from .tokens import Key, parse_keys

AuthMode = Literal["open", "jwt", "iam"]
WithoutCache = Literal["open", "closed"]

_CACHE_URL = re.compile(r"valkeys?://[^/\s]+:\d+(/\d+)?")
_ISSUER = re.compile(r"(https://[^/?#\s]+|http://(localhost|127\.0\.0\.1)(:\d+)?)(/[^?#\s]*)?")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAX_POOLS = 64  # of a quota: with the quota and a grant they must fit into one transaction of 100 items
MAX_ROWS = 1000  # row numbers have three digits in their keys
MIN_SERIES_DAYS = 31


class BadSetting(ValueError):
    """The environment is not what template.yaml makes of it; the message names the variable."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is one environment variable of the same name in capitals; docs/settings.md explains them."""

    likes_table: str
    likes_stream_arn: str
    events_table: str
    counters_table: str
    quotas_table: str
    parked_queue_url: str
    parked_dead_queue_url: str
    cache_url: str
    cache_ttl_ms: int
    process_cache_ttl_ms: int
    counter_rows: tuple[tuple[int, int], ...]
    liker_buckets: int
    event_days: int
    series_days: int
    single_lane: str
    rate_limit_per_minute: int
    limits_without_cache: WithoutCache
    quota_pools: int
    hot_per_second: int
    hot_rate_limit_per_minute: int
    auth_mode: AuthMode
    allow_anonymous: bool
    jwt_issuer: str
    jwt_audience: str
    jwt_keys: tuple[Key, ...]
    secret_arn: str
    service_key_generation: int
    log_level: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings; BadSetting names the variable that is missing or malformed."""
        values: dict[str, object] = {}
        for field in fields(cls):
            name = field.name.upper()
            if name not in environment:
                raise BadSetting(f"the environment variable {name} is not set; template.yaml sets it")
            try:
                values[field.name] = _PARSERS.get(field.name, str)(environment[name])
            except ValueError as error:
                raise BadSetting(f"the environment variable {name}: {error}") from error
        settings = cls(**values)  # type: ignore[arg-type]
        if settings.auth_mode == "jwt":
            for name in ("jwt_issuer", "jwt_audience"):
                if not getattr(settings, name):
                    raise BadSetting(f"the environment variable {name.upper()}: must not be empty with AUTH_MODE jwt")
        return settings


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"must be at least 1, not {number}")
    return number


def _series_days(text: str) -> int:
    number = int(text)
    if number < MIN_SERIES_DAYS:
        raise ValueError(f"must be at least {MIN_SERIES_DAYS}, which the window of 30 days needs, not {number}")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"must be at least 0, not {number}")
    return number


def _pools(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_POOLS:
        raise ValueError(f"must be from 1 to {MAX_POOLS}, not {number}")
    return number


def _log_level(text: str) -> str:
    if text not in _LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(_LOG_LEVELS)}, not {text!r}")
    return text


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"must be true or false, not {text!r}")
    return text == "true"


def _auth_mode(text: str) -> AuthMode:
    if text not in get_args(AuthMode):
        raise ValueError(f"must be one of {', '.join(get_args(AuthMode))}, not {text!r}")
    return cast(AuthMode, text)


def _without_cache(text: str) -> WithoutCache:
    if text not in get_args(WithoutCache):
        raise ValueError(f"must be one of {', '.join(get_args(WithoutCache))}, not {text!r}")
    return cast(WithoutCache, text)


def _counter_rows(text: str) -> tuple[tuple[int, int], ...]:
    """`since_ms:K` pairs, ascending from 0: a lane keeps the K that was in force when it was created."""
    pairs = tuple((int(since), int(rows)) for since, _, rows in (part.partition(":") for part in text.split(",")))
    moments = [since for since, _ in pairs]
    if moments[0] != 0 or moments != sorted(set(moments)):
        raise ValueError("must list since:rows in ascending order, the first since 0")
    if not all(1 <= rows <= MAX_ROWS for _, rows in pairs):
        raise ValueError(f"each number of rows must be from 1 to {MAX_ROWS}")
    return pairs


def _cache_url(text: str) -> str:
    if text and not _CACHE_URL.fullmatch(text):
        raise ValueError("must be empty, valkey://host:port or valkeys://host:port")  # it may hold a password
    return text


def _issuer(text: str) -> str:
    if text and not _ISSUER.fullmatch(text):
        raise ValueError(f"must be empty, https://... or, on one machine, http://..., not {text!r}")
    return text


def _keys(text: str) -> tuple[Key, ...]:
    return parse_keys(text) if text else ()


_PARSERS = {
    "cache_url": _cache_url,
    "cache_ttl_ms": _positive,
    "process_cache_ttl_ms": _natural,
    "counter_rows": _counter_rows,
    "liker_buckets": _positive,
    "event_days": _positive,
    "series_days": _series_days,
    "rate_limit_per_minute": _positive,
    "limits_without_cache": _without_cache,
    "quota_pools": _pools,
    "hot_per_second": _positive,
    "hot_rate_limit_per_minute": _natural,
    "auth_mode": _auth_mode,
    "allow_anonymous": _boolean,
    "jwt_issuer": _issuer,
    "jwt_keys": _keys,
    "service_key_generation": _positive,
    "log_level": _log_level,
}
