"""The ensemble: all processes on one database, and the leases and jobs that they share.

The service is one user of this. An application that only wants leases and jobs is another: `docs/library.md` shows it
in ten lines.
"""

import asyncio
import os
import re
import socket
from types import TracebackType
from typing import Self

from tenure.config import LeasesConfig
from tenure.errors import ConfigurationError
from tenure.ids import new_id
from tenure.jobs.jobs import RunJob
from tenure.jobs.runner import JobRunner
from tenure.leases.acquiring import Acquirer
from tenure.leases.counters import LeaseCounters
from tenure.leases.held import MICROSECONDS
from tenure.leases.keeping import KeptLease
from tenure.leases.leadership import Leadership, Work, hold
from tenure.leases.watch import Watch
from tenure.model.leases import JOB_LOCK, NAME_MAX, JobSettings
from tenure.store.engines import open_store
from tenure.store.store import Store, Topic

POOL_SIZE = 4
HOST_MAX = 100
MAX_SECONDS = 1_000_000_000
DEFAULT_TIMING = LeasesConfig()
_NAME = re.compile(rf"(?!{JOB_LOCK})[!-.0-~]{{1,{NAME_MAX - len(JOB_LOCK)}}}").fullmatch


def new_holder() -> str:
    """A name that no other process has, by which a person finds this one."""
    host = re.sub(r"[^!-.0-~]", "_", socket.gethostname())[:HOST_MAX]
    return f"{host}-{os.getpid()}-{new_id()[-8:]}"


class Ensemble:
    """This process's part in the ensemble. Jobs and leaderships are added before it starts."""

    def __init__(
        self, database: str | Store, *, holder: str | None = None, timing: LeasesConfig = DEFAULT_TIMING
    ) -> None:
        self.holder = _checked("holder", new_holder() if holder is None else holder)
        self._own_store = open_store(database, POOL_SIZE) if isinstance(database, str) else None
        self._store: Store = self._own_store or database  # type: ignore[assignment]
        self._timing = timing
        self._watch = Watch(self._store, min(timing.refresh_seconds, timing.acquire_seconds))
        self.counters = LeaseCounters()
        self.jobs = JobRunner(self._store, self.holder, timing, self.counters, self._watch.wake)
        self._watch.add(self.jobs)
        self._leaderships: dict[str, Leadership] = {}
        self._watching: asyncio.Task[None] | None = None
        self._acquirer = Acquirer(self._store, self.holder, timing)
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
        """Every process of the ensemble may add it: one of them runs it at a time. `paused` holds at the very first."""
        given = (interval_seconds, lock_timeout_seconds)
        interval, lock_timeout = (round(_positive("job", each) * MICROSECONDS) for each in given)
        self.jobs.add(JobSettings(_checked("job", name), interval, lock_timeout, paused), run)

    def lead(self, name: str, work: Work = hold, *, grace_seconds: float = 0.0) -> Leadership:
        """Has `work` done by one process of all, for as long as it holds the lease; cancelled when it does not.

        When the process stops, the work has `grace_seconds` to see `ending` of its lease, and to end by itself.
        """
        if _checked("lease", name) in self._leaderships:
            raise ConfigurationError(f"lease: {name} is led already")
        leadership = Leadership(self._store, name, self.holder, self._timing, self.counters, work, grace_seconds)
        self._leaderships[name] = leadership
        self._watch.add(leadership)
        return leadership

    def trusts(self, name: str) -> bool:
        """That it still holds a lease of which the database says so: a job's run looks after its own lock."""
        return name not in self._leaderships or self._leaderships[name].is_leading

    @property
    def lease_names(self) -> list[str]:
        return list(self._leaderships)

    async def try_acquire(
        self, name: str, *, wait_seconds: float = 0.0, duration_seconds: float | None = None
    ) -> KeptLease | None:
        """The lease, or None if somebody holds it and goes on to for as long as we are to wait."""
        seconds = self._timing.duration_seconds if duration_seconds is None else duration_seconds
        return await self._acquirer.acquire(_checked("lease", name), wait_seconds, _positive("lease", seconds))

    async def start(self) -> None:
        """On a database whose schema is up to date."""
        await self.jobs.register()
        self._store.listen(Topic.BOARD, self._hear)
        for leadership in self._leaderships.values():
            leadership.start()
        self._watching = asyncio.create_task(self._watch.run())

    async def stop(self) -> None:
        """Gives up what it leads, and lets runs end for a moment."""
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

    def _hear(self) -> None:
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
