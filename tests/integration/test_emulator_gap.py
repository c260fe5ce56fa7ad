"""What infra/local/ministack_server.py mends. When the first test fails, MiniStack does it itself: delete that file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from infra.local import emulator as module
from infra.local.emulator import ACCESS_KEY, REGION, SECRET_KEY, Emulator


def streamed(endpoint_url: str) -> list[str]:
    """The events that an INSERT, an UPDATE and a DELETE of PartiQL put into a stream, after one PutItem."""
    made = boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)
    dynamodb = made.client("dynamodb", endpoint_url=endpoint_url)
    streams = made.client("dynamodbstreams", endpoint_url=endpoint_url)
    arn = dynamodb.create_table(
        TableName="things",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )["TableDescription"]["LatestStreamArn"]
    dynamodb.put_item(TableName="things", Item={"pk": {"S": "put"}})
    for statement in (
        "INSERT INTO things VALUE {'pk': 'a', 'n': 1}",
        "INSERT INTO things VALUE {'pk': 'a', 'n': 2}",
        "UPDATE things SET n = 3 WHERE pk = 'a'",
        "UPDATE things SET n = 4 WHERE pk = 'a' AND n = 99",
        "DELETE FROM things WHERE pk = 'a'",
        "DELETE FROM things WHERE pk = 'a'",
    ):
        dynamodb.batch_execute_statement(Statements=[{"Statement": statement}])
    (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    iterator = streams.get_shard_iterator(StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")
    records: list[Any] = streams.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    return [record["eventName"] + record["dynamodb"]["Keys"]["pk"]["S"] for record in records]


def test_plain_ministack_leaves_partiql_out_of_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "plain.py"
    script.write_text("from ministack.app import main\nmain()\n")
    monkeypatch.setattr(module, "SERVER", script)
    with Emulator(home=tmp_path / "home", log=tmp_path / "log") as plain:
        assert streamed(plain.endpoint_url) == ["INSERTput"]


def test_ours_streams_what_each_statement_changed(tmp_path: Path) -> None:
    with Emulator(home=tmp_path / "home", log=tmp_path / "log") as ours:
        assert streamed(ours.endpoint_url) == ["INSERTput", "INSERTa", "MODIFYa", "REMOVEa"]
