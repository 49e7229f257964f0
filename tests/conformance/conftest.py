"""Fixtures of the conformance tests. In each worker of pytest, the tests on PostgreSQL share one database, which is
emptied after each test.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from tenure.store.engines import open_store
from tenure.store.tables import metadata
from tests.support.databases import POOL_SIZE, Database, PostgresClock, PostgresServer
from tests.support.open_requests import NOON
from tests.support.usage import install, limit_chunks

EMPTY = f"""
DO $$ BEGIN
    {" ".join(f"DELETE FROM {table};" for table in metadata.tables)}
    INSERT INTO installation SELECT * FROM first_installation;
    INSERT INTO signing_keys SELECT * FROM first_signing_keys;
END $$
"""


class SharedDatabase(Database):
    """Keeps the connection of `run_sync` open between calls, to save the time of connecting."""

    def __init__(self, url: str) -> None:
        super().__init__(url, open_store(url, POOL_SIZE), PostgresClock(url))
        self._engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url), pool_size=1
        )

    async def run_sync(self, work: Callable[[Connection], Any]) -> Any:
        async with self._engine.connect() as connection:
            return await connection.run_sync(work)

    async def empty(self) -> None:
        await self.clock.release()
        await self.execute(EMPTY)

    async def close(self) -> None:
        await self._engine.dispose()
        await super().close()


@pytest.fixture(scope="session")
async def shared_postgres_database(postgres: PostgresServer, template: str) -> AsyncIterator[SharedDatabase]:
    database = SharedDatabase(postgres.url(await postgres.create_database(template)))
    for table in ("installation", "signing_keys"):
        await database.execute(f"CREATE TABLE first_{table} AS SELECT * FROM {table}")
    yield database
    await database.close()


@pytest.fixture
async def postgres_database(shared_postgres_database: SharedDatabase) -> AsyncIterator[Database]:
    """The shared database, emptied after the test: creating and dropping a database takes longer than most tests."""
    yield shared_postgres_database
    await shared_postgres_database.empty()


@pytest.fixture
async def noon(database: Database) -> None:
    """Stops the clock at NOON."""
    await database.clock.set(NOON)


@pytest.fixture
async def installed(database: Database) -> None:
    """Stops the clock at NOON, and changes the database as if it had been migrated at this instant. NOON is a fraction
    of a second after noon, so that it is not a tick of a job.
    """
    await database.clock.set(NOON)
    await install(database, NOON)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits chunks to three sessions."""
    limit_chunks(monkeypatch, 3)
