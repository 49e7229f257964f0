"""The T-SQL that no server here can run is at least read: by a parser, and by rules that the promises rest on."""

import ast
import re
from collections.abc import Iterator
from typing import Self

import pytest
from sqlfluff.core import FluffConfig, Linter

from tenure.meter import PERIOD_MICROSECONDS, usage_of
from tenure.model.leases import JOB_LOCK, NAME_MAX
from tenure.model.submissions import KEY_MAX, USAGES
from tenure.store import tables
from tenure.store.engines.sqlserver import errors
from tenure.store.store import BATCH_MAX, SWEEP_MAX
from tests.sqlserver import tsql

BATCHES = tsql.batches()
CALLS = {name: text for name, text in tsql.constants().items() if text.startswith("EXEC")}
TRANSACTIONS = {name: text for name, text in BATCHES.items() if "BEGIN TRANSACTION" in text}
WRITES = {name: text for name, text in TRANSACTIONS.items() if "COMMIT TRANSACTION" in text}
PRUNES_SESSIONS = "tenure_prune_usage_1"
"""Stamps nothing, and deletes only what is closed for good: neither the cut nor a key is its concern."""
SESSION_WRITES = {name: text for name, text in WRITES.items() if "dbo.sessions" in text and name != PRUNES_SESSIONS}
LEASE_WRITES = {name: text for name, text in WRITES.items() if "dbo.leases" in text}
FENCED = {name: text for name, text in WRITES.items() if "dbo.tenure_check_fence" in text}
SUBMISSION_WRITES = {name: text for name, text in WRITES.items() if "dbo.submissions" in text}
CUT = "tenure_cut_usage_1"
ALONE_WRITES = {name: text for name, text in WRITES.items() if "tenure_hold_off_all_writers" in text}
CAPACITY_WRITES = {name: text for name, text in ALONE_WRITES.items() if name != CUT}
USAGE_WRITES = {name: text for name, text in WRITES.items() if "dbo.usage_" in text}

RULES = [
    "AL01", "AL02", "AL05", "AM01", "AM02", "AM05", "AM06", "CP01", "CV03", "CV05", "RF01", "RF02", "ST01",
    "ST03", "ST07",
]  # fmt: skip
"""Those of sqlfluff's rules that find mistakes; the others are about layout. (RF03 is not among them: it does not know
that a SET of a procedure has no table. AM04 is not: a session is returned whole, whatever columns it has by then.)"""

NEWER_THAN_2019 = (
    "LEAST", "GREATEST", "GENERATE_SERIES", "DATE_BUCKET", "DATETRUNC", "JSON_OBJECT", "JSON_ARRAY", "BIT_COUNT",
    "IS DISTINCT FROM", "IS NOT DISTINCT FROM", "APPROX_PERCENTILE_CONT", "STRING_AGG_DISTINCT",
)  # fmt: skip

READ = re.compile(
    r"(?:FROM|JOIN) dbo\."
    r"(?P<table>sessions|capacities|leases|lease_history|jobs|job_runs|submissions|submission_attempts"
    r"|usage_windows|usage_chunks)"
    r" AS (?P<alias>\w+)(?: WITH \((?P<hints>(?:[^()]|\([^()]*\))*)\))?"
)
WRITE = re.compile(
    r"UPDATE [sjt] SET|UPDATE dbo\.|INSERT INTO dbo\.|DELETE FROM dbo\.|EXEC dbo\.tenure_(?:begin|end)_epoch_1"
)

WAITS = "UPDLOCK, HOLDLOCK, ROWLOCK"
TAKES_ROWS = "UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK"
TAKES_KEYS = "XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK"
COUNTS = "READCOMMITTEDLOCK, INDEX (sessions_live_key)"
"""Takes no lock that it keeps, but waits for what is being written: nobody who writes it waits for us."""
READS_RULES = "READCOMMITTEDLOCK, INDEX (capacities_pkey)"
"""Keeps no lock: whoever changes rules holds the cut lock alone."""
PASSES_OVER = "READCOMMITTEDLOCK, READPAST, FORCESEEK, INDEX (sessions_closed_at)"
"""Takes no lock: nobody else can be writing what it looks for."""
FENCE = "REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey)"
"""Shared, and kept until the end of the transaction."""
ALONE = "XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey)"
"""Waits for fences, and then reads what is there, not a version from before the wait. To end or to prolong an epoch
nobody needs the gap of a name without a row."""
READS_RUN = "READCOMMITTEDLOCK, INDEX (job_runs_pkey)"
READS_JOB = "READCOMMITTEDLOCK, INDEX (jobs_pkey)"
"""Keep no lock: while the lock is held, nobody but its holder writes the run, and nobody what is read of the job."""
READS_SUBMISSION = "READCOMMITTEDLOCK, INDEX (submissions_pkey)"
"""Keeps no lock: nobody deletes a row without its key, and nobody who writes one waits for a key."""
READS_ATTEMPT = "READCOMMITTEDLOCK, INDEX (submission_attempts_pkey)"
"""Keeps no lock: attempts are written by whoever holds the row of their submission."""
FINDS_OPEN = "READCOMMITTEDLOCK, FORCESEEK, INDEX (submission_attempts_open)"
"""Keeps no lock: what it finds is looked at again under the lock of its row."""
READS_WINDOW = "READCOMMITTEDLOCK, INDEX (usage_windows_pkey)"
"""Keeps no lock: what is over stays so, and nobody but the pruning deletes."""
READS_CHUNK = "READCOMMITTEDLOCK, INDEX (usage_chunks_pkey)"
"""Keeps no lock: chunks are saved by whoever holds the row of their window, and deleted by nobody but the pruning."""
FINDS_CHUNK = "READCOMMITTEDLOCK, INDEX (usage_chunks_submission)"
"""Keeps no lock: to which window a chunk belongs never changes."""
FINDS_UNDELIVERED = "READCOMMITTEDLOCK, INDEX (usage_chunks_undelivered)"
"""Keeps no lock: chunks are delivered by whoever holds the row of their window."""
IS_THERE = "READUNCOMMITTED, INDEX (submissions_pkey)"
"""Neither waits nor believes what it reads."""

