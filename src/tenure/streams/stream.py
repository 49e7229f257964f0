"""One stream: a connection, its session, and the handler of its messages.

Two loops run at once. The *pump* takes messages from the socket, counts them and passes them to the handler, one at a
time. The *keep-alive*, called by the registry, renews the session in the database and saves the counters. The first of
these events ends the stream and determines its close reason:

- found by the pump: the client sends stop (STOPPED), the connection is lost (DISCONNECTED), the handler raises or a
  message cannot be read (FAILED);
- found by a keep-alive: the session has ended (with the reason in the database), or a newer stream has replaced this
  one;
- the instance stops (SHUTDOWN).

Then the stream records the end in the database (state `closing`: the seat and the key are free), lets the handler
finish within FINISH_SECONDS, saves the last counters with state `closed`, notifies the client and closes the
connection. If the instance dies before the end is recorded, the lease expires. If it dies after that, the sweep closes
the session that was left `closing`.

Counters are saved as increments, and each save has a number. If the response to a save is lost, the stream sends the
same save again, and the database adds it only once.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from tenure.clock import monotonic
from tenure.domain.deadlines import MICROSECONDS
from tenure.domain.sessions import CloseReason, Found, Session
from tenure.domain.streams import AttachResult, StreamUpdate, StreamUpdateResult
from tenure.errors import Unavailable
from tenure.streams.batches import StreamBatches
from tenure.streams.handlers import HandlerFactory, Message, StreamHandler
from tenure.streams.output import SocketOutput, Tally, as_json
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
"""How long the handler may take for messages that arrived before the connection was lost."""
GOODBYE_SECONDS = 1.0
"""How long a client may take to read the last message."""
RETRY_SECONDS = 1.0
RETRY_LEAST_SECONDS = 0.1
RETRY_PARTS = 4
"""A failed save is retried after the remaining time of the session divided by this number."""
SAVE_TRIES = 3
LEASE_PARTS = 3
IDLE_PARTS = 4
STOP_LENGTH_MAX = 64


class Ending(msgspec.Struct, frozen=True):
    """Why a stream ends. If `reason` is None, the session does not end: a newer stream continues it."""

    reason: str | None
    code: CloseCode
    error: tuple[str, str] | None = None
    """A code and a message that are sent to the client before the final message."""
    is_recorded: bool = False
    """Whether the end of the session is already recorded in the database."""


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
    ) -> None:
        self._socket = socket
        self._make_handler = make_handler
        self._handler: StreamHandler | None = None
        self._batches = batches
        self._telemetry = telemetry
        self._tally = tally
        self._output = SocketOutput(socket, tally)
        self.attachment = attached.attachment
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._is_quiet = False
        self._was_active = False
        self._saves = 0
        self._saving = asyncio.Lock()
        self._unanswered: StreamUpdate | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._learn(attached, monotonic())

    def end(self, ending: Ending) -> None:
        """Ends the stream. Only the first call has an effect: it determines the reason."""
        if not self._ending.done():
            self._ending.set_result(ending)

    async def run(self, greeting: str) -> None:
        await self._socket.send(greeting)
        pump = asyncio.ensure_future(self._pump())
        try:
            ending = await self._first_ending(pump)
        finally:
            await self._quiet(pump)
        await self._conclude(ending)

    async def _first_ending(self, pump: "asyncio.Future[Ending]") -> Ending:
        signs: set[asyncio.Future[Any]] = {pump, self._ending, self._socket.gone}
        await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        if not pump.done() and not self._ending.done():
            await asyncio.wait({pump, self._ending}, timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._ending.done():
            return self._ending.result()
        return pump.result() if pump.done() else DISCONNECTED

    # Messages

    async def _pump(self) -> Ending:
        handler = await self._called(self._open_handler())
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
            if _is_stop(message):
                return STOPPED
            self._received(message)
            if await self._called(_chunk(handler, message)) is None:
                return FAILED
            _check_cancelled()

    async def _open_handler(self) -> StreamHandler:
        handler = self._make_handler()
        await handler.open(self.session, self._output)
        return handler

    async def _called(self, handling: Coroutine[Any, Any, T]) -> T | None:
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
        """Starts a keep-alive, unless one is running."""
        if not self._is_quiet and (self._keeping is None or self._keeping.done()):
            self.due_at = float("inf")
            self._keeping = asyncio.ensure_future(self._keep_alive())

    @property
    def _is_urgent(self) -> bool:
        """Whether activity must be saved now, because the session may lapse before the next regular keep-alive."""
        is_movable = self.session.lapse_reason != CloseReason.EXPIRED.value
        return self._was_active and is_movable and monotonic() > self._ends_at - 2 * self._interval

    async def _keep_alive(self) -> None:
        # A message that arrives during a save is not part of it. If the deadline is near, save again immediately.
        while await self._is_kept() and self._is_urgent:
            pass

    async def _is_kept(self) -> bool:
        asked_at = monotonic()
        try:
            updated = await self._save()
        except Exception as error:  # noqa: BLE001 - the socket is open, so the session must go on
            if not isinstance(error, Unavailable):
                self._telemetry.report(StreamCrashed(self.session.session_id, error))
            self.due_at = monotonic() + self._retry_seconds()
            return False
        if updated.found is Found.LIVE:
            self._learn(updated, asked_at)
        elif updated.found is Found.REPLACED:
            self.end(REPLACED)
        else:
            reason = CloseReason.FAILED.value if updated.session is None else updated.session.close_reason
            self.end(Ending(reason, CloseCode.NORMAL, is_recorded=True))
        return updated.found is Found.LIVE

    def _retry_seconds(self) -> float:
        """The pause before a retry. It is shorter if little time is left, so that the session does not lapse in it."""
        left = self._ends_at - monotonic()
        return min(RETRY_SECONDS, max(left / RETRY_PARTS, RETRY_LEAST_SECONDS)) if left > 0 else RETRY_SECONDS

    def _learn(self, answer: AttachResult | StreamUpdateResult, asked_at: float) -> None:
        """Computes the session's deadline on this host's clock, and when the next keep-alive is due.

        The response may have been slow, so the remaining time counts from the instant at which the request was sent.
        """
        if answer.session is None or answer.now is None:
            raise ValueError(f"an answer that found {answer.found} without a session")
        self.session: Session = answer.session
        self._interval = _interval(self.session)
        remaining = (self.session.deadline_at - answer.now).total_seconds()
        self._ends_at = asked_at + remaining
        self.due_at = min(monotonic() + self._interval, self._ends_at)

    async def _save(self, *, end: str | None = None, finished: bool = False) -> StreamUpdateResult:
        async with self._saving:
            if self._unanswered is not None:
                await self._send(self._unanswered)
            self._saves += 1
            was_active, self._was_active = self._was_active, False
            counted = self._tally.take()
            return await self._send(
                StreamUpdate(self.session.session_id, self.attachment, self._saves, was_active, counted, end, finished)
            )

    async def _send(self, update: StreamUpdate) -> StreamUpdateResult:
        self._unanswered = update
        updated = await self._batches.update(update)
        self._unanswered = None
        return updated

    # The end

    async def _quiet(self, pump: "asyncio.Future[Ending]") -> None:
        """Stops the pump and the keep-alives. A handler that ignores its cancellation is abandoned."""
        self._is_quiet = True
        pump.cancel()
        _, stuck = await asyncio.wait({pump}, timeout=CANCEL_SECONDS)
        if stuck:
            self._telemetry.report(StreamHandlerStuck(self.session.session_id))
            self._handler = None
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    async def _conclude(self, ending: Ending) -> None:
        reason = ending.reason
        if reason is not None and not ending.is_recorded:
            reason = await self._stamp(reason)
        if ending.error is not None:
            await _in_time(self._output.error(*ending.error))
        await self._finish()
        last = await self._save_at_last(finished=reason is not None)
        await self._notify(reason, last)
        code = CloseCode.REPLACED if reason is None else ending.code
        await self._socket.close(code)

    async def _stamp(self, reason: str) -> str | None:
        """Records the end of the session and returns its close reason, which an earlier request may have set.

        Returns None if a newer stream has replaced this one.
        """
        updated = await self._save_at_last(end=reason)
        if updated is None or updated.session is None:
            return reason
        return None if updated.found is Found.REPLACED else updated.session.close_reason

    async def _save_at_last(self, *, end: str | None = None, finished: bool = False) -> StreamUpdateResult | None:
        """Tries to save SAVE_TRIES times. If all tries fail, the lease expires and the sweep records the lapse."""
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

    async def _finish(self) -> None:
        if self._handler is None:
            return
        finishing = asyncio.ensure_future(self._called(_finish(self._handler)))
        _, stuck = await asyncio.wait({finishing}, timeout=FINISH_SECONDS)
        if stuck:
            finishing.cancel()
            self._telemetry.report(StreamHandlerStuck(self.session.session_id))

    async def _notify(self, reason: str | None, last: StreamUpdateResult | None) -> None:
        if reason is None:
            await _in_time(self._socket.send(as_json({"type": "replaced"})))
            return
        session = self.session if last is None or last.session is None else last.session
        end = as_json({"type": "session_end", "reason": reason, "metrics": session.stream})
        await _in_time(self._socket.send(end))


def _interval(session: Session) -> float:
    """Seconds between two keep-alives. The heartbeat interval of the session may be too long for a short lease."""
    heartbeat = session.heartbeat_microseconds or MICROSECONDS
    lease = (session.lease_microseconds or MICROSECONDS) // LEASE_PARTS
    idle = (session.idle_microseconds or MICROSECONDS) // IDLE_PARTS
    return min(heartbeat, lease, idle) / MICROSECONDS


async def _in_time(sending: Coroutine[Any, Any, None]) -> None:
    """Stops sending after GOODBYE_SECONDS: a client that does not read must not delay the end of its stream."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE_SECONDS):
            await sending


async def _chunk(handler: StreamHandler, message: Message) -> bool:
    await handler.chunk(message)
    return True


async def _finish(handler: StreamHandler) -> bool:
    await handler.finish()
    return True


def _check_cancelled() -> None:
    """Raises CancelledError if this task was cancelled.

    The handler's behaviour does not show it: a handler may suppress its cancellation, or raise CancelledError itself.
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
