"""What is put in danger: the deployed template over an emulator, a Valkey, a proxy before DynamoDB, and the pump.

Every program runs under a guard, so that none outlives this process, whatever ends it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from botocore.config import Config

from infra.local.cache import Cache
from infra.local.deploy import deploy
from infra.local.emulator import Emulator, aws_environment, session
from infra.local.processes import HOST, Process, StartStop, free_port, listening
from infra.local.stack import local_parameters
from infra.service_key import key_of

ROOT = Path(__file__).resolve().parents[2]
STACK = "chaos"
EMULATOR, PUMP, GUARD = "ministack_server.py", "infra.local pump", "guard.py"  # in their commands


class Running(NamedTuple):
    """A process of this machine."""

    pid: int
    parent: int
    command: str


def processes() -> list[Running]:
    """Every process, as ps lists them: whole lines (-ww), whatever width a terminal has."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    fields = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [Running(int(pid), int(parent), command) for pid, parent, command in (f for f in fields if len(f) == 3)]


def descendants(word: str) -> set[int]:
    """The processes beneath this one whose command holds the word; their guards, whose does too, are left out."""
    found = processes()
    parents = {process.pid: process.parent for process in found}

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {p.pid for p in found if word in p.command and GUARD not in p.command and is_ours(p.pid)}


class PumpProcess(StartStop):
    """`python -m infra.local pump` in a process of its own: each start delivers the stream from its beginning."""

    def __init__(self, endpoint_url: str, logs: Path, name: str) -> None:
        self._endpoint_url, self._logs, self._name = endpoint_url, logs, name
        self._starts = 0
        self._process: Process | None = None
        self.pid = 0

    def start(self) -> None:
        """Starts it and waits until it feeds. Raises StartError."""
        self._starts += 1
        log = self._logs / f"{self._name}-{self._starts}.log"
        command = [sys.executable, "-m", "infra.local", "pump", "--stack", STACK, "--endpoint-url", self._endpoint_url]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        before = descendants(PUMP)
        self._process = Process(self._name, command, log, environment)
        self._process.start(lambda: " -> " in log.read_text(encoding="utf-8", errors="replace"), timeout=60)
        (self.pid,) = descendants(PUMP) - before

    def kill(self) -> None:
        """As by `kill -9`."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """Stops it; harmless when it is stopped."""
        if self._process is not None:
            self._process.stop()
            self._process = None


class Throttle(StartStop):
    """microburst between the functions and the emulator's DynamoDB: passes everything until it is given rules.

    Which of the requests a rule hits is drawn by microburst, which takes no seed.
    """

    def __init__(self, upstream: str, log: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "microburst", "--upstream", upstream, "--port", str(self.port)]
        self._process = Process("microburst", command, log, dict(os.environ))

    @property
    def url(self) -> str:
        """Where DynamoDB is, for the functions."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Starts it. Raises StartError."""
        self._process.start(lambda: listening(self.port), timeout=30)

    def stop(self) -> None:
        """Stops it; harmless when it is stopped."""
        self._process.stop()

    def warm_up(self, table: str) -> None:
        """Makes it load what it knows of DynamoDB, which takes it longer than a function waits for an answer."""
        config = Config(read_timeout=120)
        client = session(self.url).client("dynamodb", config=config)
        client.describe_table(TableName=table)

    def set_rules(self, rules: Sequence[dict[str, Any]]) -> None:
        """These rules and no others."""
        self._ask("POST", "/_microburst/rules", list(rules))

    def fired(self) -> int:
        """How many faults it has made so far."""
        text = self._ask("GET", "/_microburst/metrics", None).decode()
        counts = (line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("microburst_faults_total{"))
        return sum(int(float(count)) for count in counts)

    def _ask(self, method: str, path: str, body: Any) -> bytes:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{method} {path}: {response.status} {content[:200]!r}")
        return content


@dataclass(frozen=True)
class Scene:
    """The running parts, for those who load and break them."""

    url: str
    service_key: str
    endpoint_url: str
    outputs: dict[str, str]
    emulator_pid: int
    cache: Cache
    throttle: Throttle
    pump: PumpProcess
    logs: Path

    def client(self, service: str) -> Any:
        """A client that talks to the emulator itself, not through the proxy."""
        return session(self.endpoint_url).client(service)  # type: ignore[call-overload]

    def cache_pid(self) -> int:
        """The process of Valkey, which says in its title where it listens."""
        (pid,) = descendants(f"{HOST}:{self.cache.port}")
        return pid

    def workers(self) -> list[int]:
        """The processes in which the emulator runs functions."""
        return [p.pid for p in processes() if p.parent == self.emulator_pid and "_worker" in p.command]


@contextlib.contextmanager
def scene(home: Path) -> Iterator[Scene]:
    """Everything deployed and fed. Raises StartError or DeployError."""
    logs = home / "logs"
    with contextlib.ExitStack() as stack:
        before = descendants(EMULATOR)
        emulator = stack.enter_context(Emulator(home=home / "emulator", log=logs / "emulator.log"))
        (emulator_pid,) = descendants(EMULATOR) - before
        cache = stack.enter_context(Cache(home=home / "valkey", log=logs / "valkey.log"))
        throttle = stack.enter_context(Throttle(emulator.endpoint_url, logs / "microburst.log"))
        parameters = {**local_parameters(), "EndpointUrl": emulator.endpoint_url, "CacheUrl": cache.url}
        outputs = deploy(emulator.endpoint_url, STACK, parameters)
        throttle.warm_up(outputs["LikesTable"])
        _send_through(throttle, emulator.endpoint_url, outputs)
        pump = PumpProcess(emulator.endpoint_url, logs, "pump")
        stack.enter_context(pump)
        yield Scene(
            url=outputs["ApiUrl"],
            service_key=key_of(session(emulator.endpoint_url), STACK, emulator.endpoint_url),
            endpoint_url=emulator.endpoint_url,
            outputs=outputs,
            emulator_pid=emulator_pid,
            cache=cache,
            throttle=throttle,
            pump=pump,
            logs=logs,
        )


def _send_through(throttle: Throttle, endpoint_url: str, outputs: dict[str, str]) -> None:
    """Sends the functions' calls of DynamoDB to the proxy, by the variable that every AWS SDK reads."""
    functions = session(endpoint_url).client("lambda")
    own = {**aws_environment(endpoint_url), "AWS_ENDPOINT_URL_DYNAMODB": throttle.url}
    for name, function in outputs.items():
        if name.endswith("Function"):
            configured = functions.get_function_configuration(FunctionName=function)["Environment"]["Variables"]
            functions.update_function_configuration(
                FunctionName=function, Environment={"Variables": {**configured, **own}}
            )
