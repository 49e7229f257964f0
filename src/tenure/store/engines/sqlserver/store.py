"""SQL Server 2019 and Azure SQL, through aioodbc and Microsoft's ODBC driver.

SQL Server does not end a transaction whose client has stopped responding. So every write except `migrate` is one call
of a stored procedure that begins and commits its own transaction, and a pause of this process cannot keep a lock.

The procedures are in `functions/`, each with its version in its name. They take locks as follows.

**Sessions.** A procedure that opens sessions waits for its locks. It locks rows and keys `WITH (UPDLOCK, HOLDLOCK)`,
and takes all locks in this order:

1. The cut lock (see Usage below), shared. Lanes CREATE and REOPEN then read which capacities have rules (a limit or a
   tenant), while they hold no other lock.
2. In lane LIMITED, the capacities, by id. So one batch at a time gives out the seats of a capacity.
3. The live keys (user, capacity), in the order of their index. For a free key this locks the gap that the key would go
   into. So two batches never race for a free key, and the insert needs no check afterwards.
4. The session rows, by id. So no other transaction can end a session while this one returns it as `existing`. The lock
   hints are needed: without them, a read does not keep its locks, and takes none at all where row versions are read
   (READ_COMMITTED_SNAPSHOT, the default on Azure).

A procedure that changes sessions by their ids, and the sweep, never wait for a session. They take only rows and keys
that no other transaction holds, with `READPAST` (which needs `READCOMMITTEDLOCK` where row versions are read):

- They take the rows first, then the keys of the sessions that must end: the end of a session removes its entry from
  the index of live keys. Waiting for this entry while holding the row would reverse the order above (key before row).
  So the procedure does not wait: it returns `held` for the session, which the caller retries, and continues with the
  rest of its batch.
- They lock keys with `XLOCK`. An update lock would admit a reader that reads the key and then the row. The writer would
  then wait for the reader at the key, and the reader for the writer at the row.
- A renewal changes no index entry, and needs no lock on the key.
- Lane LIMITED ends sessions of other users in the same way: it skips the sessions that other transactions hold.

After the last lock, each of these procedures reads the clock, and then writes. The transaction already holds all keys
and rows that the writes need. The writes may wait for the sweep at an entry of another index; the sweep itself waits
for no entry.

So transactions wait for each other in one direction only. One procedure serves both lanes CREATE and REOPEN, because it
locks free keys too. When the key of a closed session is inserted again, SQL Server reuses the index entry. If SQL
Server also locks the gap behind the entry while another batch holds that gap, one of the two transactions is rolled
back as a deadlock (error 1205) and retried.

**Scopes.** Before its transaction, a procedure for heartbeats, ends or attached streams drops the session ids outside
the scope of their caller. It reads the tenant and the user of each session `WITH (READUNCOMMITTED)`, because these
values never change. So a request for a session outside the scope neither waits for the row nor locks it.

**The audit log.** The entry is written last, in the transaction of the change. Only transactions of one request or one
action write the same entry, and they run one after the other: a transaction of an action takes the lock of the action
right after the cut lock. So the write of the entry waits for no other transaction.

**Leases.** A procedure locks a lease before anything else: before its job, its runs, the cut lock and sessions. No
procedure locks two leases.

- A check of a fence reads the row of the lease `WITH (REPEATABLEREAD)`: a shared lock that is kept until the
  transaction ends, even where row versions are read. Fences do not wait for each other. A transaction that begins or
  ends an epoch waits for all fences of the lease.
- A transaction that may begin an epoch first reads the row under `UPDLOCK, HOLDLOCK`. This lock admits fences but no
  second transaction that may begin an epoch. For a name without a row it locks the gap. If the lease is free, the
  transaction then locks the row exclusively, with `XLOCK, REPEATABLEREAD`. A renewal, a release, a resignation and the
  end of a run take the exclusive lock from the start. A transaction that holds a fence requests no stronger lock on the
  row, so there is no cycle.
- The clock is read after the row is locked. So a lease that expired during the wait for fences counts as expired, and
  an epoch begins after all writes under fences of the previous epoch.

SQL Server has no row lock that admits a fence and a renewal at once. So a renewal waits for the writes under the
lease's fence that have already begun, but not for later ones: their fences queue behind the renewal. Tenure's own
fenced writes are short: the sweep and the pruning skip rows that another transaction holds. The sweep waits only for
the cut lock, and the pruning of usage only for the row of the installation (one second at most). While an application
keeps a transaction with a fence open, the lease cannot be renewed. The lease may then expire, but no instance can
acquire it until that transaction has ended.

**Submissions.** A transaction that accepts submissions waits for the keys (caller, gateway, idempotency key), with
`UPDLOCK, HOLDLOCK` in the order of their index, and reads the existing rows under these locks. The following
transactions hold rows, and none of them waits for a key:

- A transaction that ends attempts, carries out a command or stores a waiting reason waits for its rows, by id. If it
  has a fence, it can delay a renewal for as long as it waits, one second at most for each row.
- A transaction that begins attempts takes only rows that no other transaction holds. A procedure reads and writes
  attempts only while it holds the row of their submission. The list of orphaned attempts (open attempts of other
  epochs) is read without a lock on the submissions, so each attempt is checked again when it is closed.
- Like the sweep, the pruning takes rows and then their keys, and skips those that another transaction holds.

One index contains all columns that the executor reads for a page of its schedule. Where row versions are not read, this
read waits for transactions that are writing an entry. It must not skip such an entry: if the write were then rolled
back, the submission would still be pending, but missing from the page.

**Usage.** A cut takes the cut lock exclusively, after its fence and before it reads the clock. A change or deletion of
a capacity and an import take this lock exclusively too. All session writes wait while a cut inserts its windows. The
cut may wait for the row of the installation, which the pruning (as its last step) and a change of API keys or signing
keys also lock.

- A transaction that saves or delivers chunks locks the rows of their windows by id, with `UPDLOCK, HOLDLOCK`, before it
  locks or inserts submissions. Saving chunks inserts submission keys. The insert may wait for a transaction that
  accepts submissions with neighbouring keys. That transaction may wait for rows that are locked by the end of an
  attempt. So a transaction that ends attempts must lock its windows before its submissions.
- Only one job writes marks and their sums, under its fence. So saving or deleting a mark waits for no other write.
- Storing digests waits for rows of chunks, in the order of their submissions, and holds no other lock except its fence.
  It changes no index.
- The pruning takes chunks, windows and sessions that no other transaction holds. They are so old that no other
  transaction begins to write them. A transaction that sends a window of this age may have read the clock earlier, and
  may still hold the window; the pruning then stops before this window.

**API keys.** A change of a key, or of the signing keys, first locks the row of the installation, with `UPDLOCK,
HOLDLOCK`. So keys are changed one after the other, and two live keys per name cannot become three. After that, the
change waits only for `touch_keys`, which records when keys were last used. `touch_keys` itself never waits: it skips
keys that another transaction holds.

**Alerts.** A change of alerts checks its fence, and then locks the active alerts with `UPDLOCK, HOLDLOCK`, in the order
of their index. It holds these locks while it inserts submissions. Like saving chunks, it may then wait for a
transaction that accepts submissions with neighbouring keys.

**Instances.** Only an instance itself writes its row and its counts, with `UPDLOCK, HOLDLOCK`, and holds no other lock.
The pruning takes the rows that no other transaction holds.

**Events.** Moving the horizon of events takes the cut lock exclusively, like a cut, and writes the row of the
installation. Only the holder of the lease `events` writes the rows of gateways and inserts batches. It holds the row of
a gateway while it inserts the key of a submission.

Where no row versions are read, a statement does not see the table at one instant: a session that is being closed moves
from one index to another, and a statement may find it in both or in neither. So the reads of usage find sessions by
their ids, which never change, one row after the other (`reads.BY_ID`). The part of a window in which a session was live
is the same before and after the end of the session is recorded. `reads.list_deliveries` and `reads.find_overlaps` check
their results by a second read.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.selectable import TextualSelect

from tenure.clock import MICROSECOND
from tenure.domain.activity import MinuteCounts
from tenure.domain.alerts import AlertChanges, Condition
from tenure.domain.audit_log import Actor, AuditDraft
from tenure.domain.capacities import Capacity, Seats
from tenure.domain.doctor import FileFacts, PoolerMode, ServerFacts, TableChurn
from tenure.domain.events import (
    EventFilter,
    EventPage,
    EventPosition,
    EventSubscription,
    NewEventBatch,
)
from tenure.domain.instances import InstanceReport
from tenure.domain.jobs import BeginRunResult, Job, JobCommand, JobSettings, Pruned, RunOutcome
from tenure.domain.keys import CreateKeyResult, NewKey, StoredKey
from tenure.domain.leases import AcquireResult, Fence, Lease
from tenure.domain.scope import Scope
from tenure.domain.session_tokens import RotateOutcome, SigningKey
from tenure.domain.sessions import (
    EndManyResult,
    EndRequest,
    EndResult,
    Heartbeat,
    HeartbeatResult,
    ImportedSession,
    ImportOutcome,
    Limits,
    OpenRequest,
    OpenResult,
    SessionFilter,
    SweepResult,
)
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.domain.submissions import (
    AttemptEnd,
    BeginAttemptsResult,
    Contract,
    Submission,
    SubmissionCommand,
    SubmissionCount,
    SubmissionFilter,
    SubmissionStatus,
    SubmitRequest,
    SubmitResult,
)
from tenure.domain.usage import (
    BillableInterval,
    Chunk,
    ChunkBounds,
    ChunkDelivery,
    ChunkDigest,
    Cut,
    CutRules,
    Mark,
    MarkSums,
    Overlap,
    PrunedUsage,
    Window,
    WindowToSend,
)
from tenure.store import migrate
from tenure.store.contract import Topic
from tenure.store.contract.sessions import OpenLane
from tenure.store.engines.sqlserver import calls, reads, rows
from tenure.store.engines.sqlserver.client import SqlServerClient
from tenure.store.engines.sqlserver.errors import cause_of
from tenure.store.limits import (
    ACTIVITY_KEPT,
    ALERTS_KEPT,
    AUDIT_LOG_KEPT,
    AUDIT_SECONDS,
    INSTANCES_KEPT,
    JOB_RUNS_KEPT,
    LEASE_HISTORY_KEPT,
    SUBMISSIONS_KEPT,
    USAGE_KEPT,
)
from tenure.store.reads import capacities, events, intervals, usage_sums
from tenure.store.reads.alerts import changes_from_values
from tenure.store.reads.keys import create_result, key_from_values
from tenure.store.reads.session_list import narrowed_filter
from tenure.store.reads.shared import SharedReads
from tenure.store.retries import Cause

MIGRATION_SECONDS = 600


class SqlServerStore(SqlServerClient, SharedReads):
    dialect_name = "mssql"
    batches_in_flight = 2
    may_start_limited = False
    _index_hint = reads.BY_ID

    async def open_sessions(
        self, lane: OpenLane, requests: Sequence[OpenRequest], limits: Limits
    ) -> Sequence[OpenResult]:
        """Lanes CREATE and REOPEN call the same procedure: it locks free keys too, so it can serve both lanes."""
        call = calls.OPEN_LIMITED if lane is OpenLane.LIMITED else calls.OPEN
        return rows.open_results(
            await self._call(call, request=rows.open_requests_text(requests, limits)), requests, limits
        )

    async def import_sessions(
        self, imported: Sequence[ImportedSession], draft: AuditDraft, *, writes: bool
    ) -> Sequence[ImportOutcome]:
        result = await self._call(calls.IMPORT_SESSIONS, request=rows.import_text(imported, draft), writes=writes)
        outcomes = {row.position: ImportOutcome(row.outcome) for row in result}
        return [outcomes[position] for position in range(len(imported))]

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatResult]:
        request = rows.numbered(map(rows.heartbeat_values, heartbeats))
        result = await self._call(calls.HEARTBEAT, request=request)
        return rows.heartbeat_results(result, [heartbeat.session_id for heartbeat in heartbeats])

    async def end_sessions(self, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
        request = rows.numbered(map(rows.end_request_values, ends))
        return rows.end_results(await self._call(calls.END, request=request), len(ends))

    async def end_matching(
        self, session_ids: Sequence[str], criteria: SessionFilter, scope: Scope, draft: AuditDraft
    ) -> EndManyResult:
        narrowed = narrowed_filter(criteria, scope)
        if narrowed is None:
            return EndManyResult([])
        request = rows.end_many_text(session_ids, narrowed, draft)
        result, began_at = rows.end_many_result(await self._call(calls.END_MANY, request=request))
        closed = {each.session_id for each in result.closed}
        skipped = [session_id for session_id in session_ids if session_id not in closed]
        if not skipped or not result.same:
            return result
        # A separate read counts the live sessions among those skipped, because the procedure does not wait for rows
        # that other transactions hold.
        return replace(result, held=await self.count_live(skipped, criteria, scope, began_at))

    async def expire_sessions(self, fence: Fence, limit: int) -> SweepResult:
        return rows.sweep_result(await self._call(calls.EXPIRE, **asdict(fence), limit=limit))

    async def attach_streams(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        request = rows.numbered(map(rows.attach_values, attaches))
        return rows.attach_results(await self._call(calls.ATTACH, request=request), len(attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdateResult]:
        request = rows.numbered(map(rows.update_values, updates))
        return rows.stream_update_results(await self._call(calls.UPDATE_STREAMS, request=request), len(updates))

    async def put_capacity(self, capacity_id: str, seats: Seats, scope: Scope, actor: Actor) -> Capacity | None:
        result = await self._call(calls.PUT_CAPACITY, request=rows.seats_text(capacity_id, seats, scope, actor))
        return await self._with_live_count(result[0], scope) if result else None

    async def delete_capacity(self, capacity_id: str, scope: Scope, actor: Actor) -> Capacity | None:
        result = await self._call(calls.DELETE_CAPACITY, request=rows.delete_text(capacity_id, scope, actor))
        return await self._with_live_count(result[0], scope) if result else None

    async def _with_live_count(self, row: Row[Any], scope: Scope) -> Capacity:
        live = await self._read_long(lambda connection: capacities.count_live(connection, row.capacity_id, scope))
        return capacities.capacity_from_values(row._mapping, live)  # noqa: SLF001 - public in SQLAlchemy

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> AcquireResult:
        (row,) = await self._call(
            calls.ACQUIRE_LEASE, name=name, holder=holder, attempt=attempt, duration=duration_microseconds
        )
        return rows.acquire_result(row)

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        parameters = asdict(fence) | {"duration": duration_microseconds}
        return await self._write_lease(lambda connection: connection.execute(calls.RENEW_LEASE, parameters).one())

    async def release_lease(self, fence: Fence) -> Lease:
        return await self._write_lease(lambda connection: connection.execute(calls.RELEASE_LEASE, asdict(fence)).one())

    async def _write_lease(self, work: Callable[[Connection], Row[Any]]) -> Lease:
        return rows.lease(await self._run(work, engine=self._renewals))

    async def resign_lease(self, name: str, actor: Actor) -> Lease | None:
        result = await self._call(calls.RESIGN_LEASE, name=name, actor=rows.actor_text(actor))
        return rows.lease(result[0]) if result else None

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """SQL Server sends no notifications. Instances see a change with their next regular read."""

    def listen_for_ends(self, ended: Callable[[str, str], None], check: Callable[[], None]) -> None:
        """SQL Server sends no notifications. Streams find the end of their session with their next keep-alive."""

    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        await self._call(calls.REGISTER_JOBS, request=rows.numbered(map(rows.job_values, jobs)))

    async def begin_run(self, job: str, holder: str, attempt: str) -> BeginRunResult:
        (row,) = await self._call(calls.BEGIN_RUN, job=job, holder=holder, attempt=attempt)
        return rows.begin_run_result(row, job, holder)

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._call(calls.FINISH_RUN, request=rows.finish_text(fence, outcome, error, retry_microseconds))

    async def command_job(self, job: str, command: JobCommand, actor: Actor) -> Job | None:
        result = await self._call(calls.COMMAND_JOB, job=job, command=command.value, actor=rows.actor_text(actor))
        return rows.job(result[0]) if result else None

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        kept = {
            "history": LEASE_HISTORY_KEPT,
            "runs": JOB_RUNS_KEPT,
            "submissions": SUBMISSIONS_KEPT,
            "audit": AUDIT_LOG_KEPT,
            "alerts": ALERTS_KEPT,
            "instances": INSTANCES_KEPT,
            "activity": ACTIVITY_KEPT,
        }
        spans = {name: span // MICROSECOND for name, span in kept.items()}
        (row,) = await self._call(calls.PRUNE, **asdict(fence), limit=limit, **spans)
        return Pruned(**{name: getattr(row, name) for name in Pruned.__struct_fields__})

    async def save_instance(self, report: InstanceReport) -> datetime:
        (row,) = await self._call(calls.SAVE_INSTANCE, request=rows.instance_text(report))
        return row.started_at  # type: ignore[no-any-return]

    async def save_activity(self, instance: str, minutes: Sequence[MinuteCounts]) -> None:
        request = rows.numbered(map(rows.minute_values, minutes))
        await self._call(calls.SAVE_ACTIVITY, instance=instance, request=request)

    async def accept_submissions(self, requests: Sequence[SubmitRequest]) -> Sequence[SubmitResult]:
        payloads = b"".join(request.payload for request in requests)
        result = await self._call(
            calls.ACCEPT_SUBMISSIONS, request=rows.submit_requests_text(requests), payloads=payloads
        )
        return rows.submit_results(result)

    async def announce_submissions(self) -> None:
        """SQL Server sends no notifications."""

    async def begin_attempts(
        self, fence: Fence, submission_ids: Sequence[str], early: Sequence[str] = ()
    ) -> BeginAttemptsResult:
        request = rows.numbered(rows.begin_values(submission_id, early) for submission_id in submission_ids)
        return rows.begin_attempts_result(await self._call(calls.BEGIN_ATTEMPTS, **asdict(fence), request=request))

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[SubmissionStatus]:
        request = rows.numbered(map(rows.end_values, ends))
        result = await self._call(calls.FINISH_ATTEMPTS, **asdict(fence), request=request)
        return [SubmissionStatus(row.submission_id, row.state, row.next_attempt_at) for row in result]

    async def note_waiting_reason(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        request = rows.waiting_reason_text(submission_ids, error)
        await self._call(calls.NOTE_WAITING_REASON, **asdict(fence), request=request)

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str], owner: str | None, draft: AuditDraft
    ) -> Mapping[str, bool]:
        request = rows.command_text(submission_ids, owner, draft)
        result = await self._call(calls.COMMAND_SUBMISSIONS, command=command.value, request=request)
        return {row.submission_id: row.done for row in result}

    async def list_submissions(
        self, criteria: SubmissionFilter, before: str | None, limit: int
    ) -> Sequence[Submission]:
        return await self._read_long(lambda connection: reads.list_submissions(connection, criteria, before, limit))

    async def count_submissions(self) -> Sequence[SubmissionCount]:
        return await self._read(reads.count_submissions)

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        (row,) = await self._call(calls.CUT_USAGE, **asdict(fence), limit=limit, request=rows.rules_text(rules))
        return Cut(row.now, row.last_cut_at, row.windows)

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[ChunkBounds]:  # type: ignore[override]  # no parameter `index_hint`
        return await self._read_long(
            lambda connection: intervals.divide_window(connection, window, after, limit, reads.BY_ID)
        )

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, bounds: Sequence[ChunkBounds], *, complete: bool
    ) -> None:
        request = rows.numbered(map(rows.chunk_bounds_values, bounds))
        numbers = {"window_id": window_id, "first": first, "complete": complete}
        await self._call(calls.SAVE_CHUNKS, **asdict(fence), **numbers, request=request)

    async def send_windows(
        self, contract: Contract, windows: Sequence[WindowToSend], draft: AuditDraft
    ) -> Sequence[int]:
        sent = await self._call(calls.SEND_WINDOWS, request=rows.windows_text(contract, windows, draft))
        return [row.window_id for row in sent]

    async def read_intervals(self, window: Window, chunk: Chunk) -> Sequence[BillableInterval]:  # type: ignore[override]  # no parameter `index_hint`
        """Runs as a long read: between the first and the last session id of the chunk, it also reads sessions that
        closed before the window began, and there may be many of them.
        """
        return await self._read_long(
            lambda connection: intervals.read_intervals(connection, window, chunk, reads.BY_ID)
        )

    async def list_intervals(self, window: Window, after: str | None, limit: int) -> Sequence[BillableInterval]:  # type: ignore[override]  # no parameter `index_hint`
        return await self._read_long(
            lambda connection: intervals.list_intervals(connection, window, after, limit, reads.BY_ID), AUDIT_SECONDS
        )

    async def store_digests(self, fence: Fence, digests: Sequence[ChunkDigest]) -> Mapping[str, bool]:
        request = rows.numbered(map(rows.digest_values, digests))
        result = await self._call(calls.STORE_DIGESTS, **asdict(fence), request=request)
        return {row.submission_id: row.same for row in result}

    async def sum_mark(self, from_at: datetime, at: datetime, limit: int) -> Sequence[MarkSums] | None:  # type: ignore[override]  # no parameter `index_hint`
        return await self._read_long(
            lambda connection: usage_sums.sum_mark(connection, from_at, at, limit, reads.BY_ID)
        )

    async def save_mark(self, fence: Fence, mark: Mark, sums: Sequence[MarkSums]) -> None:
        await self._call(calls.SAVE_MARK, **asdict(fence), request=rows.mark_text(mark, sums))

    async def delete_mark(self, fence: Fence, at: datetime, limit: int) -> int:
        (row,) = await self._call(calls.DELETE_MARK, **asdict(fence), limit=limit, request=rows.deleted_mark_text(at))
        deleted: int = row.deleted
        return deleted

    async def list_deliveries(self, window_id: int) -> Sequence[ChunkDelivery]:
        return await self._run(lambda connection: reads.list_deliveries(connection, window_id))

    async def find_overlaps(self, limit: int) -> Sequence[Overlap]:
        return await self._read_long(lambda connection: reads.find_overlaps(connection, limit), AUDIT_SECONDS)

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        kept = USAGE_KEPT // MICROSECOND
        (row,) = await self._call(calls.PRUNE_USAGE, **asdict(fence), limit=limit, kept=kept)
        return PrunedUsage(row.chunks, row.windows, row.sessions)

    async def create_key(self, new: NewKey, actor: Actor) -> CreateKeyResult:
        return create_result(new, await self._change_key(calls.CREATE_KEY, rows.new_key_text(new, actor)))

    async def revoke_key(self, public_id: str, actor: Actor) -> StoredKey | None:
        return await self._change_key(calls.REVOKE_KEY, rows.revoke_text(public_id, actor))

    async def _change_key(self, call: TextualSelect, request: str) -> StoredKey | None:
        result = await self._call(call, request=request)
        return key_from_values(result[0]._mapping) if result else None  # noqa: SLF001 - public in SQLAlchemy

    async def rotate_signing_key(self, new: SigningKey, overlap: timedelta | None, actor: Actor) -> RotateOutcome:
        (row,) = await self._call(calls.ROTATE_SIGNING_KEY, request=rows.rotation_text(new, overlap, actor))
        return RotateOutcome(row.outcome)

    async def touch_keys(self, used_at: Mapping[str, datetime]) -> None:
        await self._call(calls.TOUCH_KEYS, request=rows.numbered(map(rows.use_values, used_at.items())))

    async def update_alerts(
        self, fence: Fence, conditions: Sequence[Condition], contract: Contract | None
    ) -> AlertChanges:
        request = rows.alerts_text(conditions, contract)
        result = await self._call(calls.UPDATE_ALERTS, **asdict(fence), request=request)
        return changes_from_values([row._mapping for row in result], fence.epoch)  # noqa: SLF001 - public in SQLAlchemy

    async def publish_events(self, pause_microseconds: int) -> datetime:
        (row,) = await self._call(calls.PUBLISH_EVENTS, pause=pause_microseconds)
        return row.horizon  # type: ignore[no-any-return]

    async def read_events(  # type: ignore[override]  # no parameter `id_order`
        self, criteria: EventFilter, after: EventPosition, until: EventPosition | None, limit: int
    ) -> EventPage:
        return await self._run(
            lambda connection: events.read_events(connection, criteria, after, until, limit, reads.id_order)
        )

    async def subscribe_gateways(self, fence: Fence, gateways: Sequence[str]) -> Sequence[EventSubscription]:
        request = rows.numbered((gateway,) for gateway in gateways)
        result = await self._call(calls.SUBSCRIBE_GATEWAYS, **asdict(fence), request=request)
        return [rows.event_subscription(row) for row in result]

    async def save_event_batch(self, fence: Fence, batch: NewEventBatch) -> bool:
        (row,) = await self._call(calls.SAVE_EVENT_BATCH, **asdict(fence), request=rows.event_batch_text(batch))
        return bool(row.saved)

    async def read_server(self) -> ServerFacts:
        return await self._read(reads.read_server)

    async def read_churn(self) -> Sequence[TableChurn]:
        """SQL Server cleans up old row versions by itself."""
        return []

    async def detect_pooler(self) -> PoolerMode:
        return PoolerMode.NONE

    def describe_file(self) -> FileFacts | None:
        return None

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(self._migrate_in_turn, MIGRATION_SECONDS)

    async def _migrate_in_turn(self) -> Sequence[str]:
        """Waits for other migrations in short steps, because a thread that waits for a lock cannot be stopped."""
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
        # Closing the connection rolls back the transaction and discards the settings.
        connection.invalidate()
        raise
    return applied
