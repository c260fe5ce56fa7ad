"""Pages of likes, newest first, and the cursors between them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from .errors import InvalidRequest
from .model import Like, Stamp, Target
from .signing import open_signed, sign


class LikeLists(Protocol):
    """The likes ordered by time. A page starts below `before`; None: at the newest."""

    def of_user(self, user_id: str, item_type: str | None, before: Stamp | None, limit: int) -> Page:
        """Up to `limit` likes of a person, newest first, read consistently."""
        ...

    def of_target(self, target: Target, bucket: int, reaction: str | None, before: Stamp | None, limit: int) -> Page:
        """Up to `limit` likes of an item from one bucket of its index, newest first; soon consistent."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Likes, newest first. `resume` is where the next page starts below; None: the list has ended.

    A filtered page that would have to look very far comes back short, and has a next one.
    """

    likes: tuple[Like, ...]
    resume: Stamp | None


def liked_by(lists: LikeLists, user_id: str, *, item_type: str | None, before: Stamp | None, limit: int) -> Page:
    """What a person liked, newest first; holds the person's own writes at once."""
    return _cut([lists.of_user(user_id, item_type, before, limit + 1)], limit)


def likers_of(
    lists: LikeLists,
    target: Target,
    *,
    reaction: str | None,
    before: Stamp | None,
    limit: int,
    buckets: int,
    executor: Executor,
) -> Page:
    """Who liked an item, newest first, merged from as many buckets as were ever in use."""

    def page(bucket: int) -> Page:
        return lists.of_target(target, bucket, reaction, before, limit + 1)

    return _cut([page(0)] if buckets == 1 else list(executor.map(page, range(buckets))), limit)


def _cut(pages: Sequence[Page], limit: int) -> Page:
    """The newest likes of all pages, down to the point up to which every page is complete."""
    horizon = max((page.resume for page in pages if page.resume is not None), default=None)
    merged: Iterable[Like] = heapq.merge(*(page.likes for page in pages), key=lambda like: like.stamp, reverse=True)
    likes = tuple(islice((like for like in merged if horizon is None or like.stamp >= horizon), limit + 1))
    if len(likes) > limit:
        return Page(likes[:limit], likes[limit - 1].stamp)
    return Page(likes, horizon)


class Cursors:
    """Cursors of one list: opaque, signed, worthless for any other list or filter."""

    def __init__(
        self, key: Callable[[], bytes], pack: Callable[[Stamp], bytes], unpack: Callable[[bytes], Stamp]
    ) -> None:
        self._key, self._pack, self._unpack = key, pack, unpack

    def encode(self, stamp: Stamp | None, context: str) -> str | None:
        return None if stamp is None else sign(self._key(), self._pack(stamp), context)

    def decode(self, text: str | None, context: str) -> Stamp | None:
        if text is None:
            return None
        packed = open_signed(self._key(), text, context)
        if packed is None:
            raise InvalidRequest("was not made by this list; leave it out to start at the newest", "cursor")
        return self._unpack(packed)
