"""What the functions call, compared with what their roles grant: nothing is missing, nothing is spare.

Every function takes all its ways once, in this process, while the SDK is listened to. A call in the code that none
of these ways makes is a failure too, so that a new one needs a new way here, and its right in the template.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import boto3
import pytest

from infra.local.cache import Cache
from infra.local.deploy import session as own_session
from infra.local.emulator import Emulator, session
from infra.local.functions import load_functions
from infra.local.invoking import InProcess
from infra.local.template import Scope, Template, deployed
from tallymark.aggregation import Parked
from tallymark.events import ViewEvent
from tallymark.fold import lane
from tallymark.model import Target
from tallymark.runtime import wiring
from tallymark.storage.event_stream import item_of
from tallymark.storage.keys import RECONCILER_RUN
from tallymark.storage.parked_queue import to_message
from tallymark.storage.valkey import ValkeyServer
from tallymark.views import View, gather
from tests.faults.injection import Died
from tests.integration.conftest import ROOT, deployed_as, environment_of, new_target
from tests.integration.streams import event_record, injected, lost_replies
from tests.property.lambda_stream import GARBAGE, record
from tests.unit.core.service import event_of
from tests.unit.test_template import DOCUMENT, RESOURCES, listed, of_type, statements

STACK = "rights-tests"
SOURCES = ROOT / "layers/core/tallymark"
Right = tuple[str, str]  # (action, resource)

# What Lambda does in a role's name, without a line of our code: it writes the function's log, and its mappings read.
LOGS = ("logs:CreateLogStream", "logs:PutLogEvents")
MAPPINGS = {
    "AggregatorFunction": {
        *(
            (f"dynamodb:{action}", f"{table}/stream")
            for action in ("DescribeStream", "GetRecords", "GetShardIterator")
            for table in ("LikesTable", "EventsTable")
        ),
        ("dynamodb:ListStreams", "*"),  # takes no resource
    },
    "VisitorsFunction": {
        ("dynamodb:DescribeStream", "EventsTable/stream"),
        ("dynamodb:GetRecords", "EventsTable/stream"),
        ("dynamodb:GetShardIterator", "EventsTable/stream"),
        ("dynamodb:ListStreams", "*"),
    },
    "ParkedFunction": {
        ("sqs:ChangeMessageVisibility", "ParkedQueue"),
        ("sqs:DeleteMessage", "ParkedQueue"),
        ("sqs:GetQueueAttributes", "ParkedQueue"),
        ("sqs:ReceiveMessage", "ParkedQueue"),
    },
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
    elif service == "dynamodbstreams":
        yield f"dynamodb:{operation}", "/stream/"  # there is one; what reads go on from does not name it
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
        rights = {(action, self._logical(resource)) for action, resource in rights_for(service, model.name, params)}
        self.used.setdefault(self.function, set()).update(rights)
        self.made_in.add(_innermost(sys._getframe()))

    def _logical(self, resource: str) -> str:
        if resource == "/stream/":
            return "LikesTable/stream"
        physical_id, _, index = resource.partition("/index/")
        return self.logical_ids[physical_id] + (f"/index/{index}" if index else "")


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
    cache_url: str
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
    ways.api("WriteApiFunction", "POST", "/v1/views", {"views": [ways.item]})
    ways.api("WriteApiFunction", "POST", "/v1/counters/n/add", {"amount": 1, "token": "t"})
    ways.api("WriteApiFunction", "POST", "/v1/limits/login/hit", {"key": "ann", "limit": 1, "window_seconds": 1})
    ways.api("WriteApiFunction", "POST", "/v1/like", like)
    ways.api("WriteApiFunction", "POST", "/v1/like", {**like, "item_id": "another"})  # two make a list with a cursor
    client = wiring.dynamodb()
    with injected(client, "BatchExecuteStatement", lost_replies(client, 1)):
        ways.api("WriteApiFunction", "POST", "/v1/batch", {"operations": [{"action": "like", **like}]})


def read_api(ways: Ways) -> None:
    item, item_query = ways.item, f"item_type={ways.target.item_type}&item_id={ways.target.item_id}"
    for fresh in ("false", "true"):
        ways.api("ReadApiFunction", "GET", "/v1/count", query=f"{item_query}&fresh={fresh}")
    for window in ("all", "7d"):
        ways.api("ReadApiFunction", "GET", "/v1/views", query=f"{item_query}&window={window}")
    ways.api("ReadApiFunction", "GET", "/v1/series", query=item_query)
    ways.api("ReadApiFunction", "GET", "/v1/top")
    ways.api("ReadApiFunction", "GET", "/v1/counters/n")
    ways.api("ReadApiFunction", "POST", "/v1/counts", {"items": [item], "user_id": "ann"})
    asked = {"user_id": "ann", "item_type": "post", "item_ids": [ways.target.item_id]}
    ways.api("ReadApiFunction", "POST", "/v1/has_liked", asked)
    for path in ("/v1/users/ann/likes", f"/v1/items/post/{ways.target.item_id}/likers"):
        for query in ("limit=1", "limit=1&item_type=post" if "users" in path else "limit=1&reaction=like"):
            ways.api("ReadApiFunction", "GET", path, query=query)
    for path in ("/health", "/openapi.json"):
        ways.api("ReadApiFunction", "GET", path)


def quota_api(ways: Ways) -> None:
    """Grants from one pool and from several, for good and reserved, released, confirmed and over in time."""
    path = f"/v1/quotas/{ways.target.item_id}"

    def post(call: str, **body: Any) -> Any:
        return ways.api("QuotaApiFunction", "POST", f"{path}/{call}", body)

    forged = {**event_of("GET", path, "", None), "headers": {"tallymark-service-key": "forged"}}
    assert ways.take("QuotaApiFunction", forged)["statusCode"] == 401
    ways.api("QuotaApiFunction", "PUT", path, {"limit": 90})
    ways.api("QuotaApiFunction", "PUT", path, {"limit": 80})
    post("acquire", token="one", amount=1)
    post("acquire", token="many", amount=40)
    for token in ("reserved", "confirmed", "over"):
        post("acquire", token=token, amount=1, expires_in_seconds=60)
    post("confirm", token="confirmed")
    for token in ("one", "many", "reserved"):
        post("release", token=token)
    with pytest.MonkeyPatch.context() as later:
        held = wiring.quotas()
        later.setattr(wiring, "quotas", lambda: replace(held, now_ms=lambda: wiring.now_ms() + 61_000))
        with injected(wiring.dynamodb(), "DeleteItem", lambda _: (_ for _ in ()).throw(Died)), suppress(Died):
            ways.api("QuotaApiFunction", "GET", path)  # dies when it has taken the reservation back
        assert ways.api("QuotaApiFunction", "GET", path)["used"] == 1


def aggregator(ways: Ways) -> None:
    """A first change, one more, garbage, an old one, and one that finds a mark which nobody needs any more.

    And an item that is hot, when the last one has long cooled down.
    """
    ways.target = new_target()  # which no record of the stream is about: the reconciler shall find it wrong
    now_s = int(time.time())
    rows = wiring.settings().counter_rows
    first = "shardId-a"
    other = next(name for n in range(10_000) if lane(name := f"shardId-{n}", rows).row == lane(first, rows).row)

    def deliver(shard: str, *records: dict[str, Any]) -> None:
        answer = ways.take("AggregatorFunction", {"Records": list(records), "shardId": shard, "state": {}})
        assert answer["batchItemFailures"] == []

    def change(number: int, hours_ago: int = 0) -> dict[str, Any]:
        return record("INSERT", ways.target, "like", number, now_s - hours_ago * 3600)

    def storm(begin: int, hours_ago: int = 0) -> list[dict[str, Any]]:
        hot = new_target()
        return [record("INSERT", hot, "like", begin + n, now_s - hours_ago * 3600) for n in range(400)]

    with pytest.MonkeyPatch.context() as then:
        then.setattr(wiring, "now_ms", lambda: (now_s - 60 * 3600) * 1000)
        deliver(first, change(1, hours_ago=60))
        deliver(first, change(2, hours_ago=60))
        deliver(first, *storm(1_000, hours_ago=60))
    deliver(other, change(3))
    deliver(other, change(4, hours_ago=40))
    deliver(other, GARBAGE["no keys"](change(5)))
    deliver(other, *storm(2_000))


def parked(ways: Ways) -> None:
    body = to_message(Parked("uncounted", "shardId-a", record("INSERT", ways.target, "like", 9, int(time.time()))))
    for _ in range(2):
        answer = ways.take("ParkedFunction", {"Records": [{"messageId": "1", "body": body}]})
        assert answer == {"batchItemFailures": []}


def reconciler(ways: Ways) -> None:
    """Of an item that is counted wrong, until it is right, and of all."""
    unheard = own_session().client("sqs", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for url in (wiring.settings().parked_queue_url, wiring.settings().parked_dead_queue_url):
        unheard.purge_queue(QueueUrl=url)  # what waits there forbids a repair
    events = own_session().client("dynamodb", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    events.delete_item(TableName=wiring.settings().events_table, Key={"pk": {"S": RECONCILER_RUN}})  # no run rests
    with pytest.MonkeyPatch.context() as quick:
        for pause in ("SETTLE_S", "SETTLE_TO_REPAIR_S"):
            quick.setattr(sys.modules["tallymark_functions.ReconcilerFunction"], pause, 0.0)
        for event in (
            {"item": ways.item},
            {"item": ways.item, "repair": True},
            {"item": ways.item},
            {"all": True, "seconds": 60},
            {"scheduled": True},
            {"report": True},
        ):
            ways.take("ReconcilerFunction", event)


def visitors(ways: Ways) -> None:
    """A view that comes, one that comes late, what is stored, and a reader who finds it vanished from Valkey."""
    os.environ["CACHE_URL"] = ways.cache_url
    try:
        wiring.reset()
        now_ms = wiring.now_ms()

        def deliver(person: str, at_ms: int) -> None:
            event = ViewEvent(at_ms, None, gather([View(ways.target, person)]))
            ways.take("VisitorsFunction", {"Records": [event_record(item_of(event), at_ms / 1000)]})

        deliver("ann", now_ms)
        deliver("bob", now_ms - 21 * 3_600_000)
        ways.take("VisitorsFunction", {"scheduled": True})
        ways.take("VisitorsFunction", {"rebuild": True})
        ValkeyServer(ways.cache_url).call(lambda client: [client.delete(k) for k in client.scan_iter("*/all/*")])
        ways.api("ReadApiFunction", "GET", "/v1/views", query=f"item_type=post&item_id={ways.target.item_id}")
    finally:
        os.environ["CACHE_URL"] = ""
        wiring.reset()


WAYS: dict[str, Callable[[Ways], None]] = {
    "WriteApiFunction": write_api,
    "ReadApiFunction": read_api,
    "QuotaApiFunction": quota_api,
    "AggregatorFunction": aggregator,
    "ParkedFunction": parked,
    "ReconcilerFunction": reconciler,
    "VisitorsFunction": visitors,
}


@pytest.fixture(scope="module")
def environment(emulator: Emulator) -> Iterator[dict[str, str]]:
    """Of a stack of its own: the reconciler looks at everything that other tests left."""
    deployed_as(STACK, emulator)
    with environment_of(STACK, emulator) as values:
        yield values


@pytest.fixture(scope="module")
def calls(environment: dict[str, str], valkey: Cache) -> Iterator[Calls]:
    """All functions after all their ways."""
    endpoint_url = environment["AWS_ENDPOINT_URL"]
    template = deployed(ROOT / "template.yaml", session(endpoint_url), STACK, endpoint_url)
    heard = Calls({physical_id: name for name, physical_id in template.scope.physical_ids.items()})
    ways = Ways(load_functions(template), heard, valkey.url)
    boto3.setup_default_session()  # clients made from now on are listened to
    assert boto3.DEFAULT_SESSION is not None
    boto3.DEFAULT_SESSION.events.register("before-parameter-build", heard)
    for function in ways.functions:
        wiring.reset()  # each is a process of its own, and fetches its secret itself
        WAYS[function](ways)
    yield heard
    boto3.setup_default_session()
    wiring.reset()


# --- what is granted --------------------------------------------------------------------------------------------


def granted() -> dict[str, set[Right]]:
    """Per function what its role grants; resources by their logical ids."""

    def attribute(_kind: str, name: str, _physical_id: str, attribute: str) -> str:
        return f"{name}/stream" if attribute == "StreamArn" else name

    scope = Scope(physical_ids={name: name for name in RESOURCES}, attribute=attribute)
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


@pytest.mark.parametrize("function", WAYS)
def test_a_role_grants_what_its_function_calls_and_nothing_else(function: str, calls: Calls) -> None:
    log_group = RESOURCES[function]["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
    of_lambda = {(action, log_group) for action in LOGS} | MAPPINGS.get(function, set())
    assert granted()[function] == calls.used[function] | of_lambda


def test_every_call_in_the_code_is_on_one_of_these_ways(calls: Calls) -> None:
    never = [
        f"{Path(path).relative_to(SOURCES)}:{first}"
        for path, first, last in calls_in_the_code()
        if not any(made == path and first <= line <= last for made, line in calls.made_in)
    ]
    assert never == [], "add a way that makes the call, and its right to the template"


def test_every_function_has_its_ways() -> None:
    assert set(WAYS) == set(of_type("AWS::Serverless::Function"))
