"""Converts requests to arguments of the functions in `functions/`, and records of these functions to domain objects."""

import json
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg

from tenure.clock import to_microseconds
from tenure.domain.audit_log import Actor, AuditDraft
from tenure.domain.deadlines import lapse_of, opened, span_of
from tenure.domain.events import EventPosition, EventSubscription
from tenure.domain.jobs import BeginRunOutcome, BeginRunResult
from tenure.domain.keys import StoredKey
from tenure.domain.leases import JOB_LOCK, Fence, Lease
from tenure.domain.scope import Scope
from tenure.domain.sessions import (
    ClosedSession,
    EndManyResult,
    EndResult,
    Found,
    HeartbeatResult,
    ImportedSession,
    Limits,
    OpenOutcome,
    OpenRequest,
    OpenResult,
    Session,
    SessionFilter,
    StreamCounters,
    SweepResult,
)
from tenure.domain.streams import AttachResult, StreamUpdateResult
from tenure.domain.submissions import (
    BeginAttemptOutcome,
    BeginAttemptResult,
    BeginAttemptsResult,
    PendingEntry,
    PendingPage,
    SubmissionState,
    SubmitRequest,
    SubmitResult,
)
from tenure.domain.usage import Chunk, Window
from tenure.ids import id_text, new_id
from tenure.store.reads import keys, leases, sessions, usage
from tenure.store.types import Code

_AS_TEXT = {column.name: column.type.as_text for column in sessions.COLUMNS if isinstance(column.type, Code)}
SESSION_COLUMNS = ", ".join(
    f"{_AS_TEXT.get(column.name, '{}').format(f'(e.session).{column.name}')} AS {column.name}"
    for column in sessions.COLUMNS
)
"""The columns of the returned session, one by one. If a statement returned the session as one composite value, asyncpg
would send a dozen queries about its type on every new connection."""


def array(values: Sequence[str]) -> str:
    """An array as text, for values that need no quotes. Encoding an array in asyncpg costs more than the rest of the
    call.
    """
    return f"{{{','.join(values)}}}"


def numbers(values: Sequence[int | None]) -> str | None:
    """An array of numbers as text, or None if no value is set.

    `unnest` fills a missing array with NULLs, which is cheaper than sending the NULLs.
    """
    if not any(values):
        return None
    return array(["NULL" if value is None else str(value) for value in values])


def imported_arrays(imported: Sequence[ImportedSession]) -> Sequence[Any]:
    return (
        array([each.session_id for each in imported]),
        array([each.tenant_object_id for each in imported]),
        array([each.user_object_id for each in imported]),
        array([each.capacity_id for each in imported]),
        array([str(each.kind) for each in imported]),
        [each.started_at for each in imported],
        [each.ends_at for each in imported],
        numbers([each.lease_microseconds for each in imported]),
        numbers([each.heartbeat_microseconds for each in imported]),
        numbers([each.idle_microseconds for each in imported]),
    )


def flags(values: Sequence[bool]) -> str:
    return array(["t" if value else "f" for value in values])


def scopes(scopes: Sequence[Scope]) -> tuple[str | None, str | None]:
    """The arguments `p_tenant` and `p_user`. Both are None if no caller is bound to a tenant. The SQL function then
    skips the check of the scopes.
    """
    tenants = [scope.tenant for scope in scopes]
    if not any(tenants):
        return None, None
    return array([tenant or "NULL" for tenant in tenants]), array([scope.user or "NULL" for scope in scopes])


def open_results(
    records: Sequence[asyncpg.Record], requests: Sequence[OpenRequest], limits: Limits
) -> Sequence[OpenResult]:
    results: list[OpenResult | None] = [None] * len(requests)
    closed_sessions: dict[int, list[ClosedSession]] = {}
    for record in records:
        position, outcome = record[0], record[1]
        if position is None:
            if outcome == "created":
                return _created_unless_found(results, requests, limits, record[5])
        elif outcome == "closing":
            whose = str(record[18]), str(record[16]), str(record[19])
            closed = ClosedSession(str(record[2]), record[8], record[7], *whose)
            closed_sessions.setdefault(position, []).append(closed)
        else:
            results[position - 1] = _open_result(record, requests[position - 1], limits)
    found = [result or _AGAIN for result in results]
    for position, ended in closed_sessions.items():
        found[position - 1] = OpenResult(found[position - 1].outcome, found[position - 1].session, ended)
    return found


_AGAIN = OpenResult(OpenOutcome.AGAIN)


def _created_unless_found(
    results: Sequence[OpenResult | None], requests: Sequence[OpenRequest], limits: Limits, started_at: datetime
) -> Sequence[OpenResult]:
    span = span_of(limits, started_at)
    return [
        result or OpenResult(OpenOutcome.CREATED, opened(request, limits, started_at, span))
        for result, request in zip(results, requests, strict=True)
    ]


