"""The streams of this instance and the database: many of them, one transaction."""

from collections.abc import Sequence

from tenure.coalescer import Coalescer
from tenure.deadlines import closing_of
from tenure.errors import NotFound, SessionOver
from tenure.model.sessions import Attach, Attached, Found, StreamUpdate, StreamUpdated
from tenure.sessions.counters import Counters
from tenure.sessions.rounds import ask_until_free
from tenure.store.store import Store


class StreamStore:
    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._attaches = Coalescer[Attach, Attached](self._attach, store.batches_in_flight)
        self._updates = Coalescer[StreamUpdate, StreamUpdated](self._update, store.batches_in_flight)

    async def attach(self, attach: Attach) -> Attached:
        """A live session and the stream's number; anything else is raised."""
        attached = await ask_until_free(self._attaches, attach)
        if attached.found is Found.UNKNOWN or attached.session is None:
            raise NotFound(f"there is no session {attach.session_id}")
        if attached.found is Found.OVER:
            raise SessionOver(str(attached.session.close_reason))
        return attached

    async def update(self, update: StreamUpdate) -> StreamUpdated:
        return await ask_until_free(self._updates, update)

    async def _attach(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        """Of several streams for one session one is attached; the others come again, one after the other."""
        first = {attach.session_id: attach for attach in reversed(attaches)}
        answers = await self._store.attach_streams(list(first.values()))
        found = dict(zip(first, answers, strict=True))
        self._counters.count_closings(each.closing for each in answers if each.closing is not None)
        held = Attached(Found.HELD)
        return [
            found[attach.session_id]
            if first[attach.session_id] is attach or found[attach.session_id].found is not Found.LIVE
            else held
            for attach in attaches
        ]

    async def _update(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        """As many transactions as one session has streams here: one, unless a client has just come back."""
        first = {update.session_id: update for update in reversed(updates)}
        answers = dict(zip(first, await self._store.update_streams(list(first.values())), strict=True))
        for answer in answers.values():
            if answer.recorded and answer.session is not None:
                self._counters.count_closing(closing_of(answer.session))
        held = StreamUpdated(Found.HELD)
        return [answers[update.session_id] if first[update.session_id] is update else held for update in updates]
