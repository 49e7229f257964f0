"""Sends a load to a service for a while, and ends the sessions that it opened.

Each connection sends its next request after the response to the last one, so a slow service gets fewer requests and no
queue builds up. The lease of each session is two minutes longer than the measurement: no session lapses during the
measurement, but if the command is killed, the sessions lapse by themselves.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any
from uuid import uuid4

import msgspec

from tenure.clock import cpu_seconds, monotonic
from tenure.load.connections import Connection, Destination, NoResponse
from tenure.load.latencies import Latencies

SESSIONS_MAX = 100_000
"""The most live sessions with the load `opens`. Each connection may have an equal share of these sessions. A connection
that has reached its share ends a session before it opens the next. The other loads have no such limit."""
LEASE_SPARE_SECONDS = 120
FAILURE_PAUSE_SECONDS = 0.05
"""The pause of a connection after a refusal or a failure, so that it does not flood a service that fails."""
PREPARE_SECONDS = 120.0
END_SECONDS = 300.0
END_TRIES = 20
"""After this many failures in a row, a connection stops ending sessions, because the service is probably down."""
GIVE_UP_STOPS = 2
"""After this many calls of `Bench.stop`, the connections stop ending sessions."""
OK = range(200, 300)
GONE = 410


class Load(StrEnum):
    OPENS = "opens"
    HEARTBEATS = "heartbeats"
    MIXED = "mixed"


class Operation(StrEnum):
    OPEN = "open"
    HEARTBEAT = "heartbeat"
    READ = "read"
    END = "end"


MIX = (Operation.OPEN, Operation.OPEN, Operation.READ, Operation.END, *([Operation.HEARTBEAT] * 16))
"""The load `mixed` chooses each operation from this list at random, so four of five requests are heartbeats."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    load: Load
    seconds: float
    connections: int
    sessions: int
    """The number of sessions to open before the measurement begins. The load `opens` needs none."""
    tenant: str


class Measured(msgspec.Struct, kw_only=True):
    """The result. `seconds` does not include opening sessions before the measurement and ending them after it."""

    plan: Plan
    seconds: float = 0.0
    latencies: dict[Operation, Latencies] = msgspec.field(default_factory=dict)
    """The latencies of the requests that succeeded."""
    answers: Counter[int] = msgspec.field(default_factory=Counter)
    """The number of responses with each status."""
    failures: Counter[str] = msgspec.field(default_factory=Counter)
    """Requests without a response, by reason."""
    opened: int = 0
    ended: int = 0
    """`opened` and `ended` count the sessions that were opened and ended before, during and after the measurement."""
    left: int = 0
    """Sessions that were opened and not ended."""
    was_stopped: bool = False
    generator_share: float = 0.0
    """The CPU time that this process used during the measurement, as a share of one core."""

    @property
    def requests(self) -> int:
        return sum(each.count for each in self.latencies.values())

    @property
    def refused(self) -> int:
        return sum(count for status, count in self.answers.items() if status not in OK)

    def forget_answers(self) -> None:
        self.answers.clear()
        self.failures.clear()

    def all_latencies(self) -> Latencies:
        every = Latencies()
        for each in self.latencies.values():
            every.merge(each)
        return every


Report = Callable[[str], None]