TAKING = {TAKES_ROWS, TAKES_KEYS}
HINTS = {
    "tenure_open_1": {WAITS, PASSES_OVER},
    "tenure_open_2": {WAITS, PASSES_OVER, READS_RULES},
    "tenure_open_limited_1": {WAITS, PASSES_OVER, COUNTS, TAKES_ROWS, TAKES_KEYS},
    "tenure_end_1": {WAITS},
    "tenure_end_2": TAKING,
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
    "tenure_prune_1": {TAKES_ROWS},
    "tenure_expire_2": set(),
    "tenure_accept_submissions_1": {WAITS, READS_SUBMISSION},
    "tenure_begin_attempts_1": {TAKES_ROWS, READS_ATTEMPT},
    "tenure_finish_attempts_1": {WAITS, READS_ATTEMPT},
    "tenure_close_unknown_1": {FINDS_OPEN, WAITS, READS_ATTEMPT},
    "tenure_explain_waiting_1": {WAITS},
    "tenure_command_submissions_1": {WAITS, READS_ATTEMPT},
    "tenure_prune_2": TAKING,
    "tenure_cut_usage_1": set(),
    "tenure_save_chunks_1": {WAITS, READS_CHUNK},
    "tenure_seal_chunks_1": {WAITS},
    "tenure_finish_attempts_2": {FINDS_CHUNK, WAITS, FINDS_UNDELIVERED},
    "tenure_begin_attempts_2": {TAKES_ROWS, READS_ATTEMPT},
    "tenure_command_submissions_2": {READS_SUBMISSION, READS_ATTEMPT},
    "tenure_prune_usage_1": {READS_WINDOW, READS_CHUNK, TAKES_ROWS},
}
"""How each procedure reads what it decides on, and no other way: a new one must be put here, and thought about."""
WAITERS = {name: text for name, text in SESSION_WRITES.items() if WAITS in text}
TAKERS = {name: text for name, text in SESSION_WRITES.items() if name not in WAITERS}
INDEXED = ("session_id", "capacity_id", "user_object_id", "started_at", "check_at", "closed_at")


def inside(text: str) -> str:
    """What a batch does between the beginning of its transaction and the end of it."""
    return tsql.code(text).partition("BEGIN TRANSACTION;")[2].rpartition("COMMIT TRANSACTION;")[0]


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that are used, with their lines: docstrings and the like stand alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_is_tsql(name: str) -> None:
    parsed = Linter(config=FluffConfig(overrides={"dialect": "tsql"})).parse_string(BATCHES[name])
    assert [str(violation) for violation in parsed.violations] == []


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.slow
def test_has_no_lint(name: str) -> None:
    config = FluffConfig(overrides={"dialect": "tsql", "rules": ",".join(RULES)})
    linted = Linter(config=config).lint_string(BATCHES[name])
    assert [f"{each.line_no}: {each.rule_code()} {each.desc()}" for each in linted.get_violations()] == []


def test_finds_every_statement_of_the_engine() -> None:
    known = " ".join(tsql.constants().values())
    strays = [
        (line, text)
        for source in tsql.sources()
        for line, text in literals(ast.parse(source))
        if tsql.looks_like_sql(text) and tsql.without_parameters(text).strip() not in known
    ]
    assert strays == [], "a statement must be a constant of its module, or no test reads it"


@pytest.mark.parametrize("name", CALLS)
def test_calls_a_procedure_by_the_parameters_it_has(name: str) -> None:
    called = re.match(r"EXEC dbo\.(\w+) ", CALLS[name])
    assert called, CALLS[name]
    head = tsql.code(tsql.routines()[called[1]]).partition(" AS BEGIN")[0]
    assert re.findall(r"(@\w+) =", CALLS[name]) == re.findall(r"@\w+", head)


