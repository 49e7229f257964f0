"""Maps requests to the JSON arguments of the procedures in `functions/`, and their result rows to domain objects."""

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict, astuple, replace
from sqlalchemy import Row

from tenure.clock import MICROSECOND
from tenure.domain.activity import COUNTS, MinuteCounts
from tenure.domain.alerts import CONDITIONS_MAX, Condition
from tenure.domain.audit_log import Actor, AuditDraft
from tenure.domain.capacities import Seats
from tenure.domain.deadlines import lapse_of, opened, own_limits, span_of
from tenure.domain.events import EventPosition, EventSubscription, NewEventBatch, types_text
from tenure.domain.instances import InstanceReport
from tenure.domain.jobs import BeginRunOutcome, BeginRunResult, Job, JobSettings, RunOutcome
from tenure.domain.keys import LIVE_KEYS_PER_NAME, NewKey, creation_detail
from tenure.domain.leases import JOB_LOCK, AcquireResult, Fence, Lease
from tenure.domain.scope import Scope
from tenure.domain.session_tokens import SIGNING_KEYS_MAX, SigningKey, rotation_detail
from tenure.domain.sessions import (
    ClosedSession,
    EndManyResult,
    EndRequest,
    EndResult,
    Found,
    Heartbeat,
    HeartbeatResult,
    ImportedSession,
    Limits,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    Session,
    SessionFilter,
    SweepResult,
)
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.domain.submissions import (
    AttemptEnd,
    BeginAttemptOutcome,
    BeginAttemptResult,
    BeginAttemptsResult,
    Contract,
    SubmitRequest,
    SubmitResult,
)
from tenure.domain.usage import ChunkBounds, ChunkDigest, CutRules, Mark, MarkSums, WindowToSend
from tenure.errors import ERROR_MAX
from tenure.ids import new_id
from tenure.store.engines.sqlserver.calls import OLD_SESSION
from tenure.store.limits import USAGE_KEPT
from tenure.store.reads import leases, sessions

Value = str | int | None
Rows = Sequence[Row[Any]]


def numbered(entries: Iterable[Sequence[Any]]) -> str:
    """A JSON list of lists. Each inner list begins with its position."""
    return _json([(position, *entry) for position, entry in enumerate(entries)])


def open_requests_text(requests: Sequence[OpenRequest], limits: Limits) -> str:
    values = {
        "term": limits.term // MICROSECOND,
        "lease": limits.lease_microseconds,
        "heartbeat": limits.heartbeat_microseconds,
        "idle": limits.idle_microseconds,
        "requests": [(position, *_open_request_values(request)) for position, request in enumerate(requests)],
    }
    return _json_without_nulls(values)


def _open_request_values(request: OpenRequest) -> Sequence[Value]:
    return (
        request.capacity_id,
        request.user_object_id,
        request.tenant_object_id,
        request.kind,
        request.session_id,
        request.lease_microseconds,
        request.heartbeat_microseconds,
        request.idle_microseconds,
    )


def heartbeat_values(heartbeat: Heartbeat) -> Sequence[Value]:
    return (heartbeat.session_id, int(heartbeat.active), *astuple(heartbeat.scope))


def end_request_values(end: EndRequest) -> Sequence[Value]:
    return (end.session_id, end.reason, *astuple(end.scope), *actor_values(end.actor).values())


def end_many_text(session_ids: Sequence[str], criteria: SessionFilter, draft: AuditDraft) -> str:
    wanted = {name: getattr(criteria, name) for name in ("tenant", "user", "capacity", "kind", "state")}
    return _json_without_nulls({"sessions": list(session_ids), **wanted, "draft": draft_values(draft)})


def attach_values(attach: AttachRequest) -> Sequence[Value]:
    limits = (attach.lease_microseconds, attach.heartbeat_microseconds, attach.idle_microseconds)
    return (attach.session_id, *limits, *astuple(attach.scope))


