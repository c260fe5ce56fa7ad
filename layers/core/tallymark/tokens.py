"""JSON Web Tokens of the deployment's issuer: whether one is genuine, of now, and meant for this API.

RSA with PKCS#1 v1.5 alone, as API Gateway's own JWT authorizer takes it. A signature is checked by building the
one encoded message that is right and comparing all of it (RFC 8017, 8.2.2); nothing that a forger wrote is parsed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from .errors import Unauthorized

MAX_TOKEN_BYTES = 8 * 1024
LEEWAY_S = 5  # by which the issuer's clock may be ahead of ours
_MODULUS_BITS = (2048, 8192)  # RFC 7518, 3.3, wants 2048; the bound above is what a check may cost
_MAX_EXPONENT_BITS = 32

_Hash = tuple[str, bytes]
# Name of the hash, and the DER of its DigestInfo up to the digest (RFC 8017, 9.2, note 1).
_ALGORITHMS: dict[str, _Hash] = {
    "RS256": ("sha256", bytes.fromhex("3031300d060960864801650304020105000420")),
    "RS384": ("sha384", bytes.fromhex("3041300d060960864801650304020205000430")),
    "RS512": ("sha512", bytes.fromhex("3051300d060960864801650304020305000440")),
}

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """A public RSA key of the issuer; with an algorithm, good for that one alone."""

    key_id: str | None
    algorithm: str | None
    modulus: int
    exponent: int


class Keys(Protocol):
    """The issuer's keys."""

    def known(self, key_id: str | None) -> Sequence[Key]:
        """All keys. The id asked for says whether it is worth looking for newer ones."""
        ...


@dataclass(frozen=True, slots=True)
class FixedKeys:
    """Keys that came with the deployment."""

    keys: tuple[Key, ...]

    def known(self, key_id: str | None) -> Sequence[Key]:  # noqa: ARG002 (there are no newer ones)
        return self.keys


def verify(token: str, keys: Keys, *, issuer: str, audience: str, now_s: float) -> Claims:
    """The claims of a genuine token that holds now; Unauthorized says what is wrong with any other.

    A third of a millisecond with a key of 2048 bits. Raises what `keys` raises.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise Unauthorized(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
    parts = token.split(".")
    if len(parts) != 3:
        raise Unauthorized("the token is no signed JSON Web Token of three parts")
    header = _json_object(_decoded(parts[0], "header"), "header")
    algorithm, key_id = _checked_header(header)
    signature = _decoded(parts[2], "signature")
    payload = _decoded(parts[1], "payload")
    signed = token.rpartition(".")[0].encode()  # ASCII: the signature and both parts could be decoded
    if not any(is_signed(signed, signature, key, algorithm) for key in _named(keys.known(key_id), key_id, algorithm)):
        raise Unauthorized("the token is not signed with the key that it names")
    claims = _json_object(payload, "payload")
    _check_claims(claims, issuer, audience, now_s)
    return claims


def is_signed(message: bytes, signature: bytes, key: Key, algorithm: str) -> bool:
    """Whether the signature is the key's, over this message."""
    length = (key.modulus.bit_length() + 7) // 8
    number = int.from_bytes(signature, "big")
    if len(signature) != length or number >= key.modulus:
        return False
    name, prefix = _ALGORITHMS[algorithm]
    digest_info = prefix + hashlib.new(name, message).digest()
    genuine = b"\x00\x01" + b"\xff" * (length - len(digest_info) - 3) + b"\x00" + digest_info
    return hmac.compare_digest(pow(number, key.exponent, key.modulus).to_bytes(length, "big"), genuine)


# --- keys -------------------------------------------------------------------------------------------------------


def parse_keys(text: str | bytes) -> tuple[Key, ...]:
    """The usable keys of a JSON Web Key Set (RFC 7517); those of other kinds and uses are passed over.

    ValueError if it is no key set, has no usable key, or holds a private one.
    """
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError('is no JSON Web Key Set: {"keys": [...]}')
    keys = tuple(key for entry in entries if isinstance(entry, dict) and (key := _key_of(entry)) is not None)
    if not keys:
        raise ValueError("holds no RSA key of 2048 bits or more that signs tokens")
    return keys


