"""Comparing counts with the records they come from, and correcting what was proven wrong.

A difference between the two is no drift yet: a like is recorded at once, counted a second later, and
in its index at some moment of its own. So one is believed only when all of this holds:

- two looks show the same rows (numbers and marks) and the same records;
- between them, some seconds after the first, the whole stream was read, and no record of the item lies beyond its
  row's mark;
- the index shows what the stream says last of each like that was touched within the hour;
- no parked record waits to be settled.

What is left is counted wrong for good. It is reported, and corrected only on request: by one addition
to the counter's adjustment row, on condition that the row is as it was seen. No count is ever assigned.
"""

from __future__ import annotations

import hashlib
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .aggregation import Record, Unreadable
from .errors import InvalidRequest
from .fold import Change, Lane
from .model import Counter, Like, LikeKey, Target

PIECE_TARGETS = 1_000
ROUNDS = 5  # looks at items that moved while they were looked at, before they are left for another run
WATCHED_S = 3600  # an index that is an hour behind is taken for one that has lost something
_WATCHED_LIKES = 100_000  # of one item; one with more within the hour is too busy to be judged

Spread = Callable[[Callable[[Target], "Look"], Sequence[Target]], "list[Look]"]
Verdict = Literal["exact", "drift", "moving", "pending", "unindexed"]


class RowsSeen(Protocol):
    """A target's counter rows, read consistently at one moment."""

    @property
    def counted(self) -> Mapping[str, int]:
        """The sum of the rows by reaction."""
        ...

    @property
    def digest(self) -> bytes:
        """Equal for rows with the same numbers and marks."""
        ...

    def adjustment(self, counter: Counter) -> int | None:
        """The number of the adjustment row; None if there is none."""
        ...

    def holds(self, lane: Lane, counter: Counter, sequence: int) -> bool:
        """Whether the lane's row has a mark at or above the sequence number."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Targets of a walk, how many were passed over, and where the next page begins; None at the end."""

    targets: tuple[Target, ...]
    passed_over: int
    cursor: str | None


class Pages(Protocol):
    """All targets there are, a page at a time."""

    def counted_page(self, cursor: str | None, *, skip_unchanged: bool, now_s: int) -> Page:
        """Targets that have counter rows, without those found right before and unchanged since, if these may go."""
        ...

    def uncounted_page(self, cursor: str | None) -> Page:
        """Targets that have likes and no counter row."""
        ...


class Books(Protocol):
    """What is counted and what is recorded."""

    def rows(self, target: Target) -> RowsSeen: ...

    def records(self, target: Target) -> Iterator[Like]:
        """Every like of the target, as its index shows them."""
        ...

    def correct(self, counter: Counter, by: int, seen: int | None) -> bool:
        """Adds to the adjustment row if its number is still the one seen; False if it is not."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """A target's rows and records. `indexed` are those of the watched likes that the index shows."""

    rows: RowsSeen
    recorded: Mapping[str, int]
    records_digest: int
    indexed: frozenset[LikeKey]

    @property
    def differences(self) -> dict[str, int]:
        """Counted less recorded by reaction, where they differ."""
        counted = self.rows.counted
        reactions = sorted({*counted, *self.recorded})
        found = {r: counted.get(r, 0) - self.recorded.get(r, 0) for r in reactions}
        return {reaction: difference for reaction, difference in found.items() if difference}

    def same_as(self, other: Look) -> bool:
        """Whether nothing of the target moved between the two."""
        return self.rows.digest == other.rows.digest and self.records_digest == other.records_digest


@dataclass(slots=True)
class Touched:
    """What the stream, which goes a day back, says of one target.

    `newest` is the highest sequence number by lane and counter; `standing` tells of each like touched
    within the hour whether it was there after the last of its records.
    """

    newest: dict[tuple[Lane, Counter], int] = field(default_factory=dict)
    standing: dict[LikeKey, bool] = field(default_factory=dict)
    too_many: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One target that is counted wrong, as it was proven, and whether it was corrected."""

    target: Target
    proven: Look
    repaired: bool

    @property
    def drift(self) -> int:
        """By how much, sign and reaction apart."""
        return sum(abs(difference) for difference in self.proven.differences.values())


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What became of the targets looked at. Open ones moved each time and belong to another run."""

    exact: Mapping[Target, Look]
    found: tuple[Finding, ...]
    open: Mapping[Target, tuple[Verdict, Look]]


def gather(pages: Pages, cursor: str | None, *, full: bool, now_s: int, is_time_over: Callable[[], bool]) -> Page:
    """The next targets to look at: about PIECE_TARGETS of them, or those of one page at least when time is over.

    A full walk looks at every target, and goes on to those that have likes but no counter row. Any other
    passes over what has not changed since it was found right.
    """
    targets: list[Target] = []
    passed_over = 0
    walk, _, start = (cursor or "counted.").partition(".")
    while True:
        if walk == "counted":
            page = pages.counted_page(start or None, skip_unchanged=not full, now_s=now_s)
        elif walk == "uncounted":
            page = pages.uncounted_page(start or None)
        else:
            raise InvalidRequest("is not one that the reconciler gave", "cursor")
        targets += page.targets
        passed_over += page.passed_over
        start = page.cursor or ""
        if not start and (walk == "uncounted" or not full):
            return Page(tuple(targets), passed_over, None)
        if not start:
            walk = "uncounted"
        if len(targets) >= PIECE_TARGETS or is_time_over():
            return Page(tuple(targets), passed_over, f"{walk}.{start}")


