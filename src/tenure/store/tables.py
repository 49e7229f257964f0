"""The tables as the last migration leaves them. A test compares them with the tables of a migrated database.

Rules of the `sessions` table that other code relies on:

- The conditions of the indexes treat a row as *live* while `closed_at IS NULL`. Whether a live row has lapsed depends
  on its deadline and the clock.
- No index contains deadline, heartbeat, activity or state: PostgreSQL can then renew a session without changing any
  index (a HOT update). `fillfactor` leaves room on the page for such updates.
- An index contains either live or closed rows, except the primary key and the index on `check_at`. So inserting a
  session does not write the indexes of closed rows.
- `check_at` is when the sweep must check a row, NULL when there is nothing left to do. It is updated lazily, and
  `check_at <= deadline_at` always. Its index does not have the condition `closed_at IS NULL`, so that the planner does
  not use this index to look up a key.
- `lapse_reason` names the limit that determines `deadline_at`. The two are always written together. So are `closed_at`
  and `close_reason`: both are NULL while a row is live.
"""

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    TextClause,
    Unicode,
    event,
    false,
    text,
)

from tenure.domain.activity import COUNTS
from tenure.errors import ERROR_MAX
from tenure.store.types import SESSION_STATES, Digest, Id, Instant, Key, LapseReason, Name, Payload, SessionState

metadata = MetaData()

