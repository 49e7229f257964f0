"""The calls that this engine makes: one statement each, with what comes back.

What is a list, or may be missing in part, travels as one JSON text: pyodbc would ask the server for the type of each
parameter that is None.
"""

from typing import Any

from sqlalchemy import Integer, String, TextClause, bindparam, text
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.types import BigInteger, Boolean

from tenure.store import capacities, leases, sessions
from tenure.store.engines.sqlserver.connections import LOCK_MILLISECONDS, SET_UP
from tenure.store.tables import jobs
from tenure.store.types import Id, Instant, Name, Payload

MIGRATION_LOCK_MILLISECONDS = 5000
"""Whatever waits to change a table holds up all who come after it, so it gives way and tries again."""

_IMPLIED = ("user_object_id", "capacity_id", "closed_at", "close_reason")
"""What a wish knows, and what a live session has not."""
OLD_SESSION = tuple(each for each in sessions.COLUMNS if each.name not in _IMPLIED)
"""What an open tells of the session that was there before."""


def _with_request(statement: str) -> TextClause:
    return text(statement).bindparams(bindparam("request", type_=String()))


def _with_parameters(statement: str) -> TextClause:
    """Of the types that the procedures have: a name must meet its column without being converted."""
    given = text(statement)
    return given.bindparams(*(bindparam(name, type_=_PARAMETERS[name]) for name in given.compile().params))


_PARAMETERS: dict[str, Any] = {
    "name": Name,
    "holder": Name,
    "job": Name,
    "epoch": BigInteger(),
    "attempt": Id(),
    "duration": BigInteger(),
    "command": String(),
    "limit": Integer(),
    "history": BigInteger(),
    "runs": BigInteger(),
    "capacity_id": Id(),
    "submissions": BigInteger(),
    "request": String(),
    "payloads": Payload,
    "window_id": BigInteger(),
    "first": Integer(),
    "complete": Boolean(),
    "kept": BigInteger(),
}


def _answered(statement: TextClause, *table_columns: Any, **columns: Any) -> TextualSelect:
    named = {column.name: column.type for column in table_columns}
    return statement.columns(**columns, **named).execution_options(answers=True)


