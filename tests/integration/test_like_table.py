"""The table of likes over the real engine."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tallymark import likes, lists
from tallymark.errors import Unavailable
from tallymark.hot import LikerBuckets
from tallymark.model import Like, LikeKey, Stamp, Target
from tests.integration.conftest import Tables, new_target
from tests.integration.streams import injected, lost_replies


def key(target: Target, user: str = "user", reaction: str = "like") -> LikeKey:
    return LikeKey(user, target, reaction)


def test_a_repeated_like_keeps_the_first_time(tables: Tables, target: Target) -> None:
    assert likes.like(tables.likes, key(target), at_ms=1_000).changed
    repeat = likes.like(tables.likes, key(target), at_ms=2_000)
    assert (repeat.changed, repeat.liked_at_ms) == (False, 1_000)


def test_fifty_likes_of_one_user_at_once_change_the_table_once(tables: Tables, target: Target) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda n: likes.like(tables.likes, key(target), at_ms=n), range(50)))
    assert sum(one.changed for one in made) == 1
    assert len({one.liked_at_ms for one in made}) == 1


def test_a_like_whose_reply_was_lost_says_that_it_changed_something(tables: Tables, target: Target) -> None:
    with injected(tables.client, "PutItem", lost_replies(tables.client, 1)):
        assert likes.like(tables.likes, key(target), at_ms=1_000).changed
    assert not likes.like(tables.likes, key(target), at_ms=1_000).changed


def test_a_batch_whose_reply_was_lost_says_what_it_changed(tables: Tables, target: Target) -> None:
    likes.like(tables.likes, key(target, "before"), at_ms=1)
    operations = [likes.Operation(key(target, user), like=True) for user in ("before", "first", "second")]
    with injected(tables.client, "BatchExecuteStatement", lost_replies(tables.client, 1)):
        assert likes.apply_all(tables.likes, operations, now_ms=2) == [False, True, True]


def test_a_second_unlike_changes_nothing(tables: Tables, target: Target) -> None:
    likes.like(tables.likes, key(target), at_ms=1)
    likes.like(tables.likes, key(target, "other"), at_ms=1)
    assert likes.unlike(tables.likes, key(target))
    assert not likes.unlike(tables.likes, key(target))
    assert tables.likes.liked([key(target), key(target, "other")]) == {key(target, "other")}


def test_operations_on_one_like_take_effect_in_their_order(tables: Tables, target: Target) -> None:
    wanted = [True, True, False, False, True]
    operations = [likes.Operation(key(target), like=like) for like in wanted]
    assert likes.apply_all(tables.likes, operations, now_ms=1) == [True, False, True, False, True]
    assert tables.likes.liked([key(target)]) == {key(target)}


def test_a_batch_takes_a_hundred_likes_of_many_people(tables: Tables, target: Target) -> None:
    operations = [likes.Operation(key(target, f"user-{n}"), like=True) for n in range(100)]
    assert likes.apply_all(tables.likes, operations, now_ms=1) == [True] * 100
    assert likes.apply_all(tables.likes, operations, now_ms=2) == [False] * 100
    assert sum(1 for _ in tables.likes.everyone(target)) == 100


def test_a_busy_store_fails_only_the_operations_that_it_did_not_take(tables: Tables, target: Target) -> None:
    def throttled(_request: Any) -> Any:
        raise Unavailable("busy")

    operations = [likes.Operation(key(target, f"user-{n}"), like=True) for n in range(30)]
    calls = iter(range(10))
    with injected(tables.client, "BatchExecuteStatement", lambda r: throttled(r) if next(calls) == 0 else None):
        results = likes.apply_all(tables.likes, operations, now_ms=1)
    failed = [result for result in results if isinstance(result, Unavailable)]
    assert len(failed) in (5, 25)
    assert sum(1 for _ in tables.likes.everyone(target)) == 30 - len(failed)


def test_reactions_of_a_person_are_found_among_many_other_likes(tables: Tables) -> None:
    user = uuid.uuid4().hex
    noise = [Target("post", f"{n:05d}") for n in range(450)]
    likes.apply_all(tables.likes, [likes.Operation(key(t, user), like=True) for t in noise], now_ms=1)
    liked = [Target("post", "00001"), Target("post", "00449"), Target("a", "x"), Target("z", "#~")]
    for one in liked:
        likes.like(tables.likes, key(one, user, "👍"), at_ms=2)
    absent = [Target("post", "0000"), Target("post", "000011"), Target("z", "#~0")]
    found = tables.likes.reactions(user, liked + absent)
    assert found[liked[0]] == ["like", "👍"]
    assert found[liked[1]] == ["like", "👍"]
    assert found[liked[2]] == found[liked[3]] == ["👍"]
    assert [found[one] for one in absent] == [[], [], []]


@pytest.mark.parametrize("item_type", [None, "post"])
def test_a_persons_list_comes_in_pages_newest_first(tables: Tables, item_type: str | None) -> None:
    user = uuid.uuid4().hex
    made = [Like(key(Target("post", str(n)), user), Stamp.at(1_000 + n // 3)) for n in range(25)]
    made += [
        Like(key(Target("film", str(n)), user), Stamp.at(2_000 + n)) for n in range(5 if item_type is None else 300)
    ]
    for i in range(0, len(made), 25):
        tables.likes.write_many(made[i : i + 25])
    wanted = sorted(
        (like for like in made if item_type in (None, like.key.target.item_type)), key=lambda like: like.stamp
    )
    got: list[Like] = []
    before, pages = None, 0
    while True:
        page = lists.liked_by(tables.likes, user, item_type=item_type, before=before, limit=10)
        got += page.likes
        pages += 1
        if page.resume is None:
            break
        before = page.resume
    assert got == wanted[::-1]
    assert pages <= 4


@pytest.mark.parametrize("buckets", [1, 4])
def test_likers_come_newest_first_from_as_many_buckets_as_there_are(tables: Tables, buckets: int) -> None:
    target, pool = new_target(), ThreadPoolExecutor(4)
    table = type(tables.likes)(tables.client, tables.outputs["LikesTable"], pool, LikerBuckets(buckets))
    made = [Like(key(target, f"user-{n}", "like" if n % 3 else "👍"), Stamp.at(1_000 + n // 2)) for n in range(40)]
    for i in range(0, len(made), 25):
        table.write_many(made[i : i + 25])
    for reaction in (None, "👍"):
        wanted = sorted((m for m in made if reaction in (None, m.key.reaction)), key=lambda like: like.stamp)
        got: list[Like] = []
        before = None
        while True:
            page = lists.likers_of(
                table, target, reaction=reaction, before=before, limit=7, buckets=buckets, executor=pool
            )
            got += page.likes
            before = page.resume
            if before is None:
                break
        assert got == wanted[::-1]


def test_a_list_that_fills_its_last_page_has_no_further_one(tables: Tables) -> None:
    user = uuid.uuid4().hex
    tables.likes.write_many([Like(key(Target("post", str(n)), user), Stamp.at(n)) for n in range(20)])
    page = lists.liked_by(tables.likes, user, item_type=None, before=None, limit=20)
    assert (len(page.likes), page.resume) == (20, None)


def test_keys_that_come_back_unprocessed_are_fetched(tables: Tables, target: Target) -> None:
    keys = [key(target, f"user-{n}") for n in range(30)]
    tables.likes.write_many([Like(one, Stamp.at(1)) for one in keys[:25]])
    real = tables.client.batch_get_item
    calls = []

    class Partial:
        """A client whose batch reads answer two keys at a time."""

        def batch_get_item(self, RequestItems: dict[str, Any]) -> Any:
            ((table, wanted),) = RequestItems.items()
            answer = real(RequestItems={table: {**wanted, "Keys": wanted["Keys"][:2]}})
            rest = wanted["Keys"][2:]
            calls.append(len(wanted["Keys"]))
            return {**answer, "UnprocessedKeys": {table: {"Keys": rest}} if rest else {}}

    table = type(tables.likes)(Partial(), tables.outputs["LikesTable"], ThreadPoolExecutor(1), LikerBuckets(1))  # type: ignore[arg-type]
    assert table.liked(keys) == set(keys[:25])
    assert calls[0] == 30


def test_a_table_that_is_not_there_is_unavailable(tables: Tables) -> None:
    with pytest.raises(Unavailable, match="ResourceNotFoundException"):
        type(tables.likes)(tables.client, "no-such-table", ThreadPoolExecutor(1), LikerBuckets(1)).ping()
