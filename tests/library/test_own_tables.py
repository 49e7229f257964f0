"""An application's own tables beside Tenure's: writes that only a lease's holder may make, and names in the way."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest

from tenure.config.urls import is_database_url
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError
from tenure.jobs.jobs import ActiveRun
from tenure.leases.keeping import KeptLease
from tenure.store.engines import open_store
from tests.http.client import wish
from tests.library.conftest import QUICK
from tests.support.databases import Database
from tests.support.instances import RunningInstance

CHECK = "SELECT tenure_check_fence_1($1, $2, $3)"
LEASE_LOST = "TL001"
OWN_TABLES = ("sessions", "jobs", "leases")


@pytest.fixture
async def connection(empty_postgres_database: Database) -> AsyncIterator[asyncpg.Connection]:
    """The application's own."""
    connection = await asyncpg.connect(empty_postgres_database.url)
    yield connection
    connection.terminate()


@pytest.fixture
async def ensemble(empty_postgres_database: Database) -> AsyncIterator[Ensemble]:
    async with Ensemble(empty_postgres_database.url, timing=QUICK) as ensemble:
        yield ensemble


@pytest.fixture
async def lease(ensemble: Ensemble, connection: asyncpg.Connection) -> AsyncIterator[KeptLease]:
    """Of an application that has imported nothing yet."""
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


async def test_a_write_with_the_fence_is_made(connection: asyncpg.Connection, lease: KeptLease) -> None:
    fence = lease.fence
    await write(connection, fence.name, fence.holder, fence.epoch)
    assert await imported(connection) == 1


@pytest.mark.parametrize("wrong", ["epoch before", "epoch after", "holder", "name"])
async def test_a_write_with_another_fence_is_not_made(
    connection: asyncpg.Connection, lease: KeptLease, wrong: str
) -> None:
    fence = lease.fence
    given = {
        "epoch before": (fence.name, fence.holder, fence.epoch - 1),
        "epoch after": (fence.name, fence.holder, fence.epoch + 1),
        "holder": (fence.name, "another", fence.epoch),
        "name": ("export", fence.holder, fence.epoch),
    }
    with pytest.raises(asyncpg.PostgresError) as refused:
        await write(connection, *given[wrong])
    assert (refused.value.sqlstate, await imported(connection)) == (LEASE_LOST, 0)


async def test_a_write_after_the_lease_was_resigned_is_not_made(
    connection: asyncpg.Connection, lease: KeptLease, empty_postgres_database: Database
) -> None:
    fence = lease.fence
    await empty_postgres_database.store.resign_lease("import")
    with pytest.raises(asyncpg.PostgresError, match="does not hold the lease import in epoch 1"):
        await write(connection, fence.name, fence.holder, fence.epoch)
    assert await imported(connection) == 0


async def test_nobody_takes_over_before_the_write_is_committed(
    connection: asyncpg.Connection, lease: KeptLease, empty_postgres_database: Database
) -> None:
    fence = lease.fence
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(CHECK, fence.name, fence.holder, fence.epoch)
    ending = asyncio.create_task(empty_postgres_database.store.resign_lease("import"))
    await asyncio.sleep(0.1)
    waits = not ending.done()
    await connection.execute("UPDATE imports SET rows = 7")
    await transaction.commit()
    assert (waits, (await ending) is not None, await imported(connection)) == (True, True, 7)


async def test_a_job_writes_with_the_fence_of_its_run(
    connection: asyncpg.Connection, empty_postgres_database: Database
) -> None:
    ran = asyncio.Event()

    async def count(run: ActiveRun) -> None:
        await write(connection, run.fence.name, run.fence.holder, run.fence.epoch)
        ran.set()

    await connection.execute("CREATE TABLE imports (rows int NOT NULL)")
    await connection.execute("INSERT INTO imports VALUES (0)")
    ensemble = Ensemble(empty_postgres_database.url, timing=QUICK)
    ensemble.add_job("count", count, interval_seconds=0.05)
    async with ensemble, asyncio.timeout(30):
        await ran.wait()
    assert await imported(connection) >= 1


# Names in the way.


async def create_own_tables(connection: asyncpg.Connection) -> None:
    for name in OWN_TABLES:
        await connection.execute(f"CREATE TABLE {name} (of_the_application int)")
        await connection.execute(f"INSERT INTO {name} VALUES (42)")


async def own_tables(connection: asyncpg.Connection) -> list[int]:
    return [await connection.fetchval(f"SELECT of_the_application FROM public.{name}") for name in OWN_TABLES]


async def tables_of(connection: asyncpg.Connection, schema: str) -> set[str]:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    return {row["tablename"] for row in rows}