@pytest.mark.parametrize("name", tsql.routines())
def test_creates_one_thing_and_nothing_else(name: str) -> None:
    text = tsql.code(tsql.routines()[name])
    assert re.match(r"CREATE (FUNCTION|PROCEDURE) dbo\.", text), "must be the first statement of its batch"
    assert len(re.findall(r"\bCREATE\b", text)) == 1


INSERTS = [
    (name, insert[1], set(insert[2].replace(" ", "").split(",")))
    for name, text in BATCHES.items()
    for insert in re.finditer(r"INSERT INTO dbo\.(\w+) \(([^()]+)\)", tsql.code(text))
]


@pytest.mark.parametrize(("name", "table", "columns"), INSERTS, ids=[f"{name}-{table}" for name, table, _ in INSERTS])
def test_inserts_all_that_a_row_must_have(name: str, table: str, columns: set[str]) -> None:
    known = tables.metadata.tables[table].c
    assert columns <= set(known.keys()), name
    needed = {column.name for column in known if not column.nullable and column.server_default is None}
    assert needed <= columns, name


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_is_undone_by_any_error_and_waits_for_no_lock_without_a_limit(name: str) -> None:
    before = tsql.code(TRANSACTIONS[name]).partition("BEGIN TRANSACTION;")[0]
    assert "SET XACT_ABORT ON;" in before
    assert re.search(r"SET LOCK_TIMEOUT -?\d+;", before)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_begins_and_commits_in_one_batch_and_answers_afterwards(name: str) -> None:
    text = tsql.code(WRITES[name])
    assert text.count("BEGIN TRANSACTION;") == text.count("COMMIT TRANSACTION;") == 1
    assert "SELECT" in text.rpartition("COMMIT TRANSACTION;")[2], "locks must not be held until the client has read"


@pytest.mark.parametrize("name", WRITES)
def test_a_write_counts_no_rows(name: str) -> None:
    """A count would come before the answer, and the driver would take it for the answer."""
    assert "SET NOCOUNT ON;" in tsql.code(WRITES[name]).partition("BEGIN TRANSACTION;")[0]


@pytest.mark.parametrize("name", WRITES)
def test_locks_what_it_decides_on(name: str) -> None:
    hints = [read["hints"] for read in READ.finditer(inside(WRITES[name])) if read["hints"]]
    odd = [each for each in hints if not each.startswith(tuple(HINTS[name]))]
    assert odd == []
    assert {known for known in HINTS[name] if not any(each.startswith(known) for each in hints)} == set()


@pytest.mark.parametrize("name", WRITES)
def test_reads_without_a_hint_only_what_it_writes_and_holds(name: str) -> None:
    unlocked = [
        statement
        for statement in tsql.statements(inside(WRITES[name]))
        for read in READ.finditer(statement)
        if not read["hints"]
        and not re.search(rf"\b(?:UPDATE {read['alias']} SET|DELETE (?:TOP \(\d+\) )?{read['alias']})\b", statement)
    ]
    assert unlocked == []


@pytest.mark.parametrize("name", WRITES)
def test_comes_to_a_row_from_its_own_list(name: str) -> None:
    """Left to the optimizer, an UPDATE may scan the table and wait for rows of others, in any order."""
    free = [
        statement
        for statement in tsql.statements(inside(WRITES[name]))
        if re.search(r"FROM @\w+ AS \w+ (?:INNER JOIN @\w+ AS \w+ ON [^()]+ )?INNER JOIN dbo\.", statement)
        and not statement.endswith("OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1)")
    ]
    assert free == []


@pytest.mark.parametrize("name", WAITERS)
def test_whoever_waits_locks_capacities_then_keys_then_rows(name: str) -> None:
    indexes = re.findall(rf"{WAITS}, INDEX \((\w+)\)", inside(WAITERS[name]))
    order = ["capacities_pkey", "sessions_live_key", "sessions_pkey"]
    assert indexes == (order if "limited" in name else order[1:])


@pytest.mark.parametrize("name", [name for name in WAITERS if "open" in name])
def test_whoever_waits_for_several_does_it_in_their_order(name: str) -> None:
    waiting = [statement for statement in tsql.statements(inside(WAITERS[name])) if WAITS in statement]
    assert [statement for statement in waiting if not re.search(r"SELECT TOP \(1000\) .* ORDER BY ", statement)] == []


@pytest.mark.parametrize("name", WAITERS)
def test_whoever_waits_is_done_with_it_before_it_takes_what_is_free(name: str) -> None:
    text = inside(WAITERS[name])
    free = [text.find(hints) for hints in (COUNTS, TAKES_ROWS, TAKES_KEYS) if hints in text]
    assert text.rfind(WAITS) < min(free, default=len(text))


