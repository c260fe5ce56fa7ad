"""The file that tells clients where the local stack is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.local.announcement import Announcement, place, publish, withdraw

MINE = Announcement("http://127.0.0.1:8000", "key", "http://127.0.0.1:4566", 1)


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


def test_a_stack_leaves_the_file_of_a_later_one() -> None:
    publish(MINE)
    publish(Announcement("http://127.0.0.1:8001", "other", "http://127.0.0.1:4567", 2))
    withdraw(MINE)
    assert json.loads(place().read_text())["pid"] == 2
