"""The database accepts no writes (read only, disk full, or a synchronous standby that does not confirm), or leaves
calls unanswered.

Instances respond with 503 and the reason, write few log lines, stay within their pool size, and recover automatically.
"""

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from tenure.clock import monotonic
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import Heartbeat
from tenure.errors import DatabaseUnavailable
from tenure.store.contract import Store
from tenure.store.contract.sessions import OpenLane
from tenure.store.engines import open_store
from tenure.store.engines.postgres.connections import REPLACE_SECONDS
from tests.support.databases import Database, PostgresServer
from tests.support.instances import RunningInstance
from tests.support.load import Exchange, clients, retry_until, some_keys, steady_load
from tests.support.open_requests import LIMITS, request
from tests.support.processes import eventually, frozen
from tests.support.proxies import proxy_to

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

TROUBLE_SECONDS = 3
STALLED_SECONDS = 8
BUSY = {
    "TENURE_LEASES__DURATION_SECONDS": "2",
    "TENURE_LEASES__RENEW_SECONDS": "1",
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
    "TENURE_JOBS__EMIT_USAGE__INTERVAL_SECONDS": "1",
}
"""Short leases and intervals, so that background work, too, is due during the test and fails."""
LINES_PER_SECOND_MAX = 12
"""The limit on all log lines together, of all events and causes."""
RECOVERED_WITHIN_SECONDS = 10
SMALL_POOL = 4
"""A pool of this size has two connections for hot calls: writes and the most frequent reads."""
UNKNOWN = Heartbeat("00000000-0000-4000-8000-000000000000", True, EVERYTHING)
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tenure' AND backend_type = 'client backend'"


async def test_read_only_server_causes_503_with_reason_and_few_log_lines(
    own_postgres: PostgresServer, own_database: Database, start: Start, seed: int
) -> None:
    instance = start(own_database.url, **BUSY).wait_until_ready()
    async with steady_load([instance.address], 8, keys=some_keys(50, seed), seed=seed) as exchanges:
        await eventually(lambda: len(exchanges) > 50, 10, "the load has begun")
        async with settings_of(own_postgres, default_transaction_read_only="on"):
            answered = await check_refusals(instance, exchanges, "read only")
            assert {one.status for one in answered} <= {200, 503}
        await check_recovery(instance, exchanges)


async def test_read_replaces_connections_to_server_that_has_become_read_only(
    own_postgres: PostgresServer, own_database: Database
) -> None:
    """A read replaces a connection to a read-only server if the connection is at least REPLACE_SECONDS old, because the
    host name may lead to another server by now. The read keeps a younger connection.
    """

    async def backends() -> set[int]:
        await own_database.store.schema_revision()
        return {row["pid"] for row in await own_database.rows(BACKENDS)}

    before = await backends()
    async with settings_of(own_postgres, default_transaction_read_only="on"):
        await backends()  # the server reports the change in its response
        await asyncio.sleep(REPLACE_SECONDS)
        after = await backends()
        assert before.isdisjoint(after)
        assert await backends() == after


async def test_full_disk_causes_503_with_reason_and_few_log_lines(
    own_postgres: PostgresServer, start: Start, seed: int
) -> None:
    with small_disk(own_postgres) as folder:
        async with tablespace(own_postgres, folder) as database:
            instance = start(own_postgres.url(database), **BUSY).wait_until_ready()
            async with steady_load([instance.address], 8, keys=some_keys(50_000, seed), seed=seed) as exchanges:
                await eventually(lambda: len(exchanges) > 50, 10, "the load has begun")
                async with full_disk(own_postgres.url(database)):
                    await eventually(lambda: any(one.status == 503 for one in exchanges), 20, "a refusal")
                    await check_refusals(instance, exchanges, "disk")
                await check_recovery(instance, exchanges)
            instance.kill()


async def check_refusals(instance: RunningInstance, exchanges: Sequence[Exchange], reason: str) -> list[Exchange]:
    """Asserts that reads succeed, that `/readyz` and refused writes get 503, and that the instance writes few log
    lines. The detail of a 503 contains `reason`, or says that the database did not answer. Returns the exchanges of the
    load that got a response.
    """
    await asyncio.sleep(1)  # until the requests in progress have ended
    first, lines = len(exchanges), len(instance.log().splitlines())
    readiness = []
    async with clients([instance.address], 1) as (client,):
        for _ in range(TROUBLE_SECONDS):
            await asyncio.sleep(1)
            readiness.append(await client.get("/readyz"))
        listed = await client.get("/sessions")
    answered = [one for one in exchanges[first:] if one.received_at]
    refused = [one for one in answered if one.status == 503]
    assert refused
    # Some requests may succeed: an existing session is returned without a write, and a page on a full disk may have
    # room for another row.
    assert {one.status for one in answered} <= {200, 201, 503}
    for one in [*refused, *readiness]:
        assert (one.status, one.headers.get(b"retry-after")) == (503, b"1"), one
        assert reason in one.answer["detail"] or "did not answer" in one.answer["detail"], one.answer
    assert any(reason in one.answer["detail"] for one in readiness)
    assert listed.status == 200
    added = instance.log().splitlines()[lines:]
    events = Counter(json.loads(line)["event"] for line in added)
    assert len(added) <= LINES_PER_SECOND_MAX * (TROUBLE_SECONDS + 1), events
    assert "http.failed" not in events
    return answered


async def check_recovery(instance: RunningInstance, exchanges: Sequence[Exchange]) -> None:
    first = len(exchanges)

    def opened() -> bool:
        return any(one.status == 201 for one in exchanges[first:])

    await eventually(opened, RECOVERED_WITHIN_SECONDS, f"a session is opened\n{instance.log()[-3000:]}")
    async with clients([instance.address], 1) as (client,):
        await retry_until(lambda: client.get("/readyz"), lambda one: one.status == 200, RECOVERED_WITHIN_SECONDS)


