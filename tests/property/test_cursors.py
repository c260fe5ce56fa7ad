"""Signed texts refuse every change; pages of any cut, joined, are the sorted list."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark import lists
from tallymark.errors import InvalidRequest
from tallymark.identity import actor_of, new_anonymous, service_key
from tallymark.lists import Cursors, Page
from tallymark.model import Like, LikeKey, Stamp, Target
from tallymark.signing import derived_key, open_signed, sign
from tallymark.storage import keys

KEY = derived_key("made up", "test")
TARGET = Target("post", "1")
contexts = st.text(st.characters(codec="utf-8"), max_size=10)


# --- signing ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=40), contexts)
def test_what_was_signed_opens_in_its_context(payload: bytes, context: str) -> None:
    assert open_signed(KEY, sign(KEY, payload, context), context) == payload


@given(st.binary(max_size=40), contexts, st.data())
def test_any_altered_byte_is_refused(payload: bytes, context: str, data: st.DataObject) -> None:
    text = sign(KEY, payload, context)
    raw = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    assert open_signed(KEY, base64.urlsafe_b64encode(raw).decode().rstrip("="), context) is None


@given(st.binary(max_size=40), st.data())
def test_any_other_spelling_is_refused(payload: bytes, data: st.DataObject) -> None:
    """Also one that decodes to the same bytes: a cursor has one spelling."""
    text = sign(KEY, payload)
    position = data.draw(st.integers(0, len(text)))
    other = data.draw(
        st.sampled_from([text[:position], text[:position] + "=", text[:position] + "A" + text[position:], text + "é"])
        | st.characters().map(lambda c: text[:position] + c + text[position + 1 :])
    )
    if other != text:
        assert open_signed(KEY, other) is None


@given(st.binary(max_size=40), contexts, contexts)
def test_another_context_is_refused(payload: bytes, context: str, other: str) -> None:
    opened = open_signed(KEY, sign(KEY, payload, context), other)
    assert (opened == payload) == (context == other)
    assert (opened is None) == (context != other)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_payload_and_context_do_not_run_into_each_other(payload: bytes, rest: bytes) -> None:
    context = rest.hex()
    moved = payload + context[:2].encode()
    assert context == "" or sign(KEY, payload, context) != sign(KEY, moved, context[2:])


@given(st.text(max_size=60))
def test_a_made_up_text_opens_nothing(text: str) -> None:
    assert open_signed(KEY, text) is None


def test_a_signature_for_one_purpose_is_worth_nothing_for_another() -> None:
    user_id, token = new_anonymous("s")
    assert open_signed(derived_key("s", "cursor"), token) is None
    assert open_signed(derived_key("s", "anonymous"), token) == user_id.encode()


def test_a_new_generation_revokes_the_service_key_and_no_anonymous_token() -> None:
    assert service_key("s", 1) != service_key("s", 2)
    user_id, token = new_anonymous("s")
    actor = actor_of(
        {"tallymark-anonymous": token},
        {},
        mode="open",
        allow_anonymous=True,
        service_key_generation=2,
        secret=lambda: "s",
        claims=lambda _: {},
    )
    assert actor.user_id == user_id


# --- cursors ----------------------------------------------------------------------------------------------------

stamps = st.builds(Stamp, st.integers(-(2**50), 2**50), st.binary(min_size=8, max_size=8))


def cursors() -> Cursors:
    return Cursors(lambda: KEY, keys.pack_stamp, keys.unpack_stamp)


@given(stamps, contexts)
def test_a_cursor_comes_back_as_its_stamp(stamp: Stamp, context: str) -> None:
    assert cursors().decode(cursors().encode(stamp, context), context) == stamp


@given(stamps, contexts, contexts)
def test_a_cursor_of_another_list_is_refused(stamp: Stamp, context: str, other: str) -> None:
    if context != other:
        with pytest.raises(InvalidRequest) as refused:
            cursors().decode(cursors().encode(stamp, context), other)
        assert refused.value.field == "cursor"


def test_no_stamp_is_no_cursor_and_no_cursor_is_the_newest() -> None:
    assert cursors().encode(None, "list") is None
    assert cursors().decode(None, "list") is None


# --- lists ------------------------------------------------------------------------------------------------------


class Inline(Executor):
    """Does the work where it is asked for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class MemoryLists:
    """Likes in buckets. A filtered page reads so many likes and no more, as the table does."""

    def __init__(self, likes: list[Like], buckets: int, reads: int) -> None:
        self.likes, self._buckets, self._reads = likes, buckets, reads

    def of_user(self, user_id: str, item_type: str | None, before: Stamp | None, limit: int) -> Page:
        mine = [like for like in self.likes if like.key.user_id == user_id]
        keep = None if item_type is None else lambda like: like.key.target.item_type == item_type
        return self._page(mine, keep, before, limit)

    def of_target(self, target: Target, bucket: int, reaction: str | None, before: Stamp | None, limit: int) -> Page:
        here = [
            like
            for like in self.likes
            if like.key.target == target and keys.bucket_of(like.key, self._buckets) == bucket
        ]
        keep = None if reaction is None else lambda like: like.key.reaction == reaction
        return self._page(here, keep, before, limit)

    def _page(self, likes: list[Like], keep: Any, before: Stamp | None, limit: int) -> Page:
        below = sorted((k for k in likes if before is None or k.stamp < before), key=lambda k: k.stamp, reverse=True)
        read = below[: limit if keep is None else self._reads]
        kept = [like for like in read if keep is None or keep(like)]
        if len(kept) >= limit:
            return Page(tuple(kept[:limit]), kept[limit - 1].stamp)
        return Page(tuple(kept), read[-1].stamp if len(read) < len(below) else None)


