"""What template.yaml says about routes, functions, streams, queues and schedules, references resolved.

The local stack repeats nothing of the template: it reads it here. Values are resolved only where they are
asked for, so that a part which has no meaning on one machine (a VPC, a cache node) need not be resolvable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import boto3

NO_VALUE = object()
"""Stands for AWS::NoValue: the property or list entry that holds it is left out."""


class TemplateError(Exception):
    """Something in the template cannot be resolved from what is known."""


# --- loading ------------------------------------------------------------------------------------------------


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader that understands CloudFormation's short tags."""


def _long_form(loader: Any, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _long_form)


def load(path: Path) -> dict[str, Any]:
    """The template as plain data, short tags in their long form (`!Ref X` is `{"Ref": "X"}`)."""
    with path.open(encoding="utf-8") as file:
        document: dict[str, Any] = yaml.load(file, _Loader)  # noqa: S506 (a SafeLoader with tags)
    return document


# --- resolving ----------------------------------------------------------------------------------------------

Attribute = Callable[[str, str, str, str], str]
"""(resource type, logical id, physical id, attribute) -> value."""


@dataclass(frozen=True)
class Scope:
    """What references resolve to: parameters, physical ids, and where the stack is."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    physical_ids: Mapping[str, str] = field(default_factory=dict)
    attribute: Attribute | None = None
    stack_name: str = "tallymark"
    stack_id: str = "arn:aws:cloudformation:us-east-1:000000000000:stack/tallymark/0"
    region: str = "us-east-1"
    account_id: str = "000000000000"

    def pseudo(self, name: str) -> Any:
        """The value of a pseudo parameter such as AWS::Region, or None if `name` is none."""
        return {
            "AWS::Region": self.region,
            "AWS::AccountId": self.account_id,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
            "AWS::StackName": self.stack_name,
            "AWS::StackId": self.stack_id,
            "AWS::NotificationARNs": [],
            "AWS::NoValue": NO_VALUE,
        }.get(name)

    def arn(self, kind: str, physical_id: str) -> str | None:
        """The ARN of a resource whose name is `physical_id`, where the form is known."""
        where = f"{self.region}:{self.account_id}"
        forms = {
            "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{where}:table/{physical_id}",
            "AWS::SQS::Queue": f"arn:aws:sqs:{where}:{physical_id.rsplit('/', 1)[-1]}",
            "AWS::Serverless::Function": f"arn:aws:lambda:{where}:function:{physical_id}",
            "AWS::Lambda::Function": f"arn:aws:lambda:{where}:function:{physical_id}",
            "AWS::Logs::LogGroup": f"arn:aws:logs:{where}:log-group:{physical_id}:*",
            "AWS::IAM::Role": f"arn:aws:iam::{self.account_id}:role/{physical_id}",
        }
        return forms.get(kind)


@dataclass(frozen=True)
class Function:
    """One function of the template."""

    logical_id: str
    physical_id: str
    code: Path
    handler: str
    timeout_seconds: int
    memory_mb: int
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Route:
    """One route of the HTTP API: `method` is a verb, ANY, or $default (then `path` is empty)."""

    key: str
    method: str
    path: str
    function: str
    authorization: str = "NONE"


@dataclass(frozen=True)
class EventSource:
    """A stream or a queue that feeds a function; `settings` are the mapping's properties, resolved."""

    name: str
    function: str
    arn: str
    settings: Mapping[str, Any]

    @property
    def service(self) -> str:
        """`dynamodb` or `sqs`."""
        return self.arn.split(":")[2]


@dataclass(frozen=True)
class Schedule:
    """A call of a function at fixed times; `expression` is EventBridge's (`rate(5 minutes)`)."""

    name: str
    function: str
    expression: str
    input: str | None
    enabled: bool


FUNCTION_TYPES = ("AWS::Serverless::Function", "AWS::Lambda::Function")
SUB_REFERENCE = re.compile(r"\$\{([^!}][^}]*)\}")
SAM_SOURCES = {"DynamoDB": "Stream", "SQS": "Queue"}


