"""The smaller form of tests/bench/top_recall.py: the lists of the service know the true first of real skew."""

from __future__ import annotations

import pytest

from tests.bench.top_recall import RATINGS, WANTED, movielens, service, zipf

pytestmark = pytest.mark.slow


def test_the_top_100_of_a_zipf_law_over_a_million_items_is_found() -> None:
    assert service(zipf(200_000, 1.0)).recall >= WANTED


@pytest.mark.needs_data
@pytest.mark.skipif(not RATINGS.exists(), reason="MovieLens's ratings are not beside the project")
def test_the_top_100_of_real_views_is_found() -> None:
    assert service(movielens()).recall >= WANTED
