"""The reads that several engines share, and the migrations, compiled for SQL Server."""

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
from tenure.domain.alerts import AlertFilter, AlertPosition
from tenure.domain.audit_log import AuditFilter, AuditPosition
from tenure.domain.deadlines import opened
from tenure.domain.scope import Scope
from tenure.domain.sessions import LapsePosition, Position, SessionFilter
from tenure.domain.submissions import Change, SubmissionFilter
from tenure.domain.usage import ChunkBounds, Era, GroupBy, Overlap, UsageFilter, UsageSumQuery, Window
from tenure.domain.usage_records import Field, render_records
from tenure.store import migrate, tables
from tenure.store.engines.sqlserver import calls, reads
from tenure.store.reads import (
    alerts,
    capacities,
    history,
    intervals,
    keys,
    leases,
    session_lapses,
    session_list,
    session_matches,
    sessions,
    submissions,
    usage,
    usage_sums,
)
from tenure.store.types import Id, Instant
from tests.sqlserver import tsql
from tests.support.databases import Database
from tests.support.open_requests import LIMITS, NOON, request
from tests.support.usage import billable_intervals, insert_sessions, session_between, single_chunk, sum_of

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
SCOPES = [Scope(), Scope(AFTER.session_id), Scope(AFTER.session_id, AFTER.session_id)]
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "get_statement": list(itertools.product(["00000000-0000-0000-0000-00000000000e"], SCOPES)),
    "whole_statement": [("00000000-0000-0000-0000-00000000000e",)],
    "count_statement": list(itertools.product([AT], SCOPES)),
    "total_statement": [(scope,) for scope in SCOPES],
    "close_statement": [(opened(request(), LIMITS, NOON),)],
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


MARKS = (AT, AT + timedelta(hours=1))


def sum_query(group_by: GroupBy | None) -> UsageSumQuery:
    criteria = UsageFilter(tenant=EVERYTHING.tenant, capacity=EVERYTHING.capacity, user=EVERYTHING.user)
    return UsageSumQuery(from_at=AT, to_at=SPANS[-1][2], criteria=criteria, group_by=group_by, factors=(4, 5, 6))


GROUPS = [(None, None), (GroupBy.KIND, "2"), *((each, ONE) for each in GroupBy if each is not GroupBy.KIND)]
USAGE_ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "windows_statement": [(None, 7), (9, 7)],
    "undivided_statement": [(7,)],
    "unsent_statement": [(AT, None, AT, 7), (AT, AT, AT, 7)],
    "unsent_usage_statement": [(AT,)],
    "window_statement": [(7,)],
    "find_statement": [([ONE, OTHER],)],
    "delivered_statement": [([ONE, OTHER],)],
    "undelivered_statement": [()],
    "selected_windows_statement": [([1, 2],)],
    "first_window_statement": [(AT,)],
    "last_window_statement": [(AT,)],
    "following_statement": [(opened(request(), LIMITS, NOON), AT)],
    "newcomers_statement": [(ONE, AT, scope) for scope in SCOPES],
    "chunks_statement": [(ONE, [1, 2])],
    "eras_statement": [(1, 9)],
    "next_without_contract_statement": [(1, 9)],
    "next_with_contract_statement": [(1, 9)],
    "waiting_statement": [(1, 9)],
    "end_entry_statement": [(ONE,)],
    "deliveries_statement": [(9,)],
    "overlaps_statement": [(7,)],
    "divide_statement": list(itertools.product([WINDOW], [None, ONE], [7], [reads.BY_ID])),
    "intervals_statement": [(WINDOW, ONE, OTHER, reads.BY_ID)],
    "list_statement": list(itertools.product([WINDOW], [None, ONE], [7], [reads.BY_ID])),
    "sums_statement": [
        (sum_query(group_by), spans, after, 7, reads.BY_ID)
        for (group_by, after), spans in [*itertools.product(GROUPS, [SPANS]), (GROUPS[0], SPANS[:1])]
    ],
    "marked_statement": [
        (sum_query(group_by), MARKS, [SPANS, SPANS[:1]], after, 7, reads.BY_ID)
        for group_by, after in GROUPS
        if group_by is None or group_by in usage_sums.MARK_KEYS
    ],
    "mark_statement": [(SPANS, SPANS[-1][2], 7, reads.BY_ID)],
    "marks_statement": [MARKS],
    "all_marks_statement": [()],
    "mark_rows_statement": [(AT,)],
}
USAGE_STATEMENTS = {
    name: function
    for module in (usage, intervals, usage_sums, history)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if name.endswith("_statement")
} | {"overlaps_statement": sessions.overlaps_statement}
OF_SESSIONS = ["divide_statement", "intervals_statement", "list_statement", "sums_statement", "mark_statement"]


