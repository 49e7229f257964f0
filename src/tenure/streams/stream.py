"""One stream: a connection, its session, and the handler of its messages.

Two tasks run concurrently. The *pump* takes messages from the socket, counts them and passes them to the handler, one
at a time. The *keep-alive*, which the registry starts, renews the session in the database and saves the counters. The
first of the following events ends the stream. If an event has a close reason in parentheses, the stream then ends its
session for this reason:

- the pump finds that the client has sent stop (STOPPED), that the connection is lost (DISCONNECTED), that the handler
  has raised an error (FAILED), or that the socket refuses to read on (FAILED): a message cannot be read, the client
  sends too many pings, or the credential is no longer valid;
- another operation has ended the session: `session_ended` is called as soon as the instance knows of the end. If the
  instance is not notified, the next keep-alive finds the end and its reason in the database;
- a newer stream has replaced this one. If the newer stream is on the same instance, the registry ends this one at once;
  otherwise the next keep-alive finds the newer stream;
- the instance stops (SHUTDOWN).

From this event on, the pump passes no further message to the handler, not even one that the socket has already
received. If the stream ends its session itself, it then records the end in the database (state `closing`: the seat and
the key are free), lets the handler finish within FINISH_SECONDS, saves the last counters with state `closed`, notifies
the client and closes the connection. If another operation has ended the session, the end is already recorded: the
stream saves its counters at once, for the last time, and then lets the handler finish. If the instance dies before the
end is recorded, the lease expires. If it dies after that, the sweep closes the session that was left `closing`.

Counters are saved as increments, and each save has a number. If the response to a save is lost, the stream sends the
same save again, and the database adds it only once. The exception is a stream that two or more newer streams of the
session have replaced: the database may add its repeated save twice.

After the session has ended, the database still accepts the last save of the stream, but no keep-alive: the counters of
a keep-alive may include messages that arrived after the end. The result of the rejected keep-alive contains the time of
the end. The stream converts this time to this host's clock, and leaves later messages out of its last save, unless the
session ended at most IN_TIME_SECONDS ago.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from tenure.clock import monotonic
from tenure.domain.deadlines import MICROSECONDS
from tenure.domain.sessions import CloseReason, Found, Session, State, StreamCounters
from tenure.domain.streams import AttachResult, StreamUpdate, StreamUpdateResult
from tenure.errors import Unavailable
from tenure.naming import CAMEL, Names
from tenure.streams.batches import StreamBatches
from tenure.streams.handlers import HandlerFactory, Message, StreamHandler
from tenure.streams.output import Slice, SocketOutput, Tally, as_json, total
from tenure.streams.sockets import CloseCode, Socket, SocketGone, UnreadableMessage
from tenure.telemetry.events import (
    StreamCrashed,
    StreamHandlerFailed,
    StreamHandlerStuck,
    StreamNotSaved,
    Telemetry,
)

T = TypeVar("T")

FINISH_SECONDS = 5.0
"""How long a handler may take to finish."""
CANCEL_SECONDS = 1.0
DRAIN_SECONDS = 1.0
"""How long the handler may process messages that arrived before the connection was lost."""
LAST_MESSAGE_SECONDS = 1.0
"""How long a client may take to read the last message."""
RETRY_SECONDS = 1.0
RETRY_LEAST_SECONDS = 0.1
RETRY_PARTS = 4
"""A failed keep-alive is retried after 1/RETRY_PARTS of the time until the deadline, but after RETRY_LEAST_SECONDS at
least and RETRY_SECONDS at most. Once the deadline has passed, it is retried every RETRY_SECONDS."""
IN_TIME_SECONDS = 0.1
"""If a keep-alive finds that the session ended at most this long ago, the messages that the stream has handled since
the end still count."""
SAVE_TRIES = 3
LEASE_PARTS = 3
IDLE_PARTS = 4
"""The time between two keep-alives is at most 1/LEASE_PARTS of the lease and 1/IDLE_PARTS of the idle limit."""
STOP_LENGTH_MAX = 64


class Ending(msgspec.Struct, frozen=True):
    """Why a stream ends. If `reason` is None, the session does not end: a newer stream continues it."""

    reason: str | None
    code: CloseCode
    error: tuple[str, str] | None = None
    """A code and a message that are sent to the client before the final message."""
    is_recorded: bool = False
    """Whether another operation has recorded the end of the session."""


STOPPED = Ending(CloseReason.STOPPED.value, CloseCode.NORMAL)
DISCONNECTED = Ending(CloseReason.DISCONNECTED.value, CloseCode.NORMAL)
SHUTDOWN = Ending(CloseReason.SHUTDOWN.value, CloseCode.SHUTDOWN)
REPLACED = Ending(None, CloseCode.REPLACED)
FAILED = Ending(CloseReason.FAILED.value, CloseCode.FAILED, ("HANDLER_FAILED", "the handler of this stream failed"))


class Stream:
    def __init__(
        self,
        socket: Socket,
        attached: AttachResult,
        make_handler: HandlerFactory,
        batches: StreamBatches,
        telemetry: Telemetry,
        tally: Tally,
        names: Names = CAMEL,
    ) -> None:
        self._socket = socket
        self._names = names
        self._make_handler = make_handler
        self._handler: StreamHandler | None = None
        self._batches = batches
        self._telemetry = telemetry
        self._tally = tally
        self._output = SocketOutput(socket, tally)
        self.attachment = attached.attachment
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        self._was_active = False
        self._saves = 0
        self._saving = asyncio.Lock()
        self._unanswered: StreamUpdate | None = None
        self._taken: Sequence[Slice] = ()
        """The counts of the save that is in progress, or that got no response."""
        self._counts_until = float("inf")
        """Messages after this instant are not counted. Set when a keep-alive finds that the session has ended."""
        self._keeping: asyncio.Task[None] | None = None
        self._apply(attached, monotonic())

    def end(self, ending: Ending) -> None:
        """Ends the stream. Only the first call has an effect: it determines the reason."""
        if not self._ending.done():
            self._ending.set_result(ending)

    def session_ended(self, reason: str) -> None:
        """Ends the stream because its session has ended."""
        self.end(Ending(reason, CloseCode.NORMAL, is_recorded=True))

    async def run(self, greeting: str) -> None:
        await self._socket.send(greeting)
        pump = asyncio.ensure_future(self._pump())
        try:
            ending = await self._first_ending(pump)
        finally:
            await self._stop_tasks(pump)
        await self._conclude(ending)

    async def _first_ending(self, pump: "asyncio.Future[Ending]") -> Ending:
        end_signals: set[asyncio.Future[Any]] = {pump, self._ending, self._socket.gone}
        await asyncio.wait(end_signals, return_when=asyncio.FIRST_COMPLETED)
        if not pump.done() and not self._ending.done():
            await asyncio.wait({pump, self._ending}, timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._ending.done():
            return self._ending.result()
        return pump.result() if pump.done() else DISCONNECTED

    # Messages

    async def _pump(self) -> Ending:
        handler = await self._call_handler(self._open_handler())
        if handler is None:
            return FAILED
        self._handler = handler
        while True:
            try:
                message = await self._socket.receive()
            except SocketGone:
                return DISCONNECTED
            except UnreadableMessage as error:
                return Ending(CloseReason.FAILED.value, error.close_code, (error.code, error.detail))
            # If the stream has ended, `run` is about to cancel the pump. Drop the messages that are still buffered.
            if self._ending.done():
                return self._ending.result()
            if _is_stop(message):
                return STOPPED
            self._received(message)
            if await self._call_handler(_chunk(handler, message)) is None:
                return FAILED
            _check_cancelled()

    async def _open_handler(self) -> StreamHandler:
        handler = self._make_handler()
        await handler.open(self.session, self._output)
        return handler

    async def _call_handler(self, handling: Coroutine[Any, Any, T]) -> T | None:
        """Awaits a call of the handler. If it raises, reports the error and returns None: only this stream ends."""
        try:
            return await handling
        except asyncio.CancelledError as error:
            _check_cancelled()
            self._telemetry.report(StreamHandlerFailed(self.session.session_id, error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported, and the stream ends as FAILED
            self._telemetry.report(StreamHandlerFailed(self.session.session_id, error))
        return None

    def _received(self, message: Message) -> None:
        self._tally.received(message)
        if not self._was_active:
            self._was_active = True
            if self._is_urgent:
                self.keep_alive()

    # Keeping the session alive

    def keep_alive(self) -> None:
        """Starts a keep-alive, unless one is running or the stream is stopping."""
        if not self._is_stopping and (self._keeping is None or self._keeping.done()):
            self.due_at = float("inf")
            self._keeping = asyncio.ensure_future(self._keep_alive())

    @property
    def _is_urgent(self) -> bool:
        """Whether activity must be saved now and not with the next regular keep-alive.

        True for the first message of a session, which makes the session `active`, and for any activity if the session
        could lapse before the next keep-alive.
        """
        if not self._was_active:
            return False
        if self.session.state == State.CREATED:
            return True
        # Activity cannot extend the term.
        can_be_extended = self.session.lapse_reason != CloseReason.EXPIRED.value
        return can_be_extended and monotonic() > self._ends_at - 2 * self._interval

    async def _keep_alive(self) -> None:
        # A message that arrives during a save is not part of this save. If the message is urgent, save again at once.
        while await self._save_and_check() and self._is_urgent:
            pass

    async def _save_and_check(self) -> bool:
        """Saves. Ends the stream if it was replaced or its session has ended.

        Returns whether the save succeeded and the stream continues.
        """
        asked_at = monotonic()
        try:
            updated = await self._save()
        except Exception as error:  # noqa: BLE001 - the connection is open, so the stream continues
            if not isinstance(error, Unavailable):
                self._telemetry.report(StreamCrashed(self.session.session_id, error))
            self.due_at = monotonic() + self._retry_seconds()
            return False
        if updated.found is Found.LIVE:
            self._apply(updated, asked_at)
        elif updated.found is Found.REPLACED:
            self.end(REPLACED)
        else:
            reason = None if updated.session is None else updated.session.close_reason
            self.session_ended(reason or CloseReason.FAILED.value)
        return updated.found is Found.LIVE

    def _retry_seconds(self) -> float:
        """Return the pause before a retry of a keep-alive. It is shorter if the deadline is near."""
        left = self._ends_at - monotonic()
        return min(RETRY_SECONDS, max(left / RETRY_PARTS, RETRY_LEAST_SECONDS)) if left > 0 else RETRY_SECONDS

    def _apply(self, result: AttachResult | StreamUpdateResult, asked_at: float) -> None:
        """Computes the session's deadline on this host's clock, and when the next keep-alive is due.

        The response may have been slow, so the remaining time is counted from the moment the request was sent.
        """
        if result.session is None or result.now is None:
            raise ValueError(f"the result {result.found} has no session or no time")
        self.session: Session = result.session
        self._interval = _interval(self.session)
        remaining = (self.session.deadline_at - result.now).total_seconds()
        self._ends_at = asked_at + remaining
        self.due_at = min(monotonic() + self._interval, self._ends_at)

    async def _save(self, *, end: str | None = None, finished: bool = False) -> StreamUpdateResult:
        async with self._saving:
            # If the response to the previous save was lost, send that save again before a new one.
            if self._unanswered is not None:
                await self._send(self._unanswered)
            self._saves += 1
            was_active, self._was_active = self._was_active, False
            self._taken = self._tally.take()
            counted = total(self._taken, self._counts_until)
            return await self._send(
                StreamUpdate(self.session.session_id, self.attachment, self._saves, was_active, counted, end, finished)
            )

    async def _send(self, update: StreamUpdate) -> StreamUpdateResult:
        self._unanswered = update
        updated = await self._batches.update(update)
        self._unanswered = None
        if updated.session is not None:
            self.session = updated.session
        if not updated.counted:
            self._tally.put_back(self._taken)
            self._counts_until = min(self._counts_until, _counts_until(updated, monotonic()))
        self._taken = ()
        return updated

    # The end

    async def _stop_tasks(self, pump: "asyncio.Future[Ending]") -> None:
        """Stops the pump, and waits for a running keep-alive. Abandons a handler that ignores its cancellation."""
        self._is_stopping = True
        pump.cancel()
        _, stuck = await asyncio.wait({pump}, timeout=CANCEL_SECONDS)
        if stuck:
            self._telemetry.report(StreamHandlerStuck(self.session.session_id))
            self._handler = None
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    async def _conclude(self, ending: Ending) -> None:
        reason = ending.reason
        if ending.is_recorded:
            await self._save_with_retries(finished=True)
            await self._finish()
        else:
            if reason is not None:
                reason = await self._record_end(reason)
            if ending.error is not None:
                await _send_last(self._output.error(*ending.error))
            await self._finish()
            await self._save_with_retries(finished=True)
        await self._notify(reason)
        code = CloseCode.REPLACED if reason is None else ending.code
        await self._socket.close(code)

    async def _record_end(self, reason: str) -> str | None:
        """Records the end of the session, and returns its close reason.

        If the session had already ended, its close reason may differ from `reason`. Returns None if a newer stream has
        replaced this one.
        """
        updated = await self._save_with_retries(end=reason)
        if updated is None or updated.session is None:
            return reason
        return None if updated.found is Found.REPLACED else updated.session.close_reason

    async def _save_with_retries(self, *, end: str | None = None, finished: bool = False) -> StreamUpdateResult | None:
        """Saves, in at most SAVE_TRIES tries. Returns None if all of them fail. If the end of the session is then not
        recorded, the session lapses, and the sweep records its end.
        """
        for _ in range(SAVE_TRIES):
            try:
                return await self._save(end=end, finished=finished)
            except Unavailable as error:
                last = error.detail
            except Exception as error:  # noqa: BLE001 - reported, and tried again
                self._telemetry.report(StreamCrashed(self.session.session_id, error))
                last = repr(error)
            await asyncio.sleep(RETRY_SECONDS)
        self._telemetry.report(StreamNotSaved(self.session.session_id, end, last))
        return None

    def _counters(self, saved: StreamCounters) -> StreamCounters:
        """Returns the saved counters of the session plus the counts that could not be saved or whose save got no
        response.
        """
        unsaved = total([*self._taken, *self._tally.take()], self._counts_until)
        return StreamCounters(*(one + other for one, other in zip(astuple(saved), astuple(unsaved), strict=True)))

    async def _finish(self) -> None:
        if self._handler is None:
            return
        finishing = asyncio.ensure_future(self._call_handler(_finish(self._handler)))
        _, stuck = await asyncio.wait({finishing}, timeout=FINISH_SECONDS)
        if stuck:
            finishing.cancel()
            self._telemetry.report(StreamHandlerStuck(self.session.session_id))

    async def _notify(self, reason: str | None) -> None:
        if reason is None:
            await _send_last(self._socket.send(as_json({"type": "replaced"})))
            return
        metrics = None if self.session.stream is None else self._names.builtins(self._counters(self.session.stream))
        end = as_json({"type": "session_end", "reason": reason, "metrics": metrics})
        await _send_last(self._socket.send(end))


def _counts_until(updated: StreamUpdateResult, answered_at: float) -> float:
    """Return the latest instant, on this host's clock, at which the session can have ended.

    The database read its clock before the response arrived, so the result is too late by at most the duration of the
    call. Return infinity if the session has not ended, or ended at most IN_TIME_SECONDS ago: then all messages count,
    as they do if the stream is notified of the end.
    """
    if updated.session is None or updated.session.closed_at is None or updated.now is None:
        return float("inf")
    age = (updated.now - updated.session.closed_at).total_seconds()
    return answered_at - age if age > IN_TIME_SECONDS else float("inf")


def _interval(session: Session) -> float:
    """Return the seconds between keep-alives: less than the heartbeat interval if the lease or idle limit is short."""
    heartbeat = session.heartbeat_microseconds or MICROSECONDS
    lease = (session.lease_microseconds or MICROSECONDS) // LEASE_PARTS
    idle = (session.idle_microseconds or MICROSECONDS) // IDLE_PARTS
    return min(heartbeat, lease, idle) / MICROSECONDS


async def _send_last(sending: Coroutine[Any, Any, None]) -> None:
    """Stops sending after LAST_MESSAGE_SECONDS: a client that does not read must not delay the end of its stream."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_MESSAGE_SECONDS):
            await sending


async def _chunk(handler: StreamHandler, message: Message) -> bool:
    await handler.chunk(message)
    return True


async def _finish(handler: StreamHandler) -> bool:
    await handler.finish()
    return True


def _check_cancelled() -> None:
    """Raises CancelledError if this task was cancelled.

    Catching CancelledError is not enough: a handler may suppress it, or raise it although the task was not cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _is_stop(message: Message) -> bool:
    if not isinstance(message, str) or len(message) > STOP_LENGTH_MAX:
        return False
    try:
        return bool(msgspec.json.decode(message) == {"type": "stop"})
    except msgspec.DecodeError:
        return False
