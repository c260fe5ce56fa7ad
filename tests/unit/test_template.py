"""template.yaml against the code that it serves and the rules that the architecture sets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.local.template import Scope, Template, load
from tallymark.runtime import openapi
from tallymark.runtime.contract import OPERATIONS
from tallymark.settings import Settings
from tests.unit.core import service

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = load(ROOT / "template.yaml")
RESOURCES: dict[str, dict[str, Any]] = DOCUMENT["Resources"]
FOR_SLASHES = set(service.FOR_SLASHES)

# AWS offers nothing narrower for these.
ONLY_ON_EVERYTHING = {"dynamodb:ListStreams", "ec2"}


def of_type(kind: str) -> dict[str, dict[str, Any]]:
    """Logical id -> properties."""
    return {name: spec.get("Properties", {}) for name, spec in RESOURCES.items() if spec["Type"] == kind}


def resolved(**parameters: str) -> Template:
    """The template as deployed with these parameters, every resource named by its logical id."""

    def attribute(_kind: str, _logical_id: str, physical_id: str, name: str) -> str:
        return f"arn:aws:made:up:{physical_id}:{name}"

    scope = Scope(parameters=parameters, physical_ids={name: name for name in RESOURCES}, attribute=attribute)
    return Template(DOCUMENT, scope, ROOT)


def statements(template: Template) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every role, as (role, statement)."""
    for role in template.of_type("AWS::IAM::Role"):
        for policy in template.resolve(template.properties(role)["Policies"]):
            for statement in policy["PolicyDocument"]["Statement"]:
                yield role, statement


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# --- routes ----------------------------------------------------------------------------------------------------


def test_routes_are_the_operations_of_the_contract() -> None:
    routes = {route.key for route in resolved().routes}
    assert routes - FOR_SLASHES - {"$default"} == {f"{operation.method} {operation.path}" for operation in OPERATIONS}
    assert "$default" in routes, "unknown paths must be answered in our shape"


def test_every_list_whose_path_holds_an_id_has_a_route_for_ids_with_slashes() -> None:
    """API Gateway matches decoded paths; without such a route they came by $default, which asks for no signature."""
    in_path = [operation for operation in OPERATIONS if "_id}" in operation.path]
    assert {f"{o.method} {o.path.partition('{')[0]}{{proxy+}}" for o in in_path} == FOR_SLASHES
    assert {route.key for route in resolved().routes} >= FOR_SLASHES


def test_one_integration_for_each_function_behind_the_api() -> None:
    integrations = of_type("AWS::ApiGatewayV2::Integration")
    behind = {route.function for route in resolved().routes}
    assert len(integrations) == len(behind) == 3
    assert {spec["PayloadFormatVersion"] for spec in integrations.values()} == {"2.0"}


@pytest.mark.parametrize("mode", ["open", "jwt"])
def test_the_gateway_lets_everything_through_to_the_functions_unless_requests_are_signed(mode: str) -> None:
    assert {route.authorization for route in resolved(AuthMode=mode).routes} == {"NONE"}


def test_in_iam_mode_the_gateway_wants_a_signature_where_the_document_says_so() -> None:
    document = openapi.document("iam")["paths"]
    unsigned = {f"{o.method} {o.path}" for o in OPERATIONS if not document[o.path][o.method.lower()]["security"]}
    assert unsigned == {"GET /health", "GET /openapi.json", "GET /docs"}
    types = {route.key: route.authorization for route in resolved(AuthMode="iam").routes}
    assert {key for key, kind in types.items() if kind == "NONE"} == unsigned | {"$default"}
    assert set(types.values()) == {"NONE", "AWS_IAM"}


def rule_holds(rule: str, **parameters: str) -> bool:
    template = resolved(**parameters)
    described = DOCUMENT["Rules"][rule]
    if not template.resolve(described["RuleCondition"]):
        return True
    return all(template.resolve(assertion["Assert"]) for assertion in described["Assertions"])


