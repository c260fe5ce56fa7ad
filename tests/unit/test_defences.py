"""The list of `make mutants` fits the tree as it is: each edit still finds its text, each test is still there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import killers_of, page, verdict_of
from tests.mutants.defences import DEFENCES, Defence

ROOT = Path(__file__).resolve().parents[2]

by_name = pytest.mark.parametrize("defence", DEFENCES, ids=[defence.name for defence in DEFENCES])


@by_name
def test_each_edit_finds_its_text_exactly_once_and_leaves_working_code(defence: Defence) -> None:
    texts: dict[str, str] = {}
    for edit in defence.edits:
        before = texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
        texts[edit.file] = edit.apply(before)
        assert texts[edit.file] != before
    assert texts
    for file, text in texts.items():
        if file.endswith(".py"):
            ast.parse(text, file)


@by_name
def test_each_test_that_has_to_notice_is_there(defence: Defence) -> None:
    assert defence.tests
    for test in defence.tests:
        file, _, name = test.partition("::")
        functions = {node.name for node in ast.walk(_parsed(file)) if isinstance(node, ast.FunctionDef)}
        assert name in functions, test


def _parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def test_no_two_defences_have_one_name_and_no_two_are_the_same_edit() -> None:
    assert len({defence.name for defence in DEFENCES}) == len(DEFENCES)
    assert len({tuple(defence.edits) for defence in DEFENCES}) == len(DEFENCES)


def test_the_page_names_every_defence_and_what_misses_it() -> None:
    text = (ROOT / "docs/mutants.md").read_text(encoding="utf-8")
    killers = killers_of(text)
    missing = [defence.name for defence in DEFENCES if defence.name not in killers]
    assert not missing, f"make mutants ARGS='--write {' '.join(missing)}'"
    assert text == page(killers), "make mutants ARGS=--write"


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (0, "5 passed", "survived"),
        (1, "FAILED tests/a.py::test_it[x y] - assert 1 == 2\n1 failed", "killed"),
        (1, "FAILED tests/a.py::test_it\n1 failed", "killed"),
        (1, "FAILED tests/a.py::test_it - NameError: name 'x' is not defined\n1 failed", "broken"),
        (1, "ERROR tests/a.py::test_it - RuntimeError: no emulator\n1 error", "broken"),
        (2, "ERROR tests/a.py - RuntimeError\n1 error", "broken"),
        (4, "ERROR: not found: tests/a.py::test_it", "broken"),
        (5, "no tests ran", "broken"),
        (None, "", "broken"),
    ],
)
def test_a_mutant_is_killed_by_a_test_that_ran_and_failed(code: int | None, output: str, verdict: str) -> None:
    assert verdict_of(code, output)[0] == verdict


def test_what_killed_a_mutant_is_the_first_test_that_failed() -> None:
    output = "FAILED tests/a.py::test_one[a - b] - assert\nFAILED tests/a.py::test_two\n"
    assert verdict_of(1, output)[1].startswith("tests/a.py::test_one")
