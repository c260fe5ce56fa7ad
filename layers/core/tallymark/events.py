"""Events: what callers add, recorded once under their token and kept for some days."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Protocol

from .model import Target


@dataclass(frozen=True, slots=True)
class Viewed:
    """What one call adds to a target: views of people, views of bots, and digests of the people that are known."""

    target: Target
    people: int
    bots: int
    visitors: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """What is recorded of one call.

    `nonce` is random: a write that finds its own in the store knows that an earlier attempt of the same
    call landed and only the reply was lost.
    """

    at_ms: int
    nonce: bytes = field(default_factory=lambda: os.urandom(8), kw_only=True)


@dataclass(frozen=True, slots=True)
class ViewEvent(Event):
    """The views of one call, with its token if it had one."""

    token: str | None
    viewed: tuple[Viewed, ...]


@dataclass(frozen=True, slots=True)
class AddEvent(Event):
    """An addition to a named counter."""

    token: str
    name: str
    amount: int


class Events(Protocol):
    """Where events are recorded."""

    def record(self, event: ViewEvent | AddEvent) -> bool:
        """False if an earlier call recorded its token. Safe to repeat with the same event."""
        ...
