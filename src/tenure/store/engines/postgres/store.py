"""PostgreSQL, from version 14 on, through asyncpg.

Every write is one server-side function, called in one message: no pause of this process can leave a transaction open,
and what must be seen after a lock is read in a later statement of the function (READ COMMITTED takes a snapshot per
statement). The functions are in `migrations/postgres`, each with its version in its name, so that instances of two
versions can work side by side during an upgrade.
"""

from collections.abc import Callable, Mapping, Sequence

import asyncpg
from msgspec.structs import astuple
from sqlalchemy import Connection, text

from tenure.clock import MICROSECOND, from_microseconds
from tenure.ids import id_of_number, new_id
from tenure.model.leases import (
    Acquired,
    BeginFound,
    Begun,
    Board,
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
    Closing,
    End,
    Ended,
    Heartbeat,
    Kept,
    Limits,
    Open,
    Opened,
    Seats,
    StreamCounters,
    StreamUpdate,
    StreamUpdated,
    Swept,
)
from tenure.model.submissions import (
    Accepted,
    AttemptEnd,
    BegunAttempts,
    Change,
    Moved,
    Parcel,
    SubmissionCommand,
    Submit,
    WaitingPage,
)
from tenure.model.usage import (
    Chunk,
    Cut,
    CutRules,
    Life,
    Piece,
    PrunedUsage,
    Seal,
    Window,
)
from tenure.store import capacities, leases, migrate, submissions
from tenure.store.engines.postgres import rows, statements
from tenure.store.engines.postgres.client import PostgresClient
from tenure.store.engines.postgres.connections import allow
from tenure.store.reading import SharedReads
from tenure.store.store import (
    JOB_RUNS_KEPT,
    LEASE_HISTORY_KEPT,
    SUBMISSIONS_KEPT,
    USAGE_KEPT,
    Lane,
    Topic,
)

MIGRATION_SECONDS = 600
MIGRATION_LOCK = 7305808868231127650


