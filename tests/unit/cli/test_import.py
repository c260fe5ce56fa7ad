from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.unit.cli.fake_api import SERVICE_KEY, Answer, FakeApi, Operation, error

Command = Callable[..., Result]
OPTIONS = ("--user", "user", "--item", "item", "--type", "film", "--json")


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """9,000 rows of 90 users, 100 each; every second row is rated 5, the others 1."""
    file = tmp_path / "ratings.csv"
    rows = (f"{row // 100},{row % 100},{5 if row % 2 else 1},{964982703 + row}\n" for row in range(9000))
    file.write_text("user,item,rating,time\n" + "".join(rows))
    return file


def write(folder: Path, name: str, *lines: str) -> str:
    file = folder / name
    file.write_text("".join(line + "\n" for line in lines))
    return str(file)


def summary(result: Result) -> dict[str, object]:
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


def test_likes_arrive_once_each_with_their_times(tallymark: Command, api: FakeApi, ratings: Path) -> None:
    result = tallymark("import", str(ratings), *OPTIONS, "--where", "rating>=4", "--time", "time")
    assert result.exit_code == 0, result.output
    assert len(api.likes) == 4500
    assert api.likes["0", "film", "1", "like"] == "2000-07-30T18:45:04.000Z"
    counted = {name: summary(result)[name] for name in ("read", "matched", "liked", "already", "rejected")}
    assert counted == {"read": 9000, "matched": 4500, "liked": 4500, "already": 0, "rejected": 0}


def test_a_repeat_adds_nothing(tallymark: Command, api: FakeApi, ratings: Path) -> None:
    tallymark("import", str(ratings), *OPTIONS)
    before = dict(api.likes)
    result = tallymark("import", str(ratings), *OPTIONS)
    assert (summary(result)["liked"], summary(result)["already"]) == (0, 9000)
    assert api.likes == before


def test_likes_of_one_person_keep_their_order_over_all_connections(
    tallymark: Command, api: FakeApi, tmp_path: Path
) -> None:
    # One person with a fifth of all rows, spread over the file, among others whose rows are spread as well.
    users = ["busy" if row % 5 == 0 else f"u{row % 37}" for row in range(6000)]
    file = write(tmp_path, "likes.csv", "user,item", *(f"{user},{row}" for row, user in enumerate(users)))
    assert tallymark("import", file, *OPTIONS, "--connections", "8").exit_code == 0
    for user, operations in api.arrived.items():
        items = [int(operation["item_id"]) for operation in operations]
        assert items == sorted(items), user
    assert not api.overlaps
    assert sum(map(len, api.arrived.values())) == 6000


def test_a_persons_id_in_two_spellings_is_one_person(tallymark: Command, api: FakeApi, tmp_path: Path) -> None:
    spellings = ("\u00e9", "e\u0301")
    rows = (f"{spellings[row % 2]},{row}" for row in range(400))
    assert tallymark("import", write(tmp_path, "likes.csv", "user,item", *rows), *OPTIONS).exit_code == 0
    assert api.calls == 4  # one connection for both spellings


def test_faults_that_pass_are_waited_out(tallymark: Command, api: FakeApi, ratings: Path) -> None:
    faults = [error(503, "unavailable"), error(429, "rate_limited"), error(502, "bad_gateway"), (0, {}, {})]
    lock = threading.Lock()

    def fault(_: list[Operation]) -> Answer | None:
        with lock:
            return faults.pop() if faults and api.calls > 3 else None

    api.fault = fault
    result = tallymark("import", str(ratings), *OPTIONS)
    assert result.exit_code == 0, result.output
    assert not faults
    assert len(api.likes) == 9000


def test_operations_that_were_put_off_go_again_alone(tallymark: Command, api: FakeApi, tmp_path: Path) -> None:
    put_off = {"3": 429, "7": 503}
    api.refuse = lambda operation: put_off.pop(operation["item_id"], None)
    file = write(tmp_path, "likes.csv", "user,item", *(f"u,{item}" for item in range(10)))
    result = tallymark("import", file, *OPTIONS)
    assert summary(result)["liked"] == 10
    assert (api.calls, api.operations) == (2, 12)


def test_bad_rows_are_reported_by_line_and_the_rest_goes_on(tallymark: Command, api: FakeApi, tmp_path: Path) -> None:
    lines = ["u1,1,5,2015-03-09T22:51:00Z", "u1,2,5", ",3,5,1", '"u\n4",4,5,1', "", "u5,5,5,soon"]
    lines += [f"u6,{'x' * 300},5,1", "u7,7,n/a,1", "u8,8,5,1"]
    file = write(tmp_path, "likes.csv", "user,item,rating,time", *lines)
    rejects = tmp_path / "rejects.jsonl"
    arguments = ("--where", "rating>=4", "--time", "time", "--rejects", str(rejects))
    result = tallymark("import", file, *OPTIONS, *arguments)
    assert result.exit_code == 1
    assert {like[0] for like in api.likes} == {"u1", "u\n4", "u8"}
    written = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(reject["line"], reject.get("field")) for reject in written] == [
        (3, None),
        (4, "user_id"),
        (8, "liked_at"),
        (9, "item_id"),
        (10, None),
    ]
    assert written[1]["row"] == {"user": "", "item": "3", "rating": "5", "time": "1"}
    assert "line 9: invalid_request: said the fake (field item_id)" in result.stderr
    assert summary(result)["rejected"] == 5


