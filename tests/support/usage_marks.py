"""For tests of usage marks: runs the job `mark-usage`, and computes sums without marks for comparison."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tenure.domain.leases import JOB_LOCK, Fence
from tenure.domain.usage import UsageSumQuery, UsageSums
from tenure.jobs.job import ActiveRun
from tenure.store.contract import Store
from tenure.telemetry.events import Telemetry
from tenure.usage.mark import MarkUsage
from tests.support.leases import hold_lease
from tests.support.open_requests import NOON


async def marker_fence(store: Store) -> Fence:
    return await hold_lease(store, JOB_LOCK + "mark-usage", "marker")


async def mark_usage(store: Store, telemetry: Telemetry | None = None) -> dict[str, int]:
    """Runs job `mark-usage` once, and returns the counts of the run."""
    lock: Any = SimpleNamespace(fence=await marker_fence(store))
    run = ActiveRun("mark-usage", lock, NOON, None)
    await MarkUsage(store, telemetry or Telemetry()).run(run)
    return run.counts


async def sum_without_marks(store: Store, sum_query: UsageSumQuery, after: str | None, limit: int) -> UsageSums:
    """Computes the sum from sessions alone."""
    with patch("tenure.store.reads.usage_sums.can_use_marks", lambda _: False):
        return await store.sum_usage(sum_query, after, limit)