class PostgresStore(PostgresClient, SharedReads):
    dialect_name = "postgresql"
    batches_in_flight = 2

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        lines = await self._call(
            self._openings,
            statements.OPEN[lane],
            rows.array([wish.capacity_id for wish in wishes]),
            rows.array([wish.user_object_id for wish in wishes]),
            rows.array([wish.tenant_object_id for wish in wishes]),
            rows.array([str(wish.kind) for wish in wishes]),
            rows.array([wish.session_id for wish in wishes]),
            rows.numbers([wish.lease_microseconds for wish in wishes]),
            rows.numbers([wish.heartbeat_microseconds for wish in wishes]),
            rows.numbers([wish.idle_microseconds for wish in wishes]),
            limits.term // MICROSECOND,
            limits.lease_microseconds,
            limits.heartbeat_microseconds,
            limits.idle_microseconds,
        )
        return rows.openings(lines, wishes, limits)

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        session_ids = [heartbeat.session_id for heartbeat in heartbeats]
        active = rows.flags([heartbeat.active for heartbeat in heartbeats])
        return rows.kept(await self._keep(statements.HEARTBEAT, rows.array(session_ids), active), session_ids)

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        reasons = rows.array([end.reason for end in ends])
        return rows.ended(
            await self._keep(statements.END, rows.array([end.session_id for end in ends]), reasons), len(ends)
        )

    async def expire_sessions(self, fence: Fence, limit: int) -> Swept:
        *over, (_, _, _, looked_at) = await self._keep(statements.EXPIRE, *astuple(fence), limit)
        return Swept([Closing(str(session_id), reason, at) for session_id, reason, at, _ in over], looked_at)

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        lines = await self._keep(
            statements.ATTACH,
            rows.array([attach.session_id for attach in attaches]),
            rows.numbers([attach.lease_microseconds for attach in attaches]),
            rows.numbers([attach.heartbeat_microseconds for attach in attaches]),
            rows.numbers([attach.idle_microseconds for attach in attaches]),
        )
        return rows.attached(lines, len(attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        lines = await self._keep(
            statements.UPDATE_STREAMS,
            rows.array([update.session_id for update in updates]),
            rows.array([str(update.attachment) for update in updates]),
            rows.array([str(update.save) for update in updates]),
            rows.flags([update.active for update in updates]),
            [update.end for update in updates],
            rows.flags([update.finished for update in updates]),
            *(
                rows.array([str(getattr(update.counted, name)) for update in updates])
                for name in StreamCounters.__struct_fields__
            ),
        )
        return rows.streams_updated(lines, len(updates))

    async def put_capacity(self, capacity_id: str, seats: Seats) -> Capacity:
        lines = await self._keep(
            statements.PUT_CAPACITY, capacity_id, seats.max_sessions, seats.when_full, seats.tenant_object_id
        )
        return await self._counted(lines[0])

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        lines = await self._keep(statements.DELETE_CAPACITY, capacity_id)
        return await self._counted(lines[0]) if lines else None

    async def _counted(self, record: asyncpg.Record) -> Capacity:
        values = rows.plain(record)
        live = await self._read_long(lambda connection: capacities.count_live(connection, values["capacity_id"]))
        return capacities.capacity_from_values(values, live)

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> Acquired:
        (line,) = await self._watch(statements.ACQUIRE, name, holder, attempt, duration_microseconds)
        return Acquired(rows.lease(line), line["taken"], line["reclaimed"])

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        (line,) = await self._call(self._renewals, statements.RENEW, *astuple(fence), duration_microseconds)
        return rows.lease(line)

    async def release_lease(self, fence: Fence) -> Lease:
        (line,) = await self._call(self._renewals, statements.RELEASE, *astuple(fence))
        return rows.lease(line)

    async def resign_lease(self, name: str) -> Lease | None:
        await self._keep(statements.MARK_RESIGNED, name)
        lines = await self._keep(statements.RESIGN, name)
        return rows.lease(lines[0]) if lines else None

    async def read_board(self, names: Sequence[str]) -> Board:
        """Over the connection that listens, so that a dead one is noticed, and replaced, at the next look."""
        return leases.board_from_values(await self._watch(statements.BOARD, names))

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        self._wakes.setdefault(topic, []).append(wake)

    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        await self._watch(
            statements.REGISTER_JOBS,
            [job.name for job in jobs],
            [job.interval_microseconds for job in jobs],
            [job.lock_timeout_microseconds for job in jobs],
            [job.paused for job in jobs],
        )

    async def begin_run(self, job: str, holder: str, attempt: str) -> Begun:
        lines = await self._watch(statements.BEGIN_RUN, job, holder, attempt)
        return rows.begun(lines[0], job, holder) if lines else Begun(BeginFound.HELD)

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._watch(statements.FINISH_RUN, *astuple(fence), outcome.value, error, retry_microseconds)

    async def command_job(self, job: str, command: JobCommand) -> Job | None:
        lines = await self._keep(statements.COMMAND_JOB, job, command.value)
        return leases.job_from_values(lines[0]) if lines else None

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        kept = [span // MICROSECOND for span in (LEASE_HISTORY_KEPT, JOB_RUNS_KEPT, SUBMISSIONS_KEPT)]
        (line,) = await self._keep(statements.PRUNE, *astuple(fence), limit, *kept)
        return Pruned(*line)

    async def accept_submissions(self, wishes: Sequence[Submit]) -> Sequence[Accepted]:
        lines = await self._call(
            self._openings,
            statements.ACCEPT_SUBMISSIONS,
            rows.array([wish.submission_id for wish in wishes]),
            [wish.gateway for wish in wishes],
            [wish.caller for wish in wishes],
            [wish.key for wish in wishes],
            [wish.payload for wish in wishes],
            [wish.digest for wish in wishes],
            [submissions.contract_text(wish.contract) for wish in wishes],
        )
        return rows.accepted(lines, wishes)

    async def announce_submissions(self) -> None:
        await self._keep(statements.ANNOUNCE_SUBMISSIONS)

    async def list_waiting(self, after: Change | None, limit: int) -> WaitingPage:
        changed, number = after or Change(0, 0)
        arguments = (from_microseconds(changed), id_of_number(number), limit)
        (line,) = await self._keep(statements.LIST_WAITING, *arguments)
        return rows.waiting(line)

    async def read_parcels(self, submission_ids: Sequence[str]) -> Sequence[Parcel]:
        lines = await self._keep(statements.READ_PARCELS, rows.array(submission_ids))
        return [submissions.parcel(str(line[0]), *line[1:]) for line in lines]

    async def begin_attempts(self, fence: Fence, submission_ids: Sequence[str]) -> BegunAttempts:
        lines = await self._keep(statements.BEGIN_ATTEMPTS, *astuple(fence), rows.array(submission_ids))
        return rows.begun_attempts(lines)

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[Moved]:
        lines = await self._keep(
            statements.FINISH_ATTEMPTS,
            *astuple(fence),
            rows.array([end.submission_id for end in ends]),
            rows.array([str(end.number) for end in ends]),
            rows.array([end.outcome for end in ends]),
            rows.numbers([end.status for end in ends]),
            [end.error for end in ends],
            rows.flags([end.counts for end in ends]),
            [end.pause_microseconds for end in ends],
        )
        return [Moved(str(line[0]), line[1], line[2]) for line in lines]

    async def close_unknown(self, fence: Fence, limit: int) -> int:
        (line,) = await self._keep(statements.CLOSE_UNKNOWN, *astuple(fence), limit)
        return int(line[0])

    async def explain_waiting(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        await self._keep(statements.EXPLAIN_WAITING, *astuple(fence), rows.array(submission_ids), error)

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str]
    ) -> Mapping[str, bool]:
        lines = await self._keep(statements.COMMAND_SUBMISSIONS, command.value, rows.array(submission_ids))
        return {str(submission_id): done for submission_id, done in lines}

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        contract = None if rules.contract is None else submissions.contract_text(rules.contract)
        (line,) = await self._keep(
            statements.CUT_USAGE, *astuple(fence), rules.interval_microseconds, *rules.factors, contract, limit
        )
        return Cut(*line)

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, pieces: Sequence[Piece], *, complete: bool
    ) -> None:
        await self._keep(
            statements.SAVE_CHUNKS,
            *astuple(fence),
            window_id,
            first,
            rows.array([piece.first_session_id for piece in pieces]),
            rows.array([piece.last_session_id for piece in pieces]),
            [piece.sessions for piece in pieces],
            [piece.usage_millionths for piece in pieces],
            rows.array([new_id() for _ in pieces]),
            complete,
        )

    async def read_lives(self, window: Window, chunk: Chunk) -> Sequence[Life]:
        span = (window.started_at, window.ended_at, window.era.started_at)
        lines = await self._fetch_long(statements.READ_LIVES, chunk.first_session_id, chunk.last_session_id, *span)
        return list(map(Life._make, lines))

    async def seal_chunks(self, fence: Fence, seals: Sequence[Seal]) -> Mapping[str, bool]:
        submission_ids = rows.array([seal.submission_id for seal in seals])
        digests = [seal.digest for seal in seals]
        lines = await self._keep(statements.SEAL_CHUNKS, *astuple(fence), submission_ids, digests)
        return {str(submission_id): same for submission_id, same in lines}

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        (line,) = await self._keep(statements.PRUNE_USAGE, *astuple(fence), limit, USAGE_KEPT // MICROSECOND)
        return PrunedUsage(*line)

    async def migrate(self) -> Sequence[str]:
        def locked(connection: Connection) -> Sequence[str]:
            allow(connection, MIGRATION_SECONDS)
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            return migrate.upgrade(connection)

        async def run() -> Sequence[str]:
            async with self._engine.begin() as connection:
                return await connection.run_sync(locked)

        return await self._retries.run(run, MIGRATION_SECONDS)
