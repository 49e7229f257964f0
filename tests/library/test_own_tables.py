"""Tables of an application in the database of Tenure: fenced writes, and conflicting names."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest

from tenure.config.urls import is_database_url
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError
from tenure.jobs.job import ActiveRun
from tenure.leases.held import AcquiredLease
from tenure.store.engines import open_store
from tests.http.client import open_body
from tests.library.conftest import QUICK
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.instances import RunningInstance

CHECK = "SELECT tenure_check_fence_1($1, $2, $3)"
LEASE_LOST = "TL001"
OWN_TABLES = ("sessions", "jobs", "leases")


@pytest.fixture
async def connection(postgres_database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the application."""
    connection = await asyncpg.connect(postgres_database.url)
    yield connection
    connection.terminate()


@pytest.fixture
async def ensemble(postgres_database: Database) -> AsyncIterator[Ensemble]:
    async with Ensemble(postgres_database.url, timing=QUICK) as ensemble:
        yield ensemble


@pytest.fixture
async def lease(ensemble: Ensemble, connection: asyncpg.Connection) -> AsyncIterator[AcquiredLease]:
    """Creates the table in which the application counts its imports, and returns a lease."""
    await connection.execute("CREATE TABLE imports (rows int NOT NULL)")
    await connection.execute("INSERT INTO imports VALUES (0)")
    lease = await ensemble.try_acquire("import")
    assert lease is not None
    yield lease
    await lease.release()


