"""The keys of the issuer of tokens, fetched from where it publishes them (OpenID Connect Discovery 1.0)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Lock
from urllib.parse import urlsplit

from tallymark.errors import Unavailable
from tallymark.tokens import Key, parse_keys

from .telemetry import logger

KEPT_S = 3600.0
# A token may name any key: what nobody signed must not become calls to the issuer, or calls that wait for it.
LOOK_AGAIN_S = 30.0
RETRY_S = 5.0  # while there are no keys at all
_TIMEOUT_S = 2.0
_MAX_BYTES = 256 * 1024

Fetch = Callable[[str], bytes]
"""The content at an address. OSError or ValueError where it cannot be had."""


class IssuerKeys:
    """The issuer's keys, kept for an hour. Safe between threads.

    A key id that is not among them makes it look again, at most every 30 s. While the issuer cannot be
    reached, the keys that it had last go on being good.
    """

    def __init__(self, issuer: str, fetch: Fetch, now_s: Callable[[], float]) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._now_s = now_s
        self._keys: tuple[Key, ...] = ()
        self._stale_at_s = 0.0
        self._look_again_at_s = 0.0
        self._lock = Lock()

    def known(self, key_id: str | None) -> Sequence[Key]:
        """All keys; Unavailable if there have never been any."""
        if self._is_worth_a_look(key_id) and self._lock.acquire(blocking=not self._keys):
            # Whoever has keys does not wait for the one who asks for newer ones.
            try:
                if self._is_worth_a_look(key_id):
                    self._look(unknown=bool(self._keys) and self._now_s() < self._stale_at_s)
            finally:
                self._lock.release()
        if not self._keys:
            raise Unavailable("the keys of the tokens' issuer cannot be had just now; try again", int(RETRY_S))
        return self._keys

    def _is_worth_a_look(self, key_id: str | None) -> bool:
        now = self._now_s()
        if self._keys and now < self._stale_at_s and any(key.key_id == key_id for key in self._keys):
            return False
        return now >= self._look_again_at_s

    def _look(self, *, unknown: bool) -> None:
        try:
            self._keys = self._fetched()
            self._stale_at_s = self._now_s() + KEPT_S
            # A key that is asked for right after the first look may well be a new one.
            self._look_again_at_s = self._now_s() + LOOK_AGAIN_S if unknown else 0.0
        except (OSError, ValueError, RecursionError) as error:
            self._look_again_at_s = self._now_s() + (LOOK_AGAIN_S if self._keys else RETRY_S)
            logger("issuer").warning("the issuer's keys cannot be had", reason=str(error)[:300], kept=len(self._keys))

    def _fetched(self) -> tuple[Key, ...]:
        discovery = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        document = json.loads(self._fetch(discovery))
        if not isinstance(document, dict) or document.get("issuer") != self._issuer:
            raise ValueError(f"{discovery} is not the document of {self._issuer}")
        address = document.get("jwks_uri")
        if not isinstance(address, str):
            raise ValueError(f"{discovery} names no jwks_uri")
        if urlsplit(address).scheme != "https" and urlsplit(self._issuer).scheme == "https":
            raise ValueError(f"the keys of {self._issuer} are not at an https address")
        return parse_keys(self._fetch(address))


def fetch(address: str) -> bytes:
    """The content at an http or https address, straight from there: no redirect is followed, no proxy asked.

    OSError or ValueError where it cannot be had within 2 s for each step, or is larger than 256 KiB.
    """
    parts = urlsplit(address)
    kinds = {"https": HTTPSConnection, "http": HTTPConnection}
    if parts.scheme not in kinds or not parts.hostname:
        raise ValueError(f"{address} is no http or https address")
    connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        response = connection.getresponse()
        content: bytes = response.read(_MAX_BYTES + 1)
    except HTTPException as error:
        raise ValueError(f"{address} answers no HTTP: {error!r}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"{address} answers {response.status}")
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{address} answers more than {_MAX_BYTES} bytes")
    return content
