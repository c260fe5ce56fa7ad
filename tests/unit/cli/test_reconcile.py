"""`tallymark reconcile` over a reconciler that answers what the test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tallymark.cli import full_run, main, reconcile_command

SINCE = "2026-01-31T12:00:00.000Z"
WRONG = {
    "item_type": "post", "item_id": "7", "counted": {"like": 5, "👍": 1}, "recorded": {"like": 3, "👍": 1},
    "drift": {"like": 2}, "since": SINCE, "repaired": False,
}  # fmt: skip
OPEN = {"item_type": "post", "item_id": "8", "verdict": "moving"}


class Reconciler:
    """Answers in turn; keeps what it was asked, and where it was thought to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.answers: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.place: tuple[str, str | None] = ("", "")
        self._home = tmp_path
        monkeypatch.setattr(reconcile_command, "invoker", self._invoker)
        monkeypatch.setattr(full_run, "_PAUSE_S", 0.0)
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)

    def _invoker(self, stack: str, endpoint_url: str | None) -> full_run.Invoke:
        self.place = (stack, endpoint_url)
        return self._invoke

    def _invoke(self, event: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(event)
        answer = self.answers.pop(0)
        if "fails" in answer:
            raise full_run.ReconcilerFailed(answer["fails"])
        return answer

    def run(self, *arguments: str, answers: list[dict[str, Any]] | None = None) -> Result:
        self.answers = list(answers or [])
        return CliRunner().invoke(main, ["reconcile", "--state-home", str(self._home), *arguments])


@pytest.fixture
def reconciler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reconciler:
    return Reconciler(monkeypatch, tmp_path)


def piece(**fields: Any) -> dict[str, Any]:
    return {"cursor": None, "checked": 2, "found": [], "open": [], "repair_refused": None, **fields}


def item(**fields: Any) -> dict[str, Any]:
    exact = {"verdict": "exact", "counted": {"like": 3}, "recorded": {"like": 3}, "drift": {}, "repair_refused": None}
    return {"item_type": "post", "item_id": "7", **exact, **fields}


def test_an_item_that_is_exact_is_said_to_be(reconciler: Reconciler) -> None:
    result = reconciler.run("--item", "post", "7", answers=[item()])
    assert (result.exit_code, result.stdout) == (0, "post 7: exact, 3\n")
    assert reconciler.asked == [{"item": {"item_type": "post", "item_id": "7"}, "repair": False}]


def test_an_item_that_is_wrong_is_told_with_both_numbers_and_since_when(reconciler: Reconciler) -> None:
    result = reconciler.run("--item", "post", "7", answers=[item(**WRONG, verdict="drift")])
    assert result.exit_code == 1
    assert f"post 7: like counted 5, recorded 3; wrong since {SINCE}" in result.output
    assert "--repair corrects" in result.output


def test_an_item_that_was_corrected_is_well(reconciler: Reconciler) -> None:
    answer = item(**{**WRONG, "repaired": True}, verdict="drift")
    result = reconciler.run("--item", "post", "7", "--repair", answers=[answer])
    assert result.exit_code == 0
    assert "corrected now" in result.output


@pytest.mark.parametrize("verdict", ["moving", "pending", "unindexed"])
def test_an_item_that_cannot_be_judged_says_why(reconciler: Reconciler, verdict: str) -> None:
    result = reconciler.run("--item", "post", "7", answers=[item(verdict=verdict)])
    assert result.exit_code == 1
    assert "try again in a moment" in result.output


def test_all_pieces_are_put_together(reconciler: Reconciler) -> None:
    pieces = [piece(cursor="counted.a", found=[WRONG]), piece(cursor="uncounted.b"), piece(checked=3)]
    result = reconciler.run("--all", "--json", answers=pieces)
    assert json.loads(result.stdout) == {"checked": 7, "found": [WRONG], "open": [], "repair_refused": None}
    assert [event["cursor"] for event in reconciler.asked] == [None, "counted.a", "uncounted.b"]
    assert "7 items checked, 1 counted wrong" in result.stderr


def test_what_was_moving_is_asked_for_again_at_the_end(reconciler: Reconciler) -> None:
    result = reconciler.run("--all", answers=[piece(open=[OPEN]), item(item_id="8")])
    assert (result.exit_code, result.stdout) == (0, "2 items checked: 0 counted wrong\n")
    result = reconciler.run("--all", answers=[piece(open=[OPEN]), item(item_id="8", verdict="pending")])
    assert result.exit_code == 1
    assert "post 8: not judged, likes are on their way" in result.stdout


def test_what_was_moving_is_told_though_asking_again_failed(reconciler: Reconciler) -> None:
    others = [{**OPEN, "item_id": "9"}, {**OPEN, "item_id": "10"}]
    fails = [{"fails": "the store is down"}] * 4
    answers = [piece(open=[OPEN, *others]), item(item_id="8"), item(item_id="9", verdict="pending"), *fails]
    result = reconciler.run("--all", "--json", answers=answers)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["open"] == [{**others[0], "verdict": "pending"}, others[1]]


def test_a_refusal_to_repair_is_told(reconciler: Reconciler) -> None:
    why = "2 parked records lie in the dead queue"
    result = reconciler.run("--all", "--repair", answers=[piece(found=[WRONG], repair_refused=why)])
    assert result.exit_code == 1
    assert f"Nothing was corrected: {why}." in result.stdout


def test_a_correction_that_was_not_made_is_not_advised_again(reconciler: Reconciler) -> None:
    result = reconciler.run("--all", "--repair", answers=[piece(found=[WRONG])])
    assert result.exit_code == 1
    assert "run it again" in result.stdout
    assert "Nothing was changed" not in result.stdout


def test_a_piece_that_fails_is_asked_for_again(reconciler: Reconciler) -> None:
    result = reconciler.run("--all", answers=[{"fails": "busy"}, {"fails": "busy"}, piece()])
    assert (result.exit_code, result.stdout) == (0, "2 items checked: 0 counted wrong\n")


def test_a_run_that_ends_early_tells_what_it_found_and_where_to_go_on(reconciler: Reconciler) -> None:
    fails = [{"fails": "the store is down"}] * 4
    result = reconciler.run("--all", answers=[piece(cursor="counted.a", found=[WRONG]), *fails])
    assert result.exit_code == 1
    assert "post 7: like counted 5" in result.stdout
    assert "the store is down\nGo on with --from counted.a" in result.stderr
    reconciler.run("--all", "--from", "counted.a", answers=[piece()])
    assert reconciler.asked[-1]["cursor"] == "counted.a"


def test_without_options_it_tells_what_the_daily_run_found(reconciler: Reconciler) -> None:
    assert "not begun yet" in reconciler.run(answers=[{}]).output
    run: dict[str, Any] = {"started_s": 1_769_860_800, "done_s": 1_769_860_900, "checked": 5, "unchanged": 1000}
    run |= {"wrong": 2, "left_open": 3, "found": [WRONG]}
    result = reconciler.run(answers=[run])
    assert result.exit_code == 1
    assert "Daily run of 2026-01-31 12:00 UTC: 5 items checked, 1,000 unchanged" in result.output
    assert "2 counted wrong, 3 not judged\npost 7: like counted 5" in result.output
    assert "... and more" in result.output
    assert reconciler.run(answers=[{"started_s": 1, "done_s": 2, "left_open": 1}]).exit_code == 1


@pytest.mark.parametrize("arguments", [["--repair"], ["--all", "--item", "post", "7"], ["--item", "post"]])
def test_what_makes_no_sense_is_refused(reconciler: Reconciler, arguments: list[str]) -> None:
    assert reconciler.run(*arguments).exit_code == 2
    assert reconciler.asked == []


def test_the_running_local_stack_is_taken_unless_another_is_named(reconciler: Reconciler, tmp_path: Path) -> None:
    assert "asking AWS" in reconciler.run(answers=[{}]).stderr
    assert reconciler.place == ("tallymark", None)
    assert "asking AWS" not in reconciler.run("--aws", answers=[{}]).stderr
    (tmp_path / "tallymark").mkdir()
    (tmp_path / "tallymark/local.json").write_text('{"endpoint_url": "http://127.0.0.1:4566"}')
    for arguments, place in [
        ([], ("tallymark", "http://127.0.0.1:4566")),
        (["--aws", "--stack", "mine"], ("mine", None)),
        (["--endpoint-url", "http://127.0.0.1:1"], ("tallymark", "http://127.0.0.1:1")),
    ]:
        reconciler.run(*arguments, answers=[{}])
        assert reconciler.place == place


def test_a_stack_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    arguments = ["reconcile", "--state-home", str(tmp_path), "--endpoint-url", "http://127.0.0.1:1", "--all"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "no reconciler of a stack tallymark at http://127.0.0.1:1" in result.output
