"""Where the API is, and calls to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx

SERVICE_KEY_HEADER = "Tallymark-Service-Key"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ApiError(click.ClickException):
    """An answer that is an error, or (status 0) none at all; `retry_after` is in seconds."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}" + (f" (field {field})" if field else ""))
        self.status = status
        self.code = code
        self.reason = message
        self.field = field
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Settings:
    """The API's address, the service key if there is one, and where the address was found."""

    url: str
    service_key: str | None
    source: str


def state_folder(state_home: Path | None) -> Path:
    """The folder of our state: below XDG_STATE_HOME, or below its default where that is unset or relative."""
    home = state_home if state_home is not None and state_home.is_absolute() else Path.home() / ".local" / "state"
    return home / "tallymark"


def find_settings(url: str | None, service_key: str | None, folder: Path) -> Settings:
    """What was said, else the stack that runs on this machine; raises UsageError when there is neither.

    The local stack's key goes to the local stack only: it is not sent to another URL.
    """
    path = folder / "local.json"
    local = _read_local(path)
    if url is not None:
        address = _checked(url)
        known = local is not None and _checked(local["url"]) == address
        return Settings(address, service_key or (local["service_key"] if local and known else None), "as given")
    if local is None:
        raise click.UsageError(
            "no API is known: start one on this machine with `make up`, or say where it is with --url or TALLYMARK_URL."
        )
    return Settings(_checked(local["url"]), service_key or local["service_key"], f"the local stack, {path}")


def _read_local(path: Path) -> dict[str, str] | None:
    try:
        content = json.loads(path.read_bytes())
        return {"url": str(content["url"]), "service_key": str(content["service_key"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path} cannot be read ({error}); `make up` writes it anew.") from error


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise click.UsageError(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise click.UsageError(f"{url!r} is no URL of an API; it should look like http://127.0.0.1:8000")
    return str(parsed).rstrip("/")


def connect(settings: Settings, connections: int = 1) -> httpx.Client:
    """A client for as many threads as connections. A proxy is never used for this machine itself."""
    headers = {"Accept": "application/json"}
    if settings.service_key:
        headers[SERVICE_KEY_HEADER] = settings.service_key
    return httpx.Client(
        base_url=settings.url,
        headers=headers,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        timeout=httpx.Timeout(30, connect=5),
        trust_env=httpx.URL(settings.url).host not in _LOOPBACK,
    )


def call(
    client: httpx.Client,
    method: str,
    path: str,
    *,
    body: object = None,
    query: Mapping[str, str] | None = None,
    expected: tuple[int, ...] = (),
) -> dict[str, Any]:
    """The JSON object that the API answers; raises ApiError for an error, but for the statuses expected."""
    content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        response = client.request(method, path, content=content, params=query, headers=headers)
    except httpx.TransportError as error:
        raise _unreachable(client.base_url, error) from error
    answer = _json_object(response)
    if answer is not None and "error" not in answer and (response.is_success or response.status_code in expected):
        return answer
    raise _error(response, answer)


def _unreachable(url: httpx.URL, error: httpx.TransportError) -> ApiError:
    hint = "; `make up` starts an API on this machine" if url.host in _LOOPBACK else ""
    return ApiError(0, "unreachable", f"no answer from {url} ({str(error) or type(error).__name__}){hint}")


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        answer = response.json()
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _error(response: httpx.Response, answer: dict[str, Any] | None) -> ApiError:
    if response.is_success or answer is None or not isinstance(answer.get("error"), dict):
        code, message, field = f"HTTP {response.status_code}", "the answer is none of this API", None
    else:
        code, message, field = error_parts(answer["error"])
    return ApiError(response.status_code, code, message, field, _retry_after(response))


def error_parts(error: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Code, message and field of the API's error object."""
    field = error.get("field")
    return str(error.get("code")), str(error.get("message")), None if field is None else str(field)


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None
