"""Calls of the API whose failure is an answer: a client in chaos goes on."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

TIMEOUT_S = 15.0  # a function has 10 s


class Answer(NamedTuple):
    """Status and JSON; 0 where none came."""

    status: int
    body: Any

    @property
    def lost(self) -> bool:
        """Whether nobody knows what became of the call."""
        return self.status == 0 or self.status >= 500


class Failures:
    """Answers that were lost, by status, of all clients together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statuses: Counter[int] = Counter()

    def add(self, status: int) -> None:
        """One more."""
        with self._lock:
            self._statuses[status] += 1

    @property
    def total(self) -> int:
        """All of them."""
        with self._lock:
            return self._statuses.total()

    def by_status(self) -> dict[str, int]:
        """How many of each status; "none" where no answer came."""
        with self._lock:
            return {str(status or "none"): n for status, n in sorted(self._statuses.items())}


class Caller:
    """One client with one connection, which it opens anew after a failure. For one thread."""

    def __init__(self, url: str, failures: Failures, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._base = parts.hostname or "", parts.port, parts.path
        self._failures = failures
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Answer:
        """The answer. Never raises for what a network or a server does."""
        answer = self._ask(method, self._base + path + (f"?{urlencode(query)}" if query else ""), body)
        if answer.lost:
            self._failures.add(answer.status)
        return answer

    def _ask(self, method: str, path: str, body: Any) -> Answer:
        connection = self._connection or http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        self._connection = None
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            answer = Answer(response.status, json.loads(response.read()))
        except (OSError, http.client.HTTPException, ValueError):
            connection.close()
            return Answer(0, None)
        self._connection = connection
        return answer

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