@pytest.mark.parametrize("name", OWN_TABLES)
async def test_a_table_in_the_way_stops_the_start_and_stays_as_it_was(
    connection: asyncpg.Connection, empty_postgres_database: Database, name: str
) -> None:
    await connection.execute(f"CREATE TABLE {name} (of_the_application int)")
    with pytest.raises(Exception, match=name):
        await Ensemble(empty_postgres_database.url).__aenter__()
    assert await tables_of(connection, "public") == {name}


async def test_a_table_in_the_way_is_told_as_a_wrong_setting(empty_database: Database) -> None:
    await empty_database.execute("CREATE TABLE sessions (of_the_application int)")
    with pytest.raises(ConfigurationError, match=r"database: .*sessions"):
        await empty_database.store.migrate()


# A schema of its own.


@pytest.fixture
async def apart(connection: asyncpg.Connection, empty_postgres_database: Database) -> str:
    """The URL of a schema for Tenure, in a database whose application has tables of the same names."""
    await create_own_tables(connection)
    await connection.execute("CREATE SCHEMA tenure")
    return f"{empty_postgres_database.url}&search_path=tenure"


def test_a_schema_may_be_named_in_the_url() -> None:
    assert is_database_url("postgresql://app@db.example/app?search_path=tenure")


async def test_a_schema_of_its_own_holds_all_of_it(connection: asyncpg.Connection, apart: str) -> None:
    async with Ensemble(apart, timing=QUICK) as ensemble, await _acquired(ensemble) as lease:
        assert lease.epoch == 1
    assert await tables_of(connection, "tenure") >= {"leases", "jobs", "sessions", "tenure_schema"}
    assert await tables_of(connection, "public") == set(OWN_TABLES)
    assert await own_tables(connection) == [42, 42, 42]


async def test_functions_are_in_that_schema_too(connection: asyncpg.Connection, apart: str) -> None:
    async with Ensemble(apart, timing=QUICK):
        pass
    schemas = await connection.fetch(
        "SELECT DISTINCT n.nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        "WHERE p.proname LIKE 'tenure%'"
    )
    assert [row["nspname"] for row in schemas] == ["tenure"]


async def test_a_schema_of_its_own_is_migrated_once(apart: str) -> None:
    store = open_store(apart, 4)
    first, second = await store.migrate(), await store.migrate()
    await store.close()
    assert (len(first) > 0, list(second)) == (True, [])


async def test_two_schemas_of_one_database_are_two_ensembles(connection: asyncpg.Connection, apart: str) -> None:
    await connection.execute("CREATE SCHEMA another")
    elsewhere = apart.replace("search_path=tenure", "search_path=another")
    async with (
        Ensemble(apart, timing=QUICK) as one,
        Ensemble(elsewhere, timing=QUICK) as other,
        await _acquired(one) as lease,
        await _acquired(other) as other_lease,
    ):
        assert (lease.epoch, other_lease.epoch) == (1, 1)


async def test_the_application_can_check_a_fence_from_its_own_schema(
    connection: asyncpg.Connection, apart: str
) -> None:
    """Its search path does not name Tenure's schema, and it has a table `leases` of its own."""
    await connection.execute("CREATE TABLE imports (rows int NOT NULL)")
    await connection.execute("INSERT INTO imports VALUES (0)")
    check = "SELECT tenure.tenure_check_fence_1($1, $2, $3)"
    async with Ensemble(apart, timing=QUICK) as ensemble, await _acquired(ensemble) as lease:
        fence = lease.fence
        await write(connection, fence.name, fence.holder, fence.epoch, check)
        with pytest.raises(asyncpg.PostgresError) as refused:
            await write(connection, fence.name, fence.holder, fence.epoch + 1, check)
    assert (refused.value.sqlstate, await imported(connection)) == (LEASE_LOST, 1)


async def test_a_schema_that_is_not_there_is_told_as_a_wrong_setting(empty_postgres_database: Database) -> None:
    store = open_store(f"{empty_postgres_database.url}&search_path=nowhere", 4)
    try:
        with pytest.raises(ConfigurationError, match=r"database: .*schema"):
            await store.migrate()
    finally:
        await store.close()


@pytest.mark.slow
async def test_the_service_runs_in_a_schema_of_its_own(
    connection: asyncpg.Connection, apart: str, start: type[RunningInstance]
) -> None:
    instance = start(apart).wait_until_ready()
    async with httpx.AsyncClient(base_url=instance.address, verify=False) as client:
        opened = await client.put("/sessions", json=wish())
        jobs = (await client.get("/jobs")).json()["jobs"]
        ended = await client.delete(f"/sessions/{opened.json()['sessionId']}")
    assert (opened.status_code, ended.status_code, len(jobs) >= 2) == (201, 200, True)
    assert await own_tables(connection) == [42, 42, 42]


async def _acquired(ensemble: Ensemble) -> KeptLease:
    lease = await ensemble.try_acquire("import")
    assert lease is not None
    return lease
