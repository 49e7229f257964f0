"""A store whose saves of streams fail or wait as a test configures."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tenure.domain.streams import StreamUpdate, StreamUpdateResult
from tenure.store.contract import Store

MakeError = Callable[[], Exception]


class FailingStore:
    """Wraps a store and forwards all calls to it. Only `update_streams` may fail or wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.errors_before: list[MakeError] = []
        """The next saves raise these errors, in order, and are not executed."""
        self.errors_after: list[MakeError] = []
        """The next saves are executed and then raise these errors, in order: their responses are lost."""
        self.unavailable: MakeError | None = None
        """If not None, every save raises the error that this function returns."""
        self.saved: list[StreamUpdate] = []
        self.may_answer = asyncio.Event()
        """While it is not set, saves are executed and their responses are delayed."""
        self.may_answer.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdateResult]:
        if self.unavailable is not None:
            raise self.unavailable()
        if self.errors_before:
            error = self.errors_before.pop(0)
            raise error()
        responses = await self._store.update_streams(updates)
        self.saved += updates
        await self.may_answer.wait()
        if self.errors_after:
            error = self.errors_after.pop(0)
            raise error()
        return responses
