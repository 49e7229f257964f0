"""Keeps the row of this instance up to date, so that `GET /instances` lists the instance.

Guarantees:

- A running instance that reaches the database is shown as alive. An instance that has not written its row for
  INSTANCE_ALIVE, by the database's clock, is shown as not alive. So a killed, paused or disconnected instance is shown
  as alive for half a minute at most.
- A stopped instance is shown as stopped at once, and is never shown as alive again: an earlier write whose answer was
  lost has no effect if it commits after the last write.
- An instance does not start while an instance that started earlier is shown as alive and uses another executor lease:
  see `start`. A killed instance can prevent the start for up to half a minute. If the database refuses the first write
  or does not answer it, the instance starts without this check, so that it can serve reads.
- `startedAt` is the database's time of the first write. It never changes, even if the row is pruned and written again.

Interruptions of each step:

| interruption | effect |
|---|---|
| killed before the first write | not shown, because it has no row |
| killed after a write | shown as not alive after INSTANCE_ALIVE; the row is pruned a day later |
| paused for longer than INSTANCE_ALIVE | shown as not alive until the next write |
| the answer to a write is lost | the next write is the same write with a later time |
| the database is unavailable | shown as not alive after INSTANCE_ALIVE, until a write succeeds |
| the database is unavailable while the instance stops | shown as not alive, but not as stopped |
| the database's clock is stepped | the next write, within ten seconds, sets the new time |
| two instances write at the same time | no effect, because each instance writes only its own row |
"""

import asyncio
from contextlib import suppress

from msgspec.structs import replace

from tenure.domain.instances import (
    INSTANCE_ALIVE,
    INSTANCE_SEEN_SECONDS,
    INSTANCES_COMPARED_MAX,
    InstanceReport,
    conflicting_executor,
)
from tenure.errors import ConfigurationError, DatabaseUnavailable
from tenure.store.contract.instances import InstanceStore
from tenure.telemetry.events import InstanceNotSaved, Telemetry


class Presence:
    def __init__(self, store: InstanceStore, report: InstanceReport, telemetry: Telemetry) -> None:
        self._store = store
        self._report = report
        self._telemetry = telemetry

    async def start(self) -> None:
        """Writes the row.

        Raises `ConfigurationError` if an instance that started earlier is alive and uses another executor lease.
        """
        await self.save()
        other = conflicting_executor(self._report, await self._store.list_instances(None, INSTANCES_COMPARED_MAX))
        if other is None:
            return
        await self.stop()
        raise ConfigurationError(
            f"leases.executor_lease: is {self._report.executor_lease}, but {other.executor_lease} on instance "
            f"{other.instance}, which was seen in the last {INSTANCE_ALIVE.total_seconds():.0f} seconds. Both would "
            "send the same submissions. Stop all instances before you change the name"
        )

    async def run(self) -> None:
        """Writes the row at once and every INSTANCE_SEEN_SECONDS, until cancelled. Call `stop` after that."""
        while True:
            try:
                await self.save()
            except Exception as error:  # noqa: BLE001 - reported; the loop must go on to the next write
                self._telemetry.report(InstanceNotSaved(str(error)))
            await asyncio.sleep(INSTANCE_SEEN_SECONDS)

    async def save(self) -> None:
        started_at = await self._store.save_instance(self._report)
        self._report = replace(self._report, started_at=started_at)

    async def stop(self) -> None:
        """Marks the row as stopped. If the database is unavailable, the instance is soon shown as not alive instead."""
        self._report = replace(self._report, stopped=True)
        with suppress(DatabaseUnavailable):
            await self.save()
