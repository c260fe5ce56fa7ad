"""A table of quotas under calls whose steps interleave in every way that DynamoDB leaves open, and more.

The adapter and the rules are the real ones, over the simulated engine. Between two steps of a call any other may act:

- a read of many items reads each by itself;
- a transaction is decided at one moment, all or nothing, and holds its items until it has written them, one by one in
  any order; what is held can be read, and fails any other transaction (`TransactionConflict`);
- a reply may be lost, and a call may die at any step. What was decided is written all the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from threading import Semaphore, Thread
from typing import Any

from botocore.exceptions import ReadTimeoutError

from tallymark import quotas
from tallymark.quotas import Ledger, Mark, ProcessMarks, Quotas
from tallymark.storage.quota_table import QuotaTable
from tests.simulation.dynamodb import Database, Table, error, exceptions

NAME = "seats"


class Died(BaseException):
    """The function ends where it stands."""


class InTurn(Executor):
    """What is submitted is done at once, by who submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class NoMarks:
    """Nothing is remembered, so that every refusal has to be right by itself."""

    def peek(self, name: str) -> Mark:
        return Mark(None, None)

    def put(self, name: str, remaining: int, asked: Mark, life_us: int) -> None: ...

    def clear(self, name: str) -> None: ...


@dataclass(frozen=True)
class Held:
    amount: int
    expires_ms: int | None


@dataclass(frozen=True)
class Truth:
    """The quota as a plain model has it, at one moment."""

    limit: int
    held: Mapping[str, Held] = field(default_factory=dict)

    def remaining(self, expired_ms: int) -> int:
        """Reservations whose time was over by then count as free."""
        live = (h.amount for h in self.held.values() if h.expires_ms is None or h.expires_ms > expired_ms)
        return self.limit - sum(live)


@dataclass
class Call:
    """A call on its way, and what came of it: an answer, an error, or nothing."""

    run: Callable[[], Any]
    rank: float
    began: int = 0  # positions in the world's history
    ended: int = 0
    began_ms: int = 0
    outcome: Any = None
    done: bool = False
    dead: bool = False
    waits_for: _Landing | None = None
    go: Semaphore = field(default_factory=lambda: Semaphore(0))


@dataclass
class _Landing:
    """A transaction that is decided: what is still to be written."""

    left: list[tuple[str, Mapping[str, Any]]]
    keys: set[Any]
    rank: float
    first_pool: list[Callable[[], None]] = field(default_factory=list)  # what it means, for those that add


