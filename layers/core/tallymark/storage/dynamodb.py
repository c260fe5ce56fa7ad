"""What all tables share: the client, the attribute forms, and one table of the service's errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tallymark import __version__
from tallymark.errors import Unavailable

if TYPE_CHECKING:
    from botocore.config import Config
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")
R = TypeVar("R")

BATCH_STATEMENTS = 25  # DynamoDB API Reference, BatchExecuteStatement
BATCH_GET_KEYS = 100  # DynamoDB API Reference, BatchGetItem
THREADS = 16
_PARTIAL_READS = 20  # of one batch: the store answers as much as it can, and is asked for the rest

Item = dict[str, Any]  # attribute name -> {"S": ...}, as the low-level client has it

# Error codes that pass by themselves, as single calls and as statements of a batch spell them.
TRANSIENT_CODES = frozenset(
    {
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "ThrottlingError",
        "ThrottlingException",
        "Throttling",
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)


def connect() -> DynamoDBClient:
    """The client of the tables.

    A user agent of our own and no client-side validation save a third of the SDK's CPU per call
    (tests/bench/handler_cpu.py): it builds its default user agent anew, twice, for each.
    """
    import boto3
    from botocore.config import Config

    own = Config(
        max_pool_connections=2 * THREADS,
        user_agent=f"tallymark/{__version__}",
        parameter_validation=False,
        account_id_endpoint_mode="disabled",
    )
    return boto3.client("dynamodb", config=patience().merge(own))


def patience() -> Config:
    """Two tries of 2 s each: a call fails within the 10 s that a request may take, and says so itself."""
    from botocore.config import Config

    return Config(
        connect_timeout=1,
        read_timeout=2,
        retries={"mode": "standard", "total_max_attempts": 2},
        tcp_keepalive=True,
    )


def spread(executor: Executor, work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """What the work returns for each part, all at the same time; the first is done by this thread itself."""
    if not parts:
        return []
    others = [executor.submit(work, part) for part in parts[1:]]
    return [work(parts[0]), *(other.result() for other in others)]


def batch_get(client: DynamoDBClient, table: str, wanted: Sequence[Item], *, consistent: bool = False) -> list[Item]:
    """Those of up to 100 items that exist, in any order; what comes back unprocessed is asked for again."""
    found: list[Item] = []
    todo: Any = list(wanted)
    for attempt in range(_PARTIAL_READS):
        if attempt:
            time.sleep(random.uniform(0, min(0.4, 0.01 * 2**attempt)))  # noqa: S311 (jitter)
        with transient_as_unavailable():
            answer = client.batch_get_item(RequestItems={table: {"Keys": todo, "ConsistentRead": consistent}})
        found += answer["Responses"].get(table, [])
        rest = answer["UnprocessedKeys"].get(table)
        if not rest:
            return found
        todo = rest["Keys"]
    raise Unavailable("the store is busy; try again")


def query(
    client: DynamoDBClient, table: str, condition: str, values: Item, *, consistent: bool = False
) -> Iterator[Item]:
    """All items of a partition that meet a condition on their keys, in the order of these, page by page.

    Half a read unit per 4 KB; consistent a whole one, else it may be a moment old.
    """
    request: Any = {
        "TableName": table,
        "KeyConditionExpression": condition,
        "ExpressionAttributeValues": values,
        "ConsistentRead": consistent,
    }
    while True:
        with transient_as_unavailable():
            answer = client.query(**request)
        yield from answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def ping(client: DynamoDBClient, table: str) -> None:
    """Raises Unavailable if the table cannot be read, for whatever reason. Half a read unit."""
    from botocore.exceptions import ClientError

    try:
        with transient_as_unavailable():
            client.get_item(TableName=table, Key={"pk": {"S": "#ping"}, "sk": {"S": "#ping"}})
    except ClientError as error:
        raise Unavailable(f"the table cannot be read: {error_code(error)}") from error


def error_code(error: BaseException) -> str:
    """The service's error code; empty if the error is not the service's."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


@contextmanager
def transient_as_unavailable() -> Iterator[None]:
    """Turns what passes by itself into Unavailable: throttling, faults of the service, lost connections."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if error_code(error) in TRANSIENT_CODES or status >= 500:
            raise Unavailable("the store is busy; try again") from error
        raise
    except (ConnectionError, HTTPClientError) as error:
        raise Unavailable("the store does not answer; try again") from error