def like(user: int, kind: str, reaction: str, stamp: Stamp) -> Like:
    return Like(LikeKey(f"user-{user}", Target(kind, "1"), reaction), stamp)


near_stamps = st.builds(Stamp, st.integers(-2, 2), st.binary(min_size=8, max_size=8))
many_likes = st.lists(
    st.builds(like, st.integers(0, 30), st.just("post"), st.sampled_from(["like", "👍"]), near_stamps),
    max_size=40,
    unique_by=(lambda made: made.key, lambda made: made.stamp),
)
likes_of_one = st.lists(
    st.builds(
        like, st.just(0), st.sampled_from(["post", "page"]), st.from_regex("[a-z]{3}", fullmatch=True), near_stamps
    ),
    max_size=30,
    unique_by=(lambda made: made.key, lambda made: made.stamp),
)


def all_pages(page_from: Callable[[Stamp | None], Page], limit: int, longest: int) -> tuple[list[Like], list[Page]]:
    pages = [page_from(None)]
    while pages[-1].resume is not None:
        assert len(pages) <= longest
        pages.append(page_from(pages[-1].resume))
    assert all(len(page.likes) <= limit for page in pages)
    return [like for page in pages for like in page.likes], pages


def newest_first(likes: list[Like]) -> list[Like]:
    return sorted(likes, key=lambda made: made.stamp, reverse=True)


@settings(max_examples=200)
@given(many_likes, st.sampled_from([1, 2, 3, 7]), st.integers(1, 6))
def test_likers_over_all_buckets_and_pages_are_the_sorted_list(likes: list[Like], buckets: int, limit: int) -> None:
    store = MemoryLists(likes, buckets, reads=0)
    found, pages = all_pages(
        lambda before: lists.likers_of(
            store, TARGET, reaction=None, before=before, limit=limit, buckets=buckets, executor=Inline()
        ),
        limit,
        len(likes) + 1,
    )
    assert found == newest_first(likes)
    assert len(pages) == max(1, -(-len(likes) // limit)), "a full last page has no cursor, and no page is short"


@settings(max_examples=200)
@given(many_likes, st.sampled_from([1, 2, 3]), st.integers(1, 6), st.integers(1, 9))
def test_filtered_likers_may_come_in_short_pages_and_none_is_missing(
    likes: list[Like], buckets: int, limit: int, reads: int
) -> None:
    store = MemoryLists(likes, buckets, reads)
    found, _ = all_pages(
        lambda before: lists.likers_of(
            store, TARGET, reaction="👍", before=before, limit=limit, buckets=buckets, executor=Inline()
        ),
        limit,
        2 * len(likes) + 2,
    )
    assert found == newest_first([made for made in likes if made.key.reaction == "👍"])


@given(likes_of_one, st.sampled_from([None, "post"]), st.integers(1, 6), st.integers(1, 9))
def test_what_a_person_likes_is_the_sorted_list(
    likes: list[Like], item_type: str | None, limit: int, reads: int
) -> None:
    store = MemoryLists(likes, 1, reads)
    found, _ = all_pages(
        lambda before: lists.liked_by(store, "user-0", item_type=item_type, before=before, limit=limit),
        limit,
        2 * len(likes) + 2,
    )
    assert found == newest_first([made for made in likes if item_type in (None, made.key.target.item_type)])
