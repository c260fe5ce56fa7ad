"""Any sequence of calls, compared with a dictionary: hypothesis makes the calls up, the service answers over HTTP.

What reads records is exact: answers of writes, has_liked, a person's list. Counts follow: what is read has to be a
value that the count had, and none from before a value that was already there when it was read. Meanwhile the pump
starts anew and delivers the whole stream again, the cache is emptied, stopped and started. Every answer is compared
with the published document. Ids are hostile and new in each run, so that all runs share one stack.
"""

from __future__ import annotations

import time
import unicodedata
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
import valkey
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from jsonschema import Draft202012Validator

from infra.local.mapping import Pump
from infra.local.stack import Stack
from tests.e2e.conftest import THOROUGH, Api, eventually
from tests.e2e.test_fuzz import close_answers
from tests.property.identities import characters

RUNS, STEPS = (150, 60) if THOROUGH else (8, 35)
PATIENCE_S = 60.0  # until counts follow; a pump that starts anew delivers all that other tests made as well
CLOCK_SLACK_S = 0.005  # ages are whole milliseconds

Json = dict[str, Any]

# Each is one id in one or more spellings; `{}` is the part that makes it new.
HOSTILE = [
    ("{}#",),
    ("#{}",),
    ("{}/",),
    ("{}e\u0301", "{}\u00e9"),
    ("{}\U0001f44d\U0001f3fd",),
    ("{}, ?a=1&b%25+",),
    ("{}\\{{}}\u200d'\"",),
    ("{}" + "x" * 244,),
    ("{}" + "\u00e9" * 122, "{}" + "e\u0301" * 122),
]
REACTIONS = [("like",), ("\U0001f44d", "\U0001f44d\ufe0f"), ("\u2764", "\u2764\ufe0f"), ("party-parrot",)]
TIMES = ["2001-02-03T04:05:06.789Z", "2020-01-01T00:00:00.000Z", "2020-01-01T00:00:00.000Z"]
# What makes an operation of a batch bad, whatever else it is.
BAD = [
    {"action": "explode"},
    {"item_type": "Post"},
    {"item_type": None},
    {"item_id": "a\tb"},
    {"item_id": 1.5},
    {"user_id": ""},
    {"user_id": "x" * 257},
    {"reaction": "LIKE"},
    {"reaction": "\U0001f44d\U0001f44d"},
]

small = st.integers(0, 3)
spellings = st.integers(0, 1)
texts = st.text(st.sampled_from("#~01/|,a.") | characters, min_size=1, max_size=15).map(
    lambda text: ("{}" + text.replace("{", "{{").replace("}", "}}"),)
)
pools = st.lists(st.sampled_from(HOSTILE) | texts, min_size=1, max_size=4)


@dataclass(frozen=True)
class Item:
    """An item in its one spelling."""

    item_type: str
    item_id: str

    @property
    def json(self) -> Json:
        return {"item_type": self.item_type, "item_id": self.item_id}


Key = tuple[str, Item, str]  # user, item, reaction


@dataclass(frozen=True)
class Standing:
    """A like that stands; another of the same key has another number."""

    liked_at: str
    number: int


@dataclass
class History:
    """The values of one count, and from which of them on what is read must be."""

    values: list[int] = field(default_factory=lambda: [0])
    proven: list[tuple[float, int]] = field(default_factory=list)  # (seen at, position)

    def change(self, by: int) -> None:
        self.values.append(self.values[-1] + by)

    def read(self, value: int, since_s: float | None, now_s: float) -> None:
        """Checks a value that was read at some time between `since_s` and `now_s`."""
        first = max((i for at_s, i in self.proven if since_s is not None and at_s <= since_s), default=0)
        found = next((i for i in range(first, len(self.values)) if self.values[i] == value), None)
        assert found is not None, f"{value} is none of {self.values[first:]}, which it was from then on"
        self.proven.append((now_s, found))


@dataclass
class Walk:
    """A person's list that is being paged through while likes come and go."""

    user: str
    item_type: str | None
    stood: set[tuple[Key, Standing]]  # from its first page on until now
    cursor: str | None = None
    seen: list[tuple[Key, Standing]] = field(default_factory=list)


