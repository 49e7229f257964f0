"""The board: a snapshot of all jobs and of the leases that an instance uses. The instance reads it with one query.

The instance reads the board every `refresh_seconds`, earlier if a board subscriber needs the board earlier, and at once
when the database notifies the instance of a change. Not every database supports notifications.
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
"""The shortest time from the start of a read to the start of the next one, however many notifications arrive."""

FAILURE_PAUSE_SECONDS = 0.5
"""The shortest time from the start of a failed read to the start of the next one. A lost connection counts as a
notification, so without this pause an instance would retry continuously while the database drops every new
connection."""


class BoardSubscriber(Protocol):
    @property
    def names(self) -> Sequence[str]:
        """The names of the leases that the subscriber needs on the board."""

    def on_board(self, board: Board) -> float | None:
        """Processes the board. Returns the seconds until the subscriber needs the next board, or None if a pause of
        `refresh_seconds` is short enough.
        """

    def on_board_unavailable(self, error: Exception) -> None:
        """Called if the board could not be read despite the store's retries, or if any subscriber failed to process the
        board.
        """


class BoardWatcher:
    def __init__(self, store: Store, refresh_seconds: float, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._subscribers: list[BoardSubscriber] = []
        self._refresh_seconds = refresh_seconds
        self._woken = asyncio.Event()
        self._failed = False

    def add(self, subscriber: BoardSubscriber) -> None:
        self._subscribers.append(subscriber)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            began = monotonic()
            pause = await self.run_once()
            await is_set_within(self._woken, pause)
            shortest = FAILURE_PAUSE_SECONDS if self._failed else SHORTEST_PAUSE_SECONDS
            await asyncio.sleep(max(0.0, shortest - (monotonic() - began)))

    def wake(self) -> None:
        self._woken.set()

    async def run_once(self) -> float:
        """Reads the board once. Returns the number of seconds until the next read."""
        self._woken.clear()
        try:
            board = await self._store.read_board([name for each in self._subscribers for name in each.names])
            wanted = [subscriber.on_board(board) for subscriber in self._subscribers]
        except Exception as error:  # noqa: BLE001 - every subscriber gets the error
            if not isinstance(error, DatabaseUnavailable):
                self._telemetry.report(BoardFailed(error))
            for subscriber in self._subscribers:
                subscriber.on_board_unavailable(error)
            self._failed = True
            return self._refresh_seconds
        self._failed = False
        return min([self._refresh_seconds, *(seconds for seconds in wanted if seconds is not None)])
