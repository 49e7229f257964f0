"""Everything that can go wrong and that a caller is told about.

TenureError
├── ConfigurationError            the start is refused
├── IdTaken                       the id that a caller brought is in the database already
├── LeaseLost                     a write showed a fence that no longer holds; nothing was written
├── Problem                       answered as application/problem+json
│   ├── Invalid                   400  the request is wrong, field by field
│   ├── CapacityOfAnotherTenant   403
│   ├── GatewayReserved           403  it is Tenure's own
│   ├── NotFound                  404
│   ├── MethodNotAllowed          405
│   ├── TenantMismatch            409  the live session belongs to another tenant
│   ├── AlreadyDelivered          409  too late to retry or cancel it
│   ├── UsageNotCancellable       409  it is sent until it is delivered
│   ├── SessionOver               410  with its close reason
│   ├── TooLarge                  413
│   ├── UnsupportedMediaType      415
│   ├── KeyReused                 422  an idempotency key came again with another payload
│   ├── SessionLimit              429  the capacity's seats are taken
│   ├── Internal                  500  a defect; the log has the details
│   ├── NotInstalled              501  an extra is missing on this instance
│   └── Unavailable               503  try again, the same request will work
│       ├── DatabaseUnavailable   it cannot be reached, or does not answer
│       │   └── DatabaseBusy      it answers, but others hold what this request needs
│       ├── Overloaded
│       ├── SchemaTooOld
│       ├── Starting
│       └── Draining

`code` and the slug of `type` are stable: clients may branch on them.
"""

from typing import ClassVar

import msgspec


class TenureError(Exception):
    pass


class ConfigurationError(TenureError):
    """A setting is wrong. The message names the field and what is allowed."""

    exit_code: ClassVar[int] = 2


class IdTaken(TenureError):
    """Somebody has used this id. A wish was carried out without an answer, and its session has ended since."""


class LeaseLost(TenureError):
    """The lease is not held by this holder in this epoch. The one expected outcome that is an exception, so that nobody
    can overlook it: stop, and write nothing more.
    """


class FieldError(msgspec.Struct, frozen=True):
    field: str
    message: str


class Problem(TenureError):
    status: ClassVar[int]
    slug: ClassVar[str]
    title: ClassVar[str]
    retry_after_seconds: ClassVar[int | None] = None

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
    title = "The request is not valid"

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = errors


class CapacityOfAnotherTenant(Problem):
    status = 403
    slug = "capacity-of-another-tenant"
    title = "The capacity belongs to another tenant"


class GatewayReserved(Problem):
    status = 403
    slug = "gateway-reserved"
    title = "The gateway takes nothing from outside"


class NotFound(Problem):
    status = 404
    slug = "not-found"
    title = "There is no such thing"


class MethodNotAllowed(Problem):
    status = 405
    slug = "method-not-allowed"
    title = "This address does not take that method"

    def __init__(self, detail: str, allow: str) -> None:
        super().__init__(detail)
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": self.allow}


class TenantMismatch(Problem):
    status = 409
    slug = "tenant-mismatch"
    title = "The live session belongs to another tenant"


class AlreadyDelivered(Problem):
    status = 409
    slug = "already-delivered"
    title = "The submission is delivered"


class UsageNotCancellable(Problem):
    status = 409
    slug = "usage-not-cancellable"
    title = "Usage cannot be cancelled"


class SessionOver(Problem):
    status = 410
    slug = "session-over"
    title = "The session is over"

    def __init__(self, close_reason: str) -> None:
        super().__init__(f"the session is over: {close_reason}")
        self.close_reason = close_reason


class TooLarge(Problem):
    status = 413
    slug = "too-large"
    title = "The body is too large"


class UnsupportedMediaType(Problem):
    status = 415
    slug = "unsupported-media-type"
    title = "The body is of a type this address does not take"


class KeyReused(Problem):
    status = 422
    slug = "key-reused"
    title = "The idempotency key was used for something else"


class SessionLimit(Problem):
    status = 429
    slug = "session-limit"
    title = "All seats are taken"
    retry_after_seconds = 5


class Internal(Problem):
    status = 500
    slug = "internal"
    title = "Something went wrong on our side"


class NotInstalled(Problem):
    status = 501
    slug = "not-installed"
    title = "This instance lacks what the request needs"


class Unavailable(Problem):
    status = 503
    slug = "unavailable"
    title = "Not available at the moment"
    retry_after_seconds = 1


class DatabaseUnavailable(Unavailable):
    slug = "database-unavailable"
    title = "The database cannot be reached"


class DatabaseBusy(DatabaseUnavailable):
    title = "The database is busy with other requests for the same sessions"


class Overloaded(Unavailable):
    slug = "overloaded"
    title = "Too many requests are waiting"


class SchemaTooOld(Unavailable):
    slug = "schema-too-old"
    title = "The database lacks what this version needs"


class Starting(Unavailable):
    slug = "starting"
    title = "This instance is starting"


class Draining(Unavailable):
    slug = "draining"
    title = "This instance is stopping"
