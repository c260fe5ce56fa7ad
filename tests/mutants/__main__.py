"""Takes away one defence at a time and shows that the suite notices.

    .venv/bin/python -m tests.mutants [NAME ...] [--jobs 2] [--write]

Everything happens in copies of the tree, one for each job. First the tests have to be green there; then each
defence of defences.py is taken away and its tests have to fail, by what they assert.
"""

from __future__ import annotations

import argparse
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Literal, TypeVar

from tests.mutants import running
from tests.mutants.defences import CORE, DEFENCES, Defence, Edit

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/mutants.md"

# Which code runs in a copy? This edit tells: it must stop every test, and say so.
SANITY = Edit(f"{CORE}/__init__.py", "__version__", 'raise RuntimeError("the copy runs")\n\n__version__')

ANY_TEST = "tests/unit/core/test_model.py"

# Failures that an edit makes by being no working code. They show nothing about a defence.
_NO_CODE = ("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "TypeError")
_FAILED = re.compile(r"^FAILED (?P<test>\S+(?: \S+)*?)(?: - (?P<reason>.*))?$", re.MULTILINE)

Verdict = Literal["killed", "survived", "broken"]


class NotReady(Exception):
    """Nothing can be shown: the message says why."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant. `by` is the first test that failed, or what went wrong."""

    defence: Defence
    verdict: Verdict
    by: str
    seconds: float


# --- copies of the tree -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """The tree in a folder of its own."""

    root: Path
    server: ForkServerContext

    @contextmanager
    def edited(self, edits: Iterable[Edit]) -> Iterator[None]:
        """The copy with these edits, which are undone afterwards. ValueError if one does not fit."""
        before: dict[Path, str] = {}
        try:
            for edit in edits:
                path = self.root / edit.file
                text = path.read_text(encoding="utf-8")
                before.setdefault(path, text)
                path.write_text(edit.apply(text), encoding="utf-8")
            yield
        finally:
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")

    def pytest(self, tests: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
        """Exit code (None: no end in time) and output of a run that ends at the first failure."""
        return running.run(self.server, self.root, tests, timeout_s)


def tree() -> list[str]:
    """Every file of the project as it stands, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@contextmanager
def copies(number: int) -> Iterator[list[Copy]]:
    """So many copies of the tree; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        names = tree()
        server = running.server()
        made = [Copy(Path(folder) / str(n), server) for n in range(number)]
        for copy in made:
            for name in names:
                (copy.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy.root / name)
        yield made


# --- runs -------------------------------------------------------------------------------------------------------


def check_that_the_copy_runs(copy: Copy, timeout_s: float) -> None:
    """NotReady if the tests run other code than the copy's: then every mutant would survive, or none."""
    with copy.edited([SANITY]):
        code, output = copy.pytest([ANY_TEST], timeout_s)
    if code == 0 or "the copy runs" not in output:
        raise NotReady(f"the tests do not run the code of the copy, or not in time (exit code {code}):\n{output}")


def check_that_it_is_green(copy: Copy, tests: Sequence[str], timeout_s: float) -> None:
    """NotReady if the tests fail with every defence in its place."""
    code, output = copy.pytest(tests, timeout_s)
    if code != 0:
        raise NotReady(f"the tests fail without any edit, or do not end in time (exit code {code}):\n{output}")


def judged(defence: Defence, copy: Copy, timeout_s: float) -> Outcome:
    """What the tests say of the tree without the defence."""
    began = time.monotonic()
    with copy.edited(defence.edits):
        code, output = copy.pytest(defence.tests, timeout_s)
    verdict, by = verdict_of(code, output)
    return Outcome(defence, verdict, by, time.monotonic() - began)


def verdict_of(code: int | None, output: str) -> tuple[Verdict, str]:
    """A mutant is killed by a test that ran and failed, not by one that could not run."""
    if code == 0:
        return "survived", "no test failed"
    if code is None:
        return "broken", "the tests did not end in time"
    failed = _FAILED.search(output)
    if code != 1 or failed is None:
        return "broken", f"exit code {code}: {output.strip().splitlines()[-1] if output.strip() else 'no output'}"
    if (reason := failed["reason"] or "").startswith(_NO_CODE):
        return "broken", f"{failed['test']}: {reason}"
    return "killed", failed["test"]


def run(defences: Sequence[Defence], jobs: int, timeout_s: float) -> list[Outcome]:
    """The outcome of each, in the order given; a line for each as it comes."""
    progress, began = _Progress(len(defences)), time.monotonic()
    with copies(jobs) as made, ThreadPoolExecutor(jobs) as executor:
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in made:
            free.put(copy)

        def in_a_copy(work: Callable[[Copy], T]) -> T:
            copy = free.get()
            try:
                return work(copy)
            finally:
                free.put(copy)

        def green(tests: Sequence[str]) -> None:
            in_a_copy(lambda copy: check_that_it_is_green(copy, tests, timeout_s))

        def one(defence: Defence) -> Outcome:
            return progress.say(in_a_copy(lambda copy: judged(defence, copy, timeout_s)))

        try:
            for copy in made:
                check_that_the_copy_runs(copy, timeout_s)
            tiers = by_tier(defences)
            list(executor.map(green, tiers))
            print(
                f"{sum(map(len, tiers))} tests are green without any edit, {time.monotonic() - began:.0f} s", flush=True
            )
            return list(executor.map(one, defences))
        except BaseException:
            executor.shutdown(cancel_futures=True)  # Ctrl-C ends the run, not one mutant of it
            raise


def by_tier(defences: Sequence[Defence]) -> list[list[str]]:
    """All tests of the defences, each once, those of one folder together: they share what they start."""
    tiers: dict[Path, dict[str, None]] = {}
    for defence in defences:
        for test in defence.tests:
            tiers.setdefault(Path(test.split("::")[0]).parent, {})[test] = None
    return [list(tests) for tests in tiers.values()]


class _Progress:
    """A line for each outcome, of several threads, one at a time."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._lock = total, 0, threading.Lock()

    def say(self, outcome: Outcome) -> Outcome:
        how = {"killed": "killed by", "survived": "SURVIVED:", "broken": "BROKEN:"}[outcome.verdict]
        with self._lock:
            self._done += 1
            place = f"{self._done:3d}/{self._total}"
            print(f"{place}  {outcome.defence.name:20s} {how} {outcome.by}  {outcome.seconds:.1f} s", flush=True)
        return outcome


# --- what is said -----------------------------------------------------------------------------------------------


def page(killers: Mapping[str, str]) -> str:
    """The table of docs/mutants.md: those defences whose killers (cells of the table, by name) are given."""
    shown = [defence for defence in DEFENCES if defence.name in killers]
    return "\n".join(
        [
            "# Defences, and the test that misses each",
            "",
            "`make mutants` takes away one defence at a time, in a copy of the tree, and runs the tests that have to",
            "notice. A test that cannot run kills nothing; a mutant that survives fails the command. The edits are in",
            "[tests/mutants/defences.py](../tests/mutants/defences.py); `make mutants ARGS=--write` writes this page.",
            "",
            f"{len(shown)} defences, each missed by a test:",
            "",
            "| defence | what it is there for | killed by |",
            "| --- | --- | --- |",
            *(f"| `{defence.name}` | {_cell(defence.guards)} | {killers[defence.name]} |" for defence in shown),
            "",
        ]
    )


def killers_of(text: str) -> dict[str, str]:
    """What a page says of each defence, by name."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[-1] for row in rows}


def write(outcomes: Sequence[Outcome]) -> None:
    """Brings the page up to date with these outcomes; the other rows stay, those of survivors go."""
    killers = killers_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    for outcome in outcomes:
        killers.pop(outcome.defence.name, None)
        if outcome.verdict == "killed":
            killers[outcome.defence.name] = _cell(_link(outcome.by))
    PAGE.write_text(page(killers), encoding="utf-8")


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.partition('[')[0].removeprefix('test_').replace('_', ' ')}](../{file})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    names = [defence.name for defence in DEFENCES]
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="defences to take away; all, if none is named")
    parser.add_argument("--jobs", type=int, default=2, help="how many at the same time (2)")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for one run of tests (300)")
    parser.add_argument("--write", action="store_true", help="bring docs/mutants.md up to date with them")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in names]:
        parser.error(f"no such defence: {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = [defence for defence in DEFENCES if not arguments.names or defence.name in arguments.names]
    began = time.monotonic()
    try:
        outcomes = run(chosen, arguments.jobs, arguments.timeout)
    except NotReady as reason:
        print(reason, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if arguments.write:
        write(outcomes)
    left = [outcome for outcome in outcomes if outcome.verdict != "killed"]
    print(f"\n{len(outcomes) - len(left)} of {len(outcomes)} killed, {time.monotonic() - began:.0f} s")
    for outcome in left:
        print(f"  {outcome.verdict}: {outcome.defence.name}: {outcome.defence.guards} ({outcome.by})")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
