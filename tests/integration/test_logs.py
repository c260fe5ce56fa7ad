"""No log names anybody: all that callers send and get is looked for in everything that is written.

The service runs as `make up` runs it, and as deployed functions; it is used well and badly, and breaks in the
ways that put values into messages of exceptions.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local.deploy import deploy, session
from infra.local.emulator import Emulator
from infra.local.parts import feeding
from infra.local.processes import free_port
from infra.local.stack import local_parameters
from infra.service_key import key_of
from tests.integration.conftest import ROOT

PATIENCE_S = 60.0
SAID = ("refused", "parked records", "not settled", "unexpected failure")  # what makes silence worth something


@dataclass
class Service:
    """A running service whose logs can be read."""

    url: str
    service_key: str
    endpoint_url: str
    stack_name: str
    logs: Callable[[], str]
    secrets: dict[str, str] = field(default_factory=dict)

    def name(self, what: str) -> str:
        """A text like no other, to be looked for later."""
        return self.secrets.setdefault(what, f"{what.replace(' ', '-')}-{uuid.uuid4().hex}")

    def wait_for(self, text: str, service: str) -> None:
        """Until a function has logged this."""
        until = time.monotonic() + PATIENCE_S
        while True:
            said = [line for line in self.logs().splitlines() if f'"service":"{service}"' in line]
            if any(text in line for line in said):
                return
            assert time.monotonic() < until, f"{service} never said {text!r}, but {said[-5:]}"
            time.sleep(0.2)


@pytest.fixture(params=["in_process", "deployed"])
def service(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Service]:
    caplog.set_level(logging.DEBUG, logger="infra")  # the pump that feeds deployed functions runs in this process
    make = {"in_process": in_process, "deployed": deployed}[request.param]
    with make(tmp_path, caplog) as made:
        yield made


@contextmanager
def in_process(folder: Path, _caplog: pytest.LogCaptureFixture) -> Iterator[Service]:
    port, emulator_port = free_port(), free_port()
    command = [sys.executable, "-m", "infra.local", "up", f"--port={port}", f"--emulator-port={emulator_port}"]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    logs = ROOT / f".tallymark/port-{port}/logs"
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            announced = folder / "tallymark/local.json"
            until = time.monotonic() + PATIENCE_S
            while not announced.exists():
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
            told = json.loads(announced.read_text(encoding="utf-8"))
            yield Service(
                told["url"], told["service_key"], told["endpoint_url"], "tallymark", lambda: text_of(logs.glob("*.log"))
            )
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)
            shutil.rmtree(logs.parent)


@contextmanager
def deployed(folder: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Service]:
    log = folder / "emulator.log"
    with Emulator(home=folder, log=log, auth=True) as emulator:
        url = emulator.endpoint_url
        outputs = deploy(url, "tallymark", {**local_parameters(), "EndpointUrl": url})
        with feeding("tallymark", url):
            key = key_of(session(), "tallymark", url)
            yield Service(
                outputs["ApiUrl"], key, url, "tallymark", lambda: text_of([log]) + caplog.text + from_cloudwatch(url)
            )


def text_of(files: Any) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


def from_cloudwatch(endpoint_url: str) -> str:
    client = session().client("logs", endpoint_url=endpoint_url)
    lines = []
    for group in client.get_paginator("describe_log_groups").paginate().search("logGroups[].logGroupName"):
        pages = client.get_paginator("filter_log_events").paginate(logGroupName=group)
        lines += [event["message"] for page in pages for event in page["events"]]
    return "\n".join(lines)


# --- what callers do ----------------------------------------------------------------------------------------------


def use_well(service: Service, api: httpx.Client) -> None:
    user, item = service.name("user"), {"item_type": "post", "item_id": service.name("item")}
    like = {"user_id": user, **item}
    as_service = {"tallymark-service-key": service.service_key}
    service.secrets["service key"] = service.service_key
    for method, path, body in (
        ("POST", "/v1/like", like),
        ("POST", "/v1/toggle", {**like, "like": True}),
        ("POST", "/v1/batch", {"operations": [{"action": "like", **like, "item_id": service.name("another item")}]}),
        ("POST", "/v1/counts", {"items": [item], "user_id": user}),
        ("POST", "/v1/has_liked", {"user_id": user, "item_type": "post", "item_ids": [item["item_id"]]}),
        (
            "POST",
            "/v1/views",
            {"views": [{**item, "visitor_id": service.name("visitor")}], "token": service.name("token")},
        ),
        ("POST", "/v1/counters/sold/add", {"amount": 1, "token": service.name("token of an addition")}),
        ("PUT", "/v1/quotas/seats", {"limit": 5}),
        ("POST", "/v1/quotas/seats/acquire", {"amount": 1, "token": service.name("token of a grant")}),
        ("POST", "/v1/quotas/seats/release", {"token": service.name("token of a grant")}),
        ("POST", "/v1/limits/login/hit", {"key": service.name("limited"), "limit": 1, "window_seconds": 1}),
    ):
        assert api.request(method, path, json=body).status_code == 200
    for path in ("/v1/count", "/v1/views", "/v1/series"):
        assert api.get(path, params=item).status_code == 200
    assert api.get("/v1/count", params={**item, "fresh": "true"}).status_code == 200
    assert api.get("/v1/top").status_code == 200
    assert api.get(f"/v1/items/post/{item['item_id']}/likers").status_code == 200
    page = api.get(f"/v1/users/{user}/likes", params={"limit": 1}).json()
    service.secrets["cursor"] = page["cursor"]
    assert api.get(f"/v1/users/{user}/likes", params={"limit": 1, "cursor": page["cursor"]}).status_code == 200
    at = {**like, "liked_at": "2001-02-03T04:05:06.789Z"}
    assert api.post("/v1/like", json=at, headers=as_service).status_code == 200
    person = api.post("/v1/anonymous").json()
    service.secrets |= {"anonymous id": person["user_id"], "anonymous token": person["token"]}
    anonymous = {"tallymark-anonymous": person["token"]}
    assert api.post("/v1/like", json=item, headers=anonymous).status_code == 200


def use_badly(service: Service, api: httpx.Client) -> None:
    """Each bad request holds a text of its own where something is wrong with it."""

    def name(what: str) -> str:
        return service.name(f"bad {what}")

    like = {"user_id": service.name("user"), "item_type": "post", "item_id": service.name("item")}
    refused = [
        api.post("/v1/like", json={**like, "user_id": f"{name('user')}\t"}),
        api.post("/v1/like", json={**like, "item_id": f"{name('item')}\n"}),
        api.post("/v1/like", json={**like, "item_type": f"#{name('type')}"}),
        api.post("/v1/like", json={**like, "reaction": f"#{name('reaction')}"}),
        api.post("/v1/like", json={**like, "liked_at": name("time")}, headers={"tallymark-service-key": name("key")}),
        api.post("/v1/like", json={**like, "liked_at": name("time")}),
        api.post("/v1/like", json=like, headers={"tallymark-anonymous": name("token")}),
        api.post("/v1/like", content=f'{{"user_id": "{name("json")}'.encode()),
        api.post("/v1/like", content=b"{}", headers={"content-type": f"text/{name('media')}"}),
        api.post("/v1/like", content=json.dumps({"user_id": name("size") * 9000}).encode()),
        api.get("/v1/count", params={"item_type": "post", "item_id": f"{name('query')}\x00"}),
        api.get(f"/v1/count?{name('parameter')}=1&{name('parameter')}=2"),
        api.get(f"/v1/count?{name('dotted')}.item_id=1&{name('dotted')}.item_id=2"),
        api.get(f"/v1/count?item_id={name('encoding')}%zz"),
        api.get(f"/v1/users/{service.name('user')}/likes", params={"cursor": name("cursor")}),
        api.get(f"/v1/users/{service.name('user')}/likes", params={"limit": name("limit")}),
        api.get(f"/v1/{name('path')}"),
        api.request(name("method").upper()[:20], "/v1/like"),
        api.post("/v1/batch", json={"operations": [{name("action"): 1}, name("operation")] * 60}),
        api.post("/v1/counts", json={"items": name("list")}),
        api.post(f"/v1/limits/.{name('limit name')}/hit", json={}),
        api.post("/v1/limits/login/hit", json={"key": f"{name('limited')}\t"}),
    ]
    service.secrets["bad method"] = service.secrets["bad method"].upper()[:20]
    assert {answer.status_code for answer in refused} <= {400, 401, 403, 404, 405, 413, 415}, refused
    eager = service.name("eager user")
    batch = {"operations": [{"action": "like", **like, "user_id": eager}] * 100}
    assert api.post("/v1/batch", json=batch).status_code == 200
    assert [api.post("/v1/like", json={**like, "user_id": eager}).status_code for _ in range(9)].count(429)
    with httpx.Client(base_url=service.url, headers={"authorization": f"Bearer {name('bearer')}"}) as other:
        other.get("/v1/nothing")
        other.get("/%zz")


def break_it(service: Service, api: httpx.Client) -> None:
    """A record that nobody can read, then tables that are gone: what fails holds ids in its message."""
    dynamodb: Any = session().client("dynamodb", endpoint_url=service.endpoint_url)
    stack = session().client("cloudformation", endpoint_url=service.endpoint_url)
    outputs = stack.describe_stacks(StackName=service.stack_name)["Stacks"][0]["Outputs"]
    tables = {output["OutputKey"]: output["OutputValue"] for output in outputs}
    owner = service.name("owner of a bad record")
    record = {"pk": owner, "sk": service.name("bad record"), "lk": f"post#{service.name('item')}#0"}
    item: dict[str, Any] = {name: {"S": value} for name, value in record.items()}
    dynamodb.put_item(TableName=tables["LikesTable"], Item={**item, "at": {"B": bytes(16)}})
    assert api.get(f"/v1/users/{owner}/likes").status_code == 500
    service.wait_for("unexpected failure", "read-api")
    service.wait_for("parked records", "aggregator")
    service.wait_for("not settled", "parked")
    dynamodb.delete_table(TableName=tables["CountersTable"])
    like = {"user_id": service.name("late user"), "item_type": "post", "item_id": service.name("late item")}
    assert api.post("/v1/like", json=like).status_code == 200
    service.wait_for("unexpected failure", "aggregator")
    assert api.get("/v1/count", params={"item_type": "post", "item_id": like["item_id"]}).status_code == 500
    dynamodb.delete_table(TableName=tables["LikesTable"])
    assert api.post("/v1/like", json=like).status_code == 500
    service.wait_for("unexpected failure", "write-api")


@pytest.mark.slow
def test_no_log_names_anybody_or_holds_what_opens_a_door(service: Service) -> None:
    secrets = session().client("secretsmanager", endpoint_url=service.endpoint_url)
    (arn,) = (secret["ARN"] for secret in secrets.list_secrets()["SecretList"])
    service.secrets["secret"] = secrets.get_secret_value(SecretId=arn)["SecretString"]
    with httpx.Client(base_url=service.url, timeout=60) as api:
        use_well(service, api)
        use_badly(service, api)
        break_it(service, api)
    written = service.logs()
    assert [said for said in SAID if said not in written] == []
    lowered = written.lower()
    assert [what for what, secret in service.secrets.items() if secret.lower() in lowered] == []
