"""The chaos run's record of what clients were told: what it forgives, and what it must never forgive."""

from __future__ import annotations

import random
from collections import Counter

from tests.chaos.faults import OTHERS, older, plan
from tests.chaos.truth import Difference, Key, Operation, Truth, differences, error_of

KEY = Key("ada", "1", "like")
LIKE, UNLIKE = Operation(KEY, like=True), Operation(KEY, like=False)


def told(truth: Truth) -> Counter[tuple[str, str]]:
    total = Counter(truth.deltas)
    total.update(truth.untold)
    return total


def test_acknowledged_changes_make_the_count() -> None:
    truth = Truth()
    for operation, changed in ((LIKE, True), (LIKE, False), (UNLIKE, True), (UNLIKE, False), (LIKE, True)):
        truth.answered(operation, changed)
    assert (truth.likes, truth.unlikes, truth.repeats) == (2, 1, 2)
    assert truth.counts() == told(truth) == Counter({KEY.counter: 1})
    assert truth.standing_likes() == {KEY}
    assert truth.contradictions == []


def test_a_change_that_was_acknowledged_twice_is_a_contradiction() -> None:
    for operations in ((LIKE, LIKE), (LIKE, UNLIKE, UNLIKE)):
        truth = Truth()
        for operation in operations:
            truth.answered(operation, changed=True)
        assert len(truth.contradictions) == 1
        assert told(truth) == truth.counts() != truth.deltas


def test_a_lost_answer_is_settled_by_the_next_one_whatever_became_of_it() -> None:
    for changed in (True, False):
        truth = Truth()
        truth.lost_answer(LIKE)
        assert truth.unsure() == [KEY]
        truth.answered(LIKE, changed)
        assert (truth.unsure(), truth.contradictions) == ([], [])
        assert truth.counts() == told(truth) == Counter({KEY.counter: 1})
        assert truth.deltas[KEY.counter] == int(changed)


def test_a_lost_answer_is_settled_by_the_record() -> None:
    for liked in (True, False):
        truth = Truth()
        truth.answered(LIKE, changed=True)
        truth.lost_answer(UNLIKE)
        truth.found(KEY, liked)
        assert (truth.unsure(), truth.contradictions) == ([], [])
        assert truth.counts() == told(truth) == Counter({KEY.counter: int(liked)})


def test_a_record_that_differs_from_what_was_acknowledged_is_a_contradiction() -> None:
    truth = Truth()
    truth.answered(LIKE, changed=True)
    truth.found(KEY, liked=True)
    assert truth.contradictions == []
    truth.found(KEY, liked=False)
    assert len(truth.contradictions) == 1


def test_a_change_that_no_answer_told_is_known_from_the_state_that_the_answer_gives() -> None:
    truth = Truth()
    truth.answered(LIKE, changed=True)
    truth.answered(UNLIKE, changed=False)  # the first attempt's reply was lost, the second found nothing to remove
    assert (truth.unsaid, truth.contradictions) == (Counter({False: 1}), [])
    assert truth.counts() == told(truth) == Counter({KEY.counter: 0})


def test_a_like_is_in_the_hands_of_one_client_until_its_answer_is_known() -> None:
    truth = Truth()
    assert truth.take(KEY)
    assert not truth.take(KEY)
    truth.lost_answer(LIKE)
    assert truth.give_back([KEY]) == [KEY]
    assert not truth.take(KEY)
    truth.answered(LIKE, changed=True)
    assert truth.give_back([KEY]) == []
    assert truth.take(KEY)


def test_what_stands_can_be_drawn_and_nothing_else() -> None:
    truth, rng = Truth(), random.Random(1)
    assert truth.standing(rng) is None
    keys = [Key("ada", str(n), "like") for n in range(20)]
    for key in keys:
        truth.answered(Operation(key, like=True), changed=True)
    for key in keys[::2]:
        truth.answered(Operation(key, like=False), changed=True)
    assert {truth.standing(rng) for _ in range(500)} == {*keys[1::2]}


def test_one_like_lost_and_one_counted_twice_are_an_error_of_two_though_the_sum_is_right() -> None:
    expected = Counter({("1", "like"): 3, ("2", "like"): 5, ("3", "like"): 0})
    found = differences(expected, Counter({("1", "like"): 2, ("2", "like"): 6}))
    assert found == [Difference(("1", "like"), 3, 2), Difference(("2", "like"), 5, 6)]
    assert error_of(found) == 2
    assert differences(expected, expected) == []


def test_a_count_of_something_that_nobody_liked_is_an_error() -> None:
    assert error_of(differences(Counter(), Counter({("9", "like"): 2}))) == 2
    assert error_of(differences(Counter({("9", "like"): 1}), Counter({("9", "like"): -1}))) == 2


def test_a_plan_holds_the_kills_asked_for_and_every_other_kind() -> None:
    for kills in range(1, 25):
        faults = plan(kills, 10, random.Random(kills))
        assert sum(fault.kills for fault in faults) == kills
        assert all(faults.count(other) == 3 for other in OTHERS)
    assert plan(20, 10, random.Random(1)) == plan(20, 10, random.Random(1)) != plan(20, 10, random.Random(2))


def test_records_are_old_up_to_the_first_that_is_not() -> None:
    records = [{"dynamodb": {"ApproximateCreationDateTime": second}} for second in (10, 10, 11, 12, 11)]
    assert older(records, 11.9) == records[:2]
    assert older(records, 13.0) == records
    assert older(records, 9.0) == []
