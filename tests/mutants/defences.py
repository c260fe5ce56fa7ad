"""What keeps counts exact and callers apart, each with an edit that takes it away and tests that must notice.

An edit replaces a text that stands in its file exactly once (`tests/unit/test_defences.py` holds the list to
that). The mutated code still runs: what fails is what it does. The tests of a defence are as few as are sure to
turn red, so that the whole list is run in minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` becomes `new` in a file, named from the project's root."""

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text of the file with the edit made; ValueError unless `old` stands there exactly once."""
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} holds this text {found} times instead of once: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Defence:
    """`guards` says, in a sentence, what is there and what happens without it; `tests` are arguments of pytest."""

    name: str
    guards: str
    edits: Sequence[Edit]
    tests: Sequence[str]


CORE = "layers/core/tallymark"
AGGREGATION = f"{CORE}/aggregation.py"
AGGREGATOR = "functions/aggregator/app.py"
AUDIT = f"{CORE}/storage/audit.py"
COUNTER_TABLE = f"{CORE}/storage/counter_table.py"
COUNTS = f"{CORE}/counts.py"
DOCS_PAGE = f"{CORE}/runtime/docs_page.py"
DYNAMODB = f"{CORE}/storage/dynamodb.py"
EVENT_TABLE = f"{CORE}/storage/event_table.py"
FOLD = f"{CORE}/fold.py"
HOT = f"{CORE}/hot.py"
IDENTITY = f"{CORE}/identity.py"
KEYS = f"{CORE}/storage/keys.py"
LIKE_STREAM = f"{CORE}/storage/like_stream.py"
LIKE_TABLE = f"{CORE}/storage/like_table.py"
LIKES = f"{CORE}/likes.py"
LIMITS = f"{CORE}/limits.py"
QUOTA_TABLE = f"{CORE}/storage/quota_table.py"
QUOTAS = f"{CORE}/quotas.py"
LIVE_SKETCHES = f"{CORE}/storage/live_sketches.py"
RECONCILIATION = f"{CORE}/reconciliation.py"
SIGNING = f"{CORE}/signing.py"
SKETCH = f"{CORE}/sketch.py"
STREAMS = f"{CORE}/runtime/streams.py"
TEMPLATE = "template.yaml"
TOKENS = f"{CORE}/tokens.py"
TOP = f"{CORE}/top.py"
TOP_TABLE = f"{CORE}/storage/top_table.py"
VALKEY = f"{CORE}/storage/valkey.py"
VISITOR_TABLES = f"{CORE}/storage/visitor_tables.py"
VISITORS = f"{CORE}/visitors.py"

EVENT_STREAM = f"{CORE}/storage/event_stream.py"
EVENT_TESTS = "tests/integration/test_events.py"
EXACTNESS = "tests/integration/test_exactness.py"
FOLDING = "tests/property/test_folding.py"
HANDLERS = "tests/unit/test_handlers.py"
HEADERS = "tests/unit/test_headers.py"
KEYS_TESTS = "tests/property/test_keys.py"
LIKE_TABLE_TESTS = "tests/integration/test_like_table.py"
LOG_LINES = "tests/unit/test_log_lines.py"
QUOTA_STEPS = "tests/property/test_quotas.py"
QUOTA_TESTS = "tests/unit/test_quotas.py"
PARTIAL_ANSWERS = "tests/unit/core/test_partial_answers.py"
RECONCILER_TESTS = "tests/integration/test_reconciler.py"
RIGHTS = "tests/integration/test_rights.py"
ROWS = "tests/integration/test_counter_rows.py"
RULES = "tests/unit/test_template_rules.py"
STREAM_HANDLERS = "tests/unit/test_handlers_streams.py"
TEMPLATE_TESTS = "tests/unit/test_template.py"
TOKEN_TESTS = "tests/unit/core/test_tokens.py"
TOP_ENGINE = "tests/integration/test_top.py"
TOP_PROPERTIES = "tests/property/test_top.py"
TOP_TESTS = "tests/unit/core/test_top.py"
VALKEY_TESTS = "tests/integration/test_valkey.py"
VISITORS_STORED = "tests/integration/test_visitors.py"
VISITORS_TESTS = "tests/property/test_visitors.py"

# --- each record once ------------------------------------------------------------------------------------------

FOLDED_ONCE = [
    Defence(
        "row-condition",
        "A row takes a delta only if its mark is below it; else a repeat whose first reply was lost counts twice.",
        [
            Edit(COUNTER_TABLE, "WHERE pk = ? AND sk = ? AND {fresh}", "WHERE pk = ? AND sk = ?"),
            Edit(
                COUNTER_TABLE,
                'floor = [] if row.mark is None else [{"B": _floor(delta)}]',
                "floor: list[Any] = []",
            ),
        ],
        [f"{EXACTNESS}::test_a_reply_that_was_lost_after_the_write_landed_changes_nothing"],
    ),
    Defence(
        "row-insert",
        "A new row is inserted, and one that another lane made meanwhile is read; else the delta is lost.",
        [
            Edit(
                COUNTER_TABLE,
                'if code == "DuplicateItem":\n            return Passed(None)',
                'if code == "DuplicateItem":\n            return Added()',
            )
        ],
        [f"{ROWS}::test_two_lanes_that_make_a_row_at_the_same_moment_are_both_counted"],
    ),
    Defence(
        "statement-errors",
        "Each statement of a batch has an error of its own; one that is not looked at loses its delta.",
        [
            Edit(
                COUNTER_TABLE,
                "if code in TRANSIENT_CODES:\n            return Deferred()",
                "if code in TRANSIENT_CODES:\n            return Added()",
            )
        ],
        [f"{EXACTNESS}::test_what_the_store_does_not_take_is_asked_for_again_from_its_first_record"],
    ),
    Defence(
        "trim",
        "What lies beyond the mark is counted; dropping the whole delta there loses it.",
        [Edit(FOLD, "return Delta(self.counter, rest) if rest else None", "return None")],
        [f"{EXACTNESS}::test_a_batch_that_is_cut_again_and_overlaps_counts_each_record_once"],
    ),
    Defence(
        "trim-edge",
        "The change at the mark itself is counted already; counting it again is one too many.",
        [Edit(FOLD, "if change.sequence > mark.sequence)", "if change.sequence >= mark.sequence)")],
        [f"{FOLDING}::test_what_lies_after_a_mark_is_what_the_mark_does_not_hold"],
    ),
    Defence(
        "repeat-in-batch",
        "A record that stands twice in one batch is folded once.",
        [
            Edit(
                FOLD,
                "by_counter: dict[Counter, dict[tuple[int, str], Change]] = {}",
                "by_counter: dict[Counter, list[Change]] = {}",
            ),
            Edit(
                FOLD,
                "by_counter.setdefault(change.counter, {}).setdefault((change.sequence, change.slot), change)",
                "by_counter.setdefault(change.counter, []).append(change)",
            ),
            Edit(
                FOLD,
                "tuple(by_place[place] for place in sorted(by_place))",
                "tuple(sorted(by_place, key=lambda change: change.sequence))",
            ),
        ],
        [f"{FOLDING}::test_folding_knows_neither_order_nor_repeats"],
    ),
    Defence(
        "zero-delta",
        "A like and its removal add up to 0 and move the mark all the same; else half of them counts on a repeat.",
        [
            Edit(
                AGGREGATION,
                "deltas = fold(change for _, changes in read_records for change in changes)",
                "deltas = fold(change for _, changes in read_records for change in changes)\n"
                "    deltas = [delta for delta in deltas if any(delta.amounts.values())]",
            )
        ],
        [f"{EXACTNESS}::test_repeats_may_come_out_of_order"],
    ),
    Defence(
        "mark-width",
        "A mark holds the 40 digits that a sequence number may have; cut to 8 bytes it goes round.",
        [
            Edit(COUNTER_TABLE, "_SEQUENCE_BYTES = 17", "_SEQUENCE_BYTES = 8"),
            Edit(COUNTER_TABLE, "return mark.sequence.to_bytes(", "return (mark.sequence % 2**64).to_bytes("),
        ],
        [f"{KEYS_TESTS}::test_the_byte_order_of_marks_is_the_order_of_sequence_numbers_up_to_40_digits"],
    ),
    Defence(
        "mark-order",
        "The bytes of marks are ordered as their numbers; as text, 9 stands above 10.",
        [
            Edit(COUNTER_TABLE, 'mark.sequence.to_bytes(_SEQUENCE_BYTES, "big")', "str(mark.sequence).encode()"),
            Edit(
                COUNTER_TABLE,
                'int.from_bytes(packed[:_SEQUENCE_BYTES], "big"), int.from_bytes(packed[_SEQUENCE_BYTES:], "big")',
                'int(packed[:-_TIME_BYTES]), int.from_bytes(packed[-_TIME_BYTES:], "big")',
            ),
        ],
        [f"{EXACTNESS}::test_marks_keep_the_order_of_sequence_numbers_of_any_length"],
    ),
    Defence(
        "mark-time",
        "A mark carries the newest time folded into it; with the oldest it is pruned while repeats still come.",
        [Edit(FOLD, "max(change.time_s for change in self.changes)", "min(change.time_s for change in self.changes)")],
        [f"{STREAM_HANDLERS}::test_a_delta_knows_the_newest_time_and_the_last_number"],
    ),
    Defence(
        "prune-age",
        "A mark stays 48 hours, twice as long as its stream; pruned after one, a repeat finds none and counts again.",
        [Edit(FOLD, "PRUNE_AFTER_S = 48 * 3600", "PRUNE_AFTER_S = 3600")],
        [f"{ROWS}::test_a_mark_stays_while_its_stream_can_repeat_what_it_covers"],
    ),
    Defence(
        "prune-by-change",
        "A mark is as old as the newest change folded into it; with the age of its shard it is pruned while in use.",
        [
            Edit(
                COUNTER_TABLE,
                'delta.amounts, {"B": pack_mark(delta.mark)}',
                'delta.amounts, {"B": pack_mark(Mark(delta.mark.sequence, int(lane.id[8:28]) // 1000))}',
            )
        ],
        [f"{ROWS}::test_a_mark_stays_while_its_stream_can_repeat_what_it_covers"],
    ),
    Defence(
        "prune-unmoved",
        "Only the value that was seen to be old is pruned; else a mark that its lane moves in between is lost.",
        [
            Edit(COUNTER_TABLE, 'unmoved = "".join(f" AND #{alias} = :{alias}" for alias in old)', 'unmoved = ""'),
            Edit(
                COUNTER_TABLE,
                '                        **{f":{alias}": {"B": packed} for alias, (_, packed) in old.items()},\n',
                "",
            ),
        ],
        [f"{ROWS}::test_a_mark_that_its_lane_moves_is_not_pruned"],
    ),
    Defence(
        "prune-condition",
        "The write that prunes has the condition of every other; else two deliveries at the same moment count twice.",
        [Edit(COUNTER_TABLE, "OR #mark < :first)", "OR #mark <> :first)")],
        [f"{ROWS}::test_a_write_that_prunes_counts_nothing_that_another_delivery_has_counted_meanwhile"],
    ),
    Defence(
        "stale-limit",
        "What is over 36 hours old is not judged by a mark that may be gone; at 72 it would count again.",
        [Edit(FOLD, "STALE_AFTER_S = 36 * 3600", "STALE_AFTER_S = 72 * 3600")],
        [f"{STREAM_HANDLERS}::test_an_old_record_is_parked_and_says_whether_it_can_be_judged"],
    ),
    Defence(
        "stale-counted",
        "An old record that its mark covers was counted in its time; parked, it would be counted by the consumer too.",
        [
            Edit(
                AGGREGATION,
                "if mark is not None and change.sequence <= mark.sequence:\n                continue",
                "if mark is None and not row_exists and change.sequence < 0:\n                continue",
            )
        ],
        [f"{EXACTNESS}::test_old_records_that_were_counted_in_their_time_are_not_counted_again"],
    ),
    Defence(
        "undecidable",
        "Whether a record over 48 hours old was counted cannot be told once marks are pruned; guessing counts twice.",
        [
            Edit(
                AGGREGATION,
                "decidable = mark is not None or not row_exists or not is_prunable(Mark(0, change.time_s), now_s)",
                "decidable = True",
            )
        ],
        [f"{STREAM_HANDLERS}::test_an_old_record_is_parked_and_says_whether_it_can_be_judged"],
    ),
    Defence(
        "modify",
        "A record that changes neither a like nor its absence changes no count.",
        [Edit(LIKE_STREAM, '"MODIFY": 0}', '"MODIFY": 1}')],
        [f"{FOLDING}::test_a_record_that_changes_no_like_changes_no_count"],
    ),
    Defence(
        "negative-rows",
        "A row may be negative, because a like and its removal meet in two lanes; clamped, the sum is too high.",
        [Edit(COUNTER_TABLE, 'name: int(item[name]["N"])', 'name: max(0, int(item[name]["N"]))')],
        [f"{ROWS}::test_a_like_and_its_removal_in_two_lanes_add_up_to_nothing"],
    ),
    Defence(
        "negative-counts",
        "A count below 0 is shown and raises an alarm; a 0 would hide the fault and swallow the next like.",
        [
            Edit(
                f"{CORE}/model.py",
                "return sum(self.by_reaction.values())",
                "return max(0, sum(self.by_reaction.values()))",
            )
        ],
        ["tests/unit/core/test_model.py::test_a_total_hides_no_negative_count"],
    ),
]

# --- lanes -----------------------------------------------------------------------------------------------------

# Lines of the mapping of likes, told from those of the events by what stands before them.
FACTOR = "            ParallelizationFactor"
ITSELF = "is parked by the function itself.\n"
RETRIES = "            MaximumRetryAttempts"
AGE = "            MaximumRecordAgeInSeconds"
FROM = "            StartingPosition"

LANES = [
    Defence(
        "fixed-rows",
        "A lane keeps the number of rows of its creation; by today's number it would not find its marks again.",
        [
            Edit(
                FOLD,
                "rows = next(rows for since_ms, rows in reversed(counter_rows) if since_ms <= created_ms)",
                "rows = counter_rows[-1][1]",
            )
        ],
        [f"{STREAM_HANDLERS}::test_a_lane_keeps_the_number_of_rows_of_the_time_that_it_was_created"],
    ),
    Defence(
        "lane-unknown",
        "A batch that names no shard fails; folded under one name, lanes would trim each other's changes away.",
        [Edit(STREAMS, "if not shard_id:", "if not shard_id and event is None:")],
        [f"{STREAM_HANDLERS}::test_an_event_that_names_no_shard_counts_nothing_and_fails"],
    ),
    Defence(
        "window",
        "Only a tumbling window's envelope tells the shard; without one every batch would fail.",
        [Edit(TEMPLATE, "            TumblingWindowInSeconds: 300\n            # More", "            # More")],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "factor-1",
        "Batches of one shard come one after the other; side by side, a mark passes changes that are still to come.",
        [Edit(TEMPLATE, f"could be kept.\n{FACTOR}: 1", f"could be kept.\n{FACTOR}: 2")],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "factor-1-local",
        "The pump of the local stack refuses what it cannot deliver in order.",
        [
            Edit(
                "infra/local/mapping.py",
                'if int(properties.get("ParallelizationFactor", 1)) != 1:',
                'if int(properties.get("ParallelizationFactor", 1)) < 1:',
            )
        ],
        ["tests/unit/local/test_mapping.py::test_more_than_one_batch_of_a_shard_at_a_time_is_refused"],
    ),
    Defence(
        "retry-forever",
        "Lambda never gives a batch up; after three tries an outage of a minute would lose it.",
        [Edit(TEMPLATE, f"{ITSELF}{RETRIES}: -1", f"{ITSELF}{RETRIES}: 3")],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "record-age",
        "No record grows too old to be delivered; with a limit, a long outage would lose the oldest.",
        [Edit(TEMPLATE, f"{ITSELF}{RETRIES}: -1\n{AGE}: -1", f"{ITSELF}{RETRIES}: -1\n{AGE}: 3600")],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "partial-batch",
        "Lambda reads which record was not counted; else a response that names one counts as success.",
        [
            Edit(
                TEMPLATE,
                f"{ITSELF}{RETRIES}: -1\n{AGE}: -1\n            FunctionResponseTypes: [ReportBatchItemFailures]\n",
                f"{ITSELF}{RETRIES}: -1\n{AGE}: -1\n",
            )
        ],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "partial-messages",
        "The queue keeps the parked records that were not settled; else one batch's answer deletes them all.",
        [
            Edit(
                TEMPLATE,
                "            BatchSize: 10\n            FunctionResponseTypes: [ReportBatchItemFailures]\n",
                "            BatchSize: 10\n",
            )
        ],
        [f"{PARTIAL_ANSWERS}::test_both_mappings_take_partial_answers"],
    ),
    Defence(
        "from-the-beginning",
        "The mapping begins at the oldest record; at the newest, likes made while it was set up would be missed.",
        [
            Edit(
                TEMPLATE,
                f"{FROM}: TRIM_HORIZON\n            BatchSize: 10000\n            MaximumBatchingWindowInSeconds: 1",
                f"{FROM}: LATEST\n            BatchSize: 10000\n            MaximumBatchingWindowInSeconds: 1",
            )
        ],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "event-filter",
        "Inserts and removals pass the filter; without removals no count would ever fall.",
        [Edit(TEMPLATE, """'{"eventName":["INSERT","REMOVE"]}'""", """'{"eventName":["INSERT"]}'""")],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "lowest-failed",
        "Lambda delivers from the lowest record that was not counted; from a higher one, those before it are lost.",
        [
            Edit(
                AGGREGATION,
                "first_undone = min((delta.first_sequence for delta in undone), default=None)",
                "first_undone = max((delta.first_sequence for delta in undone), default=None)",
            )
        ],
        [f"{STREAM_HANDLERS}::test_of_several_records_that_could_not_be_written_the_first_is_named"],
    ),
]

# --- events --------------------------------------------------------------------------------------------------------

EVENTS = [
    Defence(
        "event-token",
        "An event is put on condition that its token is new; else a repeat counts again.",
        [
            Edit(
                EVENT_TABLE,
                'ConditionExpression="attribute_not_exists(pk)",\n                    ReturnValues',
                'ConditionExpression="attribute_not_exists(never)",\n                    ReturnValues',
            )
        ],
        [f"{EVENT_TESTS}::test_a_token_is_recorded_once"],
    ),
    Defence(
        "event-nonce",
        "A call that finds its own event knows that it was new; else a lost reply turns changed into false.",
        [Edit(EVENT_TABLE, 'return bytes(standing["nonce"]["B"]) == event.nonce', "return standing is None")],
        [f"{EVENT_TESTS}::test_an_event_whose_reply_was_lost_is_new_all_the_same"],
    ),
    Defence(
        "event-expiry",
        "Only new events count; with their expiry, each total would fall after some days.",
        [Edit(EVENT_STREAM, 'record["eventName"] != "INSERT" or not is_event(', "not is_event(")],
        [f"{FOLDING}::test_what_is_no_new_event_changes_no_count"],
    ),
    Defence(
        "event-filter-of-events",
        "The mapping passes new events alone, so that their expiry costs no invocation and can do no harm.",
        [
            Edit(
                TEMPLATE,
                """'{"eventName":["INSERT"],"dynamodb":{"Keys":{"pk":{"S":[{"prefix":"event#"}""",
                """'{"eventName":["INSERT","REMOVE"],"dynamodb":{"Keys":{"pk":{"S":[{"prefix":"event#"}""",
            )
        ],
        [f"{TEMPLATE_TESTS}::test_the_streams_are_delivered_as_exact_counting_needs_it"],
    ),
    Defence(
        "slots-apart",
        "Two slots of one row that a record moves are two changes; taken for a repeat, one is lost.",
        [
            Edit(
                FOLD,
                ".setdefault((change.sequence, change.slot), change)",
                '.setdefault((change.sequence, ""), change)',
            )
        ],
        [f"{EVENT_TESTS}::test_an_event_counts_once_however_its_batches_are_cut_and_repeated"],
    ),
    Defence(
        "slots-at-once",
        "A row is inserted with all its slots; to one that is missing nothing could be added later.",
        [Edit(COUNTER_TABLE, "{slot: amounts.get(slot, 0) for slot in delta.counter.slots}", "dict(amounts)")],
        [f"{EVENT_TESTS}::test_each_hour_has_its_views_and_the_day_its_expiry"],
    ),
    Defence(
        "streams-apart",
        "Shards of two streams with one id are two lanes; as one, the claim of one's record hides the other's.",
        [Edit(f"{CORE}/storage/records.py", 'return _EVENTS if f":table', 'return "" if f":table')],
        [f"{STREAM_HANDLERS}::test_records_of_one_number_in_shards_of_one_name_are_told_apart_by_their_stream"],
    ),
    Defence(
        "claim-per-change",
        "Each change of a parked record has its own claim; with one for all, the second is never counted.",
        [Edit(f"{CORE}/parking.py", 'place = f"#{part}" if part else ""', 'place = ""')],
        [f"{EVENT_TESTS}::test_old_events_are_counted_once_through_the_queue_each_change_by_itself"],
    ),
]

