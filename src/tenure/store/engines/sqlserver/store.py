"""SQL Server 2019 and Azure SQL, through aioodbc and Microsoft's ODBC driver.

SQL Server ends no transaction whose client has gone quiet, so every write is one call of a stored procedure that begins
and commits by itself: no pause of this process can hold a lock.

The procedures are in `migrations/sqlserver`, each with its version in its name. They take locks in one of two ways.

Those that open **wait**, with `UPDLOCK, HOLDLOCK`, in this order:

1. the cut lock, shared; lanes CREATE and REOPEN then read which capacities have rules, while they hold nothing else;
2. in lane LIMITED, the capacities by id: so their seats are given out by one batch at a time;
3. the live keys (capacity, user) in the order of their index. On a key that nobody holds this locks the gap it would go
   into: there is no race for a free key and nothing that must be looked at again;
4. the session rows in the order of their ids: then nobody else can be about to end a session that we call `existing`.
   The hints are needed although reads take locks of their own: those are not kept, and where row versions are read
   (READ_COMMITTED_SNAPSHOT, the default on Azure) there are none.

Those that are told session ids, and the sweep, take **what nobody holds**, with `READPAST` (which needs
`READCOMMITTEDLOCK` where row versions are read): first the rows, then, of those that are to end, the keys. An end takes
its row's entry out of the index of the live keys. Whoever waited for that entry while he holds the row would wait
against the order above: key before row. So he does not wait. What he did not get he answers by `held`, to be asked for
again, and the others of his batch go on. The keys are locked by `XLOCK`, since an update lock would let in a reader on
his way from the key to the row, for whom the write would then wait and he for it. To renew a session touches no index
and needs no key. The same is true of the seats that lane LIMITED takes from others: it passes over what is held.

Then comes the clock; then the writes, which need no lock on a key or a row that is not held already. They may find the
sweep on an entry of another index: it waits for nobody.

So those who wait do it in one direction only, and one procedure serves the lanes CREATE and REOPEN. A closed key that
is inserted again reuses its index entry; should a server ask for the gap behind it too, which another batch may hold,
one of the two is told to go (error 1205) and goes again.

**Leases.** A lease is locked before anything else: before its job, its runs, the cut lock and sessions. No procedure
locks two of them.

- A fence reads the row `WITH (REPEATABLEREAD)`: a shared lock, kept until the end of the transaction, also where row
  versions are read. Fences do not wait for each other; whoever begins or ends an epoch waits for all of them.
- Whoever wants to begin one looks under `UPDLOCK, HOLDLOCK`, which admits fences but none of his kind, and on a name
  without a row locks the gap. If the lease is free he then takes the row alone, by `XLOCK, REPEATABLEREAD`. A renewal,
  a release and the end of a run take it so from the start. Nobody who holds a fence asks for more, so none of this
  goes in circles.
- Only then comes the clock. What ran out while somebody waited for fences is over, and an epoch begins after all that
  was written under fences of the one before.

SQL Server has no lock on a row that admits a fence and a renewal at once. So a renewal waits for the writes under the
lease's fence that are under way, and for no more: fences that come later queue behind it. Our own are short: the sweep
and the pruning take what nobody holds, and wait at most for the cut lock (one second). While an application keeps a
transaction with a fence open, its lease cannot be renewed. It may then run out, but nobody takes it until that
transaction has ended.

**Submissions.** Whoever accepts waits for the keys (caller, gateway, idempotency key), with `UPDLOCK, HOLDLOCK` in the
order of their index, and under them reads the rows that are there. All others hold rows, and none of them waits for a
key:

- Ends of attempts, commands and what is said of those that wait take their rows by waiting, in the order of their ids.
  Those with a fence can hold up a renewal for as long as they wait, one second at most.
- An attempt begins only on rows that nobody holds. Attempts are read and written by whoever holds their row.
- The pruning takes rows, then their keys, that nobody holds, as the sweep does.

What reads a page for the schedule finds all of it in one index. It waits for those who are writing an entry, unless row
versions are read, instead of passing over it: what is passed over and then not changed after all would be missed.

**Usage.** A cut takes the cut lock alone, as a change of a capacity does, after its fence and before the clock. It
then holds up all session writes for as long as it takes to insert the windows. It may wait for the row of the
installation, which otherwise only the pruning writes, as its last step.

- Chunks are saved and delivered by whoever holds the row of their window, with `UPDLOCK, HOLDLOCK`, windows in the
  order of their ids. A window comes before submissions: to save chunks is to insert keys, which may wait for whoever
  accepts next to them, who may wait for rows that ends of attempts hold. So those take their windows first.
- A seal waits for rows of chunks, in the order of their submissions, and holds nothing else. It changes no index.
- The pruning takes chunks, windows and sessions that nobody holds, of which nobody writes any more.

Where no row versions are read, a statement does not see one state of a table: a session that is being closed leaves one
index for another, and may be met in both or in neither. So sessions are read by their ids, which never change, one row
after the other (`reads.BY_ID`). What such a row says of a window is the same before and after it is closed. What is
read of several tables is looked at again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from tenure.clock import MICROSECOND
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
    Change,
    Moved,
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
    Life,
    Overlap,
    Piece,
    PrunedUsage,
    Seal,
    UsageQuestion,
    UsageSums,
    Window,
)
from tenure.store import capacities, lives, migrate
from tenure.store.engines.sqlserver import calls, reads, rows
from tenure.store.engines.sqlserver.client import SqlServerClient
from tenure.store.engines.sqlserver.errors import cause_of
from tenure.store.reading import SharedReads
from tenure.store.retries import Cause
from tenure.store.store import (
    AUDIT_SECONDS,
    JOB_RUNS_KEPT,
    LEASE_HISTORY_KEPT,
    SUBMISSIONS_KEPT,
    USAGE_KEPT,
    Lane,
    Topic,
)

MIGRATION_SECONDS = 600


class SqlServerStore(SqlServerClient, SharedReads):
    dialect_name = "mssql"
    batches_in_flight = 2

    async def open_sessions(self, lane: Lane, wishes: Sequence[Open], limits: Limits) -> Sequence[Opened]:
        """Locks on free keys make two lanes of three superfluous: CREATE does what REOPEN would."""
        call = calls.OPEN_LIMITED if lane is Lane.LIMITED else calls.OPEN
        return rows.openings(await self._call(call, request=rows.wishes_text(wishes, limits)), wishes, limits)

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[Kept]:
        request = rows.numbered((heartbeat.session_id, int(heartbeat.active)) for heartbeat in heartbeats)
        lines = await self._call(calls.HEARTBEAT, request=request)
        return rows.kept(lines, [heartbeat.session_id for heartbeat in heartbeats])

    async def end_sessions(self, ends: Sequence[End]) -> Sequence[Ended]:
        request = rows.numbered((end.session_id, end.reason) for end in ends)
        return rows.ended(await self._call(calls.END, request=request), len(ends))

    async def expire_sessions(self, fence: Fence, limit: int) -> Swept:
        return rows.swept(await self._call(calls.EXPIRE, **asdict(fence), limit=limit))

    async def attach_streams(self, attaches: Sequence[Attach]) -> Sequence[Attached]:
        request = rows.numbered(map(rows.attach_values, attaches))
        return rows.attached(await self._call(calls.ATTACH, request=request), len(attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdated]:
        request = rows.numbered(map(rows.update_values, updates))
        return rows.streams_updated(await self._call(calls.UPDATE_STREAMS, request=request), len(updates))

    async def put_capacity(self, capacity_id: str, seats: Seats) -> Capacity:
        (line,) = await self._call(calls.PUT_CAPACITY, request=rows.seats_text(capacity_id, seats))
        return await self._counted(line)

    async def delete_capacity(self, capacity_id: str) -> Capacity | None:
        lines = await self._call(calls.DELETE_CAPACITY, capacity_id=capacity_id)
        return await self._counted(lines[0]) if lines else None

    async def _counted(self, line: Row[Any]) -> Capacity:
        live = await self._read_long(lambda connection: capacities.count_live(connection, line.capacity_id))
        return capacities.capacity_from_values(line._mapping, live)  # noqa: SLF001 - the public way to a row's names

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> Acquired:
        (line,) = await self._call(
            calls.ACQUIRE_LEASE, name=name, holder=holder, attempt=attempt, duration=duration_microseconds
        )
        return rows.acquired(line)

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        parameters = asdict(fence) | {"duration": duration_microseconds}
        return await self._keep(lambda connection: connection.execute(calls.RENEW_LEASE, parameters).one())

    async def release_lease(self, fence: Fence) -> Lease:
        return await self._keep(lambda connection: connection.execute(calls.RELEASE_LEASE, asdict(fence)).one())

    async def _keep(self, work: Callable[[Connection], Row[Any]]) -> Lease:
        return rows.lease(await self._run(work, engine=self._renewals))

    async def resign_lease(self, name: str) -> Lease | None:
        lines = await self._call(calls.RESIGN_LEASE, name=name)
        return rows.lease(lines[0]) if lines else None

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """SQL Server calls nobody; the next look finds what has changed."""

    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        await self._call(calls.REGISTER_JOBS, request=rows.numbered(map(rows.job_values, jobs)))

    async def begin_run(self, job: str, holder: str, attempt: str) -> Begun:
        (line,) = await self._call(calls.BEGIN_RUN, job=job, holder=holder, attempt=attempt)
        return rows.begun(line, job, holder)

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._call(calls.FINISH_RUN, request=rows.finish_text(fence, outcome, error, retry_microseconds))

    async def command_job(self, job: str, command: JobCommand) -> Job | None:
        lines = await self._call(calls.COMMAND_JOB, job=job, command=command.value)
        return rows.job(lines[0]) if lines else None

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        kept = {"history": LEASE_HISTORY_KEPT, "runs": JOB_RUNS_KEPT, "submissions": SUBMISSIONS_KEPT}
        spans = {name: span // MICROSECOND for name, span in kept.items()}
        (line,) = await self._call(calls.PRUNE, **asdict(fence), limit=limit, **spans)
        return Pruned(line.lease_history, line.job_runs, line.submissions)

    async def accept_submissions(self, wishes: Sequence[Submit]) -> Sequence[Accepted]:
        payloads = b"".join(wish.payload for wish in wishes)
        lines = await self._call(calls.ACCEPT_SUBMISSIONS, request=rows.submits_text(wishes), payloads=payloads)
        return rows.accepted(lines)

    async def announce_submissions(self) -> None:
        """SQL Server calls nobody."""

    async def list_waiting(self, after: Change | None, limit: int) -> WaitingPage:
        return await self._run(lambda connection: reads.list_waiting(connection, after, limit))

    async def begin_attempts(self, fence: Fence, submission_ids: Sequence[str]) -> BegunAttempts:
        request = rows.ids_text(submission_ids)
        return rows.begun_attempts(await self._call(calls.BEGIN_ATTEMPTS, **asdict(fence), request=request))

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[Moved]:
        request = rows.numbered(map(rows.end_values, ends))
        lines = await self._call(calls.FINISH_ATTEMPTS, **asdict(fence), request=request)
        return [Moved(line.submission_id, line.state, line.next_attempt_at) for line in lines]

    async def close_unknown(self, fence: Fence, limit: int) -> int:
        (line,) = await self._call(calls.CLOSE_UNKNOWN, **asdict(fence), limit=limit)
        return int(line.found)

    async def explain_waiting(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        request = rows.explanation_text(submission_ids, error)
        await self._call(calls.EXPLAIN_WAITING, **asdict(fence), request=request)

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str]
    ) -> Mapping[str, bool]:
        request = rows.ids_text(submission_ids)
        lines = await self._call(calls.COMMAND_SUBMISSIONS, command=command.value, request=request)
        return {line.submission_id: line.done for line in lines}

    async def list_submissions(
        self, criteria: SubmissionFilter, before: str | None, limit: int
    ) -> Sequence[Submission]:
        return await self._read_long(lambda connection: reads.list_submissions(connection, criteria, before, limit))

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        (line,) = await self._call(calls.CUT_USAGE, **asdict(fence), limit=limit, request=rows.rules_text(rules))
        return Cut(line.now, line.last_cut_at, line.windows)

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[Piece]:
        return await self._read_long(
            lambda connection: lives.divide_window(connection, window, after, limit, reads.BY_ID)
        )

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, pieces: Sequence[Piece], *, complete: bool
    ) -> None:
        request = rows.numbered(map(rows.piece_values, pieces))
        numbers = {"window_id": window_id, "first": first, "complete": complete}
        await self._call(calls.SAVE_CHUNKS, **asdict(fence), **numbers, request=request)

    async def read_lives(self, window: Window, chunk: Chunk) -> Sequence[Life]:
        """Long: between the ids of a chunk there may be many that closed before its window."""
        return await self._read_long(lambda connection: lives.read_lives(connection, window, chunk, reads.BY_ID))

    async def list_lives(self, window: Window, after: str | None, limit: int) -> Sequence[Life]:
        return await self._read_long(
            lambda connection: lives.list_lives(connection, window, after, limit, reads.BY_ID), AUDIT_SECONDS
        )

    async def seal_chunks(self, fence: Fence, seals: Sequence[Seal]) -> Mapping[str, bool]:
        request = rows.numbered(map(rows.seal_values, seals))
        lines = await self._call(calls.SEAL_CHUNKS, **asdict(fence), request=request)
        return {line.submission_id: line.same for line in lines}

    async def sum_usage(self, question: UsageQuestion, after: str | None, limit: int) -> UsageSums:
        return await self._read_long(
            lambda connection: lives.sum_usage(connection, question, after, limit, reads.BY_ID)
        )

    async def list_deliveries(self, window_id: int) -> Sequence[ChunkDelivery]:
        return await self._run(lambda connection: reads.list_deliveries(connection, window_id))

    async def find_overlaps(self, limit: int) -> Sequence[Overlap]:
        return await self._read_long(lambda connection: reads.find_overlaps(connection, limit), AUDIT_SECONDS)

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        kept = USAGE_KEPT // MICROSECOND
        (line,) = await self._call(calls.PRUNE_USAGE, **asdict(fence), limit=limit, kept=kept)
        return PrunedUsage(line.chunks, line.windows, line.sessions)

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(self._migrate_in_turn, MIGRATION_SECONDS)

    async def _migrate_in_turn(self) -> Sequence[str]:
        """Waits for others in short steps: a thread that waits can neither be stopped nor be left behind."""
        while True:
            try:
                return await self._finish(self._on_connection(_upgrade, MIGRATION_SECONDS))
            except DBAPIError as error:
                if cause_of(error) is not Cause.LOCK_TIMEOUT:
                    raise


def _upgrade(connection: Connection) -> Sequence[str]:
    try:
        connection.execute(calls.BEGIN_MIGRATION).one()
        applied = migrate.upgrade(connection)
        connection.exec_driver_sql(calls.END_MIGRATION)
    except BaseException:
        # What it has begun ends with the connection, and so do its settings.
        connection.invalidate()
        raise
    return applied
