"""Parts of a deployed stack in processes of their own: what feeds functions from streams and queues, and the HTTP API.

They stand in place of an emulator's own mappings and gateway. Functions are called where they are deployed, by Invoke,
or as they are in this working copy, in the process: then its environment becomes theirs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from infra.local import emulator
from infra.local.functions import load_functions
from infra.local.gateway import Server
from infra.local.invoking import InProcess, Invoker, LambdaInvoke
from infra.local.mapping import Pump
from infra.local.processes import HOST
from infra.local.stack import gateway, start_source
from infra.local.template import Template, deployed

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def feeding(stack_name: str, endpoint_url: str | None, *, in_process: bool = False) -> Iterator[list[str]]:
    """Feeds every event source of a deployed stack; says which. Without an endpoint: on AWS itself."""
    aws = emulator.session(endpoint_url) if endpoint_url else boto3.Session()
    template = deployed(ROOT / "template.yaml", aws, stack_name, endpoint_url)
    invokers = _loaded(template, endpoint_url).__getitem__ if in_process else _deployed(template, aws, endpoint_url)
    pumps: list[Pump] = []
    fed: list[str] = []
    with contextlib.ExitStack() as cleanup:
        for source in template.event_sources:
            invoke = invokers(source.function)
            cleanup.callback(start_source(source, invoke, aws, pumps, endpoint_url))
            fed.append(f"{source.name}: {source.arn} -> {template.functions[source.function].physical_id}")
        yield fed


def _deployed(template: Template, aws: Any, endpoint_url: str | None) -> Callable[[str], Invoker]:
    def invoker(name: str) -> Invoker:
        function = template.functions[name]
        # A call that is repeated by the SDK would be one that the pump does not know of.
        config = Config(read_timeout=function.timeout_seconds + 10, retries={"total_max_attempts": 1})
        client = aws.client("lambda", endpoint_url=endpoint_url, config=config)
        arn = template.scope.arn("AWS::Lambda::Function", function.physical_id) or function.physical_id
        return LambdaInvoke(client, function.physical_id, arn)

    return invoker


@contextlib.contextmanager
def serving(stack_name: str, endpoint_url: str, port: int) -> Iterator[Server]:
    """Answers for the API with this working copy's functions, on a port that others may serve as well."""
    template = deployed(ROOT / "template.yaml", emulator.session(endpoint_url), stack_name, endpoint_url)
    server = Server(gateway(template, _loaded(template, endpoint_url)), HOST, port, share_port=True)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _loaded(template: Template, endpoint_url: str | None) -> dict[str, InProcess]:
    os.environ.update({**(emulator.aws_environment(endpoint_url) if endpoint_url else {}), **template.environment()})
    return load_functions(template)