# --- parked records --------------------------------------------------------------------------------------------

PARKED = [
    Defence(
        "parking-first",
        "What cannot be counted is in the queue before a mark moves past it; else a crash in between loses it.",
        [
            Edit(AGGREGATION, "    if parked:\n        parking.put(parked)\n", ""),
            Edit(
                AGGREGATION, "    first_undone = ", "    if parked:\n        parking.put(parked)\n    first_undone = "
            ),
        ],
        [f"{STREAM_HANDLERS}::test_nothing_is_counted_before_what_must_be_parked_is_safe"],
    ),
    Defence(
        "held-back",
        "A record once parked as unreadable stays with the consumer; folded by a later version, it counts twice.",
        [Edit(AGGREGATION, "if known and sequence_number(record) in known:", "if record in ():")],
        [f"{STREAM_HANDLERS}::test_a_record_parked_before_a_deployment_and_read_after_it_counts_once"],
    ),
    Defence(
        "held-before-parked",
        "A record is held back before it is parked; else a crash in between lets the next version fold it as well.",
        [
            Edit(
                AGGREGATION,
                "    if unheld := {number for p in parked if (number := sequence_number(p.record))} - known:\n"
                "        held.hold(lane.id, unheld, now_s)\n",
                "",
            ),
            Edit(
                AGGREGATION,
                "        parking.put(parked)\n",
                "        parking.put(parked)\n"
                "    if unheld := {number for p in parked if (number := sequence_number(p.record))} - known:\n"
                "        held.hold(lane.id, unheld, now_s)\n",
            ),
        ],
        [f"{STREAM_HANDLERS}::test_a_record_parked_before_a_deployment_and_read_after_it_counts_once"],
    ),
    Defence(
        "newest-held",
        "Which records are held back is read consistently; an older answer would let one be folded.",
        [
            Edit(
                EVENT_TABLE,
                'Key={"pk": {"S": keys.held_key(lane_id)}}, ConsistentRead=True',
                'Key={"pk": {"S": keys.held_key(lane_id)}}',
            )
        ],
        [f"{PARTIAL_ANSWERS}::test_what_must_be_the_newest_is_read_consistently"],
    ),
    Defence(
        "queue-refusals",
        "A record that the queue refuses within a batch that it takes is not parked; the batch fails.",
        [
            Edit(
                f"{CORE}/storage/parked_queue.py",
                'if failed := answer.get("Failed"):',
                'if failed := answer.get("failed"):',
            )
        ],
        [f"{PARTIAL_ANSWERS}::test_a_record_that_the_queue_refuses_is_not_parked"],
    ),
    Defence(
        "claim",
        "A parked record is claimed before it is counted; else two deliveries by the queue count twice.",
        [Edit(EVENT_TABLE, '                                "ConditionExpression": "attribute_not_exists(pk)",\n', "")],
        [f"{EXACTNESS}::test_old_records_are_counted_once_through_the_queue"],
    ),
    Defence(
        "claim-with-count",
        "Claim and count are one transaction; in two calls, a crash between them leaves a claim that counted nothing.",
        [
            Edit(
                EVENT_TABLE,
                "self._client.transact_write_items(\n                    TransactItems=[",
                "for alone in (\n                    [",
            ),
            Edit(
                EVENT_TABLE,
                "                    ]\n                )\n            except",
                "                    ]\n                ):\n"
                "                    self._client.transact_write_items(TransactItems=[alone])\n            except",
            ),
        ],
        [f"{ROWS}::test_a_consumer_that_dies_has_counted_once_when_its_record_comes_again"],
    ),
]