def usage_statements(name: str) -> list[Any]:
    return [USAGE_STATEMENTS[name](*arguments) for arguments in USAGE_ARGUMENTS[name]]


def script() -> list[str]:
    """Returns the batches of the migration script, without comments."""
    return [tsql.code(batch) for batch in re.split(r"^GO$", migrate.script(None, "mssql"), flags=re.MULTILINE)]


@tsql.for_each(STATEMENTS)
def test_shared_session_statements_compile(name: str) -> None:
    for arguments in ARGUMENTS[name]:
        assert "sessions" in rendered(getattr(sessions, name)(*arguments))


def test_session_read_uses_database_clock_function() -> None:
    assert "dbo.tenure_now()" in rendered(sessions.get_statement("00000000-0000-0000-0000-00000000000e", Scope()))


class ListConnection:
    """Records the statements. Its results describe a large table: each index has more entries for a filter than a read
    may use, but only few sessions are due for the sweep.
    """

    def __init__(self) -> None:
        self.statements: list[str] = []

    def execute(self, statement: Any) -> "ListConnection":
        self.statements.append(rendered(statement))
        return self

    def scalar_one(self) -> Any:
        return 10**9 if "count(*)" in self.statements[-1] else AT

    def scalar_one_or_none(self) -> datetime:
        return AT

    def one_or_none(self) -> None:
        return None

    def one(self) -> tuple[int, int]:
        return 1, 1

    def first(self) -> tuple[int]:
        return (1,)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def all(self) -> list[Any]:
        return []


LIST_FILTERS = {name: getattr(EVERYTHING, name) for name in EVERYTHING.__struct_fields__}


def listed(**criteria: Any) -> list[str]:
    """Returns the statements that `list_sessions` executes for a page. The last one reads the page."""
    connection: Any = ListConnection()
    session_list.list_sessions(connection, SessionFilter(**criteria), AFTER, 7, Scope())
    return [tsql.code(statement) for statement in connection.statements]


def test_session_pages_compile_and_are_limited_by_top() -> None:
    pairs = [dict(pair) for size in (0, 1, 2) for pair in itertools.combinations(LIST_FILTERS.items(), size)]
    for criteria in (*pairs, LIST_FILTERS):
        *_, page = listed(**criteria)
        assert " IS TRUE" not in page
        assert page.count("SELECT TOP 7 ") == 2 + page.count("UNION ALL"), criteria
    linter = Linter(config=FluffConfig(overrides={"dialect": "tsql"}))
    for statement in (*listed(tenant=ONE, capacity=OTHER), *listed(user=ONE, active=False), *listed(kind=2)[:-1]):
        violations = linter.parse_string(statement.replace("?", "@given") + ";\n").violations
        assert [str(violation) for violation in violations] == []


def test_lapses_and_counts_are_valid_tsql() -> None:
    statements = []
    for criteria in ({"capacity": ONE, "active": True}, {"tenant": ONE, "kind": 2, "state": "active"}):
        for of in (session_lapses.list_next_lapses, session_matches.count_matches):
            connection: Any = ListConnection()
            arguments: Any = [LapsePosition(AT, ONE), 7] if of is session_lapses.list_next_lapses else []
            of(connection, SessionFilter(**criteria), *arguments, Scope())
            statements += connection.statements
    linter = Linter(config=FluffConfig(overrides={"dialect": "tsql"}))
    for statement in dict.fromkeys(statements):
        text = tsql.code(statement)
        assert " IS TRUE" not in text
        assert re.findall(r"\(SELECT (?!TOP)[^()]*ORDER BY(?![^()]*OFFSET)", text) == [], text
        violations = linter.parse_string(text.replace("?", "@given") + ";\n").violations
        assert [str(violation) for violation in violations] == [], text


