"""The file of an SQLite database: moved and read-only files, names, modes, locks, and the limit of the page caches."""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from tenure.clock import wall_microseconds
from tenure.errors import DatabaseUnavailable
from tenure.ids import new_id
from tenure.store.engines.sqlite.connections import CACHES_KIB_MAX, READERS_MAX, DatabaseFile
from tenure.store.engines.sqlite.store import SqliteStore
from tests.support.instances import RunningInstance
from tests.support.load import Client, Exchange, clients, retry_until, some_keys, steady_load
from tests.support.processes import eventually

Start = Callable[..., RunningInstance]

NOBODY = 65_534
NOTICED_WITHIN_SECONDS = 1
RECOVERED_WITHIN_SECONDS = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenure.db"


@pytest.fixture
def stores(path: Path) -> Iterator[Callable[[], SqliteStore]]:
    """Creates stores, each like the store of another instance."""
    made: list[SqliteStore] = []

    def make() -> SqliteStore:
        made.append(SqliteStore(make_url(f"sqlite:///{path}"), readers=READERS_MAX))
        return made[-1]

    yield make
    for store in made:
        asyncio.run(store.close())


MOVES: dict[str, Callable[[Path], object]] = {
    "delete": lambda path: path.unlink(),
    "rename": lambda path: path.rename(path.with_name("moved.db")),
    "replace": lambda path: path.with_name("other.db").rename(path),
}


def put_back(path: Path) -> None:
    assert not path.exists(), "the instance has created another file"
    path.with_name("moved.db").rename(path)


@pytest.mark.slow
@pytest.mark.parametrize("move", MOVES)
async def test_moved_file_is_noticed_within_a_second_and_no_write_to_it_is_acknowledged(
    move: str, path: Path, start: Start, seed: int
) -> None:
    instance = start(f"sqlite:///{path}").wait_until_ready()
    shutil.copyfile(path, path.with_name("other.db"))
    async with clients([instance.address], 1) as (client,):
        async with steady_load([instance.address], 4, keys=some_keys(5000, seed), seed=seed) as exchanges:
            await eventually(lambda: len(exchanges) > 100, 10, "the load has begun")
            MOVES[move](path)
            moved_at = wall_microseconds()
            await asyncio.sleep(NOTICED_WITHIN_SECONDS)
            for address in ("/readyz", "/sessions", "/leases"):
                check_refused([await client.get(address)])
        after = [one for one in exchanges if one.sent_at > moved_at and one.received_at]
        assert after
        check_refused(after)
        assert "was deleted, renamed or replaced" in instance.log()
        if move == "rename":
            put_back(path)
            await check_recovery(client, exchanges)
    if move == "replace":
        check_restart(instance, path, start)


def check_restart(instance: RunningInstance, path: Path, start: Start) -> None:
    """Removes the WAL before the restart, as docs/operating.md says. Otherwise SQLite would apply the WAL of the old
    file to the new file.
    """
    assert instance.stop() == 0
    for left in path.parent.glob("tenure.db-*"):
        left.unlink()
    start(f"sqlite:///{path}").wait_until_ready()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM sessions").fetchall() == [(0,)]


def check_refused(exchanges: Sequence[Exchange]) -> None:
    for one in exchanges:
        assert (one.status, one.headers.get(b"retry-after")) == (503, b"1"), one
        assert one.answer["detail"] == "the file of the database was deleted, renamed or replaced"


async def check_recovery(client: Client, exchanges: Sequence[Exchange]) -> None:
    """Asserts that every acknowledged session is there when the same file is back."""
    await retry_until(lambda: client.get("/readyz"), lambda one: one.status == 200, RECOVERED_WITHIN_SECONDS)
    for session_id in {one.answer["sessionId"] for one in exchanges if one.status == 201}:
        assert (await client.get(f"/sessions/{session_id}")).status == 200


