"""Keys: two identities never share one, what is packed comes back, and bytes are ordered as what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallymark.fold import Change, Delta, Mark
from tallymark.model import (
    Counter,
    LikeKey,
    LimitKey,
    Metric,
    Stamp,
    Target,
    day_label,
    day_of_label,
    named_counter,
)
from tallymark.storage import keys
from tallymark.storage.counter_table import _floor, pack_mark, unpack_mark

from .identities import (
    confusable_ids,
    confusable_reactions,
    confusable_targets,
    ids,
    like_keys,
    reactions,
    targets,
)

stamps = st.builds(Stamp, st.integers(-(2**62), 2**62), st.binary(min_size=8, max_size=8))
near_stamps = st.builds(Stamp, st.integers(-3, 3), st.sampled_from([bytes(8), b"\xff" * 8, b"\x00" * 7 + b"\x01"]))
sequences = st.integers(0) | st.integers(0, 40).map(lambda digits: min(10**digits, 10**40 - 1))
marks = st.builds(Mark, sequences, st.integers(0, 2**32 - 1))


@given(ids)
def test_an_escaped_id_holds_no_separator_and_comes_back(text: str) -> None:
    assert "#" not in keys.escape(text)
    assert keys.unescape(keys.escape(text)) == text


@given(ids)
def test_an_escaped_id_is_not_a_byte_longer(text: str) -> None:
    assert len(keys.escape(text).encode()) == len(text.encode())


@given(targets, reactions)
def test_a_like_sort_key_round_trips(target: Target, reaction: str) -> None:
    assert keys.parse_like_sort_key(keys.like_sort_key(target, reaction)) == (target, reaction)


@given(targets, reactions, st.integers(0, 999))
def test_a_counter_sort_key_round_trips(target: Target, reaction: str, row: int) -> None:
    counter = Counter(target, reaction)
    assert keys.parse_counter_sort_key(keys.counter_sort_key(counter, row)) == (reaction, f"{row:03d}")
    assert keys.parse_counter_sort_key(keys.adjustment_sort_key(counter)) == (reaction, keys.ADJUSTMENT_ROW)


rows = st.sampled_from([0, 1, 10, 100, 999])
lanes = st.sampled_from(["shardId-1", "shardId-11", "shardId-1#"])
confusable_counters = st.builds(
    Counter,
    confusable_targets | st.just(named_counter("a").target),
    st.sampled_from(["all", "2026-11-30", "like"]),
    st.sampled_from(["like", "view", "sum", "likes-by-hour", "views-by-hour"]),
)


def _row_key(counter: Counter, row: int) -> str:
    return f"{keys.target_key(counter.target)}\n{keys.counter_sort_key(counter, row)}"


def _views_key(target: Target, window: str) -> str:
    return keys.cache_views_key("t", target, window)


KINDS: list[tuple[str, st.SearchStrategy[Any], Callable[..., str]]] = [
    ("target", st.tuples(confusable_targets), keys.target_key),
    ("target prefix", st.tuples(confusable_targets), keys.target_prefix),
    ("like", st.tuples(confusable_targets, confusable_reactions), keys.like_sort_key),
    ("likers", st.tuples(confusable_targets, rows), keys.likers_key),
    ("counter row", st.tuples(confusable_reactions, rows), lambda r, n: keys.counter_sort_key(_counter(r), n)),
    ("claim", st.tuples(lanes, st.integers(0, 20)), lambda lane, number: keys.claim_key(f"{lane}#{number}")),
    ("mark", st.tuples(lanes), keys.mark_name),
    ("row of any metric", st.tuples(confusable_counters, rows), _row_key),
    ("addition", st.tuples(st.sampled_from(["a", "a.b", "A"]), confusable_ids), keys.add_event_key),
    ("views", st.tuples(confusable_ids), keys.view_event_key),
    ("cached views", st.tuples(confusable_targets, st.sampled_from(["all", "7d"])), lambda t, w: _views_key(t, w)),
    ("cached count", st.tuples(confusable_targets), lambda target: keys.cache_count_key("t", target)),
    ("limit", st.tuples(st.sampled_from(["@user", "user", "a", "a.1"]), confusable_ids), lambda n, k: _limit_key(n, k)),
]


def _counter(reaction: str) -> Counter:
    return Counter(Target("post", "1"), reaction)


def _limit_key(name: str, key: str) -> str:
    return keys.cache_limit_key("t", LimitKey(name, key))


@pytest.mark.parametrize(("identities", "key"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])
@given(data=st.data())
def test_two_identities_never_share_a_key(
    identities: st.SearchStrategy[Any], key: Callable[..., str], data: st.DataObject
) -> None:
    one, other = data.draw(identities), data.draw(identities)
    assert (key(*one) == key(*other)) == (one == other)


@given(confusable_targets, confusable_targets, confusable_reactions)
@example(Target("a", "1"), Target("a", "1#0"), "like")
def test_a_target_prefix_begins_the_keys_of_that_target_alone(one: Target, other: Target, reaction: str) -> None:
    assert keys.like_sort_key(other, reaction).startswith(keys.target_prefix(one)) == (one == other)


@given(confusable_ids, st.sampled_from(["a", "a.b"]))
def test_the_key_of_an_addition_comes_back_and_is_no_key_of_views(token: str, name: str) -> None:
    key = keys.add_event_key(name, token)
    assert keys.parse_add_event_key(key) == (name, token)
    assert not key.startswith(keys.VIEW_EVENT)
    assert not keys.view_event_key(token).startswith(keys.ADD_EVENT)
    assert keys.view_event_key(token) != keys.view_event_key(None) != keys.view_event_key(None)


@given(confusable_counters, rows, st.sampled_from(["like", "view", "likes-by-hour"]))
def test_a_range_holds_the_rows_of_its_metric_alone(counter: Counter, row: int, metric: Metric) -> None:
    first, last = keys.row_range(metric, None)
    for key in (keys.counter_sort_key(counter, row), keys.adjustment_sort_key(counter)):
        assert (first <= key <= last) == (counter.metric == metric)


days = st.integers(20_000, 20_400)


@given(days, days, days, rows)
def test_a_range_of_days_holds_the_rows_of_those_days(day: int, first: int, last: int, row: int) -> None:
    counter = Counter(Target("post", "1"), day_label(day), "views-by-hour")
    low, high = keys.row_range("views-by-hour", (day_label(first), day_label(last)))
    for key in (keys.counter_sort_key(counter, row), keys.adjustment_sort_key(counter)):
        assert (low <= key <= high) == (first <= day <= last)
    assert day_of_label(day_label(day)) == day


@given(confusable_reactions, rows, confusable_reactions)
def test_an_adjustment_row_is_no_lane_row(reaction: str, row: int, other: str) -> None:
    assert keys.counter_sort_key(_counter(reaction), row) != keys.adjustment_sort_key(_counter(other))


@given(like_keys, st.integers(1, 1000))
def test_a_like_is_in_one_of_the_buckets_and_always_in_the_same(key: LikeKey, buckets: int) -> None:
    bucket = keys.bucket_of(key, buckets)
    assert 0 <= bucket < buckets
    assert keys.bucket_of(key, buckets) == bucket


@given(like_keys)
def test_keys_of_any_identity_fit_into_what_the_store_takes(key: LikeKey) -> None:
    longest = LikeKey(key.user_id, Target("a" * 32, "#" * 256), "a" * 64)
    assert len(keys.like_sort_key(longest.target, longest.reaction).encode()) <= 1024  # DynamoDB, sort keys
    assert len(keys.likers_key(key.target, 999).encode()) <= 2048  # DynamoDB, partition keys


periods = st.integers(0, 2_000_000)


@given(st.sampled_from(["hour", "day", "all"]), periods, periods, periods, st.sampled_from(["a", "a-b", "ab", None]))
def test_the_lists_of_a_range_are_those_of_its_periods_and_of_its_type(
    grain: str, first: int, last: int, period: int, item_type: str | None
) -> None:
    if grain == "all":
        first = last = period = 0
    low, high = keys.top_range("a", grain, first, last)
    for slot in (0, 15):
        inside = low <= keys.top_sort_key(item_type, grain, period, slot) <= high
        assert inside == (item_type == "a" and first <= period <= last)


@given(stamps)
def test_a_stamp_round_trips_in_16_bytes(stamp: Stamp) -> None:
    packed = keys.pack_stamp(stamp)
    assert len(packed) == 16
    assert keys.unpack_stamp(packed) == stamp


@given(stamps | near_stamps, stamps | near_stamps)
def test_the_byte_order_of_stamps_is_their_order_also_before_1970(one: Stamp, other: Stamp) -> None:
    assert (keys.pack_stamp(one) < keys.pack_stamp(other)) == (one < other)
    assert (keys.pack_stamp(one) == keys.pack_stamp(other)) == (one == other)


@given(marks)
def test_a_mark_round_trips_in_21_bytes(mark: Mark) -> None:
    packed = pack_mark(mark)
    assert len(packed) == 21
    assert unpack_mark(packed) == mark


@given(marks, marks)
def test_the_byte_order_of_marks_is_the_order_of_sequence_numbers_up_to_40_digits(one: Mark, other: Mark) -> None:
    if one.sequence != other.sequence:
        assert (pack_mark(one) < pack_mark(other)) == (one.sequence < other.sequence)


@given(marks, sequences, st.integers(0, 2**32 - 1), st.sampled_from([-1, 0, 1]))
def test_a_mark_is_below_the_floor_of_a_delta_exactly_if_it_is_before_the_first_change(
    mark: Mark, first: int, time_s: int, nudge: int
) -> None:
    near = Mark(min(max(first + nudge, 0), 10**40 - 1), mark.time_s)
    delta = Delta(_counter("like"), (Change(_counter("like"), 1, first, time_s),))
    floor = _floor(delta)
    for candidate in (mark, near):
        assert (pack_mark(candidate) < floor) == (candidate.sequence < first)


names = st.sampled_from(["a", "grant", "due", "pool", "a:1"])
quota_tokens = st.sampled_from(["a", "1", "#1", "a#1", "grant#a", "0000000000001#a"]) | st.text(min_size=1, max_size=5)
quota_keys = st.one_of(
    st.tuples(names).map(lambda one: (("quota", *one), (one[0], keys.QUOTA))),
    st.tuples(names, st.integers(0, 11)).map(
        lambda one: (("pool", *one), (keys.quota_pool_key(*one), keys.QUOTA_POOL))
    ),
    st.tuples(names, quota_tokens).map(lambda one: (("grant", *one), (keys.quota_grant_key(*one), keys.QUOTA_GRANT))),
    st.tuples(names, st.integers(0, 11), st.integers(0, 2**41), quota_tokens).map(
        lambda one: (("due", *one), (keys.quota_due_key(*one[:2]), keys.quota_due_sort_key(*one[2:])))
    ),
)


@given(quota_keys, quota_keys)
def test_no_two_items_of_quotas_share_a_key_or_a_partition_that_another_would_heat(one: Any, other: Any) -> None:
    (what, key), (what_else, key_else) = one, other
    assert (what == what_else) == (key == key_else)
    assert (key[0] == key_else[0]) == (what[:3] == what_else[:3])


@given(st.integers(0, 2**41), quota_tokens, st.integers(0, 2**41))
def test_a_note_of_a_reservation_comes_back_and_lies_below_the_time_at_which_it_is_due(
    expires_ms: int, token: str, now_ms: int
) -> None:
    key = keys.quota_due_sort_key(expires_ms, token)
    assert keys.parse_quota_due_sort_key(key) == (expires_ms, token)
    assert (key < keys.quota_due_after(now_ms)) == (expires_ms <= now_ms)
