"""Heartbeats, for one session or for many sessions in one request."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tenure.batching.coalescer import Coalescer
from tenure.batching.contention import BackgroundRetries, Backoff, retry_until_unlocked, run_until_unlocked
from tenure.batching.rounds import run_in_rounds
from tenure.domain.scope import Scope
from tenure.domain.sessions import Found, Heartbeat, HeartbeatResult
from tenure.sessions.ends import SessionEnds
from tenure.store.contract import Store
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import HeartbeatsAnswered, Telemetry

Done = Callable[[HeartbeatResult | Exception], None]


class Renewer:
    def __init__(self, store: Store, ends: SessionEnds, telemetry: Telemetry) -> None:
        self._store = store
        self._ends = ends
        self._telemetry = telemetry
        self._retries = BackgroundRetries[HeartbeatResult]()
        self._coalescer = Coalescer[Heartbeat, HeartbeatResult](self._run, store.batches_in_flight, telemetry)

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResult:
        """Renews a session. Retries while its row is held, for a limited time, and then raises `DatabaseBusy`. So the
        result is LIVE, OVER or UNKNOWN, never HELD.
        """
        return await run_until_unlocked(self._coalescer, heartbeat)

    def heartbeat_soon(self, heartbeat: Heartbeat, done: Done) -> None:
        """Like `heartbeat`, but passes the result to a callback. A task is created only if a retry is needed."""
        since = asyncio.get_running_loop().time()
        self._coalescer.submit(heartbeat, partial(self._first_result, heartbeat, done, since), since)

    async def heartbeats(self, session_ids: Sequence[str], scope: Scope, *, active: bool) -> Sequence[HeartbeatResult]:
        """Returns results in the order of `session_ids`. One transaction has at most BATCH_MAX ids."""
        ids = list(dict.fromkeys(session_ids))
        batches = [ids[start : start + BATCH_MAX] for start in range(0, len(ids), BATCH_MAX)]
        answers = await asyncio.gather(*(self._run_batch(batch, scope, active=active) for batch in batches))
        results = [result for batch in answers for result in batch]
        if len(ids) == len(session_ids):
            return results
        found = dict(zip(ids, results, strict=True))
        return [found[session_id] for session_id in session_ids]

    async def _run_batch(self, session_ids: Sequence[str], scope: Scope, *, active: bool) -> Sequence[HeartbeatResult]:
        """Runs one batch. All sessions whose rows are held are retried together."""
        backoff = Backoff(asyncio.get_running_loop().time())
        results = await self._run([Heartbeat(session_id, active, scope) for session_id in session_ids])
        held = _held(session_ids, results)
        if not held:
            return results
        found = dict(zip(session_ids, results, strict=True))
        while held:
            await backoff.pause()
            results = await self._run([Heartbeat(session_id, active, scope) for session_id in held])
            found |= zip(held, results, strict=True)
            held = _held(held, results)
        return [found[session_id] for session_id in session_ids]

    def _first_result(
        self, heartbeat: Heartbeat, done: Done, since: float, result: HeartbeatResult | Exception
    ) -> None:
        if isinstance(result, HeartbeatResult) and result.found is Found.HELD:
            self._retries.start(retry_until_unlocked(self._coalescer, heartbeat, result, since), done)
        else:
            done(result)

    async def _run(self, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatResult]:
        return await run_in_rounds(heartbeats, self._run_round)

    async def _run_round(self, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatResult]:
        """Sends one heartbeat per session. If the round has several for one session, an `active` one is preferred."""
        best: dict[str, Heartbeat] = {}
        for heartbeat in heartbeats:
            if heartbeat.active or heartbeat.session_id not in best:
                best[heartbeat.session_id] = heartbeat
        session_ids = sorted(best)
        answers = await self._store.heartbeat([best[session_id] for session_id in session_ids])
        found = dict(zip(session_ids, answers, strict=True))
        results = [found[heartbeat.session_id] for heartbeat in heartbeats]
        outcomes = [result.found for result in results]
        renewed, late = outcomes.count(Found.LIVE), outcomes.count(Found.OVER)
        if late:
            self._note_ends(found)
        self._telemetry.report(HeartbeatsAnswered(renewed, late))
        return results

    def _note_ends(self, found: Mapping[str, HeartbeatResult]) -> None:
        for session_id, result in found.items():
            if result.closed_session is not None:
                self._ends.record(result.closed_session)
            elif result.close_reason is not None:
                self._ends.learn(session_id, result.close_reason)


def _held(session_ids: Sequence[str], results: Sequence[HeartbeatResult]) -> Sequence[str]:
    return [session_id for session_id, result in zip(session_ids, results, strict=True) if result.found is Found.HELD]
