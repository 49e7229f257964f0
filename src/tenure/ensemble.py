"""The ensemble: all processes that share one database, and the leases and jobs that they share.

The service uses this module. Applications that need only leases and jobs can use it without the service:
`docs/library.md` has an example.
"""

import asyncio
import os
import re
import socket
from types import TracebackType
from typing import Self

from tenure.config import LeasesConfig
from tenure.domain.jobs import JobSettings
from tenure.domain.leases import JOB_LOCK, NAME_MAX
from tenure.errors import ConfigurationError
from tenure.ids import new_id
from tenure.jobs.job import RunJob
from tenure.jobs.runner import JobRunner
from tenure.leases.acquirer import Acquirer
from tenure.leases.board import BoardWatcher
from tenure.leases.held import MICROSECONDS, AcquiredLease
from tenure.leases.leadership import Leadership, Work, hold
from tenure.store.contract import Store, Topic
from tenure.store.engines import open_store
from tenure.telemetry.events import Telemetry
from tenure.telemetry.logs import log_events

POOL_SIZE = 4
HOST_MAX = 100
MAX_SECONDS = 1_000_000_000
DEFAULT_TIMING = LeasesConfig()
_NAME = re.compile(rf"(?!{JOB_LOCK})[!-.0-~]{{1,{NAME_MAX - len(JOB_LOCK)}}}").fullmatch


def new_holder() -> str:
    """Return a unique holder name that contains the host name and the process id."""
    host = re.sub(r"[^!-.0-~]", "_", socket.gethostname())[:HOST_MAX]
    return f"{host}-{os.getpid()}-{new_id()[-8:]}"


class Ensemble:
    """This process as a member of the ensemble. Add jobs and leaderships before calling `start`."""

    def __init__(
        self,
        database: str | Store,
        *,
        holder: str | None = None,
        timing: LeasesConfig = DEFAULT_TIMING,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`telemetry` receives the events of leases and jobs. By default, the events are logged."""
        telemetry = log_events(Telemetry()) if telemetry is None else telemetry
        self.holder = _checked("holder", holder or timing.holder or new_holder())
        self._own_store = open_store(database, POOL_SIZE, telemetry=telemetry) if isinstance(database, str) else None
        self._store: Store = self._own_store or database  # type: ignore[assignment]
        self._timing = timing
        self._telemetry = telemetry
        self._watch = BoardWatcher(self._store, min(timing.refresh_seconds, timing.acquire_seconds), telemetry)
        self.jobs = JobRunner(self._store, self.holder, timing, telemetry, self._watch.wake)
        self._watch.add(self.jobs)
        self._leaderships: dict[str, Leadership] = {}
        self._watching: asyncio.Task[None] | None = None
        self._acquirer = Acquirer(self._store, self.holder, timing, telemetry)
        self._watch.add(self._acquirer)

    def add_job(
        self,
        name: str,
        run: RunJob,
        *,
        interval_seconds: float,
        lock_timeout_seconds: float = 120.0,
        paused: bool = False,
    ) -> None:
        """Adds a job. Every process of the ensemble may add it; only one of them runs it at a time.

        `paused` applies only when the job is added to the database for the first time.
        """
        given = (interval_seconds, lock_timeout_seconds)
        interval, lock_timeout = (round(_positive("job", each) * MICROSECONDS) for each in given)
        self.jobs.add(JobSettings(_checked("job", name), interval, lock_timeout, paused), run)

    def lead(self, name: str, work: Work = hold, *, grace_seconds: float = 0.0) -> Leadership:
        """Runs `work` in one process of the ensemble, for as long as that process holds the lease.

        When the process stops leading, it cancels the work. If `grace_seconds` is above 0, `stop` first sets
        `ending` of the `HeldLease` that was passed to `work`, and gives the work this time to return.
        """
        if _checked("lease", name) in self._leaderships:
            raise ConfigurationError(f"lease: {name} was added already")
        leadership = Leadership(self._store, name, self.holder, self._timing, self._telemetry, work, grace_seconds)
        self._leaderships[name] = leadership
        self._watch.add(leadership)
        return leadership

    def trusts(self, name: str) -> bool:
        """For a lease that this process holds according to the database, return whether the process still trusts it.

        Checks only leases that were added with `lead`. For any other lease, and for the lock of a job, the result is
        always True: the code that uses such a lease checks itself whether the lease is trusted.
        """
        return name not in self._leaderships or self._leaderships[name].is_leading

    @property
    def lease_names(self) -> list[str]:
        return list(self._leaderships)

    async def try_acquire(
        self, name: str, *, wait_seconds: float = 0.0, duration_seconds: float | None = None
    ) -> AcquiredLease | None:
        """Returns the lease, or None if it does not become free within `wait_seconds`."""
        seconds = self._timing.duration_seconds if duration_seconds is None else duration_seconds
        return await self._acquirer.acquire(_checked("lease", name), wait_seconds, _positive("lease", seconds))

    async def start(self) -> None:
        """Registers the jobs and starts to acquire leases. The schema of the database must be up to date."""
        await self.jobs.register()
        self._store.listen(Topic.BOARD, self._wake)
        for leadership in self._leaderships.values():
            leadership.start()
        self._watching = asyncio.create_task(self._watch.run())

    async def stop(self) -> None:
        """Waits briefly for running jobs and leader work to end, and releases all leases."""
        await asyncio.gather(
            self.jobs.stop(), self._acquirer.release_all(), *(each.stop() for each in self._leaderships.values())
        )
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    async def __aenter__(self) -> Self:
        try:
            await self._store.migrate()
            await self.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self._close()

    async def _close(self) -> None:
        if self._own_store is not None:
            await self._own_store.close()

    def _wake(self) -> None:
        self._watch.wake()
        self._acquirer.wake()


def _positive(what: str, seconds: float) -> float:
    if not 0 < seconds <= MAX_SECONDS:
        raise ConfigurationError(f"{what}: {seconds} must be a number of seconds above 0, at most {MAX_SECONDS}")
    return seconds


def _checked(what: str, name: str) -> str:
    if not _NAME(name):
        raise ConfigurationError(
            f"{what}: {name!r} must have at most {NAME_MAX - len(JOB_LOCK)} characters, printable ASCII without spaces "
            f"and slashes, and must not begin with {JOB_LOCK}"
        )
    return name
