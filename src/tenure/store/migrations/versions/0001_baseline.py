"""All tables, their indexes, the row of the installation, and the first signing key."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from tenure.ids import new_id
from tenure.store.migrations.functions import install_functions
from tenure.store.types import Digest, Id, Instant, Key, LapseReason, Name, Payload, SessionState

revision = "0001"
down_revision = None

ERROR_MAX = 1000


def upgrade() -> None:
    _create_installation()
    _create_sessions()
    _create_leases()
    _create_jobs()
    _create_submissions()
    _create_usage()
    _create_access()
    _create_alerts()
    _create_events()
    _create_instances()
    _insert_installation()
    _insert_signing_key()


def _create_installation() -> None:
    op.create_table(
        "installation",
        sa.Column("only_row", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("installation_id", Id, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("last_cut_at", Instant, nullable=False),
        sa.Column("last_window_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("usage_kept_from", Instant),
        sa.Column("keys_version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("stamped_after", Instant),
        sa.Column("published_at", Instant),
        sa.CheckConstraint("only_row = 1", name="installation_is_one"),
    )


def _create_sessions() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE TYPE session_state AS ENUM ('created', 'active', 'closing', 'closed')")
    op.create_table(
        "sessions",
        sa.Column("session_id", Id, nullable=False),
        sa.Column("tenant_object_id", Id, nullable=False),
        sa.Column("user_object_id", Id, nullable=False),
        sa.Column("capacity_id", Id, nullable=False),
        sa.Column("previous_session_id", Id),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("term_ends_at", Instant, nullable=False),
        sa.Column("deadline_at", Instant, nullable=False),
        sa.Column("check_at", Instant),
        sa.Column("last_heartbeat_at", Instant, nullable=False),
        sa.Column("last_activity_at", Instant),
        sa.Column("modified_at", Instant),
        sa.Column("closed_at", Instant),
        sa.Column("imported_start_at", Instant),
        sa.Column("lease_microseconds", sa.BigInteger),
        sa.Column("idle_microseconds", sa.BigInteger),
        sa.Column("heartbeat_microseconds", sa.BigInteger),
        sa.Column("state", SessionState, nullable=False),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("lapse_reason", LapseReason, nullable=False),
        sa.Column("close_reason", sa.String(16)),
        sa.Column("attachment", sa.Integer),
        sa.Column("stream_bytes_received", sa.BigInteger),
        sa.Column("stream_chunks", sa.BigInteger),
        sa.Column("stream_messages_sent", sa.BigInteger),
        sa.Column("stream_partials_sent", sa.BigInteger),
        sa.Column("stream_finals_sent", sa.BigInteger),
        sa.Column("stream_errors_sent", sa.BigInteger),
        sa.Column("stream_audio_duration_ms", sa.BigInteger),
        sa.Column("attachment_saves", sa.Integer),
        sa.Column("replaced_saves", sa.Integer),
        sa.Column("end_entry_id", Id),
        sa.PrimaryKeyConstraint("session_id", name="sessions_pkey"),
        sa.CheckConstraint("closed_at > started_at", name="sessions_end_after_start"),
        sa.CheckConstraint("kind BETWEEN 1 AND 3", name="sessions_kind"),
        sa.CheckConstraint("check_at <= deadline_at", name="sessions_check_in_time"),
        postgresql_with={"fillfactor": 90},
    )
    op.create_table(
        "capacities",
        sa.Column("capacity_id", Id, nullable=False),
        sa.Column("tenant_object_id", Id),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("modified_at", Instant, nullable=False),
        sa.Column("max_sessions", sa.Integer),
        sa.Column("slack", sa.Integer, nullable=False),
        sa.Column("when_full", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("capacity_id", name="capacities_pkey"),
        sa.CheckConstraint("slack >= 0", name="capacities_slack"),
    )
    op.create_index("capacities_tenant", "capacities", ["tenant_object_id", "capacity_id"])
    live_key = _where("closed_at IS NULL", include=["closed_at"])
    op.create_index("sessions_live_key", "sessions", ["user_object_id", "capacity_id"], unique=True, **live_key)
    op.create_index("sessions_check_at", "sessions", ["check_at"], **_where("check_at IS NOT NULL"))
    closed_at = _where("closed_at IS NOT NULL", include=["capacity_id", "user_object_id"])
    op.create_index("sessions_closed_at", "sessions", ["closed_at"], **closed_at)
    live_id = _where("closed_at IS NULL AND kind > 0", include=["closed_at", "kind"])
    op.create_index("sessions_live_id", "sessions", ["session_id"], **live_id)
    seated = _where("closed_at IS NULL AND kind < 4", include=["closed_at", "kind"])
    op.create_index("sessions_live_capacity", "sessions", ["capacity_id", "started_at"], **seated)
    live = _where("close_reason IS NULL", include=["close_reason"])
    op.create_index("sessions_live_tenant", "sessions", ["tenant_object_id", "started_at"], **live)
    op.create_index("sessions_live_kind", "sessions", ["kind", "started_at"], **live)
    closed = _where("close_reason IS NOT NULL")
    op.create_index("sessions_closed_user", "sessions", ["user_object_id", "started_at"], **closed)
    op.create_index("sessions_closed_capacity", "sessions", ["capacity_id", "started_at"], **closed)
    op.create_index("sessions_closed_tenant", "sessions", ["tenant_object_id", "started_at"], **closed)
    op.create_index("sessions_closed_reason", "sessions", ["close_reason", "kind", "started_at"], **closed)
    closing = _where("closed_at IS NOT NULL AND check_at IS NOT NULL", include=["closed_at", "check_at"])
    op.create_index("sessions_closing", "sessions", ["started_at"], **closing)
    # The sessions that lasted longer than 31 days. SQL Server does not get this index: it cannot compare two columns in
    # the condition of an index.
    if op.get_context().dialect.name != "mssql":
        postgresql = sa.text("closed_at - started_at > INTERVAL '31 days'")
        sqlite = sa.text("closed_at - started_at > 2678400000000")
        op.create_index(
            "sessions_closed_long", "sessions", ["closed_at"], postgresql_where=postgresql, sqlite_where=sqlite
        )


def _create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("name", Name, nullable=False),
        sa.Column("holder", Name, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("attempt", Id, nullable=False),
        sa.Column("acquired_at", Instant, nullable=False),
        sa.Column("renewed_at", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("released", sa.Boolean, nullable=False),
        sa.Column("resigned", sa.Boolean, nullable=False),
        sa.Column("reclaimed_at", Instant),
        sa.PrimaryKeyConstraint("name", name="leases_pkey"),
    )
    op.create_table(
        "lease_history",
        sa.Column("name", Name, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", Name, nullable=False),
        sa.Column("acquired_at", Instant, nullable=False),
        sa.Column("ended_at", Instant),
        sa.Column("how", sa.String(16)),
        sa.PrimaryKeyConstraint("name", "epoch", name="lease_history_pkey"),
    )
    op.create_index("lease_history_acquired_at", "lease_history", ["acquired_at", "name", "epoch"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("name", Name, nullable=False),
        sa.Column("interval_microseconds", sa.BigInteger, nullable=False),
        sa.Column("lock_timeout_microseconds", sa.BigInteger, nullable=False),
        sa.Column("next_run_at", Instant, nullable=False),
        sa.Column("retry_at", Instant),
        sa.Column("requested_at", Instant),
        sa.Column("last_start_at", Instant),
        sa.Column("last_success_at", Instant),
        sa.Column("last_duration_microseconds", sa.BigInteger),
        sa.Column("run_count", sa.BigInteger, nullable=False),
        sa.Column("failures_in_a_row", sa.Integer, nullable=False),
        sa.Column("last_error", sa.Unicode(ERROR_MAX)),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", name="jobs_pkey"),
    )
    op.create_table(
        "job_runs",
        sa.Column("job", Name, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", Name, nullable=False),
        sa.Column("tick_at", Instant),
        sa.Column("requested_at", Instant),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("ended_at", Instant),
        sa.Column("clock_behind", Instant),
        sa.Column("outcome", sa.String(16)),
        sa.Column("error", sa.Unicode(ERROR_MAX)),
        sa.PrimaryKeyConstraint("job", "epoch", name="job_runs_pkey"),
    )
    op.create_index("job_runs_started_at", "job_runs", ["started_at"])


def _create_submissions() -> None:
    op.create_table(
        "submissions",
        sa.Column("submission_id", Id, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("last_modified_at", Instant, nullable=False),
        sa.Column("next_attempt_at", Instant),
        sa.Column("ended_at", Instant),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("unknowns", sa.Integer, nullable=False, server_default="0"),
        sa.Column("pause_is_binding", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("gateway", Name, nullable=False),
        sa.Column("caller", Name, nullable=False),
        sa.Column("idempotency_key", Key, nullable=False),
        sa.Column("delivery_key", Name, nullable=False),
        sa.Column("digest", Digest, nullable=False),
        sa.Column("contract", sa.Unicode, nullable=False),
        sa.Column("last_error", sa.Unicode(ERROR_MAX)),
        sa.Column("payload", Payload),
        sa.Column("request_id", Name),
        sa.Column("traceparent", Name),
        sa.PrimaryKeyConstraint("submission_id", name="submissions_pkey"),
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "submission_attempts",
        sa.Column("submission_id", Id, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", Name, nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("ended_at", Instant),
        sa.Column("outcome", sa.String(16)),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.Unicode(ERROR_MAX)),
        sa.Column("was_due_at", Instant),
        sa.Column("has_receipt", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("submission_id", "number", name="submission_attempts_pkey"),
    )
    op.create_index("submissions_key", "submissions", ["caller", "gateway", "idempotency_key"], unique=True)
    waiting = _where("state = 'pending'", include=["gateway", "next_attempt_at", "state"])
    op.create_index("submissions_waiting", "submissions", ["last_modified_at", "submission_id"], **waiting)
    listed: dict[str, Any] = {f"{dialect}_where": sa.text("delivery_key > ''") for dialect in ("postgresql", "sqlite")}
    op.create_index("submissions_state", "submissions", ["state", "submission_id"], **listed)
    op.create_index("submissions_gateway", "submissions", ["gateway", "state", "submission_id"], **listed)
    ended = _where("state IN ('delivered', 'cancelled')")
    op.create_index("submissions_ended_at", "submissions", ["ended_at"], **ended)
    still_open = _where("ended_at IS NULL", include=["ended_at"])
    op.create_index("submission_attempts_open", "submission_attempts", ["epoch"], **still_open)


def _create_usage() -> None:
    op.create_table(
        "usage_eras",
        sa.Column("era", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("factor_1", sa.BigInteger, nullable=False),
        sa.Column("factor_2", sa.BigInteger, nullable=False),
        sa.Column("factor_3", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("era", name="usage_eras_pkey"),
    )
    op.create_table(
        "usage_windows",
        sa.Column("window_id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("installation_id", Id, nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("ended_at", Instant, nullable=False),
        sa.Column("cut_at", Instant, nullable=False),
        sa.Column("chunked_at", Instant),
        sa.Column("delivered_at", Instant),
        sa.Column("usage_millionths", sa.BigInteger),
        sa.Column("sessions", sa.Integer),
        sa.Column("era", sa.Integer, nullable=False),
        sa.Column("contract", sa.Unicode),
        sa.PrimaryKeyConstraint("window_id", name="usage_windows_pkey"),
        sa.CheckConstraint("ended_at > started_at", name="usage_windows_end_after_start"),
    )
    op.create_table(
        "usage_chunks",
        sa.Column("window_id", sa.BigInteger, nullable=False),
        sa.Column("chunk", sa.Integer, nullable=False),
        sa.Column("sessions", sa.Integer, nullable=False),
        sa.Column("first_session_id", Id, nullable=False),
        sa.Column("last_session_id", Id, nullable=False),
        sa.Column("submission_id", Id),
        sa.Column("delivered_at", Instant),
        sa.Column("usage_millionths", sa.BigInteger, nullable=False),
        sa.Column("digest", Digest),
        sa.Column("has_receipt", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("window_id", "chunk", name="usage_chunks_pkey"),
    )
    unchunked = _where("chunked_at IS NULL", include=["chunked_at"])
    op.create_index("usage_windows_unchunked", "usage_windows", ["window_id"], **unchunked)
    awaited = _where("delivered_at IS NULL AND contract IS NOT NULL", include=["delivered_at"])
    op.create_index("usage_windows_awaited", "usage_windows", ["window_id"], **awaited)
    op.create_index("usage_windows_ended_at", "usage_windows", ["ended_at"])
    without_contract = _where("contract IS NULL AND era > 0", include=["contract", "era"])
    op.create_index("usage_windows_without_contract", "usage_windows", ["window_id"], **without_contract)
    with_contract = _where("contract IS NOT NULL AND era > 0", include=["era"])
    op.create_index("usage_windows_with_contract", "usage_windows", ["window_id"], **with_contract)
    unsent = _where("contract IS NULL AND chunked_at IS NOT NULL", include=["contract"])
    op.create_index("usage_windows_unsent", "usage_windows", ["started_at"], **unsent)
    sent = _where("submission_id IS NOT NULL")
    op.create_index("usage_chunks_submission", "usage_chunks", ["submission_id"], unique=True, **sent)
    undelivered = _where("delivered_at IS NULL", include=["delivered_at"])
    op.create_index("usage_chunks_undelivered", "usage_chunks", ["window_id"], **undelivered)
    op.create_table(
        "usage_marks",
        sa.Column("marked_at", Instant, nullable=False),
        sa.Column("series", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("marked_at", name="usage_marks_pkey"),
    )
    op.create_table(
        "usage_mark_sums",
        sa.Column("marked_at", Instant, nullable=False),
        sa.Column("tenant_object_id", Id, nullable=False),
        sa.Column("capacity_id", Id, nullable=False),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("usage_millionths", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("live", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("marked_at", "tenant_object_id", "capacity_id", "kind", name="usage_mark_sums_pkey"),
        sqlite_with_rowid=False,
    )


def _create_access() -> None:
    op.create_table(
        "keys",
        sa.Column("public_id", Name, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("tenant_object_id", Id),
        sa.Column("digest", Digest, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("created_by", Name, nullable=False),
        sa.Column("expires_at", Instant),
        sa.Column("last_used_at", Instant),
        sa.Column("revoked_at", Instant),
        sa.PrimaryKeyConstraint("public_id", name="keys_pkey"),
    )
    op.create_table(
        "signing_keys",
        sa.Column("key_id", Name, nullable=False),
        sa.Column("secret", Digest, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("expires_at", Instant),
        sa.PrimaryKeyConstraint("key_id", name="signing_keys_pkey"),
    )
    op.create_table(
        "audit_log",
        sa.Column("entry_id", Id, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("subject", Name, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("target", Name, nullable=False),
        sa.Column("detail", sa.Unicode(ERROR_MAX)),
        sa.Column("request_id", Name),
        sa.Column("changes", sa.Integer, nullable=False, server_default="1"),
        sa.PrimaryKeyConstraint("entry_id", name="audit_log_pkey"),
    )
    op.create_index("keys_name", "keys", ["name"])
    op.create_index("audit_log_at", "audit_log", ["at", "entry_id"])
    op.create_index("audit_log_target", "audit_log", ["target", "at"])
    op.create_index("audit_log_subject", "audit_log", ["subject", "at"])
    op.create_index("audit_log_action", "audit_log", ["action", "at"])


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("alert_id", Id, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("subject", Name, nullable=False),
        sa.Column("detail", sa.Unicode(ERROR_MAX), nullable=False),
        sa.Column("raised_at", Instant, nullable=False),
        sa.Column("raised_epoch", sa.BigInteger, nullable=False),
        sa.Column("cleared_at", Instant),
        sa.Column("cleared_epoch", sa.BigInteger),
        sa.PrimaryKeyConstraint("alert_id", name="alerts_pkey"),
    )
    active = _where("cleared_at IS NULL", include=["cleared_at"])
    op.create_index("alerts_active", "alerts", ["name", "subject"], unique=True, **active)
    op.create_index("alerts_raised_at", "alerts", ["raised_at", "alert_id"])
    op.create_index("alerts_cleared_at", "alerts", ["cleared_at"], **_where("cleared_at IS NOT NULL"))


def _create_events() -> None:
    op.create_table(
        "event_subscriptions",
        sa.Column("gateway", Name, nullable=False),
        sa.Column("position_at", Instant, nullable=False),
        sa.Column("position_rank", sa.SmallInteger, nullable=False),
        sa.Column("position_id", Id, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("submission_id", Id),
        sa.PrimaryKeyConstraint("gateway", name="event_subscriptions_pkey"),
    )
    op.create_table(
        "event_batches",
        sa.Column("gateway", Name, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("from_at", Instant, nullable=False),
        sa.Column("from_rank", sa.SmallInteger, nullable=False),
        sa.Column("from_id", Id, nullable=False),
        sa.Column("to_at", Instant, nullable=False),
        sa.Column("to_rank", sa.SmallInteger, nullable=False),
        sa.Column("to_id", Id, nullable=False),
        sa.Column("types", Name, nullable=False),
        sa.Column("events", sa.Integer, nullable=False),
        sa.Column("digest", Digest, nullable=False),
        sa.Column("submission_id", Id, nullable=False),
        sa.PrimaryKeyConstraint("gateway", "number", name="event_batches_pkey"),
    )
    op.create_index("event_batches_submission", "event_batches", ["submission_id"], unique=True)


def _where(condition: str, include: list[str] | None = None) -> dict[str, Any]:
    """Returns the options of a partial index. SQL Server stores the columns `include` in the index, next to the key."""
    where = {f"{dialect}_where": sa.text(condition) for dialect in ("postgresql", "sqlite", "mssql")}
    return where if include is None else {**where, "mssql_include": include}


def _create_instances() -> None:
    op.create_table(
        "instances",
        sa.Column("instance", Name, nullable=False),
        sa.Column("holder", Name, nullable=False),
        sa.Column("host", Name, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("worker", sa.Integer, nullable=False),
        sa.Column("version", Name, nullable=False),
        sa.Column("executor_lease", Name, nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("last_seen_at", Instant, nullable=False),
        sa.Column("stopped_at", Instant),
        sa.PrimaryKeyConstraint("instance", name="instances_pkey"),
    )
    op.create_table(
        "activity",
        sa.Column("at", Instant, nullable=False),
        sa.Column("instance", Name, nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("opened", sa.Integer, nullable=False),
        sa.Column("upgraded", sa.Integer, nullable=False),
        sa.Column("existing", sa.Integer, nullable=False),
        sa.Column("refused", sa.Integer, nullable=False),
        sa.Column("heartbeats", sa.Integer, nullable=False),
        sa.Column("late_heartbeats", sa.Integer, nullable=False),
        sa.Column("closed_upgraded", sa.Integer, nullable=False),
        sa.Column("closed_expired", sa.Integer, nullable=False),
        sa.Column("closed_lease_expired", sa.Integer, nullable=False),
        sa.Column("closed_idle_timeout", sa.Integer, nullable=False),
        sa.Column("closed_stopped", sa.Integer, nullable=False),
        sa.Column("closed_terminated", sa.Integer, nullable=False),
        sa.Column("closed_evicted", sa.Integer, nullable=False),
        sa.Column("closed_disconnected", sa.Integer, nullable=False),
        sa.Column("closed_shutdown", sa.Integer, nullable=False),
        sa.Column("closed_failed", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("at", "instance", "turn", name="activity_pkey"),
    )


def _insert_installation() -> None:
    """Inserts the row of the installation. The first usage window starts at the current time of the database."""
    install_functions(op.get_context(), only=["tenure_now"])
    now = {"mssql": "dbo.tenure_now()"}.get(op.get_context().dialect.name, "tenure_now()")
    op.execute(
        "INSERT INTO installation (only_row, installation_id, created_at, last_cut_at) "  # noqa: S608 - no input in it
        f"VALUES (1, '{new_id()}', {now}, {now})"
    )
    # Set these columns to the instant in `created_at`: two reads of the clock could differ by a microsecond.
    op.execute("UPDATE installation SET last_cut_at = created_at, usage_kept_from = created_at")


def _insert_signing_key() -> None:
    """Inserts the first key that signs session tokens. Processes that migrate the same database at the same time wait
    for each other, so this revision is applied once and inserts one key.

    An SQL function generates the secret, so that a dry run does not print it.
    """
    secret = {
        "mssql": "CRYPT_GEN_RANDOM(32)",
        "sqlite": "tenure_random_secret()",
        # Three UUIDs have 366 bits from the server's source of strong random numbers.
        "postgresql": "sha256(convert_to(concat(gen_random_uuid(), gen_random_uuid(), gen_random_uuid()), 'UTF8'))",
    }[op.get_context().dialect.name]
    op.execute(
        "INSERT INTO signing_keys (key_id, secret, created_at) "  # noqa: S608 - no input in it
        f"SELECT '000000000001', {secret}, created_at FROM installation"
    )
