"""Quotas: never more granted than the limit, and nothing refused while enough remains.

A quota's free units lie in pools, so that grants at the same moment meet at different items. Every change is one
transaction with conditions: a grant takes its units and records its token, or does neither. So what is granted and
what is free always add up to the limit, whatever is repeated, lost or left half-way; nothing else has to be done for
"never more".

"Never refused too early" has to be read off the pools, which no reading shows as of one instant, and a transaction
becomes visible item by item. It is enough to know that nothing was *added* meanwhile:

- A grant that comes back to one pool moves that pool's count of `returns`; whatever adds to several pools (another
  limit, the return of a grant that was split) moves the `version` of the quota and of all its pools.
- A reading whose versions agree shows each of those either whole or not at all.
- If a second, later reading shows the same versions and the same returns, nothing was added to any pool between its
  two readings. There is an instant between the two, and at it no pool held more than the first reading said: grants
  only take. So if the first reading's sum is too small, too little remained at that instant.

The readings are plain ones, which running grants do not disturb: a refusal waits for nothing but returns, and then
there is something to try again for. docs/decisions/0016 compares this with an atomic read.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Protocol, TypeVar

from .errors import Conflict, Exhausted, NotFound, Unavailable

T = TypeVar("T")

MAX_EXPIRY_S = 86_400
MARK_LIFETIME_US = 800_000  # a mark that a return could not take away is gone within a second

_PATIENCE_MS = 3_000  # of the 10 s that a request may take; two calls of the store may be under way when it ends
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.2
_MAX_PROCESS_MARKS = 10_000


@dataclass(frozen=True, slots=True)
class Pool:
    """Units that are free, how often a grant came back, and the quota's version as this pool has it (0: no pool).

    `reserves` tells whether a reservation was ever noted beside it.
    """

    free: int = 0
    returns: int = 0
    version: int = 0
    reserves: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """A quota and its pools, each as of a moment of its own."""

    limit: int
    version: int
    pools: tuple[Pool, ...]

    @property
    def free(self) -> int:
        return sum(pool.free for pool in self.pools)

    @property
    def whole(self) -> bool:
        """Whether it shows no change of several pools by half; then what is free is from 0 to the limit."""
        return all(pool.version == self.version for pool in self.pools)

    def gained_nothing_until(self, later: Ledger) -> bool:
        """Whether nothing was added to any pool from this reading until the later one."""
        return (
            later.whole
            and later.version == self.version
            and [pool.returns for pool in later.pools] == [pool.returns for pool in self.pools]
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """Units that a token holds, and from which pools they came.

    A grant from one pool names that pool. One that was split names all pools, those that gave nothing too, because
    its return moves the version of all.
    """

    name: str
    token: str
    parts: Mapping[int, int]
    expires_ms: int | None = None
    ended: bool = False

    @property
    def amount(self) -> int:
        return sum(self.parts.values())

    def holds(self, now_ms: int) -> bool:
        """Whether it still does: not released, and no reservation whose time is over."""
        return not self.ended and (self.expires_ms is None or now_ms < self.expires_ms)


class Ledgers(Protocol):
    """Quotas as they are stored. A change says whether it was made; False: somebody else changed something first."""

    def read(self, name: str, token: str | None = None) -> tuple[Ledger | None, Grant | None]:
        """The quota, and the grant of the token, each item read consistently."""
        ...

    def grant(self, name: str, token: str) -> Grant | None:
        """The grant alone, read consistently."""
        ...

    def standing(self, grants: Sequence[Grant]) -> list[Grant]:
        """Those of one quota's grants that still are what they are given as, each read consistently."""
        ...

    def due(self, name: str, pools: Sequence[int], until_ms: int) -> list[Grant]:
        """Reservations that end by then, as they were noted beside these pools: of each its first, 16 at most.

        The note of one that was ended or confirmed may still be there.
        """
        ...

    def create(self, name: str, limit: int, free: Sequence[int]) -> bool:
        """A new quota with a pool for each number of free units."""
        ...

    def move(self, name: str, seen: Ledger, limit: int, changes: Sequence[int]) -> bool:
        """Another limit, and what it adds to or takes from each pool."""
        ...

    def take(self, grant: Grant) -> bool:
        """Records the grant and takes its parts from their pools."""
        ...

    def give_back(self, grants: Sequence[Grant]) -> bool:
        """Ends up to 16 grants that name the same pools and returns their parts to them: all of them or none."""
        ...

    def confirm(self, grant: Grant) -> bool:
        """Makes a reservation permanent."""
        ...

    def forget(self, grants: Sequence[Grant]) -> bool:
        """Removes the notes of reservations that were ended or confirmed, once that shows in all pools.

        Up to 16, which name the same pools.
        """
        ...


