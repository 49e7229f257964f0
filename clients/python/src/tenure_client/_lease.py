"""How long the client may rely on a held session, and what happens when the session is lost.

The invariant: the client never treats a session as live after its deadline on the server. So every estimate of the
deadline is too early rather than too late. If another caller ends the session before its deadline, the client learns of
the end with the next heartbeat.

The server's deadline D of a session is the earliest of three instants: the end of its term, the last heartbeat plus the
lease L, and the last activity plus the idle limit. A response contains D in the server's time, but not the server's
current time, so D alone does not show how long the session still lives. The client converts D into a local instant in
two ways:

1. The server reads its clock after the request was sent. If D comes from the lease, the session lives for L from that
   reading on, and so at least until `sent + L` on the local clock. L is the difference between D and the last heartbeat
   in the same response. The response that opens a session contains D and the last heartbeat, and so does a read after a
   heartbeat. The real lease is never shorter than this difference.
2. If D comes from the term or the idle limit instead, `sent + L` is too late. So the client also keeps an anchor: a
   local instant, and a time that the server's clock showed at that instant or later. The time between the anchor and D
   on the server's clock, added to the local instant, gives D as a local instant.

Both ways are exact only if the two clocks run at the same speed. So the client subtracts 0.1 % from L, and from the
time between the anchor and D.

The local deadline is the earlier of the two local instants. If the anchor gives a clearly earlier instant than the
lease, and the anchor is not recent, the keeper reads the session once and gets a new anchor. So if the database's clock
is stepped back, or the first response is slow, the client makes one more read, but loses no session.

| interruption | effect |
|---|---|
| a lost response | the deadline of the last response that arrived stays in force |
| suspend, SIGSTOP, a held GIL | the clock keeps running; every use first compares it with the deadline |
| a fork | the child's copy is lost at once (`forked`): only the parent renews the session and learns of its end |
| a step forward of the database's clock | the server ends sessions early; the next heartbeat gets 410 |
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime
from enum import StrEnum

from tenure_client._clock import Clock
from tenure_client._core import Key
from tenure_client.errors import SessionLost
from tenure_client.models import HeartbeatResult, Session

log = logging.getLogger("tenure_client")

DRIFT = 0.001
"""The share by which the server's clock may run faster than the local one. NTP slews each of them by at most half of
this share."""
SLACK = 0.05
SLACK_SECONDS = 0.25
"""The keeper reads a session again if the anchor makes the deadline earlier than the lease does, by more than
SLACK_SECONDS and by more than the share SLACK of the lease."""
CHECK_SECONDS = 30.0
"""The interval between heartbeats of a session without a lease. Such a heartbeat shows whether the session has ended,
and restarts the idle limit if it reports activity."""
SOONEST = 1.0
"""The shortest regular interval between heartbeats of a session, in seconds, even if its limits are short. The keeper
may send a heartbeat earlier, to share a request or to retry."""


class LostReason(StrEnum):
    EXPIRED = "expired"
    """The session's term, lease or idle limit ran out: the server said so, or the local deadline passed while no
    heartbeat was in flight and none had failed since the last renewal."""
    EVICTED = "evicted"
    UPGRADED = "upgraded"
    TERMINATED = "terminated"
    """An operator ended the session, or its stream failed, was disconnected, or was on an instance that stopped."""
    STOPPED = "stopped"
    """A client ended the session, or your code left the block."""
    UNKNOWN = "unknown"
    """The server returned 404 for the session."""
    UNREACHABLE = "unreachable"
    """No heartbeat succeeded in time. The session may still be live, but this client cannot know."""
    FORKED = "forked"
    """This process is a child of the process that holds the session."""


_REASONS = {
    "EXPIRED": LostReason.EXPIRED,
    "LEASE_EXPIRED": LostReason.EXPIRED,
    "IDLE_TIMEOUT": LostReason.EXPIRED,
    "EVICTED": LostReason.EVICTED,
    "UPGRADED": LostReason.UPGRADED,
    "STOPPED": LostReason.STOPPED,
}


def reason_of(close_reason: str | None) -> LostReason:
    return _REASONS.get(close_reason or "", LostReason.TERMINATED)


class Anchor:
    """A local instant, and a time that the server's clock showed then or later.

    All sessions of a client share one anchor.
    """

    def __init__(self) -> None:
        self.local = float("-inf")
        self._server: datetime | None = None

    def set(self, local: float, server: datetime) -> None:
        # Keep the newest anchor, even if an older one gives later deadlines: a step of the server's clock may have made
        # the older one wrong.
        if local >= self.local:
            self.local, self._server = local, server

    def local_of(self, server: datetime) -> float:
        """Return the earliest local instant at which the server's clock can show `server`."""
        if self._server is None:
            raise RuntimeError("no answer with a server's time has arrived yet")
        return self.local + (server - self._server).total_seconds() * (1 - DRIFT)


