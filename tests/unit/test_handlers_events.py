"""Views, hours and named counters by the functions, over stores in memory (api.md, line by line)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from functions.read_api.app import app as read_app
from tallymark.errors import Unavailable
from tallymark.identity import new_anonymous
from tallymark.model import format_time
from tallymark.runtime import telemetry, wiring
from tests.unit.core.service import NOW_MS, SECRET, SERVICE_KEY, Answer, Service, event_of

ITEM = {"item_id": "456", "item_type": "post"}
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    yield Service(monkeypatch)
    wiring.reset()


def view(service: Service, *views: dict[str, Any], token: str | None = None, agent: str = "") -> Answer:
    return service.call(
        "POST",
        "/v1/views",
        body={"views": [{**ITEM, **entry} for entry in views], "token": token},
        headers={"User-Agent": agent},
    )


def seen(service: Service, window: str | None = None, item_id: str = "456") -> tuple[int, int]:
    """Views and bot views."""
    query = {**ITEM, "item_id": item_id, **({"window": window} if window else {})}
    answer = service.call("GET", "/v1/views", query=query).json
    assert answer["visitors_error"] == 0.0081
    return answer["views"], answer["bot_views"]


# --- views ------------------------------------------------------------------------------------------------------


def test_views_count_and_bots_count_apart(service: Service) -> None:
    answer = view(service, {}, {"visitor_id": 7}, {"visitor_id": "7", "bot": False}, {"bot": True})
    assert (answer.status, answer.json) == (200, {"accepted": 4, "changed": True})
    assert seen(service) == (3, 1)


def test_a_repeated_token_adds_nothing_whatever_it_brings(service: Service) -> None:
    assert view(service, {}, token="t").json == {"accepted": 1, "changed": True}
    assert view(service, {}, {}, token="t").json == {"accepted": 2, "changed": False}
    assert view(service, {}).json["changed"]
    assert view(service, {}).json["changed"]
    assert seen(service) == (3, 0)


def test_no_views_are_accepted_and_leave_the_token_unused(service: Service) -> None:
    assert view(service, token="t").json == {"accepted": 0, "changed": False}
    assert view(service, {}, token="t").json["changed"]


def test_one_bad_view_refuses_all(service: Service) -> None:
    assert view(service, {}, {"item_id": ""}).error == (400, "invalid_request", "views[1].item_id")
    assert view(service, {"bot": "no"}).error == (400, "invalid_request", "views[0].bot")
    assert view(service, {"visitor_id": 1.5}).error == (400, "invalid_request", "views[0].visitor_id")
    assert view(service, *[{}] * 101).error == (400, "invalid_request", "views")
    assert seen(service) == (0, 0)


@pytest.mark.parametrize("token", ["", "x" * 129, "é" * 65, 7, True, "\ud800"])
def test_a_token_is_a_string_of_1_to_128_bytes(service: Service, token: Any) -> None:
    assert view(service, {}, token=token).error == (400, "invalid_request", "token")


@pytest.mark.parametrize("token", ["a#b", "\x00", " ", "é" * 64, "=", "~"])
def test_a_token_may_hold_anything_and_is_compared_as_sent(service: Service, token: str) -> None:
    assert view(service, {}, token=token).json["changed"]
    assert not view(service, {}, token=token).json["changed"]
    assert view(service, {}, token=token[:-1] + "'").json["changed"]


@pytest.mark.parametrize(
    ("agent", "bot", "counted"),
    [
        (GOOGLEBOT, None, (0, 1)),
        (GOOGLEBOT, False, (1, 0)),
        (FIREFOX, None, (1, 0)),
        (FIREFOX, True, (0, 1)),
        ("python-requests/2.32", None, (1, 0)),
        ("curl/8.5", None, (1, 0)),
        ("", None, (1, 0)),
    ],
)
def test_a_known_crawler_is_a_bot_unless_the_caller_says_otherwise(
    service: Service, agent: str, bot: bool | None, counted: tuple[int, int]
) -> None:
    view(service, {"bot": bot}, agent=agent)
    assert seen(service) == counted


def test_items_of_one_call_are_counted_each(service: Service) -> None:
    view(service, {"item_id": "1"}, {"item_id": "2"}, {"item_id": 1}, {"item_id": "#"})
    assert [seen(service, item_id=item)[0] for item in ("1", "2", "#", "3")] == [2, 1, 1, 0]


@pytest.mark.parametrize(
    ("age_ms", "within"),
    [
        (0, {"24h", "7d", "30d"}),
        (24 * HOUR_MS, {"24h", "7d", "30d"}),
        (25 * HOUR_MS, {"7d", "30d"}),
        (7 * DAY_MS, {"7d", "30d"}),
        (8 * DAY_MS, {"30d"}),
        (30 * DAY_MS, {"30d"}),
        (31 * DAY_MS, set()),
    ],
)
def test_a_window_goes_back_to_the_hour_or_day_that_began_before_it(
    service: Service, age_ms: int, within: set[str]
) -> None:
    service.now_ms = NOW_MS - age_ms
    view(service, {}, {"bot": True})
    service.now_ms = NOW_MS
    assert {window for window in ("24h", "7d", "30d") if seen(service, window) == (1, 1)} == within
    assert seen(service, "all") == (1, 1)


def test_a_window_that_there_is_not_is_refused(service: Service) -> None:
    answer = service.call("GET", "/v1/views", query={**ITEM, "window": "1h"})
    assert answer.error == (400, "invalid_request", "window")


def test_what_cannot_be_read_or_recorded_is_said_so(service: Service) -> None:
    service.counts.fault = service.events.fault = Unavailable("made up")
    assert service.call("GET", "/v1/views", query=ITEM).error == (503, "unavailable", None)
    assert service.call("GET", "/v1/counters/n").error == (503, "unavailable", None)
    assert service.call("GET", "/v1/series", query=ITEM).error == (503, "unavailable", None)
    assert view(service, {}).error == (503, "unavailable", None)


# --- hours ------------------------------------------------------------------------------------------------------


def series(service: Service, **query: str) -> list[Any]:
    answer = service.call("GET", "/v1/series", query={**ITEM, "metric": "views", **query})
    assert answer.json["metric"] == "views"
    entries: list[Any] = answer.json["series"]
    return entries


def test_a_series_holds_each_hour_up_to_the_one_that_is_asked_for(service: Service) -> None:
    for hours, views in ((0, 2), (2, 1), (30, 3)):
        service.now_ms = NOW_MS - hours * HOUR_MS
        view(service, *[{}] * views, {"bot": True})
    service.now_ms = NOW_MS + 5
    day = series(service)
    assert len(day) == 24
    assert day[-1] == {"hour": format_time(NOW_MS), "count": 2, "bot_views": 1}
    assert [entry["count"] for entry in day] == [0] * 21 + [1, 0, 2]
    assert sum(entry["count"] for entry in series(service, hours="744")) == 6
    before = series(service, hours="1", until=format_time(NOW_MS - 29 * HOUR_MS - 1))
    assert before == [{"hour": format_time(NOW_MS - 30 * HOUR_MS), "count": 3, "bot_views": 1}]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"hours": "0"}, "hours"),
        ({"hours": "745"}, "hours"),
        ({"hours": "1.0"}, "hours"),
        ({"until": "now"}, "until"),
    ],
)
def test_a_series_has_bounds(service: Service, query: dict[str, str], field: str) -> None:
    assert service.call("GET", "/v1/series", query={**ITEM, **query}).error == (400, "invalid_request", field)
    assert service.call("GET", "/v1/series", query={**ITEM, "metric": "x"}).error == (400, "invalid_request", "metric")


def test_a_series_reaches_from_the_beginning_of_the_calendar_to_its_end(service: Service) -> None:
    first = series(service, hours="744", until="1970-01-01T00:00:00Z")
    assert (len(first), first[-1]["hour"]) == (744, "1970-01-01T00:00:00.000Z")
    assert [entry["hour"] for entry in series(service, until="0001-01-01T01:00:00Z")] == [
        "0001-01-01T00:00:00.000Z",
        "0001-01-01T01:00:00.000Z",
    ]
    assert series(service, until="9999-12-31T23:59:59.999Z")[-1]["hour"] == "9999-12-31T23:00:00.000Z"


def test_views_below_zero_raise_an_alarm_and_are_shown(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    monkeypatch.setattr(telemetry, "count", lambda _service, name, *_: counted.append(name))
    monkeypatch.setattr(service.counts, "total", lambda _counter, **_: {"n": -1, "b": 0})
    answer = read_app(event_of("GET", "/v1/views", urlencode(ITEM), None), None)
    assert json.loads(answer["body"])["views"] == -1
    assert counted == ["NegativeCount"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/counters/n"), ("POST", "/v1/counters/n/add"), ("POST", "/v1/views"), ("POST", "/v1/limits/n/hit")],
)
@pytest.mark.parametrize("query", ["a=1&a=2", "a=%zz"])
def test_a_malformed_query_is_refused_also_where_none_is_looked_at(
    service: Service, method: str, path: str, query: str
) -> None:
    body = {"views": [], "amount": 1, "token": "t", "key": "k", "limit": 1, "window_seconds": 1}
    answer = service.call(method, path, query=query, body=None if method == "GET" else body)
    assert answer.error[:2] == (400, "invalid_request")


# --- named counters ---------------------------------------------------------------------------------------------


def add(service: Service, name: str, amount: Any, token: Any = "t", **more: Any) -> Answer:  # noqa: S107
    return service.call("POST", f"/v1/counters/{name}/add", body={"amount": amount, "token": token}, **more)


def value(service: Service, name: str) -> int:
    answer = service.call("GET", f"/v1/counters/{name}").json
    assert answer["name"] == name
    number: int = answer["value"]
    return number


def test_an_addition_counts_once_by_its_token_which_belongs_to_the_name(service: Service) -> None:
    assert add(service, "a:b.c-d_e", 5).json == {"accepted": True, "changed": True}
    assert add(service, "a:b.c-d_e", 7).json == {"accepted": True, "changed": False}
    assert add(service, "A", 3).json["changed"]
    assert add(service, "A", -4, "u").json["changed"]
    assert [value(service, name) for name in ("a:b.c-d_e", "A", "never")] == [5, -1, 0]


def test_a_token_of_views_is_not_one_of_a_counter(service: Service) -> None:
    assert view(service, {}, token="t").json["changed"]
    assert add(service, "n", 1).json["changed"]


def test_a_value_is_exact_beyond_2_to_the_53(service: Service) -> None:
    for token in range(3):
        add(service, "n", 2**53 - 1, str(token))
    assert value(service, "n") == 3 * (2**53 - 1)


@pytest.mark.parametrize("amount", [0, 2**53, -(2**53), 1.0, "1", True, None])
def test_an_amount_is_a_whole_number_and_not_0(service: Service, amount: Any) -> None:
    assert add(service, "n", amount).error == (400, "invalid_request", "amount")


@pytest.mark.parametrize("name", ["-a", "a b", "a%2523", "x" * 129, "%C3%A9"])
def test_a_name_has_its_pattern(service: Service, name: str) -> None:
    assert add(service, name, 1).error == (400, "invalid_request", "name")


def test_an_addition_wants_a_token(service: Service) -> None:
    assert add(service, "n", 1, None).error == (400, "invalid_request", "token")


def test_counters_are_added_to_by_services_and_read_by_anyone(service: Service) -> None:
    person, token = new_anonymous(SECRET)
    for mode in ("jwt", "iam"):
        service.configure(AUTH_MODE=mode)
        anonymous = add(service, "n", 1, headers={"Tallymark-Anonymous": token})
        assert anonymous.status in (401, 403), person
    service.configure(AUTH_MODE="jwt")
    assert add(service, "n", 1, jwt={"sub": "ann"}).error == (403, "forbidden", None)
    assert add(service, "n", 1, jwt={"sub": "shop", "scope": "tallymark:service"}).json["changed"]
    assert value(service, "n") == 1
    assert view(service, {}).json["changed"]
    service.configure(AUTH_MODE="open")
    assert add(service, "n", 1, "u", headers={"Tallymark-Service-Key": SERVICE_KEY}).json["changed"]
