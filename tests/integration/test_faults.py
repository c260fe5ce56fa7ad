"""The run of `make faults`, small: every count is exact after faults of every kind, and without a defence it is not."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from tallymark import parking
from tallymark.fold import Delta
from tallymark.storage import counter_table
from tests.faults.injection import AGGREGATOR, CONSUMER
from tests.faults.world import KINDS, Plan, Report, engine_of, run
from tests.integration.conftest import Tables

SEED = 2


@pytest.fixture
def plan(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Few items, so that a small run has long histories of each; few rows, so that lanes share them."""
    monkeypatch.setenv("COUNTER_ROWS", "0:3")
    engine_of(tables.outputs).sqs.purge_queue(QueueUrl=tables.outputs["ParkedQueueUrl"])
    return Plan(SEED, likes=200, faults=3, prefix=uuid.uuid4().hex, items=20, people=200)


@pytest.mark.slow
def test_every_count_is_exact_after_faults_of_every_kind(tables: Tables, plan: Plan) -> None:
    report = run(replace(plan, likes=1000, faults=50, items=100, people=1000), engine_of(tables.outputs))
    assert report.wrong == []
    assert report.records >= 1000
    assert {kind for kind in KINDS if made(report, kind) < 50} == set()


def made(report: Report, kind: str) -> int:
    return report.made[kind, AGGREGATOR] + report.made[kind, CONSUMER]


def everything_is_new(*_: Any) -> bytes:
    return b"\xff" * 21


def drop_all(delta: Delta, mark: Any) -> Delta | None:
    return delta if mark is None or mark.sequence < delta.first_sequence else None


def any_id(_parked: Any, _part: int) -> str:
    return uuid.uuid4().hex


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(counter_table, "_floor", everything_is_new, id="the condition on the mark"),
        pytest.param(Delta, "after", drop_all, id="the trim"),
        pytest.param(parking, "claim_id", any_id, id="the claim of a parked record"),
    ],
)
def test_without_a_defence_the_same_run_miscounts(
    tables: Tables, plan: Plan, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert run(plan, engine_of(tables.outputs)).wrong


def test_with_its_defences_the_same_run_is_exact(tables: Tables, plan: Plan) -> None:
    assert run(plan, engine_of(tables.outputs)).wrong == []
