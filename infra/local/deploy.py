"""template.yaml deployed to an emulator through its own CloudFormation, without the SAM command line.

`sam deploy` does the same and is what users run; this is what `make up` and the tests run, since it needs no
environment of its own and takes about a second once the layer is built.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import ClientError

from infra.local.emulator import ACCESS_KEY, REGION, SECRET_KEY
from infra.local.expansion import expanded
from infra.local.template import Template, deployed, load

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".tallymark"
BUCKET = "tallymark-artifacts"
TIMEOUT_S = 120
LAYERS_KEPT = 5
ZIP_TIME = (2020, 1, 1, 0, 0, 0)  # one time for every file, so that the same content is the same archive
UPLOADED = {
    "AWS::Serverless::Function": "CodeUri",
    "AWS::Serverless::LayerVersion": "ContentUri",
    "AWS::CloudFormation::Stack": "TemplateURL",
}


class DeployError(Exception):
    """The stack was not deployed; the message holds the reason of each resource that failed."""


def session() -> boto3.Session:
    """A session with the made-up credentials that emulators take."""
    return boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)


def deploy(endpoint_url: str, stack_name: str, parameters: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """The outputs of the stack, created or brought up to date from `root`/template.yaml.

    Raises DeployError with the reasons when a resource fails. Safe to repeat.
    """
    aws = session()
    template = load(root / "template.yaml")
    s3 = aws.client("s3", endpoint_url=endpoint_url)
    s3.create_bucket(Bucket=BUCKET)
    _upload_artifacts(s3, endpoint_url, template, root)
    # A template that is sent along has at most 51,200 bytes: CloudFormation API Reference, CreateChangeSet.
    template_url = f"{endpoint_url}/{_upload(s3, json.dumps(expanded(template)).encode(), '.template')}"
    cloudformation = aws.client("cloudformation", endpoint_url=endpoint_url)
    _apply(cloudformation, stack_name, template_url, parameters)
    apply_what_is_dropped(endpoint_url, stack_name, root)
    stack = cloudformation.describe_stacks(StackName=stack_name)["Stacks"][0]
    return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}


# --- artifacts ----------------------------------------------------------------------------------------------


def build_layer(root: Path = ROOT, cache: Path = CACHE) -> Path:
    """The layer as an archive, built by layers/core/Makefile unless one of the same inputs is in `cache`."""
    archive = cache / f"layer-{_hash_of_files(_layer_inputs(root), root)}.zip"
    if not archive.exists():
        with tempfile.TemporaryDirectory() as folder:
            _make_layer(root, Path(folder))
            cache.mkdir(parents=True, exist_ok=True)
            part = archive.with_suffix(f".{os.getpid()}")
            part.write_bytes(zip_of_folder(Path(folder)))
            part.replace(archive)  # whole or not at all, whoever else builds it at the same time
            _forget_old_layers(cache)
    return archive


def _forget_old_layers(cache: Path) -> None:
    archives = sorted(cache.glob("layer-*.zip"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[LAYERS_KEPT:]:
        path.unlink(missing_ok=True)


def _layer_inputs(root: Path) -> list[Path]:
    core = root / "layers/core"
    sources = (path for path in (core / "tallymark").rglob("*") if path.is_file() and _belongs(path))
    in_layer = (path for path in sources if "cli" not in path.relative_to(core / "tallymark").parts)
    return [root / "requirements/layer.txt", core / "Makefile", *sorted(in_layer)]


def _make_layer(root: Path, target: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    pip = f"{shlex.quote(str(uv))} pip" if uv.exists() else f"{shlex.quote(sys.executable)} -m pip"
    core = root / "layers/core"
    command = ["make", "-s", "-C", str(core), "build-CoreLayer", f"ARTIFACTS_DIR={target}", f"PIP={pip}"]
    done = subprocess.run(  # noqa: S603 (our own Makefile)
        command,
        env={**os.environ, "UV_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DeployError(f"the layer was not built:\n{done.stdout}{done.stderr}")


def _belongs(path: Path) -> bool:
    return "__pycache__" not in path.parts


def _hash_of_files(paths: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def zip_of_folder(folder: Path) -> bytes:
    """The folder's files as an archive: the same bytes for the same content, compiled files left out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and _belongs(path):
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_TIME)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _upload_artifacts(s3: S3Client, endpoint_url: str, template: Mapping[str, Any], root: Path) -> None:
    """Puts code, layer and nested templates into the bucket, and their addresses into `template`."""
    for resource in template["Resources"].values():
        name = UPLOADED.get(resource["Type"])
        if name is None:
            continue
        content, suffix = _artifact(resource["Type"], root / resource["Properties"][name], root)
        nested = resource["Type"] == "AWS::CloudFormation::Stack"
        resource["Properties"][name] = f"{endpoint_url if nested else 's3:/'}/{_upload(s3, content, suffix)}"


