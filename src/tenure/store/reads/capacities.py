"""Statements and rows of the `capacities` table that all engines share."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, and_, func, select

from tenure.domain.capacities import Capacity, Seats
from tenure.domain.scope import Scope
from tenure.store.expressions import unsearched
from tenure.store.reads.sessions import SEATED, read_now
from tenure.store.tables import capacities, sessions

COLUMNS = tuple(column for column in capacities.c if column.name != "slack")


def get_capacity(connection: Connection, capacity_id: str, scope: Scope) -> Capacity | None:
    row = connection.execute(get_statement(capacity_id, read_now(connection), scope)).one_or_none()
    return None if row is None else capacity_from_row(row)


def get_statement(capacity_id: str, now: datetime, scope: Scope) -> Select[Any]:
    statement = with_live(now, scope).where(capacities.c.capacity_id == capacity_id)
    if scope.tenant is None:
        return statement
    return statement.where(unsearched(capacities.c.tenant_object_id == scope.tenant))


def list_capacities(
    connection: Connection, tenant: str | None, after: str | None, limit: int, scope: Scope
) -> Sequence[Capacity]:
    if tenant is not None and not scope.admits_tenant(tenant):
        return []
    statement = list_statement(scope.tenant or tenant, after, limit, read_now(connection), scope)
    return [capacity_from_row(row) for row in connection.execute(statement)]


def list_statement(tenant: str | None, after: str | None, limit: int, now: datetime, scope: Scope) -> Select[Any]:
    row = capacities.c
    statement = with_live(now, scope).limit(limit)
    if after is not None:
        statement = statement.where(row.capacity_id > after)
    if tenant is None:
        return statement.order_by(row.capacity_id)
    # Written as a range: with `=`, the planner might read the capacities of all tenants in the order of their ids.
    of_tenant = row.tenant_object_id >= tenant, row.tenant_object_id <= tenant
    return statement.where(*of_tenant).order_by(row.tenant_object_id, row.capacity_id)


def count_live(connection: Connection, capacity_id: str, scope: Scope) -> int:
    """Returns how many sessions have a seat on the capacity now. If the scope has a tenant, only sessions of this
    tenant count. A lapsed session has no seat, whether or not its end is recorded.
    """
    statement = select(func.count()).where(
        sessions.c.capacity_id == capacity_id,
        sessions.c.closed_at.is_(None),
        SEATED,
        sessions.c.deadline_at > read_now(connection),
        *_of_tenant(scope),
    )
    return connection.execute(statement).scalar_one()


def _of_tenant(scope: Scope) -> Sequence[ColumnElement[bool]]:
    """Returns the condition that limits a count to the tenant of the scope; none if the scope has no tenant. The
    condition is written so that the planner searches no index by it: the count must use the index by capacity.
    """
    return [] if scope.tenant is None else [unsearched(sessions.c.tenant_object_id == scope.tenant)]


def with_live(now: datetime, scope: Scope) -> Select[Any]:
    live = and_(
        sessions.c.capacity_id == capacities.c.capacity_id,
        sessions.c.closed_at.is_(None),
        SEATED,
        sessions.c.deadline_at > now,
        *_of_tenant(scope),
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
