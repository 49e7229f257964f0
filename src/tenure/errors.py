"""The errors that several packages use, and all problems of the HTTP API. Other errors are in the modules that raise
them.

TenureError
├── ConfigurationError            a setting or a flag is wrong; the service or the command ends
│   └── DatabaseMissing           the SQLite file does not exist, and may not be created
├── IdTaken                       the new id of a session or an API key already exists in the database
├── LeaseLost                     the caller does not hold the lease; nothing was written
├── Problem                       the response is application/problem+json
│   ├── Invalid                   400  names every wrong field
│   ├── Unauthenticated           401  no credential, or one that is not valid
│   ├── Forbidden                 403  the credential does not allow this
│   ├── CapacityOfAnotherTenant   403
│   ├── ForbiddenOrigin           403  a page of another origin sent the request
│   ├── GatewayReserved           403  only Tenure itself submits to this gateway
│   ├── NotFound                  404
│   ├── MethodNotAllowed          405
│   ├── RequestTimeout            408  the client sent the request too slowly
│   ├── TenantMismatch            409  the live session belongs to another tenant
│   ├── AlreadyDelivered          409  too late to retry or cancel
│   ├── UsageNotCancellable       409  usage is sent until it is delivered
│   ├── NoUsageGateway            409  no gateway `usages` is configured
│   ├── KeyNameTaken              409  the name has two live API keys
│   ├── SessionOver               410  names the close reason
│   ├── TooLarge                  413
│   ├── UriTooLong                414
│   ├── UnsupportedMediaType      415
│   ├── Misdirected               421  the request names a host that this instance does not serve
│   ├── KeyReused                 422  the idempotency key was used with another payload
│   ├── SessionLimit              429  all seats of the capacity are taken
│   ├── RateLimited               429  the credential sends too many requests
│   ├── TooManyFailures           429  the address sends too many wrong credentials
│   ├── HeadersTooLarge           431
│   ├── Internal                  500  an unexpected error; the log has the details
│   ├── NotInstalled              501  an extra is missing on this instance
│   └── Unavailable               503  retry the same request later
│       ├── DatabaseUnavailable   the database cannot be reached, does not answer, or refuses the request
│       │   ├── DatabaseBusy      the database answers, but other transactions hold the rows
│       │   └── DatabaseTooSlow   this operation took too long; others may succeed
│       ├── Overloaded
│       ├── TooManyConnections
│       ├── SchemaTooOld
│       ├── Starting
│       └── Draining

`code` and the slug of `type` are stable: clients may branch on them.
"""

from typing import ClassVar

import msgspec

ERROR_MAX = 1000
"""The maximum length of a stored error message, in characters."""


class TenureError(Exception):
    pass


class ConfigurationError(TenureError):
    """A setting is wrong. The message names the setting and the allowed values."""

    exit_code: ClassVar[int] = 2


class DatabaseMissing(ConfigurationError):
    pass


class IdTaken(TenureError):
    """The new id already exists in the database.

    For a session id, this means that an earlier try of the same request opened the session, that the response was lost,
    and that the session has ended since.
    """


class LeaseLost(TenureError):
    """The caller does not hold the lease in this epoch. The caller must stop, and write nothing more.

    Other expected outcomes are return values. This one is an exception, so that no caller can overlook it.
    """


class FieldError(msgspec.Struct, frozen=True):
    field: str
    message: str


class Problem(TenureError):
    status: ClassVar[int]
    slug: ClassVar[str]
    title: ClassVar[str]
    retry_after_seconds: int | None = None

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    @property
    def code(self) -> str:
        return self.slug.replace("-", "_").upper()

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}


class Invalid(Problem):
    status = 400
    slug = "invalid"
    title = "Invalid request"

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = errors


class Unauthenticated(Problem):
    status = 401
    slug = "unauthenticated"
    title = "Unauthenticated"

    def __init__(self, detail: str, *, missing: bool = False) -> None:
        """`missing`: the request has no credential at all, rather than a wrong one."""
        super().__init__(detail)
        self.missing = missing

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(Problem):
    status = 403
    slug = "forbidden"
    title = "Forbidden"


