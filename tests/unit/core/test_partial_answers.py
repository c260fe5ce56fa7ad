"""Answers of the services that hold less than was asked for, and reads that have to hold the newest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from infra.local.template import load
from tallymark.aggregation import Parked
from tallymark.errors import Unavailable
from tallymark.fold import Lane
from tallymark.hot import LikerBuckets
from tallymark.model import Counter, Like, LikeKey, Stamp, Target
from tallymark.storage.counter_table import CounterTable
from tallymark.storage.event_table import HeldTable
from tallymark.storage.like_table import LikeTable
from tallymark.storage.parked_queue import ParkedQueue

ROOT = Path(__file__).resolve().parents[3]
TARGET = Target("post", "1")
KEY = LikeKey("ann", TARGET)


class Client:
    """A service that gives these answers, one after the other; requests are kept."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**request: Any) -> Any:
            self.requests.append(request)
            answer = self._answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def like_table(client: Any) -> LikeTable:
    return LikeTable(client, "likes", ThreadPoolExecutor(1), LikerBuckets(1))


def counter_table(client: Any) -> CounterTable:
    return CounterTable(client, "counters", ThreadPoolExecutor(1), lambda: 7, 35)


def statements(*responses: dict[str, Any]) -> dict[str, Any]:
    return {"Responses": list(responses), "ResponseMetadata": {"RetryAttempts": 0}}


def rows(*numbers: int, more: bool) -> dict[str, Any]:
    items = [{"sk": {"S": f"like#like#{row:03d}"}, "n": {"N": str(n)}} for row, n in enumerate(numbers)]
    return {"Items": items, **({"LastEvaluatedKey": {"pk": {"S": "post#1"}}} if more else {})}


@pytest.mark.parametrize("code", ["ThrottlingError", "TransactionConflict", "ValidationError"])
def test_a_statement_that_the_store_refuses_fails_its_operation(code: str) -> None:
    client = Client(statements({"TableName": "likes"}, {"Error": {"Code": code}}, {"Error": {"Code": "DuplicateItem"}}))
    writes = [Like(LikeKey(user, TARGET), Stamp.at(1)) for user in ("ann", "bob", "cy")]
    made, refused, stood = like_table(client).write_many(writes)
    assert (made, stood) == (True, False)
    assert isinstance(refused, Unavailable)


def test_a_count_that_the_store_does_not_give_is_unknown() -> None:
    client = Client(ReadTimeoutError(endpoint_url="http://store"))
    assert counter_table(client).counts([TARGET], consistent=False) == [None]


def test_a_count_is_the_sum_of_all_pages() -> None:
    client = Client(rows(5, -1, more=True), rows(more=True), rows(3, more=False))
    assert counter_table(client).count(TARGET, consistent=True).total == 7
    assert [request.get("ExclusiveStartKey") for request in client.requests] == [None, *[{"pk": {"S": "post#1"}}] * 2]


def test_a_record_that_the_queue_refuses_is_not_parked() -> None:
    answer: dict[str, Any] = {"Successful": [{"Id": "0"}], "Failed": [{"Id": "1", "Code": "InternalError"}]}
    queue: Any = Client(answer)
    with pytest.raises(Unavailable, match="InternalError"):
        ParkedQueue(queue, "http://queue").put([Parked("uncounted", "lane", {"n": n}) for n in range(2)])


def test_both_mappings_take_partial_answers() -> None:
    functions = load(ROOT / "template.yaml")["Resources"]
    for function, event in (("AggregatorFunction", "Likes"), ("ParkedFunction", "Parked")):
        properties = functions[function]["Properties"]["Events"][event]["Properties"]
        assert properties["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


FOUND: dict[str, Any] = {"Responses": {}, "UnprocessedKeys": {}}
LIST: dict[str, Any] = {"Items": []}


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (FOUND, lambda client: like_table(client).liked([KEY])),
        (LIST, lambda client: like_table(client).reactions("ann", [TARGET])),
        (LIST, lambda client: like_table(client).of_user("ann", None, None, 1)),
        (LIST, lambda client: counter_table(client).count(TARGET, consistent=True)),
        (FOUND, lambda client: counter_table(client).marks(Lane("lane", 0), [Counter(TARGET, "like")])),
        ({}, lambda client: HeldTable(client, "events").numbers("lane")),
    ],
    ids=["a like", "reactions", "a person's list", "a fresh count", "marks", "records held back"],
)
def test_what_must_be_the_newest_is_read_consistently(answer: Any, read: Callable[[Client], Any]) -> None:
    client = Client(answer)
    read(client)
    (request,) = client.requests
    asked = next(iter(request["RequestItems"].values())) if "RequestItems" in request else request
    assert asked["ConsistentRead"] is True
