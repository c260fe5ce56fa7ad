"""Valkey: shared counts and sliding windows, each step one script on one key.

Every script reads the server's clock, so processes with other clocks agree; every key stands alone, so a cluster may
place it anywhere (live_sketches.py has scripts on several keys, all in one slot). A server that does not answer is left
alone for a moment.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tallymark.counts import K, Peeked, V
from tallymark.limits import MAX_CALLS, Taken
from tallymark.model import Count, LimitKey, Target
from tallymark.quotas import MARK_LIFETIME_US, Mark
from tallymark.sums import Sum
from tallymark.top import Top, TopKey
from tallymark.views import ViewCount, ViewWindow

from . import keys

if TYPE_CHECKING:
    from valkey import Valkey

T = TypeVar("T")

_TIMEOUT_S = 0.25
_LEFT_ALONE_S = 1.0
_LEASE_MS = 1000  # a refresher that takes longer is taken for dead
_STALE_SHARE = 1.5  # a stale count may be served up to this share of the lifetime

# A hash per target: v value, t microseconds when its reading began, f milliseconds until which it is
# fresh, l milliseconds until which somebody else refreshes it.
_PEEK = """
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local known = redis.call('HMGET', KEYS[1], 'v', 't', 'f', 'l')
local age_ms = known[1] and now_ms - math.floor(known[2] / 1000) or 0
if known[1] and now_ms < tonumber(known[3]) then return {known[1], age_ms, ''} end
if known[4] and now_ms < tonumber(known[4]) then return {known[1] or '', age_ms, ''} end
redis.call('HSET', KEYS[1], 'l', now_ms + ARGV[1])
if not known[1] then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return {known[1] or '', age_ms, string.format('%.0f', now_us)}
"""
_FILL = """
local known = redis.call('HGET', KEYS[1], 't')
if known and tonumber(known) >= tonumber(ARGV[2]) then return 0 end
local begun_ms = math.floor(ARGV[2] / 1000)
redis.call('HSET', KEYS[1], 'v', ARGV[1], 't', ARGV[2], 'f', begun_ms + ARGV[3], 'l', 0)
redis.call('PEXPIREAT', KEYS[1], begun_ms + ARGV[4])
return 1
"""
# A list per key: the microseconds of each call that was allowed, oldest first. A clock that steps back does not take
# the log along: until it has caught up, no time passes for the log.
_TAKE = """
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local wanted, limit, window = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] * 1000000
local longest, most = ARGV[4] * 1000000, tonumber(ARGV[5])
local length = redis.call('LLEN', KEYS[1])
local function newest(n) return tonumber(redis.call('LINDEX', KEYS[1], -n)) end
local now = length > 0 and math.max(clock, newest(1)) or clock
local function within(span, number)
  local low, high = 0, math.min(number, length)
  local middle = high
  while low < high do
    if newest(middle) > now - span then low = middle else high = middle - 1 end
    middle = math.ceil((low + high) / 2)
  end
  return low
end
local held = within(window, limit)
local granted = math.min(wanted, limit - held)
if granted > 0 then
  for _ = 1, granted do length = redis.call('RPUSH', KEYS[1], string.format('%.0f', now)) end
  if length > most or newest(length) <= now - longest then
    redis.call('LTRIM', KEYS[1], -within(longest, most), -1)
  end
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil((now + longest) / 1000)))
end
held = held + granted
return {granted, limit - held, string.format('%.0f', newest(held) + window - clock)}
"""
# A hash per quota: r at most how much remained, a microseconds when that was asked for, c when something was added.
_PEEK_MARK = """
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local known = redis.call('HMGET', KEYS[1], 'r', 'e')
local alive = known[2] and now_us < tonumber(known[2])
return {alive and known[1] or '', string.format('%.0f', now_us)}
"""
_PUT_MARK = """
local known = redis.call('HMGET', KEYS[1], 'a', 'c')
for _, since in ipairs(known) do
  if since and tonumber(since) >= tonumber(ARGV[2]) then return 0 end
