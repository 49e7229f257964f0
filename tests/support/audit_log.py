"""Actors and entries of the audit log, for calls of the store."""

from collections.abc import Sequence

from tenure.domain.audit_log import Action, Actor, AuditDraft, AuditEntry, AuditFilter
from tenure.ids import new_id
from tenure.store.contract import Store

ACTOR = Actor("4fJ0aQz81LmN", "ops", "request-1")
ACTOR_JSON = '{"entry": "0190b0a0-0000-7000-8000-00000000000a", "subject": "4fJ0aQz81LmN", "name": "ops"}'
"""ACTOR as functions on PostgreSQL expect it: as JSON, with the id of the audit entry that they write."""
DRAFT_JSON = ACTOR_JSON.replace("}", ', "action": "submission.cancelled", "target": "submissions"}')


def draft(action: Action = Action.SUBMISSION_RETRIED, target: str = "submissions", actor: Actor = ACTOR) -> AuditDraft:
    return AuditDraft(new_id(), actor, action, target)


async def entries(store: Store, **criteria: str) -> Sequence[AuditEntry]:
    return await store.list_audit_log(AuditFilter(**criteria), None, 1000)
