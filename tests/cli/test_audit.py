"""`tenure audit`: silent where all is well, and by name what is not."""

import asyncio
import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from tenure.cli.audit import _ReceiverLedger
from tenure.cli.main import app
from tenure.clock import to_microseconds
from tenure.model.usage import Chunk, Seal, Window
from tenure.receiver.ledger import Delivery, Ledger
from tenure.store import Store
from tenure.usage import audit as audit_module
from tenure.usage.audit import Audit
from tenure.usage.checks import Entry
from tenure.usage.formats import render
from tests.support.databases import Database
from tests.support.leases import put_row, table
from tests.support.submissions import DELIVERED, begin_one, end, executor
from tests.support.usage import CONTRACT, chunk_all, cut_one, install, lived, minute, put_sessions, read_window, windows
from tests.support.usage_truth import audit
from tests.support.wishes import some_id

Plant = Callable[[Database, Path], Awaitable[None]]

WAITING = 4
"""The window whose chunk was sent and counted, and of which no answer came."""
MOVED = "11111111-1111-1111-1111-111111111111"
"""A session that lived within one window, and may be moved in it by a second without being in anybody's way."""
ALTERED = "22222222-2222-2222-2222-222222222222"
LEFT_OUT = "33333333-3333-3333-3333-333333333333"


@pytest.fixture
async def books(database: Database, tmp_path: Path) -> Path:
    return await keep_books(database, tmp_path)


@pytest.fixture
async def sqlite_books(sqlite_database: Database, tmp_path: Path) -> Path:
    return await keep_books(sqlite_database, tmp_path)


async def keep_books(database: Database, folder: Path) -> Path:
    """The ledger of a receiver that got four windows, the newest first, and is right."""
    await install(database, minute(0))
    await put_sessions(
        database,
        [
            lived(minute(0, 10), minute(2, 20), session_id=ALTERED),
            lived(minute(0, 5), minute(99), closed=False, kind=2, session_id=LEFT_OUT),
            lived(minute(1, 15), minute(1, 45), kind=3, session_id=MOVED),
            lived(minute(3, 15), minute(3, 16), kind=3),
        ],
    )
    for number in (1, 2, 3, WAITING):
        await cut_one(database, minute(number), contract=CONTRACT)
    await chunk_all(database)
    path = folder / "ledger.db"
    with closing(Ledger(path)) as ledger:
        for window in reversed(await windows(database)):
            _, (chunk,) = await read_window(database, window.window_id)
            await _deliver(database, ledger, window, chunk)
    return path


async def _deliver(database: Database, ledger: Ledger, window: Window, chunk: Chunk) -> None:
    store, fence, submission_id = database.store, await executor(database.store), str(chunk.submission_id)
    body = render("tenure", window, await store.read_lives(window, chunk)).body
    begun = await begin_one(store, fence, submission_id)
    await store.seal_chunks(fence, [Seal(submission_id, sha256(body).digest())])
    key = f"{window.installation_id}-{window.window_id}-{chunk.chunk}"
    ledger.record([Delivery(key, "/", body, to_microseconds(window.ended_at))])
    if window.window_id != WAITING:
        await store.finish_attempts(fence, [end(submission_id, begun.number or 0, DELIVERED)])


# Nothing is wrong


@pytest.mark.slow
async def test_finds_no_fault_where_there_is_none(database: Database, books: Path) -> None:
    audited = await audit(database, books)
    assert (audited.returncode, audited.stderr) == (0, ""), audited
    installation, windows, *_, ledger, last = audited.stdout.splitlines()
    assert re.fullmatch(r"installation [0-9a-f-]{36}", installation)
    assert re.fullmatch(r"4 windows, 4 chunks, from \S+Z to \S+Z", windows)
    assert re.fullmatch(r"ledger +\d+\.\d{6}  4 keys", ledger)
    assert last == "no faults"


@pytest.mark.slow
async def test_makes_no_database_where_there_is_none(tmp_path: Path) -> None:
    audited = await asyncio.to_thread(CliRunner().invoke, app, ["audit", "--database", f"sqlite:///{tmp_path}/no.db"])
    assert str(audited.exception) == f"database: there is no file {tmp_path}/no.db"
    assert not (tmp_path / "no.db").exists()


