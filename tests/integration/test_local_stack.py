"""The local stack as it is used: its programs, its one command, a like that becomes a count."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local.cache import Cache
from infra.local.emulator import Emulator, session
from infra.local.invoking import InProcess
from infra.local.mapping import DynamoDBStream, IteratorExpired, Pump, Settings, StreamUnavailable
from infra.local.processes import StartError, free_port, listening
from infra.local.queues import QueuePoller, QueueSettings, SQSQueue
from infra.local.stack import Stack
from tests.chaos.scene import processes

ROOT = Path(__file__).parents[2]
LIKE = {"user_id": "ada", "item_type": "film", "item_id": "a/b"}


def eventually(condition: Any, timeout: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- programs beside the stack ---


def test_valkey_comes_back_on_its_port_and_empty(tmp_path: Path) -> None:
    import valkey

    with (
        Cache(home=tmp_path / "data", log=tmp_path / "log") as cache,
        closing(valkey.Valkey.from_url(cache.url)) as client,
    ):
        client.set("a", "1")
        cache.stop()
        assert not listening(cache.port)
        cache.start()
        assert client.get("a") is None
    assert not listening(cache.port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process when its parent is killed")
def test_a_guard_that_is_killed_takes_its_program_along(tmp_path: Path) -> None:
    with Cache(home=tmp_path / "data", log=tmp_path / "log") as cache:
        guard = cache._process._guard
        assert guard is not None
        guard.kill()
        guard.wait()
        until = time.monotonic() + 5
        while listening(cache.port) and time.monotonic() < until:
            time.sleep(0.02)
        assert not listening(cache.port)


def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path) -> None:
    cache = Cache(home=tmp_path / "data", log=tmp_path / "log")
    expected = pytest.raises(StartError, match=f"Port {cache.port} is in use.*--emulator-port")
    with cache, expected:
        Emulator(cache.port, home=tmp_path, log=tmp_path / "emulator.log").start()


def test_programs_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal; from infra.local.cache import Cache\n"
        f"cache = Cache(home=pathlib.Path({str(tmp_path)!r}), log=pathlib.Path({str(tmp_path / 'log')!r}))\n"
        "cache.start(); print(cache.port, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    port = int(done.stdout)
    assert eventually(lambda: not listening(port))


# --- real streams and queues ---


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    home = tmp_path_factory.mktemp("emulator")
    with Emulator(home=home, log=home / "log") as running:
        yield running


@pytest.fixture
def stream(emulator: Emulator) -> tuple[Any, str, str]:
    dynamodb = session(emulator.endpoint_url).client("dynamodb")
    table = f"likes-{time.time_ns()}"
    made = dynamodb.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "B"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    )
    return dynamodb, table, made["TableDescription"]["LatestStreamArn"]


def test_records_of_a_real_stream_have_lambdas_form(emulator: Emulator, stream: tuple[Any, str, str]) -> None:
    dynamodb, table, arn = stream
    events: list[Any] = []
    function = InProcess(lambda event, _: events.append(event), "f", "arn:f")
    reader = DynamoDBStream(session(emulator.endpoint_url).client("dynamodbstreams"), arn)
    pump = Pump(reader, function, Settings(batch_size=10), poll_seconds=0.05)
    pump.start()
    dynamodb.put_item(TableName=table, Item={"pk": {"B": b"\x00\xff"}, "n": {"N": "1"}})
    dynamodb.delete_item(TableName=table, Key={"pk": {"B": b"\x00\xff"}})
    assert pump.wait_drained(5)
    pump.stop()
    records = [record for event in events for record in event["Records"]]
    assert [record["eventName"] for record in records] == ["INSERT", "REMOVE"]
    first = records[0]
    assert first["eventSourceARN"] == arn
    assert first["dynamodb"]["Keys"] == {"pk": {"B": "AP8="}}
    assert isinstance(first["dynamodb"]["ApproximateCreationDateTime"], int | float)
    assert first["dynamodb"]["SequenceNumber"] < records[1]["dynamodb"]["SequenceNumber"]


def test_faults_of_a_real_stream_have_names(emulator: Emulator, stream: tuple[Any, str, str]) -> None:
    _, _, arn = stream
    client = session(emulator.endpoint_url).client("dynamodbstreams")
    with pytest.raises(StreamUnavailable):
        DynamoDBStream(client, arn + "x").shards()
    reader = DynamoDBStream(client, arn)
    (shard,) = reader.shards()
    iterator = reader.iterator(shard.shard_id, None, "TRIM_HORIZON")
    page = reader.read(iterator)
    assert list(page.records) == []
    assert page.next_iterator
    content = json.loads(base64.urlsafe_b64decode(iterator))
    content["i"] -= 3600
    with pytest.raises(IteratorExpired):
        reader.read(base64.urlsafe_b64encode(json.dumps(content).encode()).decode())


def test_messages_of_a_real_queue_are_delivered_and_deleted(emulator: Emulator) -> None:
    sqs = session(emulator.endpoint_url).client("sqs")
    url = sqs.create_queue(QueueName=f"parked-{time.time_ns()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    events: list[Any] = []
    function = InProcess(lambda event, _: events.append(event), "f", "arn:f")
    assert QueuePoller(SQSQueue(sqs, arn), function, QueueSettings()).poll() == 1
    assert [record["body"] for record in events[0]["Records"]] == ["hello"]
    left = sqs.get_queue_attributes(
        QueueUrl=url,
        AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
    )
    assert set(left["Attributes"].values()) == {"0"}


# --- the whole ---


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


def test_a_like_becomes_a_count(stack: Stack) -> None:
    assert httpx.post(f"{stack.url}/v1/like", json=LIKE).json()["changed"] is True
    assert stack.wait_drained(10)
    query = {"item_type": "film", "item_id": "a/b", "fresh": "true"}
    assert httpx.get(f"{stack.url}/v1/count", params=query).json()["counts"] == {"like": 1}
    assert stack.lag().records_behind == 0
    liked = httpx.get(f"{stack.url}/v1/users/ada/likes").json()["likes"]
    assert [like["item_id"] for like in liked] == ["a/b"]
    likers = httpx.get(f"{stack.url}/v1/items/film/a%2Fb/likers").json()["likers"]
    assert [liker["user_id"] for liker in likers] == ["ada"]


def test_a_like_is_counted_within_three_seconds(stack: Stack) -> None:
    like = {"user_id": "bob", "item_type": "film", "item_id": "fast"}
    query = {"item_type": "film", "item_id": "fast", "fresh": "true"}
    httpx.post(f"{stack.url}/v1/like", json=like)
    assert eventually(lambda: httpx.get(f"{stack.url}/v1/count", params=query).json()["count"] == 1, timeout=3)


def test_only_one_stack_runs_in_a_process(stack: Stack) -> None:
    assert stack.url
    with pytest.raises(RuntimeError, match="already"):
        Stack().start()


@contextmanager
def up(home: Path) -> Iterator[tuple[subprocess.Popen[str], str, dict[str, Any]]]:
    """`make up` in a process of its own: that, what it said until it was ready, and what it announced."""
    port, emulator_port = free_port(), free_port()
    command = [sys.executable, "-m", "infra.local", "up", f"--port={port}", f"--emulator-port={emulator_port}"]
    environment = {**os.environ, "XDG_STATE_HOME": str(home)}
    output = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C stops everything" in line:
                break
        try:
            yield process, "".join(lines), json.loads((home / "tallymark" / "local.json").read_text())
        finally:
            process.send_signal(signal.SIGINT)
    assert not listening(port)
    assert not listening(emulator_port)


def descendants(pid: int) -> dict[int, str]:
    """The commands of the processes below one, by id."""
    found = {pid: ""}
    every = processes()
    while more := {p.pid: p.command for p in every if p.parent in found and p.pid not in found}:
        found |= more
    return {child: command for child, command in found.items() if child != pid}


def kill(commands: dict[int, str], mark: str) -> None:
    """Ends the one process with this in its command, its guard apart, as a fault would."""
    (found,) = (pid for pid, command in commands.items() if mark in command and "guard.py" not in command)
    os.kill(found, signal.SIGKILL)


def test_up_says_where_things_are_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    with up(tmp_path) as (process, said, announced):
        local = tmp_path / "tallymark" / "local.json"
        assert local.stat().st_mode & 0o777 == 0o600
        assert httpx.get(f"{announced['url']}/health").json()["status"] == "ok"
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        rest = process.stdout.read()
        assert process.wait(30) == 0
    for what in (announced["url"], "/docs", announced["endpoint_url"], "logs/"):
        assert what in said
    assert "Stopped" in rest
    assert announced["pid"] == process.pid
    assert len(announced["service_key"]) == 43
    assert not local.exists()
    assert "Traceback" not in said + rest


def test_up_says_when_the_cache_is_gone_and_goes_on(tmp_path: Path) -> None:
    with up(tmp_path) as (process, _, announced):
        kill(descendants(process.pid), "valkey-server")
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Valkey ended by itself.")
        like = {"user_id": "ada", "item_type": "film", "item_id": "1"}
        assert httpx.post(f"{announced['url']}/v1/like", json=like).json()["changed"] is True
        assert httpx.get(f"{announced['url']}/health").json()["status"] == "degraded"


def test_up_counts_in_a_process_of_its_own_and_ends_when_that_is_gone(tmp_path: Path) -> None:
    with up(tmp_path) as (process, _, announced):
        like = {"user_id": "ada", "item_type": "film", "item_id": "1"}
        httpx.post(f"{announced['url']}/v1/like", json=like).raise_for_status()
        query = {"item_type": "film", "item_id": "1", "fresh": "true"}
        url = f"{announced['url']}/v1/count"
        assert eventually(lambda: httpx.get(url, params=query).json()["count"] == 1, timeout=5)
        below = descendants(process.pid)
        kill(below, "infra.local pump")
        assert process.stdout is not None
        assert "The stream pump ended by itself; " in process.stdout.read()
        assert process.wait(30) == 1
    assert not below.keys() & {process.pid for process in processes()}
