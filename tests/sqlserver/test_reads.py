"""The shared reads and the migration, as SQL Server will see them."""

import inspect
import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.dialects.mssql import aioodbc
from sqlalchemy.sql.selectable import TextualSelect
from sqlfluff.core import FluffConfig, Linter

from tenure.clock import to_microseconds
from tenure.deadlines import opened
from tenure.model.sessions import Position, SessionFilter
from tenure.model.submissions import Change, SubmissionFilter
from tenure.model.usage import Era, GroupBy, Overlap, Piece, UsageFilter, UsageQuestion, Window
from tenure.store import capacities, leases, lives, migrate, sessions, submissions, tables, usage
from tenure.store.engines.sqlserver import calls, reads
from tenure.store.types import Id, Instant
from tests.sqlserver import tsql
from tests.support.databases import Database
from tests.support.usage import lived, lives_of, put_sessions, sum_of, whole
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
    "overlaps_statement": [(7,)],
}
STATEMENTS = [name for name, _ in inspect.getmembers(sessions, inspect.isfunction) if name.endswith("_statement")]


def rendered(statement: Any) -> str:
    return str(
        statement.compile(dialect=aioodbc.dialect(paramstyle="qmark"), compile_kwargs={"render_postcompile": True})
    )


ONE, OTHER = AFTER.session_id, "00000000-0000-0000-0000-00000000000f"
ERAS = [Era(AT, (10**10, 2 * 10**10, 3 * 10**10)), Era(AT + timedelta(hours=2), (4, 5, 6))]
WINDOW = Window(
    installation_id=OTHER,
    window_id=9,
    started_at=AT,
    ended_at=AT + timedelta(minutes=1),
    era=ERAS[0],
    contract=None,
)
SPANS = [(ERAS[0], AT, ERAS[1].started_at), (ERAS[1], ERAS[1].started_at, AT + timedelta(hours=3))]


def question(group_by: GroupBy | None) -> UsageQuestion:
    criteria = UsageFilter(tenant=EVERYTHING.tenant, capacity=EVERYTHING.capacity, user=EVERYTHING.user)
    return UsageQuestion(from_at=AT, to_at=SPANS[-1][2], criteria=criteria, group_by=group_by, factors=(4, 5, 6))


GROUPS = [(None, None), (GroupBy.KIND, "2"), *((each, ONE) for each in GroupBy if each is not GroupBy.KIND)]
USAGE_ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "windows_statement": [(None, 7), (9, 7)],
    "unchunked_statement": [(7,)],
    "window_statement": [(7,)],
    "find_statement": [([ONE, OTHER],)],
    "awaited_statement": [()],
    "deliveries_statement": [(9,)],
    "overlaps_statement": [(7,)],
    "divide_statement": list(itertools.product([WINDOW], [None, ONE], [7], [reads.BY_ID])),
    "lives_statement": [(WINDOW, ONE, OTHER, reads.BY_ID)],
    "list_statement": list(itertools.product([WINDOW], [None, ONE], [7], [reads.BY_ID])),
    "sums_statement": [
        (question(group_by), spans, after, 7, reads.BY_ID)
        for (group_by, after), spans in itertools.product(GROUPS, [SPANS, SPANS[:1]])
    ],
}
USAGE_STATEMENTS = {
    name: function
    for module in (usage, lives)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if name.endswith("_statement")
} | {"overlaps_statement": sessions.overlaps_statement}
OF_SESSIONS = ["divide_statement", "lives_statement", "list_statement", "sums_statement"]


def usage_statements(name: str) -> list[Any]:
    return [USAGE_STATEMENTS[name](*arguments) for arguments in USAGE_ARGUMENTS[name]]


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


@pytest.mark.parametrize("name", USAGE_STATEMENTS)
def test_every_statement_of_usage_is_tsql(name: str) -> None:
    linter = Linter(config=FluffConfig(overrides={"dialect": "tsql"}))
    for statement in usage_statements(name):
        text = rendered(statement).replace("?", "@given") + ";\n"
        assert [str(violation) for violation in linter.parse_string(text).violations] == []


@pytest.mark.parametrize("name", USAGE_STATEMENTS)
def test_every_inner_order_of_usage_has_a_limit(name: str) -> None:
    """SQL Server refuses an ORDER BY in a subquery that has no TOP."""
    ordered = [
        re.findall(r"\(SELECT (?!TOP)[^()]*ORDER BY", tsql.code(rendered(each))) for each in usage_statements(name)
    ]
    assert [each for each in ordered if each] == []


@pytest.mark.parametrize("name", OF_SESSIONS)
def test_reads_the_sessions_of_a_window_once_and_by_their_ids(name: str) -> None:
    for statement in usage_statements(name):
        text = tsql.code(rendered(statement))
        assert re.findall(r"FROM sessions\b ?(WITH \(INDEX \(\w+\)\))?", text) == [reads.BY_ID]


@pytest.mark.parametrize("name", ["divide_statement", "lives_statement"])
def test_a_session_of_a_window_ends_when_it_was_closed_or_at_its_deadline(name: str) -> None:
    for statement in usage_statements(name):
        text = tsql.code(rendered(statement))
        assert "WHERE sessions.started_at < ? AND coalesce(sessions.closed_at, sessions.deadline_at) > ?" in text


SECOND = timedelta(seconds=1)
ENDS = [AT - SECOND, AT, AT + SECOND, WINDOW.ended_at, WINDOW.ended_at + SECOND]


