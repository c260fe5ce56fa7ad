"""The file that tells clients where the local stack is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from infra.local.announcement import Announcement, place, publish, withdraw

MINE = Announcement("http://127.0.0.1:8000", "key", "http://127.0.0.1:4566", os.getpid())


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_it_is_for_its_owner_alone_and_goes_away() -> None:
    publish(MINE)
    assert json.loads(place().read_text())["service_key"] == "key"
    assert place().stat().st_mode & 0o777 == 0o600
    withdraw(MINE)
    assert not place().exists()
    withdraw(MINE)


def test_a_stack_leaves_the_file_to_one_that_runs_already() -> None:
    first = Announcement("http://127.0.0.1:8001", "other", "http://127.0.0.1:4567", os.getppid())
    assert publish(first)
    assert not publish(MINE)
    withdraw(MINE)
    assert json.loads(place().read_text())["pid"] == os.getppid()


def test_a_file_left_behind_by_a_stack_that_is_gone_is_taken_over() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert publish(Announcement("http://127.0.0.1:8001", "other", "http://127.0.0.1:4567", gone.pid))
    assert publish(MINE)
    assert json.loads(place().read_text())["pid"] == os.getpid()
