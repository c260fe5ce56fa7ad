"""Signatures are taken exactly where another implementation takes them, and no changed token is taken."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from functools import cache

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from tallymark.errors import Unauthorized
from tallymark.tokens import FixedKeys, Key, is_signed, parse_keys, verify
from tests.e2e.issuer import HASHES, encoded, jwk, signed

MESSAGE = b"header.payload"
ALGORITHMS = st.sampled_from(sorted(HASHES))
# DER of the DigestInfo up to the digest, as RFC 8017, 9.2, note 1, lists it.
PREFIXES = {
    "RS256": "3031300d060960864801650304020105000420",
    "RS384": "3041300d060960864801650304020205000430",
    "RS512": "3051300d060960864801650304020305000440",
}
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/\n é"


@cache
def pair(exponent: int = 65537) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(exponent, 2048)


def key_of(private: rsa.RSAPrivateKey, algorithm: str | None = None) -> Key:
    public = private.public_key().public_numbers()
    return Key("k", algorithm, public.n, public.e)


def both_take(signature: bytes, algorithm: str, private: rsa.RSAPrivateKey, message: bytes = MESSAGE) -> bool:
    """Whether we take the signature; fails where the other implementation decides differently."""
    try:
        private.public_key().verify(signature, message, padding.PKCS1v15(), HASHES[algorithm])
        theirs = True
    except InvalidSignature:
        theirs = False
    ours = is_signed(message, signature, key_of(private), algorithm)
    assert ours == theirs, (signature.hex(), algorithm)
    return ours


def digest_info(algorithm: str, message: bytes = MESSAGE) -> bytes:
    return bytes.fromhex(PREFIXES[algorithm]) + hashlib.new(HASHES[algorithm].name, message).digest()


def padded(info: bytes, length: int = 256) -> bytes:
    return b"\x00\x01" + b"\xff" * (length - len(info) - 3) + b"\x00" + info


def raw_signature(encoded_message: bytes, private: rsa.RSAPrivateKey) -> bytes:
    """What the owner of the key would make of any encoded message: the forger's best case."""
    numbers = private.private_numbers()
    n = numbers.public_numbers.n
    return pow(int.from_bytes(encoded_message, "big") % n, numbers.d, n).to_bytes(256, "big")


@given(ALGORITHMS, st.binary(max_size=200), st.sampled_from([3, 65537]))
def test_what_another_implementation_signs_is_taken(algorithm: str, message: bytes, exponent: int) -> None:
    signature = pair(exponent).sign(message, padding.PKCS1v15(), HASHES[algorithm])
    assert both_take(signature, algorithm, pair(exponent), message)
    assert not both_take(signature, algorithm, pair(exponent), message + b"x")


@given(ALGORITHMS, st.sampled_from([3, 65537]), st.data())
def test_a_signature_with_a_changed_bit_is_taken_by_neither(algorithm: str, exponent: int, data: st.DataObject) -> None:
    signature = bytearray(pair(exponent).sign(MESSAGE, padding.PKCS1v15(), HASHES[algorithm]))
    signature[data.draw(st.integers(0, 255))] ^= 1 << data.draw(st.integers(0, 7))
    assert not both_take(bytes(signature), algorithm, pair(exponent))


@given(ALGORITHMS, st.data())
def test_an_encoded_message_with_any_changed_byte_is_taken_by_neither(algorithm: str, data: st.DataObject) -> None:
    right = padded(digest_info(algorithm))
    assert both_take(raw_signature(right, pair()), algorithm, pair())
    changed = bytearray(right)
    # From 1: of a first byte above 0 the number is that of another message, modulo n.
    changed[data.draw(st.integers(1, 255))] ^= data.draw(st.integers(1, 255))
    assert not both_take(raw_signature(bytes(changed), pair()), algorithm, pair())