def look(books: Books, target: Target, watched: Set[LikeKey] = frozenset()) -> Look:
    """Reads a target: one Query of its rows, and its index from end to end."""
    rows = books.rows(target)
    recorded: Tally[str] = Tally()
    digest = 0
    indexed: set[LikeKey] = set()
    for like in books.records(target):
        recorded[like.key.reaction] += 1
        digest = (digest + _digest(like)) % 2**64  # a sum, so that order does not matter
        if like.key in watched:
            indexed.add(like.key)
    return Look(rows, dict(recorded), digest, frozenset(indexed))


def touched(
    records: Iterable[tuple[str, Record]],
    targets: Set[Target],
    *,
    read: Callable[[Record], Sequence[Change]],
    like_of: Callable[[Record], tuple[LikeKey, bool]],
    lane_of: Callable[[str], Lane],
    now_s: int,
) -> dict[Target, Touched]:
    """What the stream says of the targets, from (lane id, record) pairs, parents before children.

    A record that cannot be read was parked; it is the consumer's matter.
    """
    found: defaultdict[Target, Touched] = defaultdict(Touched)
    lanes: dict[str, Lane] = {}
    for lane_id, record in records:
        try:
            change = next((change for change in read(record) if change.counter.metric == "like"), None)
        except Unreadable:
            continue
        if change is None or change.counter.target not in targets:
            continue
        lane = lanes.get(lane_id) or lanes.setdefault(lane_id, lane_of(lane_id))
        of_target = found[change.counter.target]
        key = (lane, change.counter)
        of_target.newest[key] = max(of_target.newest.get(key, 0), change.sequence)
        if change.time_s >= now_s - WATCHED_S and not of_target.too_many:
            like, stands = like_of(record)
            of_target.standing[like] = stands
            of_target.too_many = len(of_target.standing) > _WATCHED_LIKES
    return found


def judge(first: Look, second: Look, seen: Touched) -> Verdict:
    """What two looks, with the stream read in between, prove."""
    if not second.differences:
        return "exact"
    if not second.same_as(first) or seen.too_many:
        return "moving"
    if not all(second.rows.holds(lane, counter, n) for (lane, counter), n in seen.newest.items()):
        return "pending"
    if second.indexed != {like for like, stands in seen.standing.items() if stands}:
        return "unindexed"
    return "drift"


def reconcile(
    targets: Sequence[Target],
    *,
    books: Books,
    stream: Callable[[Set[Target]], Mapping[Target, Touched] | None],
    parked: Callable[[], bool],
    spread: Spread,
    repair: bool,
    settle_s: float,
    sleep: Callable[[float], None],
    is_time_over: Callable[[], bool],
) -> Reconciled:
    """Looks at each target, and again at those that differ until they are proven exact or wrong.

    `settle_s` lies between a look and the reading of the stream: what the index shows in the one has reached the
    other by then. `stream` reads the whole stream, once per round, and gives None when time ran out; `parked` tells
    whether a parked record waits. What is not judged when time is over stays open.
    Safe to end anywhere and to repeat: a correction that landed is seen as such by the next look.
    """
    exact: dict[Target, Look] = {}
    found: list[Finding] = []
    looks = _look_at(targets, books, spread)
    verdicts: dict[Target, Verdict] = {}
    for _ in range(ROUNDS):
        suspects = _set_apart(looks, exact)
        verdicts = dict.fromkeys(suspects, "moving")
        if not suspects or is_time_over():
            break
        waits = parked()
        firsts = looks
        sleep(settle_s)
        looks = _look_at(
            suspects, books, spread
        )  # most were only on their way, and the stream need not be read for them
        still = [target for target in _set_apart(looks, exact) if looks[target].same_as(firsts[target])]
        said = stream(set(still)) if still else {}
        if said is None:
            break
        waits = parked() or waits
        for target, second in _look_at(still, books, spread, said).items():
            verdict = judge(firsts[target], second, said.get(target) or Touched())
            if verdict == "drift" and not waits:
                found.append(_settle(books, target, second, repair=repair))
                del looks[target]
                continue
            looks[target], verdicts[target] = second, "pending" if verdict == "drift" else verdict
    left = _set_apart(looks, exact)
    return Reconciled(exact, tuple(found), {target: (verdicts[target], looks[target]) for target in left})


def _look_at(
    targets: Sequence[Target], books: Books, spread: Spread, said: Mapping[Target, Touched] | None = None
) -> dict[Target, Look]:
    def one(target: Target) -> Look:
        return look(books, target, said[target].standing.keys() if said and target in said else frozenset())

    return dict(zip(targets, spread(one, targets), strict=True))


def _set_apart(looks: Mapping[Target, Look], exact: dict[Target, Look]) -> list[Target]:
    """Moves those without a difference to the exact ones; the others are returned."""
    exact |= {target: seen for target, seen in looks.items() if not seen.differences}
    return [target for target, seen in looks.items() if seen.differences]


def _settle(books: Books, target: Target, proven: Look, *, repair: bool) -> Finding:
    wrong = [(Counter(target, reaction), difference) for reaction, difference in proven.differences.items()]
    repaired = repair and all(books.correct(c, -by, proven.rows.adjustment(c)) for c, by in wrong)
    return Finding(target, proven, repaired)


def _digest(like: Like) -> int:
    key = like.key
    parts = (key.user_id, key.target.item_type, key.target.item_id, key.reaction, str(like.stamp.ms))
    text = "\x1f".join(parts).encode("utf-8", "surrogatepass") + like.stamp.nonce
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
