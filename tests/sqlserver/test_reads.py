"""The shared reads and the migration, as SQL Server will see them."""

import inspect
import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.dialects.mssql import aioodbc
from sqlalchemy.sql.selectable import TextualSelect

from tenure.clock import to_microseconds
from tenure.deadlines import opened
from tenure.model.sessions import Position, SessionFilter
from tenure.model.submissions import Change, SubmissionFilter
from tenure.store import capacities, leases, migrate, sessions, submissions, tables
from tenure.store.engines.sqlserver import calls, reads
from tenure.store.types import Id
from tests.sqlserver import tsql
from tests.support.wishes import LIMITS, NOON, wish

AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
AFTER = Position(AT, "00000000-0000-0000-0000-00000000000a")
EVERYTHING = SessionFilter(
    tenant="00000000-0000-0000-0000-00000000000b",
    user="00000000-0000-0000-0000-00000000000c",
    capacity="00000000-0000-0000-0000-00000000000d",
    kind=2,
    state="closed",
    active=False,
    close_reason="EXPIRED",
)
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "get_statement": [("00000000-0000-0000-0000-00000000000e",)],
    "whole_statement": [("00000000-0000-0000-0000-00000000000e",)],
    "list_statement": list(itertools.product([SessionFilter(), EVERYTHING], [None, AFTER], [7], [AT])),
    "count_statement": [(AT,)],
    "close_statement": [(opened(wish(), LIMITS, NOON),)],
}
STATEMENTS = [name for name, _ in inspect.getmembers(sessions, inspect.isfunction) if name.endswith("_statement")]


def rendered(statement: Any) -> str:
    return str(
        statement.compile(dialect=aioodbc.dialect(paramstyle="qmark"), compile_kwargs={"render_postcompile": True})
    )


def script() -> list[str]:
    """The migrations in batches, without comments."""
    return [tsql.code(batch) for batch in re.split(r"^GO$", migrate.script(None, "mssql"), flags=re.MULTILINE)]


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_shared_statement_compiles(name: str) -> None:
    for arguments in ARGUMENTS[name]:
        assert "sessions" in rendered(getattr(sessions, name)(*arguments))


def test_reads_the_clock_of_the_database_by_the_name_it_has_there() -> None:
    assert "dbo.tenure_now()" in rendered(sessions.get_statement("00000000-0000-0000-0000-00000000000e"))


def test_limits_a_page_in_the_words_of_sql_server() -> None:
    assert "TOP 7" in rendered(sessions.list_statement(EVERYTHING, AFTER, 7, AT))


def test_counts_the_seats_of_a_capacity_by_one_instant() -> None:
    statement = capacities.with_live(AT).order_by(tables.capacities.c.capacity_id).limit(7)
    assert re.search(r"SELECT TOP 7 .*\(SELECT count\(\*\) .*\) AS active_sessions", tsql.code(rendered(statement)))


class Asked:
    """A connection that notes what it is asked, and has one row of nothing to say."""

    def __init__(self) -> None:
        self.statements: list[Any] = []

    def execute(self, statement: Any) -> "Asked":
        self.statements.append(statement)
        return self

    def mappings(self) -> "Asked":
        return self

    def all(self) -> list[Any]:
        return []

    def first(self) -> None:
        return None

    def scalar_one(self) -> datetime:
        return AT

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def one_or_none(self) -> object:
        return ()


READS_OF_LEASES = {
    "list_leases": (leases.list_leases, ("leader", 7)),
    "list_jobs": (leases.list_jobs, ("tidy", 7)),
    "list_runs": (leases.list_runs, ("tidy", 9, 7)),
    "read_board": (leases.read_board, (["leader", "other"],)),
}


READS_OF_SUBMISSIONS = {
    "get_submission": (submissions.get_submission, (AFTER.session_id,)),
    "read_parcels": (submissions.read_parcels, ([AFTER.session_id] * 3,)),
    "list_waiting": (reads.list_waiting, (Change(to_microseconds(AT), 10), 7)),
    "list_submissions": (
        reads.list_submissions,
        (SubmissionFilter(gateway="pager", state="failed"), AFTER.session_id, 7),
    ),
}
READS: dict[str, tuple[Any, tuple[Any, ...]]] = {**READS_OF_LEASES, **READS_OF_SUBMISSIONS}