@pytest.mark.parametrize("name", TAKERS)
def test_whoever_holds_rows_waits_for_none(name: str) -> None:
    hints = [read["hints"] or "READPAST" for read in READ.finditer(inside(TAKERS[name]))]
    assert [each for each in hints if "READPAST" not in each or "HOLDLOCK" in each] == []


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_what_ends_sessions_has_locked_their_keys(name: str) -> None:
    text = inside(SESSION_WRITES[name])
    assert 0 <= text.find("INDEX (sessions_live_key)") < text.find("closed_at = ")


@pytest.mark.parametrize("name", ["tenure_heartbeat_1", "tenure_update_streams_1"])
def test_what_keeps_a_session_alive_touches_no_index(name: str) -> None:
    renewals = [
        set(re.findall(r"\bs\.(\w+) = ", statement.partition(" FROM ")[0]))
        for statement in tsql.statements(inside(TAKERS[name]))
        if "s.last_heartbeat_at = " in statement
    ]
    assert len(renewals) == 1
    assert renewals[0].isdisjoint(INDEXED)


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_holds_off_the_cut_before_anything_else(name: str) -> None:
    assert inside(SESSION_WRITES[name]).strip().startswith("EXEC dbo.tenure_hold_off_the_cut;")


@pytest.mark.parametrize("name", CAPACITY_WRITES)
def test_changes_a_capacity_while_nobody_opens(name: str) -> None:
    assert inside(CAPACITY_WRITES[name]).strip().startswith("EXEC dbo.tenure_hold_off_all_writers_1;")


def test_cuts_while_nobody_writes_and_reads_the_clock_under_that_lock() -> None:
    fence, alone, clock, *_ = tsql.statements(inside(WRITES[CUT]))
    assert fence.startswith("EXEC dbo.tenure_check_fence_1 ")
    assert (alone, clock) == ("EXEC dbo.tenure_hold_off_all_writers_1", "SET @now = dbo.tenure_now()")


def test_all_that_moves_the_last_cut_is_known() -> None:
    moving = re.compile(r"\blast_cut_at = @\w+, last_window_id = |\blast_window_id = @|SET last_cut_at = ")
    assert [name for name, text in BATCHES.items() if moving.search(tsql.code(text))] == [CUT]


def test_no_window_crosses_a_midnight_or_the_grid() -> None:
    midnight = "SET @to_at = DATEADD(DAY, 1, CAST(CAST(@from_at AS date) AS datetime2(6)));"
    loop = inside(WRITES[CUT]).partition("WHILE @from_at < @grid AND @windows < @limit BEGIN ")[2].partition(" END;")[0]
    assert loop.startswith(f"{midnight} IF @to_at > @grid SET @to_at = @grid;")
    assert loop.endswith(
        "VALUES (@window_id, @installation_id, @era, @from_at, @to_at, @now, @contract); SET @from_at = @to_at;"
    )


def test_all_that_changes_the_rules_of_a_capacity_is_known() -> None:
    rules = re.compile(
        r"INSERT INTO dbo\.capacities|UPDATE dbo\.capacities|DELETE FROM dbo\.capacities|\w\.max_sessions = \S"
    )
    changing = {name for name, text in WRITES.items() if rules.search(inside(text))}
    assert changing == set(CAPACITY_WRITES)


def test_holds_up_all_writers_only_for_a_moment() -> None:
    alone = re.search(
        r"N'tenure\.cut', @LockMode = 'Exclusive', .*@LockTimeout = (\d+)",
        tsql.code(BATCHES["tenure_hold_off_all_writers_1"]),
    )
    assert alone
    assert int(alone[1]) <= 200


@pytest.mark.parametrize("name", SESSION_WRITES)
def test_reads_the_clock_after_the_last_lock_and_before_the_first_write(name: str) -> None:
    text = inside(SESSION_WRITES[name])
    first_write = min(match.start() for match in WRITE.finditer(text))
    last_lock = max(text.rfind(hints) for hints in (WAITS, TAKES_ROWS, TAKES_KEYS, COUNTS))
    assert last_lock < text.rfind("SET @now = dbo.tenure_write_now()") < first_write
    assert text.count("@now = dbo.") == 1


@pytest.mark.parametrize("name", LEASE_WRITES)
def test_locks_the_lease_before_its_job_and_its_runs(name: str) -> None:
    locked = [
        read["table"]
        for read in READ.finditer(inside(LEASE_WRITES[name]))
        if (read["hints"] or "").startswith(("UPDLOCK", "XLOCK"))
    ]
    assert locked == sorted(locked, key=["leases", "jobs", "job_runs"].index)
    assert locked[0] == "leases"


@pytest.mark.parametrize("name", sorted({*LEASE_WRITES, "tenure_register_jobs_1", "tenure_command_job_1"}))
def test_reads_the_clock_of_leases_after_the_last_lock_and_before_the_first_write(name: str) -> None:
    text = inside(WRITES[name])
    first_write = min(match.start() for match in WRITE.finditer(text))
    last_lock = max(text.rfind(hints) for hints in (WAITS, ALONE))
    assert last_lock < text.rfind("SET @now = dbo.tenure_now()") < first_write


