"""MovieLens's ratings as views, each by its user, with everything that may go wrong on the way; then compared.

    .venv/bin/python -m tests.bench.views_movielens                   all 100,836, in some minutes
    .venv/bin/python -m tests.bench.views_movielens --ratings 20000

The functions are called in this process, over an emulator and a Valkey of their own, with a clock that is moved to the
times in the file. Every request is sent twice with one token, a third of the stream's batches are delivered twice, and
Valkey is flushed in the middle. Ends with 1 unless every total is exact, in all and in the windows, and the visitors of
the 1,000 most viewed films are within 2.5 %, on average within 1 %.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from infra.local.cache import Cache
from infra.local.deploy import deploy
from infra.local.emulator import Emulator, aws_environment, session
from infra.local.mapping import DynamoDBStream
from infra.local.template import deployed
from tallymark import counts, series, visitors
from tallymark.model import MS_PER_HOUR, Target, format_time
from tallymark.runtime import wiring
from tallymark.storage.valkey import ValkeyServer
from tallymark.views import ViewCount, ViewWindow
from tests.bench.events import ROOT, Context, function, http_event
from tests.bench.tables import patient

DATA = Path(os.environ.get("TALLYMARK_DATA") or ROOT.parent / "shared" / "data" / "movielens-small")
RATINGS = DATA / "ratings.csv"
WINDOWS: tuple[Literal["24h", "7d", "30d"], ...] = ("24h", "7d", "30d")
MOST_VIEWED = 1_000
IN_A_WINDOW = 300  # films that are looked at, the most viewed in it
AT_MOST, ON_AVERAGE = 0.025, 0.01
VIEWS_AT_ONCE = 100  # HTTP API, the most entries of a list
REQUESTS_AT_ONCE = 300  # of one batch of the stream
MOMENTS = 4  # at which windows are looked at, the last of them the end of the file


@dataclass(frozen=True)
class Rating:
    """Who rated which film when."""

    at_ms: int
    user: str
    film: str


@dataclass
class Result:
    """Differences found, and how many answers were compared."""

    title: str
    compared: int = 0
    wrong_totals: int = 0
    unknown: int = 0
    errors: list[float] = field(default_factory=list)

    def add(self, found: ViewCount | None, views: int, people: int) -> None:
        self.compared += 1
        if found is None or found.visitors is None:
            self.unknown += 1
            return
        self.wrong_totals += found.people != views or found.bots != 0
        self.errors.append(abs(found.visitors - people) / max(people, 1))

    @property
    def right(self) -> bool:
        errors = self.errors
        close = bool(errors) and max(errors) <= AT_MOST and sum(errors) / len(errors) <= ON_AVERAGE
        return close and not (self.wrong_totals or self.unknown)

    def __str__(self) -> str:
        mean = sum(self.errors) / len(self.errors) if self.errors else float("nan")
        numbers = f"{self.compared:>9,} {self.wrong_totals:>13} {self.unknown:>9} {mean:>11.3%}"
        return f"  {self.title:44} {numbers} {max(self.errors, default=0):>9.3%}  {'ok' if self.right else 'WRONG'}"


def read_ratings(how_many: int | None) -> list[Rating]:
    """In the order of their times. A time that is no number stands for the one in the line before."""
    ratings: list[Rating] = []
    with RATINGS.open(newline="") as file:
        for row in csv.DictReader(file):
            whole = row["timestamp"].isdigit()
            if not whole:
                print(f"line {len(ratings) + 2} has the time {row['timestamp']!r}; taken for that of the line before")
            at_ms = int(row["timestamp"]) * 1000 if whole else ratings[-1].at_ms
            ratings.append(Rating(at_ms, row["userId"], row["movieId"]))
    return sorted(ratings, key=lambda rating: rating.at_ms)[:how_many]


def requests_of(ratings: Sequence[Rating]) -> Iterator[list[Rating]]:
    """Views that are sent in one call: of the same hour, up to 100."""
    some: list[Rating] = []
    for rating in ratings:
        if some and (len(some) == VIEWS_AT_ONCE or rating.at_ms // MS_PER_HOUR != some[0].at_ms // MS_PER_HOUR):
            yield some
            some = []
        some.append(rating)
    if some:
        yield some


class Pipeline:
    """The functions, fed by hand."""

    def __init__(self, outputs: dict[str, str], cache: Cache, seed: int) -> None:
        import boto3

        self.random = random.Random(seed)
        self.now_ms = 0
        self.write_api = function("write_api").app
        self.aggregator, self.visitors = function("aggregator").handler, function("visitors").handler
        self.stream = DynamoDBStream(boto3.client("dynamodbstreams"), outputs["EventsStreamArn"])
        self.cache = cache
        (self.shard,) = self.stream.shards()
        self.iterator: str | None = self.stream.iterator(self.shard.shard_id, None, "LATEST")
        self.sent = self.batches = self.delivered = 0

    def send(self, some: list[Rating], token: str) -> None:
        self.now_ms = some[-1].at_ms
        views = [{"item_type": "film", "item_id": one.film, "visitor_id": one.user} for one in some]
        event = http_event("POST", "/v1/views", {"views": views, "token": token})
        for is_repeat in (False, True):
            answer = self.write_api(event, None)
            assert answer["statusCode"] == 200, answer
            assert json.loads(answer["body"]) == {"accepted": len(some), "changed": not is_repeat}
        self.sent += len(some)

    def deliver(self) -> None:
        """Everything that the stream has, as one batch; every third time twice."""
        records: list[Any] = []
        while self.iterator:
            page = self.stream.read(self.iterator)
            self.iterator = page.next_iterator
            if not page.records:
                break
            records += [{**record, "eventSourceARN": self.stream.arn} for record in page.records]
        new = [record for record in records if record["eventName"] == "INSERT"]
        views = [record for record in new if record["dynamodb"]["Keys"]["pk"]["S"].startswith("event#view#")]
        for _ in range(2 if self.batches % 3 == 0 else 1):
            envelope = {"Records": views, "shardId": self.shard.shard_id, "state": {}}
            assert self.aggregator(envelope, Context()) == {"state": {}, "batchItemFailures": []}
            self.visitors({"Records": views}, Context())
            self.delivered += 1
        self.batches += 1

    def turn(self) -> None:
        answer = self.visitors({"scheduled": True}, Context())
        assert answer["stored"], answer

    def flush(self) -> None:
        ValkeyServer(self.cache.url).call(lambda client: client.flushall())

    def read(self, asked: Sequence[tuple[Target, ViewWindow]]) -> list[ViewCount | None]:
        return counts.fresh_counts_of(wiring.view_sources(), asked)


def run(outputs: dict[str, str], cache: Cache, ratings: Sequence[Rating], seed: int = 1) -> list[Result]:
    """Sends and delivers everything, and compares on the way and at the end. The environment is the stack's."""
    pipeline = Pipeline(outputs, cache, seed)
    requests = list(requests_of(ratings))
    looks = {round(len(requests) * part / MOMENTS) - 1 for part in range(1, MOMENTS + 1)}
    results = []
    with moved(pipeline):
        for number, some in enumerate(requests):
            pipeline.send(some, f"token-{number}")
            if number % REQUESTS_AT_ONCE and number not in looks:
                continue
            pipeline.deliver()
            if pipeline.batches % 4 == 2:
                pipeline.turn()
            if number in looks:
                results += windows(pipeline, ratings)
                if len(results) == 2 * len(WINDOWS):  # in the middle, with views that no snapshot has yet
                    pipeline.flush()
                    results += windows(pipeline, ratings, after_flush=True)
        results += totals(pipeline, ratings)
    print(
        f"{pipeline.sent:,} views, {len(requests):,} requests sent twice, {pipeline.batches} batches, "
        f"{pipeline.delivered} deliveries"
    )
    return results


