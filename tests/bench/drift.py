"""`python -m tests.bench.drift`: counts made wrong by hand, beside live traffic, and a reconciler that is killed.

A whole stack runs in this process. Items are liked, some counts are made wrong in the table, and likes go on. Then:

1. a full run reports: it must name each item that was made wrong, by how much, and no other;
2. a full run corrects, in a process of its own that is killed and started again from its last cursor, while others
   read the counts: each value read must be the wrong one or the right one, and never the wrong one again;
3. a full run must find nothing; and at the end every count must equal the records.

Exits with 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from infra.local.invoking import FunctionFailed
from infra.local.stack import Stack
from tallymark.cli.full_run import ReconcilerFailed, Run, ask_again, pieces
from tallymark.errors import Unavailable
from tallymark.model import Target
from tallymark.runtime import wiring
from tallymark.storage import keys

ITEM_TYPE = "drift"
WATCHED = 40  # items made wrong that get no likes, so that each of their values is known
_BATCH = 100
KILL_WITHIN_S = 60.0  # long enough for a piece or two: a correction comes 10 s after a look at the soonest


@dataclass(frozen=True)
class Plan:
    """What to do: numbers of items, of those made wrong, and of kills; operations a second beside it."""

    items: int
    wrong: int
    kills: int
    rate: int
    seed: int


@dataclass
class Outcome:
    """What was seen; `faults` are sentences, none if all is well."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def check(self, name: str, ok: bool, text: str) -> None:
        line = f"  {name:<10} {text}"
        self.lines.append(line)
        print(line, flush=True)
        if not ok:
            self.faults.append(f"{name}: {text}")


def run(plan: Plan) -> Outcome:
    chance = random.Random(plan.seed)
    outcome = Outcome()
    names = [f"item-{n}" for n in range(plan.items)]
    wrong = {name: chance.choice([-1, 1]) * chance.randint(2, 50) for name in chance.sample(names, plan.wrong)}
    quiet = set(list(wrong)[:WATCHED])
    with Stack() as stack, _client(stack) as client:
        _fill(client, names, chance)
        stack.wait_drained(300)
        for name, by in wrong.items():
            _spoil(Target(ITEM_TYPE, name), by)
        with traffic(client, [name for name in names if name not in quiet], plan.rate, plan.seed) as sent:
            started = time.monotonic()
            report = _reconcile(stack)
            _judge_report(outcome, report, wrong, time.monotonic() - started)
            with watching(client, quiet, wrong) as bad:
                kills = _repair_with_kills(plan, chance)
            outcome.check("killed", kills >= plan.kills, f"{kills} times, and started again from its last cursor")
            outcome.check("read", not bad, f"{len(quiet)} counts all along: {len(bad)} values neither wrong nor right")
            again = _reconcile(stack)
            text = f"{len(again.found)} found, {len(again.open)} not judged"
            outcome.check("again", not again.found and not again.open, text)
            for entry in again.found:  # the same number: never corrected; its negative: corrected twice
                by = wrong.get(entry["item_id"], 0)
                print(f"  again      {entry['item_id']}: off by {entry['drift']}, made wrong by {by}", flush=True)
        outcome.check("traffic", sum(sent) > 0, f"{sum(sent):,} likes and unlikes meanwhile")
        stack.wait_drained(120)
        different = _differences(client, names)
        outcome.check("exact", not different, f"{plan.items - len(different):,} of {plan.items:,} counts at the end")
    return outcome


def _judge_report(outcome: Outcome, report: Run, wrong: dict[str, int], seconds: float) -> None:
    found = {entry["item_id"]: entry["drift"].get("like", 0) for entry in report.found}
    missed = wrong.keys() - found.keys()
    false = found.keys() - wrong.keys()
    by = sum(found[name] != wrong[name] for name in found.keys() & wrong.keys())
    text = f"{len(found):,} of {len(wrong):,} found, {len(false)} false, {by} with another difference, "
    text += f"{len(report.open)} not judged; {report.checked:,} items in {seconds:.0f} s"
    outcome.check("report", not (missed or false or by), text)


# --- likes ------------------------------------------------------------------------------------------------------


def _client(stack: Stack) -> httpx.Client:
    return httpx.Client(base_url=stack.url, headers={"Tallymark-Service-Key": stack.service_key}, timeout=60)


def _fill(client: httpx.Client, names: list[str], chance: random.Random) -> None:
    likes = [_operation(name, f"user-{n}", like=True) for name in names for n in range(chance.randint(1, 4))]
    parts = [likes[i : i + _BATCH] for i in range(0, len(likes), _BATCH)]
    with ThreadPoolExecutor(4) as pool:
        for done, _ in enumerate(pool.map(lambda part: _send(client, part), parts)):
            if done % 50 == 0:
                print(f"  filling    {done * _BATCH:,} of {len(likes):,} likes", flush=True)


def _operation(name: str, user: str, *, like: bool) -> dict[str, str]:
    return {"action": "like" if like else "unlike", "user_id": user, "item_type": ITEM_TYPE, "item_id": name}


def _send(client: httpx.Client, operations: list[dict[str, str]]) -> int:
    results = client.post("/v1/batch", json={"operations": operations}).raise_for_status().json()["results"]
    failed = [result for result in results if result["status"] != 200]
    if failed:
        raise RuntimeError(f"{len(failed)} operations failed, such as {failed[0]}")
    return sum(result["changed"] for result in results)