@pytest.mark.parametrize("name", ["tenure_acquire_lease_1", "tenure_begin_run_1"])
def test_begins_an_epoch_when_no_fence_of_the_last_is_held_any_more(name: str) -> None:
    text = inside(LEASE_WRITES[name])
    assert 0 <= text.find(WAITS) < text.find(ALONE) < text.find("EXEC dbo.tenure_begin_epoch_1")


@pytest.mark.parametrize("name", FENCED)
def test_shows_its_fence_before_anything_else(name: str) -> None:
    fence = "EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;"
    assert inside(FENCED[name]).strip().startswith(fence)


def test_all_that_a_job_or_a_leader_writes_shows_its_fence() -> None:
    attempts = {
        "tenure_begin_attempts_1",
        "tenure_begin_attempts_2",
        "tenure_finish_attempts_1",
        "tenure_close_unknown_1",
    }
    others = {"tenure_prune_1", "tenure_prune_2", "tenure_expire_2", "tenure_explain_waiting_1"}
    usage = {CUT, "tenure_save_chunks_1", "tenure_seal_chunks_1", "tenure_finish_attempts_2", PRUNES_SESSIONS}
    assert set(FENCED) == attempts | others | usage


@pytest.mark.parametrize("name", SUBMISSION_WRITES)
def test_whoever_waits_for_submissions_does_it_in_the_order_of_one_index(name: str) -> None:
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
    assert len(waiting) == (1 if WAITS in HINTS[name] and name != "tenure_save_chunks_1" else 0)
    assert [statement for statement in waiting if not in_order.search(statement)] == []


def test_whoever_holds_rows_of_submissions_waits_for_no_key() -> None:
    keys = {
        (name, read["hints"].removesuffix(", INDEX (submissions_key)"))
        for name, text in SUBMISSION_WRITES.items()
        for read in READ.finditer(tsql.code(text))
        if "submissions_key" in (read["hints"] or "")
    }
    assert keys == {("tenure_accept_submissions_1", WAITS), ("tenure_prune_2", TAKES_KEYS)}


def test_deletes_submissions_only_with_their_keys() -> None:
    text = inside(WRITES["tenure_prune_2"])
    deleting = [statement for statement in tsql.statements(text) if "DELETE " in statement]
    assert text.find(TAKES_ROWS) < text.find(TAKES_KEYS) < text.find("DELETE ")
    assert len(deleting) == 2
    assert [statement for statement in deleting if "WHERE o.has_key = 1 OPTION" not in statement] == []


def test_all_that_deletes_submissions_is_known() -> None:
    deleting = re.compile(r"DELETE (?:FROM dbo\.submission|\w FROM @\w+ AS \w INNER JOIN dbo\.submissions )")
    assert {name for name, text in BATCHES.items() if deleting.search(tsql.code(text))} == {"tenure_prune_2"}


def test_whoever_waits_for_windows_does_it_in_the_order_of_their_ids() -> None:
    waiting = {
        name: statement
        for name, text in USAGE_WRITES.items()
        for statement in tsql.statements(inside(text))
        if f"{WAITS}, INDEX (usage_windows_pkey)" in statement
    }
    assert waiting.keys() == {"tenure_save_chunks_1", "tenure_finish_attempts_2"}
    assert waiting["tenure_save_chunks_1"].endswith("WHERE w.window_id = @window_id")
    in_order = r"SELECT TOP \(1000\) .* FROM @whole AS o INNER JOIN .* ORDER BY o\.window_id OPTION"
    assert re.search(in_order, waiting["tenure_finish_attempts_2"])


def test_whoever_holds_submissions_waits_for_no_window() -> None:
    """Who holds a window may wait for a key, and who holds a key for a submission."""
    text = inside(WRITES["tenure_finish_attempts_2"])
    assert 0 <= text.find(f"{WAITS}, INDEX (usage_windows_pkey)") < text.find("EXEC dbo.tenure_finish_attempts_1")


@pytest.mark.parametrize("name", ["tenure_save_chunks_1", "tenure_finish_attempts_2"])
def test_writes_chunks_under_the_lock_of_their_window_and_by_a_clock_read_under_it(name: str) -> None:
    text = inside(WRITES[name])
    write = re.search(r"INSERT INTO dbo\.usage_chunks|UPDATE c SET c\.delivered_at", text)
    assert write
    lock = text.find(f"{WAITS}, INDEX (usage_windows_pkey)")
    assert 0 <= lock < text.find("SET @now = dbo.tenure_now()") < write.start()
    assert text.count("dbo.tenure_now()") == 1