def test_file_is_written_again_once_it_is_no_longer_read_only() -> None:
    """A connection that SQLite has opened read only stays read only, even if the file becomes writable. So the store
    must replace the connection.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tenure.db"
        asyncio.run(migrate_and_close(path))
        with unprivileged(path.parent, path), closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE installation SET last_cut_at = last_cut_at")
            connection.commit()  # leaves a WAL for as long as this connection is open
            asyncio.run(check_read_only_file(path))


async def migrate_and_close(path: Path) -> None:
    store = SqliteStore(make_url(f"sqlite:///{path}"), readers=1)
    await store.migrate()
    await store.close()


async def check_read_only_file(path: Path) -> None:
    change_modes(path, 0o444)
    store = SqliteStore(make_url(f"sqlite:///{path}"), readers=1)
    try:
        assert await store.schema_revision() is not None
        with pytest.raises(DatabaseUnavailable, match="read only"):
            await store.acquire_lease("lease", "holder", new_id(), 1_000_000)
        assert store.refusing_writes == "the database is read only"
        change_modes(path, 0o644)
        assert (await store.acquire_lease("lease", "holder", new_id(), 1_000_000)).taken
    finally:
        await store.close()


def change_modes(path: Path, mode: int) -> None:
    for file in path.parent.glob("tenure.db*"):
        file.chmod(mode)


@contextmanager
def unprivileged(*files: Path) -> Iterator[None]:
    """Runs the block as an unprivileged owner of the files, because root may write read-only files."""
    is_root = os.geteuid() == 0
    if is_root:
        for file in files:
            os.chown(file, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_new_file_and_its_wal_are_readable_for_their_owner_only(path: Path, stores: Callable[[], SqliteStore]) -> None:
    former = os.umask(0o022)
    try:
        asyncio.run(stores().migrate())
        files = sorted(path.parent.glob("tenure.db*"))
        assert [file.name for file in files] == ["tenure.db", "tenure.db-shm", "tenure.db-wal"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(former)


@pytest.mark.parametrize("name", ["with space.db", "a#b?c%3F.db", "ü.db", "link.db"])
def test_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    if name == "link.db":
        (tmp_path / name).symlink_to(tmp_path / "target.db")
    store = SqliteStore(URL.create("sqlite", database=str(tmp_path / name)), readers=1)
    asyncio.run(store.migrate())
    asyncio.run(store.close())
    assert (tmp_path / name).is_file()


COUNT = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM written').fetchone())"


def test_concurrent_opens_keep_the_locks_on_a_new_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process loses all locks on a file when it closes any descriptor of the file. Without the locks, another process
    that closes the file would remove the WAL, and later writes would be lost.
    """
    creating, opened, close = threading.Event(), threading.Event(), os.close

    def close_late(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve() == path:
            creating.set()
            opened.wait(0.5)
        close(descriptor)

    def open_and_read() -> sqlite3.Connection:
        connection = file.open()
        connection.execute("SELECT * FROM sqlite_master").fetchall()
        opened.set()
        return connection

    def count_elsewhere() -> str:
        counted = subprocess.run([sys.executable, "-c", COUNT, str(path)], check=True, capture_output=True, text=True)
        return counted.stdout

    monkeypatch.setattr(os, "close", close_late)
    file = DatabaseFile(str(path))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(file.open)
        assert creating.wait(10)
        second = threads.submit(open_and_read)
        connections = [first.result(), second.result()]
    with closing(connections[0]), closing(connections[1]):
        connections[0].execute("CREATE TABLE written (number)")
        assert count_elsewhere() == "0\n"
        connections[0].execute("INSERT INTO written VALUES (1)")
        assert count_elsewhere() == "1\n"


def test_existing_file_keeps_its_mode(path: Path, stores: Callable[[], SqliteStore]) -> None:
    path.touch()
    path.chmod(0o640)
    asyncio.run(stores().migrate())
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("tenure.db*")} == {0o640}


def test_page_caches_of_all_connections_are_bounded(stores: Callable[[], SqliteStore]) -> None:
    store = stores()
    sizes = [
        connections._cache_kib * connections.engine.pool.size()  # type: ignore[attr-defined]
        for connections in (store._writer, store._lease_writer, store._readers)
    ]
    assert sum(sizes) == CACHES_KIB_MAX <= 25_000
