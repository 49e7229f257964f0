"""The reads of leases, their history, jobs and job runs that all engines share: statements and rows."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    case,
    cast,
    literal,
    not_,
    null,
    or_,
    select,
    union_all,
)

from tenure.domain.jobs import Board, BoardJob, Job, JobRun
from tenure.domain.leases import JOB_LOCK, Lease, LeaseTerm, TermFilter, TermPosition
from tenure.store.expressions import database_now
from tenure.store.tables import job_runs, jobs, lease_history, leases
from tenure.store.types import Name

Values = Mapping[str, Any] | RowMapping

LEASE_COLUMNS = tuple(column for column in leases.c if column.name not in ("attempt", "reclaimed_at"))
RUN_COLUMNS = tuple(job_runs.c[name] for name in JobRun.__struct_fields__)


def lease_from_values(values: Values, now: datetime) -> Lease:
    """Returns the lease of a row of the table `leases`. `values` has the values of the row by column name."""
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


def list_terms(connection: Connection, name: str, before: int | None, limit: int) -> Sequence[LeaseTerm] | None:
    known = select(leases.c.name).where(leases.c.name == name, leases.c.epoch > 0)
    if name.startswith(JOB_LOCK) or connection.execute(known).one_or_none() is None:
        return None
    term = lease_history.c
    statement = _terms().where(term.name == name)
    if before is not None:
        statement = statement.where(term.epoch < before)
    return _read_terms(connection, statement.order_by(term.epoch.desc()).limit(limit))


def list_all_terms(
    connection: Connection, criteria: TermFilter, after: TermPosition | None, limit: int
) -> Sequence[LeaseTerm]:
    term = lease_history.c
    conditions: list[ColumnElement[bool]] = []
    if criteria.to_at is not None:
        conditions.append(term.acquired_at < criteria.to_at)
    if after is not None:
        conditions.append(_is_after(after))
    newest = term.acquired_at.desc(), term.name.desc(), term.epoch.desc()
    if criteria.from_at is None:
        return _read_terms(connection, _terms().where(*conditions).order_by(*newest).limit(limit))
    began = _terms().where(term.acquired_at >= criteria.from_at, *conditions).order_by(*newest).limit(limit)
    found = list(_read_terms(connection, began))
    if len(found) < limit:
        # Only the last term that each lease had before the span can reach into the span.
        before = _last_terms_before(criteria.from_at).where(*conditions).order_by(*newest)
        reaching = [each for each in _read_terms(connection, before) if _reaches(each, criteria.from_at)]
        found += reaching[: limit - len(found)]
    return found


def _terms() -> Select[Any]:
    """Selects the terms. The current term of a lease also gets `expires_at` of the lease."""
    return select(*_TERM_COLUMNS, database_now().label("now")).join_from(
        lease_history, leases, leases.c.name == lease_history.c.name
    )


_TERM_COLUMNS = (
    *(lease_history.c[name] for name in LeaseTerm.__struct_fields__),
    case((leases.c.epoch == lease_history.c.epoch, leases.c.expires_at)).label("expires_at"),
)


def _read_terms(connection: Connection, statement: Select[Any]) -> Sequence[LeaseTerm]:
    return [_term(row) for row in connection.execute(statement).mappings()]


def _term(row: RowMapping) -> LeaseTerm:
    term = LeaseTerm(**{name: row[name] for name in LeaseTerm.__struct_fields__})
    expires_at = row["expires_at"]
    if term.ended_at is not None or expires_at is None or expires_at > row["now"]:
        return term
    # The lease has expired, but the end of the term is not recorded yet: the next holder will record it.
    return replace(term, ended_at=expires_at, how="expired")


def _is_after(position: TermPosition) -> ColumnElement[bool]:
    """Compares column by column, because SQL Server cannot compare tuples. The first condition is redundant, but an
    index can be searched by it.
    """
    term = lease_history.c
    later = or_(term.name < position.name, and_(term.name == position.name, term.epoch < position.epoch))
    return and_(term.acquired_at <= position.acquired_at, or_(term.acquired_at < position.acquired_at, later))


def _last_terms_before(instant: datetime) -> Select[Any]:
    """For each lease, the last term that began before `instant`. Searches the primary key backwards."""
    earlier = lease_history.alias("earlier")
    last = (
        select(earlier.c.epoch)
        .where(earlier.c.name == leases.c.name, earlier.c.acquired_at < instant)
        .order_by(earlier.c.epoch.desc())
        .limit(1)
        .scalar_subquery()
    )
    same = and_(lease_history.c.name == leases.c.name, lease_history.c.epoch == last)
    leading = not_(leases.c.name.startswith(JOB_LOCK, autoescape=True))
    return select(*_TERM_COLUMNS, database_now().label("now")).join_from(leases, lease_history, same).where(leading)


def _reaches(term: LeaseTerm, instant: datetime) -> bool:
    return term.ended_at is None or term.ended_at > instant


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
    """Selects the whole board with one statement, because every instance reads the board every second by default."""
    now = database_now().label("now")
    locks = [column.label(f"lease_{column.name}") for column in LEASE_COLUMNS]
    with_locks = select(now, *jobs.c, *locks).select_from(
        jobs.outerjoin(leases, leases.c.name == literal(JOB_LOCK, Name) + jobs.c.name)
    )
    no_job = [cast(null(), column.type).label(column.name) for column in jobs.c]
    return union_all(with_locks, select(now, *no_job, *locks).where(leases.c.name.in_(names), leases.c.epoch > 0))


def board_from_values(rows: Iterable[Values]) -> Board:
    """Returns the board from rows with the columns of a job and, with the prefix `lease_`, those of a lease.

    The columns of the job are NULL for a lease that is not the lock of a job. For a job that has never run, the columns
    of the lease are NULL, or `lease_epoch` is 0.
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
