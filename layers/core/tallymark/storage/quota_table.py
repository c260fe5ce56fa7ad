"""The table of quotas: what a quota allows, its pools, its grants, and when reservations fall due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tallymark.errors import Unavailable
from tallymark.quotas import Grant, Ledger, Pool

from . import keys
from .dynamodb import THREADS, TRANSIENT_CODES, Item, batch_get, spread, transient_as_unavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Of each pool: so many notes go at the same time, and with 64 pools and the quota they fit one transaction of 100.
_DUE_AT_ONCE = THREADS
# Nothing of the transaction was made, and what stood in its way passes.
_MET_ANOTHER = {"None", "ConditionalCheckFailed", *TRANSIENT_CODES}


class QuotaTable:
    """Quotas by name. `expected_pools` is how many pools a reading asks for at first; no quota has to have as many.

    A transaction costs two write units for each item. An item takes 1,000 units a second, so a pool takes 500 grants a
    second at the very most, and fewer where they meet: transactions on one item do not wait for each other, they fail.
    """

    def __init__(self, client: DynamoDBClient, table: str, executor: Executor, expected_pools: int) -> None:
        self._client, self._table, self._executor, self._expected = client, table, executor, expected_pools

    # --- reading ----------------------------------------------------------------------------------

    def read(self, name: str, token: str | None = None) -> tuple[Ledger | None, Grant | None]:
        """The quota with its pools, and the grant of a token. One read unit for each of these items.

        An item takes 3,000 read units a second, which bounds the grants of one name whatever its number of pools.
        """
        grant_keys = [] if token is None else [_grant_key(name, token)]
        found = self._get([_quota_key(name), *grant_keys, *_pool_keys(name, range(self._expected))])
        grant = None if token is None else _grant(name, token, found.get(keys.quota_grant_key(name, token)))
        quota = found.get(name)
        if quota is None:
            return None, grant
        pools = int(quota["pools"]["N"])
        if pools > self._expected:
            found |= self._get(_pool_keys(name, range(self._expected, pools)))
        ledger = Ledger(
            int(quota["units"]["N"]),
            int(quota["version"]["N"]),
            tuple(_pool(found.get(keys.quota_pool_key(name, pool))) for pool in range(pools)),
        )
        return ledger, grant

    def grant(self, name: str, token: str) -> Grant | None:
        """One read unit, on an item that nobody else reads."""
        with transient_as_unavailable():
            answer = self._client.get_item(TableName=self._table, Key=_grant_key(name, token), ConsistentRead=True)
        return _grant(name, token, answer.get("Item"))

    def standing(self, grants: Sequence[Grant]) -> list[Grant]:
        """One read unit for each; up to 100."""
        found = self._get([_grant_key(grant.name, grant.token) for grant in grants])
        records = (found.get(keys.quota_grant_key(grant.name, grant.token)) for grant in grants)
        return [
            grant
            for grant, record in zip(grants, records, strict=True)
            if _grant(grant.name, grant.token, record) == grant
        ]

    def due(self, name: str, pools: Sequence[int], until_ms: int) -> list[Grant]:
        """One read unit for each pool where few are due."""
        found = spread(self._executor, lambda pool: self._due(name, pool, until_ms), pools)
        return [grant for grants in found for grant in grants]

    def _due(self, name: str, pool: int, until_ms: int) -> list[Grant]:
        with transient_as_unavailable():
            answer = self._client.query(
                TableName=self._table,
                KeyConditionExpression="pk = :pk AND sk < :after",
                ExpressionAttributeValues={
                    ":pk": {"S": keys.quota_due_key(name, pool)},
                    ":after": {"S": keys.quota_due_after(until_ms)},
                },
                ConsistentRead=True,
                Limit=_DUE_AT_ONCE,
            )
        return [_reservation(name, item) for item in answer["Items"]]

    def _get(self, wanted: Sequence[Item]) -> dict[str, Item]:
        """Items by partition key."""
        found = batch_get(self._client, self._table, wanted, consistent=True)
        return {item["pk"]["S"]: item for item in found}

    # --- quotas -----------------------------------------------------------------------------------

    def create(self, name: str, limit: int, free: Sequence[int]) -> bool:
        """Two write units, and two for each pool."""
        first = {"version": {"N": "1"}}
        quota = {"units": {"N": str(limit)}, "pools": {"N": str(len(free))}, **first}
        pools = zip(_pool_keys(name, range(len(free))), free, strict=True)
        return self._transact(
            self._put({**_quota_key(name), **quota}),
            *(self._put({**key, "units": {"N": str(units)}, "returned": {"N": "0"}, **first}) for key, units in pools),
        )

    def move(self, name: str, seen: Ledger, limit: int, changes: Sequence[int]) -> bool:
        """Two write units, and two for each pool: all move to the next version, also those that nothing is added to."""
        # Another limit was put since, and the changes were made for the one before.
        still = "version = :seen"
        # Grants went on since; what is taken away must be there.
        enough = "units >= :taken"
        numbers = {":limit": limit, ":one": 1, ":seen": seen.version}
        quota = self._update(_quota_key(name), "SET units = :limit ADD version :one", still, numbers)
        pools = zip(_pool_keys(name, range(len(changes))), changes, strict=True)
        return self._transact(
            quota,
            *(
                self._update(key, "ADD units :change, version :one", enough, {":change": n, ":one": 1, ":taken": -n})
                for key, n in pools
            ),
        )

    # --- grants -----------------------------------------------------------------------------------

    def take(self, grant: Grant) -> bool:
        """Four write units from one pool; two more for each further pool, and for a reservation."""
        record = {**_grant_key(grant.name, grant.token), **_described(grant)}
        return self._transact(self._put(record), *self._taken(grant), *self._note(grant))

    def give_back(self, grants: Sequence[Grant]) -> bool:
        """Two write units for each grant, one more if it was reserved; and two for the pool.

        After a split two for each pool of the quota, and two more.
        """
        ended = [self._end(grant, "SET ended = :true", {":true": {"BOOL": True}}) for grant in grants]
        return self._transact(*ended, *self._returned(grants)) and self._forgotten(grants)

    def confirm(self, grant: Grant) -> bool:
        """Three write units."""
        return self._transact(self._end(grant, "REMOVE expires", {})) and self._forgotten([grant])

    def forget(self, grants: Sequence[Grant]) -> bool:
        """Two write units for each note, and two for each pool that the grants name.

        What ended the grant may still be on its way to a pool. It holds that pool then, and this fails; else who saw
        the note gone and the pool not yet filled would take the units for held.
        """
        there = "attribute_exists(pk)"
        pools = [_pool_key(grants[0].name, pool) for pool in grants[0].parts]
        untouched = [self._update(key, "ADD units :none", there, {":none": 0}) for key in pools]
        return self._transact(*untouched, *({"Delete": note} for note in self._note_keys(grants)))

    def _end(self, grant: Grant, expression: str, values: Item) -> Item:
        """What ends a grant, or its being a reservation: once, and if it still is what it was read to be."""
        condition = "attribute_exists(pk) AND attribute_not_exists(ended) AND "
        if grant.expires_ms is None:
            condition += "attribute_not_exists(expires)"
        else:
            condition += "expires = :expires"
            values = {**values, ":expires": {"N": str(grant.expires_ms)}}
        return {
            "Update": {
                "TableName": self._table,
                "Key": _grant_key(grant.name, grant.token),
                "UpdateExpression": expression,
                "ConditionExpression": condition,
                **({"ExpressionAttributeValues": values} if values else {}),
            }
        }

    def _taken(self, grant: Grant) -> Iterator[Item]:
        """Takes the parts; the pool that a reservation is noted beside remembers that there was one."""
        # Another grant has emptied the pool since it was read.
        enough = "units >= :part"
        noted = None if grant.expires_ms is None else _noted(grant)
        for pool, part in grant.parts.items():
            update, numbers = "SET units = units - :part", {":part": part}
            if pool == noted:
                update, numbers = f"{update}, reserves = :one", {**numbers, ":one": 1}
            if part or pool == noted:
                yield self._update(_pool_key(grant.name, pool), update, enough, numbers)

    def _returned(self, grants: Sequence[Grant]) -> Iterator[Item]:
        """Adds the parts. In one pool its returns tell of it; in several, the version of all."""
        there = "attribute_exists(pk)"
        name, pools = grants[0].name, grants[0].parts.keys()
        moved = "returned" if len(pools) == 1 else "version"
        for pool in pools:
            units = sum(grant.parts[pool] for grant in grants)
            key = _pool_key(name, pool)
            yield self._update(key, f"ADD units :units, {moved} :one", there, {":units": units, ":one": 1})
        if len(pools) > 1:
            yield self._update(_quota_key(name), "ADD version :one", there, {":one": 1})

    def _note(self, grant: Grant) -> Iterator[Item]:
        """When a reservation falls due, beside one of its pools."""
        for note in self._note_keys([grant]):
            yield self._put({**note["Key"], "parts": _packed(grant)})

    def _forgotten(self, grants: Sequence[Grant]) -> bool:
        """True; the notes are of no use any more, and should they stay, who finds them due forgets them."""
        spread(self._executor, self._delete, self._note_keys(grants))
        return True

    def _delete(self, note: Any) -> None:
        with suppress(Unavailable), transient_as_unavailable():
            self._client.delete_item(**note)

    def _note_keys(self, grants: Sequence[Grant]) -> list[Any]:
        """Table and key of each reservation's note; none for a grant that does not end by itself."""
        return [
            {
                "TableName": self._table,
                "Key": {
                    "pk": {"S": keys.quota_due_key(grant.name, _noted(grant))},
                    "sk": {"S": keys.quota_due_sort_key(grant.expires_ms, grant.token)},
                },
            }
            for grant in grants
            if grant.expires_ms is not None
        ]

    # --- transactions -----------------------------------------------------------------------------

    def _put(self, item: Item) -> Item:
        """A new item."""
        return {"Put": {"TableName": self._table, "Item": item, "ConditionExpression": "attribute_not_exists(pk)"}}

    def _update(self, key: Item, expression: str, condition: str, numbers: dict[str, int]) -> Item:
        return {
            "Update": {
                "TableName": self._table,
                "Key": key,
                "UpdateExpression": expression,
                "ConditionExpression": condition,
                "ExpressionAttributeValues": {name: {"N": str(number)} for name, number in numbers.items()},
            }
        }

    def _transact(self, *changes: Any) -> bool:
        """Whether all were made; False if none was, because another call changed something first or is about to.

        The SDK sends a token of its own along, so that a try whose reply was lost is not made twice.
        """
        with transient_as_unavailable():
            try:
                self._client.transact_write_items(TransactItems=list(changes))
            except self._client.exceptions.TransactionCanceledException as error:
                if {reason.get("Code", "None") for reason in error.response["CancellationReasons"]} <= _MET_ANOTHER:
                    return False
                raise
        return True


