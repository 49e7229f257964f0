"""The interface of jobs, and the discovery of jobs that applications register.

Only one instance of the ensemble runs a job at a time. A run can be cancelled at any `await`, because the instance
stops or because the lock of the job can no longer be trusted. A later run then repeats the work. So a job must work in
small steps that can be repeated. Every write through the store must carry `run.fence`. Read `run.fence` again for each
write: it raises `LeaseLost` once the lock is no longer trusted. Run long computations in a thread: on the event loop,
they would block the renewal of the job's lock. A job counts what it does with `run.count`. A successful run that counts
nothing is logged only at level `debug`.

Applications register jobs with the entry point `tenure.jobs`: a class whose constructor takes no arguments, and whose
objects have `interval_seconds` and `run`. The setting `interval_seconds` in `[jobs.<name>]` overrides the attribute.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from tenure.clock import monotonic
from tenure.domain.leases import Fence
from tenure.errors import ConfigurationError
from tenure.leases.held import HeldLease

GROUP = "tenure.jobs"


class ActiveRun(msgspec.Struct, frozen=True):
    """The current run of a job."""

    job: str
    lock: HeldLease
    started_at: datetime
    """The start of the run, by the database's clock."""
    tick_at: datetime | None
    """The oldest tick that this run covers; None if a caller requested the run and no tick is due."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """What the run has done so far, as counts by name. They are logged when the run ends."""

    _began: float = msgspec.field(default_factory=monotonic)

    @property
    def seconds(self) -> float:
        """How long the run has lasted, by the clock of this host."""
        return round(monotonic() - self._began, 3)

    def count(self, name: str, number: int) -> None:
        """Adds `number` to the count `name` of this run. Adding 0 creates no count, so the log shows no zeros."""
        if number:
            self.counts[name] = self.counts.get(name, 0) + number

    @property
    def fence(self) -> Fence:
        """The fence for the next write. Raises `LeaseLost` if the lock can no longer be trusted."""
        return self.lock.fence


RunJob = Callable[[ActiveRun], Awaitable[None]]


class Job(Protocol):
    interval_seconds: float

    async def run(self, run: ActiveRun) -> None: ...


def jobs_of_applications() -> Mapping[str, Job]:
    """Create the jobs of all installed applications, by name."""
    return {point.name: _create(point.name, point.load) for point in entry_points(group=GROUP)}


def _create(name: str, load: Callable[[], Callable[[], Job]]) -> Job:
    try:
        return load()()
    except Exception as error:
        raise ConfigurationError(f"jobs.{name}: cannot be loaded: {error}") from error