@contextmanager
def traffic(client: httpx.Client, names: list[str], rate: int, seed: int) -> Iterator[list[int]]:
    """Likes and unlikes of random items, about `rate` a second; yields the numbers of those that changed something."""
    chance = random.Random(seed + 1)
    over = threading.Event()
    sent: list[int] = []
    size = max(1, rate // 4)

    def go() -> None:
        while not over.wait(0.25):
            users = (f"user-{chance.randrange(12)}" for _ in range(size))
            sent.append(_send(client, [_operation(chance.choice(names), u, like=chance.random() < 0.6) for u in users]))

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


# --- wrong counts -----------------------------------------------------------------------------------------------


def _spoil(target: Target, by: int) -> None:
    """Adds to one of the target's rows, as no code of ours would."""
    table = wiring.settings().counters_table
    (row, *_) = wiring.audit_tables().rows(target).items
    wiring.dynamodb().update_item(
        TableName=table,
        Key={"pk": {"S": keys.target_key(target)}, "sk": {"S": row}},
        UpdateExpression="ADD n :by",
        ExpressionAttributeValues={":by": {"N": str(by)}},
    )


def _differences(client: httpx.Client, names: list[str]) -> list[str]:
    """Items whose count is not the number of their records, which are counted by a scan of the table."""
    recorded: Tally[str] = Tally()
    pages = wiring.dynamodb().get_paginator("scan").paginate(TableName=wiring.settings().likes_table)
    for page in pages:
        recorded.update(keys.parse_like_sort_key(item["sk"]["S"])[0].item_id for item in page["Items"])
    wrong = []
    for i in range(0, len(names), _BATCH):
        items = [{"item_type": ITEM_TYPE, "item_id": name} for name in names[i : i + _BATCH]]
        counts = client.post("/v1/counts", json={"items": items}).raise_for_status().json()["counts"]
        wrong += [entry["item_id"] for entry in counts if entry["count"] != recorded[entry["item_id"]]]
    return wrong


@contextmanager
def watching(client: httpx.Client, quiet: set[str], wrong: dict[str, int]) -> Iterator[list[tuple[str, int]]]:
    """Reads counts all along; yields values that were neither the wrong one nor then, for good, the right one."""
    bad: list[tuple[str, int]] = []
    over = threading.Event()

    def read(name: str) -> int:
        query = {"item_type": ITEM_TYPE, "item_id": name, "fresh": "true"}
        return int(client.get("/v1/count", params=query).raise_for_status().json()["count"])

    begun = {name: read(name) for name in quiet}
    allowed = {name: {count, count - wrong[name]} for name, count in begun.items()}

    def go() -> None:
        while not over.is_set():
            for name in quiet:
                value = read(name)
                if value not in allowed[name]:
                    bad.append((name, value))
                elif value != begun[name]:
                    allowed[name] = {value}

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield bad
    finally:
        over.set()
        thread.join()


# --- the reconciler ---------------------------------------------------------------------------------------------


def _reconcile(stack: Stack) -> Run:
    """A full run that corrects nothing, as `tallymark reconcile --all` does it."""
    whole = Run()

    def invoke(event: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(stack.functions["ReconcilerFunction"](json.dumps(event)))
        except FunctionFailed as failure:
            raise ReconcilerFailed(str(failure)) from failure

    for _ in pieces(whole, invoke, repair=False):
        print(f"  running    {whole.checked:,} items, {len(whole.found):,} found", flush=True)
    ask_again(whole, invoke, repair=False)
    return whole


def _repair_with_kills(plan: Plan, chance: random.Random) -> int:
    """Full runs that correct, in processes that are killed at any moment until there were enough kills."""
    kills = 0
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder, "cursor.json")
        while True:
            worker = subprocess.Popen([sys.executable, "-m", "tests.bench.drift", "--worker", str(state)])
            try:
                worker.wait(chance.uniform(2.0, KILL_WITHIN_S) if kills < plan.kills else None)
            except subprocess.TimeoutExpired:
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                kills += 1
                done = json.loads(state.read_text())["checked"] if state.exists() else 0
                print(f"  killed     {kills} of {plan.kills}, with {done:,} items behind it", flush=True)
                continue
            if worker.returncode:
                raise RuntimeError(f"the reconciler ended with {worker.returncode}")
            if kills >= plan.kills:
                return kills
            state.unlink()  # it ended before it was killed often enough: once more from the start


def work(state: Path) -> None:
    """The reconciler's process: `tallymark reconcile --all --repair`, from what was last written to the end."""
    from functions.reconciler.app import handler

    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 900_000

    def invoke(event: dict[str, Any]) -> dict[str, Any]:
        try:
            return handler(event, Context())
        except Unavailable as failure:
            raise ReconcilerFailed(str(failure)) from failure

    def save() -> None:
        part = state.with_suffix(".part")
        part.write_text(json.dumps(asdict(whole)))
        part.replace(state)

    whole = Run(**json.loads(state.read_text())) if state.exists() else Run()
    if whole.cursor or not whole.checked:
        for _ in pieces(whole, invoke, repair=True):
            save()
    ask_again(whole, invoke, repair=True)
    if whole.open:
        raise SystemExit(f"{len(whole.open)} items could not be judged, such as {whole.open[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.drift", description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--wrong", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=int, default=60, help="likes and unlikes a second meanwhile (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return 0
    os.environ["POWERTOOLS_METRICS_DISABLED"] = "true"  # the functions run in this process, and would print theirs
    print(f"{options.wrong:,} of {options.items:,} counts made wrong, seed {options.seed}", flush=True)
    outcome = run(Plan(options.items, options.wrong, options.kills, options.rate, options.seed))
    print("\n".join(["", "Summary", *outcome.lines]))
    for fault in outcome.faults:
        print(f"FAILED {fault}", file=sys.stderr)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
