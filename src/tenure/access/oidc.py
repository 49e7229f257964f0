"""Verifies the bearer tokens of an OIDC issuer (RFC 7519), and finds their caller.

A token is accepted only if

- its algorithm is asymmetric and one of those that the issuer's key allows; keys are chosen from the issuer's key set
  only (`jwks.py`): `jku`, `jwk`, `x5u` and `x5c` in the token are ignored, and `crit` is refused;
- its signature is valid;
- `iss` is the configured issuer, `aud` is or contains the configured audience, `exp` is present and in the future, and
  `nbf` and `iat`, if present, are in the past; for `exp`, `nbf` and `iat`, the clocks may differ by `leeway_seconds`;
- it has a subject, a role and a tenant, and for the role client a user. A token without a tenant is refused for every
  role, because a caller without a tenant would see all tenants. Only readers and operators of the `staff_tenant`, if
  one is configured, see all tenants.

An accepted token is cached until it expires, under the value of the header Authorization, so that most requests need no
verification. The cache is cleared when the issuer's keys change, because a token is accepted only while the key that
signed it is one of the issuer's keys.

If the key of a token is unknown and the last fetch of the keys failed, the token may be signed with a new key. So the
request gets 503, and the client repeats it. With 401, a user would have to sign in again.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from math import floor
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError
from joserfc.jwt import JWTClaimsRegistry
from joserfc.util import urlsafe_b64decode

from tenure import clock
from tenure.access.caller import Caller, CallerKind, KnownCaller
from tenure.access.jwks import SUPPORTED, Fetch, IssuerKey, Jwks
from tenure.config import OidcConfig
from tenure.domain.keys import Role
from tenure.domain.leases import NAME_MAX
from tenure.domain.scope import EVERYTHING, Scope
from tenure.errors import Forbidden, Unauthenticated, Unavailable
from tenure.ids import canonical_id
from tenure.telemetry.events import Telemetry

SCHEME = b"Bearer "
TOKEN_MAX_CHARACTERS = 8192
VERIFIED_MAX = 10_000
"""The maximum number of cached tokens. The oldest is dropped first."""
SUBJECT_PREFIX = "oidc:"
"""Distinguishes the subject of a token from the name of an API key, in the audit log and among idempotency keys."""
SUBJECT_MAX_CHARACTERS = NAME_MAX - len(SUBJECT_PREFIX)
EXPIRES_MAX = 253_402_300_799
"""The last second of the year 9999, in seconds since 1970: `datetime` cannot represent later ones."""

Claims = Mapping[str, Any]


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str | None = None
    crit: Any = msgspec.UNSET


class OidcVerifier:
    """`now` returns the seconds since 1970, by the clock that decides whether a token has expired.

    `monotonic` measures the pauses between fetches of the keys.
    """

    def __init__(
        self,
        config: OidcConfig,
        fetch: Fetch,
        telemetry: Telemetry,
        now: Callable[[], float],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._config = config
        self._now = now
        self._roles = {value: Role(name) for value, name in config.roles.items()}
        self._staff_tenant = None if config.staff_tenant is None else canonical_id(config.staff_tenant)
        self.verified: dict[bytes | None, KnownCaller] = {}
        """The callers of accepted tokens. An entry must not be used once its token has expired."""
        self._jwks = Jwks(fetch, self.verified.clear, telemetry, monotonic)
        self._claims = JWTClaimsRegistry(
            now=lambda: floor(now()),
            leeway=config.leeway_seconds,
            iss={"essential": True, "value": config.issuer},
            aud={"essential": True, "value": config.audience},
            exp={"essential": True},
        )

    def start(self) -> None:
        self._jwks.start()

    async def stop(self) -> None:
        await self._jwks.stop()

    def verify(self, authorization: bytes) -> Caller | Awaitable[Caller]:
        """Return the caller for a header value (`Bearer` and a token). If the token may be signed with a key that this
        instance does not know yet, return an awaitable, which first fetches the issuer's keys.

        Verifies the token even if it is in `verified`. Raises `Unauthenticated`, `Forbidden`, or `Unavailable` if the
        issuer's keys cannot be fetched.
        """
        token = authorization[len(SCHEME) :].decode("latin-1")
        header = _header_of(token)
        key = self._jwks.find(header.kid, header.alg)
        if key is None and self._jwks.may_be_new(header.kid):
            return self._verify_with_new_key(authorization, token, header)
        return self._verify(authorization, token, key)

    async def _verify_with_new_key(self, authorization: bytes, token: str, header: _Header) -> Caller:
        return self._verify(authorization, token, await self._new_key(header))

    async def _new_key(self, header: _Header) -> IssuerKey | None:
        """Fetch the keys if a fetch is allowed now, and return the key that the token names, or None. Raises
        `Unavailable` if the key is unknown and the last fetch failed.
        """
        key = await self._jwks.find_new(header.kid, header.alg)
        if key is None and not self._jwks.is_current:
            raise Unavailable("the keys of the OIDC issuer cannot be fetched")
        return key

    def _verify(self, authorization: bytes, token: str, key: IssuerKey | None) -> Caller:
        claims = _signed_claims(token, key)
        self._check(claims)
        until = int(min(claims["exp"] + self._config.leeway_seconds, EXPIRES_MAX) * 1_000_000)
        caller = self._caller(claims, clock.from_microseconds(until))
        self.verified.pop(authorization, None)
        if len(self.verified) >= VERIFIED_MAX:
            del self.verified[next(iter(self.verified))]
        self.verified[authorization] = KnownCaller(caller, until)
        return caller

    async def check_id_token(self, token: str, client_id: str, nonce: str) -> None:
        """Check the ID token of a sign-in: signature, `iss`, `aud`, `exp`, and the `nonce` of this sign-in.

        Raises `Unauthenticated`, or `Unavailable` if the issuer's keys cannot be fetched.
        """
        header = _header_of(token)
        key = self._jwks.find(header.kid, header.alg)
        if key is None and self._jwks.may_be_new(header.kid):
            key = await self._new_key(header)
        claims = _signed_claims(token, key)
        expected = JWTClaimsRegistry(
            now=lambda: floor(self._now()),
            leeway=self._config.leeway_seconds,
            iss={"essential": True, "value": self._config.issuer},
            aud={"essential": True, "value": client_id},
            exp={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        self._check(claims, expected)

    def _check(self, claims: dict[str, Any], expected: JWTClaimsRegistry | None = None) -> None:
        try:
            (self._claims if expected is None else expected).validate(claims)
        except ExpiredTokenError:
            raise Unauthenticated("the token has expired") from None
        except ClaimError as error:
            raise Unauthenticated(f"the token is not valid: claim {error.claim}") from None

    def _caller(self, claims: Claims, expires_at: datetime) -> Caller:
        subject, role = _subject(claims), self._role(claims)
        return Caller(CallerKind.OIDC, subject, subject, role, self._scope(claims, role), expires_at=expires_at)

    def _scope(self, claims: Claims, role: Role) -> Scope:
        tenant = _uuid(claims, self._config.tenant_claim)
        if role is Role.CLIENT:
            return Scope(tenant, _uuid(claims, self._config.user_claim))
        return EVERYTHING if tenant == self._staff_tenant else Scope(tenant)

    def _role(self, claims: Claims) -> Role:
        """Return the strongest role of a token."""
        values = claims.get(self._config.roles_claim)
        if isinstance(values, str):
            values = values.split(" ")
        elif not isinstance(values, list):
            values = []
        roles = [self._roles[value] for value in values if isinstance(value, str) and value in self._roles]
        if not roles:
            raise Forbidden(f"the token has no role: claim {self._config.roles_claim} contains no configured value")
        return max(roles, key=tuple(Role).index)


def _header_of(token: str) -> _Header:
    """Return the part of a token's header that selects the key. The header is not verified yet, so do not trust it."""
    if len(token) > TOKEN_MAX_CHARACTERS:
        raise Unauthenticated(f"the token is longer than {TOKEN_MAX_CHARACTERS} characters")
    try:
        encoded, _payload, _signature = token.encode("ascii").split(b".")
        header = msgspec.json.decode(urlsafe_b64decode(encoded), type=_Header)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Unauthenticated("the token is malformed") from None
    if header.crit is not msgspec.UNSET:
        raise Unauthenticated("the token has the header crit, which is not supported")
    if header.alg not in SUPPORTED:
        raise Unauthenticated("the token is not signed with a supported algorithm")
    return header


def _signed_claims(token: str, key: IssuerKey | None) -> dict[str, Any]:
    """Return the claims of a token. Raises `Unauthenticated` if `key` is None or did not sign the token."""
    if key is None:
        raise Unauthenticated("the token is not signed with a key of the issuer")
    try:
        return jwt.decode(token, key.key, registry=key.registry).claims
    except (JoseError, ValueError, RecursionError):
        # Give no reason: it would reveal to an attacker which part of a forged token is right.
        raise Unauthenticated("the signature of the token is not valid") from None


def _subject(claims: Claims) -> str:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_MAX_CHARACTERS:
        raise Unauthenticated("the token is not valid: claim sub")
    if not subject.isascii() or not subject.isprintable():
        raise Unauthenticated("the token is not valid: claim sub")
    return SUBJECT_PREFIX + subject


def _uuid(claims: Claims, name: str) -> str:
    value = claims.get(name)
    found = canonical_id(value) if isinstance(value, str) else None
    if found is None:
        raise Forbidden(f"the token cannot be used here: claim {name} is not a UUID")
    return found
