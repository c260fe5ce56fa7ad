from __future__ import annotations

from dataclasses import fields

import pytest

from tallymark.settings import Settings

GOOD = {
    "LIKES_TABLE": "likes",
    "EVENTS_TABLE": "events",
    "COUNTERS_TABLE": "counters",
    "QUOTAS_TABLE": "quotas",
    "PARKED_QUEUE_URL": "http://queue",
    "PARKED_DEAD_QUEUE_URL": "http://dead-queue",
    "LIKES_STREAM_ARN": "arn:aws:dynamodb:us-east-1:000000000000:table/likes/stream/now",
    "CACHE_URL": "",
    "CACHE_TTL_MS": "1000",
    "PROCESS_CACHE_TTL_MS": "0",
    "COUNTER_ROWS": "0:4,1700000000000:64",
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
    "JWT_ISSUER": "https://issuer.example/tenant/",
    "JWT_AUDIENCE": "my-app",
    "JWT_KEYS": "",
    "SECRET_ARN": "arn",
    "SERVICE_KEY_GENERATION": "1",
    "LOG_LEVEL": "INFO",
}


def test_every_setting_is_a_variable_of_the_same_name() -> None:
    settings = Settings.from_environment({**GOOD, "PATH": "/bin"})
    assert settings.counter_rows == ((0, 4), (1_700_000_000_000, 64))
    assert settings.allow_anonymous is True
    assert settings.process_cache_ttl_ms == 0
    assert {field.name.upper() for field in fields(Settings)} == set(GOOD)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_variable_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf"\b{name} is not set"):
        Settings.from_environment({k: v for k, v in GOOD.items() if k != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CACHE_TTL_MS", "0"),
        ("CACHE_TTL_MS", "soon"),
        ("CACHE_TTL_MS", ""),
        ("CACHE_TTL_MS", "1.5"),
        ("PROCESS_CACHE_TTL_MS", "-1"),
        ("LIKER_BUCKETS", "0"),
        ("EVENT_DAYS", "0"),
        ("SERIES_DAYS", "30"),
        ("RATE_LIMIT_PER_MINUTE", "0"),
        ("RATE_LIMIT_PER_MINUTE", "-5"),
        ("LIMITS_WITHOUT_CACHE", ""),
        ("LIMITS_WITHOUT_CACHE", "Open"),
        ("QUOTA_POOLS", "0"),
        ("QUOTA_POOLS", "65"),
        ("HOT_PER_SECOND", "0"),
        ("HOT_RATE_LIMIT_PER_MINUTE", "-1"),
        ("SERVICE_KEY_GENERATION", "0"),
        ("AUTH_MODE", "none"),
        ("AUTH_MODE", "OPEN"),
        ("ALLOW_ANONYMOUS", "True"),
        ("ALLOW_ANONYMOUS", "1"),
        ("JWT_ISSUER", "issuer.example"),
        ("JWT_ISSUER", "ftp://issuer.example"),
        ("JWT_ISSUER", "https://"),
        ("JWT_ISSUER", "https://issuer.example/?a"),
        ("JWT_ISSUER", "https://issuer example"),
        ("JWT_KEYS", "{"),
        ("JWT_KEYS", "[]"),
        ("JWT_KEYS", '{"keys": []}'),
        ("COUNTER_ROWS", ""),
        ("COUNTER_ROWS", "64"),
        ("COUNTER_ROWS", "0:"),
        ("COUNTER_ROWS", "1:64"),
        ("COUNTER_ROWS", "0:0"),
        ("COUNTER_ROWS", "0:1001"),
        ("COUNTER_ROWS", "0:4,2:8,1:16"),
        ("COUNTER_ROWS", "0:4,0:4"),
        ("COUNTER_ROWS", "0:4,"),
    ],
)
def test_a_variable_that_is_malformed_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"the environment variable {name}: "):
        Settings.from_environment({**GOOD, name: value})


@pytest.mark.parametrize("name", ["JWT_ISSUER", "JWT_AUDIENCE"])
def test_tokens_need_an_issuer_and_an_audience_where_they_are_taken(name: str) -> None:
    assert Settings.from_environment({**GOOD, name: ""}).auth_mode == "open"
    with pytest.raises(ValueError, match=rf"the environment variable {name}: "):
        Settings.from_environment({**GOOD, "AUTH_MODE": "jwt", name: ""})


def test_settings_cannot_be_changed_afterwards() -> None:
    settings = Settings.from_environment(GOOD)
    with pytest.raises(AttributeError):
        settings.auth_mode = "iam"  # type: ignore[misc]
