"""Real ratings through the command line and the whole pipeline, compared with the file they came from."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.local.stack import Stack

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TALLYMARK_DATA") or ROOT.parent / "shared" / "data" / "movielens-small")
RATINGS = DATA / "ratings.csv"
LIST_LIMIT = 100  # HTTP API, the most entries of a list in a request and of a page

pytestmark = [
    pytest.mark.needs_data,
    pytest.mark.slow,
    pytest.mark.skipif(not RATINGS.exists(), reason="MovieLens's ratings are not beside the project"),
]


@dataclass(frozen=True)
class Ratings:
    """The file, read without any code of ours: who liked which film when, and what else they rated."""

    likes: dict[str, dict[str, str]]
    rated: dict[str, list[str]]
    counts: dict[str, int]


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """A like is a rating of 4 stars or more."""
    likes: dict[str, dict[str, str]] = defaultdict(dict)
    rated: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    with RATINGS.open(newline="") as file:
        for row in csv.DictReader(file):
            user, film = row["userId"], row["movieId"]
            rated[user].append(film)
            counts[film] += 0
            if float(row["rating"]) >= 4:
                moment = datetime.fromtimestamp(int(row["timestamp"]), UTC)
                likes[user][film] = f"{moment:%Y-%m-%dT%H:%M:%S}.000Z"
                counts[film] += 1
    return Ratings(likes, rated, counts)


@dataclass(frozen=True)
class Service:
    """A running stack, a connection to it, and how the command line finds it."""

    stack: Stack
    client: httpx.Client
    environment: dict[str, str]

    def run_import(self) -> dict[str, Any]:
        """What `tallymark import` says of the likes in the file, after their counts have followed."""
        command = [
            sys.executable,
            "-m",
            "tallymark.cli",
            "import",
            str(RATINGS),
            "--where",
            "rating>=4",
            "--json",
        ]
        command += ["--user", "userId", "--item", "movieId", "--type", "film", "--time", "timestamp"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        assert self.stack.wait_drained(60), "the counts do not follow"
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a call that must succeed."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def counts(self, films: list[str]) -> dict[str, int]:
        """The count of every film."""
        counted = {}
        for some in parts(films):
            items = [{"item_type": "film", "item_id": film} for film in some]
            counted.update(
                {entry["item_id"]: entry["count"] for entry in self.post("/v1/counts", {"items": items})["counts"]}
            )
        return counted

    def liked(self, user: str) -> list[tuple[str, str]]:
        """All pages of a person's likes: film and time."""
        found, cursor = [], None
        while True:
            query = {"item_type": "film", "limit": str(LIST_LIMIT)} | ({"cursor": cursor} if cursor else {})
            response = self.client.get(f"/v1/users/{user}/likes", params=query)
            assert response.status_code == 200, response.text
            page = response.json()
            found += [(like["item_id"], like["liked_at"]) for like in page["likes"]]
            cursor = page["cursor"]
            if cursor is None:
                return found


def parts(films: list[str]) -> Iterator[list[str]]:
    """The films, as many at a time as one request may name."""
    return (films[first : first + LIST_LIMIT] for first in range(0, len(films), LIST_LIMIT))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A fresh stack on free ports."""
    with (
        Stack(port=0, emulator_port=0) as stack,
        httpx.Client(base_url=stack.url, timeout=30, trust_env=False) as client,
    ):
        environment = {
            **os.environ,
            "TALLYMARK_URL": stack.url,
            "TALLYMARK_SERVICE_KEY": stack.service_key,
            "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")),
        }
        yield Service(stack, client, environment)


@pytest.fixture(scope="module")
def imported(service: Service) -> dict[str, Any]:
    """The summary of the first import."""
    return service.run_import()


def test_all_likes_are_imported(imported: dict[str, Any], ratings: Ratings) -> None:
    total = sum(map(len, ratings.likes.values()))
    assert (imported["matched"], imported["liked"], imported["rejected"]) == (total, total, 0)
    print(f"imported in {imported['seconds']:.1f} s; the target is under 60 s with the machine to itself")


@pytest.mark.usefixtures("imported")
def test_the_count_of_every_film_is_that_of_the_file(service: Service, ratings: Ratings) -> None:
    assert service.counts(list(ratings.counts)) == ratings.counts


@pytest.mark.usefixtures("imported")
def test_every_persons_list_is_whole_and_newest_first(service: Service, ratings: Ratings) -> None:
    for user in ratings.rated:
        liked = service.liked(user)
        assert dict(liked) == ratings.likes[user], user
        assert len(liked) == len(ratings.likes[user]), user
        times = [time for _, time in liked]
        assert times == sorted(times, reverse=True), user


@pytest.mark.usefixtures("imported")
def test_has_liked_tells_the_liked_from_the_merely_rated(service: Service, ratings: Ratings) -> None:
    for user, rated in ratings.rated.items():
        # As many as one call takes, from all over the person's ratings.
        films = rated[:: len(rated) // LIST_LIMIT + 1]
        body = {"user_id": user, "item_type": "film", "item_ids": films}
        expected = {film: film in ratings.likes[user] for film in films}
        assert service.post("/v1/has_liked", body)["liked"] == expected, user


@pytest.mark.usefixtures("imported")
def test_a_second_import_changes_nothing(service: Service, ratings: Ratings) -> None:
    again = service.run_import()
    assert (again["liked"], again["already"]) == (0, sum(ratings.counts.values()))
    favourites = sorted(ratings.counts, key=ratings.counts.__getitem__)[-1000:]
    assert service.counts(favourites) == {film: ratings.counts[film] for film in favourites}
    busiest = max(ratings.likes, key=lambda user: len(ratings.likes[user]))
    assert dict(service.liked(busiest)) == ratings.likes[busiest]
