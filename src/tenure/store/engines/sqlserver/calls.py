"""The procedure calls of this engine: each call is one statement, with the columns that the procedure returns.

Lists and optional values are sent together, as one JSON text. If an optional value were a parameter of its own, pyodbc
would have to ask the server for its type whenever it is None.
"""

from typing import Any

from sqlalchemy import Integer, String, TextClause, bindparam, text
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.types import BigInteger, Boolean

from tenure.store.engines.sqlserver.connections import LOCK_MILLISECONDS, SET_UP
from tenure.store.reads import capacities, keys, leases, sessions
from tenure.store.reads.alerts import ALERT_COLUMNS
from tenure.store.tables import jobs
from tenure.store.types import Id, Instant, Name, Payload

MIGRATION_LOCK_MILLISECONDS = 5000
"""How long a statement of a migration waits for a lock. A statement that waits to change a table blocks every later
statement on that table. If the wait is too long, the whole migration is rolled back and repeated."""

_IMPLIED = ("user_object_id", "capacity_id", "closed_at", "close_reason")
"""The columns that OPEN does not return of a session that existed before the open request: the user and the capacity
are in the open request, and a live session has neither `closed_at` nor `close_reason`. OPEN_LIMITED does return the
user and the capacity, because it can also end sessions of other users."""
OLD_SESSION = tuple(each for each in sessions.COLUMNS if each.name not in _IMPLIED)
"""The columns that OPEN and OPEN_LIMITED return of the session that existed before the open request."""


def _with_request(statement: str) -> TextClause:
    return text(statement).bindparams(bindparam("request", type_=String()))


def _with_parameters(statement: str) -> TextClause:
    """Binds the parameter types of the procedures, so that a name is compared with its column without conversion."""
    clause = text(statement)
    return clause.bindparams(*(bindparam(name, type_=_PARAMETERS[name]) for name in clause.compile().params))


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
    "actor": String(),
    "submissions": BigInteger(),
    "instances": BigInteger(),
    "activity": BigInteger(),
    "instance": Name,
    "audit": BigInteger(),
    "alerts": BigInteger(),
    "request": String(),
    "payloads": Payload,
    "window_id": BigInteger(),
    "first": Integer(),
    "complete": Boolean(),
    "writes": Boolean(),
    "kept": BigInteger(),
    "pause": BigInteger(),
}


def _returning(statement: TextClause, *table_columns: Any, **columns: Any) -> TextualSelect:
    named = {column.name: column.type for column in table_columns}
    return statement.columns(**columns, **named).execution_options(returns_rows=True)