@pytest.mark.parametrize(
    ("lines", "liked", "rejected"),
    [
        (["1,1,a", '2,2,"open', *(f"{n},{n},t" for n in range(3, 501))], 1, "lines 3 to 501 were read as one row"),
        (["1,1,a", '2,"2', "3,3,t"], 1, "lines 3 to 4 were read as one row"),
        (["1,1,a", '2,2,"open', '3,3,"closed"', "4,4,t"], 2, "lines 3 to 4 were read as one row"),
        (["1,1,a", '2,2,"two\nlines"', '3,3,"a ""quoted"" word"'], 3, ""),
    ],
)
def test_a_quote_that_is_left_open_takes_no_row_in_silence(
    tallymark: Command, api: FakeApi, tmp_path: Path, lines: list[str], liked: int, rejected: str
) -> None:
    result = tallymark("import", write(tmp_path, "likes.csv", "user,item,title", *lines), *OPTIONS)
    assert (len(api.likes), result.exit_code) == (liked, int(bool(rejected)))
    assert rejected in result.stderr


def test_a_file_in_another_encoding_is_named_as_that(tallymark: Command, api: FakeApi, tmp_path: Path) -> None:
    file = tmp_path / "likes.csv"
    file.write_bytes("user,item\ncaf\xe9,1\nann,2\n".encode("latin-1"))
    result = tallymark("import", str(file), *OPTIONS)
    assert (result.exit_code, len(api.likes)) == (1, 1)
    assert "line 2: invalid_row: is not UTF-8" in result.stderr


def test_ten_bad_rows_are_shown_and_all_written(tallymark: Command, tmp_path: Path) -> None:
    file = write(tmp_path, "likes.csv", "user,item", *(f"u,{'x' * 300}{item}" for item in range(250)))
    rejects = tmp_path / "rejects.jsonl"
    result = tallymark("import", file, *OPTIONS, "--rejects", str(rejects))
    assert result.exit_code == 1
    assert result.stderr.count("line ") == 10
    assert "and 240 more" in result.stderr
    assert [json.loads(line)["line"] for line in rejects.read_text().splitlines()] == list(range(2, 252))


def test_a_row_that_spoils_its_whole_call_is_found(tallymark: Command, api: FakeApi, tmp_path: Path) -> None:
    api.fault = lambda operations: (
        error(413, "payload_too_large") if any(each["item_id"] == "57" for each in operations) else None
    )
    file = write(tmp_path, "likes.csv", "user,item", *(f"u,{item}" for item in range(100)))
    result = tallymark("import", file, *OPTIONS)
    assert (summary(result)["liked"], summary(result)["rejected"]) == (99, 1)
    assert "line 59: payload_too_large" in result.stderr


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_caller_ends_the_import_at_once(tallymark: Command, api: FakeApi, ratings: Path, status: int) -> None:
    api.refuse = lambda _: status
    result = tallymark("import", str(ratings), *OPTIONS)
    assert result.exit_code == 1
    assert "stopped after row 0" in result.stderr
    assert api.calls <= 8


def test_an_api_that_stays_away_ends_the_import_and_it_goes_on_later(
    tallymark: Command, api: FakeApi, ratings: Path
) -> None:
    api.fault = lambda _: error(503, "unavailable") if api.operations > 5000 else None
    result = tallymark("import", str(ratings), *OPTIONS, "--give-up-after", "1")
    assert result.exit_code == 1
    assert "unavailable: said the fake" in result.stderr
    api.fault, api.operations = (lambda _: None), 0
    again = tallymark("import", str(ratings), *OPTIONS, "--give-up-after", "2")
    assert again.exit_code == 0
    assert summary(again)["resumed_at"] == 4000
    assert summary(again)["read"] == 9000
    assert api.operations == 5000
    assert len(api.likes) == 9000
    assert summary(tallymark("import", str(ratings), *OPTIONS))["resumed_at"] == 0


