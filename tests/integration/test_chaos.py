"""Chaos in small: every kind of fault once, on a stack of its own. `make chaos` is the long run.

What takes how long is not asserted: this machine may be busy.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tallymark.model import Counter, Target
from tallymark.storage.keys import adjustment_sort_key, target_key
from tests.chaos.__main__ import table
from tests.chaos.faults import OTHERS
from tests.chaos.load import ITEM_TYPE
from tests.chaos.run import Wanted, run
from tests.chaos.scene import Scene
from tests.chaos.truth import Truth
from tests.chaos.verdict import Verdict, judge

ITEM = "item-0"  # the one that is liked most

WANTED = Wanted(minutes=0.5, likes=1_000, kills=3, seed=3, clients=2, lag_s=60.0)


@pytest.mark.slow
def test_no_like_is_lost_or_counted_twice_whatever_is_killed_stopped_throttled_or_delivered_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after: list[Verdict] = []

    def judge_a_wrong_count(scene: Scene, truth: Truth) -> None:
        """A like that was counted twice has to be found, or the verdict before would be worth nothing."""
        add_to_count(scene, 1)
        after.append(judge(scene, truth, random.Random(1), settle_s=0, sample=10))

    outcome = run(WANTED, tmp_path, print, judge_a_wrong_count, settle_s=300)
    with capsys.disabled():
        print("\n" + "\n".join(table(outcome)))
    assert outcome.faults == []
    assert {made.fault for made in outcome.made} >= {*OTHERS}
    assert outcome.kills >= WANTED.kills
    assert min(outcome.killed, outcome.delivered_again, outcome.truth.likes, outcome.truth.unlikes) > 0
    assert [verdict.error for verdict in after] == [1]
    assert [wrong.counter for wrong in after[0].wrong] == [(ITEM, "like")]


def add_to_count(scene: Scene, amount: int) -> None:
    """Past the service, as nothing of it may."""
    counter = Counter(Target(ITEM_TYPE, ITEM), "like")
    scene.client("dynamodb").update_item(
        TableName=scene.outputs["CountersTable"],
        Key={"pk": {"S": target_key(counter.target)}, "sk": {"S": adjustment_sort_key(counter)}},
        UpdateExpression="ADD n :amount",
        ExpressionAttributeValues={":amount": {"N": str(amount)}},
    )
