"""Telemetry: every event that Tenure reports, with typed fields, and the class that passes events to subscribers.

Code reports an event once: `telemetry.report(JobFailed(...))`. Subscribers process it: `logs.py` writes a log line,
`counters.py` counts it, for `GET /metrics`, `GET /sessions/metrics` and `GET /activity`, `traces.py` exports spans if
traces are on, and `service_manager.py` notifies systemd. No other module writes logs or counts events.

Reporting costs one dictionary look-up plus the calls of the event's subscribers, so code on the hot path may report
events. Events of a class whose `level` is None are counted, traced or only read by tests. Of these classes, only
`SessionOpened` and `RequestAnswered` are also logged, if a setting says so.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar, Literal, Self, TypeVar

import msgspec

from tenure.domain.jobs import RunOutcome
from tenure.domain.sessions import ClosedSession, OpenOutcome, Session
from tenure.domain.submissions import AttemptOutcome
from tenure.telemetry.trace_context import Trace

Level = Literal["debug", "info", "warning", "error"]


class Event(msgspec.Struct, frozen=True):
    name: ClassVar[str]
    """The name in the log. Names are stable: alerts and searches depend on them."""
    level: ClassVar[Level | None] = "info"
    """The log level; None if the event is not logged by default."""
    repeats: ClassVar[bool] = False
    """Whether one cause, such as a full disk, can make this event occur hundreds of times a second. If so, the log has
    at most one line a second for all events with the same `repetition_key`."""

    def repetition_key(self) -> tuple[str, ...]:
        """Return a key that is equal for two events with the same name, lease, job, cause and type of exception.

        The key contains no ids and no messages, so there are few different keys.
        """
        exception: BaseException | None = getattr(self, "exception", None)
        fields = [getattr(self, name, "") for name in ("lease", "job", "cause")]
        return (self.name, *fields, "" if exception is None else type(exception).__name__)

    def log_entry(self) -> tuple[Level, str] | None:
        """Return the level and name of the log line, or None if this event is not logged."""
        return None if self.level is None else (self.level, self.name)


current_request: ContextVar[str | None] = ContextVar("current_request", default=None)
"""The id of the request for which the current task runs. Each log line of the task contains it. The hot lane has no
task per request and does not set it; there, an event that belongs to one request carries the id itself.
"""

E = TypeVar("E", bound=Event)
Subscriber = Callable[[Any], None]


BeginTrace = Callable[[bytes | None, str], Trace | None]
"""Returns the position of a request in a trace, from its header `traceparent` and its id; None if it is not sampled."""


class Telemetry:
    """Passes each reported event to the subscribers of its type, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._subscribers: dict[type[Event], list[Subscriber]] = {}
        self.begin_trace: BeginTrace | None = None
        """None if traces are off. Then work that only traces need is skipped."""

    def subscribe(self, kind: type[E], subscriber: Callable[[E], None]) -> None:
        self._subscribers.setdefault(kind, []).append(subscriber)

    def report(self, event: Event) -> None:
        for subscriber in self._subscribers.get(type(event), ()):
            subscriber(event)


def all_events() -> Sequence[type[Event]]:
    return Event.__subclasses__()


# The process.


class Listening(Event, frozen=True):
    name: ClassVar = "listening"
    address: str
    profile: str


class InstanceReady(Event, frozen=True):
    name: ClassVar = "instance.ready"


class InstanceDraining(Event, frozen=True):
    name: ClassVar = "instance.draining"
    reason: str


class InstanceStopped(Event, frozen=True):
    name: ClassVar = "instance.stopped"


class WorkerDied(Event, frozen=True):
    name: ClassVar = "supervisor.worker_died"
    level: ClassVar[Level | None] = "warning"
    exit_codes: Sequence[int | None]


class RequestsRefused(Event, frozen=True):
    """A limit of the edge was exceeded `count` times since the last report of this limit. For each limit, reported at
    most once in ten seconds.
    """

    name: ClassVar = "http.refused"
    level: ClassVar[Level | None] = "warning"
    limit: str
    count: int


