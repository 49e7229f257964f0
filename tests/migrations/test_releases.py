"""Instances of the last two releases find the functions they call. Changes since the last release have a revision."""

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.json import decode, encode

from tenure.store import migrate
from tenure.store.engines.postgres.store import PostgresStore
from tenure.store.migrations.functions import functions_of
from tests.migrations import release
from tests.support.databases import Database, PostgresServer


@pytest.fixture
async def connection(postgres_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connected = await asyncpg.connect(postgres_database.url)
    yield connected
    await connected.close()


async def test_calls_of_last_releases_work(connection: asyncpg.Connection) -> None:
    for recorded in release.load()[-release.SUPPORTED :]:
        assert await release.faults(recorded, connection) == []


def test_every_change_since_last_release_has_revision() -> None:
    for recorded in release.load()[-1:]:
        assert release.changes(recorded) == []


# Tests of the check itself, with faults that it must report.


@pytest.fixture(scope="session")
async def recorded(postgres: PostgresServer, template: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The current state as a recorded release: written to a file, and read from it."""
    name = await postgres.create_database(template)
    folder = tmp_path_factory.mktemp("releases")
    release.save(await release.record(postgres.url(name), "1.9.0"), folder)
    await postgres.drop_database(name)
    release.save({"version": "1.10.0"}, folder)
    found, newer = release.load(folder)
    assert newer == {"version": "1.10.0"}, "versions are not in the order of their numbers"
    return found


async def test_check_reports_no_faults_for_current_state(recorded: Any, connection: asyncpg.Connection) -> None:
    assert await release.faults(recorded, connection) == []
    assert release.changes(recorded) == []


def test_save_refuses_to_overwrite_record(tmp_path: Path) -> None:
    release.save({"version": "1.0.0"}, tmp_path)
    with pytest.raises(FileExistsError):
        release.save({"version": "1.0.0"}, tmp_path)


async def test_record_contains_every_statement_of_engine(recorded: Any) -> None:
    reads = {name.split()[0] for name in recorded["postgresql"] if not name.isupper()}
    assert release.own_statements().keys() <= recorded["postgresql"].keys()
    assert len(release.own_statements()) > 30
    replaced = {name for name in release.shared_reads() if name in vars(PostgresStore)}
    assert set(release.shared_reads()) - reads == replaced, "a read sends nothing, or is not recorded"
    called = set(re.findall(r"tenure_\w+(?=\()", " ".join(each["text"] for each in recorded["postgresql"].values())))
    assert called <= functions_of("postgresql").keys()


async def test_check_reports_missing_function(recorded: Any, connection: asyncpg.Connection) -> None:
    await connection.execute("DROP FUNCTION tenure_heartbeat_1")
    (fault,) = await release.faults(recorded, connection)
    assert re.match(r"HEARTBEAT of 1\.9\.0 fails: function tenure_heartbeat_1\(.*\) does not exist", fault)


async def test_check_reports_renamed_column(recorded: Any, connection: asyncpg.Connection) -> None:
    await connection.execute("ALTER TABLE submission_attempts RENAME COLUMN holder TO maker")
    assert await release.faults(recorded, connection) == [], "a fault for a column that no statement reads"
    await connection.execute("ALTER TABLE leases RENAME COLUMN renewed_at TO renewed")
    faults = await release.faults(recorded, connection)
    assert any(fault.startswith("list_leases 1 of 1.9.0 fails") for fault in faults), faults


@pytest.mark.parametrize(
    "columns",
    [
        "lease_history int, job_runs int",
        "lease_history int, job_runs int, submissions bigint, audit_log int, alerts int, instances int, activity int",
    ],
    ids=["fewer", "of another type"],
)
async def test_check_reports_changed_result_columns(
    recorded: Any, connection: asyncpg.Connection, columns: str
) -> None:
    await connection.execute("DROP FUNCTION tenure_prune_1")
    parameters = (
        "p_name text, p_holder text, p_epoch bigint, p_limit int, p_history bigint, p_runs bigint, p_kept bigint, "
        "p_audit bigint, p_alerts bigint, p_instances bigint, p_activity bigint"
    )
    await connection.execute(
        f"CREATE FUNCTION tenure_prune_1({parameters}) RETURNS TABLE ({columns}) LANGUAGE plpgsql AS 'BEGIN END'"
    )
    (fault,) = await release.faults(recorded, connection)
    assert fault.startswith("PRUNE of 1.9.0: its columns are [['lease_history', 'int4'], ['job_runs', 'int4']")


async def test_check_reports_changed_parameter(recorded: Any, connection: asyncpg.Connection) -> None:
    await connection.execute("DROP FUNCTION tenure_mark_resigned_1")
    await connection.execute("CREATE FUNCTION tenure_mark_resigned_1(varchar, jsonb) RETURNS void LANGUAGE sql AS ''")
    (fault,) = await release.faults(recorded, connection)
    assert fault == "MARK_RESIGNED of 1.9.0: its parameters are ['varchar', 'jsonb'], and were ['text', 'jsonb']"


def _other_functions(dialect: str, **changed: str | None) -> Any:
    """A replacement for `functions_of` with changed functions of one engine. None as the text removes a function."""

    def functions(name: str) -> Mapping[str, str]:
        found = {**functions_of(name), **(changed if name == dialect else {})}
        return {name: text for name, text in found.items() if text is not None}

    return functions


async def test_check_reports_changed_procedures_of_sql_server(
    recorded: Any, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = functions_of("mssql")
    changed = {
        "tenure_heartbeat_1": None,
        "tenure_resign_lease_1": old["tenure_resign_lease_1"].replace(
            "@name varchar(200), @actor", "@lease varchar(200), @actor"
        ),
        "tenure_cut_usage_1": old["tenure_cut_usage_1"].replace("@windows AS windows", "@windows AS cut"),
    }
    monkeypatch.setattr(release, "functions_of", _other_functions("mssql", **changed))
    assert sorted(await release.faults(recorded, connection)) == [
        "CUT_USAGE of 1.9.0: tenure_cut_usage_1 returns no column windows",
        "HEARTBEAT of 1.9.0 fails: there is no procedure tenure_heartbeat_1",
        "RESIGN_LEASE of 1.9.0: tenure_resign_lease_1 has other parameters than ['@name', '@actor']",
    ]


@pytest.mark.parametrize("dialect", ["postgresql", "mssql"])
def test_check_reports_function_changed_without_revision(
    recorded: Any, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    old = functions_of(dialect)["tenure_usage_1"]
    changes = {"tenure_usage_1": f"{old} ;", "tenure_new_1": "SELECT 1", "tenure_expire_1": None}
    monkeypatch.setattr(release, "functions_of", _other_functions(dialect, **changes))
    found = [change.partition(" is not")[0] for change in release.changes(recorded)]
    assert found == [f"{name} ({dialect})" for name in ("tenure_expire_1", "tenure_new_1", "tenure_usage_1")]


def test_check_ignores_changed_comment(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = functions_of("postgresql")["tenure_usage_1"]
    monkeypatch.setattr(
        release, "functions_of", _other_functions("postgresql", tenure_usage_1=f"-- Other words.\n{old}")
    )
    assert release.changes(recorded) == []


def test_check_reports_table_changed_without_revision(recorded: Any) -> None:
    before = decode(encode(recorded))
    before["digests"]["sqlite"]["tables"] = before["digests"]["mssql"]["tables"] = "something else"
    assert [change.partition(" is not")[0] for change in release.changes(before)] == [
        "tables (mssql)",
        "tables (sqlite)",
    ]


def test_check_accepts_function_changed_with_revision(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "functions_of", _other_functions("postgresql", tenure_usage_1=None))
    monkeypatch.setattr(migrate, "required_revision", lambda: f"{int(recorded['revision']) + 1:04}")
    assert release.changes(recorded) == []
