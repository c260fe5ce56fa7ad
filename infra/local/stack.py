"""The whole service in this process, or in parts, over an emulator and a Valkey beside it."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from infra.local.cache import Cache
from infra.local.emulator import ACCESS_KEY, REGION, SECRET_KEY, Emulator, aws_environment, session
from infra.local.functions import endpoints, load_functions
from infra.local.gateway import Gateway, Server
from infra.local.invoking import InProcess, Invoker
from infra.local.mapping import DynamoDBStream, Lag, Pump, Settings, sqs_destination
from infra.local.processes import HOST, Process, StartStop, free_port, require_free
from infra.local.queues import QueuePoller, QueueSettings, Scheduler, SQSQueue
from infra.local.template import EventSource, Template, deployed

ROOT = Path(__file__).resolve().parents[2]
STACK_NAME = "tallymark"
API_PROCESSES = 2  # of a stack in parts: Python runs one thread at a time in each

Progress = Callable[[str, float], None]
"""Told (what was done, seconds it took)."""

_one_at_a_time = threading.Lock()


class Stack(StartStop):
    """Emulator, Valkey, deployed template, functions, stream pump, queue poller and HTTP gateway.

    A context manager; port 0 takes a free one, so that several can run on one machine. In one process there
    can be only one at a time: the functions find their settings in the environment of the process.

    `apart` gives the functions of the API some processes of their own, and those of streams and queues another, as
    they have on Lambda: counting then takes no time from answering. Nothing here can wait for their streams then.
    """

    def __init__(
        self,
        port: int = 0,
        emulator_port: int = 0,
        *,
        stack_name: str = STACK_NAME,
        parameters: Mapping[str, str] | None = None,
        auth: bool = False,
        apart: bool = False,
        home: Path | None = None,
        progress: Progress = lambda _what, _seconds: None,
    ) -> None:
        self.stack_name = stack_name
        self._wanted_port = port
        self._parameters = dict(parameters or {})
        self._progress = progress
        self._home = home or Path(tempfile.mkdtemp(prefix="tallymark-"))
        self._own_home = home is None
        self.logs = self._home / "logs"
        self.emulator = Emulator(emulator_port, home=self._home / "emulator", log=self.logs / "emulator.log", auth=auth)
        self.cache = Cache(home=self._home / "valkey", log=self.logs / "valkey.log")
        self._apart = apart
        self._parts: list[Process] = []
        self.outputs: dict[str, str] = {}
        self.functions: dict[str, InProcess] = {}
        self._pumps: list[Pump] = []
        self.template: Template
        self._port: int | None = None
        self._cleanup = ExitStack()

    # --- what callers ask ---

    @property
    def endpoint_url(self) -> str:
        """Where the emulator answers."""
        return self.emulator.endpoint_url

    @property
    def url(self) -> str:
        """Where the API answers."""
        if self._port is None:
            raise RuntimeError("the stack is not started")
        return f"http://{HOST}:{self._port}"

    @property
    def service_key(self) -> str:
        """The key that makes a caller a service."""
        from tallymark.identity import service_key

        environment = self.template.environment()
        secrets = session(self.endpoint_url).client("secretsmanager")
        secret = secrets.get_secret_value(SecretId=environment["SECRET_ARN"])["SecretString"]
        return service_key(secret, int(environment["SERVICE_KEY_GENERATION"]))

    @property
    def ended(self) -> Process | None:
        """A part without which the service is none, and that ended by itself; None if all is well."""
        return next((part for part in (self.emulator.process, *self._parts) if not part.running), None)

    @property
    def pumps(self) -> list[Pump]:
        """What reads the streams, in this process. Raises RuntimeError if another does."""
        if self._apart:
            raise RuntimeError("the streams are read by another process")
        return self._pumps

    def wait_drained(self, timeout: float = 30.0) -> bool:
        """Waits until every change made before this call has been handed to its function and taken."""
        deadline = time.monotonic() + timeout
        return all(pump.wait_drained(max(0.0, deadline - time.monotonic())) for pump in self.pumps)

    def lag(self) -> Lag:
        """How far the streams' functions are behind."""
        lags = [pump.lag() for pump in self.pumps]
        return Lag(
            sum(lag.records_behind for lag in lags),
            max((lag.oldest_age_seconds for lag in lags), default=0.0),
        )

    # --- start and stop ---

    def start(self) -> None:
        """Starts everything; what has begun is stopped again when a part fails.

        Raises StartError, DeployError or TemplateError.
        """
        if not _one_at_a_time.acquire(blocking=False):
            raise RuntimeError("a stack is running in this process already")
        self._cleanup.callback(_one_at_a_time.release)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        if self._wanted_port:
            require_free(self._wanted_port, "the API", "--port")
        if self._own_home:
            self._cleanup.callback(shutil.rmtree, self._home, ignore_errors=True)
        with self._step("emulator, Valkey, layer"):
            self._prepare()
        with self._step("template deployed"):
            self._deploy()
        with self._step("functions, pump, gateway"):
            self._start_functions()

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._progress(what, time.monotonic() - started)

    def _prepare(self) -> None:
        """Everything that can be done at the same time: two programs start while the layer is built."""
        self._set_environment(aws_environment(self.endpoint_url))
        for part in (self.emulator, self.cache):
            self._cleanup.callback(part.stop)
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(job) for job in (self._start_emulator, self.cache.start, _build_layer, _import)]
        for job in jobs:
            job.result()

    def _start_emulator(self) -> None:
        self.emulator.start()
        self.emulator.load_cloudformation()

    def _deploy(self) -> None:
        from infra.local.deploy import deploy

        parameters = {
            **local_parameters(),
            "EndpointUrl": self.endpoint_url,
            "CacheUrl": self.cache.url,
            **self._parameters,
        }
        self.outputs = deploy(self.endpoint_url, self.stack_name, parameters)
        self.template = deployed(ROOT / "template.yaml", session(self.endpoint_url), self.stack_name, self.endpoint_url)

    def _set_environment(self, variables: Mapping[str, str]) -> None:
        before = {name: os.environ.get(name) for name in variables}
        self._cleanup.callback(_restore_environment, before)
        os.environ.update(variables)

    def _start_functions(self) -> None:
        if self._apart:
            self._start_apart()
        else:
            self._load()
            self._start_sources()
            self._serve()
        scheduler = Scheduler([(s, self.functions[s.function]) for s in self.template.schedules])
        scheduler.start()
        self._cleanup.callback(scheduler.stop)

    def _start_apart(self) -> None:
        """All parts at the same time, and meanwhile the functions of schedules, which stay here."""
        self._port = self._wanted_port or free_port()
        apis = [self._part(f"API process {n + 1}", "api", f"--port={self._port}") for n in range(API_PROCESSES)]
        parts = [self._part("The stream pump", "pump", "--in-process"), *apis]
        with ThreadPoolExecutor(len(parts)) as pool:
            jobs = [pool.submit(start) for start in parts]
            self._load()
        for job in jobs:
            job.result()

    def _part(self, name: str, command: str, *options: str) -> Callable[[], None]:
        """What starts `python -m infra.local COMMAND` for this stack, and waits until it is ready."""
        ready = self._home / f"ready-{len(self._parts)}"
        ready.unlink(missing_ok=True)
        where = [f"--stack={self.stack_name}", f"--endpoint-url={self.endpoint_url}", f"--ready={ready}"]
        # As the emulator: compiled once and kept, whatever the shell says.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        part = Process(
            name,
            [sys.executable, "-m", "infra.local", command, *where, *options],
            self.logs / "functions.log",
            environment,
        )
        self._cleanup.callback(part.stop)
        self._parts.append(part)
        return lambda: part.start(ready.exists, timeout=60)  # they all load at once, and uncompiled the first time

    def _load(self) -> None:
        self._set_environment(self.template.environment())
        _forget_functions()  # what this process built of another environment
        self.functions = load_functions(self.template)
        self._cleanup.callback(_forget_functions)

    def _start_sources(self) -> None:
        for source in self.template.event_sources:
            self._cleanup.callback(
                start_source(source, self.functions[source.function], session(self.endpoint_url), self._pumps)
            )

    def _serve(self) -> None:
        server = Server(gateway(self.template, self.functions), HOST, self._wanted_port)
        server.start()
        self._cleanup.callback(server.stop)
        self._port = server.port

    def stop(self) -> None:
        """Stops everything in reverse order; harmless when it is stopped."""
        self._cleanup.close()


