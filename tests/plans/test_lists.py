"""Every list uses indexes, with any filters, so that a page reads only a small part of a million rows."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.dialects import postgresql, sqlite

from tenure.clock import from_microseconds, to_microseconds
from tenure.domain.events import ALL_TYPES, EventFilter, end_of
from tenure.domain.history import View
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import LapsePosition, Position, SessionFilter
from tenure.domain.submissions import SubmissionFilter, SubmissionState
from tenure.domain.usage import Era, GroupBy, UsageFilter, UsageSumQuery
from tenure.store.engines import open_store
from tenure.store.limits import COUNT_MAX, LAPSE_SCAN_MAX, SCAN_MAX
from tenure.store.reads import (
    capacities,
    events,
    history,
    leases,
    session_lapses,
    session_list,
    session_matches,
    sessions,
    submissions,
    usage,
    usage_sums,
)
from tests.support.databases import POOL_SIZE, Database
from tests.support.open_requests import some_id
from tests.support.usage import session_between

LIMIT = 101
DIRECT_MAX = 2_000
"""The limit on the buffers that a page may access if an index checks its whole filter: a few buffers for each session
on the page and for each range of an index."""
SCANNED_MAX = 2 * SCAN_MAX + 6_000
"""The limit on the buffers that any page may access: SCAN_MAX rows of live sessions and as many of closed sessions,
with their index entries. A scan of the table would access at least 30 000 buffers. A scan of a whole index that also
reads the rows would access several hundred thousand."""


def hashed(text: str) -> str:
    return str(UUID(hashlib.md5(text.encode()).hexdigest()))


Values = Mapping[str, Iterable[Any]]
VALUES: Values = {
    "user": [hashed("u500001"), some_id()],
    "tenant": [hashed("t0"), hashed("t7"), some_id()],
    "capacity": [hashed("c0"), hashed("c7"), some_id()],
    "kind": [1, 3],
    "state": ["created", "active", "closing", "closed"],
    "active": [True, False],
    "close_reason": ["TERMINATED", "EVICTED", "EXPIRED"],
}
DIRECT = [
    *({name: value} for name, values in VALUES.items() if name != "state" for value in values),
    *({"state": state} for state in ("closing", "closed")),
    *({"kind": 3, "close_reason": reason, "active": False} for reason in VALUES["close_reason"]),
    *({name: hashed(f"{name[0]}0"), "active": active} for name in ("tenant", "capacity") for active in (True, False)),
    {},
]
"""Filters that an index checks completely."""


def pairs(values: Values) -> list[dict[str, Any]]:
    """Returns no filter, each filter alone, and each pair of filters, with all combinations of their values."""
    chosen = [names for size in (0, 1, 2) for names in itertools.combinations(values, size)]
    return [
        dict(zip(names, given, strict=True))
        for names in chosen
        for given in itertools.product(*(values[name] for name in names))
    ]


class CountingConnection:
    """Executes statements on PostgreSQL, adds up the buffers that they access, and keeps their plans."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.buffers = 0
        self.plans: list[str] = []

    def execute(self, statement: Any) -> Any:
        dialect: Any = postgresql.asyncpg.dialect()
        text = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        explained = self._connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {text}")
        plan = "\n".join(row[0] for row in explained)
        accessed = re.search(r"Buffers: shared (.*)", plan.partition("Planning")[0])
        self.buffers += sum(map(int, re.findall(r"(?:hit|read)=(\d+)", accessed[1]))) if accessed else 0
        self.plans.append(plan)
        return self._connection.execute(statement)


async def counted(url: str, reads: Iterable[tuple[Any, Callable[[Any], Any]]]) -> dict[str, tuple[int, str]]:
    """Runs the reads. Returns, by the name of each read, the number of buffers that it accessed and its plans."""
    store: Any = open_store(url, POOL_SIZE)
    found = {}

    def count(connection: Connection, read: Callable[[Any], Any]) -> tuple[int, str]:
        counting = CountingConnection(connection)
        read(counting)
        return counting.buffers, "\n".join(counting.plans)

    for name, read in reads:
        found[str(name)] = await store._read_long(lambda connection, read=read: count(connection, read))
    await store.close()
    return found


