"""An issuer of tokens for tests: publishes its keys over HTTP, and signs whatever it is told to."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

AUDIENCE = "tallymark-tests"
HASHES: dict[str, HashAlgorithm] = {"RS256": SHA256(), "RS384": SHA384(), "RS512": SHA512()}


def private_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """The key pair of this name, made once: making one takes up to a second."""
    return _made(name, bits)


@cache
def _made(_name: str, bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def encoded(raw: bytes) -> str:
    """URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def jwk(name: str, bits: int = 2048, **more: Any) -> dict[str, Any]:
    """The public half as a JSON Web Key whose id is the name."""
    numbers = private_key(name, bits).public_key().public_numbers()
    n, e = (encoded(value.to_bytes((value.bit_length() + 7) // 8, "big")) for value in (numbers.n, numbers.e))
    return {"kty": "RSA", "use": "sig", "kid": name, "n": n, "e": e, **more}


def signed(header: Mapping[str, Any], claims: Any, name: str) -> str:
    """A token that is signed rightly, with the key of this name, whatever header and claims say."""
    return with_signature(unsigned(header, claims), name, str(header.get("alg")))


def unsigned(header: Mapping[str, Any], claims: Any) -> str:
    """The two parts of a token that are signed."""
    return ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))


def with_signature(message: str, name: str, algorithm: str = "RS256") -> str:
    """The message with its signature, by RS256 where the algorithm is none of RSA's."""
    kind = HASHES.get(algorithm, HASHES["RS256"])
    return f"{message}.{encoded(private_key(name).sign(message.encode(), padding.PKCS1v15(), kind))}"


class Issuer:
    """Serves its discovery document and keys on a port of this machine; a context manager.

    `requests` counts what was asked for, `down` lets it answer 500.
    """

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [jwk("first")]
        self.requests: Counter[str] = Counter()
        self.down = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="issuer", daemon=True)

    @property
    def url(self) -> str:
        """Its name, as in `iss`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def claims(self, sub: str | None = None, **more: Any) -> dict[str, Any]:
        """Those of a token that holds for an hour; None leaves a claim out."""
        now = int(time.time())
        made = {"iss": self.url, "aud": AUDIENCE, "sub": sub, "iat": now, "exp": now + 3600, **more}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, sub: str | None = None, *, key: str = "first", **more: Any) -> str:
        """A token of this person, as the API wants it, but for the claims given."""
        return signed({"alg": "RS256", "typ": "JWT", "kid": key}, self.claims(sub, **more), key)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests[self.path] += 1
                body = issuer._document(self.path)
                self.send_response(200 if body is not None else 500)
                self.end_headers()
                self.wfile.write(json.dumps(body or {}).encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        return Handler

    def _document(self, path: str) -> dict[str, Any] | None:
        known: dict[str, dict[str, Any]] = {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": self.keys},
        }
        return None if self.down else known.get(path)

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
