"""Sessions: opening, renewing, ending, the sweep, and reads."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from tenure.domain.audit_log import AuditDraft
from tenure.domain.history import SessionHistory, View
from tenure.domain.leases import Fence
from tenure.domain.scope import Scope
from tenure.domain.sessions import (
    EndManyResult,
    EndRequest,
    EndResult,
    Heartbeat,
    HeartbeatResult,
    ImportedSession,
    ImportOutcome,
    LapsePage,
    LapsePosition,
    Limits,
    MatchCount,
    OpenRequest,
    OpenResult,
    Position,
    Session,
    SessionCounts,
    SessionFilter,
    SessionPage,
    SweepResult,
)
from tenure.domain.usage import (
    Overlap,
)


class OpenLane(StrEnum):
    """The lane of a batch of open requests.

    On PostgreSQL, transactions that both create and replace sessions can deadlock even with sorted keys, so each batch
    uses one lane.

    CREATE returns live sessions, and inserts new ones for keys that have none.
    REOPEN closes sessions that have lapsed or have a lower kind than requested, and inserts a new one for each of them.
    LIMITED does the work of CREATE and REOPEN for capacities that have a limit or a tenant, one batch per capacity at a
    time.
    """

    CREATE = "create"
    REOPEN = "reopen"
    LIMITED = "limited"


class SessionStore(Protocol):
    async def open_sessions(
        self, lane: OpenLane, requests: Sequence[OpenRequest], limits: Limits
    ) -> Sequence[OpenResult]:
        """Opens sessions, and returns one result per request, in the same order.

        `requests` has at most BATCH_MAX requests, each key once, in ascending order of key.

        Raises `IdTaken` if an earlier call with the same request committed, the answer to that call was lost, and the
        session that it opened has ended since.
        """

    async def import_sessions(
        self, imported: Sequence[ImportedSession], draft: AuditDraft, *, writes: bool
    ) -> Sequence[ImportOutcome]:
        """Inserts live sessions of another service, and returns one outcome per session, in the same order.

        The inserted sessions start at the time of this write, so that windows and events up to now do not change;
        `imported_start_at` stores their start in the other service. `imported` has at most IMPORT_BATCH_MAX sessions,
        each id and key once.

        Adds the number of imported sessions to the audit entry of `draft`. If `writes` is false, changes nothing and
        only returns the outcomes.
        """

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatResult]:
        """Renews live sessions, and records the end of lapsed ones. At most BATCH_MAX heartbeats, each session once.

        A session outside the scope of its heartbeat is `unknown`. It is neither locked nor changed; the same applies
        to `end_sessions` and `attach_streams`.
        """

    async def end_sessions(self, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
        """Ends each session with the reason of its request, or with its lapse reason if it has lapsed. At most
        BATCH_MAX requests.

        Writes an audit entry for each session that it ends. A session that has lapsed gets none: it had ended before.
        """

    async def end_matching(
        self, session_ids: Sequence[str], criteria: SessionFilter, scope: Scope, draft: AuditDraft
    ) -> EndManyResult:
        """Ends those of the given sessions (at most BATCH_MAX) that are live and match, with the reason TERMINATED.

        All calls of an action pass the same `draft`, and each adds the number of its ends to the audit entry. Sessions
        that were opened after the entry was written are not ended. `active` and `close_reason` of the filter are
        ignored.
        """

    async def expire_sessions(self, fence: Fence, limit: int) -> SweepResult:
        """Checks up to `limit` sessions whose check is due: records the ends of lapsed ones, closes those that a dead
        instance left `closing`, and postpones the check of live ones.

        The cost grows with the number of sessions that are due, not with the size of the table.
        """

    async def get_session(self, session_id: str, scope: Scope) -> Session | None: ...

    async def read_history(self, session_id: str, scope: Scope, view: View, after: int | None) -> SessionHistory | None:
        """Returns those stored facts about a session that `view` admits. Of the session's usage windows, returns one
        section: the section that follows window `after`, or the first one if `after` is None.

        Returns None if the scope has no such session. The cost does not grow with the tables.
        """

    async def list_sessions(
        self, criteria: SessionFilter, after: Position | None, limit: int, scope: Scope
    ) -> SessionPage:
        """Returns at most `limit` matching sessions of the scope after the position `after`, newest start first.

        If no index checks the whole filter, the read may end early, with fewer sessions than `limit`. The page then
        contains the position after which the next page continues.
        """

    async def list_next_lapses(
        self, criteria: SessionFilter, after: LapsePosition | None, limit: int, scope: Scope
    ) -> LapsePage:
        """Returns at most `limit` live sessions of the scope after the position `after`, next deadline first.

        The cost does not grow with the table, because the number of sessions that are read has a limit. If an exact
        page needs more sessions than this limit, the page is marked as inexact.
        """

    async def count_matches(
        self, criteria: SessionFilter, scope: Scope, started_by: datetime | None = None
    ) -> MatchCount:
        """Counts the sessions of the scope that match, up to a limit. The cost does not grow with the table.

        With `started_by`, counts only sessions that started at or before this instant.
        """

    async def count_live(
        self, session_ids: Sequence[str], criteria: SessionFilter, scope: Scope, started_by: datetime | None = None
    ) -> int:
        """Counts those of the given sessions that are live and match, and that `end_matching` would therefore end."""

    async def count_sessions(self, scope: Scope) -> SessionCounts:
        """Counts the sessions of the scope. Reads all of them, including closed ones, for the total."""

    async def count_active_sessions(self, scope: Scope) -> int:
        """Counts the live sessions of the scope. Reads no closed session."""

    async def find_overlaps(self, limit: int) -> Sequence[Overlap]:
        """Returns pairs of sessions of one key that overlap in time; there should be none. Reads all sessions."""
