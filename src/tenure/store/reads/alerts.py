"""The reads that all engines share for alerts, and for the metrics of the installation."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, Subquery, and_, case, func, literal, or_, select

from tenure.domain.alerts import (
    ACTIVITY_SPAN,
    LEADERSHIP_SPAN,
    Activity,
    Alert,
    AlertChanges,
    AlertFilter,
    AlertPosition,
    InstallationGauges,
    Observations,
    UsageTrouble,
    WatchedJob,
    WatchedLease,
)
from tenure.domain.leases import JOB_LOCK
from tenure.domain.sessions import LAPSE_REASONS
from tenure.domain.submissions import NOT_SENT
from tenure.store.limits import CHUNKS_WATCHED_MAX, ENDS_WATCHED_MAX, EPOCHS_WATCHED_MAX, WINDOWS_WATCHED_MAX
from tenure.store.reads.sessions import SEATED, read_now
from tenure.store.reads.usage import undelivered_statement
from tenure.store.tables import (
    alerts,
    capacities,
    installation,
    jobs,
    lease_history,
    leases,
    sessions,
    submissions,
    usage_chunks,
    usage_windows,
)
from tenure.store.types import Name

ALERT_COLUMNS = tuple(alerts.c[name] for name in Alert.__struct_fields__)
KINDS = (1, 2, 3)


def alert_from_values(values: Mapping[str, Any] | RowMapping) -> Alert:
    """Returns the alert of a table row. `values` are the values of the row by column name."""
    named = {column.name: values[column.name] for column in ALERT_COLUMNS}
    return Alert(**{**named, "subject": named["subject"] or None})


def changes_from_values(rows: Iterable[Mapping[str, Any] | RowMapping], epoch: int) -> AlertChanges:
    """Returns the changes of the run with this epoch, from the rows of the alerts that the run raised or cleared. No
    run both raises and clears one alert.
    """
    raised: list[Alert] = []
    cleared: list[Alert] = []
    for row in rows:
        (cleared if row["cleared_epoch"] == epoch else raised).append(alert_from_values(row))
    return AlertChanges(_ordered(raised), _ordered(cleared))


def _ordered(found: list[Alert]) -> Sequence[Alert]:
    return sorted(found, key=lambda alert: (alert.name, alert.subject or ""))


def list_alerts(
    connection: Connection, criteria: AlertFilter, after: AlertPosition | None, limit: int
) -> Sequence[Alert]:
    rows = connection.execute(list_statement(criteria, after, limit)).mappings()
    return [alert_from_values(row) for row in rows]


def list_statement(criteria: AlertFilter, after: AlertPosition | None, limit: int) -> Select[Any]:
    row = alerts.c
    statement = select(*ALERT_COLUMNS)
    for name in ("name", "subject"):
        if (wanted := getattr(criteria, name)) is not None:
            statement = statement.where(row[name] == wanted)
    if criteria.active is not None:
        statement = statement.where(row.cleared_at.is_(None) if criteria.active else row.cleared_at.is_not(None))
    if after is not None:
        # The first condition is redundant, but an index can be searched by it.
        later = or_(row.raised_at < after.raised_at, row.alert_id < after.alert_id)
        statement = statement.where(row.raised_at <= after.raised_at, later)
    return statement.order_by(row.raised_at.desc(), row.alert_id.desc()).limit(limit)


def find_alerts(connection: Connection, alert_ids: Sequence[str]) -> Sequence[Alert]:
    rows = connection.execute(select(*ALERT_COLUMNS).where(alerts.c.alert_id.in_(alert_ids))).mappings()
    return [alert_from_values(row) for row in rows]


# The observations of the job `watch`.


def read_observations(connection: Connection, names: Sequence[str]) -> Observations:
    now = read_now(connection)
    # Read the last cut before the windows: otherwise a window that is cut between the two reads would count as
    # delivered.
    last_cut_at = connection.execute(select(installation.c.last_cut_at)).scalar_one()
    return Observations(
        now=now,
        jobs=[_watched_job(row, now) for row in connection.execute(jobs_statement()).mappings()],
        leases=_watched_leases(connection, names, now),
        last_cut_at=last_cut_at,
        delivered_until=connection.execute(undelivered_statement()).scalar_one_or_none() or last_cut_at,
        usage=_usage_trouble(connection),
        activity=read_activity(connection, now, ENDS_WATCHED_MAX),
    )


def jobs_statement() -> Select[Any]:
    job, lock = jobs.c, leases.c
    locks = lock.holder, lock.acquired_at, lock.expires_at, lock.released, lock.reclaimed_at
    return select(job.name, job.interval_microseconds, job.failures_in_a_row, job.last_error, *locks).select_from(
        jobs.outerjoin(leases, lock.name == literal(JOB_LOCK, Name) + job.name)
    )


def _watched_job(row: RowMapping, now: datetime) -> WatchedJob:
    held = row["released"] is not None and not row["released"] and row["expires_at"] > now
    return WatchedJob(
        name=row["name"],
        interval_microseconds=row["interval_microseconds"],
        failures_in_a_row=row["failures_in_a_row"],
        last_error=row["last_error"],
        held_since=row["acquired_at"] if held else None,
        holder=row["holder"],
        reclaimed_at=row["reclaimed_at"],
    )


def _watched_leases(connection: Connection, names: Sequence[str], now: datetime) -> Sequence[WatchedLease]:
    changes = _counts(connection, changes_statement(names, now))
    lease = leases.c
    rows = connection.execute(
        select(lease.name, lease.holder, lease.reclaimed_at).where(lease.name.in_(names), lease.epoch > 0)
    )
    return [
        WatchedLease(name=name, holder=holder, reclaimed_at=reclaimed_at, changes=changes.get(name, 0))
        for name, holder, reclaimed_at in rows
    ]


def changes_statement(names: Sequence[str], now: datetime) -> Select[Any]:
    """Counts the recent epochs of each lease. The first epoch of a lease is not a change of leadership."""
    history = lease_history.c
    recent = and_(history.name == leases.c.name, history.epoch > leases.c.epoch - EPOCHS_WATCHED_MAX)
    return (
        select(history.name, func.count())
        .select_from(leases.join(lease_history, recent))
        .where(leases.c.name.in_(names), history.epoch > 1, history.acquired_at > now - LEADERSHIP_SPAN)
        .group_by(history.name)
    )


def _usage_trouble(connection: Connection) -> UsageTrouble:
    windows = list(connection.execute(awaited_statement()).scalars())
    found = connection.execute(chunks_statement(windows)).all() if windows else []
    if not found:
        return UsageTrouble()
    failures, error = max(((row.failures, row.last_error) for row in found), key=lambda pair: int(pair[0]))
    withheld = [row.last_error for row in found if row.last_error and row.last_error.startswith(NOT_SENT)]
    first = withheld[0].removeprefix(NOT_SENT) if withheld else None
    return UsageTrouble(failures, error, len(withheld), first)


def awaited_statement() -> Select[Any]:
    """Selects the oldest windows that have a contract and are not delivered."""
    window = usage_windows.c
    awaited = and_(window.delivered_at.is_(None), window.contract.is_not(None))
    return select(window.window_id).where(awaited).order_by(window.window_id).limit(WINDOWS_WATCHED_MAX)


def chunks_statement(windows: Sequence[int]) -> Select[Any]:
    chunk = usage_chunks.c
    return (
        select(submissions.c.failures, submissions.c.last_error)
        .join_from(usage_chunks, submissions, submissions.c.submission_id == chunk.submission_id)
        .where(chunk.window_id.in_(windows), chunk.delivered_at.is_(None))
        .order_by(chunk.window_id, chunk.chunk)
        .limit(CHUNKS_WATCHED_MAX)
    )


def read_activity(connection: Connection, now: datetime, limit: int) -> Activity:
    """Counts the lapses among the last `limit` ends within ACTIVITY_SPAN, and the sessions that were opened in the same
    time: since the first of these ends or, if there are fewer than `limit` ends, in the whole span. Stops counting
    openings at the number of lapses, because more openings make no difference.
    """
    span_began = since = now - ACTIVITY_SPAN
    ends, first_end, lapses = connection.execute(ends_statement(span_began, limit)).one()
    if ends == limit:
        since = first_end
    openings = 0
    if lapses:
        openings = connection.execute(openings_among_ends_statement(span_began, limit, since)).scalar_one()
    for kind in KINDS:
        if openings < lapses:
            openings += connection.execute(openings_statement(kind, since, lapses - openings)).scalar_one()
    return Activity(since, lapses, min(openings, lapses))


_LAPSES = sorted(reason.value for reason in LAPSE_REASONS)


def ends_statement(since: datetime, limit: int) -> Select[Any]:
    """Counts the last `limit` ends and the lapses among them. The database counts them, because an instance that reads
    20 000 rows would not answer requests for 20 to 40 ms.
    """
    end = _ends(since, limit).c
    is_lapse = case((end.close_reason.in_(_LAPSES), 1), else_=0)
    return select(func.count(), func.min(end.closed_at), func.coalesce(func.sum(is_lapse), 0))


def openings_among_ends_statement(since: datetime, limit: int, opened_since: datetime) -> Select[Any]:
    end = _ends(since, limit).c
    return select(func.count()).where(end.started_at >= opened_since)


def _ends(since: datetime, limit: int) -> Subquery:
    session = sessions.c
    closed = and_(session.closed_at >= since, session.closed_at.is_not(None))
    return (
        select(session.closed_at, session.started_at, session.close_reason)
        .where(closed)
        .order_by(session.closed_at.desc())
        .limit(limit)
        .subquery()
    )


def openings_statement(kind: int, since: datetime, limit: int) -> Select[Any]:
    """Counts the sessions of a kind that have no recorded end and were opened since `since`, up to `limit`. Sessions
    that were opened since then and have a recorded end are counted by `openings_among_ends_statement`.
    """
    session = sessions.c
    live = and_(session.close_reason.is_(None), session.kind == kind, session.started_at >= since)
    return select(func.count()).select_from(select(session.kind).where(live).limit(limit).subquery())


# The metrics of the installation.


def read_gauges(connection: Connection, gateways: Sequence[str]) -> InstallationGauges:
    now = read_now(connection)
    active = dict.fromkeys(KINDS, 0) | _counts(connection, live_statement())
    for kind, lapsed in connection.execute(lapsed_statement(now)):
        active[kind] -= lapsed
    seats = connection.execute(select(func.coalesce(func.sum(capacities.c.max_sessions), 0))).scalar_one()
    taken = connection.execute(taken_statement()).scalar_one()
    lapsed_seats = connection.execute(lapsed_seats_statement(now)).scalar_one()
    by_gateway = {name: connection.execute(pending_statement(name)).scalar_one() for name in gateways}
    active_alerts = select(alerts.c.name, func.count()).where(alerts.c.cleared_at.is_(None)).group_by(alerts.c.name)
    return InstallationGauges(
        active_by_kind=active,
        seats=int(seats),
        seats_taken=taken - lapsed_seats,
        pending_by_gateway=by_gateway,
        pending=connection.execute(pending_statement(None)).scalar_one(),
        active_alerts=_counts(connection, active_alerts),
    )


def _counts(connection: Connection, statement: Select[Any]) -> dict[Any, int]:
    return {row[0]: row[1] for row in connection.execute(statement)}


def live_statement() -> Select[Any]:
    """Counts the sessions that have no recorded end, from the index `sessions_live_kind`."""
    return (
        select(sessions.c.kind, func.count())
        .where(sessions.c.close_reason.is_(None), sessions.c.kind.in_(KINDS))
        .group_by(sessions.c.kind)
    )


def _lapsed(now: datetime) -> Any:
    """The condition of sessions that have lapsed and whose end is not recorded. They are few, because the sweep soon
    records their ends.
    """
    session = sessions.c
    return and_(session.check_at <= now, session.deadline_at <= now, session.close_reason.is_(None))


def lapsed_statement(now: datetime) -> Select[Any]:
    return select(sessions.c.kind, func.count()).where(_lapsed(now)).group_by(sessions.c.kind)


def taken_statement() -> Select[Any]:
    session, capacity = sessions.c, capacities.c
    seated = and_(session.capacity_id == capacity.capacity_id, session.closed_at.is_(None), SEATED)
    limited = capacity.max_sessions.is_not(None)
    return select(func.count()).select_from(capacities.join(sessions, seated)).where(limited)


def lapsed_seats_statement(now: datetime) -> Select[Any]:
    of_capacity = sessions.c.capacity_id == capacities.c.capacity_id
    return (
        select(func.count())
        .select_from(sessions.join(capacities, of_capacity))
        .where(_lapsed(now), capacities.c.max_sessions.is_not(None))
    )


def pending_statement(gateway: str | None) -> Select[Any]:
    """Counts the pending submissions of a gateway, or of all gateways. The condition on the delivery key is always
    true, but without it the planner could not use the partial indexes `submissions_state` and `submissions_gateway`.
    """
    submission = submissions.c
    pending = and_(submission.state == "pending", submission.delivery_key > "")
    wanted = pending if gateway is None else and_(submission.gateway == gateway, pending)
    return select(func.count()).select_from(submissions).where(wanted)