# --- repair ----------------------------------------------------------------------------------------------------

REPAIR = [
    Defence(
        "correction-condition",
        "A correction is added only to the row that was seen; else two that correct the same correct it twice.",
        [
            Edit(
                AUDIT,
                'untouched = "attribute_not_exists(n)" if seen is None else "n = :seen"',
                'untouched = "(attribute_exists(pk) OR attribute_not_exists(pk))"\n'
                "        if seen is not None:\n"
                '            untouched = "(n = :seen OR n <> :seen)"',
            )
        ],
        [f"{RECONCILER_TESTS}::test_two_that_correct_the_same_at_once_correct_it_once"],
    ),
    Defence(
        "repair-on-request",
        "A difference is reported; it is corrected only when somebody asks for it.",
        [Edit(RECONCILIATION, "repaired = repair and all(", "repaired = all(")],
        [f"{RECONCILER_TESTS}::test_drift_is_reported_and_left_as_it_is"],
    ),
    Defence(
        "two-looks",
        "Drift is what two looks show alike; by one alone, a like that is being made is corrected away.",
        [Edit(RECONCILIATION, "if not second.same_as(first) or seen.too_many:", "if seen.too_many:")],
        [f"{RECONCILER_TESTS}::test_an_item_that_moves_between_the_looks_is_left_alone"],
    ),
    Defence(
        "empty-stream",
        "What is in the stream beyond the mark is still to be counted; corrected before, it counts twice.",
        [
            Edit(
                RECONCILIATION,
                "if not all(second.rows.holds(lane, counter, n) for (lane, counter), n in seen.newest.items()):",
                "if second.rows is None:",
            )
        ],
        [f"{RECONCILER_TESTS}::test_a_like_on_its_way_through_the_stream_is_no_drift_however_long_it_takes"],
    ),
    Defence(
        "index-behind",
        "An index may be behind the records; what it does not show yet is no like too many.",
        [
            Edit(
                RECONCILIATION,
                "if second.indexed != {like for like, stands in seen.standing.items() if stands}:",
                "if second.indexed is None:",
            )
        ],
        [f"{RECONCILER_TESTS}::test_a_like_that_the_index_does_not_show_yet_is_no_drift"],
    ),
    Defence(
        "parked-waits",
        "A parked record will be counted by its consumer; corrected before, it counts twice.",
        [Edit(RECONCILIATION, 'if verdict == "drift" and not waits:', 'if verdict == "drift":')],
        [f"{RECONCILER_TESTS}::test_a_parked_record_is_waited_for"],
    ),
]

# --- likes -----------------------------------------------------------------------------------------------------

