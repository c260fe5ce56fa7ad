from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.unit.cli.fake_api import SERVICE_KEY, FakeApi, error

Command = Callable[..., Result]
NOTHING_SAID: dict[str, str | None] = {"TALLYMARK_URL": None, "TALLYMARK_SERVICE_KEY": None}


def local_stack(state_home: Path, url: str, key: str = SERVICE_KEY) -> None:
    folder = state_home / "tallymark"
    folder.mkdir(parents=True)
    (folder / "local.json").write_text(json.dumps({"url": url, "service_key": key, "pid": 1}))


def test_a_like_is_made_and_taken_back(tallymark: Command, api: FakeApi) -> None:
    assert tallymark("like", "ada", "film", "7").stdout == "ada likes film 7 since 2026-01-01T00:00:00.000Z\n"
    assert "(nothing changed)" in tallymark("like", "ada", "film", "7").stdout
    assert api.likes
    assert tallymark("like", "ada", "film", "7", "--unlike").stdout == "ada does not like film 7\n"
    assert not api.likes


def test_a_like_may_be_an_emoji_and_answer_in_json(tallymark: Command, api: FakeApi) -> None:
    answer = json.loads(tallymark("like", "ada", "film", "a/b c", "--reaction", "👍", "--json").stdout)
    assert (answer["changed"], answer["reaction"]) == (True, "👍")
    assert ("ada", "film", "a/b c", "👍") in api.likes


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
def test_counts_come_in_the_order_asked(tallymark: Command, fresh: tuple[str, ...]) -> None:
    tallymark("like", "ada", "film", "a+b c")
    tallymark("like", "ada", "film", "a+b c", "--reaction", "👍")
    result = tallymark("count", "film", "none", "a+b c", *fresh)
    assert result.stdout == "film none: 0\nfilm a+b c: 2 (like 1, 👍 1)\n"


def test_more_than_a_hundred_counts_are_asked_in_several_calls(tallymark: Command) -> None:
    tallymark("like", "ada", "film", "249")
    counts = json.loads(tallymark("count", "film", *map(str, range(250)), "--json").stdout)["counts"]
    assert [entry["count"] for entry in counts] == [0] * 249 + [1]


def test_a_count_that_could_not_be_had_is_not_shown_as_a_number(tallymark: Command) -> None:
    result = tallymark("count", "film", "unknown")
    assert result.stdout == "film unknown: unknown\n"
    assert result.exit_code == 1


def test_status_tells_as_whom_it_acts(tallymark: Command) -> None:
    assert json.loads(tallymark("status", "--json").stdout)["acts_as"] == "service"
    assert "ordinary caller" in tallymark("status", env={"TALLYMARK_SERVICE_KEY": None}).stdout


def test_a_key_that_is_not_taken_is_an_error_with_code_and_message(tallymark: Command) -> None:
    result = tallymark("count", "film", "1", "--service-key", "forged")
    assert result.exit_code == 1
    assert result.stderr == "Error: unauthorized: This service key is not ours.\n"


def test_an_error_names_the_field(tallymark: Command, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "answer", lambda *_: error(400, "invalid_request", "No.", field="item_id"))
    assert tallymark("like", "ada", "film", "..").stderr == "Error: invalid_request: No. (field item_id)\n"


def test_an_api_that_is_down_is_said_to_be(tallymark: Command, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "answer", lambda *_: (503, {}, {"status": "down", "dependencies": {"dynamodb": "down"}}))
    result = tallymark("status")
    assert "status   down: dynamodb down" in result.stdout
    assert result.exit_code == 1


def test_the_local_stack_is_found_by_its_file(tallymark: Command, api: FakeApi, state_home: Path) -> None:
    local_stack(state_home, api.url)
    answer = json.loads(tallymark("status", "--json", env=NOTHING_SAID).stdout)
    assert (answer["url"], answer["acts_as"]) == (api.url, "service")
    assert "local.json" in answer["source"]


def test_the_local_key_goes_to_the_local_stack_only(tallymark: Command, state_home: Path) -> None:
    local_stack(state_home, "http://127.0.0.1:1")
    answer = json.loads(tallymark("status", "--json", env={"TALLYMARK_SERVICE_KEY": None}).stdout)
    assert answer["acts_as"] == "caller"


def test_the_local_key_is_used_where_its_url_is_given(tallymark: Command, api: FakeApi, state_home: Path) -> None:
    local_stack(state_home, api.url)
    answer = json.loads(tallymark("status", "--json", "--url", api.url + "/", env=NOTHING_SAID).stdout)
    assert answer["acts_as"] == "service"


def test_without_any_api_it_is_said_what_to_do(tallymark: Command) -> None:
    result = tallymark("status", env=NOTHING_SAID)
    assert result.exit_code == 2
    assert "`make up`" in result.stderr
    assert "TALLYMARK_URL" in result.stderr


def test_a_stack_that_is_gone_is_said_to_be(tallymark: Command, state_home: Path) -> None:
    local_stack(state_home, "http://127.0.0.1:1")
    result = tallymark("count", "film", "1", env=NOTHING_SAID)
    assert result.exit_code == 1
    assert "no answer from http://127.0.0.1:1" in result.stderr
    assert "`make up`" in result.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://"])
def test_what_is_no_url_is_refused(tallymark: Command, url: str) -> None:
    result = tallymark("status", "--url", url)
    assert result.exit_code == 2
    assert "is no URL" in result.stderr