def forgeries(algorithm: str) -> dict[str, bytes]:
    """Encoded messages that lenient verifiers have taken."""
    info = digest_info(algorithm)
    digest = info[len(PREFIXES[algorithm]) // 2 :]
    name = bytes.fromhex(PREFIXES[algorithm])[4:15]  # 06 09 and the object identifier
    short = b"\x00\x01" + b"\xff" * 8 + b"\x00" + info
    without_null = b"\x30" + bytes([len(name) + len(digest) + 4]) + b"\x30" + bytes([len(name)]) + name
    without_null += b"\x04" + bytes([len(digest)]) + digest
    long_length = info[:1] + b"\x81" + info[1:]
    parameters = name + b"\x04\x10" + b"x" * 16  # bytes of the forger's choice where NULL belongs
    hidden = b"\x30" + bytes([len(parameters)]) + parameters + b"\x04" + bytes([len(digest)]) + digest
    return {
        "garbage after the digest": short + b"x" * (256 - len(short)),
        "zeros after the digest": short.ljust(256, b"\x00"),
        "garbage before the padding": b"\x00\x01" + b"x" * (253 - len(info)) + b"\x00" + info,
        "no padding at all": (b"\x00\x01\x00" + info).ljust(256, b"\x00"),
        "block type 2": padded(info).replace(b"\x00\x01", b"\x00\x02", 1),
        "block type 0": b"\x00\x00" + b"\x00" * (253 - len(info)) + b"\x00" + info,
        "no separator": b"\x00\x01" + b"\xff" * (254 - len(info)) + info,
        "two separators": b"\x00\x01" + b"\xff" * (252 - len(info)) + b"\x00\x00" + info,
        "digest alone": padded(digest),
        "parameters left out": padded(without_null),
        "length in two bytes": padded(long_length),
        "garbage in the parameters": padded(b"\x30" + bytes([len(hidden)]) + hidden),
        "digest cut": padded(info[:-1]),
        "digest longer": padded(info + b"\x00"),
        "nothing": b"\x00" * 256,
        "one": (1).to_bytes(256, "big"),
    }


@pytest.mark.parametrize("algorithm", sorted(HASHES))
@pytest.mark.parametrize("exponent", [3, 65537])
@pytest.mark.parametrize("name", sorted(forgeries("RS256")))
def test_a_forged_padding_is_taken_by_neither(name: str, exponent: int, algorithm: str) -> None:
    encoded_message = forgeries(algorithm)[name]
    assert len(encoded_message) == 256
    assert not both_take(raw_signature(encoded_message, pair(exponent)), algorithm, pair(exponent))


@pytest.mark.parametrize("algorithm", ["RS256", "RS384"])
def test_a_cube_that_only_begins_rightly_is_taken_by_neither(algorithm: str) -> None:
    """With exponent 3 and a verifier that stops reading after the digest, nobody needs the private key."""
    wanted = (b"\x00\x01" + b"\xff" * 8 + b"\x00" + digest_info(algorithm)).ljust(256, b"\xff")
    root = 0
    for bit in reversed(range(683)):
        if (root | 1 << bit) ** 3 <= int.from_bytes(wanted, "big"):
            root |= 1 << bit
    cube = (root**3).to_bytes(256, "big")
    assert cube.startswith(b"\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\x00" + digest_info(algorithm)[:-1])
    assert not both_take(root.to_bytes(256, "big"), algorithm, pair(3))


@pytest.mark.parametrize("algorithm", sorted(HASHES))
def test_a_digest_of_another_hash_is_taken_by_neither(algorithm: str) -> None:
    for other in set(HASHES) - {algorithm}:
        signature = pair().sign(MESSAGE, padding.PKCS1v15(), HASHES[other])
        assert not both_take(signature, algorithm, pair())


def test_a_signature_has_the_length_of_the_modulus_and_is_below_it() -> None:
    private = pair()
    n = private.public_key().public_numbers().n
    signature = private.sign(MESSAGE, padding.PKCS1v15(), HASHES["RS256"])
    for other in (b"\x00" + signature, signature[1:], signature + b"\x00", b"", signature * 2):
        assert not both_take(other, "RS256", private)
    above = int.from_bytes(signature, "big") + n
    assert not both_take(above.to_bytes(257, "big"), "RS256", private)
    if above < 1 << 2048:
        assert not both_take(above.to_bytes(256, "big"), "RS256", private)


@given(st.binary(max_size=300), ALGORITHMS)
def test_what_is_no_signature_is_taken_by_neither(signature: bytes, algorithm: str) -> None:
    assert not both_take(signature, algorithm, pair())


# --- tokens -----------------------------------------------------------------------------------------------------


@cache
def token() -> str:
    claims = {"iss": "i", "aud": "a", "sub": "ann", "exp": int(time.time()) + 10**6}
    return signed({"alg": "RS256", "kid": "k"}, claims, "k")


@cache
def keys() -> FixedKeys:
    return FixedKeys(parse_keys(json.dumps({"keys": [jwk("k")]})))


def is_taken(text: str) -> bool:
    try:
        verify(text, keys(), issuer="i", audience="a", now_s=time.time())
    except Unauthorized:
        return False
    return True


@given(st.data())
def test_a_token_with_any_changed_character_is_refused(data: st.DataObject) -> None:
    assert is_taken(token())
    position = data.draw(st.integers(0, len(token()) - 1))
    other = data.draw(st.sampled_from(ALPHABET).filter(lambda character: character != token()[position]))
    assert not is_taken(token()[:position] + other + token()[position + 1 :])


def test_a_token_with_any_other_last_character_is_refused() -> None:
    """The last character holds bits that belong to no byte: spelt otherwise they would decode to the same."""
    last = token()[-1]
    same = [c for c in ALPHABET[:64] if decoded(token()[:-1] + c) == decoded(token()) and c != last]
    assert same, "some other character spells the same bytes"
    assert not any(is_taken(token()[:-1] + character) for character in ALPHABET if character != last)


def decoded(text: str) -> bytes:
    signature = text.rpartition(".")[2]
    return base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))


@given(st.integers(0, 10**4), st.integers(0, 10**4))
def test_a_token_that_is_cut_is_refused(start: int, end: int) -> None:
    cut = token()[start % len(token()) : end % (len(token()) + 1)]
    assert is_taken(cut) == (cut == token())


PARTS = st.lists(st.binary(max_size=50), max_size=4).map(lambda parts: ".".join(map(encoded, parts)))


@given(st.text(max_size=200) | PARTS)
def test_no_text_makes_it_fail_otherwise_than_by_refusing(text: str) -> None:
    assert not is_taken(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(["alg", "kid", "crit", "typ", "iss", "aud", "exp", "nbf", "iat", "client_id"]),
)
def test_no_value_of_a_header_or_claim_makes_it_fail_otherwise_than_by_refusing(value: object, name: str) -> None:
    header: dict[str, object] = {"alg": "RS256", "kid": "k"}
    claims: dict[str, object] = {"iss": "i", "aud": "a", "sub": "ann", "exp": time.time() + 10**6}
    (header if name in ("alg", "kid", "crit", "typ") else claims)[name] = value
    is_taken(signed(header, claims, "k"))
