"""What the functions call, compared with what their roles grant: nothing is missing, nothing is spare.

Every function takes all its ways once, in this process, while the SDK is listened to. A call in the code that none
of these ways makes is a failure too, so that a new one needs a new way here, and its right in the template.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import boto3
import pytest

from infra.local.emulator import session
from infra.local.functions import load_functions
from infra.local.invoking import InProcess
from infra.local.template import Scope, Template, deployed
from tallymark.aggregation import Parked
from tallymark.fold import lane
from tallymark.model import Target
from tallymark.runtime import wiring
from tallymark.storage.parked_queue import to_message
from tests.integration.conftest import ROOT, STACK, new_target
from tests.integration.streams import injected, lost_replies
from tests.property.lambda_stream import GARBAGE, record
from tests.unit.core.service import event_of
from tests.unit.test_template import DOCUMENT, RESOURCES, listed, of_type, statements

SOURCES = ROOT / "layers/core/tallymark"
Right = tuple[str, str]  # (action, resource)

# What Lambda does in the role's name, without a line of our code.
OF_LAMBDA = {
    "logs:CreateLogStream": "it writes the function's log",
    "logs:PutLogEvents": "it writes the function's log",
    "dynamodb:DescribeStream": "the mapping reads the stream",
    "dynamodb:GetRecords": "the mapping reads the stream",
    "dynamodb:GetShardIterator": "the mapping reads the stream",
    "dynamodb:ListStreams": "the mapping reads the stream",
    "sqs:ReceiveMessage": "the mapping empties the queue",
    "sqs:DeleteMessage": "the mapping empties the queue",
    "sqs:GetQueueAttributes": "the mapping empties the queue",
    "sqs:ChangeMessageVisibility": "the mapping gives back what failed",
}
VERBS = {"INSERT INTO": "Insert", "UPDATE": "Update", "DELETE FROM": "Delete", "FROM": "Select"}
STATEMENT = re.compile(r'\b(INSERT INTO|UPDATE|DELETE FROM|FROM) "([^"]+)"')
IN_TRANSACTION = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


# --- what is called ---------------------------------------------------------------------------------------------


def rights_for(service: str, operation: str, request: dict[str, Any]) -> Iterator[Right]:
    """What a call needs, as the Service Authorization Reference has it; resources by their physical names."""
    if service == "sqs":
        yield f"sqs:{operation.removesuffix('Batch')}", request["QueueUrl"]
    elif service == "secretsmanager":
        yield f"secretsmanager:{operation}", request["SecretId"]
    else:
        assert service == "dynamodb", f"say here which rights {service}:{operation} needs"
        for action, table in _of_dynamodb(operation, request):
            yield f"dynamodb:{action}", table


def _of_dynamodb(operation: str, request: dict[str, Any]) -> Iterator[Right]:
    """Batches and transactions need the rights of what is in them."""
    if operation == "BatchExecuteStatement":
        for statement in request["Statements"]:
            ((verb, table),) = STATEMENT.findall(statement["Statement"])
            yield f"PartiQL{VERBS[verb]}", table
    elif operation == "TransactWriteItems":
        for entry in request["TransactItems"]:
            ((kind, write),) = entry.items()
            yield IN_TRANSACTION[kind], write["TableName"]
    elif operation == "BatchGetItem":
        for table in request["RequestItems"]:
            yield operation, table
    else:
        index = f"/index/{request['IndexName']}" if "IndexName" in request else ""
        yield operation, request["TableName"] + index


@dataclass
class Calls:
    """The rights that each function has used, and the lines of code that used them."""

    logical_ids: dict[str, str]
    function: str = ""
    used: dict[str, set[Right]] = field(default_factory=dict)
    made_in: set[tuple[str, int]] = field(default_factory=set)

    def __call__(self, params: dict[str, Any], model: Any, **_more: Any) -> None:
        """Hears of a call, in the thread that makes it."""
        service = model.service_model.service_name
        for action, resource in rights_for(service, model.name, params):
            physical_id, _, index = resource.partition("/index/")
            name = self.logical_ids[physical_id] + (f"/index/{index}" if index else "")
            self.used.setdefault(self.function, set()).add((action, name))
        self.made_in.add(_innermost(sys._getframe()))


def _innermost(frame: FrameType | None) -> tuple[str, int]:
    while frame is not None:
        if Path(frame.f_code.co_filename).is_relative_to(SOURCES):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    raise AssertionError("a function of ours was to be called")


def calls_in_the_code() -> Iterator[tuple[str, int, int]]:
    """Every place that calls a client of the SDK: file, first and last line."""
    for path in sorted(SOURCES.rglob("*.py")):
        if "cli" in path.relative_to(SOURCES).parts or path.name == "valkey.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = ast.unparse(node.func.value)
                if target in ("client", "self._client") or target.startswith("boto3.client("):
                    yield str(path), node.lineno, node.end_lineno or node.lineno


# --- the ways ---------------------------------------------------------------------------------------------------


@dataclass
class Ways:
    """Calls the functions as API Gateway and Lambda do."""

    functions: dict[str, InProcess]
    calls: Calls
    target: Target = field(default_factory=new_target)

    def take(self, function: str, event: dict[str, Any]) -> Any:
        self.calls.function = function
        called = self.functions[function]
        return called.handler(event, called.context())

    def api(self, function: str, method: str, path: str, body: Any = None, query: str = "") -> Any:
        event = event_of(method, path, query, None)
        answer = self.take(function, event if body is None else {**event, "body": json.dumps(body)})
        assert answer["statusCode"] == 200, answer
        return json.loads(answer["body"])

    @property
    def item(self) -> dict[str, str]:
        return {"item_type": self.target.item_type, "item_id": self.target.item_id}


def write_api(ways: Ways) -> None:
    like = {"user_id": "ann", **ways.item}
    for _ in range(2):
        ways.api("WriteApiFunction", "POST", "/v1/like", like)
    for wanted in (True, False):
        ways.api("WriteApiFunction", "POST", "/v1/toggle", {**like, "like": wanted})
        operation = {"action": "like" if wanted else "unlike", **like}
        ways.api("WriteApiFunction", "POST", "/v1/batch", {"operations": [operation, {**operation, "user_id": "bob"}]})
    ways.api("WriteApiFunction", "DELETE", "/v1/like", like)
    ways.api("WriteApiFunction", "POST", "/v1/anonymous")
    ways.api("WriteApiFunction", "POST", "/v1/like", like)
    ways.api("WriteApiFunction", "POST", "/v1/like", {**like, "item_id": "another"})  # two make a list with a cursor
    client = wiring.dynamodb()
    with injected(client, "BatchExecuteStatement", lost_replies(client, 1)):
        ways.api("WriteApiFunction", "POST", "/v1/batch", {"operations": [{"action": "like", **like}]})


def read_api(ways: Ways) -> None:
    item, item_query = ways.item, f"item_type={ways.target.item_type}&item_id={ways.target.item_id}"
    for fresh in ("false", "true"):
        ways.api("ReadApiFunction", "GET", "/v1/count", query=f"{item_query}&fresh={fresh}")
    ways.api("ReadApiFunction", "POST", "/v1/counts", {"items": [item], "user_id": "ann"})
    asked = {"user_id": "ann", "item_type": "post", "item_ids": [ways.target.item_id]}
    ways.api("ReadApiFunction", "POST", "/v1/has_liked", asked)
    for path in ("/v1/users/ann/likes", f"/v1/items/post/{ways.target.item_id}/likers"):
        for query in ("limit=1", "limit=1&item_type=post" if "users" in path else "limit=1&reaction=like"):
            ways.api("ReadApiFunction", "GET", path, query=query)
    for path in ("/health", "/openapi.json"):
        ways.api("ReadApiFunction", "GET", path)


def aggregator(ways: Ways) -> None:
    """A first change, one more, garbage, an old one, and one that finds a mark which nobody needs any more."""
    now_s = int(time.time())
    rows = wiring.settings().counter_rows
    first = "shardId-a"
    other = next(name for n in range(10_000) if lane(name := f"shardId-{n}", rows).row == lane(first, rows).row)

    def deliver(shard: str, *records: dict[str, Any]) -> None:
        answer = ways.take("AggregatorFunction", {"Records": list(records), "shardId": shard, "state": {}})
        assert answer["batchItemFailures"] == []

    def change(number: int, hours_ago: int = 0) -> dict[str, Any]:
        return record("INSERT", ways.target, "like", number, now_s - hours_ago * 3600)

    with pytest.MonkeyPatch.context() as then:
        then.setattr(wiring, "now_ms", lambda: (now_s - 60 * 3600) * 1000)
        deliver(first, change(1, hours_ago=60))
        deliver(first, change(2, hours_ago=60))
    deliver(other, change(3))
    deliver(other, change(4, hours_ago=40))
    deliver(other, GARBAGE["no keys"](change(5)))


def parked(ways: Ways) -> None:
    body = to_message(Parked("uncounted", "shardId-a", record("INSERT", ways.target, "like", 9, int(time.time()))))
    for _ in range(2):
        answer = ways.take("ParkedFunction", {"Records": [{"messageId": "1", "body": body}]})
        assert answer == {"batchItemFailures": []}


def reconciler(ways: Ways) -> None:
    ways.take("ReconcilerFunction", {"item": ways.item})


WAYS: dict[str, Callable[[Ways], None]] = {
    "WriteApiFunction": write_api,
    "ReadApiFunction": read_api,
    "AggregatorFunction": aggregator,
    "ParkedFunction": parked,
    "ReconcilerFunction": reconciler,
}


@pytest.fixture(scope="module")
def calls(environment: dict[str, str]) -> Iterator[Calls]:
    """All functions after all their ways."""
    endpoint_url = environment["AWS_ENDPOINT_URL"]
    template = deployed(ROOT / "template.yaml", session(endpoint_url), STACK, endpoint_url)
    heard = Calls({physical_id: name for name, physical_id in template.scope.physical_ids.items()})
    boto3.setup_default_session()  # clients made from now on are listened to
    assert boto3.DEFAULT_SESSION is not None
    boto3.DEFAULT_SESSION.events.register("before-parameter-build", heard)
    ways = Ways(load_functions(template), heard)
    for function in ways.functions:
        wiring.reset()  # each is a process of its own, and fetches its secret itself
        WAYS[function](ways)
    yield heard
    boto3.setup_default_session()
    wiring.reset()


# --- what is granted --------------------------------------------------------------------------------------------


def granted() -> dict[str, set[Right]]:
    """Per function what its role grants; resources by their logical ids."""
    scope = Scope(physical_ids={name: name for name in RESOURCES}, attribute=lambda _kind, name, *_: name)
    functions = of_type("AWS::Serverless::Function")
    role_of = {properties["Role"]["Fn::GetAtt"][0]: function for function, properties in functions.items()}
    found: dict[str, set[Right]] = {function: set() for function in functions}
    for role, statement in statements(Template(DOCUMENT, scope, ROOT)):
        for action in listed(statement["Action"]):
            found[role_of[role]] |= {(action, _logical(arn)) for arn in listed(statement["Resource"])}
    return found


def _logical(arn: str) -> str:
    """arn:aws:dynamodb:...:table/LikesTable/index/likers is LikesTable/index/likers."""
    return arn.removesuffix(":*").rpartition(":")[2].removeprefix("table/")


def of_code(rights: set[Right]) -> set[Right]:
    return {(action, resource) for action, resource in rights if action not in OF_LAMBDA}


@pytest.mark.parametrize("function", WAYS)
def test_a_role_grants_what_its_function_calls_and_nothing_else(function: str, calls: Calls) -> None:
    assert of_code(granted()[function]) == calls.used[function]


def test_every_call_in_the_code_is_on_one_of_these_ways(calls: Calls) -> None:
    never = [
        f"{Path(path).relative_to(SOURCES)}:{first}"
        for path, first, last in calls_in_the_code()
        if not any(made == path and first <= line <= last for made, line in calls.made_in)
    ]
    assert never == [], "add a way that makes the call, and its right to the template"


def test_every_function_has_its_ways() -> None:
    assert set(WAYS) == set(of_type("AWS::Serverless::Function"))


def test_what_lambda_does_in_a_roles_name_is_on_the_functions_own_log_stream_and_queue() -> None:
    for function, rights in granted().items():
        of_lambda = {right for right in rights if right[0] in OF_LAMBDA}
        log_group = RESOURCES[function]["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
        sources = {"AggregatorFunction": {"LikesTable", "*"}, "ParkedFunction": {"ParkedQueue"}}
        assert {resource for _, resource in of_lambda} == {log_group} | sources.get(function, set()), function
    assert {action for rights in granted().values() for action, _ in rights} >= set(OF_LAMBDA)
