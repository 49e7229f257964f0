"""The metrics of the whole installation: live sessions, seats, usage, jobs, pending submissions and active alerts.

The worker in slot 0 of each process group reads them from the database in the background. A scrape does not read them,
because counting a million live sessions takes longer than a scrape may take. A read begins REFRESH_SECONDS after the
last one has ended, or later if reads are slow, so that reads take at most a twentieth of the time of one connection,
and of one core of the database. The metric `tenure_installation_age_seconds` is the age of the values. A scrape leaves
out values older than MAX_AGE_SECONDS, so that an alert rule for missing metrics fires, and no alert rule uses old
values.

The values are read when the instance starts, and then only while they are scraped: an instance that has not been
scraped for UNUSED_SECONDS stops reading. The next scrape makes the instance read again, but that scrape itself still
shows old values, or none.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tenure.clock import monotonic
from tenure.domain.alerts import AlertName, InstallationGauges, Observations
from tenure.errors import DatabaseUnavailable
from tenure.store.contract import Store
from tenure.telemetry.events import InstallationNotRead, Telemetry
from tenure.telemetry.metrics import Labels, Series

REFRESH_SECONDS = 10.0
IDLE_RATIO = 19
"""The pause after a read lasts at least this many times as long as the read."""
MAX_AGE_SECONDS = 300.0
UNUSED_SECONDS = 180.0
"""Longer than Prometheus usually waits between two scrapes."""
OTHER_GATEWAY = "other"
"""The label of submissions to gateways that are not configured on this instance."""


class InstallationReader:
    def __init__(
        self,
        store: Store,
        lease_names: Callable[[], Sequence[str]],
        gateways: Sequence[str],
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._lease_names = lease_names
        self._gateways = gateways
        self._telemetry = telemetry
        self._read_at = 0.0
        self._shown_at = monotonic()
        self._shown = asyncio.Event()
        self._series: Series = {}

    async def run(self) -> None:
        while True:
            began = monotonic()
            await self.read()
            await asyncio.sleep(max(REFRESH_SECONDS, IDLE_RATIO * (monotonic() - began)))
            if monotonic() - self._shown_at > UNUSED_SECONDS:
                self._shown.clear()
                await self._shown.wait()

    async def read(self) -> None:
        began = monotonic()
        try:
            gauges = await self._store.read_gauges(self._gateways)
            observed = await self._store.read_observations(self._lease_names())
        except DatabaseUnavailable as error:
            self._telemetry.report(InstallationNotRead(error.detail))
        except Exception as error:  # noqa: BLE001 - reported; the loop must continue with the next read
            self._telemetry.report(InstallationNotRead(repr(error)))
        else:
            self._series = {**_of_gauges(gauges), **_of_observations(observed)}
            self._read_at = began

    def series(self) -> Series:
        """Return the last values; nothing if they are older than MAX_AGE_SECONDS or were never read."""
        now = monotonic()
        self._shown_at = now
        self._shown.set()
        age = now - self._read_at
        if not self._series or age > MAX_AGE_SECONDS:
            return {}
        return {**self._series, "tenure_installation_age_seconds": {(): round(age, 3)}}


def _of_gauges(gauges: InstallationGauges) -> Series:
    pending: dict[Labels, float] = {(name,): count for name, count in gauges.pending_by_gateway.items()}
    # The difference can be negative, because a submission may be accepted between the two counts.
    others = max(0, gauges.pending - sum(gauges.pending_by_gateway.values()))
    pending[OTHER_GATEWAY,] = pending.get((OTHER_GATEWAY,), 0) + others
    return {
        "tenure_sessions_active": {(str(kind),): count for kind, count in gauges.active_by_kind.items()},
        "tenure_seats": {("limit",): gauges.seats, ("taken",): gauges.seats_taken},
        "tenure_submissions_pending": pending,
        "tenure_alerts_active": {(name,): gauges.active_alerts.get(name, 0) for name in AlertName},
    }


def _of_observations(observed: Observations) -> Mapping[str, Mapping[Labels, float]]:
    now = observed.now
    held = {(job.name,): (now - (job.held_since or now)).total_seconds() for job in observed.jobs}
    return {
        "tenure_job_lock_held_seconds": {name: max(0.0, seconds) for name, seconds in held.items()},
        "tenure_job_failures_in_a_row": {(job.name,): job.failures_in_a_row for job in observed.jobs},
        "tenure_usage_lag_seconds": {(): max(0.0, (now - observed.delivered_until).total_seconds())},
        "tenure_usage_failures_in_a_row": {(): observed.usage.failures_in_a_row},
        "tenure_usage_chunks_withheld": {(): observed.usage.withheld},
        "tenure_clock_behind_seconds": {(): max(0.0, (observed.last_cut_at - now).total_seconds())},
    }
