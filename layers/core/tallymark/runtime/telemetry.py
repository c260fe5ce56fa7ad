"""Logs and metrics by Powertools: one JSON line each, nothing personal in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

NAMESPACE = "Tallymark"


@cache
def logger(service: str) -> Logger:
    """The function's logger; its level is the setting LOG_LEVEL."""
    from . import wiring

    try:
        level = wiring.settings().log_level
    except ValueError:  # settings that cannot be read must not keep anybody from saying so
        level = "INFO"
    return Logger(service=service, level=level)


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
