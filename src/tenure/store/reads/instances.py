"""The reads of `instances` and `activity` that all engines share."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import BigInteger, Connection, literal, not_, select

from tenure.clock import MICROSECOND
from tenure.domain.activity import COUNTS, Activity, ActivityPoint, ActivityQuery, span_of
from tenure.domain.instances import Instance, is_alive
from tenure.domain.leases import JOB_LOCK
from tenure.store.expressions import database_now, microseconds_between, total_of
from tenure.store.reads.sessions import read_now
from tenure.store.tables import activity, instances, leases
from tenure.store.types import Instant


def list_instances(connection: Connection, after: str | None, limit: int) -> Sequence[Instance]:
    statement = select(instances, database_now().label("now"))
    if after is not None:
        statement = statement.where(instances.c.instance > after)
    rows = connection.execute(statement.order_by(instances.c.instance).limit(limit)).mappings().all()
    alive = [is_alive(row["last_seen_at"], row["stopped_at"], row["now"]) for row in rows]
    leads = _leases_of(connection, [row["holder"] for row in rows])
    return [
        Instance(
            **{column.name: row[column.name] for column in instances.c},
            alive=is_running,
            leads=leads[row["holder"]] if is_running else [],
        )
        for row, is_running in zip(rows, alive, strict=True)
    ]


def _leases_of(connection: Connection, holders: Sequence[str]) -> defaultdict[str, list[str]]:
    """The leases that each of these instances holds, except the locks of jobs. A lease may have changed hands since the
    instances were read, because this is another statement.
    """
    lease = leases.c
    held = lease.epoch > 0, not_(lease.released), lease.expires_at > database_now()
    leading = not_(lease.name.startswith(JOB_LOCK, autoescape=True))
    statement = select(lease.holder, lease.name).where(lease.holder.in_(holders), leading, *held)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for holder, name in connection.execute(statement.order_by(lease.name)):
        found[holder].append(name)
    return found


def read_activity(connection: Connection, query: ActivityQuery) -> Activity | None:
    span = span_of(query, read_now(connection))
    if span is None:
        return None
    minute = activity.c
    since = microseconds_between(literal(span.first_at, Instant), minute.at)
    # A subquery, because databases do not recognise that an expression with parameters in GROUP BY is the same as in
    # the list of columns.
    stepped = (
        select(
            (since // literal(span.step // MICROSECOND, BigInteger)).label("step"), *(minute[name] for name in COUNTS)
        )
        .where(minute.at >= span.first_at, minute.at < span.to_at)
        .subquery()
    )
    sums = [total_of(stepped.c[name]).label(name) for name in COUNTS]
    rows = connection.execute(select(stepped.c.step, *sums).group_by(stepped.c.step)).mappings()
    found = {row["step"]: {name: row[name] for name in COUNTS} for row in rows}
    nothing = dict.fromkeys(COUNTS, 0)
    points = [ActivityPoint(span.first_at + step * span.step, found.get(step, nothing)) for step in range(span.points)]
    return Activity(span, points)
