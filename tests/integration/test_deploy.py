"""The template deployed to MiniStack: what is there afterwards, and what a failure says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from infra.local.deploy import DeployError, apply_what_is_dropped, deploy, session
from infra.local.emulator import Emulator

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

PARAMETERS = {"Stage": "test", "AuthMode": "open", "StreamMapping": "disabled", "SingleLane": "test"}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    home = tmp_path_factory.mktemp("emulator")
    with Emulator(home=home, log=home / "log") as running:
        yield running


@pytest.fixture(scope="module")
def outputs(emulator: Emulator) -> dict[str, str]:
    return deploy(emulator.endpoint_url, "tallymark", {**PARAMETERS, "EndpointUrl": emulator.endpoint_url})


def test_tables_have_what_cloudformation_of_the_emulator_leaves_out(
    emulator: Emulator, outputs: dict[str, str]
) -> None:
    dynamodb = session().client("dynamodb", endpoint_url=emulator.endpoint_url)
    expiry = dynamodb.describe_time_to_live(TableName=outputs["EventsTable"])["TimeToLiveDescription"]
    assert expiry == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    for table in ("LikesTable", "EventsTable", "CountersTable"):
        backups = dynamodb.describe_continuous_backups(TableName=outputs[table])["ContinuousBackupsDescription"]
        assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


def test_a_preflight_request_of_a_browser_is_answered(outputs: dict[str, str]) -> None:
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(outputs["ApiUrl"] + "/v1/like", headers=asked)
    assert answer.headers["access-control-allow-origin"] in ("*", "https://example.org")


def test_the_api_answers_from_a_real_function(outputs: dict[str, str]) -> None:
    answer = httpx.get(outputs["ApiUrl"] + "/health", timeout=30)
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


def test_a_function_can_be_invoked_with_a_made_up_event(emulator: Emulator, outputs: dict[str, str]) -> None:
    functions = session().client("lambda", endpoint_url=emulator.endpoint_url)
    event = {"Records": [], "shardId": "shardId-00000001573689847184-864758bb", "state": {}}
    answer = functions.invoke(FunctionName=outputs["AggregatorFunction"], Payload=json.dumps(event))
    assert "FunctionError" not in answer
    assert json.load(answer["Payload"])["batchItemFailures"] == []


def test_disabled_mappings_deliver_nothing(emulator: Emulator, outputs: dict[str, str]) -> None:
    url = emulator.endpoint_url
    table = outputs["LikesTable"]
    dynamodb = session().client("dynamodb", endpoint_url=url)
    key: dict[str, AttributeValueTypeDef] = {"pk": {"S": "someone"}, "sk": {"S": "something"}}
    dynamodb.put_item(TableName=table, Item={**key, "lk": {"S": "x"}, "at": {"B": b"1"}})
    sqs = session().client("sqs", endpoint_url=url)
    sqs.send_message(QueueUrl=outputs["ParkedQueueUrl"], MessageBody="{}")
    time.sleep(2)  # the emulator polls once a second
    waiting = sqs.get_queue_attributes(
        QueueUrl=outputs["ParkedQueueUrl"], AttributeNames=["ApproximateNumberOfMessages"]
    )
    assert waiting["Attributes"]["ApproximateNumberOfMessages"] == "1"
    sqs.purge_queue(QueueUrl=outputs["ParkedQueueUrl"])
    dynamodb.delete_item(TableName=table, Key=key)


def test_alarms_and_dashboard_come_from_the_nested_templates(emulator: Emulator, outputs: dict[str, str]) -> None:
    cloudwatch = session().client("cloudwatch", endpoint_url=emulator.endpoint_url)
    alarms = {alarm["MetricName"] for alarm in cloudwatch.describe_alarms()["MetricAlarms"]}
    assert {"IteratorAge", "Errors", "WriteThrottleEvents", "ApproximateNumberOfMessagesVisible"} <= alarms
    names = {entry["DashboardName"] for entry in cloudwatch.list_dashboards()["DashboardEntries"]}
    assert outputs["DashboardName"] in names


def test_deploying_again_changes_nothing(emulator: Emulator, outputs: dict[str, str]) -> None:
    url = emulator.endpoint_url
    assert deploy(url, "tallymark", {**PARAMETERS, "EndpointUrl": url}) == outputs
    apply_what_is_dropped(url, "tallymark")


def test_a_failure_names_the_resource_and_its_reason(emulator: Emulator, tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(
        "Resources:\n  Wrong:\n    Type: AWS::CloudWatch::Alarm\n    Properties: {Metrics: [{Id: a}]}\n"
    )
    with pytest.raises(DeployError, match=r"Wrong: .*Metrics"):
        deploy(emulator.endpoint_url, "wrong", {}, root=tmp_path)
