"""`GET /me` shows the caller of a request. Other routes sign a browser page in, by exchanging its credential for a
cookie, and sign it out, by clearing the cookie (`access/cookies.py`).

If `[oidc] client_id` is configured, a person can also sign in at the OIDC issuer (`access/code_flow.py`).
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.access.authenticator import Authenticator
from tenure.access.caller import Caller, CallerKind
from tenure.access.code_flow import (
    TRANSACTION_COOKIE,
    TRANSACTION_MAX_CHARACTERS,
    TRANSACTION_SECONDS,
    CodeFlow,
)
from tenure.access.cookies import COOKIE_CREDENTIAL_MAX, COOKIE_MAX_SECONDS, cookie_header, cookie_value, set_cookie
from tenure.access.grants import ANY_ROLE, PUBLIC, narrowed
from tenure.access.oidc import SCHEME
from tenure.domain.keys import Role
from tenure.errors import (
    Forbidden,
    Invalid,
    NotFound,
    Problem,
    RateLimited,
    TooLarge,
    TooManyFailures,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from tenure.http.answers import JSON, Answer
from tenure.http.fields import Instant, Uuid, instant
from tenure.http.pipeline import Browser, Call, Route

GivenCredential = Annotated[
    str,
    Meta(
        # The characters of a bearer token (RFC 6750). None of them ends the value of a cookie or has to be escaped in
        # it. `$` alone would also match before a trailing newline.
        pattern=r"^[A-Za-z0-9._~+/-]+=*$(?!\n)",
        min_length=1,
        max_length=COOKIE_CREDENTIAL_MAX,
        extra={
            "must": f"must be an API key or an OIDC token without `Bearer`, at most {COOKIE_CREDENTIAL_MAX} characters"
        },
    ),
]
CallbackText = Annotated[str, Meta(max_length=4096, extra={"must": "must have at most 4096 characters"})]
NO_STORE = (b"cache-control", b"no-store")
FOUND = 302
OIDC_PATH = "/sign-in/oidc"
CONSOLE_PATH = "/console"


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


class OidcOption(msgspec.Struct, frozen=True, rename="camel"):
    issuer: str
    address: str


class SignInOptions(msgspec.Struct, frozen=True, rename="camel"):
    credentials_required: bool
    oidc: OidcOption | None


class CallbackQuery(msgspec.Struct, frozen=True):
    """The parameters that the issuer sends back. Issuers add their own parameters, which are ignored."""

    state: CallbackText = ""
    code: CallbackText = ""
    error: CallbackText = ""
    iss: CallbackText | None = None


class SignedOutAnswer(msgspec.Struct, frozen=True, rename="camel"):
    signed_in: bool


class SignInRoutes:
    """`count_request` counts a sign-in as a request of the caller that the credential identifies. The pipeline does not
    do this, because it identifies no caller on these public routes.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        flow: CodeFlow | None,
        count_request: Callable[[Caller], None],
        prefix: str,
    ) -> None:
        self._authenticator = authenticator
        self._flow = flow
        self._count_request = count_request
        self._prefix = prefix
        self._cookie_path = prefix or "/"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/me",
                handler=self.me,
                grants=narrowed(ANY_ROLE),
                tag="access",
                summary="Read the caller of this request",
                description="The caller that the credential of this request identifies, with its tenant and user.",
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
                    "Checks an API key or an OIDC token, and stores it in a cookie that scripts cannot read. "
                    "If a request of a page of this origin has no Authorization header, it uses the credential in the "
                    "cookie."
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
                method="GET",
                path="/sign-in",
                handler=self.options,
                grants=PUBLIC,
                tag="access",
                summary="Read the ways to sign in",
                description="Whether a credential is needed, and whether a person can sign in at an OIDC issuer.",
                answers={200: SignInOptions},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path=OIDC_PATH,
                handler=self.begin,
                grants=PUBLIC,
                tag="access",
                summary="Sign in at the OIDC issuer",
                answers={302: None},
                refusals=(Invalid, NotFound),
                sets_cookies=True,
                listed=False,
            ),
            Route(
                method="GET",
                path=f"{OIDC_PATH}/callback",
                handler=self.finish,
                grants=PUBLIC,
                tag="access",
                summary="Finish the sign-in at the OIDC issuer",
                query=CallbackQuery,
                answers={302: None},
                refusals=(Invalid, Unauthenticated, Forbidden, NotFound, TooManyFailures, Unavailable),
                sets_cookies=True,
                listed=False,
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
        cleared = cookie_header("", self._cookie_path, 0, secure=_browser(call).over_https)
        return Answer(SignedOutAnswer(signed_in=False), headers=[*JSON, NO_STORE, cleared])

    async def options(self, _call: Call) -> Answer:
        option = None
        if self._flow is not None:
            option = OidcOption(self._flow.issuer_host, f"{self._prefix}{OIDC_PATH}")
        return Answer(SignInOptions(not self._authenticator.is_open, option), headers=[*JSON, NO_STORE])

    async def begin(self, call: Call) -> Answer:
        browser = _browser(call)
        begun = self._required_flow().begin(self._callback(browser))
        kept = self._transaction_cookie(begun.transaction, TRANSACTION_SECONDS, browser)
        return _redirect(begun.location, kept)

    async def finish(self, call: Call) -> Answer:
        flow, browser, query = self._required_flow(), _browser(call), call.query
        if query.error:
            raise Unauthenticated("the issuer refused the sign-in", missing=True)
        transaction = (cookie_value(TRANSACTION_COOKIE, browser.cookies) or b"")[:TRANSACTION_MAX_CHARACTERS]
        tokens = await flow.finish(
            self._callback(browser), transaction.decode("latin-1"), query.state, query.code, query.iss
        )
        credential, caller = await self._accepted(tokens)
        self._count_request(caller)
        signed_in = self._cookie(credential, caller, secure=browser.over_https)
        ended = self._transaction_cookie("", 0, browser)
        return _redirect(f"{self._prefix}{CONSOLE_PATH}", signed_in, ended)

    async def signed_in(self, credential: str, call: Call) -> Answer:
        """Checks the credential, and returns the answer with a cookie that contains the credential. The answer to an
        anonymous caller has no cookie. Raises a `Problem` if the credential is not valid.
        """
        caller = await self._caller_of(credential)
        self._count_request(caller)
        headers = [*JSON, NO_STORE]
        if caller.kind is not CallerKind.ANONYMOUS:
            headers.append(self._cookie(credential, caller, secure=_browser(call).over_https))
        return Answer(caller_answer(caller, self._authenticator.database_now), headers=headers)

    async def _accepted(self, tokens: Sequence[str]) -> tuple[str, Caller]:
        """Returns the first of the issuer's tokens that this instance accepts, and its caller. Not every token can be
        used here: an access token may be meant for another service, or be opaque.
        """
        refused: Problem | None = None
        for token in tokens:
            if len(token) > COOKIE_CREDENTIAL_MAX or not token.isascii():
                refused = refused or Forbidden("the token of the issuer is too long for a cookie")
                continue
            try:
                return token, await self._caller_of(token)
            except (Unauthenticated, Forbidden) as problem:
                refused = problem
        raise refused or Unauthenticated("the issuer returned no token")

    async def _caller_of(self, credential: str) -> Caller:
        identified = self._authenticator.identify_value(SCHEME + credential.encode("ascii"))
        caller = identified if isinstance(identified, Caller) else await identified
        if caller.role is None:
            raise Forbidden("a session token is valid for requests about its own session only")
        return caller

    def _required_flow(self) -> CodeFlow:
        if self._flow is None:
            raise NotFound("no sign-in at an OIDC issuer is configured; see [oidc] client_id")
        return self._flow

    def _callback(self, browser: Browser) -> str:
        return f"{browser.origin}{self._prefix}{OIDC_PATH}/callback"

    def _transaction_cookie(self, value: str, seconds: int, browser: Browser) -> tuple[bytes, bytes]:
        # Lax, not Strict: the browser comes to the callback from a page of the issuer, and must send the cookie.
        path = f"{self._prefix}{OIDC_PATH}"
        return set_cookie(TRANSACTION_COOKIE, value, path, seconds, "Lax", secure=browser.over_https)

    def _cookie(self, credential: str, caller: Caller, *, secure: bool) -> tuple[bytes, bytes]:
        left = self._authenticator.seconds_left(caller)
        seconds = COOKIE_MAX_SECONDS if left is None else max(0, min(COOKIE_MAX_SECONDS, int(left)))
        return cookie_header(credential, self._cookie_path, seconds, secure=secure)


def _browser(call: Call) -> Browser:
    if call.browser is None:
        raise TypeError("the route does not set cookies")
    return call.browser


def _redirect(location: str, *cookies: tuple[bytes, bytes]) -> Answer:
    return Answer(b"", FOUND, [(b"location", location.encode("ascii")), NO_STORE, *cookies])


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
