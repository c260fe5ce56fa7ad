"""Requests made of the published document, those it allows and those it forbids; the answers are what it promises.

Schemathesis goes over every operation three times: with the document's examples, with both sides of every
boundary in its schemas, and with random requests. They are the same in every run. What the document promises and
JSON Schema cannot say stands in `is_beyond_schemas`; everything else is a fault, of the document or of the service.
"""

from __future__ import annotations

import html
import re
import subprocess
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.engine import events, from_schema
from schemathesis.openapi.checks import RejectedPositiveData

from tests.e2e.conftest import THOROUGH, Api

# Of each operation and identity; how many the other two phases make follows from the document.
RANDOM_REQUESTS = 400 if THOROUGH else 5
MAX_ID_BYTES, MAX_TOKEN_BYTES = 256, 128
# Checks of Schemathesis that are left out; that of response times is off unless asked for.
LEFT_OUT = {
    "ensure_resource_availability": "clients name what they like; nothing is made under a new address",
    "use_after_free": "an address stays good after DELETE: to unlike twice is harmless",
    "ignored_auth": "the stack is in `open` mode, which requires no identity",
    "object_level_authorization": "the stack is in `open` mode, which believes the user_id",
    "missing_required_header": "no header is required",
}
TAKEN = {
    "person": [200, 403, 429],  # 403: liked_at is for services; 429: one person makes all requests with examples
    "anonymous": [200, 403, 429],  # 403: the user_id sent is another's
    "service": [200],
}
pytestmark = [
    # The deployed functions run the same code, only slower.
    pytest.mark.parametrize("api", ["in_process"], indirect=True),
    # Hypothesis notices that the stack's threads draw random numbers while it draws its own.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"),
]


@pytest.mark.parametrize("who", TAKEN)
def test_every_answer_is_what_the_document_promises(api: Api, who: str, requests_made: Counter[str]) -> None:
    document = api.get("/openapi.json")
    narrow_unlike(document, in_query=who == "person")
    close_answers(document)
    schema = schemathesis.openapi.from_dict(document, config=configuration(api, who))
    schema.hook(filter_failure)
    made: Counter[str] = Counter()
    found: list[str] = []
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            made[event.recorder.label] += len(event.recorder.interactions)
            found += faults(event)
    requests_made["schemathesis"] += made.total()
    assert not found, "\n\n".join(found)
    operations = {f"{method.upper()} {path}" for path, entries in document["paths"].items() for method in entries}
    assert {label for label, requests in made.items() if requests} == operations


def test_the_examples_on_the_page_can_be_pasted(api: Api) -> None:
    page = api.client.get("/docs").text
    commands = [html.unescape(found) for found in re.findall("<pre>(curl .*?)</pre>", page, re.DOTALL)]
    assert commands
    for command in commands:
        pasted = f"{command} --silent --output /dev/null --write-out '%{{http_code}}'"
        done = subprocess.run(["sh", "-c", pasted], capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "200", command


def configuration(api: Api, who: str) -> SchemathesisConfig:
    headers: dict[str, dict[str, str]] = {
        "person": {},
        "anonymous": {"tallymark-anonymous": api.post("/v1/anonymous", None)["token"]},
        "service": api.as_service,
    }
    return SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "base-url": api.url,
            "headers": headers[who],
            "continue-on-failure": True,
            "generation": {
                "deterministic": True,
                "max-examples": RANDOM_REQUESTS,
                "database": "none",
                "no-shrink": True,
                "with-security-parameters": False,  # they are the caller's, above
            },
            "phases": {
                "examples": {"extra-data-sources": {"responses": False}},  # answers differ from run to run
                "coverage": {
                    "extra-data-sources": {"responses": False},
                    "generate-duplicate-query-parameters": True,
                },
                "fuzzing": {"extra-data-sources": {"responses": False}, "error-feedback": {"enabled": False}},
                "stateful": {"enabled": False},  # the document has no links
            },
            "checks": {
                "positive_data_acceptance": {"expected-statuses": TAKEN[who]},
                # 404: a part of a path that is empty makes another path.
                "negative_data_rejection": {"expected-statuses": [400, 403, 404, 429]},
                **{name: {"enabled": False} for name in LEFT_OUT},
            },
        }
    )


