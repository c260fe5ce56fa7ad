"""Tables as benches need them: one without a stack around it, and clients that a busy machine does not put off."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from botocore.config import Config

from infra.local.emulator import Emulator, aws_environment
from tallymark.storage import dynamodb

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


UNREACHED_S = 60


@contextmanager
def patient() -> Iterator[None]:
    """Clients that are made meanwhile have a time-out that no busy machine reaches: what it causes is no fault here."""
    waits = dynamodb.patience().merge(Config(read_timeout=UNREACHED_S))
    with patch.object(dynamodb, "patience", lambda: waits):
        yield


@contextmanager
def own_table(name: str) -> Iterator[DynamoDBClient]:
    """A client of an emulator that has this table, with the keys pk and sk."""
    with tempfile.TemporaryDirectory() as home, Emulator(home=Path(home), log=Path(home) / "log") as emulator:
        os.environ.update(aws_environment(emulator.endpoint_url))
        client = dynamodb.connect()
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