def test_a_killed_import_goes_on_where_it_stopped(
    tallymark: Command, api: FakeApi, ratings: Path, state_home: Path, tmp_path: Path
) -> None:
    with ratings.open("a") as file:
        file.write("short\n")
    text = ratings.read_text().splitlines(keepends=True)
    ratings.write_text("".join([text[0], "short\n", *text[1:]]))
    rejects = tmp_path / "rejects.jsonl"
    arguments = ["import", str(ratings), *OPTIONS, "--rejects", str(rejects)]
    enough = threading.Event()

    def fault(_: list[Operation]) -> Answer | None:
        if api.operations > 6000:
            enough.set()
            threading.Event().wait(0.3)
        return None

    api.fault = fault
    environment = {
        "TALLYMARK_SERVICE_KEY": SERVICE_KEY,
        "XDG_STATE_HOME": str(state_home),
        "TALLYMARK_URL": api.url,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tallymark.cli", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert enough.wait(30)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    threading.Event().wait(0.5)
    api.fault, api.operations = (lambda _: None), 0
    result = tallymark(*arguments)
    assert summary(result)["resumed_at"] == 4001
    assert api.operations == 5000
    assert len(api.likes) == 9000
    assert [json.loads(line)["line"] for line in rejects.read_text().splitlines()] == [2, 9003]


def test_an_interrupted_import_says_how_to_go_on(api: FakeApi, ratings: Path, state_home: Path) -> None:
    started = threading.Event()

    def fault(_: list[Operation]) -> Answer | None:
        if api.operations > 4000:
            started.set()
            return error(503, "unavailable")
        return None

    api.fault = fault
    with subprocess.Popen(
        [sys.executable, "-m", "tallymark.cli", "import", str(ratings), *OPTIONS, "--url", api.url],
        env={**os.environ, "XDG_STATE_HOME": str(state_home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert started.wait(30)
            process.send_signal(signal.SIGINT)
            _, complaint = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode != 0
    assert "the same command goes on from there" in complaint
    assert "Traceback" not in complaint


def test_another_option_or_a_changed_file_starts_from_the_first_row(
    tallymark: Command, api: FakeApi, ratings: Path
) -> None:
    api.fault = lambda _: error(503, "unavailable") if api.operations > 5000 else None
    tallymark("import", str(ratings), *OPTIONS, "--give-up-after", "0.5")
    api.fault = lambda _: None
    other = tallymark("import", str(ratings), *OPTIONS, "--where", "rating>=0")
    assert summary(other)["resumed_at"] == 0
    # A stack made anew at the same address has nothing of the first import, and another service key.
    anew = tallymark("import", str(ratings), *OPTIONS, env={"TALLYMARK_SERVICE_KEY": None})
    assert summary(anew)["resumed_at"] == 0
    with ratings.open("a") as file:
        file.write("new,1,5,1\n")
    assert summary(tallymark("import", str(ratings), *OPTIONS))["resumed_at"] == 0


def test_json_lines_keep_what_numbers_and_reactions_are(tallymark: Command, api: FakeApi, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "likes.jsonl",
        '{"user_id": 7, "item_id": "a,b", "item_type": "film", "r": "👍", "at": 964982703}',
        "",
        '{"user_id": 7.5, "item_id": "c", "item_type": "film"}',
        '{"user_id": true, "item_id": "c", "item_type": "film"}',
        '{"user_id": 7, "item_id": "d", "item_type": "song", "r": null, "at": "2015-03-09T22:51:00Z"}',
        '{"user_id": 7, "item_id": "e"}',
        "[1]",
        "{",
        '{"user_id": NaN}',
    )
    result = tallymark("import", file, "--reaction-column", "r", "--time", "at", "--json")
    assert api.likes == {
        ("7", "film", "a,b", "👍"): "2000-07-30T18:45:03.000Z",
        ("7", "song", "d", "like"): "2015-03-09T22:51:00.000Z",
    }
    assert [operation["user_id"] for operation in api.arrived["7"]] == [7, 7]
    rejects = summary(result)["rejects"]
    assert isinstance(rejects, list)
    assert [reject["line"] for reject in rejects] == [3, 4, 6, 7, 8, 9]


def test_standard_input_is_read(tallymark: Command, api: FakeApi) -> None:
    result = tallymark("import", "-", "--format", "csv", *OPTIONS, stdin=b"\xef\xbb\xbfuser,item\r\nu,\xff\r\nv,2\r\n")
    assert result.exit_code == 1, result.output
    assert set(api.likes) == {("v", "film", "2", "like")}


def test_a_dry_run_sends_nothing_and_needs_no_api(tallymark: Command, api: FakeApi, ratings: Path) -> None:
    arguments = ("import", str(ratings), *OPTIONS, "--where", "rating>=4", "--time", "time", "--dry-run")
    result = tallymark(*arguments, env={"TALLYMARK_URL": None, "TALLYMARK_SERVICE_KEY": None})
    assert result.exit_code == 0, result.output
    assert summary(result)["matched"] == 4500
    assert api.calls == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--user", "nobody"), "no column 'nobody'"),
        (("--where", "rating"), "is no condition"),
        (("--where", "stars>=4"), "no column 'stars'"),
        (("--type-column", "rating"), "exclude each other"),
        (("--delimiter", ";;"), "one character"),
        (("--time", "time", "--service-key", ""), "needs a service key"),
    ],
)
def test_a_wrong_option_is_explained_before_anything_is_sent(
    tallymark: Command, api: FakeApi, ratings: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    result = tallymark("import", str(ratings), *OPTIONS, *arguments, env={"TALLYMARK_SERVICE_KEY": None})
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert api.calls == 0


def test_a_file_without_rows_is_complete_at_once(tallymark: Command, tmp_path: Path) -> None:
    result = tallymark("import", write(tmp_path, "likes.csv", "user,item"), *OPTIONS)
    assert result.exit_code == 0, result.output
    assert summary(result)["read"] == 0
