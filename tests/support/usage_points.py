"""Barriers at writes of an instance: a trigger in the database waits for a lock that the test holds.

Tenure itself has no hooks for tests. A test waits until an instance is blocked at a write, kills or pauses the
instance, and then lets the write be executed (`allow_write`) or prevents it (`cancel_write`).
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg

from tests.support.databases import Database
from tests.support.deliveries import LEASE

BARRIER = 4_711
BLOCKED_WITHIN_SECONDS = 20
POLL_SECONDS = 0.005
WAITING = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = {BARRIER} AND NOT granted"
FUNCTION = f"""
CREATE FUNCTION test_barrier() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The statement timeout still applies, so the test must find the waiting instance in time.
    PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock_shared({BARRIER});
    RETURN NEW;
END
$$
"""
REMOVE = "SELECT pg_advisory_unlock_all(); DROP FUNCTION test_barrier CASCADE"
PAGE = 2
"""The number of chunks that an instance with `small_pages` saves in one transaction."""


class Point(NamedTuple):
    name: str
    event: str
    condition: str
    lease: str
    """The lease that the instance holds while it executes the write."""


JOB = "job:emit-usage"
CUT = Point("the cut", "INSERT ON usage_windows", "true", JOB)
CHUNKS = Point("the chunks", "INSERT ON usage_chunks", "NEW.chunk = 1", JOB)
SECOND_PAGE = Point("the chunks after the first page", "INSERT ON usage_chunks", f"NEW.chunk = {PAGE + 1}", JOB)
DIGEST = Point("the digest", "UPDATE OF digest ON usage_chunks", "NEW.digest IS NOT NULL", LEASE)
OUTCOME = Point("the outcome", "UPDATE OF outcome ON submission_attempts", "NEW.outcome = 'delivered'", LEASE)
"""At each point, one write waits. Earlier writes are committed, and later ones have not begun."""


class Barrier:
    def __init__(self, database: Database, connection: asyncpg.Connection, point: Point) -> None:
        self._database, self._connection, self._point = database, connection, point

    async def close(self) -> None:
        await self._connection.execute(f"SELECT pg_advisory_lock({BARRIER})")

    async def blocked_pid(self) -> int:
        """Waits until an instance is blocked at the barrier, and returns its process id."""
        async with asyncio.timeout(BLOCKED_WITHIN_SECONDS):
            while not await self._waiting():  # noqa: ASYNC110 - the server does not signal it
                await asyncio.sleep(POLL_SECONDS)
        holder = await self._connection.fetchval("SELECT holder FROM leases WHERE name = $1", self._point.lease)
        return int(holder.split("-")[-2])

    async def cancel_write(self) -> None:
        """Terminates the waiting connections: nothing is written."""
        for pid in await self._waiting():
            await self._connection.execute("SELECT pg_terminate_backend($1, 5000)", pid)
        await self.allow_write()

    async def allow_write(self) -> None:
        """Lets the database execute the write, even if the instance can no longer read the response."""
        await self._connection.execute(f"SELECT pg_advisory_unlock({BARRIER})")

    async def _waiting(self) -> list[int]:
        return [row["pid"] for row in await self._connection.fetch(WAITING)]


@asynccontextmanager
async def barrier(database: Database, point: Point) -> AsyncIterator[Barrier]:
    """A barrier that is open until `close` is called. On exit, the barrier is removed, so a test can use another."""
    connection = await asyncpg.connect(database.url)
    await connection.execute(FUNCTION)
    await connection.execute(
        f"CREATE TRIGGER test_barrier BEFORE {point.event} FOR EACH ROW WHEN ({point.condition}) "
        "EXECUTE FUNCTION test_barrier()"
    )
    try:
        yield Barrier(database, connection, point)
    finally:
        await connection.execute(REMOVE)
        await connection.close()


def small_pages(folder: Path) -> dict[str, str]:
    """Returns environment variables that make instances save at most `PAGE` chunks in one transaction."""
    code = folder / "small_pages"
    code.mkdir()
    (code / "sitecustomize.py").write_text(f"import tenure.usage.emit as e\ne.BATCH_MAX = e.RUN_MAX = {PAGE}\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))}
