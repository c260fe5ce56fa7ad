"""Hooks in the SDK's calls, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def hooked(client: Any, hooks: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Calls each hook at its event of botocore, and leaves the client as it was."""
    for event, hook in hooks.items():
        client.meta.events.register(event, hook)
    try:
        yield
    finally:
        for event, hook in hooks.items():
            client.meta.events.unregister(event, hook)
