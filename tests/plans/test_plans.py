"""The statements of hot calls (all writes and the most frequent reads) use the expected indexes on a million rows (on
SQLite, on a hundred thousand). They also do so on empty tables, because the database may make a plan while a table is
still empty.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Dialect, Select, event
from sqlalchemy.dialects import postgresql, sqlite

from tenure.domain.alerts import AlertFilter, AlertName, AlertPosition, Condition
from tenure.domain.audit_log import AuditFilter, AuditPosition
from tenure.domain.capacities import Seats
from tenure.domain.events import EventFilter, end_of
from tenure.domain.jobs import JobCommand, RunOutcome
from tenure.domain.scope import EVERYTHING, Scope
from tenure.domain.sessions import EndRequest, Heartbeat
from tenure.domain.submissions import SubmissionCommand, SubmissionFilter
from tenure.domain.usage import CHUNK_MAX, ChunkDigest, Era, GroupBy, UsageSumQuery
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tenure.store.engines.postgres import statements
from tenure.store.engines.postgres.connections import HOT_SETTINGS
from tenure.store.engines.postgres.windows import divide_arguments, divide_statement
from tenure.store.engines.sqlite import opening
from tenure.store.limits import COUNTED_MAX, COUNTED_MIN, COUNTED_TOTAL
from tenure.store.reads import keys, leases, sessions, submissions, usage_sums
from tenure.usage.formats import FORMATS
from tests.support.audit_log import ACTOR, draft
from tests.support.databases import POOL_SIZE, Clock, Database
from tests.support.events import new_batch
from tests.support.leases import acquire, begin_due_run, begin_run, hold_lease, job_every, sweep_some
from tests.support.open_requests import NOON, SECOND, open_one, request, same_key_request, some_id
from tests.support.plans import explain, hot_statements, prepare
from tests.support.session_calls import COUNTERS, EVICTING, attach_to, stream_update
from tests.support.submissions import (
    DELIVERED,
    FAILED,
    accept,
    attempt_end,
    change_at,
    close_orphaned,
    executor_fence,
    next_executor_fence,
)
from tests.support.usage import (
    CONTRACT,
    MICROSECOND,
    emitter_fence,
    insert_sessions,
    rules,
    session_between,
    single_chunk,
    uncut_window,
)

POSTGRES_INDEXES = {
    "tenure_in_scope_1: scope": ["sessions_pkey"],
    "tenure_lock_sessions_1: lock": ["sessions_pkey"],
    "tenure_lock_live_keys_1: lock": ["sessions_live_key", "sessions_pkey"],
    "tenure_insert_sessions_1: insert": [],
    "tenure_find_live_1: live": ["sessions_live_key"],
    "tenure_open_create_1: rules": ["capacities_pkey"],
    "tenure_open_create_1: limited": ["capacities_pkey"],
    "tenure_open_free_1: ended since": ["sessions_closed_at"],
    "tenure_open_one_1: live": ["sessions_live_key"],
    "tenure_open_one_1: rules": ["capacities_pkey"],
    "tenure_open_one_1: last end": ["sessions_closed_at"],
    "tenure_open_one_1: insert": [],
    "tenure_open_one_1: ended since": ["sessions_closed_at"],
    "tenure_open_reopen_1: decide": ["sessions_live_key"],
    "tenure_open_limited_1: seats": ["capacities_pkey"],
    "tenure_open_limited_1: own": ["sessions_live_key"],
    "tenure_open_limited_1: count": ["sessions_live_capacity"],
    "tenure_heartbeat_1: lock": ["sessions_pkey"],
    "tenure_heartbeat_1: renew": [],
    "tenure_end_1: lock": ["sessions_pkey"],
    "tenure_end_many_1: lock": ["sessions_pkey"],
    "tenure_end_many_1: end": ["sessions_pkey"],
    "tenure_end_many_1: ended": ["sessions_pkey"],
    "tenure_end_many_1: held": ["sessions_pkey"],
    "tenure_expire_1: due": ["sessions_check_at"],
    "tenure_expire_1: sweep": ["sessions_pkey"],
    "tenure_update_streams_1: lock": ["sessions_pkey"],
    "tenure_lock_submissions_1: lock": ["submissions_pkey"],
    "tenure_accept_submissions_1: lock": ["submissions_key"],
    "tenure_accept_submissions_1: found": ["submissions_key"],
    "tenure_begin_attempts_1: lock": ["submissions_pkey"],
    "tenure_begin_attempts_1: begin": ["submissions_pkey"],
    "tenure_begin_attempts_1: waiting": ["submissions_pkey"],
    "tenure_begin_attempts_1: result": ["submissions_pkey", "submission_attempts_pkey"],
    "tenure_finish_attempts_1: close": ["submission_attempts_pkey"],
    "tenure_finish_attempts_1: move": ["submissions_pkey"],
    "tenure_finish_attempts_1: result": ["submissions_pkey"],
    "tenure_note_waiting_reason_1: note": ["submissions_pkey"],
    "tenure_command_submissions_1: owned": ["submissions_pkey"],
    "tenure_command_submissions_1: changed": ["submissions_pkey", "submission_attempts_pkey"],
    "tenure_command_submissions_1: retry": ["submissions_pkey", *2 * ["submission_attempts_pkey"]],
    "tenure_command_submissions_1: cancel": ["submissions_pkey"],
    "tenure_command_submissions_1: result": ["submissions_pkey"],
    "tenure_prune_1: old": ["submissions_ended_at"],
    "tenure_prune_1: old entries": ["audit_log_at"],
    "tenure_prune_1: old alerts": ["alerts_cleared_at"],
    "tenure_prune_1: old minutes": ["activity_pkey"],
    "tenure_save_chunks_1: saved": ["usage_chunks_pkey"],
    "tenure_store_digests_1: store": ["usage_chunks_submission"],
    "tenure_store_digests_1: result": ["usage_chunks_submission"],
    "tenure_deliver_chunks_1: arrived": ["submissions_pkey"],
    "tenure_deliver_chunks_1: windows": ["usage_chunks_submission", "usage_windows_pkey"],
    "tenure_deliver_chunks_1: chunks": ["usage_chunks_submission"],
    "tenure_deliver_chunks_1: delivered": ["usage_windows_pkey", "usage_chunks_undelivered"],
    "tenure_prune_usage_1: end": ["usage_windows_pkey"],
    "tenure_prune_usage_1: sessions": ["sessions_closed_at"],
}
"""The indexes that each hot statement reads. No statement scans a table."""


FROM_AN_END = {"tenure_prune_usage_1: end", "tenure_open_one_1: last end"}
"""These statements read the first or last entries of an index, up to a limit. So their plans have no search
condition."""


def test_every_hot_statement_is_listed() -> None:
    assert set(hot_statements()) == set(POSTGRES_INDEXES)


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def test_postgresql_searches_expected_indexes(postgres_url: str) -> None:
    for name, statement in hot_statements().items():
        connection = await asyncpg.connect(postgres_url)
        await prepare(connection, statement)
        plan = f"{name}:\n{await explain(connection, {}, statement)}"
        await connection.close()
        found = re.findall(r"Index (?:Only )?Scan (?:Backward )?using (\w+) on", plan)
        assert sorted(found) == sorted(POSTGRES_INDEXES[name]), plan
        assert "Seq Scan" not in plan, plan
        # The plan of a scan of a whole index also names the index. So each search must also have a condition.
        searched = [] if name in FROM_AN_END else POSTGRES_INDEXES[name]
        assert plan.count("Index Cond") == len(searched), plan
        assert searched or not re.search("Sort|Hash", plan), plan


async def test_postgresql_searches_pending_submissions_from_cursor(connection: asyncpg.Connection) -> None:
    """The plan reads the index in its order, from the cursor to the end of the page, and does not sort."""
    for setting, value in HOT_SETTINGS.items():
        await connection.execute(f"SET {setting} = '{value}'")
    await connection.execute(f"PREPARE hot (timestamptz, text, bigint) AS {statements.LIST_PENDING}")
    rows = await connection.fetch("EXPLAIN (COSTS OFF) EXECUTE hot (NULL, NULL, NULL)")
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using submissions_waiting on submissions" in plan, plan
    assert "Index Cond: (ROW(last_modified_at, submission_id) > ROW($1, ($2)::uuid))" in plan, plan
    assert not re.search("Seq Scan|Sort", plan), plan


ROW_BYTES_MAX = 160


async def test_postgresql_row_of_ordinary_session_is_narrow(postgres_url: str, connection: asyncpg.Connection) -> None:
    """Measures a session with a lease, before and after a heartbeat. The size of a row determines the disk space that
    many sessions need.
    """
    store = open_store(postgres_url, POOL_SIZE)
    one = request(lease_microseconds=60 * SECOND, heartbeat_microseconds=5 * SECOND)
    await open_one(store, one)
    size = "SELECT pg_column_size(s.*) FROM sessions s WHERE s.session_id = $1"
    opened = await connection.fetchval(size, one.session_id)
    await store.heartbeat([Heartbeat(one.session_id, False, EVERYTHING)])
    renewed = await connection.fetchval(size, one.session_id)
    await store.end_sessions([EndRequest(one.session_id, "STOPPED", EVERYTHING, ACTOR)])
    await store.close()
    assert max(opened, renewed) <= ROW_BYTES_MAX


READS_MAX = 10_000
"""Limit on the index entries and rows that all calls of a test read together. It is far below the million rows of a
scan."""


async def test_postgresql_store_calls_do_not_read_whole_tables(postgres_url: str) -> None:
    """The calls also execute statements that POSTGRES_INDEXES does not contain."""
    store = open_store(postgres_url, POOL_SIZE)
    before = await _tuples_read(postgres_url)
    await call_everything(store)
    await store.close()
    assert await _tuples_read(postgres_url) - before < READS_MAX


async def call_everything(store: Store) -> None:
    """Calls most methods of the store, with a few new sessions on a capacity with a limit. Some of the sessions are
    evicted, lapse or get streams.
    """
    capacity_id = some_id()
    await store.put_capacity(capacity_id, Seats(8, EVICTING), EVERYTHING, ACTOR)
    requests = [request(capacity_id=capacity_id, lease_microseconds=1 + 60 * SECOND * (n % 2)) for n in range(20)]
    for one in (*requests, requests[-1], same_key_request(requests[-2], kind=2), request()):
        await open_one(store, one)
    ids = [one.session_id for one in requests]
    await store.heartbeat([Heartbeat(session_id, True, EVERYTHING) for session_id in ids])
    bound = [Scope(one.tenant_object_id, one.user_object_id if n % 2 else None) for n, one in enumerate(requests)]
    await store.heartbeat([Heartbeat(each, True, scope) for each, scope in zip(ids, bound, strict=True)])
    for scope in bound[:2]:
        await store.get_session(ids[0], scope)
        await store.count_sessions(scope)
        await store.get_capacity(capacity_id, scope)
        await store.list_capacities(None, None, 20, scope)
    await store.attach_streams([attach_to(session_id) for session_id in ids])
    await store.update_streams([stream_update(session_id, counted=COUNTERS) for session_id in ids])
    await sweep_some(store, 100)
    await call_leases_and_jobs(store)
    await call_submissions(store)
    await call_usage(store)
    await call_events(store)
    await store.end_sessions([EndRequest(session_id, "STOPPED", EVERYTHING, ACTOR) for session_id in ids])
    await store.get_capacity(capacity_id, EVERYTHING)
    await store.list_capacities(None, None, 100, EVERYTHING)
    await store.delete_capacity(capacity_id, EVERYTHING, ACTOR)


async def call_leases_and_jobs(store: Store) -> None:
    fence = (await acquire(store, "seat-keeper", "one")).lease.fence
    await store.renew_lease(fence, 60 * SECOND)
    await store.release_lease(fence)
    await hold_lease(store, "seat-keeper")
    await store.resign_lease("seat-keeper", ACTOR)
    await store.register_jobs([job_every(60 * SECOND)])
    await store.command_job("tidy", JobCommand.RUN, ACTOR)
    run = await begin_due_run(store, "tidy")
    await begin_run(store, "tidy", "another")
    await store.prune(run, 100)
    await store.finish_run(run, RunOutcome.SUCCEEDED, None, 0)
    await store.read_board(["seat-keeper"])
    run = await hold_lease(store, "job:watch")
    for subject in ("one", "two"):
        await store.update_alerts(run, [Condition(AlertName.JOB_FAILING, subject, "broken")], CONTRACT)
    await store.read_observations(["seat-keeper"])
    await store.list_alerts(AlertFilter(active=True), None, 20)
    await store.list_alerts(AlertFilter(), AlertPosition(datetime.now(UTC), some_id()), 20)
    await store.list_leases(None, 100)
    await store.list_jobs(None, 100)
    await store.list_runs("tidy", None, 100)
    for criteria in (AuditFilter(), AuditFilter(target="tidy"), AuditFilter(subject="x"), AuditFilter(action="x")):
        await store.list_audit_log(criteria, None, 20)


async def call_submissions(store: Store) -> None:
    """Lists submissions of several states, and changes only submissions that it has accepted."""
    fence = await executor_fence(store)
    made = await accept(store, 8)
    await store.begin_attempts(fence, made)
    await store.finish_attempts(
        fence, [attempt_end(each, outcome=DELIVERED if n else FAILED) for n, each in enumerate(made)]
    )
    await store.command_submissions(SubmissionCommand.RETRY, made, None, draft())
    await store.begin_attempts(fence, made)
    await store.finish_attempts(fence, [attempt_end(each, 2) for each in made[:4]])
    await store.begin_attempts(fence, made[:4], made[:4])
    fence = await next_executor_fence(store)
    await close_orphaned(store, fence, 100)
    await store.note_waiting_reason(fence, made, "its gateway is gone")
    await store.command_submissions(SubmissionCommand.CANCEL, made, None, draft())
    await store.read_envelopes(made)
    await store.get_submission(made[0], None)
    await store.list_pending(None, 20)
    await store.list_pending(change_at(datetime.now(UTC) - timedelta(days=1), made[0]), 20)
    for state in (None, "pending", "delivered", "failed"):
        await store.list_submissions(SubmissionFilter(state=state), None, 20)
        await store.list_submissions(SubmissionFilter(state=state), made[0], 20)


async def call_usage(store: Store) -> None:
    """Divides a short window, but saves and delivers only its first chunk: on the filled database, the window has
    hundreds of chunks.
    """
    fence = await emitter_fence(store)
    await store.cut_usage(fence, rules(interval=1000, contract=CONTRACT), 1)
    window = (await store.list_undivided_windows(1))[0].window
    bounds = await store.divide_window(window, None, 1)
    await store.divide_window(window, some_id(), 1)
    await store.divide_and_render(window, some_id(), 1, FORMATS["tenure"].template(window))
    await store.save_chunks(fence, window.window_id, 1, bounds, complete=True)
    await store.list_windows(None, 20)
    await store.list_windows(window.window_id, 20)
    found = await store.get_window(window.window_id)
    assert found is not None
    for chunk in found[1]:
        assert chunk.submission_id is not None
        await store.find_chunks([chunk.submission_id])
        await store.render_chunks(window, [chunk], FORMATS["tenure"].template(window))
        leader = await executor_fence(store)
        await store.store_digests(leader, [ChunkDigest(chunk.submission_id, b"9" * 32)])
        await store.command_submissions(SubmissionCommand.CANCEL, [chunk.submission_id], None, draft())
        await store.begin_attempts(leader, [chunk.submission_id])
        await store.finish_attempts(leader, [attempt_end(chunk.submission_id, outcome=DELIVERED)])
        await store.find_delivered_windows([chunk.submission_id])
    await store.list_deliveries(window.window_id)
    await store.read_lag()
    await store.read_installation()
    await store.prune_usage(fence, 20)


async def call_events(store: Store) -> None:
    """Reads the newest events, and saves and cancels a batch."""
    horizon = await store.publish_events(0)
    fence = await hold_lease(store, "events")
    (began,) = await store.subscribe_gateways(fence, ["hooks"])
    await store.read_events(EventFilter(), end_of(horizon - timedelta(milliseconds=100)), None, 100)
    batch = new_batch(began.number + 1, began.position, end_of(horizon + timedelta(days=1)))
    await store.save_event_batch(fence, batch)
    await store.find_event_batches([batch.submission_id])
    await store.command_submissions(SubmissionCommand.CANCEL, [batch.submission_id], None, draft())


async def _tuples_read(url: str) -> int:
    """Returns how many rows sequential scans and how many entries index scans have read in the database so far. First
    waits until the connections of the store are closed: PostgreSQL updates its counters at the latest when a
    connection is closed.
    """
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(5):
            while await connection.fetchval(_STILL_CONNECTED):  # noqa: ASYNC110 - the server offers no event
                await asyncio.sleep(0.02)
        return int(await connection.fetchval(_TUPLES_READ))
    finally:
        await connection.close()


_STILL_CONNECTED = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure'"
)
_TUPLES_READ = (
    "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables) + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)"
)


async def test_postgresql_lists_submissions_in_rare_state_without_reading_others(postgres_url: str) -> None:
    store = open_store(postgres_url, POOL_SIZE)
    before = await _tuples_read(postgres_url)
    await store.list_submissions(SubmissionFilter(state="cancelled"), None, 20)
    await store.close()
    assert await _tuples_read(postgres_url) - before < READS_MAX


async def test_postgresql_counts_submissions_up_to_the_limits(postgres_url: str) -> None:
    """The count uses one index. It reads no rows, and no more entries than the limits allow."""
    store = open_store(postgres_url, POOL_SIZE)
    before = await _tuples_read(postgres_url)
    counts = await store.count_submissions()
    await store.close()
    entries = COUNTED_TOTAL + len(counts) * (COUNTED_MIN + 1) + COUNTED_MAX
    assert await _tuples_read(postgres_url) - before < entries
    plan = await _planned(postgres_url, submissions.count_statement("crm", "pending", 10))
    assert "Index Only Scan Backward using submissions_gateway" in plan, plan
    assert "Sort" not in plan, plan


async def test_postgresql_finds_the_last_term_of_each_lease_in_an_index(postgres_url: str) -> None:
    plan = await _planned(postgres_url, leases._last_terms_before(NOON))
    assert "Index Scan Backward using lease_history_pkey" in plan, plan


LATELY = datetime.now(UTC).replace(microsecond=0)
MINUTE_AGO = uncut_window(LATELY, LATELY + timedelta(minutes=1), Era(LATELY - timedelta(days=40), (1, 2, 3)))
MIDDLE = "80000000-0000-4000-8000-000000000000"


@pytest.fixture
async def postgres_lately(postgres_million: str) -> str:
    """The database with a million sessions, and 50 more that have just closed."""
    made = [session_between(LATELY - timedelta(hours=1), LATELY + n * MICROSECOND) for n in range(1, 51)]
    store = open_store(postgres_million, POOL_SIZE)
    await insert_sessions(Database(postgres_million, store, Clock()), made)
    await store.close()
    return postgres_million


async def _planned(url: str, statement: Select[Any]) -> str:
    dialect: Dialect = postgresql.asyncpg.dialect()
    text = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    connection = await asyncpg.connect(url)
    plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {text}"))
    await connection.close()
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("after", [None, MIDDLE])
async def test_postgresql_divides_window_with_expected_indexes(postgres_lately: str, after: str | None) -> None:
    """Live sessions are read in the order of ids up to the limit, and closed ones by their end."""
    arguments = divide_arguments(MINUTE_AGO, after, 1)
    connection = await asyncpg.connect(postgres_lately, server_settings={"plan_cache_mode": "force_custom_plan"})
    statement = f"EXPLAIN (COSTS OFF) {divide_statement(MINUTE_AGO)}"
    plan = "\n".join(row[0] for row in await connection.fetch(statement, *arguments))
    await connection.close()
    assert sorted(re.findall(r"Scan using (\w+) on", plan)) == ["sessions_closed_at", "sessions_live_id"], plan
    assert "Seq Scan" not in plan, plan


@pytest.mark.slow
async def test_postgresql_reads_one_chunk_without_reading_whole_window(postgres_lately: str) -> None:
    store = open_store(postgres_lately, POOL_SIZE)
    before = await _tuples_read(postgres_lately)
    for after in (None, MIDDLE):
        (chunk_bounds,) = await store.divide_window(MINUTE_AGO, after, 1)
        chunk = replace(single_chunk(MINUTE_AGO), **asdict(chunk_bounds))
        (records,) = await store.render_chunks(MINUTE_AGO, [chunk], FORMATS["tenure"].template(MINUTE_AGO))
        assert records.sessions == CHUNK_MAX
    await store.close()
    # The range of ids of a chunk contains the live sessions of the chunk and as many sessions that closed long ago. So
    # each of the four reads needs about two entries per session of the chunk. The test allows four entries per session.
    # The table has a million sessions.
    assert await _tuples_read(postgres_lately) - before < 4 * 4 * CHUNK_MAX


@pytest.mark.slow
async def test_postgresql_sums_usage_in_parallel_and_sorts_only_groups(postgres_million: str) -> None:
    era, begins, ends = MINUTE_AGO.era, LATELY - timedelta(days=30), LATELY
    sum_query = UsageSumQuery(from_at=begins, to_at=ends, group_by=GroupBy.TENANT, factors=era.factors)
    plan = await _planned(postgres_million, usage_sums.sums_statement(sum_query, [(era, begins, ends)], None, 101))
    assert re.search(r"Gather.*Sort .*Partial HashAggregate.*Parallel Seq Scan on sessions", plan, re.DOTALL), plan


SQLITE_STATEMENTS = {
    "live": (opening.LIVE_OF, "SEARCH s USING INDEX sessions_live_key (user_object_id=? AND capacity_id=?)"),
    "ended since": (
        opening.ends_after_statement(NOON),
        "SEARCH sessions USING INDEX sessions_closed_at (closed_at>?)",
    ),
    "get": (
        sessions.get_statement(some_id(), EVERYTHING),
        "SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (session_id=?)",
    ),
    "get of a tenant and user": (
        sessions.get_statement(some_id(), Scope(some_id(), some_id())),
        "SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (session_id=?)",
    ),
    "submission of an owner": (
        submissions.get_statement(some_id(), "web"),
        "SEARCH submissions USING INDEX sqlite_autoindex_submissions_1 (submission_id=?)",
    ),
    "audit log of a target": (
        keys.list_audit_log_statement(AuditFilter(target="a", subject="b", action="c"), None, 100),
        "SEARCH audit_log USING INDEX audit_log_target (target>? AND target<?)",
    ),
    "audit log of a subject": (
        keys.list_audit_log_statement(AuditFilter(subject="b", action="c"), None, 100),
        "SEARCH audit_log USING INDEX audit_log_subject (subject>? AND subject<?)",
    ),
    "audit log of an action": (
        keys.list_audit_log_statement(AuditFilter(action="c", from_at=NOON), AuditPosition(NOON, some_id()), 100),
        "SEARCH audit_log USING INDEX audit_log_action (action>? AND action<?)",
    ),
    "waiting": (
        submissions.pending_statement(change_at(NOON, some_id()), 100),
        "SEARCH submissions USING INDEX submissions_waiting (last_modified_at>?)",
    ),
    "submissions": (
        submissions.list_statement(SubmissionFilter(), some_id(), 100),
        "SEARCH submissions USING INDEX sqlite_autoindex_submissions_1 (submission_id<?)",
    ),
}


@pytest.mark.parametrize("name", SQLITE_STATEMENTS)
async def test_sqlite_searches_expected_index(sqlite_file: Database, name: str) -> None:
    statement, expected = SQLITE_STATEMENTS[name]
    dialect: Dialect = sqlite.dialect()
    text = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    # The plan depends on the form of the statement, not on its values.
    text = text.replace("tenure_now()", "0").replace(":keys", "'[]'")
    plan = [row["detail"] for row in await sqlite_file.rows(f"EXPLAIN QUERY PLAN {text}")]
    assert expected in plan
    # The statement for the submission of an owner may sort the attempts of this submission.
    is_ordered = name != "submission of an owner"
    assert not any(line.startswith("SCAN s") or (is_ordered and "FOR ORDER BY" in line) for line in plan), plan


async def test_sqlite_never_scans_sessions_or_submissions(sqlite_file: Database) -> None:
    """Checks those statements of `call_everything` that read or change a table in TABLES."""
    sent: dict[str, object] = {}

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent[statement] = parameters

    store: Any = sqlite_file.store
    engines = [connections.engine for connections in (store._writer, store._lease_writer, store._readers)]
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    await call_everything(store)
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)
    with engines[0].connect() as connection:
        plans = {statement: _plan(connection, statement, sent[statement]) for statement in sent if _reads(statement)}
    scans = {statement: plan for statement, plan in plans.items() if any(_is_scan(line) for line in plan)}
    assert scans == {}
    due = next(plan for statement, plan in plans.items() if "check_at <=" in statement)
    assert due == ["SEARCH sessions USING INDEX sessions_check_at (check_at<?)"]
    assert len(plans) > 10
    united = [statement for statement in plans if "FROM sessions" in statement and "UNION ALL" in statement]
    # Statements with `.rank` read events. They use other indexes, which test_lists.py checks.
    intervals = [plans[statement] for statement in united if ".rank" not in statement]
    assert len(intervals) > 1
    for plan in intervals:
        read = [line for line in plan if " sessions " in line]
        assert [re.search(r"sessions_\w+", line).group() for line in read] == ["sessions_live_id", "sessions_closed_at"]  # type: ignore[union-attr]


TABLES = re.compile(r"\b(sessions|submissions|submission_attempts|usage_windows|usage_chunks)\b")
SCAN = re.compile(rf"SCAN (s|{TABLES.pattern[3:-3]})( USING .*)?$")
PAGES = [
    f"SCAN {table} USING INDEX {index}"
    for table, index in (
        ("submissions", "submissions_waiting"),
        ("submissions", "sqlite_autoindex_submissions_1"),
        ("sessions", "sessions_live_id"),
        ("usage_windows", "usage_windows_unchunked"),
        ("usage_windows", "usage_windows_awaited"),
        ("usage_windows", "sqlite_autoindex_usage_windows_1"),
    )
]
"""Scans that are allowed: a first page reads an index from one end, without a condition, and stops at its limit."""


def _plan(connection: Connection, statement: str, parameters: Any) -> list[str]:
    one = parameters[0] if isinstance(parameters, list) else parameters
    return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", one)]


def _reads(statement: str) -> bool:
    return bool(TABLES.search(statement)) and statement.lstrip().startswith(("SELECT", "UPDATE", "DELETE"))


def _is_scan(line: str) -> bool:
    """Returns whether the line scans a table or a whole index, except for the scans in PAGES."""
    return bool(SCAN.match(line)) and line not in PAGES