@pytest.mark.parametrize(
    ("parameters", "holds"),
    [
        ({}, True),
        ({"AuthMode": "jwt"}, False),
        ({"AuthMode": "jwt", "JwtIssuer": "https://a"}, False),
        ({"AuthMode": "jwt", "JwtAudience": "a"}, False),
        ({"AuthMode": "jwt", "JwtIssuer": "https://a", "JwtAudience": "a"}, True),
    ],
)
def test_tokens_are_taken_only_with_an_issuer_and_an_audience(parameters: dict[str, str], holds: bool) -> None:
    assert rule_holds("JwtNeedsIssuerAndAudience", **parameters) == holds


@pytest.mark.parametrize(
    ("parameters", "holds"),
    [
        ({"CacheMode": "node"}, True),
        ({"AuthMode": "jwt"}, True),
        ({"AuthMode": "jwt", "CacheMode": "node"}, False),
        ({"AuthMode": "jwt", "CacheMode": "serverless"}, False),
        ({"AuthMode": "jwt", "CacheMode": "node", "VpcId": "vpc-1"}, True),
        ({"AuthMode": "jwt", "CacheMode": "node", "JwtKeys": "{}"}, True),
    ],
)
def test_functions_without_a_way_out_are_given_the_issuers_keys(parameters: dict[str, str], holds: bool) -> None:
    assert rule_holds("JwtNeedsKeysInTheVpcOfTheCache", **parameters) == holds


# --- settings --------------------------------------------------------------------------------------------------


def test_settings_are_the_environment_of_every_function() -> None:
    variables = set(DOCUMENT["Globals"]["Function"]["Environment"]["Variables"])
    fields = {field.name.upper() for field in dataclasses.fields(Settings)}
    assert {name for name in variables if not name.startswith("POWERTOOLS_")} == fields
    assert not any("Environment" in properties for properties in of_type("AWS::Serverless::Function").values())


def test_settings_can_be_read_from_the_defaults() -> None:
    settings = Settings.from_environment(resolved().environment())
    assert settings.auth_mode == "iam", "whoever deploys without choosing does not publish an open API"
    assert settings.single_lane == "", "on AWS the shard id is known"


# --- tables and queues -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["LikesTable", "EventsTable", "CountersTable", "QuotasTable"])
def test_tables_are_recoverable_encrypted_on_demand_and_kept(table: str) -> None:
    properties = RESOURCES[table]["Properties"]
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert properties["SSESpecification"] == {"SSEEnabled": True}
    assert "TableName" not in properties, "a named table cannot be replaced"
    assert RESOURCES[table]["UpdateReplacePolicy"] == "Retain"
    assert RESOURCES[table]["DeletionPolicy"] == "RetainExceptOnCreate"
    assert resolved(Stage="prod").resolve(properties["DeletionProtectionEnabled"]) is True
    assert resolved(Stage="test").resolve(properties["DeletionProtectionEnabled"]) is False


def test_every_table_is_covered_by_these_tests() -> None:
    assert set(of_type("AWS::DynamoDB::Table")) == {"LikesTable", "EventsTable", "CountersTable", "QuotasTable"}


def test_queues_are_encrypted_and_keep_records_for_14_days() -> None:
    for properties in of_type("AWS::SQS::Queue").values():
        assert properties["MessageRetentionPeriod"] == 14 * 24 * 3600
        assert properties["SqsManagedSseEnabled"] is True


def test_parked_records_stay_invisible_for_six_times_the_consumers_timeout() -> None:
    timeout = RESOURCES["ParkedFunction"]["Properties"]["Timeout"]
    assert RESOURCES["ParkedQueue"]["Properties"]["VisibilityTimeout"] >= 6 * timeout


# --- the stream ------------------------------------------------------------------------------------------------


NEW_EVENTS = '{"eventName":["INSERT"],"dynamodb":{"Keys":{"pk":{"S":[{"prefix":"event#"}]}}}}'


