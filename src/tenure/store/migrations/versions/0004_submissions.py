"""Submissions and the attempts to deliver them."""

import sqlalchemy as sa
from alembic import op

from tenure.store.migrations.dialects import create_functions
from tenure.store.types import Digest, Id, Instant, Key, Name, Payload

ERROR_MAX = 1000

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    _create_submissions()
    _create_attempts()
    create_functions("0004_submissions.sql")


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
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("gateway", Name, nullable=False),
        sa.Column("caller", Name, nullable=False),
        sa.Column("idempotency_key", Key, nullable=False),
        sa.Column("delivery_key", Name, nullable=False),
        sa.Column("digest", Digest, nullable=False),
        sa.Column("contract", sa.Unicode, nullable=False),
        sa.Column("last_error", sa.Unicode(ERROR_MAX)),
        sa.Column("payload", Payload),
        sa.PrimaryKeyConstraint("submission_id", name="submissions_pkey"),
        postgresql_with={"fillfactor": 80},
    )
    pending, failed, cancelled = (sa.text(f"state = '{state}'") for state in ("pending", "failed", "cancelled"))
    ended = sa.text("state IN ('delivered', 'cancelled')")
    key = ["caller", "gateway", "idempotency_key"]
    op.create_index("submissions_key", "submissions", key, unique=True)
    waiting = ["gateway", "next_attempt_at", "state"]
    for name, columns, where, included in (
        ("submissions_waiting", ["last_modified_at", "submission_id"], pending, waiting),
        ("submissions_failed", ["submission_id"], failed, []),
        ("submissions_cancelled", ["submission_id"], cancelled, []),
        ("submissions_ended_at", ["ended_at"], ended, []),
    ):
        op.create_index(
            name,
            "submissions",
            columns,
            postgresql_where=where,
            sqlite_where=where,
            mssql_where=where,
            mssql_include=included,
        )


def _create_attempts() -> None:
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
        sa.PrimaryKeyConstraint("submission_id", "number", name="submission_attempts_pkey"),
    )
    unfinished = sa.text("ended_at IS NULL")
    op.create_index(
        "submission_attempts_open",
        "submission_attempts",
        ["epoch"],
        postgresql_where=unfinished,
        sqlite_where=unfinished,
        mssql_where=unfinished,
        mssql_include=["ended_at"],
    )
