from collections.abc import AsyncIterator, Iterator

import pytest

from tenure.store.engines import open_store
from tests.support.databases import POOL_SIZE, TEMPLATE, Clock, Database, PostgresServer, postgres_server
from tests.support.processes import Lag


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the tests of this folder stop, start and freeze."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
async def own_template(own_postgres: PostgresServer) -> str:
    await own_postgres.create_template()
    return TEMPLATE


@pytest.fixture
async def own_database(own_postgres: PostgresServer, own_template: str) -> AsyncIterator[Database]:
    url = own_postgres.url(await own_postgres.create_database(own_template))
    database = Database(url, open_store(url, POOL_SIZE), Clock())
    yield database
    await database.close()


@pytest.fixture
def lag() -> Iterator[Lag]:
    """Measures scheduling delays while the test runs."""
    with Lag() as measured:
        yield measured