def _quota_key(name: str) -> Item:
    return {"pk": {"S": name}, "sk": {"S": keys.QUOTA}}


def _pool_key(name: str, pool: int) -> Item:
    return {"pk": {"S": keys.quota_pool_key(name, pool)}, "sk": {"S": keys.QUOTA_POOL}}


def _pool_keys(name: str, pools: range) -> list[Item]:
    return [_pool_key(name, pool) for pool in pools]


def _grant_key(name: str, token: str) -> Item:
    return {"pk": {"S": keys.quota_grant_key(name, token)}, "sk": {"S": keys.QUOTA_GRANT}}


def _noted(grant: Grant) -> int:
    """Beside which of its pools a reservation is noted."""
    return min(grant.parts)


def _packed(grant: Grant) -> Item:
    return {"M": {str(pool): {"N": str(part)} for pool, part in grant.parts.items()}}


def _unpacked(packed: Any) -> dict[int, int]:
    return {int(pool): int(part["N"]) for pool, part in packed["M"].items()}


def _described(grant: Grant) -> Item:
    expires = {} if grant.expires_ms is None else {"expires": {"N": str(grant.expires_ms)}}
    return {"parts": _packed(grant), **expires}


def _pool(item: Item | None) -> Pool:
    if item is None:
        return Pool()
    free, returns, version = (int(item[name]["N"]) for name in ("units", "returned", "version"))
    return Pool(free, returns, version, "reserves" in item)


def _grant(name: str, token: str, item: Any) -> Grant | None:
    if item is None:
        return None
    expires_ms = int(item["expires"]["N"]) if "expires" in item else None
    return Grant(name, token, _unpacked(item["parts"]), expires_ms, "ended" in item)


def _reservation(name: str, item: Any) -> Grant:
    expires_ms, token = keys.parse_quota_due_sort_key(item["sk"]["S"])
    return Grant(name, token, _unpacked(item["parts"]), expires_ms)