def test_session_page_names_conditions_of_filtered_indexes() -> None:
    (_, page) = listed(tenant=ONE)
    closed, live = page.split(" UNION ALL ")
    assert "sessions.close_reason IS NULL" in live
    assert "sessions.close_reason IS NOT NULL" in closed


def test_capacity_read_counts_live_sessions_in_subquery() -> None:
    statement = capacities.with_live(AT, Scope(ONE)).order_by(tables.capacities.c.capacity_id).limit(7)
    assert re.search(r"SELECT TOP 7 .*\(SELECT count\(\*\) .*\) AS active_sessions", tsql.code(rendered(statement)))


@tsql.for_each(USAGE_STATEMENTS)
def test_usage_statements_are_valid_tsql(name: str) -> None:
    linter = Linter(config=FluffConfig(overrides={"dialect": "tsql"}))
    for statement in usage_statements(name):
        text = rendered(statement).replace("?", "@given") + ";\n"
        assert [str(violation) for violation in linter.parse_string(text).violations] == []


ALERT_STATEMENTS = {
    "list": alerts.list_statement(
        AlertFilter(name="job-failing", subject="prune", active=True), AlertPosition(AT, ONE), 7
    ),
    "jobs": alerts.jobs_statement(),
    "changes": alerts.changes_statement(["lead"], AT),
    "awaited": alerts.awaited_statement(),
    "chunks": alerts.chunks_statement([1, 2]),
    "ends": alerts.ends_statement(AT, 7),
    "openings among ends": alerts.openings_among_ends_statement(AT, 7, AT),
    "openings": alerts.openings_statement(1, AT, 7),
    "live": alerts.live_statement(),
    "lapsed": alerts.lapsed_statement(AT),
    "taken": alerts.taken_statement(),
    "lapsed seats": alerts.lapsed_seats_statement(AT),
    "pending": alerts.pending_statement("crm"),
}


@tsql.for_each(ALERT_STATEMENTS)
def test_alert_statements_are_valid_tsql(name: str) -> None:
    linter = Linter(config=FluffConfig(overrides={"dialect": "tsql"}))
    text = rendered(ALERT_STATEMENTS[name])
    assert [str(violation) for violation in linter.parse_string(text.replace("?", "@given") + ";\n").violations] == []
    assert re.findall(r"\(SELECT (?!TOP)[^()]*ORDER BY", tsql.code(text)) == []


@tsql.for_each(USAGE_STATEMENTS)
def test_usage_subqueries_with_order_by_have_top(name: str) -> None:
    """SQL Server refuses an ORDER BY in a subquery that has no TOP."""
    ordered = [
        re.findall(r"\(SELECT (?!TOP)[^()]*ORDER BY", tsql.code(rendered(each))) for each in usage_statements(name)
    ]
    assert [each for each in ordered if each] == []


@tsql.for_each(OF_SESSIONS)
def test_usage_statements_read_sessions_once_by_primary_key(name: str) -> None:
    for statement in usage_statements(name):
        text = tsql.code(rendered(statement))
        assert re.findall(r"FROM sessions\b ?(WITH \(INDEX \(\w+\)\))?", text) == [reads.BY_ID]


def test_sum_with_marks_reads_sessions_before_and_after_marks_by_primary_key() -> None:
    for statement in usage_statements("marked_statement"):
        text = tsql.code(rendered(statement))
        assert re.findall(r"FROM sessions\b ?(WITH \(INDEX \(\w+\)\))?", text) == [reads.BY_ID] * 2
    for statement in usage_sums.count_statements(sum_query(None), *MARKS, reads.BY_ID):
        assert re.findall(r"FROM sessions\b ?(WITH \(INDEX \(\w+\)\))?", tsql.code(rendered(statement))) == [
            reads.BY_ID
        ]


@tsql.for_each(["divide_statement", "intervals_statement"])
def test_window_statements_end_sessions_at_close_or_deadline(name: str) -> None:
    for statement in usage_statements(name):
        text = tsql.code(rendered(statement))
        assert "WHERE sessions.started_at < ? AND coalesce(sessions.closed_at, sessions.deadline_at) > ?" in text


