"""Deployed functions fed from their stream and queue by Invoke, in place of an emulator's own mappings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import boto3
from botocore.config import Config

from infra.local import emulator
from infra.local.invoking import LambdaInvoke
from infra.local.mapping import Pump
from infra.local.stack import start_source
from infra.local.template import deployed

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def feeding(stack_name: str, endpoint_url: str | None) -> Iterator[list[str]]:
    """Feeds every event source of a deployed stack; says which. Without an endpoint: on AWS itself."""
    aws = emulator.session(endpoint_url) if endpoint_url else boto3.Session()
    template = deployed(ROOT / "template.yaml", aws, stack_name, endpoint_url)
    pumps: list[Pump] = []
    fed: list[str] = []
    with contextlib.ExitStack() as cleanup:
        for source in template.event_sources:
            function = template.functions[source.function]
            # A call that is repeated by the SDK would be one that the pump does not know of.
            config = Config(read_timeout=function.timeout_seconds + 10, retries={"total_max_attempts": 1})
            client = aws.client("lambda", endpoint_url=endpoint_url, config=config)
            arn = template.scope.arn("AWS::Lambda::Function", function.physical_id) or function.physical_id
            invoke = LambdaInvoke(client, function.physical_id, arn)
            cleanup.callback(start_source(source, invoke, aws, pumps, endpoint_url))
            fed.append(f"{source.name}: {source.arn} -> {function.physical_id}")
        yield fed
