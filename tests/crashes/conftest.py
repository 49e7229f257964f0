from collections.abc import AsyncIterator, Iterator

import pytest

from tenure.store.engines import open_store
from tests.support.databases import POOL_SIZE, Clock, Database, PostgresServer, postgres_server


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[PostgresServer]:
    """A server for the tests of this folder, which they stop, start and freeze."""
    with postgres_server() as server:
        yield server


@pytest.fixture
async def own_database(own_postgres: PostgresServer) -> AsyncIterator[Database]:
    url = own_postgres.url(await own_postgres.create_database())
    database = Database(url, open_store(url, POOL_SIZE), Clock())
    yield database
    await database.close()
