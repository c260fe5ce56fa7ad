"""Quotas: parse, ask the rules, answer. A grant is one transaction, made or not made."""

from __future__ import annotations

from typing import Any

from tallymark import quotas
from tallymark.identifiers import parse_name
from tallymark.model import format_time
from tallymark.quotas import State
from tallymark.runtime import contract, wiring
from tallymark.runtime.http import Call, HttpApp, operation
from tallymark.runtime.requests import parse_acquire, parse_holder, parse_quota

app = HttpApp("quota-api")


@operation(app, contract.PUT_QUOTA)
def put_quota(call: Call) -> dict[str, Any]:
    """Idempotent; of two at the same time one comes last."""
    name, limit = parse_quota(call.path, call.body())
    return _described(name, quotas.put(wiring.quotas(), name, limit))


@operation(app, contract.QUOTA)
def quota(call: Call) -> dict[str, Any]:
    """Straight from the table."""
    name = parse_name(call.path["name"], "name")
    return _described(name, quotas.state(wiring.quotas(), name))


@operation(app, contract.ACQUIRE)
def acquire(call: Call) -> dict[str, Any]:
    """Idempotent by its token."""
    name, token, amount, expires_s = parse_acquire(call.path, call.body())
    granted = quotas.acquire(wiring.quotas(), name, token, amount, expires_s)
    answer = {"granted": True, "remaining": granted.remaining}
    expires_ms = granted.grant.expires_ms
    return answer if expires_ms is None else {**answer, "expires_at": format_time(expires_ms)}


@operation(app, contract.CONFIRM)
def confirm(call: Call) -> dict[str, Any]:
    """Idempotent."""
    return {"confirmed": quotas.confirm(wiring.quotas(), *parse_holder(call.path, call.body()))}


@operation(app, contract.RELEASE)
def release(call: Call) -> dict[str, Any]:
    """Gives back once, however often it is sent; only the first answers true."""
    return {"released": quotas.release(wiring.quotas(), *parse_holder(call.path, call.body()))}


def _described(name: str, state: State) -> dict[str, Any]:
    return {"name": name, "limit": state.limit, "used": state.used, "remaining": state.remaining}
