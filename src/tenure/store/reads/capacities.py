"""Statements and rows of the `capacities` table that all engines share."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, RowMapping, Select, and_, func, select

from tenure.domain.capacities import Capacity, Seats
from tenure.store.reads.sessions import SEATED, read_now
from tenure.store.tables import capacities, sessions

COLUMNS = tuple(column for column in capacities.c if column.name != "slack")


def get_capacity(connection: Connection, capacity_id: str) -> Capacity | None:
    statement = with_live(read_now(connection)).where(capacities.c.capacity_id == capacity_id)
    row = connection.execute(statement).one_or_none()
    return None if row is None else capacity_from_row(row)


def list_capacities(connection: Connection, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
    statement = list_statement(tenant, after, limit, read_now(connection))
    return [capacity_from_row(row) for row in connection.execute(statement)]


def list_statement(tenant: str | None, after: str | None, limit: int, now: datetime) -> Select[Any]:
    row = capacities.c
    statement = with_live(now).limit(limit)
    if after is not None:
        statement = statement.where(row.capacity_id > after)
    if tenant is None:
        return statement.order_by(row.capacity_id)
    # With `=`, the planner may read the capacities of all tenants in the order of their ids.
    of_tenant = row.tenant_object_id >= tenant, row.tenant_object_id <= tenant
    return statement.where(*of_tenant).order_by(row.tenant_object_id, row.capacity_id)


def count_live(connection: Connection, capacity_id: str) -> int:
    """Returns how many seats are taken now. A lapsed session takes no seat, whether or not its end is recorded."""
    statement = select(func.count()).where(
        sessions.c.capacity_id == capacity_id,
        sessions.c.closed_at.is_(None),
        SEATED,
        sessions.c.deadline_at > read_now(connection),
    )
    return connection.execute(statement).scalar_one()


def with_live(now: datetime) -> Select[Any]:
    live = and_(
        sessions.c.capacity_id == capacities.c.capacity_id,
        sessions.c.closed_at.is_(None),
        SEATED,
        sessions.c.deadline_at > now,
    )
    count = select(func.count()).select_from(sessions).where(live).scalar_subquery()
    return select(*COLUMNS, count.label("active_sessions"))


def capacity_from_row(row: Row[Any]) -> Capacity:
    return capacity_from_values(row._mapping, row.active_sessions)  # noqa: SLF001 - public in SQLAlchemy


def capacity_from_values(values: RowMapping | Mapping[str, Any], active_sessions: int) -> Capacity:
    """Returns a capacity from the values of a table row by column name."""
    return Capacity(
        capacity_id=values["capacity_id"],
        seats=Seats(values["max_sessions"], values["when_full"], values["tenant_object_id"]),
        active_sessions=active_sessions,
        created_at=values["created_at"],
        modified_at=values["modified_at"],
    )
