"""All errors of the client.

TenureError
├── ConfigurationError                the url or the key cannot be used
├── TransportError                    no response; unless it is `NotSent`, the request may have been carried out
│   ├── NotSent                       no connection: the request was not carried out
│   └── TimedOut                      no response within the timeout
├── UnexpectedAnswer                  the response is not of Tenure's format, such as a page of a proxy; no retry
├── SessionLost                       a held session was used after it was lost
├── StreamClosed                      the stream is not open, or its connection broke or was closed
│   └── StreamReplaced          4409  a newer stream of the session has taken over
└── Problem                           an error response, normally with a problem document
    ├── Invalid                 400   `errors` names every wrong field
    ├── Unauthenticated         401   no key, or one that is not valid
    ├── Forbidden               403   the key does not allow this
    │   ├── CapacityOfAnotherTenant
    │   ├── ForbiddenOrigin
    │   └── GatewayReserved
    ├── NotFound                404
    ├── MethodNotAllowed        405
    ├── RequestTimeout          408   the request arrived too slowly
    ├── Conflict                409
    │   ├── TenantMismatch            the live session belongs to another tenant
    │   ├── AlreadyDelivered          too late to retry or cancel
    │   ├── UsageNotCancellable
    │   ├── NoUsageGateway
    │   └── KeyNameTaken              the name has two live API keys
    ├── SessionOver             410   `close_reason` says why
    ├── TooLarge                413
    ├── UriTooLong              414
    ├── UnsupportedMediaType    415
    ├── Misdirected             421   the instance does not serve this host
    ├── KeyReused               422   the idempotency key was used with another payload
    ├── TooManyRequests         429
    │   ├── SessionLimit              all seats of the capacity are taken
    │   ├── RateLimited               too many requests with this credential
    │   └── TooManyFailures           too many wrong credentials from this address
    ├── HeadersTooLarge         431
    ├── Internal                500   a bug in the service
    ├── NotInstalled            501   an extra is missing on the instance
    └── Unavailable             503   send the same request again later
        ├── DatabaseUnavailable
        ├── Overloaded
        ├── TooManyConnections
        ├── SchemaTooOld
        ├── Starting
        └── Draining

For a code that this version does not know, the class of the HTTP status is raised, or `Problem` if no class has this
status. No error contains the API key.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

import msgspec

DETAIL_MAX = 500
"""The most bytes that an error quotes from a response that is not a problem document."""


class TenureError(Exception):
    pass


class ConfigurationError(TenureError):
    pass


class TransportError(TenureError):
    pass


class NotSent(TransportError):
    pass


class TimedOut(TransportError):
    pass


class UnexpectedAnswer(TenureError):
    def __init__(self, message: str, *, status: int, request_id: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id


class SessionLost(TenureError):
    """The session is lost: your code must stop the work that needs the session.

    `reason` is one of the values of `LostReason`. `close_reason` is the close reason that the server returned, or None.
    `error` is the error of the last heartbeat, or None if that heartbeat did not fail.
    """

    def __init__(self, session_id: str, reason: str, close_reason: str | None, error: Exception | None) -> None:
        because = "" if error is None else f"; the last heartbeat failed: {error}"
        super().__init__(f"session {session_id} is lost: {close_reason or reason}{because}")
        self.session_id = session_id
        self.reason = reason
        self.close_reason = close_reason
        self.error = error


class StreamClosed(TenureError):
    def __init__(self, message: str, *, close_code: int | None = None) -> None:
        super().__init__(message)
        self.close_code = close_code


class StreamReplaced(StreamClosed):
    pass


class FieldError(msgspec.Struct, frozen=True):
    field: str = ""
    message: str = ""


class _Document(msgspec.Struct, rename="camel"):
    """A problem document. A missing field gets its default."""

    code: str = ""
    title: str = ""
    detail: str = ""
    close_reason: str | None = None
    request_id: str | None = None
    errors: list[FieldError] = []


class Problem(TenureError):
    """The request was refused or failed. The attributes are the fields of the problem document.

    A proxy may send a status in RETRIED_STATUSES without a problem document. Then `code`, `title` and `errors` are
    empty, and `close_reason` is None.
    """

    codes: ClassVar[tuple[str, ...]] = ()
    of_status: ClassVar[int | None] = None

    def __init__(
        self,
        detail: str,
        *,
        status: int,
        code: str = "",
        title: str = "",
        request_id: str | None = None,
        close_reason: str | None = None,
        retry_after: float | None = None,
        errors: tuple[FieldError, ...] = (),
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code
        self.title = title
        self.request_id = request_id
        self.close_reason = close_reason
        self.retry_after = retry_after
        self.errors = errors

    def __str__(self) -> str:
        by = "" if self.request_id is None else f" (request {self.request_id})"
        return f"{' '.join(filter(None, (str(self.status), self.code)))}: {self.detail}{by}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.detail, {**self.__dict__})


def _restore(kind: type[Problem], detail: str, state: dict[str, Any]) -> Problem:
    problem = kind(detail, status=state["status"])
    problem.__dict__.update(state)
    return problem


class Invalid(Problem):
    codes = ("INVALID",)
    of_status = 400


class Unauthenticated(Problem):
    codes = ("UNAUTHENTICATED",)
    of_status = 401

    def __str__(self) -> str:
        return f"{super().__str__()}; pass a valid key as key=, or set TENURE_KEY"


class Forbidden(Problem):
    codes = ("FORBIDDEN",)
    of_status = 403


class CapacityOfAnotherTenant(Forbidden):
    codes = ("CAPACITY_OF_ANOTHER_TENANT",)


class ForbiddenOrigin(Forbidden):
    codes = ("FORBIDDEN_ORIGIN",)


class GatewayReserved(Forbidden):
    codes = ("GATEWAY_RESERVED",)


class NotFound(Problem):
    codes = ("NOT_FOUND",)
    of_status = 404


class MethodNotAllowed(Problem):
    codes = ("METHOD_NOT_ALLOWED",)
    of_status = 405


class RequestTimeout(Problem):
    codes = ("REQUEST_TIMEOUT",)
    of_status = 408


class Conflict(Problem):
    of_status = 409


class TenantMismatch(Conflict):
    codes = ("TENANT_MISMATCH",)


class AlreadyDelivered(Conflict):
    codes = ("ALREADY_DELIVERED",)


class UsageNotCancellable(Conflict):
    codes = ("USAGE_NOT_CANCELLABLE",)


class NoUsageGateway(Conflict):
    codes = ("NO_USAGE_GATEWAY",)


class KeyNameTaken(Conflict):
    codes = ("KEY_NAME_TAKEN",)


class SessionOver(Problem):
    codes = ("SESSION_OVER",)
    of_status = 410


class TooLarge(Problem):
    codes = ("TOO_LARGE",)
    of_status = 413


class UriTooLong(Problem):
    codes = ("URI_TOO_LONG",)
    of_status = 414


class UnsupportedMediaType(Problem):
    codes = ("UNSUPPORTED_MEDIA_TYPE",)
    of_status = 415


class Misdirected(Problem):
    codes = ("MISDIRECTED",)
    of_status = 421


class KeyReused(Problem):
    codes = ("KEY_REUSED",)
    of_status = 422


class TooManyRequests(Problem):
    of_status = 429


class SessionLimit(TooManyRequests):
    codes = ("SESSION_LIMIT",)


class RateLimited(TooManyRequests):
    codes = ("RATE_LIMITED",)


class TooManyFailures(TooManyRequests):
    codes = ("TOO_MANY_FAILURES",)


class HeadersTooLarge(Problem):
    codes = ("HEADERS_TOO_LARGE",)
    of_status = 431


class Internal(Problem):
    codes = ("INTERNAL",)
    of_status = 500


class NotInstalled(Problem):
    codes = ("NOT_INSTALLED",)
    of_status = 501


class Unavailable(Problem):
    codes = ("UNAVAILABLE",)
    of_status = 503


class DatabaseUnavailable(Unavailable):
    codes = ("DATABASE_UNAVAILABLE",)


class Overloaded(Unavailable):
    codes = ("OVERLOADED",)


class TooManyConnections(Unavailable):
    codes = ("TOO_MANY_CONNECTIONS",)


class SchemaTooOld(Unavailable):
    codes = ("SCHEMA_TOO_OLD",)


class Starting(Unavailable):
    codes = ("STARTING",)


class Draining(Unavailable):
    codes = ("DRAINING",)


def _all_problems(base: type[Problem] = Problem) -> Iterator[type[Problem]]:
    yield base
    for kind in base.__subclasses__():
        yield from _all_problems(kind)


BY_CODE: dict[str, type[Problem]] = {code: kind for kind in _all_problems() for code in kind.codes}
_BY_STATUS = {kind.of_status: kind for kind in _all_problems() if "of_status" in vars(kind)}


def problem_class(code: str, status: int) -> type[Problem]:
    return BY_CODE.get(code) or _BY_STATUS.get(status, Problem)


def problem_of(status: int, headers: Mapping[str, str], content: bytes) -> Problem | UnexpectedAnswer:
    """Return the error for a response that is not a success."""
    request_id = headers.get("x-request-id")
    retry_after = seconds_of(headers.get("retry-after"))
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.DecodeError:
        document = _Document()
    if not document.code:
        if status not in RETRIED_STATUSES:
            text = content[:DETAIL_MAX].decode(errors="replace")
            return UnexpectedAnswer(
                f"got {status}, but the response is not Tenure's: {text}", status=status, request_id=request_id
            )
        document = _Document(detail=f"answered {status} without a problem document")
    return problem_class(document.code, status)(
        document.detail or document.title,
        status=status,
        code=document.code,
        title=document.title,
        request_id=document.request_id or request_id,
        close_reason=document.close_reason,
        retry_after=retry_after,
        errors=tuple(document.errors),
    )


RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""The statuses after which a retry may succeed. A proxy may send these statuses too, without a problem document."""


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds for which a `Retry-After` header, a number or a date, asks the client to wait.

    Return None if the header is missing or malformed.
    """
    if retry_after is None:
        return None
    with suppress(ValueError):
        seconds = float(retry_after)
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    try:
        return max((parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
