"""The tables as they are after the last migration. A test compares them with what the migrations made.

Rules of the `sessions` table, each of which something relies on:

- *live* is `closed_at IS NULL`, in every index. Whether a live row has lapsed only its deadline and the clock can say.
- No index contains deadline, heartbeat, activity or state: PostgreSQL can then renew a session without touching any
  index (a HOT update), for which `fillfactor` leaves room on the page.
- `check_at` is when the sweep must look at a row, NULL once there is nothing left to do. It moves lazily, and
  `check_at <= deadline_at` always. Its index does not say `closed_at IS NULL`, so that no look-up of a key can be
  planned on it.
- `lapse_reason` says which limit `deadline_at` stands for and is written whenever that is.
"""

from typing import Any

from sqlalchemy import (
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
    text,
)

from tenure.model.leases import ERROR_MAX
from tenure.store.types import Digest, Id, Instant, Key, Name, Payload

metadata = MetaData()

installation = Table(
    "installation",
    metadata,
    # One row, made by the first migration. Its key makes a second one impossible.
    Column("only_row", SmallInteger, primary_key=True, autoincrement=False),
    Column("installation_id", Id, nullable=False),
    Column("created_at", Instant, nullable=False),
    # No session write may be stamped before this instant: a usage window that is cut never changes.
    Column("last_cut_at", Instant, nullable=False),
    # Counted here, not in the windows, which are pruned: a number that came again would be a key that came again.
    Column("last_window_id", BigInteger, nullable=False, server_default="0"),
    # Where the windows that are kept begin, or the first will.
    Column("usage_kept_from", Instant),
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
    Column("last_activity_at", Instant, nullable=False),
    Column("modified_at", Instant, nullable=False),
    Column("closed_at", Instant),
    Column("lease_microseconds", BigInteger),
    Column("idle_microseconds", BigInteger),
    Column("heartbeat_microseconds", BigInteger),
    Column("kind", SmallInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("lapse_reason", String(16), nullable=False),
    Column("close_reason", String(16)),
    # The number of the newest stream; 0 until one was attached. The counters are NULL until then.
    Column("attachment", Integer, nullable=False, server_default="0"),
    Column("stream_bytes_received", BigInteger),
    Column("stream_chunks", BigInteger),
    Column("stream_messages_sent", BigInteger),
    Column("stream_partials_sent", BigInteger),
    Column("stream_finals_sent", BigInteger),
    Column("stream_errors_sent", BigInteger),
    Column("stream_audio_duration_ms", BigInteger),
    # The numbers of the last saves of the newest stream and of the one before: a repetition adds nothing twice.
    Column("attachment_saves", Integer, nullable=False, server_default="0"),
    Column("replaced_saves", Integer, nullable=False, server_default="0"),
    PrimaryKeyConstraint("session_id", name="sessions_pkey"),
    # Three short ones: PostgreSQL parses each again with every statement that writes.
    CheckConstraint("closed_at > started_at", name="sessions_end_after_start"),
    CheckConstraint("kind BETWEEN 1 AND 3", name="sessions_kind"),
    CheckConstraint("check_at <= deadline_at", name="sessions_check_in_time"),
    postgresql_with={"fillfactor": 85},
)

capacities = Table(
    "capacities",
    metadata,
    Column("capacity_id", Id, nullable=False),
    Column("tenant_object_id", Id),
    Column("created_at", Instant, nullable=False),
    Column("modified_at", Instant, nullable=False),
    Column("max_sessions", Integer),
    # Seats known free since the last count. Opens lower it, closes never touch it, a change of the capacity sets it to
    # 0: so it can only be too low, and a batch counts only if it asks for more.
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
    # Only grows. A row is never deleted: it is what makes an epoch the next one. Epoch 0 was never held.
    Column("epoch", BigInteger, nullable=False),
    # Which try to acquire it succeeded, so that its repetition after a lost answer finds its own work.
    Column("attempt", Id, nullable=False),
    Column("acquired_at", Instant, nullable=False),
    Column("renewed_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    # Given up rather than run out. Not told by `expires_at` alone: the clock may have been stepped back since.
    Column("released", Boolean, nullable=False),
    # Given up on somebody's request, of which its holder may not know yet.
    Column("resigned", Boolean, nullable=False),
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
    Column("how", String(16)),
    PrimaryKeyConstraint("name", "epoch", name="lease_history_pkey"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("name", Name, nullable=False),
    Column("interval_microseconds", BigInteger, nullable=False),
    Column("lock_timeout_microseconds", BigInteger, nullable=False),
    # The oldest tick that was not run, on the grid of the interval.
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
    # Of the job's lock: one epoch, one run.
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Name, nullable=False),
    # The tick it is for, and the request it answers, if any.
    Column("tick_at", Instant),
    Column("requested_at", Instant),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("outcome", String(16)),
    Column("error", Unicode(ERROR_MAX)),
    PrimaryKeyConstraint("job", "epoch", name="job_runs_pkey"),
)

submissions = Table(
    "submissions",
    metadata,
    Column("submission_id", Id, nullable=False),
    Column("created_at", Instant, nullable=False),
    # When it was accepted or commanded, not when it was attempted: an attempt then moves nothing in an index, and the
    # executor, which knows what it did itself, sees only what others did.
    Column("last_modified_at", Instant, nullable=False),
    # NULL if there is to be none, or while one is under way, so that no second one can begin beside it.
    Column("next_attempt_at", Instant),
    Column("ended_at", Instant),
    Column("attempts", Integer, nullable=False),
    # Attempts that count against the limit of the contract, since it was last retried by hand.
    Column("failures", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("gateway", Name, nullable=False),
    Column("caller", Name, nullable=False),
    Column("idempotency_key", Key, nullable=False),
    Column("delivery_key", Name, nullable=False),
    Column("digest", Digest, nullable=False),
    Column("contract", Unicode, nullable=False),
    Column("last_error", Unicode(ERROR_MAX)),
    Column("payload", Payload),
    PrimaryKeyConstraint("submission_id", name="submissions_pkey"),
    postgresql_with={"fillfactor": 80},
)

submission_attempts = Table(
    "submission_attempts",
    metadata,
    Column("submission_id", Id, nullable=False),
    Column("number", Integer, nullable=False),
    # Of the executor's lease.
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Name, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("outcome", String(16)),
    Column("status", Integer),
    Column("error", Unicode(ERROR_MAX)),
    PrimaryKeyConstraint("submission_id", "number", name="submission_attempts_pkey"),
)

usage_eras = Table(
    "usage_eras",
    metadata,
    Column("era", Integer, nullable=False, autoincrement=False),
    Column("started_at", Instant, nullable=False),
    # In millionths, as all amounts of usage are.
    Column("factor_1", BigInteger, nullable=False),
    Column("factor_2", BigInteger, nullable=False),
    Column("factor_3", BigInteger, nullable=False),
    PrimaryKeyConstraint("era", name="usage_eras_pkey"),
)

usage_windows = Table(
    "usage_windows",
    metadata,
    Column("window_id", BigInteger, nullable=False, autoincrement=False),
    # As it was when this was cut: part of the keys that its chunks are sent under.
    Column("installation_id", Id, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant, nullable=False),
    Column("cut_at", Instant, nullable=False),
    # NULL until all of its chunks are there; only then are its sums.
    Column("chunked_at", Instant),
    # NULL, too, if it is not to be sent to anybody.
    Column("delivered_at", Instant),
    Column("usage_millionths", BigInteger),
    Column("sessions", Integer),
    Column("era", Integer, nullable=False),
    # NULL if there was no gateway `usages` when it was cut.
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
    # Of the body, stored before it is sent for the first time. What is rendered later must have the same.
    Column("digest", Digest),
    PrimaryKeyConstraint("window_id", "chunk", name="usage_chunks_pkey"),
)

LIVE = text("closed_at IS NULL")
LIVE_OF_ANY_KIND = text("closed_at IS NULL AND kind > 0")
CLOSED = text("closed_at IS NOT NULL")
UNSWEPT = text("check_at IS NOT NULL")
PENDING = text("state = 'pending'")
FAILED = text("state = 'failed'")
CANCELLED = text("state = 'cancelled'")
PRUNABLE = text("state IN ('delivered', 'cancelled')")
UNFINISHED = text("ended_at IS NULL")
UNCHUNKED = text("chunked_at IS NULL")
AWAITED = text("delivered_at IS NULL AND contract IS NOT NULL")
SENT = text("submission_id IS NOT NULL")
UNDELIVERED = text("delivered_at IS NULL")


def _partial(name: str, *columns: Column[Any], where: TextClause, **options: Any) -> Index:
    """An index of some of the rows."""
    return Index(name, *columns, postgresql_where=where, sqlite_where=where, mssql_where=where, **options)


sessions_live_key = _partial(
    "sessions_live_key",
    sessions.c.capacity_id,
    sessions.c.user_object_id,
    where=LIVE,
    unique=True,
    # SQL Server otherwise looks up the row to check an IS NULL filter, and locks rows in the order of keys.
    mssql_include=["closed_at"],
)
sessions_check_at = _partial("sessions_check_at", sessions.c.check_at, where=UNSWEPT)
sessions_closed_at = _partial(
    "sessions_closed_at", sessions.c.closed_at, where=CLOSED, mssql_include=["capacity_id", "user_object_id"]
)
# A window is read in the order of ids: what is live by this one, what closed since by the one above. It asks for one
# thing more, which is always so and which only those reads say: else a look-up of a key that is planned while the table
# is empty would be planned on it, and read all that is live.
sessions_live_id = _partial(
    "sessions_live_id", sessions.c.session_id, where=LIVE_OF_ANY_KIND, mssql_include=["closed_at", "kind"]
)
sessions_started_at = Index("sessions_started_at", sessions.c.started_at, sessions.c.session_id)
job_runs_started_at = Index("job_runs_started_at", job_runs.c.started_at)
submissions_key = Index(
    "submissions_key", submissions.c.caller, submissions.c.gateway, submissions.c.idempotency_key, unique=True
)
submissions_waiting = _partial(
    "submissions_waiting",
    submissions.c.last_modified_at,
    submissions.c.submission_id,
    where=PENDING,
    # All that a schedule is built from: whoever came from an entry to its row would meet those who go the other way.
    mssql_include=["gateway", "next_attempt_at", "state"],
)
submissions_failed = _partial("submissions_failed", submissions.c.submission_id, where=FAILED)
submissions_cancelled = _partial("submissions_cancelled", submissions.c.submission_id, where=CANCELLED)
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
usage_chunks_submission = _partial("usage_chunks_submission", usage_chunks.c.submission_id, where=SENT, unique=True)
usage_chunks_undelivered = _partial(
    "usage_chunks_undelivered", usage_chunks.c.window_id, where=UNDELIVERED, mssql_include=["delivered_at"]
)
