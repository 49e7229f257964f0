"""The board: a snapshot of the leases and jobs that concern an instance. One query a second reads it.

If the engine notifies the instance of a change, the board is read at once. Notifications are not required: without
them the board is read every `refresh_seconds`.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from tenure.clock import monotonic
from tenure.domain.jobs import Board
from tenure.errors import DatabaseUnavailable
from tenure.leases.waiting import is_set_within
from tenure.store.contract import Store
from tenure.telemetry.events import BoardFailed, Telemetry

SHORTEST_PAUSE_SECONDS = 0.02
"""The shortest time between two reads, however many notifications arrive."""


class BoardSubscriber(Protocol):
    @property
    def names(self) -> Sequence[str]:
        """The leases that the subscriber needs on the board."""

    def on_board(self, board: Board) -> float | None:
        """Processes the board. Returns the seconds until the subscriber needs the next one, if sooner than usual."""

    def on_board_unavailable(self, error: Exception) -> None:
        """Called if the board could not be read, even after the store's retries."""


class BoardWatcher:
    def __init__(self, store: Store, refresh_seconds: float, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._subscribers: list[BoardSubscriber] = []
        self._refresh_seconds = refresh_seconds
        self._woken = asyncio.Event()

    def add(self, subscriber: BoardSubscriber) -> None:
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            began = monotonic()
            pause = await self.run_once()
            await is_set_within(self._woken, pause)
            await asyncio.sleep(max(0.0, SHORTEST_PAUSE_SECONDS - (monotonic() - began)))

    def wake(self) -> None:
        self._woken.set()

    async def run_once(self) -> float:
        """Reads the board once. Returns the number of seconds until the next read."""
        self._woken.clear()
        try:
            board = await self._store.read_board([name for each in self._subscribers for name in each.names])
            wanted = [subscriber.on_board(board) for subscriber in self._subscribers]
        except Exception as error:  # noqa: BLE001 - every subscriber gets it
            if not isinstance(error, DatabaseUnavailable):
                self._telemetry.report(BoardFailed(error))
            for subscriber in self._subscribers:
                subscriber.on_board_unavailable(error)
            return self._refresh_seconds
        return min([self._refresh_seconds, *(seconds for seconds in wanted if seconds is not None)])
