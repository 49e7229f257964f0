"""Traces: which operations are sampled, and which span is the parent of each span."""

import asyncio
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tenure.batching.coalescer import Coalescer
from tenure.domain.jobs import RunOutcome
from tenure.errors import ConfigurationError
from tenure.telemetry.events import (
    AttemptAnswered,
    AttemptSending,
    JobFailed,
    JobFinished,
    JobLockLost,
    JobStarted,
    RequestAnswered,
    StoreCalled,
    Telemetry,
)
from tenure.telemetry.trace_context import BatchTrace, Trace, caller_of, current_trace, current_traceparent
from tenure.telemetry.traces import LINKS_MAX, Exporter, Span, Traces

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = f"00-{TRACE:032x}-{SPAN:016x}-01"
NOT_SAMPLED = SAMPLED[:-1] + "0"


class Traced:
    """Telemetry with traces. Collects the spans in `spans`. Its clock, `now`, moves only when a test moves it."""

    def __init__(self, sample_ratio: float = 1.0, per_second: int = 1000, *, follow_callers: bool = True) -> None:
        self.spans: list[Span] = []
        self.now = 100.0
        self.telemetry = Telemetry()
        traces = Traces(
            self.spans.append, sample_ratio, per_second, follow_callers=follow_callers, clock=lambda: self.now
        )
        traces.subscribe_to(self.telemetry)

    def begin(self, traceparent: str | None = None) -> Trace | None:
        assert self.telemetry.begin_trace is not None
        return self.telemetry.begin_trace(None if traceparent is None else traceparent.encode(), "id-1")

    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture(autouse=True)
def no_trace() -> None:
    current_trace.set(None)


def test_traceparent_of_caller_is_parsed() -> None:
    caller = caller_of(SAMPLED.encode())
    assert caller is not None
    assert (caller.trace_id, caller.span_id, caller.is_sampled) == (TRACE, SPAN, True)
    unsampled = caller_of(NOT_SAMPLED.encode())
    assert unsampled is not None
    assert not unsampled.is_sampled
    later_version = caller_of(b"01" + SAMPLED[2:].encode() + b"-more")
    assert later_version is not None
    assert later_version.trace_id == TRACE


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        SAMPLED + "-more",
        "ff" + SAMPLED[2:],
        SAMPLED.upper(),
        SAMPLED + " ",
        f"00-{0:032x}-{SPAN:016x}-01",
        f"00-{TRACE:032x}-{0:016x}-01",
    ],
)
def test_malformed_traceparent_is_ignored(header: str) -> None:
    assert caller_of(header.encode()) is None
    trace = Traced().begin(header)
    assert trace is not None
    assert (trace.trace_id != TRACE, trace.parent_id) == (True, None)


def test_caller_decides_whether_its_request_is_sampled() -> None:
    never, always = Traced(0.0), Traced(1.0)
    child = never.begin(SAMPLED)
    assert child is not None
    assert (child.trace_id, child.parent_id, child.request_id) == (TRACE, SPAN, "id-1")
    assert child.span_id not in (0, SPAN)
    assert always.begin(NOT_SAMPLED) is None
    assert never.begin() is None
    assert always.begin() is not None


def test_traceparent_is_ignored_if_callers_are_not_followed() -> None:
    assert Traced(0.0, follow_callers=False).begin(SAMPLED) is None
    trace = Traced(1.0, follow_callers=False).begin(NOT_SAMPLED)
    assert trace is not None
    assert trace.parent_id is None


def test_ratio_is_the_share_of_sampled_requests() -> None:
    traced = Traced(0.25, per_second=1_000_000)
    found = 0
    for _ in range(4000):
        found += traced.begin() is not None
        traced.now += 0.001
    assert 800 < found < 1200


def test_sampling_rate_is_limited_and_samples_are_evenly_spread() -> None:
    traced = Traced(per_second=100)
    sampled = []
    for step in range(5000):
        traced.now = 100 + step / 1000
        if traced.begin(SAMPLED if step % 2 else None) is not None:
            sampled.append(step)
    assert 500 <= len(sampled) <= 520
    assert max(later - earlier for earlier, later in pairwise(sampled)) <= 11


def test_span_of_request_with_status_503_is_an_error() -> None:
    traced = Traced()
    for status in (201, 404, 503):
        trace = traced.begin()
        traced.telemetry.report(RequestAnswered("PUT /sessions", status, 0.5, "PUT", "id-1", "key:x", trace))
    traced.telemetry.report(RequestAnswered("PUT /sessions", 200, 0.5, "PUT", "id-2", None, None))
    assert [span.error for span in traced.spans] == [None, None, "status 503"]
    assert traced.spans[0].attributes == {
        "http.request.method": "PUT",
        "http.route": "/sessions",
        "http.response.status_code": 201,
        "tenure.subject": "key:x",
    }


