"""Saves the reports of instances and their counts per minute. The caller holds the write lock of the SQLite file."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.sqlite import insert

from tenure.domain.activity import COUNTS, MinuteCounts
from tenure.domain.instances import InstanceReport
from tenure.store.tables import activity, instances


def save_instance(connection: Connection, now: datetime, report: InstanceReport) -> datetime:
    row = insert(instances).values(
        instance=report.instance,
        holder=report.holder,
        host=report.host,
        pid=report.pid,
        worker=report.worker,
        version=report.version,
        executor_lease=report.executor_lease,
        started_at=report.started_at or now,
        last_seen_at=now,
        stopped_at=now if report.stopped else None,
    )
    renewed = {"last_seen_at": row.excluded.last_seen_at, "stopped_at": row.excluded.stopped_at}
    running = instances.c.stopped_at.is_(None)
    connection.execute(row.on_conflict_do_update(index_elements=["instance"], set_=renewed, where=running))
    started_at: datetime = connection.execute(
        select(instances.c.started_at).where(instances.c.instance == report.instance)
    ).scalar_one()
    return started_at


def save_activity(connection: Connection, instance: str, minutes: Sequence[MinuteCounts]) -> None:
    if not minutes:
        return
    row = insert(activity)
    greater = {name: func.max(activity.c[name], row.excluded[name]) for name in COUNTS}
    connection.execute(
        row.on_conflict_do_update(index_elements=["at", "instance", "turn"], set_=greater),
        [
            {"at": minute.at, "instance": instance, "turn": minute.turn}
            | {name: minute.counts.get(name, 0) for name in COUNTS}
            for minute in minutes
        ],
    )
