"""After the chaos: every count and every record against what the clients were told."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tallymark.storage.keys import parse_like_sort_key
from tests.chaos.calls import Caller, Failures
from tests.chaos.load import ITEM_TYPE
from tests.chaos.probe import PROBE
from tests.chaos.scene import Scene
from tests.chaos.truth import Difference, Key, Truth, differences, error_of

SETTLE_S = 90.0
SAMPLE, AT_ONCE, READERS, PART = 500, 100, 3, 20


@dataclass
class Verdict:
    """What was found; `error` is 0 where no like is lost and none counted twice."""

    likes: int
    counts: int
    wrong: list[Difference]
    records_missing: int
    records_surplus: int
    contradictions: list[str]
    deltas_wrong: int
    settled_s: float
    resolved: int
    parked: int
    wrong_probes: list[str] = field(default_factory=list)

    @property
    def error(self) -> int:
        """Likes too many or too few in counts or records, and answers that contradict each other."""
        return (
            error_of(self.wrong)
            + self.records_missing
            + self.records_surplus
            + len(self.contradictions)
            + self.deltas_wrong
        )


def judge(
    scene: Scene, truth: Truth, rng: random.Random, *, settle_s: float = SETTLE_S, sample: int = SAMPLE
) -> Verdict:
    """Waits until readers see the counts that must be, at most so long, then compares everything, past the caches.

    Nothing may write meanwhile. `sample` is how many likes are asked for one by one; the records of all are compared.
    """
    caller = Caller(scene.url, Failures())
    unsure = truth.unsure()
    for key in [*unsure, *truth.sample(rng, sample)]:
        truth.found(key, _has_liked(caller, key))
    expected, begun = truth.counts(), time.monotonic()
    items = sorted({item for item, _ in expected})
    while differences(expected, _as_readers_see(caller, items)) and time.monotonic() - begun < settle_s:
        time.sleep(0.5)
    settled_s = time.monotonic() - begun
    caller.close()
    wrong = differences(expected, _fresh(scene.url, items))
    recorded, standing = _records(scene), truth.standing_likes()
    told = Counter(truth.deltas)
    told.update(truth.untold)  # update, not +: sums may be negative while they are added up
    return Verdict(
        likes=sum(expected.values()),
        counts=len(expected),
        wrong=wrong,
        records_missing=len(standing - recorded),
        records_surplus=len(recorded - standing),
        contradictions=list(truth.contradictions),
        deltas_wrong=error_of(differences(told, expected)),
        settled_s=settled_s,
        resolved=len(unsure),
        parked=_parked(scene),
        wrong_probes=[item for (item, _), _, _ in wrong if item.startswith(PROBE)],
    )


def _has_liked(caller: Caller, key: Key) -> bool:
    body = {"user_id": key.user, "item_ids": [key.item], "item_type": ITEM_TYPE, "reaction": key.reaction}
    liked: bool = _patiently(caller, "POST", "/v1/has_liked", body)["liked"][key.item]
    return liked


def _as_readers_see(caller: Caller, items: Sequence[str]) -> Counter[tuple[str, str]]:
    """Counts through the caches, many to a call."""
    seen: Counter[tuple[str, str]] = Counter()
    for low in range(0, len(items), AT_ONCE):
        wanted = [{"item_id": item, "item_type": ITEM_TYPE} for item in items[low : low + AT_ONCE]]
        for entry in _patiently(caller, "POST", "/v1/counts", {"items": wanted})["counts"]:
            seen.update(_counters(entry["item_id"], entry))
    return seen


def _fresh(url: str, items: Sequence[str]) -> Counter[tuple[str, str]]:
    """Counts straight from their rows, by some clients at the same time."""

    def read(part: Sequence[str]) -> Counter[tuple[str, str]]:
        caller, seen = Caller(url, Failures()), Counter[tuple[str, str]]()
        for item in part:
            query = {"item_id": item, "item_type": ITEM_TYPE, "fresh": "true"}
            seen.update(_counters(item, _patiently(caller, "GET", "/v1/count", None, **query)))
        caller.close()
        return seen

    seen: Counter[tuple[str, str]] = Counter()
    pool = ThreadPoolExecutor(READERS)
    try:
        for part in pool.map(read, [items[low : low + PART] for low in range(0, len(items), PART)]):
            seen.update(part)
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for all that was still to be read
    return seen


def _counters(item: str, body: dict[str, Any]) -> dict[tuple[str, str], int]:
    """The counts of an answer. It leaves out what is not above 0: the total tells what a negative one would hide."""
    counts: dict[str, int] = body["counts"] or {}
    hidden = (body["count"] or 0) - sum(counts.values())
    return {
        (item, reaction): count for reaction, count in (*counts.items(), *([("below 0", hidden)] if hidden else []))
    }


def _patiently(caller: Caller, method: str, path: str, body: Any, **query: str) -> Any:
    """The answer of status 200: the faults are over, so one comes within some tries."""
    for pause_s in (0.2, 0.5, 1.0, 2.0, 5.0):
        answer = caller.call(method, path, body, **query)
        if answer.status == 200:
            return answer.body
        time.sleep(pause_s)
    raise RuntimeError(f"{method} {path} {body or query}: {answer}")


def _records(scene: Scene) -> set[Key]:
    """Every like in the table, read past the service."""
    found = set()
    pages = scene.client("dynamodb").get_paginator("scan").paginate(TableName=scene.outputs["LikesTable"])
    for page in pages:
        for item in page["Items"]:
            target, reaction = parse_like_sort_key(item["sk"]["S"])
            found.add(Key(item["pk"]["S"], target.item_id, reaction))
    return found


def _parked(scene: Scene) -> int:
    """Messages that wait in the queue of parked records and in its dead queue."""
    sqs = scene.client("sqs")
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = [
        sqs.get_queue_attributes(QueueUrl=scene.outputs[queue], AttributeNames=names)["Attributes"]
        for queue in ("ParkedQueueUrl", "ParkedDeadQueueUrl")
    ]
    return sum(int(of_queue[name]) for of_queue in attributes for name in names)
