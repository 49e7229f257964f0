"""The store on SQLite: one file, one writer. `client.py` explains its connections, threads and locks."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection

from tenure.domain.activity import MinuteCounts
from tenure.domain.alerts import AlertChanges, Condition
from tenure.domain.audit_log import Actor, AuditDraft
from tenure.domain.capacities import Capacity, Seats
from tenure.domain.doctor import FileFacts, PoolerMode, ServerFacts, TableChurn
from tenure.domain.events import EventSubscription, NewEventBatch
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
    SubmissionCommand,
    SubmissionStatus,
    SubmitRequest,
    SubmitResult,
)
from tenure.domain.usage import (
    ChunkBounds,
    ChunkDigest,
    Cut,
    CutRules,
    Mark,
    MarkSums,
    PrunedUsage,
    WindowToSend,
)
from tenure.store import migrate
from tenure.store.contract import Topic
from tenure.store.contract.sessions import OpenLane
from tenure.store.engines.sqlite import (
    alerts,
    capacities,
    events,
    importing,
    instances,
    jobs,
    keys,
    leases,
    opening,
    sessions,
    streams,
    submissions,
    usage,
)
from tenure.store.engines.sqlite.client import SqliteClient
from tenure.store.engines.sqlite.connections import immediate
from tenure.store.reads.session_list import narrowed_filter
from tenure.store.reads.sessions import read_now
from tenure.store.reads.shared import SharedReads

T = TypeVar("T")

MIGRATION_SECONDS = 60


class SqliteStore(SqliteClient, SharedReads):
    dialect_name = "sqlite"
    batches_in_flight = 1
    may_start_limited = False

    async def open_sessions(
        self, lane: OpenLane, requests: Sequence[OpenRequest], limits: Limits
    ) -> Sequence[OpenResult]:
        """Ignores the lane. Lanes prevent deadlocks between concurrent writers, and SQLite has only one writer."""
        del lane
        return await self._write(lambda connection, now: opening.open_sessions(connection, now, requests, limits))

    async def import_sessions(
        self, imported: Sequence[ImportedSession], draft: AuditDraft, *, writes: bool
    ) -> Sequence[ImportOutcome]:
        return await self._write(
            lambda connection, now: importing.import_sessions(connection, now, imported, draft, writes=writes)
        )

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatResult]:
        return await self._write(lambda connection, now: sessions.heartbeat(connection, now, heartbeats))

    async def end_sessions(self, ends: Sequence[EndRequest]) -> Sequence[EndResult]:
        return await self._write(lambda connection, now: sessions.end_sessions(connection, now, ends))

    async def end_matching(
        self, session_ids: Sequence[str], criteria: SessionFilter, scope: Scope, draft: AuditDraft
    ) -> EndManyResult:
        narrowed = narrowed_filter(criteria, scope)
        if narrowed is None:
            return EndManyResult([])
        return await self._write(
            lambda connection, now: sessions.end_matching(connection, now, session_ids, narrowed, draft)
        )

    async def expire_sessions(self, fence: Fence, limit: int) -> SweepResult:
        def expire(connection: Connection, now: datetime) -> SweepResult:
            leases.check_fence(connection, fence)
            return sessions.expire_sessions(connection, now, limit)

        return await self._write(expire)

    async def attach_streams(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        return await self._write(lambda connection, now: streams.attach_streams(connection, now, attaches))

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdateResult]:
        return await self._write(lambda connection, now: streams.update_streams(connection, now, updates))

    async def put_capacity(self, capacity_id: str, seats: Seats, scope: Scope, actor: Actor) -> Capacity | None:
        return await self._write(
            lambda connection, now: capacities.put_capacity(connection, now, capacity_id, seats, scope, actor)
        )

    async def delete_capacity(self, capacity_id: str, scope: Scope, actor: Actor) -> Capacity | None:
        return await self._write(
            lambda connection, now: capacities.delete_capacity(connection, now, capacity_id, scope, actor)
        )

    async def acquire_lease(self, name: str, holder: str, attempt: str, duration_microseconds: int) -> AcquireResult:
        return await self._write_lease(
            lambda connection, now: leases.acquire_lease(connection, now, name, holder, attempt, duration_microseconds)
        )

    async def renew_lease(self, fence: Fence, duration_microseconds: int) -> Lease:
        return await self._write_lease(
            lambda connection, now: leases.renew_lease(connection, now, fence, duration_microseconds)
        )

    async def release_lease(self, fence: Fence) -> Lease:
        return await self._write_lease(lambda connection, now: leases.release_lease(connection, now, fence))

    async def resign_lease(self, name: str, actor: Actor) -> Lease | None:
        return await self._write_lease(lambda connection, now: leases.resign_lease(connection, now, name, actor))

    def listen(self, topic: Topic, wake: Callable[[], None]) -> None:
        """SQLite sends no notifications."""

    def listen_for_ends(self, ended: Callable[[str, str], None], check: Callable[[], None]) -> None:
        """SQLite sends no notifications. Streams find the end of their session with their next keep-alive."""

    async def register_jobs(self, settings: Sequence[JobSettings]) -> None:
        await self._write_lease(lambda connection, now: jobs.register_jobs(connection, now, settings))

    async def begin_run(self, job: str, holder: str, attempt: str) -> BeginRunResult:
        return await self._write_lease(lambda connection, now: jobs.begin_run(connection, now, job, holder, attempt))

    async def finish_run(self, fence: Fence, outcome: RunOutcome, error: str | None, retry_microseconds: int) -> None:
        await self._write_lease(
            lambda connection, now: jobs.finish_run(connection, now, fence, outcome, error, retry_microseconds)
        )

    async def command_job(self, job: str, command: JobCommand, actor: Actor) -> Job | None:
        return await self._write_lease(lambda connection, now: jobs.command_job(connection, now, job, command, actor))

    async def prune(self, fence: Fence, limit: int) -> Pruned:
        return await self._write_lease(lambda connection, _now: jobs.prune(connection, fence, limit))

    async def accept_submissions(self, requests: Sequence[SubmitRequest]) -> Sequence[SubmitResult]:
        return await self._write_by_plain_clock(
            lambda connection, now: submissions.accept_submissions(connection, now, requests)
        )

    async def announce_submissions(self) -> None:
        """SQLite sends no notifications."""

    async def begin_attempts(
        self, fence: Fence, submission_ids: Sequence[str], early: Sequence[str] = ()
    ) -> BeginAttemptsResult:
        return await self._write_by_plain_clock(
            lambda connection, now: submissions.begin_attempts(connection, now, fence, submission_ids, early)
        )

    async def finish_attempts(self, fence: Fence, ends: Sequence[AttemptEnd]) -> Sequence[SubmissionStatus]:
        def finish(connection: Connection, now: datetime) -> Sequence[SubmissionStatus]:
            moved = submissions.finish_attempts(connection, now, fence, ends)
            usage.deliver_chunks(connection, now, moved, {end.submission_id for end in ends if end.has_receipt})
            return moved

        return await self._write_by_plain_clock(finish)

    async def note_waiting_reason(self, fence: Fence, submission_ids: Sequence[str], error: str) -> None:
        await self._write_by_plain_clock(
            lambda connection, _now: submissions.note_waiting_reason(connection, fence, submission_ids, error)
        )

    async def command_submissions(
        self, command: SubmissionCommand, submission_ids: Sequence[str], owner: str | None, draft: AuditDraft
    ) -> Mapping[str, bool]:
        return await self._write_by_plain_clock(
            lambda connection, now: submissions.command_submissions(
                connection, now, command, submission_ids, owner, draft
            )
        )

    async def cut_usage(self, fence: Fence, rules: CutRules, limit: int) -> Cut:
        return await self._write_by_plain_clock(
            lambda connection, now: usage.cut_usage(connection, now, fence, rules, limit)
        )

    async def save_chunks(
        self, fence: Fence, window_id: int, first: int, bounds: Sequence[ChunkBounds], *, complete: bool
    ) -> None:
        def save(connection: Connection, now: datetime) -> None:
            usage.save_chunks(connection, now, fence, window_id, first, bounds, complete=complete)

        await self._write_by_plain_clock(save)

    async def send_windows(
        self, contract: Contract, windows: Sequence[WindowToSend], draft: AuditDraft
    ) -> Sequence[int]:
        return await self._write_by_plain_clock(
            lambda connection, now: usage.send_windows(connection, now, contract, windows, draft)
        )

    async def store_digests(self, fence: Fence, digests: Sequence[ChunkDigest]) -> Mapping[str, bool]:
        return await self._write_by_plain_clock(
            lambda connection, _now: usage.store_digests(connection, fence, digests)
        )

    async def save_mark(self, fence: Fence, mark: Mark, sums: Sequence[MarkSums]) -> None:
        await self._write_by_plain_clock(lambda connection, _now: usage.save_mark(connection, fence, mark, sums))

    async def delete_mark(self, fence: Fence, at: datetime, limit: int) -> int:
        return await self._write_by_plain_clock(
            lambda connection, _now: usage.delete_mark(connection, fence, at, limit)
        )

    async def prune_usage(self, fence: Fence, limit: int) -> PrunedUsage:
        return await self._write_by_plain_clock(
            lambda connection, now: usage.prune_usage(connection, now, fence, limit)
        )

    async def create_key(self, new: NewKey, actor: Actor) -> CreateKeyResult:
        return await self._write_by_plain_clock(lambda connection, now: keys.create_key(connection, now, new, actor))

    async def revoke_key(self, public_id: str, actor: Actor) -> StoredKey | None:
        return await self._write_by_plain_clock(
            lambda connection, now: keys.revoke_key(connection, now, public_id, actor)
        )

    async def rotate_signing_key(self, new: SigningKey, overlap: timedelta | None, actor: Actor) -> RotateOutcome:
        return await self._write_by_plain_clock(
            lambda connection, now: keys.rotate_signing_key(connection, now, new, overlap, actor)
        )

    async def touch_keys(self, used_at: Mapping[str, datetime]) -> None:
        await self._write_by_plain_clock(lambda connection, now: keys.touch_keys(connection, now, used_at))

    async def update_alerts(
        self, fence: Fence, conditions: Sequence[Condition], contract: Contract | None
    ) -> AlertChanges:
        return await self._write_by_plain_clock(
            lambda connection, now: alerts.update_alerts(connection, now, fence, conditions, contract)
        )

    async def publish_events(self, pause_microseconds: int) -> datetime:
        return await self._write(lambda connection, now: events.publish_events(connection, now, pause_microseconds))

    async def subscribe_gateways(self, fence: Fence, gateways: Sequence[str]) -> Sequence[EventSubscription]:
        return await self._write(lambda connection, now: events.subscribe_gateways(connection, now, fence, gateways))

    async def save_event_batch(self, fence: Fence, batch: NewEventBatch) -> bool:
        return await self._write_by_plain_clock(
            lambda connection, now: events.save_event_batch(connection, now, fence, batch)
        )

    async def read_server(self) -> ServerFacts:
        return ServerFacts(now=await self._read(read_now))

    async def read_churn(self) -> Sequence[TableChurn]:
        """SQLite keeps no statistics of inserted, updated and dead rows."""
        return []

    async def detect_pooler(self) -> PoolerMode:
        return PoolerMode.NONE

    def describe_file(self) -> FileFacts | None:
        return self._file.describe()

    async def save_instance(self, report: InstanceReport) -> datetime:
        return await self._write_by_plain_clock(
            lambda connection, now: instances.save_instance(connection, now, report)
        )

    async def save_activity(self, instance: str, minutes: Sequence[MinuteCounts]) -> None:
        await self._write_by_plain_clock(
            lambda connection, _now: instances.save_activity(connection, instance, minutes)
        )

    async def _write_by_plain_clock(self, work: Callable[[Connection, datetime], T]) -> T:
        """Passes the time of the plain clock (`lease_now`) to `work`. This time may be before the last cut, so `work`
        must not be a session write.
        """
        return await self._write(work, leases.lease_now)

    async def migrate(self) -> Sequence[str]:
        return await self._retries.run(
            lambda: self._writer.run(lambda connection: immediate(connection, migrate.upgrade)),
            MIGRATION_SECONDS,
        )
