"""The history of a session: all stored facts about it, in the order of time.

The store reads the rows (`SessionHistory`), and `facts_of` turns them into facts. A fact has a stable name,
typed fields and one line of text.

A session may be billed in tens of thousands of windows. So consecutive windows of one era that are all delivered, or
that were all cut without a gateway, form a *run of windows*, and such a run becomes one fact. A window that waits for
its delivery is a run by itself. If a run has only one window, the attempts to deliver this window become facts, too.
The store reads at most RUNS_MAX runs at a time, and these runs form a *section*. The facts of a section are in the
order of time. A fact about the session belongs to the section whose time contains the fact, and the attempts to deliver
a window belong to the section of the window.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from tenure.clock import MICROSECOND, instant_text
from tenure.domain.audit_log import AuditEntry
from tenure.domain.meter import decimal_text, usage_between
from tenure.domain.sessions import CloseReason, Session, State, StreamCounters
from tenure.domain.submissions import Attempt, AttemptOutcome, Submission, SubmissionState
from tenure.domain.usage import Window

RUNS_MAX = 100
"""The most runs of windows that are read at a time."""
ATTEMPTS_MAX = 20
"""How many attempts of a window become facts at most: the newest ones. `GET /submissions/{id}` lists all attempts."""
NEWCOMERS_MAX = 10
"""How many sessions are named at most as the reason for an eviction."""


class View(msgspec.Struct, frozen=True):
    """The parts of a history that its reader may see."""

    audit: bool
    """Who ended the session, as the audit log says."""
    usage: bool
    deliveries: bool
    """How the windows were delivered. Without this part, delivered and undelivered windows look the same."""


class RunState(StrEnum):
    DELIVERED = "delivered"
    NOT_SENT = "notSent"
    """Cut without a gateway for usage, and not sent since."""
    WAITING = "waiting"
    """Not delivered yet. Such a window is a separate run."""
    HIDDEN = "hidden"
    """The reader may not see whether the windows are delivered."""


class ChunkHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The chunk of a window that contains the session."""

    chunk: int
    delivered_at: datetime | None
    has_receipt: bool
    submission: Submission | None
    """None if the window was cut without a gateway and not sent since, or if the submission is pruned."""
    attempts: Sequence[Attempt]
    """At most ATTEMPTS_MAX, oldest first."""