@pytest.mark.parametrize(
    ("table", "view", "batching_s", "pattern"),
    [
        ("LikesTable", "KEYS_ONLY", 1, '{"eventName":["INSERT","REMOVE"]}'),
        ("EventsTable", "NEW_IMAGE", 0, NEW_EVENTS),
    ],
    ids=["likes", "events"],
)
def test_the_streams_are_delivered_as_exact_counting_needs_it(
    table: str, view: str, batching_s: int, pattern: str
) -> None:
    sources = (s for s in resolved().event_sources if s.function == "AggregatorFunction")
    source = next(source for source in sources if table in source.arn)
    assert {**source.settings} == {
        "Enabled": True,
        "StartingPosition": "TRIM_HORIZON",
        "BatchSize": 10000,
        "MaximumBatchingWindowInSeconds": batching_s,
        "TumblingWindowInSeconds": 300,
        "ParallelizationFactor": 1,
        "BisectBatchOnFunctionError": True,
        "MaximumRetryAttempts": -1,
        "MaximumRecordAgeInSeconds": -1,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "FilterCriteria": {"Filters": [{"Pattern": pattern}]},
    }
    assert RESOURCES[table]["Properties"]["StreamSpecification"] == {"StreamViewType": view}


def test_mappings_can_be_left_to_another_poller() -> None:
    assert [s.settings["Enabled"] for s in resolved(StreamMapping="disabled").event_sources] == [False] * 4


@pytest.mark.parametrize(
    ("parameters", "enabled"),
    [({}, False), ({"CacheMode": "node"}, True), ({"CacheUrl": "valkey://localhost:6379"}, True)],
)
def test_visitors_are_fed_and_stored_where_there_is_a_valkey(parameters: dict[str, str], enabled: bool) -> None:
    template = resolved(**parameters)
    (source,) = (s for s in template.event_sources if s.function == "VisitorsFunction")
    (schedule,) = (s for s in template.schedules if s.function == "VisitorsFunction")
    assert (source.settings["Enabled"], schedule.enabled) == (enabled, enabled)
    assert source.settings["MaximumRetryAttempts"] == source.settings["MaximumRecordAgeInSeconds"] == -1


def test_no_schedule_is_switched_by_what_sam_does_not_resolve() -> None:
    events = [e for f in of_type("AWS::Serverless::Function").values() for e in f.get("Events", {}).values()]
    schedules = [event["Properties"] for event in events if event["Type"] == "Schedule"]
    assert schedules
    assert not any("Enabled" in properties for properties in schedules)


def test_a_stream_has_two_readers_at_most() -> None:
    """DynamoDB Developer Guide: more than two on a shard may be throttled."""
    arns = [source.arn for source in resolved().event_sources if "StartingPosition" in source.settings]
    assert sorted(map(arns.count, set(arns))) == [1, 2]


# --- roles -----------------------------------------------------------------------------------------------------


def test_each_function_has_a_role_and_a_log_group_of_its_own() -> None:
    functions = of_type("AWS::Serverless::Function")
    roles = {properties["Role"]["Fn::GetAtt"][0] for properties in functions.values()}
    logs = {properties["LoggingConfig"]["LogGroup"]["Ref"] for properties in functions.values()}
    assert len(roles) == len(logs) == len(functions)
    assert roles == set(of_type("AWS::IAM::Role"))
    assert not any("ManagedPolicyArns" in properties for properties in of_type("AWS::IAM::Role").values())


def test_logs_are_kept_for_a_time_that_the_parameter_sets() -> None:
    groups = of_type("AWS::Logs::LogGroup")
    assert len(groups) == len(of_type("AWS::Serverless::Function")) + 1, "one each, and the API's access log"
    assert all(properties["RetentionInDays"] == {"Ref": "LogRetentionDays"} for properties in groups.values())


@pytest.mark.parametrize("cache", ["none", "serverless", "node"])
def test_roles_hold_no_wildcards(cache: str) -> None:
    for role, statement in statements(resolved(CacheMode=cache)):
        actions = listed(statement["Action"])
        assert not any("*" in action for action in actions), f"{role}: {actions}"
        if "*" in listed(statement["Resource"]):
            assert {a if a in ONLY_ON_EVERYTHING else a.split(":")[0] for a in actions} <= ONLY_ON_EVERYTHING, role


