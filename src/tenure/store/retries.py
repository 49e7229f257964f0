"""The one place where a database operation is retried, and where a driver's error is converted to an error of Tenure.

An engine maps an error to a `Cause`, or to None if the error is a bug. Every operation of the store can be repeated, so
each cause except a duplicate, a lost lease and a missing schema is retried. The number of tries and their total time
are limited: a caller gets its answer within two seconds, whatever the database does.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from tenure.clock import monotonic
from tenure.errors import DatabaseBusy, DatabaseUnavailable, IdTaken, LeaseLost
from tenure.telemetry.events import StoreRetried, StoreUnavailable, Telemetry

T = TypeVar("T")

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
    def __init__(self, cause_of: Callable[[BaseException], Cause | None], telemetry: Telemetry) -> None:
        self._cause_of = cause_of
        self._telemetry = telemetry
        self._quiet_until = 0.0
        self._running: set[asyncio.Task[Any]] = set()

    async def run(
        self, operation: Callable[[], Coroutine[Any, Any, T]], patience_seconds: float = PATIENCE_SECONDS
    ) -> T:
        """Returns the result of `operation`, or raises `DatabaseUnavailable` after `patience_seconds`.

        After that time the operation is cancelled, but not awaited: closing a connection to a frozen server is slow.
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
                    raise IdTaken("this id already exists in the database") from error
                if cause is Cause.LEASE_LOST:
                    raise LeaseLost(_one_line(error)) from error
                self._telemetry.report(StoreRetried(cause.value))
                if number == TRIES or cause is Cause.SCHEMA:
                    self._report(cause, error)
                    raise _EXCEPTIONS.get(cause, DatabaseUnavailable)(_SENTENCES[cause]) from error
            # Jitter, so that operations that collided do not collide again.
            await asyncio.sleep(PAUSE_SECONDS * number * (0.5 + random.random()))  # noqa: S311
        raise AssertionError("unreachable")

    def _report(self, cause: Cause, error: Exception) -> None:
        """Reports once a second at most: while the database is unavailable, hundreds of operations fail per second."""
        now = monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            self._telemetry.report(StoreUnavailable(cause.value, _one_line(error)))


_EXCEPTIONS = {Cause.DEADLOCK: DatabaseBusy, Cause.LOCK_TIMEOUT: DatabaseBusy}
_SENTENCES = {
    Cause.CONNECTION: "the database cannot be reached",
    Cause.DEADLOCK: "the database is busy with other requests for the same sessions",
    Cause.LOCK_TIMEOUT: "the database is busy with other requests for the same sessions",
    Cause.TIMEOUT: "the database did not answer in time",
    Cause.SCHEMA: "the database schema is not set up yet",
}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
