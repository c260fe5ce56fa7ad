"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--deployed-stack", metavar="NAME", help="run tests/e2e against this deployed stack (see tests/e2e/conftest.py)"
    )