def exceeding(found: Mapping[str, tuple[int, str]], limit: int) -> dict[str, tuple[int, str]]:
    return {name: each for name, each in found.items() if each[0] > limit}


def session_reads(filters: Iterable[Mapping[str, Any]], middle: datetime) -> Iterable[tuple[Any, Callable[[Any], Any]]]:
    """Yields two reads for each filter: the first page, and a page of sessions that started at `middle` or before."""
    for criteria, after in itertools.product(filters, (None, Position(middle, some_id()))):
        yield (
            (criteria, after),
            lambda connection, criteria=criteria, after=after: session_list.list_sessions(
                connection, SessionFilter(**criteria), after, LIMIT, EVERYTHING
            ),
        )


MIDDLE = datetime.now(UTC) - timedelta(days=17)


@pytest.mark.slow
async def test_postgresql_lists_sessions_of_every_pair_of_filters_from_indexes(postgres_million: str) -> None:
    found = await counted(postgres_million, session_reads(pairs(VALUES), MIDDLE))
    assert exceeding(found, SCANNED_MAX) == {}
    assert len(found) > 300


@pytest.mark.slow
async def test_postgresql_lists_sessions_without_scan_if_an_index_checks_the_filter(postgres_million: str) -> None:
    found = await counted(postgres_million, session_reads(DIRECT, MIDDLE))
    assert exceeding(found, DIRECT_MAX) == {}


@pytest.mark.slow
async def test_postgresql_lists_and_counts_sessions_of_a_scope_from_indexes(postgres_million: str) -> None:
    """Lists with each filter, and counts, in the scope of a tenant with 1000 sessions, of a user, and of an unknown
    tenant.
    """
    filters = [{}, *({name: value} for name, values in VALUES.items() for value in values)]
    scopes = [Scope(hashed("t7")), Scope(hashed("t7"), hashed("u7")), Scope(some_id())]
    reads: list[tuple[Any, Callable[[Any], Any]]] = [
        (
            (criteria, scope),
            lambda connection, criteria=criteria, scope=scope: session_list.list_sessions(
                connection, SessionFilter(**criteria), None, LIMIT, scope
            ),
        )
        for criteria in filters
        for scope in scopes
    ]
    assert exceeding(await counted(postgres_million, reads), SCANNED_MAX) == {}
    counts = [(scope, lambda connection, scope=scope: sessions.count_sessions(connection, scope)) for scope in scopes]
    assert exceeding(await counted(postgres_million, counts), SCANNED_MAX) == {}


def event_reads() -> Iterable[tuple[Any, Callable[[Any], Any]]]:
    """Yields three reads for each filter: the newest events, the events after MIDDLE, and the events in the ten minutes
    after MIDDLE.
    """
    newest, middle = end_of(datetime.now(UTC) - timedelta(seconds=5)), end_of(MIDDLE)
    spans = [(newest, None), (middle, None), (middle, end_of(MIDDLE + timedelta(minutes=10)))]
    types = [ALL_TYPES, *((each,) for each in ALL_TYPES)]
    tenants = [None, hashed("t0"), hashed("t7"), some_id()]
    for (after, until), some, tenant in itertools.product(spans, types, tenants):
        criteria = EventFilter(some, tenant)
        yield (
            (criteria, after, until),
            lambda connection, criteria=criteria, after=after, until=until: events.read_events(
                connection, criteria, after, until, LIMIT
            ),
        )


@pytest.mark.slow
async def test_postgresql_reads_events_of_every_filter_from_indexes(postgres_million: str) -> None:
    store = open_store(postgres_million, POOL_SIZE)
    await store.publish_events(0)
    await store.close()
    found = await counted(postgres_million, event_reads())
    assert exceeding(found, SCANNED_MAX) == {}
    plans = [plan for _, plan in found.values()]
    assert [plan for plan in plans if "Seq Scan on sessions" in plan] == []
    whole = {name: each for name, each in found.items() if "tenant=None" in name and name.count("<EventType") == 3}
    assert exceeding(whole, DIRECT_MAX) == {}
    assert len(whole) == 3


