"""All errors of Tenure.

TenureError
├── ConfigurationError            a setting is wrong; the service does not start
├── IdTaken                       the id of a request already exists in the database
├── LeaseLost                     the caller does not hold the lease; nothing was written
├── Problem                       the response is application/problem+json
│   ├── Invalid                   400  names every wrong field
│   ├── CapacityOfAnotherTenant   403
│   ├── GatewayReserved           403  only Tenure itself submits to this gateway
│   ├── NotFound                  404
│   ├── MethodNotAllowed          405
│   ├── TenantMismatch            409  the live session belongs to another tenant
│   ├── AlreadyDelivered          409  too late to retry or cancel
│   ├── UsageNotCancellable       409  usage is sent until it is delivered
│   ├── SessionOver               410  names the close reason
│   ├── TooLarge                  413
│   ├── UnsupportedMediaType      415
│   ├── KeyReused                 422  the idempotency key was used with another payload
│   ├── SessionLimit              429  all seats of the capacity are taken
│   ├── Internal                  500  an unexpected error; the log has the details
│   ├── NotInstalled              501  an extra is missing on this instance
│   └── Unavailable               503  retry the same request later
│       ├── DatabaseUnavailable   the database cannot be reached, or does not answer
│       │   └── DatabaseBusy      the database answers, but other transactions hold the rows
│       ├── Overloaded
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


class IdTaken(TenureError):
    """An earlier try of this request opened a session with this id. Its answer was lost, and the session has ended."""


class LeaseLost(TenureError):
    """The caller does not hold the lease in this epoch. It must stop, and write nothing more.

    Other expected outcomes are return values. This one is an exception, so that no caller can overlook it.
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
    title = "Invalid request"

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = errors


class CapacityOfAnotherTenant(Problem):
    status = 403
    slug = "capacity-of-another-tenant"
    title = "Capacity belongs to another tenant"


class GatewayReserved(Problem):
    status = 403
    slug = "gateway-reserved"
    title = "Gateway is reserved"


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


class UnsupportedMediaType(Problem):
    status = 415
    slug = "unsupported-media-type"
    title = "Unsupported media type"


class KeyReused(Problem):
    status = 422
    slug = "key-reused"
    title = "Idempotency key reused with another payload"


class SessionLimit(Problem):
    status = 429
    slug = "session-limit"
    title = "Session limit reached"
    retry_after_seconds = 5


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


class Overloaded(Unavailable):
    slug = "overloaded"
    title = "Too many requests are waiting"


class SchemaTooOld(Unavailable):
    slug = "schema-too-old"
    title = "Database schema too old"


class Starting(Unavailable):
    slug = "starting"
    title = "Instance is starting"


class Draining(Unavailable):
    slug = "draining"
    title = "Instance is draining"
