"""Usage: eras, windows and chunks."""

import sqlalchemy as sa
from alembic import op

from tenure.store.migrations.dialects import create_functions
from tenure.store.types import Digest, Id, Instant

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("installation", sa.Column("last_window_id", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("installation", sa.Column("usage_kept_from", Instant))
    # Where the first window will begin.
    op.execute("UPDATE installation SET usage_kept_from = last_cut_at")
    _create_windows()
    _create_chunks()
    _create_indexes()
    create_functions("0005_usage.sql")


def _create_windows() -> None:
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


def _create_chunks() -> None:
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
        sa.PrimaryKeyConstraint("window_id", "chunk", name="usage_chunks_pkey"),
    )


def _create_indexes() -> None:
    for name, table, column, condition, unique, included in (
        (
            "sessions_live_id",
            "sessions",
            "session_id",
            "closed_at IS NULL AND kind > 0",
            False,
            ["closed_at", "kind"],
        ),
        ("usage_windows_unchunked", "usage_windows", "window_id", "chunked_at IS NULL", False, ["chunked_at"]),
        (
            "usage_windows_awaited",
            "usage_windows",
            "window_id",
            "delivered_at IS NULL AND contract IS NOT NULL",
            False,
            ["delivered_at"],
        ),
        ("usage_chunks_submission", "usage_chunks", "submission_id", "submission_id IS NOT NULL", True, []),
        ("usage_chunks_undelivered", "usage_chunks", "window_id", "delivered_at IS NULL", False, ["delivered_at"]),
    ):
        where = sa.text(condition)
        op.create_index(
            name,
            table,
            [column],
            unique=unique,
            postgresql_where=where,
            sqlite_where=where,
            mssql_where=where,
            mssql_include=included,
        )