# --- marks: what was seen to remain -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """At most how much remained a moment ago (None: not known), and when that was asked, by the marks' own clock.

    Without a time the marks do not answer, and nothing may be put under it.
    """

    remaining: int | None
    at_us: int | None


class Marks(Protocol):
    """Remembers refusals for a moment, so that a name that is sold out costs its store nothing. Never raises.

    A mark counts from the moment at which it was asked for, before the pools were read. One that was asked for before
    a return is never put after it; should the marks not hear of the return, its lifetime ends it.
    """

    def peek(self, name: str) -> Mark: ...

    def put(self, name: str, remaining: int, asked: Mark, life_us: int) -> None:
        """At most this much remained at some moment after the mark was asked for.

        It lives from then on, and no longer than until the next reservation ends: nobody clears it for that.
        """
        ...

    def clear(self, name: str) -> None:
        """Something was added."""
        ...


class ProcessMarks:
    """Marks in this process's memory; it does not hear of returns elsewhere. Safe between threads."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._marks: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._cleared_us = -1  # of any name: a function serves one call at a time
        self._lock = Lock()

    def peek(self, name: str) -> Mark:
        with self._lock:
            now_us = self._now_us()
            remaining, ends_us = self._marks.get(name, (None, 0))
            return Mark(remaining if now_us < ends_us else None, now_us)

    def put(self, name: str, remaining: int, asked: Mark, life_us: int) -> None:
        with self._lock:
            if asked.at_us is not None and asked.at_us > self._cleared_us:
                self._marks[name] = remaining, asked.at_us + life_us
                self._marks.move_to_end(name)
                if len(self._marks) > _MAX_PROCESS_MARKS:
                    self._marks.popitem(last=False)

    def clear(self, name: str) -> None:
        with self._lock:
            self._cleared_us = self._now_us()
            self._marks.pop(name, None)


# --- what callers ask -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quotas:
    """Where quotas are kept, and what deciding about them takes. `pools` is for new ones."""

    ledgers: Ledgers
    marks: Marks
    now_ms: Callable[[], int]
    sleep: Callable[[float], None]
    rng: random.Random
    pools: int


@dataclass(frozen=True, slots=True)
class State:
    """A quota as it was at about one moment. Exact when nothing else runs, and always from 0 to the limit."""

    limit: int
    remaining: int

    @property
    def used(self) -> int:
        return self.limit - self.remaining


@dataclass(frozen=True, slots=True)
class Granted:
    """A grant that stands, and what remains beside it, as in `State`."""

    grant: Grant
    remaining: int


def state(quotas: Quotas, name: str) -> State:
    """The quota as it is; NotFound.

    Reservations whose time is over are taken back first: the more, the longer it takes. More than there is time for
    are Unavailable, and a repeat goes on where this ended.
    """
    return _settled(quotas, lambda began_ms: _state(quotas, name, began_ms))


def put(quotas: Quotas, name: str, limit: int) -> State:
    """Makes the quota, or gives it another limit; Conflict below what is used. Safe to repeat.

    What is free is spread evenly over the pools.
    """
    return _settled(quotas, lambda began_ms: _put(quotas, name, limit, began_ms))


def acquire(quotas: Quotas, name: str, token: str, amount: int, expires_s: int | None = None) -> Granted:
    """Grants the amount to the token, for good or as a reservation that ends by itself. Safe to repeat.

    A token that is known answers its grant, whatever else is asked; after its end that is a Conflict. Exhausted: less
    than the amount remained at some moment since the call began, or by a mark a moment before; nothing is kept of the
    call. NotFound: no such quota.
    """
    return _settled(quotas, lambda began_ms: _acquire(quotas, name, token, amount, expires_s, began_ms))


def release(quotas: Quotas, name: str, token: str) -> bool:
    """Gives back what the token holds; False if it holds nothing (any more). Safe to repeat; NotFound."""
    return _settled(quotas, lambda _: _release(quotas, name, token))