class CapacityOfAnotherTenant(Problem):
    status = 403
    slug = "capacity-of-another-tenant"
    title = "Capacity belongs to another tenant"


class GatewayReserved(Problem):
    status = 403
    slug = "gateway-reserved"
    title = "Gateway is reserved"


class ForbiddenOrigin(Problem):
    status = 403
    slug = "forbidden-origin"
    title = "Origin is not allowed"


class NotFound(Problem):
    status = 404
    slug = "not-found"
    title = "Not found"


class MethodNotAllowed(Problem):
    status = 405
    slug = "method-not-allowed"
    title = "Method not allowed"

    def __init__(self, detail: str, allow: str) -> None:
        super().__init__(detail)
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": self.allow}


class RequestTimeout(Problem):
    status = 408
    slug = "request-timeout"
    title = "Request took too long to arrive"


class TenantMismatch(Problem):
    status = 409
    slug = "tenant-mismatch"
    title = "Live session belongs to another tenant"


class AlreadyDelivered(Problem):
    status = 409
    slug = "already-delivered"
    title = "Submission already delivered"


class UsageNotCancellable(Problem):
    status = 409
    slug = "usage-not-cancellable"
    title = "Usage cannot be cancelled"


class NoUsageGateway(Problem):
    status = 409
    slug = "no-usage-gateway"
    title = "No gateway for usage"


class KeyNameTaken(Problem):
    status = 409
    slug = "key-name-taken"
    title = "Name has two live API keys"


class SessionOver(Problem):
    status = 410
    slug = "session-over"
    title = "Session has ended"

    def __init__(self, close_reason: str) -> None:
        super().__init__(f"the session has ended: {close_reason}")
        self.close_reason = close_reason


class TooLarge(Problem):
    status = 413
    slug = "too-large"
    title = "Request body too large"


class UriTooLong(Problem):
    status = 414
    slug = "uri-too-long"
    title = "Request target too long"


class UnsupportedMediaType(Problem):
    status = 415
    slug = "unsupported-media-type"
    title = "Unsupported media type"


class Misdirected(Problem):
    status = 421
    slug = "misdirected"
    title = "Host is not served here"


class KeyReused(Problem):
    status = 422
    slug = "key-reused"
    title = "Idempotency key reused with another payload"


class SessionLimit(Problem):
    status = 429
    slug = "session-limit"
    title = "Session limit reached"
    retry_after_seconds = 5


class RateLimited(Problem):
    status = 429
    slug = "rate-limited"
    title = "Too many requests"
    retry_after_seconds = 1

    def __init__(self, detail: str, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class TooManyFailures(Problem):
    status = 429
    slug = "too-many-failures"
    title = "Too many wrong credentials"
    retry_after_seconds = 1

    def __init__(self, detail: str, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class HeadersTooLarge(Problem):
    status = 431
    slug = "headers-too-large"
    title = "Request headers too large"


class Internal(Problem):
    status = 500
    slug = "internal"
    title = "Internal error"


class NotInstalled(Problem):
    status = 501
    slug = "not-installed"
    title = "Not installed on this instance"


class Unavailable(Problem):
    status = 503
    slug = "unavailable"
    title = "Service unavailable"
    retry_after_seconds = 1


class DatabaseUnavailable(Unavailable):
    slug = "database-unavailable"
    title = "Database unavailable"


class DatabaseBusy(DatabaseUnavailable):
    title = "Database busy"


class DatabaseTooSlow(DatabaseUnavailable):
    pass


class Overloaded(Unavailable):
    slug = "overloaded"
    title = "Too many requests are waiting"


class TooManyConnections(Unavailable):
    slug = "too-many-connections"
    title = "Too many connections"


class SchemaTooOld(Unavailable):
    slug = "schema-too-old"
    title = "Database schema too old"


class Starting(Unavailable):
    slug = "starting"
    title = "Instance is starting"


class Draining(Unavailable):
    slug = "draining"
    title = "Instance is draining"
