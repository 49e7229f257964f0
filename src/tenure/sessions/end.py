"""Ends sessions on request."""

from collections.abc import Sequence

from tenure.batching.coalescer import Coalescer
from tenure.batching.contention import run_until_unlocked
from tenure.batching.rounds import run_in_rounds
from tenure.domain.audit_log import Actor
from tenure.domain.deadlines import closed_session_of
from tenure.domain.scope import Scope
from tenure.domain.sessions import CloseReason, EndRequest, EndResult, Session
from tenure.sessions.ends import SessionEnds
from tenure.store.contract import Store
from tenure.telemetry.events import Telemetry


class Ender:
    def __init__(self, store: Store, ends: SessionEnds, telemetry: Telemetry) -> None:
        self._store = store
        self._ends = ends
        self._coalescer = Coalescer[EndRequest, EndResult](self._run, store.batches_in_flight, telemetry)

    async def end(self, session_id: str, reason: CloseReason, scope: Scope, actor: Actor) -> EndResult:
        """Returns the session as it ended, or `unknown` if there is no such session.

        If another request or a lapse ended the session first, the session has that reason.
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
            # An earlier try may have recorded this end and lost its answer.
            self._ends.learn(closed.session_id, closed.reason)
