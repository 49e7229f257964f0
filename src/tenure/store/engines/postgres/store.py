"""The store on PostgreSQL 14 or later, through asyncpg.

Every transaction that writes is one call of a server-side function, sent in one message, so a pause of this process
cannot leave a transaction open. Only `migrate` needs several messages. `resign_lease` takes two transactions, and
`publish_events` one or two.

In READ COMMITTED, each statement takes its own snapshot. So a function first acquires its locks, and then reads the
rows that the locks protect, in later statements. The functions are in `functions/`. All except `tenure_now` and
`tenure_write_now` have a version in their names, so that instances of two versions can run side by side during an
upgrade.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg
from msgspec.structs import astuple
from sqlalchemy import Connection, text

from tenure.clock import MICROSECOND, from_microseconds
from tenure.domain.activity import COUNTS, MinuteCounts
from tenure.domain.alerts import CONDITIONS_MAX, AlertChanges, Condition
from tenure.domain.audit_log import Actor, AuditDraft
from tenure.domain.capacities import Capacity, Seats
from tenure.domain.doctor import FileFacts, PoolerMode, ServerFacts, TableChurn
from tenure.domain.events import EventSubscription, NewEventBatch, types_text
from tenure.domain.instances import InstanceReport
from tenure.domain.jobs import BeginRunResult, Board, Job, JobCommand, JobSettings, Pruned, RunOutcome
from tenure.domain.keys import (
    LIVE_KEYS_PER_NAME,
    CreateKeyResult,
    KeysVersion,
    NewKey,
    StoredKey,
    creation_detail,
)
from tenure.domain.leases import AcquireResult, Fence, Lease
from tenure.domain.scope import Scope
from tenure.domain.session_tokens import SIGNING_KEYS_MAX, RotateOutcome, SigningKey, rotation_detail
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
    StreamCounters,
    SweepResult,
)
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.domain.submissions import (
    AttemptEnd,
    BeginAttemptsResult,
    Change,
    Contract,
    Envelope,
    PendingPage,
    SubmissionCommand,
    SubmissionStatus,
    SubmitRequest,
    SubmitResult,
)
from tenure.domain.usage import (
    Chunk,
    ChunkBounds,
    ChunkDigest,
    Cut,
    CutRules,
    Mark,
    MarkSums,
    PrunedUsage,
    Window,
    WindowToSend,
)
from tenure.domain.usage_records import DividedChunk, Records, Template
from tenure.errors import ERROR_MAX
from tenure.ids import id_of_number, new_id
from tenure.store import migrate
from tenure.store.contract import Topic
from tenure.store.contract.sessions import OpenLane
from tenure.store.engines.postgres import doctor, rows, statements, windows
from tenure.store.engines.postgres.client import PostgresClient
from tenure.store.engines.postgres.connections import set_timeouts
from tenure.store.limits import (
    ACTIVITY_KEPT,
    ALERTS_KEPT,
    AUDIT_LOG_KEPT,
    INSTANCES_KEPT,
    JOB_RUNS_KEPT,
    LEASE_HISTORY_KEPT,
    SUBMISSIONS_KEPT,
    USAGE_KEPT,
)
from tenure.store.reads import alerts, capacities, leases, submissions
from tenure.store.reads.keys import create_result, version_of
from tenure.store.reads.session_list import narrowed_filter
from tenure.store.reads.shared import SharedReads

MIGRATION_SECONDS = 600
MIGRATION_LOCK = 7305808868231127650


_KEPT = (
    LEASE_HISTORY_KEPT,
    JOB_RUNS_KEPT,
    SUBMISSIONS_KEPT,
    AUDIT_LOG_KEPT,
    ALERTS_KEPT,
    INSTANCES_KEPT,
    ACTIVITY_KEPT,
)


class PostgresStore(PostgresClient, SharedReads):
    dialect_name = "postgresql"
    batches_in_flight = 2
    may_start_limited = True

    async def open_sessions(
        self, lane: OpenLane, requests: Sequence[OpenRequest], limits: Limits
    ) -> Sequence[OpenResult]:
        if len(requests) == 1 and lane is OpenLane.CREATE:
            return await self._open_one(requests[0], limits)
        records = await self._call_on(
            self._openings,
            statements.OPEN[lane],
            rows.array([request.capacity_id for request in requests]),
            rows.array([request.user_object_id for request in requests]),
            rows.array([request.tenant_object_id for request in requests]),
            rows.array([str(request.kind) for request in requests]),
            rows.array([request.session_id for request in requests]),
            rows.numbers([request.lease_microseconds for request in requests]),
            rows.numbers([request.heartbeat_microseconds for request in requests]),
            rows.numbers([request.idle_microseconds for request in requests]),
            limits.term // MICROSECOND,
            limits.lease_microseconds,
            limits.heartbeat_microseconds,
            limits.idle_microseconds,
        )
        return rows.open_results(records, requests, limits)

    async def _open_one(self, request: OpenRequest, limits: Limits) -> Sequence[OpenResult]:
        """Opens a batch of one with a function without arrays. This takes about two thirds of the time that the
        function for batches takes.
        """
        records = await self._call_on(
            self._openings,
            statements.OPEN_ONE,
            request.capacity_id,
            request.user_object_id,
            request.tenant_object_id,
            request.kind,
            request.session_id,
            request.lease_microseconds,
            request.heartbeat_microseconds,
            request.idle_microseconds,
            limits.term // MICROSECOND,
            limits.lease_microseconds,
            limits.heartbeat_microseconds,
            limits.idle_microseconds,
        )
        return rows.open_results(records, [request], limits)

    async def import_sessions(
        self, imported: Sequence[ImportedSession], draft: AuditDraft, *, writes: bool
    ) -> Sequence[ImportOutcome]:
        records = await self._call(
            statements.IMPORT_SESSIONS, *rows.imported_arrays(imported), writes, rows.draft_text(draft)
        )
        return [ImportOutcome(outcome) for (outcome,) in records]

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatResult]:
        session_ids = [heartbeat.session_id for heartbeat in heartbeats]
        active = [heartbeat.session_id for heartbeat in heartbeats if heartbeat.active]
        scopes = rows.scopes([heartbeat.scope for heartbeat in heartbeats])
        records = await self._call(
            statements.HEARTBEAT, rows.array(session_ids), rows.array(active) if active else None, *scopes
        )
        return rows.heartbeat_results(records, session_ids)

    async def end_sessions(self, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
        records = await self._call(
            statements.END,
            rows.array([end.session_id for end in ends]),
            rows.array([end.reason for end in ends]),
            *rows.scopes([end.scope for end in ends]),
            rows.actors_text([end.actor for end in ends]),
        )
        return rows.end_results(records, len(ends))

    async def end_matching(
        self, session_ids: Sequence[str], criteria: SessionFilter, scope: Scope, draft: AuditDraft
    ) -> EndManyResult:
        narrowed = narrowed_filter(criteria, scope)
        if narrowed is None:
            return EndManyResult([])
        text = rows.criteria_text(narrowed)
        *closed, last = await self._call(statements.END_MANY, rows.array(session_ids), text, rows.draft_text(draft))
        return rows.end_many_result(closed, last)

    async def expire_sessions(self, fence: Fence, limit: int) -> SweepResult:
        *lapsed, last = await self._call(statements.EXPIRE, *astuple(fence), limit)
        return rows.sweep_result(lapsed, last)

    async def attach_streams(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        records = await self._call(
            statements.ATTACH,
            rows.array([attach.session_id for attach in attaches]),
            rows.numbers([attach.lease_microseconds for attach in attaches]),
            rows.numbers([attach.heartbeat_microseconds for attach in attaches]),
            rows.numbers([attach.idle_microseconds for attach in attaches]),
            *rows.scopes([attach.scope for attach in attaches]),
        )
        return rows.attach_results(records, len(attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdateResult]:
        records = await self._call(
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
        return rows.stream_update_results(records, len(updates))

    async def put_capacity(self, capacity_id: str, seats: Seats, scope: Scope, actor: Actor) -> Capacity | None:
        records = await self._call(
            statements.PUT_CAPACITY,
            capacity_id,
            seats.max_sessions,
            seats.when_full,
            seats.tenant_object_id,
            scope.tenant,
            rows.actor_text(actor),
        )
        return await self._with_live_count(records[0], scope) if records else None

    async def delete_capacity(self, capacity_id: str, scope: Scope, actor: Actor) -> Capacity | None:
        records = await self._call(statements.DELETE_CAPACITY, capacity_id, scope.tenant, rows.actor_text(actor))
        return await self._with_live_count(records[0], scope) if records else None

    async def _with_live_count(self, record: asyncpg.Record, scope: Scope) -> Capacity:
        values = rows.values_of(record)
        live = await self._read_long(lambda connection: capacities.count_live(connection, values["capacity_id"], scope))
        return capacities.capacity_from_values(values, live)

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> AcquireResult:
        (record,) = await self._call_on(
            self._watching, statements.ACQUIRE, name, holder, attempt, duration_microseconds
        )
        return AcquireResult(rows.lease(record), record["taken"], record["reclaimed"])

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        (record,) = await self._call_on(self._renewals, statements.RENEW, *astuple(fence), duration_microseconds)
        return rows.lease(record)

    async def release_lease(self, fence: Fence) -> Lease:
        (record,) = await self._call_on(self._renewals, statements.RELEASE, *astuple(fence))
        return rows.lease(record)

    async def resign_lease(self, name: str, actor: Actor) -> Lease | None:
        text = rows.actor_text(actor)
        await self._call(statements.MARK_RESIGNED, name, text)
        records = await self._call(statements.RESIGN, name, text)
        return rows.lease(records[0]) if records else None

    async def read_board(self, names: Sequence[str]) -> Board:
        """Uses the connection that listens for notifications, so that each read detects and replaces a dead
        connection.
        """
        return leases.board_from_values(await self._call_on(self._watching, statements.BOARD, names))

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        self._wakes.setdefault(topic, []).append(wake)

    def listen_for_ends(self, ended: Callable[[str, str], None], check: Callable[[], None]) -> None:
        self._end_listeners.append((ended, check))

    async def register_jobs(self, jobs: Sequence[JobSettings]) -> None:
        await self._call_on(
            self._watching,
            statements.REGISTER_JOBS,
            [job.name for job in jobs],
            [job.interval_microseconds for job in jobs],
            [job.lock_timeout_microseconds for job in jobs],
            [job.paused for job in jobs],
        )

    async def begin_run(self, job: str, holder: str, attempt: str) -> BeginRunResult:
        (record,) = await self._call_on(self._watching, statements.BEGIN_RUN, job, holder, attempt)
        return rows.begin_run_result(record, job, holder)

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._call_on(
            self._watching, statements.FINISH_RUN, *astuple(fence), outcome.value, error, retry_microseconds
        )

    async def command_job(self, job: str, command: JobCommand, actor: Actor) -> Job | None:
        records = await self._call(statements.COMMAND_JOB, job, command.value, rows.actor_text(actor))
        return leases.job_from_values(records[0]) if records else None

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        kept = [span // MICROSECOND for span in _KEPT]
        (record,) = await self._call(statements.PRUNE, *astuple(fence), limit, *kept)
        return Pruned(*record)

    async def save_instance(self, report: InstanceReport) -> datetime:
        (record,) = await self._call(statements.SAVE_INSTANCE, *astuple(report))
        started_at: datetime = record[0]
        return started_at

    async def save_activity(self, instance: str, minutes: Sequence[MinuteCounts]) -> None:
        await self._call(
            statements.SAVE_ACTIVITY,
            instance,
            [minute.at for minute in minutes],
            [minute.turn for minute in minutes],
            [minute.counts.get(name, 0) for minute in minutes for name in COUNTS],
        )

    async def accept_submissions(self, requests: Sequence[SubmitRequest]) -> Sequence[SubmitResult]:
        records = await self._call_on(
            self._openings,
            statements.ACCEPT_SUBMISSIONS,
            rows.array([request.submission_id for request in requests]),
            [request.gateway for request in requests],
            [request.caller for request in requests],
            [request.key for request in requests],
            [request.payload for request in requests],
            [request.digest for request in requests],
            [submissions.contract_text(request.contract) for request in requests],
            [request.request_id for request in requests],
            [request.traceparent for request in requests],
        )
        return rows.submit_results(records, requests)

    async def announce_submissions(self) -> None:
        await self._call(statements.ANNOUNCE_SUBMISSIONS)

    async def list_pending(self, after: Change | None, limit: int) -> PendingPage:
        changed, number = after or Change(0, 0)
        arguments = (from_microseconds(changed), id_of_number(number), limit)
        (record,) = await self._call(statements.LIST_PENDING, *arguments)
        return rows.pending_page(record)

    async def read_envelopes(self, submission_ids: Sequence[str]) -> Sequence[Envelope]:
        records = await self._call(statements.READ_ENVELOPES, rows.array(submission_ids))
        return [submissions.envelope(str(record[0]), *record[1:]) for record in records]

    async def begin_attempts(
        self, fence: Fence, submission_ids: Sequence[str], early: Sequence[str] = ()
    ) -> BeginAttemptsResult:
        ids = (rows.array(submission_ids), rows.array(early))
        records = await self._call(statements.BEGIN_ATTEMPTS, *astuple(fence), *ids)
        return rows.begin_attempts_result(records)

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[SubmissionStatus]:
        records = await self._call(
            statements.FINISH_ATTEMPTS,
            *astuple(fence),
            rows.array([end.submission_id for end in ends]),
            rows.array([str(end.number) for end in ends]),
            rows.array([end.outcome for end in ends]),
            rows.numbers([end.status for end in ends]),
            [end.error for end in ends],
            rows.flags([end.counts for end in ends]),
            [end.pause_microseconds for end in ends],
            rows.flags([end.is_binding for end in ends]),
            rows.flags([end.has_receipt for end in ends]),
        )
        return [SubmissionStatus(str(record[0]), record[1], record[2]) for record in records]

    async def note_waiting_reason(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        await self._call(statements.NOTE_WAITING_REASON, *astuple(fence), rows.array(submission_ids), error)

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str], owner: str | None, draft: AuditDraft
    ) -> Mapping[str, bool]:
        records = await self._call(
            statements.COMMAND_SUBMISSIONS, command.value, rows.array(submission_ids), owner, rows.draft_text(draft)
        )
        return {str(submission_id): done for submission_id, done in records}

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        contract = None if rules.contract is None else submissions.contract_text(rules.contract)
        (record,) = await self._call(
            statements.CUT_USAGE, *astuple(fence), rules.interval_microseconds, *rules.factors, contract, limit
        )
        return Cut(*record)

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, bounds: Sequence[ChunkBounds], *, complete: bool
    ) -> None:
        await self._call(
            statements.SAVE_CHUNKS,
            *astuple(fence),
            window_id,
            first,
            rows.array([chunk_bounds.first_session_id for chunk_bounds in bounds]),
            rows.array([chunk_bounds.last_session_id for chunk_bounds in bounds]),
            [chunk_bounds.sessions for chunk_bounds in bounds],
            [chunk_bounds.usage_millionths for chunk_bounds in bounds],
            rows.array([new_id() for _ in bounds]),
            complete,
        )

    async def send_windows(
        self, contract: Contract, windows: Sequence[WindowToSend], draft: AuditDraft
    ) -> Sequence[int]:
        records = await self._call(
            statements.SEND_WINDOWS,
            submissions.contract_text(contract),
            USAGE_KEPT // MICROSECOND,
            [each.window_id for each in windows],
            [len(each.submission_ids) for each in windows],
            rows.array([submission_id for each in windows for submission_id in each.submission_ids]),
            rows.draft_text(draft),
        )
        return [record[0] for record in records]

    async def divide_window(self, window: Window, after: str | None, limit: int) -> Sequence[ChunkBounds]:  # type: ignore[override]  # has no parameter `index_hint`
        arguments = windows.divide_arguments(window, after, limit)
        records = await self._fetch_long(windows.divide_statement(window), *arguments)
        return [ChunkBounds(*record) for record in records]

    async def divide_and_render(
        self, window: Window, after: str | None, limit: int, template: Template
    ) -> Sequence[DividedChunk]:
        statement = windows.divide_and_render_statement(window, template)
        arguments = windows.divide_and_render_arguments(window, after, limit, template)
        # Although this is a short read, it counts towards the limit on concurrent long reads. Otherwise this read and
        # `render_chunks` could occupy all connections for reads at the same time.
        async with self._long_reads:
            records = await self._fetch_short(statement, *arguments)
        return [DividedChunk(ChunkBounds(*record[:4]), Records(record[4], *record[2:4])) for record in records]

    async def render_chunks(self, window: Window, chunks: Sequence[Chunk], template: Template) -> Sequence[Records]:
        """Renders several chunks in a short read, so that they do not queue behind the long reads that divide windows.
        Renders a single chunk in a long read, which has more time: a caller whose short read took too long repeats it
        chunk by chunk.
        """
        statement = windows.render_statement(window, template)
        arguments = windows.render_arguments(window, chunks, template)
        fetch = self._fetch_long if len(chunks) == 1 else self._fetch_short
        return [Records(*record) for record in await fetch(statement, *arguments)]

    async def find_chunks(self, submission_ids: Sequence[str]) -> Sequence[tuple[Window, Chunk]]:
        # The executor asks for each batch of chunks that it sends. The shared read takes several times as long.
        return rows.found_chunks(await self._call(statements.FIND_CHUNKS, rows.array(submission_ids)))

    async def find_delivered_windows(self, submission_ids: Sequence[str]) -> Sequence[Window]:
        # The executor calls this method after each batch of attempts, and few batches complete a window. So first make
        # a hot call, which takes a fraction of the time of the read.
        if not await self._call(statements.COMPLETES_WINDOW, rows.array(submission_ids)):
            return []
        return await super().find_delivered_windows(submission_ids)

    async def store_digests(self, fence: Fence, digests: Sequence[ChunkDigest]) -> Mapping[str, bool]:
        submission_ids = rows.array([digest.submission_id for digest in digests])
        contents = [digest.digest for digest in digests]
        records = await self._call(statements.STORE_DIGESTS, *astuple(fence), submission_ids, contents)
        return {str(submission_id): same for submission_id, same in records}

    async def save_mark(self, fence: Fence, mark: Mark, sums: Sequence[MarkSums]) -> None:
        columns = zip(*sums, strict=True) if sums else [()] * len(MarkSums._fields)
        arrays = [rows.array([str(value) for value in column]) for column in columns]
        await self._call(statements.SAVE_MARK, *astuple(fence), mark.at, mark.series, mark.state.value, *arrays)

    async def delete_mark(self, fence: Fence, at: datetime, limit: int) -> int:
        (record,) = await self._call(statements.DELETE_MARK, *astuple(fence), at, limit)
        deleted: int = record[0]
        return deleted

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        (record,) = await self._call(statements.PRUNE_USAGE, *astuple(fence), limit, USAGE_KEPT // MICROSECOND)
        return PrunedUsage(*record)

    async def create_key(self, new: NewKey, actor: Actor) -> CreateKeyResult:
        records = await self._call(
            statements.CREATE_KEY,
            new.public_id,
            new.name,
            new.role.value,
            new.tenant_object_id,
            new.digest,
            new.expires_at,
            new.others_expire_at,
            LIVE_KEYS_PER_NAME,
            rows.actor_text(actor),
            creation_detail(new),
        )
        return create_result(new, rows.key(records[0]) if records else None)

    async def revoke_key(self, public_id: str, actor: Actor) -> StoredKey | None:
        records = await self._call(statements.REVOKE_KEY, public_id, rows.actor_text(actor))
        return rows.key(records[0]) if records else None

    async def find_key(self, public_id: str) -> StoredKey | None:
        records = await self._call(statements.FIND_KEY, public_id)
        return rows.key(records[0]) if records else None

    async def read_keys_version(self) -> KeysVersion:
        """Uses the connection that listens for notifications, so that this read does not queue behind the calls of
        requests.
        """
        records = await self._hot_retries.run(
            lambda: self._watching.fetch(statements.READ_KEYS_VERSION, (), only_reads=True)
        )
        return version_of(records)

    async def rotate_signing_key(self, new: SigningKey, overlap: timedelta | None, actor: Actor) -> RotateOutcome:
        ((outcome,),) = await self._call(
            statements.ROTATE_SIGNING_KEY,
            new.key_id,
            new.secret,
            None if overlap is None else overlap // MICROSECOND,
            SIGNING_KEYS_MAX,
            rows.actor_text(actor),
            rotation_detail(overlap),
        )
        return RotateOutcome(outcome)

    async def touch_keys(self, used_at: Mapping[str, datetime]) -> None:
        await self._call(statements.TOUCH_KEYS, list(used_at.keys()), list(used_at.values()))

    async def update_alerts(
        self, fence: Fence, conditions: Sequence[Condition], contract: Contract | None
    ) -> AlertChanges:
        records = await self._call(
            statements.UPDATE_ALERTS,
            *astuple(fence),
            rows.array([new_id() for _ in conditions]),
            [condition.alert.value for condition in conditions],
            [condition.subject or "" for condition in conditions],
            [condition.detail[:ERROR_MAX] for condition in conditions],
            None if contract is None else submissions.contract_text(contract),
            rows.array([] if contract is None else [new_id() for _ in range(len(conditions) + CONDITIONS_MAX)]),
        )
        return alerts.changes_from_values([rows.values_of(record) for record in records], fence.epoch)

    async def publish_events(self, pause_microseconds: int) -> datetime:
        """Takes two transactions, or only the first one if the horizon was moved within the last `pause_microseconds`.
        The first transaction returns the instant `stamped_after`. Session writes that begin after the first transaction
        get timestamps after this instant, so none of them has to wait for the second transaction.
        """
        ((published_at, stamped_after),) = await self._call(statements.BEGIN_PUBLISHING, pause_microseconds)
        if stamped_after is None:
            return published_at  # type: ignore[no-any-return]
        (record,) = await self._call(statements.FINISH_PUBLISHING, stamped_after)
        return record[0]  # type: ignore[no-any-return]

    async def subscribe_gateways(self, fence: Fence, gateways: Sequence[str]) -> Sequence[EventSubscription]:
        records = await self._call(statements.SUBSCRIBE_GATEWAYS, *astuple(fence), list(gateways))
        return [rows.event_subscription(record) for record in records]

    async def save_event_batch(self, fence: Fence, batch: NewEventBatch) -> bool:
        (record,) = await self._call(
            statements.SAVE_EVENT_BATCH,
            *astuple(fence),
            batch.gateway,
            batch.number,
            *astuple(batch.start),
            *astuple(batch.end),
            types_text(batch.types),
            batch.events,
            batch.digest,
            batch.submission_id,
            submissions.contract_text(batch.contract),
        )
        return bool(record[0])

    async def read_server(self) -> ServerFacts:
        return await self._read(doctor.read_server)

    async def read_churn(self) -> Sequence[TableChurn]:
        return await self._read(doctor.read_churn)

    async def detect_pooler(self) -> PoolerMode:
        return PoolerMode.TRANSACTION if await self._detect_pooler(doctor.POOLER_SECONDS) else PoolerMode.NONE

    def describe_file(self) -> FileFacts | None:
        return None

    async def migrate(self) -> Sequence[str]:
        def upgrade(connection: Connection) -> Sequence[str]:
            set_timeouts(connection, MIGRATION_SECONDS)
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            return migrate.upgrade(connection)

        async def run() -> Sequence[str]:
            async with self._engine.begin() as connection:
                return await connection.run_sync(upgrade)

        await self._refuse_pooler()
        return await self._retries.run(run, MIGRATION_SECONDS)