LIKE_RECORDS = [
    Defence(
        "like-condition",
        "A like is put on condition that there is none; else a repeat takes the first one's place and time.",
        [
            Edit(
                LIKE_TABLE,
                '                    ConditionExpression="attribute_not_exists(pk)",\n'
                '                    ReturnValuesOnConditionCheckFailure="ALL_OLD",\n',
                "",
            )
        ],
        [f"{LIKE_TABLE_TESTS}::test_a_repeated_like_keeps_the_first_time"],
    ),
    Defence(
        "unlike-condition",
        "A like is removed on condition that it is there; else a second removal says that it changed something.",
        [Edit(LIKE_TABLE, 'Key=_key(key), ConditionExpression="attribute_exists(pk)"', "Key=_key(key)")],
        [f"{LIKE_TABLE_TESTS}::test_a_second_unlike_changes_nothing"],
    ),
    Defence(
        "own-stamp",
        "Who finds the own stamp made the like, though the reply was lost; else nobody is told that it changed.",
        [Edit(LIKES, "changed=standing.stamp == mine.stamp", "changed=standing is mine")],
        [f"{LIKE_TABLE_TESTS}::test_a_like_whose_reply_was_lost_says_that_it_changed_something"],
    ),
    Defence(
        "stamp-not-time",
        "Two likes of one millisecond have two stamps; by the time alone both would say that they changed something.",
        [Edit(LIKES, "changed=standing.stamp == mine.stamp", "changed=standing.stamp.ms == mine.stamp.ms")],
        ["tests/unit/core/test_likes.py::test_the_first_like_changes_and_a_repeat_gives_the_first_time"],
    ),
    Defence(
        "own-stamp-in-batch",
        "After a batch that was sent twice, own likes are looked for; else its answer says that nothing changed.",
        [Edit(LIKE_TABLE, 'if answer["ResponseMetadata"]["RetryAttempts"]:', 'if "Error" in answer:')],
        [f"{LIKE_TABLE_TESTS}::test_a_batch_whose_reply_was_lost_says_what_it_changed"],
    ),
    Defence(
        "batch-order",
        "Operations on one like take turns; in one call the store would take them in any order, or refuse them.",
        [Edit(LIKES, "turns[seen[operation.key]].append(i)", "turns[0].append(i)")],
        ["tests/unit/core/test_likes.py::test_a_batch_ends_as_its_operations_one_after_the_other"],
    ),
    Defence(
        "batch-errors",
        "A statement that was not taken is an error of that operation; passed over, it says that all is done.",
        [Edit(LIKE_TABLE, 'return Unavailable(f"the store did not take this operation: {code}")', "return False")],
        [f"{PARTIAL_ANSWERS}::test_a_statement_that_the_store_refuses_fails_its_operation"],
    ),
    Defence(
        "unprocessed",
        "Keys that come back unprocessed are asked for again; else likes that are there seem not to be.",
        [
            Edit(
                DYNAMODB,
                "        if not rest:\n            return found\n",
                "        if not rest or found:\n            return found\n",
            )
        ],
        [f"{LIKE_TABLE_TESTS}::test_keys_that_come_back_unprocessed_are_fetched"],
    ),
    Defence(
        "own-writes",
        "A person's own likes are read consistently; else a like just made may seem not to be there.",
        [Edit(LIKE_TABLE, "[_key(key) for key in part], consistent=True)", "[_key(key) for key in part])")],
        [f"{PARTIAL_ANSWERS}::test_what_must_be_the_newest_is_read_consistently"],
    ),
    Defence(
        "newest-marks",
        "Marks are read consistently before an old record is judged; an older mark would count it again.",
        [
            Edit(
                COUNTER_TABLE,
                "batch_get(self._client, self._table, part, consistent=True)",
                "batch_get(self._client, self._table, part)",
            )
        ],
        [f"{PARTIAL_ANSWERS}::test_what_must_be_the_newest_is_read_consistently"],
    ),
    Defence(
        "escape",
        "An id is escaped before it stands between separators; else one item's reactions are read with another's.",
        [Edit(KEYS, "return text.replace(_SEPARATOR, _ESCAPED)", "return text")],
        [f"{KEYS_TESTS}::test_a_target_prefix_begins_the_keys_of_that_target_alone"],
    ),
    Defence(
        "nfc",
        "Ids are brought into one spelling; else one person likes twice, by two spellings of one name.",
        [
            Edit(
                f"{CORE}/identifiers.py",
                'text = raw if raw.isascii() else unicodedata.normalize("NFC", raw)',
                "text = raw",
            )
        ],
        ["tests/unit/core/test_identifiers.py::test_an_id_is_taken_in_its_one_spelling"],
    ),
]

# --- reading ---------------------------------------------------------------------------------------------------

READING = [
    Defence(
        "unknown-is-null",
        "A count that could not be had is null; a 0 would be believed.",
        [
            Edit(
                "functions/read_api/app.py",
                '"count": None if found is None else found.total',
                '"count": 0 if found is None else found.total',
            )
        ],
        [f"{HANDLERS}::test_a_count_that_cannot_be_had_is_503_alone_and_null_among_many_never_0"],
    ),
    Defence(
        "busy-is-unknown",
        "Rows that the store does not give are unknown, and no empty sum.",
        [
            Edit(
                COUNTER_TABLE,
                "            except Unavailable:\n                return None\n",
                "            except Unavailable:\n                return Count({}, self._now_ms())\n",
            )
        ],
        [f"{PARTIAL_ANSWERS}::test_a_count_that_the_store_does_not_give_is_unknown"],
    ),
    Defence(
        "all-pages",
        "A sum goes on to the last page of rows; the first alone holds 1 MB of them.",
        [
            Edit(
                DYNAMODB,
                'if "LastEvaluatedKey" not in answer:\n            return\n        request',
                'if answer["Items"] or "LastEvaluatedKey" not in answer:\n            return\n        request',
            )
        ],
        [f"{PARTIAL_ANSWERS}::test_a_count_is_the_sum_of_all_pages"],
    ),
    Defence(
        "cache-token",
        "A value goes into the cache only over an older reading; else a slow read ends above a newer one.",
        [Edit(VALKEY, "if known and tonumber(known) >= tonumber(ARGV[2]) then return 0 end\n", "")],
        [f"{VALKEY_TESTS}::test_a_slow_read_never_overwrites_a_newer_one"],
    ),
    Defence(
        "cache-lease",
        "One caller refreshes a count while the others wait or see the old one; else a herd reads the rows.",
        [
            Edit(
                VALKEY, "if known[4] and now_ms < tonumber(known[4]) then return {known[1] or '', age_ms, ''} end\n", ""
            )
        ],
        [f"{VALKEY_TESTS}::test_one_caller_refreshes_and_the_others_see_it"],
    ),
    Defence(
        "cache-in-process",
        "A process never goes back behind a count that it has shown.",
        [
            Edit(
                COUNTS, "newer = count if known is None or known.as_of_ms <= count.as_of_ms else known", "newer = count"
            )
        ],
        ["tests/unit/core/test_counts.py::test_an_older_count_never_overwrites_a_newer_one_in_the_process"],
    ),
    Defence(
        "limit-script",
        "Counting and taking are one script; in two steps, calls at the same moment pass the limit.",
        [
            Edit(
                VALKEY,
                "            answers = self._server.run(_TAKE, calls)",
                "            answers = []\n"
                "            for key, (number, most, *_) in calls:\n"
                "                held = self._server.call(lambda client, key=key: client.llen(key))\n"
                "                granted = max(0, min(number, most - held))\n"
                "                stamps = [time.time_ns() // 1000] * granted\n"
                "                if stamps:\n"
                "                    self._server.call(lambda client, key=key: client.rpush(key, *stamps))\n"
                "                answers.append((granted, 0, 1))",
            )
        ],
        [f"{VALKEY_TESTS}::test_a_window_allows_its_limit_and_no_call_more_under_concurrency"],
    ),
    Defence(
        "limit-window",
        "The window slides: a call is forgotten when it is out of it, and not a moment before.",
        [Edit(LIMITS, "bisect_right(log, now - window,", "bisect_right(log, now - window // 2,")],
        ["tests/property/test_limits.py::test_no_window_ever_holds_more_than_the_limit"],
    ),
    Defence(
        "limit-memory",
        "A call with a short window makes none with a longer one forget, in the memory of a process.",
        [Edit(LIMITS, "bisect_right(log, now - self._longest_us)", "bisect_right(log, now - window)")],
        ["tests/unit/test_limit_hits.py::test_each_hit_is_judged_by_its_own_numbers_over_one_log"],
    ),
    Defence(
        "limit-log",
        "A call with a short window makes none with a longer one forget, in the log of all processes.",
        [
            Edit(VALKEY, "newest(length) <= now - longest then", "newest(length) <= now - window then"),
            Edit(VALKEY, "-within(longest, most), -1)", "-within(window, most), -1)"),
        ],
        [f"{VALKEY_TESTS}::test_a_call_with_a_short_window_makes_none_with_a_longer_one_forget"],
    ),
    Defence(
        "limit-lifetime",
        "A log lives as long as any call may ask for; with the life of a short window it is gone for a longer one.",
        [Edit(VALKEY, "math.ceil((now + longest) / 1000)", "math.ceil((now + window) / 1000)")],
        [f"{VALKEY_TESTS}::test_a_call_with_a_short_window_makes_none_with_a_longer_one_forget"],
    ),
    Defence(
        "limit-bound",
        "A log holds no more calls than a limit can ask for; without the bound a day of calls fills the cache.",
        [Edit(VALKEY, "if length > most or newest(length)", "if newest(length)")],
        [f"{VALKEY_TESTS}::test_a_log_holds_what_a_limit_can_ask_for_and_no_call_more"],
    ),
    Defence(
        "limit-wait",
        "Where others were allowed more, the wait is until fewer than the limit are left, not until the oldest goes.",
        [Edit(VALKEY, "newest(held) + window - clock", "newest(length) + window - clock")],
        [f"{VALKEY_TESTS}::test_where_others_were_allowed_more_the_wait_is_until_fewer_than_the_limit_are_left"],
    ),
    Defence(
        "limit-refused",
        "A refused call uses up nothing; counted, who tries on and on is never let in again.",
        [Edit(VALKEY, "if granted > 0 then\n  for _ = 1, granted do", "if wanted > 0 then\n  for _ = 1, wanted do")],
        [f"{VALKEY_TESTS}::test_refused_calls_use_up_nothing_and_say_when_to_come_back"],
    ),
    Defence(
        "limit-clock",
        "The server's clock alone counts; a process whose clock is wrong would forget what others logged.",
        [
            Edit(
                VALKEY,
                "local time = redis.call('TIME')\nlocal clock = time[1] * 1000000 + time[2]",
                "local clock = ARGV[6] * 1000000",
            ),
            Edit(VALKEY, "self._longest_window_s, MAX_CALLS))", "self._longest_window_s, MAX_CALLS, time.time()))"),
        ],
        [f"{VALKEY_TESTS}::test_the_callers_clocks_do_not_matter"],
    ),
    Defence(
        "limit-clock-back",
        "A server's clock that steps back, in a failover, leaves the log in order; out of order it is misread.",
        [Edit(VALKEY, "local now = length > 0 and math.max(clock, newest(1)) or clock", "local now = clock")],
        [f"{VALKEY_TESTS}::test_a_clock_that_steps_back_lets_no_time_pass"],
    ),
    Defence(
        "limit-name",
        "No caller can name the log of our own API; else anybody uses up anybody's likes through it.",
        [Edit(LIMITS, 'OWN_LIMIT = "@user"', 'OWN_LIMIT = "user"')],
        ["tests/unit/test_rate_limit.py::test_no_caller_can_name_the_limit_of_our_own_api"],
    ),
    Defence(
        "limit-closed",
        "A deployment that chose so allows no hit without Valkey; by itself each process allows the whole limit.",
        [Edit(f"{CORE}/runtime/wiring.py", 'limits_without_cache == "open"', 'limits_without_cache != ""')],
        [
            "tests/unit/test_limit_hits.py"
            "::test_without_valkey_a_process_judges_by_itself_or_refuses_as_the_deployment_chose"
        ],
    ),
]

