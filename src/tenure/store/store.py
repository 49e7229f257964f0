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
    CloseReason,
    Ended,
    Limits,
    Open,
    Opened,
    Position,
    Session,
    SessionCounts,
    SessionFilter,
)

BATCH_MAX = 128
"""Opens in one transaction. The answer to a write must fit a socket buffer: nothing ends a transaction whose client
does not read."""


class Lane(StrEnum):
    """Creating and replacing in one transaction deadlocks even with sorted keys, so an open runs in one lane at a time.

    CREATE finds what is live and inserts where there is nothing.
    REOPEN closes what has lapsed or is of a lower kind, and inserts only for what it closed.
    """

    CREATE = "create"
    REOPEN = "reopen"


class Store(Protocol):
    dialect_name: str
    """As the migrations know it."""
    batches_in_flight: int
    """How many batches of one lane the engine can make use of at once."""

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """Answers in the order of `wishes`, at most BATCH_MAX of them, no key twice, in ascending order of key.

        `IdTaken` if a wish was carried out before, without an answer, and its session has ended since.
        """

    async def end_session(self, session_id: str, reason: CloseReason) -> Ended | None:
        """Ends it with `reason`, or with its lapse reason if it was over already. None if there is no such session."""

    async def get_session(self, session_id: str) -> Session | None: ...

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        """Newest start first, beginning after `after`."""

    async def count_sessions(self) -> SessionCounts: ...

    async def schema_revision(self) -> str | None:
        """The newest migration the database has seen; None if it has seen none. Also how readiness is probed."""

    async def migrate(self) -> Sequence[str]:
        """Brings the schema up to date and returns the revisions applied. Instances may call it all at once."""

    async def close(self) -> None: ...