async def test_pool_size_bounds_backends_while_synchronous_standby_does_not_confirm(
    own_postgres: PostgresServer, own_database: Database, start: Start, seed: int
) -> None:
    """A commit keeps waiting on the server after its client has timed out. So each retry on a new connection would add
    a backend.
    """
    instance = start(own_database.url, TENURE_POOL_SIZE="10").wait_until_ready()
    counts: list[int] = []
    async with steady_load([instance.address], 32, keys=some_keys(500, seed), seed=seed) as exchanges:
        await eventually(lambda: len(exchanges) > 200, 10, "the load has begun")
        watcher = await asyncpg.connect(own_database.url)
        counting = asyncio.create_task(count_backends(watcher, counts))
        async with settings_of(own_postgres, synchronous_standby_names="missing"):
            first = len(exchanges)
            await asyncio.sleep(STALLED_SECONDS)
            # This read does not use the connection of the watcher, which may be busy counting.
            visible = await own_database.rows("SELECT session_id::text FROM sessions")
        refused = [one for one in exchanges[first:] if one.status == 503]
        await check_recovery(instance, exchanges)
        counting.cancel()
        await watcher.close()
    assert refused
    assert max(one.seconds for one in exchanges) < 2
    assert max(counts) <= 10, counts
    # A session that the standby did not confirm may be lost, so reads must not see it: an open would return it as
    # `existing`. The 32 clients may each have had one request in progress when the setting changed.
    opened = {one.answer["sessionId"] for one in exchanges[:first] if one.status in (200, 201)}
    assert len({row["session_id"] for row in visible} - opened) <= 32


async def test_connection_is_replaced_after_its_answer_was_lost(
    own_database: Database,
) -> None:
    await own_database.store.migrate()
    with proxy_to(own_database.url) as proxy:
        store = open_store(proxy.url, SMALL_POOL)
        try:
            await store.heartbeat([UNKNOWN])
            proxy.swallow()
            assert not await is_answered(store)
            proxy.resume()
            await call_until_answered(store)
            backends = await own_database.rows(f"{BACKENDS} AND datname = current_database()")
            assert len(backends) <= SMALL_POOL
        finally:
            await store.close()


async def test_call_fails_at_once_while_timed_out_calls_occupy_all_connections(
    own_postgres: PostgresServer, own_database: Database
) -> None:
    """Calls succeed again once the server has answered the earlier ones."""
    await own_database.store.migrate()
    store = open_store(own_database.url, SMALL_POOL)
    try:
        await store.heartbeat([UNKNOWN])
        with frozen(own_postgres.pid):
            calls = (store.heartbeat([UNKNOWN]), store.open_sessions(OpenLane.CREATE, [request()], LIMITS))
            given_up = await asyncio.gather(*calls, return_exceptions=True)
            assert [isinstance(each, DatabaseUnavailable) for each in given_up] == [True] * 2
            began = monotonic()
            with pytest.raises(DatabaseUnavailable, match="has not answered earlier requests"):
                await store.heartbeat([UNKNOWN])
            assert monotonic() - began < 1.5  # less than the 1.7 s that a call may wait
            assert store.refusing_writes == "the database has not answered earlier requests yet"
        await call_until_answered(store)
    finally:
        await store.close()


async def call_until_answered(store: Store) -> None:
    async with asyncio.timeout(RECOVERED_WITHIN_SECONDS):
        while not await is_answered(store):  # noqa: ASYNC110 - the store offers no event
            await asyncio.sleep(0.1)


async def is_answered(store: Store) -> bool:
    try:
        await store.heartbeat([UNKNOWN])
    except DatabaseUnavailable:
        return False
    return True


async def count_backends(connection: asyncpg.Connection, counts: list[int]) -> None:
    while True:
        counts.append(len(await connection.fetch(BACKENDS)))
        await asyncio.sleep(0.1)


@asynccontextmanager
async def settings_of(server: PostgresServer, **settings: str) -> AsyncIterator[None]:
    """Changes settings of the server, and resets them at the end."""
    for name, value in settings.items():
        await server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    await server.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        connection = await asyncpg.connect(server.url(), server_settings={"default_transaction_read_only": "off"})
        for name in settings:
            await connection.execute(f"ALTER SYSTEM RESET {name}")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()


@contextmanager
def small_disk(server: PostgresServer) -> Iterator[Path]:
    folder = server.folder.parent / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size=48m,mode=700,uid={owner(server)}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        with suppress(OSError):
            folder.rmdir()


def owner(server: PostgresServer) -> int:
    return server.folder.stat().st_uid


@asynccontextmanager
async def tablespace(server: PostgresServer, folder: Path) -> AsyncIterator[str]:
    """Creates a database on the small disk. The server's own files and its log are on another disk."""
    await server.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
    await server.execute("CREATE DATABASE on_small_disk TABLESPACE small")
    try:
        yield "on_small_disk"
    finally:
        await server.execute("DROP DATABASE on_small_disk WITH (FORCE)")
        await server.execute("DROP TABLESPACE small")


@asynccontextmanager
async def full_disk(url: str) -> AsyncIterator[None]:
    """Fills the disk of the database. Uses one connection, because a new one may need space on the disk, too."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE filler (bytes text)")
        await connection.execute("ALTER TABLE filler ALTER bytes SET STORAGE PLAIN")  # not compressed
        for rows in (500, 1):
            with suppress(asyncpg.DiskFullError):
                for _ in range(1000):
                    await connection.execute(
                        f"INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, {rows})"
                    )
        yield
        await connection.execute("DROP TABLE filler")
    finally:
        await connection.close()
