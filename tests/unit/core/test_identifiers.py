from __future__ import annotations

import unicodedata

import pytest

from tallymark.errors import InvalidRequest
from tallymark.identifiers import parse_id, parse_item_type


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("456", "456"),
        (456, "456"),
        (0, "0"),
        (2**53 - 1, "9007199254740991"),
        ("007", "007"),
        (" ", " "),
        ("a/b#c,d~e", "a/b#c,d~e"),
        ("...", "..."),
        ("-0", "-0"),
        ("7.0", "7.0"),
        ("e\u0301", "é"),
        ("\u212b", "Å"),
        ("👍🏽", "👍🏽"),
        ("a\u200db", "a\u200db"),
        ("\u00ad", "\u00ad"),
        ("a" * 256, "a" * 256),
        ("é" * 128, "é" * 128),
    ],
)
def test_an_id_is_taken_in_its_one_spelling(raw: object, text: str) -> None:
    assert parse_id(raw, "item_id") == text


@pytest.mark.parametrize(
    "raw",
    [
        "",
        ".",
        "..",
        "a" * 257,
        "é" * 129,
        "漢" * 86,
        "\ud800",
        "a\udfff",
        "a\x00",
        "\n",
        "\x1f",
        "\x7f",
        "\x85",
        "\x9f",
        -1,
        2**53,
        10**400,
        7.0,
        -0.0,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
        [],
        ["a"],
        {},
        {"a": 1},
        b"a",
    ],
)
def test_what_is_no_id_is_refused_with_its_field(raw: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_id(raw, "items[3].item_id")
    assert refused.value.field == "items[3].item_id"


def test_every_control_character_and_nothing_else_is_refused() -> None:
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) == "Cs" or (0x500 < code < 0x110000 and code % 97):
            continue  # beyond the first blocks a sample is enough
        try:
            parse_id(f"a{character}", "item_id")
        except InvalidRequest:
            assert unicodedata.category(character) == "Cc", hex(code)
        else:
            assert unicodedata.category(character) != "Cc", hex(code)


def test_the_length_counts_after_normalization() -> None:
    assert parse_id("e\u0301" * 128, "item_id") == "é" * 128
    with pytest.raises(InvalidRequest):
        parse_id("\u0958" * 43, "item_id")  # NFC writes it as two characters of three bytes: 258


@pytest.mark.parametrize("number", [2**53, 10**30])
def test_a_number_too_large_is_refused_with_a_hint(number: int) -> None:
    with pytest.raises(InvalidRequest, match="send a larger id as a string"):
        parse_id(number, "item_id")


@pytest.mark.parametrize("raw", ["post", "a", "a-b_c9", "a" * 32])
def test_an_item_type_is_a_word(raw: str) -> None:
    assert parse_item_type(raw, "item_type") == raw


@pytest.mark.parametrize(
    "raw", ["", "A", "9a", "_a", "-a", "a b", "a\n", "\na", "a#", "é", "a" * 33, 7, True, None, [], {}, ["post"]]
)
def test_what_is_no_item_type_is_refused_with_its_field(raw: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_item_type(raw, "item_type")
    assert refused.value.field == "item_type"
