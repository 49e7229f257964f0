"""Instances: the service processes that share a database, each with a row that the process writes every ten seconds.

Each worker process is an instance. Its name contains a random part, so no two processes ever have the same name, and a
process that is started again has a new name. The instance also holds leases under this name, unless a holder name is
configured. A configured holder name is the same after a restart.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

INSTANCE_SEEN_SECONDS = 10.0
"""How often an instance writes its row."""
INSTANCE_ALIVE = timedelta(seconds=3 * INSTANCE_SEEN_SECONDS)
"""An instance that was last seen longer ago than this is not alive."""
INSTANCES_COMPARED_MAX = 1000
"""The most instances with which a new instance compares its executor lease."""
HOST_MAX = 200
VERSION_MAX = 64


class InstanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The row of an instance, as the instance writes it."""

    instance: str
    holder: str
    """The name under which it holds leases."""
    host: str
    pid: int
    worker: int
    """The slot of the worker in its process group, from 0."""
    version: str
    executor_lease: str
    """The name of the lease whose holder sends submissions. It must be the same on all instances."""
    started_at: datetime | None = None
    """None in the first write. The first write stores the database's time as the start and returns it. All later writes
    carry this start."""
    stopped: bool = False
    """Whether the instance is stopping. This is final: a write that was sent earlier and arrives later changes nothing.
    """


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    holder: str
    host: str
    pid: int
    worker: int
    version: str
    executor_lease: str
    started_at: datetime
    last_seen_at: datetime
    stopped_at: datetime | None
    alive: bool
    """By the database's clock, at the moment of the read."""
    leads: Sequence[str] = ()
    """The leases that the instance holds, in order of their names, without job locks. Empty if it is not alive."""


def is_alive(last_seen_at: datetime, stopped_at: datetime | None, now: datetime) -> bool:
    """Whether an instance is alive. If the database's clock was stepped back, `last_seen_at` can be later than `now`.
    An instance whose `last_seen_at` is later than `now` by more than INSTANCE_ALIVE does not count as alive until it
    writes its row again.
    """
    return stopped_at is None and abs(now - last_seen_at) <= INSTANCE_ALIVE


def conflicting_executor(report: InstanceReport, others: Sequence[Instance]) -> Instance | None:
    """Return an instance that is alive, started earlier than this one, and sends submissions under another lease.

    Two leases have two holders, so two instances would send submissions. The instance that started later gives way, so
    that two instances that see each other do not both stop. `report` must contain the start that its first write
    returned.
    """
    return next(
        (
            other
            for other in others
            if other.alive
            and other.executor_lease != report.executor_lease
            and (other.started_at, other.instance) < (report.started_at, report.instance)
        ),
        None,
    )