def confirm(quotas: Quotas, name: str, token: str) -> bool:
    """Makes a reservation permanent; False if the token holds nothing (any more). Safe to repeat; NotFound."""
    return _settled(quotas, lambda _: _confirm(quotas, name, token))


def _settled(quotas: Quotas, attempt: Callable[[int], T | None]) -> T:
    """What the first attempt that is not None says, with growing, jittered pauses; Unavailable when time is over.

    Each is told when the call began.
    """
    began_ms = quotas.now_ms()
    for n in count():
        if (answer := attempt(began_ms)) is not None:
            return answer
        if _late(quotas, began_ms):
            break
        quotas.sleep(quotas.rng.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(n, 10))))
    raise Unavailable("many calls meet at this quota; try again")


def _late(quotas: Quotas, began_ms: int) -> bool:
    return quotas.now_ms() >= began_ms + _PATIENCE_MS


# --- one attempt: an answer, or None when somebody else changed something first ---------------------------------


def _state(quotas: Quotas, name: str, began_ms: int) -> State | None:
    ledger, _ = _read(quotas, name)
    if not ledger.whole or _reclaim(quotas, name, ledger, ledger.limit, began_ms) is None:
        return None
    return State(ledger.limit, ledger.free)


def _put(quotas: Quotas, name: str, limit: int, began_ms: int) -> State | None:
    ledger, _ = quotas.ledgers.read(name)
    if ledger is None:
        made = quotas.ledgers.create(name, limit, shares(limit, quotas.pools))
        return State(limit, limit) if made else None
    if not ledger.whole or _reclaim(quotas, name, ledger, ledger.limit, began_ms) is None:
        return None
    free = ledger.free + limit - ledger.limit
    if free < 0:
        if ledger.gained_nothing_until(_read(quotas, name)[0]):
            raise Conflict(f"{ledger.limit - ledger.free} are used, more than this limit", "limit")
        return None
    if limit != ledger.limit:
        if not quotas.ledgers.move(name, ledger, limit, _changes(ledger, shares(free, len(ledger.pools)))):
            return None
        quotas.marks.clear(name)
    return State(limit, free)


def _acquire(
    quotas: Quotas, name: str, token: str, amount: int, expires_s: int | None, began_ms: int
) -> Granted | None:
    mark = quotas.marks.peek(name)
    if mark.remaining is not None and mark.remaining < amount and quotas.ledgers.grant(name, token) is None:
        raise _exhausted(mark.remaining)
    ledger, known = _read(quotas, name, token)
    if not ledger.whole:
        return None
    if known is not None:
        return _again(quotas, ledger, known)
    parts = draw(ledger, amount, quotas.rng)
    if parts is None:
        _refuse(quotas, ledger, name, token, amount, mark, began_ms)
        return None
    expires_ms = None if expires_s is None else quotas.now_ms() + expires_s * 1000
    grant = Grant(name, token, parts, expires_ms)
    return Granted(grant, ledger.free - amount) if quotas.ledgers.take(grant) else None


def _refuse(quotas: Quotas, ledger: Ledger, name: str, token: str, amount: int, mark: Mark, began_ms: int) -> None:
    """Exhausted, if that can be known; returns where something may have been added, or the token granted."""
    quiet_us = _reclaim(quotas, name, ledger, amount - ledger.free, began_ms)
    if quiet_us is None:
        return
    later, meanwhile = _read(quotas, name, token)
    if meanwhile is None and ledger.gained_nothing_until(later):
        quotas.marks.put(name, ledger.free, mark, quiet_us)
        raise _exhausted(ledger.free)


def _again(quotas: Quotas, ledger: Ledger, known: Grant) -> Granted:
    if not known.holds(quotas.now_ms()):
        raise Conflict("this token's grant has ended, and with it the token", "token")
    return Granted(known, ledger.free)


def _release(quotas: Quotas, name: str, token: str) -> bool | None:
    grant = _grant(quotas, name, token)
    if grant is None or grant.ended:
        return False
    held = grant.holds(quotas.now_ms())
    return held if _give_back(quotas, [grant]) else None


def _confirm(quotas: Quotas, name: str, token: str) -> bool | None:
    grant = _grant(quotas, name, token)
    if grant is None or not grant.holds(quotas.now_ms()):
        return False
    return True if grant.expires_ms is None or quotas.ledgers.confirm(grant) else None


