"""Known crawlers by their user agent, from the list of github.com/monperrus/crawler-user-agents."""

from __future__ import annotations

import re
from functools import cache, lru_cache

_PATTERNS_AT_ONCE = 25  # in one expression: the list's own tests found larger ones slower


@lru_cache(maxsize=1024)
def is_crawler(user_agent: str) -> bool:
    """Whether a crawler sends this. Libraries of HTTP do not count: a server that reports views uses one too."""
    return any(pattern.search(user_agent) for pattern in _patterns())


@cache
def _patterns() -> list[re.Pattern[str]]:
    from crawleruseragents import CRAWLER_USER_AGENTS_DATA

    crawlers = [entry["pattern"] for entry in CRAWLER_USER_AGENTS_DATA if "http-library" not in entry.get("tags", ())]
    starts = range(0, len(crawlers), _PATTERNS_AT_ONCE)
    return [re.compile("|".join(crawlers[i : i + _PATTERNS_AT_ONCE])) for i in starts]