class RequestAnswered(Event, frozen=True):
    """A request was answered. Logged only if the access log is switched on."""

    name: ClassVar = "http.request"
    level: ClassVar[Level | None] = None
    route: str
    """The method and the path pattern of the route, or UNMATCHED. Never the path of the request: there is no limit to
    the number of different paths that clients can send."""
    status: int
    seconds: float
    method: str
    request_id: str | None = None
    subject: str | None = None
    """The caller, if the credential was checked."""
    trace: Trace | None = None
    """The position of the request in a trace, if it is sampled."""


UNMATCHED = "unmatched"


class HttpFailed(Event, frozen=True):
    name: ClassVar = "http.failed"
    level: ClassVar[Level | None] = "error"
    repeats: ClassVar[bool] = True
    exception: BaseException
    request_id: str | None = None


class TlsReloaded(Event, frozen=True):
    """The certificate file was read again. New connections get its certificate."""

    name: ClassVar = "tls.reloaded"
    certificate: str
    sha256: str
    """The fingerprint of the certificate."""


class TlsReloadFailed(Event, frozen=True):
    """The certificate or its key could not be read or do not match. The certificate in use stays in use."""

    name: ClassVar = "tls.reload_failed"
    level: ClassVar[Level | None] = "error"
    error: str


class SpansNotExported(Event, frozen=True):
    """The collector did not accept a batch of spans, after retries. The spans are lost."""

    name: ClassVar = "traces.not_exported"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    spans: int


# Access.


class OidcKeysLoaded(Event, frozen=True):
    """The keys of the OIDC issuer were fetched: for the first time, with changes, or again after a failed fetch."""

    name: ClassVar = "oidc.keys_loaded"
    keys: int


class OidcFetchFailed(Event, frozen=True):
    """The keys of the OIDC issuer could not be fetched. While fetches fail, reported once per ten minutes."""

    name: ClassVar = "oidc.fetch_failed"
    level: ClassVar[Level | None] = "warning"
    error: str
    kept_keys: int


class OidcSignInFailed(Event, frozen=True):
    """The issuer did not exchange the code of a sign-in for tokens."""

    name: ClassVar = "oidc.sign_in_failed"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    error: str


# The database.


class SchemaMigrated(Event, frozen=True):
    name: ClassVar = "schema.migrated"
    revision: str


class SchemaWaiting(Event, frozen=True):
    """The database does not answer yet."""

    name: ClassVar = "schema.waiting"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    error: str


class SchemaFailed(Event, frozen=True):
    name: ClassVar = "schema.failed"
    level: ClassVar[Level | None] = "error"
    repeats: ClassVar[bool] = True
    exception: BaseException


class StoreCalled(Event, frozen=True):
    """A method of the store has returned or raised."""

    name: ClassVar = "store.called"
    level: ClassVar[Level | None] = None
    operation: str
    seconds: float
    items: int | None
    """The number of requests in the batch; None if the method takes no batch."""
    error: str | None = None
    """The type of the exception that the method raised."""


class StoreRetried(Event, frozen=True):
    """A try of an operation failed with an error that the store usually retries. Also reported for the last try."""

    name: ClassVar = "store.retried"
    level: ClassVar[Level | None] = None
    cause: str


class StoreUnavailable(Event, frozen=True):
    """The last try of an operation failed."""

    name: ClassVar = "store.unavailable"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    cause: str
    error: str


class CallbackFailed(Event, frozen=True):
    """A callback that receives the result of a batched request raised an error."""

    name: ClassVar = "coalescer.callback_failed"
    level: ClassVar[Level | None] = "error"
    repeats: ClassVar[bool] = True
    exception: BaseException


# Sessions.


class SessionOpened(Event, frozen=True):
    """An open request was answered with a session: created, upgraded or existing. The first two are logged as
    `session.opened` and `session.upgraded`, if the log of sessions is switched on.
    """

    name: ClassVar = "session.opened"
    level: ClassVar[Level | None] = None
    outcome: OpenOutcome
    session: Session