def _reclaim(quotas: Quotas, name: str, ledger: Ledger, wanted: int, began_ms: int) -> int | None:
    """Takes back reservations that had ended when the call began, as many as hold what is wanted, while there is time.

    None if there were any, so that the ledger is to be read again. Else for how long no other ends, in microseconds
    from now on and at most as long as a mark lives; one that is being made lasts longer than that.
    """
    due, quiet_us = _due(quotas, name, ledger, began_ms)
    if not due:
        return quiet_us
    while due and wanted > 0 and not _late(quotas, began_ms):
        taken = _take_back(quotas, due, wanted, began_ms)
        if not taken:
            break
        wanted -= taken
        due, _ = _due(quotas, name, ledger, began_ms)
    return None


def _due(quotas: Quotas, name: str, ledger: Ledger, began_ms: int) -> tuple[list[Grant], int]:
    """Some of the reservations that had ended when the call began, and for how long no other ends.

    That one counts is a matter of when the call began: else a call whose reservations end one after the other would
    never be done.
    """
    reserving = [i for i, pool in enumerate(ledger.pools) if pool.reserves]
    now_ms = quotas.now_ms()
    noted = quotas.ledgers.due(name, reserving, now_ms + MARK_LIFETIME_US // 1000)
    later = [grant for grant in noted if grant.holds(began_ms)]
    quiet_us = min((MARK_LIFETIME_US, *((grant.expires_ms - now_ms) * 1000 for grant in later if grant.expires_ms)))
    return [grant for grant in noted if not grant.holds(began_ms)], quiet_us


def _take_back(quotas: Quotas, due: list[Grant], wanted: int, began_ms: int) -> int:
    """How many units came back; notes that are of no use any more go."""
    quotas.rng.shuffle(due)  # others are at it too
    taken = 0
    for batch in batches(due, wanted):
        if _late(quotas, began_ms):
            break
        if _give_back(quotas, batch):
            taken += sum(grant.amount for grant in batch)
            continue
        standing = quotas.ledgers.standing(batch)
        if gone := [grant for grant in batch if grant not in standing]:
            quotas.ledgers.forget(gone)
    return taken


def _give_back(quotas: Quotas, grants: Sequence[Grant]) -> bool:
    if not quotas.ledgers.give_back(grants):
        return False
    quotas.marks.clear(grants[0].name)
    return True


def _read(quotas: Quotas, name: str, token: str | None = None) -> tuple[Ledger, Grant | None]:
    ledger, grant = quotas.ledgers.read(name, token)
    if ledger is None:
        raise NotFound(f"there is no quota {name}; PUT /v1/quotas/{name} makes one")
    return ledger, grant


def _grant(quotas: Quotas, name: str, token: str) -> Grant | None:
    """The token's grant; where there is none, NotFound if there is no quota either."""
    grant = quotas.ledgers.grant(name, token)
    return _read(quotas, name, token)[1] if grant is None else grant


# --- decisions --------------------------------------------------------------------------------------------------


def shares(total: int, pools: int) -> list[int]:
    """The total, split evenly, larger parts first: 5 over 3 is 2, 2, 1."""
    part, rest = divmod(total, pools)
    return [part + (pool < rest) for pool in range(pools)]


def draw(ledger: Ledger, amount: int, rng: random.Random) -> dict[int, int] | None:
    """From which pools the amount can come: any one that has it, else the fullest together; None if all have less."""
    enough = [i for i, pool in enumerate(ledger.pools) if pool.free >= amount]
    if enough:
        return {rng.choice(enough): amount}
    if ledger.free < amount:
        return None
    parts = dict.fromkeys(range(len(ledger.pools)), 0)
    for i in sorted(parts, key=lambda i: -ledger.pools[i].free):
        parts[i] = min(ledger.pools[i].free, amount)
        amount -= parts[i]
    return parts


def batches(due: Sequence[Grant], wanted: int) -> list[list[Grant]]:
    """The first that hold what is wanted, those together that name the same pools."""
    by_pools: dict[frozenset[int], list[Grant]] = {}
    for grant in due:
        if wanted <= 0:
            break
        by_pools.setdefault(frozenset(grant.parts), []).append(grant)
        wanted -= grant.amount
    return list(by_pools.values())


def _changes(ledger: Ledger, wanted: Sequence[int]) -> list[int]:
    return [free - pool.free for free, pool in zip(wanted, ledger.pools, strict=True)]


def _exhausted(remaining: int) -> Exhausted:
    return Exhausted(f"less remains than was asked for: {remaining}", "amount")
