"""The reads that are the same on every engine: each is one function over a connection, and reached in one of two ways.

An engine that can do one of them better has its own method of that name.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from tenure.model.leases import Board, Job, JobRun, Lease
from tenure.model.sessions import Capacity, Position, Session, SessionCounts, SessionFilter
from tenure.model.submissions import Attempt, Change, Parcel, Submission, SubmissionFilter, WaitingPage
from tenure.model.usage import (
    Chunk,
    ChunkDelivery,
    Installation,
    Lag,
    Life,
    Overlap,
    Piece,
    Unchunked,
    UsageQuestion,
    UsageSums,
    Window,
)
from tenure.store import capacities, leases, lives, migrate, sessions, submissions, usage
from tenure.store.store import AUDIT_SECONDS, LONG_READ_SECONDS

T = TypeVar("T")


class SharedReads:
    async def _read(self, read: Callable[[Connection], T]) -> T:
        """What is answered at once."""
        raise NotImplementedError

    async def _read_long(self, read: Callable[[Connection], T], seconds: int = LONG_READ_SECONDS) -> T:
        """What grows with the table. It holds no lock that a writer waits for, and leaves room for short reads."""
        raise NotImplementedError

    # Sessions and capacities.

    async def get_session(self, session_id: str) -> Session | None:
        return await self._read(lambda connection: sessions.get_session(connection, session_id))

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._read(lambda connection: sessions.list_sessions(connection, criteria, after, limit))

    async def count_sessions(self) -> SessionCounts:
        return await self._read_long(sessions.count_sessions)

    async def find_overlaps(self, limit: int) -> Sequence[Overlap]:
        return await self._read_long(lambda connection: sessions.find_overlaps(connection, limit), AUDIT_SECONDS)

    async def get_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._read_long(lambda connection: capacities.get_capacity(connection, capacity_id))

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        return await self._read_long(lambda connection: capacities.list_capacities(connection, tenant, after, limit))

    # Leases and jobs.

    async def list_leases(self, after: str | None, limit: int) -> Sequence[Lease]:
        return await self._read(lambda connection: leases.list_leases(connection, after, limit))

    async def read_board(self, names: Sequence[str]) -> Board:
        return await self._read(lambda connection: leases.read_board(connection, names))

    async def list_jobs(self, after: str | None, limit: int) -> Sequence[Job]:
        return await self._read(lambda connection: leases.list_jobs(connection, after, limit))

    async def list_runs(self, job: str, before: int | None, limit: int) -> Sequence[JobRun] | None:
        return await self._read(lambda connection: leases.list_runs(connection, job, before, limit))

    # Submissions.

    async def list_waiting(self, after: Change | None, limit: int) -> WaitingPage:
        return await self._read(lambda connection: submissions.list_waiting(connection, after, limit))

    async def read_parcels(self, submission_ids: Sequence[str]) -> Sequence[Parcel]:
        return await self._read(lambda connection: submissions.read_parcels(connection, submission_ids))

    async def get_submission(self, submission_id: str) -> tuple[Submission, Sequence[Attempt]] | None:
        return await self._read(lambda connection: submissions.get_submission(connection, submission_id))

    async def list_submissions(
        self, criteria: SubmissionFilter, before: str | None, limit: int
    ) -> Sequence[Submission]:
        return await self._read(lambda connection: submissions.list_submissions(connection, criteria, before, limit))

    # Usage.

    async def list_unchunked(self, limit: int) -> Sequence[Unchunked]:
        return await self._read(lambda connection: usage.list_unchunked(connection, limit))

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[Piece]:
        return await self._read_long(lambda connection: lives.divide_window(connection, window, after, limit))

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        return await self._read(lambda connection: usage.find_chunks(connection, submission_ids))

    async def read_lives(self, window: Window, chunk: Chunk) -> Sequence[Life]:
        return await self._read_long(lambda connection: lives.read_lives(connection, window, chunk))

    async def list_lives(self, window: Window, after: str | None, limit: int) -> Sequence[Life]:
        return await self._read_long(
            lambda connection: lives.list_lives(connection, window, after, limit), AUDIT_SECONDS
        )

    async def list_windows(self, before: int | None, limit: int) -> Sequence[Window]:
        return await self._read(lambda connection: usage.list_windows(connection, before, limit))

    async def get_window(self, window_id: int) -> tuple[Window, Sequence[Chunk]] | None:
        return await self._read(lambda connection: usage.get_window(connection, window_id))

    async def sum_usage(self, question: UsageQuestion, after: str | None, limit: int) -> UsageSums:
        return await self._read_long(lambda connection: lives.sum_usage(connection, question, after, limit))

    async def read_lag(self) -> Lag:
        return await self._read(usage.read_lag)

    async def read_installation(self) -> Installation:
        return await self._read(usage.read_installation)

    async def list_deliveries(self, window_id: int) -> Sequence[ChunkDelivery]:
        return await self._read(lambda connection: usage.list_deliveries(connection, window_id))

    # The schema.

    async def schema_revision(self) -> str | None:
        return await self._read(migrate.current_revision)
