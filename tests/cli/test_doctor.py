"""`tenure doctor` prints one line for a healthy installation, and a finding with its code for each planted problem."""

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from sqlalchemy import Connection, update

from tenure.cli.main import all_commands
from tenure.clock import from_microseconds, wall_microseconds
from tenure.config import JOBS, GatewayConfig
from tenure.doctor import access, deliveries, examine, instances
from tenure.doctor import database as database_checks
from tenure.doctor.findings import Code
from tenure.domain.instances import InstanceReport
from tenure.domain.jobs import Job, JobCommand, JobSettings
from tenure.domain.submissions import NOT_SENT, SubmissionState
from tenure.store.engines.sqlite.connections import DatabaseFile
from tenure.store.tables import metadata
from tests.cli.conftest import Result, Tenure
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.keys import create_key
from tests.support.leases import acquire_free_lease, all_tables, begin_due_run, insert_row
from tests.support.open_requests import SECOND
from tests.support.submissions import accept, create_in_state
from tests.support.usage import CONTRACT, insert_sessions, rules, session_between

ROOT = Path(__file__).parents[2]
MINUTES = timedelta(minutes=1)
DAYS = timedelta(days=1)
LOCK_TIMEOUT = 120 * SECOND
EXECUTOR = "submission-executor"
BOTH = ("sqlite", "postgresql")


def now() -> datetime:
    return from_microseconds(wall_microseconds())


# A gateway whose responses have a header `Date` with the time of its own clock.


