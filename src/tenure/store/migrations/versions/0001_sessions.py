"""Sessions and the installation.

All columns that deadlines, heartbeats, seats and streams need are here from the start.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from tenure.ids import new_id
from tenure.store.migrations.dialects import create_functions
from tenure.store.types import Id, Instant

revision = "0001"
down_revision = None

LIVE = sa.text("closed_at IS NULL")
CLOSED = sa.text("closed_at IS NOT NULL")
UNSWEPT = sa.text("check_at IS NOT NULL")


def upgrade() -> None:
    _create_installation()
    _create_sessions()
    _create_indexes()
    create_functions("0001_functions.sql")
    # The clock is the database's: only it may say when the installation began.
    now = {"mssql": "dbo.tenure_now()"}.get(op.get_context().dialect.name, "tenure_now()")
    op.execute(
        "INSERT INTO installation (only_row, installation_id, created_at, last_cut_at) "  # noqa: S608 - no input in it
        f"VALUES (1, '{new_id()}', {now}, {now})"
    )
    # The first window begins with the installation: not a microsecond later, where the clock was read twice.
    op.execute("UPDATE installation SET last_cut_at = created_at")


def _create_installation() -> None:
    op.create_table(
        "installation",
        sa.Column("only_row", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("installation_id", Id, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("last_cut_at", Instant, nullable=False),
        sa.CheckConstraint("only_row = 1", name="installation_is_one"),
    )


def _create_sessions() -> None:
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
        sa.Column("last_activity_at", Instant, nullable=False),
        sa.Column("modified_at", Instant, nullable=False),
        sa.Column("closed_at", Instant),
        sa.Column("lease_microseconds", sa.BigInteger),
        sa.Column("idle_microseconds", sa.BigInteger),
        sa.Column("heartbeat_microseconds", sa.BigInteger),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("lapse_reason", sa.String(16), nullable=False),
        sa.Column("close_reason", sa.String(16)),
        sa.Column("attachment", sa.Integer, nullable=False, server_default="0"),
        sa.Column("stream_bytes_received", sa.BigInteger),
        sa.Column("stream_chunks", sa.BigInteger),
        sa.Column("stream_messages_sent", sa.BigInteger),
        sa.Column("stream_partials_sent", sa.BigInteger),
        sa.Column("stream_finals_sent", sa.BigInteger),
        sa.Column("stream_errors_sent", sa.BigInteger),
        sa.Column("stream_audio_duration_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("session_id", name="sessions_pkey"),
        sa.CheckConstraint("closed_at > started_at", name="sessions_end_after_start"),
        sa.CheckConstraint("kind BETWEEN 1 AND 3", name="sessions_kind"),
        sa.CheckConstraint("check_at <= deadline_at", name="sessions_check_in_time"),
        postgresql_with={"fillfactor": 85},
    )


def _create_indexes() -> None:
    def where(condition: sa.TextClause) -> dict[str, Any]:
        return {f"{dialect}_where": condition for dialect in ("postgresql", "sqlite", "mssql")}

    op.create_index(
        "sessions_live_key",
        "sessions",
        ["capacity_id", "user_object_id"],
        unique=True,
        mssql_include=["closed_at"],
        **where(LIVE),
    )
    op.create_index("sessions_check_at", "sessions", ["check_at"], **where(UNSWEPT))
    op.create_index(
        "sessions_closed_at",
        "sessions",
        ["closed_at"],
        mssql_include=["capacity_id", "user_object_id"],
        **where(CLOSED),
    )
    op.create_index("sessions_started_at", "sessions", ["started_at", "session_id"])