# --- who may do what -------------------------------------------------------------------------------------------

CALLERS = [
    Defence(
        "cursor-signature",
        "A cursor is signed; else anyone makes one, and reads on in any list from anywhere.",
        [
            Edit(
                SIGNING,
                "genuine = hmac.compare_digest(signature, _signature(key, payload, context))",
                "genuine = len(signature) == _SIGNATURE_BYTES",
            )
        ],
        ["tests/property/test_cursors.py::test_any_altered_byte_is_refused"],
    ),
    Defence(
        "cursor-context",
        "A cursor belongs to its list; else one of another person's list is taken here.",
        [Edit(SIGNING, "+ payload + context.encode()", "+ payload")],
        [f"{HANDLERS}::test_a_cursor_belongs_to_its_list_and_filters"],
    ),
    Defence(
        "key-purpose",
        "Each purpose has its own key; else a cursor is an anonymous person's proof.",
        [
            Edit(
                SIGNING,
                "hmac.new(secret.encode(), purpose.encode(), hashlib.sha256)",
                'hmac.new(secret.encode(), b"", hashlib.sha256)',
            )
        ],
        ["tests/property/test_cursors.py::test_a_signature_for_one_purpose_is_worth_nothing_for_another"],
    ),
    Defence(
        "anonymous-token",
        "An anonymous person proves the id by its signature; else anybody is anybody.",
        [
            Edit(
                IDENTITY,
                "user_id = open_signed(_anonymous_key(secret()), token)",
                "user_id = open_signed(_anonymous_key(secret()), token) or token.encode(errors='replace')",
            )
        ],
        ["tests/unit/core/test_identity.py::test_a_forged_anonymous_token_is_refused"],
    ),
    Defence(
        "service-key",
        "The whole service key is compared; else its beginning is enough.",
        [
            Edit(
                IDENTITY,
                'if not hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), genuine.encode()):',
                "if not genuine.startswith(sent):",
            )
        ],
        ["tests/unit/core/test_identity.py::test_a_wrong_service_key_is_refused"],
    ),
    Defence(
        "service-key-mode",
        "The service key counts in open mode alone; outside it, services have tokens or signatures.",
        [Edit(IDENTITY, 'if mode == "open" and SERVICE_KEY_HEADER in headers:', "if SERVICE_KEY_HEADER in headers:")],
        ["tests/unit/core/test_identity.py::test_the_service_key_is_worth_nothing_outside_open_mode"],
    ),
    Defence(
        "iam-signature",
        "In iam mode a caller without a signature is nobody; believed, the whole API is open.",
        [Edit(IDENTITY, 'if not authorizer.get("iam"):', 'if authorizer.get("iam") is False:')],
        ["tests/unit/core/test_identity.py::test_an_unsigned_request_is_no_service_in_iam_mode"],
    ),
    Defence(
        "service-scope",
        "The service scope is one whole word of the token's; as a part of another, anybody's scope would do.",
        [Edit(IDENTITY, "if SERVICE_SCOPE in _scopes(claims):", "if SERVICE_SCOPE in str(_scopes(claims)):")],
        ["tests/unit/core/test_identity.py::test_a_scope_that_only_looks_alike_makes_no_service"],
    ),
    Defence(
        "token-signature",
        "A token is signed by the issuer's key; else anybody writes one.",
        [
            Edit(
                TOKENS,
                "any(is_signed(signed, signature, key, algorithm) for key in",
                "any(signature and key for key in",
            )
        ],
        [f"{TOKEN_TESTS}::test_the_signature_of_one_token_is_worth_nothing_under_another"],
    ),
    Defence(
        "token-algorithm",
        "A token is signed by RSA; by `none`, or with the public key as a secret, anybody signs.",
        [
            Edit(
                TOKENS,
                "if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:",
                "if not isinstance(algorithm, str):",
            ),
            Edit(
                TOKENS,
                "    length = (key.modulus.bit_length() + 7) // 8\n",
                "    if algorithm not in _ALGORITHMS:\n        return True\n"
                "    length = (key.modulus.bit_length() + 7) // 8\n",
            ),
        ],
        [f"{TOKEN_TESTS}::test_a_token_that_is_not_signed_with_rsa_is_refused"],
    ),
    Defence(
        "token-key",
        "A token is signed by the key that it names; any other of the issuer's may be for something else.",
        [Edit(TOKENS, "named = [key for key in keys if key.key_id == key_id]", "named = list(keys)")],
        [f"{TOKEN_TESTS}::test_the_key_must_be_the_one_that_is_named"],
    ),
    Defence(
        "key-exponent",
        "A key has an exponent of 3 or more; with 1, every text is its own signature.",
        [Edit(TOKENS, "and 3 <= exponent < 1", "and 1 <= exponent < 1")],
        [f"{TOKEN_TESTS}::test_a_key_that_is_unsound_or_for_something_else_is_not_used"],
    ),
    Defence(
        "token-issuer",
        "A token is of this deployment's issuer.",
        [Edit(TOKENS, 'if claims.get("iss") != issuer:', 'if "iss" not in claims:')],
        [f"{TOKEN_TESTS}::test_claims_that_do_not_hold_are_refused"],
    ),
    Defence(
        "token-audience",
        "A token is meant for this API; one for another of the issuer's is refused.",
        [Edit(TOKENS, "if audience not in _audiences(claims):", "if _audiences(claims) == [None]:")],
        [f"{TOKEN_TESTS}::test_claims_that_do_not_hold_are_refused"],
    ),
    Defence(
        "token-expiry",
        "A token ends when it says so; else one that was stolen is good for ever.",
        [Edit(TOKENS, "if expires is None or expires <= now_s:", "if expires is None:")],
        [f"{TOKEN_TESTS}::test_claims_that_do_not_hold_are_refused"],
    ),
    Defence(
        "token-beginning",
        "A token is not good before it says so.",
        [Edit(TOKENS, "if begins is not None and begins > now_s + LEEWAY_S:", "if begins is not None and begins < 0:")],
        [f"{TOKEN_TESTS}::test_claims_that_do_not_hold_are_refused"],
    ),
    Defence(
        "headers",
        "Every answer forbids to keep, sniff or frame it; else a cache between serves one person's likes to another.",
        [
            Edit(
                f"{CORE}/runtime/http.py",
                'return {**answer, "headers": {**GUARDS, **answer["headers"]}}',
                "return answer",
            )
        ],
        ["tests/unit/test_headers.py::test_every_operation_guards_its_answer_and_its_refusal"],
    ),
    Defence(
        "own-id",
        "A person whose id is proven acts for that id; else for everybody.",
        [
            Edit(
                IDENTITY,
                "actor.user_id is None or actor.user_id == user_id",
                "actor.user_id is None or bool(user_id)",
            )
        ],
        [f"{HANDLERS}::test_with_a_token_the_user_id_may_be_left_out_and_must_be_its_own"],
    ),
    Defence(
        "own-list",
        "Outside open mode a person's list is for that person and for services.",
        [
            Edit(
                "functions/read_api/app.py",
                'if wiring.settings().auth_mode != "open" and not may_act_for(call.actor, user_id):',
                'if wiring.settings().auth_mode == "never" and not may_act_for(call.actor, user_id):',
            )
        ],
        [f"{HANDLERS}::test_a_persons_liked_list_is_for_that_person_and_services_outside_open_mode"],
    ),
    Defence(
        "liked-at",
        "Only a service says when something was liked; else anybody stands first in any list.",
        [Edit(f"{CORE}/runtime/requests.py", "if liked_at is not None and not actor.service:", "if liked_at == 0:")],
        [f"{HANDLERS}::test_only_a_service_may_say_when_it_was_liked"],
    ),
    Defence(
        "limit-exemption",
        "A service alone is exempt from the limit.",
        [
            Edit(
                f"{CORE}/runtime/guard.py",
                "if not actor.service:",
                "if not actor.service and actor.user_id is not None:",
            )
        ],
        [f"{HANDLERS}::test_over_the_limit_every_write_answers_429_with_retry_after"],
    ),
    Defence(
        "for-services",
        "In jwt mode a person is no service: what is for services is forbidden to people.",
        [Edit(IDENTITY, 'if mode != "open" and not actor.service:', 'if mode == "never" and not actor.service:')],
        ["tests/unit/test_limit_hits.py::test_in_jwt_mode_limits_are_for_services"],
    ),
    Defence(
        "closed-by-default",
        "Who deploys without choosing publishes no open API.",
        [Edit(TEMPLATE, "    Default: iam\n", "    Default: open\n")],
        [f"{TEMPLATE_TESTS}::test_settings_can_be_read_from_the_defaults"],
    ),
    Defence(
        "signed-routes",
        "In iam mode the gateway asks for a signature on every route but the public ones.",
        [
            Edit(
                TEMPLATE,
                "      RouteKey: POST /v1/like\n      Target: !Sub integrations/${WriteApiIntegration}\n"
                "      AuthorizationType: !If [UsesIam, AWS_IAM, NONE]\n",
                "      RouteKey: POST /v1/like\n      Target: !Sub integrations/${WriteApiIntegration}\n"
                "      AuthorizationType: NONE\n",
            )
        ],
        [f"{TEMPLATE_TESTS}::test_in_iam_mode_the_gateway_wants_a_signature_where_the_document_says_so"],
    ),
    Defence(
        "count-writers",
        "Only the functions that count or correct may write counters; a bug elsewhere cannot reach them.",
        [
            Edit(
                TEMPLATE,
                'Action: ["dynamodb:GetItem", "dynamodb:Query"]\n                Resource: !GetAtt CountersTable.Arn',
                'Action: ["dynamodb:GetItem", "dynamodb:Query", "dynamodb:UpdateItem"]\n'
                "                Resource: !GetAtt CountersTable.Arn",
            )
        ],
        [f"{TEMPLATE_TESTS}::test_only_those_that_count_or_correct_may_write_counters"],
    ),
]

