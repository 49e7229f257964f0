"""The contract between Tenure and its database, one module per feature: one method is one transaction.

When a method returns, its transaction is committed. A method that raises `DatabaseUnavailable` may or may not have
committed. Every method can be repeated, and a repetition recognises its own work.

Each engine implements the writes itself, because the engines differ in *when* a transaction reads the clock and which
locks it takes before, and the promises depend on exactly that: lock, look, read the clock, write. The reads are shared.

A write that only a leader or a job's run may make takes its `Fence` as the first argument. The fence is checked in the
same transaction, under a lock that the next acquire waits for. If this holder does not hold the lease in this epoch,
the method raises `LeaseLost` and writes nothing. A test calls every such method with fences that do not hold.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from tenure.store.contract.capacities import CapacityStore
from tenure.store.contract.jobs import JobStore
from tenure.store.contract.leases import LeaseStore
from tenure.store.contract.sessions import SessionStore
from tenure.store.contract.streams import StreamStore
from tenure.store.contract.submissions import SubmissionStore
from tenure.store.contract.usage import UsageStore


class Topic(StrEnum):
    """What instances notify each other about."""

    BOARD = "tenure"
    """A lease has ended, or a job's run was requested."""
    SUBMISSIONS = "tenure_submissions"
    """A submission was accepted or is to be retried."""


class Store(
    SessionStore,
    CapacityStore,
    StreamStore,
    LeaseStore,
    JobStore,
    SubmissionStore,
    UsageStore,
    Protocol,
):
    dialect_name: str
    """SQLAlchemy's name of the dialect."""
    batches_in_flight: int
    """How many concurrent batches of one kind the engine benefits from."""

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """Calls `wake` after a notification, if the engine supports notifications.

        A notification is only a hint: it may arrive late, twice or never.
        """

    async def schema_revision(self) -> str | None:
        """The newest migration that was applied; None if none was. Readiness probes the database with it."""

    async def migrate(self) -> Sequence[str]:
        """Brings the schema up to date and returns the applied revisions. Instances may call it concurrently."""

    async def close(self) -> None: ...
