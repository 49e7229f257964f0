"""Leases with their epochs, and jobs with their runs."""

import sqlalchemy as sa
from alembic import op

from tenure.store.migrations.dialects import create_functions
from tenure.store.types import Id, Instant, Name

ERROR_MAX = 1000

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    _create_leases()
    _create_jobs()
    for part in ("leases", "jobs"):
        create_functions(f"0003_{part}.sql")


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
        sa.Column("outcome", sa.String(16)),
        sa.Column("error", sa.Unicode(ERROR_MAX)),
        sa.PrimaryKeyConstraint("job", "epoch", name="job_runs_pkey"),
    )
    op.create_index("job_runs_started_at", "job_runs", ["started_at"])