async def imported(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT rows FROM imports"))


async def write(connection: asyncpg.Connection, name: str, holder: str, epoch: int, check: str = CHECK) -> None:
    async with connection.transaction():
        await connection.execute(check, name, holder, epoch)
        await connection.execute("UPDATE imports SET rows = rows + 1")


# Fences.


async def test_write_with_current_fence_succeeds(connection: asyncpg.Connection, lease: AcquiredLease) -> None:
    fence = lease.fence
    await write(connection, fence.name, fence.holder, fence.epoch)
    assert await imported(connection) == 1


async def test_write_with_wrong_fence_raises(connection: asyncpg.Connection, lease: AcquiredLease) -> None:
    fence = lease.fence
    for wrong in (
        (fence.name, fence.holder, fence.epoch - 1),
        (fence.name, fence.holder, fence.epoch + 1),
        (fence.name, "another", fence.epoch),
        ("export", fence.holder, fence.epoch),
    ):
        with pytest.raises(asyncpg.PostgresError) as raised:
            await write(connection, *wrong)
        assert (raised.value.sqlstate, await imported(connection)) == (LEASE_LOST, 0), wrong


async def test_write_after_resign_raises(
    connection: asyncpg.Connection, lease: AcquiredLease, postgres_database: Database
) -> None:
    fence = lease.fence
    await postgres_database.store.resign_lease("import", ACTOR)
    with pytest.raises(asyncpg.PostgresError, match="does not hold the lease import in epoch 1"):
        await write(connection, fence.name, fence.holder, fence.epoch)
    assert await imported(connection) == 0


async def test_resign_waits_for_fenced_transaction_to_commit(
    connection: asyncpg.Connection, lease: AcquiredLease, postgres_database: Database
) -> None:
    fence = lease.fence
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(CHECK, fence.name, fence.holder, fence.epoch)
    resigning = asyncio.create_task(postgres_database.store.resign_lease("import", ACTOR))
    await asyncio.sleep(0.1)
    is_blocked = not resigning.done()
    await connection.execute("UPDATE imports SET rows = 7")
    await transaction.commit()
    assert (is_blocked, (await resigning) is not None, await imported(connection)) == (True, True, 7)


async def test_job_writes_with_fence_of_its_run(connection: asyncpg.Connection, postgres_database: Database) -> None:
    ran = asyncio.Event()

    async def count(run: ActiveRun) -> None:
        await write(connection, run.fence.name, run.fence.holder, run.fence.epoch)
        ran.set()

    await connection.execute("CREATE TABLE imports (rows int NOT NULL)")
    await connection.execute("INSERT INTO imports VALUES (0)")
    ensemble = Ensemble(postgres_database.url, timing=QUICK)
    ensemble.add_job("count", count, interval_seconds=0.05)
    async with ensemble, asyncio.timeout(30):
        await ran.wait()
    assert await imported(connection) >= 1


# Conflicting names.


@pytest.fixture
async def empty_connection(empty_postgres_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_postgres_database.url)
    yield connection
    connection.terminate()


async def create_own_tables(connection: asyncpg.Connection) -> None:
    for name in OWN_TABLES:
        await connection.execute(f"CREATE TABLE {name} (of_the_application int)")
        await connection.execute(f"INSERT INTO {name} VALUES (42)")


async def own_tables(connection: asyncpg.Connection) -> list[int]:
    return [await connection.fetchval(f"SELECT of_the_application FROM public.{name}") for name in OWN_TABLES]


async def tables_of(connection: asyncpg.Connection, schema: str) -> set[str]:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    return {row["tablename"] for row in rows}


async def test_start_with_conflicting_table_raises_and_creates_no_tables(
    empty_connection: asyncpg.Connection, empty_postgres_database: Database
) -> None:
    for name in OWN_TABLES:
        await empty_connection.execute(f"CREATE TABLE {name} (of_the_application int)")
        with pytest.raises(Exception, match=name):
            await Ensemble(empty_postgres_database.url).__aenter__()
        assert await tables_of(empty_connection, "public") == {name}
        await empty_connection.execute(f"DROP TABLE {name}")


async def test_conflicting_table_raises_configuration_error(empty_database: Database) -> None:
    await empty_database.execute("CREATE TABLE sessions (of_the_application int)")
    with pytest.raises(ConfigurationError, match=r"database: .*sessions"):
        await empty_database.store.migrate()


# A separate schema.


@pytest.fixture
async def schema_url(empty_connection: asyncpg.Connection, empty_postgres_database: Database) -> str:
    """The URL of a schema for Tenure. In the schema `public`, the application has tables with the names OWN_TABLES."""
    await create_own_tables(empty_connection)
    await empty_connection.execute("CREATE SCHEMA tenure")
    return f"{empty_postgres_database.url}&search_path=tenure"


def test_database_url_accepts_search_path() -> None:
    assert is_database_url("postgresql://app@db.example/app?search_path=tenure")


async def test_separate_schema_contains_all_tables_and_functions(
    empty_connection: asyncpg.Connection, schema_url: str
) -> None:
    async with Ensemble(schema_url, timing=QUICK) as ensemble, await _acquired(ensemble) as lease:
        assert lease.epoch == 1
    assert await tables_of(empty_connection, "tenure") >= {"leases", "jobs", "sessions", "tenure_schema"}
    assert await tables_of(empty_connection, "public") == set(OWN_TABLES)
    assert await own_tables(empty_connection) == [42, 42, 42]
    schemas = await empty_connection.fetch(
        "SELECT DISTINCT n.nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        "WHERE p.proname LIKE 'tenure%'"
    )
    assert [row["nspname"] for row in schemas] == ["tenure"]


async def test_separate_schema_is_migrated_once(schema_url: str) -> None:
    store = open_store(schema_url, 4)
    first, second = await store.migrate(), await store.migrate()
    await store.close()
    assert (len(first) > 0, list(second)) == (True, [])


async def test_two_schemas_in_one_database_are_separate_ensembles(
    empty_connection: asyncpg.Connection, schema_url: str
) -> None:
    await empty_connection.execute("CREATE SCHEMA another")
    elsewhere = schema_url.replace("search_path=tenure", "search_path=another")
    async with (
        Ensemble(schema_url, timing=QUICK) as one,
        Ensemble(elsewhere, timing=QUICK) as other,
        await _acquired(one) as lease,
        await _acquired(other) as other_lease,
    ):
        assert (lease.epoch, other_lease.epoch) == (1, 1)


async def test_application_checks_fence_from_its_own_schema(
    empty_connection: asyncpg.Connection, schema_url: str
) -> None:
    """The application's search path lacks Tenure's schema, and the application has its own table `leases`."""
    await empty_connection.execute("CREATE TABLE imports (rows int NOT NULL)")
    await empty_connection.execute("INSERT INTO imports VALUES (0)")
    check = "SELECT tenure.tenure_check_fence_1($1, $2, $3)"
    async with Ensemble(schema_url, timing=QUICK) as ensemble, await _acquired(ensemble) as lease:
        fence = lease.fence
        await write(empty_connection, fence.name, fence.holder, fence.epoch, check)
        with pytest.raises(asyncpg.PostgresError) as raised:
            await write(empty_connection, fence.name, fence.holder, fence.epoch + 1, check)
    assert (raised.value.sqlstate, await imported(empty_connection)) == (LEASE_LOST, 1)


async def test_missing_schema_raises_configuration_error(empty_postgres_database: Database) -> None:
    store = open_store(f"{empty_postgres_database.url}&search_path=nowhere", 4)
    try:
        with pytest.raises(ConfigurationError, match=r"database: .*schema"):
            await store.migrate()
    finally:
        await store.close()


@pytest.mark.slow
async def test_service_runs_in_separate_schema(
    empty_connection: asyncpg.Connection, schema_url: str, start: type[RunningInstance]
) -> None:
    instance = start(schema_url).wait_until_ready()
    async with httpx.AsyncClient(base_url=instance.address, verify=False) as client:
        opened = await client.put("/sessions", json=open_body())
        jobs = (await client.get("/jobs")).json()["jobs"]
        ended = await client.delete(f"/sessions/{opened.json()['sessionId']}")
    assert (opened.status_code, ended.status_code, len(jobs) >= 2) == (201, 200, True)
    assert await own_tables(empty_connection) == [42, 42, 42]


async def _acquired(ensemble: Ensemble) -> AcquiredLease:
    lease = await ensemble.try_acquire("import")
    assert lease is not None
    return lease


async def test_conflicting_type_raises_configuration_error(empty_postgres_database: Database) -> None:
    await empty_postgres_database.execute("CREATE TYPE session_state AS ENUM ('signed-in')")
    with pytest.raises(ConfigurationError, match="another application has a type named session_state"):
        await empty_postgres_database.store.migrate()