def _open_result(record: asyncpg.Record, request: OpenRequest, limits: Limits) -> OpenResult:
    outcome = OpenOutcome(record[1])
    if outcome not in (OpenOutcome.CREATED, OpenOutcome.EXISTING, OpenOutcome.UPGRADED):
        return OpenResult(outcome)
    if record[3] is None:
        return OpenResult(outcome, opened(request, limits, record[5]))
    return OpenResult(outcome, _existing_session(record, request))


def _existing_session(record: asyncpg.Record, request: OpenRequest) -> Session:
    previous = record[14]
    return Session(
        session_id=str(record[2]),
        tenant_object_id=str(record[16]),
        user_object_id=request.user_object_id,
        capacity_id=request.capacity_id,
        kind=record[3],
        state=record[4],
        started_at=record[5],
        term_ends_at=record[6],
        deadline_at=record[7],
        lapse_reason=record[8],
        lease_microseconds=record[9],
        idle_microseconds=record[10],
        heartbeat_microseconds=record[11],
        last_heartbeat_at=record[12],
        last_activity_at=record[13],
        previous_session_id=None if previous is None else str(previous),
        modified_at=record[15],
        stream=None if record[17] is None else StreamCounters(*record[17]),
        imported_start_at=record[20],
    )


def session(record: asyncpg.Record) -> Session:
    return sessions.session_from_values(values_of(record))


def heartbeat_results(records: Sequence[asyncpg.Record], session_ids: Sequence[str]) -> Sequence[HeartbeatResult]:
    """A record is the result of all sessions that it lists, or of all sessions of the call if it has no list. Sessions
    that no record lists are unknown.
    """
    results: dict[str, HeartbeatResult] = {}
    for listed, found, state, deadline_at, heartbeat, close_reason, whose in records:
        if listed is None:
            return [HeartbeatResult(_FOUND[found], state, deadline_at, heartbeat)] * len(session_ids)
        ids = listed[1:-1].split(",")
        closed = None if whose is None else ClosedSession(ids[0], close_reason, deadline_at, *map(str, whose))
        result = HeartbeatResult(_FOUND[found], state, deadline_at, heartbeat, close_reason, closed)
        results.update(dict.fromkeys(ids, result))
    return [results.get(session_id, _UNKNOWN) for session_id in session_ids]


_FOUND = {found.value: found for found in Found}
_UNKNOWN = HeartbeatResult(Found.UNKNOWN)


def end_results(records: Sequence[asyncpg.Record], count: int) -> Sequence[EndResult]:
    results = [EndResult(Found.UNKNOWN)] * count
    for record in records:
        held = record["session_id"] is None
        results[record["position"] - 1] = (
            EndResult(Found.HELD) if held else EndResult(Found.OVER, session(record), record["recorded"])
        )
    return results


def criteria_text(criteria: SessionFilter) -> str:
    """The argument `p_criteria` of `tenure_end_many_1`."""
    names = ("tenant", "user", "capacity", "kind", "state")
    return json.dumps({name: getattr(criteria, name) for name in names})


def end_many_result(closed: Sequence[asyncpg.Record], last: asyncpg.Record) -> EndManyResult:
    ends = [
        ClosedSession(str(session_id), reason, ended_at, str(user), str(tenant), str(capacity))
        for session_id, reason, ended_at, user, tenant, capacity, *_ in closed
    ]
    return EndManyResult(ends, last["held"], last["total"], last["same"])


def sweep_result(lapsed: Sequence[asyncpg.Record], last: asyncpg.Record) -> SweepResult:
    closed = [
        ClosedSession(str(session_id), reason, ended_at, str(user), str(tenant), str(capacity))
        for session_id, reason, ended_at, user, tenant, capacity, _ in lapsed
    ]
    return SweepResult(closed, last["looked_at"])


def attach_results(records: Sequence[asyncpg.Record], count: int) -> Sequence[AttachResult]:
    results = [AttachResult(Found.UNKNOWN)] * count
    for record in records:
        found = session(record)
        closed = lapse_of(found) if record["recorded"] else None
        results[record["position"] - 1] = AttachResult(
            Found(record["found"]), found, record["attachment"], record["now"], closed
        )
    return results


def stream_update_results(records: Sequence[asyncpg.Record], count: int) -> Sequence[StreamUpdateResult]:
    results = [StreamUpdateResult(Found.UNKNOWN)] * count
    for record in records:
        results[record["position"] - 1] = StreamUpdateResult(
            Found(record["found"]), session(record), record["now"], record["recorded"], record["counted"]
        )
    return results


