"""The contract between Tenure and its database, one module per feature.

Each call of a method that writes uses one transaction. There are two exceptions on PostgreSQL: `resign_lease` uses two
transactions, and `publish_events` up to two. When a method returns, its transactions are committed. A method that
raises `DatabaseUnavailable` may or may not have committed. Every call can be repeated, even if the first call has
committed.

Each engine implements the writes itself. The guarantees of a write depend on the order of the steps in its transaction:
take the locks, read the rows, read the clock, write. The engines need different locks and statements for these steps.
The engines share the code of most reads.

A write that only a leader or a run of a job may make takes a `Fence` as the first argument. The same transaction checks
the fence, under a lock that the next acquisition of the lease waits for. If the holder of the fence does not hold the
lease in the epoch of the fence, the method raises `LeaseLost` and writes nothing. Until a later epoch begins, two calls
return normally instead: `release_lease` after a release or a resignation, and a repeated `finish_run`. A test passes
invalid fences to every method that takes a fence.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from tenure.store.contract.alerts import AlertStore
from tenure.store.contract.capacities import CapacityStore
from tenure.store.contract.doctor import DoctorStore
from tenure.store.contract.events import EventStore
from tenure.store.contract.instances import InstanceStore
from tenure.store.contract.jobs import JobStore
from tenure.store.contract.keys import KeyStore
from tenure.store.contract.leases import LeaseStore
from tenure.store.contract.sessions import SessionStore
from tenure.store.contract.streams import StreamStore
from tenure.store.contract.submissions import SubmissionStore
from tenure.store.contract.usage import UsageStore


class Topic(StrEnum):
    """The subject of a notification between instances."""

    BOARD = "tenure"
    """A lease was released or resigned, or a job may run: a run was requested or abandoned, or the job was resumed."""
    SUBMISSIONS = "tenure_submissions"
    """Submissions are due: they were accepted from a caller, created by Tenure itself, or retried."""
    SESSION_ENDS = "tenure_session_ends"
    """Sessions that have had a stream have ended."""
    KEYS = "tenure.keys"
    """An API key was created or revoked, or the signing key was rotated."""


class Store(
    SessionStore,
    CapacityStore,
    StreamStore,
    LeaseStore,
    JobStore,
    SubmissionStore,
    UsageStore,
    KeyStore,
    AlertStore,
    EventStore,
    DoctorStore,
    InstanceStore,
    Protocol,
):
    dialect_name: str
    """The name of the SQLAlchemy dialect."""
    batches_in_flight: int
    """The number of batches of one kind that run concurrently. More would not increase the throughput of this
    engine."""
    may_start_limited: bool
    """Whether lane LIMITED returns live sessions without locking their capacity. If so, open requests may start in this
    lane."""

    @property
    def refusing_writes(self) -> str | None:
        """Why the database refused a write in the last few seconds, although it could be reached; None if it refused
        none.
        """

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """Calls `wake` after a notification of the topic, and when the connection that listens is lost. Does nothing if
        the engine does not support notifications.

        A notification is only a hint: it may arrive late, twice or never.
        """

    def listen_for_ends(self, ended: Callable[[str, str], None], check: Callable[[], None]) -> None:
        """Calls `ended` with the id and the close reason of each session whose end an instance announces.

        Only ends of sessions that have had a stream are announced, and only if the engine supports notifications. If a
        session has had only one stream, and this stream itself records the end, the end is not announced. `check` is
        called if notifications may have been lost: when a new connection has begun to listen.
        """

    async def schema_revision(self) -> str | None:
        """Returns the newest applied revision, or None if there is none. The readiness probe calls it to check the
        database.
        """

    async def migrate(self) -> Sequence[str]:
        """Brings the schema up to date and returns the applied revisions. Instances may call it concurrently."""

    async def close(self) -> None: ...
