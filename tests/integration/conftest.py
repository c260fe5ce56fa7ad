"""One emulator and one Valkey for the tests of this folder, with the template's own tables."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.local.cache import Cache
from infra.local.deploy import deploy
from infra.local.emulator import Emulator, aws_environment, session
from infra.local.template import deployed
from tallymark.hot import LikerBuckets
from tallymark.model import Target
from tallymark.runtime import wiring
from tallymark.storage.counter_table import CounterTable
from tallymark.storage.dynamodb import connect
from tallymark.storage.event_table import AdjustmentTable
from tallymark.storage.like_table import LikeTable
from tallymark.storage.quota_table import QuotaTable

ROOT = Path(__file__).resolve().parents[2]
STACK = "storage-tests"
SERIES_DAYS = 35


@dataclass(frozen=True)
class Tables:
    """The adapters over the real engine, and the client beneath them."""

    client: Any
    outputs: dict[str, str]
    likes: LikeTable
    counters: CounterTable
    adjustments: AdjustmentTable
    quotas: QuotaTable

    def new_counters(self) -> CounterTable:
        """An adapter without memory, as a new process has it."""
        table = self.outputs["CountersTable"]
        return CounterTable(self.client, table, ThreadPoolExecutor(4), wiring.now_ms, SERIES_DAYS)


@pytest.fixture(scope="package")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    home = tmp_path_factory.mktemp("emulator")
    with Emulator(home=home, log=home / "emulator.log") as running:
        yield running


@pytest.fixture(scope="package")
def outputs(emulator: Emulator) -> dict[str, str]:
    return deployed_as(STACK, emulator)


def deployed_as(stack: str, emulator: Emulator) -> dict[str, str]:
    """The outputs of the template, deployed for tests."""
    return deploy(emulator.endpoint_url, stack, {"AuthMode": "open", "Stage": "test", "StreamMapping": "disabled"})


@pytest.fixture(scope="package")
def environment(emulator: Emulator, outputs: dict[str, str]) -> Iterator[dict[str, str]]:
    with environment_of(STACK, emulator) as values:
        yield values


@contextmanager
def environment_of(stack: str, emulator: Emulator) -> Iterator[dict[str, str]]:
    """The environment of the functions, as the template sets it."""
    template = deployed(ROOT / "template.yaml", session(emulator.endpoint_url), stack, emulator.endpoint_url)
    values = {**template.environment(), **aws_environment(emulator.endpoint_url)}
    before = dict(os.environ)
    os.environ.update(values)
    wiring.reset()
    yield values
    os.environ.clear()
    os.environ.update(before)
    wiring.reset()


@pytest.fixture(scope="package")
def tables(environment: dict[str, str], outputs: dict[str, str]) -> Tables:
    return tables_of(outputs)


def tables_of(outputs: dict[str, str]) -> Tables:
    client = connect()
    executor = ThreadPoolExecutor(8)
    return Tables(
        client,
        outputs,
        LikeTable(client, outputs["LikesTable"], executor, LikerBuckets(1)),
        CounterTable(client, outputs["CountersTable"], executor, wiring.now_ms, SERIES_DAYS),
        AdjustmentTable(client, outputs["EventsTable"], outputs["CountersTable"], SERIES_DAYS),
        QuotaTable(client, outputs["QuotasTable"], executor, 3),
    )


@pytest.fixture(scope="package")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    home = tmp_path_factory.mktemp("valkey")
    with Cache(home=home, log=home / "valkey.log") as running:
        yield running


@pytest.fixture
def target() -> Target:
    return new_target()


def new_target() -> Target:
    return Target("post", uuid.uuid4().hex)