class World:
    """One step of one call, or of one transaction's writing, at a time, in the order that the seed draws.

    The one with the highest rank goes on until ranks change: so some stand still while others do all their work, which
    is what it takes to go wrong, and what a draw for each step hardly ever brings.
    """

    def __init__(
        self, limit: int, pools: int, seed: int, *, crashes: float = 0.0, lost: float = 0.0, marked: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000_000
        self.history = [Truth(limit)]
        self.round_began = 0  # in the history
        self.marked = marked
        self.database = Database([Table("quotas", ("pk", "sk"))])
        self._crashes, self.lost = crashes, 0.0
        self._landings: list[_Landing] = []
        self._back = Semaphore(0)
        self._current: Call | None = None
        self.client = _Client(self)
        client: Any = self.client
        self.table = QuotaTable(client, "quotas", InTurn(), pools)
        marks = ProcessMarks(lambda: self.now_ms * 1000) if marked else NoMarks()
        self.quotas = Quotas(self.table, marks, self._now, self._sleep, self.rng, pools)
        assert quotas.put(self.quotas, NAME, limit).remaining == limit
        self._drain()
        self.lost = lost

    @property
    def truth(self) -> Truth:
        return self.history[-1]

    def becomes(self, truth: Truth) -> None:
        self.history.append(truth)
        assert sum(held.amount for held in truth.held.values()) <= truth.limit, "more is granted than the limit"

    # --- calls ----------------------------------------------------------------------------------------------

    def run(self, works: Sequence[Callable[[Quotas], Any]]) -> list[Call]:
        """The calls, all begun at once, after their last step."""
        self.round_began = len(self.history) - 1
        calls = [Call(lambda work=work: work(self.quotas), self.rng.random()) for work in works]  # type: ignore[misc]
        for call in calls:
            Thread(target=self._work, args=(call,), daemon=True).start()
        while True:
            ready: list[Any] = [call for call in calls if not call.done and not self._waits(call)]
            ready += self._landings
            if not ready:
                return calls
            chosen = max(ready, key=lambda one: one.rank)
            if self.rng.random() < 0.15:
                chosen.rank = self.rng.random()
            self.now_ms += 1
            if isinstance(chosen, _Landing):
                self._land(chosen)
            else:
                self._step_of(chosen)

    def _waits(self, call: Call) -> bool:
        return call.waits_for is not None and bool(call.waits_for.left)

    def _step_of(self, call: Call) -> None:
        call.dead = self.rng.random() < self._crashes
        self._current = call
        call.go.release()
        self._back.acquire()
        self._current = None

    def _work(self, call: Call) -> None:
        call.go.acquire()
        call.began, call.began_ms = len(self.history) - 1, self.now_ms
        try:
            call.outcome = call.run()
        except Died:
            call.outcome = None
        except Exception as failure:  # noqa: BLE001 (the test looks at it)
            call.outcome = failure
        call.ended = len(self.history) - 1
        call.done = True
        self._back.release()

    def step(self) -> None:
        """Lets others act; returns when it is this call's turn again."""
        call = self._current
        if call is None:  # while the world is being made
            self._drain()
            return
        self._back.release()
        call.go.acquire()
        if call.dead:
            raise Died

    def _now(self) -> int:
        return self.now_ms

    def _sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.step()

    # --- transactions ---------------------------------------------------------------------------------------

    def decide(self, actions: list[tuple[str, Mapping[str, Any]]]) -> None:
        """Returns when all is written."""
        keys = {_key(kind, action) for kind, action in actions}
        if any(keys & landing.keys for landing in self._landings):
            raise _cancelled(["TransactionConflict"])
        reasons = [self.database._reason(kind, action)["Code"] for kind, action in actions]
        if set(reasons) != {"None"}:
            raise _cancelled(reasons)
        left = list(actions)
        self.rng.shuffle(left)
        landing = _Landing(left, keys, self.rng.random())
        self._judge(actions, landing)
        self._landings.append(landing)
        if self._current is not None:
            self._current.waits_for = landing
        self.step()

    def _land(self, landing: _Landing) -> None:
        kind, action = landing.left.pop()
        self.database._act(kind, action)
        if _key(kind, action)[1] == "pool":
            for become in landing.first_pool:
                become()
            landing.first_pool.clear()
        if not landing.left:
            self._landings.remove(landing)

    def _drain(self) -> None:
        while self._landings:
            self._land(self._landings[0])

    def _judge(self, actions: list[tuple[str, Mapping[str, Any]]], landing: _Landing) -> None:
        """What a transaction means: what takes, at once; what adds, when the first pool has it."""
        for kind, action in actions:
            pk, sk = _key(kind, action)
            if sk == "quota" and kind == "Update" and ":limit" in action["ExpressionAttributeValues"]:
                self._limited(int(action["ExpressionAttributeValues"][":limit"]["N"]), landing)
            elif sk == "grant" and kind == "Put":
                expires = int(action["Item"]["expires"]["N"]) if "expires" in action["Item"] else None
                amount = sum(int(part["N"]) for part in action["Item"]["parts"]["M"].values())
                token = pk.split("#", 2)[2]
                assert token not in self.truth.held
                self.becomes(replace(self.truth, held={**self.truth.held, token: Held(amount, expires)}))
            elif sk == "grant":
                self._changed(pk.split("#", 2)[2], action["UpdateExpression"], landing)

    def _limited(self, limit: int, landing: _Landing) -> None:
        def become() -> None:
            self.becomes(replace(self.truth, limit=limit))

        if limit < self.truth.limit:
            become()
        else:
            landing.first_pool.append(become)

    def _changed(self, token: str, update: str, landing: _Landing) -> None:
        if update.startswith("REMOVE"):
            kept = replace(self.truth.held[token], expires_ms=None)
            self.becomes(replace(self.truth, held={**self.truth.held, token: kept}))
            return
        assert token in self.truth.held, "given back twice"

        def become() -> None:
            self.becomes(replace(self.truth, held={t: h for t, h in self.truth.held.items() if t != token}))

        landing.first_pool.append(become)

    def ledger(self) -> Ledger:
        """What is stored in the end."""
        found, _ = self.table.read(NAME)
        assert found is not None
        return found


class _Client:
    """The part of the SDK's client that the adapter calls."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def exceptions(self) -> Any:
        return exceptions()

    def get_item(self, **request: Any) -> Any:
        return self._stepped(lambda: self._world.database.get_item(**request))

    def delete_item(self, **request: Any) -> Any:
        return self._stepped(lambda: self._world.database.delete_item(**request))

    def query(self, **request: Any) -> Any:
        return self._stepped(lambda: self._world.database.query(**request))

    def batch_get_item(self, *, RequestItems: Mapping[str, Any]) -> Any:
        ((table, wanted),) = RequestItems.items()
        keys = list(wanted["Keys"])
        self._world.rng.shuffle(keys)
        found = [self.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item") for key in keys]
        return {"Responses": {table: [item for item in found if item is not None]}, "UnprocessedKeys": {}}

    def transact_write_items(self, *, TransactItems: Sequence[Mapping[str, Any]]) -> Any:
        self._stepped(lambda: None)
        self._world.decide([next(iter(item.items())) for item in TransactItems])
        if self._world.rng.random() < self._world.lost:
            raise ReadTimeoutError(endpoint_url="https://store.invalid")
        return {}

    def _stepped(self, work: Callable[[], Any]) -> Any:
        self._world.step()
        return work()


def _key(kind: str, action: Mapping[str, Any]) -> tuple[str, str]:
    key = action["Item"] if kind == "Put" else action["Key"]
    return key["pk"]["S"], key["sk"]["S"]


def _cancelled(codes: list[str]) -> Exception:
    reasons = [{"Code": code} for code in codes]
    return error("TransactionCanceledException", "TransactWriteItems", CancellationReasons=reasons)
