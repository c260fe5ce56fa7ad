"""The document that the service publishes: valid OpenAPI 3.1, complete, and true of requests as of answers.

That every answer of the functions fits it is checked where they answer, in tests/unit/core/service.py.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator, ValidationError
from schemathesis.specs.openapi.definitions import OPENAPI_31

from tallymark.identity import new_anonymous
from tallymark.runtime import docs_page, openapi, wiring
from tallymark.runtime.contract import ERROR_CODES, OPERATIONS
from tallymark.runtime.http import STATUSES
from tallymark.settings import AuthMode
from tests.unit.core.service import SECRET, SERVICE_KEY, Service, check_described, validate

MODES: tuple[AuthMode, ...] = get_args(AuthMode)
ORIGIN = "https://api.example"
LIKE = {"user_id": "ann", "item_id": "456", "item_type": "post"}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    yield Service(monkeypatch)
    wiring.reset()


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema that stands anywhere in the document."""
    if isinstance(value, dict):
        if isinstance(value.get("schema"), dict):
            yield value["schema"]
        for part in value.values():
            yield from schemas(part)
    elif isinstance(value, list):
        for part in value:
            yield from schemas(part)


@pytest.mark.parametrize("mode", MODES)
def test_the_document_is_valid_openapi_3_1(mode: AuthMode) -> None:
    document = openapi.document(mode)
    assert document["openapi"].startswith("3.1.")
    Draft202012Validator(OPENAPI_31).validate(document)


def test_the_validator_sees_a_document_that_is_not_valid() -> None:
    document = json.loads(json.dumps(openapi.document("open")))
    del document["paths"]["/v1/like"]["post"]["responses"]["200"]["description"]
    with pytest.raises(ValidationError):
        Draft202012Validator(OPENAPI_31).validate(document)


@pytest.mark.parametrize("mode", MODES)
def test_every_schema_in_the_document_is_a_schema(mode: AuthMode) -> None:
    document = openapi.document(mode)
    found = [*schemas(document["paths"]), *document["components"]["schemas"].values()]
    assert len(found) > 50
    for schema in found:
        Draft202012Validator.check_schema(schema)


