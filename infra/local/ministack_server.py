"""MiniStack with two things mended, PartiQL writes reach the table's stream, and are read once; behind a faster server.

DynamoDB puts every write into the stream, however it was made ("Change data capture for DynamoDB Streams" in
the DynamoDB Developer Guide). MiniStack 1.5.33 leaves PartiQL out, so likes made in a batch would never be
counted. A test fails as soon as this is no longer needed.

It also takes each statement of a batch apart twice, character by character, which is half of what such a row costs
it. The service sends a few texts over and over, so their tokens are kept.

Its own `main` serves it with hypercorn and a parser in Python, which cost a PutItem more than MiniStack's own work
on it. It is an ASGI application, and uvicorn's parser and loop are compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import uvicorn
from ministack.app import app
from ministack.services import _dynamodb_keywords as partiql
from ministack.services import dynamodb

Table = dict[str, Any]
Parsed = dict[str, Any]
Answer = tuple[int, Any, Any]


def emit_partiql_writes() -> None:
    """Makes each PartiQL write of this process emit the stream record of the change that it made."""
    dynamodb._partiql_insert = _emitting(dynamodb._partiql_insert, _inserted_key)
    dynamodb._partiql_update = _emitting(dynamodb._partiql_update, _named_key)
    dynamodb._partiql_delete = _emitting(dynamodb._partiql_delete, _named_key)


def keep_tokens() -> None:
    """Makes each text of PartiQL be taken apart once, and each statement of a batch be parsed once."""
    partiql._tokenize = lru_cache(maxsize=4096)(partiql._tokenize)  # its callers only read what it returns
    parse, last = dynamodb._parse_partiql, _Last()

    def parse_once(statement: str, parameters: Any) -> Parsed:
        # A batch parses a statement to look at it, then to run it, with the same parameters object.
        if parameters is not last.parameters or statement != last.statement or not parameters:
            last.parsed = parse(statement, parameters)
            last.statement, last.parameters = statement, parameters
        return last.parsed

    dynamodb._parse_partiql = parse_once


class _Last:
    """The statement that was parsed last; MiniStack serves DynamoDB on one thread."""

    statement: str = ""
    parameters: Any = None
    parsed: Parsed


def _emitting(
    write: Callable[..., Answer], key_of: Callable[[Table, Parsed], tuple[Any, Any]]
) -> Callable[..., Answer]:
    def emitting(table: Table, parsed: Parsed, *more: Any) -> Answer:
        key = key_of(table, parsed)
        old = _item(table, key)
        answer = write(table, parsed, *more)
        new = _item(table, key)
        if answer[0] == 200 and old is not new:
            event = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
            dynamodb._emit_stream_event(table["TableName"], event, old, new)
        return answer

    return emitting


def _inserted_key(table: Table, parsed: Parsed) -> tuple[Any, Any]:
    item = parsed.get("item") or {}
    item = item["M"] if isinstance(item, dict) and set(item) == {"M"} else item
    sort_key = dynamodb._extract_key_val(item.get(table["sk_name"])) if table["sk_name"] else "__no_sort__"
    return dynamodb._extract_key_val(item.get(table["pk_name"])), sort_key


def _named_key(table: Table, parsed: Parsed) -> tuple[Any, Any]:
    partition_key, sort_key, _, _ = dynamodb._partiql_key_target(table, parsed)
    return partition_key, sort_key


def _item(table: Table, key: tuple[Any, Any]) -> Any:
    """The item itself, not a copy: a write replaces it, so its identity tells whether there was one."""
    return table["items"].get(key[0], {}).get(key[1])


def serve() -> None:
    """Answers where the environment says, until SIGTERM. MiniStack makes its own Date headers."""
    uvicorn.run(
        app,
        host=os.environ["BIND_HOST"],
        port=int(os.environ["GATEWAY_PORT"]),
        log_level=os.environ["LOG_LEVEL"].lower(),
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    emit_partiql_writes()
    keep_tokens()
    serve()
