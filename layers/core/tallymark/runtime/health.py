"""Whether the stores that the service needs answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from tallymark.errors import Unavailable

Status = Literal["ok", "degraded", "down"]


class Table(Protocol):
    """A table that can be asked for next to nothing."""

    def ping(self) -> None:
        """Raises Unavailable if the table cannot be reached."""
        ...


class Cache(Protocol):
    """A cache that can be asked."""

    def ping(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the service and of each dependency."""

    status: Status
    dependencies: dict[str, str]

    @property
    def http_status(self) -> int:
        return 503 if self.status == "down" else 200


def check(likes: Table, counters: Table, cache: Cache | None) -> Health:
    """Asks each dependency once; half a read unit per table."""
    tables = "ok" if all(_answers(table) for table in (likes, counters)) else "down"
    cached = "off" if cache is None else "ok" if cache.ping() else "down"
    status: Status = "down" if tables == "down" else "degraded" if cached == "down" else "ok"
    return Health(status, {"dynamodb": tables, "cache": cached})


def _answers(table: Table) -> bool:
    try:
        table.ping()
    except Unavailable:
        return False
    return True