def gateway(template: Template, functions: Mapping[str, InProcess]) -> Gateway:
    """The template's HTTP API before functions of this process."""
    from infra.local.authorizers import Signatures  # loads the SDK, as all that is deployed does

    return Gateway(
        template.routes,
        endpoints(functions, (route.function for route in template.routes)),
        template.cors,
        domain=HOST,
        account_id=template.scope.account_id,
        signatures=Signatures(ACCESS_KEY, SECRET_KEY, REGION, template.scope.account_id),
    )


def start_source(
    source: EventSource,
    invoke: Invoker,
    aws: Any,
    pumps: list[Pump],
    endpoint_url: str | None = None,
) -> Callable[[], None]:
    """Begins to feed a function from its stream or queue; returns what stops that.

    The mapping's own Enabled is passed over: it is about Lambda's pollers, in whose place these are.
    """
    if source.service == "dynamodb":
        pump = Pump(
            DynamoDBStream(aws.client("dynamodbstreams", endpoint_url=endpoint_url), source.arn),
            invoke,
            Settings.of(source.settings),
            on_failure=sqs_destination(aws, endpoint_url),
        )
        pumps.append(pump)
        pump.start()
        return pump.stop
    queue = SQSQueue(aws.client("sqs", endpoint_url=endpoint_url), source.arn)
    poller = QueuePoller(queue, invoke, QueueSettings.of(source.settings))
    poller.start()
    return poller.stop


def _build_layer() -> None:
    from infra.local.deploy import build_layer

    build_layer()


def _import() -> None:
    """Loads what the functions need, so that it is there when they are loaded."""
    for name in ("boto3", "chalice.app", "aws_lambda_powertools.utilities.data_classes", "valkey"):
        importlib.import_module(name)


def local_parameters() -> dict[str, str]:
    """The parameters that samconfig.toml has for the environment `local`."""
    settings = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))
    overrides: list[str] = settings["local"]["deploy"]["parameters"]["parameter_overrides"]
    return dict(override.split("=", 1) for override in overrides)


def _restore_environment(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _forget_functions() -> None:
    """Lets the next stack of this process load its functions, and build their clients, anew."""
    for name in [name for name in sys.modules if name.startswith("tallymark_functions.")]:
        del sys.modules[name]
    from tallymark.runtime import wiring

    wiring.reset()
