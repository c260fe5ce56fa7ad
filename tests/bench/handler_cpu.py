"""CPU of our code per call, with the SDK's transport stubbed: no socket, no TLS, no emulator.

    .venv/bin/python -m tests.bench.handler_cpu

Rounds are outermost, so that a slow stretch of the machine hits every row alike; medians are printed. The target
column was set for a machine of a known pace; the SDK and Chalice rows are what the platform costs by itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.bench.events import ENVIRONMENT, ROOT, Context, function, http_event

ROUNDS, SECONDS = 7, 0.4
SDK, SET_UP = "SDK alone: put_item", "write function: import and set-up"
REFERENCE_SDK_MS = 0.32  # what put_item took on the machine for which the targets were set: 0.30 to 0.33
SET_UP_TARGET_MS = 400.0
BATCH = 100

Rows = dict[str, tuple[Callable[[], Any], int, float | None]]  # name -> (one call, likes in it, target in ms)


def main() -> int:
    """Prints the table; 1 if a target is missed."""
    os.environ.update(ENVIRONMENT)
    with contextlib.redirect_stdout(io.StringIO()):  # the functions' metrics are no part of the table
        rows = _rows()
        samples = _samples(rows)
    print(f"CPU per call, median of {ROUNDS} rounds; {platform.machine()}, Python {platform.python_version()}")
    medians = {name: statistics.median(sample) for name, sample in samples.items()}
    medians[SET_UP] = _set_up_ms()
    pace = REFERENCE_SDK_MS / medians[SDK]
    print(f"  {'':36}    measured   at the targets' machine, where the SDK alone takes {REFERENCE_SDK_MS} ms")
    missed = False
    for name, value in medians.items():
        target = SET_UP_TARGET_MS if name == SET_UP else rows[name][2]
        missed |= _print_row(name, value, value * pace, target)
    return int(missed)


def _samples(rows: Rows) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in rows}
    for round_number in range(ROUNDS):
        print(f"\rround {round_number + 1} of {ROUNDS}", end="", file=sys.stderr, flush=True)
        for name, (work, per, _) in rows.items():
            samples[name].append(_cpu_ms(work) / per)
    print(file=sys.stderr)
    return samples


def _print_row(name: str, value: float, paced: float, target: float | None) -> bool:
    verdict = "" if target is None else f"   target {target:7.3f} ms   {'met' if paced <= target else 'MISSED'}"
    print(f"  {name:36} {value:8.3f} ms {paced:8.3f} ms{verdict}")
    return target is not None and paced > target


def _rows() -> Rows:
    from chalice.app import Chalice

    from tallymark.model import Count, Target
    from tallymark.runtime import wiring

    client = wiring.dynamodb()
    client.meta.events.register("before-send.dynamodb", _answer)
    write, read, context = function("write_api").app, function("read_api").app, Context()
    wiring.settings()
    bare = Chalice("bare", configure_logs=False, env={})
    bare.route("/", methods=["GET"])(lambda: {})
    bare_event = {
        "requestContext": {"httpMethod": "GET", "resourcePath": "/"},
        "headers": {}, "multiValueQueryStringParameters": None, "pathParameters": None,
        "stageVariables": None, "body": None,
    }  # fmt: skip
    # Users differ, as they do in life: the rate limit of one would refuse the 101st like.
    likes = [
        http_event("POST", "/v1/like", {"user_id": f"user-{i}", "item_id": "post-1", "item_type": "post"})
        for i in range(20_000)
    ]
    batches = [
        http_event("POST", "/v1/batch", {"operations": [
            {"action": "like", "user_id": f"user-{i}-{j}", "item_id": f"post-{j}", "item_type": "post"}
            for j in range(BATCH)
        ]}) for i in range(400)
    ]  # fmt: skip
    count = http_event("GET", "/v1/count", query="item_id=post-1&item_type=post")
    sources = wiring.count_sources()

    def cached_count() -> Any:
        sources.process.put(Target("post", "post-1"), known)
        return read(count, context)

    known = Count({"like": 12_345}, wiring.now_ms() + 3_600_000)
    item = {
        "pk": {"S": "user-1"},
        "sk": {"S": "post#post-1#like"},
        "lk": {"S": "post#post-1#0"},
        "at": {"B": b"x" * 16},
    }

    def put() -> Any:
        return client.put_item(
            TableName="likes", Item=item, ConditionExpression="attribute_not_exists(pk)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )  # fmt: skip

    def each(events: list[dict[str, Any]]) -> Callable[[], Any]:
        position = iter(range(10**9))
        return lambda: write(events[next(position) % len(events)], context)

    answer = write(likes[0], context)
    assert answer["statusCode"] == 200, answer
    answer = write(batches[0], context)
    assert all(r.get("changed") for r in json.loads(answer["body"])["results"]), answer
    return {
        SDK: (put, 1, None),
        "Chalice alone: dispatch": (lambda: bare(bare_event, context), 1, None),
        "like": (each(likes), 1, 0.5),
        "cached count": (cached_count, 1, 0.12),
        "like in a batch of 100": (each(batches), BATCH, 0.06),
    }


def _answer(request: Any, **_: Any) -> Any:
    """What DynamoDB would answer, without a socket."""
    from botocore.awsrequest import AWSResponse

    body = b'{"Items": []}'  # of PutItem nothing is looked at; a Query asks which items are hot
    if request.headers["X-Amz-Target"].endswith(b"BatchExecuteStatement"):
        body = _responses(request.body.count(b'"Statement":'))  # not parsed: the stub is not what is measured
    headers: Any = {"content-type": "application/x-amz-json-1.0"}
    response: Any = AWSResponse(request.url, 200, headers, None)
    response._content = body
    return response


@cache
def _responses(statements: int) -> bytes:
    return json.dumps({"Responses": [{"TableName": "likes"}] * statements}).encode()


def _cpu_ms(work: Callable[[], Any]) -> float:
    """Milliseconds of CPU per call, all threads of the process together."""
    for _ in range(20):
        work()
    calls, begun, until = 0, time.process_time(), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        for _ in range(10):
            work()
        calls += 10
    return (time.process_time() - begun) * 1000 / calls


def _set_up_ms() -> float:
    """Wall time in a new interpreter from nothing to a write function that has its client."""
    code = (
        "import time; t = time.perf_counter();"
        "import sys; sys.path.insert(0, 'functions/write_api');"
        "import app; from tallymark.runtime import wiring; wiring.like_table(); wiring.settings();"
        "print((time.perf_counter() - t) * 1000)"
    )
    times = []
    for _ in range(ROUNDS + 1):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip
        times.append(float(done.stdout))
    return statistics.median(times[1:])


if __name__ == "__main__":
    sys.exit(main())