class Bench:
    """One benchmark: opens the sessions that the load needs, measures the load, and ends all sessions."""

    def __init__(self, destination: Destination, plan: Plan, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._measured = Measured(plan=plan)
        lease = round(plan.seconds) + LEASE_SPARE_SECONDS
        requests = _Requests(destination, plan.tenant, lease)
        self._senders = [_Sender(Connection(destination), requests, self._measured) for _ in range(plan.connections)]
        self._stops = 0

    def stop(self) -> None:
        """End the measurement, so that `run` ends the sessions and returns. After a second call, `run` no longer ends
        the remaining sessions: they lapse when their leases end.
        """
        self._stops += 1
        self._measured.was_stopped = True

    async def run(self) -> Measured:
        try:
            if self._plan.load is not Load.OPENS:
                await self._prepare()
            # The responses to the requests of `_prepare` are not part of the measurement.
            self._measured.forget_answers()
            if not self._stops:
                await self._measure()
        finally:
            await self._end_all()
            for sender in self._senders:
                sender.close()
        return self._measured

    @property
    def _live(self) -> int:
        return sum(len(sender.sessions) for sender in self._senders)

    async def _prepare(self) -> None:
        """Open the sessions that must exist when the measurement begins. Stop after PREPARE_SECONDS, even if some are
        missing.
        """

        async def open_some(sender: _Sender) -> None:
            while self._measured.opened < self._plan.sessions and not self._stops:
                self._report(f"opening sessions: {self._measured.opened} of {self._plan.sessions}")
                await sender.send(Operation.OPEN)

        with suppress(TimeoutError):
            async with asyncio.timeout(PREPARE_SECONDS):
                await self._on_all(open_some)

    async def _measure(self) -> None:
        began, cpu_began = monotonic(), cpu_seconds()
        until = began + self._plan.seconds

        async def load(sender: _Sender) -> None:
            while (now := monotonic()) < until and not self._stops:
                operation = self._next(sender)
                if await sender.send(operation):
                    self._measured.latencies.setdefault(operation, Latencies()).add(monotonic() - now)
                self._report(f"{until - now:.0f} s left, {self._measured.requests} requests")

        await self._on_all(load)
        self._measured.seconds = monotonic() - began
        self._measured.generator_share = (cpu_seconds() - cpu_began) / self._measured.seconds

    def _next(self, sender: "_Sender") -> Operation:
        if not sender.sessions or self._plan.load is Load.OPENS:
            # A connection that has its share of SESSIONS_MAX ends a session before it opens the next one.
            return Operation.END if self._live_is_full(sender) else Operation.OPEN
        return Operation.HEARTBEAT if self._plan.load is Load.HEARTBEATS else random.choice(MIX)  # noqa: S311

    def _live_is_full(self, sender: "_Sender") -> bool:
        return len(sender.sessions) >= SESSIONS_MAX // len(self._senders)

    async def _end_all(self) -> None:
        """End the remaining sessions. Give up after END_SECONDS, END_TRIES failures in a row, or a second `stop`."""
        answers, failures = self._measured.answers.copy(), self._measured.failures.copy()

        async def end_some(sender: _Sender) -> None:
            failures = 0
            while sender.sessions and failures < END_TRIES and self._stops < GIVE_UP_STOPS:
                self._report(f"ending sessions: {self._live} left")
                failures = 0 if await sender.send(Operation.END) else failures + 1

        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._on_all(end_some)
        # Restore the counts of the measurement: they do not include the responses to the requests above.
        self._measured.left = self._live
        self._measured.answers, self._measured.failures = answers, failures

    async def _on_all(self, work: "Callable[[_Sender], Coroutine[Any, Any, None]]") -> None:
        async with asyncio.TaskGroup() as group:
            for sender in self._senders:
                group.create_task(work(sender))


class _Requests:
    """Builds the requests, as bytes. All sessions have the same capacity, but each has a new user."""

    def __init__(self, destination: Destination, tenant: str, lease: int) -> None:
        self._destination = destination
        self._body = {"tenantObjectId": tenant, "capacityId": str(uuid4()), "sessionKind": 1, "leaseSeconds": lease}

    def of(self, operation: Operation, session: str | None) -> bytes:
        match operation:
            case Operation.OPEN:
                body = {"userObjectId": str(uuid4()), **self._body}
                return self._destination.request("PUT", "/sessions", msgspec.json.encode(body))
            case Operation.HEARTBEAT:
                return self._destination.request("POST", f"/sessions/{session}/heartbeat")
            case Operation.READ:
                return self._destination.request("GET", f"/sessions/{session}")
            case Operation.END:
                return self._destination.request("DELETE", f"/sessions/{session}")


class _Sender:
    """A connection and the sessions that it opened. No other connection uses these sessions, so no session is ended
    while a heartbeat or a read of this session is in progress.
    """

    def __init__(self, connection: Connection, requests: _Requests, measured: Measured) -> None:
        self._connection = connection
        self._requests = requests
        self._measured = measured
        self.sessions: list[str] = []

    def close(self) -> None:
        self._connection.close()

    async def send(self, operation: Operation) -> bool:
        """Send one request, count its response, and return whether it succeeded. Pause if it did not."""
        session = None
        if operation is not Operation.OPEN:
            # END takes the newest session, because it is cheap to remove the last item of a list.
            session = self.sessions[-1] if operation is Operation.END else random.choice(self.sessions)  # noqa: S311
        try:
            response = await self._connection.send(self._requests.of(operation, session))
        except NoResponse as error:
            self._measured.failures[str(error)] += 1
            await asyncio.sleep(FAILURE_PAUSE_SECONDS)
            return False
        self._measured.answers[response.status] += 1
        succeeded = response.status in OK
        if operation is Operation.OPEN and succeeded:
            self.sessions.append(_decode(response.body).session_id)
            self._measured.opened += 1
        elif operation is Operation.END and (succeeded or response.status == GONE):
            self.sessions.pop()
            self._measured.ended += 1
        if not succeeded:
            await asyncio.sleep(FAILURE_PAUSE_SECONDS)
        return succeeded


class _Opened(msgspec.Struct, rename="camel"):
    session_id: str


_decode = msgspec.json.Decoder(_Opened).decode


def percentiles(latencies: Latencies, shares: Sequence[float] = (0.5, 0.9, 0.99)) -> list[float | None]:
    """Return percentiles in milliseconds; None for each if there are no latencies."""
    found = [latencies.percentile(share) for share in shares]
    return [None if each is None else round(each * 1000, 3) for each in found]
