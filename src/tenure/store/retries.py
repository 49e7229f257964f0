"""The one place where a database operation is tried again, and where a driver's error becomes ours.

An engine says what an error means (`Cause`) or nothing, if it is a defect. Every operation of the store may be
repeated, so each cause but a duplicate and a lost lease is worth another try, within one bound on tries and one on
time: a caller is answered within two seconds whatever the database does.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

import structlog

from tenure.clock import monotonic
from tenure.errors import DatabaseBusy, DatabaseUnavailable, IdTaken, LeaseLost

T = TypeVar("T")
log = structlog.get_logger()

TRIES = 3
PATIENCE_SECONDS = 1.7
PAUSE_SECONDS = 0.02
QUIET_SECONDS = 1.0


class Cause(StrEnum):
    CONNECTION = "connection"
    DEADLOCK = "deadlock"
    LOCK_TIMEOUT = "lock_timeout"
    TIMEOUT = "timeout"
    SCHEMA = "schema"
    DUPLICATE = "duplicate"
    LEASE_LOST = "lease_lost"


class Retries:
    def __init__(self, cause_of: Callable[[BaseException], Cause | None]) -> None:
        self._cause_of = cause_of
        self._quiet_until = 0.0
        self._running: set[asyncio.Task[Any]] = set()
        self.counts: Counter[Cause] = Counter()

    async def run(
        self, operation: Callable[[], Coroutine[Any, Any, T]], patience_seconds: float = PATIENCE_SECONDS
    ) -> T:
        """The result of `operation`, or `DatabaseUnavailable` when patience ends.

        What is given up is cancelled and left to end by itself: to close a connection to a frozen server takes time.
        """
        task = asyncio.ensure_future(self._tries(operation))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait({task}, timeout=patience_seconds)
        finally:
            given_up = not task.done()
            if given_up:
                task.cancel()
        if given_up:
            raise DatabaseUnavailable(f"the database did not answer within {patience_seconds:g} seconds")
        return task.result()

    async def _tries(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for number in range(1, TRIES + 1):
            try:
                return await operation()
            except Exception as error:
                cause = self._cause_of(error)
                if cause is None:
                    raise
                if cause is Cause.DUPLICATE:
                    raise IdTaken("this id is in the database already") from error
                if cause is Cause.LEASE_LOST:
                    raise LeaseLost(_one_line(error)) from error
                self.counts[cause] += 1
                if number == TRIES or cause is Cause.SCHEMA:
                    self._say(cause, error)
                    raise _EXCEPTIONS.get(cause, DatabaseUnavailable)(_SENTENCES[cause]) from error
            # Those that collided must not collide again.
            await asyncio.sleep(PAUSE_SECONDS * number * (0.5 + random.random()))  # noqa: S311
        raise AssertionError("unreachable")

    def _say(self, cause: Cause, error: Exception) -> None:
        """Once a second: a database that is away fails hundreds of operations in one."""
        now = monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            log.warning("store.unavailable", cause=cause.value, error=_one_line(error), counts=dict(self.counts))


_EXCEPTIONS = {Cause.DEADLOCK: DatabaseBusy, Cause.LOCK_TIMEOUT: DatabaseBusy}
_SENTENCES = {
    Cause.CONNECTION: "the database cannot be reached",
    Cause.DEADLOCK: "the database was too busy with other requests for the same sessions",
    Cause.LOCK_TIMEOUT: "the database was too busy with other requests for the same sessions",
    Cause.TIMEOUT: "the database took too long to answer",
    Cause.SCHEMA: "the database is not set up yet",
}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
