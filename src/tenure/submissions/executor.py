"""The executor: the work of the holder of lease `submission-executor`.

One **term** is one epoch of the lease. It starts by closing attempts that earlier epochs left open, and by building a
schedule of all pending submissions. Then three loops run until the lease is lost or the instance stops:

- *intake* keeps the schedule up to date with the database (`intake.py`);
- *dispatch* takes submissions that are due, records their attempts and sends them. Each gateway has its own limit on
  concurrent requests, so a receiver that does not answer delays only its own submissions. Payload sources render while
  the attempts are being recorded. The digests of rendered payloads are stored before anything is sent;
- *recording* closes attempts with their outcome, and puts submissions that must be sent again back into the schedule.

When a gateway answers again after an outage, dispatch also takes submissions that are not due yet (`recovery.py`).

How the executor recovers from an interruption:

- before an attempt is recorded: nothing has been sent or written, and the next term sends the submission;
- an attempt is recorded, but the response of the database is lost: the store repeats the call, the database returns the
  open attempt of this epoch, and the executor continues with this attempt;
- after an attempt is recorded, but before its outcome is recorded: the attempt stays open. The next term closes it as
  `unknown` and sends the submission again. The receiver must recognise the repeated delivery key;
- the process is paused until after its lease expired: the executor checks the lease right before sending, and the
  database refuses every write that carries the old fence. A request that is already on the network cannot be recalled;
- the database does not answer, and the retries of the store fail, too: the term ends, and an instance that can reach
  the database acquires the lease.

An instance that is stopping sends no new requests, waits up to ANSWERS_SECONDS for outstanding responses, and records
the outcomes of all attempts before it releases its lease.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from tenure.clock import ServerClock, monotonic, to_microseconds
from tenure.domain.leases import Fence
from tenure.domain.submissions import (
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptOutcome,
    BeginAttemptResult,
    BeginAttemptsResult,
    Contract,
    Envelope,
    OpenAttempt,
    SubmissionState,
    SubmissionStatus,
)
from tenure.domain.verdicts import Response
from tenure.errors import LeaseLost
from tenure.ids import number_of_id
from tenure.leases.held import HeldLease
from tenure.leases.waiting import is_set_within
from tenure.store.contract import Store
from tenure.store.limits import BATCH_MAX
from tenure.submissions.gateway_queue import (
    GatewayQueue,
    ReadyAttempt,
    abandoned,
    judged,
    not_sent,
    orphaned,
    response_of,
    unknown,
)
from tenure.submissions.gateways import Gateway, Sender
from tenure.submissions.intake import Intake
from tenure.submissions.payloads import Payloads, PayloadSources
from tenure.submissions.schedule import entry_of
from tenure.telemetry.events import (
    AttemptEnded,
    ExecutorStarted,
    ExecutorStopped,
    GatewayFailing,
    GatewayRecovered,
    SubmissionFailed,
    SubmissionNotSent,
    SubmissionsFoundLate,
    Telemetry,
)

COMPARE_SECONDS = 60.0
HINT_PAUSE_SECONDS = 0.02
"""The shortest pause between two reads, however many hints arrive."""
READ_IDLE_RATIO = 9
"""Intake pauses for this many times the duration of its last read, but at most for `refresh_seconds`. So reading takes
at most a tenth of the time, unless a single read takes longer than a ninth of `refresh_seconds`."""
REFRESH_PAUSE_MAX_SECONDS = 5.0
"""The limit on the pause that a slow refresh causes before the next refresh, unless `refresh_seconds` is longer.
Between two refreshes, the cheaper reads of the most recent changes find all submissions except those that were
committed late."""
RECORD_PAUSE_SECONDS = 0.002
"""The pause between two batches of outcomes, so that each transaction records several outcomes."""
HELD_PAUSE_MICROSECONDS = 200_000
DISPATCH_PAUSE_MAX_SECONDS = 60.0
CLOSE_MAX = BATCH_MAX
ANSWERS_SECONDS = 3.0
"""How long an instance that stops waits for outstanding responses."""
GRACE_SECONDS = 5.0
"""How long the executor may take in total to stop."""


class Executor:
    def __init__(
        self,
        store: Store,
        gateways: Mapping[str, Gateway],
        sources: PayloadSources,
        sender: Sender,
        refresh_seconds: float,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._gateways = gateways
        self._sources = sources
        self._sender = sender
        self._refresh_seconds = refresh_seconds
        self._telemetry = telemetry
        self._term: _Term | None = None

    @property
    def is_working(self) -> bool:
        return self._term is not None

    def hint(self) -> None:
        """Wakes intake, because submissions are due: accepted, created by Tenure itself, or retried by command."""
        if self._term is not None:
            self._term.hinted.set()

    async def work(self, held: HeldLease) -> None:
        """Runs the executor for one epoch of the lease. Returns only if the instance stops."""
        self._term = _Term(
            self._store, self._gateways, self._sources, self._sender, self._refresh_seconds, held, self._telemetry
        )
        try:
            await self._term.run()
        finally:
            self._term = None


class _Term:
    def __init__(
        self,
        store: Store,
        gateways: Mapping[str, Gateway],
        sources: PayloadSources,
        sender: Sender,
        refresh_seconds: float,
        held: HeldLease,
        telemetry: Telemetry,
    ) -> None:
        self.hinted = asyncio.Event()
        self._store = store
        self._sources = sources
        self._sender = sender
        self._refresh_seconds = refresh_seconds
        self._held = held
        self._telemetry = telemetry
        self._clock = ServerClock()
        self._intake = Intake(store, self._clock)
        self._schedule = self._intake.schedule
        self._queues = {name: GatewayQueue(gateway) for name, gateway in gateways.items()}
        self._due = asyncio.Event()
        self._sends: set[asyncio.Task[Response]] = set()
        self._under_way: set[str] = set()
        """Submissions with an attempt that was begun and whose outcome is not recorded yet. Dispatch skips them: a
        submission that was retried by command may have two entries in the schedule, and the second entry may become due
        while the attempt of the first one is in progress."""
        self._ends: deque[tuple[GatewayQueue, Envelope, AttemptEnd]] = deque()
        self._ended = asyncio.Event()
        self._beginning: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            if await self._start_unless_stopped():
                await self._run_loops()
        except BaseExceptionGroup as group:
            raise _most_relevant(group) from group
        finally:
            for queue in self._queues.values():
                queue.ready.clear()
            for sending in self._sends:
                sending.cancel()

    async def _start_unless_stopped(self) -> bool:
        """Starts the term. Returns False if the instance stops first; then no attempt is in progress."""
        starting = asyncio.ensure_future(self._start())
        ending = asyncio.ensure_future(self._held.ending.wait())
        try:
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            return starting.done() and starting.result() is None
        finally:
            starting.cancel()
            ending.cancel()

    async def _start(self) -> None:
        began = monotonic()
        orphaned = await self._close_orphaned_attempts()
        await self._intake.build()
        # Raises if the lease was lost while the schedule was being built.
        self._held.check()
        seconds = round(monotonic() - began, 3)
        self._telemetry.report(ExecutorStarted(self._held.epoch, len(self._schedule), orphaned, seconds))

    async def _close_orphaned_attempts(self) -> int:
        closed = 0
        while True:
            found = await self._store.list_orphaned_attempts(self._held.epoch, CLOSE_MAX)
            if found:
                await self._close_orphaned(found)
            closed += len(found)
            if len(found) < CLOSE_MAX:
                return closed

    async def _close_orphaned(self, found: Sequence[OpenAttempt]) -> None:
        ends = {attempt.submission_id: orphaned(attempt) for attempt in found}
        gateways = {attempt.submission_id: attempt.gateway for attempt in found}
        for moved in await self._store.finish_attempts(self._held.fence, list(ends.values())):
            gateway, end = gateways[moved.submission_id], ends[moved.submission_id]
            self._report_ended(gateway, end, None)
            if moved.state == SubmissionState.FAILED and end.pause_microseconds is None:
                self._telemetry.report(SubmissionFailed(moved.submission_id, gateway, end.error))

    async def _run_loops(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(self._run_intake()), tasks.create_task(self._dispatch(tasks))]
            recording = tasks.create_task(self._record())
            await self._held.ending.wait()
            for loop in loops:
                loop.cancel()
            await self._wind_down()
            recording.cancel()

    # Intake.

    async def _run_intake(self) -> None:
        """Reads every `refresh_seconds`, or sooner after a hint.

        Reading should take at most a tenth of the time (READ_IDLE_RATIO), so that the instance can do its other work
        even if many submissions change. But a pause after a long read is at most `refresh_seconds`, because a new
        submission must not wait longer.
        """
        refreshed_at = compared_at = paused_at = monotonic()
        refresh_pause = self._refresh_seconds
        while True:
            await is_set_within(self.hinted, self._refresh_seconds - (monotonic() - paused_at))
            self.hinted.clear()
            read_at = monotonic()
            if read_at - refreshed_at >= refresh_pause:
                refreshed_at = read_at
                await self._intake.refresh()
                idle = min(READ_IDLE_RATIO * (monotonic() - read_at), REFRESH_PAUSE_MAX_SECONDS)
                refresh_pause = max(self._refresh_seconds, idle)
                if read_at - compared_at >= COMPARE_SECONDS:
                    compared_at = read_at
                    await self._compare()
            else:
                await self._intake.read_recent()
            self._due.set()
            paused_at = monotonic()
            idle = max(HINT_PAUSE_SECONDS, READ_IDLE_RATIO * (paused_at - read_at))
            await asyncio.sleep(min(idle, self._refresh_seconds))

    async def _compare(self) -> None:
        found = await self._intake.compare()
        if found:
            self._telemetry.report(SubmissionsFoundLate(found))

    # Dispatch.

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._due.clear()
            is_sorting = self._sort_backlogs()
            for gateway in self._schedule.gateways():
                self._begin_due(gateway, tasks)
            await is_set_within(self._due, 0.0 if is_sorting else self._seconds_until_due())

    def _sort_backlogs(self) -> bool:
        """Sorts the next part of each backlog. Returns whether a part is left."""
        is_sorting = False
        for queue in self._queues.values():
            recovery, backlog = queue.recovery, queue.recovery.backlog
            if backlog is None or backlog.is_sorted:
                continue
            is_sorted = backlog.sort_some()
            is_sorting |= not is_sorted
            if is_sorted and recovery.is_reported:
                recovery.is_reported = False
                self._telemetry.report(GatewayRecovered(queue.gateway.name, backlog.size))
        return is_sorting

    def _begin_due(self, gateway: str, tasks: asyncio.TaskGroup) -> None:
        room = self._room(gateway)
        if room <= 0:
            return
        self._held.check()
        queue = self._queues.get(gateway)
        early = [] if queue is None else [each for each in queue.recovery.take(room) if each not in self._under_way]
        due = self._schedule.take(gateway, self._clock.now_microseconds(), room - len(early))
        taken = [*early, *(each for each in due if each not in self._under_way and each not in early)]
        if taken:
            work = self._note_unknown_gateway(gateway, taken) if queue is None else self._begin(queue, taken, early)
            self._beginning[gateway] = beginning = tasks.create_task(work)
            beginning.add_done_callback(partial(self._begun, gateway))

    def _begun(self, gateway: str, _beginning: asyncio.Task[None]) -> None:
        del self._beginning[gateway]
        self._due.set()

    def _room(self, gateway: str) -> int:
        """How many attempts may be begun now. For each gateway, only one batch of attempts is begun at a time."""
        if gateway in self._beginning:
            return 0
        queue = self._queues.get(gateway)
        return BATCH_MAX if queue is None else queue.room

    def _seconds_until_due(self) -> float:
        """Seconds until the next submission is due at a gateway that has room for another attempt."""
        now = self._clock.now_microseconds()
        waiting = [
            due - now
            for gateway in self._schedule.gateways()
            if self._room(gateway) > 0 and (due := self._schedule.next_due(gateway)) is not None
        ]
        return min([DISPATCH_PAUSE_MAX_SECONDS, *(microseconds / 1_000_000 for microseconds in waiting)])

    async def _note_unknown_gateway(self, gateway: str, submission_ids: Sequence[str]) -> None:
        """Stores why these submissions are not sent. They stay pending until an instance with this gateway leads."""
        await self._store.note_waiting_reason(self._held.fence, submission_ids, f"gateway {gateway} is not configured")

    async def _begin(self, queue: GatewayQueue, submission_ids: Sequence[str], early: Sequence[str]) -> None:
        fence, answered = self._held.fence, queue.answered
        payloads = Payloads(self._store, self._sources)
        _, begun = await asyncio.gather(payloads.read(submission_ids), self._record_begin(fence, submission_ids, early))
        queue.begin_ahead(answered)
        started = [each.submission_id for each in begun.attempts if each.found is BeginAttemptOutcome.BEGUN]
        await payloads.store_digests(self._held.fence, started)
        for attempt in _in_order(begun.attempts, submission_ids) if early else begun.attempts:
            if attempt.found is BeginAttemptOutcome.BEGUN and attempt.number is not None:
                due_at = attempt.was_due_at
                was_due = None if due_at is None else to_microseconds(due_at)
                envelope = payloads.envelope(attempt.submission_id)
                ready = ReadyAttempt(attempt.number, attempt.failures or 0, attempt.unknowns, was_due, envelope)
                self._make_ready(queue, ready, payloads)
            else:
                self._put_back(queue.gateway.name, attempt)
        self._send_ready(queue)

    async def _record_begin(
        self, fence: Fence, submission_ids: Sequence[str], early: Sequence[str]
    ) -> BeginAttemptsResult:
        begun = await self._store.begin_attempts(fence, submission_ids, early)
        self._clock.set(begun.now)  # set it here: `payloads.read` runs at the same time and may take much longer
        return begun

    def _make_ready(self, queue: GatewayQueue, ready: ReadyAttempt, payloads: Payloads) -> None:
        submission_id = ready.envelope.submission_id
        queue.unrecorded += 1
        self._under_way.add(submission_id)
        if ready.is_early:
            queue.recovery.begin()
        withheld = payloads.withheld(submission_id)
        if withheld is None:
            queue.ready.append(ready)
        else:
            self._telemetry.report(payloads.withheld_event(submission_id, withheld))
            self._end(queue, ready, not_sent(ready, withheld))

    def _put_back(self, gateway: str, attempt: BeginAttemptResult) -> None:
        if attempt.found is BeginAttemptOutcome.OVER:
            self._intake.forget(attempt.submission_id)
        elif attempt.found is BeginAttemptOutcome.HELD:
            due = self._clock.now_microseconds() + HELD_PAUSE_MICROSECONDS
            self._schedule.add(entry_of(attempt.submission_id, gateway, due))
        elif attempt.next_attempt_at is not None:
            self._schedule.add(entry_of(attempt.submission_id, gateway, to_microseconds(attempt.next_attempt_at)))

    def _send_ready(self, queue: GatewayQueue) -> None:
        while queue.ready and queue.has_free_connection and not self._held.ending.is_set():
            self._held.check()
            self._send(queue, queue.ready.popleft())

    def _send(self, queue: GatewayQueue, ready: ReadyAttempt) -> None:
        sending = asyncio.get_running_loop().create_task(self._sender.send(queue.gateway, ready.envelope))
        queue.sending += 1
        self._sends.add(sending)
        sending.add_done_callback(partial(self._sent, queue, ready))

    def _sent(self, queue: GatewayQueue, ready: ReadyAttempt, sending: asyncio.Task[Response]) -> None:
        self._sends.discard(sending)
        queue.sending -= 1
        queue.answered += 1
        self._due.set()
        if sending.cancelled():
            self._end(queue, ready, unknown(ready))
            return
        response = response_of(sending)
        if isinstance(response, BaseException):
            self._telemetry.report(SubmissionNotSent(response))
            response = Response(None, f"the request could not be sent: {type(response).__name__}")
        now, others_delivered = self._clock.now_microseconds(), queue.recovery.is_calm(monotonic())
        self._end(queue, ready, judged(ready, response, now, others_delivered=others_delivered))
        with suppress(LeaseLost):  # `Leadership` notices the loss itself, and ends this term
            self._send_ready(queue)

    # Recording.

    def _end(self, queue: GatewayQueue, ready: ReadyAttempt, end: AttemptEnd) -> None:
        self._follow(queue, ready, end)
        self._ends.append((queue, ready.envelope, end))
        self._ended.set()

    async def _record(self) -> None:
        while True:
            await self._ended.wait()
            batch = [self._ends.popleft() for _ in range(min(len(self._ends), BATCH_MAX))]
            if not self._ends:
                self._ended.clear()
            moved = await self._store.finish_attempts(self._held.fence, [end for _, _, end in batch])
            states = {each.submission_id: each for each in moved}
            for queue, envelope, end in batch:
                self._report_ended(queue.gateway.name, end, envelope.request_id)
                self._recorded(queue, end, states.get(end.submission_id))
            self._due.set()
            # Report this batch before the next one is recorded: a source reads from the database which windows are
            # completely delivered. If the next batch were recorded first, the source could report a window twice, once
            # for each batch.
            sent = [(envelope.contract, end) for _, envelope, end in batch]
            await self._report_delivered([each for each in sent if each[0].format is not None])
            await asyncio.sleep(RECORD_PAUSE_SECONDS)

    def _recorded(self, queue: GatewayQueue, end: AttemptEnd, moved: SubmissionStatus | None) -> None:
        queue.unrecorded -= 1
        self._under_way.discard(end.submission_id)
        name = queue.gateway.name
        if moved is not None and moved.state == SubmissionState.PENDING and moved.next_attempt_at is not None:
            self._schedule.add(entry_of(moved.submission_id, name, to_microseconds(moved.next_attempt_at)))
            self._rejoin_if_straggler(queue, end)
            return
        self._intake.forget(end.submission_id)
        if moved is not None and moved.state == SubmissionState.FAILED:
            self._telemetry.report(SubmissionFailed(end.submission_id, name, end.error))

    def _report_ended(self, gateway: str, end: AttemptEnd, request_id: str | None) -> None:
        self._telemetry.report(
            AttemptEnded(gateway, end.submission_id, end.number, end.outcome, end.status, end.error, request_id)
        )

    def _rejoin_if_straggler(self, queue: GatewayQueue, end: AttemptEnd) -> None:
        if end.submission_id not in queue.recovery.stragglers:
            return
        queue.recovery.stragglers.discard(end.submission_id)
        if end.outcome is AttemptOutcome.FAILED and not end.is_binding:
            queue.recovery.rejoin(self._schedule.backlog_of(end.submission_id))

    async def _report_delivered(self, ends: Sequence[tuple[Contract, AttemptEnd]]) -> None:
        for source in self._sources.all() if ends else ():
            own = [end for contract, end in ends if self._sources.source_of(contract) is source]
            delivered = [end.submission_id for end in own if end.outcome is AttemptOutcome.DELIVERED]
            if delivered:
                await source.report_delivered(delivered)

    def _follow(self, queue: GatewayQueue, ready: ReadyAttempt, end: AttemptEnd) -> None:
        """Updates the state of the gateway. Reports when the gateway begins to fail, not each failed attempt."""
        recovery, name, now = queue.recovery, queue.gateway.name, monotonic()
        delivered, failed = end.outcome is AttemptOutcome.DELIVERED, end.outcome is AttemptOutcome.FAILED
        if delivered and recovery.deliver(now):
            recovery.start(self._schedule.backlog(name, recovery.refused), self._under_way)
        elif failed and recovery.fail(now) and not recovery.is_reported:
            recovery.is_reported = True
            self._telemetry.report(GatewayFailing(name, end.error))
        if ready.is_early:
            refused = failed and not end.is_binding
            recovery.end(number_of_id(end.submission_id), delivered=delivered, refused=refused)

    # Stopping.

    async def _wind_down(self) -> None:
        """Sends nothing new, waits up to ANSWERS_SECONDS for responses, and returns when all outcomes are recorded."""
        if self._beginning:
            await asyncio.wait(self._beginning.values())
        for queue in self._queues.values():
            while queue.ready:
                ready = queue.ready.popleft()
                self._end(queue, ready, abandoned(ready, self._clock.now_microseconds()))
        if self._sends:
            await asyncio.wait(self._sends, timeout=ANSWERS_SECONDS)
        for sending in self._sends:
            sending.cancel()
        while any(queue.unrecorded for queue in self._queues.values()):
            self._due.clear()
            await self._due.wait()
        self._telemetry.report(ExecutorStopped(self._held.epoch))


def _in_order(attempts: Sequence[BeginAttemptResult], submission_ids: Sequence[str]) -> Sequence[BeginAttemptResult]:
    """Sorts the results of the store, which come in any order, so that the oldest submission is sent first."""
    places = {submission_id: place for place, submission_id in enumerate(submission_ids)}
    return sorted(attempts, key=lambda attempt: places[attempt.submission_id])


def _most_relevant(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the `LeaseLost` of the group if there is one, otherwise the first error."""
    lost = group.subgroup(LeaseLost)
    return _first(lost or group)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
