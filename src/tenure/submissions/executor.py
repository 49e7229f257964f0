"""The executor: what the holder of lease `submission-executor` does.

One **term** is one epoch of the lease. It begins by closing what earlier epochs left open, and by building a schedule
of all that is pending. Then three loops go on side by side until the lease is lost or the instance stops:

- *intake* keeps the schedule in step with the database (`intake.py`);
- *dispatch* takes what is due, records its attempts, and sends them, of each gateway no more at a time than it allows:
  a receiver that does not answer delays only its own. Usage is rendered meanwhile, and its digest stored before it is
  sent;
- *recording* closes attempts with what came of them, and puts what must be sent again back into the schedule.

Where each step can be cut short, and what then happens:

- before an attempt is recorded: nothing has happened; the next term finds the submission due;
- while it is being recorded, and the answer is lost: the schedule still has it, the next try finds the attempt open in
  its own epoch and goes on with it;
- between recording and sending, while sending, or before the outcome is recorded: the attempt stays open, the next term
  closes it as unknown, and sends again. Whoever receives must know the key;
- the process is stopped and continued after its lease was over: leadership is checked once more right before sending,
  and no write passes the fence. A request that was on its way cannot be called back by anybody;
- the database does not answer: the term ends at once, and whoever can reach it leads.

An instance that stops sends nothing more, waits a moment for the answers that are on the way, and records them before
it gives up its lease.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog

from tenure.clock import monotonic, to_microseconds
from tenure.errors import LeaseLost
from tenure.leases.held import HeldLease
from tenure.leases.waiting import is_set_within
from tenure.model.leases import Fence
from tenure.model.submissions import (
    AttemptEnd,
    AttemptOutcome,
    BeginAttemptFound,
    BegunAttempt,
    BegunAttempts,
    Moved,
    SubmissionState,
)
from tenure.store.store import BATCH_MAX, Store
from tenure.submissions.contents import Contents
from tenure.submissions.ends import abandoned, judged, unknown, withheld
from tenure.submissions.gateways import Gateway
from tenure.submissions.intake import Intake, ServerClock
from tenure.submissions.lanes import Lane, Ready
from tenure.submissions.schedule import entry_of
from tenure.submissions.sending import Sender
from tenure.submissions.verdicts import Answer
from tenure.usage.rendering import Renderer, Withheld

log = structlog.get_logger()

LEASE = "submission-executor"
COMPARE_SECONDS = 60.0
HINT_PAUSE_SECONDS = 0.02
"""Between two looks, however many hints there are."""
REST = 9
"""Times as long as a reading took, before the next one."""
RECORD_PAUSE_SECONDS = 0.005
"""After which the next batch of outcomes is worth a transaction."""
HELD_PAUSE_MICROSECONDS = 200_000
LONGEST_REST_SECONDS = 60.0
CLOSE_MAX = 500
ANSWERS_SECONDS = 3.0
"""How long an instance that stops waits for answers that are on the way."""
GRACE_SECONDS = 5.0
"""How long it may take in all."""


class Executor:
    def __init__(self, store: Store, gateways: Mapping[str, Gateway], sender: Sender, refresh_seconds: float) -> None:
        self._store = store
        self._gateways = gateways
        self._sender = sender
        self._refresh_seconds = refresh_seconds
        self._term: _Term | None = None
        self.renderer = Renderer(store)
        self.attempts: Counter[tuple[str, AttemptOutcome]] = Counter()
        self.found_late = 0

    @property
    def is_working(self) -> bool:
        return self._term is not None

    def hint(self) -> None:
        """Something was accepted or is to be retried."""
        if self._term is not None:
            self._term.hinted.set()

    async def work(self, held: HeldLease) -> None:
        """For one epoch of the lease; ends by itself only if the instance stops."""
        self._term = _Term(self._store, self._gateways, self._sender, self._refresh_seconds, held, self)
        try:
            await self._term.run()
        finally:
            self._term = None


class _Term:
    def __init__(
        self,
        store: Store,
        gateways: Mapping[str, Gateway],
        sender: Sender,
        refresh_seconds: float,
        held: HeldLease,
        executor: Executor,
    ) -> None:
        self.hinted = asyncio.Event()
        self._store = store
        self._sender = sender
        self._refresh_seconds = refresh_seconds
        self._held = held
        self._executor = executor
        self._clock = ServerClock()
        self._intake = Intake(store, self._clock)
        self._schedule = self._intake.schedule
        self._lanes = {name: Lane(gateway) for name, gateway in gateways.items()}
        self._due = asyncio.Event()
        self._sends: set[asyncio.Task[Answer]] = set()
        self._under_way: set[str] = set()
        """Begun and not recorded. What was retried by hand has two entries, of which one falls due while it is sent."""
        self._ends: deque[tuple[Lane, AttemptEnd]] = deque()
        self._ended = asyncio.Event()
        self._beginning: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            if await self._is_started():
                await self._go_on()
        except BaseExceptionGroup as group:
            raise _most_telling(group) from group
        finally:
            for lane in self._lanes.values():
                lane.ready.clear()
            for sending in self._sends:
                sending.cancel()

    async def _is_started(self) -> bool:
        """Not if the instance stops meanwhile: nothing is under way yet."""
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
        unknown = await self._close_unknown()
        await self._intake.build()
        # A schedule that was built without leadership is of no use.
        self._held.check()
        log.info(
            "executor.started",
            epoch=self._held.epoch,
            waiting=len(self._schedule),
            unknown=unknown,
            seconds=round(monotonic() - began, 3),
        )

    async def _close_unknown(self) -> int:
        closed = 0
        while True:
            batch = await self._store.close_unknown(self._held.fence, CLOSE_MAX)
            closed += batch
            if batch < CLOSE_MAX:
                return closed

    async def _go_on(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(self._take_in()), tasks.create_task(self._dispatch(tasks))]
            recording = tasks.create_task(self._record())
            await self._held.ending.wait()
            for loop in loops:
                loop.cancel()
            await self._wind_down()
            recording.cancel()

    # Intake.

    async def _take_in(self) -> None:
        """Every `refresh_seconds`, or sooner on a hint; but however much is accepted, a tenth of the time is enough."""
        read_at = refreshed_at = compared_at = monotonic()
        refresh_pause = self._refresh_seconds
        while True:
            await is_set_within(self.hinted, self._refresh_seconds - (monotonic() - read_at))
            self.hinted.clear()
            read_at = monotonic()
            if read_at - refreshed_at >= refresh_pause:
                refreshed_at = read_at
                await self._intake.refresh()
                refresh_pause = max(self._refresh_seconds, REST * (monotonic() - read_at))
                if read_at - compared_at >= COMPARE_SECONDS:
                    compared_at = read_at
                    await self._compare()
                self._due.set()
            else:
                await self._intake.look()
                self._due.set()
                await asyncio.sleep(max(HINT_PAUSE_SECONDS, REST * (monotonic() - read_at)))

    async def _compare(self) -> None:
        found = await self._intake.compare()
        self._executor.found_late += found
        if found:
            log.error("submissions.found_late", count=found)

    # Dispatch.

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._due.clear()
            for gateway in self._schedule.gateways():
                self._begin_what_is_due(gateway, tasks)
            await is_set_within(self._due, self._rest_seconds())

    def _begin_what_is_due(self, gateway: str, tasks: asyncio.TaskGroup) -> None:
        room = self._room(gateway)
        if room <= 0:
            return
        self._held.check()
        due = self._schedule.take(gateway, self._clock.now_microseconds(), room)
        taken = [submission_id for submission_id in due if submission_id not in self._under_way]
        if taken:
            lane = self._lanes.get(gateway)
            work = self._explain(gateway, taken) if lane is None else self._begin(lane, taken)
            self._beginning[gateway] = beginning = tasks.create_task(work)
            beginning.add_done_callback(partial(self._begun, gateway))

    def _begun(self, gateway: str, _beginning: asyncio.Task[None]) -> None:
        del self._beginning[gateway]
        self._due.set()

    def _room(self, gateway: str) -> int:
        """For how many there is room now. One batch of a gateway at a time is at the database."""
        if gateway in self._beginning:
            return 0
        lane = self._lanes.get(gateway)
        return BATCH_MAX if lane is None else lane.room

    def _rest_seconds(self) -> float:
        """Until something is due for which there is room."""
        now = self._clock.now_microseconds()
        waiting = [
            due - now
            for gateway in self._schedule.gateways()
            if self._room(gateway) > 0 and (due := self._schedule.next_due(gateway)) is not None
        ]
        return min([LONGEST_REST_SECONDS, *(microseconds / 1_000_000 for microseconds in waiting)])

    async def _explain(self, gateway: str, submission_ids: Sequence[str]) -> None:
        """It stays pending, and known, until an instance that knows its gateway leads."""
        await self._store.explain_waiting(self._held.fence, submission_ids, f"gateway {gateway} is not set up")

    async def _begin(self, lane: Lane, submission_ids: Sequence[str]) -> None:
        fence, answered = self._held.fence, lane.answered
        contents = Contents(self._store, self._executor.renderer)
        _, begun = await asyncio.gather(contents.read(submission_ids), self._record_begin(fence, submission_ids))
        lane.begin_ahead(answered)
        started = [each.submission_id for each in begun.attempts if each.found is BeginAttemptFound.BEGUN]
        await contents.seal(self._held.fence, started)
        for attempt in begun.attempts:
            if attempt.found is BeginAttemptFound.BEGUN and attempt.number is not None:
                parcel = contents.parcel(attempt.submission_id)
                ready = Ready(attempt.number, attempt.failures or 0, parcel)
                self._make_ready(lane, ready, contents.withheld(attempt.submission_id))
            else:
                self._put_back(lane.gateway.name, attempt)
        self._send_ready(lane)

    async def _record_begin(self, fence: Fence, submission_ids: Sequence[str]) -> BegunAttempts:
        begun = await self._store.begin_attempts(fence, submission_ids)
        self._clock.set(begun.now)  # at once: what is rendered beside it may take much longer
        return begun

    def _make_ready(self, lane: Lane, ready: Ready, why_not: Withheld | None) -> None:
        lane.unrecorded += 1
        self._under_way.add(ready.parcel.submission_id)
        if why_not is None:
            lane.ready.append(ready)
        else:
            self._end(lane, withheld(ready, why_not))

    def _put_back(self, gateway: str, attempt: BegunAttempt) -> None:
        if attempt.found is BeginAttemptFound.OVER:
            self._intake.forget(attempt.submission_id)
        elif attempt.found is BeginAttemptFound.HELD:
            due = self._clock.now_microseconds() + HELD_PAUSE_MICROSECONDS
            self._schedule.add(entry_of(attempt.submission_id, gateway, due))
        elif attempt.next_attempt_at is not None:
            self._schedule.add(entry_of(attempt.submission_id, gateway, to_microseconds(attempt.next_attempt_at)))

    def _send_ready(self, lane: Lane) -> None:
        while lane.ready and lane.has_place and not self._held.ending.is_set():
            self._held.check()
            self._send(lane, lane.ready.popleft())

    def _send(self, lane: Lane, ready: Ready) -> None:
        sending = asyncio.get_running_loop().create_task(self._sender.send(lane.gateway, ready.parcel))
        lane.sending += 1
        self._sends.add(sending)
        sending.add_done_callback(partial(self._sent, lane, ready))

    def _sent(self, lane: Lane, ready: Ready, sending: asyncio.Task[Answer]) -> None:
        self._sends.discard(sending)
        lane.sending -= 1
        lane.answered += 1
        self._due.set()
        if sending.cancelled():
            self._end(lane, unknown(ready))
            return
        self._end(lane, judged(ready, sending))
        with suppress(LeaseLost):  # whoever waits for the lease sees to that
            self._send_ready(lane)

    # Recording.

    def _end(self, lane: Lane, end: AttemptEnd) -> None:
        self._ends.append((lane, end))
        self._ended.set()

    async def _record(self) -> None:
        while True:
            await self._ended.wait()
            batch = [self._ends.popleft() for _ in range(min(len(self._ends), BATCH_MAX))]
            if not self._ends:
                self._ended.clear()
            moved = await self._store.finish_attempts(self._held.fence, [end for _, end in batch])
            states = {each.submission_id: each for each in moved}
            for lane, end in batch:
                self._recorded(lane, end, states.get(end.submission_id))
            self._due.set()
            await asyncio.sleep(RECORD_PAUSE_SECONDS)

    def _recorded(self, lane: Lane, end: AttemptEnd, moved: Moved | None) -> None:
        lane.unrecorded -= 1
        self._under_way.discard(end.submission_id)
        name = lane.gateway.name
        self._executor.attempts[name, end.outcome] += 1
        _tell_of_gateway(lane, end)
        if moved is not None and moved.state == SubmissionState.PENDING and moved.next_attempt_at is not None:
            self._schedule.add(entry_of(moved.submission_id, name, to_microseconds(moved.next_attempt_at)))
            return
        self._intake.forget(end.submission_id)
        if moved is not None and moved.state == SubmissionState.FAILED:
            log.warning("submission.failed", submission_id=end.submission_id, gateway=name, error=end.error)

    # The end.

    async def _wind_down(self) -> None:
        """Nothing new is sent from here on."""
        if self._beginning:
            await asyncio.wait(self._beginning.values())
        for lane in self._lanes.values():
            while lane.ready:
                self._end(lane, abandoned(lane.ready.popleft()))
        if self._sends:
            await asyncio.wait(self._sends, timeout=ANSWERS_SECONDS)
        for sending in self._sends:
            sending.cancel()
        while any(lane.unrecorded for lane in self._lanes.values()):
            self._due.clear()
            await self._due.wait()
        log.info("executor.stopped", epoch=self._held.epoch)


def _tell_of_gateway(lane: Lane, end: AttemptEnd) -> None:
    """Once when it begins to fail, and once when it is well again: not for every attempt."""
    if end.outcome is AttemptOutcome.FAILED and not lane.is_failing:
        lane.is_failing = True
        log.warning("gateway.failing", gateway=lane.gateway.name, error=end.error)
    elif end.outcome is AttemptOutcome.DELIVERED and lane.is_failing:
        lane.is_failing = False
        log.info("gateway.recovered", gateway=lane.gateway.name)


def _most_telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of what went wrong at the same time: that the lease is lost, if it is."""
    lost = group.subgroup(LeaseLost)
    return _first(lost or group)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
