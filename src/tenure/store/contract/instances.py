"""Instances, and the counts of activity that they save."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from tenure.domain.activity import Activity, ActivityQuery, MinuteCounts
from tenure.domain.instances import Instance, InstanceReport


class InstanceStore(Protocol):
    async def save_instance(self, report: InstanceReport) -> datetime:
        """Inserts the row of an instance, or sets its `last_seen_at` to the database's time. Returns when the instance
        started.

        A row that is marked as stopped does not change again.
        """

    async def list_instances(self, after: str | None, limit: int) -> Sequence[Instance]:
        """Up to `limit` instances, ordered by name, starting after the name `after`."""

    async def save_activity(self, instance: str, minutes: Sequence[MinuteCounts]) -> None:
        """Saves the counts of an instance for at most BATCH_MAX minutes. Keeps the greater of the saved and the given
        value of each count. `minutes` must not contain two items with the same minute and the same `turn` (the number
        of times that the clock was seen to step back: see domain/activity.py).
        """

    async def read_activity(self, query: ActivityQuery) -> Activity | None:
        """Sums the counts of all instances for each step of the span. Returns None if the span is empty or has
        too many steps.
        """
