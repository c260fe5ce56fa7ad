"""As much of the HTTP API as the command line needs, over a real socket."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

SERVICE_KEY = "service-key-of-a-test"

Operation = dict[str, Any]
Answer = tuple[int, dict[str, str], dict[str, Any]]


def error(status: int, code: str, message: str = "said the fake", **more: str) -> Answer:
    """An error in the API's shape, with `Retry-After: 0` where the API would send that header."""
    headers = {"Retry-After": "0"} if status in (429, 503) else {}
    return status, headers, {"error": {"code": code, "message": message, **more}}


@dataclass
class FakeApi:
    """A dict of likes behind a socket; `fault` may answer a batch call, `refuse` an operation."""

    likes: dict[tuple[str, ...], str] = field(default_factory=dict)
    arrived: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    calls: int = 0
    operations: int = 0
    overlaps: set[str] = field(default_factory=set)
    fault: Callable[[list[Operation]], Answer | None] = lambda _: None
    refuse: Callable[[Operation], int | None] = lambda _: None
    url: str = ""
    _in_flight: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, key: str | None) -> Answer:
        """The answer to one request."""
        if key not in (None, SERVICE_KEY):
            return error(401, "unauthorized", "This service key is not ours.")
        routes: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {
            ("POST", "/v1/like"): lambda: self._like({**body, "action": "like"}),
            ("DELETE", "/v1/like"): lambda: self._like({**body, "action": "unlike"}),
            ("GET", "/v1/count"): lambda: self._count(query) | {"age_ms": 0},
            ("POST", "/v1/counts"): lambda: {"counts": [self._count(item) for item in body["items"]]},
            ("GET", "/health"): lambda: {
                "status": "ok",
                "version": "9.9",
                "dependencies": {"dynamodb": "ok", "cache": "off"},
            },
        }
        if (method, path) == ("POST", "/v1/batch"):
            return self._batch(body["operations"], service=key is not None)
        route = routes.get((method, path))
        return (200, {}, route()) if route else error(404, "not_found")

    def _batch(self, operations: list[Operation], *, service: bool) -> Answer:
        people = {str(operation.get("user_id")) for operation in operations}
        with self._lock:
            self.calls += 1
            self.operations += len(operations)
            self.overlaps |= {person for person in people if self._in_flight[person]}
            self._in_flight.update(people)
        try:
            refused = self.fault(operations)
            if refused is not None:
                return refused
            results = [self._one(operation, service=service) for operation in operations]
            return 200, {}, {"results": results}
        finally:
            with self._lock:
                self._in_flight.subtract(people)

    def _one(self, operation: Operation, *, service: bool) -> dict[str, Any]:
        status = self.refuse(operation)
        if status is None and "liked_at" in operation and not service:
            status = 403
        if status is None and len(str(operation["item_id"])) > 256:
            status = 400
        if status is not None:
            code = {400: "invalid_request", 403: "forbidden", 429: "rate_limited"}.get(status, "unavailable")
            return {"status": status, **error(status, code, field="item_id")[2]}
        with self._lock:
            self.arrived[str(operation["user_id"])].append(operation)
            return {"status": 200, **self._like(operation)}

    def _like(self, operation: Operation) -> dict[str, Any]:
        reaction = operation.get("reaction") or "like"
        named = {name: str(operation[name]) for name in ("user_id", "item_type", "item_id")}
        like = (*named.values(), reaction)
        if operation["action"] == "unlike":
            changed = self.likes.pop(like, None) is not None
            return {"liked": False, "changed": changed, **named, "reaction": reaction}
        changed = like not in self.likes
        liked_at = self.likes.setdefault(like, operation.get("liked_at", "2026-01-01T00:00:00.000Z"))
        return {"liked": True, "changed": changed, **named, "reaction": reaction, "liked_at": liked_at}

    def _count(self, item: dict[str, str]) -> dict[str, Any]:
        wanted = {"item_type": item["item_type"], "item_id": item["item_id"]}
        if item["item_id"] == "unknown":
            return {**wanted, "count": None, "counts": None}
        ours = [like for like in self.likes if like[1:3] == (item["item_type"], item["item_id"])]
        return {**wanted, "count": len(ours), "counts": dict(Counter(like[3] for like in ours))}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: FakeApi


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _Server

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(content) if content else None
        key = self.headers.get("Tallymark-Service-Key")
        status, headers, answer = self.server.api.answer(
            self.command, parts.path, dict(parse_qsl(parts.query)), body, key
        )
        if status == 0:
            self.close_connection = True  # as a server does that dies before it answers
            return
        payload = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(payload))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_DELETE = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Tests print what they mean to."""


@contextmanager
def serving() -> Iterator[FakeApi]:
    """A running fake, which stops at the end."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.api = FakeApi(url=f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.api
        finally:
            server.shutdown()
            thread.join()