installation = Table(
    "installation",
    metadata,
    # The first revision inserts the only row. The key and the check constraint make a second row impossible.
    Column("only_row", SmallInteger, primary_key=True, autoincrement=False),
    Column("installation_id", Id, nullable=False),
    Column("created_at", Instant, nullable=False),
    # No later session write gets a timestamp before this instant, so a usage window never changes after its cut.
    Column("last_cut_at", Instant, nullable=False),
    # Stored here because windows are pruned: the id is part of delivery keys, so it must never be used twice.
    Column("last_window_id", BigInteger, nullable=False, server_default="0"),
    # The start of the oldest window that is kept, or the last cut if no window is kept. Before the first window is
    # pruned, the start of the first window.
    Column("usage_kept_from", Instant),
    # Increases by one with every API key that is created or revoked. At 0, no API key was ever created.
    Column("keys_version", BigInteger, nullable=False, server_default="0"),
    # Every later session write gets a timestamp after this instant. NULL until the horizon of events is first moved.
    Column("stamped_after", Instant),
    # The horizon of events: all session writes with a timestamp up to this instant are committed. Never after
    # `stamped_after`.
    Column("published_at", Instant),
    CheckConstraint("only_row = 1", name="installation_is_one"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("tenant_object_id", Id, nullable=False),
    Column("user_object_id", Id, nullable=False),
    Column("capacity_id", Id, nullable=False),
    Column("previous_session_id", Id),
    Column("started_at", Instant, nullable=False),
    Column("term_ends_at", Instant, nullable=False),
    Column("deadline_at", Instant, nullable=False),
    Column("check_at", Instant),
    Column("last_heartbeat_at", Instant, nullable=False),
    # On PostgreSQL, NULL in one of the next two columns stands for the usual value of the column. The usual last
    # activity is the start; the usual last modification is the end or, before the end, the last heartbeat.
    Column("last_activity_at", Instant),
    Column("modified_at", Instant),
    Column("closed_at", Instant),
    # When an imported session began in another service. This start is only shown; all rules use `started_at`, the time
    # of the import.
    Column("imported_start_at", Instant),
    Column("lease_microseconds", BigInteger),
    Column("idle_microseconds", BigInteger),
    Column("heartbeat_microseconds", BigInteger),
    # The next four columns come in descending order of their alignment, so that PostgreSQL needs no padding between
    # them.
    Column("state", SessionState, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("lapse_reason", LapseReason, nullable=False),
    Column("close_reason", String(16)),
    # The number of the newest stream. This number, the counters and the saves are NULL before the first stream.
    Column("attachment", Integer),
    Column("stream_bytes_received", BigInteger),
    Column("stream_chunks", BigInteger),
    Column("stream_messages_sent", BigInteger),
    Column("stream_partials_sent", BigInteger),
    Column("stream_finals_sent", BigInteger),
    Column("stream_errors_sent", BigInteger),
    Column("stream_audio_duration_ms", BigInteger),
    # The numbers of the last saves of the newest stream and of the stream before it. With these numbers, the database
    # recognises a repeated save and adds nothing.
    Column("attachment_saves", Integer),
    Column("replaced_saves", Integer),
    # The audit entry of the action that ended this session together with others. NULL for all other sessions.
    Column("end_entry_id", Id),
    PrimaryKeyConstraint("session_id", name="sessions_pkey"),
    # The constraints are few and short, because PostgreSQL parses each of them again for every statement that writes.
    CheckConstraint("closed_at > started_at", name="sessions_end_after_start"),
    CheckConstraint("kind BETWEEN 1 AND 3", name="sessions_kind"),
    CheckConstraint("check_at <= deadline_at", name="sessions_check_in_time"),
    postgresql_with={"fillfactor": 90},
)
event.listen(
    sessions,
    "before_create",
    DDL(SESSION_STATES).execute_if(dialect="postgresql"),  # type: ignore[no-untyped-call]
)

capacities = Table(
    "capacities",
    metadata,
    Column("capacity_id", Id, nullable=False),
    Column("tenant_object_id", Id),
    Column("created_at", Instant, nullable=False),
    Column("modified_at", Instant, nullable=False),
    Column("max_sessions", Integer),
    # The number of seats known to be free since the last count. Opens lower this number, closes do not change it, and a
    # change of the capacity or an import sets it to 0. So the number is a lower bound, and a batch counts sessions only
    # if it needs more seats than this number.
    Column("slack", Integer, nullable=False),
    Column("when_full", String(16), nullable=False),
    PrimaryKeyConstraint("capacity_id", name="capacities_pkey"),
    CheckConstraint("slack >= 0", name="capacities_slack"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Name, nullable=False),
    Column("holder", Name, nullable=False),
    # Only increases. A row is never deleted, because the next epoch is computed from it. At epoch 0 the lease has never
    # been held.
    Column("epoch", BigInteger, nullable=False),
    # The id of the acquire call that succeeded. If the answer to this call was lost, the repeated call recognises by
    # this id that the lease is its own.
    Column("attempt", Id, nullable=False),
    Column("acquired_at", Instant, nullable=False),
    Column("renewed_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    # True if the lease was released or resigned, and did not expire. `expires_at` alone does not show this, because the
    # clock may have been stepped back since.
    Column("released", Boolean, nullable=False),
    # True if the lease was resigned on request. Its holder may not know yet.
    Column("resigned", Boolean, nullable=False),
    # When the lease was last acquired after a holder had let it expire.
    Column("reclaimed_at", Instant),
    PrimaryKeyConstraint("name", name="leases_pkey"),
)

lease_history = Table(
    "lease_history",
    metadata,
    Column("name", Name, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Name, nullable=False),
    Column("acquired_at", Instant, nullable=False),
    Column("ended_at", Instant),
    # How the term ended: `released`, `resigned` or `expired`.
    Column("how", String(16)),
    PrimaryKeyConstraint("name", "epoch", name="lease_history_pkey"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("name", Name, nullable=False),
    Column("interval_microseconds", BigInteger, nullable=False),
    Column("lock_timeout_microseconds", BigInteger, nullable=False),
    # The oldest tick that is not done, on the grid of the interval.
    Column("next_run_at", Instant, nullable=False),
    Column("retry_at", Instant),
    Column("requested_at", Instant),
    Column("last_start_at", Instant),
    Column("last_success_at", Instant),
    Column("last_duration_microseconds", BigInteger),
    Column("run_count", BigInteger, nullable=False),
    Column("failures_in_a_row", Integer, nullable=False),
    Column("last_error", Unicode(ERROR_MAX)),
    Column("paused", Boolean, nullable=False),
    PrimaryKeyConstraint("name", name="jobs_pkey"),
)

job_runs = Table(
    "job_runs",
    metadata,
    Column("job", Name, nullable=False),
    # The epoch of the job's lock. Each run has its own epoch.
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Name, nullable=False),
    # The oldest tick that the run covers, and the request that it fulfils, if any.
    Column("tick_at", Instant),
    Column("requested_at", Instant),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    # If the clock had been stepped back so far that this run moved the `next_run_at` of the job back, this column has
    # the previous value of `next_run_at`; otherwise it is NULL. If the answer to the call that began the run is lost,
    # the repeated call returns this value again.
    Column("clock_behind", Instant),
    Column("outcome", String(16)),
    Column("error", Unicode(ERROR_MAX)),
    PrimaryKeyConstraint("job", "epoch", name="job_runs_pkey"),
)

submissions = Table(
    "submissions",
    metadata,
    Column("submission_id", Id, nullable=False),
    Column("created_at", Instant, nullable=False),
    # The time when the submission was accepted, or last retried or cancelled. An attempt does not change this time. So
    # an attempt changes no key column of an index until it ends the submission. And the executor reads only the
    # submissions that callers changed: it knows its own attempts.
    Column("last_modified_at", Instant, nullable=False),
    # NULL if there is no next attempt, and while an attempt is open, so that no second attempt can begin meanwhile.
    Column("next_attempt_at", Instant),
    Column("ended_at", Instant),
    Column("attempts", Integer, nullable=False),
    # Attempts that count against the limit of the contract, since the submission was last retried by hand.
    Column("failures", Integer, nullable=False),
    # Attempts of unknown outcome since the submission was last retried by hand. They have their own limit.
    Column("unknowns", Integer, nullable=False, server_default="0"),
    # If true, no early attempt may begin before `next_attempt_at`, even if the gateway recovers.
    Column("pause_is_binding", Boolean, nullable=False, server_default=false()),
    Column("state", String(16), nullable=False),
    Column("gateway", Name, nullable=False),
    Column("caller", Name, nullable=False),
    Column("idempotency_key", Key, nullable=False),
    Column("delivery_key", Name, nullable=False),
    Column("digest", Digest, nullable=False),
    Column("contract", Unicode, nullable=False),
    Column("last_error", Unicode(ERROR_MAX)),
    Column("payload", Payload),
    # The id of the request that submitted this submission, and the position of the request in a trace (`traceparent`)
    # if the trace was sampled.
    Column("request_id", Name),
    Column("traceparent", Name),
    PrimaryKeyConstraint("submission_id", name="submissions_pkey"),
    postgresql_with={"fillfactor": 80},
)

submission_attempts = Table(
    "submission_attempts",
    metadata,
    Column("submission_id", Id, nullable=False),
    Column("number", Integer, nullable=False),
    # The epoch of the executor's lease.
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Name, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("outcome", String(16)),
    Column("status", Integer),
    Column("error", Unicode(ERROR_MAX)),
    # For an early attempt, the `next_attempt_at` that the submission had.
    Column("was_due_at", Instant),
    Column("has_receipt", Boolean, nullable=False, server_default=false()),
    PrimaryKeyConstraint("submission_id", "number", name="submission_attempts_pkey"),
)

usage_eras = Table(
    "usage_eras",
    metadata,
    Column("era", Integer, nullable=False, autoincrement=False),
    Column("started_at", Instant, nullable=False),
    # The factors of kinds 1, 2 and 3, in millionths, like all amounts of usage.
    Column("factor_1", BigInteger, nullable=False),
    Column("factor_2", BigInteger, nullable=False),
    Column("factor_3", BigInteger, nullable=False),
    PrimaryKeyConstraint("era", name="usage_eras_pkey"),
)

usage_windows = Table(
    "usage_windows",
    metadata,
    Column("window_id", BigInteger, nullable=False, autoincrement=False),
    # The installation id at the time of the cut. It is part of the delivery keys of the chunks.
    Column("installation_id", Id, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant, nullable=False),
    Column("cut_at", Instant, nullable=False),
    # NULL until all chunks are saved. The same applies to the sums `usage_millionths` and `sessions`.
    Column("chunked_at", Instant),
    # NULL until the window is delivered. Stays NULL if the window has no contract, because such a window is not sent.
    Column("delivered_at", Instant),
    Column("usage_millionths", BigInteger),
    Column("sessions", Integer),
    Column("era", Integer, nullable=False),
    # NULL if there was no gateway `usages` at the cut, until the window is sent on request.
    Column("contract", Unicode),
    PrimaryKeyConstraint("window_id", name="usage_windows_pkey"),
    CheckConstraint("ended_at > started_at", name="usage_windows_end_after_start"),
)

usage_chunks = Table(
    "usage_chunks",
    metadata,
    Column("window_id", BigInteger, nullable=False),
    Column("chunk", Integer, nullable=False),
    Column("sessions", Integer, nullable=False),
    Column("first_session_id", Id, nullable=False),
    Column("last_session_id", Id, nullable=False),
    Column("submission_id", Id),
    Column("delivered_at", Instant),
    Column("usage_millionths", BigInteger, nullable=False),
    # The digest of the body, stored before the first attempt. A later rendering must have the same digest.
    Column("digest", Digest),
    # Whether the response that delivered the chunk named this digest.
    Column("has_receipt", Boolean, nullable=False, server_default=false()),
    PrimaryKeyConstraint("window_id", "chunk", name="usage_chunks_pkey"),
)

# Running sums of usage at full hours. `domain/usage.py` describes them.
usage_marks = Table(
    "usage_marks",
    metadata,
    Column("marked_at", Instant, nullable=False),
    Column("series", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    PrimaryKeyConstraint("marked_at", name="usage_marks_pkey"),
)

usage_mark_sums = Table(
    "usage_mark_sums",
    metadata,
    Column("marked_at", Instant, nullable=False),
    Column("tenant_object_id", Id, nullable=False),
    Column("capacity_id", Id, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("usage_millionths", BigInteger, nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("live", Integer, nullable=False),
    PrimaryKeyConstraint("marked_at", "tenant_object_id", "capacity_id", "kind", name="usage_mark_sums_pkey"),
    # Without row ids, SQLite stores the rows of a mark next to each other. A sum reads all of them.
    sqlite_with_rowid=False,
)

keys = Table(
    "keys",
    metadata,
    Column("public_id", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("role", String(16), nullable=False),
    Column("tenant_object_id", Id),
    # SHA-256 of the secret. The secret itself is not stored.
    Column("digest", Digest, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Name, nullable=False),
    Column("expires_at", Instant),
    # Each instance writes this column up to once a minute, so no index contains it.
    Column("last_used_at", Instant),
    Column("revoked_at", Instant),
    PrimaryKeyConstraint("public_id", name="keys_pkey"),
)

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("key_id", Name, nullable=False),
    # Signs session tokens, so it must be readable, unlike the secret of an API key.
    Column("secret", Digest, nullable=False),
    Column("created_at", Instant, nullable=False),
    # NULL for the key that signs new tokens. A rotation deletes keys that have expired.
    Column("expires_at", Instant),
    PrimaryKeyConstraint("key_id", name="signing_keys_pkey"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("entry_id", Id, nullable=False),
    Column("at", Instant, nullable=False),
    # The credential, and its name: the two API keys of a rotation have different subjects and the same name.
    Column("subject", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("action", String(32), nullable=False),
    Column("target", Name, nullable=False),
    Column("detail", Unicode(ERROR_MAX)),
    Column("request_id", Name),
    # How many resources the request changed. A request on many resources increases this number with each transaction.
    Column("changes", Integer, nullable=False, server_default="1"),
    PrimaryKeyConstraint("entry_id", name="audit_log_pkey"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("alert_id", Id, nullable=False),
    Column("name", Name, nullable=False),
    # Empty if the alert has no subject, because a unique index of PostgreSQL or SQLite treats NULLs as different.
    Column("subject", Name, nullable=False),
    Column("detail", Unicode(ERROR_MAX), nullable=False),
    Column("raised_at", Instant, nullable=False),
    # The epochs of the runs that raised and cleared the alert. A repeated call recognises its own changes by them.
    Column("raised_epoch", BigInteger, nullable=False),
    Column("cleared_at", Instant),
    Column("cleared_epoch", BigInteger),
    PrimaryKeyConstraint("alert_id", name="alerts_pkey"),
)

instances = Table(
    "instances",
    metadata,
    Column("instance", Name, nullable=False),
    Column("holder", Name, nullable=False),
    Column("host", Name, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("worker", Integer, nullable=False),
    Column("version", Name, nullable=False),
    Column("executor_lease", Name, nullable=False),
    Column("started_at", Instant, nullable=False),
    # Every instance writes this column every ten seconds, so no index contains it.
    Column("last_seen_at", Instant, nullable=False),
    # Set once, when the instance stops. After that, the row does not change.
    Column("stopped_at", Instant),
    PrimaryKeyConstraint("instance", name="instances_pkey"),
)

# The counts of one worker for one minute. `domain/activity.py` describes them.
activity = Table(
    "activity",
    metadata,
    Column("at", Instant, nullable=False),
    Column("instance", Name, nullable=False),
    Column("turn", Integer, nullable=False),
    # Integer, because PostgreSQL sums a week of integers twice as fast as a week of bigints.
    *(Column(name, Integer, nullable=False) for name in COUNTS),
    PrimaryKeyConstraint("at", "instance", "turn", name="activity_pkey"),
)

event_subscriptions = Table(
    "event_subscriptions",
    metadata,
    Column("gateway", Name, nullable=False),
    # The end of the last batch, or a later position up to which the feed was searched without finding an event.
    Column("position_at", Instant, nullable=False),
    Column("position_rank", SmallInteger, nullable=False),
    Column("position_id", Id, nullable=False),
    # The number of the last batch. Stored here because batches are pruned: the number is part of delivery keys.
    Column("number", BigInteger, nullable=False),
    # The submission of the last batch; NULL before the first one.
    Column("submission_id", Id),
    PrimaryKeyConstraint("gateway", name="event_subscriptions_pkey"),
)

event_batches = Table(
    "event_batches",
    metadata,
    Column("gateway", Name, nullable=False),
    Column("number", BigInteger, nullable=False),
    # The batch contains the events after `from_…`, up to and including `to_…`.
    Column("from_at", Instant, nullable=False),
    Column("from_rank", SmallInteger, nullable=False),
    Column("from_id", Id, nullable=False),
    Column("to_at", Instant, nullable=False),
    Column("to_rank", SmallInteger, nullable=False),
    Column("to_id", Id, nullable=False),
    Column("types", Name, nullable=False),
    Column("events", Integer, nullable=False),
    # The digest of the body. A later rendering must have the same digest.
    Column("digest", Digest, nullable=False),
    Column("submission_id", Id, nullable=False),
    PrimaryKeyConstraint("gateway", "number", name="event_batches_pkey"),
)

LIVE = text("closed_at IS NULL")
LIVE_OF_ANY_KIND = text("closed_at IS NULL AND kind > 0")
SEATED = text("closed_at IS NULL AND kind < 4")
CLOSED = text("closed_at IS NOT NULL")
UNENDED = text("close_reason IS NULL")
ENDED = text("close_reason IS NOT NULL")
CLOSING = text("closed_at IS NOT NULL AND check_at IS NOT NULL")
UNSWEPT = text("check_at IS NOT NULL")
HAS_KEY = text("delivery_key > ''")
PENDING = text("state = 'pending'")
PRUNABLE = text("state IN ('delivered', 'cancelled')")
UNFINISHED = text("ended_at IS NULL")
UNCHUNKED = text("chunked_at IS NULL")
UNSENT = text("contract IS NULL AND chunked_at IS NOT NULL")
AWAITED = text("delivered_at IS NULL AND contract IS NOT NULL")
# The next two conditions contain `era > 0`, which is always true. Only the reads of a session's history have this
# condition, so no other read uses the indexes with these conditions.
WITHOUT_CONTRACT = text("contract IS NULL AND era > 0")
WITH_CONTRACT = text("contract IS NOT NULL AND era > 0")
SENT = text("submission_id IS NOT NULL")
UNDELIVERED = text("delivered_at IS NULL")
UNCLEARED = text("cleared_at IS NULL")
CLEARED = text("cleared_at IS NOT NULL")


def _partial(name: str, *columns: Column[Any], where: TextClause, **options: Any) -> Index:
    """Returns a partial index: it contains only the rows that match `where`."""
    return Index(name, *columns, postgresql_where=where, sqlite_where=where, mssql_where=where, **options)


sessions_live_key = _partial(
    "sessions_live_key",
    # The user comes first, so that the index also finds all live sessions of a user.
    sessions.c.user_object_id,
    sessions.c.capacity_id,
    where=LIVE,
    unique=True,
    # Without this column, SQL Server would read the row to check the condition `closed_at IS NULL`. So it would lock
    # rows in the order of keys, but all transactions must lock rows in the order of ids to avoid deadlocks.
    mssql_include=["closed_at"],
)
sessions_check_at = _partial("sessions_check_at", sessions.c.check_at, where=UNSWEPT)
sessions_closed_at = _partial(
    "sessions_closed_at", sessions.c.closed_at, where=CLOSED, mssql_include=["capacity_id", "user_object_id"]
)


# PostgreSQL and SQLite read the sessions of a window in the order of their ids: live sessions by this index, and
# sessions that closed after the start of the window by `sessions_closed_at`. The condition `kind > 0` is always true,
# and only these reads have it. Without it, the planner would choose this index for a look-up of a key that it plans
# while the table is empty. That look-up would then read all live sessions.
sessions_live_id = _partial(
    "sessions_live_id", sessions.c.session_id, where=LIVE_OF_ANY_KIND, mssql_include=["closed_at", "kind"]
)
# The next seven indexes are those of the list (`reads/session_list.py`). An open writes those of live sessions, and a
# close writes those of closed sessions. They do not contain the session id, which would add 16 bytes to each entry: the
# few sessions with the same start are sorted. The last six have a condition on the close reason, which is NULL exactly
# while `closed_at` is NULL. A look-up of a key has a condition on `closed_at` instead, so it cannot use these indexes.
# And a read of the list that has a condition on the close reason cannot use an index with a condition on
# `closed_at`, such as `sessions_live_key`, which is not ordered by start.
#
# The first of the seven is also used to count seats. Its condition `kind < 4` is always true. A look-up of a key does
# not have this condition, so it cannot use this index either.
sessions_live_capacity = _partial(
    "sessions_live_capacity",
    sessions.c.capacity_id,
    sessions.c.started_at,
    where=SEATED,
    mssql_include=["closed_at", "kind"],
)
sessions_live_tenant = _partial(
    "sessions_live_tenant",
    sessions.c.tenant_object_id,
    sessions.c.started_at,
    where=UNENDED,
    mssql_include=["close_reason"],
)
sessions_live_kind = _partial(
    "sessions_live_kind", sessions.c.kind, sessions.c.started_at, where=UNENDED, mssql_include=["close_reason"]
)
sessions_closed_user = _partial("sessions_closed_user", sessions.c.user_object_id, sessions.c.started_at, where=ENDED)
sessions_closed_capacity = _partial(
    "sessions_closed_capacity", sessions.c.capacity_id, sessions.c.started_at, where=ENDED
)
sessions_closed_tenant = _partial(
    "sessions_closed_tenant", sessions.c.tenant_object_id, sessions.c.started_at, where=ENDED
)
sessions_closed_reason = _partial(
    "sessions_closed_reason", sessions.c.close_reason, sessions.c.kind, sessions.c.started_at, where=ENDED
)
# Only sessions in state `closing` are in this index.
sessions_closing = _partial(
    "sessions_closing", sessions.c.started_at, where=CLOSING, mssql_include=["closed_at", "check_at"]
)
# This index contains only sessions that lasted longer than 31 days (`expressions.LONG_SESSION`). Such sessions exist
# only if the configured term is longer. All other sessions started at most 31 days before they closed, so a sum of
# usage can limit the range of their starts. SQL Server does not support the condition of this index, and sums there
# read the primary key.
sessions_closed_long = Index(
    "sessions_closed_long",
    sessions.c.closed_at,
    postgresql_where=text("closed_at - started_at > INTERVAL '31 days'"),
    sqlite_where=text("closed_at - started_at > 2678400000000"),
).ddl_if(dialect=("postgresql", "sqlite"))  # type: ignore[arg-type]  # a tuple is allowed
# The list of the terms of all leases reads a span of this index.
lease_history_acquired_at = Index(
    "lease_history_acquired_at", lease_history.c.acquired_at, lease_history.c.name, lease_history.c.epoch
)
capacities_tenant = Index("capacities_tenant", capacities.c.tenant_object_id, capacities.c.capacity_id)
job_runs_started_at = Index("job_runs_started_at", job_runs.c.started_at)
submissions_key = Index(
    "submissions_key", submissions.c.caller, submissions.c.gateway, submissions.c.idempotency_key, unique=True
)
submissions_waiting = _partial(
    "submissions_waiting",
    submissions.c.last_modified_at,
    submissions.c.submission_id,
    where=PENDING,
    # On SQL Server, the index contains all columns that a schedule is built from. A read that continued from the index
    # entry to the row could deadlock with a write that goes from the row to the index entry.
    mssql_include=["gateway", "next_attempt_at", "state"],
)
# The next two indexes are those of the list and the counts of submissions. Their condition is always true, and only
# these reads have it: otherwise a look-up of an idempotency key or of pending submissions might use these indexes if
# the look-up is planned while the table is empty. On SQL Server these indexes have no condition, because the procedures
# there name the indexes that they use.
submissions_state = Index(
    "submissions_state",
    submissions.c.state,
    submissions.c.submission_id,
    postgresql_where=HAS_KEY,
    sqlite_where=HAS_KEY,
)
submissions_gateway = Index(
    "submissions_gateway",
    submissions.c.gateway,
    submissions.c.state,
    submissions.c.submission_id,
    postgresql_where=HAS_KEY,
    sqlite_where=HAS_KEY,
)
submissions_ended_at = _partial("submissions_ended_at", submissions.c.ended_at, where=PRUNABLE)
submission_attempts_open = _partial(
    "submission_attempts_open", submission_attempts.c.epoch, where=UNFINISHED, mssql_include=["ended_at"]
)
usage_windows_unchunked = _partial(
    "usage_windows_unchunked", usage_windows.c.window_id, where=UNCHUNKED, mssql_include=["chunked_at"]
)
usage_windows_awaited = _partial(
    "usage_windows_awaited",
    usage_windows.c.window_id,
    where=AWAITED,
    mssql_include=["delivered_at"],
)
# This index finds the windows in which a session was live. It costs little, because Tenure inserts a window only about
# once a minute.
usage_windows_ended_at = Index("usage_windows_ended_at", usage_windows.c.ended_at)
# With these two indexes, a read finds the beginning and the end of a span of windows without a contract, and does not
# read the windows in between.
usage_windows_without_contract = _partial(
    "usage_windows_without_contract",
    usage_windows.c.window_id,
    where=WITHOUT_CONTRACT,
    mssql_include=["contract", "era"],
)
usage_windows_with_contract = _partial(
    "usage_windows_with_contract", usage_windows.c.window_id, where=WITH_CONTRACT, mssql_include=["era"]
)
usage_windows_unsent = _partial(
    "usage_windows_unsent", usage_windows.c.started_at, where=UNSENT, mssql_include=["contract"]
)
usage_chunks_submission = _partial("usage_chunks_submission", usage_chunks.c.submission_id, where=SENT, unique=True)
usage_chunks_undelivered = _partial(
    "usage_chunks_undelivered", usage_chunks.c.window_id, where=UNDELIVERED, mssql_include=["delivered_at"]
)
event_batches_submission = Index("event_batches_submission", event_batches.c.submission_id, unique=True)
keys_name = Index("keys_name", keys.c.name)
alerts_active = _partial(
    "alerts_active", alerts.c.name, alerts.c.subject, where=UNCLEARED, unique=True, mssql_include=["cleared_at"]
)
alerts_raised_at = Index("alerts_raised_at", alerts.c.raised_at, alerts.c.alert_id)
alerts_cleared_at = _partial("alerts_cleared_at", alerts.c.cleared_at, where=CLEARED)
audit_log_at = Index("audit_log_at", audit_log.c.at, audit_log.c.entry_id)
audit_log_target = Index("audit_log_target", audit_log.c.target, audit_log.c.at)
audit_log_subject = Index("audit_log_subject", audit_log.c.subject, audit_log.c.at)
audit_log_action = Index("audit_log_action", audit_log.c.action, audit_log.c.at)
