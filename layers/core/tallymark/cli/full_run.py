"""A full run of a stack's reconciler: piece by piece, and in the end once more what could not be judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click

_PIECE_SECONDS = 10  # after which the function answers with what it has, so that progress can be shown
_ASKED_AGAIN = 100  # open items, singly
_TRIES = 4  # of a piece; each may be repeated
_PAUSE_S = 2.0


class ReconcilerFailed(click.ClickException):
    """The reconciler was found and did not answer, or answered with an error."""


Invoke = Callable[[dict[str, Any]], dict[str, Any]]
"""Calls the reconciler with an event and returns its answer; raises ClickException."""


@dataclass(slots=True)
class Run:
    """What a full run has found so far, and where it goes on: plain values, to be kept as JSON where it may be killed.

    `found` and `open` are entries of the function's answers.
    """

    cursor: str | None = None
    checked: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    open: list[dict[str, Any]] = field(default_factory=list)
    repair_refused: str | None = None


def pieces(run: Run, invoke: Invoke, *, repair: bool) -> Iterator[None]:
    """Goes on from the run's cursor to the end; yields whenever the run has grown by a piece. Raises ClickException."""
    while True:
        event = {"all": True, "cursor": run.cursor, "repair": repair, "seconds": _PIECE_SECONDS}
        piece = _patiently(invoke, event)
        run.checked += piece["checked"]
        run.found += piece["found"]
        run.open += piece["open"]
        run.repair_refused = piece["repair_refused"]
        run.cursor = piece["cursor"]
        yield
        if run.cursor is None:
            return


def ask_again(run: Run, invoke: Invoke, *, repair: bool) -> None:
    """Asks for each open item by itself, unless there are too many. Raises ClickException."""
    if len(run.open) > _ASKED_AGAIN:
        return
    for entry in list(run.open):
        answer = _patiently(invoke, event_of(entry["item_type"], entry["item_id"], repair=repair))
        if answer["verdict"] not in ("exact", "drift"):
            entry["verdict"] = answer["verdict"]
            continue
        run.open.remove(entry)
        if answer["verdict"] == "drift":
            run.found.append(answer)


def event_of(item_type: str, item_id: str, *, repair: bool) -> dict[str, Any]:
    """The event that asks for one item."""
    return {"item": {"item_type": item_type, "item_id": item_id}, "repair": repair}


def _patiently(invoke: Invoke, event: dict[str, Any]) -> dict[str, Any]:
    for _ in range(_TRIES - 1):
        try:
            return invoke(event)
        except ReconcilerFailed as failure:
            click.echo(f"{failure.message}; trying again", err=True)
            time.sleep(_PAUSE_S)
    return invoke(event)