def test_counts_saved_chunks_under_the_lock_of_their_window() -> None:
    text = inside(WRITES["tenure_save_chunks_1"])
    assert 0 <= text.find(WAITS) < text.find(READS_CHUNK)


def test_a_chunk_is_delivered_if_its_submission_is() -> None:
    text = inside(WRITES["tenure_finish_attempts_2"])
    (update,) = [each for each in tsql.statements(text) if "SET c.delivered_at" in each]
    assert "WHERE d.state = 'delivered' AND c.delivered_at IS NULL OPTION" in update
    assert text.find("INSERT INTO @moved") < text.find(update) < text.find(FINDS_UNDELIVERED)


def test_a_seal_changes_nothing_that_an_index_has() -> None:
    changed = re.findall(r"UPDATE c SET ([^;]*?) FROM", inside(WRITES["tenure_seal_chunks_1"]))
    assert changed == ["c.digest = m.new_digest"]


def test_seals_in_one_order_and_only_what_has_no_digest() -> None:
    lock, update = tsql.statements(inside(WRITES["tenure_seal_chunks_1"]))[1:]
    assert re.search(r"SELECT TOP \(1000\) .* ORDER BY d\.submission_id OPTION", lock)
    assert "WHERE m.digest IS NULL OPTION" in update


@pytest.mark.parametrize("name", [name for name, text in USAGE_WRITES.items() if "usage_chunks_submission" in text])
def test_says_what_the_index_of_sent_chunks_leaves_out(name: str) -> None:
    """Otherwise SQL Server refuses to use it."""
    text = tsql.code(USAGE_WRITES[name])
    found = re.findall(r"INDEX \(usage_chunks_submission\)\) ON \w\.submission_id = c\.submission_id AND (.*?) O", text)
    assert found == ["c.submission_id IS NOT NULL"]


def test_prunes_usage_without_waiting_for_what_others_hold() -> None:
    hints = [read["hints"] or "" for read in READ.finditer(inside(WRITES[PRUNES_SESSIONS]))]
    assert [each for each in hints if "HOLDLOCK" in each or "XLOCK" in each] == []
    deleting = [each for each in tsql.statements(inside(WRITES[PRUNES_SESSIONS])) if each.startswith("DELETE ")]
    assert [re.match(r"DELETE \w FROM @old_(\w+) AS o INNER JOIN dbo\.(\w+) ", each)[2] for each in deleting] == [  # type: ignore[index]
        "usage_chunks",
        "usage_windows",
        "sessions",
    ]


def test_prunes_no_more_at_once_than_it_is_told() -> None:
    taking = [each for each in tsql.statements(inside(WRITES[PRUNES_SESSIONS])) if "INSERT INTO @old" in each]
    assert len(taking) == 4
    assert [each for each in taking if "SELECT TOP (@limit) " not in each] == []


def test_prunes_only_sessions_that_are_closed_before_what_is_kept() -> None:
    (taking,) = [each for each in tsql.statements(inside(WRITES[PRUNES_SESSIONS])) if "@old_sessions (" in each]
    assert f"WITH ({TAKES_ROWS}, FORCESEEK, INDEX (sessions_closed_at)) " in taking
    assert "WHERE s.closed_at < @kept_from AND s.closed_at IS NOT NULL AND s.state = 'closed' ORDER BY" in taking


def test_prunes_by_a_cut_that_was_read_before_the_windows() -> None:
    """The other way round, a window that is cut between the two would lose the sessions that it begins with."""
    text = inside(WRITES[PRUNES_SESSIONS])
    assert 0 <= text.find("@last_cut_at = i.last_cut_at") < text.find("FROM dbo.usage_windows")


def test_prunes_before_it_writes_what_all_session_writes_read() -> None:
    assert tsql.statements(inside(WRITES[PRUNES_SESSIONS]))[-1].startswith(
        "IF @pruned_windows > 0 UPDATE dbo.installation SET usage_kept_from"
    )


def test_usage_is_submitted_to_its_gateway_by_the_bytes_of_its_key() -> None:
    text = tsql.code(WRITES["tenure_save_chunks_1"])
    assert f"'{USAGES}', 'tenure', CONVERT(varbinary({KEY_MAX}), k.delivery_key), k.delivery_key, 0x," in text
    assert "CAST(CONCAT(@installation, '-', @window_id, '-', p.chunk) AS varchar(200)) AS delivery_key" in text
    assert "@installation = LOWER(CONVERT(varchar(36), w.installation_id))" in text


def test_usage_is_not_cancelled() -> None:
    text = inside(WRITES["tenure_command_submissions_2"])
    refused = rf"IF @command = 'cancel' UPDATE a SET a\.is_refused = 1 .* WHERE s\.gateway = '{USAGES}' OPTION"
    assert re.search(refused, text)
    assert text.find("is_refused = 1") < text.find("WHERE a.is_refused = 0") < text.find("_command_submissions_1")


