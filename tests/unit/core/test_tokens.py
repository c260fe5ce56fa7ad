"""Tokens of the issuer: which are taken, and that none of the known attacks is."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tallymark.errors import Unauthorized
from tallymark.tokens import LEEWAY_S, MAX_TOKEN_BYTES, Claims, FixedKeys, Key, parse_keys, verify
from tests.e2e.issuer import encoded, jwk, private_key, signed, unsigned, with_signature

ISSUER, AUDIENCE, NOW_S = "https://issuer.example", "my-app", 1_769_860_800.0
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": NOW_S + 60, "iat": NOW_S}
HEADER = {"alg": "RS256", "typ": "JWT", "kid": "first"}


def keys(*jwks: dict[str, Any]) -> FixedKeys:
    return FixedKeys(parse_keys(json.dumps({"keys": [*jwks]})))


KEYS = keys(jwk("first"), jwk("second", alg="RS512"))


def verified(token: str, known: FixedKeys = KEYS) -> Claims:
    return verify(token, known, issuer=ISSUER, audience=AUDIENCE, now_s=NOW_S)


def refusal(token: str, known: FixedKeys = KEYS) -> str:
    with pytest.raises(Unauthorized) as refused:
        verified(token, known)
    return str(refused.value)


def claims(**change: Any) -> dict[str, Any]:
    """Good ones, but for the change; None leaves a claim out."""
    return {name: value for name, value in {**CLAIMS, **change}.items() if value is not None}


# --- what is taken ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512"])
def test_a_genuine_token_gives_its_claims(algorithm: str) -> None:
    assert verified(signed({**HEADER, "alg": algorithm}, CLAIMS, "first")) == CLAIMS


@pytest.mark.parametrize(
    "change",
    [
        {"aud": ["other", AUDIENCE]},
        {"aud": None, "client_id": AUDIENCE},
        {"exp": NOW_S + 0.5},
        {"exp": 10**400},
        {"nbf": NOW_S + LEEWAY_S},
        {"iat": NOW_S + LEEWAY_S},
        {"iat": None},
        {"sub": None},
        {"unknown": [{}]},
    ],
    ids=str,
)
def test_claims_that_hold_here_and_now_are_taken(change: dict[str, Any]) -> None:
    assert verified(signed(HEADER, claims(**change), "first")) == claims(**change)


def test_a_token_without_a_key_id_is_of_an_only_key_without_one() -> None:
    token = signed({"alg": "RS256"}, CLAIMS, "first")
    only = {name: value for name, value in jwk("first").items() if name != "kid"}
    assert verified(token, keys(only)) == CLAIMS
    assert "names no key" in refusal(token)
    assert "does not have" in refusal(token, keys(jwk("first")))
    assert "does not have" in refusal(signed(HEADER, CLAIMS, "first"), keys(only))


def test_keys_of_one_id_are_tried_in_turn() -> None:
    known = keys(jwk("second") | {"kid": "first"}, jwk("first"))
    assert verified(signed(HEADER, CLAIMS, "first"), known) == CLAIMS
    assert verified(signed(HEADER, CLAIMS, "second"), known) == CLAIMS


# --- claims -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"iss": None}, "issuer"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": f"{ISSUER}/"}, "issuer"),
        ({"iss": ISSUER.upper()}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"aud": None}, "audience"),
        ({"aud": "other"}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": [[AUDIENCE]]}, "audience"),
        ({"aud": f"{AUDIENCE} other"}, "audience"),
        ({"aud": {AUDIENCE: 1}}, "audience"),
        ({"aud": "other", "client_id": AUDIENCE}, "audience"),
        ({"aud": "", "client_id": AUDIENCE}, "audience"),
        ({"aud": None, "client_id": "other"}, "audience"),
        ({"aud": None, "azp": AUDIENCE}, "audience"),
        ({"exp": None}, "expires"),
        ({"exp": NOW_S}, "expired"),
        ({"exp": NOW_S - 1}, "expired"),
        ({"exp": 0}, "expired"),
        ({"exp": -(10**400)}, "expired"),
        ({"exp": str(NOW_S + 60)}, "number"),
        ({"exp": True}, "number"),
        ({"exp": [NOW_S + 60]}, "number"),
        ({"nbf": NOW_S + LEEWAY_S + 1}, "not valid yet"),
        ({"nbf": "0"}, "number"),
        ({"iat": NOW_S + LEEWAY_S + 1}, "not valid yet"),
        ({"iat": False}, "number"),
    ],
    ids=str,
)
def test_claims_that_do_not_hold_are_refused(change: dict[str, Any], why: str) -> None:
    assert why in refusal(signed(HEADER, claims(**change), "first"))


def test_an_audience_that_is_null_is_not_one_that_is_absent() -> None:
    assert "audience" in refusal(signed(HEADER, {**CLAIMS, "aud": None, "client_id": AUDIENCE}, "first"))


@pytest.mark.parametrize("exp", ["1e999", "NaN", "Infinity", "-Infinity", "1" * 5000, "1e", "0x7fffffff"])
def test_a_time_that_is_no_moment_is_refused(exp: str) -> None:
    payload = json.dumps(CLAIMS).replace(str(CLAIMS["exp"]), exp)
    assert exp in payload
    assert refusal(of_payload(payload.encode())) in ("the token's exp is no moment", "the token's payload is not JSON")


def of_payload(payload: bytes) -> str:
    """A token that is signed rightly, whatever is in it."""
    return with_signature(f"{encoded(json.dumps(HEADER).encode())}.{encoded(payload)}", "first")


@pytest.mark.parametrize("payload", [b"", b"[]", b'"ann"', b"null", b"{", b"\xff", b"[" * 5000, b'{"a": NaN}'])
def test_a_payload_that_is_no_json_object_is_refused(payload: bytes) -> None:
    assert "payload" in refusal(of_payload(payload))


# --- attacks on the signature -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 256, ["RS256"], "RS1", "rs256"])
def test_a_token_that_is_not_signed_with_rsa_is_refused(algorithm: Any) -> None:
    header = {**HEADER, "alg": algorithm}
    for token in (signed(header, CLAIMS, "first"), f"{unsigned(header, CLAIMS)}."):
        assert "must be signed with one of RS256" in refusal(token)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512", "ES256", "PS256", "EdDSA"])
def test_the_public_key_is_no_secret_to_sign_with(algorithm: str) -> None:
    public = private_key("first").public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    message = unsigned({**HEADER, "alg": algorithm}, CLAIMS)
    for secret in (pem, pem.strip(), json.dumps(jwk("first")).encode()):
        token = f"{message}.{encoded(hmac.digest(secret, message.encode(), hashlib.sha256))}"
        assert "must be signed with one of RS256" in refusal(token)


def test_a_key_that_the_token_brings_along_is_not_looked_at() -> None:
    own = {"jwk": jwk("forger"), "jku": "https://forger.example/keys", "x5c": [encoded(b"forged")]}
    assert "not signed" in refusal(signed({**HEADER, **own}, CLAIMS, "forger"))
    assert "does not have" in refusal(signed({**HEADER, **own, "kid": "forger"}, CLAIMS, "forger"))


@pytest.mark.parametrize(
    ("header", "signer", "why"),
    [
        (HEADER, "second", "not signed"),
        ({**HEADER, "kid": "second"}, "second", "not for RS256"),
        ({**HEADER, "kid": "third"}, "first", "does not have"),
        ({**HEADER, "kid": ""}, "first", "does not have"),
        ({**HEADER, "kid": 1}, "first", "no string"),
        ({**HEADER, "kid": ["first"]}, "first", "no string"),
        ({**HEADER, "kid": None}, "first", "names no key"),
        ({**HEADER, "crit": ["b64"], "b64": False}, "first", "critical"),
        ({**HEADER, "crit": []}, "first", "critical"),
    ],
    ids=str,
)
def test_the_key_must_be_the_one_that_is_named(header: dict[str, Any], signer: str, why: str) -> None:
    assert why in refusal(signed(header, CLAIMS, signer))


def test_the_signature_of_one_token_is_worth_nothing_under_another() -> None:
    mine, theirs = signed(HEADER, CLAIMS, "first"), signed(HEADER, claims(sub="bob"), "first")
    head, payload, signature = mine.split(".")
    assert "not signed" in refusal(".".join((head, theirs.split(".")[1], signature)))
    assert "not signed" in refusal(".".join((encoded(json.dumps({**HEADER, "typ": "x"}).encode()), payload, signature)))


TOKEN = signed(HEADER, CLAIMS, "first")


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        TOKEN + ".",
        "." + TOKEN,
        TOKEN.rpartition(".")[0],
        TOKEN.rpartition(".")[0] + ".",
        TOKEN + "=",
        TOKEN + "A",
        TOKEN + "\n",
        " " + TOKEN,
        TOKEN.replace(".", ".\n", 1),
        TOKEN[:-1],
        TOKEN + "é",
        TOKEN + "\ud800",
        TOKEN.replace("-", "+").replace("_", "/") + "+",
        "e30." + TOKEN.partition(".")[2],
        "W10." + TOKEN.partition(".")[2],
        TOKEN + "." + TOKEN,
        ".".join([*TOKEN.split("."), "a", "b"]),
    ],
)
def test_what_is_no_token_of_three_parts_is_refused(token: str) -> None:
    assert refusal(token)


def test_a_token_has_8_kib_and_not_a_byte_more() -> None:
    def padded(length: int) -> str:
        return signed(HEADER, {**CLAIMS, "pad": "x" * length}, "first")

    longest = next(n for n in range(6000, 0, -1) if len(padded(n)) <= MAX_TOKEN_BYTES)
    assert verified(padded(longest))["sub"] == "ann"
    assert "longer" in refusal(padded(longest + 3))


# --- keys -------------------------------------------------------------------------------------------------------


def numbers(name: str = "first") -> tuple[int, int]:
    public = private_key(name).public_key().public_numbers()
    return public.n, public.e


def whole(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def test_the_usable_keys_of_a_set_are_taken_and_others_passed_over() -> None:
    n, e = numbers()
    elliptic = {"kty": "EC", "kid": "e", "crv": "P-256", "x": "AA", "y": "AA"}
    others = [elliptic, {"kty": "oct", "k": "AA"}, {}, 7, None, jwk("first", use="enc"), jwk("first", alg="RSA-OAEP")]
    found = keys(*others, jwk("first"), jwk("second", alg="RS384", key_ops=["verify"]))  # type: ignore[arg-type]
    assert found.known(None) == (Key("first", None, n, e), Key("second", "RS384", *numbers("second")))


@pytest.mark.parametrize(
    "change",
    [
        {"n": whole(numbers()[0] >> 1)},
        {"n": whole(numbers()[0] - 1)},
        {"n": whole((1 << 8192) + 1)},
        {"n": "", "e": "AQAB"},
        {"e": "AQ"},
        {"e": ""},
        {"e": whole(65536)},
        {"e": whole((1 << 32) + 1)},
        {"e": "AQAB="},
        {"n": jwk("first")["n"] + "="},
        {"n": 7},
        {"e": None},
        {"kid": 7},
        {"alg": "HS256"},
        {"alg": "PS256"},
        {"key_ops": ["sign"]},
        {"key_ops": "verify"},
        {"use": "enc"},
        {"kty": "rsa"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_key_that_is_unsound_or_for_something_else_is_not_used(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="holds no RSA key"):
        keys({**jwk("first"), **change})


def test_a_key_of_less_than_2048_bits_is_not_used() -> None:
    with pytest.raises(ValueError, match="holds no RSA key"):
        keys(jwk("short", 1024))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", "{}", '{"keys": {}}', '{"keys": []}', "[" * 100_000])
def test_what_is_no_key_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_keys(text)


def test_a_private_key_among_them_is_refused_aloud() -> None:
    with pytest.raises(ValueError, match="private"):
        keys({**jwk("first"), "d": "AQAB"})