def asked(name: str) -> Any:
    """The last statement of a read."""
    connection: Any = Asked()
    read, arguments = READS[name]
    read(connection, *arguments)
    return connection.statements[-1]


@pytest.mark.parametrize("name", ["list_leases", "list_jobs", "list_runs"])
def test_a_page_of_leases_or_jobs_is_limited_in_the_words_of_sql_server(name: str) -> None:
    assert re.match(r"SELECT TOP 7 .* ORDER BY \w+\.\w+( DESC)?$", tsql.code(rendered(asked(name))))


def test_the_board_is_one_statement_whose_halves_have_the_same_types() -> None:
    board = tsql.code(rendered(asked("read_board")))
    assert board.count("UNION ALL") == 1
    nothing = re.findall(r"CAST\(NULL AS (\w+)", board.partition("UNION ALL")[2])
    assert len(nothing) == len(tables.jobs.c)
    assert (nothing[0], nothing[-2], nothing[-1]) == ("VARCHAR", "NVARCHAR", "BIT")


@pytest.mark.parametrize("name", READS_OF_SUBMISSIONS)
def test_every_read_of_submissions_compiles(name: str) -> None:
    assert " FROM submissions " in tsql.code(rendered(asked(name)))


def test_a_page_of_the_schedule_is_found_in_its_index() -> None:
    page = tsql.code(rendered(asked("list_waiting")))
    assert re.match(r"SELECT TOP 7 ", page)
    assert "submissions.state = 'pending' ORDER BY submissions.last_modified_at, submissions.submission_id" in page
    known = {column.name for column in tables.submissions_waiting.columns}
    known |= set(tables.submissions_waiting.dialect_kwargs["mssql_include"])
    assert set(re.findall(r"submissions\.(\w+)", page)) <= known


def test_a_page_of_submissions_begins_with_the_newest_by_the_text_of_their_ids() -> None:
    page = tsql.code(rendered(asked("list_submissions")))
    newest_first = r"ORDER BY CAST\(submissions\.submission_id AS VARCHAR\(36\)\) COLLATE Latin1_General_100_BIN2 DESC"
    assert re.search(rf"IN \(SELECT TOP 7 .* {newest_first}\) {newest_first}$", page)


def test_a_page_of_submissions_goes_on_before_the_text_that_sql_server_has_of_an_id() -> None:
    page = reads.submissions_page(SubmissionFilter(), AFTER.session_id, 7)
    assert AFTER.session_id.upper() in page.compile(dialect=aioodbc.dialect(paramstyle="qmark")).params.values()


def test_a_state_is_part_of_the_text_so_that_its_index_is_used() -> None:
    assert re.findall(r"submissions\.state = (\S+)", tsql.code(rendered(asked("list_submissions")))) == ["'failed'"]


def test_a_state_in_the_text_cannot_say_more_than_a_state() -> None:
    page = rendered(reads.submissions_page(SubmissionFilter(state="' OR 1 = 1"), None, 7))
    assert "submissions.state = ''' OR 1 = 1'" in page


@pytest.mark.parametrize(
    "statement",
    [
        *map(asked, READS_OF_LEASES),
        asked("list_waiting"),
        asked("list_submissions"),
        calls.RENEW_LEASE,
        calls.BEGIN_RUN,
        calls.FINISH_RUN,
        calls.ACCEPT_SUBMISSIONS,
        calls.BEGIN_ATTEMPTS,
    ],
)
def test_texts_travel_as_what_their_columns_are(statement: Any) -> None:
    """As NVARCHAR, a name would have its column converted."""
    dialect = aioodbc.dialect(paramstyle="qmark")
    types = [
        parameter.type.dialect_impl(dialect)
        for parameter in statement.compile(dialect=dialect).bind_names
        if parameter.type.python_type is str and not isinstance(parameter.type, Id)
    ]
    assert types
    assert [each for each in types if not str(each).startswith("VARCHAR")] == []


