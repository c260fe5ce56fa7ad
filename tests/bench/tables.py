"""A table without a stack around it, for benches of what lies over a single one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from infra.local.emulator import Emulator, aws_environment
from tallymark.storage.dynamodb import connect

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@contextmanager
def own_table(name: str) -> Iterator[DynamoDBClient]:
    """A client of an emulator that has this table, with the keys pk and sk."""
    with tempfile.TemporaryDirectory() as home, Emulator(home=Path(home), log=Path(home) / "log") as emulator:
        os.environ.update(aws_environment(emulator.endpoint_url))
        client = connect()
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        yield client