# --- what is told to whom --------------------------------------------------------------------------------------

CONFINED = [
    Defence(
        "log-messages",
        "A log says where and of which kind a failure is; an exception's message holds what somebody sent.",
        [
            Edit(
                f"{CORE}/runtime/telemetry.py",
                "told = str(cause) if isinstance(cause, BadSetting | LaneUnknown) else error_code(cause)",
                "told = str(cause)",
            )
        ],
        [f"{LOG_LINES}::test_an_exception_leaves_a_function_without_its_message"],
    ),
    Defence(
        "log-exceptions",
        "No exception leaves a handler with its message: Lambda would log it.",
        [
            Edit(
                f"{CORE}/runtime/telemetry.py",
                "                raise HandlerFailed(kinds(error)) from None",
                "                raise",
            )
        ],
        [f"{LOG_LINES}::test_an_exception_leaves_a_function_without_its_message"],
    ),
    Defence(
        "log-fields",
        "A refusal's line names a field of the contract or none; else a caller's own words stand in the log.",
        [Edit(f"{CORE}/runtime/http.py", "field=_for_log(error.field)", "field=error.field")],
        [f"{LOG_LINES}::test_a_refusal_names_a_field_of_the_contract_or_none"],
    ),
    Defence(
        "log-parked",
        "A parked record that cannot be settled is named by its message; its keys name a person.",
        [
            Edit(
                "functions/parked/app.py",
                "reason=telemetry.kinds(error)",
                "reason=f\"{type(error).__name__}: {error} {message['body']}\"",
            )
        ],
        [f"{LOG_LINES}::test_a_parked_record_that_cannot_be_settled_is_named_by_its_message_alone"],
    ),
    Defence(
        "access-log",
        "The access log has the route, not the path, which holds ids of people.",
        [Edit(TEMPLATE, '"route":"$context.routeKey"', '"route":"$context.routeKey","path":"$context.path"')],
        [f"{RULES}::test_the_access_log_holds_nothing_that_names_a_person"],
    ),
    Defence(
        "page-policy",
        "The page of the API may use the one style that it holds; what else got into it stays without effect.",
        [Edit(DOCS_PAGE, "style-src 'sha256-{style}'", "style-src 'unsafe-inline'")],
        [f"{HEADERS}::test_the_page_may_use_the_style_that_it_holds_and_nothing_else"],
    ),
    Defence(
        "page-origin",
        "The page shows a host that can be one; else who sends the header writes into it.",
        [Edit(DOCS_PAGE, 'origin if _HOST.fullmatch(origin) else "http://localhost"', "origin")],
        [f"{HEADERS}::test_a_host_that_is_none_never_reaches_the_page"],
    ),
    Defence(
        "cors-service-key",
        "A browser may not send the service key: a page that could would hold it for everybody to read.",
        [
            Edit(
                TEMPLATE,
                "AllowHeaders: [authorization, content-type, tallymark-anonymous]",
                "AllowHeaders: [authorization, content-type, tallymark-anonymous, tallymark-service-key]",
            )
        ],
        [f"{HEADERS}::test_a_page_may_send_a_persons_token_and_never_a_service_key"],
    ),
    Defence(
        "cors-credentials",
        "Browsers are never told to send cookies along, least of all to every origin.",
        [
            Edit(
                TEMPLATE,
                "        ExposeHeaders: [retry-after]",
                "        AllowCredentials: true\n        ExposeHeaders: [retry-after]",
            )
        ],
        [f"{HEADERS}::test_browsers_are_never_told_to_send_cookies"],
    ),
    Defence(
        "role-spare",
        "A role grants what its function calls; a right to spare is what a fault in the function could use.",
        [
            Edit(
                TEMPLATE,
                'Action: ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"]',
                'Action: ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query", "dynamodb:Scan"]',
            )
        ],
        [f"{RIGHTS}::test_a_role_grants_what_its_function_calls_and_nothing_else"],
    ),
    Defence(
        "role-resource",
        "A role grants its calls on the table that they are made on, not on its neighbour.",
        [
            Edit(
                TEMPLATE,
                """                Action: sqs:SendMessage
                Resource: !GetAtt ParkedQueue.Arn""",
                """                Action: sqs:SendMessage
                Resource: [!GetAtt ParkedQueue.Arn, !GetAtt ParkedDeadQueue.Arn]""",
            )
        ],
        [f"{RIGHTS}::test_a_role_grants_what_its_function_calls_and_nothing_else"],
    ),
    Defence(
        "invoke-source",
        "The API of this stack may invoke its functions; without the source, any API of anybody may.",
        [
            Edit(
                TEMPLATE,
                """      FunctionName: !Ref WriteApiFunction
      Principal: apigateway.amazonaws.com
      SourceArn: !Sub "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:${Api}/*\"""",
                """      FunctionName: !Ref WriteApiFunction
      Principal: apigateway.amazonaws.com
      SourceArn: !Sub "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:*\"""",
            )
        ],
        [f"{RULES}::test_only_this_api_may_invoke_functions"],
    ),
    Defence(
        "limit-batch",
        "Each operation of a batch takes a call from its person's window; else a batch passes the limit.",
        [
            Edit(
                "functions/write_api/app.py",
                "    if not call.actor.service:\n        for i",
                "    if call.actor is None:\n        for i",
            )
        ],
        ["tests/unit/test_rate_limit.py::test_every_way_to_write_draws_from_one_window"],
    ),
    Defence(
        "limit-part",
        "Of the calls asked for at once, as many are allowed as fit; all or none passes the limit.",
        [
            Edit(
                LIMITS,
                "granted = min(wanted, limit - held)",
                "granted = wanted if held < limit else 0",
            )
        ],
        ["tests/unit/test_rate_limit.py::test_many_threads_get_the_limit_and_not_a_call_more"],
    ),
]

# --- quotas ----------------------------------------------------------------------------------------------------

TIGHT = f"{QUOTA_STEPS}::test_a_thousand_tight_worlds_hold"

GRANTS = [
    Defence(
        "pool-condition",
        "Units are taken from a pool only if they are there; else two who read the last one both get it.",
        [Edit(QUOTA_TABLE, 'enough = "units >= :part"', 'enough = "units >= :part OR units < :part"')],
        [f"{QUOTA_STEPS}::test_many_at_once_get_the_limit_to_the_last_unit"],
    ),
    Defence(
        "grant-once",
        "A token is recorded on condition that it is not; else two calls with it at once take its units twice.",
        [
            Edit(
                QUOTA_TABLE,
                '"Item": item, "ConditionExpression": "attribute_not_exists(pk)"}',
                '"Item": item, "ConditionExpression": "attribute_not_exists(nothing)"}',
            )
        ],
        [f"{QUOTA_STEPS}::test_no_interleaving_grants_too_much_or_refuses_too_early", TIGHT],
    ),
    Defence(
        "release-once",
        "A grant is ended on condition that it holds; else two releases at once give its units back twice.",
        [
            Edit(
                QUOTA_TABLE,
                '"attribute_exists(pk) AND attribute_not_exists(ended) AND "',
                '"attribute_exists(pk) AND "',
            )
        ],
        [f"{QUOTA_STEPS}::test_no_interleaving_grants_too_much_or_refuses_too_early", TIGHT],
    ),
    Defence(
        "confirm-or-end",
        "A reservation is taken back only if it still is one; else one that is confirmed at that moment is lost.",
        [
            Edit(
                QUOTA_TABLE,
                'condition += "expires = :expires"',
                'condition += "(expires = :expires OR attribute_exists(pk))"',
            )
        ],
        [f"{QUOTA_TESTS}::test_a_reservation_that_is_confirmed_meanwhile_is_not_taken_back"],
    ),
    Defence(
        "refusal-proof",
        "A refusal is proven by a second reading; by one alone it misses what comes back where it has looked already.",
        [
            Edit(
                QUOTAS,
                "if meanwhile is None and ledger.gained_nothing_until(later):",
                "if meanwhile is None and later.whole:",
            )
        ],
        [TIGHT],
    ),
    Defence(
        "refusal-returns",
        "Pools count what comes back; two readings with the same sums may have a return and a grant between them.",
        [
            Edit(
                QUOTAS,
                "and [pool.returns for pool in later.pools] == [pool.returns for pool in self.pools]",
                "and len(later.pools) == len(self.pools)",
            )
        ],
        [TIGHT],
    ),
    Defence(
        "refusal-versions",
        "What adds to several pools shows by half for a moment; versions that differ tell.",
        [Edit(QUOTAS, "return all(pool.version == self.version for pool in self.pools)", "return bool(self.pools)")],
        [TIGHT],
    ),
    Defence(
        "due-first",
        "Who is about to refuse takes back reservations whose time is over; else they would be held for good.",
        [
            Edit(
                QUOTAS,
                "quiet_us = _reclaim(quotas, name, ledger, amount - ledger.free, began_ms)",
                "quiet_us: int | None = MARK_LIFETIME_US",
            )
        ],
        [f"{QUOTA_TESTS}::test_a_reservation_ends_by_itself_unless_it_is_confirmed"],
    ),
    Defence(
        "mark-cleared",
        "A return takes the mark of a sold-out name away; else what was released is refused for a while.",
        [Edit(QUOTAS, "    quotas.marks.clear(grants[0].name)\n", "")],
        [f"{QUOTA_TESTS}::test_what_is_added_takes_the_mark_away"],
    ),
    Defence(
        "mark-dated",
        "A mark that was asked for before a return is not put after it; its pools were read before.",
        [Edit(QUOTAS, "if asked.at_us is not None and asked.at_us > self._cleared_us:", "if asked.at_us is not None:")],
        [f"{QUOTA_TESTS}::test_a_mark_counts_from_before_the_pools_were_read_and_never_after_a_return"],
    ),
    Defence(
        "mark-ends",
        "A mark ends before a reservation does, which clears nothing; else what that held is refused for a while.",
        [
            Edit(
                QUOTAS,
                "quotas.marks.put(name, ledger.free, mark, quiet_us)",
                "quotas.marks.put(name, ledger.free, mark, MARK_LIFETIME_US)",
            )
        ],
        [TIGHT],
    ),
    Defence(
        "due-when-begun",
        "What ends during a call is left to the next; else a call whose reservations end one by one is never done.",
        [
            Edit(
                QUOTAS,
                "return [grant for grant in noted if not grant.holds(began_ms)]",
                "return [grant for grant in noted if not grant.holds(now_ms)]",
            )
        ],
        [f"{QUOTA_TESTS}::test_a_quota_is_told_though_one_reservation_after_the_other_ends"],
    ),
    Defence(
        "due-in-time",
        "Taking back looks at the clock between its transactions; else slow ones add up past the request's end.",
        [
            Edit(
                QUOTAS,
                "        if _late(quotas, began_ms):\n            break\n        if _give_back",
                "        if _give_back",
            )
        ],
        [f"{QUOTA_TESTS}::test_who_finds_more_than_can_be_taken_back_in_time_is_told_to_try_again_and_gets_there"],
    ),
]

