"""Capacities with seats, and what heartbeats, the sweep and streams need."""

import sqlalchemy as sa
from alembic import op

from tenure.store.migrations.dialects import create_functions
from tenure.store.types import Id, Instant

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
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
    for name in ("attachment_saves", "replaced_saves"):
        op.add_column("sessions", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    for part in ("opening", "keeping", "streams", "capacities"):
        create_functions(f"0002_{part}.sql")
