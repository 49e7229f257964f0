"""Alerts, and the reads of the job `watch` and of `GET /metrics`."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.alerts import (
    Alert,
    AlertChanges,
    AlertFilter,
    AlertPosition,
    Condition,
    InstallationGauges,
    Observations,
)
from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract


class AlertStore(Protocol):
    async def update_alerts(
        self, fence: Fence, conditions: Sequence[Condition], contract: Contract | None
    ) -> AlertChanges:
        """Raises an alert for each condition without an active alert, and clears the active alerts without a condition.

        `conditions` has at most CONDITIONS_MAX elements, and no two of them have the same alert and subject. With a
        contract, each change gets a submission to gateway `oncall`, in the same transaction. Returns all changes that
        were made under this fence, which belongs to one run of `watch`. So if the answer to a call was lost, the
        repeated call makes no changes, and returns those of the first call.
        """

    async def list_alerts(self, criteria: AlertFilter, after: AlertPosition | None, limit: int) -> Sequence[Alert]:
        """Lists the newest alerts first, starting after the position `after`."""

    async def find_alerts(self, alert_ids: Sequence[str]) -> Sequence[Alert]:
        """Returns the alerts with these ids, in any order. Leaves out ids that do not exist."""

    async def read_observations(self, leases: Sequence[str]) -> Observations:
        """Reads the state on which alerts depend: all jobs, the given leases, the state of usage, and the recent lapses
        and openings. The cost does not grow with the tables.
        """

    async def read_gauges(self, gateways: Sequence[str]) -> InstallationGauges:
        """Counts live sessions, seats, pending submissions and active alerts. The cost grows with their number, so
        `GET /metrics` does not wait for this read: a background task performs it.
        """