def update_values(update: StreamUpdate) -> Sequence[Value]:
    return (
        update.session_id,
        update.attachment,
        update.save,
        int(update.active),
        update.end,
        int(update.finished),
        *astuple(update.counted),
    )


def seats_text(capacity_id: str, seats: Seats, scope: Scope, actor: Actor) -> str:
    return _json_without_nulls(
        {
            "capacity": capacity_id,
            "tenant": seats.tenant_object_id,
            "maxSessions": seats.max_sessions,
            "whenFull": seats.when_full,
            "scope": scope.tenant,
            "actor": actor_values(actor),
        }
    )


def delete_text(capacity_id: str, scope: Scope, actor: Actor) -> str:
    return _json_without_nulls({"capacity": capacity_id, "scope": scope.tenant, "actor": actor_values(actor)})


def job_values(job: JobSettings) -> Sequence[Value]:
    return (job.name, job.interval_microseconds, job.lock_timeout_microseconds, int(job.paused))


def finish_text(fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> str:
    values = {"outcome": outcome, "error": _truncated(error), "retry": retry_microseconds}
    return _json_without_nulls(asdict(fence) | values)


def submit_requests_text(requests: Sequence[SubmitRequest]) -> str:
    starts = accumulate((len(request.payload) for request in requests), initial=1)
    return numbered(_submit_request_values(request, start) for request, start in zip(requests, starts, strict=False))


def _submit_request_values(request: SubmitRequest, start: int) -> Sequence[Any]:
    return (
        request.submission_id,
        request.gateway,
        request.caller,
        request.key,
        request.digest.hex(),
        start,
        len(request.payload),
        to_builtins(request.contract),
        request.request_id,
        request.traceparent,
    )


def command_text(submission_ids: Sequence[str], owner: str | None, draft: AuditDraft) -> str:
    return _json_without_nulls({"submissions": list(submission_ids), "owner": owner, "draft": draft_values(draft)})


def import_text(imported: Sequence[ImportedSession], draft: AuditDraft) -> str:
    sessions_as_lists = [
        (
            position,
            each.session_id,
            each.tenant_object_id,
            each.user_object_id,
            each.capacity_id,
            each.kind,
            _instant(each.started_at),
            _instant(each.ends_at),
            each.lease_microseconds,
            each.heartbeat_microseconds,
            each.idle_microseconds,
        )
        for position, each in enumerate(imported)
    ]
    return _json_without_nulls({"sessions": sessions_as_lists, "draft": draft_values(draft)})


def begin_values(submission_id: str, early: Collection[str]) -> Sequence[Value]:
    return (submission_id, int(submission_id in early))


def end_values(end: AttemptEnd) -> Sequence[Value]:
    return (
        end.submission_id,
        end.number,
        end.outcome,
        end.status,
        _truncated(end.error),
        int(end.counts),
        end.pause_microseconds,
        int(end.is_binding),
        int(end.has_receipt),
    )


def waiting_reason_text(submission_ids: Sequence[str], error: str) -> str:
    return _json({"error": _truncated(error), "submissions": list(submission_ids)})


def rules_text(rules: CutRules) -> str:
    return _json_without_nulls(
        {
            "interval": rules.interval_microseconds,
            "factors": rules.factors,
            "contract": to_builtins(rules.contract),
        }
    )


def windows_text(contract: Contract, windows: Sequence[WindowToSend], draft: AuditDraft) -> str:
    return _json_without_nulls(
        {
            "contract": to_builtins(contract),
            "kept": USAGE_KEPT // MICROSECOND,
            "windows": [(window.window_id, len(window.submission_ids)) for window in windows],
            "chunks": [
                (window.window_id, number, submission_id)
                for window in windows
                for number, submission_id in enumerate(window.submission_ids, 1)
            ],
            "draft": draft_values(draft),
        }
    )


def event_batch_text(batch: NewEventBatch) -> str:
    return _json_without_nulls(
        {
            "gateway": batch.gateway,
            "number": batch.number,
            "from": _position_values(batch.start),
            "to": _position_values(batch.end),
            "types": types_text(batch.types),
            "events": batch.events,
            "digest": batch.digest.hex(),
            "submission": batch.submission_id,
            "contract": to_builtins(batch.contract),
        }
    )


def _position_values(position: EventPosition) -> Sequence[Value]:
    return _instant(position.at), position.rank, position.session_id


def event_subscription(row: Row[Any]) -> EventSubscription:
    position = EventPosition(row.position_at, row.position_rank, row.position_id)
    return EventSubscription(row.gateway, position, row.number, row.is_settled)


def chunk_bounds_values(chunk_bounds: ChunkBounds) -> Sequence[Value]:
    """The bounds of a chunk and a new submission id. The id is used only if the window has a contract."""
    return (*astuple(chunk_bounds), new_id())


def mark_text(mark: Mark, sums: Sequence[MarkSums]) -> str:
    return _json({"at": _instant(mark.at), "series": mark.series, "state": mark.state, "sums": list(map(list, sums))})


def deleted_mark_text(at: datetime) -> str:
    return _json({"at": _instant(at)})


def digest_values(digest: ChunkDigest) -> Sequence[Value]:
    return (digest.submission_id, digest.digest.hex())


def new_key_text(new: NewKey, actor: Actor) -> str:
    return _json_without_nulls(
        {
            "publicId": new.public_id,
            "name": new.name,
            "role": new.role.value,
            "tenant": new.tenant_object_id,
            "digest": new.digest.hex(),
            "expires": new.expires_at and _instant(new.expires_at),
            "othersExpire": new.others_expire_at and _instant(new.others_expire_at),
            "liveMax": LIVE_KEYS_PER_NAME,
            "detail": creation_detail(new),
            "actor": actor_values(actor),
        }
    )


def revoke_text(public_id: str, actor: Actor) -> str:
    return _json({"publicId": public_id, "actor": actor_values(actor)})


def rotation_text(new: SigningKey, overlap: timedelta | None, actor: Actor) -> str:
    return _json_without_nulls(
        {
            "keyId": new.key_id,
            "secret": new.secret.hex(),
            "overlap": None if overlap is None else overlap // MICROSECOND,
            "most": SIGNING_KEYS_MAX,
            "detail": rotation_detail(overlap),
            "actor": actor_values(actor),
        }
    )


def alerts_text(conditions: Sequence[Condition], contract: Contract | None) -> str:
    wanted = 0 if contract is None else len(conditions) + CONDITIONS_MAX
    return _json_without_nulls(
        {
            "conditions": [
                (position, new_id(), each.alert.value, each.subject or "", _truncated(each.detail))
                for position, each in enumerate(conditions)
            ],
            "contract": None if contract is None else to_builtins(contract),
            "submissions": [(position, new_id()) for position in range(wanted)],
        }
    )


def actor_values(actor: Actor) -> dict[str, Value]:
    """The actor with a new id for the audit entry, as `tenure_audit_1` expects it."""
    return {"entry": new_id(), "subject": actor.subject, "name": actor.name, "request": actor.request_id}


def actor_text(actor: Actor) -> str:
    return _json(actor_values(actor))


def draft_values(draft: AuditDraft) -> dict[str, Value]:
    entry = {"entry": draft.entry_id, "action": draft.action.value, "target": draft.target, "detail": draft.detail}
    return actor_values(draft.actor) | entry


def instance_text(report: InstanceReport) -> str:
    started = {} if report.started_at is None else {"started": _instant(report.started_at)}
    names = ("instance", "holder", "host", "pid", "worker", "version", "executor_lease")
    fields = {name: getattr(report, name) for name in names}
    return _json({**fields, **started, "stopped": int(report.stopped)})


def minute_values(minute: MinuteCounts) -> Sequence[Value]:
    return (_instant(minute.at), minute.turn, *(minute.counts.get(name, 0) for name in COUNTS))


def use_values(use: tuple[str, datetime]) -> Sequence[Value]:
    public_id, used_at = use
    return (public_id, _instant(used_at))


def _instant(instant: datetime) -> str:
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")


def _truncated(error: str | None) -> str | None:
    """Truncates to ERROR_MAX characters as SQL Server counts them: a character beyond U+FFFF counts as two."""
    return error and error.encode("utf-16-le", "replace")[: 2 * ERROR_MAX].decode("utf-16-le", "ignore")


def _json_without_nulls(values: dict[str, Any]) -> str:
    return _json({name: value for name, value in values.items() if value is not None})


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def open_results(rows: Rows, requests: Sequence[OpenRequest], limits: Limits) -> Sequence[OpenResult]:
    """Maps rows to requests by position. A row without a position contains the common start of the new sessions of all
    requests without a row.
    """
    results: list[OpenResult | None] = [None] * len(requests)
    closed_sessions: dict[int, list[ClosedSession]] = {}
    common_opened_at: datetime | None = None
    for row in rows:
        if row.position is None:
            common_opened_at = row.opened_at
        elif row.outcome == "closing":
            closed_sessions.setdefault(row.position, []).append(
                ClosedSession(row.session_id, row.lapse_reason, row.opened_at, *_whose(row)),
            )
        else:
            results[row.position] = _open_result(row, requests[row.position], limits)
    found = _created_unless_found(results, requests, limits, common_opened_at)
    for position, closed in closed_sessions.items():
        found[position] = replace(found[position], closed_sessions=closed)
    return found


def _created_unless_found(
    results: Sequence[OpenResult | None], requests: Sequence[OpenRequest], limits: Limits, opened_at: datetime | None
) -> list[OpenResult]:
    if opened_at is None:
        return [result or OpenResult(OpenOutcome.AGAIN) for result in results]
    span = span_of(limits, opened_at)
    return [
        result or OpenResult(OpenOutcome.CREATED, opened(request, limits, opened_at, span))
        for result, request in zip(results, requests, strict=True)
    ]


def _open_result(row: Row[Any], request: OpenRequest, limits: Limits) -> OpenResult:
    match row.outcome:
        case "created":
            return OpenResult(OpenOutcome.CREATED, opened(request, limits, row.opened_at))
        case "lapsed":
            whose = request.user_object_id, row.tenant_object_id, request.capacity_id
            closed = ClosedSession(row.session_id, row.lapse_reason, row.deadline_at, *whose)
            return OpenResult(OpenOutcome.CREATED, opened(request, limits, row.opened_at), [closed])
        case "existing":
            return OpenResult(OpenOutcome.EXISTING, _existing_session(row, request))
        case "upgraded":
            return OpenResult(OpenOutcome.UPGRADED, _upgraded(row, request, limits))
    return OpenResult(OpenOutcome(row.outcome))


def _upgraded(row: Row[Any], request: OpenRequest, limits: Limits) -> Session:
    inherited = Limits(limits.term, row.lease_microseconds, row.idle_microseconds, row.heartbeat_microseconds)
    new = opened(request, own_limits(request, inherited), row.opened_at)
    return replace(new, previous_session_id=row.session_id)


def _existing_session(row: Row[Any], request: OpenRequest) -> Session:
    implied = {"capacity_id": request.capacity_id, "user_object_id": request.user_object_id}
    found = {each.name: getattr(row, each.name) for each in OLD_SESSION}
    return sessions.session_from_values({"closed_at": None, "close_reason": None, **implied, **found})


def heartbeat_results(rows: Rows, session_ids: Sequence[str]) -> Sequence[HeartbeatResult]:
    results = [HeartbeatResult(Found.UNKNOWN)] * len(session_ids)
    for row in rows:
        closed = None
        if row.recorded:
            closed = ClosedSession(session_ids[row.position], row.close_reason, row.deadline_at, *_whose(row))
        results[row.position] = HeartbeatResult(
            Found(row.found), row.state, row.deadline_at, row.heartbeat_microseconds, row.close_reason, closed
        )
    return results


def _whose(row: Row[Any]) -> tuple[str, str, str]:
    return row.user_object_id, row.tenant_object_id, row.capacity_id


def end_results(rows: Rows, count: int) -> Sequence[EndResult]:
    results = [EndResult(Found.UNKNOWN)] * count
    for row in rows:
        held = row.closed_at is None
        results[row.position] = (
            EndResult(Found.HELD) if held else EndResult(Found.OVER, sessions.session_from_row(row), row.recorded)
        )
    return results


def end_many_result(rows: Rows) -> tuple[EndManyResult, datetime]:
    """The result without the number of held sessions, and the time at which the action began."""
    closed = [
        ClosedSession(row.session_id, row.reason, row.ended_at, *_whose(row))
        for row in rows
        if row.session_id is not None
    ]
    (last,) = [row for row in rows if row.session_id is None]
    return EndManyResult(closed, 0, last.total, last.same), last.began_at


def sweep_result(rows: Rows) -> SweepResult:
    closed_sessions = [
        ClosedSession(row.session_id, row.reason, row.ended_at, *_whose(row))
        for row in rows
        if row.session_id is not None
    ]
    return SweepResult(closed_sessions, sum(row.looked_at or 0 for row in rows))


def attach_results(rows: Rows, count: int) -> Sequence[AttachResult]:
    results = [AttachResult(Found.UNKNOWN)] * count
    for row in rows:
        session = sessions.session_from_row(row)
        closed = lapse_of(session) if row.recorded else None
        results[row.position] = AttachResult(Found(row.found), session, row.attached, row.now, closed)
    return results


def stream_update_results(rows: Rows, count: int) -> Sequence[StreamUpdateResult]:
    results = [StreamUpdateResult(Found.UNKNOWN)] * count
    for row in rows:
        session = sessions.session_from_row(row)
        results[row.position] = StreamUpdateResult(Found(row.found), session, row.now, row.recorded, row.counted)
    return results


def lease(row: Row[Any]) -> Lease:
    return leases.lease_from_values(row._mapping, row.now)  # noqa: SLF001 - public in SQLAlchemy


def acquire_result(row: Row[Any]) -> AcquireResult:
    return AcquireResult(lease(row), row.taken, row.reclaimed)


def job(row: Row[Any]) -> Job:
    return leases.job_from_values(row._mapping)  # noqa: SLF001 - public in SQLAlchemy


def begin_run_result(row: Row[Any], job_name: str, holder: str) -> BeginRunResult:
    found = BeginRunOutcome(row.found)
    if found is not BeginRunOutcome.BEGUN:
        return BeginRunResult(found)
    name = JOB_LOCK + job_name
    return BeginRunResult(
        found,
        fence=Fence(name, holder, row.epoch),
        started_at=row.started_at,
        expires_at=row.expires_at,
        tick_at=row.tick_at,
        lock_timeout_microseconds=row.lock_timeout_microseconds,
        failures_in_a_row=row.failures_in_a_row,
        reclaimed=row.reclaimed_epoch and Fence(name, row.reclaimed_holder, row.reclaimed_epoch),
        clock_behind=row.clock_behind,
    )


def submit_results(rows: Rows) -> Sequence[SubmitResult]:
    in_order = sorted(rows, key=lambda row: row.position)
    return [SubmitResult(row.submission_id, row.state, row.same, row.new) for row in in_order]


def begin_attempts_result(rows: Rows) -> BeginAttemptsResult:
    return BeginAttemptsResult(rows[0].now, [_begin_attempt_result(row) for row in rows])


def _begin_attempt_result(row: Row[Any]) -> BeginAttemptResult:
    found = BeginAttemptOutcome(row.found)
    return BeginAttemptResult(
        row.submission_id, found, row.number, row.failures, row.unknowns, row.was_due_at, row.next_attempt_at
    )
