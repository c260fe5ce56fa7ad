"""Every function with the rights of its own role, which the emulator enforces here."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from infra.local.deploy import deploy, session
from infra.local.emulator import Emulator

PARAMETERS = {"Stage": "test", "AuthMode": "open", "StreamMapping": "disabled", "SingleLane": "test"}
LIKE = {"user_id": "ann", "item_id": "1", "item_type": "post"}
ITEM = {"item_id": "1", "item_type": "post"}

Call = Callable[[httpx.Client], httpx.Response]

CALLS: dict[str, Call] = {
    "like": lambda api: api.post("/v1/like", json=LIKE),
    "like again": lambda api: api.post("/v1/like", json=LIKE),
    "toggle": lambda api: api.post("/v1/toggle", json={**LIKE, "like": True}),
    "batch": lambda api: api.post("/v1/batch", json={"operations": [{"action": "like", **LIKE, "item_id": "2"}]}),
    "batch of unlikes": lambda api: api.post("/v1/batch", json={"operations": [{"action": "unlike", **LIKE}]}),
    "has_liked": lambda api: api.post("/v1/has_liked", json={"user_id": "ann", "item_ids": ["1"], **ITEM}),
    "liked list": lambda api: api.get("/v1/users/ann/likes"),
    "likers": lambda api: api.get("/v1/items/post/1/likers"),
    "count": lambda api: api.get("/v1/count", params={**ITEM, "fresh": "true"}),
    "counts": lambda api: api.post("/v1/counts", json={"items": [ITEM], "user_id": "ann"}),
    "unlike": lambda api: api.request("DELETE", "/v1/like", json=LIKE),
    "anonymous": lambda api: api.post("/v1/anonymous", json={}),
    "hit": lambda api: api.post("/v1/limits/login/hit", json={"key": "ann", "limit": 9, "window_seconds": 60}),
    "quota": lambda api: api.put("/v1/quotas/seats", json={"limit": 9}),
    "acquire": lambda api: api.post("/v1/quotas/seats/acquire", json={"amount": 1, "token": "a"}),
    "reserve": lambda api: api.post(
        "/v1/quotas/seats/acquire", json={"amount": 1, "token": "b", "expires_in_seconds": 60}
    ),
    "confirm": lambda api: api.post("/v1/quotas/seats/confirm", json={"token": "b"}),
    "release": lambda api: api.post("/v1/quotas/seats/release", json={"token": "a"}),
    "quota again": lambda api: api.get("/v1/quotas/seats"),
    "health": lambda api: api.get("/health"),
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    home = tmp_path_factory.mktemp("emulator")
    with Emulator(home=home, log=home / "log", auth=True) as running:
        yield running


@pytest.fixture(scope="module")
def outputs(emulator: Emulator) -> dict[str, str]:
    return deploy(emulator.endpoint_url, "tallymark", {**PARAMETERS, "EndpointUrl": emulator.endpoint_url})


@pytest.fixture(scope="module")
def api(outputs: dict[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=outputs["ApiUrl"], timeout=30) as client:
        yield client


def in_json(value: Any) -> Any:
    """How Lambda writes what the SDK gives as bytes and times."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value.timestamp()


def stream_event(emulator: Emulator, stream: str) -> dict[str, Any]:
    """Everything in the stream so far, as Lambda would hand it over."""
    streams = session().client("dynamodbstreams", endpoint_url=emulator.endpoint_url)
    (shard,) = streams.describe_stream(StreamArn=stream)["StreamDescription"]["Shards"]
    iterator = streams.get_shard_iterator(StreamArn=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    records = streams.get_records(ShardIterator=iterator)["Records"]
    return {"Records": [{**record, "eventSourceARN": stream} for record in records], "state": {}}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_api_is_within_the_rights_of_its_function(name: str, api: httpx.Client) -> None:
    answer = CALLS[name](api)
    assert answer.status_code == 200, answer.text
    assert '"status":5' not in answer.text


def test_the_aggregator_may_count(emulator: Emulator, outputs: dict[str, str], api: httpx.Client) -> None:
    api.post("/v1/like", json={**LIKE, "item_id": "3"})
    event = {**stream_event(emulator, outputs["LikesStreamArn"]), "shardId": "test"}
    assert event["Records"]
    functions = session().client("lambda", endpoint_url=emulator.endpoint_url)
    answer = functions.invoke(FunctionName=outputs["AggregatorFunction"], Payload=json.dumps(event, default=in_json))
    assert json.load(answer["Payload"]) == {"state": {}, "batchItemFailures": []}
    count = api.get("/v1/count", params={"item_id": "3", "item_type": "post", "fresh": "true"})
    assert count.json()["count"] == 1


def test_the_reconciler_may_recount(emulator: Emulator, outputs: dict[str, str]) -> None:
    functions = session().client("lambda", endpoint_url=emulator.endpoint_url)
    answer = functions.invoke(
        FunctionName=outputs["ReconcilerFunction"], Payload=json.dumps({"item": {**ITEM, "item_id": "3"}})
    )
    assert json.load(answer["Payload"])["drift"] == {}


def test_a_right_that_is_taken_away_is_missed(emulator: Emulator, outputs: dict[str, str], api: httpx.Client) -> None:
    cloudformation = session().client("cloudformation", endpoint_url=emulator.endpoint_url)
    found = cloudformation.describe_stack_resource(StackName="tallymark", LogicalResourceId="WriteApiRole")
    role = found["StackResourceDetail"]["PhysicalResourceId"]
    iam = session().client("iam", endpoint_url=emulator.endpoint_url)
    policy: Any = iam.get_role_policy(RoleName=role, PolicyName="calls")["PolicyDocument"]
    left = [statement for statement in policy["Statement"] if "dynamodb:DeleteItem" not in statement["Action"]]
    assert len(left) == len(policy["Statement"]) - 1
    changed = json.dumps({**policy, "Statement": left})
    iam.put_role_policy(RoleName=role, PolicyName="calls", PolicyDocument=changed)
    assert api.post("/v1/like", json={**LIKE, "item_id": "4"}).status_code >= 500