SECOND = timedelta(seconds=1)
ENDS = [AT - SECOND, AT, AT + SECOND, WINDOW.ended_at, WINDOW.ended_at + SECOND]


async def test_reads_by_id_return_billable_intervals_of_window(sqlite_database: Database) -> None:
    """Runs on SQLite: these reads differ on SQL Server only in the index hint `reads.BY_ID`, which SQLite ignores."""
    made = [session_between(AT - 2 * SECOND, end, closed=closed, kind=2) for end in ENDS for closed in (True, False)]
    made += [session_between(start, start + 9 * SECOND, kind=3) for start in (AT, AT + SECOND, WINDOW.ended_at)]
    await insert_sessions(sqlite_database, made)
    store: Any = sqlite_database.store
    found = await store._read(
        lambda connection: intervals.read_intervals(connection, WINDOW, single_chunk(WINDOW), reads.BY_ID)
    )
    assert found == billable_intervals(made, WINDOW)
    some = await store._read(lambda connection: intervals.list_intervals(connection, WINDOW, None, 3, reads.BY_ID))
    assert some == found[:3]
    (chunk_bounds,) = await store._read(
        lambda connection: intervals.divide_window(connection, WINDOW, None, 1, reads.BY_ID)
    )
    assert chunk_bounds == ChunkBounds(
        found[0].session_id, found[-1].session_id, len(found), sum_of(found, WINDOW.era.factors)
    )
    template = (Field.SESSION_ID, " ", Field.FROM_AT, " ", Field.TO_AT)
    chunks = [single_chunk(WINDOW)]
    records = await store._read(
        lambda connection: intervals.render_chunks(connection, WINDOW, chunks, template, reads.BY_ID)
    )
    assert records == [render_records(template, WINDOW, found)]


def test_divide_statement_orders_by_session_id() -> None:
    text = tsql.code(rendered(intervals.divide_statement(WINDOW, ONE, 7, reads.BY_ID)))
    assert re.search(
        r"\(SELECT TOP 7000 sessions\.session_id .* AND sessions\.session_id > \? ORDER BY sessions\.session_id\)", text
    )


def test_chunk_read_is_bounded_by_session_ids() -> None:
    text = tsql.code(rendered(intervals.intervals_statement(WINDOW, ONE, OTHER, reads.BY_ID)))
    assert re.search(
        r"sessions\.session_id >= \? AND sessions\.session_id <= \?\) AS billable ORDER BY billable\.session_id$", text
    )


@tsql.for_each(USAGE_STATEMENTS)
def test_usage_datetime_parameters_have_instant_type(name: str) -> None:
    dialect = aioodbc.dialect(paramstyle="qmark")
    for statement in usage_statements(name):
        parameters = list(statement.compile(dialect=dialect).bind_names)
        assert [
            each for each in parameters if isinstance(each.value, datetime) and not isinstance(each.type, Instant)
        ] == []


def test_standalone_instants_are_cast_to_datetime2() -> None:
    """Without the cast, SQL Server would compare the instants as text."""
    spans = re.findall(
        r"SELECT CAST\(\? AS DATETIME2\(6\)\) AS era_started_at, CAST\(\? AS DATETIME2\(6\)\) AS from_at, "
        r"CAST\(\? AS DATETIME2\(6\)\) AS to_at",
        tsql.code(rendered(usage_sums.sums_statement(sum_query(None), SPANS, None, 7, reads.BY_ID))),
    )
    assert len(spans) == len(SPANS)


@tsql.for_each(USAGE_STATEMENTS)
def test_usage_parameters_are_never_null(name: str) -> None:
    """For a NULL, the driver asks the server for the type of the parameter. The server does not always know it."""
    dialect = aioodbc.dialect(paramstyle="qmark")
    given = [value for each in usage_statements(name) for value in each.compile(dialect=dialect).params.values()]
    assert None not in given


