"""The tests that docs/threat-model.md names are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.unit.test_template import ROOT

PAGE = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(?P<file>[\w/]+\.py)?(?:::(?P<test>\w+))?`")


def named() -> Iterator[tuple[str, str | None]]:
    """Each file and test; a test without a file is of the file before it."""
    file = ""
    for match in NAMED.finditer(PAGE):
        if match["file"] or match["test"]:
            file = match["file"] or file
            yield file, match["test"]


def test_every_test_that_the_page_names_is_there() -> None:
    found = list(named())
    assert len(found) > 30
    for file, test in found:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert test is None or test in functions, f"{file}::{test}"


def test_every_threat_of_the_table_has_a_test() -> None:
    rows = [
        line for line in PAGE.partition("## Threats")[2].partition("\n## ")[0].splitlines() if line.startswith("| ")
    ]
    threats = [row for row in rows[1:] if not row.startswith(("| **", "| ---"))]
    assert len(threats) > 20
    for row in threats:
        assert NAMED.search(row.split(" | ")[2]), row
