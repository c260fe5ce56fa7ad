"""Clients of one emulator among several."""

from __future__ import annotations

import pytest

from infra.local.emulator import session


def test_a_session_talks_to_its_emulator_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")
    made = session("http://127.0.0.1:1")
    for service in ("dynamodb", "dynamodbstreams", "sqs", "lambda", "cloudformation"):
        assert made.client(service).meta.endpoint_url == "http://127.0.0.1:1"
