from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark import likes
from tallymark.errors import TallymarkError, Unavailable
from tallymark.likes import Operation, apply_all
from tallymark.model import Like, LikeKey, Stamp, Target

A, B = LikeKey("ann", Target("post", "1")), LikeKey("ann", Target("post", "2"))


class Records:
    """Records in memory; refuses two writes of one key in one call, as the store does."""

    def __init__(self) -> None:
        self.standing: dict[LikeKey, Like] = {}
        self.calls: list[list[LikeKey]] = []
        self.broken: set[LikeKey] = set()

    def put(self, like: Like) -> Like:
        return self.standing.setdefault(like.key, like)

    def delete(self, key: LikeKey) -> bool:
        return self.standing.pop(key, None) is not None

    def write_many(self, writes: Sequence[Like | LikeKey]) -> list[bool | TallymarkError]:
        written = [write.key if isinstance(write, Like) else write for write in writes]
        assert len(set(written)) == len(written), "keys must differ"
        self.calls.append(written)
        return [self._write(write) for write in writes]

    def _write(self, write: Like | LikeKey) -> bool | TallymarkError:
        if isinstance(write, LikeKey):
            return self.delete(write)
        if write.key in self.broken:
            return Unavailable("busy")
        return self.put(write) == write

    def liked(self, keys: Sequence[LikeKey]) -> set[LikeKey]:
        return {key for key in keys if key in self.standing}

    def reactions(self, user_id: str, targets: Sequence[Target]) -> dict[Target, list[str]]:
        return {t: [k.reaction for k in self.standing if (k.user_id, k.target) == (user_id, t)] for t in targets}


def test_the_first_like_changes_and_a_repeat_gives_the_first_time() -> None:
    records = Records()
    assert likes.like(records, A, at_ms=1) == likes.Liked(changed=True, liked_at_ms=1)
    assert likes.like(records, A, at_ms=2) == likes.Liked(changed=False, liked_at_ms=1)
    assert likes.like(records, A, at_ms=1) == likes.Liked(changed=False, liked_at_ms=1), "same time, another call"


def test_a_like_that_finds_its_own_stamp_has_changed_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt landed, its reply was lost, the repeat finds the record."""
    records, stamp = Records(), Stamp.at(1)
    records.put(Like(A, stamp))
    monkeypatch.setattr(Stamp, "at", lambda _: stamp)
    assert likes.like(records, A, at_ms=1).changed


def test_an_unlike_changes_something_once() -> None:
    records = Records()
    likes.like(records, A, at_ms=1)
    assert [likes.unlike(records, A), likes.unlike(records, A)] == [True, False]


def test_operations_on_one_like_take_turns_and_others_go_together() -> None:
    operations = [Operation(A, True), Operation(B, True), Operation(A, False), Operation(A, True), Operation(B, False)]
    assert likes._turns(operations) == [[0, 1], [2, 4], [3]]


def test_results_stand_in_the_order_of_the_operations() -> None:
    records = Records()
    operations = [Operation(A, True), Operation(A, True), Operation(B, False), Operation(A, False), Operation(A, False)]
    assert apply_all(records, operations, now_ms=5) == [True, False, False, True, False]
    assert records.standing == {}


def test_nothing_to_do_asks_nothing_of_the_store() -> None:
    records = Records()
    assert apply_all(records, [], now_ms=5) == []
    assert records.calls == []


def test_a_like_carries_the_time_sent_or_now() -> None:
    records = Records()
    apply_all(records, [Operation(A, True, liked_at_ms=-5), Operation(B, True)], now_ms=5)
    assert [records.standing[key].stamp.ms for key in (A, B)] == [-5, 5]


def test_an_operation_that_fails_spoils_no_other() -> None:
    records = Records()
    records.broken = {A}
    failed, done = apply_all(records, [Operation(A, True), Operation(B, True)], now_ms=5)
    assert isinstance(failed, Unavailable)
    assert done is True


@settings(deadline=None)
@given(st.lists(st.builds(Operation, st.sampled_from([A, B]), st.booleans()), max_size=12))
def test_a_batch_ends_as_its_operations_one_after_the_other(operations: list[Operation]) -> None:
    together, apart = Records(), Records()
    results = apply_all(together, operations, now_ms=5)
    expected = [
        likes.like(apart, made.key, at_ms=5).changed if made.like else likes.unlike(apart, made.key)
        for made in operations
    ]
    assert results == expected
    assert together.standing.keys() == apart.standing.keys()


def test_has_liked_answers_for_every_target_and_the_one_reaction() -> None:
    records = Records()
    likes.like(records, A, at_ms=1)
    asked = [A.target, B.target, A.target]
    assert likes.has_liked(records, "ann", asked, "like") == {A.target: True, B.target: False}
    assert likes.has_liked(records, "ann", asked, "👍") == {A.target: False, B.target: False}
    assert likes.has_liked(records, "bob", [], "like") == {}


def test_every_order_of_two_people_keeps_their_likes_apart() -> None:
    other = LikeKey("bob", A.target)
    for order in itertools.permutations([Operation(A, True), Operation(other, True), Operation(A, False)]):
        records = Records()
        apply_all(records, order, now_ms=5)
        assert other in records.standing