def _upload(s3: S3Client, content: bytes, suffix: str) -> str:
    """Bucket and key of the content, by what it is."""
    key = hashlib.sha256(content).hexdigest() + suffix
    s3.put_object(Bucket=BUCKET, Key=key, Body=content)
    return f"{BUCKET}/{key}"


def _artifact(kind: str, path: Path, root: Path) -> tuple[bytes, str]:
    if kind == "AWS::CloudFormation::Stack":
        return json.dumps(load(path)).encode(), ".template"
    if kind == "AWS::Serverless::LayerVersion":
        return build_layer(root).read_bytes(), ".zip"
    return zip_of_folder(path), ".zip"


# --- the stack ----------------------------------------------------------------------------------------------


def _apply(
    cloudformation: CloudFormationClient, stack_name: str, template_url: str, parameters: Mapping[str, str]
) -> None:
    name = f"deploy-{time.time_ns()}"
    cloudformation.create_change_set(
        StackName=stack_name,
        ChangeSetName=name,
        ChangeSetType="UPDATE" if _exists(cloudformation, stack_name) else "CREATE",
        TemplateURL=template_url,
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
    )
    change_set = _wait(lambda: cloudformation.describe_change_set(StackName=stack_name, ChangeSetName=name), "Status")
    if change_set["Status"] == "FAILED":
        reason = change_set.get("StatusReason", "")
        if _holds_no_change(reason):
            return
        raise DeployError(f"{stack_name}: the change set failed: {reason}")
    cloudformation.execute_change_set(StackName=stack_name, ChangeSetName=name)
    stack = _wait(lambda: cloudformation.describe_stacks(StackName=stack_name)["Stacks"][0], "StackStatus")
    if stack["StackStatus"] not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        raise DeployError(_failure(cloudformation, stack_name, stack))


def _exists(cloudformation: CloudFormationClient, stack_name: str) -> bool:
    try:
        stack = cloudformation.describe_stacks(StackName=stack_name)["Stacks"][0]
    except ClientError as error:
        if "does not exist" in str(error):
            return False
        raise
    return stack["StackStatus"] != "REVIEW_IN_PROGRESS"


def _holds_no_change(reason: str) -> bool:
    return "didn't contain changes" in reason or "No updates" in reason


def _wait(describe: Callable[[], Any], key: str) -> dict[str, Any]:
    """What `describe` says once its `key` is no longer pending or in progress."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        state: dict[str, Any] = describe()
        if not state[key].endswith(("_IN_PROGRESS", "_PENDING")):
            return state
        time.sleep(0.02)
    raise DeployError(f"not deployed within {TIMEOUT_S} s: {state[key]}")


def _failure(cloudformation: CloudFormationClient, stack_name: str, stack: Mapping[str, Any]) -> str:
    events = cloudformation.describe_stack_events(StackName=stack_name)["StackEvents"]
    reasons = [
        f"  {event['LogicalResourceId']}: {event.get('ResourceStatusReason', event['ResourceStatus'])}"
        for event in reversed(events)
        if event["ResourceStatus"].endswith("_FAILED")
    ]
    status = f"{stack_name}: {stack['StackStatus']} {stack.get('StackStatusReason', '')}".rstrip()
    return "\n".join([status, *reasons])


# --- what MiniStack's CloudFormation leaves out -------------------------------------------------------------


def apply_what_is_dropped(endpoint_url: str, stack_name: str, root: Path = ROOT) -> None:
    """Sets the expiry and recovery of tables and the API's CORS as the template has them.

    Safe to repeat.
    """
    aws = session()
    template = deployed(root / "template.yaml", aws, stack_name, endpoint_url)
    dynamodb = aws.client("dynamodb", endpoint_url=endpoint_url)
    for logical_id in template.of_type("AWS::DynamoDB::Table"):
        _set_table(dynamodb, template, logical_id)
    gateway = aws.client("apigatewayv2", endpoint_url=endpoint_url)
    for logical_id in template.of_type("AWS::ApiGatewayV2::Api"):
        cors: Any = template.cors
        if cors:
            gateway.update_api(ApiId=template.scope.physical_ids[logical_id], CorsConfiguration=cors)


def _set_table(dynamodb: DynamoDBClient, template: Template, logical_id: str) -> None:
    table = template.scope.physical_ids[logical_id]
    properties = template.resolve(template.properties(logical_id))
    if recovery := properties.get("PointInTimeRecoverySpecification"):
        dynamodb.update_continuous_backups(TableName=table, PointInTimeRecoverySpecification=recovery)
    expiry = properties.get("TimeToLiveSpecification")
    if expiry and not _expires(dynamodb, table):
        dynamodb.update_time_to_live(TableName=table, TimeToLiveSpecification=expiry)


def _expires(dynamodb: DynamoDBClient, table: str) -> bool:
    description = dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    return description["TimeToLiveStatus"] in ("ENABLED", "ENABLING")


if __name__ == "__main__":
    # After `sam deploy`: python -m infra.local.deploy http://127.0.0.1:4566 tallymark
    apply_what_is_dropped(sys.argv[1], sys.argv[2])
