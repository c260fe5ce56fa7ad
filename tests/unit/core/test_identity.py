from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tallymark.errors import Forbidden, InvalidRequest, TallymarkError, Unauthorized
from tallymark.identity import Actor, actor_of, may_act_for, new_anonymous, service_key, user_for

SECRET = "made up"
KEY = service_key(SECRET, 1)
USER_ID, TOKEN = new_anonymous(SECRET)


def actor(
    mode: Any = "open", *, allow_anonymous: bool = True, jwt: Any = None, public: bool = False, **headers: str
) -> Actor:
    """`jwt` are the claims of a genuine token; one sent as a header is refused."""
    if jwt is not None:
        headers.setdefault("authorization", "Bearer genuine")
    return actor_of(
        {name.replace("_", "-"): value for name, value in headers.items()},
        {},
        mode=mode,
        allow_anonymous=allow_anonymous,
        service_key_generation=1,
        secret=lambda: SECRET,
        claims=lambda token: genuine(token, jwt),
        public=public,
    )


def genuine(token: str, claims: Any) -> Mapping[str, Any]:
    if token != "genuine":
        raise Unauthorized(f"not genuine: {token}")
    found: Mapping[str, Any] = claims
    return found


def no_secret() -> str:
    raise AssertionError("a request without a proof needs no secret")


def no_claims(_: str) -> Mapping[str, Any]:
    raise AssertionError("a token counts in jwt mode alone")


# --- open -------------------------------------------------------------------------------------------------------


def test_in_open_mode_a_caller_without_a_proof_is_believed_and_no_secret_is_read() -> None:
    caller = actor_of(
        {"authorization": "Bearer whatever"},
        {},
        mode="open",
        allow_anonymous=True,
        service_key_generation=1,
        secret=no_secret,
        claims=no_claims,
    )
    assert caller == Actor()
    assert user_for(caller, "anyone") == "anyone"


def test_the_service_key_makes_a_service() -> None:
    assert actor(tallymark_service_key=KEY) == Actor(service=True)


@pytest.mark.parametrize("sent", ["", "x", KEY[:-1], KEY + "A", KEY.swapcase(), service_key(SECRET, 2), "é"])
def test_a_wrong_service_key_is_refused(sent: str) -> None:
    with pytest.raises(Unauthorized):
        actor(tallymark_service_key=sent)


def test_the_service_key_is_worth_nothing_outside_open_mode() -> None:
    with pytest.raises(Unauthorized):
        actor("jwt", tallymark_service_key=KEY)


# --- anonymous --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["open", "jwt"])
def test_an_anonymous_token_is_the_person_that_it_was_made_for(mode: str) -> None:
    assert actor(mode, tallymark_anonymous=TOKEN) == Actor(USER_ID)


@pytest.mark.parametrize("mode", ["open", "jwt"])
@pytest.mark.parametrize(
    "token",
    ["", "x", TOKEN + "A", TOKEN[:-1], new_anonymous("other")[1], KEY, "é", "\ud800"],
    ids=["empty", "short", "longer", "cut", "other secret", "service key", "not ASCII", "surrogate"],
)
def test_a_forged_anonymous_token_is_refused(mode: str, token: str) -> None:
    with pytest.raises(Unauthorized):
        actor(mode, tallymark_anonymous=token)


@pytest.mark.parametrize("mode", ["open", "jwt"])
def test_a_deployment_that_takes_no_anonymous_people_refuses_their_tokens(mode: str) -> None:
    with pytest.raises(Unauthorized):
        actor(mode, allow_anonymous=False, tallymark_anonymous=TOKEN)


def test_anonymous_people_are_told_apart() -> None:
    made = {new_anonymous(SECRET)[0] for _ in range(100)}
    assert len(made) == 100
    assert all(user_id.startswith("anon_") for user_id in made)


# --- jwt --------------------------------------------------------------------------------------------------------


def test_a_verified_token_is_its_subject() -> None:
    assert actor("jwt", jwt={"sub": "e\u0301"}) == Actor("é")


@pytest.mark.parametrize(
    "jwt",
    [
        {"sub": "s", "scope": "read tallymark:service"},
        {"sub": "s", "scope": ["tallymark:service"]},
        {"sub": "s", "scp": ["read", "tallymark:service"]},
        {"sub": "s", "scope": "read", "scp": "tallymark:service write"},
        {"scope": "tallymark:service"},
    ],
)
def test_the_service_scope_makes_a_service(jwt: Any) -> None:
    assert actor("jwt", jwt=jwt) == Actor(service=True)


@pytest.mark.parametrize(
    "jwt",
    [
        {"sub": "s", "scope": "tallymark:services"},
        {"sub": "s", "scope": "xtallymark:service", "scp": ["a"]},
        {"sub": "s", "scope": ["read tallymark:service"]},
        {"sub": "s", "scope": {"tallymark:service": True}},
        {"sub": "s", "scp": [["tallymark:service"]], "scope": None},
        {"sub": "s", "scopes": "tallymark:service", "roles": ["tallymark:service"]},
        {"sub": "s", "scope": "Tallymark:Service"},
    ],
)
def test_a_scope_that_only_looks_alike_makes_no_service(jwt: Any) -> None:
    assert actor("jwt", jwt=jwt) == Actor("s")


