"""`python -m tests.bench.limit_hits`: what a hit costs Valkey, by the length of its log, and hits a second on one key.

The log is a list, searched by halves. Beside it stands the usual sorted set, written as plainly. Basis of
docs/decisions/0014.
"""

from __future__ import annotations

import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

from valkey import Valkey

from infra.local.cache import Cache
from tallymark.limits import MAX_CALLS, MAX_WINDOW_S
from tallymark.model import LimitKey
from tallymark.storage import valkey as ours
from tallymark.storage.valkey import ValkeyServer, ValkeyWindows

SIZES = (100, 10_000, MAX_CALLS)
ROUNDS, HITS, SECONDS, PROCESSES = 5, 200, 3.0, 4
SECOND = 1_000_000
SORTED_SET = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, window, longest = tonumber(ARGV[2]), ARGV[3] * 1000000, ARGV[4] * 1000000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - longest))
local after = string.format('(%.0f', now - window)
local held = math.min(limit, redis.call('ZCOUNT', KEYS[1], after, '+inf'))
local granted = math.min(1, limit - held)
if granted > 0 then
  local text = string.format('%.0f', now)
  redis.call('ZADD', KEYS[1], text, text .. '-' .. redis.call('ZCARD', KEYS[1]))
  redis.call('PEXPIRE', KEYS[1], ARGV[4] * 1000 + 1)
end
local leaves = redis.call('ZRANGE', KEYS[1], -(held + granted), -(held + granted), 'WITHSCORES')[2]
return {granted, limit - held - granted, string.format('%.0f', leaves + window - now)}
"""
WAYS = {"list": ours._TAKE, "sorted set": SORTED_SET}


def main() -> int:
    print(f"{platform.machine()}, Python {platform.python_version()}; microseconds of the server per hit, median")
    with tempfile.TemporaryDirectory() as home, Cache(home=Path(home), log=Path(home) / "log") as cache:
        with Valkey.from_url(cache.url) as client:
            for size in SIZES:
                for way, script in WAYS.items():
                    allowed, refused, bytes_each = cost(client, way, script, size)
                    print(
                        f"  {way:10} of {size:9,}   allowed {allowed:6.1f} us   refused {refused:6.1f} us   "
                        f"{bytes_each:6.1f} bytes a call"
                    )
        for name, keys_each in (("one key", 1), ("10,000 keys", 10_000)):
            print(f"  {PROCESSES} processes on {name:12} {rate(cache.url, keys_each):8,.0f} hits/s")
    return 0


def cost(client: Valkey, way: str, script: str, size: int) -> tuple[float, float, float]:
    """Microseconds of the server for a hit that is allowed and for one that is refused, and bytes in the log."""
    key, hits = f"{way}-{size}", min(HITS, size // 2)
    room = ROUNDS * hits if size > ROUNDS * hits else hits
    seconds, _ = cast(tuple[int, int], client.time())
    # Spread over an hour that ends a while ago. A hit with the short window has to search for its middle and is
    # allowed; one with the long window finds the limit full.
    fill(client, way, key, [(seconds - 3700 + n * 3600 / size) * SECOND for n in range(size - room)])
    short, long = ((1, size, window_s, MAX_WINDOW_S, MAX_CALLS) for window_s in (1900, MAX_WINDOW_S))
    sha = str(client.script_load(script))
    allowed = [per_call(client, sha, key, short, hits) for _ in range(room // hits)]
    bytes_each = cast(int, client.memory_usage(key, samples=0)) / size
    refused = [per_call(client, sha, key, long, hits) for _ in range(ROUNDS)]
    granted, _, _ = cast(list[Any], client.evalsha(sha, 1, key, *map(str, long)))
    assert granted == 0
    client.delete(key)
    return statistics.median(allowed), statistics.median(refused), bytes_each


def fill(client: Valkey, way: str, key: str, moments: Sequence[float]) -> None:
    texts = [f"{moment:.0f}" for moment in moments]
    for i in range(0, len(texts), 10_000):
        part = texts[i : i + 10_000]
        if way == "list":
            client.rpush(key, *part)
        else:
            client.zadd(key, {f"{text}-{i + n}": int(text) for n, text in enumerate(part)})


def per_call(client: Valkey, sha: str, key: str, arguments: Sequence[int], hits: int) -> float:
    client.config_resetstat()
    for _ in range(hits):
        client.evalsha(sha, 1, key, *map(str, arguments))
    return float(cast(dict[str, Any], client.info("commandstats"))["cmdstat_evalsha"]["usec_per_call"])


def rate(url: str, keys_each: int) -> float:
    """Hits a second of all processes together, as the functions make them."""
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        return sum(pool.map(hits_a_second, [url] * PROCESSES, [keys_each] * PROCESSES))


def hits_a_second(url: str, keys_each: int) -> float:
    windows = ValkeyWindows(ValkeyServer(url), "bench", MAX_WINDOW_S)
    hits, begun = 0, time.monotonic()
    while (passed := time.monotonic() - begun) < SECONDS:
        answered = windows.take({LimitKey("hits", str(hits % keys_each)): 1}, MAX_CALLS, 60)
        hits += answered is not None
    return hits / passed


if __name__ == "__main__":
    sys.exit(main())
