"""What a job is, and how an application's own are found.

A job is run by one instance of all at a time. It may be cancelled at any `await`, when its lock can no longer be
trusted or the instance stops, and is then run again: so it does its work in small steps, each of which can be repeated.
What it writes through the store carries `run.fence`, asked for anew with every step. Work that computes belongs in a
thread: the event loop that it blocked would not renew its lock either.

Other jobs are found by entry point `tenure.jobs`. Each is a class, made without arguments, with `interval_seconds` and
`run`. `[jobs.<name>]` of the configuration goes before what the class says.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from tenure.errors import ConfigurationError
from tenure.leases.held import HeldLease
from tenure.model.leases import Fence

GROUP = "tenure.jobs"


class ActiveRun(msgspec.Struct, frozen=True):
    """The run that a job is in."""

    job: str
    lock: HeldLease
    started_at: datetime
    """By the database's clock."""
    tick_at: datetime | None
    """The oldest tick that this run is for; None if it was only asked for."""

    @property
    def fence(self) -> Fence:
        """For the next write; raises `LeaseLost` if the lock can no longer be trusted."""
        return self.lock.fence


RunJob = Callable[[ActiveRun], Awaitable[None]]


class Job(Protocol):
    interval_seconds: float

    async def run(self, run: ActiveRun) -> None: ...


def jobs_of_applications() -> Mapping[str, Job]:
    return {point.name: _made(point.name, point.load) for point in entry_points(group=GROUP)}


def _made(name: str, load: Callable[[], Callable[[], Job]]) -> Job:
    try:
        return load()()
    except Exception as error:
        raise ConfigurationError(f"jobs.{name}: cannot be loaded: {error}") from error