@pytest.mark.slow
async def test_postgresql_lists_lapses_and_counts_matches_within_their_limits(postgres_million: str) -> None:
    filters = [{}, *pairs({name: values for name, values in VALUES.items() if name != "close_reason"})]
    lapses: list[tuple[Any, Callable[[Any], Any]]] = [
        (
            (criteria, after),
            lambda connection, criteria=criteria, after=after: session_lapses.list_next_lapses(
                connection, SessionFilter(**criteria), after, LIMIT, EVERYTHING
            ),
        )
        for criteria in filters
        for after in (None, LapsePosition(datetime.now(UTC) + timedelta(days=13), some_id()))
    ]
    # `list_next_lapses` has two steps: it reads sessions by an index of the filter, and by `check_at`. Each step reads
    # at most about LAPSE_SCAN_MAX sessions. For each session, it accesses an index entry and a row.
    assert exceeding(await counted(postgres_million, lapses), 4 * LAPSE_SCAN_MAX) == {}
    counts: list[tuple[Any, Callable[[Any], Any]]] = [
        (
            criteria,
            lambda connection, criteria=criteria: session_matches.count_matches(
                connection, SessionFilter(**criteria), EVERYTHING
            ),
        )
        for criteria in pairs(VALUES)
    ]
    found = await counted(postgres_million, counts)
    assert exceeding(found, 6 * COUNT_MAX) == {}
    assert [plan for _, plan in found.values() if "Seq Scan on sessions" in plan] == []


HISTORY_SESSION = "0190b0a0-0000-7000-8000-00000000000d"
REASONS = ("TERMINATED", "UPGRADED", "EVICTED")
"""Close reasons for which a history reads more rows: for TERMINATED the audit log, for UPGRADED the session after the
upgrade, and for EVICTED the sessions that were opened after the eviction."""


@pytest.mark.slow
async def test_postgresql_reads_history_of_ten_thousand_windows_from_indexes(postgres_million: str) -> None:
    """The session was live in all windows. Its history combines consecutive windows of one era and state into a run,
    and reads only the first and the last window of each run.
    """
    connection = await asyncpg.connect(postgres_million)
    await connection.execute(
        f"""
        INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at,
                              deadline_at, last_heartbeat_at, last_activity_at, modified_at, closed_at, kind, state,
                              lapse_reason, close_reason)
        SELECT '{HISTORY_SESSION}', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), s, e, e, s, s, e, e, 1,
               'closed', 'EXPIRED', 'EXPIRED'
          FROM (SELECT now() - interval '51 days' AS s, now() - interval '40 days' AS e) AS made
        """
    )
    for reason in REASONS:
        await connection.execute("UPDATE sessions SET close_reason = $1 WHERE session_id = $2", reason, HISTORY_SESSION)
        reads: list[tuple[Any, Callable[[Any], Any]]] = [
            (
                (reason, deliveries, after),
                lambda connection, deliveries=deliveries, after=after: history.read_history(
                    connection,
                    HISTORY_SESSION,
                    EVERYTHING,
                    View(audit=True, usage=True, deliveries=deliveries),
                    after,
                ),
            )
            for deliveries in (True, False)
            for after in (None, 5_000)
        ]
        found = await counted(postgres_million, reads)
        assert exceeding(found, DIRECT_MAX) == {}
        assert [plan for _, plan in found.values() if "Seq Scan on usage_windows" in plan] == []
    await connection.execute("DELETE FROM sessions WHERE session_id = $1", HISTORY_SESSION)
    await connection.close()


