from __future__ import annotations

import pytest
import regex  # type: ignore[import-untyped]  # another copy of the Unicode data, locked in requirements/dev.txt

from tallymark import reactions
from tallymark.errors import InvalidRequest
from tallymark.reactions import parse_reaction

DIGITS_AND_SIGNS = set("0123456789#*")


def characters_with(property_name: str) -> set[str]:
    pattern = regex.compile(rf"\p{{{property_name}}}")
    return {chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and pattern.fullmatch(chr(c))}


def test_the_pictographs_are_those_of_unicode() -> None:
    spans = (span.partition("-") for span in reactions._PICTOGRAPHS.split())
    ours = {chr(c) for low, _, high in spans for c in range(int(low, 16), int(high or low, 16) + 1)}
    others = DIGITS_AND_SIGNS | characters_with("Regional_Indicator") | characters_with("Emoji_Modifier")
    assert ours == characters_with("Emoji") - others


def test_every_character_with_the_emoji_property_is_a_reaction_but_digits_and_signs() -> None:
    for character in characters_with("Emoji") - DIGITS_AND_SIGNS:
        assert parse_reaction(character, "reaction") == character
    for character in DIGITS_AND_SIGNS:
        with pytest.raises(InvalidRequest):
            parse_reaction(character, "reaction")


FAMILY = "👨‍👩‍👧‍👦"
SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
KISS = "👩🏽\u200d❤\ufe0f\u200d💋\u200d👨🏿"


@pytest.mark.parametrize(
    ("raw", "spelt"),
    [
        ("like", "like"),
        ("thumbs-up_2", "thumbs-up_2"),
        ("a" * 32, "a" * 32),
        ("👍", "👍"),
        ("👍\ufe0f", "👍"),
        ("❤️", "❤"),
        ("\ufe0f❤\ufe0f\ufe0f", "❤"),
        ("©️", "©"),
        ("👍🏽", "👍🏽"),
        ("☝️🏽", "☝🏽"),
        ("🏽", "🏽"),
        (FAMILY, FAMILY),
        (KISS, KISS.replace("\ufe0f", "")),
        ("❤️‍🔥", "❤‍🔥"),
        ("🏳️‍🌈", "🏳‍🌈"),
        ("🧑🏻‍🚀", "🧑🏻‍🚀"),
        ("🇩🇪", "🇩🇪"),
        ("🇩", "🇩"),
        (SCOTLAND, SCOTLAND),
    ],
)
def test_a_reaction_is_taken_in_its_one_spelling(raw: str, spelt: str) -> None:
    assert parse_reaction(raw, "reaction") == spelt
    if raw.isascii():
        return
    assert regex.fullmatch(r"\X", spelt), "one grapheme"


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "Like",
        "9lives",
        "a" * 33,
        "like ",
        "like\n",
        "like\ufe0f",
        "\ufe0f",
        "7",
        "7\ufe0f",
        "7\ufe0f\u20e3",
        "#\ufe0f\u20e3",
        "*",
        "👍👍",
        "👍❤️",
        "👍 ",
        "👍a",
        "👍\u200d",
        "\u200d👍",
        "👍\u200d\u200d👍",
        "👍🏽🏽",
        "🏽👍",
        "🇩🇪🇫🇷",
        "🇩🇪🇫",
        "🇩👍",
        "🇩🏽",
        "❤\ufe0e",
        "\U0001f3f4\U000e0067",
        "\U000e007f",
        "é",
        "\u00ae\u0301",
        "\ud83d\udc4d",
        "a\x00",
        7,
        True,
        [],
        {},
    ],
)
def test_what_is_no_reaction_is_refused_with_its_field(raw: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_reaction(raw, "reaction")
    assert refused.value.field == "reaction"


def test_an_emoji_has_at_most_64_bytes() -> None:
    longest = "👍" + "\u200d👍" * 8  # 4 + 8 * 7 = 60
    assert parse_reaction(longest, "reaction") == longest
    with pytest.raises(InvalidRequest):
        parse_reaction(longest + "\u200d👍", "reaction")


def test_a_long_text_is_refused_in_no_time() -> None:
    for text in ("👍\u200d" * 20_000, "🇩" * 60_000, "\U0001f3f4" + "\U000e0067" * 60_000):
        with pytest.raises(InvalidRequest):
            parse_reaction(text, "reaction")


@pytest.mark.parametrize("character", ["_", "-", "9"])
def test_a_word_may_hold_but_not_begin_with_a_digit_or_a_dash(character: str) -> None:
    assert parse_reaction(f"a{character}", "reaction") == f"a{character}"
    with pytest.raises(InvalidRequest):
        parse_reaction(f"{character}a", "reaction")