class Bigint(int):
    """Divides as SQL Server does, and raises where it would."""

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
    """What dbo.tenure_usage_1 gives, step by step."""
    known = {"microseconds": Bigint(microseconds), "factor": Bigint(factor)}
    text = re.sub(r"@(\w+)", r"\1", tsql.code(BATCHES["tenure_usage_1"])).replace("/", "//")
    for name, expression in re.findall(r"DECLARE (\w+) bigint = ([^;]+);", text):
        known[name] = Bigint(eval(expression, {}, known))
    rounded = re.search(r"RETURN whole \+ CASE WHEN (.+) THEN 1 ELSE 0 END;", text)
    assert rounded
    return known["whole"] + bool(eval(rounded[1], {}, known))


LONGEST = 400 * 24 * 3600 * 1_000_000


@pytest.mark.parametrize("factor", [0, 1, 3, 999_999, 1_000_000, 1_500_000, 2_000_001, 10**12 - 1, 10**12])
@pytest.mark.parametrize(
    "microseconds",
    [0, 1, 1_296_000, 1_296_001, 3_888_000, PERIOD_MICROSECONDS - 1, PERIOD_MICROSECONDS, LONGEST - 1, LONGEST],
)
def test_usage_is_what_the_meter_says_and_no_step_passes_64_bits(microseconds: int, factor: int) -> None:
    assert usage_in_tsql(microseconds, factor) == usage_of(microseconds, factor)


def test_usage_can_be_put_in_the_place_of_its_call() -> None:
    text = tsql.code(BATCHES["tenure_usage_1"])
    assert text.count("RETURN ") == 1
    assert re.findall(r"\b(?:FROM|WHILE|IF|EXEC|SET)\b", text) == []


@pytest.mark.parametrize("name", BATCHES)
def test_no_number_is_a_decimal_by_its_length(name: str) -> None:
    """One that does not fit an int is a decimal, and to divide by it gives decimals."""
    text = re.sub(r"DECLARE @\w+ bigint = \d+;", "", tsql.code(BATCHES[name]))
    assert [number for number in re.findall(r"(?<![\w.'])\d+(?![\w.'])", text) if int(number) >= 2**31] == []


@pytest.mark.parametrize("name", [name for name, text in SUBMISSION_WRITES.items() if READS_ATTEMPT in text])
def test_looks_at_attempts_under_the_lock_of_their_submission(name: str) -> None:
    text = inside(SUBMISSION_WRITES[name])
    locking = (WAITS, TAKES_ROWS, "EXEC dbo.tenure_command_submissions_1")
    assert 0 <= max(text.rfind(locks) for locks in locking) < text.find(READS_ATTEMPT)


TELL_NO_TIME = {"tenure_explain_waiting_1", "tenure_prune_2", "tenure_command_submissions_2"}


@pytest.mark.parametrize("name", sorted(SUBMISSION_WRITES.keys() - TELL_NO_TIME))
def test_reads_the_clock_of_submissions_after_the_last_look_and_before_the_first_write(name: str) -> None:
    text = inside(SUBMISSION_WRITES[name])
    first_write = min(match.start() for match in WRITE.finditer(text))
    last_look = max(text.rfind(hints) for hints in (WAITS, TAKES_ROWS, READS_ATTEMPT, READS_SUBMISSION))
    assert last_look < text.find("SET @now = dbo.tenure_now()") < first_write
    assert text.count("dbo.tenure_now()") == 1


BEGINNINGS = ["tenure_begin_attempts_1", "tenure_begin_attempts_2"]


@pytest.mark.parametrize("name", BEGINNINGS)
def test_asks_of_what_others_hold_only_whether_it_is_there(name: str) -> None:
    answer = tsql.code(BATCHES[name]).rpartition("COMMIT TRANSACTION;")[2]
    assert [read["hints"] for read in READ.finditer(answer)] == [IS_THERE]
    assert set(re.findall(r"\bs\.\w+", answer)) == {"s.submission_id"}


def test_believes_nowhere_else_what_is_not_committed() -> None:
    dirty = re.compile(r"\b(READUNCOMMITTED|NOLOCK|READ UNCOMMITTED)\b")
    assert [name for name, text in BATCHES.items() if dirty.search(tsql.code(text))] == BEGINNINGS


def test_no_deletion_locks_a_whole_table() -> None:
    """Attempts may be many times as many as their submissions, and from 5000 locks on a table would be locked."""
    portions = re.search(
        r"WHILE @deleted > 0 BEGIN DELETE TOP \((\d+)\) t [^;]*; SET @deleted = @@ROWCOUNT; END;",
        tsql.code(BATCHES["tenure_prune_2"]),
    )
    assert portions
    assert int(portions[1]) < 5000


def test_a_fence_keeps_the_lease_and_looks_at_the_clock_afterwards() -> None:
    text = tsql.code(BATCHES["tenure_check_fence_1"])
    assert [read["hints"] for read in READ.finditer(text)] == [FENCE]
    assert text.find(FENCE) < text.find("dbo.tenure_now()")


