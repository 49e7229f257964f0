"""The reads of `leases`, `jobs` and `job_runs` that all engines share: statements and rows."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, cast, literal, null, select, union_all

from tenure.domain.jobs import Board, BoardJob, Job, JobRun
from tenure.domain.leases import JOB_LOCK, Lease
from tenure.store.expressions import database_now
from tenure.store.tables import job_runs, jobs, leases
from tenure.store.types import Name

Values = Mapping[str, Any] | RowMapping

LEASE_COLUMNS = tuple(column for column in leases.c if column.name not in ("attempt", "reclaimed_at"))
RUN_COLUMNS = tuple(job_runs.c[name] for name in JobRun.__struct_fields__)


def lease_from_values(values: Values, now: datetime) -> Lease:
    """Returns a lease from the values of a table row by column name."""
    held = not values["released"] and values["expires_at"] > now
    return Lease(held=held, **{column.name: values[column.name] for column in LEASE_COLUMNS})


def job_from_values(values: Values) -> Job:
    return Job(**{column.name: values[column.name] for column in jobs.c})


def list_leases(connection: Connection, after: str | None, limit: int) -> Sequence[Lease]:
    statement = select(*LEASE_COLUMNS, database_now().label("now")).where(leases.c.epoch > 0)
    if after is not None:
        statement = statement.where(leases.c.name > after)
    rows = connection.execute(statement.order_by(leases.c.name).limit(limit)).mappings()
    return [lease_from_values(row, row["now"]) for row in rows]


def list_jobs(connection: Connection, after: str | None, limit: int) -> Sequence[Job]:
    statement = select(jobs)
    if after is not None:
        statement = statement.where(jobs.c.name > after)
    return [job_from_values(row) for row in connection.execute(statement.order_by(jobs.c.name).limit(limit)).mappings()]


def list_runs(connection: Connection, job: str, before: int | None, limit: int) -> Sequence[JobRun] | None:
    if connection.execute(select(jobs.c.name).where(jobs.c.name == job)).one_or_none() is None:
        return None
    statement = select(*RUN_COLUMNS).where(job_runs.c.job == job)
    if before is not None:
        statement = statement.where(job_runs.c.epoch < before)
    rows = connection.execute(statement.order_by(job_runs.c.epoch.desc()).limit(limit)).mappings()
    return [JobRun(**row) for row in rows]


def read_board(connection: Connection, names: Sequence[str]) -> Board:
    return board_from_values(connection.execute(_board(names)).mappings())


def _board(names: Sequence[str]) -> Any:
    """One statement, because every instance executes it every second."""
    now = database_now().label("now")
    locks = [column.label(f"lease_{column.name}") for column in LEASE_COLUMNS]
    with_locks = select(now, *jobs.c, *locks).select_from(
        jobs.outerjoin(leases, leases.c.name == literal(JOB_LOCK, Name) + jobs.c.name)
    )
    no_job = [cast(null(), column.type).label(column.name) for column in jobs.c]
    return union_all(with_locks, select(now, *no_job, *locks).where(leases.c.name.in_(names), leases.c.epoch > 0))


def board_from_values(rows: Iterable[Values]) -> Board:
    """Returns the board from rows with the columns of a job and, with the prefix `lease_`, those of a lease.

    The columns of either may be NULL.
    """
    found: list[Lease] = []
    board_jobs: list[BoardJob] = []
    for row in rows:
        lease = _lease_of_board(row)
        if row["name"] is not None:
            board_jobs.append(BoardJob(job_from_values(row), lease, row["now"]))
        elif lease is not None:
            found.append(lease)
    return Board(found, board_jobs)


def _lease_of_board(row: Values) -> Lease | None:
    if not row["lease_epoch"]:
        return None
    return lease_from_values({column.name: row[f"lease_{column.name}"] for column in LEASE_COLUMNS}, row["now"])
