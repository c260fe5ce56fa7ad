"""SAM's short resources written out as CloudFormation's own, for the few kinds that template.yaml uses.

The emulator would do this with SAM's own translator, whose import alone takes three seconds (twelve on the first
start). A test holds this against the translator's result. Whatever is not known here is left for the emulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FUNCTION = "AWS::Serverless::Function"
LAYER = "AWS::Serverless::LayerVersion"
COPIED_TO_FUNCTION = {
    "Architectures",
    "Environment",
    "Handler",
    "Layers",
    "LoggingConfig",
    "MemorySize",
    "Role",
    "Runtime",
    "Timeout",
    "VpcConfig",
}
COPIED_TO_LAYER = {"CompatibleArchitectures", "CompatibleRuntimes", "Description", "LayerName"}
SOURCES = {"DynamoDB": "Stream", "SQS": "Queue"}
CREATED_BY = [{"Key": "lambda:createdBy", "Value": "SAM"}]
AROUND_RESOURCE = ("Condition", "DeletionPolicy", "DependsOn", "UpdateReplacePolicy")


class UnknownToUsError(Exception):
    """The template uses something of SAM that is not written out here."""


def expanded(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template without SAM in it, or as it is where it uses more of SAM than is known here.

    Code and layers have to be uploaded already: their addresses begin with s3://.
    """
    try:
        resources: dict[str, Any] = {}
        for name, spec in template["Resources"].items():
            resources |= _expand(name, spec, template.get("Globals") or {})
    except UnknownToUsError:
        return dict(template)
    kept = {key: value for key, value in template.items() if key not in ("Globals", "Transform")}
    return {**kept, "Resources": resources}


def _expand(name: str, spec: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    if not spec["Type"].startswith("AWS::Serverless::"):
        return {name: spec}
    if spec["Type"] == LAYER:
        return {name: _layer(name, spec)}
    if spec["Type"] == FUNCTION and set(common) <= {"Function"}:
        return _function(name, spec, common.get("Function") or {})
    raise UnknownToUsError(spec["Type"])


def _function(name: str, spec: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    if "Environment" in spec["Properties"]:
        raise UnknownToUsError("an environment of a function's own")
    properties = {**common, **spec["Properties"]}
    code, events = properties.pop("CodeUri"), properties.pop("Events", {})
    function = {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            **_copied(properties, COPIED_TO_FUNCTION),
            "Code": _uploaded(code),
            "Tags": CREATED_BY,
        },
    }
    sources = [_source(name, f"{name}{key}", event) for key, event in events.items()]
    return {name: _around(spec) | function} | {key: made for source in sources for key, made in source.items()}


def _source(function: str, name: str, event: Mapping[str, Any]) -> dict[str, Any]:
    if event["Type"] in SOURCES:
        return {name: _mapping(function, event)}
    if event["Type"] == "Schedule" and {"Schedule", "Input"} <= set(event["Properties"]) <= {
        "Schedule",
        "Input",
        "State",
    }:
        return _schedule(function, name, event["Properties"])
    raise UnknownToUsError(f"an event of type {event['Type']}")


def _schedule(function: str, name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    target = {
        "Id": f"{name}LambdaTarget",
        "Arn": {"Fn::GetAtt": [function, "Arn"]},
        "Input": properties["Input"],
    }
    return {
        name: {
            "Type": "AWS::Events::Rule",
            "Properties": {
                "ScheduleExpression": properties["Schedule"],
                **{name: value for name, value in properties.items() if name == "State"},
                "Targets": [target],
            },
        },
        f"{name}Permission": {
            "Type": "AWS::Lambda::Permission",
            "Properties": {
                "Action": "lambda:InvokeFunction",
                "FunctionName": {"Ref": function},
                "Principal": "events.amazonaws.com",
                "SourceArn": {"Fn::GetAtt": [name, "Arn"]},
            },
        },
    }


def _mapping(function: str, event: Mapping[str, Any]) -> dict[str, Any]:
    properties = dict(event["Properties"])
    source = properties.pop(SOURCES[event["Type"]])
    return {
        "Type": "AWS::Lambda::EventSourceMapping",
        "Properties": {**properties, "EventSourceArn": source, "FunctionName": {"Ref": function}},
    }


def _layer(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    properties = dict(spec["Properties"])
    content, policy = properties.pop("ContentUri"), properties.pop("RetentionPolicy", "Retain")
    return {
        **_around(spec),
        "Type": "AWS::Lambda::LayerVersion",
        "DeletionPolicy": policy,
        "Properties": {
            "LayerName": name,
            **_copied(properties, COPIED_TO_LAYER),
            "Content": _uploaded(content),
        },
    }


def _around(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: spec[key] for key in AROUND_RESOURCE if key in spec}


def _copied(properties: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    if unknown := set(properties) - known:
        raise UnknownToUsError(", ".join(sorted(unknown)))
    return dict(properties)


def _uploaded(address: Any) -> dict[str, str]:
    if not isinstance(address, str) or not address.startswith("s3://"):
        raise UnknownToUsError(f"an address that is not in a bucket: {address}")
    bucket, _, key = address.removeprefix("s3://").partition("/")
    return {"S3Bucket": bucket, "S3Key": key}
