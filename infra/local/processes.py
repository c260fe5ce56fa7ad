"""Programs that run beside the stack and never outlive it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
GUARD = Path(__file__).with_name("guard.py")


class StartError(Exception):
    """A part of the stack did not start; the message says what to do."""


class StartStop(ABC):
    """What is started on entry of a `with` and stopped at its end."""

    @abstractmethod
    def start(self) -> None:
        """Starts it. Raises StartError."""

    @abstractmethod
    def stop(self) -> None:
        """Stops it; harmless when it is stopped."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def listening(port: int) -> bool:
    """Whether something answers on `port` of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def require_free(port: int, what: str, option: str) -> None:
    """Raises StartError, with the way out, if `port` is taken."""
    if listening(port):
        raise StartError(
            f"Port {port} is in use, and {what} wants it. Stop what listens there "
            f"(`lsof -i :{port}` names it; another `make up`, perhaps), or choose another port: "
            f'`make up ARGS="{option} {port + 1}"`.'
        )


class Process:
    """A program under a guard: it ends with `stop()`, and by itself when this process dies in any way."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], bool], timeout: float = 15.0) -> None:
        """Starts the program and waits until `ready()`. Raises StartError with the end of its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", str(GUARD), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in a terminal is for us, who stop things in order
            )
        deadline = time.monotonic() + timeout
        while not ready():
            if self._guard.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise StartError(f"{self.name} did not start; {self.log} ends with:\n{self._tail()}")
            time.sleep(0.02)

    def _tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-12:])

    @property
    def running(self) -> bool:
        """Whether the program is there."""
        return self._guard is not None and self._guard.poll() is None

    def stop(self) -> None:
        """Ends the program and all that it started; harmless when it has ended."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        if guard.stdin is not None:
            guard.stdin.close()
        try:
            guard.wait(10)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
