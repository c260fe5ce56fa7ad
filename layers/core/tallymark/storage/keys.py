"""Every key of every table and of the cache, written and read here and nowhere else.

likes     pk  user                        one partition per person
          sk  type#id#reaction            the record's identity: one like per person, target and reaction
          lk  type#id#bucket              partition of the index `likers`
          at  milliseconds, then nonce    sort key of the indexes `by-time` and `likers`
counters  pk  type#id                     or +#name, of a named counter
          sk  like#reaction#row           row 000 to 999, or `adj` for corrections
          sk  view#all#row                and sum#all#row, of a named counter
          sk  likes-by-hour#day#row       and views-by-hour#day#row
          sk  visitors#label              a sketch of all, of day-2026-01-31 or of hour-2026-01-31T12
          sk  verified                    when the reconciler last found the target's rows right, or wrong
          sk  buckets                     the largest number of buckets that the target's likers were ever spread over
          pk  ^metric#grain               top lists of likes or views, by hour, by day or of all time
          sk  type#period#slot            or *#... of all item types, +#... of those beyond the first of a batch
          pk  ^rates  sk  @lane           how often a lane's items are liked
          pk  ^hot    sk  type#id         a hot item, and when it was last found so
events    pk  event#view#=token           views that came in one call; ~ and 16 bytes in hex where it had no token
          pk  event#add#name#token        an addition to a named counter
          pk  parked#event id             claims of the parked consumer
          pk  held#lane                   the lane's records that were parked as unreadable
          pk  reconciler                  where its scheduled run stands
          pk  visitors                    whose turn it is to store and to rebuild their sketches, and since when
quotas    pk  name              sk quota        its limit, number of pools, version
          pk  name#pool         sk pool         free units
          pk  grant#name#token  sk grant        what a token holds; a name has no separator, and a token comes last
          pk  due#name#pool     sk time#token   when reservations fall due: milliseconds, 13 digits

An id is escaped before it stands between separators, so that no two identities share a key.
"""

from __future__ import annotations

import base64
import hashlib
import os

from tallymark.model import Counter, LikeKey, LimitKey, Metric, Stamp, Target, day_label

ADJUSTMENT_ROW = "adj"
VERIFIED = "verified"
RECONCILER_RUN = "reconciler"
VISITORS_TURN = "visitors"
LIKE_METRIC = "like#"
VIEW_EVENT = "event#view#"
ADD_EVENT = "event#add#"
QUOTA, QUOTA_POOL, QUOTA_GRANT = "quota", "pool", "grant"
MARK_PREFIX = "@"
BUCKETS = "buckets"
HOT, RATES = "^hot", "^rates"  # no item type begins so

_SEPARATOR = "#"
_ESCAPED = "\x1f"  # unit separator: no id can hold it (identifiers.py), so it can stand for the separator

_MS_OFFSET = 2**63  # moves times before 1970 to positive numbers, so that byte order is time order


def escape(text: str) -> str:
    """The text without the separator, reversibly and not a byte longer: ids hold no control characters."""
    return text.replace(_SEPARATOR, _ESCAPED)


def unescape(text: str) -> str:
    """The inverse of escape."""
    return text.replace(_ESCAPED, _SEPARATOR)


def target_key(target: Target) -> str:
    return f"{target.item_type}#{escape(target.item_id)}"


def parse_target_key(key: str) -> Target:
    """The target; ValueError for a key that target_key never makes."""
    item_type, item_id = key.split("#")
    if not (item_type and item_id):
        raise ValueError(f"not a target's key: {key!r}")
    return Target(item_type, unescape(item_id))


def like_sort_key(target: Target, reaction: str) -> str:
    return f"{target_key(target)}#{reaction}"


def parse_like_sort_key(key: str) -> tuple[Target, str]:
    """Target and reaction; ValueError for a key that like_sort_key never makes."""
    parts = key.split("#")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"not a like's sort key: {key!r}")
    item_type, item_id, reaction = parts
    return Target(item_type, unescape(item_id)), reaction


def target_prefix(target: Target) -> str:
    """What the sort keys of all reactions to the target begin with."""
    return f"{target_key(target)}#"