class Likes(RuleBasedStateMachine):
    """The service beside a dictionary of what stands."""

    def __init__(self, api: Api, document: Json, made: Counter[str]) -> None:
        super().__init__()
        self.api, self.document, self.made = api, document, made
        self.prefix = uuid.uuid4().hex[:12]
        self.standing: dict[Key, Standing] = {}
        self.histories: defaultdict[tuple[Item, str], History] = defaultdict(History)
        self.walks: list[Walk] = []
        self.likes = 0
        self.restarts = 0
        self.cache_stopped = False

    @initialize(users=pools, items=pools)
    def names(self, users: Sequence[tuple[str, ...]], items: Sequence[tuple[str, ...]]) -> None:
        self.users = [tuple(spelling.format(self.prefix) for spelling in one) for one in users]
        self.items = [tuple(spelling.format(self.prefix) for spelling in one) for one in items]
        self.numbers = [uuid.uuid4().int % 2**52, uuid.uuid4().int % 2**52]  # ids that may be sent as numbers

    # --- what is asked --------------------------------------------------------------------------------

    def ask(self, method: str, path: str, status: int = 200, route: str | None = None, **more: Any) -> Json:
        """The answer, which is what the document promises; with this status."""
        response = self.api.client.request(method, path, **more)
        self.made["hypothesis"] += 1
        described = self.document["paths"][route or path][method.lower()]["responses"]
        assert str(response.status_code) in described, f"{method} {path} answers {response.status_code}"
        schema = described[str(response.status_code)]["content"]["application/json"]["schema"]
        answer: Json = response.json()
        whole = {**schema, "components": self.document["components"]}
        Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(answer)
        assert response.status_code == status, answer
        return answer

    def user(self, who: int) -> str:
        return one_spelling(self.users[who % len(self.users)][0])

    def item(self, what: int) -> Item:
        """The items of the run: each id with two types, and one that is a number."""
        if what == 3:
            return Item("post", str(self.numbers[0]))
        return Item("post" if what % 2 else "film-1", one_spelling(self.items[what % len(self.items)][0]))

    def sent(self, who: int, what: int, reaction: int, spelling: int) -> tuple[Key, Json]:
        """A like, and the fields that name it in one of their spellings."""
        key = (self.user(who), self.item(what), REACTIONS[reaction][0])
        item_id: str | int = spelt(self.items[what % len(self.items)], spelling)
        if what == 3:
            item_id = self.numbers[0] if spelling else str(self.numbers[0])
        fields = {
            "user_id": spelt(self.users[who % len(self.users)], spelling),
            "item_id": item_id,
            "item_type": key[1].item_type,
            "reaction": spelt(REACTIONS[reaction], spelling),
        }
        return key, {name: value for name, value in fields.items() if (name, value) != ("reaction", "like")}

    # --- the dictionary -------------------------------------------------------------------------------

    def stands(self, key: Key, liked_at: str) -> bool:
        """Whether the like changes anything; it stands then."""
        if key in self.standing:
            return False
        self.likes += 1
        self.standing[key] = Standing(liked_at, self.likes)
        self.histories[key[1:]].change(1)
        return True

    def falls(self, key: Key) -> bool:
        """Whether the removal changes anything; the like is gone then."""
        if key not in self.standing:
            return False
        del self.standing[key]
        self.histories[key[1:]].change(-1)
        return True

    def of_item(self, item: Item) -> dict[str, int]:
        return Counter(reaction for _, other, reaction in self.standing if other == item)

    # --- writes ---------------------------------------------------------------------------------------

    @rule(who=small, what=small, reaction=small, spelling=spellings, toggle=st.booleans(), at=st.integers(0, 8))
    def like(self, who: int, what: int, reaction: int, spelling: int, toggle: bool, at: int) -> None:
        key, fields = self.sent(who, what, reaction, spelling)
        more: Json = {"like": True} if toggle else {}
        if at < len(TIMES):
            more["liked_at"] = TIMES[at]
        path = "/v1/toggle" if toggle else "/v1/like"
        answer = self.ask("POST", path, json={**fields, **more}, headers=self.api.as_service)
        changed = self.stands(key, answer["liked_at"])
        assert answer == {**named(key), "liked": True, "changed": changed, "liked_at": self.standing[key].liked_at}
        assert not changed or more.get("liked_at") in (None, answer["liked_at"])

    @rule(who=small, what=small, reaction=small, spelling=spellings, way=st.sampled_from(["body", "query", "toggle"]))
    def unlike(self, who: int, what: int, reaction: int, spelling: int, way: str) -> None:
        key, fields = self.sent(who, what, reaction, spelling)
        headers = self.api.as_service
        if way == "toggle":
            answer = self.ask("POST", "/v1/toggle", json={**fields, "like": False}, headers=headers)
        elif way == "query":
            answer = self.ask("DELETE", "/v1/like", params=fields, headers=headers)
        else:
            answer = self.ask("DELETE", "/v1/like", json=fields, headers=headers)
        assert answer == {**named(key), "liked": False, "changed": self.falls(key)}

    @rule(
        operations=st.lists(
            st.tuples(small, small, small, spellings, st.booleans(), st.none() | st.none() | st.sampled_from(BAD)),
            max_size=8,
        )
    )
    def batch(self, operations: Sequence[tuple[int, int, int, int, bool, Json | None]]) -> None:
        bodies, keys = [], []
        for who, what, reaction, spelling, like, bad in operations:
            key, fields = self.sent(who, what, reaction, spelling)
            bodies.append({"action": "like" if like else "unlike", **fields, **(bad or {})})
            keys.append(key)
        results = self.ask("POST", "/v1/batch", json={"operations": bodies}, headers=self.api.as_service)["results"]
        for (*_, like, bad), key, result in zip(operations, keys, results, strict=True):
            if bad is not None:
                assert (result["status"], result["error"]["field"]) == (400, next(iter(bad))), result
                continue
            # The answer names no time: a list will.
            changed = self.stands(key, "") if like else self.falls(key)
            assert result == {"status": 200, "liked": like, "changed": changed}
        self.learn_times({user for user, _, _ in keys})

    def learn_times(self, users: set[str]) -> None:
        """Takes the times of likes that a batch made from the lists of their people."""
        for user in users:
            for entry in self.page(user, limit=100)["likes"]:
                key = (user, Item(entry["item_type"], entry["item_id"]), entry["reaction"])
                standing = self.standing[key]
                if not standing.liked_at:
                    self.standing[key] = Standing(entry["liked_at"], standing.number)
        assert all(standing.liked_at for key, standing in self.standing.items() if key[0] in users)

    # --- counts ---------------------------------------------------------------------------------------

    @rule(what=small, fresh=st.booleans())
    def count(self, what: int, fresh: bool) -> None:
        asked_s = time.time()
        item = self.item(what)
        answer = self.ask("GET", "/v1/count", params={**item.json, **({"fresh": "true"} if fresh else {})})
        assert {name: answer[name] for name in item.json} == item.json
        since_s = asked_s - CLOCK_SLACK_S - (0 if fresh else answer["age_ms"] / 1000)
        self.check_counts(item, answer, since_s)

    def check_counts(self, item: Item, answer: Json, since_s: float | None) -> None:
        now_s = time.time()
        counts: dict[str, int] = answer["counts"]
        assert answer["count"] == sum(counts.values())
        assert all(n > 0 for n in counts.values())
        known = {reaction for other, reaction in self.histories if other == item}
        assert counts.keys() <= known
        for reaction in known:
            self.histories[item, reaction].read(counts.get(reaction, 0), since_s, now_s)

    @rule(whats=st.lists(small, max_size=6), who=st.none() | small)
    def counts(self, whats: Sequence[int], who: int | None) -> None:
        items = [self.item(what) for what in whats]
        body: Json = {"items": [item.json for item in items]}
        if who is not None:
            body["user_id"] = spelt(self.users[who % len(self.users)], 1)
        entries = self.ask("POST", "/v1/counts", json=body)["counts"]
        assert [{name: entry[name] for name in ("item_type", "item_id")} for entry in entries] == body["items"]
        for item, entry in zip(items, entries, strict=True):
            self.check_counts(item, entry, None)
            if who is not None:
                mine = {reaction for user, other, reaction in self.standing if (user, other) == (self.user(who), item)}
                assert (entry["liked"], sorted(entry["reactions"])) == (bool(mine), sorted(mine))

    @rule(what=small)
    def settled(self, what: int) -> None:
        """The count becomes what the dictionary says, and is that from then on."""
        item = self.item(what)
        eventually(lambda: self.counted_fresh(item), dict(self.of_item(item)), PATIENCE_S)

    def counted_fresh(self, item: Item) -> dict[str, int]:
        asked_s = time.time()
        answer = self.ask("GET", "/v1/count", params={**item.json, "fresh": "true"})
        self.check_counts(item, answer, asked_s - CLOCK_SLACK_S)
        counts: dict[str, int] = answer["counts"]
        return counts

    # --- a person's own likes -------------------------------------------------------------------------

    @rule(who=small, whats=st.lists(small, max_size=4), reaction=small, spelling=spellings)
    def has_liked(self, who: int, whats: Sequence[int], reaction: int, spelling: int) -> None:
        items = [item for item in (self.item(what) for what in whats) if item.item_type == "post"]
        body = {
            "user_id": spelt(self.users[who % len(self.users)], spelling),
            "item_ids": [item.item_id for item in items],
            "item_type": "post",
            "reaction": spelt(REACTIONS[reaction], spelling),
        }
        expected = {item.item_id: (self.user(who), item, REACTIONS[reaction][0]) in self.standing for item in items}
        assert self.ask("POST", "/v1/has_liked", json=body) == {"liked": expected}

    def page(self, user: str, **query: Any) -> Json:
        given = {name: value for name, value in query.items() if value is not None}
        path = f"/v1/users/{quote(user, safe='')}/likes"
        return self.ask("GET", path, route="/v1/users/{user_id}/likes", params=given)

    @rule(who=small, item_type=st.sampled_from([None, "post", "film-1"]))
    def whole_list(self, who: int, item_type: str | None) -> None:
        user = self.user(who)
        answer = self.page(user, item_type=item_type, limit=100)
        listed = [(e["liked_at"], (user, Item(e["item_type"], e["item_id"]), e["reaction"])) for e in answer["likes"]]
        standing = [(s.liked_at, key) for key, s in self.standing.items() if key[0] == user]
        expected = [one for one in standing if item_type in (None, one[1][1].item_type)]
        assert sorted(listed, key=str) == sorted(expected, key=str)
        assert [at for at, _ in listed] == sorted((at for at, _ in listed), reverse=True)
        assert answer["cursor"] is None

    @precondition(lambda self: len(self.walks) < 3)
    @rule(who=small, item_type=st.sampled_from([None, "post"]), limit=st.integers(1, 3))
    def open_list(self, who: int, item_type: str | None, limit: int) -> None:
        user = self.user(who)
        stood = {
            (key, standing)
            for key, standing in self.standing.items()
            if key[0] == user and item_type in (None, key[1].item_type)
        }
        self.walks.append(Walk(user, item_type, stood))
        self.turn(self.walks[-1], limit)

    @precondition(lambda self: self.walks)
    @rule(which=small, limit=st.integers(1, 3))
    def turn_page(self, which: int, limit: int) -> None:
        self.turn(self.walks[which % len(self.walks)], limit)

    def turn(self, walk: Walk, limit: int) -> None:
        """One more page: in order, nothing twice, and in the end all that stood from the first page to the last."""
        answer = self.page(walk.user, item_type=walk.item_type, limit=limit, cursor=walk.cursor)
        entries = [(walk.user, Item(e["item_type"], e["item_id"]), e["reaction"]) for e in answer["likes"]]
        walk.stood &= set(self.standing.items())
        walk.seen += [(key, self.standing[key]) for key in entries]
        assert [e["liked_at"] for e in answer["likes"]] == [self.standing[key].liked_at for key in entries]
        assert len(entries) == limit or (len(entries) < limit and answer["cursor"] is None)
        times = [standing.liked_at for _, standing in walk.seen]
        assert times == sorted(times, reverse=True)
        assert len(set(walk.seen)) == len(walk.seen)
        walk.cursor = answer["cursor"]
        if walk.cursor is None:
            assert walk.stood <= set(walk.seen)
            self.walks.remove(walk)

    # --- an item's likers -----------------------------------------------------------------------------

    @rule(what=small, reaction=st.none() | small, limit=st.integers(1, 3))
    def likers(self, what: int, reaction: int | None, limit: int) -> None:
        item = self.item(what)
        wanted = None if reaction is None else REACTIONS[reaction][0]
        expected = {
            (user, other_reaction, standing.liked_at)
            for (user, other, other_reaction), standing in self.standing.items()
            if other == item and wanted in (None, other_reaction)
        }
        eventually(lambda: set(self.listed_likers(item, wanted, limit)), expected, PATIENCE_S)

    def listed_likers(self, item: Item, reaction: str | None, limit: int) -> list[tuple[str, str, str]]:
        path = f"/v1/items/{item.item_type}/{quote(item.item_id, safe='')}/likers"
        query: Json = {"limit": limit, **({"reaction": reaction} if reaction else {})}
        listed: list[tuple[str, str, str]] = []
        while True:
            answer = self.ask("GET", path, route="/v1/items/{item_type}/{item_id}/likers", params=query)
            listed += [(e["user_id"], e["reaction"], e["liked_at"]) for e in answer["likers"]]
            if answer["cursor"] is None:
                break
            query["cursor"] = answer["cursor"]
        times = [liked_at for _, _, liked_at in listed]
        assert times == sorted(times, reverse=True)
        assert len(set(listed)) == len(listed)
        return listed

    # --- what goes wrong meanwhile --------------------------------------------------------------------

    @precondition(lambda self: self.standing and self.restarts < 1)
    @rule()
    def restart_pump(self) -> None:
        """All records of the stack come again, in other batches."""
        self.restarts += 1
        assert self.api.stack is not None
        restart_pumps(self.api.stack)

    @precondition(lambda self: self.standing and not self.cache_stopped)
    @rule()
    def empty_cache(self) -> None:
        assert self.api.cache is not None
        with closing(valkey.Valkey.from_url(self.api.cache.url)) as client:
            client.flushall()

    @precondition(lambda self: self.standing and self.restarts < 2)
    @rule()
    def stop_or_start_cache(self) -> None:
        assert self.api.cache is not None
        if self.cache_stopped:
            self.api.cache.start()
            self.restarts += 1
        else:
            self.api.cache.stop()
        self.cache_stopped = not self.cache_stopped

    # --- always ---------------------------------------------------------------------------------------

    @invariant()
    def times_are_known(self) -> None:
        assert all(standing.liked_at for standing in self.standing.values())

    def teardown(self) -> None:
        """In the end every count is exact and every list that was opened ends."""
        if self.cache_stopped and self.api.cache is not None:
            self.api.cache.start()
        while self.walks:
            self.turn(self.walks[0], 3)
        for item in {item for item, _ in self.histories}:
            eventually(lambda item=item: self.counted_fresh(item), dict(self.of_item(item)), PATIENCE_S)  # type: ignore[misc]


