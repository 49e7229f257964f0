"""PgBouncer between Tenure and PostgreSQL: Tenure works in session mode, and refuses all other modes."""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tenure.errors import ConfigurationError
from tenure.store.engines import open_store
from tests.deployment.proxies import free_port, listens
from tests.support.databases import POOL_SIZE, Database, PostgresServer
from tests.support.instances import RunningInstance
from tests.support.load import clients, some_keys

pytestmark = pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="pgbouncer is not installed")

START_SECONDS = 10
CLIENTS = 4
SETTINGS = """[databases]
* = host={sockets} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 100
logfile = {folder}/pgbouncer.log
"""

Start = Callable[..., RunningInstance]


@contextmanager
def pgbouncer(server: PostgresServer, mode: str, size: int = 20) -> Iterator[int]:
    """Runs PgBouncer and yields its port."""
    # PgBouncer does not run as root, and another user cannot read `tmp_path`.
    with tempfile.TemporaryDirectory() as folder:
        yield from _pgbouncer(server, Path(folder), mode, size)


def _pgbouncer(server: PostgresServer, folder: Path, mode: str, size: int) -> Iterator[int]:
    port = free_port()
    folder.chmod(0o777)
    path = folder / "pgbouncer.ini"
    path.write_text(SETTINGS.format(sockets=server.socket_folder, port=port, mode=mode, size=size, folder=folder))
    user = ["-u", server.system_user] if server.system_user else []
    process = subprocess.Popen(["pgbouncer", "-q", *user, str(path)])
    try:
        deadline = time.monotonic() + START_SECONDS
        while not listens(port):
            assert process.poll() is None, (folder / "pgbouncer.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait(10)


def through(port: int, database: Database) -> str:
    return f"postgresql://postgres@127.0.0.1:{port}/{urlsplit(database.url).path.strip('/')}"


async def test_pooler_in_transaction_or_statement_mode_is_refused(
    postgres: PostgresServer, postgres_database: Database
) -> None:
    """Tries a pooler in statement mode, and three in transaction mode: with free backends, with a single backend, and
    with backends that other clients use at the same time.
    """
    for mode, size, others in (
        ("transaction", 20, 0),
        ("transaction", 1, 0),
        ("statement", 5, 0),
        ("transaction", 5, 2),
    ):
        with pgbouncer(postgres, mode, size) as port:
            url = through(port, postgres_database)
            busy = [asyncio.create_task(use(url)) for _ in range(others)]
            store = open_store(url, POOL_SIZE)
            with pytest.raises(ConfigurationError, match=r"session mode \(PgBouncer: pool_mode = session\)"):
                await store.migrate()
            await store.close()
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)


async def test_instance_behind_pooler_in_transaction_mode_logs_reason_and_exits(
    postgres: PostgresServer, postgres_database: Database, start: Start
) -> None:
    with pgbouncer(postgres, "transaction") as port:
        instance = start(through(port, postgres_database))
        assert await asyncio.to_thread(instance.process.wait, 20) == ConfigurationError.exit_code
        assert "docs/operating.md#connection-poolers" in instance.log().splitlines()[-1]


async def test_doctor_reports_only_the_pooler_in_transaction_mode(
    postgres: PostgresServer, postgres_database: Database, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tenure", "doctor", "--json", "--database"]
    for mode, expected in {"transaction": ["pooler-transaction-mode"], "session": ["no-usage-gateway"]}.items():
        with pgbouncer(postgres, mode) as port:
            url = through(port, postgres_database)
            done = await asyncio.to_thread(
                subprocess.run, [*command, url], cwd=tmp_path, capture_output=True, timeout=60, check=False
            )
        found = [finding["code"] for finding in json.loads(done.stdout)["findings"]]
        assert [code for code in found if code != "not-running"] == expected


async def test_pooler_in_session_mode_works(
    postgres: PostgresServer, postgres_database: Database, start: Start
) -> None:
    with pgbouncer(postgres, "session") as port:
        instance = start(through(port, postgres_database)).wait_until_ready()
        async with clients([instance.address], CLIENTS) as each:
            for client, key in zip(each, some_keys(CLIENTS, 0), strict=True):
                opened = await client.open(key, 1)
                assert opened.status == 201
                beat = await client.send("POST", f"/sessions/{opened.answer['sessionId']}/heartbeat")
                assert beat.status == 200
        await asyncio.to_thread(instance.stop)


async def use(url: str) -> None:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        while True:
            await connection.execute("BEGIN; SELECT 1; COMMIT")
            await asyncio.sleep(0)
    finally:
        connection.terminate()
