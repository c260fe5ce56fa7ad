"""What every answer says to browsers and caches, and which pages may call."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

import pytest

from functions.read_api.app import app as read_app
from infra.local.gateway import Cors
from tallymark.identity import ANONYMOUS_HEADER, SERVICE_KEY_HEADER
from tallymark.runtime import wiring
from tallymark.runtime.contract import OPERATIONS, Operation
from tests.unit.core.service import Service, event_of
from tests.unit.test_template import RESOURCES, resolved

SHOP, OTHER = "https://shop.example", "https://other.example"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    yield Service(monkeypatch)
    wiring.reset()


def policy(text: str) -> dict[str, str]:
    """Directive -> sources."""
    parts = (part.strip().partition(" ") for part in text.split(";"))
    return {name: sources for name, _, sources in parts}


def check(headers: dict[str, str]) -> None:
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store", "a shared cache must keep no person's answer, nor an older count"
    assert headers["referrer-policy"] == "no-referrer"
    allowed = policy(headers["content-security-policy"])
    assert allowed["default-src"] == allowed["frame-ancestors"] == "'none'"


# --- headers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.key)
def test_every_operation_guards_its_answer_and_its_refusal(service: Service, operation: Operation) -> None:
    path = operation.path.format(user_id="ann", item_type="post", item_id="1", name="login")
    check(service.call(operation.method, path).headers)
    check(service.call(operation.method, path, query="%").headers)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/nothing"), ("PUT", "/v1/like"), ("GET", "/v1/users/%25/x")])
def test_what_there_is_not_is_answered_guarded(service: Service, method: str, path: str) -> None:
    answer = service.call(method, path)
    assert answer.status in (400, 404, 405)
    check(answer.headers)


def test_a_refusal_keeps_its_own_headers(service: Service) -> None:
    assert service.call("PUT", "/v1/like").headers["allow"] == "DELETE, POST"


def test_a_fault_of_our_own_is_answered_guarded(service: Service) -> None:
    service.likes.fault = RuntimeError("made up")
    answer = read_app(event_of("GET", "/v1/users/ann/likes", "", None), None)
    assert answer["statusCode"] == 500
    check(answer["headers"])


def test_the_page_may_use_the_style_that_it_holds_and_nothing_else(service: Service) -> None:
    page = service.call("GET", "/docs")
    check(page.headers)
    (style,) = re.findall("<style>(.*?)</style>", page.text, re.DOTALL)
    expected = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy(page.headers["content-security-policy"]) == {
        "default-src": "'none'",
        "style-src": f"'sha256-{expected}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert not re.search(r"<script|\sstyle=|\son\w+=|javascript:", page.text), "the policy would stop it"


@pytest.mark.parametrize("host", ['x"><script>alert(1)</script>', "a b", "x'y", "evil.example/path", ""])
def test_a_host_that_is_none_never_reaches_the_page(service: Service, host: str) -> None:
    page = service.call("GET", "/docs", headers={"host": host, "x-forwarded-proto": "https"})
    assert "<script" not in page.text
    assert "http://localhost" in page.text


# --- CORS, which API Gateway answers from the template ------------------------------------------------------------


def headers_for(origin: str, *, preflight: bool = False, origins: str = SHOP) -> dict[str, str]:
    cors = Cors(resolved(CorsOrigins=origins).cors)
    return dict(cors.preflight(origin) if preflight else cors.headers(origin))


def test_pages_of_origins_that_are_not_listed_get_no_leave() -> None:
    assert headers_for(SHOP, origins=SHOP)["access-control-allow-origin"] == SHOP
    assert headers_for(OTHER, origins=SHOP) == {}
    assert headers_for(OTHER, origins=SHOP, preflight=True) == {}
    assert headers_for(SHOP + ".evil.example", origins=SHOP) == {}


def test_where_origins_are_listed_caches_are_told_that_answers_differ() -> None:
    assert headers_for(SHOP, origins=SHOP)["vary"] == "origin"


@pytest.mark.parametrize("origins", ["*", SHOP, f"{SHOP},{OTHER}"])
def test_browsers_are_never_told_to_send_cookies(origins: str) -> None:
    assert "access-control-allow-credentials" not in headers_for(SHOP, origins=origins, preflight=True)
    assert "AllowCredentials" not in RESOURCES["Api"]["Properties"]["CorsConfiguration"]


def test_a_page_may_send_a_persons_token_and_never_a_service_key() -> None:
    allowed = set(headers_for(SHOP, preflight=True)["access-control-allow-headers"].split(","))
    assert allowed == {"authorization", "content-type", ANONYMOUS_HEADER}
    assert SERVICE_KEY_HEADER not in allowed


def test_a_page_may_use_the_methods_of_the_contract_and_read_when_to_try_again() -> None:
    answer = headers_for(SHOP, preflight=True)
    methods = set(answer["access-control-allow-methods"].split(","))
    assert {operation.method for operation in OPERATIONS} <= methods
    assert "retry-after" in answer["access-control-expose-headers"].split(",")
    assert 0 < int(answer["access-control-max-age"]) <= 7200