class Template:
    """A template and the scope in which its references are resolved."""

    def __init__(self, document: Mapping[str, Any], scope: Scope, root: Path) -> None:
        self.document = document
        self.scope = scope
        self.root = root

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Every parameter: the given value, else its default."""
        declared: Mapping[str, Any] = self.document.get("Parameters") or {}
        defaults = {name: str(spec["Default"]) for name, spec in declared.items() if "Default" in spec}
        return {**defaults, **self.scope.parameters}

    @cached_property
    def resources(self) -> dict[str, dict[str, Any]]:
        """The resources whose condition holds."""
        everything: Mapping[str, dict[str, Any]] = self.document["Resources"]
        return {
            name: spec
            for name, spec in everything.items()
            if "Condition" not in spec or self.condition(spec["Condition"])
        }

    def condition(self, name: str) -> bool:
        """Whether the named condition holds."""
        try:
            expression = self.document["Conditions"][name]
        except KeyError:
            raise TemplateError(f"the template has no condition {name!r}") from None
        return bool(self.resolve(expression))

    def resolve(self, value: Any) -> Any:
        """`value` with every intrinsic function in it carried out.

        Raises TemplateError for a reference to something that is not known.
        """
        if isinstance(value, Mapping):
            if len(value) == 1:
                (key, argument), *_ = value.items()
                carry_out = self._intrinsics.get(key)
                if carry_out is not None:
                    return carry_out(argument)
            resolved = {key: self.resolve(item) for key, item in value.items()}
            return {key: item for key, item in resolved.items() if item is not NO_VALUE}
        if isinstance(value, list):
            return [item for item in map(self.resolve, value) if item is not NO_VALUE]
        return value

    @cached_property
    def _intrinsics(self) -> dict[str, Callable[[Any], Any]]:
        return {
            "Ref": self._ref,
            "Condition": self.condition,
            "Fn::GetAtt": lambda a: self._get_att(a[0], a[1]),
            "Fn::Sub": self._sub,
            "Fn::If": lambda a: self.resolve(a[1] if self.condition(a[0]) else a[2]),
            "Fn::Equals": lambda a: _text(self.resolve(a[0])) == _text(self.resolve(a[1])),
            "Fn::Not": lambda a: not self.resolve(a[0]),
            "Fn::And": lambda a: all(map(self.resolve, a)),
            "Fn::Or": lambda a: any(map(self.resolve, a)),
            "Fn::Join": lambda a: str(a[0]).join(map(_text, self.resolve(a[1]))),
            "Fn::Select": lambda a: self.resolve(a[1])[int(self.resolve(a[0]))],
            "Fn::Split": lambda a: self.resolve(a[1]).split(a[0]),
            "Fn::FindInMap": self._find_in_map,
            "Fn::ToJsonString": self._json,
        }

    def _ref(self, name: str) -> Any:
        pseudo = self.scope.pseudo(name)
        if pseudo is not None:
            return pseudo
        if name in self.parameters:
            return self._parameter(name)
        if name in self.scope.physical_ids:
            return self.scope.physical_ids[name]
        raise TemplateError(f"Ref {name}: neither a parameter nor a deployed resource")

    def _parameter(self, name: str) -> Any:
        value = self.parameters[name]
        kind = ((self.document.get("Parameters") or {}).get(name) or {}).get("Type", "String")
        if kind == "CommaDelimitedList" or kind.startswith("List<"):
            return [part.strip() for part in value.split(",")] if value else []
        return value

    def _get_att(self, name: str, attribute: str) -> Any:
        kind = self.document["Resources"].get(name, {}).get("Type", "")
        physical_id = self.scope.physical_ids.get(name)
        if physical_id is None:
            raise TemplateError(f"GetAtt {name}.{attribute}: not deployed")
        if attribute == "Arn" and (arn := self.scope.arn(kind, physical_id)):
            return physical_id if physical_id.startswith("arn:") else arn
        if self.scope.attribute is None:
            raise TemplateError(f"GetAtt {name}.{attribute}: nothing here knows attributes")
        return self.scope.attribute(kind, name, physical_id, attribute)

    def _sub(self, argument: Any) -> str:
        text, names = (argument, {}) if isinstance(argument, str) else argument

        def replacement(match: re.Match[str]) -> str:
            name = match[1].strip()
            if name in names:
                return _text(self.resolve(names[name]))
            if "." in name:
                return _text(self._get_att(*name.split(".", 1)))
            return _text(self._ref(name))

        return SUB_REFERENCE.sub(replacement, text).replace("${!", "${")

    def _find_in_map(self, argument: list[Any]) -> Any:
        mapping, first, second = (self.resolve(part) for part in argument[:3])
        return self.resolve(self.document["Mappings"][mapping][first][second])

    def _json(self, argument: Any) -> str:
        import json

        return json.dumps(self.resolve(argument), separators=(",", ":"))

    # --- what the local stack asks for ---

    def properties(self, logical_id: str) -> Mapping[str, Any]:
        """A resource's properties, unresolved."""
        properties: Mapping[str, Any] = self.resources[logical_id].get("Properties") or {}
        return properties

    def of_type(self, *kinds: str) -> Iterator[str]:
        """The logical ids of the resources of these types whose condition holds."""
        return (name for name, spec in self.resources.items() if spec["Type"] in kinds)

    @cached_property
    def _globals(self) -> Mapping[str, Any]:
        everything: Mapping[str, Any] = self.document.get("Globals") or {}
        function: Mapping[str, Any] = everything.get("Function") or {}
        return function

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Every function by its logical id, Globals merged in."""
        return {name: self._function(name) for name in self.of_type(*FUNCTION_TYPES)}

    def _function(self, logical_id: str) -> Function:
        own = self.properties(logical_id)
        merged = {**self._globals, **own}
        code = merged.get("CodeUri", merged.get("Code"))
        return Function(
            logical_id=logical_id,
            physical_id=self.scope.physical_ids.get(logical_id, logical_id),
            code=self.root / str(code),
            handler=str(self.resolve(merged["Handler"])),
            timeout_seconds=int(self.resolve(merged.get("Timeout", 3))),
            memory_mb=int(self.resolve(merged.get("MemorySize", 128))),
            environment=self._environment(own),
        )

    def _environment(self, properties: Mapping[str, Any]) -> dict[str, str]:
        variables: dict[str, Any] = {}
        for source in (self._globals, properties):
            variables |= (source.get("Environment") or {}).get("Variables") or {}
        return {name: _text(value) for name, value in self.resolve(variables).items()}

    def environment(self) -> dict[str, str]:
        """The environment that all functions share (Globals), resolved."""
        return self._environment({})

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """Every route of the HTTP API with the function that serves it."""
        routes = []
        for logical_id in self.of_type("AWS::ApiGatewayV2::Route"):
            properties = self.properties(logical_id)
            key = str(self.resolve(properties["RouteKey"]))
            method, _, path = key.partition(" ")
            function = self._function_behind(properties["Target"], logical_id)
            routes.append(Route(key, method, path, function, self.resolve(properties.get("AuthorizationType", "NONE"))))
        return tuple(routes)

    def _function_behind(self, target: Any, route: str) -> str:
        """The function that a route's target leads to, by the references themselves.

        Physical ids would need the API's integrations to be listed; the references say it already.
        """
        known = set(self.of_type("AWS::ApiGatewayV2::Integration"))
        integrations = [name for name in _references(target) if name in known]
        if not integrations:
            raise TemplateError(f"{route}: its Target names no integration of this template")
        uri = self.properties(integrations[0])["IntegrationUri"]
        for name in _references(uri):
            if name in self.functions:
                return name
        raise TemplateError(f"{integrations[0]}: its IntegrationUri names no function of this template")

    @cached_property
    def cors(self) -> Mapping[str, Any] | None:
        """The CorsConfiguration of the HTTP API, resolved; None if it has none."""
        for logical_id in self.of_type("AWS::ApiGatewayV2::Api"):
            configuration = self.resolve(self.properties(logical_id).get("CorsConfiguration", NO_VALUE))
            if isinstance(configuration, Mapping) and configuration:
                return configuration
        return None

    @cached_property
    def event_sources(self) -> tuple[EventSource, ...]:
        """The streams and queues that feed functions: from SAM events, and from mappings of their own."""
        return (*self._sam_sources(), *self._explicit_sources())

    def _sam_events(self) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
        for function in self.functions:
            for name, event in (self.properties(function).get("Events") or {}).items():
                yield function, f"{function}{name}", event["Type"], event.get("Properties") or {}

    def _sam_sources(self) -> Iterator[EventSource]:
        for function, name, kind, properties in self._sam_events():
            if kind in SAM_SOURCES:
                settings = self.resolve(properties)
                yield EventSource(name, function, settings.pop(SAM_SOURCES[kind]), settings)

    def _explicit_sources(self) -> Iterator[EventSource]:
        for name in self.of_type("AWS::Lambda::EventSourceMapping"):
            properties = self.properties(name)
            function = next((n for n in _references(properties["FunctionName"]) if n in self.functions), None)
            if function is None:
                raise TemplateError(f"{name}: FunctionName names no function of this template")
            settings = self.resolve({k: v for k, v in properties.items() if k != "FunctionName"})
            yield EventSource(name, function, settings.pop("EventSourceArn"), settings)

    @cached_property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedules of the functions."""
        found = []
        for function, name, kind, properties in self._sam_events():
            if kind not in ("Schedule", "ScheduleV2"):
                continue
            settings = self.resolve(properties)
            expression = settings.get("ScheduleExpression") or settings["Schedule"]
            enabled = _true(settings.get("Enabled", True)) and settings.get("State", "ENABLED") == "ENABLED"
            found.append(Schedule(name, function, expression, settings.get("Input"), enabled))
        return tuple(found)


