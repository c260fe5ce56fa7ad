"""What the local stack reads from a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.local.template import EventSource, Route, Schedule, Scope, Template, TemplateError, load

TEXT = """
Parameters:
  Mode: {Type: String, Default: none}
  Ttl: {Type: Number, Default: 1000}
  Origins: {Type: CommaDelimitedList, Default: "https://a, https://b"}
Mappings:
  Sizes: {small: {Rows: 8}}
Conditions:
  HasCache: !Not [!Equals [!Ref Mode, none]]
  Both: !And [!Condition HasCache, !Equals [!Ref Ttl, "1000"]]
  Any: !Or [!Condition HasCache, !Equals [!Ref Ttl, "1000"]]
Globals:
  Function:
    Timeout: 10
    Environment:
      Variables:
        TABLE: !Ref Table
        CACHE: !If [HasCache, !GetAtt Cache.Outputs.Url, ""]
        TTL: !Ref Ttl
        ROWS: !FindInMap [Sizes, small, Rows]
Resources:
  Table: {Type: AWS::DynamoDB::Table}
  Queue: {Type: AWS::SQS::Queue}
  Cache: {Type: AWS::CloudFormation::Stack, Condition: HasCache}
  Write:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/write/
      Handler: app.app
      MemorySize: 512
  Fold:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/fold/
      Handler: app.handler
      Timeout: 120
      Environment: {Variables: {EXTRA: !Sub "${AWS::StackName}-${Table}-${!Literal}"}}
      Events:
        Stream:
          Type: DynamoDB
          Properties:
            Stream: !GetAtt Table.StreamArn
            BatchSize: 100
            Enabled: !If [HasCache, true, false]
            Unset: !If [HasCache, 1, !Ref AWS::NoValue]
        Parked: {Type: SQS, Properties: {Queue: !GetAtt Queue.Arn, BatchSize: 10}}
        Hourly: {Type: Schedule, Properties: {Schedule: rate(1 hour), Input: '{"all":true}'}}
        Daily: {Type: ScheduleV2, Properties: {ScheduleExpression: rate(1 day), State: DISABLED}}
  Mapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      FunctionName: !Ref Write
      EventSourceArn: !GetAtt Queue.Arn
      BatchSize: 5
  Api:
    Type: AWS::ApiGatewayV2::Api
    Properties: {CorsConfiguration: {AllowOrigins: !Ref Origins}}
  WriteIntegration:
    Type: AWS::ApiGatewayV2::Integration
    Properties: {IntegrationUri: !GetAtt Write.Arn}
  FoldIntegration:
    Type: AWS::ApiGatewayV2::Integration
    Properties:
      IntegrationUri: !Sub "arn:aws:apigateway:${AWS::Region}:lambda:path/functions/${Fold.Arn}/invocations"
  LikeRoute:
    Type: AWS::ApiGatewayV2::Route
    Properties: {RouteKey: POST /v1/like, Target: !Sub "integrations/${WriteIntegration}"}
  CachedRoute:
    Type: AWS::ApiGatewayV2::Route
    Condition: HasCache
    Properties: {RouteKey: GET /cached, Target: !Join ["/", [integrations, !Ref WriteIntegration]]}
  DefaultRoute:
    Type: AWS::ApiGatewayV2::Route
    Properties: {RouteKey: $default, Target: !Sub "integrations/${FoldIntegration}"}
