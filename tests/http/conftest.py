"""Services for the tests: real processes that all tests share, and instances in the process of the test.

- `service`, `client`: a real process, and a client of it. A test runs once with the process on SQLite and once with the
  process on PostgreSQL. The tests use new keys, so they do not disturb each other.
- `local`: an instance in this process, one per engine, with a clock that the test can move. Its jobs are paused, and
  another holder has the lease of the executor, so sessions are not swept and submissions stay pending. The tests use
  new keys here too.
- `own_local`: a new instance on a new database, for tests that count rows, need a leader, or damage the instance.
- `metered`: a new instance for tests of usage. The clock of its database stands at noon of a day in the future.

Tests that do not depend on the database use one engine only: `any_service`, `any_client`, `any_local`.
"""

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenure.config import JOBS, JobConfig
from tenure.store.engines import open_store
from tests.conftest import ENGINES
from tests.http.client import Client
from tests.http.local import LocalService, prepare_process
from tests.support.databases import POOL_SIZE, Database, PostgresClock, PostgresServer, sqlite_store
from tests.support.instances import RunningInstance, kill_all
from tests.support.open_requests import NOON
from tests.support.submissions import executor_fence
from tests.support.usage import emitter_fence, install

GATEWAYS = [f"gateway-{number}" for number in range(100)]
"""Gateways of the shared instances. The fixtures `gateway` and `other_gateway` return one that no other test uses."""
_unused_gateways = iter(GATEWAYS)
PARKED = "parked"
"""A gateway with an unreachable URL, in the shared processes: submissions to this gateway stay pending."""
PARKED_GATEWAY = '{"parked": {"url": "http://127.0.0.1:9/", "schedule": [3600], "max_attempts": 1000}}'


@pytest.fixture(scope="package", autouse=True)
def _prepared_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        prepare_process(patched)
        yield


# Real processes.


def _running(url: str, folders: pytest.TempPathFactory, **environment: str) -> Iterator[RunningInstance]:
    instance = RunningInstance(url, folders.mktemp("http"), TENURE_GATEWAYS=PARKED_GATEWAY, **environment)
    try:
        yield instance.wait_until_ready()
    finally:
        kill_all([instance])


@pytest.fixture(scope="package")
def sqlite_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    yield from _running(f"sqlite:///{tmp_path_factory.mktemp('http-sqlite') / 'tenure.db'}", tmp_path_factory)


@pytest.fixture(scope="package")
async def postgresql_url(postgres: PostgresServer, template: str) -> str:
    return postgres.url(await postgres.create_database(template))


@pytest.fixture(scope="package")
def postgresql_service(postgresql_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    yield from _running(postgresql_url, tmp_path_factory)


@pytest.fixture(scope="package", params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest) -> RunningInstance:
    return request.getfixturevalue(f"{request.param}_service")  # type: ignore[no-any-return]


@pytest.fixture(scope="package")
def client(service: RunningInstance) -> Iterator[Client]:
    client = Client(service.address)
    yield client
    client.http.close()


@pytest.fixture(scope="package")
def any_service(sqlite_service: RunningInstance) -> RunningInstance:
    return sqlite_service


@pytest.fixture(scope="package")
def snake_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    """A service with `json_case = "snake"`."""
    url = f"sqlite:///{tmp_path_factory.mktemp('http-snake') / 'tenure.db'}"
    yield from _running(url, tmp_path_factory, TENURE_HTTP__JSON_CASE="snake")


@pytest.fixture(scope="package")
def snake_client(snake_service: RunningInstance) -> Iterator[Client]:
    """A client of `snake_service` that asks for camelCase, as the clients of Tenure do."""
    client = Client(snake_service.address)
    client.http.headers["Tenure-JSON-Case"] = "camel"
    yield client
    client.http.close()


@pytest.fixture(scope="package")
def any_client(any_service: RunningInstance) -> Iterator[Client]:
    client = Client(any_service.address)
    yield client
    client.http.close()


# Instances in this process that tests share.


@asynccontextmanager
async def _shared(database: Database) -> AsyncIterator[LocalService]:
    await executor_fence(database.store)
    jobs = {name: JobConfig(paused=True) for name in JOBS}
    async with LocalService.on(database, *GATEWAYS, "crm", "usages", jobs=jobs).running() as service:
        yield service


@asynccontextmanager
async def new_sqlite(template: Path, folder: Path) -> AsyncIterator[Database]:
    path = folder / "tenure.db"
    shutil.copyfile(template, path)
    database = Database(f"sqlite:///{path}", *sqlite_store(path))
    yield database
    await database.close()


@asynccontextmanager
async def new_postgresql(server: PostgresServer, template: str) -> AsyncIterator[Database]:
    url = server.url(await server.create_database(template))
    database = Database(url, open_store(url, POOL_SIZE), PostgresClock(url))
    yield database
    await database.close()


@pytest.fixture(scope="package")
async def shared_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    async with new_sqlite(sqlite_template, tmp_path_factory.mktemp("local")) as database, _shared(database) as service:
        yield service


@pytest.fixture(scope="package")
async def shared_postgresql(postgres: PostgresServer, template: str) -> AsyncIterator[LocalService]:
    async with new_postgresql(postgres, template) as database, _shared(database) as service:
        yield service


@pytest.fixture
async def sqlite_local(shared_sqlite: LocalService) -> AsyncIterator[LocalService]:
    yield shared_sqlite
    await shared_sqlite.reset()


@pytest.fixture
async def postgresql_local(shared_postgresql: LocalService) -> AsyncIterator[LocalService]:
    yield shared_postgresql
    await shared_postgresql.reset()


@pytest.fixture
async def mssql_local(mssql_database: Database) -> AsyncIterator[LocalService]:
    """Not shared: the tests have only one SQL Server database, and each test empties it."""
    async with _shared(mssql_database) as service:
        yield service


@pytest.fixture(params=ENGINES)
def local(request: pytest.FixtureRequest) -> LocalService:
    return request.getfixturevalue(f"{request.param}_local")  # type: ignore[no-any-return]


@pytest.fixture
def gateway() -> str:
    return next(_unused_gateways)


@pytest.fixture
def other_gateway() -> str:
    return next(_unused_gateways)


# Instances in this process, each for one test.


@pytest.fixture
async def own_local(database: Database) -> AsyncIterator[LocalService]:
    async with LocalService.on(database, "billing").running() as service:
        yield service


@pytest.fixture
async def any_local(sqlite_database: Database) -> AsyncIterator[LocalService]:
    async with LocalService.on(sqlite_database, "billing", "usages").running() as service:
        yield service


@asynccontextmanager
async def metered_on(database: Database) -> AsyncIterator[LocalService]:
    """An instance on a database that was installed at noon. Only the test cuts windows and sends submissions."""
    await database.clock.set(NOON)
    await install(database, NOON)
    await emitter_fence(database.store)
    await executor_fence(database.store)
    async with LocalService.on(database, "usages", "crm").running() as service:
        yield service


@pytest.fixture
async def metered(database: Database) -> AsyncIterator[LocalService]:
    async with metered_on(database) as service:
        yield service
