"""The stream pump against a made-up stream and a clock of its own: one test for each documented rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from infra.local.invoking import FunctionFailed, InProcess, NotInvoked
from infra.local.mapping import (
    RETENTION_SECONDS,
    DataTrimmed,
    IteratorExpired,
    Lane,
    Page,
    Pump,
    Settings,
    Shard,
    StreamUnavailable,
)

NOON = 1_800_000_000.0  # a multiple of 300: the start of a window
ARN = "arn:aws:dynamodb:us-east-1:000000000000:table/likes/stream/2027"


def record(number: int, created: float = NOON, name: str = "INSERT", **keys: Any) -> dict[str, Any]:
    return {
        "eventID": f"id-{number}",
        "eventName": name,
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "dynamodb": {
            "ApproximateCreationDateTime": created,
            "Keys": {"pk": {"S": "u"}, **keys},
            "SequenceNumber": f"{number:021d}",
            "SizeBytes": 10,
            "StreamViewType": "KEYS_ONLY",
        },
    }


class FakeStream:
    """A stream in memory: shards with parents, positions as iterators, faults on request."""

    arn = ARN

    def __init__(self, **records: Sequence[Mapping[str, Any]]) -> None:
        self.records = {shard: list(items) for shard, items in (records or {"a": ()}).items()}
        self.parents: dict[str, str] = {}
        self.ended: set[str] = set()
        self.trimmed: dict[str, int] = {}
        self.faults: list[Exception] = []
        self.page = 1000
        self.reads = 0

    def shards(self) -> list[Shard]:
        return [Shard(name, self.parents.get(name), name in self.ended) for name in self.records]

    def iterator(self, shard_id: str, after: str | None, start: str) -> str:
        numbers = [item["dynamodb"]["SequenceNumber"] for item in self.records[shard_id]]
        if after is not None:
            return f"{shard_id}:{numbers.index(after) + 1}"
        return f"{shard_id}:{len(numbers) if start == 'LATEST' else self.trimmed.get(shard_id, 0)}"

    def read(self, iterator: str) -> Page:
        self.reads += 1
        if self.faults:
            raise self.faults.pop(0)
        shard, position = iterator.split(":")
        if int(position) < self.trimmed.get(shard, 0):
            raise DataTrimmed
        page = self.records[shard][int(position) : int(position) + self.page]
        end = int(position) + len(page)
        over = shard in self.ended and end == len(self.records[shard])
        return Page(page, None if over else f"{shard}:{end}")


class Function:
    """Notes every event, and answers as a script says: a value, an exception, or a function of the event."""

    function_arn = "arn:aws:lambda:us-east-1:000000000000:function:aggregator"

    def __init__(self, *answers: Any, always: Any = None) -> None:
        self.answers = list(answers)
        self.always = always
        self.events: list[dict[str, Any]] = []

    def __call__(self, payload: str) -> Any:
        event = json.loads(payload)
        self.events.append(event)
        answer = self.answers.pop(0) if self.answers else self.always
        if isinstance(answer, Exception):
            raise answer
        return answer(event) if callable(answer) else answer

    @property
    def batches(self) -> list[list[int]]:
        return [[int(item["dynamodb"]["SequenceNumber"]) for item in event["Records"]] for event in self.events]


class World:
    """A pump on a clock that jumps from one thing that is due to the next."""

    def __init__(self, stream: FakeStream, function: Function, **settings: Any) -> None:
        self.now = NOON
        self.stream = stream
        self.function = function
        self.discarded: list[tuple[str, dict[str, Any]]] = []
        self.pump = Pump(
            stream,
            function,
            Settings(**settings),
            clock=lambda: self.now,
            on_failure=lambda arn, document: self.discarded.append((arn, document)),
        )

    def run(self, seconds: float) -> World:
        end = self.now + seconds
        for _ in range(100_000):
            due = self.pump.step()
            if due > end:
                break
            self.now = max(self.now, due)
        else:
            pytest.fail("the pump does not come to rest")
        self.now = end
        return self

    @property
    def lane(self) -> Lane:
        (lane,) = self.pump.lanes.values()
        return lane


def numbers(count: int, **more: Any) -> list[dict[str, Any]]:
    return [record(number, **more) for number in range(1, count + 1)]


def failing(*bad: int) -> Callable[[dict[str, Any]], Any]:
    """Raises where a batch holds one of these records."""

    def answer(event: dict[str, Any]) -> Any:
        if set(bad) & {int(item["dynamodb"]["SequenceNumber"]) for item in event["Records"]}:
            raise FunctionFailed
        return {}

    return answer


# --- reading and batching ---


def test_records_arrive_in_the_form_that_lambda_documents() -> None:
    world = World(FakeStream(a=[record(1, created=NOON + 0.5)]), Function()).run(1)
    (event,) = world.function.events
    assert event == {"Records": [{**record(1, created=NOON + 0.5), "eventSourceARN": ARN}]}


def test_without_a_batching_window_records_are_sent_as_soon_as_they_are_read() -> None:
    world = World(FakeStream(a=numbers(3)), Function()).run(0)
    assert world.function.batches == [[1, 2, 3]]


def test_a_batch_holds_no_more_than_the_batch_size() -> None:
    world = World(FakeStream(a=numbers(5)), Function(), batch_size=2).run(1)
    assert world.function.batches == [[1, 2], [3, 4], [5]]


def test_a_batch_stays_below_6_mb() -> None:
    big = [record(n, big={"S": "x" * 2_500_000}) for n in range(1, 6)]
    world = World(FakeStream(a=big), Function(), batch_size=1000, batching_window_seconds=1).run(5)
    assert world.function.batches == [[1, 2], [3, 4], [5]]


def test_an_idle_stream_is_read_four_times_a_second() -> None:
    world = World(FakeStream(a=[]), Function()).run(10)
    assert 40 <= world.stream.reads <= 41


def test_a_full_page_is_followed_by_the_next_read_at_once() -> None:
    world = World(FakeStream(a=numbers(2500)), Function(), batch_size=10_000, batching_window_seconds=1).run(1)
    assert [len(batch) for batch in world.function.batches] == [2500]


def test_the_batching_window_counts_from_the_first_record() -> None:
    world = World(FakeStream(a=[]), Function(), batching_window_seconds=1).run(7.3)
    world.stream.records["a"].append(record(1))
    world.run(0.5)
    world.stream.records["a"].append(record(2))
    world.run(0.6)
    assert world.function.batches == []
    world.run(0.15)
    assert world.function.batches == [[1, 2]]


def test_a_full_batch_does_not_wait_for_the_batching_window() -> None:
    world = World(FakeStream(a=numbers(4)), Function(), batch_size=4, batching_window_seconds=30).run(0)
    assert world.function.batches == [[1, 2, 3, 4]]


def test_the_end_of_a_shard_does_not_wait_for_the_batching_window() -> None:
    stream = FakeStream(a=numbers(2))
    stream.ended = {"a"}
    assert World(stream, Function(), batching_window_seconds=30).run(0).function.batches == [[1, 2]]


# --- positions and lanes ---


def test_trim_horizon_reads_everything_and_latest_only_what_is_new() -> None:
    for start, expected in (("TRIM_HORIZON", [[1, 2], [3]]), ("LATEST", [[3]])):
        world = World(FakeStream(a=numbers(2)), Function(), starting_position=start).run(1)
        world.stream.records["a"].append(record(3))
        assert world.run(1).function.batches == expected


def test_a_parent_is_delivered_before_its_children_begin() -> None:
    stream = FakeStream(parent=[record(1), record(2)], left=[record(3)], right=[record(4)])
    stream.parents = {"left": "parent", "right": "parent"}
    stream.ended = {"parent"}
    function = Function(FunctionFailed(), FunctionFailed())
    world = World(stream, function).run(0.05)
    assert function.batches == [[1, 2]]
    world.run(5)
    assert function.batches[:3] == [[1, 2]] * 3
    assert sorted(function.batches[3:]) == [[3], [4]]


def test_children_that_appear_later_are_read_from_their_first_record_even_with_latest() -> None:
    stream = FakeStream(old=[record(1)])
    world = World(stream, Function(), starting_position="LATEST").run(1)
    stream.records["new"] = [record(2)]
    stream.parents = {"new": "old"}
    stream.ended = {"old"}
    assert world.run(1).function.batches == [[2]]


def test_lanes_do_not_wait_for_each_other() -> None:
    stream = FakeStream(a=[record(1)], b=[record(2)])
    world = World(stream, Function(always=failing(1))).run(1)
    assert [2] in world.function.batches
    assert world.pump.lag().records_behind == 1


def test_an_expired_iterator_goes_on_after_the_last_record_read() -> None:
    world = World(FakeStream(a=numbers(2)), Function()).run(1)
    world.stream.faults.append(IteratorExpired())
    world.stream.records["a"].append(record(3))
    assert world.run(1).function.batches == [[1, 2], [3]]


def test_trimmed_records_are_passed_over_and_said(caplog: pytest.LogCaptureFixture) -> None:
    stream = FakeStream(a=numbers(2))
    world = World(stream, Function()).run(1)
    stream.records["a"] += [record(3), record(4), record(5)]
    stream.trimmed["a"] = 4
    assert world.run(1).function.batches == [[1, 2], [5]]
    assert "trimmed" in caplog.text


def test_a_stream_that_cannot_be_read_is_tried_again_with_growing_pauses() -> None:
    world = World(FakeStream(a=numbers(1)), Function())
    world.stream.faults = [StreamUnavailable() for _ in range(6)]
    world.run(2)
    assert world.function.batches == []
    assert world.run(10).function.batches == [[1]]


# --- filters ---


def test_filtered_records_move_the_iterator_and_are_not_sent() -> None:
    criteria = {"Filters": [{"Pattern": '{"eventName": ["INSERT", "REMOVE"]}'}]}
    stream = FakeStream(a=[record(1), record(2, name="MODIFY"), record(3, name="REMOVE"), record(4, name="MODIFY")])
    world = World(stream, Function(), filter_criteria=criteria).run(1)
    assert world.function.batches == [[1, 3]]
    world.stream.faults.append(IteratorExpired())
    assert world.run(1).function.batches == [[1, 3]]
    assert world.pump.lag().records_behind == 0


# --- failures ---


def test_a_failed_batch_is_repeated_whole_and_holds_up_its_lane() -> None:
    function = Function(FunctionFailed(), FunctionFailed())
    world = World(FakeStream(a=numbers(3)), function, batch_size=2).run(5)
    assert function.batches == [[1, 2], [1, 2], [1, 2], [3]]
    assert world.lane.delivered == 3


def test_the_pauses_between_tries_grow_up_to_five_seconds() -> None:
    world = World(FakeStream(a=numbers(1)), Function(always=FunctionFailed()))
    world.run(6)
    assert len(world.function.events) == 6  # at 0, 0.1, 0.3, 0.7, 1.5, 3.1
    before = len(world.function.events)
    world.run(60)
    assert 11 <= len(world.function.events) - before <= 13


def test_without_a_limit_a_batch_is_tried_until_it_leaves_the_stream() -> None:
    world = World(FakeStream(a=numbers(1)), Function(always=FunctionFailed())).run(RETENTION_SECONDS - 100)
    assert world.lane.waiting == 1
    assert world.run(200).lane.waiting == 0


def test_a_batch_is_given_up_after_its_retries_and_the_destination_gets_its_place_only() -> None:
    function = Function(always=failing(1))
    world = World(
        FakeStream(a=numbers(3)),
        function,
        batch_size=2,
        maximum_retry_attempts=2,
        on_failure_arn="arn:aws:sqs:q",
    ).run(5)
    assert function.batches == [[1, 2]] * 3 + [[3]]
    ((arn, document),) = world.discarded
    assert arn == "arn:aws:sqs:q"
    request_id = document["requestContext"].pop("requestId")
    assert len(request_id) == 36
    assert document == {
        "requestContext": {
            "functionArn": function.function_arn,
            "condition": "RetryAttemptsExhausted",
            "approximateInvokeCount": 3,
        },
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "version": "1.0",
        "timestamp": "2027-01-15T08:00:00.300Z",
        "DDBStreamBatchInfo": {
            "shardId": "a",
            "startSequenceNumber": f"{1:021d}",
            "endSequenceNumber": f"{2:021d}",
            "approximateArrivalOfFirstRecord": "2027-01-15T08:00:00Z",
            "approximateArrivalOfLastRecord": "2027-01-15T08:00:00Z",
            "batchSize": 2,
            "streamArn": ARN,
        },
    }


def test_no_retries_means_one_call() -> None:
    world = World(FakeStream(a=numbers(2)), Function(always=failing(1)), batch_size=1, maximum_retry_attempts=0)
    assert world.run(1).function.batches == [[1], [2]]


def test_records_over_the_age_limit_are_given_up_and_younger_ones_of_the_batch_are_kept() -> None:
    stream = FakeStream(a=[record(1, created=NOON - 61), record(2, created=NOON - 30)])
    world = World(stream, Function(), maximum_record_age_seconds=60, on_failure_arn="arn:aws:sqs:q").run(1)
    assert world.function.batches == [[2]]
    ((_, document),) = world.discarded
    assert document["requestContext"]["condition"] == "RecordAgeExceeded"
    assert document["requestContext"]["approximateInvokeCount"] == 0
    assert document["DDBStreamBatchInfo"]["batchSize"] == 1


def test_calls_that_do_not_reach_the_function_use_up_no_retry() -> None:
    function = Function(*[NotInvoked("throttled")] * 5)
    world = World(FakeStream(a=numbers(1)), function, maximum_retry_attempts=0, bisect=True).run(10)
    assert len(function.events) == 6
    assert world.lane.delivered == 1
    assert world.discarded == []


# --- bisect ---


def test_bisecting_isolates_a_bad_record_and_uses_up_no_retry() -> None:
    function = Function(always=failing(3))
    world = World(
        FakeStream(a=numbers(4)),
        function,
        bisect=True,
        maximum_retry_attempts=1,
        on_failure_arn="arn:aws:sqs:q",
    ).run(10)
    assert function.batches == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [3], [4]]
    ((_, document),) = world.discarded
    assert document["DDBStreamBatchInfo"]["batchSize"] == 1


def test_the_first_half_is_the_larger_one_and_order_is_kept() -> None:
    function = Function(FunctionFailed())
    World(FakeStream(a=numbers(5)), function, bisect=True).run(2)
    assert function.batches == [[1, 2, 3, 4, 5], [1, 2, 3], [4, 5]]


# --- partial batch responses ---


def failures(*identifiers: Any) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in identifiers]}


@pytest.mark.parametrize(
    "answer", [None, {}, {"batchItemFailures": []}, {"batchItemFailures": None}, {"other": 1}], ids=str
)
def test_an_empty_answer_is_success(answer: Any) -> None:
    world = World(FakeStream(a=numbers(3)), Function(always=answer), partial_responses=True).run(5)
    assert world.function.batches == [[1, 2, 3]]


@pytest.mark.parametrize(
    "answer",
    [
        failures(""),
        failures(None),
        failures("unknown"),
        {"batchItemFailures": [{"wrongKey": f"{2:021d}"}]},
        {"batchItemFailures": ["x"]},
        failures(f"{2:021d}", ""),
        "text",
    ],
    ids=str,
)
def test_an_answer_that_cannot_be_used_fails_the_whole_batch(answer: Any) -> None:
    world = World(FakeStream(a=numbers(3)), Function(answer), partial_responses=True).run(5)
    assert world.function.batches == [[1, 2, 3], [1, 2, 3]]


def test_the_lowest_failed_sequence_number_is_the_checkpoint() -> None:
    function = Function(failures(f"{4:021d}", f"{2:021d}"))
    World(FakeStream(a=numbers(5)), function, partial_responses=True).run(5)
    assert function.batches == [[1, 2, 3, 4, 5], [2, 3, 4, 5]]


def test_partial_answers_are_ignored_where_the_mapping_does_not_ask_for_them() -> None:
    function = Function(failures(f"{2:021d}"))
    World(FakeStream(a=numbers(3)), function).run(5)
    assert function.batches == [[1, 2, 3]]


def test_a_partial_answer_uses_up_a_retry_without_bisecting() -> None:
    function = Function(always=lambda event: failures(event["Records"][-1]["dynamodb"]["SequenceNumber"]))
    world = World(
        FakeStream(a=numbers(2)),
        function,
        partial_responses=True,
        maximum_retry_attempts=1,
        on_failure_arn="q",
    ).run(5)
    assert function.batches == [[1, 2], [2]]
    ((_, document),) = world.discarded
    assert "functionError" not in document["responseContext"]


def test_with_bisecting_a_partial_answer_cuts_at_the_checkpoint_and_uses_up_no_retry() -> None:
    function = Function(failures(f"{2:021d}"), failures(f"{3:021d}"), failures(f"{4:021d}"))
    world = World(
        FakeStream(a=numbers(4)), function, partial_responses=True, bisect=True, maximum_retry_attempts=0
    ).run(5)
    assert function.batches == [[1, 2, 3, 4], [2, 3, 4], [3, 4], [4]]
    assert world.lane.delivered == 4


def test_with_bisecting_no_progress_at_all_splits_in_two() -> None:
    function = Function(failures(f"{1:021d}"))
    World(FakeStream(a=numbers(4)), function, partial_responses=True, bisect=True).run(5)
    assert function.batches == [[1, 2, 3, 4], [1, 2], [3, 4]]


# --- tumbling windows ---


def counting(event: dict[str, Any]) -> dict[str, Any]:
    return {"state": {"n": event["state"].get("n", 0) + len(event["Records"])}}


def windowed(records: Sequence[Mapping[str, Any]], function: Function, **settings: Any) -> World:
    return World(FakeStream(a=records), function, tumbling_window_seconds=300, **settings)


def finals(world: World) -> list[dict[str, Any]]:
    return [event for event in world.function.events if event["isFinalInvokeForWindow"]]


def test_a_windowed_event_has_the_documented_envelope() -> None:
    world = windowed([record(1, created=NOON + 10)], Function(always=counting)).run(1)
    (event,) = world.function.events
    assert len(event.pop("Records")) == 1
    assert event == {
        "window": {"start": "2027-01-15T08:00:00Z", "end": "2027-01-15T08:05:00Z"},
        "state": {},
        "shardId": "a",
        "eventSourceARN": ARN,
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    }


def test_the_state_is_carried_through_a_window_and_dropped_at_its_end() -> None:
    records = [record(n, created=NOON + 100 * n) for n in range(1, 5)]
    world = windowed(records, Function(always=counting), batch_size=1)
    world.now = NOON + 401
    world.run(1)
    assert [event["state"].get("n", 0) for event in world.function.events] == [0, 1, 2, 0, 1]
    assert world.function.batches == [[1], [2], [], [3], [4]]


def test_a_batch_never_crosses_a_window() -> None:
    records = [record(1, created=NOON + 299), record(2, created=NOON + 300)]
    world = windowed(records, Function(always=counting), batching_window_seconds=10)
    world.now = NOON + 301
    world.run(11)
    assert world.function.batches == [[1], [], [2]]
    assert [event["isFinalInvokeForWindow"] for event in world.function.events] == [False, True, False]


def test_a_window_without_further_records_is_closed_when_its_time_is_over() -> None:
    world = windowed([record(1)], Function(always=counting)).run(299)
    assert finals(world) == []
    world.run(1.5)
    (final,) = finals(world)
    assert final["Records"] == []
    assert final["state"] == {"n": 1}
    assert final["isWindowTerminatedEarly"] is False
    assert len(finals(world.run(1000))) == 1


def test_a_record_with_an_older_time_joins_the_open_window() -> None:
    records = [record(1, created=NOON + 300), record(2, created=NOON + 299)]
    world = windowed(records, Function(always=counting))
    world.now = NOON + 301
    assert world.run(1).function.batches == [[1, 2]]


def test_the_end_of_a_shard_closes_its_window_and_the_child_begins_afresh() -> None:
    stream = FakeStream(a=[record(1)], b=[record(2)])
    stream.parents, stream.ended = {"b": "a"}, {"a"}
    world = World(stream, Function(always=counting), tumbling_window_seconds=300).run(1)
    shards = [(event["shardId"], event["isFinalInvokeForWindow"], event["state"]) for event in world.function.events]
    assert shards == [("a", False, {}), ("a", True, {"n": 1}), ("b", False, {})]


@pytest.mark.parametrize("answer", [None, {}, {"batchItemFailures": []}], ids=str)
def test_an_answer_without_a_state_is_a_failure(answer: Any) -> None:
    world = windowed(numbers(1), Function(answer, always=counting), partial_responses=True).run(2)
    assert world.function.batches == [[1], [1]]


def test_a_state_over_1_mb_ends_the_window_early() -> None:
    large = {"state": {"x": "y" * 1_100_000}}
    records = [record(n, created=NOON + n) for n in (1, 2)]
    world = windowed(records, Function(large, always=counting), batch_size=1).run(5)
    assert world.function.batches == [[1], [], [2]]
    final, after = world.function.events[1:]
    assert final["isFinalInvokeForWindow"]
    assert final["isWindowTerminatedEarly"]
    assert len(final["state"]["x"]) == 1_100_000
    assert after["state"] == {}
    assert after["window"] == final["window"]


def test_a_failed_closing_call_holds_up_the_lane_until_it_succeeds() -> None:
    def answer(event: dict[str, Any]) -> Any:
        if event["isFinalInvokeForWindow"] and len(finals(world)) < 3:
            raise FunctionFailed
        return counting(event)

    world = windowed([record(1), record(2, created=NOON + 300)], Function(always=answer))
    world.now = NOON + 301
    world.run(10)
    assert world.function.batches == [[1], [], [], [], [2]]


def test_a_closing_call_is_given_up_after_its_retries() -> None:
    def answer(event: dict[str, Any]) -> Any:
        if event["isFinalInvokeForWindow"]:
            raise FunctionFailed
        return counting(event)

    world = windowed([record(1), record(2, created=NOON + 300)], Function(always=answer), maximum_retry_attempts=1)
    world.now = NOON + 301
    assert world.run(10).function.batches == [[1], [], [], [2]]


def test_state_and_partial_answers_go_together() -> None:
    first = {"state": {"n": 1}, **failures(f"{2:021d}")}
    world = windowed(numbers(3), Function(first, always=counting), partial_responses=True, bisect=True).run(2)
    assert world.function.batches == [[1, 2, 3], [2, 3]]
    assert world.function.events[1]["state"] == {"n": 1}


# --- how far behind ---


def test_lag_tells_records_and_the_age_of_the_oldest() -> None:
    world = World(FakeStream(a=numbers(3)), Function(always=FunctionFailed())).run(20)
    lag = world.pump.lag()
    assert lag.records_behind == 3
    assert lag.oldest_age_seconds == pytest.approx(20)


def test_drained_means_read_after_the_question_and_nothing_waiting() -> None:
    world = World(FakeStream(a=numbers(3)), Function(), batching_window_seconds=1).run(0.5)
    asked = world.now
    assert not world.pump.drained(asked)
    world.run(1.5)
    assert world.pump.drained(asked)
    assert not world.pump.drained(world.now + 10)


# --- settings ---


def test_settings_come_from_the_template() -> None:
    settings = Settings.of(
        {
            "StartingPosition": "LATEST",
            "BatchSize": 10000,
            "MaximumBatchingWindowInSeconds": 1,
            "TumblingWindowInSeconds": 300,
            "ParallelizationFactor": 1,
            "BisectBatchOnFunctionError": True,
            "MaximumRetryAttempts": 4,
            "MaximumRecordAgeInSeconds": 90,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            "FilterCriteria": {"Filters": []},
            "DestinationConfig": {"OnFailure": {"Type": "SQS", "Destination": "arn:q"}},
        }
    )
    assert settings == Settings("LATEST", 10000, 1, 300, True, 4, 90, True, {"Filters": []}, "arn:q")
    assert Settings.of({}) == Settings()


def test_more_than_one_batch_of_a_shard_at_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="ParallelizationFactor"):
        Settings.of({"ParallelizationFactor": 2})


# --- in process, with threads ---


def test_threads_deliver_and_stop() -> None:
    seen: list[Any] = []
    handler = InProcess(lambda event, context: seen.append((event, context.function_name)), "f", "arn:f")
    pump = Pump(FakeStream(a=numbers(2), b=[record(3)]), handler, Settings(), poll_seconds=0.01)
    pump.start()
    assert pump.wait_drained(5)
    pump.stop()
    assert sorted(len(event["Records"]) for event, _ in seen) == [1, 2]
    assert {name for _, name in seen} == {"f"}