def test_sqlite_reads_history_from_indexes(sqlite_file: Database) -> None:
    session = session_between(MIDDLE, MIDDLE + timedelta(days=30))
    statements = [
        history.first_window_statement(MIDDLE),
        history.last_window_statement(MIDDLE),
        history.eras_statement(1, 9),
        history.next_without_contract_statement(1, 9),
        history.next_with_contract_statement(1, 9),
        history.waiting_statement(1, 9),
        history.chunks_statement(some_id(), [1, 2]),
        history.following_statement(session, MIDDLE),
        history.newcomers_statement(some_id(), MIDDLE, EVERYTHING),
        history.newcomers_statement(some_id(), MIDDLE, Scope(some_id(), some_id())),
    ]
    engine = sqlite_file.store._readers.engine  # type: ignore[attr-defined]
    with engine.connect() as connection:
        lines = {
            row[3]
            for statement in statements
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {_sqlite_text(statement)}")
        }
    tables = "sessions|usage_windows|usage_chunks|submissions|submission_attempts"
    reads = {line for line in lines if re.search(rf" ({tables})( |$)", line)}
    assert {line for line in reads if not re.match(r"SEARCH \w+ USING (COVERING )?INDEX \w+ \(\w+[=<>]", line)} == set()
    for index in ("ended_at", "without_contract", "with_contract", "awaited"):
        assert any(f"usage_windows_{index}" in line for line in reads), index


def _sqlite_text(statement: Any) -> str:
    return str(statement.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))


GATEWAYS = ["gateway 3", "gateway old", "unknown"]


@pytest.mark.slow
async def test_postgresql_lists_submissions_of_every_pair_of_filters_from_indexes(postgres_million: str) -> None:
    reads = [
        (
            (criteria, before),
            lambda connection, criteria=criteria, before=before: submissions.list_submissions(
                connection, SubmissionFilter(**criteria), before, LIMIT
            ),
        )
        for criteria in pairs({"gateway": GATEWAYS, "state": [*SubmissionState]})
        for before in (None, "00000007-a120-7000-8000-000000000000")
    ]
    assert exceeding(await counted(postgres_million, reads), DIRECT_MAX) == {}


@pytest.mark.slow
async def test_postgresql_lists_windows_capacities_leases_jobs_and_runs_from_indexes(postgres_million: str) -> None:
    tenants = (None, hashed("t0"), hashed("t7"), some_id())
    reads: list[tuple[Any, Callable[[Any], Any]]] = [
        ("windows", lambda connection: usage.list_windows(connection, None, LIMIT)),
        ("older windows", lambda connection: usage.list_windows(connection, 500, LIMIT)),
        ("leases", lambda connection: leases.list_leases(connection, "m", LIMIT)),
        ("jobs", lambda connection: leases.list_jobs(connection, "m", LIMIT)),
        ("runs", lambda connection: leases.list_runs(connection, "tidy", 500, LIMIT)),
        *(
            (
                f"capacities of {tenant}",
                lambda connection, tenant=tenant: capacities.list_capacities(
                    connection, tenant, None, LIMIT, EVERYTHING
                ),
            )
            for tenant in tenants
        ),
    ]
    assert exceeding(await counted(postgres_million, reads), DIRECT_MAX) == {}


@pytest.mark.slow
async def test_postgresql_sums_usage_of_filter_without_reading_other_sessions(postgres_million: str) -> None:
    """The tenant has 1000 sessions, the capacity 200, the user one. To read a session, PostgreSQL accesses one buffer
    of the table and a few of the index.
    """
    now = datetime.now(UTC)

    def total(**criteria: str) -> tuple[Any, Callable[[Any], Any]]:
        sum_query = UsageSumQuery(
            from_at=now - timedelta(days=30),
            to_at=now,
            criteria=UsageFilter(**criteria),
            group_by=GroupBy.KIND,
            factors=(1, 2, 3),
        )
        return criteria, lambda connection: usage_sums.sum_usage(connection, sum_query, None, LIMIT)

    reads = [
        total(tenant=hashed("t7")),
        total(capacity=hashed("c7")),
        total(user=hashed("u7")),
        total(tenant=some_id()),
    ]
    assert exceeding(await counted(postgres_million, reads), 2 * DIRECT_MAX) == {}


MARKS = (datetime(1970, 1, 3, 4, tzinfo=UTC), datetime(1970, 1, 3, 5, tzinfo=UTC))
"""Two marks that the tests insert, without sums."""
INSERT_MARKS = "INSERT INTO usage_marks VALUES ({}, 1, 'complete'), ({}, 1, 'complete') ON CONFLICT DO NOTHING"