def session_ends(text: str) -> Mapping[str, str]:
    """Decodes a notification of tenure_announce_ends_1: the close reason of each session."""
    return dict(each.split(" ", 1) for each in text.split(",") if " " in each)


def lease(record: asyncpg.Record) -> Lease:
    return leases.lease_from_values(record, record["now"])


def begin_run_result(record: asyncpg.Record, job: str, holder: str) -> BeginRunResult:
    found = BeginRunOutcome(record["found"])
    if found is not BeginRunOutcome.BEGUN:
        return BeginRunResult(found)
    name = JOB_LOCK + job
    reclaimed = record["reclaimed_epoch"] and Fence(name, record["reclaimed_holder"], record["reclaimed_epoch"])
    return BeginRunResult(
        found,
        fence=Fence(name, holder, record["epoch"]),
        started_at=record["started_at"],
        expires_at=record["expires_at"],
        tick_at=record["tick_at"],
        lock_timeout_microseconds=record["lock_timeout_microseconds"],
        failures_in_a_row=record["failures_in_a_row"],
        reclaimed=reclaimed,
        clock_behind=record["clock_behind"],
    )


def submit_results(records: Sequence[asyncpg.Record], requests: Sequence[SubmitRequest]) -> Sequence[SubmitResult]:
    """A request without a record was stored by this call."""
    pending = SubmissionState.PENDING.value
    results = [SubmitResult(request.submission_id, pending, same=True, new=True) for request in requests]
    for position, submission_id, state, same, new in records:
        results[position - 1] = SubmitResult(str(submission_id), state, same, new)
    return results


def pending_page(record: asyncpg.Record) -> PendingPage:
    now, gateways, packed = record
    if packed is None:
        return PendingPage(now, [])
    rows = [
        (int.from_bytes(each, "big"), gateway, None if due == _NEVER else due + _SINCE_1970, changed + _SINCE_1970)
        for (each, changed, due), gateway in zip(_PENDING_ENTRY.iter_unpack(packed), gateways, strict=True)
    ]
    return PendingPage(now, list(map(PendingEntry._make, rows)))


_PENDING_ENTRY = struct.Struct(">16sqq")
_NEVER = -(1 << 63)
"""The binary form of `-infinity`, which LIST_PENDING returns for a submission without `next_attempt_at`."""
_SINCE_1970 = to_microseconds(datetime(2000, 1, 1, tzinfo=UTC))
"""Microseconds from 1970 to 2000, because PostgreSQL counts from 2000."""


def begin_attempts_result(records: Sequence[asyncpg.Record]) -> BeginAttemptsResult:
    return BeginAttemptsResult(
        records[0][7],
        [BeginAttemptResult(str(record[0]), BeginAttemptOutcome(record[1]), *record[2:7]) for record in records],
    )


def actor_text(actor: Actor) -> str:
    """The argument `p_actor` of a function that writes an audit entry: the actor as JSON, with the id of the entry."""
    return json.dumps(_actor_values(new_id(), actor))


def actors_text(actors: Sequence[Actor]) -> str:
    return json.dumps([_actor_values(new_id(), actor) for actor in actors])


def draft_text(draft: AuditDraft) -> str:
    """The argument `p_draft` of a function that adds to an audit entry."""
    entry = {"action": draft.action.value, "target": draft.target, "detail": draft.detail}
    return json.dumps(_actor_values(draft.entry_id, draft.actor) | entry)


def _actor_values(entry_id: str, actor: Actor) -> dict[str, str | None]:
    return {"entry": entry_id, "subject": actor.subject, "name": actor.name, "request": actor.request_id}


def key(record: asyncpg.Record) -> StoredKey:
    tenant = record["tenant_object_id"]
    return keys.key_from_values({**record, "tenant_object_id": tenant and str(tenant)})


def values_of(record: asyncpg.Record) -> dict[str, Any]:
    """The values of the record by column name, with ids as canonical strings."""
    return {name: id_text(value) if isinstance(value, UUID) else value for name, value in record.items()}


def found_chunks(records: Sequence[asyncpg.Record]) -> Sequence[tuple[Window, Chunk]]:
    windows: dict[int, Window] = {}
    found = []
    for values in map(values_of, records):
        window_id = values["window_id"]
        if window_id not in windows:
            windows[window_id] = usage.window_from_row(SimpleNamespace(**values))
        found.append((windows[window_id], Chunk(**{name: values[f"chunk_{name}"] for name in Chunk.__struct_fields__})))
    return found


def event_subscription(record: asyncpg.Record) -> EventSubscription:
    gateway, at, rank, session_id, number, is_settled = record
    return EventSubscription(gateway, EventPosition(at, rank, str(session_id)), number, is_settled)
