"""What an instance looks at all the time: one query a second tells it about every lease and job that concerns it.

The engine may hint that something has happened, and the look then comes at once. Nothing relies on it: whoever hears
nothing looks again after `refresh_seconds`.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from tenure.clock import monotonic
from tenure.errors import DatabaseUnavailable
from tenure.leases.waiting import is_set_within
from tenure.model.leases import Board
from tenure.store.store import Store

log = structlog.get_logger()

SHORTEST_PAUSE_SECONDS = 0.02
"""Between two looks, however many hints come in."""


class Looker(Protocol):
    @property
    def names(self) -> Sequence[str]:
        """The leases it wants to see on the board."""

    def look(self, board: Board) -> float | None:
        """Acts on what it sees; returns in how many seconds it wants to look again, if that is sooner than usual."""

    def lose_sight(self, error: Exception) -> None:
        """The board could not be read, though the store has tried again."""


class Watch:
    def __init__(self, store: Store, refresh_seconds: float) -> None:
        self._store = store
        self._lookers: list[Looker] = []
        self._refresh_seconds = refresh_seconds
        self._woken = asyncio.Event()

    def add(self, looker: Looker) -> None:
        self._lookers.append(looker)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = monotonic()
            pause = await self.look()
            await self._rest(pause, began)

    def wake(self) -> None:
        self._woken.set()

    async def look(self) -> float:
        """Once; returns how long the next look can wait."""
        self._woken.clear()
        try:
            board = await self._store.read_board([name for looker in self._lookers for name in looker.names])
            wanted = [looker.look(board) for looker in self._lookers]
        except Exception as error:
            if not isinstance(error, DatabaseUnavailable):
                log.exception("board.failed")
            for looker in self._lookers:
                looker.lose_sight(error)
            return self._refresh_seconds
        return min([self._refresh_seconds, *(seconds for seconds in wanted if seconds is not None)])

    async def _rest(self, seconds: float, began: float) -> None:
        await is_set_within(self._woken, seconds)
        await asyncio.sleep(max(0.0, SHORTEST_PAUSE_SECONDS - (monotonic() - began)))
