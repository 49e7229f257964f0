"""Traces: exports a span for each sampled request, store operation, run of a job and attempt, over OTLP/HTTP.

Off by default. The packages of the extra `otel` are imported only if an endpoint is configured. While traces are off,
this module subscribes to no event, and no request or task has a position in a trace.

The spans, and their places in a trace:

- A **request** is a child of the span that its header `traceparent` names, or the first span of a new trace.
- A **store operation** is a child of the request or run for which it is executed. Most operations on sessions serve a
  whole batch of requests. Then each sampled request has its own child, with the times of the operation, and the batch
  is a span in its own trace. Links connect the span of the batch with each child, in both directions.
- A **run of a job** is the first span of a trace.
- An **attempt** is a child of the request that submitted the payload, whichever instance sends it, and however much
  later. Its own position is sent to the receiver in `traceparent`. If that request was not sampled, or if Tenure itself
  generates the payload, the attempt is the first span of a trace.

If `follow_callers` is true, a caller that sends `traceparent` decides whether its request is sampled. Of all other
requests, of the runs, and of the attempts that are the first span of a trace, the share `sample_ratio` is sampled.
Tracing a sampled request costs about 120 µs, mostly for the encoding of its spans; opening a session costs 50 µs in
all. So at most `per_second` requests are sampled in a second, evenly spread. However many requests there are, tracing
takes a bounded part of a core.

A span is created when the event that ends it is reported; the tracer of the SDK is not used. A thread encodes and sends
the spans. Its queue is bounded: while the collector does not respond, spans are dropped, and requests are not delayed.
The attributes of a span contain routes, names, ids and counts, but no address, no header, no body and no credential.
The status of a failed span contains the error, for a run the message of the exception that the job raised.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tenure.clock import monotonic, wall_microseconds
from tenure.domain.jobs import RunOutcome
from tenure.errors import ConfigurationError
from tenure.telemetry.events import (
    AttemptAnswered,
    AttemptSending,
    JobAbandoned,
    JobFailed,
    JobFinished,
    JobLockLost,
    JobStarted,
    RequestAnswered,
    SpansNotExported,
    StoreCalled,
    Telemetry,
)
from tenure.telemetry.trace_context import Trace, caller_of, current_trace

FLUSH_SECONDS = 2.0
"""The longest time that a stopping instance waits until its last spans are sent."""
EXPORT_SECONDS = 5.0
"""The most that sending one batch of spans may take, retries included."""
BURST_SECONDS = 0.1
"""As many requests may be sampled at once as the rate `per_second` permits in this many seconds."""
LINKS_MAX = 128
"""The most links of one span. Collectors drop the links beyond this number."""
SERVER_ERRORS = 500

Export = Callable[["Span"], None]


class Span(msgspec.Struct, frozen=True):
    """A span that has ended. `Exporter` converts it to a span of the SDK."""

    trace: Trace
    name: str
    kind: str
    """The name of a member of `SpanKind`."""
    seconds: float
    attributes: Mapping[str, str | int | float]
    links: Sequence[Trace] = ()
    error: str | None = None
    """Why the operation failed; None if it did not."""


class Traces:
    """Gives positions to the operations that are sampled, and exports a span when such an operation ends."""

    def __init__(
        self,
        export: Export,
        sample_ratio: float,
        per_second: int,
        *,
        follow_callers: bool,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._export = export
        self._ratio = sample_ratio
        self._interval = 1 / per_second
        self._follows = follow_callers
        self._clock = clock
        self._used_until = 0.0
        """The requests sampled so far use up the rate until this instant."""
        # Not for secrets. A separate generator, so that no other code can seed it.
        self._random = random.Random()  # noqa: S311

    def subscribe_to(self, telemetry: Telemetry) -> None:
        telemetry.begin_trace = self.begin_request
        telemetry.subscribe(RequestAnswered, self._end_request)
        telemetry.subscribe(StoreCalled, self._end_call)
        telemetry.subscribe(JobStarted, self._begin_run)
        telemetry.subscribe(JobFailed, self._note_failure)
        telemetry.subscribe(JobFinished, self._end_run)
        telemetry.subscribe(JobAbandoned, self._abandon_run)
        telemetry.subscribe(JobLockLost, self._lose_run)
        telemetry.subscribe(AttemptSending, self._begin_attempt)
        telemetry.subscribe(AttemptAnswered, self._end_attempt)

    # Requests.

    def begin_request(self, traceparent: bytes | None, request_id: str) -> Trace | None:
        caller = caller_of(traceparent) if traceparent is not None and self._follows else None
        is_chosen = self._random.random() < self._ratio if caller is None else caller.is_sampled
        if not is_chosen or not self._is_within_rate():
            return None
        if caller is None:
            return Trace(self._trace_id(), self._span_id(), None, request_id)
        return Trace(caller.trace_id, self._span_id(), caller.span_id, request_id)

    def _is_within_rate(self) -> bool:
        now = self._clock()
        until = max(self._used_until, now)
        if until - now > BURST_SECONDS:
            return False
        self._used_until = until + self._interval
        return True

    def _end_request(self, event: RequestAnswered) -> None:
        if event.trace is None:
            return
        attributes: dict[str, str | int | float] = {
            "http.request.method": event.method,
            "http.route": event.route.rpartition(" ")[2],
            "http.response.status_code": event.status,
        }
        if event.subject is not None:
            attributes["tenure.subject"] = event.subject
        error = f"status {event.status}" if event.status >= SERVER_ERRORS else None
        self._export(Span(event.trace, event.route, "SERVER", event.seconds, attributes, error=error))

    # Store operations.

    def _end_call(self, event: StoreCalled) -> None:
        parent = current_trace.get()
        if parent is None:
            return
        attributes: dict[str, str | int | float] = {"db.operation.name": event.operation}
        if event.items is not None:
            attributes["db.operation.batch.size"] = event.items
        end = partial(_call_span, event, attributes)
        if isinstance(parent, Trace):
            self._export(end(self._child(parent)))
            return
        batch = Trace(self._trace_id(), self._span_id())
        calls = [self._child(member) for member in parent.members]
        for call in calls:
            self._export(end(call, [batch]))
        self._export(end(batch, calls[:LINKS_MAX]))

    # Runs. `JobStarted` is reported in the task of the run, so the position applies to all that the run does.

    def _begin_run(self, _event: JobStarted) -> None:
        current_trace.set(self._first())

    def _note_failure(self, event: JobFailed) -> None:
        self._end_run_with(event.job, event.epoch, event.seconds, RunOutcome.FAILED.value, event.counts, event.error)

    def _end_run(self, event: JobFinished) -> None:
        self._end_run_with(event.job, event.epoch, event.seconds, event.outcome.value, event.counts)

    def _abandon_run(self, event: JobAbandoned) -> None:
        outcome = RunOutcome.ABANDONED.value
        self._end_run_with(event.job, event.epoch, event.seconds, outcome, event.counts, event.error)

    def _lose_run(self, event: JobLockLost) -> None:
        self._end_run_with(event.job, event.epoch, event.seconds, RunOutcome.ABANDONED.value, {}, event.error)

    def _end_run_with(
        self, job: str, epoch: int, seconds: float, outcome: str, counts: Mapping[str, int], error: str | None = None
    ) -> None:
        """Exports the span of the run once: a run that fails is reported as failed, and then as finished."""
        trace = current_trace.get()
        if not isinstance(trace, Trace):
            return
        current_trace.set(None)
        attributes: dict[str, str | int | float] = {
            "tenure.job": job,
            "tenure.job.epoch": epoch,
            "tenure.job.outcome": outcome,
        }
        attributes |= {f"tenure.job.counts.{name}": count for name, count in counts.items()}
        self._export(Span(trace, f"job {job}", "INTERNAL", seconds, attributes, error=error))

    # Attempts. Both events are reported in the task that sends the request.

    def _begin_attempt(self, event: AttemptSending) -> None:
        caller = None if event.traceparent is None else caller_of(event.traceparent.encode())
        if caller is None:
            current_trace.set(self._first(event.request_id))
        else:
            current_trace.set(Trace(caller.trace_id, self._span_id(), caller.span_id, event.request_id))

    def _end_attempt(self, event: AttemptAnswered) -> None:
        trace = current_trace.get()
        if not isinstance(trace, Trace):
            return
        attributes: dict[str, str | int | float] = {
            "http.request.method": "POST",
            "tenure.gateway": event.gateway,
            "tenure.submission_id": event.submission_id,
        }
        if event.status is not None:
            attributes["http.response.status_code"] = event.status
        failed = event.status is None or event.status >= SERVER_ERRORS
        error = (event.error or f"status {event.status}") if failed else None
        self._export(Span(trace, f"attempt {event.gateway}", "CLIENT", event.seconds, attributes, error=error))

    # Ids.

    def _first(self, request_id: str | None = None) -> Trace | None:
        """Return the position of the first span of a new trace, or None if it is not sampled."""
        if self._random.random() >= self._ratio:
            return None
        return Trace(self._trace_id(), self._span_id(), None, request_id)

    def _child(self, parent: Trace) -> Trace:
        return Trace(parent.trace_id, self._span_id(), parent.span_id, parent.request_id)

    def _trace_id(self) -> int:
        return self._random.getrandbits(128) or 1

    def _span_id(self) -> int:
        return self._random.getrandbits(64) or 1


def _call_span(
    event: StoreCalled, attributes: Mapping[str, str | int | float], trace: Trace, links: Sequence[Trace] = ()
) -> Span:
    return Span(trace, f"store {event.operation}", "CLIENT", event.seconds, attributes, links, event.error)


class Exporter:
    """Sends spans with the SDK. `close` sends the last ones."""

    def __init__(
        self, endpoint: str, headers: Mapping[str, str], service_name: str, version: str, telemetry: Telemetry
    ) -> None:
        try:
            # Import only here: the packages belong to an extra, and take a tenth of a second to import.
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(
                "traces.endpoint: traces need the extra otel; install tenure[otel], or do not set an endpoint"
            ) from error
        self._convert = _converter(Resource.create({"service.name": service_name, "service.version": version}), version)
        # Silence the SDK: its log lines contain the address, which may contain a token, and the SDK logs a line for
        # each dropped span.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        sender = OTLPSpanExporter(endpoint, headers=dict(headers) or None, timeout=EXPORT_SECONDS)
        self._processor = BatchSpanProcessor(_reporting(sender, telemetry))

    def export(self, span: Span) -> None:
        self._processor.on_end(self._convert(span))

    def close(self) -> None:
        """Sends the last spans. Blocks for FLUSH_SECONDS at most: the SDK itself has no such limit."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_SECONDS)


