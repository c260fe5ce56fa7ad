"""Options of the whole suite, and how it begins."""

from __future__ import annotations

import gc
import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--deployed-stack", metavar="NAME", help="run tests/e2e against this deployed stack (see tests/e2e/conftest.py)"
    )


def pytest_configure() -> None:
    # What a script starts with `&` ignores Ctrl-C, and so does all that it starts: tests that interrupt a command
    # would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # What was loaded stays until the end; the collector looking through it again and again took a tenth of the time.
    gc.collect()
    gc.freeze()