class OpenRefused(Event, frozen=True):
    """An open request was refused: its capacity has no free seat, or belongs to another tenant, or the user has a live
    session of another tenant.
    """

    name: ClassVar = "session.open_refused"
    level: ClassVar[Level | None] = None
    outcome: OpenOutcome


class SessionClosed(Event, frozen=True):
    """This instance recorded the end of a session. A lapse and an eviction have their own names in the log."""

    name: ClassVar = "session.closed"
    log_names: ClassVar[Mapping[str, str]] = {
        "EXPIRED": "session.expired",
        "LEASE_EXPIRED": "session.lease_expired",
        "IDLE_TIMEOUT": "session.idle_timeout",
        "EVICTED": "session.evicted",
    }
    session_id: str
    reason: str
    ended_at: datetime
    user: str
    tenant: str
    capacity: str
    state: Literal["closed"] = "closed"

    @classmethod
    def of(cls, closed: ClosedSession) -> Self:
        whose = closed.user_object_id, closed.tenant_object_id, closed.capacity_id
        return cls(closed.session_id, closed.reason, closed.ended_at, *whose)


class HeartbeatsAnswered(Event, frozen=True):
    """A batch of heartbeats was answered. `late` counts those that came after their session had ended."""

    name: ClassVar = "session.heartbeats"
    level: ClassVar[Level | None] = None
    renewed: int
    late: int


class SessionsCountFailed(Event, frozen=True):
    name: ClassVar = "sessions.count_failed"
    level: ClassVar[Level | None] = "error"
    repeats: ClassVar[bool] = True
    error: str


class InstanceNotSaved(Event, frozen=True):
    """This instance could not renew its row in the table `instances`, so other instances may list it as gone."""

    name: ClassVar = "instance.not_saved"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    error: str


class ActivityNotSaved(Event, frozen=True):
    """The counts of this worker could not be saved. They are saved later, unless the worker stops."""

    name: ClassVar = "activity.not_saved"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    error: str


class InstallationNotRead(Event, frozen=True):
    """The gauges of the whole installation could not be read. The last ones are shown until they are too old."""

    name: ClassVar = "installation.not_read"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    error: str


# Streams.


class StreamReceived(Event, frozen=True):
    """A stream received a message from its client."""

    name: ClassVar = "stream.received"
    level: ClassVar[Level | None] = None
    byte_count: int
    audio_duration_ms: int


class StreamSent(Event, frozen=True):
    """A message was sent to a client. `kind` is the field of `StreamCounters` for this kind of message, if any."""

    name: ClassVar = "stream.sent"
    level: ClassVar[Level | None] = None
    kind: str | None
    byte_count: int = 0


class StreamRefused(Event, frozen=True):
    """A stream was refused, because the instance already had `max_per_instance` streams."""

    name: ClassVar = "stream.refused"
    level: ClassVar[Level | None] = None


class StreamCrashed(Event, frozen=True):
    name: ClassVar = "stream.crashed"
    level: ClassVar[Level | None] = "error"
    repeats: ClassVar[bool] = True
    session_id: str | None
    exception: BaseException


class StreamHandlerFailed(Event, frozen=True):
    name: ClassVar = "stream.handler_failed"
    level: ClassVar[Level | None] = "error"
    session_id: str
    exception: BaseException


class StreamHandlerStuck(Event, frozen=True):
    """A handler ignored its cancellation, or did not finish in time."""

    name: ClassVar = "stream.handler_stuck"
    level: ClassVar[Level | None] = "warning"
    session_id: str


class StreamNotSaved(Event, frozen=True):
    """A stream could not record the end of its session, or could not send its last save, after all retries."""

    name: ClassVar = "stream.not_saved"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    session_id: str
    end: str | None
    """The close reason that would have been recorded; None if only the last save failed."""
    error: str


class StreamsStopped(Event, frozen=True):
    """The instance is stopping. `left` is the number of streams that did not end in time."""

    name: ClassVar = "streams.stopped"
    streams: int
    left: int


# Access.


class AccessOpen(Event, frozen=True):
    """The instance has started, and no API key was ever created: every client that reaches it has full access."""

    name: ClassVar = "access.open"
    reachable_by: str
    """Which clients can connect: those of this machine, or all."""
    to_change_this: str = "tenure keys create --name admin --role operator --expires 90d"