class Gateway:
    def __init__(self) -> None:
        self.clock_offset = timedelta(0)
        self.silent = False
        self.requests: list[bytes] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/usages/secret-token"

    def stop(self) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            if self.silent:
                await reader.read()  # until the doctor has closed the connection
                return
            date = format_datetime((datetime.now(UTC) + self.clock_offset).replace(microsecond=0), usegmt=True)
            writer.write(f"HTTP/1.1 405 No\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())


@pytest.fixture(autouse=True)
def _patient_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make the doctor report a problem."""
    monkeypatch.setattr(examine, "CHECK_SECONDS", 60.0)
    monkeypatch.setattr(deliveries, "CONNECT_SECONDS", 30.0)
    monkeypatch.setattr(deliveries, "ANSWER_SECONDS", 30.0)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    gateway.url = await gateway.start()  # type: ignore[attr-defined]
    yield gateway
    gateway.stop()


class Case(NamedTuple):
    """A healthy installation, until a test plants a problem."""

    database: Database
    gateway: Gateway
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    tenure: Tenure

    def configure(self, text: str = "", *, gateways: bool = True) -> None:
        section = f'\n[gateways.usages]\nurl = "{self.gateway.url}"\n' if gateways else ""  # type: ignore[attr-defined]
        (self.folder / "tenure.toml").write_text(f"{text}\n{section}")

    async def update(self, table_name: str, only: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Sets columns of a table by SQL, not through the store: in the rows whose columns have the values in `only`,
        or in all rows.
        """
        table = metadata.tables[table_name]
        statement = update(table).values(**values)
        for name, value in (only or {}).items():
            statement = statement.where(table.c[name] == value)

        def write(connection: Connection) -> None:
            connection.execute(statement)
            connection.commit()

        await self.database.run_sync(write)

    async def doctor(self, *flags: str, database: str | None = None) -> Result:
        arguments = ["doctor", "--database", database or self.database.url, *flags]
        return await asyncio.to_thread(self.tenure, *arguments)

    async def report(self, **given: Any) -> dict[str, Any]:
        result = await self.doctor("--json", **given)
        report: dict[str, Any] = json.loads(result.out)
        assert result.code == {"fine": 0, "broken": 1, "warnings": 3}[report["status"]]
        return report


async def make_healthy(database: Database) -> None:
    """Writes the rows that a running instance writes: its jobs and the lease of the executor."""
    store = database.store
    jobs = [JobSettings(name, round(seconds * SECOND), LOCK_TIMEOUT) for name, seconds in JOBS.items()]
    await store.register_jobs(jobs)
    await acquire_free_lease(store, EXECUTOR, "one", 3600 * SECOND)


@pytest.fixture
async def case(
    database: Database, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tenure: Tenure
) -> Case:
    made = Case(database, gateway, tmp_path, monkeypatch, tenure)
    made.configure()
    await make_healthy(database)
    await made.update("installation", last_cut_at=now())
    if (file := database.store.describe_file()) is not None:
        make_private(*file.modes)
    return made


def make_private(*paths: str) -> None:
    for path in paths:
        Path(path).chmod(0o600)


def codes(report: Mapping[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


async def test_healthy_installation_gets_one_line(case: Case) -> None:
    before = await all_tables(case.database)
    result = await case.doctor()
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(r"fine: \d+ checks, nothing found\n", result.out)
    assert await all_tables(case.database) == before
    # The gateway got one request without a body, which is not a delivery.
    (request,) = case.gateway.requests
    assert request.startswith(b"OPTIONS /usages/secret-token HTTP/1.1\r\n")
    report = await case.report()
    assert report["findings"] == []
    assert {check["outcome"] for check in report["checks"]} == {"passed"}


@pytest.mark.slow
async def test_running_service_is_healthy_and_stopped_service_is_the_only_finding(
    database: Database,
    start: Callable[..., RunningInstance],
    gateway: Gateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tenure: Tenure,
) -> None:
    made = Case(database, gateway, tmp_path, monkeypatch, tenure)
    made.configure()
    if (file := database.store.describe_file()) is not None:
        make_private(file.path)
    await made.update("installation", last_cut_at=now())
    instance = start(database.url)
    await asyncio.to_thread(instance.wait_until_ready)
    deadline = asyncio.get_running_loop().time() + 20
    while not any(lease.held and lease.name == EXECUTOR for lease in await database.store.list_leases(None, 9)):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    result = await made.doctor()
    assert (result.code, result.out.count("\n")) == (0, 1), result.out
    await asyncio.to_thread(instance.stop)
    assert codes(await made.report()) == ["not-running"]


def test_doctor_creates_no_file_and_does_not_change_sqlite_database(
    sqlite_template: Path, tmp_path: Path, tenure: Tenure
) -> None:
    path = tmp_path / "tenure.db"
    shutil.copyfile(sqlite_template, path)
    path.chmod(0o600)
    content = path.read_bytes()
    assert tenure("doctor", "--database", f"sqlite:///{path}").code == 3
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (content, [path])


# The problems. Each function plants one.

Plant = Callable[[Case], Awaitable[dict[str, Any] | None]]
TROUBLES: dict[Code, tuple[Sequence[str], Plant]] = {}


def plants(code: Code, *engines: str) -> Callable[[Plant], Plant]:
    """Registers a function that plants the problem with this code, on the given engines or, by default, on both."""

    def register(plant: Plant) -> Plant:
        assert code not in TROUBLES
        TROUBLES[code] = (engines or BOTH, plant)
        return plant

    return register


@plants(Code.DATABASE_MISSING, "sqlite")
async def _(case: Case) -> dict[str, Any]:
    return {"database": f"sqlite:///{case.folder / 'other.db'}"}


@plants(Code.DATABASE_UNREACHABLE)
async def _(case: Case) -> dict[str, Any]:
    if case.database.engine == "postgresql":
        return {"database": "postgresql://user:hunter2@127.0.0.1:1/tenure"}
    (case.folder / "text.db").write_text("this is no database, " * 99)
    (case.folder / "text.db").chmod(0o600)
    return {"database": f"sqlite:///{case.folder / 'text.db'}"}


@plants(Code.DATABASE_READ_ONLY, "postgresql")
async def _(case: Case) -> None:
    name = case.database.url.partition("@/")[2].partition("?")[0]
    await case.database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")


@plants(Code.FILE_PERMISSIONS, "sqlite")
async def _(case: Case) -> None:
    (case.folder / "tenure.db").chmod(0o640)


def pretend(case: Case, **values: Any) -> None:
    """Changes what the doctor finds out about the SQLite file. A test cannot fill the disk, and if the tests run as
    root, no file mode prevents writes.
    """
    describe = DatabaseFile.describe

    def described(file: DatabaseFile) -> Any:
        return msgspec.structs.replace(describe(file), **values)

    case.monkeypatch.setattr(DatabaseFile, "describe", described)


@plants(Code.FILE_NOT_WRITABLE, "sqlite")
async def _(case: Case) -> None:
    pretend(case, writable=False)


@plants(Code.DISK_READ_ONLY, "sqlite")
async def _(case: Case) -> None:
    pretend(case, disk_read_only=True)


@plants(Code.DISK_FULL, "sqlite")
async def _(case: Case) -> None:
    pretend(case, free_bytes=5 << 20)


@plants(Code.SCHEMA_MISSING)
async def _(case: Case) -> None:
    await case.database.execute("DROP TABLE tenure_schema")


@plants(Code.SCHEMA_OLD)
async def _(case: Case) -> None:
    await case.database.execute("UPDATE tenure_schema SET version_num = '0000'")


@plants(Code.SCHEMA_NEW)
async def _(case: Case) -> None:
    await case.database.execute("UPDATE tenure_schema SET version_num = '9000'")


@plants(Code.CLOCK_DIFFERS, "postgresql")
async def _(case: Case) -> None:
    await case.database.clock.set(now() + timedelta(seconds=20))


@plants(Code.POOL_TOO_LARGE, "postgresql")
async def _(case: Case) -> None:
    case.configure("workers = 8\npool_size = 100\n")


@plants(Code.CONNECTIONS_SCARCE, "postgresql")
async def _(case: Case) -> None:
    case.monkeypatch.setattr(database_checks, "SCARCE_SHARE", 0.001)


@plants(Code.TABLE_BLOATED, "postgresql")
async def _(case: Case) -> None:
    case.monkeypatch.setattr(database_checks, "DEAD_ROWS_MIN", 100)
    await fill_audit_log(case, 300)
    await case.database.execute("DELETE FROM audit_log")
    await case.database.execute("SELECT pg_stat_force_next_flush()")


@plants(Code.HOT_UPDATES_RARE, "postgresql")
async def _(case: Case) -> None:
    case.monkeypatch.setattr(database_checks, "UPDATES_MIN", 100)
    await fill_audit_log(case, 10)
    for _ in range(30):
        await case.database.execute("UPDATE audit_log SET at = at + interval '1 second'")
    await case.database.execute("SELECT pg_stat_force_next_flush()")


async def fill_audit_log(case: Case, count: int) -> None:
    await case.database.execute("ALTER TABLE audit_log SET (autovacuum_enabled = off)")
    await case.database.execute(
        "INSERT INTO audit_log (entry_id, at, subject, name, action, target) "
        f"SELECT gen_random_uuid(), now(), 'a', 'a', 'key.create', 'x' FROM generate_series(1, {count})"
    )


@plants(Code.NOT_RUNNING)
async def _(case: Case) -> None:
    await case.update("leases", released=True)


@plants(Code.LEASE_UNHELD)
async def _(case: Case) -> None:
    url = case.gateway.url  # type: ignore[attr-defined]
    case.configure(f'[gateways.crm]\nurl = "{url}"\nevents = ["session.closed"]\n')


async def test_finding_of_unheld_lease_names_the_lease_that_the_instances_use(case: Case) -> None:
    case.configure('[leases]\nexecutor_lease = "mine"\n')
    await case.database.store.save_instance(instance_report("one", executor_lease="theirs"))
    (finding,) = [each for each in (await case.report())["findings"] if each["code"] == "lease-unheld"]
    assert "use lease theirs, and these settings name lease mine" in finding["seen"]
    assert finding["mend"].startswith("TENURE_LEASES__EXECUTOR_LEASE=theirs tenure doctor")


def instance_report(name: str, version: str = "1.0.0", executor_lease: str = "submission-executor") -> InstanceReport:
    return InstanceReport(
        instance=name, holder=name, host="web-1", pid=7, worker=0, version=version, executor_lease=executor_lease
    )


@plants(Code.VERSIONS_DIFFER)
async def _(case: Case) -> None:
    for number, version in enumerate(["1.9.0", "1.10.0"]):
        name = f"one-{number}"
        await case.database.store.save_instance(instance_report(name, version=version))


@plants(Code.EXECUTOR_LEASES_DIFFER)
async def _(case: Case) -> None:
    for number, name in enumerate(["submission-executor", "submission-executor", "other"]):
        await case.database.store.save_instance(instance_report(f"one-{number}", executor_lease=name))


@plants(Code.JOB_PAUSED)
async def _(case: Case) -> None:
    await case.database.store.command_job("emit-usage", JobCommand.PAUSE, ACTOR)


@plants(Code.JOB_OVERDUE)
async def _(case: Case) -> None:
    await case.update("jobs", {"name": "expire-sessions"}, next_run_at=now() - 10 * MINUTES, last_start_at=None)


def test_job_that_still_runs_is_not_overdue() -> None:
    at = now()
    job = Job(
        name="prune",
        interval_microseconds=60_000_000,
        lock_timeout_microseconds=300_000_000,
        next_run_at=at - 60 * MINUTES,
        last_start_at=at,
        run_count=1,
        failures_in_a_row=0,
        paused=False,
    )
    assert not instances._is_overdue(job, at + 6 * MINUTES)
    assert instances._is_overdue(job, at + 8 * MINUTES)


def test_date_header_of_gateway_is_converted_to_utc() -> None:
    for zone in ("GMT", "-0000", "+0200"):
        head = f"HTTP/1.1 200 OK\r\nDate: Fri, 01 Mar 2030 12:00:00 {zone}\r\n".encode()
        expected = datetime(2030, 3, 1, 10 if zone == "+0200" else 12, tzinfo=UTC)
        assert deliveries._date_of(head) == expected, zone


@plants(Code.PRUNE_NOT_RUNNING)
async def _(case: Case) -> None:
    await case.update("jobs", {"name": "prune"}, last_success_at=now() - 3 * DAYS)


@plants(Code.JOB_FAILING)
async def _(case: Case) -> None:
    await case.update("jobs", {"name": "prune"}, failures_in_a_row=3, last_error="disk full")


@plants(Code.JOB_LOCK_HELD)
async def _(case: Case) -> None:
    await case.update("jobs", {"name": "prune"}, next_run_at=now() - MINUTES)
    await begin_due_run(case.database.store, "prune")
    await case.update("leases", {"name": "job:prune"}, acquired_at=now() - 6 * MINUTES)


@plants(Code.LOCK_RECLAIMED)
async def _(case: Case) -> None:
    await case.update("leases", {"name": EXECUTOR}, reclaimed_at=now() - MINUTES)


@plants(Code.LEADERSHIP_FLAPPING)
async def _(case: Case) -> None:
    await case.update("leases", {"name": EXECUTOR}, epoch=9)
    for epoch in range(2, 10):
        await insert_row(case.database, "lease_history", name=EXECUTOR, epoch=epoch, holder="a", acquired_at=now())


async def cut_a_window(case: Case, *, sent: bool = True) -> None:
    """Cuts and divides a window of the last five minutes, which contains a session. (If these minutes include a UTC
    midnight, they make two windows.) With `sent`, the chunks become submissions. Releases the database's clock if a
    test has stopped it.
    """
    at = now().replace(second=0, microsecond=0)
    await case.update("installation", last_cut_at=at - 5 * MINUTES, usage_kept_from=at - 5 * MINUTES)
    await insert_sessions(case.database, [session_between(at - 4 * MINUTES, at - 3 * MINUTES)])
    await case.database.clock.release()
    fence = await acquire_free_lease(case.database.store, "job:emit-usage", "one")
    await case.database.store.cut_usage(fence, rules(contract=CONTRACT if sent else None), 50)
    for undivided in await case.database.store.list_undivided_windows(99):
        bounds = await case.database.store.divide_window(undivided.window, None, 9)
        await case.database.store.save_chunks(fence, undivided.window.window_id, 1, bounds, complete=True)


@plants(Code.USAGE_FAILING)
async def _(case: Case) -> None:
    await cut_a_window(case)
    await case.update("submissions", failures=4, last_error="answered 500")


@plants(Code.CHUNK_WITHHELD)
async def _(case: Case) -> None:
    await cut_a_window(case)
    await case.update("submissions", last_error=f"{NOT_SENT}the sums differ")


@plants(Code.USAGE_LAGGING)
async def _(case: Case) -> None:
    await case.update("installation", last_cut_at=now() - 20 * MINUTES)


@plants(Code.LAPSES_EXCEED_OPENINGS)
async def _(case: Case) -> None:
    at = now()
    lapsed = [session_between(at - 60 * MINUTES, at - MINUTES, close_reason="LEASE_EXPIRED") for _ in range(101)]
    await insert_sessions(case.database, lapsed)


@plants(Code.CLOCK_BEHIND)
async def _(case: Case) -> None:
    await case.update("installation", last_cut_at=now() + 5 * MINUTES)


@plants(Code.NO_USAGE_GATEWAY)
async def _(case: Case) -> None:
    case.configure(gateways=False)


@plants(Code.WINDOWS_UNSENT)
async def _(case: Case) -> None:
    await cut_a_window(case, sent=False)


@plants(Code.SUBMISSIONS_FAILED)
async def _(case: Case) -> None:
    await create_in_state(case.database.store, SubmissionState.FAILED, gateway="usages")


@plants(Code.SUBMISSIONS_STRANDED)
async def _(case: Case) -> None:
    await accept(case.database.store, gateway="forgotten")


@plants(Code.GATEWAY_UNREACHABLE)
async def _(case: Case) -> None:
    case.gateway.stop()


@plants(Code.GATEWAY_SILENT)
async def _(case: Case) -> None:
    case.gateway.silent = True
    case.monkeypatch.setattr("tenure.doctor.deliveries.ANSWER_SECONDS", 0.1)


@plants(Code.GATEWAY_CLOCK_DIFFERS)
async def _(case: Case) -> None:
    case.gateway.clock_offset = timedelta(minutes=-4)


@plants(Code.NO_KEYS)
async def _(case: Case) -> None:
    case.configure('host = "0.0.0.0"\n')


@plants(Code.KEY_UNUSED)
async def _(case: Case) -> None:
    await create_key(case.database.store, name="old", expires_at=now() + 300 * DAYS)
    await case.update("keys", created_at=now() - access.UNUSED - DAYS)


@plants(Code.KEY_WITHOUT_EXPIRY)
async def _(case: Case) -> None:
    await create_key(case.database.store, name="web")


@plants(Code.KEY_EXPIRING)
async def _(case: Case) -> None:
    await create_key(case.database.store, name="web", expires_at=now() + 3 * DAYS)


@plants(Code.CHECK_TIMED_OUT)
async def _(case: Case) -> None:
    async def hang(_: object) -> list[Any]:
        await asyncio.sleep(60)
        return []

    case.monkeypatch.setattr(examine, "CHECK_SECONDS", 0.2)
    case.monkeypatch.setitem(examine.ANYWAY, "gateways", hang)
    # After a timeout, the command does not wait for threads, but calls `os._exit`. In this test, that call would end
    # the process of the tests, so prevent it.
    case.monkeypatch.setattr(examine.Report, "is_hanging", False)


@plants(Code.CHECK_FAILED)
async def _(case: Case) -> None:
    async def fail(_: object) -> list[Any]:
        raise ValueError("a bug")

    case.monkeypatch.setitem(examine.REST, "keys", fail)


POOLER = {Code.POOLER_TRANSACTION_MODE}
"""Planted in `tests/deployment/test_poolers.py`, with a real PgBouncer."""


def pairs() -> Iterator[Any]:
    for code, (engines, _) in TROUBLES.items():
        for engine in engines:
            yield pytest.param(code, engine, id=f"{code.value}-{engine}")


@pytest.mark.parametrize(("code", "database"), list(pairs()), indirect=["database"])
async def test_doctor_finds_only_the_planted_problem_with_code_and_command(code: Code, case: Case) -> None:
    given = await TROUBLES[code][1](case) or {}
    report = await case.report(**given)
    found = [finding for finding in report["findings"] if finding["code"] == code.value]
    assert found, report["findings"]
    assert set(codes(report)) == {code.value}, report["findings"]
    for finding in found:
        assert finding["seen"]
        assert finding["mend"]
        assert finding["docs"] == f"docs/doctor.md#{code.value}"
        check_command(finding["mend"])
        assert "hunter2" not in str(finding)
        assert "secret-token" not in str(finding)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_text_has_two_lines_for_each_finding_and_a_summary(case: Case) -> None:
    await case.database.store.command_job("emit-usage", JobCommand.PAUSE, ACTOR)
    case.configure('host = "0.0.0.0"\n')
    result = await case.doctor()
    assert result.code == 1
    assert result.out.splitlines() == [
        "broken  no-keys: the service does not start on 0.0.0.0: there is no API key and no OIDC issuer",
        f"    mend: tenure keys create --name admin --role operator --expires 90d --database {case.database.url}",
        "warning  job-paused: job emit-usage is paused",
        "    mend: tenure jobs resume emit-usage",
        "1 broken, 1 warning (19 checks); docs/doctor.md explains each code",
    ]


PROGRAMS = {
    *["cd", "chmod", "chown", "chronyc"],
    *["curl", "df", "ls", "mount", "pg_isready", "pip", "printf", "psql", "sed", "ssh"],
}


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (b"", "accepts connections, but closed the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * deliveries.HEAD_MAX_BYTES, "bytes of headers"),
    ],
    ids=["none", "too long"],
)
async def test_doctor_says_how_a_gateway_failed_to_answer(answer: bytes, seen: str) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        config = GatewayConfig(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/usages")
        (finding,) = await deliveries._check_gateway("orders", config)
    assert (finding.code, seen in finding.seen) == (Code.GATEWAY_SILENT, True), finding.seen


def test_doctor_in_a_folder_without_database_suggests_to_change_the_folder(
    tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (finding,) = json.loads(tenure("doctor", "--json").out)["findings"]
    assert finding["code"] == Code.DATABASE_MISSING.value
    assert str(tmp_path / "tenure.db") in finding["seen"]
    assert finding["mend"] == "cd FOLDER_OF_THE_SERVICE && tenure doctor"


def check_command(mend: str) -> None:
    """Asserts that each command of the line is a valid `tenure` command, or runs one of PROGRAMS."""
    line = [word for word in shlex.split(mend) if not re.match("TENURE_[A-Z_]+=", word)]
    ends = [index for index, word in enumerate(line) if word == "&&"]
    for start, end in zip([0, *(index + 1 for index in ends)], [*ends, len(line)], strict=True):
        words = line[start:end]
        if words[0] != "tenure":
            assert words[0] in PROGRAMS, mend
            continue
        commands = all_commands()
        count = 3 if " ".join(words[1:3]) in commands else 2
        commands[" ".join(words[1:count])].make_context("doctor", words[count:])


def test_every_code_has_a_planted_problem_and_a_section_in_the_docs() -> None:
    assert set(TROUBLES) | POOLER == set(Code)
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert re.findall(r"^### ([a-z-]+)$", page, re.MULTILINE) == [code.value for code in Code]


async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer), suppress(OSError):
        await reader.read()


@pytest.mark.slow
async def test_frozen_server_does_not_hang_the_doctor(tenure: Tenure) -> None:
    """The server accepts connections and never answers, like one that was stopped by SIGSTOP."""
    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = asyncio.get_running_loop().time()
    url = f"postgresql://a:hunter2@127.0.0.1:{port}/tenure"
    result = await asyncio.to_thread(tenure, "doctor", "--json", "--database", url)
    server.close()
    assert asyncio.get_running_loop().time() - began < 30
    assert codes(json.loads(result.out)) == ["database-unreachable"]
    assert "hunter2" not in result.out + result.err
