"""Retries operations on the database, and converts errors of the database drivers to errors of Tenure.

An engine maps an error to a `Cause`, or to None if the error is a bug or a wrong setting. Every operation of the store
can be repeated, so an operation is retried after most causes. It is not retried after the causes in FINAL, because
these causes do not go away within two seconds. It is not retried after DUPLICATE and LEASE_LOST either, because these
are results rather than failures. The number of tries and their total time are limited: a caller gets the result of a
short operation or an error within two seconds, even if the database hangs.

A database that answers may still refuse to write, for example because its disk is full or because it is read only. Such
a database can still be read, so a probe that only reads would not notice the refusal. `Retries` remembers the refusal
for a few seconds (`refusal`), and `/readyz` shows it. So `/readyz` needs no test write.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from tenure.clock import monotonic
from tenure.errors import DatabaseBusy, DatabaseTooSlow, DatabaseUnavailable, IdTaken, LeaseLost
from tenure.telemetry.events import StoreRetried, StoreUnavailable, Telemetry

T = TypeVar("T")

TRIES = 3
PATIENCE_SECONDS = 1.7
PAUSE_SECONDS = 0.02
REFUSAL_SECONDS = 5.0
"""How long a refusal is remembered. While the database refuses writes, no lease can be renewed, so the leases expire.
While a lease is free, each instance tries to acquire it about once a second. So a lasting refusal is noticed again
before this time is over."""


class Cause(StrEnum):
    CONNECTION = "connection"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    DISK_FULL = "disk_full"
    OUT_OF_RESOURCES = "out_of_resources"
    READ_ONLY = "read_only"
    IO_ERROR = "io_error"
    UNANSWERED = "unanswered"
    """Earlier operations occupy all connections, and the database has not answered them yet."""
    FILE_MOVED = "file_moved"
    """The file of an SQLite database was deleted, renamed or replaced."""
    DEADLOCK = "deadlock"
    LOCK_TIMEOUT = "lock_timeout"
    TIMEOUT = "timeout"
    SCHEMA = "schema"
    DUPLICATE = "duplicate"
    LEASE_LOST = "lease_lost"


FINAL = frozenset({Cause.SCHEMA, Cause.DISK_FULL, Cause.FILE_MOVED})
"""Causes that do not go away within two seconds, so that a retry would fail too."""
REFUSALS = frozenset(
    {Cause.DISK_FULL, Cause.OUT_OF_RESOURCES, Cause.READ_ONLY, Cause.IO_ERROR, Cause.UNANSWERED, Cause.FILE_MOVED}
)
"""Causes that `refusal` remembers: with them, writes fail although a read may still succeed."""


class Retries:
    def __init__(
        self,
        cause_of: Callable[[BaseException], Cause | None],
        telemetry: Telemetry,
        *,
        end_when_cancelled: bool = False,
    ) -> None:
        """`end_when_cancelled`: whether a cancelled operation ends at once. If so, `run` starts no task for it."""
        self._cause_of = cause_of
        self._telemetry = telemetry
        self._end_when_cancelled = end_when_cancelled
        self._refusal: Cause | None = None
        self._refused_at = 0.0
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def refusal(self) -> str | None:
        """Why the database refused an operation within the last REFUSAL_SECONDS, or None if it refused none."""
        if self._refusal is None or monotonic() - self._refused_at > REFUSAL_SECONDS:
            return None
        return _SENTENCES[self._refusal]

    async def run(
        self, operation: Callable[[], Coroutine[Any, Any, T]], patience_seconds: float = PATIENCE_SECONDS
    ) -> T:
        """Runs `operation` with retries, and returns its result. If the operation has not ended after
        `patience_seconds`, cancels it and raises `DatabaseTooSlow`.

        With `end_when_cancelled`, `run` waits until the cancelled operation has ended. Without it, `run` does not wait:
        the operation may have to close a connection to a frozen server before it ends, which is slow.
        """
        too_late = f"the database did not answer within {patience_seconds:g} seconds"
        if self._end_when_cancelled:
            try:
                async with asyncio.timeout(patience_seconds):
                    return await self._tries(operation)
            except TimeoutError as error:
                raise DatabaseTooSlow(too_late) from error
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
            raise DatabaseTooSlow(too_late)
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
                if number == TRIES or cause in FINAL:
                    self._note_failure(cause, error)
                    raise _EXCEPTIONS.get(cause, DatabaseUnavailable)(_SENTENCES[cause]) from error
            # Jitter, so that operations that collided do not collide again.
            await asyncio.sleep(PAUSE_SECONDS * number * (0.5 + random.random()))  # noqa: S311
        raise AssertionError("unreachable")

    def _note_failure(self, cause: Cause, error: Exception) -> None:
        if cause in REFUSALS:
            self._refusal, self._refused_at = cause, monotonic()
        self._telemetry.report(StoreUnavailable(cause.value, _one_line(error)))


_EXCEPTIONS = {
    Cause.DEADLOCK: DatabaseBusy,
    Cause.LOCK_TIMEOUT: DatabaseBusy,
    Cause.TIMEOUT: DatabaseTooSlow,
}
_SENTENCES = {
    Cause.CONNECTION: "the database cannot be reached",
    Cause.TOO_MANY_CONNECTIONS: "the database accepts no more connections",
    Cause.DISK_FULL: "the disk of the database is full",
    Cause.OUT_OF_RESOURCES: "the database is out of memory or has reached another limit",
    Cause.READ_ONLY: "the database is read only",
    Cause.IO_ERROR: "the database cannot read or write its files",
    Cause.UNANSWERED: "the database has not answered earlier requests yet",
    Cause.FILE_MOVED: "the file of the database was deleted, renamed or replaced",
    Cause.DEADLOCK: "the database is busy with other requests for the same rows",
    Cause.LOCK_TIMEOUT: "the database is busy with other requests for the same rows",
    Cause.TIMEOUT: "the database did not answer in time",
    Cause.SCHEMA: "the database schema is not set up yet",
}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