class AccessKeysChanged(Event, frozen=True):
    """This instance has read another version of the API keys than before, and has dropped its cache."""

    name: ClassVar = "access.keys_changed"
    version: int


class AccessSigningKeysChanged(Event, frozen=True):
    """This instance has read other signing keys of session tokens than before."""

    name: ClassVar = "access.signing_keys_changed"
    key_ids: list[str]


class AccessSuspended(Event, frozen=True):
    """The version of the API keys could not be read for longer than the grace. Not reported again until a read has
    succeeded.
    """

    name: ClassVar = "access.suspended"
    level: ClassVar[Level | None] = "warning"
    seconds: float


class AccessRefreshFailed(Event, frozen=True):
    """An unexpected error occurred when reading the version of the API keys, writing last uses or checking streams."""

    name: ClassVar = "access.refresh_failed"
    level: ClassVar[Level | None] = "error"
    exception: BaseException


# Leases.


class LeaseContended(Event, frozen=True):
    """This instance tried to acquire a lease or to begin a run, but another instance was first."""

    name: ClassVar = "lease.contended"
    level: ClassVar[Level | None] = None
    lease: str


class LeaderAcquired(Event, frozen=True):
    name: ClassVar = "leader_acquired"
    lease: str
    holder: str
    epoch: int
    expires_at: datetime
    reclaimed: bool
    """Whether the last holder let the lease expire."""


class LeaderRenewed(Event, frozen=True):
    name: ClassVar = "leader_renewed"
    lease: str
    holder: str
    epoch: int
    expires_at: datetime


class LeaderAcquireFailed(Event, frozen=True):
    name: ClassVar = "leader_acquire_failed"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    lease: str
    holder: str
    error: str


class LeaderRenewFailed(Event, frozen=True):
    name: ClassVar = "leader_renew_failed"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    lease: str
    holder: str
    epoch: int
    expires_at: datetime
    error: str


class LeaderLost(Event, frozen=True):
    name: ClassVar = "leader_lost"
    asked_for: ClassVar[Sequence[str]] = ("released", "resigned")
    """The reasons of a loss that was requested: the instance stops, or an operator resigned the lease."""
    lease: str
    holder: str
    epoch: int
    expires_at: datetime
    reason: str
    error: str | None = None

    def log_entry(self) -> tuple[Level, str] | None:
        """A loss that was not requested is a warning: the work pauses until an instance leads again."""
        return ("info" if self.reason in self.asked_for else "warning", self.name)


class LeaseRenewFailed(Event, frozen=True):
    """A renewal of a job lock, or of a lease that an application acquired, failed."""

    name: ClassVar = "lease.renew_failed"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    lease: str
    epoch: int
    failures: int
    error: str


class HeldLeaseLost(Event, frozen=True):
    """A lease that an application acquired was lost before the application released it."""

    name: ClassVar = "lease.lost"
    level: ClassVar[Level | None] = "warning"
    lease: str
    epoch: int
    error: str


class WorkWillNotStop(Event, frozen=True):
    """Leader work or a job's run ignores its cancellation."""

    name: ClassVar = "work_will_not_stop"
    level: ClassVar[Level | None] = "error"
    lease: str


class BoardFailed(Event, frozen=True):
    """Reading or processing the board raised an unexpected error."""

    name: ClassVar = "board.failed"
    level: ClassVar[Level | None] = "error"
    repeats: ClassVar[bool] = True
    exception: BaseException


# Jobs.


class JobStarted(Event, frozen=True):
    name: ClassVar = "job.started"
    level: ClassVar[Level | None] = "debug"
    job: str
    epoch: int


class JobPostponed(Event, frozen=True):
    """A run could not begin, because the database was unavailable."""

    name: ClassVar = "job.postponed"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    job: str
    error: str


class JobNotRun(Event, frozen=True):
    """The runner, not the job, raised an unexpected error."""

    name: ClassVar = "job.not_run"
    level: ClassVar[Level | None] = "error"
    repeats: ClassVar[bool] = True
    job: str
    exception: BaseException