class Lease:
    """A held session: its local deadline, and its loss. All methods may be called from any thread."""

    def __init__(self, session: Session, key: Key, clock: Clock, anchor: Anchor, *, active: bool) -> None:
        self.session_id = session.session_id
        self.key = key
        self.always_active = active
        self.ends_with_client = True
        self.touched = False
        self.clock = clock
        self.loss = Loss(self)
        self.interval = CHECK_SECONDS
        self.due = float("inf")
        self.sent_at = float("-inf")
        self.in_flight = False
        self.failures = 0
        self.error: Exception | None = None
        self.deadline = float("inf")
        self._anchor = anchor
        self._span: float | None = None
        self._expires_at = session.lease_expires_at

    def opened(self, session: Session, sent: float) -> None:
        """Process the response that opened the session. The server's clock showed `session_start_utc` after `sent`."""
        self._anchor.set(sent, session.session_start_utc)
        self._learn_span(session)
        self.renewed(sent, session.lease_expires_at, session.heartbeat_interval)

    def read(self, session: Session, heartbeat_sent: float) -> None:
        """Process a read that followed a heartbeat, which was sent at `heartbeat_sent` and acknowledged.

        `session.last_heartbeat` is the time of that heartbeat, or of a later one by another client.
        """
        self._anchor.set(heartbeat_sent, session.last_heartbeat)
        self._learn_span(session)
        self.renewed(heartbeat_sent, session.lease_expires_at, session.heartbeat_interval)

    def renewed(self, sent: float, expires_at: datetime, interval: float | None) -> None:
        self.sent_at = sent
        self.failures = 0
        self.error = None
        self._expires_at = expires_at
        self.recompute()
        wanted = CHECK_SECONDS if interval is None else interval
        # If the idle limit is shorter than the lease, the server's interval can be too long.
        self.interval = max(min(wanted, (self.deadline - sent) / 3), SOONEST)
        self.due = sent + self.interval

    def recompute(self) -> None:
        self.deadline = min(self._by_lease(), self._anchor.local_of(self._expires_at))

    def wants_read(self, now: float) -> bool:
        """Return whether the anchor determines this deadline, and is old enough to be wrong."""
        by_lease = self._by_lease()
        if self.deadline >= by_lease - max(SLACK * (self._span or 0), SLACK_SECONDS):
            return False
        return now - self._anchor.local > max(self.interval, (self.deadline - now) / 10)

    def failed(self, error: Exception, due: float) -> None:
        self.failures += 1
        self.error = error
        self.due = due

    def refused(self, result: HeartbeatResult) -> None:
        """Declare the loss after a 404 or 410 for this session: a retry cannot change these statuses."""
        known = result.status != 404  # noqa: PLR2004
        self.loss.declare(reason_of(result.close_reason) if known else LostReason.UNKNOWN, result.close_reason)

    def check(self, now: float | None = None) -> None:
        """Declare the loss if the deadline has passed."""
        if (self.clock.now() if now is None else now) >= self.deadline:
            waiting = self.failures > 0 or self.in_flight
            self.loss.declare(LostReason.UNREACHABLE if waiting else LostReason.EXPIRED, None)

    @property
    def is_active(self) -> bool:
        return self.always_active or self.touched

    def _by_lease(self) -> float:
        return float("inf") if self._span is None else self.sent_at + self._span * (1 - DRIFT)

    def _learn_span(self, session: Session) -> None:
        if session.heartbeat_interval is not None:
            span = (session.lease_expires_at - session.last_heartbeat).total_seconds()
            self._span = max(span, self._span or 0.0)


