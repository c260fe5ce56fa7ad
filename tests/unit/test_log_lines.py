"""What the functions say where something is wrong: where and of which kind, never what was sent.

tests/integration/test_logs.py searches all logs of a running service; here each line that could tell is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from functions.aggregator import app as aggregator
from functions.parked import app as parked
from functions.reconciler import app as reconciler
from tallymark.aggregation import LaneUnknown
from tallymark.errors import InvalidRequest, Unavailable
from tallymark.runtime import http, telemetry, wiring
from tallymark.settings import BadSetting
from tests.unit.core.service import Service

SENT = "ann@example.org"
HANDLERS = {"aggregator": aggregator.handler, "parked": parked.handler, "reconciler": reconciler.handler}


class Log:
    """Takes what is logged."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda message, **about: self.lines.append({"level": level, "message": message, **about})


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    taken = Log()
    Service(monkeypatch)
    for module in (telemetry, http):
        monkeypatch.setattr(module, "logger", lambda _: taken)
    yield taken
    wiring.reset()


@pytest.mark.parametrize(
    ("field", "logged"),
    [
        ("item_id", "item_id"),
        ("items[3].item_id", "items.item_id"),
        (None, None),
        (SENT, "unknown"),
        (f"{SENT}.item_id", "unknown"),
        ("item_ids[5551234567]", "item_ids"),
        (f"items[{SENT}].item_id", "unknown"),
    ],
)
def test_a_refusal_names_a_field_of_the_contract_or_none(log: Log, field: str | None, logged: str | None) -> None:
    http.refusal(InvalidRequest(f"{SENT} is wrong", field), "write-api")
    assert log.lines == [{"level": "info", "message": "refused", "code": "invalid_request", "field": logged}]


@pytest.mark.parametrize("name", HANDLERS)
def test_an_exception_leaves_a_function_without_its_message(
    name: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError(SENT) from ValueError(SENT)

    monkeypatch.setattr(wiring, "settings", fails)
    monkeypatch.setattr(wiring, "adjustment_table", fails)
    monkeypatch.setattr(wiring, "audit_tables", fails)
    events: dict[str, dict[str, Any]] = {
        "aggregator": {"Records": [{"eventName": "INSERT"}]},
        "parked": {
            "Records": [{"messageId": "1", "body": json.dumps(dict.fromkeys(("reason", "lane_id", "record"), SENT))}]
        },
        "reconciler": {"item": {"item_type": "post", "item_id": SENT}},
    }
    with pytest.raises(telemetry.HandlerFailed, match=r"^RuntimeError < ValueError$") as failed:
        HANDLERS[name](events[name], None)
    assert failed.value.__suppress_context__, "what it came from is not shown with it"
    (line,) = log.lines
    assert line["error"] == "RuntimeError < ValueError"
    assert "raise RuntimeError(SENT)" in line["traceback"][-1]
    assert SENT not in str(line)


@pytest.mark.parametrize("error", [Unavailable("busy"), LaneUnknown("no shard"), InvalidRequest("is required")])
def test_what_is_said_in_our_own_words_is_passed_on_without_its_cause(error: Exception, log: Log) -> None:
    @telemetry.silent_on_values("made-up")
    def handler(_event: dict[str, Any], _context: Any) -> dict[str, Any]:
        try:
            raise KeyError(SENT)
        except KeyError as cause:
            raise error from cause

    with pytest.raises(type(error)) as passed_on:
        handler({}, None)
    assert passed_on.value is error
    assert error.__suppress_context__
    assert error.__cause__ is None
    assert log.lines == []


@pytest.mark.parametrize("body", [f'"{SENT}"', f'{{"reason": "{SENT}"}}', SENT, f'{{"{SENT}": 1}}'])
def test_a_parked_record_that_cannot_be_settled_is_named_by_its_message_alone(body: str, log: Log) -> None:
    answer = parked.handler({"Records": [{"messageId": "m-1", "body": body}]}, None)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}
    (line,) = log.lines
    assert line["message_id"] == "m-1"
    assert SENT not in str(line)


def test_a_setting_that_is_wrong_is_named(log: Log) -> None:
    telemetry.bug("made-up", BadSetting("the environment variable LOG_LEVEL: must be another"))
    (line,) = log.lines
    assert line["error"] == "BadSetting the environment variable LOG_LEVEL: must be another"