CALLS = {
    "WriteApiRole": {
        "dynamodb:BatchGetItem", "dynamodb:DeleteItem", "dynamodb:PartiQLDelete", "dynamodb:PartiQLInsert",
        "dynamodb:PutItem", "dynamodb:Query", "secretsmanager:GetSecretValue",
    },
    "ReadApiRole": {
        "dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query", "secretsmanager:GetSecretValue",
    },
    "QuotaApiRole": {
        "dynamodb:BatchGetItem", "dynamodb:DeleteItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:Query",
        "dynamodb:UpdateItem", "secretsmanager:GetSecretValue",
    },
    "AggregatorRole": {
        "dynamodb:BatchGetItem", "dynamodb:DescribeStream", "dynamodb:GetItem", "dynamodb:GetRecords",
        "dynamodb:GetShardIterator", "dynamodb:ListStreams", "dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate",
        "dynamodb:PutItem", "dynamodb:Query", "dynamodb:UpdateItem", "sqs:SendMessage",
    },
    "ParkedRole": {
        "dynamodb:PutItem", "dynamodb:UpdateItem", "sqs:ChangeMessageVisibility", "sqs:DeleteMessage",
        "sqs:GetQueueAttributes", "sqs:ReceiveMessage",
    },
    "ReconcilerRole": {
        "dynamodb:DescribeStream", "dynamodb:GetItem", "dynamodb:GetRecords", "dynamodb:GetShardIterator",
        "dynamodb:PutItem", "dynamodb:Query", "dynamodb:Scan", "dynamodb:UpdateItem", "sqs:GetQueueAttributes",
    },
    "VisitorsRole": {
        "dynamodb:BatchGetItem", "dynamodb:DescribeStream", "dynamodb:GetItem", "dynamodb:GetRecords",
        "dynamodb:GetShardIterator", "dynamodb:ListStreams", "dynamodb:PutItem", "dynamodb:Scan",
        "dynamodb:UpdateItem",
    },
}  # fmt: skip
LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}


def test_each_role_allows_the_calls_of_its_function_and_no_other() -> None:
    """PartiQL's actions stand here because an emulator does not ask for them."""
    allowed: dict[str, set[str]] = {}
    for role, statement in statements(resolved()):
        allowed.setdefault(role, set()).update(listed(statement["Action"]))
    assert allowed == {role: calls | LOGS for role, calls in CALLS.items()}


def test_roles_may_reach_the_network_only_where_there_is_a_cache() -> None:
    def with_network(**parameters: str) -> set[str]:
        found = statements(resolved(**parameters))
        return {role for role, statement in found if "ec2:" in json.dumps(statement["Action"])}

    assert with_network() == set()
    assert with_network(CacheMode="serverless") == {"WriteApiRole", "ReadApiRole", "QuotaApiRole", "VisitorsRole"}


def test_only_those_that_count_or_correct_may_write_counters() -> None:
    """And one that puts sketches beside them."""
    writes = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:PartiQLUpdate"}
    writers = {
        role
        for role, statement in statements(resolved())
        if "CountersTable" in json.dumps(statement["Resource"]) and writes & set(listed(statement["Action"]))
    }
    assert writers == {"AggregatorRole", "ParkedRole", "ReconcilerRole", "VisitorsRole"}


# --- outputs and nested templates ------------------------------------------------------------------------------


def test_outputs_hold_those_that_clients_rely_on() -> None:
    assert {
        "ApiUrl",
        "LikesTable",
        "EventsTable",
        "CountersTable",
        "AggregatorFunction",
        "ReconcilerFunction",
        "ParkedQueueUrl",
        "DashboardName",
    } <= set(DOCUMENT["Outputs"])


@pytest.mark.parametrize("nested", sorted(of_type("AWS::CloudFormation::Stack")))
def test_nested_templates_get_the_parameters_that_they_declare(nested: str) -> None:
    properties = RESOURCES[nested]["Properties"]
    declared = load(ROOT / properties["TemplateURL"])["Parameters"]
    assert set(properties["Parameters"]) == set(declared)


def test_the_dashboard_is_json_that_names_only_its_parameters() -> None:
    template = load(ROOT / "infra/dashboard.yaml")
    body = template["Resources"]["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    dashboard = Template(template, Scope(parameters={name: name for name in template["Parameters"]}), ROOT)
    widgets = json.loads(dashboard.resolve({"Fn::Sub": body}))["widgets"]
    assert len({(widget["x"], widget["y"]) for widget in widgets}) == len(widgets)