def narrow_unlike(document: Any, *, in_query: bool) -> None:
    """The query or the body names the like to take back, which OpenAPI has no word for: here it is one of them."""
    described = document["paths"]["/v1/like"]["delete"]
    if in_query:
        del described["requestBody"]
        for parameter in described["parameters"]:
            parameter["required"] = parameter["name"] != "reaction"
    else:
        del described["parameters"]
        described["requestBody"]["required"] = True


def close_answers(document: Any) -> None:
    """Leaves no room for fields that the document does not tell of; clients must leave it to later versions."""

    def closed(part: Any) -> Any:
        if isinstance(part, list):
            return [closed(entry) for entry in part]
        if not isinstance(part, dict):
            return part
        whole = {name: closed(value) for name, value in part.items()}
        return {"additionalProperties": False, **whole} if isinstance(part.get("properties"), dict) else whole

    for entries in document["paths"].values():
        for operation in entries.values():
            operation["responses"] = closed(operation["responses"])
    document["components"]["schemas"] = closed(document["components"]["schemas"])


def faults(event: events.ScenarioFinished) -> Iterator[str]:
    for case_id, checks in event.recorder.checks.items():
        case, answer = event.recorder.cases[case_id].value, event.recorder.interactions[case_id].response
        assert case.meta is not None
        assert answer is not None
        if case.path == "/v1/batch" and case.meta.generation.mode.is_positive and answer.status_code == 200:
            yield from refused_operations(case, answer)
        for check in checks:
            if check.failure_info is not None:
                failure, command = check.failure_info.failure, check.failure_info.code_sample
                yield f"{check.name}: {failure.title}: {failure.message}\n{command}\n{answer.content[:300]!r}"


def refused_operations(case: Case[Any], response: Response) -> Iterator[str]:
    """Of a batch that the document allows, the operations that were not taken."""
    for i, result in enumerate(response.json()["results"]):
        field = f"operations[{i}].{result.get('error', {}).get('field')}"
        if result["status"] == 400 and not is_refused_by_words(case, field):
            yield f"{sent(case, f'operations[{i}]')} is refused: {result}"


def filter_failure(_context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Schemathesis asks of each failure whether it is one."""
    return not is_beyond_schemas(failure, case, response)


# --- what JSON Schema cannot say ------------------------------------------------------------------------------


def is_beyond_schemas(failure: Failure, case: Case[Any], response: Response) -> bool:
    """Whether the document allows or forbids this request in words."""
    if isinstance(failure, RejectedPositiveData):
        if case.path.startswith("/v1/quotas/") and response.status_code in (404, 409):  # what is stored decides
            return True
        return response.status_code == 400 and is_refused_by_words(case, response.json()["error"]["field"])
    if isinstance(failure, AcceptedNegativeData):
        if case.path == "/v1/batch":  # each operation has a status of its own
            return bool([result for result in response.json()["results"] if result["status"] != 200])
        # What takes a like back has no time.
        return case.path == "/v1/toggle" and "liked_at" in str(case.body) and '"liked":false' in response.text
    return False


def is_refused_by_words(case: Case[Any], field: str) -> bool:
    value, name = sent(case, field), str(re.findall(r"[a-z_]+", field)[-1])
    if name == "cursor":  # only those that a list gave
        return True
    if value is None:  # the token of an anonymous person would tell it
        return name == "user_id"
    if name == "reaction":  # one emoji
        return not str(value).isascii()
    if isinstance(value, str):  # ids and tokens have bytes, where schemas count characters
        most = MAX_TOKEN_BYTES if name == "token" else MAX_ID_BYTES
        return len(unicodedata.normalize("NFC", value).encode()) > most
    return isinstance(value, float)  # 7.0 is an integer to JSON Schema


def sent(case: Case[Any], field: str) -> Any:
    """The value of the field that an error names."""
    value: Any = {**(case.path_parameters or {}), **(case.query or {})}
    if isinstance(case.body, dict):
        value = case.body
    for step in re.findall(r"\w+", field):
        value = value[int(step)] if isinstance(value, list) else value.get(step)
    return value
