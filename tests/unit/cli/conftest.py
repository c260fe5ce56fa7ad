"""What the tests of the command line share: a fake API, and a way to call the command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tallymark.cli import main
from tests.unit.cli.fake_api import SERVICE_KEY, FakeApi, serving

Command = Callable[..., Result]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """An API with nothing in it."""
    with serving() as running:
        yield running


@pytest.fixture
def state_home(tmp_path: Path) -> Path:
    """Where the command line keeps its state in this test."""
    return tmp_path / "state"


@pytest.fixture
def tallymark(api: FakeApi, state_home: Path) -> Command:
    """Calls the command as a service, unless `env` says otherwise."""

    def run(*arguments: str, env: dict[str, str | None] | None = None, stdin: bytes | None = None) -> Result:
        environment = {
            "TALLYMARK_URL": api.url,
            "TALLYMARK_SERVICE_KEY": SERVICE_KEY,
            "XDG_STATE_HOME": str(state_home),
        }
        return CliRunner().invoke(main, arguments, env={**environment, **(env or {})}, input=stdin)

    return run
