"""Responses of the HTTP and WebSocket routes, and errors as RFC 9457 problem details."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.errors import FieldError, Internal, Invalid, Problem, SessionOver
from tenure.naming import CAMEL, Names
from tenure.telemetry.events import HttpFailed, Telemetry

Headers = Sequence[tuple[bytes, bytes]]

MEDIA_TYPE = "application/problem+json"
JSON: Headers = ((b"content-type", b"application/json"),)
HTML: Headers = ((b"content-type", b"text/html; charset=utf-8"),)
PROBLEM: Headers = ((b"content-type", MEDIA_TYPE.encode()),)


class Answer(msgspec.Struct):
    """A response. If `content` is bytes, it is sent as it is; any other value is encoded as JSON."""

    content: Any
    status: int = 200
    headers: Headers = JSON

    def body(self, request_id: str | None = None, names: Names = CAMEL) -> bytes:
        """Encodes the content. Adds the request id to a problem: code that raises a problem need not know the id."""
        content = self.content
        kind = type(content)
        if kind is bytes:
            return content  # type: ignore[no-any-return]
        if kind is ProblemDetails:
            content = _with_names(replace(content, request_id=request_id), names)
        return names.encode(content)


class StreamedAnswer(msgspec.Struct):
    """A response whose body is sent piece by piece, until `pieces` ends or the client disconnects.

    `pieces` is closed in either case, and also when the credential of the request becomes invalid.
    """

    pieces: AsyncGenerator[bytes]
    headers: Headers
    status: int = 200


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    type: str
    title: str
    status: int
    detail: str
    error: str
    code: str
    errors: tuple[FieldError, ...] = ()
    close_reason: str | None = None
    request_id: str | None = None


def _with_names(details: ProblemDetails, names: Names) -> ProblemDetails:
    """Converts the names of fields in the texts of a problem from camelCase to the style of `names`."""
    if names is CAMEL:
        return details
    errors = tuple(FieldError(names.name(each.field), names.text(each.message)) for each in details.errors)
    detail = names.text(details.detail)
    return replace(details, detail=detail, error=detail, errors=errors)


def refusal(problem: Problem) -> Answer:
    details = ProblemDetails(
        type=f"urn:tenure:{problem.slug}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        error=problem.detail,
        code=problem.code,
        errors=problem.errors if isinstance(problem, Invalid) else (),
        close_reason=problem.close_reason if isinstance(problem, SessionOver) else None,
    )
    headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    return Answer(details, problem.status, [*PROBLEM, *headers])


def failure(error: BaseException, telemetry: Telemetry, request_id: str | None = None) -> Answer:
    """Return the response for an exception. An exception that is not a `Problem` is reported, and gets status 500."""
    if isinstance(error, Problem):
        return refusal(error)
    telemetry.report(HttpFailed(error, request_id))
    return refusal(Internal("an unexpected error occurred; the log has the details"))