@pytest.mark.parametrize(
    "jwt",
    [{}, {"sub": ""}, {"sub": None}, {"sub": 7}, {"sub": ["s"]}, {"sub": "x" * 257}, {"sub": "a\tb"}, {"sub": ".."}],
)
@pytest.mark.parametrize("public", [False, True])
def test_a_token_without_a_subject_that_can_be_a_user_id_is_refused(jwt: Any, public: bool) -> None:
    with pytest.raises(Unauthorized):
        actor("jwt", jwt=jwt, public=public)


def test_a_caller_without_a_token_is_refused() -> None:
    with pytest.raises(Unauthorized):
        actor("jwt")


@pytest.mark.parametrize(
    "sent", ["", "genuine", "Basic genuine", "Bearer", "Bearer ", "Bearergenuine", "Bearer forged"]
)
@pytest.mark.parametrize("public", [False, True])
def test_what_is_no_genuine_bearer_token_is_refused_also_where_none_is_needed(sent: str, public: bool) -> None:
    with pytest.raises(Unauthorized):
        actor("jwt", authorization=sent, public=public)


@pytest.mark.parametrize("sent", ["Bearer genuine", "bearer genuine", "BEARER  genuine "])
def test_the_scheme_of_the_header_may_be_written_in_any_case(sent: str) -> None:
    assert actor("jwt", jwt={"sub": "s"}, authorization=sent) == Actor("s")


def test_a_bearer_token_goes_before_an_anonymous_one_genuine_or_not() -> None:
    assert actor("jwt", jwt={"sub": "s"}, tallymark_anonymous=TOKEN) == Actor("s")
    assert actor("jwt", jwt={"sub": "s"}, tallymark_anonymous="forged") == Actor("s")
    with pytest.raises(Unauthorized):
        actor("jwt", authorization="Bearer forged", tallymark_anonymous=TOKEN)


def test_an_anonymous_token_is_no_bearer_token() -> None:
    with pytest.raises(Unauthorized):
        actor("jwt", authorization=f"Bearer {TOKEN}")


# --- visitors ---------------------------------------------------------------------------------------------------


def test_in_jwt_mode_a_visitor_reads_what_is_public_and_acts_for_nobody() -> None:
    visitor = actor("jwt", public=True)
    assert visitor == Actor(visitor=True)
    assert not may_act_for(visitor, "anyone")
    for sent in (None, "anyone", "", 7):
        with pytest.raises(Unauthorized):
            user_for(visitor, sent)


def test_who_presents_a_proof_is_no_visitor() -> None:
    assert actor("jwt", jwt={"sub": "s"}, public=True) == Actor("s")
    assert actor("jwt", public=True, tallymark_anonymous=TOKEN) == Actor(USER_ID)
    with pytest.raises(Unauthorized):
        actor("jwt", public=True, tallymark_anonymous="forged")


def test_in_iam_mode_there_are_no_visitors() -> None:
    with pytest.raises(Unauthorized):
        actor("iam", public=True)


# --- iam --------------------------------------------------------------------------------------------------------


def test_signed_requests_are_those_of_services() -> None:
    caller = actor_of(
        {"tallymark-anonymous": "forged"},
        {"iam": {"userArn": "arn:aws:iam::0:user/x"}},
        mode="iam",
        allow_anonymous=True,
        service_key_generation=1,
        secret=no_secret,
        claims=no_claims,
    )
    assert caller == Actor(service=True)


def test_an_unsigned_request_is_no_service_in_iam_mode() -> None:
    with pytest.raises(Unauthorized):
        actor("iam")


# --- who may act for whom ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "may"),
    [(Actor(), True), (Actor(service=True), True), (Actor("a"), True), (Actor("b"), False)],
)
def test_a_person_acts_for_that_person_alone(caller: Actor, may: bool) -> None:
    assert may_act_for(caller, "a") is may


@pytest.mark.parametrize(
    ("caller", "sent", "user_id"),
    [
        (Actor(), "a", "a"),
        (Actor(), 7, "7"),
        (Actor("a"), None, "a"),
        (Actor("a"), "a", "a"),
        (Actor("7"), 7, "7"),
        (Actor("é"), "e\u0301", "é"),
        (Actor(service=True), "a", "a"),
    ],
)
def test_the_person_is_the_one_sent_or_the_caller(caller: Actor, sent: object, user_id: str) -> None:
    assert user_for(caller, sent) == user_id


@pytest.mark.parametrize(
    ("caller", "sent", "kind"),
    [
        (Actor("a"), "b", Forbidden),
        (Actor("a"), "A", Forbidden),
        (Actor(), None, InvalidRequest),
        (Actor(service=True), None, InvalidRequest),
        (Actor("a"), "", InvalidRequest),
        (Actor("a"), [], InvalidRequest),
    ],
)
def test_another_person_is_forbidden_and_no_person_is_a_fault_of_form(
    caller: Actor, sent: object, kind: type[TallymarkError]
) -> None:
    with pytest.raises(kind) as refused:
        user_for(caller, sent)
    assert refused.value.field == "user_id"
