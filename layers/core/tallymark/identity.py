"""Who calls, and for whom that caller may act."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import Forbidden, InvalidRequest, Unauthorized
from .identifiers import parse_id
from .settings import AuthMode
from .signing import derived_key, encode, open_signed, sign

SERVICE_KEY_HEADER = "tallymark-service-key"
ANONYMOUS_HEADER = "tallymark-anonymous"
SERVICE_SCOPE = "tallymark:service"


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller. A service acts for anyone; a person whose id is proven only for that id.

    Without a proven id and outside a service, the id sent is believed (`open` mode).
    """

    user_id: str | None = None
    service: bool = False


def service_key(secret: str, generation: int) -> str:
    """The key that makes a caller a service in `open` mode; a new generation revokes the old key."""
    return encode(derived_key(secret, f"service-key/{generation}"))


def new_anonymous(secret: str) -> tuple[str, str]:
    """A new anonymous person: the user id, and the token that proves it."""
    user_id = f"anon_{secrets.token_urlsafe(16)}"
    return user_id, sign(_anonymous_key(secret), user_id.encode())


def actor_of(
    headers: Mapping[str, str],
    authorizer: Mapping[str, Any],
    *,
    mode: AuthMode,
    allow_anonymous: bool,
    service_key_generation: int,
    secret: Callable[[], str],
) -> Actor:
    """The caller of a request; Unauthorized if what it presents is forged.

    `authorizer` is what API Gateway verified: {"jwt": {"claims", "scopes"}} or {"iam": {...}}.
    """
    if mode == "iam":
        if not authorizer.get("iam"):
            raise Unauthorized("sign the request with AWS Signature Version 4")
        return Actor(service=True)
    if mode == "jwt" and (jwt := authorizer.get("jwt")):
        return _actor_of_jwt(jwt)
    if mode == "open" and SERVICE_KEY_HEADER in headers:
        return _actor_of_service_key(headers[SERVICE_KEY_HEADER], service_key(secret(), service_key_generation))
    if ANONYMOUS_HEADER in headers:
        if not allow_anonymous:
            raise Unauthorized("this deployment takes no anonymous identities")
        return _actor_of_anonymous(headers[ANONYMOUS_HEADER], secret())
    if mode == "jwt":
        raise Unauthorized("a bearer token is required")
    return Actor()


def user_for(actor: Actor, sent: object, field: str = "user_id") -> str:
    """The person whom the request is about; Forbidden if the caller may not act for the one it names."""
    if sent is None:
        if actor.user_id is None:
            raise InvalidRequest("is required", field)
        return actor.user_id
    user_id = parse_id(sent, field)
    if not may_act_for(actor, user_id):
        raise Forbidden("is not the caller's own id", field)
    return user_id


def may_act_for(actor: Actor, user_id: str) -> bool:
    """Whether the caller is this person, or a service, or nobody is checked (`open` mode)."""
    return actor.service or actor.user_id is None or actor.user_id == user_id


def _actor_of_service_key(sent: str, genuine: str) -> Actor:
    if not hmac.compare_digest(sent.encode(), genuine.encode()):
        raise Unauthorized("the service key is not the one of this deployment")
    return Actor(service=True)


def _actor_of_anonymous(token: str, secret: str) -> Actor:
    user_id = open_signed(_anonymous_key(secret), token)
    if user_id is None:
        raise Unauthorized("the anonymous token is not genuine; get one from POST /v1/anonymous")
    return Actor(user_id.decode())


def _actor_of_jwt(jwt: Mapping[str, Any]) -> Actor:
    claims = jwt.get("claims") or {}
    scopes = jwt.get("scopes") or str(claims.get("scope", "")).split()
    if SERVICE_SCOPE in scopes:
        return Actor(service=True)
    if not (subject := claims.get("sub")):
        raise Unauthorized("the token names no subject")
    try:
        return Actor(parse_id(subject, "sub"))
    except InvalidRequest as error:
        raise Unauthorized(f"the token's subject cannot be a user_id: it {error.message}") from error


def _anonymous_key(secret: str) -> bytes:
    return derived_key(secret, "anonymous")
