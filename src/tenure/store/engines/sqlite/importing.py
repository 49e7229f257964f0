"""Imports live sessions of another service, under the write lock of the SQLite file."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from tenure.domain.audit_log import AuditDraft
from tenure.domain.deadlines import earliest
from tenure.domain.sessions import ImportedSession, ImportOutcome, State
from tenure.store.engines.sqlite.audit_log import count_changes
from tenure.store.engines.sqlite.opening import ends_after, live_sessions
from tenure.store.tables import capacities, sessions


def import_sessions(
    connection: Connection, now: datetime, imported: Sequence[ImportedSession], draft: AuditDraft, *, writes: bool
) -> Sequence[ImportOutcome]:
    outcomes = _outcomes(connection, now, imported)
    if writes:
        new = [each for each, outcome in zip(imported, outcomes, strict=True) if outcome is ImportOutcome.IMPORTED]
        if new:
            connection.execute(insert(sessions), [_values(each, now) for each in new])
            of_them = capacities.c.capacity_id.in_({each.capacity_id for each in new})
            connection.execute(update(capacities).where(of_them).values(slack=0))
        count_changes(connection, now, draft, len(new))
    return outcomes


def _outcomes(connection: Connection, now: datetime, imported: Sequence[ImportedSession]) -> Sequence[ImportOutcome]:
    by_id = select(sessions.c.session_id, sessions.c.closed_at, sessions.c.deadline_at).where(
        sessions.c.session_id.in_([each.session_id for each in imported])
    )
    is_live = {row.session_id: row.closed_at is None and row.deadline_at > now for row in connection.execute(by_id)}
    of_capacities = select(capacities.c.capacity_id, capacities.c.tenant_object_id).where(
        capacities.c.capacity_id.in_({each.capacity_id for each in imported})
    )
    tenants = {capacity_id: tenant for capacity_id, tenant in connection.execute(of_capacities) if tenant is not None}
    taken = {*live_sessions(connection, imported), *ends_after(connection, now)}

    def outcome(each: ImportedSession) -> ImportOutcome:
        if each.session_id in is_live:
            return ImportOutcome.EXISTING if is_live[each.session_id] else ImportOutcome.OVER
        if each.ends_at <= now:
            return ImportOutcome.ENDED
        if tenants.get(each.capacity_id, each.tenant_object_id) != each.tenant_object_id:
            return ImportOutcome.TENANT_MISMATCH
        return ImportOutcome.CONFLICT if each.key in taken else ImportOutcome.IMPORTED

    return [outcome(each) for each in imported]


def _values(imported: ImportedSession, now: datetime) -> dict[str, object]:
    lease, idle = imported.lease_microseconds, imported.idle_microseconds
    deadline_at, lapse_reason = earliest(imported.ends_at, now, lease, now, idle)
    return {
        "session_id": imported.session_id,
        "tenant_object_id": imported.tenant_object_id,
        "user_object_id": imported.user_object_id,
        "capacity_id": imported.capacity_id,
        "kind": imported.kind,
        "state": State.CREATED.value,
        "started_at": now,
        "imported_start_at": imported.started_at,
        "term_ends_at": imported.ends_at,
        "deadline_at": deadline_at,
        "check_at": deadline_at,
        "last_heartbeat_at": now,
        "last_activity_at": now,
        "modified_at": now,
        "lease_microseconds": lease,
        "heartbeat_microseconds": imported.heartbeat_microseconds,
        "idle_microseconds": idle,
        "lapse_reason": lapse_reason.value,
    }