OPEN = _answered(
    _with_request("EXEC dbo.tenure_open_2 @request = :request;"),
    *OLD_SESSION,
    position=Integer,
    outcome=String,
    opened_at=Instant,
)
OPEN_LIMITED = _answered(
    _with_request("EXEC dbo.tenure_open_limited_1 @request = :request;"),
    *OLD_SESSION,
    position=Integer,
    outcome=String,
    opened_at=Instant,
)
HEARTBEAT = _answered(
    _with_request("EXEC dbo.tenure_heartbeat_1 @request = :request;"),
    position=Integer,
    found=String,
    state=String,
    deadline_at=Instant,
    heartbeat_microseconds=BigInteger,
    close_reason=String,
    recorded=Boolean,
)
END = _answered(
    _with_request("EXEC dbo.tenure_end_2 @request = :request;"),
    *sessions.COLUMNS,
    position=Integer,
    recorded=Boolean,
)
EXPIRE = _answered(
    _with_parameters("EXEC dbo.tenure_expire_2 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit;"),
    session_id=Id,
    reason=String,
    ended_at=Instant,
    looked_at=Integer,
)
ATTACH = _answered(
    _with_request("EXEC dbo.tenure_attach_1 @request = :request;"),
    *sessions.COLUMNS,
    position=Integer,
    found=String,
    now=Instant,
    recorded=Boolean,
    attached=Integer,
)
UPDATE_STREAMS = _answered(
    _with_request("EXEC dbo.tenure_update_streams_1 @request = :request;"),
    *sessions.COLUMNS,
    position=Integer,
    found=String,
    now=Instant,
    recorded=Boolean,
)
PUT_CAPACITY = _answered(
    _with_request("EXEC dbo.tenure_put_capacity_1 @request = :request;"),
    *capacities.COLUMNS,
)
DELETE_CAPACITY = _answered(
    _with_parameters("EXEC dbo.tenure_delete_capacity_1 @capacity_id = :capacity_id;"),
    *capacities.COLUMNS,
)
ACQUIRE_LEASE = _answered(
    _with_parameters(
        "EXEC dbo.tenure_acquire_lease_1 @name = :name, @holder = :holder, @attempt = :attempt, @duration = :duration;"
    ),
    *leases.LEASE_COLUMNS,
    taken=Boolean,
    reclaimed=Boolean,
    now=Instant,
)
RENEW_LEASE = _answered(
    _with_parameters(
        "EXEC dbo.tenure_renew_lease_1 @name = :name, @holder = :holder, @epoch = :epoch, @duration = :duration;"
    ),
    *leases.LEASE_COLUMNS,
    now=Instant,
)
RELEASE_LEASE = _answered(
    _with_parameters("EXEC dbo.tenure_release_lease_1 @name = :name, @holder = :holder, @epoch = :epoch;"),
    *leases.LEASE_COLUMNS,
    now=Instant,
)
RESIGN_LEASE = _answered(
    _with_parameters("EXEC dbo.tenure_resign_lease_1 @name = :name;"),
    *leases.LEASE_COLUMNS,
    now=Instant,
)
REGISTER_JOBS = _answered(
    _with_request("EXEC dbo.tenure_register_jobs_1 @request = :request;"),
    now=Instant,
)
BEGIN_RUN = _answered(
    _with_parameters("EXEC dbo.tenure_begin_run_1 @job = :job, @holder = :holder, @attempt = :attempt;"),
    found=String,
    epoch=BigInteger,
    started_at=Instant,
    expires_at=Instant,
    tick_at=Instant,
    lock_timeout_microseconds=BigInteger,
    failures_in_a_row=Integer,
    reclaimed_epoch=BigInteger,
    reclaimed_holder=Name,
)
FINISH_RUN = _answered(
    _with_request("EXEC dbo.tenure_finish_run_1 @request = :request;"),
    now=Instant,
)
COMMAND_JOB = _answered(
    _with_parameters("EXEC dbo.tenure_command_job_1 @job = :job, @command = :command;"),
    *jobs.c,
)
PRUNE = _answered(
    _with_parameters(
        "EXEC dbo.tenure_prune_2 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit, "
        "@history = :history, @runs = :runs, @submissions = :submissions;"
    ),
    lease_history=Integer,
    job_runs=Integer,
    submissions=Integer,
)
ACCEPT_SUBMISSIONS = _answered(
    _with_parameters("EXEC dbo.tenure_accept_submissions_1 @request = :request, @payloads = :payloads;"),
    position=Integer,
    submission_id=Id,
    state=String,
    same=Boolean,
    new=Boolean,
)
BEGIN_ATTEMPTS = _answered(
    _with_parameters(
        "EXEC dbo.tenure_begin_attempts_2 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    submission_id=Id,
    found=String,
    number=Integer,
    failures=Integer,
    next_attempt_at=Instant,
    now=Instant,
)
FINISH_ATTEMPTS = _answered(
    _with_parameters(
        "EXEC dbo.tenure_finish_attempts_2 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    submission_id=Id,
    state=String,
    next_attempt_at=Instant,
)
CLOSE_UNKNOWN = _answered(
    _with_parameters(
        "EXEC dbo.tenure_close_unknown_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit;"
    ),
    found=Integer,
)
EXPLAIN_WAITING = _answered(
    _with_parameters(
        "EXEC dbo.tenure_explain_waiting_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    explained=Integer,
)
COMMAND_SUBMISSIONS = _answered(
    _with_parameters("EXEC dbo.tenure_command_submissions_2 @command = :command, @request = :request;"),
    submission_id=Id,
    done=Boolean,
)
CUT_USAGE = _answered(
    _with_parameters(
        "EXEC dbo.tenure_cut_usage_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit, "
        "@request = :request;"
    ),
    now=Instant,
    last_cut_at=Instant,
    windows=Integer,
)
SAVE_CHUNKS = _answered(
    _with_parameters(
        "EXEC dbo.tenure_save_chunks_1 @name = :name, @holder = :holder, @epoch = :epoch, @window_id = :window_id, "
        "@first = :first, @complete = :complete, @request = :request;"
    ),
    saved=Integer,
)
SEAL_CHUNKS = _answered(
    _with_parameters(
        "EXEC dbo.tenure_seal_chunks_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    submission_id=Id,
    same=Boolean,
)
PRUNE_USAGE = _answered(
    _with_parameters(
        "EXEC dbo.tenure_prune_usage_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit, "
        "@kept = :kept;"
    ),
    chunks=Integer,
    windows=Integer,
    sessions=Integer,
)

# Alembic counts the rows of its own table that a migration changes, so they are counted again from the end of this on.
BEGIN_MIGRATION = text(f"""
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT {MIGRATION_LOCK_MILLISECONDS};
BEGIN TRANSACTION;
DECLARE @granted int;
EXEC @granted = sys.sp_getapplock
    @Resource = N'tenure.migration', @LockMode = 'Exclusive', @LockOwner = 'Transaction',
    @LockTimeout = {LOCK_MILLISECONDS};
IF @granted < 0
    THROW 51222, N'tenure: the migration lock was not granted in time', 1;
SET NOCOUNT OFF;
SELECT @granted AS granted;
""").execution_options(answers=True)
END_MIGRATION = f"COMMIT TRANSACTION; {SET_UP}"
