"""The `tallymark` command: one more client of the HTTP API, which knows nothing of what is behind it."""

from tallymark.cli.commands import main

__all__ = ["main"]
