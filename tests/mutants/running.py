"""One run of pytest over another tree than this one, in a process of its own that starts with its libraries loaded.

Loading pytest, Hypothesis and the SDK takes longer than most of the tests. A server loads them once; a run is a
fork of it, which has seen no module of the project yet.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

OWN = ("tests", "tallymark", "functions", "infra")  # packages of the project, which a run takes from its own tree
SEED = 0  # of Hypothesis: the same mutant meets the same examples each time
_LIBRARIES = [
    "aws_lambda_powertools.utilities.data_classes",
    "boto3",
    "botocore.exceptions",
    "chalice.app",
    "httpx",
    "hypothesis.strategies",
    "jsonschema",
    "pytest",
    "yaml",
]
_PLUGINS = ("_hypothesis_pytestplugin",)


def server() -> ForkServerContext:
    """What runs are started by; ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LIBRARIES)
    return context


def run(context: ForkServerContext, root: Path, tests: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
    """Exit code (None: no end in time) and output of pytest in `root`, which ends at the first failure."""
    with tempfile.NamedTemporaryFile("r", prefix="run-", suffix=".log", encoding="utf-8", errors="replace") as log:
        process = context.Process(target=_main, args=(str(root), list(tests), log.name))
        process.start()
        try:
            process.join(timeout_s)
            return process.exitcode, log.read()
        finally:
            if process.is_alive():
                process.kill()  # what the tests started has guards, which end it now
                process.join()


def _main(root: str, tests: list[str], log: str) -> None:
    """Forgets this tree, whose modules came along with the call, and runs pytest in the other one."""
    output = os.open(log, os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    core, project = str(Path(root, "layers/core")), Path(__file__).resolve().parents[2]
    here = {project, project / "layers/core"}
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
        del sys.modules[name]
    os.chdir(root)
    sys.path[:] = [root, core, *(path for path in sys.path if path and Path(path).resolve() not in here)]
    sys.dont_write_bytecode = True  # an edit within a second of another may not meet its bytecode
    os.environ |= {
        "COLUMNS": "1000",  # reasons of failures whole
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": core,  # for programs that tests start; stands before the editable installation
    }
    import pytest

    plugins = [argument for name in _PLUGINS for argument in ("-p", name)]
    options = [*plugins, "-p", "no:cacheprovider", f"--hypothesis-seed={SEED}", "-x", "-q"]
    code = int(pytest.main([*options, *tests]))
    sys.stdout.flush()
    sys.exit(code)
