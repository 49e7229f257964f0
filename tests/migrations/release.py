"""The statements and schema of a release: recorded at the release, checked by later versions.

During an upgrade, instances of two releases share one database, which has the tables and functions of the newer
release. So each statement of the older release must still have the same parameters and the same result columns. This
module checks the statements of the last two releases, but not the effects of the statements.

Changed tables or functions need a new revision: without a new revision, no database is upgraded.
"""

import hashlib
import inspect
import itertools
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from msgspec.structs import replace
from sqlalchemy import event
from sqlalchemy.sql.selectable import TextualSelect

from tenure.domain.activity import ActivityQuery
from tenure.domain.alerts import AlertFilter, AlertName, AlertPosition, Condition
from tenure.domain.audit_log import AuditFilter, AuditPosition
from tenure.domain.events import EventFilter, EventPosition, EventType
from tenure.domain.history import View
from tenure.domain.leases import TermFilter, TermPosition
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import LapsePosition, Position, SessionFilter
from tenure.domain.submissions import Change, SubmissionFilter
from tenure.domain.usage import Chunk, Era, GroupBy, UsageFilter, UsageSumQuery, Window
from tenure.domain.usage_records import Template
from tenure.store import migrate
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tenure.store.engines.postgres import statements, windows
from tenure.store.engines.sqlserver import calls
from tenure.store.migrations.functions import functions_of
from tenure.store.reads.shared import SharedReads
from tenure.store.reads.submissions import contract_text
from tenure.store.tables import metadata
from tenure.usage.formats import FORMATS
from tests.migrations.catalog import DIALECTS, tables_as_script
from tests.support.databases import POOL_SIZE
from tests.support.usage import CONTRACT, single_chunk

FOLDER = Path(__file__).parent / "releases"
SUPPORTED = 2
"""The number of older releases whose calls must work."""

Record = Mapping[str, Any]


# Recording


async def record(url: str, version: str) -> Record:
    """Returns the record of the current source tree. `url` is a PostgreSQL database that this tree has migrated."""
    connection = await asyncpg.connect(url)
    try:
        texts = {**own_statements(), **await shared_statements(url)}
        return {
            "version": version,
            "revision": migrate.required_revision(),
            "postgresql": {name: await described(connection, text) for name, text in texts.items()},
            "mssql": sqlserver_calls(),
            "digests": digests(),
        }
    finally:
        await connection.close()


def save(release: Record, folder: Path = FOLDER) -> Path:
    path = folder / f"{release['version']}.json"
    with path.open("x", encoding="utf-8") as file:  # fails if the record exists
        json.dump(release, file, indent=1, sort_keys=True)
        file.write("\n")
    return path


