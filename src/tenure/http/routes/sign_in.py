"""Who is calling (`GET /me`), and the sign-in of browser pages: a credential in, a cookie out (`access/cookies.py`)."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.access.authenticator import Authenticator
from tenure.access.caller import Caller, CallerKind
from tenure.access.cookies import COOKIE_CREDENTIAL_MAX, COOKIE_MAX_SECONDS, cookie_header
from tenure.access.grants import ANY_ROLE, PUBLIC, narrowed
from tenure.access.oidc import SCHEME
from tenure.domain.keys import Role
from tenure.errors import (
    Forbidden,
    Invalid,
    RateLimited,
    TooLarge,
    TooManyFailures,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from tenure.http.answers import JSON, Answer
from tenure.http.fields import Instant, Uuid, instant
from tenure.http.pipeline import Call, Route

GivenCredential = Annotated[
    str,
    Meta(
        # The characters of a bearer token (RFC 6750). None of them ends or escapes a cookie. `$` alone would also match
        # before a trailing newline.
        pattern=r"^[A-Za-z0-9._~+/-]+=*$(?!\n)",
        min_length=1,
        max_length=COOKIE_CREDENTIAL_MAX,
        extra={
            "must": f"must be an API key or an OIDC token without `Bearer`, at most {COOKIE_CREDENTIAL_MAX} characters"
        },
    ),
]
NO_STORE = (b"cache-control", b"no-store")


class SignInBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    credential: GivenCredential

    def __repr__(self) -> str:
        return "SignInBody(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return []


class CallerAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    subject: str
    name: str
    role: Role
    tenant_object_id: Uuid | None
    user_object_id: Uuid | None
    anonymous: bool
    expires_at: Instant | None
    may_change: bool
    now: Instant


class SignedOutAnswer(msgspec.Struct, frozen=True, rename="camel"):
    signed_in: bool


class SignInRoutes:
    """`count_request` counts a sign-in as a request of its credential, because the route itself needs none."""

    def __init__(self, authenticator: Authenticator, count_request: Callable[[Caller], None], prefix: str) -> None:
        self._authenticator = authenticator
        self._count_request = count_request
        self._cookie_path = prefix or "/"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/me",
                handler=self.me,
                grants=narrowed(ANY_ROLE),
                tag="access",
                summary="Who is calling",
                description="The caller of this request, as its credential says, and what the caller is bound to.",
                answers={200: CallerAnswer},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="POST",
                path="/sign-in",
                handler=self.sign_in,
                grants=PUBLIC,
                tag="access",
                summary="Sign in from a browser page",
                description=(
                    "Checks an API key or an OIDC token, and sets a cookie with it that scripts cannot read. "
                    "The cookie counts as the credential of requests without Authorization, of pages of this origin."
                ),
                body=SignInBody,
                answers={200: CallerAnswer},
                refusals=(
                    Invalid,
                    Unauthenticated,
                    Forbidden,
                    TooLarge,
                    UnsupportedMediaType,
                    RateLimited,
                    TooManyFailures,
                    Unavailable,
                ),
                sets_cookies=True,
            ),
            Route(
                method="POST",
                path="/sign-out",
                handler=self.sign_out,
                grants=PUBLIC,
                tag="access",
                summary="Sign out",
                description="Clears the cookie of the sign-in. The credential itself stays valid.",
                answers={200: SignedOutAnswer},
                refusals=(Invalid,),
                sets_cookies=True,
            ),
        ]

    async def me(self, call: Call) -> Answer:
        return Answer(caller_answer(call.caller, self._authenticator.database_now), headers=[*JSON, NO_STORE])

    async def sign_in(self, call: Call) -> Answer:
        body: SignInBody = call.body
        return await self.signed_in(body.credential, call)

    async def sign_out(self, call: Call) -> Answer:
        cleared = cookie_header("", self._cookie_path, 0, secure=call.over_https)
        return Answer(SignedOutAnswer(signed_in=False), headers=[*JSON, NO_STORE, cleared])

    async def signed_in(self, credential: str, call: Call) -> Answer:
        """Checks the credential and returns the answer with its cookie. Raises a `Problem` if it is not valid."""
        identified = self._authenticator.identify_value(SCHEME + credential.encode("ascii"))
        caller = identified if isinstance(identified, Caller) else await identified
        self._count_request(caller)
        if caller.role is None:
            raise Forbidden("a session token is valid for requests about its own session only")
        headers = [*JSON, NO_STORE]
        if caller.kind is not CallerKind.ANONYMOUS:
            headers.append(self._cookie(credential, caller, secure=call.over_https))
        return Answer(caller_answer(caller, self._authenticator.database_now), headers=headers)

    def _cookie(self, credential: str, caller: Caller, *, secure: bool) -> tuple[bytes, bytes]:
        left = self._authenticator.seconds_left(caller)
        seconds = COOKIE_MAX_SECONDS if left is None else max(0, min(COOKIE_MAX_SECONDS, int(left)))
        return cookie_header(credential, self._cookie_path, seconds, secure=secure)


def caller_answer(caller: Caller, now: datetime) -> CallerAnswer:
    if caller.role is None:
        raise Forbidden("a session token is valid for requests about its own session only")
    return CallerAnswer(
        subject=caller.subject,
        name=caller.name,
        role=caller.role,
        tenant_object_id=caller.scope.tenant,
        user_object_id=caller.scope.user,
        anonymous=caller.kind is CallerKind.ANONYMOUS,
        expires_at=caller.expires_at and instant(caller.expires_at),
        may_change=caller.role is Role.OPERATOR,
        now=instant(now),
    )
