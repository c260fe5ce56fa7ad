"""Options that all commands share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from tallymark.cli.connection import Settings, find_settings, state_folder


@dataclass(frozen=True, slots=True)
class Where:
    """What the options and the environment say of the API's place; `folder` is for state."""

    url: str | None
    service_key: str | None
    folder: Path

    def settings(self) -> Settings:
        """The API to talk to; raises UsageError when none is known."""
        return find_settings(self.url, self.service_key, self.folder)


_OPTIONS = (
    click.option("--url", envvar="TALLYMARK_URL", show_envvar=True, help="The API's address."),
    click.option(
        "--service-key",
        envvar="TALLYMARK_SERVICE_KEY",
        show_envvar=True,
        help="Makes the caller a service: no rate limit, and likes may carry a time.",
    ),
    click.option("--state-home", envvar="XDG_STATE_HOME", type=click.Path(path_type=Path), hidden=True),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def api_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `where: Where` and `as_json: bool`."""

    @functools.wraps(command)
    def wrapped(*, url: str | None, service_key: str | None, state_home: Path | None, **rest: object) -> None:
        command(where=Where(url, service_key, state_folder(state_home)), **rest)

    decorated: Callable[..., None] = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def show(answer: Mapping[str, object], text: str, *, as_json: bool) -> None:
    """Prints the answer, for a machine or for a person."""
    click.echo(json.dumps(answer, ensure_ascii=False) if as_json else text)