class ScriptedConnection:
    """Returns prepared results, one per statement."""

    def __init__(self, *results: list[Any]) -> None:
        self._results = list(results)

    def execute(self, _statement: Any) -> "ScriptedConnection":
        self._rows = self._results.pop(0)
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def one_or_none(self) -> Any:
        return self._rows[0] if self._rows else None

    @property
    def left(self) -> int:
        return len(self._results)


PENDING = (1, None, ONE, "key", "pending", 0)
HALF_DELIVERED = (1, None, ONE, "key", "delivered", 1)
DELIVERED = (1, AT, ONE, "key", "delivered", 1)


def test_list_deliveries_repeats_until_two_reads_agree() -> None:
    connection: Any = ScriptedConnection([PENDING], [HALF_DELIVERED], [DELIVERED], [DELIVERED], [])
    (found,) = reads.list_deliveries(connection, 9)
    assert (found.delivered_at, found.state) == (AT, "delivered")
    assert connection.left == 1


def test_list_deliveries_returns_last_read_after_maximum_reads() -> None:
    results = [[(1, None, ONE, "key", "pending", number)] for number in range(reads.READS_MAX)]
    connection: Any = ScriptedConnection(*results)
    (found,) = reads.list_deliveries(connection, 9)
    assert found.delivered_attempts == reads.READS_MAX - 1


def test_find_overlaps_returns_only_overlaps_confirmed_by_second_read() -> None:
    connection: Any = ScriptedConnection([(ONE, OTHER), (OTHER, ONE)], [], [(OTHER,)])
    assert reads.find_overlaps(connection, 7) == [Overlap(OTHER, ONE)]


def test_overlap_confirmation_reads_both_sessions_by_id() -> None:
    text = tsql.code(rendered(reads.overlap_statement(Overlap(ONE, OTHER))))
    assert text.endswith(
        "FROM sessions AS one JOIN sessions AS other ON other.started_at < coalesce(one.closed_at, one.deadline_at) "
        "WHERE one.session_id = ? AND other.session_id = ?"
    )


class RecordingConnection:
    """Records the statements, and returns empty results."""

    def __init__(self) -> None:
        self.statements: list[Any] = []

    def execute(self, statement: Any) -> "RecordingConnection":
        self.statements.append(statement)
        return self

    def mappings(self) -> "RecordingConnection":
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
    "get_submission": (submissions.get_submission, (AFTER.session_id, "web")),
    "read_envelopes": (submissions.read_envelopes, ([AFTER.session_id] * 3,)),
    "list_pending": (submissions.list_pending, (Change(to_microseconds(AT), 10), 7)),
    "list_submissions": (
        reads.list_submissions,
        (SubmissionFilter(gateway="pager", state="failed"), AFTER.session_id, 7),
    ),
}
READS_OF_KEYS = {
    "find_key": (keys.find_key, ("4fJ0aQz81LmN",)),
    "list_keys": (keys.list_keys, ("web", "4fJ0aQz81LmN", 7)),
    "list_audit_log": (
        keys.list_audit_log,
        (
            AuditFilter(subject="one", action="key.created", target="two", from_at=AT, to_at=AT),
            AuditPosition(AT, AFTER.session_id),
            7,
        ),
    ),
}
READS: dict[str, tuple[Any, tuple[Any, ...]]] = {**READS_OF_LEASES, **READS_OF_SUBMISSIONS, **READS_OF_KEYS}


def last_statement(name: str) -> Any:
    """Returns the last statement that a read executes."""
    connection: Any = RecordingConnection()
    read, arguments = READS[name]
    read(connection, *arguments)
    return connection.statements[-1]


@tsql.for_each(["list_leases", "list_jobs", "list_runs"])
def test_lease_and_job_pages_are_limited_by_top(name: str) -> None:
    assert re.match(r"SELECT TOP 7 .* ORDER BY \w+\.\w+( DESC)?$", tsql.code(rendered(last_statement(name))))


@tsql.for_each(READS_OF_KEYS)
def test_key_reads_are_valid_tsql(name: str) -> None:
    linter = Linter(config=FluffConfig(overrides={"dialect": "tsql"}))
    text = rendered(last_statement(name)).replace("?", "@given") + ";\n"
    assert [str(violation) for violation in linter.parse_string(text).violations] == []
    assert name == "find_key" or "TOP 7" in text