class Loss:
    """Whether and why a held session is lost. As a boolean, false while the session is held, and true from its loss on.

    Every use first compares the clock with the deadline. So the value is correct even after the process was paused, its
    event loop was blocked, or native code held the interpreter lock. To be notified, use `event`, `on` or, in a
    coroutine, `await`.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reason: LostReason | None = None
        self._close_reason: str | None = None
        self._callbacks: list[Callable[[Loss], object]] = []
        self.event: threading.Event = _LossEvent(self)
        """Set when the session is lost. `is_set` and `wait` also compare the clock with the deadline."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def __bool__(self) -> bool:
        if os.getpid() != self._pid:
            return True
        if self._reason is None:
            self._lease.check()
        return self._reason is not None

    def __repr__(self) -> str:
        return f"Loss({self.reason})"

    @property
    def reason(self) -> LostReason | None:
        if os.getpid() != self._pid:
            return LostReason.FORKED
        return self._reason if self else None

    @property
    def close_reason(self) -> str | None:
        """The close reason that the server returned, or None."""
        return self._close_reason

    @property
    def error(self) -> Exception | None:
        """The error of the last heartbeat, if it failed."""
        return self._lease.error

    def on(self, callback: "Callable[[Loss], object]") -> None:
        """Call `callback` once when the session is lost; immediately if the session is already lost.

        In the async client, the event loop calls the callback. In the sync client, the thread that notices the loss
        does, usually the one that sends heartbeats. So the callback must not block.
        """
        with self._lock:
            if self._reason is None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the session is lost. Returns False if `timeout` seconds passed first."""
        return self.event.wait(timeout)

    def __await__(self) -> "Generator[object, None, Loss]":
        """Wait until the session is lost, in a coroutine."""
        return self._wait().__await__()

    async def _wait(self) -> "Loss":
        loop = asyncio.get_running_loop()
        noticed: asyncio.Future[None] = loop.create_future()

        def notice(_loss: Loss) -> None:
            if not noticed.done():
                noticed.set_result(None)

        if not self:
            self.on(lambda loss: loop.call_soon_threadsafe(notice, loss))
            await noticed
        return self

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call the callbacks in this event loop."""
        self._loop = loop

    def raise_if_lost(self) -> None:
        if self:
            raise SessionLost(self._lease.session_id, str(self.reason), self._close_reason, self.error)

    def declare(self, reason: LostReason, close_reason: str | None) -> None:
        """Record the loss. Later calls change nothing."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason, self._close_reason = reason, close_reason
            callbacks, self._callbacks = self._callbacks, []
        threading.Event.set(self.event)
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: "Callable[[Loss], object]") -> None:
        if self._loop is None:
            self._run(callback)
        else:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._run, callback)

    def _run(self, callback: "Callable[[Loss], object]") -> None:
        try:
            callback(self)
        except Exception:
            log.exception("a callback for the loss of session %s failed", self._lease.session_id)


class _LossEvent(threading.Event):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self._loss = loss

    def is_set(self) -> bool:
        return bool(self._loss)

    def wait(self, timeout: float | None = None) -> bool:
        return bool(self._loss) or super().wait(timeout) or bool(self._loss)
