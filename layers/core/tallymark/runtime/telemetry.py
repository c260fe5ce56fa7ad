"""Logs and metrics by Powertools: one JSON line each, nothing personal in them.

Who calls, for whom and what was sent stays out of the logs, and so does every exception's message.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from tallymark.aggregation import LaneUnknown
from tallymark.errors import TallymarkError
from tallymark.settings import BadSetting
from tallymark.storage.dynamodb import error_code

NAMESPACE = "Tallymark"

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


class HandlerFailed(Exception):
    """A function failed of a bug; the log has where, and of which kind."""


@cache
def logger(service: str) -> Logger:
    """The function's logger; its level is the setting LOG_LEVEL."""
    from . import wiring

    try:
        level = wiring.settings().log_level
    except ValueError:  # settings that cannot be read must not keep anybody from saying so
        level = "INFO"
    return Logger(service=service, level=level)


def kinds(error: BaseException) -> str:
    """What went wrong, without the values that an exception's message holds: they may name people.

    The types from the exception to its first cause, with the service's code where it is AWS that refused, and
    the message where it is about the deployment.
    """
    names = []
    cause: BaseException | None = error
    while cause is not None:
        told = str(cause) if isinstance(cause, BadSetting | LaneUnknown) else error_code(cause)
        names.append(f"{type(cause).__name__} {told}".rstrip())
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return " < ".join(names)


def bug(service: str, error: Exception, **about: Any) -> None:
    """One line for a failure that nobody foresaw: its kinds, and the lines of code that it came through."""
    frames = traceback.format_tb(error.__traceback__)
    logger(service).error("unexpected failure", error=kinds(error), traceback=frames, **about)


def silent_on_values(service: str) -> Callable[[Handler], Handler]:
    """Lambda logs every exception that leaves a handler, with its message: only messages of our own may leave."""

    def guarded(handler: Handler) -> Handler:
        @wraps(handler)
        def call(event: dict[str, Any], context: Any) -> dict[str, Any]:
            try:
                return handler(event, context)
            except (TallymarkError, LaneUnknown) as error:
                raise error from None
            except Exception as error:  # noqa: BLE001 (the last stop)
                bug(service, error)
                raise HandlerFailed(kinds(error)) from None

        return call

    return guarded


class Metrics:
    """Numbers of one call, printed together as one EMF line; none, no line."""

    def __init__(self, service: str) -> None:
        self._emf = EphemeralMetrics(namespace=NAMESPACE, service=service)
        self._any = False

    def count(self, name: str, value: float = 1) -> None:
        self._add(name, MetricUnit.Count, value)

    def seconds(self, name: str, value: float) -> None:
        self._add(name, MetricUnit.Seconds, value)

    def _add(self, name: str, unit: MetricUnit, value: float) -> None:
        self._emf.add_metric(name=name, unit=unit, value=value)
        self._any = True

    def flush(self) -> None:
        if self._any:
            self._emf.flush_metrics()
            self._any = False


@contextmanager
def metrics(service: str) -> Iterator[Metrics]:
    """The metrics of one call, flushed at its end, however it ends."""
    collected = Metrics(service)
    try:
        yield collected
    finally:
        collected.flush()


def count(service: str, name: str, value: float = 1) -> None:
    """One count metric by itself."""
    with metrics(service) as collected:
        collected.count(name, value)
