"""`tenure audit`: no faults on consistent data, and a finding for each kind of fault."""

import asyncio
import json
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenure.cli.audit import _ReceiverLedger
from tenure.clock import to_microseconds
from tenure.domain.usage import Chunk, ChunkDigest, Window
from tenure.receiver.ledger import Delivery, Ledger
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tenure.usage import audit as audit_module
from tenure.usage.audit import Audit
from tenure.usage.checks import Entry
from tenure.usage.formats import render
from tests.cli.conftest import Result, Tenure
from tests.conftest import ENGINES
from tests.support.databases import POOL_SIZE, Database, PostgresClock, PostgresServer, sqlite_store
from tests.support.expected_usage import run_audit
from tests.support.leases import insert_row, read_table
from tests.support.open_requests import some_id
from tests.support.submissions import DELIVERED, attempt_end, begin_one, executor_fence
from tests.support.usage import (
    CONTRACT,
    chunk_all,
    cut_one,
    insert_sessions,
    install,
    minute,
    read_window,
    session_between,
    windows,
)

Plant = Callable[[Database, Path], Awaitable[None]]

PENDING = 4
"""The window whose chunk is in the receiver's ledger, but not marked as delivered, as after a lost response."""
LONG = "22222222-2222-2222-2222-222222222222"
"""A session in three windows."""
SHORT = "11111111-1111-1111-1111-111111111111"
"""A session that lies within one window, and would still do so if its start and end were moved by one second."""
OPEN = "33333333-3333-3333-3333-333333333333"
"""A session that has not ended."""


class Installation(NamedTuple):
    database: Database
    ledger: Path


# Four billed windows, and the ledger of the receiver. On SQLite and PostgreSQL, they are created once, and copied for
# each test.


async def bill(database: Database, ledger_path: Path) -> None:
    """Cuts four windows, and delivers their chunks, newest window first. The delivery of window PENDING is not recorded
    in the database.
    """
    await install(database, minute(0))
    await insert_sessions(
        database,
        [
            session_between(minute(0, 10), minute(2, 20), session_id=LONG),
            session_between(minute(0, 5), minute(99), closed=False, kind=2, session_id=OPEN),
            session_between(minute(1, 15), minute(1, 45), kind=3, session_id=SHORT),
            session_between(minute(3, 15), minute(3, 16), kind=3),
        ],
    )
    for number in (1, 2, 3, PENDING):
        await cut_one(database, minute(number), contract=CONTRACT)
    await chunk_all(database)
    with closing(Ledger(ledger_path)) as ledger:
        for window in reversed(await windows(database)):
            _, (chunk,) = await read_window(database, window.window_id)
            await _deliver(database, ledger, window, chunk)