@pytest.mark.slow
async def test_needs_no_ledger(database: Database, books: Path) -> None:
    audited = await audit(database, None, "--json")
    told = json.loads(audited.stdout, parse_float=str)
    assert (audited.returncode, told["windows"], told["chunks"], told["findings"]) == (0, 4, 4, []), (audited, books)
    assert (told["lived"], told["delivered"], told["waiting"]) == ("0.000267", "0.00022", "0.000047")


@pytest.mark.slow
async def test_a_ledger_that_is_not_there_is_a_mistake_and_none_is_made(database: Database, tmp_path: Path) -> None:
    audited = await audit(database, tmp_path / "elsewhere.db")
    assert audited.returncode not in (0, 1), audited
    assert "elsewhere.db" in audited.stderr
    assert not (tmp_path / "elsewhere.db").exists()


# It is happening


class Meanwhile:
    """A store where something happens once, just before or after a call of this name."""

    def __init__(self, store: Store, method: str, when: str, happen: Callable[[], Awaitable[None]]) -> None:
        self._store, self._method, self._when, self._happen = store, method, when, happen
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name != self._method or self.happened:
            return method

        async def call(*arguments: Any) -> Any:
            self.happened = True
            if self._when == "before":
                await self._happen()
            answer = await method(*arguments)
            if self._when == "after":
                await self._happen()
            return answer

        return call


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["list_windows", "list_deliveries", "get_window", "list_lives", "sum_usage"])
async def test_what_is_delivered_meanwhile_is_no_fault(
    sqlite_database: Database, sqlite_books: Path, method: str, when: str
) -> None:
    window = await cut_one(sqlite_database, minute(5), contract=CONTRACT)
    (chunk,) = await chunk_all(sqlite_database)

    async def deliver() -> None:
        with closing(Ledger(sqlite_books)) as ledger:
            await _deliver(sqlite_database, ledger, window, chunk)

    store = Meanwhile(sqlite_database.store, method, when, deliver)
    report = await Audit(store, _ReceiverLedger(sqlite_books)).run()  # type: ignore[arg-type]
    assert (store.happened, report.windows, report.findings) == (True, 5, [])


async def test_what_arrives_meanwhile_is_not_missing_in_the_total(
    sqlite_database: Database, sqlite_books: Path
) -> None:
    class Growing(_ReceiverLedger):
        def entries(self) -> Iterator[Entry]:
            arrive("before")
            yield from super().entries()
            arrive("after")

    def arrive(key: str) -> None:
        with closing(Ledger(sqlite_books)) as ledger:
            ledger.record([Delivery(key, "/", b'[{"usage":7}]', 1)])

    report = await Audit(sqlite_database.store, Growing(sqlite_books)).run()
    assert report.findings == []


# Something is wrong


class Fault(NamedTuple):
    told: str
    plant: Plant
    checks: set[str]
    """Which find it."""
    words: str


def sql(statement: str) -> Plant:
    """`SECOND` stands for one, as the engine has it."""

    async def plant(database: Database, _ledger: Path) -> None:
        second = "1000000" if database.engine == "sqlite" else "interval '1 second'"
        await database.execute(statement.replace("SECOND", second))

    return plant


def in_the_ledger(*statements: str) -> Plant:
    async def plant(_database: Database, ledger: Path) -> None:
        with closing(sqlite3.connect(ledger)) as connection:
            for statement in statements:
                assert connection.execute(statement).rowcount == 1, statement
            connection.commit()

    return plant


async def double_an_attempt(database: Database, _ledger: Path) -> None:
    _, (chunk,) = await read_window(database, 2)
    (row,) = [
        row for row in await table(database, "submission_attempts") if row["submission_id"] == chunk.submission_id
    ]
    await put_row(database, "submission_attempts", **{**row, "number": row["number"] + 1})