async def test_what_is_read_by_ids_is_what_was_lived(sqlite_database: Database) -> None:
    """On an engine that is here: only the hint is SQL Server's own."""
    made = [lived(AT - 2 * SECOND, end, closed=closed, kind=2) for end in ENDS for closed in (True, False)]
    made += [lived(start, start + 9 * SECOND, kind=3) for start in (AT, AT + SECOND, WINDOW.ended_at)]
    await put_sessions(sqlite_database, made)
    store: Any = sqlite_database.store
    found = await store._read(lambda connection: lives.read_lives(connection, WINDOW, whole(WINDOW), reads.BY_ID))
    assert found == lives_of(made, WINDOW)
    some = await store._read(lambda connection: lives.list_lives(connection, WINDOW, None, 3, reads.BY_ID))
    assert some == found[:3]
    (piece,) = await store._read(lambda connection: lives.divide_window(connection, WINDOW, None, 1, reads.BY_ID))
    assert piece == Piece(found[0].session_id, found[-1].session_id, len(found), sum_of(found, WINDOW.era.factors))


def test_divides_a_window_in_the_order_of_ids() -> None:
    text = tsql.code(rendered(lives.divide_statement(WINDOW, ONE, 7, reads.BY_ID)))
    assert re.search(
        r"\(SELECT TOP 7000 sessions\.session_id .* AND sessions\.session_id > \? ORDER BY sessions\.session_id\)", text
    )


def test_reads_the_lives_of_a_chunk_between_its_ids() -> None:
    text = tsql.code(rendered(lives.lives_statement(WINDOW, ONE, OTHER, reads.BY_ID)))
    assert re.search(
        r"sessions\.session_id >= \? AND sessions\.session_id <= \?\) AS lived ORDER BY lived\.session_id$", text
    )


@pytest.mark.parametrize("name", USAGE_STATEMENTS)
def test_instants_of_usage_have_their_type(name: str) -> None:
    dialect = aioodbc.dialect(paramstyle="qmark")
    for statement in usage_statements(name):
        parameters = list(statement.compile(dialect=dialect).bind_names)
        assert [
            each for each in parameters if isinstance(each.value, datetime) and not isinstance(each.type, Instant)
        ] == []


def test_an_instant_that_stands_alone_is_told_with_its_type() -> None:
    """As text it would be compared as text."""
    spans = re.findall(
        r"SELECT CAST\(\? AS DATETIME2\(6\)\) AS era_started_at, CAST\(\? AS DATETIME2\(6\)\) AS from_at, "
        r"CAST\(\? AS DATETIME2\(6\)\) AS to_at",
        tsql.code(rendered(lives.sums_statement(question(None), SPANS, None, 7, reads.BY_ID))),
    )
    assert len(spans) == len(SPANS)


@pytest.mark.parametrize("name", USAGE_STATEMENTS)
def test_no_parameter_of_usage_is_nothing(name: str) -> None:
    """The driver would ask the server for its type, which cannot always tell it."""
    dialect = aioodbc.dialect(paramstyle="qmark")
    given = [value for each in usage_statements(name) for value in each.compile(dialect=dialect).params.values()]
    assert None not in given


class Telling:
    """A connection that has an answer for each statement, one after the other."""

    def __init__(self, *answers: list[Any]) -> None:
        self._answers = list(answers)

    def execute(self, _statement: Any) -> "Telling":
        self._told = self._answers.pop(0)
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._told)

    def one_or_none(self) -> Any:
        return self._told[0] if self._told else None

    @property
    def left(self) -> int:
        return len(self._answers)


WAITING = (1, None, ONE, "key", "pending", 0)
HALF = (1, None, ONE, "key", "delivered", 1)
DELIVERED = (1, AT, ONE, "key", "delivered", 1)


def test_deliveries_are_told_as_they_were_seen_twice() -> None:
    connection: Any = Telling([WAITING], [HALF], [DELIVERED], [DELIVERED], [])
    (found,) = reads.list_deliveries(connection, 9)
    assert (found.delivered_at, found.state) == (AT, "delivered")
    assert connection.left == 1


def test_deliveries_that_never_look_the_same_are_told_at_last() -> None:
    looks = [[(1, None, ONE, "key", "pending", number)] for number in range(reads.LOOKS_MAX)]
    connection: Any = Telling(*looks)
    (found,) = reads.list_deliveries(connection, 9)
    assert found.delivered_attempts == reads.LOOKS_MAX - 1


def test_an_overlap_is_told_only_if_it_is_still_there() -> None:
    connection: Any = Telling([(ONE, OTHER), (OTHER, ONE)], [], [(OTHER,)])
    assert reads.find_overlaps(connection, 7) == [Overlap(OTHER, ONE)]


def test_looks_for_an_overlap_again_by_the_ids_of_both() -> None:
    text = tsql.code(rendered(reads.overlap_statement(Overlap(ONE, OTHER))))
    assert text.endswith(
        "FROM sessions AS one JOIN sessions AS other ON other.started_at < coalesce(one.closed_at, one.deadline_at) "
        "WHERE one.session_id = ? AND other.session_id = ?"
    )


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
        calls.CUT_USAGE,
        usage.deliveries_statement(9),
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
        ("usage_chunks_submission", "submission_id IS NOT NULL"),
        ("usage_chunks_undelivered", "delivered_at IS NULL"),
        ("usage_windows_unchunked", "chunked_at IS NULL"),
        ("usage_windows_awaited", "delivered_at IS NULL AND contract IS NOT NULL"),
    ],
)
def test_the_migration_filters_the_indexes_that_the_procedures_name(index: str, condition: str) -> None:
    (created,) = [batch for batch in script() if f"INDEX {index} " in batch]
    assert created.rstrip(";").endswith(f"WHERE {condition}")
