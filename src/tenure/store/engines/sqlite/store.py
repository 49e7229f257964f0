"""SQLite: one file, one writer. See `client.py` for how it is reached."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection

from tenure.model.leases import (
    Acquired,
    Begun,
    Fence,
    Job,
    JobCommand,
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
    Seats,
    StreamUpdate,
    StreamUpdated,
    Swept,
)
from tenure.model.submissions import (
    Accepted,
    AttemptEnd,
    BegunAttempts,
    Moved,
    SubmissionCommand,
    Submit,
)
from tenure.model.usage import (
    Cut,
    CutRules,
    Piece,
    PrunedUsage,
    Seal,
)
from tenure.store import migrate
from tenure.store.engines.sqlite import jobs, keeping, leases, opening, seats, streams, submissions, usage
from tenure.store.engines.sqlite.client import SqliteClient
from tenure.store.engines.sqlite.files import immediate
from tenure.store.reading import SharedReads
from tenure.store.store import Lane, Topic

T = TypeVar("T")

MIGRATION_SECONDS = 60


class SqliteStore(SqliteClient, SharedReads):
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

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        return await self._write(lambda connection, now: seats.delete_capacity(connection, now, capacity_id))

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

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        return await self._write_lease(lambda connection, _now: jobs.prune(connection, fence, limit))

    async def accept_submissions(self, wishes: Sequence[Submit]) -> Sequence[Accepted]:
        return await self._submit(lambda connection, now: submissions.accept_submissions(connection, now, wishes))

    async def announce_submissions(self) -> None:
        """SQLite tells nobody anything."""

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

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        return await self._submit(lambda connection, now: usage.cut_usage(connection, now, fence, rules, limit))

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, pieces: Sequence[Piece], *, complete: bool
    ) -> None:
        def save(connection: Connection, now: datetime) -> None:
            usage.save_chunks(connection, now, fence, window_id, first, pieces, complete=complete)

        await self._submit(save)

    async def seal_chunks(self, fence: Fence, seals: Sequence[Seal]) -> Mapping[str, bool]:
        return await self._submit(lambda connection, _now: usage.seal_chunks(connection, fence, seals))

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        return await self._submit(lambda connection, now: usage.prune_usage(connection, now, fence, limit))

    async def _submit(self, work: Callable[[Connection, datetime], T]) -> T:
        """By the clock as it is: a submission knows no cut, and a cut makes one."""
        return await self._write(work, leases.lease_now)

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(
            lambda: self._on(self._writer, lambda connection: immediate(connection, migrate.upgrade)),
            MIGRATION_SECONDS,
        )
