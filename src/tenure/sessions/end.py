"""Ends sessions on request: one session, or all sessions that match a filter.

An *action* ends all sessions that match a filter. An action may take any number of calls, until no such session is
left. Every action guarantees:

- Each transaction that ends sessions also adds their number to the audit entry of the action. So the entry always has
  the number of sessions that the action has ended, even after a crash or a lost response. A repeated call continues the
  action.
- Each session is ended once, even if two calls of the action run at the same time: the transactions of an action wait
  for each other, and a session that has ended is not ended again.
- Sessions that are opened after the action has ended its first session are not ended. Otherwise an action might never
  be done.
- A session must match when it is ended, not only when it was found.
- Transactions are short (END_BATCH sessions). They hardly delay other requests: a request skips a row that such a
  transaction holds, and is retried.

The id of the action is also the id of its audit entry. A call is refused if its id belongs to an action of another
caller, or to an action with another filter.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from tenure.batching.coalescer import Coalescer
from tenure.batching.contention import run_until_unlocked
from tenure.batching.rounds import run_in_rounds
from tenure.domain.audit_log import Action, Actor, AuditDraft
from tenure.domain.deadlines import closed_session_of
from tenure.domain.scope import Scope
from tenure.domain.sessions import CloseReason, EndRequest, EndResult, MatchCount, Position, Session, SessionFilter
from tenure.sessions.ends import SessionEnds
from tenure.store.contract import Store
from tenure.telemetry.events import Telemetry

END_BATCH = 50
"""The most sessions that one transaction of an action ends."""
END_PAGES_MAX = 400
"""The most pages of sessions that one call of an action reads. If few sessions match, a page may be empty although
more sessions follow."""
BULK_TARGET = "sessions"
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class Selection(msgspec.Struct, frozen=True):
    """An action ends all live sessions that match `criteria`, or only those of them with the given ids."""

    criteria: SessionFilter
    session_ids: Sequence[str] | None = None


class Ended(msgspec.Struct, frozen=True):
    """The result of one call of an action."""

    ended: int
    """The number of sessions that this call ended."""
    total: int
    """The number of sessions that all calls of the action have ended."""
    remaining: MatchCount

    @property
    def is_done(self) -> bool:
        return self.remaining.exact and self.remaining.count == 0


class Ender:
    def __init__(self, store: Store, ends: SessionEnds, telemetry: Telemetry) -> None:
        self._store = store
        self._ends = ends
        self._coalescer = Coalescer[EndRequest, EndResult](self._run, store.batches_in_flight, telemetry)

    async def end(self, session_id: str, reason: CloseReason, scope: Scope, actor: Actor) -> EndResult:
        """Returns a result with the ended session, or with `Found.UNKNOWN` if the scope contains no such session.

        If another request or a lapse ended the session first, the session has the reason of that end.
        """
        return await run_until_unlocked(self._coalescer, EndRequest(session_id, reason.value, scope, actor))

    async def _run(self, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
        return await run_in_rounds(ends, self._run_round)

    async def _run_round(self, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
        """If a batch has several requests for one session, the store gets only the first one."""
        first = {end.session_id: end for end in reversed(ends)}
        results = await self._store.end_sessions([first[session_id] for session_id in sorted(first)])
        for result in results:
            if result.session is not None:
                self._report(result.session, recorded=result.recorded)
        found = dict(zip(sorted(first), results, strict=True))
        return [found[end.session_id] for end in ends]

    def _report(self, session: Session, *, recorded: bool) -> None:
        closed = closed_session_of(session)
        if recorded:
            self._ends.record(closed)
        else:
            # Call the watchers: if an earlier try of this call recorded the end, but its response was lost, they have
            # not been called yet.
            self._ends.learn(closed.session_id, closed.reason)

    async def count(self, selection: Selection, scope: Scope, started_by: datetime | None = None) -> MatchCount:
        """Returns how many sessions an action would end. With `started_by`, omits sessions that started later."""
        criteria, ids = selection.criteria, selection.session_ids
        if ids is not None:
            return MatchCount(await self._store.count_live(ids, criteria, scope, started_by), exact=True)
        return await self._store.count_matches(replace(criteria, active=True), scope, started_by)

    async def end_many(
        self, selection: Selection, limit: int, action_id: str, scope: Scope, actor: Actor
    ) -> Ended | None:
        """Runs one call of an action, which ends up to `limit` sessions. Returns None if the id is that of another
        action.
        """
        draft = AuditDraft(action_id, actor, Action.SESSION_ENDED, BULK_TARGET, _detail(selection, scope))
        entry = await self._store.get_audit_entry(action_id)
        call = _Call(self._store, self._ends, selection, scope, draft, limit)
        if entry is not None:
            call.total, call.began_at = entry.changes, entry.at
        if (entry is not None and not draft.is_of(entry)) or not await call.run():
            return None
        if call.is_exhausted and not call.held:
            return Ended(call.ended, call.total, MatchCount(0, exact=True))
        entry = await self._store.get_audit_entry(action_id)
        remaining = await self.count(selection, scope, None if entry is None else entry.at)
        return Ended(call.ended, call.total, remaining)


class _Call:
    """One call of an action."""

    def __init__(
        self, store: Store, ends: SessionEnds, selection: Selection, scope: Scope, draft: AuditDraft, limit: int
    ) -> None:
        self._store = store
        self._ends = ends
        self._selection = selection
        self._scope = scope
        self._draft = draft
        self._limit = limit
        self.began_at: datetime | None = None
        """When an earlier call of the action ended the first session; None if no earlier call has ended one."""
        self.ended = 0
        self.total = 0
        self.held = 0
        self.is_exhausted = False
        """Whether all sessions of the selection were tried."""

    async def run(self) -> bool:
        """Returns False if another action with the same id began in the meantime."""
        if self._selection.session_ids is not None:
            return await self._run_ids(self._selection.session_ids)
        return await self._run_pages(replace(self._selection.criteria, active=True))

    async def _run_ids(self, session_ids: Sequence[str]) -> bool:
        first = 0
        while first < len(session_ids) and self.ended < self._limit:
            batch = session_ids[first : first + self._batch_size]
            first += len(batch)
            if not await self._end(batch):
                return False
        self.is_exhausted = first >= len(session_ids)
        return True

    async def _run_pages(self, criteria: SessionFilter) -> bool:
        after = None if self.began_at is None else Position(self.began_at, LAST_ID)
        for _ in range(END_PAGES_MAX):
            size = self._batch_size
            page = await self._store.list_sessions(criteria, after, size, self._scope)
            found = page.sessions
            if found and not await self._end([session.session_id for session in found]):
                return False
            is_full = len(found) == size
            after = Position(found[-1].started_at, found[-1].session_id) if is_full else page.resume_after
            self.is_exhausted = after is None
            if self.is_exhausted or self.ended >= self._limit:
                break
        return True

    @property
    def _batch_size(self) -> int:
        return min(END_BATCH, self._limit - self.ended)

    async def _end(self, session_ids: Sequence[str]) -> bool:
        result = await self._store.end_matching(session_ids, self._selection.criteria, self._scope, self._draft)
        for closed in result.closed:
            self._ends.record(closed)
        self.ended += sum(closed.reason == CloseReason.TERMINATED for closed in result.closed)
        self.held += result.held
        self.total = result.total
        return result.same


def _detail(selection: Selection, scope: Scope) -> str:
    """Returns the filter as a text for the audit entry. It omits the session ids, so a call with other ids continues
    the same action.
    """
    criteria = selection.criteria
    wanted = {
        "tenant": scope.tenant or criteria.tenant,
        "user": scope.user or criteria.user,
        "capacity": criteria.capacity,
        "kind": criteria.kind,
        "state": criteria.state,
    }
    given = [f"{name} {value}" for name, value in wanted.items() if value is not None]
    return ", ".join([*(["selected sessions"] if selection.session_ids is not None else []), *given]) or "all sessions"