def totals(pipeline: Pipeline, ratings: Sequence[Rating]) -> list[Result]:
    viewers: defaultdict[str, set[str]] = defaultdict(set)
    views = Counter(rating.film for rating in ratings)
    for rating in ratings:
        viewers[rating.film].add(rating.user)
    every, most = Result("total of every film"), Result(f"the {MOST_VIEWED:,} most viewed")
    ranked = [film for film, _ in views.most_common()]
    for place, (film, found) in enumerate(zip(ranked, pipeline.read(asked(ranked, "all")), strict=True)):
        for result in (every, most) if place < MOST_VIEWED else (every,):
            result.add(found, views[film], len(viewers[film]))
    return [every, most]


def windows(pipeline: Pipeline, ratings: Sequence[Rating], *, after_flush: bool = False) -> list[Result]:
    """The films viewed most in each window that ends now."""
    if after_flush:
        first = pipeline.read(asked(["1"], "all"))[0]
        assert first is not None
        assert first.visitors is None, "a flushed Valkey knows nobody"
        pipeline.turn()
    results = []
    for window in WINDOWS:
        span = series.window(window, pipeline.now_ms)
        inside = [one for one in ratings[: pipeline.sent] if span.first_hour <= one.at_ms // MS_PER_HOUR]
        views = Counter(one.film for one in inside)
        viewers: defaultdict[str, set[str]] = defaultdict(set)
        for one in inside:
            viewers[one.film].add(one.user)
        result = Result(f"{window} before {format_time(pipeline.now_ms)[:10]}{', flushed' if after_flush else ''}")
        films = [film for film, _ in views.most_common(IN_A_WINDOW)]
        for film, found in zip(films, pipeline.read(asked(films, window)), strict=True):
            result.add(found, views[film], len(viewers[film]))
        results.append(result)
    return results


def asked(films: Sequence[str], window: ViewWindow) -> list[tuple[Target, ViewWindow]]:
    return [(Target("film", film), window) for film in films]


@contextmanager
def moved(pipeline: Pipeline) -> Iterator[None]:
    """The clock stands where the file is. Where it leaps, a service would have had its turns, and is taken to have."""
    real_now_ms, forgotten_ms = wiring.now_ms, visitors.FORGOTTEN_MS
    wiring.now_ms, visitors.FORGOTTEN_MS = lambda: pipeline.now_ms, 10**15
    wiring.reset()
    try:
        yield
    finally:
        wiring.now_ms, visitors.FORGOTTEN_MS = real_now_ms, forgotten_ms
        wiring.reset()


def main() -> int:
    """Prints a line per comparison; 1 if any is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.views_movielens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ratings", type=int, help="the first so many of the file; all unless given")
    options = parser.parse_args()
    ratings = read_ratings(options.ratings)
    begun = time.monotonic()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        emulator = stack.enter_context(Emulator(home=home / "emulator", log=home / "emulator.log"))
        cache = stack.enter_context(Cache(home=home / "valkey", log=home / "valkey.log"))
        chosen = {"AuthMode": "open", "Stage": "test", "StreamMapping": "disabled", "CacheUrl": cache.url}
        outputs = deploy(emulator.endpoint_url, "bench", {**chosen, "LogLevel": "ERROR"})
        stack.enter_context(nothing_expiring(emulator.endpoint_url, outputs))
        template = deployed(ROOT / "template.yaml", session(emulator.endpoint_url), "bench", emulator.endpoint_url)
        os.environ |= {**template.environment(), **aws_environment(emulator.endpoint_url)}
        os.environ["POWERTOOLS_METRICS_DISABLED"] = "true"
        stack.enter_context(patient())
        wiring.reset()
        results = run(outputs, cache, ratings)
    print(f"{time.monotonic() - begun:.0f} s\n")
    print(f"  {'':44} {'compared':>9} {'wrong totals':>13} {'unknown':>9} {'mean error':>11} {'largest':>9}")
    for result in results:
        print(result)
    return 0 if all(result.right for result in results) else 1


@contextmanager
def nothing_expiring(endpoint_url: str, outputs: dict[str, str]) -> Iterator[None]:
    """With a clock in the past, everything would."""
    dynamodb = session(endpoint_url).client("dynamodb")

    def expire(enabled: bool) -> None:
        for table in ("EventsTable", "CountersTable"):
            dynamodb.update_time_to_live(
                TableName=outputs[table], TimeToLiveSpecification={"AttributeName": "ttl", "Enabled": enabled}
            )

    expire(False)
    yield
    expire(True)


if __name__ == "__main__":
    sys.exit(main())
