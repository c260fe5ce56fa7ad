"""Who imports whom, where import-linter cannot look: function folders, and the completeness of its own lists."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = sorted(ROOT.glob("functions/*/*.py"))
# No SDK: clients are made behind the package. Powertools gives the shape of an event.
ALLOWED = {"aws_lambda_powertools", "chalice", "tallymark", *sys.stdlib_module_names}


def imported(path: Path) -> Iterator[str]:
    """The top-level names that a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0] if not node.level else "."


@pytest.mark.parametrize("path", FUNCTIONS, ids=lambda path: path.parent.name)
def test_a_function_is_one_module_over_the_package(path: Path) -> None:
    assert path.name == "app.py", "what wants a second module belongs in tallymark"
    assert set(imported(path)) <= ALLOWED


def test_every_rule_module_is_under_the_contract_that_keeps_aws_out() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = configuration["tool"]["importlinter"]["contracts"]
    listed = next(contract for contract in contracts if contract["name"].startswith("Rules know no AWS"))
    modules = (path.stem for path in (ROOT / "layers/core/tallymark").glob("*.py") if path.stem != "__init__")
    assert set(listed["source_modules"]) == {f"tallymark.{name}" for name in modules}
