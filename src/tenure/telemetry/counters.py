"""Counts telemetry events, for `GET /metrics`, `GET /sessions/metrics` and `GET /activity`. Nothing else counts events.

Each worker counts since its own start. `Counters.of_group` adds up the counters of all workers of the process group;
`metrics.py` renders the counters of each worker separately.

A count is a plain integer. An observation of a histogram increments one bucket in a list, and is added to a sum.
The number of series is limited, because every label has few values, which come from the code, from the table of routes
or from the configuration. No label names a user, a tenant, a capacity or a session.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tenure.domain.activity import CLOSED
from tenure.domain.jobs import RunOutcome
from tenure.domain.leases import JOB_LOCK
from tenure.domain.sessions import CloseReason, OpenOutcome
from tenure.domain.submissions import AttemptOutcome
from tenure.telemetry.events import (
    AttemptEnded,
    HeartbeatsAnswered,
    JobFinished,
    JobReclaimed,
    LeaderAcquired,
    LeaseContended,
    OpenRefused,
    RequestAnswered,
    RequestsRefused,
    SessionClosed,
    SessionOpened,
    StoreCalled,
    StoreRetried,
    StreamReceived,
    StreamRefused,
    StreamSent,
    Telemetry,
)
from tenure.telemetry.metrics import BATCH_EDGES, HTTP_EDGES, JOB_EDGES, STORE_EDGES, Labels, Series, Value, encode
from tenure.telemetry.metrics import FIGURE as METRICS
from tenure.telemetry.siblings import Siblings

FIGURE = "counters"
_OPENED = (OpenOutcome.CREATED, OpenOutcome.EXISTING, OpenOutcome.UPGRADED)
_NONE_OPENED: dict[Any, int] = {(outcome, kind): 0 for outcome in _OPENED for kind in (1, 2, 3)}
_REFUSED = (OpenOutcome.SESSION_LIMIT, OpenOutcome.CAPACITY_OF_ANOTHER_TENANT, OpenOutcome.TENANT_MISMATCH)
_NONE_CLOSED: dict[Any, int] = {reason.value: 0 for reason in CloseReason}
_RESULTS = {"partials_sent": "partial", "finals_sent": "final", "errors_sent": "error"}
STREAMS_LIMIT = "max_per_instance"

Gauges = Callable[[], Series]


class Totals(msgspec.Struct, frozen=True):
    """The counters of one worker, or the sums of the counters of several workers."""

    opened: dict[tuple[str, int], int]
    """Open requests that returned a session, by outcome and kind. Includes the outcome `existing`."""
    closed: dict[str, int]
    """Ends of sessions by reason. Counts only the ends that these workers recorded themselves."""
    streamed: dict[str, int]
    """The counters of streams, by the names of the fields of `StreamCounters`."""


class GroupTotals(msgspec.Struct, frozen=True):
    totals: Totals
    workers: int
    """The number of workers in the process group."""
    answered: int
    """The number of workers that answered in time. Only their counters are in the totals."""


class Histogram:
    """The observations of one family: for each combination of labels, the counts of the buckets, and the sum."""

    __slots__ = ("_edges", "series")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self.series: dict[Any, list[float]] = {}

    def observe(self, labels: Any, value: float) -> None:
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = [0] * (len(self._edges) + 1) + [0.0]
        series[bisect_left(self._edges, value)] += 1
        series[-1] += value


class Counters:
    def __init__(self, telemetry: Telemetry, siblings: Siblings) -> None:
        self._opened: Counter[tuple[str, int]] = Counter()
        self._open_refused: Counter[str] = Counter(dict.fromkeys((outcome.value for outcome in _REFUSED), 0))
        self._closed: Counter[str] = Counter()
        self._streamed: Counter[str] = Counter()
        self._renewed = self._late = self._sent_bytes = 0
        self._job_runs: Counter[tuple[str, str]] = Counter()
        self._job_seconds = Histogram(JOB_EDGES)
        self._contended: Counter[str] = Counter()
        self._reclaimed: Counter[str] = Counter()
        self._acquired: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._retries: Counter[str] = Counter()
        self._store_seconds = Histogram(STORE_EDGES)
        self._batch_sizes = Histogram(BATCH_EDGES)
        self._requests = Histogram(HTTP_EDGES)
        self._refused: Counter[str] = Counter({STREAMS_LIMIT: 0})
        self._gauges: list[Gauges] = []
        self._siblings = siblings
        siblings.register(FIGURE, self._encoded)
        siblings.register(METRICS, lambda: encode(self.series()))
        telemetry.subscribe(SessionOpened, self._count_opened)
        telemetry.subscribe(OpenRefused, self._count_open_refused)
        telemetry.subscribe(SessionClosed, self._count_closed)
        telemetry.subscribe(HeartbeatsAnswered, self._count_heartbeats)
        telemetry.subscribe(StreamReceived, self._count_received)
        telemetry.subscribe(StreamSent, self._count_sent)
        telemetry.subscribe(StreamRefused, self._count_refused_stream)
        telemetry.subscribe(JobFinished, self._count_run)
        telemetry.subscribe(JobReclaimed, self._count_reclaimed)
        telemetry.subscribe(LeaderAcquired, self._count_acquired)
        telemetry.subscribe(LeaseContended, self._count_contended)
        telemetry.subscribe(AttemptEnded, self._count_attempt)
        telemetry.subscribe(StoreRetried, self._count_retry)
        telemetry.subscribe(StoreCalled, self._observe_call)
        telemetry.subscribe(RequestAnswered, self._observe_request)
        telemetry.subscribe(RequestsRefused, self._count_refused)

    def expect(self, *, jobs: Sequence[str] = (), leases: Sequence[str] = (), gateways: Sequence[str] = ()) -> None:
        """Starts the counters of these names at 0. Prometheus cannot see the first increase of a series that begins
        with 1.
        """
        locks = [JOB_LOCK + job for job in jobs]
        self._job_runs.update({(job, outcome.value): 0 for job in jobs for outcome in RunOutcome})
        self._acquired.update(dict.fromkeys(leases, 0))
        for counter in (self._contended, self._reclaimed):
            counter.update(dict.fromkeys([*leases, *locks], 0))
        self._attempts.update({(gateway, outcome.value): 0 for gateway in gateways for outcome in AttemptOutcome})

    def add_gauges(self, source: Gauges) -> None:
        """Adds gauges, which are read at each scrape. `source` must be fast."""
        self._gauges.append(source)

    async def of_group(self) -> GroupTotals:
        """Return the sums over this worker and all other workers that answer within a second."""
        parts = [_decode(figure) for figure in await self._siblings.ask(FIGURE)]
        opened: Counter[tuple[str, int]] = Counter()
        closed: Counter[str] = Counter()
        streamed: Counter[str] = Counter()
        for part in parts:
            opened.update(part.opened)
            closed.update(part.closed)
            streamed.update(part.streamed)
        return GroupTotals(Totals(opened, closed, streamed), self._siblings.workers, len(parts))

    def series(self) -> Series:
        """Return the series of this worker."""
        found: dict[str, Mapping[Labels, Value]] = {
            "tenure_sessions_opened_total": _as_series(_NONE_OPENED | self._opened),
            "tenure_sessions_refused_total": _as_series(self._open_refused),
            "tenure_sessions_closed_total": _as_series(_NONE_CLOSED | self._closed),
            "tenure_sessions_heartbeat_total": {(): self._renewed},
            "tenure_sessions_heartbeat_late_total": {(): self._late},
            "tenure_sessions_lease_expired_total": {(): self._closed[CloseReason.LEASE_EXPIRED.value]},
            "tenure_job_runs_total": _as_series(self._job_runs),
            "tenure_job_duration_seconds": _as_series(self._job_seconds.series),
            "tenure_lease_contention_total": _as_series(self._contended),
            "tenure_leases_reclaimed_total": _as_series(self._reclaimed),
            "tenure_leader_acquired_total": _as_series(self._acquired),
            "tenure_submission_attempts_total": _as_series(self._attempts),
            "tenure_store_batch_size": _as_series(self._batch_sizes.series),
            "tenure_store_seconds": _as_series(self._store_seconds.series),
            "tenure_store_retries_total": _as_series(self._retries),
            "tenure_http_request_seconds": _as_series(self._requests.series),
            "tenure_http_refused_total": _as_series(self._refused),
            "tenure_stream_received_bytes_total": {(): self._streamed["bytes_received"]},
            "tenure_stream_sent_bytes_total": {(): self._sent_bytes},
            "tenure_stream_received_messages_total": {(): self._streamed["chunks"]},
            "tenure_stream_sent_messages_total": {(): self._streamed["messages_sent"]},
            "tenure_stream_results_total": {(name,): self._streamed[kind] for kind, name in _RESULTS.items()},
            "tenure_stream_audio_seconds_total": {(): self._streamed["audio_duration_ms"] / 1000},
        }
        for source in self._gauges:
            found.update(source())
        return found

    def activity(self) -> dict[str, int]:
        """Return the counts of this worker since its start, by the names of `domain.activity.COUNTS`."""
        opened = Counter[str]()
        for (outcome, _kind), count in self._opened.items():
            opened[outcome] += count
        return {
            "opened": opened[OpenOutcome.CREATED],
            "upgraded": opened[OpenOutcome.UPGRADED],
            "existing": opened[OpenOutcome.EXISTING],
            "refused": self._open_refused.total(),
            "heartbeats": self._renewed,
            "late_heartbeats": self._late,
            **{name: self._closed[reason] for reason, name in CLOSED.items()},
        }

    def _encoded(self) -> bytes:
        return _encode(Totals(self._opened, self._closed, self._streamed))

    def _count_opened(self, event: SessionOpened) -> None:
        self._opened[event.outcome, event.session.kind] += 1
        if event.outcome is OpenOutcome.UPGRADED:
            self._closed["UPGRADED"] += 1

    def _count_open_refused(self, event: OpenRefused) -> None:
        self._open_refused[event.outcome.value] += 1

    def _count_closed(self, event: SessionClosed) -> None:
        self._closed[event.reason] += 1

    def _count_heartbeats(self, event: HeartbeatsAnswered) -> None:
        self._renewed += event.renewed
        self._late += event.late

    def _count_received(self, event: StreamReceived) -> None:
        self._streamed["bytes_received"] += event.byte_count
        self._streamed["chunks"] += 1
        self._streamed["audio_duration_ms"] += event.audio_duration_ms

    def _count_sent(self, event: StreamSent) -> None:
        self._sent_bytes += event.byte_count
        self._streamed["messages_sent"] += 1
        if event.kind is not None:
            self._streamed[event.kind] += 1

    def _count_refused_stream(self, _event: StreamRefused) -> None:
        self._refused[STREAMS_LIMIT] += 1

    def _count_run(self, event: JobFinished) -> None:
        self._job_runs[event.job, event.outcome.value] += 1
        self._job_seconds.observe(event.job, event.seconds)

    def _count_reclaimed(self, event: JobReclaimed) -> None:
        self._reclaimed[JOB_LOCK + event.job] += 1

    def _count_acquired(self, event: LeaderAcquired) -> None:
        self._acquired[event.lease] += 1
        if event.reclaimed:
            self._reclaimed[event.lease] += 1

    def _count_contended(self, event: LeaseContended) -> None:
        self._contended[event.lease] += 1

    def _count_attempt(self, event: AttemptEnded) -> None:
        self._attempts[event.gateway, event.outcome.value] += 1

    def _count_retry(self, event: StoreRetried) -> None:
        self._retries[event.cause] += 1

    def _observe_call(self, event: StoreCalled) -> None:
        self._store_seconds.observe(event.operation, event.seconds)
        if event.items is not None:
            self._batch_sizes.observe(event.operation, event.items)

    def _observe_request(self, event: RequestAnswered) -> None:
        self._requests.observe((event.route, event.status), event.seconds)

    def _count_refused(self, event: RequestsRefused) -> None:
        self._refused[event.limit] += event.count


def _as_series(counted: Mapping[Any, Any]) -> Mapping[Labels, Value]:
    return {
        tuple(map(str, labels)) if isinstance(labels, tuple) else (str(labels),): value
        for labels, value in counted.items()
    }


# MessagePack, because the keys of `opened` are tuples.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Totals).decode
