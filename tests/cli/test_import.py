"""`tenure import` takes over the live sessions and the capacities of another service."""

import asyncio
import csv
import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tenure.cli.imports import _in_database, _mapped
from tenure.clock import from_microseconds
from tenure.config import Config
from tenure.domain.audit_log import Actor
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, SessionFilter
from tenure.errors import ConfigurationError
from tenure.sessions import imports
from tenure.sessions.imports import (
    SESSION_FIELDS,
    ImportRefused,
    Mapped,
    import_capacities,
    import_sessions,
    read_capacities,
    read_lines,
    read_sessions,
)
from tenure.store.limits import IMPORT_BATCH_MAX
from tenure.usage.audit import Audit
from tests.cli.conftest import Tenure
from tests.support.databases import Database
from tests.support.expected_usage import run_audit
from tests.support.open_requests import end_one
from tests.support.usage import chunk_all, cut_one, install

NOW = datetime(2030, 1, 2, 12, tzinfo=UTC)
TERM = timedelta(days=30)
ACTOR = Actor("cli:test", "cli:test")
HEADER = ["UserObjectId", "tenant_object_id", "capacityId", "sessionKind", "sessionStartUtc", "sessionEndUtc"]
ID = ["sessionId", *HEADER]


def row(start: str = "2030-01-01 03:04:05.1234567", end: str = "2030-01-20T00:00:00Z", kind: str = "2") -> list[str]:
    return [f"{{{str(uuid4()).upper()}}}", str(uuid4()), uuid4().hex, kind, start, end]


