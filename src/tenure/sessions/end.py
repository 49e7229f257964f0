"""Ends sessions on request."""

from collections.abc import Sequence

from tenure.batching.coalescer import Coalescer
from tenure.batching.contention import run_until_unlocked
from tenure.domain.deadlines import closed_session_of
from tenure.domain.sessions import CloseReason, EndRequest, EndResult
from tenure.store.contract import Store
from tenure.telemetry.events import SessionClosed, Telemetry


class Ender:
    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._coalescer = Coalescer[EndRequest, EndResult](self._run, store.batches_in_flight, telemetry)

    async def end(self, session_id: str, reason: CloseReason) -> EndResult:
        """Returns the session as it ended, or `unknown` if there is no such session.

        If another request or a lapse ended the session first, the session has that reason.
        """
        return await run_until_unlocked(self._coalescer, EndRequest(session_id, reason.value))

    async def _run(self, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
        """If a batch has several requests for one session, the store gets only the first one."""
        first = {end.session_id: end for end in reversed(ends)}
        results = await self._store.end_sessions([first[session_id] for session_id in sorted(first)])
        for result in results:
            if result.recorded and result.session is not None:
                self._telemetry.report(SessionClosed.of(closed_session_of(result.session)))
        found = dict(zip(sorted(first), results, strict=True))
        return [found[end.session_id] for end in ends]
