"""The messages of a stream, and the settings of its connection."""

from typing import Any

import msgspec

from tenure_client._core import USER_AGENT, Options
from tenure_client.errors import Problem, problem_class
from tenure_client.models import OpenedSession, StreamCounters


class Partial(msgspec.Struct, frozen=True):
    """A text that may still change: the next `Partial` or `Final` replaces it."""

    text: str


class Final(msgspec.Struct, frozen=True):
    text: str


class StreamError(msgspec.Struct, frozen=True):
    """An error that the server or its handler reports. If it is fatal, the stream ends after it."""

    code: str
    message: str


class SessionEnd(msgspec.Struct, frozen=True, rename="camel"):
    reason: str
    metrics: StreamCounters | None = None


class Replaced(msgspec.Struct, frozen=True):
    pass


Message = str | bytes | Partial | Final | StreamError

_KINDS: dict[str, Any] = {
    "session_start": OpenedSession,
    "session_end": SessionEnd,
    "partial": Partial,
    "final": Final,
    "error": StreamError,
    "replaced": Replaced,
}

STATUSES = {
    "INVALID": 400,
    "UNAUTHENTICATED": 401,
    "CAPACITY_OF_ANOTHER_TENANT": 403,
    "NOT_FOUND": 404,
    "TENANT_MISMATCH": 409,
    "SESSION_OVER": 410,
    "TOO_LARGE": 413,
    "SESSION_LIMIT": 429,
    "TOO_MANY_PINGS": 429,
    "HANDLER_FAILED": 500,
}
"""The HTTP status of each code in a `StreamError`. A code that is missing here gets the status 503."""


def parsed(message: str | bytes) -> Any:
    """Return a message of a known type as an object of that type, and any other message, such as bytes, unchanged."""
    if isinstance(message, bytes) or '"type"' not in message:
        return message
    try:
        kind = msgspec.json.decode(message, type=_Kind).type
        return msgspec.json.decode(message, type=_KINDS[kind])
    except (msgspec.DecodeError, KeyError):
        return message


class _Kind(msgspec.Struct):
    type: str


def error_of(error: StreamError, end: SessionEnd | None) -> Problem:
    status = STATUSES.get(error.code, 503)
    reason = None if end is None else end.reason
    return problem_class(error.code, status)(error.message, status=status, code=error.code, close_reason=reason)


def socket_url(options: Options, path: str) -> str:
    """Return the address of a stream. Raise with a `FakeServer`, because a stream would not use its transport."""
    if getattr(options.transport, "is_fake", False):
        raise NotImplementedError(f"FakeServer has no {path}")
    return "ws" + options.address_of(path).removeprefix("http")


def socket_options(options: Options) -> dict[str, Any]:
    secure: dict[str, Any] = {}
    if options.url.startswith("https") and options.verify is not True:
        secure["ssl"] = options.verify
    return {
        "additional_headers": {**options.headers, **options.key.header()},
        "user_agent_header": USER_AGENT,
        "open_timeout": options.timeout,
        "compression": None,
        "max_size": None,
        **secure,
    }