# --- top lists and hot items -----------------------------------------------------------------------------------

TOP_LISTS = [
    Defence(
        "sketch-newcomer",
        "Who takes a place in a full sketch begins at the bound of whom it ousts; else a bound is too low.",
        [Edit(SKETCH, "self._bounds[item] = self.floor + weight", "self._bounds[item] = weight")],
        [f"{TOP_PROPERTIES}::test_a_bound_is_never_too_low_and_too_high_by_the_floor_at_most"],
    ),
    Defence(
        "sketch-merge",
        "Who is missing from one of two summaries may have had its floor there.",
        [Edit(SKETCH, "above.get(item, 0) + bound - summary.floor", "above.get(item, 0) + bound")],
        [f"{TOP_PROPERTIES}::test_summaries_that_are_merged_add_their_floors_once"],
    ),
    Defence(
        "sketch-cut",
        "What is left out of a stored list raises its floor; else a list with losses passes for whole.",
        [Edit(SKETCH, "Summary(dict(ordered[:most]), ordered[most][1])", "Summary(dict(ordered[:most]), self.floor)")],
        [f"{TOP_TESTS}::test_a_list_in_the_store_is_bounded_and_its_floor_says_what_it_leaves_out"],
    ),
    Defence(
        "top-due",
        "A list is stored as soon as a bound is above what is stored; else a process takes to its end what it added.",
        [Edit(TOP, "self.is_due = True", "self.is_due = len(self._all) > 1")],
        [f"{TOP_PROPERTIES}::test_what_is_stored_bounds_what_was_folded_whenever_processes_end"],
    ),
    Defence(
        "top-promise",
        "What is stored on top for one process is taken off for that one alone; else others' have no bound.",
        [Edit(TOP, "if t in stored.summary.bounds}", "if t} | {t: n for t, n in stored.summary.bounds.items()}")],
        [f"{TOP_PROPERTIES}::test_what_is_stored_bounds_what_was_folded_whenever_processes_end"],
    ),
    Defence(
        "top-groups",
        "Types beyond the heaviest of a batch share lists; else callers who make types up decide how many there are.",
        [Edit(TOP, "weights.most_common(MOST_GROUPS)", "weights.most_common()")],
        [f"{TOP_TESTS}::test_types_beyond_the_heaviest_of_a_batch_share_lists"],
    ),
    Defence(
        "top-others",
        "A reader of one type looks into the shared lists too; else an item whose type was crowded out is nowhere.",
        [Edit(TOP, "for summary in others]", "for summary in others[:0]]")],
        [f"{TOP_ENGINE}::test_items_of_types_beyond_the_heaviest_of_a_batch_are_in_the_list_of_their_type"],
    ),
    Defence(
        "top-kept-until-stored",
        "A list leaves memory only once the store has it; else a store that fails for a while loses what was added.",
        [Edit(TOP, "if kept.stored is not None and not kept.is_due]", "if kept is not None]")],
        [f"{TOP_TESTS}::test_a_list_that_the_store_does_not_take_stays_in_memory_until_that_is_far_too_full"],
    ),
    Defence(
        "top-time",
        "The clock is looked at before every few lists; else many lists take the time that the answer needs.",
        [Edit(TOP, "    if not has_time():", "    if not has_time:")],
        [f"{TOP_TESTS}::test_a_look_at_the_clock_comes_before_every_few_lists"],
    ),
    Defence(
        "top-version",
        "A list is written over what is known of it alone; else two processes take turns in undoing each other.",
        [
            Edit(
                TOP_TABLE,
                'untouched = "v = :known" if known.version else "attribute_not_exists(pk)"',
                'untouched = "v = :known OR pk = pk" if known.version else "attribute_not_exists(v) OR v = v"',
            )
        ],
        [f"{TOP_ENGINE}::test_a_list_whose_reply_was_lost_is_ones_own"],
    ),
    Defence(
        "top-proof",
        "Those of an answer are proven that have more than anybody unread can have; as many is not enough.",
        [Edit(TOP, "sum(number > unread for", "sum(number >= unread for")],
        [f"{TOP_TESTS}::test_an_answer_without_proof_says_so"],
    ),
    Defence(
        "top-trust",
        "Bounds that a number is far above prove nothing: what was counted before there were lists is in none.",
        [Edit(TOP, "return first, proven if trusted else 0", "return first, proven")],
        [f"{TOP_TESTS}::test_bounds_that_a_number_is_far_above_prove_nothing"],
    ),
    Defence(
        "top-fails-alone",
        "A list that cannot be stored fails no batch.",
        [
            Edit(AGGREGATOR, "except Unavailable:", "except ZeroDivisionError:"),
            Edit(
                AGGREGATOR,
                "except Exception as error:  # noqa: BLE001 (a bug",
                "except ZeroDivisionError as error:  # (a bug",
            ),
        ],
        [f"{TOP_ENGINE}::test_a_list_that_cannot_be_written_or_read_fails_no_batch"],
    ),
    Defence(
        "hot-record-first",
        "The record of an item's buckets is raised before likes go there; else a reader misses them.",
        [
            Edit(
                HOT,
                """            self._store.widen(target, number)
            self._store.announce(target, number, now_s)
""",
                """            self._store.announce(target, number, now_s)
            self._store.widen(target, number)
""",
            )
        ],
        [f"{TOP_TESTS}::test_an_items_record_is_widened_before_its_buckets_are_announced"],
    ),
    Defence(
        "hot-record-grows",
        "The number of buckets that an item ever had never falls; else its older likers are in no list.",
        [Edit(TOP_TABLE, "attribute_not_exists(buckets) OR buckets < :buckets", "attribute_not_exists(pk) OR pk = pk")],
        [f"{TOP_ENGINE}::test_buckets_are_never_lowered"],
    ),
    Defence(
        "hot-off-the-path",
        "No like waits for the look at what is hot: a table out of reach would cost it 6 s.",
        [Edit(HOT, "self._executor.submit(self._look, now_ms)", "self._look(now_ms)")],
        [f"{TOP_TESTS}::test_nobody_waits_for_a_look_and_no_second_is_begun_before_it_ends"],
    ),
    Defence(
        "hot-look-fails-alone",
        "A look that fails, of whatever, fails no like and forgets nothing.",
        [
            Edit(
                HOT,
                "except Exception as error:  # noqa: BLE001 (no like",
                "except ZeroDivisionError as error:  # (no like",
            )
        ],
        [f"{TOP_TESTS}::test_what_was_hot_stays_so_for_a_minute_when_looks_fail"],
    ),
    Defence(
        "hot-readers",
        "Who reads likers asks for every bucket there ever was.",
        [Edit(HOT, "return max(self.least, self.widest(target))", "return self.now(target)")],
        [f"{TOP_ENGINE}::test_a_hot_item_spreads_its_likers_and_nobody_is_lost"],
    ),
]

# --- no visitor is lost ----------------------------------------------------------------------------------------