def one_spelling(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def spelt(one: Sequence[str], spelling: int) -> str:
    return one[spelling % len(one)]


def named(key: Key) -> Json:
    user, item, reaction = key
    return {"user_id": user, **item.json, "reaction": reaction}


def restart_pumps(stack: Stack) -> None:
    """Ends the pumps and begins others, which know no position."""
    for i, old in enumerate(stack.pumps):
        old.stop()
        new = Pump(old._stream, old._invoke, old._settings, poll_seconds=old._poll_seconds, on_failure=old._on_failure)
        stack.pumps[i] = new
        stack._cleanup.callback(new.stop)
        new.start()


@pytest.mark.slow
@pytest.mark.parametrize("api", ["in_process"], indirect=True)
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
def test_the_service_is_a_dictionary_whatever_is_called_and_whatever_restarts(
    api: Api, requests_made: Counter[str]
) -> None:
    document = api.get("/openapi.json")
    close_answers(document)

    class LikesHere(Likes):
        def __init__(self) -> None:
            super().__init__(api, document, requests_made)

    run_state_machine_as_test(
        LikesHere,
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, *([Phase.shrink] if THOROUGH else [])],  # a short example takes minutes to find
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_value_that_a_count_never_had_or_has_no_more_is_noticed() -> None:
    history = History([0, 1, 2, 1])
    history.read(2, None, now_s=10.0)
    history.read(1, None, now_s=11.0)  # of before, or of now: nobody can tell
    for value, since_s in ((3, None), (0, 10.0)):
        with pytest.raises(AssertionError, match="is none of"):
            history.read(value, since_s, now_s=12.0)
    history.read(0, 9.0, now_s=12.0)