OPEN = _returning(
    _with_request("EXEC dbo.tenure_open_1 @request = :request;"),
    *OLD_SESSION,
    position=Integer,
    outcome=String,
    opened_at=Instant,
)
OPEN_LIMITED = _returning(
    _with_request("EXEC dbo.tenure_open_limited_1 @request = :request;"),
    *OLD_SESSION,
    user_object_id=Id,
    capacity_id=Id,
    position=Integer,
    outcome=String,
    opened_at=Instant,
)
HEARTBEAT = _returning(
    _with_request("EXEC dbo.tenure_heartbeat_1 @request = :request;"),
    position=Integer,
    found=String,
    state=String,
    deadline_at=Instant,
    heartbeat_microseconds=BigInteger,
    close_reason=String,
    recorded=Boolean,
    user_object_id=Id,
    tenant_object_id=Id,
    capacity_id=Id,
)
END = _returning(
    _with_request("EXEC dbo.tenure_end_1 @request = :request;"),
    *sessions.COLUMNS,
    position=Integer,
    recorded=Boolean,
)
END_MANY = _returning(
    _with_request("EXEC dbo.tenure_end_many_1 @request = :request;"),
    session_id=Id,
    reason=String,
    ended_at=Instant,
    user_object_id=Id,
    tenant_object_id=Id,
    capacity_id=Id,
    same=Boolean,
    total=Integer,
    began_at=Instant,
)
EXPIRE = _returning(
    _with_parameters("EXEC dbo.tenure_expire_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit;"),
    session_id=Id,
    reason=String,
    ended_at=Instant,
    user_object_id=Id,
    tenant_object_id=Id,
    capacity_id=Id,
    looked_at=Integer,
)
ATTACH = _returning(
    _with_request("EXEC dbo.tenure_attach_1 @request = :request;"),
    *sessions.COLUMNS,
    position=Integer,
    found=String,
    now=Instant,
    recorded=Boolean,
    attached=Integer,
)
UPDATE_STREAMS = _returning(
    _with_request("EXEC dbo.tenure_update_streams_1 @request = :request;"),
    *sessions.COLUMNS,
    position=Integer,
    found=String,
    now=Instant,
    recorded=Boolean,
)
PUT_CAPACITY = _returning(
    _with_request("EXEC dbo.tenure_put_capacity_1 @request = :request;"),
    *capacities.COLUMNS,
)
DELETE_CAPACITY = _returning(
    _with_request("EXEC dbo.tenure_delete_capacity_1 @request = :request;"),
    *capacities.COLUMNS,
)
ACQUIRE_LEASE = _returning(
    _with_parameters(
        "EXEC dbo.tenure_acquire_lease_1 @name = :name, @holder = :holder, @attempt = :attempt, @duration = :duration;"
    ),
    *leases.LEASE_COLUMNS,
    taken=Boolean,
    reclaimed=Boolean,
    now=Instant,
)
RENEW_LEASE = _returning(
    _with_parameters(
        "EXEC dbo.tenure_renew_lease_1 @name = :name, @holder = :holder, @epoch = :epoch, @duration = :duration;"
    ),
    *leases.LEASE_COLUMNS,
    now=Instant,
)
RELEASE_LEASE = _returning(
    _with_parameters("EXEC dbo.tenure_release_lease_1 @name = :name, @holder = :holder, @epoch = :epoch;"),
    *leases.LEASE_COLUMNS,
    now=Instant,
)
RESIGN_LEASE = _returning(
    _with_parameters("EXEC dbo.tenure_resign_lease_1 @name = :name, @actor = :actor;"),
    *leases.LEASE_COLUMNS,
    now=Instant,
)
REGISTER_JOBS = _returning(
    _with_request("EXEC dbo.tenure_register_jobs_1 @request = :request;"),
    now=Instant,
)
BEGIN_RUN = _returning(
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
    clock_behind=Instant,
)
FINISH_RUN = _returning(
    _with_request("EXEC dbo.tenure_finish_run_1 @request = :request;"),
    now=Instant,
)
COMMAND_JOB = _returning(
    _with_parameters("EXEC dbo.tenure_command_job_1 @job = :job, @command = :command, @actor = :actor;"),
    *jobs.c,
)
PRUNE = _returning(
    _with_parameters(
        "EXEC dbo.tenure_prune_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit, "
        "@history = :history, @runs = :runs, @submissions = :submissions, @audit = :audit, @alerts = :alerts, "
        "@instances = :instances, @activity = :activity;"
    ),
    lease_history=Integer,
    job_runs=Integer,
    submissions=Integer,
    audit_log=Integer,
    alerts=Integer,
    instances=Integer,
    activity=Integer,
)
SAVE_INSTANCE = _returning(
    _with_request("EXEC dbo.tenure_save_instance_1 @request = :request;"),
    started_at=Instant,
)
SAVE_ACTIVITY = _returning(
    _with_parameters("EXEC dbo.tenure_save_activity_1 @instance = :instance, @request = :request;"),
    saved=Integer,
)
ACCEPT_SUBMISSIONS = _returning(
    _with_parameters("EXEC dbo.tenure_accept_submissions_1 @request = :request, @payloads = :payloads;"),
    position=Integer,
    submission_id=Id,
    state=String,
    same=Boolean,
    new=Boolean,
)
BEGIN_ATTEMPTS = _returning(
    _with_parameters(
        "EXEC dbo.tenure_begin_attempts_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    submission_id=Id,
    found=String,
    number=Integer,
    failures=Integer,
    unknowns=Integer,
    was_due_at=Instant,
    next_attempt_at=Instant,
    now=Instant,
)
FINISH_ATTEMPTS = _returning(
    _with_parameters(
        "EXEC dbo.tenure_finish_attempts_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    submission_id=Id,
    state=String,
    next_attempt_at=Instant,
)
NOTE_WAITING_REASON = _returning(
    _with_parameters(
        "EXEC dbo.tenure_note_waiting_reason_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    explained=Integer,
)
COMMAND_SUBMISSIONS = _returning(
    _with_parameters("EXEC dbo.tenure_command_submissions_1 @command = :command, @request = :request;"),
    submission_id=Id,
    done=Boolean,
)
CUT_USAGE = _returning(
    _with_parameters(
        "EXEC dbo.tenure_cut_usage_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit, "
        "@request = :request;"
    ),
    now=Instant,
    last_cut_at=Instant,
    windows=Integer,
)
SAVE_CHUNKS = _returning(
    _with_parameters(
        "EXEC dbo.tenure_save_chunks_1 @name = :name, @holder = :holder, @epoch = :epoch, @window_id = :window_id, "
        "@first = :first, @complete = :complete, @request = :request;"
    ),
    saved=Integer,
)
SEND_WINDOWS = _returning(
    _with_request("EXEC dbo.tenure_send_windows_1 @request = :request;"),
    window_id=BigInteger,
)
STORE_DIGESTS = _returning(
    _with_parameters(
        "EXEC dbo.tenure_store_digests_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    submission_id=Id,
    same=Boolean,
)
SAVE_MARK = _returning(
    _with_parameters(
        "EXEC dbo.tenure_save_mark_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    saved=Integer,
)
DELETE_MARK = _returning(
    _with_parameters(
        "EXEC dbo.tenure_delete_mark_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit, "
        "@request = :request;"
    ),
    deleted=Integer,
)
PRUNE_USAGE = _returning(
    _with_parameters(
        "EXEC dbo.tenure_prune_usage_1 @name = :name, @holder = :holder, @epoch = :epoch, @limit = :limit, "
        "@kept = :kept;"
    ),
    chunks=Integer,
    windows=Integer,
    sessions=Integer,
)

CREATE_KEY = _returning(
    _with_request("EXEC dbo.tenure_create_key_1 @request = :request;"),
    *keys.KEY_COLUMNS,
)
REVOKE_KEY = _returning(
    _with_request("EXEC dbo.tenure_revoke_key_1 @request = :request;"),
    *keys.KEY_COLUMNS,
)
ROTATE_SIGNING_KEY = _returning(
    _with_request("EXEC dbo.tenure_rotate_signing_key_1 @request = :request;"),
    outcome=String,
)
IMPORT_SESSIONS = _returning(
    _with_parameters("EXEC dbo.tenure_import_sessions_1 @request = :request, @writes = :writes;"),
    position=Integer,
    outcome=String,
)
TOUCH_KEYS = _returning(
    _with_request("EXEC dbo.tenure_touch_keys_1 @request = :request;"),
    touched=Integer,
)

UPDATE_ALERTS = _returning(
    _with_parameters(
        "EXEC dbo.tenure_update_alerts_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    *ALERT_COLUMNS,
    cleared_epoch=BigInteger,
)
PUBLISH_EVENTS = _returning(
    _with_parameters("EXEC dbo.tenure_publish_events_1 @pause = :pause;"),
    horizon=Instant,
)
SUBSCRIBE_GATEWAYS = _returning(
    _with_parameters(
        "EXEC dbo.tenure_subscribe_gateways_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    gateway=Name,
    position_at=Instant,
    position_rank=Integer,
    position_id=Id,
    number=BigInteger,
    is_settled=Boolean,
)
SAVE_EVENT_BATCH = _returning(
    _with_parameters(
        "EXEC dbo.tenure_save_event_batch_1 @name = :name, @holder = :holder, @epoch = :epoch, @request = :request;"
    ),
    saved=Boolean,
)

# Alembic checks how many rows of its own table a statement has changed, so NOCOUNT is switched off at the end.
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
""").execution_options(returns_rows=True)
END_MIGRATION = f"COMMIT TRANSACTION; {SET_UP}"
