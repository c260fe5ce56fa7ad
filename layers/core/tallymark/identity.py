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
from .tokens import Claims

AUTHORIZATION_HEADER = "authorization"
SERVICE_KEY_HEADER = "tallymark-service-key"
ANONYMOUS_HEADER = "tallymark-anonymous"
SERVICE_SCOPE = "tallymark:service"
_NO_IDENTITY = "a bearer token or the token of an anonymous person is required"


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller. A service acts for anyone, a person whose id is proven only for that id, a visitor for nobody.

    Who is none of these is believed (`open` mode): the id sent counts.
    """

    user_id: str | None = None
    service: bool = False
    visitor: bool = False


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
    claims: Callable[[str], Claims],
    public: bool = False,
) -> Actor:
    """The caller of a request; Unauthorized if what it presents is forged, or if it presents nothing and must.

    `authorizer` is what API Gateway verified, {"iam": {...}}; `claims` verifies a bearer token, which goes before
    every other proof. What is `public` can be had without a proof in `jwt` mode.
    """
    if mode == "iam":
        return _actor_of_signature(authorizer)
    if mode == "jwt" and AUTHORIZATION_HEADER in headers:
        return _actor_of_claims(claims(_bearer_token(headers[AUTHORIZATION_HEADER])))
    if mode == "open" and SERVICE_KEY_HEADER in headers:
        return _actor_of_service_key(headers[SERVICE_KEY_HEADER], service_key(secret(), service_key_generation))
    if ANONYMOUS_HEADER in headers:
        return _actor_of_anonymous(headers[ANONYMOUS_HEADER], secret, allow_anonymous)
    if mode == "open":
        return Actor()
    if public:
        return Actor(visitor=True)
    raise Unauthorized(_NO_IDENTITY)


def user_for(actor: Actor, sent: object, field: str = "user_id") -> str:
    """The person whom the request is about; Forbidden if the caller may not act for the one it names.

    Unauthorized for a visitor, who can ask about nobody.
    """
    if actor.visitor:
        raise Unauthorized(_NO_IDENTITY)
    if sent is None:
        if actor.user_id is None:
            raise InvalidRequest("is required", field)
        return actor.user_id
    user_id = parse_id(sent, field)
    if not may_act_for(actor, user_id):
        raise Forbidden("is not the caller's own id", field)
    return user_id


def check_service(actor: Actor, mode: AuthMode) -> None:
    """Forbidden for whoever is no service, where callers are told apart: in `open` mode anybody passes."""
    if mode != "open" and not actor.service:
        raise Forbidden("only a service may call this")


def may_act_for(actor: Actor, user_id: str) -> bool:
    """Whether the caller is this person, or a service, or nobody is checked (`open` mode)."""
    return not actor.visitor and (actor.service or actor.user_id is None or actor.user_id == user_id)


def _actor_of_signature(authorizer: Mapping[str, Any]) -> Actor:
    if not authorizer.get("iam"):
        raise Unauthorized("sign the request with AWS Signature Version 4")
    return Actor(service=True)


def _actor_of_service_key(sent: str, genuine: str) -> Actor:
    if not hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), genuine.encode()):
        raise Unauthorized("the service key is not the one of this deployment")
    return Actor(service=True)


def _actor_of_anonymous(token: str, secret: Callable[[], str], allowed: bool) -> Actor:
    if not allowed:
        raise Unauthorized("this deployment takes no anonymous identities")
    user_id = open_signed(_anonymous_key(secret()), token)
    if user_id is None:
        raise Unauthorized("the anonymous token is not genuine; get one from POST /v1/anonymous")
    return Actor(user_id.decode())


def _bearer_token(header: str) -> str:
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthorized("the authorization is no bearer token")
    return token.strip()


def _actor_of_claims(claims: Claims) -> Actor:
    if SERVICE_SCOPE in _scopes(claims):
        return Actor(service=True)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise Unauthorized("the token names no subject")
    try:
        return Actor(parse_id(subject, "sub"))
    except InvalidRequest as error:
        raise Unauthorized(f"the token's subject cannot be a user_id: it {error.message}") from error


def _scopes(claims: Claims) -> list[Any]:
    """`scope` and `scp`, each a list or words in one string: issuers differ."""
    found: list[Any] = []
    for name in ("scope", "scp"):
        said = claims.get(name)
        found += said.split(" ") if isinstance(said, str) else said if isinstance(said, list) else []
    return found


def _anonymous_key(secret: str) -> bytes:
    return derived_key(secret, "anonymous")