"""


def attribute(kind: str, logical_id: str, physical_id: str, name: str) -> str:
    return f"<{kind} {logical_id} {physical_id} {name}>"


@pytest.fixture
def template(tmp_path: Path) -> Template:
    return made(tmp_path)


def made(folder: Path, **parameters: str) -> Template:
    path = folder / "template.yaml"
    path.write_text(TEXT)
    scope = Scope(
        parameters=parameters,
        physical_ids={
            "Table": "table-1",
            "Queue": "http://127.0.0.1:4566/000000000000/queue-1",
            "Write": "write-1",
            "Fold": "fold-1",
            "Cache": "cache-1",
        },
        attribute=attribute,
    )
    return Template(load(path), scope, folder)


def test_routes_lead_to_functions(template: Template) -> None:
    assert template.routes == (
        Route("POST /v1/like", "POST", "/v1/like", "Write"),
        Route("$default", "$default", "", "Fold"),
    )


def test_a_resource_whose_condition_does_not_hold_is_not_there(tmp_path: Path) -> None:
    keys = [route.key for route in made(tmp_path, Mode="node").routes]
    assert keys == ["POST /v1/like", "GET /cached", "$default"]


def test_the_environment_is_that_of_globals_resolved(template: Template) -> None:
    assert template.environment() == {"TABLE": "table-1", "CACHE": "", "TTL": "1000", "ROWS": "8"}


def test_a_parameter_that_is_given_wins_over_its_default(tmp_path: Path) -> None:
    environment = made(tmp_path, Mode="node", Ttl="5").environment()
    assert environment["CACHE"] == "<AWS::CloudFormation::Stack Cache cache-1 Outputs.Url>"
    assert environment["TTL"] == "5"


def test_functions_have_globals_merged_in(template: Template, tmp_path: Path) -> None:
    write, fold = template.functions["Write"], template.functions["Fold"]
    assert (write.code, write.handler) == (tmp_path / "functions/write", "app.app")
    assert (write.timeout_seconds, write.memory_mb, write.physical_id) == (10, 512, "write-1")
    assert (fold.timeout_seconds, fold.memory_mb) == (120, 128)
    assert fold.environment["EXTRA"] == "tallymark-table-1-${Literal}"


def test_event_sources_come_from_events_and_from_mappings(template: Template) -> None:
    stream = "<AWS::DynamoDB::Table Table table-1 StreamArn>"
    queue = "arn:aws:sqs:us-east-1:000000000000:queue-1"
    assert template.event_sources == (
        EventSource("FoldStream", "Fold", stream, {"BatchSize": 100, "Enabled": False}),
        EventSource("FoldParked", "Fold", queue, {"BatchSize": 10}),
        EventSource("Mapping", "Write", queue, {"BatchSize": 5}),
    )
    assert template.event_sources[1].service == "sqs"


def test_schedules(template: Template) -> None:
    assert template.schedules == (
        Schedule("FoldHourly", "Fold", "rate(1 hour)", '{"all":true}', True),
        Schedule("FoldDaily", "Fold", "rate(1 day)", None, False),
    )


def test_cors_of_the_api(template: Template) -> None:
    assert template.cors == {"AllowOrigins": ["https://a", "https://b"]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"Fn::Join": ["-", ["a", {"Ref": "Ttl"}]]}, "a-1000"),
        ({"Fn::Select": ["1", {"Fn::Split": [",", "a,b"]}]}, "b"),
        ({"Fn::Sub": ["${X}${AWS::Region}", {"X": {"Ref": "Mode"}}]}, "noneus-east-1"),
        ({"Fn::GetAtt": ["Table", "Arn"]}, "arn:aws:dynamodb:us-east-1:000000000000:table/table-1"),
        ({"Fn::GetAtt": ["Write", "Arn"]}, "arn:aws:lambda:us-east-1:000000000000:function:write-1"),
        ({"Fn::If": ["Both", 1, 2]}, 2),
        ({"Fn::If": ["Any", 1, 2]}, 1),
        ({"a": {"Ref": "AWS::NoValue"}, "b": [{"Ref": "AWS::NoValue"}, 1]}, {"b": [1]}),
        ({"Fn::ToJsonString": {"a": {"Ref": "Mode"}}}, '{"a":"none"}'),
    ],
)
def test_intrinsic_functions(template: Template, value: Any, expected: Any) -> None:
    assert template.resolve(value) == expected


@pytest.mark.parametrize("value", [{"Ref": "Nobody"}, {"Fn::GetAtt": ["Nobody", "Arn"]}, {"Fn::If": ["No", 1, 2]}])
def test_what_is_not_known_is_said(template: Template, value: Any) -> None:
    with pytest.raises(TemplateError, match="No"):
        template.resolve(value)
