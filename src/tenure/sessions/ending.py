"""Ending sessions on request."""

from collections.abc import Sequence

from tenure.coalescer import Coalescer
from tenure.errors import NotFound
from tenure.model.sessions import CloseReason, End, Ended, Session
from tenure.sessions.counters import Counters
from tenure.sessions.rounds import ask_until_free
from tenure.store.store import Store


class Ender:
    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._coalescer = Coalescer[End, Ended](self._run, store.batches_in_flight)

    async def end(self, session_id: str, reason: CloseReason) -> Session:
        """The session as it ended, whoever ended it."""
        ended = await ask_until_free(self._coalescer, End(session_id, reason.value))
        if ended.session is None:
            raise NotFound(f"there is no session {session_id}")
        return ended.session

    async def _run(self, ends: Sequence[End]) -> Sequence[Ended]:
        """Of several ends of one session the first one counts."""
        first = {end.session_id: end for end in reversed(ends)}
        answers = await self._store.end_sessions([first[session_id] for session_id in sorted(first)])
        for ended in answers:
            self._counters.count_end(ended)
        found = dict(zip(sorted(first), answers, strict=True))
        return [found[end.session_id] for end in ends]
