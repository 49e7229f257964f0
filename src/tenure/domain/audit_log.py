"""The audit log: who changed what. The store method that makes a change writes the entry in the same transaction."""

from datetime import datetime
from enum import StrEnum

import msgspec


class Actor(msgspec.Struct, frozen=True):
    """The author of a change. A store method that records a change takes an actor, or receives it in an `AuditDraft` or
    an `EndRequest`.
    """

    subject: str
    """The public id of an API key, `oidc:` with the subject of a token, `session-token:` with the session id,
    `anonymous`, or `cli:user@host`."""
    name: str
    """The name of the API key, which all keys of a rotation share; for other callers, the subject."""
    request_id: str | None = None


class Action(StrEnum):
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    SIGNING_KEY_ROTATED = "signing-key.rotated"
    SESSION_ENDED = "session.ended"
    SESSIONS_IMPORTED = "sessions.imported"
    CAPACITY_CHANGED = "capacity.changed"
    CAPACITY_DELETED = "capacity.deleted"
    JOB_RUN_REQUESTED = "job.run_requested"
    JOB_PAUSED = "job.paused"
    JOB_RESUMED = "job.resumed"
    LEASE_RESIGNED = "lease.resigned"
    SUBMISSION_RETRIED = "submission.retried"
    SUBMISSION_CANCELLED = "submission.cancelled"
    USAGE_WINDOWS_SENT = "usage.windows_sent"


class AuditDraft(msgspec.Struct, frozen=True):
    """The entry of a request that may change many resources in several transactions, or of several requests that end
    sessions with the same action id.

    All transactions of these requests use the same entry id. The first one that changes something writes the entry, and
    each further one adds the number of its changes. So the requests have one entry, or none if they changed nothing.
    """

    entry_id: str
    actor: Actor
    action: Action
    target: str
    detail: str | None = None

    def is_of(self, entry: "AuditEntry") -> bool:
        """Whether this request, or an earlier one with the same action id, wrote the entry: all fields that identify
        the caller and the change are equal.
        """
        mine = self.entry_id, self.actor.subject, self.action, self.target, self.detail
        return mine == (entry.entry_id, entry.subject, entry.action, entry.target, entry.detail)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    entry_id: str
    at: datetime
    subject: str
    name: str
    action: str
    target: str
    """The id or name of the resource that was changed. For a request on many resources, a plural such as `sessions`."""
    detail: str | None = None
    request_id: str | None = None
    changes: int = 1
    """How many resources the request changed."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    subject: str | None = None
    action: str | None = None
    target: str | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None
    """Exclusive."""


class AuditPosition(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of a page."""

    at: datetime
    entry_id: str
