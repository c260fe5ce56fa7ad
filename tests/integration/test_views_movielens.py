"""The run of tests/bench/views_movielens.py, small: real views, everything twice, and a flush in the middle."""

from __future__ import annotations

import pytest

from infra.local.cache import Cache
from infra.local.emulator import Emulator
from tallymark.runtime import wiring
from tests.bench.views_movielens import RATINGS, nothing_expiring, read_ratings, run

pytestmark = [
    pytest.mark.needs_data,
    pytest.mark.slow,
    pytest.mark.skipif(not RATINGS.exists(), reason="MovieLens's ratings are not beside the project"),
]


@pytest.mark.usefixtures("environment")
def test_totals_are_exact_and_visitors_within_their_error(
    emulator: Emulator, outputs: dict[str, str], valkey: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_URL", valkey.url)
    wiring.reset()
    with nothing_expiring(emulator.endpoint_url, outputs):
        results = run(outputs, valkey, read_ratings(2_000))
    assert [result.title for result in results if not result.right] == []
    wiring.reset()