def test_board_is_one_union_with_matching_types() -> None:
    board = tsql.code(rendered(last_statement("read_board")))
    assert board.count("UNION ALL") == 1
    nothing = re.findall(r"CAST\(NULL AS (\w+)", board.partition("UNION ALL")[2])
    assert len(nothing) == len(tables.jobs.c)
    assert (nothing[0], nothing[-2], nothing[-1]) == ("VARCHAR", "NVARCHAR", "BIT")


@tsql.for_each(READS_OF_SUBMISSIONS)
def test_submission_reads_compile(name: str) -> None:
    assert " FROM submissions " in tsql.code(rendered(last_statement(name)))


def test_pending_page_is_covered_by_its_index() -> None:
    page = tsql.code(rendered(last_statement("list_pending")))
    assert re.match(r"SELECT TOP 7 ", page)
    assert "WHERE submissions.state = 'pending' AND " in page
    assert page.endswith(" ORDER BY submissions.last_modified_at, submissions.submission_id")
    known = {column.name for column in tables.submissions_waiting.columns}
    known |= set(tables.submissions_waiting.dialect_kwargs["mssql_include"])
    assert set(re.findall(r"submissions\.(\w+)", page)) <= known


def test_submission_page_is_ordered_by_id_text_newest_first() -> None:
    page = tsql.code(rendered(last_statement("list_submissions")))
    newest_first = r"ORDER BY CAST\(submissions\.submission_id AS VARCHAR\(36\)\) COLLATE Latin1_General_100_BIN2 DESC"
    assert re.search(rf"IN \(SELECT TOP 7 .* {newest_first}\) {newest_first}$", page)


def test_submission_page_cursor_uses_uppercase_id_text() -> None:
    page = reads.submissions_page_statement(SubmissionFilter(), AFTER.session_id, 7)
    assert AFTER.session_id.upper() in page.compile(dialect=aioodbc.dialect(paramstyle="qmark")).params.values()


def test_submission_state_is_rendered_as_literal() -> None:
    assert re.findall(r"submissions\.state = (\S+)", tsql.code(rendered(last_statement("list_submissions")))) == [
        "'failed'"
    ]


def test_submission_state_literal_is_escaped() -> None:
    page = rendered(reads.submissions_page_statement(SubmissionFilter(state="' OR 1 = 1"), None, 7))
    assert "submissions.state = ''' OR 1 = 1'" in page


@pytest.mark.parametrize(
    "statement",
    [
        *map(last_statement, READS_OF_LEASES),
        *map(last_statement, READS_OF_KEYS),
        last_statement("list_pending"),
        last_statement("list_submissions"),
        calls.RENEW_LEASE,
        calls.BEGIN_RUN,
        calls.FINISH_RUN,
        calls.ACCEPT_SUBMISSIONS,
        calls.BEGIN_ATTEMPTS,
        calls.CUT_USAGE,
        usage.deliveries_statement(9),
    ],
)
def test_string_parameters_are_sent_as_varchar(statement: Any) -> None:
    """To compare an NVARCHAR parameter with a VARCHAR column, SQL Server would convert every value of the column."""
    dialect = aioodbc.dialect(paramstyle="qmark")
    types = [
        parameter.type.dialect_impl(dialect)
        for parameter in statement.compile(dialect=dialect).bind_names
        if parameter.type.python_type is str and not isinstance(parameter.type, Id)
    ]
    assert types
    assert [each for each in types if not str(each).startswith("VARCHAR")] == []


CALLS = {name: value for name, value in vars(calls).items() if isinstance(value, TextualSelect)}


@tsql.for_each(CALLS)
def test_call_is_single_exec_with_parameters(name: str) -> None:
    assert re.fullmatch(r"EXEC dbo\.tenure_\w+_\d (@\w+ = \?, )*@\w+ = \?;", rendered(CALLS[name]))


def test_calls_have_execution_option_returns_rows() -> None:
    for name, statement in {**CALLS, "BEGIN_MIGRATION": calls.BEGIN_MIGRATION}.items():
        assert statement.get_execution_options().get("returns_rows"), name