def write_csv(path: Path, rows: list[list[str]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read(path: Path, mapped: Mapped | None = None) -> list[imports.FileSession]:
    return list(read_sessions(read_lines(path, SESSION_FIELDS, mapped), mapped, NOW, TERM))


def silent(_text: str) -> None:
    pass


async def run(database: Database, path: Path, *, writes: bool = True) -> imports.Counts:
    return await import_sessions(database.store, read(path), ACTOR, path.name, silent, writes=writes)


def test_file_is_read_as_csv_or_ndjson_with_any_column_names(tmp_path: Path) -> None:
    (one,) = read(write_csv(tmp_path / "a.csv", [values := row()]))
    content = dict(zip(SESSION_FIELDS[1:7], values, strict=True))
    (tmp_path / "a.ndjson").write_text(json.dumps({**content, "sessionKind": 2, "leaseSeconds": None}) + "\n")
    (other,) = read(tmp_path / "a.ndjson")
    theirs = write_csv(tmp_path / "b.csv", [[*values[:3], "Pro", *values[4:], "x"]], [*"UTCKSEX"])
    mapped = Mapped(dict(zip(SESSION_FIELDS[1:7], "UTCKSE", strict=True)), {"Pro": 2})
    (third,) = read(theirs, mapped)
    assert one.session == other.session == third.session
    assert one.session.started_at == datetime(2030, 1, 1, 3, 4, 5, 123456, UTC)
    assert one.session.user_object_id == values[0].strip("{}").lower()
    assert one.session.session_id[14:18] == "7000"


BAD = {
    "kind": (row(kind="4"), "line 3: sessionKind: must be 1, 2 or 3"),
    "start": (row(start="yesterday"), "line 3: sessionStartUtc: must be an instant"),
    "future": (
        row("2031-01-01T00:00:00Z", "2032-01-01T00:00:00Z"),
        "line 3: sessionStartUtc: is in the future",
    ),
    "end": (row(end="2029-01-01T00:00:00Z"), "line 3: sessionEndUtc: must be after the start"),
    "id": (["x", *row()[1:]], "line 3: userObjectId: must be a UUID"),
    "missing": (["", *row()[1:]], "line 3: userObjectId: is missing"),
    "values": (row()[:3], "line 3: values: 3; in the header: 6"),
}


@pytest.mark.parametrize("name", BAD)
def test_error_names_the_number_and_the_field_of_a_bad_line(name: str, tmp_path: Path) -> None:
    bad, message = BAD[name]
    with pytest.raises(ImportRefused) as refused:
        read(write_csv(tmp_path / "a.csv", [row(), bad, row()]))
    assert refused.value.faults[0].startswith(message)


def test_overlapping_sessions_of_one_key_in_the_file_are_refused(tmp_path: Path) -> None:
    one = row()
    again = [*one[:4], "2030-01-01T05:00:00Z", one[5]]
    with pytest.raises(ImportRefused, match="line 4: overlaps with line 2"):
        read(write_csv(tmp_path / "a.csv", [one, row(), again]))
    ended = [*one[:4], "2030-01-01T01:00:00Z", "2030-01-01T02:00:00Z"]
    assert len(read(write_csv(tmp_path / "b.csv", [ended, one]))) == 2


async def live_count(database: Database) -> int:
    return (await database.store.count_sessions(EVERYTHING)).active


async def test_second_import_adds_nothing_and_audit_finds_no_faults(database: Database, tmp_path: Path) -> None:
    """Windows are cut before, between and after two imports of the same file."""
    await database.clock.set(NOW - timedelta(hours=1))
    await install(database, NOW - timedelta(hours=1))
    count = IMPORT_BATCH_MAX + 7
    ended = row(end="2030-01-01T12:00:00Z")
    path = write_csv(tmp_path / "a.csv", [*(row() for _ in range(count)), ended])
    for at, imported, existing in ((NOW, count, 0), (NOW + timedelta(minutes=5), 0, count)):
        await cut_one(database, at)
        assert await run(database, path, writes=False) == (imported, existing, 0, 1)
        assert await run(database, path) == (imported, existing, 0, 1)
        assert await live_count(database) == count
    await cut_one(database, NOW + timedelta(minutes=10))
    await chunk_all(database)
    report = await Audit(database.store).run()
    assert report.findings == []
    # Each session is billed for the ten minutes since its import, with factor 2 for kind 2, as a share of 30 days.
    assert report.lived_millionths == count * round(2 * 600 / (30 * 86_400) * 1_000_000)
    sums = await database.store.list_sessions(SessionFilter(), None, 10, EVERYTHING)
    assert {each.started_at for each in sums.sessions} == {NOW}
    assert {each.imported_start_at for each in sums.sessions} == {datetime(2030, 1, 1, 3, 4, 5, 123456, UTC)}


async def test_import_that_overlaps_a_stored_session_writes_nothing(database: Database, tmp_path: Path) -> None:
    await database.clock.set(NOW)
    one = row()
    await run(database, write_csv(tmp_path / "a.csv", [one]))
    other_start = [*one[:4], "2030-01-01T09:00:00Z", one[5]]
    with pytest.raises(ImportRefused, match="line 3: overlaps with another session"):
        await run(database, write_csv(tmp_path / "b.csv", [row(), other_start]))
    assert await live_count(database) == 1


async def test_more_sessions_than_seats_are_refused(database: Database, tmp_path: Path) -> None:
    await database.clock.set(NOW)
    one, other = row(), row()
    other[2] = one[2]
    seats = write_csv(tmp_path / "c.csv", [[one[2], "1", "reject", ""]], [*imports.CAPACITY_FIELDS])
    found = read_capacities(read_lines(seats, imports.CAPACITY_FIELDS, None))
    assert await import_capacities(database.store, found, ACTOR, silent) == 1
    with pytest.raises(ImportRefused, match="has too few free seats: limit 1, taken 0, needed 2"):
        await run(database, write_csv(tmp_path / "a.csv", [one, other]))
    assert await run(database, write_csv(tmp_path / "b.csv", [one])) == (1, 0, 0, 0)


def test_kind_missing_in_the_mapping_is_refused(tmp_path: Path) -> None:
    """If the other service numbers its kinds from 0, its 2 means Tenure's kind 3, and must not be read as kind 2."""
    path = write_csv(tmp_path / "a.csv", [row(kind="2")])
    mapped = Mapped(dict(zip(SESSION_FIELDS[1:], HEADER, strict=False)), {"0": 1, "1": 2})
    with pytest.raises(ImportRefused, match=r"line 2: sessionKind: 2 is not in \[kinds\]"):
        read(path, mapped)


def test_mapping_of_kinds_alone_keeps_names_of_columns(tmp_path: Path) -> None:
    (found,) = read(write_csv(tmp_path / "a.csv", [row(kind="Pro")]), Mapped({}, {"Pro": 2}))
    assert found.session.kind == 2


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        ("fields = 3", "fields and kinds must be tables"),
        ('kinds = "x"', "fields and kinds must be tables"),
        ("[other]", "other is unknown"),
        ('[fields]\nnone = "x"', "none is not a field"),
        ("[fields]\nsessionId = 3", "each field must name a column"),
        ("[kinds]\nPro = true", "the kind of Pro must be 1, 2 or 3"),
        ("[kinds]\nPro = 4", "the kind of Pro must be 1, 2 or 3"),
    ],
)
def test_invalid_mapping_file_is_refused(tmp_path: Path, mapping: str, reason: str) -> None:
    (tmp_path / "mapping.toml").write_text(mapping)
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        _mapped(tmp_path / "mapping.toml", SESSION_FIELDS)


