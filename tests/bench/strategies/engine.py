"""What all strategies run on: an emulator with the template's own tables, and a Valkey."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3

from infra.local.cache import Cache
from infra.local.deploy import deploy
from infra.local.emulator import Emulator, aws_environment
from tallymark.storage import dynamodb
from tests.bench.strategies.faults import Faults
from tests.bench.strategies.ways import Engine
from tests.bench.tables import patient


@contextmanager
def running() -> Iterator[tuple[Engine, Callable[[], None]]]:
    """The engine, and what restarts its Valkey, which comes back empty."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Emulator(home=Path(folder) / "emulator", log=Path(folder) / "emulator.log") as emulator,
        Cache(home=Path(folder) / "valkey", log=Path(folder) / "valkey.log") as cache,
        patch.dict(os.environ, aws_environment(emulator.endpoint_url)),
        ThreadPoolExecutor(4) as executor,
    ):
        outputs = deploy(emulator.endpoint_url, "strategies", {"AuthMode": "open", "StreamMapping": "disabled"})
        client = _client()
        events = outputs["EventsTable"]
        engine = Engine(
            client=client,
            folder=_client(),
            streams=boto3.client("dynamodbstreams"),
            executor=executor,
            events=events,
            counters=outputs["CountersTable"],
            stream_arn=client.describe_table(TableName=events)["Table"]["LatestStreamArn"],
            valkey_url=cache.url,
            faults=Faults(),
        )

        def restart() -> None:
            cache.stop()
            cache.start()

        yield engine, restart


def _client() -> Any:
    """The functions' own; a repeat by its library would be a fault."""
    with patient():
        return dynamodb.connect()
