"""SQLite: one file, one writer. See `client.py` for how it is reached."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection

from tenure.model.leases import (
    Acquired,
    Begun,
    Board,
    Fence,
    Job,
    JobCommand,
    JobRun,
    JobSettings,
    Lease,
    Pruned,
    RunOutcome,
)
from tenure.model.sessions import (
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
from tenure.model.submissions import (
    Accepted,
    Attempt,
    AttemptEnd,
    BegunAttempts,
    Change,
    Moved,
    Parcel,
    Submission,
    SubmissionCommand,
    SubmissionFilter,
    Submit,
    WaitingPage,
)
from tenure.model.usage import (
    Chunk,
    ChunkDelivery,
    Cut,
    CutRules,
    Installation,
    Lag,
    Life,
    Overlap,
    Piece,
    PrunedUsage,
    Seal,
    Unchunked,
    UsageQuestion,
    UsageSums,
    Window,
)
from tenure.store import capacities, lives, migrate, sessions
from tenure.store import leases as reads
from tenure.store import submissions as submission_reads
from tenure.store import usage as usage_reads
from tenure.store.engines.sqlite import jobs, keeping, leases, opening, seats, streams, submissions, usage
from tenure.store.engines.sqlite.client import SqliteClient
from tenure.store.engines.sqlite.files import immediate
from tenure.store.store import AUDIT_SECONDS, Lane, Topic

T = TypeVar("T")

MIGRATION_SECONDS = 60


class SqliteStore(SqliteClient):
    dialect_name = "sqlite"
    batches_in_flight = 1

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """One writer needs no lanes: whatever a wish asks for is done at once."""
        del lane
        return await self._write(lambda connection, now: opening.open_sessions(connection, now, wishes, limits))

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        return await self._write(lambda connection, now: keeping.heartbeat(connection, now, heartbeats))

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        return await self._write(lambda connection, now: keeping.end_sessions(connection, now, ends))

    async def expire_sessions(self, fence: Fence, limit: int) -> Swept:
        def expire(connection: Connection, now: datetime) -> Swept:
            leases.check_fence(connection, fence)
            return keeping.expire_sessions(connection, now, limit)

        return await self._write(expire)

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        return await self._write(lambda connection, now: streams.attach_streams(connection, now, attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        return await self._write(lambda connection, now: streams.update_streams(connection, now, updates))

    async def put_capacity(self, capacity_id: str, seats_set: Seats) -> Capacity:
        return await self._write(lambda connection, now: seats.put_capacity(connection, now, capacity_id, seats_set))

    async def get_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._read(lambda connection: capacities.get_capacity(connection, capacity_id))

    async def list_capacities(self, tenant: str | None, after: str | None, limit: int) -> Sequence[Capacity]:
        return await self._read(lambda connection: capacities.list_capacities(connection, tenant, after, limit))

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._write(lambda connection, now: seats.delete_capacity(connection, now, capacity_id))

    async def get_session(self, session_id: str) -> Session | None:
        return await self._read(lambda connection: sessions.get_session(connection, session_id))

    async def list_sessions(self, criteria: SessionFilter, after: Position | None, limit: int) -> Sequence[Session]:
        return await self._read(lambda connection: sessions.list_sessions(connection, criteria, after, limit))

    async def count_sessions(self) -> SessionCounts:
        return await self._read(sessions.count_sessions)

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> Acquired:
        return await self._write_lease(
            lambda connection, now: leases.acquire_lease(connection, now, name, holder, attempt, duration_microseconds)
        )

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        return await self._write_lease(
            lambda connection, now: leases.renew_lease(connection, now, fence, duration_microseconds)
        )

    async def release_lease(self, fence: Fence) -> Lease:
        return await self._write_lease(lambda connection, now: leases.release_lease(connection, now, fence))

    async def resign_lease(self, name: str) -> Lease | None:
        return await self._write_lease(lambda connection, now: leases.resign_lease(connection, now, name))

    async def list_leases(self, after: str | None, limit: int) -> Sequence[Lease]:
        return await self._read(lambda connection: reads.list_leases(connection, after, limit))

    async def read_board(self, names: Sequence[str]) -> Board:
        return await self._read(lambda connection: reads.read_board(connection, names))

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """SQLite tells nobody anything."""

    async def register_jobs(self, settings: Sequence[JobSettings]) -> None:
        await self._write_lease(lambda connection, now: jobs.register_jobs(connection, now, settings))

    async def begin_run(self, job: str, holder: str, attempt: str) -> Begun:
        return await self._write_lease(lambda connection, now: jobs.begin_run(connection, now, job, holder, attempt))

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._write_lease(
            lambda connection, now: jobs.finish_run(connection, now, fence, outcome, error, retry_microseconds)
        )

    async def command_job(self, job: str, command: JobCommand) -> Job | None:
        return await self._write_lease(lambda connection, now: jobs.command_job(connection, now, job, command))

    async def list_jobs(self, after: str | None, limit: int) -> Sequence[Job]:
        return await self._read(lambda connection: reads.list_jobs(connection, after, limit))

    async def list_runs(self, job: str, before: int | None, limit: int) -> Sequence[JobRun] | None:
        return await self._read(lambda connection: reads.list_runs(connection, job, before, limit))

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        return await self._write_lease(lambda connection, _now: jobs.prune(connection, fence, limit))

    async def accept_submissions(self, wishes: Sequence[Submit]) -> Sequence[Accepted]:
        return await self._submit(lambda connection, now: submissions.accept_submissions(connection, now, wishes))

    async def announce_submissions(self) -> None:
        """SQLite tells nobody anything."""

    async def list_waiting(self, after: Change | None, limit: int) -> WaitingPage:
        return await self._read(lambda connection: submission_reads.list_waiting(connection, after, limit))

    async def read_parcels(self, submission_ids: Sequence[str]) -> Sequence[Parcel]:
        return await self._read(lambda connection: submission_reads.read_parcels(connection, submission_ids))

    async def begin_attempts(self, fence: Fence, submission_ids: Sequence[str]) -> BegunAttempts:
        return await self._submit(
            lambda connection, now: submissions.begin_attempts(connection, now, fence, submission_ids)
        )

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[Moved]:
        def finish(connection: Connection, now: datetime) -> Sequence[Moved]:
            moved = submissions.finish_attempts(connection, now, fence, ends)
            usage.deliver_chunks(connection, now, moved)
            return moved

        return await self._submit(finish)

    async def close_unknown(self, fence: Fence, limit: int) -> int:
        return await self._submit(lambda connection, now: submissions.close_unknown(connection, now, fence, limit))

    async def explain_waiting(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        await self._submit(
            lambda connection, _now: submissions.explain_waiting(connection, fence, submission_ids, error)
        )

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str]
    ) -> Mapping[str, bool]:
        return await self._submit(
            lambda connection, now: submissions.command_submissions(connection, now, command, submission_ids)
        )

    async def get_submission(self, submission_id: str) -> tuple[Submission, Sequence[Attempt]] | None:
        return await self._read(lambda connection: submission_reads.get_submission(connection, submission_id))

    async def list_submissions(
        self, criteria: SubmissionFilter, before: str | None, limit: int
    ) -> Sequence[Submission]:
        return await self._read(
            lambda connection: submission_reads.list_submissions(connection, criteria, before, limit)
        )

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        return await self._submit(lambda connection, now: usage.cut_usage(connection, now, fence, rules, limit))

    async def list_unchunked(self, limit: int) -> Sequence[Unchunked]:
        return await self._read(lambda connection: usage_reads.list_unchunked(connection, limit))

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[Piece]:
        return await self._read_long(lambda connection: lives.divide_window(connection, window, after, limit))

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, pieces: Sequence[Piece], *, complete: bool
    ) -> None:
        def save(connection: Connection, now: datetime) -> None:
            usage.save_chunks(connection, now, fence, window_id, first, pieces, complete=complete)

        await self._submit(save)

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        return await self._read(lambda connection: usage_reads.find_chunks(connection, submission_ids))

    async def read_lives(self, window: Window, chunk: Chunk) -> Sequence[Life]:
        return await self._read_long(lambda connection: lives.read_lives(connection, window, chunk))

    async def seal_chunks(self, fence: Fence, seals: Sequence[Seal]) -> Mapping[str, bool]:
        return await self._submit(lambda connection, _now: usage.seal_chunks(connection, fence, seals))

    async def list_windows(self, before: int | None, limit: int) -> Sequence[Window]:
        return await self._read(lambda connection: usage_reads.list_windows(connection, before, limit))

    async def get_window(self, window_id: int) -> tuple[Window, Sequence[Chunk]] | None:
        return await self._read(lambda connection: usage_reads.get_window(connection, window_id))

    async def sum_usage(self, question: UsageQuestion, after: str | None, limit: int) -> UsageSums:
        return await self._read_long(lambda connection: lives.sum_usage(connection, question, after, limit))

    async def read_lag(self) -> Lag:
        return await self._read(usage_reads.read_lag)

    async def read_installation(self) -> Installation:
        return await self._read(usage_reads.read_installation)

    async def list_deliveries(self, window_id: int) -> Sequence[ChunkDelivery]:
        return await self._read(lambda connection: usage_reads.list_deliveries(connection, window_id))

    async def find_overlaps(self, limit: int) -> Sequence[Overlap]:
        return await self._read_long(lambda connection: sessions.find_overlaps(connection, limit), AUDIT_SECONDS)

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        return await self._submit(lambda connection, now: usage.prune_usage(connection, now, fence, limit))

    async def _submit(self, work: Callable[[Connection, datetime], T]) -> T:
        """By the clock as it is: a submission knows no cut, and a cut makes one."""
        return await self._write(work, leases.lease_now)

    async def schema_revision(self) -> str | None:
        return await self._read(migrate.current_revision)

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(
            lambda: self._on(self._writer, lambda connection: immediate(connection, migrate.upgrade)),
            MIGRATION_SECONDS,
        )
