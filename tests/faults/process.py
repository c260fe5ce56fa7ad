"""One run in a process of its own, over an emulator of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from infra.local.deploy import deploy
from infra.local.emulator import Emulator, aws_environment, session
from infra.local.template import deployed
from tests.faults.world import Engine, Plan, Report, engine_of, run

ROOT = Path(__file__).resolve().parents[2]
STACK = "faults"
SAY_EVERY_S = 10.0


@contextlib.contextmanager
def own_engine() -> Iterator[Engine]:
    """An emulator with the template's tables; the environment of this process is that of its functions."""
    with tempfile.TemporaryDirectory() as home, Emulator(home=Path(home), log=Path(home) / "log") as emulator:
        outputs = deploy(
            emulator.endpoint_url,
            STACK,
            # Not many rows, so that some lanes share one and remove each other's old marks.
            {"AuthMode": "open", "Stage": "test", "StreamMapping": "disabled", "CounterRows": "0:12"},
        )
        template = deployed(ROOT / "template.yaml", session(emulator.endpoint_url), STACK, emulator.endpoint_url)
        quiet = {"LOG_LEVEL": "CRITICAL"}
        os.environ.update({**template.environment(), **aws_environment(emulator.endpoint_url), **quiet})
        yield engine_of(outputs)


def work(plan: Plan) -> Report:
    """One run, in a process of its own."""
    begun = said = time.monotonic()

    def progress(report: Report) -> None:
        nonlocal said
        if (now := time.monotonic()) - said >= SAY_EVERY_S:
            said = now
            print(
                f"  seed {plan.seed}  {now - begun:4.0f} s  {report.changes:7,} of {plan.likes:,} likes and unlikes  "
                f"{report.made.total():7,} faults",
                file=sys.stderr,
                flush=True,
            )

    with own_engine() as engine:
        return run(plan, engine, progress)
