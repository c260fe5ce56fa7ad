"""The queue poller and the scheduler, against queues and clocks in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from infra.local.invoking import FunctionFailed, NotInvoked
from infra.local.queues import QueuePoller, QueueSettings, Scheduler, rate_seconds
from infra.local.template import Schedule

ARN = "arn:aws:sqs:us-east-1:000000000000:parked"


class FakeQueue:
    arn = ARN

    def __init__(self, *bodies: str) -> None:
        self.messages = [
            {
                "MessageId": f"m{n}",
                "ReceiptHandle": f"r{n}",
                "Body": body,
                "MD5OfBody": "md5",
                "Attributes": {"ApproximateReceiveCount": "1"},
                "MessageAttributes": {"kind": {"StringValue": "x", "DataType": "String"}},
            }
            for n, body in enumerate(bodies, 1)
        ]
        self.deleted: list[str] = []

    def receive(self, most: int, wait_seconds: float) -> Sequence[Any]:
        assert wait_seconds >= 0
        taken, self.messages = self.messages[:most], self.messages[most:]
        return taken

    def delete(self, receipts: Sequence[str]) -> None:
        self.deleted += receipts


class Function:
    function_arn = "arn:f"

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.events: list[Any] = []

    def __call__(self, payload: str) -> Any:
        self.events.append(json.loads(payload))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def poll(answer: Any, *bodies: str, **settings: Any) -> tuple[FakeQueue, Function]:
    queue, function = FakeQueue(*bodies), Function(answer)
    QueuePoller(queue, function, QueueSettings(**settings)).poll()
    return queue, function


def failed(*ids: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in ids]}


def test_messages_arrive_in_the_form_that_lambda_documents() -> None:
    _, function = poll(None, "hello")
    assert function.events == [
        {
            "Records": [
                {
                    "messageId": "m1",
                    "receiptHandle": "r1",
                    "body": "hello",
                    "attributes": {"ApproximateReceiveCount": "1"},
                    "messageAttributes": {"kind": {"stringValue": "x", "dataType": "String"}},
                    "md5OfBody": "md5",
                    "eventSource": "aws:sqs",
                    "eventSourceARN": ARN,
                    "awsRegion": "us-east-1",
                }
            ]
        }
    ]


def test_an_empty_queue_calls_nothing() -> None:
    _, function = poll(None)
    assert function.events == []


@pytest.mark.parametrize("answer", [None, {}, failed(), {"batchItemFailures": None}], ids=str)
def test_what_the_function_took_is_deleted(answer: Any) -> None:
    queue, _ = poll(answer, "a", "b", partial_responses=True)
    assert queue.deleted == ["r1", "r2"]


def test_what_it_reports_as_failed_stays() -> None:
    queue, _ = poll(failed("m2"), "a", "b", "c", partial_responses=True)
    assert queue.deleted == ["r1", "r3"]


@pytest.mark.parametrize(
    "answer", [failed(""), failed(None), failed("x"), {"batchItemFailures": [{}]}, "text"], ids=str
)
def test_an_answer_that_cannot_be_used_keeps_everything(answer: Any) -> None:
    queue, _ = poll(answer, "a", "b", partial_responses=True)
    assert queue.deleted == []


@pytest.mark.parametrize("error", [FunctionFailed("x"), NotInvoked("x")])
def test_a_failed_call_keeps_everything(error: Exception) -> None:
    queue, _ = poll(error, "a", "b")
    assert queue.deleted == []


def test_without_partial_responses_the_answer_does_not_matter() -> None:
    queue, _ = poll(failed("m1"), "a")
    assert queue.deleted == ["r1"]


def test_a_message_that_no_filter_wants_is_deleted() -> None:
    criteria = {"Filters": [{"Pattern": '{"body": {"kind": ["a"]}}'}]}
    queue, function = poll(None, '{"kind":"a"}', '{"kind":"b"}', "text", filter_criteria=criteria)
    assert len(function.events[0]["Records"]) == 1
    assert sorted(queue.deleted) == ["r1", "r2", "r3"]


def test_a_batch_holds_no_more_than_the_batch_size() -> None:
    _, function = poll(None, "a", "b", "c", batch_size=2)
    assert len(function.events[0]["Records"]) == 2


def test_settings_come_from_the_template() -> None:
    properties = {"BatchSize": 5, "FunctionResponseTypes": ["ReportBatchItemFailures"]}
    assert QueueSettings.of(properties) == QueueSettings(batch_size=5, partial_responses=True)


# --- schedules ---


@pytest.mark.parametrize(
    ("expression", "seconds"),
    [("rate(1 minute)", 60), ("rate(5 minutes)", 300), ("rate(2 hours)", 7200), ("cron(0 1 * * ? *)", None)],
)
def test_rates(expression: str, seconds: float | None) -> None:
    assert rate_seconds(expression) == seconds


def test_a_schedule_is_called_after_each_pause_with_its_input() -> None:
    now = 0.0
    function, plain = Function(), Function(FunctionFailed())
    entries = [
        (Schedule("A", "F", "rate(1 minute)", '{"all":true}', True), function),
        (Schedule("B", "F", "rate(2 minutes)", None, True), plain),
        (Schedule("C", "F", "rate(1 minute)", None, False), Function(AssertionError())),
    ]
    scheduler = Scheduler(entries, clock=lambda: now)
    for now in range(0, 301, 1):  # noqa: B007 (the clock reads it)
        scheduler.step()
    assert function.events == [{"all": True}] * 5
    assert [event["detail-type"] for event in plain.events] == ["Scheduled Event"] * 2
