"""What checkov does not look at in the templates, and the exceptions from what it does."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from infra.local.template import load
from tests.unit.test_template import DOCUMENT, RESOURCES, ROOT, of_type

TEMPLATES = [ROOT / "template.yaml", *sorted((ROOT / "infra").glob("*.yaml"))]
CHECKOV = ROOT / ".checkov.yaml"
OPENS_TO_OTHERS = {
    "AWS::DynamoDB::ResourcePolicy",
    "AWS::Lambda::LayerVersionPermission",
    "AWS::Lambda::Url",
    "AWS::S3::Bucket",
    "AWS::SQS::QueuePolicy",
    "AWS::SecretsManager::ResourcePolicy",
    "AWS::EC2::InternetGateway",
    "AWS::EC2::NatGateway",
}


def test_checkov_looks_at_every_template_and_fetches_nothing() -> None:
    settings = yaml.safe_load(CHECKOV.read_text(encoding="utf-8"))
    assert [ROOT / name for name in settings["file"]] == TEMPLATES
    assert settings["skip-download"] is True
    assert not {"soft-fail", "soft-fail-on", "check", "baseline"} & set(settings)


def test_every_exception_from_a_rule_has_its_reason() -> None:
    _, _, exceptions = CHECKOV.read_text(encoding="utf-8").partition("skip-check:\n")
    for line in exceptions.splitlines():
        assert re.fullmatch(r"  - CKV2?_AWS_\d+ # \S.{30,}", line), line
    everywhere = "".join(path.read_text(encoding="utf-8") for path in TEMPLATES)
    assert "checkov:skip" not in everywhere, "one place holds them all"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_nothing_is_opened_to_others(path: Any) -> None:
    kinds = {resource["Type"] for resource in load(path)["Resources"].values()}
    assert not kinds & OPENS_TO_OTHERS


def test_only_this_api_may_invoke_functions() -> None:
    for properties in of_type("AWS::Lambda::Permission").values():
        assert properties["Principal"] == "apigateway.amazonaws.com"
        assert "${Api}/" in properties["SourceArn"]["Fn::Sub"], "another API of another account could call"


def test_roles_are_assumed_by_lambda_alone() -> None:
    for properties in of_type("AWS::IAM::Role").values():
        (statement,) = properties["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "lambda.amazonaws.com"}


def test_the_secret_is_made_by_aws_and_shown_by_nobody() -> None:
    secret = RESOURCES["Secret"]["Properties"]
    assert secret["GenerateSecretString"]["PasswordLength"] >= 43, "256 bits of letters and digits"
    assert "SecretString" not in secret
    told = str(DOCUMENT["Outputs"]) + str(DOCUMENT["Globals"]) + str(of_type("AWS::Serverless::Function"))
    assert "resolve:secretsmanager" not in told


def test_the_access_log_holds_nothing_that_names_a_person() -> None:
    fields = set(re.findall(r"\$context\.([\w.]+)", RESOURCES["ApiStage"]["Properties"]["AccessLogSettings"]["Format"]))
    named = {"path", "domainName", "identity", "authorizer.claims", "authorizer.principalId", "authorizer.jwt"}
    assert not {field for field in fields if any(field.startswith(name) for name in named)}
    assert "routeKey" in fields


def test_the_whole_api_has_a_throttle_that_a_parameter_sets() -> None:
    settings = RESOURCES["ApiStage"]["Properties"]["DefaultRouteSettings"]
    assert settings["ThrottlingRateLimit"] == {"Ref": "ApiRateLimit"}
    assert settings["ThrottlingBurstLimit"] == {"Ref": "ApiBurstLimit"}


def test_the_operators_page_says_of_every_alarm_what_to_do() -> None:
    page = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    section = page.partition("\n## Alarms\n")[2].partition("\n### ")[0]
    explained = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(explained) == sorted(load(ROOT / "infra/alarms.yaml")["Resources"])
