"""Errors as RFC 9457 problem details, the same from both lanes."""

import msgspec

from tenure.errors import FieldError, Invalid, Problem, SessionOver

MEDIA_TYPE = "application/problem+json"


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    type: str
    title: str
    status: int
    detail: str
    error: str
    code: str
    errors: tuple[FieldError, ...] = ()
    close_reason: str | None = None


def details(problem: Problem) -> ProblemDetails:
    return ProblemDetails(
        type=f"urn:tenure:{problem.slug}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        error=problem.detail,
        code=problem.code,
        errors=problem.errors if isinstance(problem, Invalid) else (),
        close_reason=problem.close_reason if isinstance(problem, SessionOver) else None,
    )
