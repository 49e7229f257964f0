"""Accepts submissions and commands on any instance, and notifies the executor."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from enum import Enum
from functools import partial
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from tenure.batching.coalescer import Coalescer
from tenure.config.values import GATEWAYS
from tenure.domain.audit_log import Action, Actor, AuditDraft
from tenure.domain.submissions import (
    SubmissionCommand,
    SubmissionFilter,
    SubmissionState,
    SubmitRequest,
    SubmitResult,
)
from tenure.errors import DatabaseUnavailable, Overloaded
from tenure.ids import new_id
from tenure.store.contract import Store
from tenure.store.limits import BATCH_MAX
from tenure.submissions.executor import Executor
from tenure.submissions.gateways import Gateway
from tenure.telemetry.events import Telemetry
from tenure.telemetry.trace_context import current_traceparent

ANNOUNCE_PAUSE_SECONDS = 0.05
"""The pause between two notifications to other instances, however many submissions are accepted."""
WORTH_ANOTHER = 16
"""The minimum size of a batch of submissions that is sent while another batch is running and not overdue. The number is
lower than for requests about sessions, because submissions are larger."""
BATCH_BYTES = 1024 * 1024
WAITING_BYTES = 64 * 1024 * 1024
DEFAULT_STATES = {
    SubmissionCommand.RETRY: [SubmissionState.FAILED.value],
    SubmissionCommand.CANCEL: [SubmissionState.PENDING.value, SubmissionState.FAILED.value],
}
"""The states that a command by filter applies to if the filter names no state."""
STATES_AFTER = {
    SubmissionCommand.RETRY: SubmissionState.PENDING,
    SubmissionCommand.CANCEL: SubmissionState.CANCELLED,
}
ACTIONS = {
    SubmissionCommand.RETRY: Action.SUBMISSION_RETRIED,
    SubmissionCommand.CANCEL: Action.SUBMISSION_CANCELLED,
}
BULK_TARGET = "submissions"
"""The target of the audit entry of a command by filter."""


class SubmitOutcome(Enum):
    ACCEPTED = "accepted"
    """Accepted now, or by an earlier request with the same idempotency key and payload."""
    KEY_REUSED = "key-reused"
    GATEWAY_RESERVED = "gateway-reserved"
    UNKNOWN_GATEWAY = "unknown-gateway"


class Submitted(msgspec.Struct, frozen=True):
    outcome: SubmitOutcome
    submission_id: str = ""
    state: str = ""


Done = Callable[[Submitted | Exception], None]


class Acceptor:
    def __init__(self, store: Store, gateways: Mapping[str, Gateway], executor: Executor, telemetry: Telemetry) -> None:
        self._store = store
        self._gateways = gateways
        self._announcer = Announcer(store, executor)
        self._coalescer = Coalescer[SubmitRequest, SubmitResult](
            self._accept, store.batches_in_flight, telemetry, WORTH_ANOTHER
        )
        self._waiting_bytes = 0

    def submit(
        self, gateway: str, caller: str, key: str, payload: bytes, done: Done, request_id: str | None = None
    ) -> None:
        """Calls `done` with the result after the commit, or with the error. If the gateway is refused, calls `done` at
        once. Raises `Overloaded` if too many bytes or requests are waiting.

        Each caller has its own idempotency keys. The request id is stored, so that it can be logged with each attempt.
        """
        if gateway in GATEWAYS:
            done(Submitted(SubmitOutcome.GATEWAY_RESERVED))
            return
        if gateway not in self._gateways:
            done(Submitted(SubmitOutcome.UNKNOWN_GATEWAY))
            return
        if self._waiting_bytes + len(payload) > WAITING_BYTES:
            raise Overloaded(f"{self._waiting_bytes} bytes are already waiting for the database")
        contract = self._gateways[gateway].contract
        request = SubmitRequest(
            new_id(),
            gateway,
            caller,
            key,
            payload,
            sha256(payload).digest(),
            contract,
            request_id,
            current_traceparent(),
        )
        self._coalescer.submit(request, partial(self._finish, len(payload), done))
        self._waiting_bytes += len(payload)

    def _finish(self, size: int, done: Done, result: SubmitResult | Exception) -> None:
        self._waiting_bytes -= size
        if isinstance(result, Exception):
            done(result)
        else:
            outcome = SubmitOutcome.ACCEPTED if result.same else SubmitOutcome.KEY_REUSED
            done(Submitted(outcome, result.submission_id, result.state))

    async def _accept(self, requests: Sequence[SubmitRequest]) -> Sequence[SubmitResult]:
        results: list[SubmitResult] = []
        for batch in _batches(requests):
            results += await self._store.accept_submissions(batch)
        if any(result.new for result in results):
            self._announcer.announce()
        return results

    async def command(
        self, command: SubmissionCommand, submission_id: str, owner: str | None, actor: Actor
    ) -> bool | None:
        """Returns whether the command was carried out; None if the submission does not exist, or has another owner."""
        draft = AuditDraft(new_id(), actor, ACTIONS[command], submission_id, f"now {STATES_AFTER[command].value}")
        return (await self._command(command, [submission_id], owner, draft)).get(submission_id)

    async def _command(
        self, command: SubmissionCommand, submission_ids: Sequence[str], owner: str | None, draft: AuditDraft
    ) -> Mapping[str, bool]:
        done = await self._store.command_submissions(command, submission_ids, owner, draft)
        if command is SubmissionCommand.RETRY and any(done.values()):
            self._announcer.announce()
        return done

    async def command_all(self, command: SubmissionCommand, criteria: SubmissionFilter, actor: Actor) -> int:
        """Applies the command to all submissions that match, and returns for how many it was carried out.

        If the filter has no state, submissions in the states of DEFAULT_STATES match. All transactions share one audit
        entry.
        """
        states = DEFAULT_STATES[command] if criteria.state is None else [criteria.state]
        draft = AuditDraft(new_id(), actor, ACTIONS[command], BULK_TARGET, _filter_text(criteria, states))
        counts = [await self._command_pages(command, replace(criteria, state=state), draft) for state in states]
        return sum(counts)

    async def _command_pages(self, command: SubmissionCommand, criteria: SubmissionFilter, draft: AuditDraft) -> int:
        """Applies the command page by page, so that no transaction exceeds the time limit of a write."""
        count, before = 0, None
        while True:
            found = await self._store.list_submissions(criteria, before, BATCH_MAX)
            if found:
                done = await self._command(command, [each.submission_id for each in found], None, draft)
                count += sum(done.values())
            if len(found) < BATCH_MAX:
                return count
            before = found[-1].submission_id


class Announcer:
    """Wakes the executor: directly if it runs on this instance, else by a notification, at a limited rate."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._again = False
        self._announcing: asyncio.Task[None] | None = None

    def announce(self) -> None:
        if self._executor.is_working:
            self._executor.hint()
            return
        self._again = True
        if self._announcing is None:
            # An empty context: the task notifies for many submissions, so it must not belong to the trace of the first.
            self._announcing = asyncio.create_task(self._announce(), context=Context())

    async def _announce(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._store.announce_submissions()
                await asyncio.sleep(ANNOUNCE_PAUSE_SECONDS)
        except DatabaseUnavailable:
            pass  # the executor also reads new submissions every `refresh_seconds`
        finally:
            self._announcing = None


def _filter_text(criteria: SubmissionFilter, states: Sequence[str]) -> str:
    """The filter of a command, for the audit log."""
    of_states = f"state {' or '.join(states)}"
    return of_states if criteria.gateway is None else f"gateway {criteria.gateway}, {of_states}"


def _batches(requests: Sequence[SubmitRequest]) -> Iterator[Sequence[SubmitRequest]]:
    """Divides the requests into batches of at most BATCH_BYTES each, so that no transaction takes too long."""
    batch: list[SubmitRequest] = []
    size = 0
    for request in requests:
        if batch and size + len(request.payload) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += len(request.payload)
    yield batch
