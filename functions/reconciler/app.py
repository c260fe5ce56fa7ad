"""Recounts items from their records, reports what is counted wrong, and corrects it on request.

An event is one of

{"item": {"item_type", "item_id"}, "repair"?}         one item
{"all": true, "cursor"?, "repair"?, "seconds"?}       every item, a piece per call: goes on from the cursor answered
{"scheduled": true}                                   what changed daily, every item weekly, from where it stood
{"report": true}                                      how the scheduled run stands and what it found
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from tallymark import fold, reconciliation
from tallymark.aggregation import Record
from tallymark.errors import InvalidRequest, Unavailable
from tallymark.model import Target, format_time
from tallymark.reconciliation import Finding, Look, Reconciled, Touched
from tallymark.runtime import telemetry, wiring
from tallymark.runtime.requests import parse_object, parse_target
from tallymark.storage.dynamodb import spread
from tallymark.storage.like_stream import like_of, read_like

SERVICE = "reconciler"
SETTLE_S = 3.0  # counts follow acknowledged writes within this time
SETTLE_TO_REPAIR_S = 10.0  # what an index shows has reached the stream by then
RESERVE_S = 240.0  # for what is under way when time runs out: no look and no read of the stream begins after it
RUN_EVERY_S = 23 * 3600  # a day, less what keeps an hourly schedule from slipping by one hour a day
FULL_EVERY_S = 7 * 86400 - 3600
_REPORTED = 100  # findings, and open items, that a scheduled run keeps
_ANSWERED = 2_000  # after so many of both an answer is given, which has 6 MB
_RETRIES_S = (0.1, 0.4, 1.6, 6.4)  # nobody waits for a look, and a piece is long: better late than again


@telemetry.silent_on_values(SERVICE)
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """What was found. Drift is a bug, and an alarm; open items were moving, or are behind in stream, queue or index."""

    def is_time_over() -> bool:
        return bool(context.get_remaining_time_in_millis() / 1000 < RESERVE_S)

    if event.get("scheduled"):
        return _scheduled(is_time_over)
    if event.get("report"):
        return wiring.run_table().load()
    repair = _flag(event, "repair")
    if _flag(event, "all"):
        return _all(event, repair, is_time_over)
    return _item(parse_target(parse_object(event.get("item"), "item"), "item."), repair)


def _item(target: Target, repair: bool) -> dict[str, Any]:
    refused = _refusal() if repair else None
    done = _reconcile([target], repair and refused is None, lambda: False)
    verdict, seen = "exact", done.exact.get(target)
    if seen is None:
        verdict, seen = done.open[target] if done.open else ("drift", done.found[0].proven)
    answer = {**_described(target, seen), "verdict": verdict, "repair_refused": refused}
    return answer | (_findings(done.found)[0] if done.found else {})


def _all(event: Mapping[str, Any], repair: bool, is_time_over: Callable[[], bool]) -> dict[str, Any]:
    """As many pieces as fit into the `seconds` asked for, one at least."""
    until = time.monotonic() + float(event.get("seconds") or 0)
    run: dict[str, Any] = {"cursor": event.get("cursor")}
    refused = _refusal() if repair else None
    while True:
        _piece(run, True, repair and refused is None, is_time_over, until)
        full = len(run["found"]) + len(run["open"]) >= _ANSWERED
        if run["cursor"] is None or full or is_time_over() or time.monotonic() >= until:
            return {**run, "repair_refused": refused}


def _scheduled(is_time_over: Callable[[], bool]) -> dict[str, Any]:
    """Goes on with the run of the day. Once a week it looks at every item, changed or not."""
    run = wiring.run_table().load()
    now_s = wiring.now_ms() // 1000
    if run.get("done_s") and now_s - run["started_s"] < RUN_EVERY_S:
        return run
    if not run or run.get("done_s"):
        last_full_s = run.get("full_s", 0)
        run = {"cursor": None, "started_s": now_s}
        run["full_s"] = now_s if now_s - last_full_s >= FULL_EVERY_S else last_full_s
    while not is_time_over():
        _piece(run, run["full_s"] == run["started_s"], False, is_time_over, float("inf"))
        run["found"], run["open"] = run["found"][:_REPORTED], run["open"][:_REPORTED]
        if run["cursor"] is None:
            run["done_s"] = wiring.now_ms() // 1000
        wiring.run_table().save(run)
        if run["cursor"] is None:
            break
    return run


def _piece(run: dict[str, Any], full: bool, repair: bool, is_time_over: Callable[[], bool], until: float) -> None:
    """Looks at the next targets and adds what was found to the run. Ending anywhere repeats the piece."""
    page = reconciliation.gather(
        wiring.audit_tables(),
        run["cursor"],
        full=full,
        now_s=wiring.now_ms() // 1000,
        is_time_over=lambda: is_time_over() or time.monotonic() >= until,
    )
    done = _reconcile(page.targets, repair, is_time_over)
    run["cursor"] = page.cursor
    for name, more in {
        "checked": len(page.targets),
        "unchanged": page.passed_over,
        "wrong": len(done.found),
        "left_open": len(done.open),
        "drift": sum(found.drift for found in done.found),
    }.items():
        run[name] = run.get(name, 0) + more
    run["found"] = run.get("found", []) + _findings(done.found)
    run["open"] = run.get("open", []) + [{**_named(t), "verdict": verdict} for t, (verdict, _) in done.open.items()]


def _reconcile(targets: Sequence[Target], repair: bool, is_time_over: Callable[[], bool]) -> Reconciled:
    tables, executor = wiring.audit_tables(), wiring.executor()
    done = reconciliation.reconcile(
        targets,
        books=tables,
        stream=lambda suspects: _touched(suspects, is_time_over),
        parked=lambda: _parked(repair),
        spread=lambda look, some: spread(executor, _patiently(look), some),
        repair=repair,
        settle_s=SETTLE_TO_REPAIR_S if repair else SETTLE_S,
        sleep=time.sleep,
        is_time_over=is_time_over,
    )
    tables.verified({target: seen.rows.digest for target, seen in done.exact.items()}, wiring.now_ms() // 1000)
    with telemetry.metrics(SERVICE) as metrics:
        metrics.count("ItemsChecked", len(targets))
        metrics.count("ItemsOpen", len(done.open))
        metrics.count("Drift", sum(found.drift for found in done.found))
        metrics.count("ItemsRepaired", sum(found.repaired for found in done.found))
    return done


def _patiently(look: Callable[[Target], Look]) -> Callable[[Target], Look]:
    def looked(target: Target) -> Look:
        for pause_s in _RETRIES_S:
            try:
                return look(target)
            except Unavailable:
                time.sleep(random.uniform(pause_s / 2, pause_s))  # noqa: S311 (jitter)
        return look(target)

    return looked


def _parked(repair: bool) -> bool:
    """Whether a parked record waits to be settled; for a correction, also one that failed and may be redriven."""
    return wiring.parked_queue().waiting() > 0 or (repair and wiring.parked_dead_queue().waiting() > 0)


def _touched(targets: Set[Target], is_time_over: Callable[[], bool]) -> Mapping[Target, Touched] | None:
    """What the stream says of the targets; None if time ran out before its end."""
    cut_short = False

    def records() -> Iterator[tuple[str, Record]]:
        nonlocal cut_short
        for i, record in enumerate(wiring.like_stream().records()):
            if i % 1_000 == 0 and is_time_over():
                cut_short = True
                return
            yield record

    said = reconciliation.touched(
        records(),
        targets,
        read=read_like,
        like_of=like_of,
        lane_of=lambda shard_id: fold.lane(shard_id, wiring.settings().counter_rows),
        now_s=wiring.now_ms() // 1000,
    )
    return None if cut_short else said


def _refusal() -> str | None:
    """Why nothing may be repaired: what waits in the dead queue may be what is missing from a count."""
    waiting = wiring.parked_dead_queue().waiting()
    if not waiting:
        return None
    return f"{waiting} parked records lie in the dead queue: redrive it, or purge what cannot be read, then repair"


def _findings(found: tuple[Finding, ...]) -> list[dict[str, Any]]:
    now_s = wiring.now_ms() // 1000
    return [
        {
            **_described(one.target, one.proven),
            "since": format_time(wiring.audit_tables().wrong_since(one.target, now_s) * 1000),
            "repaired": one.repaired,
        }
        for one in found
    ]


def _described(target: Target, seen: Look) -> dict[str, Any]:
    return {
        **_named(target),
        "counted": dict(seen.rows.counted),
        "recorded": dict(seen.recorded),
        "drift": seen.differences,
    }


def _named(target: Target) -> dict[str, str]:
    return {"item_type": target.item_type, "item_id": target.item_id}


def _flag(event: Mapping[str, Any], name: str) -> bool:
    value = event.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest("must be true or false", name)
    return value