CALLS = {name: value for name, value in vars(calls).items() if isinstance(value, TextualSelect)}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_one_statement_with_parameters(name: str) -> None:
    assert re.fullmatch(r"EXEC dbo\.tenure_\w+_\d (@\w+ = \?, )*@\w+ = \?;", rendered(CALLS[name]))


@pytest.mark.parametrize("statement", [*CALLS.values(), calls.BEGIN_MIGRATION], ids=[*CALLS, "BEGIN_MIGRATION"])
def test_an_answer_is_waited_for_behind_messages(statement: Any) -> None:
    assert statement.get_execution_options()["answers"]


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_has_every_column_that_is_read_from_it(name: str) -> None:
    procedure = rendered(CALLS[name]).split()[1].removeprefix("dbo.")
    answer = tsql.code(tsql.routines()[procedure]).rpartition("COMMIT TRANSACTION;")[2]
    listed = re.split(r" FROM | WHERE |;", answer.partition("SELECT")[2])[0]
    columns = {column.split(".")[-1].split(" AS ")[-1].strip() for column in listed.split(",")}
    if "*" in columns:
        columns |= {column.name for column in tables.sessions.c}
    assert {column.name for column in CALLS[name].selected_columns} <= columns


def test_lets_alembic_count_the_rows_that_it_changes() -> None:
    """Without a count of the row that bears the revision, Alembic takes every migration but the first for failed."""
    before_the_answer = tsql.code(tsql.constants()["BEGIN_MIGRATION"]).rpartition("SELECT")[0]
    assert re.findall(r"SET NOCOUNT (ON|OFF);", before_the_answer)[-1] == "OFF"


def test_the_migration_creates_every_routine_in_a_batch_of_its_own() -> None:
    creating = [batch for batch in script() if re.search(r"CREATE (FUNCTION|PROCEDURE)", batch)]
    assert len(creating) == len(tsql.routines())
    assert [batch[:40] for batch in creating if not re.match(r"CREATE (FUNCTION|PROCEDURE) dbo\.", batch)] == []


def test_the_migration_keeps_microseconds_and_ids_and_short_texts_as_they_should_be() -> None:
    tables = " ".join(batch for batch in script() if batch.startswith("CREATE TABLE"))
    types = set(
        re.findall(
            r"\b(?:DATETIME|DATETIME2|DATETIMEOFFSET|N?VARCHAR|N?CHAR|UNIQUEIDENTIFIER|VARBINARY|IMAGE|N?TEXT)\b"
            r"(?:\(\w+\))?",
            tables,
        )
    )
    texts = {"VARCHAR(16)", "VARCHAR(32)", "VARCHAR(200)", "NVARCHAR(1000)", "NVARCHAR(max)"}
    assert types == {"DATETIME2(6)", "UNIQUEIDENTIFIER", "VARBINARY(32)", "VARBINARY(255)", "VARBINARY(max)", *texts}


def test_the_migration_tells_capitals_from_small_letters_in_names() -> None:
    made = " ".join(batch for batch in script() if batch.startswith("CREATE TABLE"))
    names = re.findall(r"VARCHAR\(200\)( COLLATE \w+)?", made)
    assert set(names) == {" COLLATE Latin1_General_100_BIN2"}


@pytest.mark.parametrize(
    ("index", "condition"),
    [
        ("sessions_live_key", "closed_at IS NULL"),
        ("sessions_closed_at", "closed_at IS NOT NULL"),
        ("sessions_check_at", "check_at IS NOT NULL"),
        ("submissions_waiting", "state = 'pending'"),
        ("submissions_failed", "state = 'failed'"),
        ("submissions_ended_at", "state IN ('delivered', 'cancelled')"),
        ("submission_attempts_open", "ended_at IS NULL"),
    ],
)
def test_the_migration_filters_the_indexes_that_the_procedures_name(index: str, condition: str) -> None:
    (created,) = [batch for batch in script() if f"INDEX {index} " in batch]
    assert created.rstrip(";").endswith(f"WHERE {condition}")
