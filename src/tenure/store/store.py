"""The contract between Tenure and its database: one method per whole transaction.

Whatever a method returns is committed. A method that raises `DatabaseUnavailable` may or may not have been carried
out; each can be repeated, and the repetition finds its own work.

An engine module implements the writes, since *when* in a transaction the clock is read and what is locked before is
where the engines differ and where the promises are kept: lock, look, read the clock, write. The reads are shared.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from tenure.model import (
    Attach,
    Attached,
    Capacity,
    End,
    Ended,
    Heartbeat,
    Kept,
    Limits,
    Open,
    Opened,
    Position,
    Seats,
    Session,
    SessionCounts,
    SessionFilter,
    StreamUpdate,
    StreamUpdated,
    Swept,
)

BATCH_MAX = 128
"""Requests in one transaction. The answer to a write must fit a socket buffer: nothing ends a transaction whose client
does not read."""
SWEEP_MAX = 500
"""Sessions in one batch of the sweep, or evicted in one transaction. Of each only its end is told."""


class Lane(StrEnum):
    """Creating and replacing in one transaction deadlocks even with sorted keys, so an open runs in one lane at a time.

    CREATE finds what is live and inserts where there is nothing.
    REOPEN closes what has lapsed or is of a lower kind, and inserts only for what it closed.
    LIMITED does both for capacities that are limited or bound to a tenant, one batch of a capacity at a time.
    """

    CREATE = "create"
    REOPEN = "reopen"
    LIMITED = "limited"


class Store(Protocol):
    dialect_name: str
    """As the migrations know it."""
    batches_in_flight: int
    """How many batches of one lane the engine can make use of at once."""

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """Answers in the order of `wishes`, at most BATCH_MAX of them, no key twice, in ascending order of key.

        `IdTaken` if a wish was carried out before, without an answer, and its session has ended since.
        """

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        """Renews what is live, records what has lapsed. At most BATCH_MAX, no session twice, as in all that follow."""

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        """Ends each with its reason, or with its lapse reason if it was over already."""

    async def expire_sessions(self, limit: int) -> Swept:
        """Records up to `limit` sessions that have lapsed, and finishes what a dead instance left `closing`.

        Costs what is due, not what exists. Any number of instances may do it at once.
        """

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        """Makes each stream its session's newest, and sees to it that the session has a lease and an idle limit."""

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        """Keeps sessions with a stream alive, saves what was counted, ends what has ended: all by the same clock."""

    async def put_capacity(self, capacity_id: str, seats: Seats) -> Capacity:
        """No open that is answered later escapes the new limit. Evicts nobody."""

    async def get_capacity(self, capacity_id: str) -> Capacity | None: ...

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        """By id, beginning after `after`."""

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        """What it was; None if it was never set."""

    async def get_session(self, session_id: str) -> Session | None: ...

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        """Newest start first, beginning after `after`."""

    async def count_sessions(self) -> SessionCounts: ...

    async def schema_revision(self) -> str | None:
        """The newest migration the database has seen; None if it has seen none. Also how readiness is probed."""

    async def migrate(self) -> Sequence[str]:
        """Brings the schema up to date and returns the revisions applied. Instances may call it all at once."""

    async def close(self) -> None: ...
