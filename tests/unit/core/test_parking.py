"""Settling parked records when the store is contended."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tallymark import parking
from tallymark.aggregation import Parked
from tallymark.errors import Unavailable
from tallymark.fold import Change
from tallymark.model import Counter, Target
from tallymark.storage.event_table import AdjustmentTable

CHANGE = Change(Counter(Target("post", "1"), "like"), 1, 7, 1_700_000_000)
PARKED = Parked("uncounted", "lane", {"dynamodb": {"SequenceNumber": "7"}})


class Contended:
    """Adjustments that are taken only after some tries."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.added: list[str] = []

    def add_once(self, event_id: str, change: Change, expires_s: int) -> bool:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("busy")
        self.added.append(event_id)
        return True


def settle(adjustments: Any) -> tuple[bool, list[float]]:
    slept: list[float] = []
    done = parking.settle(PARKED, read=lambda _: [CHANGE], adjustments=adjustments, now_s=0, sleep=slept.append)
    return done, slept


def test_a_conflict_is_tried_again_in_place() -> None:
    adjustments = Contended(3)
    done, slept = settle(adjustments)
    assert done
    assert adjustments.added == ["lane#7"]
    assert len(slept) == 3
    assert all(0 <= pause <= 0.8 for pause in slept)


def test_a_conflict_that_stays_leaves_the_record_in_the_queue() -> None:
    with pytest.raises(Unavailable):
        settle(Contended(4))


class Cancelling:
    """A client whose transactions are cancelled for these reasons."""

    class exceptions:
        class TransactionCanceledException(ClientError):
            pass

    def __init__(self, *codes: str) -> None:
        self._codes = codes

    def transact_write_items(self, **_: Any) -> None:
        response: Any = {
            "Error": {"Code": "TransactionCanceledException", "Message": ""},
            "CancellationReasons": [{"Code": code} for code in self._codes],
        }
        raise self.exceptions.TransactionCanceledException(response, "TransactWriteItems")


def add_once(*codes: str) -> bool:
    table = AdjustmentTable(Cancelling(*codes), "events", "counters", 35)  # type: ignore[arg-type]
    return table.add_once("lane#7", CHANGE, 0)


def test_a_claim_that_stands_is_no_second_count() -> None:
    assert add_once("ConditionalCheckFailed", "None") is False


@pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
def test_a_conflict_or_a_throttle_passes(code: str) -> None:
    with pytest.raises(Unavailable):
        add_once("None", code)


def test_a_refusal_that_does_not_pass_is_loud() -> None:
    with pytest.raises(ClientError):
        add_once("None", "ValidationError")