def _key_of(jwk: Mapping[str, Any]) -> Key | None:
    if jwk.get("kty") != "RSA":
        return None
    if "d" in jwk:
        raise ValueError("holds a private key; only the public part belongs here")
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    algorithm, key_id = jwk.get("alg"), jwk.get("kid")
    if algorithm not in (None, *_ALGORITHMS) or not isinstance(key_id, str | None):
        return None
    try:
        modulus, exponent = (int.from_bytes(_from_base64(jwk[name]), "big") for name in ("n", "e"))
    except (KeyError, TypeError, ValueError):
        return None
    return Key(key_id, algorithm, modulus, exponent) if _is_sound(modulus, exponent) else None


def _is_sound(modulus: int, exponent: int) -> bool:
    """An exponent of 1 would make every text its own signature."""
    low, high = _MODULUS_BITS
    sizes = low <= modulus.bit_length() <= high and 3 <= exponent < 1 << _MAX_EXPONENT_BITS
    return sizes and modulus % 2 == exponent % 2 == 1


def _named(keys: Sequence[Key], key_id: str | None, algorithm: str) -> list[Key]:
    """The keys that the token may be signed with. A token without a key id is one of an only key without one."""
    if key_id is None and len(keys) != 1:
        raise Unauthorized("the token names no key of the issuer")
    named = [key for key in keys if key.key_id == key_id]
    if not named:
        raise Unauthorized("the token names a key that the issuer does not have")
    fitting = [key for key in named if key.algorithm in (None, algorithm)]
    if not fitting:
        raise Unauthorized(f"the key that the token names is not for {algorithm}")
    return fitting


# --- the token --------------------------------------------------------------------------------------------------


def _checked_header(header: Mapping[str, Any]) -> tuple[str, str | None]:
    """Algorithm and key id. Keys or addresses of keys that a header brings along are never looked at."""
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise Unauthorized(f"the token must be signed with one of {', '.join(_ALGORITHMS)}")
    if "crit" in header:
        raise Unauthorized("the token has critical extensions, of which none is known here")
    if not isinstance(key_id, str | None):
        raise Unauthorized("the token's kid is no string")
    return algorithm, key_id


def _check_claims(claims: Claims, issuer: str, audience: str, now_s: float) -> None:
    if claims.get("iss") != issuer:
        raise Unauthorized("the token is of another issuer")
    if audience not in _audiences(claims):
        raise Unauthorized("the token is for another audience")
    expires = _time(claims, "exp")
    if expires is None or expires <= now_s:
        raise Unauthorized("the token has expired" if expires is not None else "the token never expires")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and begins > now_s + LEEWAY_S:
            raise Unauthorized("the token is not valid yet")


def _audiences(claims: Claims) -> list[Any]:
    """`aud`, one or several; without it `client_id`, as API Gateway reads the access tokens of Cognito."""
    audiences = claims["aud"] if "aud" in claims else claims.get("client_id")
    return audiences if isinstance(audiences, list) else [audiences]


def _time(claims: Claims, name: str) -> float | None:
    """Seconds since the epoch; None where the claim is absent."""
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Unauthorized(f"the token's {name} is no number")
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise Unauthorized(f"the token's {name} is no moment")
    return seconds


def _json_object(raw: bytes, part: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Unauthorized(f"the token's {part} is not JSON") from error
    if not isinstance(value, dict):
        raise Unauthorized(f"the token's {part} is no JSON object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _decoded(text: str, part: str) -> bytes:
    try:
        return _from_base64(text)
    except ValueError as error:
        raise Unauthorized(f"the token's {part} is not base64url") from error


def _from_base64(text: str) -> bytes:
    """URL-safe base64 without padding; of several spellings of the same bytes only the canonical one."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error
    if base64.urlsafe_b64encode(raw).decode().rstrip("=") != text:
        raise ValueError("not in canonical base64url")
    return raw