def test_store_operation_is_a_child_of_its_request() -> None:
    traced = Traced()
    traced.telemetry.report(StoreCalled("read_board", 0.1, None))
    assert traced.spans == []
    trace = traced.begin()
    current_trace.set(trace)
    traced.telemetry.report(StoreCalled("get_session", 0.1, None, "DatabaseUnavailable"))
    (span,) = traced.spans
    assert trace is not None
    assert (span.trace.trace_id, span.trace.parent_id, span.trace.request_id) == (trace.trace_id, trace.span_id, "id-1")
    assert span.error == "DatabaseUnavailable"


def test_number_of_links_of_batch_is_limited() -> None:
    traced = Traced()
    members = [Trace(number, number) for number in range(1, LINKS_MAX + 3)]
    current_trace.set(BatchTrace(members))
    traced.telemetry.report(StoreCalled("heartbeat_sessions", 0.1, len(members)))
    *own, batch = traced.spans
    assert [span.trace.parent_id for span in own] == [member.span_id for member in members]
    assert len(batch.links) == LINKS_MAX
    assert {link for span in own for link in span.links} == {batch.trace}


def test_job_run_is_one_span_whatever_its_outcome() -> None:
    traced, failure = Traced(), ValueError("broken")
    ends = {
        "succeeded": [JobFinished("prune", 1, RunOutcome.SUCCEEDED, 2.0, {"rows": 3})],
        "failed": [
            JobFailed("prune", 1, "broken", failure, 2.0, {}),
            JobFinished("prune", 1, RunOutcome.FAILED, 2.0, {}),
        ],
        "abandoned": [JobLockLost("prune", 1, "lost", 2.0)],
    }
    for reported in ends.values():
        traced.telemetry.report(JobStarted("prune", 1))
        for event in reported:
            traced.telemetry.report(event)
        assert current_trace.get() is None
    assert [span.attributes["tenure.job.outcome"] for span in traced.spans] == list(ends)
    assert [span.error for span in traced.spans] == [None, "broken", "lost"]
    assert traced.spans[0].attributes["tenure.job.counts.rows"] == 3


def test_attempt_continues_the_trace_of_its_submission() -> None:
    traced = Traced(0.0)
    traced.telemetry.report(AttemptSending("crm", "s-1", "id-1", SAMPLED))
    sent = current_traceparent()
    traced.telemetry.report(AttemptAnswered("crm", "s-1", 0.5, None, "timed out"))
    (span,) = traced.spans
    assert (span.trace.trace_id, span.trace.parent_id, span.trace.request_id) == (TRACE, SPAN, "id-1")
    assert sent == f"00-{TRACE:032x}-{span.trace.span_id:016x}-01"
    assert span.error == "timed out"


def test_unsampled_attempt_sends_no_traceparent() -> None:
    traced = Traced(0.0)
    traced.telemetry.report(AttemptSending("crm", "s-1", "id-1", None))
    assert current_traceparent() is None
    traced.telemetry.report(AttemptAnswered("crm", "s-1", 0.5, 200, None))
    assert traced.spans == []


async def test_batch_has_only_traces_of_its_requests_and_retry_keeps_trace_of_its_request() -> None:
    traced, batches = Traced(), []

    async def run(items: Sequence[str]) -> Sequence[str]:
        batches.append((list(items), current_trace.get()))
        return list(items)

    coalescer = Coalescer(run, 1, traced.telemetry)
    first, second = Trace(1, 10), Trace(2, 20)
    retried: asyncio.Future[Trace | BatchTrace | None] = asyncio.get_running_loop().create_future()

    def submit(trace: Trace | None, item: str, *, retry: bool = False) -> None:
        def done(_result: str | Exception) -> None:
            if retry:
                asyncio.get_running_loop().call_soon(lambda: retried.set_result(current_trace.get()))

        current_trace.set(trace)
        coalescer.submit(item, done)
        current_trace.set(None)

    submit(first, "a")
    submit(None, "b")
    submit(second, "c", retry=True)
    assert await retried == second
    await coalescer.run("d")
    assert batches == [(["a", "b", "c"], BatchTrace([first, second])), (["d"], None)]


def test_missing_extra_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"traces need the extra otel; install tenure\[otel\]"):
        Exporter("http://127.0.0.1:9", {}, "tenure", "1", Telemetry())