class JobClockBehind(Event, frozen=True):
    """The database's clock was stepped back. The job's next tick was moved back, because it was too far ahead."""

    name: ClassVar = "job.clock_behind"
    level: ClassVar[Level | None] = "error"
    job: str
    now: datetime
    next_run_at: datetime
    """The next tick before it was moved back."""


class JobReclaimed(Event, frozen=True):
    """This instance began a run, and recorded an earlier run of `holder`, which was still open, as abandoned."""

    name: ClassVar = "job.reclaimed"
    level: ClassVar[Level | None] = "warning"
    job: str
    holder: str
    epoch: int


class JobAbandoned(Event, frozen=True):
    """This instance abandoned a run, because the lock was lost or the instance is stopping."""

    name: ClassVar = "job.abandoned"
    level: ClassVar[Level | None] = "warning"
    job: str
    epoch: int
    error: str
    seconds: float
    counts: Mapping[str, int]


class JobFailed(Event, frozen=True):
    name: ClassVar = "job.failed"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    job: str
    epoch: int
    error: str
    exception: BaseException | None
    seconds: float
    counts: Mapping[str, int]


class JobLockLost(Event, frozen=True):
    """The outcome of a run could not be recorded, so the job runs again for the same tick."""

    name: ClassVar = "job.lock_lost"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    job: str
    epoch: int
    error: str
    seconds: float


class JobFinished(Event, frozen=True):
    """The outcome of a run is recorded.

    Logged if the run succeeded. A run that counted nothing is logged only at level `debug`: at level `info`, such runs
    would fill the log. `JobFailed` and `JobAbandoned` log the other outcomes.
    """

    name: ClassVar = "job.finished"
    job: str
    epoch: int
    outcome: RunOutcome
    seconds: float
    counts: Mapping[str, int]

    def log_entry(self) -> tuple[Level, str] | None:
        if self.outcome is not RunOutcome.SUCCEEDED:
            return None
        return ("info" if self.counts else "debug", self.name)


# Submissions.


class ExecutorStarted(Event, frozen=True):
    name: ClassVar = "executor.started"
    epoch: int
    waiting: int
    unknown: int
    """The number of attempts of earlier epochs whose results were not recorded."""
    seconds: float


class ExecutorStopped(Event, frozen=True):
    name: ClassVar = "executor.stopped"
    epoch: int


class SubmissionsFoundLate(Event, frozen=True):
    """The executor compared its schedule with the database, and found pending submissions that no refresh had read.
    This indicates a bug.
    """

    name: ClassVar = "submissions.found_late"
    level: ClassVar[Level | None] = "error"
    count: int


class SubmissionNotSent(Event, frozen=True):
    """Sending the request of an attempt raised an unexpected error."""

    name: ClassVar = "submission.not_sent"
    level: ClassVar[Level | None] = "error"
    exception: BaseException


class SubmissionFailed(Event, frozen=True):
    """A submission has failed. No further attempt is made unless the submission is retried by command."""

    name: ClassVar = "submission.failed"
    level: ClassVar[Level | None] = "warning"
    submission_id: str
    gateway: str
    error: str | None


class AttemptSending(Event, frozen=True):
    """The request of an attempt is about to be sent. Reported in the task that sends the request."""

    name: ClassVar = "submission.attempt_sending"
    level: ClassVar[Level | None] = None
    gateway: str
    submission_id: str
    request_id: str | None
    traceparent: str | None
    """The position of the request that submitted the payload, if that request was sampled."""


class AttemptAnswered(Event, frozen=True):
    """The request of an attempt has ended, with or without a response. Reported in the task that sent the request."""

    name: ClassVar = "submission.attempt_answered"
    level: ClassVar[Level | None] = None
    gateway: str
    submission_id: str
    seconds: float
    status: int | None
    error: str | None


class AttemptEnded(Event, frozen=True):
    """The outcome of an attempt is recorded."""

    name: ClassVar = "submission.attempt_ended"
    level: ClassVar[Level | None] = "debug"
    gateway: str
    submission_id: str
    number: int
    outcome: AttemptOutcome
    status: int | None = None
    error: str | None = None
    request_id: str | None = None
    """The id of the request that submitted the payload."""


