"""The caller of a request."""

from collections.abc import Callable, Sequence

import msgspec


class Caller(msgspec.Struct, frozen=True):
    subject: str


ANONYMOUS = Caller("anonymous")

Identify = Callable[[Sequence[tuple[bytes, bytes]]], Caller]
"""Returns the caller of a request with these headers."""


def identify_as_anonymous(_headers: Sequence[tuple[bytes, bytes]]) -> Caller:
    """Return the anonymous caller. Tenure has no credentials yet: every caller may do everything."""
    return ANONYMOUS
