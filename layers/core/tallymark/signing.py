"""Keys derived from the deployment's one secret, and texts signed with them.

Each purpose has its own key (HMAC-SHA256 of the purpose), so that a signature made for one is worth
nothing for another, and the service key can change without touching what was signed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

_SIGNATURE_BYTES = 16  # 128 bits: guessing is hopeless, cursors stay short


def derived_key(secret: str, purpose: str) -> bytes:
    """32 bytes for this purpose alone."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).digest()


def sign(key: bytes, payload: bytes, context: str = "") -> str:
    """The payload with its signature, as URL-safe text. It can be opened in the same context only."""
    return encode(_signature(key, payload, context) + payload)


def open_signed(key: bytes, text: str, context: str = "") -> bytes | None:
    """The payload that sign() was given; None if the text was altered or belongs to another context."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    signature, payload = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
    genuine = hmac.compare_digest(signature, _signature(key, payload, context))
    return payload if genuine and encode(raw) == text else None


def encode(raw: bytes) -> str:
    """URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _signature(key: bytes, payload: bytes, context: str) -> bytes:
    framed = len(payload).to_bytes(4, "big") + payload + context.encode()
    return hmac.new(key, framed, hashlib.sha256).digest()[:_SIGNATURE_BYTES]