def load(folder: Path = FOLDER) -> Sequence[Record]:
    """All recorded releases, oldest first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: [int(part) for part in re.findall(r"\d+", path.stem)])
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def own_statements() -> Mapping[str, str]:
    """The statements of the PostgreSQL engine by name: the constants of `statements.py`, and those that `windows.py`
    builds.
    """
    found: dict[str, str] = {}
    for name, value in vars(statements).items():
        if isinstance(value, dict) and name.isupper():
            found |= {f"{name}.{key}": text for key, text in value.items()}
        elif isinstance(value, str) and name.isupper() and "SELECT" in value:
            found[name] = value
    eras = {"": WINDOW.era, ".long": Era(WINDOW.started_at - timedelta(days=40_000), WINDOW.era.factors)}
    by_era = {name: replace(WINDOW, era=era) for name, era in eras.items()}
    of_windows = {f"DIVIDE{name}": windows.divide_statement(window) for name, window in by_era.items()}
    for name, window in by_era.items():
        for form, template in TEMPLATES.items():
            of_windows[f"RENDER.{form}{name}"] = windows.render_statement(window, template)
            of_windows[f"DIVIDE_AND_RENDER.{form}{name}"] = windows.divide_and_render_statement(window, template)
    own = {name: text for name, text in found.items() if not name.startswith("_")}
    return {**own, **of_windows}


async def shared_statements(url: str) -> Mapping[str, str]:
    """The statements that the shared reads send through SQLAlchemy, for all combinations of SAMPLES."""
    found: dict[str, str] = {}
    store: Any = open_store(url, POOL_SIZE)
    await _put_samples(url)
    try:
        for method in shared_reads():
            sent = await _sent_by(store, method)
            found |= {f"{method} {number}": text for number, text in enumerate(sent, start=1)}
    finally:
        await store.close()
    return found


def shared_reads() -> Sequence[str]:
    """The names of the reads that the engines share. The PostgreSQL engine overrides some of these methods."""
    found = inspect.getmembers(SharedReads, inspect.iscoroutinefunction)
    return [name for name, _ in found if not name.startswith("_")]


async def described(connection: asyncpg.Connection, text: str) -> Record:
    """Returns the text of the statement, and the parameters and columns that PostgreSQL reports for it."""
    prepared = await connection.prepare(text)
    return {
        "text": text,
        "parameters": [parameter.name for parameter in prepared.get_parameters()],
        "columns": [[column.name, column.type.name] for column in prepared.get_attributes()],
    }


def sqlserver_calls() -> Mapping[str, Record]:
    found = {name: value for name, value in vars(calls).items() if isinstance(value, TextualSelect)}
    return {
        name: {
            "text": call.element.text,
            "parameters": re.findall(r"(@\w+) =", call.element.text),
            "columns": sorted(column.name for column in call.column_args),
        }
        for name, call in found.items()
    }


def digests() -> Mapping[str, Mapping[str, str]]:
    """Returns the digest of each function and of all tables, by engine."""
    return {
        dialect: {
            "tables": _digest(tables_as_script(dialect)),
            **{name: _digest(definition) for name, definition in functions_of(dialect).items()},
        }
        for dialect in DIALECTS
    }


def _digest(code: str) -> str:
    """The SHA-256 of the code without comments and layout."""
    return hashlib.sha256(" ".join(re.sub(r"--[^\n]*", "", code).split()).encode()).hexdigest()


# Arguments for the shared reads

AT = datetime(2041, 3, 1, 12, tzinfo=UTC)
ID = "00000000-0000-7000-8000-000000000007"
WINDOW = Window(
    window_id=7, installation_id=ID, started_at=AT, ended_at=AT.replace(hour=13), era=Era(AT, (1, 2, 3)), contract=None
)
TEMPLATES = {name: each.template(WINDOW) for name, each in FORMATS.items()}
SAMPLES: Mapping[Any, Sequence[Any]] = {
    str: [ID],
    int: [7],
    datetime: [AT],
    Sequence[str]: [[ID]],
    Position: [Position(AT, ID)],
    View: [View(audit=True, usage=True, deliveries=True), View(audit=False, usage=True, deliveries=False)],
    LapsePosition: [LapsePosition(AT, ID)],
    Scope: [EVERYTHING, Scope(ID), Scope(ID, ID)],
    Change: [Change(7, 7)],
    SessionFilter: [
        SessionFilter(),
        SessionFilter(tenant=ID, user=ID, capacity=ID, kind=2, state="closed", active=False, close_reason="EXPIRED"),
    ],
    SubmissionFilter: [SubmissionFilter(), SubmissionFilter(gateway="one", state="failed")],
    AuditFilter: [AuditFilter(), AuditFilter(subject="one", action="two", target="three", from_at=AT, to_at=AT)],
    AuditPosition: [AuditPosition(AT, ID)],
    AlertFilter: [AlertFilter(), AlertFilter(name="one", subject="two", active=True), AlertFilter(active=False)],
    AlertPosition: [AlertPosition(AT, ID)],
    Condition: [Condition(AlertName.JOB_FAILING, "one", "two")],
    TermFilter: [TermFilter(), TermFilter(AT, AT)],
    TermPosition: [TermPosition(AT, ID, 7)],
    ActivityQuery: [ActivityQuery(None, None, 60)],
    EventFilter: [EventFilter(), EventFilter((EventType.UPGRADED, EventType.CLOSED), ID)],
    EventPosition: [EventPosition(AT, 1, ID)],
    Window: [WINDOW],
    Chunk: [single_chunk(WINDOW)],
    Sequence[Chunk]: [[single_chunk(WINDOW)]],
    Template: list(TEMPLATES.values()),
    UsageSumQuery: [
        UsageSumQuery(factors=(1, 2, 3)),
        *(
            UsageSumQuery(from_at=AT, to_at=AT, criteria=criteria, group_by=group_by, factors=(1, 2, 3))
            for criteria in (UsageFilter(), UsageFilter(tenant=ID, capacity=ID, user=ID))
            for group_by in GroupBy
        ),
    ],
}
"""Sample values for each parameter type of a read. If a read has a parameter of a new type, `record` fails until the
type has a sample."""

_SAMPLE_ROWS = (
    f"""
    INSERT INTO jobs (name, interval_microseconds, lock_timeout_microseconds, next_run_at, run_count, failures_in_a_row,
                      paused)
    VALUES ('{ID}', 1, 1, now(), 0, 0, false)
    """,
    f"""
    INSERT INTO submissions (submission_id, created_at, last_modified_at, attempts, failures, state, gateway, caller,
                             idempotency_key, delivery_key, digest, contract)
    VALUES ('{ID}', now(), now(), 0, 0, 'pending', '', '', '', '', '', '{contract_text(CONTRACT)}')
    """,
    "INSERT INTO usage_eras VALUES (1, now() - interval '2 hours', 1, 2, 3), (2, now() - interval '1 hour', 4, 5, 6)",
    f"""
    INSERT INTO usage_windows (window_id, installation_id, started_at, ended_at, cut_at, era)
    VALUES (7, '{ID}', now() - interval '2 hours', now(), now(), 1)
    """,
    f"INSERT INTO capacities VALUES ('{ID}', NULL, now(), now(), 1, 0, 'reject')",
)
"""Without these rows, some reads return before their last statement, which would then not be recorded."""


async def _put_samples(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in _SAMPLE_ROWS:
            await connection.execute(f"{statement} ON CONFLICT DO NOTHING")
        # With a horizon after AT, the read of events continues to its last statement.
        await connection.execute("UPDATE installation SET published_at = '2041-03-02'")
    finally:
        await connection.close()


async def _sent_by(store: Any, method: str) -> Sequence[str]:
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    event.listen(store._engine.sync_engine, "before_cursor_execute", note)
    try:
        for arguments in _arguments(method):
            await getattr(store, method)(*arguments)
    finally:
        event.remove(store._engine.sync_engine, "before_cursor_execute", note)
    return sorted(
        {text for text in sent if "pg_catalog" not in text and not text.startswith(("SET ", "SELECT set_config"))}
    )


def _arguments(method: str) -> Iterator[tuple[Any, ...]]:
    hints = typing.get_type_hints(getattr(Store, method))
    hints.pop("return", None)
    return itertools.product(*(_samples(hint) for hint in hints.values()))


def _samples(hint: Any) -> Sequence[Any]:
    if isinstance(hint, types.UnionType):
        return [sample for part in typing.get_args(hint) for sample in _samples(part)]
    return [None] if hint is types.NoneType else SAMPLES[hint]


# Checking


async def faults(release: Record, connection: asyncpg.Connection) -> Sequence[str]:
    """Describes each call of the release that no longer works: calls of PostgreSQL are checked in the database of the
    connection, and calls of SQL Server against the files of the procedures.
    """
    return [*await _postgres_faults(release, connection), *_sqlserver_faults(release)]


async def _postgres_faults(release: Record, connection: asyncpg.Connection) -> Sequence[str]:
    found = []
    for name, expected in release["postgresql"].items():
        try:
            now = await described(connection, expected["text"])
        except asyncpg.PostgresError as error:
            found.append(f"{name} of {release['version']} fails: {error}")
            continue
        found += [
            f"{name} of {release['version']}: its {what} are {now[what]}, and were {expected[what]}"
            for what in ("parameters", "columns")
            if now[what] != expected[what]
        ]
    return found


def _sqlserver_faults(release: Record) -> Sequence[str]:
    """Compares texts, because not every test run has a SQL Server."""
    procedures = functions_of("mssql")
    found = []
    for name, expected in release["mssql"].items():
        called = re.findall(r"dbo\.(\w+)", expected["text"])[0]
        if called not in procedures:
            found.append(f"{name} of {release['version']} fails: there is no procedure {called}")
            continue
        code = re.sub(r"--[^\n]*", "", procedures[called])
        head, _, body = code.partition("\nAS\n")
        if re.findall(r"@\w+", head) != expected["parameters"]:
            found.append(f"{name} of {release['version']}: {called} has other parameters than {expected['parameters']}")
        result = body.rpartition("COMMIT TRANSACTION;")[2]
        found += [
            f"{name} of {release['version']}: {called} returns no column {column}"
            for column in expected["columns"]
            if not re.search(rf"(?<!@)\b{column}\b", result)
            and ("s.*" not in result or column not in metadata.tables["sessions"].c)
        ]
    return found


def changes(release: Record) -> Sequence[str]:
    """Describes what has changed since the release, unless a revision was added: each changed function, and the
    tables of each engine if they changed.
    """
    if migrate.required_revision() > release["revision"]:
        return []
    return [
        f"{what} ({dialect}) is not the same as in {release['version']}: add a revision after {release['revision']}"
        for dialect, now in digests().items()
        for what in sorted(now.keys() | release["digests"][dialect].keys())
        if now.get(what) != release["digests"][dialect].get(what)
    ]
