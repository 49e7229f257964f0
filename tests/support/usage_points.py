"""Points at which an instance is caught in the middle of its work: a write that waits in the database for the test.

There are no hooks in the product. A trigger waits for a lock that the test holds, so that the test sees who waits and
where. Who is killed there may have been heard (`carry_out`) or not (`call_off`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg

from tests.support.databases import Database
from tests.support.deliveries import LEASE

BARRIER = 4_711
CAUGHT_WITHIN_SECONDS = 20
POLL_SECONDS = 0.005
WAITING = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = {BARRIER} AND NOT granted"
FUNCTION = f"""
CREATE FUNCTION test_barrier() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The statement's own limit still ends it, so whoever is to be caught must be caught soon.
    PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock_shared({BARRIER});
    RETURN NEW;
END
$$
"""


class Point(NamedTuple):
    told: str
    event: str
    condition: str
    lease: str
    """Of whoever comes there."""


JOB = "job:emit-usage"
CUT = Point("the cut", "INSERT ON usage_windows", "true", JOB)
CHUNKS = Point("the chunks", "INSERT ON usage_chunks", "NEW.chunk = 1", JOB)
SECOND_PAGE = Point("the chunks after the first page", "INSERT ON usage_chunks", "NEW.chunk = 129", JOB)
DIGEST = Point("the digest", "UPDATE OF digest ON usage_chunks", "NEW.digest IS NOT NULL", LEASE)
OUTCOME = Point("the outcome", "UPDATE OF outcome ON submission_attempts", "NEW.outcome = 'delivered'", LEASE)
"""What is about to be written. All that comes before it is committed, and nothing that comes after it has begun."""


class Barrier:
    def __init__(self, database: Database, connection: asyncpg.Connection, point: Point) -> None:
        self._database, self._connection, self._point = database, connection, point

    async def raise_(self) -> None:
        await self._connection.execute(f"SELECT pg_advisory_lock({BARRIER})")

    async def caught(self) -> int:
        """The process id of the instance that waits there."""
        async with asyncio.timeout(CAUGHT_WITHIN_SECONDS):
            while not await self._waiting():  # noqa: ASYNC110 - the server does not signal it
                await asyncio.sleep(POLL_SECONDS)
        holder = await self._connection.fetchval("SELECT holder FROM leases WHERE name = $1", self._point.lease)
        return int(holder.split("-")[-2])

    async def call_off(self) -> None:
        """Nothing of what was to be written is."""
        for pid in await self._waiting():
            await self._connection.execute("SELECT pg_terminate_backend($1, 5000)", pid)
        await self.carry_out()

    async def carry_out(self) -> None:
        """It is written, although nobody waits for the answer any more."""
        await self._connection.execute(f"SELECT pg_advisory_unlock({BARRIER})")

    async def _waiting(self) -> list[int]:
        return [row["pid"] for row in await self._connection.fetch(WAITING)]


@asynccontextmanager
async def barrier(database: Database, point: Point) -> AsyncIterator[Barrier]:
    """Down until it is raised."""
    connection = await asyncpg.connect(database.url)
    await connection.execute(FUNCTION)
    await connection.execute(
        f"CREATE TRIGGER test_barrier BEFORE {point.event} FOR EACH ROW WHEN ({point.condition}) "
        "EXECUTE FUNCTION test_barrier()"
    )
    try:
        yield Barrier(database, connection, point)
    finally:
        await connection.close()
