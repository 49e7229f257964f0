"""Two ways to a service: a real process that all tests share, and one inside the test whose clock can be moved.

The shared ones are started once, one an engine. Their tests use random keys, so they never meet. What has nothing to do
with the database is asked of one engine only: `any_service`, `any_client`, `any_local`.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from tenure.config import GatewayConfig
from tests.http.client import Client
from tests.http.local import NOBODY, LocalService
from tests.support.databases import Database, PostgresServer
from tests.support.instances import RunningInstance
from tests.support.submissions import executor
from tests.support.usage import emitter, install
from tests.support.wishes import NOON

ENGINES = ["sqlite", "postgresql"]
PARKED = "parked"
"""A gateway of the shared services at which nobody listens: what is submitted to it stays pending."""
GATEWAYS = '{"parked": {"url": "http://127.0.0.1:9/", "schedule": [3600], "max_attempts": 1000}}'


def _running(url: str, folders: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    instance = RunningInstance(url, folders.mktemp("http"), TENURE_GATEWAYS=GATEWAYS)
    try:
        yield instance.wait_until_ready()
    finally:
        instance.stop()


@pytest.fixture(scope="package")
def sqlite_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    yield from _running(f"sqlite:///{tmp_path_factory.mktemp('http-sqlite') / 'tenure.db'}", tmp_path_factory)


@pytest.fixture(scope="package")
async def postgresql_url(postgres: PostgresServer, template: str) -> str:
    return postgres.url(await postgres.create_database(template))


@pytest.fixture(scope="package")
def postgresql_service(postgresql_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    yield from _running(postgresql_url, tmp_path_factory)


@pytest.fixture(scope="package", params=ENGINES)
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
def any_client(any_service: RunningInstance) -> Iterator[Client]:
    client = Client(any_service.address)
    yield client
    client.http.close()


@pytest.fixture
async def local(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    """An instance in this process, on the test's own database and its clock."""
    async with LocalService.on(database, monkeypatch).running() as service:
        yield service


@pytest.fixture
async def any_local(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    async with LocalService.on(sqlite_database, monkeypatch).running() as service:
        yield service


@pytest.fixture
async def metered(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    """An instance that was installed at noon, and neither cuts nor sends by itself: the test does."""
    await database.clock.set(NOON)
    await install(database, NOON)
    await emitter(database.store)
    await executor(database.store)
    gateways = {name: GatewayConfig(url=NOBODY) for name in ("usages", "crm")}
    async with LocalService.on(database, monkeypatch, gateways=gateways).running() as service:
        yield service