@pytest.fixture(scope="module")
async def billed_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder that contains the database and the ledger."""
    folder = tmp_path_factory.mktemp("billed")
    shutil.copyfile(sqlite_template, folder / "tenure.db")
    database = Database(f"sqlite:///{folder / 'tenure.db'}", *sqlite_store(folder / "tenure.db"))
    await bill(database, folder / "ledger.db")
    await database.close()
    return folder


@pytest.fixture(scope="module")
async def billed_postgresql(
    postgres: PostgresServer, template: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """Returns the name of the database, and the path of the ledger."""
    name, ledger = await postgres.create_database(template), tmp_path_factory.mktemp("billed") / "ledger.db"
    url = postgres.url(name)
    database = Database(url, open_store(url, POOL_SIZE), PostgresClock(url))
    await bill(database, ledger)
    await database.close()
    return name, ledger


@pytest.fixture
async def sqlite_installation(billed_sqlite: Path, tmp_path: Path) -> AsyncIterator[Installation]:
    for name in ("tenure.db", "ledger.db"):
        shutil.copyfile(billed_sqlite / name, tmp_path / name)
    path = tmp_path / "tenure.db"
    database = Database(f"sqlite:///{path}", *sqlite_store(path))
    await database.clock.set(minute(PENDING))
    yield Installation(database, tmp_path / "ledger.db")
    await database.close()


@pytest.fixture
async def postgresql_installation(
    postgres: PostgresServer, billed_postgresql: tuple[str, Path], tmp_path: Path
) -> AsyncIterator[Installation]:
    """Copies the original database. The clock of the copy is stopped, too, because the clock is stored in a table."""
    original, ledger = billed_postgresql
    name = await postgres.create_database(original)
    shutil.copyfile(ledger, tmp_path / "ledger.db")
    url = postgres.url(name)
    database = Database(url, open_store(url, POOL_SIZE), PostgresClock(url))
    yield Installation(database, tmp_path / "ledger.db")
    await database.close()
    await postgres.drop_database(name)


@pytest.fixture
async def mssql_installation(mssql_database: Database, tmp_path: Path) -> Installation:
    await bill(mssql_database, tmp_path / "ledger.db")
    return Installation(mssql_database, tmp_path / "ledger.db")


@pytest.fixture(params=ENGINES)
def installation(request: pytest.FixtureRequest) -> Installation:
    return request.getfixturevalue(f"{request.param}_installation")  # type: ignore[no-any-return]


async def _deliver(database: Database, ledger: Ledger, window: Window, chunk: Chunk) -> None:
    store, fence, submission_id = database.store, await executor_fence(database.store), str(chunk.submission_id)
    body = render("tenure", window, await store.read_intervals(window, chunk)).body
    begun = await begin_one(store, fence, submission_id)
    await store.store_digests(fence, [ChunkDigest(submission_id, sha256(body).digest())])
    key = f"{window.installation_id}-{window.window_id}-{chunk.chunk}"
    ledger.record([Delivery(key, "/", body, to_microseconds(window.ended_at))])
    if window.window_id != PENDING:
        end = attempt_end(submission_id, begun.number or 0, DELIVERED, has_receipt=window.window_id > 1)
        await store.finish_attempts(fence, [end])


async def audit(tenure: Tenure, installation: Installation, *flags: str) -> Result:
    command = ("audit", "--database", installation.database.url, "--ledger", str(installation.ledger), *flags)
    return await asyncio.to_thread(tenure, *command)


# Consistent data.


async def test_audit_reports_no_faults_on_consistent_data(installation: Installation) -> None:
    """Runs the command in a new process."""
    audited = await run_audit(installation.database, installation.ledger)
    assert (audited.returncode, audited.stderr) == (0, ""), audited
    first, windows, *_, receipts, ledger, last = audited.stdout.splitlines()
    assert receipts == "receipts   delivered chunks with a receipt: 2, without: 1"
    assert re.fullmatch(r"installation [0-9a-f-]{36}", first)
    assert re.fullmatch(r"windows: 4, chunks: 4, from \S+Z to \S+Z", windows)
    assert re.fullmatch(r"ledger +\d+\.\d{6}  keys: 4", ledger)
    assert last == "no faults"


async def test_audit_runs_without_ledger(tenure: Tenure, installation: Installation) -> None:
    audited = await asyncio.to_thread(tenure, "audit", "--database", installation.database.url, "--json")
    report = json.loads(audited.out, parse_float=str)
    assert (audited.code, report["windows"], report["chunks"], report["findings"]) == (0, 4, 4, []), audited
    assert (report["chunksWithReceipt"], report["chunksWithoutReceipt"]) == (2, 1)
    assert (report["lived"], report["delivered"], report["waiting"]) == ("0.000267", "0.00022", "0.000047")


async def test_audit_with_missing_database_or_ledger_fails_and_creates_no_file(
    tenure: Tenure, sqlite_installation: Installation, tmp_path: Path
) -> None:
    missing = await asyncio.to_thread(tenure, "audit", "--database", f"sqlite:///{tmp_path}/no.db")
    error = f"database: file {tmp_path}/no.db does not exist"
    assert missing == Result(2, "", f"tenure: {error}\n")
    assert not (tmp_path / "no.db").exists()
    elsewhere = sqlite_installation._replace(ledger=tmp_path / "elsewhere.db")
    audited = await audit(tenure, elsewhere)
    assert (audited.code, audited.out, "elsewhere.db" in audited.err) == (2, "", True), audited
    assert not elsewhere.ledger.exists()


# Changes during the audit.


class InterruptedStore:
    """A store that runs an action once: just before or just after the first call of one method."""

    def __init__(self, store: Store, method: str, when: str, action: Callable[[], Awaitable[None]]) -> None:
        self._store, self._method, self._when, self._action = store, method, when, action
        self.interrupted = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name != self._method or self.interrupted:
            return method

        async def call(*arguments: Any) -> Any:
            self.interrupted = True
            if self._when == "before":
                await self._action()
            response = await method(*arguments)
            if self._when == "after":
                await self._action()
            return response

        return call


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["list_windows", "list_deliveries", "get_window", "list_intervals", "sum_usage"])
async def test_delivery_during_audit_is_not_a_fault(sqlite_installation: Installation, method: str, when: str) -> None:
    database, path = sqlite_installation
    window = await cut_one(database, minute(5), contract=CONTRACT)
    (chunk,) = await chunk_all(database)

    async def deliver() -> None:
        with closing(Ledger(path)) as ledger:
            await _deliver(database, ledger, window, chunk)

    store = InterruptedStore(database.store, method, when, deliver)
    report = await Audit(store, _ReceiverLedger(path)).run()  # type: ignore[arg-type]
    assert (store.interrupted, report.windows, report.findings) == (True, 5, [])


async def test_ledger_entries_added_during_audit_are_not_a_fault(sqlite_installation: Installation) -> None:
    class Growing(_ReceiverLedger):
        def entries(self) -> Iterator[Entry]:
            add("before")
            yield from super().entries()
            add("after")

    def add(key: str) -> None:
        with closing(Ledger(sqlite_installation.ledger)) as ledger:
            ledger.record([Delivery(key, "/", b'[{"usage":7}]', 1)])

    report = await Audit(sqlite_installation.database.store, Growing(sqlite_installation.ledger)).run()
    assert report.findings == []


# Faults.


class Fault(NamedTuple):
    name: str
    plant: Plant
    checks: set[str]
    """The checks of the audit that find the fault."""
    finding: str
    """A part of the text of one finding."""


def sql(statement: str) -> Plant:
    """Returns a function that runs the statement, with `SECOND` replaced by one second in the SQL of the engine."""

    async def plant(database: Database, _ledger: Path) -> None:
        second = "1000000" if database.engine == "sqlite" else "interval '1 second'"
        await database.execute(statement.replace("SECOND", second))

    return plant


def ledger_sql(*statements: str) -> Plant:
    async def plant(_database: Database, ledger: Path) -> None:
        with closing(sqlite3.connect(ledger)) as connection:
            for statement in statements:
                assert connection.execute(statement).rowcount == 1, statement
            connection.commit()

    return plant


async def double_an_attempt(database: Database, _ledger: Path) -> None:
    _, (chunk,) = await read_window(database, 2)
    (row,) = [
        row for row in await read_table(database, "submission_attempts") if row["submission_id"] == chunk.submission_id
    ]
    await insert_row(database, "submission_attempts", **{**row, "number": row["number"] + 1})


async def overlap(database: Database, _ledger: Path) -> None:
    """Inserts two overlapping sessions after the last cut, so that the billed usage does not change."""
    key = {"capacity_id": some_id(), "user_object_id": some_id()}
    one = session_between(minute(PENDING, 1), minute(PENDING, 10), **key)
    await insert_sessions(database, [one, session_between(minute(PENDING, 9), minute(PENDING, 20), **key)])


OF_WINDOW_2 = "SELECT submission_id FROM usage_chunks WHERE window_id = 2"
FAULTS = [
    Fault(
        "a chunk is missing",
        sql("DELETE FROM usage_chunks WHERE window_id = 2"),
        {"chunks", "sums", "ledger"},
        "chunks: chunk 1 of window 2 is missing",
    ),
    Fault(
        "two attempts delivered a chunk",
        double_an_attempt,
        {"deliveries"},
        "deliveries: chunk 1 of window 2 was delivered by 2 attempts",
    ),
    Fault(
        "delivered by no attempt",
        sql(f"UPDATE submission_attempts SET outcome = 'failed' WHERE submission_id = ({OF_WINDOW_2})"),
        {"deliveries"},
        "deliveries: chunk 1 of window 2 is delivered, but none of its attempts is",
    ),
    Fault(
        "sent, but the window has no contract",
        sql("UPDATE usage_windows SET contract = NULL WHERE window_id = 2"),
        {"deliveries", "ledger"},
        "deliveries: chunk 1 of window 2 was sent, but its window has no contract",
    ),
    Fault(
        "the total counts a delivery twice",
        ledger_sql("UPDATE totals SET usage = usage + (SELECT usage FROM deliveries WHERE key LIKE '%-2-1')"),
        {"ledger"},
        "ledger: the total is",
    ),
    Fault(
        "counted again under another key",
        ledger_sql(
            "INSERT INTO deliveries SELECT 99, replace(key, '-2-1', '-2-2'), path, digest, size, received_at, 1, "
            "records, usage FROM deliveries WHERE key LIKE '%-2-1'"
        ),
        {"ledger"},
        "ledger: no chunk has the delivery key",
    ),
    Fault(
        "counted for a window that was never cut",
        ledger_sql(
            "INSERT INTO deliveries SELECT 99, replace(key, '-2-1', '-999-1'), path, digest, size, received_at, 1, "
            "records, '0' FROM deliveries WHERE key LIKE '%-2-1'"
        ),
        {"ledger"},
        "ledger: windows 999 to 999 of installation",
    ),
    Fault(
        "all chunks delivered, but not the window",
        sql("UPDATE usage_windows SET delivered_at = NULL WHERE window_id = 2"),
        {"deliveries"},
        "deliveries: window 2 is not delivered, but all of its chunks are",
    ),
    Fault(
        "delivered, but not in the ledger",
        ledger_sql("DELETE FROM deliveries WHERE key LIKE '%-3-1'"),
        {"ledger"},
        "ledger: chunk 1 of window 3 is delivered, but is not in the ledger",
    ),
    Fault(
        "another body in the ledger",
        ledger_sql("UPDATE deliveries SET digest = 'ab' WHERE key LIKE '%-1-1'"),
        {"ledger"},
        "ledger: chunk 1 of window 1 has a different digest in the ledger",
    ),
    Fault(
        "the start of a session was changed",
        sql(f"UPDATE sessions SET started_at = started_at - 9 * SECOND WHERE session_id = '{LONG}'"),
        {"chunks", "sums"},
        "chunks: chunk 1 of window 1 does not match its sessions",
    ),
    Fault(
        "a session was moved, with the same duration",
        sql(
            "UPDATE sessions SET started_at = started_at + SECOND, closed_at = closed_at + SECOND "
            f"WHERE session_id = '{SHORT}'"
        ),
        {"chunks"},
        "chunks: chunk 1 of window 2 does not render to the bytes that were sent",
    ),
    Fault(
        "a session was deleted",
        sql(f"DELETE FROM sessions WHERE session_id = '{OPEN}'"),
        {"chunks", "sums"},
        "chunks: chunk 1 of window 4 does not match its sessions",
    ),
    Fault("sessions overlap", overlap, {"sessions"}, " overlap"),
    Fault(
        "a gap between windows",
        sql("UPDATE usage_windows SET ended_at = ended_at - SECOND WHERE window_id = 2"),
        {"windows", "chunks"},
        "windows: window 2 ends at 2041-03-01T12:01:59.000000Z, but the next one begins at 2041-03-01T12:02:00.000000Z",
    ),
    Fault(
        "an era begins after its first window",
        sql("UPDATE usage_eras SET started_at = started_at + 70 * SECOND"),
        {"windows", "sums"},
        "windows: window 2 begins before its era",
    ),
    Fault(
        "a window is missing",
        sql("DELETE FROM usage_windows WHERE window_id = 2"),
        {"windows", "sums"},
        "windows: window 2 is missing",
    ),
    Fault(
        "a pending submission was marked as failed",
        sql("UPDATE submissions SET state = 'failed' WHERE state = 'pending'"),
        {"deliveries"},
        f"deliveries: chunk 1 of window {PENDING} is pending, but its submission is failed",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_audit_reports_each_fault(tenure: Tenure, installation: Installation, fault: Fault) -> None:
    await fault.plant(*installation)
    audited = await audit(tenure, installation, "--json")
    findings = json.loads(audited.out)["findings"]
    lines = "\n".join(f"{finding['check']}: {finding['detail']}" for finding in findings)
    assert (audited.code, {finding["check"] for finding in findings}) == (1, fault.checks), lines
    assert fault.finding in lines


async def test_audit_reads_all_pages_of_windows(
    sqlite_installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, path = sqlite_installation
    for findings in (set(), {"chunks", "sums", "ledger"}):
        for page in (1, 2, 3):
            monkeypatch.setattr(audit_module, "PAGE", page)
            report = await Audit(database.store, _ReceiverLedger(path)).run()
            assert (report.windows, report.chunks) == (4, 4), page
            assert {finding.check for finding in report.findings} == findings, page
        await database.execute("UPDATE usage_chunks SET usage_millionths = usage_millionths + 1 WHERE window_id = 1")


async def test_audit_omits_render_finding_when_chunk_sums_differ(sqlite_installation: Installation) -> None:
    """A chunk whose sums differ from those of its sessions also renders to other bytes. A second finding would add
    nothing.
    """
    database, path = sqlite_installation
    await database.execute(f"DELETE FROM sessions WHERE session_id = '{OPEN}'")
    report = await Audit(database.store, _ReceiverLedger(path)).run()
    assert "does not render" not in str(report.findings)


async def test_audit_does_not_modify_invalid_ledger_file(tenure: Tenure, sqlite_installation: Installation) -> None:
    other = sqlite_installation.ledger.with_name("other.txt")
    other.write_bytes(b"x")
    audited = await audit(tenure, sqlite_installation._replace(ledger=other))
    error = f"ledger: cannot use {other}: the file is not a ledger"
    assert audited == Result(2, "", f"tenure: {error}\n")
    assert (other.read_bytes(), sorted(path.name for path in other.parent.glob("other*"))) == (b"x", ["other.txt"])


def test_non_sqlite_file_is_rejected(tenure: Tenure, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("these are my notes\n" * 100)
    error = f"database: {file} is not an SQLite database"
    for command in ("audit", "migrate"):
        assert tenure(command, "--database", f"sqlite:///{file}") == Result(2, "", f"tenure: {error}\n"), command


async def test_audit_prints_faults_as_text(tenure: Tenure, installation: Installation) -> None:
    await overlap(*installation)
    audited = await audit(tenure, installation)
    *_, finding, count = audited.out.splitlines()
    assert (audited.code, finding.partition(":")[0], count) == (1, "sessions", "1 fault"), audited
