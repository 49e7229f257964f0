"""The route of the audit log: who changed what, newest first."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.access.grants import READERS
from tenure.domain.audit_log import Action, AuditEntry, AuditFilter, AuditPosition
from tenure.domain.leases import NAME_MAX
from tenure.domain.sessions import Position
from tenure.errors import Invalid, Unavailable
from tenure.http.answers import Answer
from tenure.http.fields import Cursor, GivenInstant, Instant, PageLimit, Uuid, in_utc, instant
from tenure.http.pages import cursor_of, page, position_of
from tenure.http.pipeline import Call, Route
from tenure.store.contract import Store

FilterText = Annotated[
    str,
    Meta(
        pattern="^[ -~]+$",
        max_length=NAME_MAX,
        extra={"must": f"must be printable ASCII, at most {NAME_MAX} characters"},
    ),
]
FilterAction = Annotated[Action, Meta(extra={"must": f"must be one of {', '.join(Action)}"})]


class AuditQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    subject: FilterText | None = None
    action: FilterAction | None = None
    target: FilterText | None = None
    from_at: GivenInstant | None = msgspec.field(name="from", default=None)
    to_at: GivenInstant | None = msgspec.field(name="to", default=None)
    limit: PageLimit = 100
    cursor: Cursor | None = None


class AuditEntryAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    entry_id: Uuid
    at: Instant
    subject: str
    name: str
    action: str
    target: str
    detail: str | None
    request_id: str | None
    changes: int


class AuditLog(msgspec.Struct, frozen=True, rename="camel"):
    entries: list[AuditEntryAnswer]
    count: int
    next_cursor: str | None


class AuditLogRoutes:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._path = f"{prefix}/audit-log"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET",
                path="/audit-log",
                handler=self.list,
                grants=READERS,
                tag="audit log",
                summary="List changes and who made them, newest first",
                description="Entries are kept for 400 days.",
                query=AuditQuery,
                answers={200: AuditLog},
                refusals=(Invalid, Unavailable),
            ),
        ]

    async def list(self, call: Call) -> Answer:
        query: AuditQuery = call.query
        criteria = AuditFilter(
            subject=query.subject,
            action=query.action and query.action.value,
            target=query.target,
            from_at=in_utc("from", query.from_at),
            to_at=in_utc("to", query.to_at),
        )
        found = await self._store.list_audit_log(criteria, _position_of(query.cursor), query.limit + 1)
        return page(found, query, self._path, lambda entry: cursor_of(Position(entry.at, entry.entry_id)), _listed)


def _position_of(cursor: str | None) -> AuditPosition | None:
    if cursor is None:
        return None
    position = position_of(cursor)
    return AuditPosition(position.started_at, position.session_id)


def _listed(entries: Sequence[AuditEntry], count: int, cursor: str | None) -> AuditLog:
    return AuditLog([_answer(entry) for entry in entries], count, cursor)


def _answer(entry: AuditEntry) -> AuditEntryAnswer:
    return AuditEntryAnswer(
        entry_id=entry.entry_id,
        at=instant(entry.at),
        subject=entry.subject,
        name=entry.name,
        action=entry.action,
        target=entry.target,
        detail=entry.detail,
        request_id=entry.request_id,
        changes=entry.changes,
    )