def sums_between_marks() -> Iterable[UsageSumQuery]:
    for group_by in (None, GroupBy.TENANT, GroupBy.CAPACITY, GroupBy.KIND):
        for criteria in (UsageFilter(), UsageFilter(tenant=some_id()), UsageFilter(capacity=some_id())):
            given = {"group_by": group_by, "criteria": criteria, "factors": (1, 2, 3)}
            yield UsageSumQuery(from_at=MARKS[0], to_at=MARKS[1], **given)


@pytest.mark.slow
async def test_postgresql_sums_usage_between_marks_without_reading_sessions(postgres_million: str) -> None:
    connection = await asyncpg.connect(postgres_million)
    await connection.execute(INSERT_MARKS.format(*(f"'{mark.isoformat()}'" for mark in MARKS)))
    await connection.close()
    reads = [
        (sum_query, lambda connection, each=sum_query: usage_sums.sum_usage(connection, each, None, LIMIT))
        for sum_query in sums_between_marks()
    ]
    found = await counted(postgres_million, reads)
    assert len(found) == 12
    for name, (_buffers, plan) in found.items():
        assert "usage_mark_sums" in plan, name
        assert not re.search(r"on sessions|Seq Scan on usage_mark_sums", plan), plan


async def test_sqlite_sums_usage_between_marks_without_reading_sessions(sqlite_file: Database) -> None:
    await sqlite_file.execute(INSERT_MARKS.format(*(to_microseconds(mark) for mark in MARKS)))
    calls = [sqlite_file.store.sum_usage(each, None, LIMIT) for each in sums_between_marks()]
    lines = await _sqlite_lines(sqlite_file, calls)
    assert {line for line in lines if re.search(r" sessions( |$)", line)} == set()
    reads = {line for line in lines if re.search(r" usage_mark_sums( |$)", line)}
    assert reads
    assert {
        line for line in reads if not line.startswith("SEARCH usage_mark_sums USING PRIMARY KEY (marked_at=?")
    } == set()


async def test_sqlite_quick_sum_searches_live_sessions_by_start(sqlite_file: Database) -> None:
    """A quick sum counts and sums the sessions of the two edges of its span: before its first mark and after its last.
    Without a condition on the start, these statements would read all live sessions, even if an edge is long ago and
    only few of the live sessions had started by then.
    """
    edge = [(Era(MARKS[0], (1, 1, 1)), *MARKS)]
    given = [
        (UsageFilter(), "sessions_live_kind (kind=?"),
        (UsageFilter(tenant=some_id()), "sessions_live_tenant (tenant_object_id=?"),
        (UsageFilter(capacity=some_id()), "sessions_live_capacity (capacity_id=?"),
    ]
    for criteria, index in given:
        for group_by in (None, GroupBy.TENANT, GroupBy.CAPACITY, GroupBy.KIND):
            query = UsageSumQuery(criteria=criteria, group_by=group_by, factors=(1, 2, 3), quick=True)
            statements = [
                *usage_sums.count_statements(query, *MARKS),
                usage_sums.marked_statement(query, MARKS, [edge, edge], None, LIMIT),
            ]
            live = {line for line in _sqlite_plans(sqlite_file, statements) if "sessions_live" in line}
            assert live
            assert {line for line in live if f"INDEX {index} AND started_at<?)" not in line} == set()


SQLITE_VALUES: Values = {
    "user": ["0007a121-0000-4000-8000-00000000000b"],
    "tenant": ["00000000-0000-4000-8000-00000000000a", some_id()],
    "capacity": ["00000000-0000-4000-8000-00000000000c"],
    "kind": [3],
    "state": ["created", "closing", "closed"],
    "active": [True, False],
    "close_reason": ["EVICTED", "EXPIRED"],
}
OF_LIST = re.compile(
    r"SEARCH sessions USING (COVERING )?INDEX "
    r"(sessions_(live_capacity|live_tenant|live_kind|closed_user|closed_capacity|closed_tenant|closed_reason) \(\w+=\?"
    r"|sessions_live_key \(user_object_id=\?|sessions_check_at \(check_at<\?"
    r"|sqlite_autoindex_sessions_1 \(session_id=\?)"
    r"|(SCAN|SEARCH) sessions USING INDEX sessions_closing"
)