class WindowRun(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive windows of one era in the same state."""

    first: Window
    last: Window
    state: RunState
    chunk: ChunkHistory | None = None
    """Set only if the run is a single window that is divided, and the reader may see deliveries."""

    @property
    def windows(self) -> int:
        return self.last.window_id - self.first.window_id + 1


class SessionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of all tables about a session, with one section of its windows."""

    session: Session
    """As recorded or, if it has lapsed and its end is not recorded yet, as it will be recorded."""
    now: datetime
    is_recorded: bool
    """Whether the end is recorded; False while the session is live."""
    previous: Session | None = None
    """The session that was upgraded to this one. None if there is none, or if it is pruned."""
    following: Session | None = None
    """The session to which this one was upgraded."""
    newcomers: Sequence[Session] = ()
    """For an evicted session, the sessions that were opened in its place."""
    ended_by: AuditEntry | None = None
    last_cut_at: datetime | None = None
    """The end of the last window. None if the reader may not see usage."""
    runs: Sequence[WindowRun] = ()
    is_first: bool = True
    """Whether this is the first section."""
    resume_after: int | None = None
    """The id of the last window of this section; None if this is the last section."""


class FactName(StrEnum):
    """Facts of the same instant are sorted in this order."""

    OPENED = "opened"
    UPGRADED_FROM = "upgradedFrom"
    WINDOWS_NOT_KEPT = "windowsNotKept"
    KEPT_ALIVE_UNTIL = "keptAliveUntil"
    LAST_ACTIVITY = "lastActivity"
    STREAMED = "streamed"
    ENDED = "ended"
    UPGRADED_TO = "upgradedTo"
    EVICTED_FOR = "evictedFor"
    BILLED = "billed"
    DELIVERED = "delivered"
    DELIVERY_FAILED = "deliveryFailed"
    DELIVERY_UNKNOWN = "deliveryUnknown"
    DELIVERY_ABANDONED = "deliveryAbandoned"
    DELIVERING = "delivering"
    DELIVERY_WAITS = "deliveryWaits"
    DELIVERY_GIVEN_UP = "deliveryGivenUp"
    NOT_BILLED_YET = "notBilledYet"
    DEADLINE = "deadline"


_RANKS = {name: rank for rank, name in enumerate(FactName)}


class FactPosition(NamedTuple):
    """The place of a fact in its section. No two facts of a section have the same position."""

    at: datetime
    rank: int
    window_id: int
    number: int


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that do not apply to a fact are None."""

    at: datetime
    fact: FactName
    text: str
    user_object_id: str | None = None
    tenant_object_id: str | None = None
    capacity_id: str | None = None
    session_kind: int | None = None
    term_ends_at: datetime | None = None
    lease_microseconds: int | None = None
    idle_microseconds: int | None = None
    heartbeat_microseconds: int | None = None
    previous_session_id: str | None = None
    next_session_id: str | None = None
    session_ids: Sequence[str] | None = None
    until: datetime | None = None
    close_reason: str | None = None
    recorded: bool | None = None
    subject: str | None = None
    name: str | None = None
    request_id: str | None = None
    stream: StreamCounters | None = None
    window_id: int | None = None
    last_window_id: int | None = None
    windows: int | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None
    usage_millionths: int | None = None
    delivery: RunState | None = None
    delivered_at: datetime | None = None
    chunk: int | None = None
    submission_id: str | None = None
    gateway: str | None = None
    attempt: int | None = None
    attempts: int | None = None
    status: int | None = None
    error: str | None = None
    receipt: bool | None = None

    @property
    def position(self) -> FactPosition:
        return FactPosition(self.at, _RANKS[self.fact], self.window_id or 0, self.attempt or 0)


def facts_of(history: SessionHistory) -> list[Fact]:
    """The facts of this section, in the order of time."""
    if not history.is_first and not history.runs:
        return []
    facts = [fact for run in history.runs for fact in _run_facts(history.session, run)]
    from_at = None if history.is_first else history.runs[0].first.started_at
    to_at = None if history.resume_after is None else history.runs[-1].last.ended_at
    facts += [
        fact
        for fact in _session_facts(history)
        if (from_at is None or fact.at > from_at) and (to_at is None or fact.at <= to_at)
    ]
    return sorted(facts, key=lambda fact: fact.position)


# The session.


def _session_facts(history: SessionHistory) -> Iterator[Fact]:
    session = history.session
    yield _opened(session)
    if session.previous_session_id is not None:
        yield _upgraded_from(session, session.previous_session_id, history.previous)
    if session.last_heartbeat_at > session.started_at:
        yield _kept_alive(session)
    if session.last_activity_at > session.started_at:
        yield _last_activity(session)
    if session.stream is not None:
        yield _streamed(session, session.stream)
    if session.closed_at is None:
        yield _deadline(session)
    else:
        yield from _end_facts(history, session.closed_at)
    if history.last_cut_at is not None:
        yield from _unbilled(history, history.last_cut_at)


def _opened(session: Session) -> Fact:
    limits = [f"term until {instant_text(session.term_ends_at)}"]
    if session.lease_microseconds is not None:
        limits.append(f"lease {_seconds(session.lease_microseconds)}")
    if session.idle_microseconds is not None:
        limits.append(f"idle limit {_seconds(session.idle_microseconds)}")
    return Fact(
        at=session.started_at,
        fact=FactName.OPENED,
        text=(
            f"user {session.user_object_id} of tenant {session.tenant_object_id} opened the session on capacity "
            f"{session.capacity_id}, kind {session.kind}; {', '.join(limits)}"
        ),
        user_object_id=session.user_object_id,
        tenant_object_id=session.tenant_object_id,
        capacity_id=session.capacity_id,
        session_kind=session.kind,
        term_ends_at=session.term_ends_at,
        lease_microseconds=session.lease_microseconds,
        idle_microseconds=session.idle_microseconds,
        heartbeat_microseconds=session.heartbeat_microseconds,
    )


def _upgraded_from(session: Session, previous_id: str, previous: Session | None) -> Fact:
    of_kind = "" if previous is None else f" of kind {previous.kind}, opened at {instant_text(previous.started_at)}"
    return Fact(
        at=session.started_at,
        fact=FactName.UPGRADED_FROM,
        text=f"the session replaced session {previous_id}{of_kind}",
        previous_session_id=previous_id,
        session_kind=None if previous is None else previous.kind,
    )


def _kept_alive(session: Session) -> Fact:
    until = _after(session.last_heartbeat_at, session.lease_microseconds)
    renewed = "" if until is None else f"; it renewed the lease until {instant_text(until)}"
    return Fact(
        at=session.last_heartbeat_at,
        fact=FactName.KEPT_ALIVE_UNTIL,
        text=f"the last heartbeat{_so_far(session)} arrived{renewed}",
        until=until,
    )


def _last_activity(session: Session) -> Fact:
    until = _after(session.last_activity_at, session.idle_microseconds)
    ends = "ends" if session.closed_at is None else "was set to end"
    renewed = "" if until is None else f"; the idle limit {ends} at {instant_text(until)}"
    return Fact(
        at=session.last_activity_at,
        fact=FactName.LAST_ACTIVITY,
        text=f"the last use{_so_far(session)} of the session{renewed}",
        until=until,
    )


def _so_far(session: Session) -> str:
    return " so far" if session.closed_at is None else ""


def _streamed(session: Session, stream: StreamCounters) -> Fact:
    return Fact(
        at=max(session.last_activity_at, session.last_heartbeat_at),
        fact=FactName.STREAMED,
        text=(
            f"the streams of the session up to here: bytes received {stream.bytes_received}, chunks {stream.chunks}, "
            f"messages sent {stream.messages_sent}, errors {stream.errors_sent}"
        ),
        stream=stream,
    )


_UNLESS = {
    CloseReason.EXPIRED.value: "its term ends",
    CloseReason.LEASE_EXPIRED.value: "its lease ends unless a heartbeat arrives first",
    CloseReason.IDLE_TIMEOUT.value: "its idle limit ends unless the session is used first",
}


def _deadline(session: Session) -> Fact:
    return Fact(
        at=session.deadline_at,
        fact=FactName.DEADLINE,
        text=f"the session ends as {session.lapse_reason}: {_UNLESS[session.lapse_reason]}",
        close_reason=session.lapse_reason,
    )


def _end_facts(history: SessionHistory, closed_at: datetime) -> Iterator[Fact]:
    session, entry = history.session, history.ended_by
    details = [_cause(session)]
    if entry is not None:
        # The name of a caller without an API key is its subject: do not print both.
        known = [] if entry.subject == entry.name else [entry.subject]
        known += [] if entry.request_id is None else [f"request {entry.request_id}"]
        details.append(f"requested by {entry.name}" + (f" ({', '.join(known)})" if known else ""))
    if not history.is_recorded:
        details.append("the end is not recorded yet")
    elif session.state == State.CLOSING:
        details.append("its stream is still finishing")
    yield Fact(
        at=closed_at,
        fact=FactName.ENDED,
        text=f"the session ended as {session.close_reason}: {'; '.join(details)}",
        close_reason=session.close_reason,
        recorded=history.is_recorded,
        subject=None if entry is None else entry.subject,
        name=None if entry is None else entry.name,
        request_id=None if entry is None else entry.request_id,
    )
    following = history.following
    if following is not None:
        yield Fact(
            at=closed_at,
            fact=FactName.UPGRADED_TO,
            text=f"session {following.session_id} of kind {following.kind} replaced it",
            next_session_id=following.session_id,
            session_kind=following.kind,
        )
    if history.newcomers:
        ids = [newcomer.session_id for newcomer in history.newcomers]
        took = f"{'session' if len(ids) == 1 else 'one of the sessions'} {', '.join(ids)} took its seat"
        yield Fact(at=closed_at, fact=FactName.EVICTED_FOR, text=took, session_ids=ids)


def _cause(session: Session) -> str:
    match session.close_reason:
        case CloseReason.LEASE_EXPIRED:
            return f"no heartbeat arrived within its lease of {_seconds(session.lease_microseconds)}"
        case CloseReason.IDLE_TIMEOUT:
            return f"it was not used within its idle limit of {_seconds(session.idle_microseconds)}"
        case reason:
            return _CAUSES[CloseReason(str(reason))]


_CAUSES = {
    CloseReason.UPGRADED: "its user opened a session of a higher kind",
    CloseReason.EXPIRED: "its term ended",
    CloseReason.STOPPED: "its client ended it",
    CloseReason.TERMINATED: "an operator ended it",
    CloseReason.EVICTED: "all seats of the capacity were taken, and a new session needed one",
    CloseReason.DISCONNECTED: "the connection of its stream was lost",
    CloseReason.SHUTDOWN: "the instance that held its stream was stopped",
    CloseReason.FAILED: "the handler of its stream failed",
}


def _unbilled(history: SessionHistory, last_cut_at: datetime) -> Iterator[Fact]:
    """Facts about the parts of the session without a window: after the last cut, and before the first window that is
    kept.
    """
    session = history.session
    ended_at = session.closed_at or history.now
    from_at = max(session.started_at, last_cut_at)
    if from_at < ended_at:
        yield Fact(
            at=ended_at,
            fact=FactName.NOT_BILLED_YET,
            text=f"not billed yet from {instant_text(from_at)} on: the next window will contain this time",
            from_at=from_at,
            to_at=ended_at,
        )
    billed_from = history.runs[0].first.started_at if history.runs else last_cut_at
    to_at = min(billed_from, ended_at)
    if history.is_first and session.started_at < to_at:
        yield Fact(
            at=session.started_at,
            fact=FactName.WINDOWS_NOT_KEPT,
            text=f"no windows before {instant_text(to_at)} are kept",
            from_at=session.started_at,
            to_at=to_at,
        )


# The windows of the session.


def _run_facts(session: Session, run: WindowRun) -> Iterator[Fact]:
    from_at = max(session.started_at, run.first.started_at)
    to_at = min(session.closed_at or session.deadline_at, run.last.ended_at)
    usage = _usage(session, run.first, from_at, to_at)
    state, delivered_at = run.state, run.last.delivered_at
    if run.chunk is not None and run.chunk.delivered_at is not None and state is not RunState.HIDDEN:
        # The chunk of this session is delivered: the window waits only for other chunks.
        state, delivered_at = RunState.DELIVERED, run.chunk.delivered_at
    yield Fact(
        at=run.last.ended_at,
        fact=FactName.BILLED,
        text=f"{_windows_text(run)} billed {decimal_text(usage)}{_STATE_TEXTS[state]}",
        window_id=run.first.window_id,
        last_window_id=run.last.window_id,
        windows=run.windows,
        from_at=from_at,
        to_at=to_at,
        usage_millionths=usage,
        delivery=None if state is RunState.HIDDEN else state,
        delivered_at=delivered_at if state is RunState.DELIVERED else None,
        chunk=None if run.chunk is None else run.chunk.chunk,
    )
    if run.chunk is not None:
        yield from _delivery_facts(run.first.window_id, run.chunk)


def _usage(session: Session, window: Window, from_at: datetime, to_at: datetime) -> int:
    """The usage of all windows of a run, computed as if they were one window. The sum is the same: the usage of each
    window is the difference of two rounded totals, and the totals in between cancel out.
    """
    counts_from = max(session.started_at, window.era.started_at)
    before, total = ((instant - counts_from) // MICROSECOND for instant in (from_at, to_at))
    return usage_between(before, total, window.era.factors[session.kind - 1])


def _windows_text(run: WindowRun) -> str:
    if run.windows == 1:
        return f"window {run.first.window_id}"
    return f"{run.windows} windows, {run.first.window_id} to {run.last.window_id},"


_STATE_TEXTS = {
    RunState.DELIVERED: ", delivered",
    RunState.NOT_SENT: ", not sent: there was no gateway for usage",
    RunState.WAITING: ", not delivered yet",
    RunState.HIDDEN: "",
}


def _delivery_facts(window_id: int, chunk: ChunkHistory) -> Iterator[Fact]:
    submission = chunk.submission
    known: dict[str, Any] = {"window_id": window_id, "chunk": chunk.chunk}
    if submission is not None:
        known |= {"submission_id": submission.submission_id, "gateway": submission.gateway}
    for attempt in chunk.attempts:
        yield _attempt_fact(attempt, known)
    delivered = any(attempt.outcome == AttemptOutcome.DELIVERED for attempt in chunk.attempts)
    if chunk.delivered_at is not None and not delivered:
        text = f"window {window_id} was delivered"
        receipt = chunk.has_receipt
        yield Fact(at=chunk.delivered_at, fact=FactName.DELIVERED, text=text, receipt=receipt, **known)
    if submission is not None:
        yield from _waiting(submission, window_id, known)


_ATTEMPTS = {
    AttemptOutcome.DELIVERED.value: (FactName.DELIVERED, "delivered"),
    AttemptOutcome.FAILED.value: (FactName.DELIVERY_FAILED, "failed to deliver"),
    AttemptOutcome.UNKNOWN.value: (FactName.DELIVERY_UNKNOWN, "may have delivered"),
    AttemptOutcome.ABANDONED.value: (FactName.DELIVERY_ABANDONED, "did not send"),
    None: (FactName.DELIVERING, "is delivering"),
}


def _attempt_fact(attempt: Attempt, known: dict[str, Any]) -> Fact:
    name, verb = _ATTEMPTS[attempt.outcome]
    details = [] if attempt.status is None else [f"status {attempt.status}"]
    details += [] if attempt.error is None else [attempt.error]
    result = f": {', '.join(details)}" if details else ""
    return Fact(
        at=attempt.ended_at or attempt.started_at,
        fact=name,
        text=f"attempt {attempt.number} {verb} window {known['window_id']}{result}",
        attempt=attempt.number,
        status=attempt.status,
        error=attempt.error,
        receipt=attempt.has_receipt if name is FactName.DELIVERED else None,
        **known,
    )


def _waiting(submission: Submission, window_id: int, known: dict[str, Any]) -> Iterator[Fact]:
    because = "" if submission.last_error is None else f": {submission.last_error}"
    counted: dict[str, Any] = {**known, "attempts": submission.attempts, "error": submission.last_error}
    if submission.state == SubmissionState.FAILED:
        yield Fact(
            at=submission.ended_at or submission.last_modified_at,
            fact=FactName.DELIVERY_GIVEN_UP,
            text=f"no more attempts are made to deliver window {window_id}{because}",
            **counted,
        )
    elif submission.next_attempt_at is not None:
        yield Fact(
            at=submission.next_attempt_at,
            fact=FactName.DELIVERY_WAITS,
            text=f"the next attempt to deliver window {window_id} is due{because}",
            **counted,
        )


def _after(instant: datetime, microseconds: int | None) -> datetime | None:
    return None if microseconds is None else instant + timedelta(microseconds=microseconds)


def _seconds(microseconds: int | None) -> str:
    return "unknown length" if microseconds is None else f"{decimal_text(microseconds)} s"


def after_position(facts: Iterable[Fact], position: FactPosition | None) -> list[Fact]:
    return [fact for fact in facts if position is None or fact.position > position]