# The command, with an exported table of another service.


FOREIGN_HEADER = ["Id", "UserGuid", "OrgGuid", "LicensePool", "Plan", "BeganAt", "ExpiresAt", "Region"]
FOREIGN_MAPPING = """
[fields]
sessionId = "Id"
userObjectId = "UserGuid"
tenantObjectId = "OrgGuid"
capacityId = "LicensePool"
sessionKind = "Plan"
sessionStartUtc = "BeganAt"
sessionEndUtc = "ExpiresAt"

[kinds]
Basic = 1
Pro = 2
Max = 3
"""
FOREIGN_COUNT = 20_000
PLANS = ["Basic", "Pro", "Max"]


def foreign_rows(count: int, now: datetime) -> list[list[str]]:
    """Sessions of 50 users on each capacity, all live, in the formats in which SQL Server exports ids and times."""
    source, rows = random.Random(count), list[list[str]]()
    for number in range(count):
        began, ends = now - timedelta(seconds=1 + number), now + timedelta(days=1, seconds=number)
        ids = [str(UUID(int=source.getrandbits(128), version=4)).upper() for _ in range(2)]
        pool = UUID(int=number // 50 + 1).hex
        times = [f"{each:%Y-%m-%d %H:%M:%S.%f}0" for each in (began, ends)]
        rows.append([*ids, f"{{{UUID(int=7)}}}", pool, PLANS[number % 3], *times, "north"])
    return rows


async def imported_rows(database: Database) -> dict[str, tuple[object, ...]]:
    """Returns the fields of each live session by its id, for a comparison with the file."""
    columns = "session_id, user_object_id, capacity_id, kind, imported_start_at, term_ends_at, started_at, closed_at"
    return {
        str(row["session_id"]): (
            str(row["user_object_id"]),
            str(row["capacity_id"]),
            row["kind"],
            instant(row["imported_start_at"]),
            instant(row["term_ends_at"]),
        )
        for row in await database.rows(f"SELECT {columns} FROM sessions WHERE closed_at IS NULL")
    }


def instant(value: datetime | int) -> datetime:
    return from_microseconds(value) if isinstance(value, int) else value


def expected_row(values: list[str]) -> tuple[object, ...]:
    times = [datetime.fromisoformat(each[:26]).replace(tzinfo=UTC) for each in values[5:7]]
    return (values[1].lower(), str(UUID(values[3])), PLANS.index(values[4]) + 1, *times)


@pytest.mark.slow
async def test_command_imports_table_of_another_service_completely_and_once(
    tenure: Tenure, database: Database, tmp_path: Path
) -> None:
    """Nothing is imported from a file with one bad line. The repaired file is imported completely. A repeated import
    adds nothing.
    """
    now = datetime.now(UTC)
    rows = foreign_rows(FOREIGN_COUNT, now)
    (tmp_path / "mapping.toml").write_text(FOREIGN_MAPPING)
    bad = FOREIGN_COUNT - 10
    broken = write_csv(
        tmp_path / "bad.csv", [*rows[:bad], [*rows[bad][:4], "Gold", *rows[bad][5:]], *rows[bad + 1 :]], FOREIGN_HEADER
    )
    good = write_csv(tmp_path / "good.csv", rows, FOREIGN_HEADER)
    flags = ("--mapping", "mapping.toml", "--database", database.url)
    refused = await asyncio.to_thread(tenure, "import", "sessions", str(broken), *flags)
    assert refused.code == 1
    assert f"bad.csv: line {bad + 2}: sessionKind" in refused.err, refused.err
    assert await imported_rows(database) == {}
    for imported, existing in ((FOREIGN_COUNT, 0), (0, FOREIGN_COUNT)):
        result = await asyncio.to_thread(tenure, "import", "sessions", str(good), *flags)
        assert result.out.startswith(f"{imported:,} sessions imported, {existing:,} existed already, 0 ended in")
        assert await imported_rows(database) == {values[0].lower(): expected_row(values) for values in rows}
    # Usage is counted from `started_at`, which is the time of the import.
    (billed,) = await database.rows("SELECT min(started_at) AS first, max(started_at) AS last FROM sessions")
    assert now <= instant(billed["first"]) <= instant(billed["last"]) <= datetime.now(UTC)
    audited = await run_audit(database)
    assert audited.returncode == 0, audited.stdout


async def test_command_counts_sessions_that_have_ended_in_tenure_separately(
    tenure: Tenure, database: Database, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    start, end = str(now - timedelta(days=1)), str(now + timedelta(days=1))
    file = write_csv(
        tmp_path / "a.csv", [[one := str(uuid4()), *row(start, end)], [str(uuid4()), *row(start, end)]], ID
    )
    command = ("import", "sessions", str(file), "--database", database.url, "--json")
    counts = []
    for _ in range(2):
        result = await asyncio.to_thread(tenure, *command)
        counts.append(json.loads(result.out))
        await end_one(database.store, one, CloseReason.STOPPED)
    assert [list(each.values()) for each in counts] == [[2, 0, 0, 0, False], [0, 1, 1, 0, False]]
    assert list(counts[0]) == ["imported", "existing", "endedInTenure", "ended", "dryRun"]


def test_command_creates_missing_database_and_returns_result_of_import(tmp_path: Path) -> None:
    async def nothing(_store: object) -> int:
        return 1

    config = Config(database=f"sqlite:///{tmp_path / 'a.db'}")
    assert _in_database(config, tmp_path / "a.csv", nothing) == 1


def test_dry_run_checks_file_without_database_and_creates_none(tenure: Tenure, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    good = row(str(now - timedelta(days=1)), str(now + timedelta(days=1)))
    flags = ("--database", f"sqlite:///{tmp_path / 'missing.db'}", "--dry-run")
    checked = tenure("import", "sessions", str(write_csv(tmp_path / "good.csv", [good])), *flags)
    assert (checked.code, checked.out[:28]) == (0, "1 session would be imported,")
    assert "against an empty database" in checked.err
    refused = tenure("import", "sessions", str(write_csv(tmp_path / "bad.csv", [[*good[:3], "0", *good[4:]]])), *flags)
    assert (refused.code, "bad.csv: line 2: sessionKind" in refused.err) == (1, True)
    assert not (tmp_path / "missing.db").exists()


async def test_dry_run_changes_no_schema(tenure: Tenure, empty_database: Database, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    file = write_csv(tmp_path / "a.csv", [row(str(now - timedelta(days=1)), str(now + timedelta(days=1)))])
    command = ("import", "sessions", str(file), "--database", empty_database.url, "--dry-run")
    assert (await asyncio.to_thread(tenure, *command)).code == 0
    assert await empty_database.store.schema_revision() is None
    await empty_database.store.migrate()
    await empty_database.execute("UPDATE tenure_schema SET version_num = '0000'")
    refused = await asyncio.to_thread(tenure, *command)
    assert (refused.code, "first run `tenure migrate`" in refused.err) == (2, True)
