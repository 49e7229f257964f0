"""The caller of a request, identified by its credential, and the tenant and user of that credential."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from tenure.domain.keys import Role
from tenure.domain.scope import EVERYTHING, Scope


class CallerKind(StrEnum):
    ANONYMOUS = "anonymous"
    KEY = "key"
    SESSION_TOKEN = "session_token"  # noqa: S105 - a kind, not a secret
    OIDC = "oidc"


class Caller(msgspec.Struct, frozen=True):
    kind: CallerKind
    subject: str
    """`anonymous`, the public id of a key, `session-token:` and a session id, or `oidc:` and the subject of a token.
    The audit log records this value.
    """
    name: str
    """The name of a key; otherwise the subject. The two keys of a rotation have the same name."""
    role: Role | None
    """None for a session token, which has no role, and for a caller who was not identified."""
    scope: Scope = EVERYTHING
    """The tenant, and the user, that the credential is bound to."""
    session_id: str | None = None
    """The only session that a session token is valid for."""
    expires_at: datetime | None = None
    """The instant from which the credential is not accepted any more; None if it does not expire."""


class KnownCaller(msgspec.Struct):
    """The caller of a credential that was accepted before. The key in the cache is the value of `Authorization`."""

    caller: Caller
    expires_microseconds: int | None
    """When the credential expires, in microseconds since 1970 by the database's clock; None if it does not expire."""
    used_at: float = 0.0
    """The last use that is not written yet, by `boottime`; 0 if there is none. Only the use of API keys is written."""


ANONYMOUS = Caller(CallerKind.ANONYMOUS, "anonymous", "anonymous", Role.OPERATOR)
"""The caller of every request that needs a caller, as long as no API key was ever created and no OIDC issuer is
configured."""
UNIDENTIFIED = Caller(CallerKind.ANONYMOUS, "anonymous", "anonymous", None)
"""The caller of a request to a public route, unless the route has `names_caller` and the caller can be identified."""

Identify = Callable[[Sequence[tuple[bytes, bytes]]], Caller | Awaitable[Caller]]
"""Returns the caller of a request with these headers, or an awaitable if identifying the caller takes I/O."""