def bucket_of(key: LikeKey, buckets: int) -> int:
    """Which partition of an item's likers this like's index entry goes to."""
    if buckets == 1:
        return 0
    digest = hashlib.blake2b(key.user_id.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % buckets


def likers_key(target: Target, bucket: int) -> str:
    return f"{target_key(target)}#{bucket}"


def parse_likers_key(key: str) -> Target:
    """The target, whatever the bucket."""
    target, _, _ = key.rpartition("#")
    return parse_target_key(target)


def pack_stamp(stamp: Stamp) -> bytes:
    """16 bytes whose order is the order of the stamps."""
    return (stamp.ms + _MS_OFFSET).to_bytes(8, "big") + stamp.nonce


def unpack_stamp(packed: bytes) -> Stamp:
    return Stamp(int.from_bytes(packed[:8], "big") - _MS_OFFSET, bytes(packed[8:]))


def counter_sort_key(counter: Counter, row: int) -> str:
    return f"{counter.metric}#{counter.label}#{row:03d}"


def adjustment_sort_key(counter: Counter) -> str:
    return f"{counter.metric}#{counter.label}#{ADJUSTMENT_ROW}"


def parse_counter_sort_key(key: str) -> tuple[str, str]:
    """Label and row."""
    _, label, row = key.split("#")
    return label, row


def mark_name(lane_id: str) -> str:
    """The attribute that holds a lane's mark: 12 bytes, 64 bits of them hash."""
    digest = hashlib.blake2b(lane_id.encode(), digest_size=8).digest()
    return MARK_PREFIX + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def row_range(metric: Metric, labels: tuple[str, str] | None) -> tuple[str, str]:
    """Between which sort keys, both included, lie the rows of a metric, or of the labels from one to another."""
    if labels is None:
        return f"{metric}#", f"{metric}$"  # $ follows #
    first, last = labels
    return f"{metric}#{first}#", f"{metric}#{last}$"


def top_key(metric: str, grain: str) -> str:
    return f"^{metric}#{grain}"


def top_sort_key(item_type: str | None, grain: str, period: int, slot: int) -> str:
    return f"{item_type or '*'}#{_period_label(grain, period)}#{slot:02d}"


def top_range(item_type: str | None, grain: str, first: int, last: int) -> tuple[str, str]:
    """Between which sort keys, both included, lie the lists of the periods from one to another."""
    return (
        f"{item_type or '*'}#{_period_label(grain, first)}#",
        f"{item_type or '*'}#{_period_label(grain, last)}$",
    )


def _period_label(grain: str, period: int) -> str:
    if grain == "hour":
        day, hour = divmod(period, 24)
        return f"{day_label(day)}T{hour:02d}"
    return day_label(period) if grain == "day" else "all"


def rates_sort_key(lane_id: str) -> str:
    """As short as the name of a lane's mark."""
    return mark_name(lane_id)


def view_event_key(token: str | None) -> str:
    """Of the caller's token, or one that no other call has."""
    return f"{VIEW_EVENT}={token}" if token is not None else f"{VIEW_EVENT}~{os.urandom(16).hex()}"


def add_event_key(name: str, token: str) -> str:
    return f"{ADD_EVENT}{name}#{token}"


def parse_add_event_key(key: str) -> tuple[str, str]:
    """Name and token; ValueError for another key."""
    if not key.startswith(ADD_EVENT):
        raise ValueError(f"not the key of an addition: {key!r}")
    name, separator, token = key.removeprefix(ADD_EVENT).partition("#")
    if not (name and separator and token):
        raise ValueError(f"not the key of an addition: {key!r}")
    return name, token


def claim_key(event_id: str) -> str:
    return f"parked#{event_id}"


def held_key(lane_id: str) -> str:
    return f"held#{lane_id}"


def cache_count_key(namespace: str, target: Target) -> str:
    return f"{namespace}/count/{target_key(target)}"


def cache_views_key(namespace: str, target: Target, window: str) -> str:
    return f"{namespace}/views/{window}/{target_key(target)}"


def cache_top_key(namespace: str, metric: str, window: str, item_type: str | None, limit: int) -> str:
    return f"{namespace}/top/{metric}/{window}/{item_type or '*'}/{limit}"


def cache_sum_key(namespace: str, name: str) -> str:
    return f"{namespace}/sum/{name}"


def cache_limit_key(namespace: str, limit: LimitKey) -> str:
    return f"{namespace}/limit/{limit.name}/{escape(limit.key)}"


def cache_quota_key(namespace: str, name: str) -> str:
    return f"{namespace}/quota/{name}"


# --- quotas ------------------------------------------------------------------------------------------------------


def quota_pool_key(name: str, pool: int) -> str:
    return f"{name}#{pool}"


def quota_grant_key(name: str, token: str) -> str:
    return f"grant#{name}#{token}"


def quota_due_key(name: str, pool: int) -> str:
    return f"due#{name}#{pool}"


def quota_due_sort_key(expires_ms: int, token: str) -> str:
    return f"{expires_ms:013d}#{token}"


def parse_quota_due_sort_key(key: str) -> tuple[int, str]:
    """Milliseconds and token."""
    expires_ms, _, token = key.partition("#")
    return int(expires_ms), token


def quota_due_after(now_ms: int) -> str:
    """Above every reservation whose time is over by now, and below all others."""
    return f"{now_ms + 1:013d}"


# --- sketches of visitors ---------------------------------------------------------------------------------------
# All keys of a group stand in one slot of a cluster, by the braces: its book, and what the scripts of
# live_sketches.py append to the book's key: /era/label/target for a live sketch, /stored and /few for what it is
# merged or counted with.


def sketch_sort_key(label: str) -> str:
    return f"visitors#{label}"


def parse_sketch_sort_key(key: str) -> str:
    """The label."""
    return key.removeprefix("visitors#")


def sketch_group(target: Target, groups: int) -> int:
    """The group that a target's live sketches stand in."""
    digest = hashlib.blake2b(target_key(target).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % groups


def cache_book_key(namespace: str, group: int) -> str:
    return f"{namespace}/visitors/{{{namespace}/{group:02d}}}"


def sketch_member(target: Target, label: str) -> str:
    """A sketch's name in the book of its group, where other fields begin with #."""
    return f"{label}/{target_key(target)}"


def parse_sketch_member(member: str) -> tuple[Target, str]:
    """Target and label."""
    label, _, target = member.partition("/")
    return parse_target_key(target), label
