"""Static checks of the T-SQL, which need no server: a linter, and rules on locks, clocks and types. The guarantees of
the store depend on these rules.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from typing import Self

import pytest
from sqlfluff.core import FluffConfig, Linter

from tenure.domain.job_grid import RETRY_MAX_SECONDS
from tenure.domain.leases import JOB_LOCK, NAME_MAX
from tenure.domain.meter import PERIOD_MICROSECONDS, usage_of
from tenure.domain.submissions import KEY_MAX, USAGES
from tenure.store import tables
from tenure.store.engines.sqlserver import errors
from tenure.store.limits import BATCH_MAX, SWEEP_MAX
from tests.sqlserver import tsql

BATCHES = tsql.batches()
CALLS = {name: text for name, text in tsql.constants().items() if text.startswith("EXEC")}
TRANSACTIONS = {name: text for name, text in BATCHES.items() if "BEGIN TRANSACTION" in text}
WRITES = {name: text for name, text in TRANSACTIONS.items() if "COMMIT TRANSACTION" in text}
PRUNES_SESSIONS = "tenure_prune_usage_1"
"""Deletes only closed sessions and writes no instant of a session, so it needs neither the cut lock nor the lock of a
key."""
PUBLISHES = "tenure_publish_events_1"
"""Reads only the newest instants of sessions, under the exclusive cut lock, and writes no session."""
IMPORTS = "tenure_import_sessions_1"
"""Inserts sessions under the exclusive cut lock, so no other transaction writes sessions meanwhile."""
SESSION_WRITES = {
    name: text
    for name, text in WRITES.items()
    if "dbo.sessions" in text and name not in (PRUNES_SESSIONS, PUBLISHES, IMPORTS)
}
LEASE_WRITES = {name: text for name, text in WRITES.items() if "dbo.leases" in text}
FENCED = {name: text for name, text in WRITES.items() if "dbo.tenure_check_fence" in text}
SUBMISSION_WRITES = {name: text for name, text in WRITES.items() if "dbo.submissions" in text}
CUT = "tenure_cut_usage_1"
ALONE_WRITES = {name: text for name, text in WRITES.items() if "tenure_lock_cut_exclusive" in text}
"""These hold the exclusive cut lock, so no other transaction writes sessions meanwhile."""
CAPACITY_WRITES = {name: text for name, text in ALONE_WRITES.items() if name not in (CUT, PUBLISHES, IMPORTS)}
USAGE_WRITES = {name: text for name, text in WRITES.items() if "dbo.usage_" in text}

RULES = [
    "AL01", "AL02", "AL05", "AM01", "AM02", "AM05", "AM06", "CP01", "CV03", "CV05", "RF01", "RF02", "ST01",
    "ST03", "ST07",
]  # fmt: skip
"""The rules of sqlfluff that find mistakes; the others check layout. RF03 is left out because it may report a SET of a
variable, which refers to no table. AM04 is left out because it forbids `s.*`, by which procedures return all columns of
a session."""

NEWER_THAN_2019 = (
    "LEAST", "GREATEST", "GENERATE_SERIES", "DATE_BUCKET", "DATETRUNC", "JSON_OBJECT", "JSON_ARRAY", "BIT_COUNT",
    "IS DISTINCT FROM", "IS NOT DISTINCT FROM", "APPROX_PERCENTILE_CONT", "STRING_AGG_DISTINCT",
)  # fmt: skip

READ = re.compile(
    r"(?:FROM|JOIN) dbo\."
    r"(?P<table>sessions|capacities|leases|lease_history|jobs|job_runs|submissions|submission_attempts"
    r"|usage_windows|usage_chunks|usage_marks|usage_mark_sums|keys|signing_keys|audit_log|alerts|instances|activity"
    r"|event_subscriptions|event_batches)"
    r" AS (?P<alias>\w+)(?: WITH \((?P<hints>(?:[^()]|\([^()]*\))*)\))?"
)
WRITE = re.compile(
    r"UPDATE [sjt] SET|UPDATE dbo\.|INSERT INTO dbo\.|DELETE FROM dbo\.|EXEC dbo\.tenure_(?:begin|end)_epoch_1"
)

# Lock hints. The docstring of a hint says which locks a read with this hint keeps, and why these locks are enough.
WAITS = "UPDLOCK, HOLDLOCK, ROWLOCK"
"""Waits for rows that other transactions hold. Keeps the locks on the rows, and on the gaps where rows are missing."""
TAKES_ROWS = "UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK"
TAKES_KEYS = "XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK"
"""Skip rows that other transactions hold. Keep the locks on the rows that they return."""
COUNTS = "READCOMMITTEDLOCK, INDEX (sessions_live_capacity)"
"""Keeps no lock, but waits for a transaction that is writing an index entry. Such a transaction never waits for the
reader."""
READS_COUNTED = "READCOMMITTEDLOCK, INDEX (sessions_pkey)"
"""Keeps no lock, but waits for a transaction that is writing a row. Such a transaction never waits for the reader."""
READS_RULES = "READCOMMITTEDLOCK, INDEX (capacities_pkey)"
"""Keeps no lock: the reader holds the shared cut lock, and a transaction that changes the rules of a capacity needs the
exclusive cut lock."""
PASSES_OVER = "READCOMMITTEDLOCK, READPAST, FORCESEEK, INDEX (sessions_closed_at)"
"""Keeps no lock, and skips rows that other transactions are writing. None of the skipped rows matters, because only the
reader can be ending sessions of the keys that it has locked."""
FENCE = "REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey)"
"""Takes a shared lock, and keeps it until the transaction ends."""
ALONE = "XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey)"
"""Waits for all transactions that have checked a fence of the lease, and then reads the current row, not a version from
before the wait. Does not lock the gap in which a missing lease would be inserted: a transaction that begins an epoch
has already locked the gap, and a transaction that renews or ends an epoch does not need to lock it."""
READS_RUN = "READCOMMITTEDLOCK, INDEX (job_runs_pkey)"
READS_JOB = "READCOMMITTEDLOCK, INDEX (jobs_pkey)"
"""Keep no lock: the reader has locked the lease of the job, so no other transaction writes the run or the job's number
of failures in a row."""
READS_SUBMISSION = "READCOMMITTEDLOCK, INDEX (submissions_pkey)"
"""Keeps no lock: the reader has locked the idempotency key, so no other transaction can delete the row. The reader may
wait for a transaction that is writing the row, but such a transaction never waits for an idempotency key."""
READS_ATTEMPT = "READCOMMITTEDLOCK, INDEX (submission_attempts_pkey)"
"""Keeps no lock: only the transaction that holds the row of a submission writes its attempts."""
READS_WINDOW = "READCOMMITTEDLOCK, INDEX (usage_windows_pkey)"
"""Keeps no lock: a delivered window stays delivered, and only the job `prune` deletes windows."""
READS_CHUNK = "READCOMMITTEDLOCK, INDEX (usage_chunks_pkey)"
READS_MARK = "READCOMMITTEDLOCK, INDEX (usage_mark_sums_pkey)"
"""Keep no lock. Only a transaction that holds the row of a window saves chunks of this window, and only the job `prune`
deletes chunks. Only the job `mark-usage` writes marks, under the fence of its run."""
FINDS_CHUNK = "READCOMMITTEDLOCK, INDEX (usage_chunks_submission)"
"""Keeps no lock: the window of a chunk never changes."""
FINDS_UNDELIVERED = "READCOMMITTEDLOCK, INDEX (usage_chunks_undelivered)"
"""Keeps no lock: only the transaction that holds the row of a window marks its chunks as delivered."""
READS_KEYS = "READCOMMITTEDLOCK, INDEX (keys_"
"""Keeps no lock: only a transaction that holds the row of the installation creates or revokes keys."""
READS_SIGNING_KEYS = "READCOMMITTEDLOCK, INDEX (signing_keys_pkey)"
"""Keeps no lock: only a transaction that holds the row of the installation changes signing keys."""
READS_ALERTS = "READCOMMITTEDLOCK, INDEX (alerts_active)"
FINDS_CLEARED = "READCOMMITTEDLOCK, FORCESEEK, INDEX (alerts_cleared_at)"
"""Keep no lock: only the job `watch` changes alerts, under the fence of its run, and the job `prune` deletes only old
alerts."""
READS_NEWEST = {f"READCOMMITTEDLOCK, INDEX ({index})" for index in ("sessions_closed_at", "sessions_live_kind")}
"""Keep no lock: the reader holds the exclusive cut lock, so no other transaction writes sessions."""
IS_THERE = "READUNCOMMITTED, INDEX (submissions_pkey)"
"""Does not wait. May read uncommitted rows, so the statement uses only whether a row exists."""

TAKING = {TAKES_ROWS, TAKES_KEYS}
HINTS = {
    "tenure_open_1": {WAITS, PASSES_OVER, READS_RULES},
    "tenure_open_limited_1": {WAITS, PASSES_OVER, COUNTS, READS_COUNTED, TAKES_ROWS, TAKES_KEYS},
    "tenure_import_sessions_1": {WAITS},
    "tenure_end_1": TAKING,
    "tenure_end_many_1": TAKING,
    "tenure_heartbeat_1": TAKING,
    "tenure_expire_1": TAKING,
    "tenure_attach_1": TAKING,
    "tenure_update_streams_1": TAKING,
    "tenure_put_capacity_1": {WAITS},
    "tenure_delete_capacity_1": {WAITS},
    "tenure_acquire_lease_1": {WAITS, ALONE},
    "tenure_renew_lease_1": {ALONE},
    "tenure_release_lease_1": {ALONE},
    "tenure_resign_lease_1": {ALONE},
    "tenure_register_jobs_1": {WAITS},
    "tenure_begin_run_1": {WAITS, ALONE, READS_RUN, READS_JOB},
    "tenure_finish_run_1": {WAITS, ALONE},
    "tenure_command_job_1": {WAITS},
    "tenure_prune_1": TAKING,
    "tenure_accept_submissions_1": {WAITS, READS_SUBMISSION},
    "tenure_begin_attempts_1": {TAKES_ROWS, READS_ATTEMPT},
    "tenure_finish_attempts_1": {FINDS_CHUNK, WAITS, READS_ATTEMPT, FINDS_UNDELIVERED},
    "tenure_note_waiting_reason_1": {WAITS},
    "tenure_command_submissions_1": {WAITS, READS_ATTEMPT},
    "tenure_cut_usage_1": set(),
    "tenure_save_chunks_1": {WAITS, READS_CHUNK},
    "tenure_send_windows_1": {WAITS, READS_CHUNK},
    "tenure_store_digests_1": {WAITS},
    "tenure_save_mark_1": {WAITS, READS_MARK},
    "tenure_delete_mark_1": {READS_MARK},
    "tenure_prune_usage_1": {READS_WINDOW, READS_CHUNK, TAKES_ROWS},
    "tenure_create_key_1": {READS_KEYS},
    "tenure_revoke_key_1": {READS_KEYS},
    "tenure_touch_keys_1": {TAKES_ROWS},
    "tenure_rotate_signing_key_1": {READS_SIGNING_KEYS},
    "tenure_save_instance_1": {WAITS},
    "tenure_save_activity_1": {WAITS},
    "tenure_update_alerts_1": {WAITS, READS_ALERTS, FINDS_CLEARED},
    "tenure_publish_events_1": READS_NEWEST,
    "tenure_subscribe_gateways_1": {WAITS},
    "tenure_save_event_batch_1": {WAITS, READS_SUBMISSION},
}
"""The lock hints that each write must use inside its transaction. It must use no others. A new write needs an entry."""
WAITERS = {name: text for name, text in SESSION_WRITES.items() if WAITS in text}
"""The writes of sessions that wait for locked keys and rows."""
TAKERS = {name: text for name, text in SESSION_WRITES.items() if name not in WAITERS}
"""The writes of sessions that skip locked rows."""
INDEXED = (
    "session_id", "capacity_id", "user_object_id", "tenant_object_id", "kind", "started_at", "check_at", "closed_at",
    "close_reason",
)  # fmt: skip


def inside(text: str) -> str:
    """Returns the part of a batch between the begin and the commit of its transaction."""
    return tsql.code(text).partition("BEGIN TRANSACTION;")[2].rpartition("COMMIT TRANSACTION;")[0]


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the string literals, except docstrings, each with its line number."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_batch_parses_and_passes_lint(name: str) -> None:
    config = FluffConfig(overrides={"dialect": "tsql", "rules": ",".join(RULES)})
    linted = Linter(config=config).lint_string(BATCHES[name])
    # Rule PRS is always on, and reports parse errors.
    assert [f"{each.line_no}: {each.rule_code()} {each.desc()}" for each in linted.get_violations()] == []


def test_all_engine_statements_are_module_constants() -> None:
    known = " ".join(tsql.constants().values())
    inline_statements = [
        (line, text)
        for source in tsql.sources()
        for line, text in literals(ast.parse(source))
        if tsql.looks_like_sql(text) and tsql.without_parameters(text).strip() not in known
    ]
    assert inline_statements == [], "a statement must be a constant of its module, otherwise no test checks it"


@tsql.for_each(CALLS)
def test_call_uses_parameters_of_procedure(name: str) -> None:
    called = re.match(r"EXEC dbo\.(\w+) ", CALLS[name])
    assert called, CALLS[name]
    head = tsql.code(tsql.routines()[called[1]]).partition(" AS BEGIN")[0]
    assert re.findall(r"(@\w+) =", CALLS[name]) == re.findall(r"@\w+", head)


@tsql.for_each(tsql.routines())
def test_routine_batch_creates_one_object(name: str) -> None:
    text = tsql.code(tsql.routines()[name])
    assert re.match(r"CREATE OR ALTER (FUNCTION|PROCEDURE) dbo\.", text), "must be the first statement of its batch"
    assert len(re.findall(r"\bCREATE\b", text)) == 1


INSERTS = [
    (name, insert[1], set(insert[2].replace(" ", "").split(",")))
    for name, text in BATCHES.items()
    for insert in re.finditer(r"INSERT INTO dbo\.(\w+) \(([^()]+)\)", tsql.code(text))
]


def test_insert_sets_all_required_columns() -> None:
    for name, table, columns in INSERTS:
        known = tables.metadata.tables[table].c
        assert columns <= set(known.keys()), (name, table)
        required = {column.name for column in known if not column.nullable and column.server_default is None}
        assert required <= columns, (name, table)


@tsql.for_each(TRANSACTIONS)
def test_transaction_sets_xact_abort_and_lock_timeout(name: str) -> None:
    before = tsql.code(TRANSACTIONS[name]).partition("BEGIN TRANSACTION;")[0]
    assert "SET XACT_ABORT ON;" in before
    assert re.search(r"SET LOCK_TIMEOUT -?\d+;", before)


@tsql.for_each(WRITES)
def test_write_is_one_transaction_and_returns_rows_after_commit(name: str) -> None:
    text = tsql.code(WRITES[name])
    assert text.count("BEGIN TRANSACTION;") == text.count("COMMIT TRANSACTION;") == 1
    assert "SELECT" in text.rpartition("COMMIT TRANSACTION;")[2], (
        "locks must not be held until the client has read the rows"
    )


@tsql.for_each(WRITES)
def test_write_sets_nocount_on(name: str) -> None:
    """Without NOCOUNT, the number of changed rows would arrive before the result, and the driver would return only the
    number.
    """
    assert "SET NOCOUNT ON;" in tsql.code(WRITES[name]).partition("BEGIN TRANSACTION;")[0]


@tsql.for_each(WRITES)
def test_write_reads_rows_with_expected_lock_hints(name: str) -> None:
    hints = [read["hints"] for read in READ.finditer(inside(WRITES[name])) if read["hints"]]
    odd = [each for each in hints if not each.startswith(tuple(HINTS[name]))]
    assert odd == []
    assert {known for known in HINTS[name] if not any(each.startswith(known) for each in hints)} == set()


@tsql.for_each(WRITES)
def test_write_reads_without_hint_only_rows_it_modifies(name: str) -> None:
    unlocked = [
        statement
        for statement in tsql.statements(inside(WRITES[name]))
        for read in READ.finditer(statement)
        if not read["hints"]
        and not re.search(rf"\b(?:UPDATE {read['alias']} SET|DELETE (?:TOP \(\d+\) )?{read['alias']})\b", statement)
    ]
    assert unlocked == []


@tsql.for_each(WRITES)
def test_write_joins_force_order_from_table_variable(name: str) -> None:
    """Without a forced order, an UPDATE may scan the table and wait for rows of other transactions, in any order."""
    without_order = [
        statement
        for statement in tsql.statements(inside(WRITES[name]))
        if re.search(r"FROM @\w+ AS \w+ (?:INNER JOIN @\w+ AS \w+ ON [^()]+ )?INNER JOIN dbo\.", statement)
        and not statement.endswith("OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1)")
    ]
    assert without_order == []


@tsql.for_each(WAITERS)
def test_waiting_write_locks_capacities_then_keys_then_rows(name: str) -> None:
    indexes = re.findall(rf"{WAITS}, INDEX \((\w+)\)", inside(WAITERS[name]))
    order = ["capacities_pkey", "sessions_live_key", "sessions_pkey"]
    assert indexes == (order if "limited" in name else order[1:])


@tsql.for_each([name for name in WAITERS if "open" in name])
def test_waiting_open_locks_rows_in_order(name: str) -> None:
    waiting = [statement for statement in tsql.statements(inside(WAITERS[name])) if WAITS in statement]
    assert [statement for statement in waiting if not re.search(r"SELECT TOP \(1000\) .* ORDER BY ", statement)] == []


@tsql.for_each(WAITERS)
def test_waiting_write_takes_its_waiting_locks_before_it_counts_or_skips_rows(name: str) -> None:
    text = inside(WAITERS[name])
    nonblocking = [text.find(hints) for hints in (COUNTS, READS_COUNTED, TAKES_ROWS, TAKES_KEYS) if hints in text]
    assert text.rfind(WAITS) < min(nonblocking, default=len(text))


def test_count_of_seats_reads_entries_and_rows_in_separate_statements() -> None:
    """A read that continued from an index entry to its row could deadlock with a transaction that ends the session."""
    counts = [each for each in tsql.statements(inside(WAITERS["tenure_open_limited_1"])) if COUNTS in each]
    known = {column.name for column in tables.sessions_live_capacity.columns}
    known |= set(tables.sessions_live_capacity.dialect_kwargs["mssql_include"])
    assert len(counts) == 1
    assert set(re.findall(r"\bs\.(\w+)", counts[0])) - known == {"session_id"}


@tsql.for_each(WAITERS)
def test_waiting_write_locks_keys_in_order_of_their_index(name: str) -> None:
    columns = [column.name for column in tables.sessions_live_key.columns]
    text = tsql.code(WAITERS[name])
    assert f"PRIMARY KEY ({', '.join(columns)})" in text
    (locking,) = [each for each in tsql.statements(inside(text)) if f"{WAITS}, INDEX (sessions_live_key)" in each]
    assert f"ORDER BY {', '.join(f'w.{column}' for column in columns)} OPTION" in locking


@tsql.for_each(TAKERS)
def test_nonwaiting_write_uses_readpast(name: str) -> None:
    hints = [read["hints"] or "READPAST" for read in READ.finditer(inside(TAKERS[name]))]
    assert [each for each in hints if "READPAST" not in each or "HOLDLOCK" in each] == []


@tsql.for_each(SESSION_WRITES)
def test_session_end_locks_key_before_write(name: str) -> None:
    text = inside(SESSION_WRITES[name])
    assert 0 <= text.find("INDEX (sessions_live_key)") < text.find("closed_at = ")


@tsql.for_each(["tenure_heartbeat_1", "tenure_update_streams_1"])
def test_session_renewal_updates_no_indexed_column(name: str) -> None:
    renewals = [
        set(re.findall(r"\bs\.(\w+) = ", statement.partition(" FROM ")[0]))
        for statement in tsql.statements(inside(TAKERS[name]))
        if "s.last_heartbeat_at = " in statement
    ]
    assert len(renewals) == 1
    assert renewals[0].isdisjoint(INDEXED)


@tsql.for_each(SESSION_WRITES)
def test_session_write_acquires_cut_lock_after_lease(name: str) -> None:
    first, second, *_ = tsql.statements(inside(SESSION_WRITES[name]))
    assert (second if name in FENCED else first) == "EXEC dbo.tenure_lock_cut_shared_1"


@tsql.for_each([*CAPACITY_WRITES, PUBLISHES, IMPORTS])
def test_write_under_exclusive_cut_lock_acquires_this_lock_first(name: str) -> None:
    assert inside(ALONE_WRITES[name]).strip().startswith("EXEC dbo.tenure_lock_cut_exclusive_1;")


def test_cut_reads_clock_under_exclusive_lock() -> None:
    fence, alone, clock, *_ = tsql.statements(inside(WRITES[CUT]))
    assert fence.startswith("EXEC dbo.tenure_check_fence_1 ")
    assert (alone, clock) == ("EXEC dbo.tenure_lock_cut_exclusive_1", "SET @now = dbo.tenure_now()")


def test_only_cut_procedure_changes_last_cut() -> None:
    moving = re.compile(r"\blast_cut_at = @\w+, last_window_id = |\blast_window_id = @|SET last_cut_at = ")
    assert [name for name, text in BATCHES.items() if moving.search(tsql.code(text))] == [CUT]


def test_cut_ends_windows_at_midnight_and_at_last_tick_of_grid() -> None:
    midnight = "SET @to_at = DATEADD(DAY, 1, CAST(CAST(@from_at AS date) AS datetime2(6)));"
    loop = inside(WRITES[CUT]).partition("WHILE @from_at < @grid AND @windows < @limit BEGIN ")[2].partition(" END;")[0]
    assert loop.startswith(f"{midnight} IF @to_at > @grid SET @to_at = @grid;")
    assert loop.endswith(
        "VALUES (@window_id, @installation_id, @era, @from_at, @to_at, @now, @contract); SET @from_at = @to_at;"
    )


def test_only_capacity_procedures_change_capacity_rules() -> None:
    rules = re.compile(
        r"INSERT INTO dbo\.capacities|UPDATE dbo\.capacities|DELETE FROM dbo\.capacities|\w\.max_sessions = \S"
    )
    changing = {name for name, text in WRITES.items() if rules.search(inside(text))}
    assert changing == set(CAPACITY_WRITES)


def test_exclusive_cut_lock_has_short_timeout() -> None:
    alone = re.search(
        r"N'tenure\.cut', @LockMode = 'Exclusive', .*@LockTimeout = (\d+)",
        tsql.code(BATCHES["tenure_lock_cut_exclusive_1"]),
    )
    assert alone
    assert int(alone[1]) <= 200


@tsql.for_each(SESSION_WRITES)
def test_session_write_reads_clock_after_last_lock_and_before_first_write(name: str) -> None:
    text = inside(SESSION_WRITES[name])
    first_write = min(match.start() for match in WRITE.finditer(text))
    last_lock = max(text.rfind(hints) for hints in (WAITS, TAKES_ROWS, TAKES_KEYS, COUNTS))
    assert last_lock < text.rfind("SET @now = dbo.tenure_write_now()") < first_write
    assert text.count("@now = dbo.") == 1


@tsql.for_each(LEASE_WRITES)
def test_lease_write_locks_lease_before_job_and_runs(name: str) -> None:
    locked = [
        read["table"]
        for read in READ.finditer(inside(LEASE_WRITES[name]))
        if (read["hints"] or "").startswith(("UPDLOCK", "XLOCK"))
    ]
    assert locked == sorted(locked, key=["leases", "jobs", "job_runs"].index)
    assert locked[0] == "leases"


@tsql.for_each(sorted({*LEASE_WRITES, "tenure_register_jobs_1", "tenure_command_job_1"}))
def test_lease_write_reads_clock_after_last_lock_and_before_first_write(name: str) -> None:
    text = inside(WRITES[name])
    first_write = min(match.start() for match in WRITE.finditer(text))
    last_lock = max(text.rfind(hints) for hints in (WAITS, ALONE))
    assert last_lock < text.rfind("SET @now = dbo.tenure_now()") < first_write


@tsql.for_each(["tenure_acquire_lease_1", "tenure_begin_run_1"])
def test_epoch_begins_after_exclusive_lease_lock(name: str) -> None:
    text = inside(LEASE_WRITES[name])
    assert 0 <= text.find(WAITS) < text.find(ALONE) < text.find("EXEC dbo.tenure_begin_epoch_1")


def test_begin_run_moves_tick_back_under_locks_after_reading_clock() -> None:
    text = inside(LEASE_WRITES["tenure_begin_run_1"])
    clock = text.rfind("SET @now = dbo.tenure_now()")
    moved = text.find("SET @next_run_at = dbo.tenure_grid_at_1(@interval, @now)")
    assert text.rfind(WAITS) < clock < text.find("dbo.tenure_is_due_1(@next_run_at,") < moved
    assert moved < text.find("UPDATE dbo.jobs SET next_run_at = @next_run_at,")


def test_job_waits_no_longer_than_longest_retry_pause() -> None:
    pause = f"@retry_at > @now AND @retry_at <= DATEADD(SECOND, {RETRY_MAX_SECONDS}, @now) THEN 0"
    assert pause in tsql.code(BATCHES["tenure_is_due_1"])


@tsql.for_each([name for name, text in SESSION_WRITES.items() if name != "tenure_expire_1"])
def test_session_write_computes_deadlines_by_shared_functions(name: str) -> None:
    """The sweep is left out, because it writes only stored deadlines."""
    assert re.findall(r"DATEADD\(", tsql.code(SESSION_WRITES[name])) == []


@tsql.for_each(FENCED)
def test_fenced_write_checks_fence_first(name: str) -> None:
    fence = "EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;"
    assert inside(FENCED[name]).strip().startswith(fence)


def test_all_job_and_leader_writes_are_fenced() -> None:
    attempts = {"tenure_begin_attempts_1", "tenure_finish_attempts_1"}
    others = {"tenure_prune_1", "tenure_expire_1", "tenure_note_waiting_reason_1", "tenure_update_alerts_1"}
    usage = {CUT, "tenure_save_chunks_1", "tenure_store_digests_1", PRUNES_SESSIONS}
    usage |= {"tenure_save_mark_1", "tenure_delete_mark_1"}
    events = {"tenure_subscribe_gateways_1", "tenure_save_event_batch_1"}
    assert set(FENCED) == attempts | others | usage | events


@tsql.for_each(SUBMISSION_WRITES)
def test_waiting_submission_write_locks_rows_in_index_order(name: str) -> None:
    statements = tsql.statements(inside(WRITES[name]))
    waiting = [each for each in statements if re.search(rf"dbo\.submissions AS \w WITH \({WAITS}", each)]
    index, order = (
        ("submissions_key", r"w\.caller, w\.gateway, w\.idempotency_key")
        if "accept" in name
        else ("submissions_pkey", r"\w\.submission_id")
    )
    in_order = re.compile(
        rf"SELECT TOP \((?:1000|@limit)\) .* FROM @\w+ .*\({WAITS}, INDEX \({index}\)\) .* ORDER BY {order} OPTION"
    )
    waits_for_others = name in (
        "tenure_save_chunks_1",
        "tenure_send_windows_1",
        "tenure_update_alerts_1",
        "tenure_subscribe_gateways_1",
        "tenure_save_event_batch_1",
    )
    assert len(waiting) == (1 if WAITS in HINTS[name] and not waits_for_others else 0)
    assert [statement for statement in waiting if not in_order.search(statement)] == []


def test_only_accept_waits_for_submission_keys() -> None:
    keys = {
        (name, read["hints"].removesuffix(", INDEX (submissions_key)"))
        for name, text in SUBMISSION_WRITES.items()
        for read in READ.finditer(tsql.code(text))
        if "submissions_key" in (read["hints"] or "")
    }
    assert keys == {("tenure_accept_submissions_1", WAITS), ("tenure_prune_1", TAKES_KEYS)}


def test_prune_deletes_submissions_only_with_locked_keys() -> None:
    text = inside(WRITES["tenure_prune_1"]).partition("INSERT INTO @old (")[2]
    deleting = [statement for statement in tsql.statements(text) if "DELETE " in statement]
    assert text.find(TAKES_ROWS) < text.find(TAKES_KEYS) < text.find("DELETE ")
    assert len(deleting) == 3
    assert [statement for statement in deleting if "WHERE o.has_key = 1 OPTION" not in statement] == []


def test_only_prune_deletes_submissions() -> None:
    deleting = re.compile(r"DELETE (?:FROM dbo\.submission|\w FROM @\w+ AS \w INNER JOIN dbo\.submissions )")
    assert {name for name, text in BATCHES.items() if deleting.search(tsql.code(text))} == {"tenure_prune_1"}


@tsql.for_each(["tenure_create_key_1", "tenure_revoke_key_1", "tenure_rotate_signing_key_1"])
def test_key_change_locks_installation_then_reads_clock_then_writes(name: str) -> None:
    text = inside(WRITES[name])
    locked = text.find(f"FROM dbo.installation AS i WITH ({WAITS})")
    clock = text.find("SET @now = dbo.tenure_now()")
    assert text.strip().startswith("SELECT @version = i.keys_version FROM dbo.installation")
    assert 0 < locked < clock < min(text.find(write) for write in ("UPDATE ", "INSERT INTO dbo.") if write in text)


@tsql.for_each(["tenure_create_key_1", "tenure_revoke_key_1"])
def test_key_change_writes_version_and_audit_entry_together(name: str) -> None:
    pair = r"UPDATE dbo\.installation SET keys_version = @version \+ 1 WHERE only_row = 1; EXEC dbo\.tenure_audit_1 "
    assert len(re.findall(pair, inside(WRITES[name]))) == 1


def test_only_key_changes_increase_version() -> None:
    changing = [name for name, text in BATCHES.items() if re.search(r"\bSET keys_version\b", tsql.code(text))]
    assert sorted(changing) == ["tenure_create_key_1", "tenure_revoke_key_1"]


def test_waiting_usage_write_locks_windows_in_id_order() -> None:
    waiting = {
        name: statement
        for name, text in USAGE_WRITES.items()
        for statement in tsql.statements(inside(text))
        if f"{WAITS}, INDEX (usage_windows_pkey)" in statement
    }
    assert waiting.keys() == {"tenure_save_chunks_1", "tenure_send_windows_1", "tenure_finish_attempts_1"}
    assert waiting["tenure_save_chunks_1"].endswith("WHERE w.window_id = @window_id")
    in_order = r"SELECT TOP \(1000\) .* FROM @\w+ AS \w INNER JOIN .* ORDER BY \w\.window_id OPTION"
    for name in ("tenure_send_windows_1", "tenure_finish_attempts_1"):
        assert re.search(in_order, waiting[name]), name


def test_finish_attempts_locks_windows_before_submissions() -> None:
    """The other order could cause a deadlock: other transactions hold a window while they wait for an idempotency key,
    or hold an idempotency key while they wait for a submission.
    """
    text = inside(WRITES["tenure_finish_attempts_1"])
    windows, submissions = (f"{WAITS}, INDEX ({table}_pkey)" for table in ("usage_windows", "submissions"))
    assert 0 <= text.find(windows) < text.find(submissions)


@tsql.for_each(["tenure_save_chunks_1", "tenure_send_windows_1", "tenure_finish_attempts_1"])
def test_chunk_write_locks_window_then_reads_clock(name: str) -> None:
    text = inside(WRITES[name])
    write = re.search(r"INSERT INTO dbo\.usage_chunks|UPDATE c SET c\.(?:delivered_at|submission_id)", text)
    assert write
    lock = text.find(f"{WAITS}, INDEX (usage_windows_pkey)")
    assert 0 <= lock < text.find("SET @now = dbo.tenure_now()") < write.start()
    assert text.count("dbo.tenure_now()") == 1


def test_save_chunks_reads_saved_chunks_under_window_lock() -> None:
    text = inside(WRITES["tenure_save_chunks_1"])
    assert 0 <= text.find(WAITS) < text.find(READS_CHUNK)


def test_chunk_is_marked_delivered_with_its_submission() -> None:
    text = inside(WRITES["tenure_finish_attempts_1"])
    (update,) = [each for each in tsql.statements(text) if "SET c.delivered_at" in each]
    assert "WHERE m.state = 'delivered' AND c.delivered_at IS NULL OPTION" in update
    assert text.find("UPDATE m SET m.state = ") < text.find(update) < text.find(FINDS_UNDELIVERED)


def test_store_digests_updates_only_digest_column() -> None:
    changed = re.findall(r"UPDATE c SET ([^;]*?) FROM", inside(WRITES["tenure_store_digests_1"]))
    assert changed == ["c.digest = m.new_digest"]


def test_store_digests_locks_in_order_and_writes_only_missing_digests() -> None:
    lock, update = tsql.statements(inside(WRITES["tenure_store_digests_1"]))[1:]
    assert re.search(r"SELECT TOP \(1000\) .* ORDER BY d\.submission_id OPTION", lock)
    assert "WHERE m.digest IS NULL OPTION" in update


@tsql.for_each([name for name, text in USAGE_WRITES.items() if "usage_chunks_submission" in text])
def test_read_of_filtered_chunk_index_repeats_filter(name: str) -> None:
    """Without the condition `submission_id IS NOT NULL`, SQL Server does not use the filtered index."""
    text = tsql.code(USAGE_WRITES[name])
    found = re.findall(r"INDEX \(usage_chunks_submission\)\) ON \w\.submission_id = c\.submission_id AND (.*?) O", text)
    assert found == ["c.submission_id IS NOT NULL"]


def test_prune_usage_uses_no_holdlock_or_xlock_and_deletes_chunks_then_windows_then_sessions() -> None:
    hints = [read["hints"] or "" for read in READ.finditer(inside(WRITES[PRUNES_SESSIONS]))]
    assert [each for each in hints if "HOLDLOCK" in each or "XLOCK" in each] == []
    deleting = [each for each in tsql.statements(inside(WRITES[PRUNES_SESSIONS])) if each.startswith("DELETE ")]
    assert [re.match(r"DELETE \w FROM @old_(\w+) AS o INNER JOIN dbo\.(\w+) ", each)[2] for each in deleting] == [  # type: ignore[index]
        "usage_chunks",
        "usage_windows",
        "sessions",
    ]


def test_prune_usage_respects_limit() -> None:
    statements = tsql.statements(inside(WRITES[PRUNES_SESSIONS]))
    taking = [each for each in statements if re.match(r"INSERT INTO @(old|taken)", each)]
    assert len(taking) == 5
    assert [each for each in taking if "SELECT TOP (@limit) " not in each] == []


def test_prune_usage_takes_windows_before_their_chunks() -> None:
    """In the other order, the procedure could delete chunks of a window that another transaction is sending."""
    text = inside(WRITES[PRUNES_SESSIONS])
    assert 0 <= text.find("INSERT INTO @taken") < text.find("FROM dbo.usage_chunks")
    (taking,) = [each for each in tsql.statements(text) if each.startswith("INSERT INTO @taken")]
    assert f"WITH ({TAKES_ROWS}, INDEX (usage_windows_pkey)) WHERE w.window_id < @end AND" in taking


def test_prune_usage_deletes_only_sessions_closed_before_retention() -> None:
    (taking,) = [each for each in tsql.statements(inside(WRITES[PRUNES_SESSIONS])) if "@old_sessions (" in each]
    assert f"WITH ({TAKES_ROWS}, FORCESEEK, INDEX (sessions_closed_at)) " in taking
    assert "WHERE s.closed_at < @kept_from AND s.closed_at IS NOT NULL AND s.state = 'closed' ORDER BY" in taking


def test_prune_usage_reads_last_cut_before_windows() -> None:
    """In the other order, the procedure could miss a window that is cut between the two reads, and delete sessions that
    ended in this window.
    """
    text = inside(WRITES[PRUNES_SESSIONS])
    assert 0 <= text.find("@last_cut_at = i.last_cut_at") < text.find("FROM dbo.usage_windows")


def test_prune_usage_updates_installation_last() -> None:
    assert tsql.statements(inside(WRITES[PRUNES_SESSIONS]))[-1].startswith(
        "IF @pruned_windows > 0 UPDATE dbo.installation SET usage_kept_from"
    )


def test_usage_submission_uses_delivery_key_bytes_as_idempotency_key() -> None:
    text = tsql.code(WRITES["tenure_save_chunks_1"])
    assert f"'{USAGES}', 'tenure', CONVERT(varbinary({KEY_MAX}), k.delivery_key), k.delivery_key, 0x," in text
    assert "CAST(CONCAT(@installation, '-', @window_id, '-', p.chunk) AS varchar(200)) AS delivery_key" in text
    assert "@installation = LOWER(CONVERT(varchar(36), w.installation_id))" in text


def test_cancel_refuses_usage_submissions() -> None:
    text = tsql.code(WRITES["tenure_command_submissions_1"])
    (update,) = [each for each in tsql.statements(text) if "s.state = 'cancelled'" in each]
    assert f"m.gateway <> '{USAGES}' OPTION" in update
    assert f"(@command = 'cancel' AND m.gateway = '{USAGES}') THEN 0" in text


class Bigint(int):
    """A bigint of SQL Server: raises on overflow. Its division equals that of SQL Server if no number is negative."""

    def __new__(cls, value: int) -> Self:
        if not -(2**63) <= value < 2**63:
            raise OverflowError(value)
        return super().__new__(cls, value)

    def __add__(self, other: int) -> "Bigint":
        return Bigint(int(self) + other)

    def __mul__(self, other: int) -> "Bigint":
        return Bigint(int(self) * other)

    def __rmul__(self, other: int) -> "Bigint":
        return self * other

    def __floordiv__(self, other: int) -> "Bigint":
        return Bigint(int(self) // other)

    def __mod__(self, other: int) -> "Bigint":
        return Bigint(int(self) % other)


def usage_in_tsql(microseconds: int, factor: int) -> int:
    """Evaluates dbo.tenure_usage_1 step by step."""
    known = {"microseconds": Bigint(microseconds), "factor": Bigint(factor)}
    text = re.sub(r"@(\w+)", r"\1", tsql.code(BATCHES["tenure_usage_1"])).replace("/", "//")
    for name, expression in re.findall(r"DECLARE (\w+) bigint = ([^;]+);", text):
        known[name] = Bigint(eval(expression, {}, known))
    rounded = re.search(r"RETURN whole \+ CASE WHEN (.+) THEN 1 ELSE 0 END;", text)
    assert rounded
    return known["whole"] + bool(eval(rounded[1], {}, known))


LONGEST = 400 * 24 * 3600 * 1_000_000


FACTORS = [0, 1, 3, 999_999, 1_000_000, 1_500_000, 2_000_001, 10**12 - 1, 10**12]
DURATIONS = [0, 1, 1_296_000, 1_296_001, 3_888_000, PERIOD_MICROSECONDS - 1, PERIOD_MICROSECONDS, LONGEST - 1, LONGEST]


def test_tsql_usage_equals_meter_without_bigint_overflow() -> None:
    for microseconds, factor in itertools.product(DURATIONS, FACTORS):
        assert usage_in_tsql(microseconds, factor) == usage_of(microseconds, factor), (microseconds, factor)


def test_usage_function_is_inlineable() -> None:
    text = tsql.code(BATCHES["tenure_usage_1"])
    assert text.count("RETURN ") == 1
    assert re.findall(r"\b(?:FROM|WHILE|IF|EXEC|SET)\b", text) == []


@tsql.for_each(BATCHES)
def test_batch_has_no_literal_beyond_int_range(name: str) -> None:
    """A literal that does not fit an int is a decimal, and a division by it gives decimals."""
    text = re.sub(r"DECLARE @\w+ bigint = \d+;", "", tsql.code(BATCHES[name]))
    assert [number for number in re.findall(r"(?<![\w.'])\d+(?![\w.'])", text) if int(number) >= 2**31] == []


@tsql.for_each([name for name, text in SUBMISSION_WRITES.items() if READS_ATTEMPT in text])
def test_attempts_are_read_under_submission_lock(name: str) -> None:
    text = inside(SUBMISSION_WRITES[name])
    locking = (WAITS, TAKES_ROWS)
    assert 0 <= max(text.rfind(locks) for locks in locking) < text.find(READS_ATTEMPT)


WITHOUT_CLOCK = {"tenure_note_waiting_reason_1", "tenure_prune_1", "tenure_subscribe_gateways_1"}


@tsql.for_each(sorted(SUBMISSION_WRITES.keys() - WITHOUT_CLOCK))
def test_submission_write_reads_clock_after_last_read_and_before_first_write(name: str) -> None:
    text = inside(SUBMISSION_WRITES[name])
    first_write = min(match.start() for match in WRITE.finditer(text))
    last_read = max(text.rfind(hints) for hints in (WAITS, TAKES_ROWS, READS_ATTEMPT, READS_SUBMISSION))
    assert last_read < text.find("SET @now = dbo.tenure_now()") < first_write
    assert text.count("dbo.tenure_now()") == 1


BEGINS_ATTEMPTS = "tenure_begin_attempts_1"


def test_begin_attempts_reads_only_existence_of_held_submissions() -> None:
    result = tsql.code(BATCHES[BEGINS_ATTEMPTS]).rpartition("COMMIT TRANSACTION;")[2]
    assert [read["hints"] for read in READ.finditer(result)] == [IS_THERE]
    assert set(re.findall(r"\bs\.\w+", result)) == {"s.submission_id"}


def test_reads_of_uncommitted_data_use_only_columns_that_never_change() -> None:
    dirty = re.compile(r"\b(READUNCOMMITTED|NOLOCK|READ UNCOMMITTED)\b")
    narrowed = {f"tenure_{name}_1" for name in ("heartbeat", "end", "attach", "command_submissions")}
    readers = {name: tsql.code(text) for name, text in BATCHES.items() if dirty.search(tsql.code(text))}
    assert readers.keys() == {BEGINS_ATTEMPTS} | narrowed
    immutable = {"s.session_id", "s.tenant_object_id", "s.user_object_id", "s.submission_id", "s.caller"}
    for name in narrowed:
        (check,) = re.findall(r"EXISTS \( SELECT 1 FROM dbo\.\w+ AS s WITH \(READUNCOMMITTED.*?;", readers[name])
        assert set(re.findall(r"\bs\.\w+", check)) <= immutable
        assert readers[name].index(check) < readers[name].index("BEGIN TRANSACTION;")


def test_prune_deletes_attempts_below_lock_escalation_threshold() -> None:
    """A submission may have many attempts. A statement that takes 5000 locks or more locks the whole table."""
    portions = re.search(
        r"WHILE @deleted > 0 BEGIN DELETE TOP \((\d+)\) t [^;]*; SET @deleted = @@ROWCOUNT; END;",
        tsql.code(BATCHES["tenure_prune_1"]),
    )
    assert portions
    assert int(portions[1]) < 5000


def test_fence_check_locks_lease_before_reading_clock() -> None:
    text = tsql.code(BATCHES["tenure_check_fence_1"])
    assert [read["hints"] for read in READ.finditer(text)] == [FENCE]
    assert text.find(FENCE) < text.find("dbo.tenure_now()")


def test_fence_check_has_no_transaction_control_except_xact_abort() -> None:
    text = tsql.code(BATCHES["tenure_check_fence_1"])
    assert re.findall(r"BEGIN TRANSACTION|COMMIT|ROLLBACK", text) == []
    assert "SET XACT_ABORT ON;" in text


DEFECT = 51002
"""The number of an error that shows a mistake in Tenure. The error is neither retried nor mapped to a cause."""


@tsql.for_each([name for name, text in BATCHES.items() if re.search(r"\bTHROW\b", tsql.code(text))])
def test_thrown_error_numbers_are_known(name: str) -> None:
    thrown = [int(number) for number in re.findall(r"\bTHROW (\d+)", tsql.code(BATCHES[name]))]
    assert thrown
    assert [number for number in thrown if number not in (*errors.NUMBERS, DEFECT)] == []


@tsql.for_each(BATCHES)
def test_names_are_compared_only_with_columns(name: str) -> None:
    """Two variables are compared by the collation of the database, which may ignore case."""
    compared = re.compile(r"\b(?:IF|WHEN|WHERE|AND|OR|CASE) @(?:name|holder|held_by|job|reclaimed_holder)\b")
    assert compared.findall(tsql.code(BATCHES[name])) == []


@tsql.for_each(BATCHES)
def test_name_variables_have_type_of_columns(name: str) -> None:
    """To compare a variable of another type, SQL Server would convert the column, row by row."""
    types = re.findall(
        r"(?<![\w.])(@?)(?:name|holder|held_by|job|reclaimed_holder|gateway|caller) "
        r"(n?varchar\(\w+\))( COLLATE \w+)?(?! '\$)",
        tsql.code(BATCHES[name]),
    )
    column = (f"varchar({NAME_MAX})", " COLLATE Latin1_General_100_BIN2")
    lock = f"varchar({NAME_MAX + len(JOB_LOCK)})"
    odd = [
        (kind, collation)
        for variable, kind, collation in types
        if (kind not in (column[0], lock) if variable else (kind, collation) != column)
    ]
    assert odd == []


@tsql.for_each(["tenure_accept_submissions_1", "tenure_prune_1"])
def test_idempotency_keys_have_type_of_column(name: str) -> None:
    """As text, two idempotency keys that differ only in a trailing blank would be equal."""
    types = re.findall(r"\bidempotency_key (\w+\(\w+\))(?: COLLATE \w+)?(?! '\$)", tsql.code(BATCHES[name]))
    assert types == [f"varbinary({KEY_MAX})"]


@tsql.for_each([name for name, text in BATCHES.items() if "sp_getapplock" in text])
def test_applock_return_code_is_checked(name: str) -> None:
    text = tsql.code(BATCHES[name])
    checked = re.findall(
        r"EXEC (@\w+) = sys\.sp_getapplock [^;]*@LockOwner = 'Transaction'[^;]*; IF \1 < 0 THROW ", text
    )
    assert len(checked) == text.count("sp_getapplock")


def test_only_tenure_now_reads_server_clock() -> None:
    clocks = re.compile(r"\b(SYSUTCDATETIME|SYSDATETIME|SYSDATETIMEOFFSET|GETDATE|GETUTCDATE|CURRENT_TIMESTAMP)\b")
    assert [name for name, text in BATCHES.items() if clocks.search(tsql.code(text))] == ["tenure_now"]


@tsql.for_each(BATCHES)
def test_batch_uses_no_feature_newer_than_2019(name: str) -> None:
    text = tsql.code(BATCHES[name]).upper()
    assert [word for word in NEWER_THAN_2019 if re.search(rf"\b{word}\b", text)] == []


@tsql.for_each(BATCHES)
def test_batch_emits_no_messages_before_result(name: str) -> None:
    """PRINT, a join hint inside FROM, and NULLs in a sum each cause a message that arrives before the rows."""
    messages = re.compile(
        r"\bPRINT\b|\b(?:LOOP|HASH|MERGE) JOIN dbo|\bCOUNT\((?!\*)"
        r"|\bSUM\((?!CASE WHEN [^)]* ELSE 0 END\)|\w\.short\) OVER|c\.(?:sessions|usage_millionths)\))"
    )
    assert messages.findall(tsql.code(BATCHES[name])) == []


@tsql.for_each(BATCHES)
def test_dateadd_microseconds_fit_int(name: str) -> None:
    added = re.findall(r"DATEADD\(MICROSECOND, ([^,]+),", tsql.code(BATCHES[name]))
    assert [number for number in added if not (number.isdecimal() or number.endswith("% 1000000"))] == []


def test_row_limits_allow_full_batch() -> None:
    limits = [int(limit) for text in BATCHES.values() for limit in re.findall(r"TOP \((\d+)\)", text)]
    assert limits
    assert min(limit for limit in limits if limit > 1) >= BATCH_MAX


def test_open_limited_evicts_at_most_sweep_max_from_enough_candidates() -> None:
    text = tsql.code(BATCHES["tenure_open_limited_1"])
    assert f"@closings_left int = {SWEEP_MAX}," in text
    candidates = re.search(r"CROSS APPLY \( SELECT TOP \((\d+)\) s\.session_id", text)
    assert candidates
    assert int(candidates[1]) >= 2 * SWEEP_MAX