async def test_sqlite_lists_sessions_of_every_pair_of_filters_from_indexes(sqlite_file: Database) -> None:
    """Each search has a condition on the first column of an index. Only the few `closing` sessions may all be read."""
    lines = await _sqlite_lines(
        sqlite_file,
        [
            sqlite_file.store.list_sessions(SessionFilter(**criteria), after, LIMIT, EVERYTHING)
            for criteria in pairs(SQLITE_VALUES)
            for after in (None, Position(from_microseconds(500_000_000), some_id()))
        ],
    )
    reads = {line for line in lines if " sessions" in line and "json_each" not in line}
    assert {line for line in reads if not OF_LIST.match(line)} == set()
    assert len(reads) > 10


async def test_sqlite_reads_events_of_every_filter_from_indexes(sqlite_file: Database) -> None:
    """Each search has a condition on an instant, on other columns and an instant, or on the session id."""
    await sqlite_file.store.publish_events(0)
    after = end_of(from_microseconds(500_000_000))
    chosen = [ALL_TYPES, *((each,) for each in ALL_TYPES)]
    lines = await _sqlite_lines(
        sqlite_file,
        [
            sqlite_file.store.read_events(EventFilter(some, tenant), after, None, LIMIT)
            for some in chosen
            for tenant in (None, SQLITE_VALUES["tenant"][0])  # type: ignore[index]
        ],
    )
    allowed = re.compile(
        r"SEARCH sessions USING (COVERING )?INDEX (sessions_live_kind \(kind=\? AND started_at"
        r"|sessions_live_tenant \(tenant_object_id=\? AND started_at"
        r"|sessions_closed_reason \(close_reason=\? AND kind=\? AND started_at"
        r"|sessions_closed_tenant \(tenant_object_id=\? AND started_at"
        r"|sessions_closed_at \(closed_at|sessions_check_at \(check_at|sqlite_autoindex_sessions_1 \(session_id=\?)"
    )
    reads = {line for line in lines if re.search(r" sessions( |$)", line)}
    assert {line for line in reads if not allowed.match(line)} == set()
    assert len(reads) > 6


async def test_sqlite_lists_submissions_and_capacities_from_indexes(sqlite_file: Database) -> None:
    store = sqlite_file.store
    filters = pairs({"gateway": ["gateway old"], "state": ["pending", "delivered"]})[1:]
    calls = [store.list_submissions(SubmissionFilter(**criteria), some_id(), LIMIT) for criteria in filters]
    lines = await _sqlite_lines(sqlite_file, [*calls, store.list_capacities(some_id(), None, LIMIT, EVERYTHING)])
    reads = {line for line in lines if re.search(r" (submissions|capacities)( |$)", line)}
    allowed = r"SEARCH submissions USING INDEX (submissions_(state|gateway)|sqlite_autoindex_submissions_1) \(.*"
    allowed += r"|SEARCH capacities USING (COVERING )?INDEX capacities_tenant \(tenant_object_id>\? AND .*"
    assert {line for line in reads if not re.fullmatch(allowed, line)} == set()


def _sqlite_plans(database: Database, statements: Iterable[Any]) -> set[str]:
    """Returns the lines of the query plans. The statements are not executed."""
    engine = database.store._readers.engine  # type: ignore[attr-defined]
    with engine.connect() as connection:
        texts = [each.compile(engine, compile_kwargs={"literal_binds": True}) for each in statements]
        return {row[3] for each in texts for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {each}")}


async def _sqlite_lines(database: Database, calls: Iterable[Any]) -> set[str]:
    """Returns the lines of the query plans of all SELECT statements that the calls execute."""
    sent: dict[str, Any] = {}

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent[statement] = parameters

    engine = database.store._readers.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", note)
    for call in calls:
        await call
    event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        return {
            row[3]
            for statement, parameters in sent.items()
            if statement.startswith("SELECT")
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        }