end
redis.call('HSET', KEYS[1], 'r', ARGV[1], 'a', ARGV[2], 'e', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
"""
_CLEAR_MARK = """
local time = redis.call('TIME')
redis.call('HDEL', KEYS[1], 'r', 'a', 'e')
redis.call('HSET', KEYS[1], 'c', string.format('%.0f', time[1] * 1000000 + time[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
# That something was added is to be known as long as a mark that was asked for before could still count.
_KEEP_MARK_MS = 2 * MARK_LIFETIME_US // 1000


class ValkeyDown(Exception):
    """The server does not answer, or was found so a moment ago."""


class ValkeyServer:
    """A connection that is made on first use and rests after a failure. Safe between threads.

    `binary` answers bytes instead of text; a background job may give the server more time than a request.
    """

    def __init__(
        self,
        url: str,
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        binary: bool = False,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._url, self._monotonic_s = url, monotonic_s
        self._binary, self._timeout_s = binary, timeout_s
        self._client: Valkey | None = None
        self._scripts: dict[str, Any] = {}
        self._retry_at_s = 0.0

    def call(self, work: Callable[[Valkey], T]) -> T:
        """What the work returns; ValkeyDown if the server fails it."""
        if self._monotonic_s() < self._retry_at_s:
            raise ValkeyDown
        from valkey.exceptions import ConnectionError, TimeoutError, ValkeyError

        try:
            return work(self._connected())
        except (ConnectionError, TimeoutError, OSError) as error:
            self._retry_at_s = self._monotonic_s() + _LEFT_ALONE_S
            raise ValkeyDown from error
        except ValkeyError as error:
            raise ValkeyDown from error

    def run(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Runs the script once per (key, arguments), in one round trip."""
        return self.call(lambda client: self._run(client, script, calls))

    def ping(self) -> bool:
        try:
            return bool(self.call(lambda client: client.ping()))
        except ValkeyDown:
            return False

    def _run(self, client: Valkey, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        from valkey.exceptions import NoScriptError

        sha = self._scripts.get(script) or self._load(client, script)
        for _ in range(2):
            try:
                if len(calls) == 1:
                    ((key, arguments),) = calls
                    return [client.evalsha(sha, 1, key, *arguments)]
                pipeline = client.pipeline(transaction=False)
                for key, arguments in calls:
                    pipeline.evalsha(sha, 1, key, *arguments)
                return list(pipeline.execute())  # type: ignore[no-untyped-call]
            except NoScriptError:
                sha = self._load(client, script)
        raise ValkeyDown

    def _load(self, client: Valkey, script: str) -> str:
        loaded = client.script_load(script)
        sha = loaded.decode() if isinstance(loaded, bytes) else str(loaded)
        self._scripts[script] = sha
        return sha

    def _connected(self) -> Valkey:
        if self._client is None:
            import valkey
            from valkey.backoff import NoBackoff
            from valkey.retry import Retry

            self._client = valkey.Valkey.from_url(
                self._url,
                decode_responses=not self._binary,
                socket_timeout=self._timeout_s,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),  # a call whose reply was lost may have counted: it is not sent twice
                max_connections=64,
            )
        return self._client


@dataclass(frozen=True, slots=True)
class Form(Generic[K, V]):
    """How a count is kept: under which key, and as which text."""

    key: Callable[[K], str]
    write: Callable[[V], str]
    read: Callable[[str, int], V]  # the text, and the moment that it is of in milliseconds since the epoch


class ValkeyCounts(Generic[K, V]):
    """Counts shared by all processes; one of them refreshes each, the others see it a little stale meanwhile."""

    def __init__(self, server: ValkeyServer, form: Form[K, V], ttl_ms: int) -> None:
        self._server, self._form, self._ttl_ms = server, form, ttl_ms

    def peek(self, asked: Sequence[K], now_ms: int) -> list[Peeked[V]] | None:
        """Per key what is known; None when the cache does not answer."""
        calls = [(self._form.key(key), (_LEASE_MS,)) for key in asked]
        try:
            answers = self._server.run(_PEEK, calls)
        except ValkeyDown:
            return None
        return [
            Peeked(
                self._form.read(value, now_ms - int(age_ms)) if value else None,
                int(token) if token else None,
            )
            for value, age_ms, token in answers
        ]

    def fill(self, filled: Sequence[tuple[K, int, V]]) -> None:
        """Stores counts; an older token never overwrites a newer one."""
        calls = [
            (
                self._form.key(key),
                (self._form.write(count), token, self._fresh_ms(), round(self._ttl_ms * _STALE_SHARE)),
            )
            for key, token, count in filled
        ]
        try:
            self._server.run(_FILL, calls)
        except ValkeyDown:
            return

    def _fresh_ms(self) -> int:
        """Jittered, so that counts which were read together are not refreshed together."""
        return round(self._ttl_ms * random.uniform(0.7, 1.0))  # noqa: S311


def likes_form(namespace: str) -> Form[Target, Count]:
    return Form(
        lambda target: keys.cache_count_key(namespace, target),
        lambda count: json.dumps(count.by_reaction),
        lambda text, as_of_ms: Count(json.loads(text), as_of_ms),
    )


def views_form(namespace: str) -> Form[tuple[Target, ViewWindow], ViewCount]:
    def read(text: str, as_of_ms: int) -> ViewCount:
        people, bots, visitors = json.loads(text)
        return ViewCount(people, bots, visitors, as_of_ms)

    return Form(
        lambda key: keys.cache_views_key(namespace, *key),
        lambda count: json.dumps([count.people, count.bots, count.visitors]),
        read,
    )


def sums_form(namespace: str) -> Form[str, Sum]:
    return Form(
        lambda name: keys.cache_sum_key(namespace, name),
        lambda found: str(found.value),
        lambda text, as_of_ms: Sum(int(text), as_of_ms),
    )


def top_form(namespace: str) -> Form[TopKey, Top]:
    def write(top: Top) -> str:
        return json.dumps([[[t.item_type, t.item_id, number] for t, number in top.entries], top.proven])

    def read(text: str, as_of_ms: int) -> Top:
        entries, proven = json.loads(text)
        return Top(tuple((Target(kind, name), number) for kind, name, number in entries), proven, as_of_ms)

    return Form(
        lambda key: keys.cache_top_key(namespace, key.metric, key.window, key.item_type, key.limit), write, read
    )


class ValkeyWindows:
    """Sliding windows over all processes, exact to the call.

    A judgement costs one round trip, and a search of the log by halves: 7 looks for a limit of 100, 20 for a million,
    one for a call that is refused. A log takes 10 bytes a call and lives for the longest window after the last one
    that was allowed.
    """

    def __init__(self, server: ValkeyServer, namespace: str, longest_window_s: int) -> None:
        self._server, self._namespace, self._longest_window_s = server, namespace, longest_window_s

    def take(self, wanted: Mapping[LimitKey, int], limit: int, window_s: int) -> dict[LimitKey, Taken] | None:
        """As `Windows` has it."""
        calls = [
            (keys.cache_limit_key(self._namespace, key), (number, limit, window_s, self._longest_window_s, MAX_CALLS))
            for key, number in wanted.items()
        ]
        try:
            answers = self._server.run(_TAKE, calls)
        except ValkeyDown:
            return None
        return {
            key: Taken(int(granted), int(remaining), int(reset_after_us))
            for key, (granted, remaining, reset_after_us) in zip(wanted, answers, strict=True)
        }


class ValkeyMarks:
    """Marks shared by all processes, one round trip each."""

    def __init__(self, server: ValkeyServer, namespace: str) -> None:
        self._server, self._namespace = server, namespace

    def peek(self, name: str) -> Mark:
        answer = self._run(_PEEK_MARK, name)
        if answer is None:
            return Mark(None, None)
        remaining, at_us = answer
        return Mark(int(remaining) if remaining else None, int(at_us))

    def put(self, name: str, remaining: int, asked: Mark, life_us: int) -> None:
        if asked.at_us is not None:
            self._run(_PUT_MARK, name, remaining, asked.at_us, asked.at_us + life_us, _KEEP_MARK_MS)

    def clear(self, name: str) -> None:
        self._run(_CLEAR_MARK, name, _KEEP_MARK_MS)

    def _run(self, script: str, name: str, *arguments: int) -> Any:
        """What the script answers; None when the server does not."""
        try:
            (answer,) = self._server.run(script, [(keys.cache_quota_key(self._namespace, name), arguments)])
        except ValkeyDown:
            return None
        return answer