class GatewayFailing(Event, frozen=True):
    """A gateway begins to fail: a request failed, and no request was delivered in the second before. Reported once per
    outage.
    """

    name: ClassVar = "gateway.failing"
    level: ClassVar[Level | None] = "warning"
    gateway: str
    error: str | None


class GatewayRecovered(Event, frozen=True):
    """A failing gateway accepts a submission again. Reported once per outage."""

    name: ClassVar = "gateway.recovered"
    gateway: str
    waiting: int
    """The number of submissions that wait for the gateway. They are sent now, oldest first."""


class PayloadWithheld(Event, frozen=True):
    """A payload was withheld. The name in the log begins with the name of the payload source."""

    name: ClassVar = "payload.withheld"
    level: ClassVar[Level | None] = "error"
    source: str
    submission_id: str
    error: str

    def log_entry(self) -> tuple[Level, str] | None:
        return ("error", f"{self.source}.withheld")


# Usage.


class UsageCutSkipped(Event, frozen=True):
    """The database's clock is behind the last cut."""

    name: ClassVar = "usage.cut_skipped"
    level: ClassVar[Level | None] = "error"
    now: datetime
    last_cut_at: datetime


class UsageEraBegan(Event, frozen=True):
    name: ClassVar = "usage.era_began"
    level: ClassVar[Level | None] = "warning"
    window: int
    factors: Mapping[str, str]


class UsageDelivered(Event, frozen=True):
    """The receiver has accepted all chunks of a window. Not reported for a window without sessions."""

    name: ClassVar = "usage.delivered"
    window: int
    ended_at: datetime
    sessions: int
    lag_seconds: float
    """The time from the end of the window to its delivery."""


class UsageHasNoGateway(Event, frozen=True):
    """No gateway `usages` is configured, so usage windows are cut, but not sent."""

    name: ClassVar = "usage.no_gateway"
    level: ClassVar[Level | None] = "warning"


class UsageHandedOver(Event, frozen=True):
    """An operator requested that windows that were cut without a gateway be sent."""

    name: ClassVar = "usage.handed_over"
    windows: int
    chunks: int


class UsageEmitted(Event, frozen=True):
    """A run of the job `emit-usage` is complete.

    With a gateway for usage, the chunks of the run are submitted, but may not be delivered yet, and `lag_seconds` is
    set. Without a gateway, nothing is submitted, and `sent` is False.
    """

    name: ClassVar = "usage.emitted"
    windows: int
    chunks: int
    last_cut_at: datetime
    lag_seconds: float | None = None
    sent: bool | None = None


class UsageMarkSkipped(Event, frozen=True):
    """The job `mark-usage` skipped a mark, because the mark would have had more than `keys_max` rows."""

    name: ClassVar = "usage.mark_skipped"
    level: ClassVar[Level | None] = "warning"
    marked_at: datetime
    keys_max: int


# Alerts.


class AlertRaised(Event, frozen=True):
    """The job `watch` found that the condition of an alert has begun to hold."""

    name: ClassVar = "alert.raised"
    level: ClassVar[Level | None] = "error"
    alert_id: str
    alert: str
    subject: str | None
    detail: str


class AlertCleared(Event, frozen=True):
    """The job `watch` found that the condition of an active alert does not hold any more."""

    name: ClassVar = "alert.cleared"
    alert_id: str
    alert: str
    subject: str | None
    raised_at: datetime


# Events for other systems.


class EventBatchSaved(Event, frozen=True):
    """The next batch of events of a gateway was saved as a submission."""

    name: ClassVar = "events.batch_saved"
    level: ClassVar[Level | None] = None
    gateway: str
    number: int
    events: int
    newest_at: datetime


class EventsDelayed(Event, frozen=True):
    """The feed, or the delivery of events, has been failing for ten seconds. Followers and gateways wait."""

    name: ClassVar = "events.delayed"
    level: ClassVar[Level | None] = "warning"
    repeats: ClassVar[bool] = True
    error: str