def _text(value: Any) -> str:
    """A value as CloudFormation writes it into a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _true(value: Any) -> bool:
    return _text(value).lower() == "true"


def _references(value: Any) -> Iterator[str]:
    """Every name that `value` refers to by Ref, GetAtt or Sub."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, Mapping):
        for key, argument in value.items():
            yield from _named(key, argument)


def _named(key: str, argument: Any) -> Iterator[str]:
    if key == "Ref":
        yield argument
    elif key == "Fn::GetAtt":
        yield argument[0]
    elif key == "Fn::Sub":
        text = argument if isinstance(argument, str) else argument[0]
        yield from (match.strip().split(".")[0] for match in SUB_REFERENCE.findall(text))
        if not isinstance(argument, str):
            yield from _references(list(argument[1].values()))
    else:
        yield from _references(argument)


# --- of a deployed stack ------------------------------------------------------------------------------------


def deployed(path: Path, session: boto3.Session, stack_name: str, endpoint_url: str | None = None) -> Template:
    """The template at `path`, resolved against the stack deployed from it.

    `session` makes the clients; `endpoint_url` is for an emulator.
    """
    cloudformation = session.client("cloudformation", endpoint_url=endpoint_url)
    stack = cloudformation.describe_stacks(StackName=stack_name)["Stacks"][0]
    resources = cloudformation.describe_stack_resources(StackName=stack_name)["StackResources"]
    _, _, _, region, account_id, *_ = stack["StackId"].split(":")
    scope = Scope(
        parameters={p["ParameterKey"]: p["ParameterValue"] for p in stack.get("Parameters", [])},
        physical_ids={r["LogicalResourceId"]: r["PhysicalResourceId"] for r in resources},
        attribute=_attributes(session, endpoint_url),
        stack_name=stack_name,
        stack_id=stack["StackId"],
        region=region,
        account_id=account_id,
    )
    return Template(load(path), scope, path.parent)


def _attributes(session: boto3.Session, endpoint_url: str | None) -> Attribute:
    """Answers GetAtt by asking the service that has the resource."""

    def attribute(kind: str, logical_id: str, physical_id: str, name: str) -> str:
        if (kind, name) == ("AWS::DynamoDB::Table", "StreamArn"):
            dynamodb = session.client("dynamodb", endpoint_url=endpoint_url)
            return dynamodb.describe_table(TableName=physical_id)["Table"]["LatestStreamArn"]
        if kind == "AWS::SQS::Queue" and name == "QueueUrl":
            return physical_id
        if kind == "AWS::SQS::Queue" and name == "QueueName":
            return physical_id.rsplit("/", 1)[-1]
        raise TemplateError(f"GetAtt {logical_id}.{name} of a {kind} is not known to the local stack")

    return attribute
