from __future__ import annotations

import re

from tallymark import errors
from tallymark.errors import RetryLater, TallymarkError
from tallymark.runtime.http import STATUSES


def kinds(base: type[TallymarkError] = TallymarkError) -> set[type[TallymarkError]]:
    return {kind for direct in base.__subclasses__() for kind in {direct, *kinds(direct)}}


def drawn() -> dict[str, int]:
    """Name -> status, as the docstring of errors.py draws them."""
    return {name: int(status) for name, status in re.findall(r"[├└]── (\w+) +(\d{3})", errors.__doc__ or "")}


def test_the_tree_that_is_drawn_is_the_tree_there_is() -> None:
    assert {kind.__name__ for kind in kinds() if kind.code} == set(drawn())


def test_every_error_has_the_status_that_is_drawn() -> None:
    assert {kind.__name__: status for kind, status in STATUSES.items()} == drawn()


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in STATUSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch("[a-z_]+", code) for code in codes)


def test_the_codes_are_those_of_the_api() -> None:
    assert {kind.code: status for kind, status in STATUSES.items()} == {
        "invalid_request": 400,
        "unauthorized": 401,
        "forbidden": 403,
        "not_found": 404,
        "method_not_allowed": 405,
        "conflict": 409,
        "exhausted": 409,
        "payload_too_large": 413,
        "unsupported_media_type": 415,
        "rate_limited": 429,
        "unavailable": 503,
    }


def test_what_passes_by_itself_says_when_to_try_again() -> None:
    assert {kind.code for kind in kinds() if issubclass(kind, RetryLater) and kind.code} == {
        "rate_limited",
        "unavailable",
    }
    assert errors.Unavailable("busy").retry_after_seconds == 1
    assert errors.RateLimited("slow down", 0).retry_after_seconds == 1
    assert errors.RateLimited("slow down", 42).retry_after_seconds == 42