@tsql.for_each(CALLS)
def test_procedure_result_has_all_columns_of_call(name: str) -> None:
    procedure = rendered(CALLS[name]).split()[1].removeprefix("dbo.")
    result = tsql.code(tsql.routines()[procedure]).rpartition("COMMIT TRANSACTION;")[2]
    listed = re.split(r" FROM | WHERE |;", result.partition("SELECT")[2])[0]
    columns = {column.split(".")[-1].split(" AS ")[-1].strip() for column in listed.split(",")}
    if "*" in columns:
        columns |= {column.name for column in tables.sessions.c}
    assert {column.name for column in CALLS[name].selected_columns} <= columns


def test_migration_sets_nocount_off_for_alembic() -> None:
    """With NOCOUNT ON, Alembic would not get the number of updated rows, and would report every migration after the
    first as failed.
    """
    before_result = tsql.code(tsql.constants()["BEGIN_MIGRATION"]).rpartition("SELECT")[0]
    assert re.findall(r"SET NOCOUNT (ON|OFF);", before_result)[-1] == "OFF"


def test_migration_creates_each_routine_in_its_own_batch() -> None:
    creating = [batch for batch in script() if re.search(r"CREATE OR ALTER (FUNCTION|PROCEDURE)", batch)]
    heads = [re.match(r"CREATE OR ALTER (?:FUNCTION|PROCEDURE) dbo\.(\w+)", batch) for batch in creating]
    assert [head and head[1] for head in heads] == ["tenure_now", *tsql.routines()], (
        "the first revision creates tenure_now, because it uses this function"
    )


def test_migration_uses_expected_column_types() -> None:
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


def test_migration_creates_names_with_case_sensitive_collation() -> None:
    made = " ".join(batch for batch in script() if batch.startswith("CREATE TABLE"))
    names = re.findall(r"VARCHAR\(200\)( COLLATE \w+)?", made)
    assert set(names) == {" COLLATE Latin1_General_100_BIN2"}


@pytest.mark.parametrize(
    ("index", "condition"),
    [
        ("sessions_live_key", "closed_at IS NULL"),
        ("sessions_closed_at", "closed_at IS NOT NULL"),
        ("sessions_check_at", "check_at IS NOT NULL"),
        ("sessions_live_capacity", "closed_at IS NULL AND kind < 4"),
        ("sessions_live_tenant", "close_reason IS NULL"),
        ("sessions_live_kind", "close_reason IS NULL"),
        ("sessions_closed_user", "close_reason IS NOT NULL"),
        ("sessions_closed_capacity", "close_reason IS NOT NULL"),
        ("sessions_closed_tenant", "close_reason IS NOT NULL"),
        ("sessions_closed_reason", "close_reason IS NOT NULL"),
        ("sessions_closing", "closed_at IS NOT NULL AND check_at IS NOT NULL"),
        ("submissions_waiting", "state = 'pending'"),
        ("submissions_ended_at", "state IN ('delivered', 'cancelled')"),
        ("submission_attempts_open", "ended_at IS NULL"),
        ("usage_chunks_submission", "submission_id IS NOT NULL"),
        ("usage_chunks_undelivered", "delivered_at IS NULL"),
        ("usage_windows_unchunked", "chunked_at IS NULL"),
        ("usage_windows_awaited", "delivered_at IS NULL AND contract IS NOT NULL"),
    ],
)
def test_migration_creates_filtered_indexes(index: str, condition: str) -> None:
    (created,) = [batch for batch in script() if f"INDEX {index} " in batch]
    assert created.rstrip(";").endswith(f"WHERE {condition}")


def test_counts_of_submissions_seek_the_index_of_gateways() -> None:
    for statement, limit in ((reads.count_statement("crm", "pending", 7), 7), (reads.next_gateway_statement("crm"), 1)):
        text = rendered(statement)
        assert "WITH (FORCESEEK, INDEX (submissions_gateway))" in text
        assert f"TOP {limit} " in text


def test_facts_about_server_are_valid_tsql() -> None:
    linter = Linter(config=FluffConfig(overrides={"dialect": "tsql"}))
    assert [str(violation) for violation in linter.parse_string(f"{reads.SERVER.text};\n").violations] == []