SKETCHES = [
    Defence(
        "late-gate",
        "A view older than what counts as stored is late; taken like another, a flush would lose it for good.",
        [Edit(LIVE_SKETCHES, "if ARGV[1] == '' and tonumber", "if false and tonumber")],
        [f"{VISITORS_TESTS}::test_a_view_that_comes_late_outlives_a_flush"],
    ),
    Defence(
        "late-first",
        "Views are late before what is unstored is listed; one that came between would be in no snapshot.",
        [
            Edit(
                VISITORS,
                "eras = stores.live.late_before(since_ms, retreats)",
                "eras = stores.live.late_before(0, retreats)",
            )
        ],
        [f"{VISITORS_TESTS}::test_a_view_that_comes_while_all_is_stored_is_late_already"],
    ),
    Defence(
        "back-log",
        "Before a late view is added, `since` moves back to it; no replay would bring it back.",
        [
            Edit(
                VISITORS,
                "stores.live.retreat(oldest_ms, stores.log.retreat(oldest_ms))",
                "stores.live.retreat(0, 10**9)",
            )
        ],
        [f"{VISITORS_TESTS}::test_a_view_that_comes_late_outlives_a_flush"],
    ),
    Defence(
        "back-turn",
        "A turn during which `since` was moved back does not move it on; what came late may not be stored.",
        [Edit(VISITOR_TABLES, "(attribute_not_exists(retreats) OR retreats = :retreats)", ":retreats = :retreats")],
        [f"{VISITORS_STORED}::test_since_moves_back_and_no_turn_that_was_under_way_moves_it_on"],
    ),
    Defence(
        "back-known",
        "A turn that knew of a retreat has moved on from there: no group goes back by it any more.",
        [
            Edit(
                LIVE_SKETCHES,
                "redis.call('HGET', book, '#retreats')) >= tonumber(ARGV[2])",
                "redis.call('HGET', book, '#retreats')) > tonumber(ARGV[2])",
            )
        ],
        [f"{VISITORS_TESTS}::test_a_turn_between_the_steps_of_moving_back_is_seen"],
    ),
    Defence(
        "back-rebuilt",
        "A group that is rebuilt knows the retreats that its rebuild knew; one of before would move it back alone.",
        [Edit(LIVE_SKETCHES, "'#retreats', ARGV[3])", "'#retreats', 0)")],
        [f"{VISITORS_TESTS}::test_a_group_that_was_rebuilt_between_the_steps_of_moving_back_is_seen"],
    ),
    Defence(
        "back-replayed",
        "A rebuild begins where `since` is once the group was found lost, not where it was when the turn began.",
        [
            Edit(
                VISITORS,
                "turn = stores.log.save(turn, rebuild)\n            kept",
                "turn = replace(stores.log.save(turn, rebuild), standing=turn.standing)\n            kept",
            )
        ],
        [f"{VISITORS_TESTS}::test_what_came_late_into_a_group_that_is_then_lost_is_replayed"],
    ),
    Defence(
        "forget-first",
        "A replay ends the eras before it says that it was begun; else, dying between the two, none is made.",
        [
            Edit(
                VISITORS,
                "            stores.live.forget()  # first: dying between the two, the next turn comes here again\n"
                "            turn = stores.log.restart(turn, now_ms)\n",
                "            turn = stores.log.restart(turn, now_ms)\n            stores.live.forget()\n",
            )
        ],
        [f"{VISITORS_TESTS}::test_a_replay_that_was_asked_for_is_made_however_often_it_dies"],
    ),
    Defence(
        "sketch-changed",
        "A sketch leaves the book as it was stored; one that has changed since stays there.",
        [Edit(LIVE_SKETCHES, "if number == ARGV[3] then", "if true then")],
        [f"{VISITORS_TESTS}::test_what_is_added_while_a_sketch_is_stored_is_stored_next"],
    ),
    Defence(
        "sketch-condition",
        "A snapshot is replaced only as it was read; else a poorer one replaces a fuller.",
        [
            Edit(
                VISITOR_TABLES,
                '"ConditionExpression": "version = :before"',
                '"ConditionExpression": "version <> :before OR version = :before"',
            )
        ],
        [f"{VISITORS_STORED}::test_a_snapshot_is_replaced_only_as_it_was_read"],
    ),
    Defence(
        "sketch-merged",
        "A live sketch is merged with its snapshot before it replaces it; those of before it vanished would be gone.",
        [
            Edit(
                LIVE_SKETCHES,
                "if ARGV[3] ~= '' then merge(key, ARGV[3]) end\nreturn {'live'",
                "return {'live'",
            )
        ],
        [f"{VISITORS_TESTS}::test_what_is_added_to_a_vanished_sketch_is_stored_together_with_those_of_before"],
    ),
    Defence(
        "sketch-unsure",
        "A sketch that was begun anew is loaded before it is read; it holds the latest visitors alone.",
        [Edit(LIVE_SKETCHES, "if not exists or is_unsure(change) then missing", "if not exists then missing")],
        [f"{VISITORS_TESTS}::test_what_is_stored_may_vanish_and_is_loaded"],
    ),
    Defence(
        "sketch-kinds",
        "In a window, sets are counted together with the HyperLogLogs; else the days with few visitors have none.",
        [Edit(LIVE_SKETCHES, "unpack(members(sets)))\n  end\n  return redis", "'')\n  end\n  return redis")],
        [f"{VISITORS_TESTS}::test_sketches_of_both_kinds_are_stored_loaded_and_united"],
    ),
    Defence(
        "sketch-reader",
        "A reader loads no snapshot that is older than what was stored meanwhile.",
        [Edit(LIVE_SKETCHES, " or (redis.call('HGET', book, '#stores') or '0') ~= ARGV[2]", "")],
        [f"{VISITORS_TESTS}::test_a_reader_does_not_take_old_snapshots_for_all_that_is_stored"],
    ),
    Defence(
        "sketch-vanished",
        "An unstored sketch that has vanished ends the era; begun anew in silence, its visitors are lost.",
        [Edit(LIVE_SKETCHES, "  if change and not exists then ended() return '' end\n", "")],
        [f"{VISITORS_TESTS}::test_what_is_not_stored_and_has_vanished_is_found_missing"],
    ),
    Defence(
        "sketch-server",
        "Another server, or one that started again, may lack the last moments, and ends the era.",
        [Edit(LIVE_SKETCHES, "known[2] ~= '?' and known[2] ~= server() then", "false then")],
        [f"{VISITORS_TESTS}::test_another_server_that_lacks_the_last_moments_is_found_out"],
    ),
    Defence(
        "sketch-era",
        "A sketch leaves the book of the era that was stored; another's change may have the same number.",
        [
            Edit(
                LIVE_SKETCHES,
                "if era ~= ARGV[1] then return 0 end\nredis.call('HINCRBY'",
                "redis.call('HINCRBY'",
            )
        ],
        [f"{VISITORS_TESTS}::test_a_sketch_of_another_era_is_not_taken_for_what_was_stored"],
    ),
    Defence(
        "sketch-full",
        "What stores goes on where memory is full; else nothing could ever be evicted again.",
        [Edit(LIVE_SKETCHES, '_ALSO_IF_FULL = "#!lua flags=allow-oom\\n"', '_ALSO_IF_FULL = ""')],
        [f"{VISITORS_TESTS}::test_a_full_server_takes_no_more_until_a_turn_has_stored_what_it_holds"],
    ),
    Defence(
        "sketch-nobody",
        "A read of an id that nobody viewed leaves no keys; made-up ids would fill the memory.",
        [Edit(VISITORS, "if seen.is_nobody_live and not stored:", "if not seen and not stored:")],
        [f"{VISITORS_TESTS}::test_a_read_of_what_nobody_viewed_leaves_nothing_behind"],
    ),
    Defence(
        "sketch-somebody",
        "Who is live and in no snapshot yet is counted.",
        [Edit(LIVE_SKETCHES, "  if change or exists then live = 1 end\n", "")],
        [f"{VISITORS_STORED}::test_a_visitor_is_seen_at_once_and_once"],
    ),
    Defence(
        "server-doubted",
        "A server that seems another each time is no longer looked at; else scans of all events have no end.",
        [Edit(LIVE_SKETCHES, "is_doubted and '?' or server()", "server()")],
        [f"{VISITORS_TESTS}::test_a_server_that_seems_another_each_time_is_not_rebuilt_without_end"],
    ),
    Defence(
        "rebuild-era",
        "A rebuild declares its own era whole, not one that another has begun since.",
        [Edit(LIVE_SKETCHES, "if era ~= ARGV[1] or whole then return 0 end", "if whole then return 0 end")],
        [f"{VISITORS_TESTS}::test_a_rebuild_that_was_taken_over_does_not_declare_the_other_whole"],
    ),
    Defence(
        "rebuild-whole",
        "An era that is whole stays as it is; whose rebuild was taken over would undo what is late in it.",
        [Edit(LIVE_SKETCHES, "if era ~= ARGV[1] or whole then return 0 end", "if era ~= ARGV[1] then return 0 end")],
        [f"{VISITORS_TESTS}::test_a_rebuild_that_was_taken_over_does_not_undo_what_is_late"],
    ),
    Defence(
        "rebuild-stores",
        "A rebuild stores while it goes on; else all its sketches have to fit into memory at once.",
        [Edit(VISITORS, "if not is_room or len(unstored) > _UNSTORED_AT_MOST:", "if not is_room:")],
        [f"{VISITORS_TESTS}::test_a_rebuild_goes_on_in_less_memory_than_all_its_sketches_need"],
    ),
    Defence(
        "rebuild-room",
        "A rebuild that found no memory first stores what it left; else it finds none again.",
        [Edit(VISITORS, "is_room = turn.rebuild is None", "is_room = True")],
        [f"{VISITORS_TESTS}::test_a_rebuild_that_found_no_memory_first_stores_what_it_left"],
    ),
    Defence(
        "rebuild-all",
        "A replay that was begun stays one of everything until all is stored, over deaths and turns.",
        [Edit(VISITORS, "return 0 if self.standing.is_replaying else self", "return self")],
        [f"{VISITORS_TESTS}::test_a_replay_that_was_asked_for_is_made_however_often_it_dies"],
    ),
    Defence(
        "stored-eras",
        "What was lost while all was stored has not been stored, and is replayed.",
        [Edit(VISITORS, "return stores.live.late_before(since_ms, retreats) == eras and stores", "return stores")],
        [f"{VISITORS_TESTS}::test_a_flush_while_all_is_stored_is_not_taken_for_having_stored_all"],
    ),
    Defence(
        "turn",
        "Whose turn was taken over can no longer say that all is stored.",
        [
            Edit(
                VISITOR_TABLES,
                'ConditionExpression="turn = :turn"',
                'ConditionExpression="turn <> :turn OR turn = :turn"',
            )
        ],
        [f"{VISITORS_STORED}::test_whose_turn_was_taken_over_can_change_nothing"],
    ),
    Defence(
        "gap-of-turns",
        "Where `since` is nearly as old as what the stream forgets, events are replayed: it may have forgotten some.",
        [
            Edit(
                VISITORS,
                "if again or from_ms is None or now_ms - from_ms > FORGOTTEN_MS:",
                "if again or from_ms is None:",
            )
        ],
        [
            f"{VISITORS_TESTS}::test_what_the_stream_forgot_while_no_turn_was_taken_is_replayed",
            f"{VISITORS_TESTS}::"
            "test_what_the_stream_forgot_while_turns_were_taken_is_replayed_when_the_next_view_is_so_late",
        ],
    ),
]

DEFENCES: list[Defence] = [
    *FOLDED_ONCE,
    *LANES,
    *EVENTS,
    *PARKED,
    *REPAIR,
    *LIKE_RECORDS,
    *READING,
    *CALLERS,
    *CONFINED,
    *GRANTS,
    *TOP_LISTS,
    *SKETCHES,
]