async def overlap(database: Database, _ledger: Path) -> None:
    """After the last cut, so that nothing that was billed is another."""
    key = {"capacity_id": some_id(), "user_object_id": some_id()}
    one = lived(minute(WAITING, 1), minute(WAITING, 10), **key)
    await put_sessions(database, [one, lived(minute(WAITING, 9), minute(WAITING, 20), **key)])


OF_WINDOW_2 = "SELECT submission_id FROM usage_chunks WHERE window_id = 2"
FAULTS = [
    Fault(
        "a chunk is missing",
        sql("DELETE FROM usage_chunks WHERE window_id = 2"),
        {"chunks", "sums", "ledger"},
        "chunks: chunk 1 of window 2 is missing",
    ),
    Fault(
        "two attempts delivered",
        double_an_attempt,
        {"deliveries"},
        "deliveries: chunk 1 of window 2 was delivered by 2 attempts",
    ),
    Fault(
        "delivered by no attempt",
        sql(f"UPDATE submission_attempts SET outcome = 'failed' WHERE submission_id = ({OF_WINDOW_2})"),
        {"deliveries"},
        "deliveries: chunk 1 of window 2 is delivered, but by none of its attempts",
    ),
    Fault(
        "sent, but its window says that nobody was there",
        sql("UPDATE usage_windows SET contract = NULL WHERE window_id = 2"),
        {"deliveries", "ledger"},
        "deliveries: chunk 1 of window 2 was sent, but its window says that there was nobody to send it to",
    ),
    Fault(
        "the total counts one twice",
        in_the_ledger("UPDATE totals SET usage = usage + (SELECT usage FROM deliveries WHERE key LIKE '%-2-1')"),
        {"ledger"},
        "ledger: its total is",
    ),
    Fault(
        "counted again under another key",
        in_the_ledger(
            "INSERT INTO deliveries SELECT 99, replace(key, '-2-1', '-2-2'), path, digest, size, received_at, 1, "
            "records, usage FROM deliveries WHERE key LIKE '%-2-1'"
        ),
        {"ledger"},
        "ledger: there is no chunk with the key",
    ),
    Fault(
        "counted as of a window that was never cut",
        in_the_ledger(
            "INSERT INTO deliveries SELECT 99, replace(key, '-2-1', '-999-1'), path, digest, size, received_at, 1, "
            "records, '0' FROM deliveries WHERE key LIKE '%-2-1'"
        ),
        {"ledger"},
        "ledger: it has windows 999 to 999 of installation",
    ),
    Fault(
        "delivered, but its window does not say so",
        sql("UPDATE usage_windows SET delivered_at = NULL WHERE window_id = 2"),
        {"deliveries"},
        "deliveries: window 2 is not delivered, but all of its chunks are",
    ),
    Fault(
        "delivered, but not counted",
        in_the_ledger("DELETE FROM deliveries WHERE key LIKE '%-3-1'"),
        {"ledger"},
        "ledger: chunk 1 of window 3 is delivered, but not in the ledger",
    ),
    Fault(
        "another body was counted",
        in_the_ledger("UPDATE deliveries SET digest = 'ab' WHERE key LIKE '%-1-1'"),
        {"ledger"},
        "ledger: chunk 1 of window 1 has other bytes in the ledger than were sent",
    ),
    Fault(
        "a session's start was altered",
        sql(f"UPDATE sessions SET started_at = started_at - 9 * SECOND WHERE session_id = '{ALTERED}'"),
        {"chunks", "sums"},
        "chunks: chunk 1 of window 1 is not what its sessions lived",
    ),
    Fault(
        "a session was moved, and lived as long",
        sql(
            "UPDATE sessions SET started_at = started_at + SECOND, closed_at = closed_at + SECOND "
            f"WHERE session_id = '{MOVED}'"
        ),
        {"chunks"},
        "chunks: chunk 1 of window 2 does not render to what was sent",
    ),
    Fault(
        "a session was left out",
        sql(f"DELETE FROM sessions WHERE session_id = '{LEFT_OUT}'"),
        {"chunks", "sums"},
        "chunks: chunk 1 of window 4 is not what its sessions lived",
    ),
    Fault("sessions overlap", overlap, {"sessions"}, " overlap"),
    Fault(
        "there is a gap between windows",
        sql("UPDATE usage_windows SET ended_at = ended_at - SECOND WHERE window_id = 2"),
        {"windows", "chunks"},
        "windows: window 2 ends at 2041-03-01T12:01:59.000000Z, and what follows begins at 2041-03-01T12:02:00.000000Z",
    ),
    Fault(
        "an era begins behind its windows",
        sql("UPDATE usage_eras SET started_at = started_at + 70 * SECOND"),
        {"windows", "sums"},
        "windows: window 2 begins before its era",
    ),
    Fault(
        "a window is missing",
        sql("DELETE FROM usage_windows WHERE window_id = 2"),
        {"windows", "sums"},
        "windows: window 1 is followed by window 3",
    ),
    Fault(
        "what waits was given up",
        sql("UPDATE submissions SET state = 'failed' WHERE state = 'pending'"),
        {"deliveries"},
        f"deliveries: chunk 1 of window {WAITING} waits, but its submission is failed",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.told)
async def test_finds_each_fault_and_names_it(database: Database, books: Path, fault: Fault) -> None:
    """In this process, which needs no second to start."""
    await fault.plant(database, books)
    command = ["audit", "--database", database.url, "--ledger", str(books), "--json"]
    audited = await asyncio.to_thread(CliRunner().invoke, app, command)
    findings = json.loads(audited.stdout)["findings"]
    told = "\n".join(f"{finding['check']}: {finding['detail']}" for finding in findings)
    assert (audited.exit_code, {finding["check"] for finding in findings}) == (1, fault.checks), told
    assert fault.words in told


@pytest.mark.parametrize("page", [1, 2, 3])
async def test_goes_through_all_pages_of_windows(
    sqlite_database: Database, sqlite_books: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(audit_module, "PAGE", page)
    ledger = _ReceiverLedger(sqlite_books)
    report = await Audit(sqlite_database.store, ledger).run()
    assert (report.windows, report.chunks, report.findings) == (4, 4, [])
    await sqlite_database.execute("UPDATE usage_chunks SET usage_millionths = usage_millionths + 1 WHERE window_id = 1")
    checks = {finding.check for finding in (await Audit(sqlite_database.store, ledger).run()).findings}
    assert checks == {"chunks", "sums", "ledger"}


async def test_one_fault_is_not_told_of_chunks_that_have_none(sqlite_database: Database, sqlite_books: Path) -> None:
    """One that is another piece renders to other bytes, which goes without saying."""
    await sqlite_database.execute(f"DELETE FROM sessions WHERE session_id = '{LEFT_OUT}'")
    report = await Audit(sqlite_database.store, _ReceiverLedger(sqlite_books)).run()
    assert "does not render" not in str(report.findings)


async def test_a_ledger_is_only_read(database: Database, books: Path) -> None:
    """Though it is one byte, and no ledger."""
    other = books.with_name("other.txt")
    other.write_bytes(b"x")
    command = ["audit", "--database", database.url, "--ledger", str(other)]
    audited = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert str(audited.exception) == f"ledger: cannot use {other}: it is no ledger"
    assert (other.read_bytes(), sorted(path.name for path in other.parent.glob("other*"))) == (b"x", ["other.txt"])


@pytest.mark.parametrize("command", ["audit", "migrate"])
async def test_a_file_that_is_no_database_is_a_mistake(tmp_path: Path, command: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("these are my notes\n" * 100)
    told = await asyncio.to_thread(CliRunner().invoke, app, [command, "--database", f"sqlite:///{file}"])
    assert str(told.exception) == f"database: {file} is no SQLite database"


@pytest.mark.slow
async def test_tells_faults_in_words_too(database: Database, books: Path) -> None:
    await overlap(database, books)
    audited = await audit(database, books)
    *_, finding, count = audited.stdout.splitlines()
    assert (audited.returncode, finding.partition(":")[0], count) == (1, "sessions", "1 fault"), audited