def examples(value: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Every example and default with the schema that it stands in."""
    if isinstance(value, dict):
        if "type" in value or "anyOf" in value:
            yield from ((value, example) for example in value.get("examples", []))
            if "default" in value:
                yield value, value["default"]
        for part in value.values():
            yield from examples(part)
    elif isinstance(value, list):
        for part in value:
            yield from examples(part)


def test_every_example_fits_its_schema() -> None:
    document = openapi.document("open")
    found = list(examples(document["paths"]))
    assert found
    for schema, example in found:
        validate(schema, example, document)


@pytest.mark.parametrize("mode", MODES)
def test_every_operation_has_a_name_of_its_own(mode: AuthMode) -> None:
    described = [entry for path in openapi.document(mode)["paths"].values() for entry in path.values()]
    names = [entry["operationId"] for entry in described]
    assert len(set(names)) == len(names) == len(OPERATIONS)


@pytest.mark.parametrize("mode", MODES)
def test_every_variable_of_a_path_is_described_and_nothing_else_is(mode: AuthMode) -> None:
    for path, entries in openapi.document(mode)["paths"].items():
        for entry in entries.values():
            described = {p["name"] for p in entry.get("parameters", []) if p["in"] == "path"}
            assert described == set(re.findall(r"{(\w+)}", path))


@pytest.mark.parametrize("mode", MODES)
def test_every_security_requirement_names_a_scheme_that_is_described(mode: AuthMode) -> None:
    document = openapi.document(mode)
    schemes = document["components"]["securitySchemes"]
    for operation in OPERATIONS:
        requirements = document["paths"][operation.path][operation.method.lower()]["security"]
        assert {name for requirement in requirements for name in requirement} <= set(schemes)
        assert (requirements == []) == (operation.open and (mode != "iam" or operation.tag != "Identity"))
        needless = {"open": not operation.open, "jwt": operation.public, "iam": False}
        assert ({} in requirements) == needless[mode]


def test_every_status_of_an_error_is_one_that_the_service_has() -> None:
    for operation in OPERATIONS:
        described = openapi.document("open")["paths"][operation.path][operation.method.lower()]["responses"]
        assert {int(status) for status in described} - {200} <= set(STATUSES.values())


def test_the_codes_of_errors_are_those_that_the_service_has() -> None:
    assert sorted(ERROR_CODES) == sorted(error.code for error in STATUSES)


def test_the_document_is_served_as_it_is_made(service: Service) -> None:
    for mode in ("open", "iam"):
        service.configure(AUTH_MODE=mode)
        answer = service.call("GET", "/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json == openapi.document(mode)


# --- requests ---------------------------------------------------------------------------------------------------

REQUESTS: list[tuple[str, str, Any, int]] = [
    ("POST", "/v1/like", LIKE, 200),
    ("POST", "/v1/like", {**LIKE, "item_id": 7, "reaction": None, "liked_at": None, "more": 1}, 200),
    ("POST", "/v1/like", {**LIKE, "reaction": "👍🏽"}, 200),
    ("POST", "/v1/like", {**LIKE, "liked_at": "2026-01-31T12:00:00+01:00"}, 200),
    ("POST", "/v1/like", {**LIKE, "item_id": 7.5}, 400),
    ("POST", "/v1/like", {**LIKE, "item_id": -1}, 400),
    ("POST", "/v1/like", {**LIKE, "item_id": 2**53}, 400),
    ("POST", "/v1/like", {**LIKE, "item_id": ""}, 400),
    ("POST", "/v1/like", {**LIKE, "item_id": ".."}, 400),
    ("POST", "/v1/like", {**LIKE, "item_id": "a\tb"}, 400),
    ("POST", "/v1/like", {**LIKE, "item_id": "a" * 257}, 400),
    ("POST", "/v1/like", {**LIKE, "item_id": True}, 400),
    ("POST", "/v1/like", {**LIKE, "item_type": "Post"}, 400),
    ("POST", "/v1/like", {"user_id": "ann"}, 400),
    ("POST", "/v1/like", [], 400),
    ("DELETE", "/v1/like", LIKE, 200),
    ("DELETE", "/v1/like", {**LIKE, "item_id": None}, 400),
    ("POST", "/v1/toggle", {**LIKE, "like": False}, 200),
    ("POST", "/v1/toggle", {**LIKE, "like": "false"}, 400),
    ("POST", "/v1/toggle", LIKE, 400),
    ("POST", "/v1/batch", {"operations": []}, 200),
    ("POST", "/v1/batch", {"operations": [{"action": "like", **LIKE}] * 100}, 200),
    ("POST", "/v1/batch", {"operations": [{"action": "like", **LIKE}] * 101}, 400),
    ("POST", "/v1/batch", {"operations": {}}, 400),
    ("POST", "/v1/counts", {"items": [{"item_id": 1, "item_type": "post"}], "user_id": None}, 200),
    ("POST", "/v1/counts", {"items": [{"item_id": 1}]}, 400),
    ("POST", "/v1/counts", {}, 400),
    ("POST", "/v1/has_liked", {"user_id": 1, "item_ids": [1, "2"], "item_type": "post"}, 200),
    ("POST", "/v1/has_liked", {"user_id": 1, "item_ids": [None], "item_type": "post"}, 400),
]


def fits(mode: AuthMode, method: str, path: str, body: Any) -> bool:
    """Whether the document says that the body may be sent."""
    document = openapi.document(mode)
    (entries,) = (
        entries for known, entries in document["paths"].items() if re.fullmatch(re.sub(r"{\w+}", "[^/]+", known), path)
    )
    described = entries[method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    try:
        validate(described, body, document)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
def test_a_body_is_taken_exactly_if_the_document_says_so(
    service: Service, method: str, path: str, body: Any, status: int
) -> None:
    answer = service.call(method, path, body=body, headers={"tallymark-service-key": SERVICE_KEY})
    assert answer.status == status
    assert fits("open", method, path, body) == (status == 200)


OWN = {"item_id": "456", "item_type": "post"}


@pytest.mark.parametrize(("path", "body"), [("/v1/like", OWN), ("/v1/toggle", {**OWN, "like": True})])
def test_with_a_token_the_user_id_is_not_required(service: Service, path: str, body: Any) -> None:
    service.configure(AUTH_MODE="jwt")
    assert service.call("POST", path, body=body, jwt={"sub": "ann"}).status == 200
    assert fits("jwt", "POST", path, body)
    assert not fits("iam", "POST", path, body)


def test_with_a_token_the_user_id_is_not_required_in_a_batch_either(service: Service) -> None:
    service.configure(AUTH_MODE="jwt")
    body = {"operations": [{"action": "like", **OWN}]}
    assert service.call("POST", "/v1/batch", body=body, jwt={"sub": "ann"}).json["results"][0]["status"] == 200
    assert fits("jwt", "POST", "/v1/batch", body)


def test_with_an_anonymous_token_the_user_id_is_not_required(service: Service) -> None:
    headers = {"tallymark-anonymous": new_anonymous(SECRET)[1]}
    assert service.call("POST", "/v1/like", body=OWN, headers=headers).status == 200
    assert fits("open", "POST", "/v1/like", OWN)


def test_the_check_of_answers_sees_a_wrong_answer(service: Service) -> None:
    answer = service.call("POST", "/v1/like", body=LIKE)
    wrong = type(answer)(answer.status, answer.headers, answer.text.replace("true", "1", 1))
    with pytest.raises(ValidationError):
        check_described("POST /v1/like", wrong, "open")


# --- the page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_page_shows_every_operation_and_needs_nothing_from_elsewhere(mode: AuthMode) -> None:
    page = docs_page.page(mode, ORIGIN)
    for operation in OPERATIONS:
        assert f'<span class="method {operation.method.lower()}">{operation.method}</span>' in page
        assert f'<span class="path">{html.escape(operation.path)}</span>' in page
        assert html.escape(operation.summary) in page
    assert page.count("<details>") == page.count("</details>") == len(OPERATIONS)
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)


def examples_on(page: str) -> list[list[str]]:
    """The words of each command."""
    return [shlex.split(html.unescape(found)) for found in re.findall("<pre>(curl .*?)</pre>", page, re.DOTALL)]


@pytest.mark.parametrize("mode", MODES)
def test_every_operation_has_an_example_that_calls_where_the_page_came_from(mode: AuthMode) -> None:
    found = examples_on(docs_page.page(mode, ORIGIN))
    assert len(found) == len(OPERATIONS)
    for words in found:
        assert [word for word in words if word.startswith(f"{ORIGIN}/")]


@pytest.mark.parametrize("origin", ["https://a.example/<b>", "javascript://a", "https://a'$(b)", "https://"])
def test_a_host_that_is_none_does_not_get_into_the_page(origin: str) -> None:
    page = docs_page.page("open", origin)
    assert origin not in page
    assert html.escape(origin) not in page.replace("http://localhost", "")


@pytest.mark.parametrize("mode", MODES)
def test_every_example_on_the_page_is_a_body_that_the_document_allows(mode: AuthMode) -> None:
    shown = [words for words in examples_on(docs_page.page(mode, ORIGIN)) if "-d" in words]
    assert len(shown) == sum(operation.body is not None for operation in OPERATIONS)
    for words in shown:
        (url,) = (word for word in words if word.startswith(ORIGIN))
        method = words[words.index("-X") + 1] if "-X" in words else "POST"
        path = path_of(method, url.removeprefix(ORIGIN))
        assert fits(mode, method, path, json.loads(words[words.index("-d") + 1]))


def path_of(method: str, url: str) -> str:
    """The path of the operation that the URL calls."""
    (path,) = (
        operation.path
        for operation in OPERATIONS
        if operation.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", operation.path), url)
    )
    return path


def test_the_page_is_served_as_html(service: Service) -> None:
    headers = {"host": "api.example", "x-forwarded-proto": "https"}
    answer = service.call("GET", "/docs", headers=headers)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.text == docs_page.page("open", ORIGIN)
