"""The position of an operation in a trace: the ids of its span and of its parent span, and how they are passed on.

A *span* is an operation with a beginning and an end: a request, a store operation, a run of a job, an attempt to
deliver a submission. Spans with the same trace id are a *trace*. Other systems pass the ids on in the header
`traceparent` (W3C Trace Context).

`current_trace` is the position of the operation that the current task executes, or the positions of the requests of a
batch. It is None if traces are off, or if no operation is sampled. Then passing the position on costs no more than the
look-up of `current_trace`. `traces.py` makes the positions and exports the spans.
"""

import re
from collections.abc import Sequence
from contextvars import ContextVar

import msgspec

TRACEPARENT = "traceparent"
_parse = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL).fullmatch
_FIRST_VERSION_LENGTH = 55
SAMPLED = 1


class Trace(msgspec.Struct, frozen=True, gc=False):
    """The position of one sampled operation in a trace. An operation that is not sampled has no position."""

    trace_id: int
    span_id: int
    parent_id: int | None = None
    request_id: str | None = None
    """The id of the request on whose behalf the operation runs, if there is one."""

    @property
    def traceparent(self) -> str:
        """The header that makes an operation of another system a child of this one."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{SAMPLED:02x}"


class BatchTrace(msgspec.Struct, frozen=True):
    """The positions of the sampled requests in a batch. The batch itself belongs to none of their traces."""

    members: Sequence[Trace]


current_trace: ContextVar[Trace | BatchTrace | None] = ContextVar("current_trace", default=None)


class Caller(msgspec.Struct, frozen=True):
    """The position of the caller, from its header `traceparent`."""

    trace_id: int
    span_id: int
    is_sampled: bool


def caller_of(traceparent: bytes) -> Caller | None:
    """Parse the header. Return None if it is not valid: the standard demands that such a header is ignored."""
    found = _parse(traceparent)
    # A header of version 00 has a fixed length; only later versions may have more fields.
    if found is None or (traceparent[:2] == b"00" and len(traceparent) != _FIRST_VERSION_LENGTH):
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return Caller(trace_id, span_id, bool(flags & SAMPLED)) if trace_id and span_id else None


def current_traceparent() -> str | None:
    """Return the header for the current operation; None if it is not sampled, or is a batch."""
    trace = current_trace.get()
    return trace.traceparent if isinstance(trace, Trace) else None