def test_a_fence_leaves_the_transaction_to_its_caller_unless_the_lease_is_lost() -> None:
    text = tsql.code(BATCHES["tenure_check_fence_1"])
    assert re.findall(r"BEGIN TRANSACTION|COMMIT|ROLLBACK", text) == []
    assert "SET XACT_ABORT ON;" in text


OUR_MISTAKE = 51002
"""Means nothing that could be tried again or answered: it is to be seen."""


@pytest.mark.parametrize("name", [name for name, text in BATCHES.items() if re.search(r"\bTHROW\b", tsql.code(text))])
def test_throws_only_what_is_understood(name: str) -> None:
    thrown = [int(number) for number in re.findall(r"\bTHROW (\d+)", tsql.code(BATCHES[name]))]
    assert thrown
    assert [number for number in thrown if number not in (*errors.NUMBERS, OUR_MISTAKE)] == []


@pytest.mark.parametrize("name", BATCHES)
def test_compares_names_with_columns_only(name: str) -> None:
    """Two variables are compared as the database's collation has it, which may not tell capitals from small letters."""
    compared = re.compile(r"\b(?:IF|WHEN|WHERE|AND|OR|CASE) @(?:name|holder|held_by|job|reclaimed_holder)\b")
    assert compared.findall(tsql.code(BATCHES[name])) == []


@pytest.mark.parametrize("name", BATCHES)
def test_names_have_the_type_of_their_columns(name: str) -> None:
    """Any other would have the column converted instead, row by row."""
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


@pytest.mark.parametrize("name", ["tenure_accept_submissions_1", "tenure_prune_2"])
def test_keys_have_the_type_of_their_column(name: str) -> None:
    """As texts, two that differ by a blank at the end would be one."""
    types = re.findall(r"\bidempotency_key (\w+\(\w+\))(?: COLLATE \w+)?(?! '\$)", tsql.code(BATCHES[name]))
    assert types == [f"varbinary({KEY_MAX})"]


@pytest.mark.parametrize("name", [name for name, text in BATCHES.items() if "sp_getapplock" in text])
def test_looks_at_the_code_of_a_lock_that_does_not_raise(name: str) -> None:
    text = tsql.code(BATCHES[name])
    checked = re.findall(
        r"EXEC (@\w+) = sys\.sp_getapplock [^;]*@LockOwner = 'Transaction'[^;]*; IF \1 < 0 THROW ", text
    )
    assert len(checked) == text.count("sp_getapplock")


def test_reads_the_clock_in_one_place() -> None:
    clocks = re.compile(r"\b(SYSUTCDATETIME|SYSDATETIME|SYSDATETIMEOFFSET|GETDATE|GETUTCDATE|CURRENT_TIMESTAMP)\b")
    assert [name for name, text in BATCHES.items() if clocks.search(tsql.code(text))] == ["tenure_now"]


@pytest.mark.parametrize("name", BATCHES)
def test_uses_nothing_newer_than_2019(name: str) -> None:
    text = tsql.code(BATCHES[name]).upper()
    assert [word for word in NEWER_THAN_2019 if re.search(rf"\b{word}\b", text)] == []


@pytest.mark.parametrize("name", BATCHES)
def test_says_nothing_before_its_answer(name: str) -> None:
    """PRINT, and what is said about a join hint inside FROM or about NULLs in a sum, would come before the rows."""
    chatter = re.compile(
        r"\bPRINT\b|\b(?:LOOP|HASH|MERGE) JOIN dbo|\bCOUNT\((?!\*)"
        r"|\bSUM\((?!CASE WHEN [^)]* ELSE 0 END\)|\w\.short\) OVER|c\.(?:sessions|usage_millionths)\))"
    )
    assert chatter.findall(tsql.code(BATCHES[name])) == []


@pytest.mark.parametrize("name", BATCHES)
def test_adds_microseconds_in_steps_that_fit_an_int(name: str) -> None:
    added = re.findall(r"DATEADD\(MICROSECOND, ([^,]+),", tsql.code(BATCHES[name]))
    assert [number for number in added if not (number.isdecimal() or number.endswith("% 1000000"))] == []


def test_no_row_limit_cuts_a_full_batch_short() -> None:
    limits = [int(limit) for text in BATCHES.values() for limit in re.findall(r"TOP \((\d+)\)", text)]
    assert limits
    assert min(limit for limit in limits if limit > 1) >= BATCH_MAX


def test_evicts_no_more_at_once_than_can_be_told_and_looks_at_enough_for_that() -> None:
    text = tsql.code(BATCHES["tenure_open_limited_1"])
    assert f"@closings_left int = {SWEEP_MAX}," in text
    candidates = re.search(r"CROSS APPLY \( SELECT TOP \((\d+)\) s\.session_id", text)
    assert candidates
    assert int(candidates[1]) >= 2 * SWEEP_MAX
