"""The audit log. Each entry is written in the transaction of the change that it records."""

from datetime import datetime

from sqlalchemy import Connection, insert, update

from tenure.domain.audit_log import Action, Actor, AuditDraft
from tenure.ids import new_id
from tenure.store.tables import audit_log


def write_audit_entry(
    connection: Connection, now: datetime, actor: Actor, action: Action, target: str, detail: str | None = None
) -> None:
    """Writes the entry of a single change. Call it in the transaction of the change, and only if the transaction has
    changed something.
    """
    count_changes(connection, now, AuditDraft(new_id(), actor, action, target, detail), 1)


def count_changes(connection: Connection, now: datetime, draft: AuditDraft, changes: int) -> None:
    """Writes the entry of a request with the number of changes. If an earlier transaction of the request has written
    the entry, adds `changes` to the number in the entry. If `changes` is 0, writes nothing.
    """
    if changes == 0:
        return
    this_entry = audit_log.c.entry_id == draft.entry_id
    added = update(audit_log).where(this_entry).values(changes=audit_log.c.changes + changes)
    if connection.execute(added).rowcount:
        return
    connection.execute(
        insert(audit_log).values(
            entry_id=draft.entry_id,
            at=now,
            subject=draft.actor.subject,
            name=draft.actor.name,
            action=draft.action.value,
            target=draft.target,
            detail=draft.detail,
            request_id=draft.actor.request_id,
            changes=changes,
        )
    )
