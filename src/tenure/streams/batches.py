"""Batches database writes: one transaction writes for many streams of this instance."""

from collections.abc import Sequence

from tenure.batching.coalescer import Coalescer
from tenure.batching.contention import run_until_unlocked
from tenure.batching.rounds import run_in_rounds
from tenure.domain.deadlines import closed_session_of
from tenure.domain.sessions import Found
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.sessions.ends import SessionEnds
from tenure.store.contract import Store
from tenure.telemetry.events import Telemetry


class StreamBatches:
    def __init__(self, store: Store, ends: SessionEnds, telemetry: Telemetry) -> None:
        self._store = store
        self._ends = ends
        self._attaches = Coalescer[AttachRequest, AttachResult](self._attach, store.batches_in_flight, telemetry)
        self._updates = Coalescer[StreamUpdate, StreamUpdateResult](self._update, store.batches_in_flight, telemetry)

    async def attach(self, attach: AttachRequest) -> AttachResult:
        """Attaches a stream. Returns the live session and the number of the stream, or `over`, or `unknown`."""
        return await run_until_unlocked(self._attaches, attach)

    async def update(self, update: StreamUpdate) -> StreamUpdateResult:
        return await run_until_unlocked(self._updates, update)

    async def _attach(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        return await run_in_rounds(attaches, self._attach_round)

    async def _attach_round(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        """Attaches one stream per session. Further streams of a live session get `held`, so they are retried later."""
        first = {attach.session_id: attach for attach in reversed(attaches)}
        results = await self._store.attach_streams(list(first.values()))
        found = dict(zip(first, results, strict=True))
        for session_id, result in found.items():
            if result.closed_session is not None:
                self._ends.record(result.closed_session)
            elif result.session is not None and result.session.close_reason is not None:
                self._ends.learn(session_id, result.session.close_reason)
        held = AttachResult(Found.HELD)
        return [
            found[attach.session_id]
            if first[attach.session_id] is attach or found[attach.session_id].found is not Found.LIVE
            else held
            for attach in attaches
        ]

    async def _update(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdateResult]:
        """Sends one update per session. Further updates of a session get `held`, so they are retried later.

        That is rare: an instance has two streams of a session only while the client reconnects.
        """
        first = {update.session_id: update for update in reversed(updates)}
        results = dict(zip(first, await self._store.update_streams(list(first.values())), strict=True))
        for result in results.values():
            if result.recorded and result.session is not None:
                self._ends.record(closed_session_of(result.session))
        held = StreamUpdateResult(Found.HELD)
        return [results[update.session_id] if first[update.session_id] is update else held for update in updates]
