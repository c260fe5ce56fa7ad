"""The service as clients see it, once in this process and once as deployed functions; in `jwt` and `iam` mode where
a test asks for that.

`--deployed-stack NAME` runs the suite against a stack that is deployed already (by `sam deploy`, say) and
fed by `python -m infra.local pump`; AWS_ENDPOINT_URL tells where the emulator is.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local.cache import Cache
from infra.local.deploy import deploy
from infra.local.emulator import Emulator, session
from infra.local.parts import feeding
from infra.local.stack import Stack, local_parameters
from infra.service_key import key_of
from tests.e2e.issuer import AUDIENCE, Issuer

THOROUGH = os.environ.get("TALLYMARK_FUZZ") == "thorough"  # `make fuzz`: many requests, counted
REQUESTS_WANTED = 20_000
REQUESTS = pytest.StashKey[Counter[str]]()
PATIENCE_S = 15.0  # counts follow within 3 s, which tests/bench/load.py measures; a test waits for a busy machine too
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Api:
    """Calls of the API, answers as (status, JSON)."""

    url: str
    service_key: str
    cache: Cache | None = None
    at_once: int = 25  # calls; an emulator starts a process for each that meets a function at work
    cors: bool = True
    stack: Stack | None = None  # the one in this process
    issuer: Issuer | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=64)
        self.client = httpx.Client(base_url=self.url, timeout=90, limits=limits)

    def close(self) -> None:
        self.client.close()

    def call(self, method: str, path: str, json: Any = None, **more: Any) -> tuple[int, Any]:
        response = self.client.request(method, path, **({} if json is None else {"json": json}), **more)
        return response.status_code, response.json()

    def get(self, path: str, **query: Any) -> Any:
        status, body = self.call("GET", path, params=query)
        assert status == 200, body
        return body

    def post(self, path: str, json: Any, **more: Any) -> Any:
        status, body = self.call("POST", path, json, **more)
        assert status == 200, body
        return body

    def count(self, item: dict[str, Any], **query: Any) -> dict[str, int]:
        counts: dict[str, int] = self.get("/v1/count", **item, **query)["counts"]
        return counts

    @property
    def as_service(self) -> dict[str, str]:
        return {"tallymark-service-key": self.service_key}


def deployed_api(
    endpoint_url: str, stack_name: str, outputs: dict[str, str], cache: Cache | None = None, *, cors: bool
) -> Api:
    """The API of a stack of deployed functions."""
    key = key_of(session(endpoint_url), stack_name, endpoint_url)
    return Api(outputs["ApiUrl"], key, cache, at_once=4, cors=cors)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --deployed-stack, the tests of that stack alone."""
    if config.getoption("--deployed-stack"):
        not_there = ("in_process", "jwt-mode", "iam-mode")
        left_out = [item for item in items if any(word in item.name for word in not_there)]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", params=["in_process", "deployed"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The parameter is where the functions run, and after a colon the mode if it is not `open`."""
    with _made(request, tmp_path_factory) as made, closing(made):
        yield made


def _made(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> AbstractContextManager[Api]:
    if request.config.getoption("--deployed-stack"):
        return _named(request)
    where, _, mode = request.param.partition(":")

    def make(parameters: Mapping[str, str]) -> AbstractContextManager[Api]:
        return _in_process(parameters) if where == "in_process" else _deployed(parameters, folders)

    return _with_issuer(make) if mode == "jwt-mode" else make({"AuthMode": "iam"} if mode == "iam-mode" else {})


@contextmanager
def _with_issuer(make: Callable[[Mapping[str, str]], AbstractContextManager[Api]]) -> Iterator[Api]:
    """In `jwt` mode, with an issuer that signs for the tests."""
    with Issuer() as issuer, make({"AuthMode": "jwt", "JwtIssuer": issuer.url, "JwtAudience": AUDIENCE}) as api:
        api.issuer = issuer
        yield api


@contextmanager
def _in_process(parameters: Mapping[str, str]) -> Iterator[Api]:
    with Stack(parameters=parameters) as stack:
        yield Api(stack.url, stack.service_key, stack.cache, stack=stack)


@contextmanager
def _deployed(chosen: Mapping[str, str], folders: pytest.TempPathFactory) -> Iterator[Api]:
    """Functions deployed to an emulator that enforces IAM, and fed by Invoke."""
    home = folders.mktemp("deployed")
    with (
        Emulator(home=home, log=home / "emulator.log", auth=True) as emulator,
        Cache(home=home / "valkey", log=home / "valkey.log") as cache,
    ):
        parameters = {**local_parameters(), "EndpointUrl": emulator.endpoint_url, "CacheUrl": cache.url, **chosen}
        outputs = deploy(emulator.endpoint_url, "tallymark", parameters)
        with feeding("tallymark", emulator.endpoint_url):
            yield deployed_api(emulator.endpoint_url, "tallymark", outputs, cache, cors=True)


@contextmanager
def _named(request: pytest.FixtureRequest) -> Iterator[Api]:
    """A stack that is deployed already. `sam deploy` alone gives an emulator no CORS: its CloudFormation drops it."""
    stack_name: str = request.config.getoption("--deployed-stack")
    endpoint_url = os.environ["AWS_ENDPOINT_URL"]
    stacks = session(endpoint_url).client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stacks[0]["Outputs"]}
    yield deployed_api(endpoint_url, stack_name, outputs, cors=False)


@pytest.fixture
def requests_made(request: pytest.FixtureRequest) -> Counter[str]:
    """How many requests a generator made, by its name."""
    return request.config.stash.setdefault(REQUESTS, Counter())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    made = config.stash.get(REQUESTS, Counter())
    if THOROUGH:
        parts = ", ".join(f"{name} {requests:,}" for name, requests in made.items())
        terminalreporter.write_line(f"{made.total():,} generated requests of {REQUESTS_WANTED:,} wanted ({parts})")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Of several processes (`-n`), the one that started them adds up."""
    node.config.stash.setdefault(REQUESTS, Counter()).update(getattr(node, "workeroutput", {}).get("requests_made", {}))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A thorough run that was not thorough fails; one of its processes only says what it made."""
    made = session.config.stash.get(REQUESTS, Counter())
    if (said := getattr(session.config, "workeroutput", None)) is not None:
        said["requests_made"] = dict(made)
        return
    if THOROUGH and exitstatus == pytest.ExitCode.OK and made.total() < REQUESTS_WANTED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def item() -> dict[str, Any]:
    """An item of this test's own."""
    return {"item_id": uuid.uuid4().hex, "item_type": "post"}


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4().hex}"


def eventually(read: Callable[[], Any], expected: Any, seconds: float = PATIENCE_S) -> None:
    """Waits until the value is what is expected; fails with what it was in the end."""
    until = time.monotonic() + seconds
    while (seen := read()) != expected and time.monotonic() < until:
        time.sleep(0.05)
    assert seen == expected