def _reporting(sender: Any, telemetry: Telemetry) -> Any:
    """Make the sender report each batch that the collector did not accept."""
    send = sender.export

    def export(spans: Sequence[Any]) -> Any:
        result = send(spans)
        if result.name != "SUCCESS":
            telemetry.report(SpansNotExported(len(spans)))
        return result

    sender.export = export
    return sender


def _converter(resource: Any, version: str) -> Callable[[Span], Any]:
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 - see Exporter
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags  # noqa: PLC0415

    scope, sampled = InstrumentationScope("tenure", version), TraceFlags(TraceFlags.SAMPLED)
    kinds = {kind.name: kind for kind in SpanKind}
    unset = Status()

    def context(trace_id: int, span_id: int) -> Any:
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=sampled)

    def convert(span: Span) -> Any:
        trace, end = span.trace, wall_microseconds() * 1000
        attributes = dict(span.attributes)
        if trace.request_id is not None:
            attributes["tenure.request_id"] = trace.request_id
        return ReadableSpan(
            span.name,
            context(trace.trace_id, trace.span_id),
            None if trace.parent_id is None else context(trace.trace_id, trace.parent_id),
            resource,
            attributes,
            links=[Link(context(link.trace_id, link.span_id)) for link in span.links],
            kind=kinds[span.kind],
            status=unset if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=end - int(span.seconds * 1_000_000_000),
            end_time=end,
            instrumentation_scope=scope,
        )

    return convert
