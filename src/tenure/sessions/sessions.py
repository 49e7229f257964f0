"""Sessions as the edges see them: opening, keeping, reading and ending them, and what was counted on the way."""

from collections.abc import Sequence

from tenure.errors import NotFound
from tenure.model.sessions import Position, Session, SessionFilter
from tenure.sessions.counters import Counters
from tenure.sessions.counts import CachedCounts
from tenure.sessions.ending import Ender
from tenure.sessions.keeping import Keeper
from tenure.sessions.opening import Opener
from tenure.store.store import Store


class Sessions:
    def __init__(self, store: Store, opener: Opener, counters: Counters) -> None:
        self._store = store
        self.opener = opener
        self.keeper = Keeper(store, counters)
        self.ender = Ender(store, counters)
        self.counters = counters
        self.counts = CachedCounts(store)

    async def get(self, session_id: str) -> Session:
        session = await self._store.get_session(session_id)
        if session is None:
            raise NotFound(f"there is no session {session_id}")
        return session

    async def list(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._store.list_sessions(criteria, after, limit)
