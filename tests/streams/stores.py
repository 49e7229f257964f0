"""A store whose saves of streams go wrong as a test says."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tenure.model.sessions import StreamUpdate, StreamUpdated
from tenure.store import Store

Trouble = Callable[[], Exception]


class TroubledStore:
    """In all else the store that it wraps."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: list[Trouble] = []
        """Raised instead of the next saves, one by one."""
        self.after: list[Trouble] = []
        """Raised after the next saves were carried out: their answers are lost."""
        self.is_away: Trouble | None = None
        """Raised for every save and attach as long as it is there."""
        self.saved: list[StreamUpdate] = []
        self.may_answer = asyncio.Event()
        """While it is not set, saves are carried out and their answers wait."""
        self.may_answer.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        if self.is_away is not None:
            raise self.is_away()
        if self.before:
            trouble = self.before.pop(0)
            raise trouble()
        answers = await self._store.update_streams(updates)
        self.saved += updates
        await self.may_answer.wait()
        if self.after:
            trouble = self.after.pop(0)
            raise trouble()
        return answers
