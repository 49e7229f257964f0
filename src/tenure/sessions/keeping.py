"""Keeping sessions alive: heartbeats, one by one or many at once."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from tenure.coalescer import Coalescer
from tenure.errors import NotFound, SessionOver
from tenure.model.sessions import Found, Heartbeat, Kept
from tenure.sessions.counters import Counters
from tenure.sessions.rounds import Later, Pauses, ask_until_free, until_free
from tenure.store.store import BATCH_MAX, Store

Done = Callable[[Kept | Exception], None]


class Keeper:
    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._later = Later[Kept]()
        self._coalescer = Coalescer[Heartbeat, Kept](self._run, store.batches_in_flight)

    async def heartbeat(self, heartbeat: Heartbeat) -> Kept:
        """Live, over or unknown."""
        return await ask_until_free(self._coalescer, heartbeat)

    def heartbeat_soon(self, heartbeat: Heartbeat, done: Done) -> None:
        """The same as `heartbeat`, without a task unless a second round is needed."""
        since = asyncio.get_running_loop().time()
        self._coalescer.submit(heartbeat, partial(self._first_round, heartbeat, done, since), since)

    async def heartbeats(self, session_ids: Sequence[str], *, active: bool) -> Sequence[Kept]:
        """In the order asked. A batch of its own for every BATCH_MAX of them."""
        ids = list(dict.fromkeys(session_ids))
        batches = [ids[start : start + BATCH_MAX] for start in range(0, len(ids), BATCH_MAX)]
        answers = await asyncio.gather(*(self._batch(batch, active=active) for batch in batches))
        found = dict(zip(ids, (kept for batch in answers for kept in batch), strict=True))
        return [found[session_id] for session_id in session_ids]

    async def _batch(self, session_ids: Sequence[str], *, active: bool) -> Sequence[Kept]:
        """What somebody holds is asked for again, all of it together."""
        pauses = Pauses(asyncio.get_running_loop().time())
        found: dict[str, Kept] = {}
        missing = session_ids
        while missing:
            answers = await self._run([Heartbeat(session_id, active) for session_id in missing])
            found |= zip(missing, answers, strict=True)
            missing = [session_id for session_id in missing if found[session_id].found is Found.HELD]
            if missing:
                await pauses.pause()
        return [found[session_id] for session_id in session_ids]

    def _first_round(self, heartbeat: Heartbeat, done: Done, since: float, answer: Kept | Exception) -> None:
        if isinstance(answer, Kept) and answer.found is Found.HELD:
            self._later.tell(until_free(self._coalescer, heartbeat, answer, since), done)
        else:
            done(answer)

    async def _run(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        """One heartbeat a session: of several at the same moment one is as good as all, if it says the most."""
        best: dict[str, Heartbeat] = {}
        for heartbeat in heartbeats:
            if heartbeat.active or heartbeat.session_id not in best:
                best[heartbeat.session_id] = heartbeat
        answers = await self._store.heartbeat([best[session_id] for session_id in sorted(best)])
        found = dict(zip(sorted(best), answers, strict=True))
        for kept in answers:
            if kept.closing is not None:
                self._counters.count_closing(kept.closing)
        told = [found[heartbeat.session_id] for heartbeat in heartbeats]
        self._counters.heartbeats += sum(kept.found is Found.LIVE for kept in told)
        self._counters.late_heartbeats += sum(kept.found is Found.OVER for kept in told)
        return told


def refusal(session_id: str, kept: Kept) -> NotFound | SessionOver | None:
    if kept.found is Found.UNKNOWN:
        return NotFound(f"there is no session {session_id}")
    return SessionOver(str(kept.close_reason)) if kept.found is Found.OVER else None
