"""One stream: a connection, the session it is, and the handler of its messages.

Three things go on at once. The *pump* takes messages from the socket, counts them and gives them to the handler, one at
a time. The *keep-alive*, called from outside, tells the database that the session lives, with what was counted since.
And the *end* can come from any side; whichever comes first decides:

- the client says stop (STOPPED), or the connection is lost (DISCONNECTED), or the handler raises or the client sends
  what cannot be read (FAILED): found by the pump;
- the session is over (whatever reason the database names), or a newer stream has taken over: found by a keep-alive;
- the instance stops (SHUTDOWN).

Then the end is stamped in the database at once (`closing`: seat and key are free), the handler finishes, for a bounded
time, what it counted is saved with `closed`, the client is told, and the connection is closed. An instance that dies in
between leaves the lease to run out, or the sweep to finish what is `closing`.

What was counted is saved as additions, and each save has a number: one whose answer was lost is sent again just as it
was, and the database adds it once.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import structlog

from tenure.clock import monotonic
from tenure.deadlines import MICROSECONDS
from tenure.errors import Unavailable
from tenure.model.sessions import Attached, CloseReason, Found, Session, StreamUpdate, StreamUpdated
from tenure.streams.handlers import HandlerFactory, Message, StreamHandler
from tenure.streams.output import SocketOutput, as_json
from tenure.streams.saving import StreamStore
from tenure.streams.sockets import CloseCode, Socket, SocketGone, UnreadableMessage
from tenure.streams.tally import Tally

T = TypeVar("T")

log = structlog.get_logger()

FINISH_SECONDS = 5.0
"""How long a handler may take to finish."""
CANCEL_SECONDS = 1.0
DRAIN_SECONDS = 1.0
"""How long the messages that arrived before the connection was lost may take."""
TELL_SECONDS = 1.0
"""How long a client may take to read what it is told at the end."""
RETRY_SECONDS = 1.0
RETRY_LEAST_SECONDS = 0.1
RETRY_PARTS = 4
"""Of the time that the session has left."""
SAVE_TRIES = 3
LEASE_PARTS = 3
IDLE_PARTS = 4
STOP_LENGTH_MAX = 64


class Ending(msgspec.Struct, frozen=True):
    """Why a stream ends. Without a reason the session lives on, with a newer stream."""

    reason: str | None
    code: CloseCode
    error: tuple[str, str] | None = None
    """A code and a sentence that the client is told first."""
    is_recorded: bool = False
    """The database has the session's end already."""


STOPPED = Ending(CloseReason.STOPPED.value, CloseCode.NORMAL)
DISCONNECTED = Ending(CloseReason.DISCONNECTED.value, CloseCode.NORMAL)
SHUTDOWN = Ending(CloseReason.SHUTDOWN.value, CloseCode.SHUTDOWN)
REPLACED = Ending(None, CloseCode.REPLACED)
FAILED = Ending(CloseReason.FAILED.value, CloseCode.FAILED, ("HANDLER_FAILED", "the handler of this stream failed"))


class Stream:
    def __init__(
        self, socket: Socket, attached: Attached, make_handler: HandlerFactory, store: StreamStore, tally: Tally
    ) -> None:
        self._socket = socket
        self._make_handler = make_handler
        self._handler: StreamHandler | None = None
        self._store = store
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
        """The first who says so decides why."""
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
        """A handler's failure is its own stream's end, and nobody else's, whatever it raises."""
        try:
            return await handling
        except asyncio.CancelledError:
            _check_cancelled()
            log.exception("stream.handler_failed", session_id=self.session.session_id)
        except (Exception, SystemExit):
            log.exception("stream.handler_failed", session_id=self.session.session_id)
        return None

    def _received(self, message: Message) -> None:
        self._tally.received(message)
        if not self._was_active:
            self._was_active = True
            if self._is_urgent:
                self.keep_alive()

    # Keeping the session alive

    def keep_alive(self) -> None:
        """Soon, and one at a time."""
        if not self._is_quiet and (self._keeping is None or self._keeping.done()):
            self.due_at = float("inf")
            self._keeping = asyncio.ensure_future(self._keep_alive())

    @property
    def _is_urgent(self) -> bool:
        """What came in time must be written in time, and the next keep-alive may be too late for it."""
        is_movable = self.session.lapse_reason != CloseReason.EXPIRED.value
        return self._was_active and is_movable and monotonic() > self._ends_at - 2 * self._interval

    async def _keep_alive(self) -> None:
        # A message may come while a save is under way: too late for that one, and perhaps too early to wait.
        while await self._is_kept() and self._is_urgent:
            pass

    async def _is_kept(self) -> bool:
        asked_at = monotonic()
        try:
            updated = await self._save()
        except Exception as error:
            if not isinstance(error, Unavailable):
                log.exception("stream.crashed", session_id=self.session.session_id)
            # Whatever it was, the socket lives, and so must the session.
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
        """The sooner the less time is left: what came in time is not to be written too late by a pause of ours."""
        left = self._ends_at - monotonic()
        return min(RETRY_SECONDS, max(left / RETRY_PARTS, RETRY_LEAST_SECONDS)) if left > 0 else RETRY_SECONDS

    def _learn(self, answer: Attached | StreamUpdated, asked_at: float) -> None:
        """How long the session lives now, on this host's clock, and when the next keep-alive is due.

        The answer may have been under way for long, so its time runs from when it was asked for.
        """
        if answer.session is None or answer.now is None:
            raise ValueError(f"an answer that found {answer.found} without a session")
        self.session: Session = answer.session
        self._interval = _interval(self.session)
        remaining = (self.session.deadline_at - answer.now).total_seconds()
        self._ends_at = asked_at + remaining
        self.due_at = min(monotonic() + self._interval, self._ends_at)

    async def _save(self, *, end: str | None = None, finished: bool = False) -> StreamUpdated:
        async with self._saving:
            if self._unanswered is not None:
                await self._send(self._unanswered)
            self._saves += 1
            was_active, self._was_active = self._was_active, False
            counted = self._tally.take()
            return await self._send(
                StreamUpdate(self.session.session_id, self.attachment, self._saves, was_active, counted, end, finished)
            )

    async def _send(self, update: StreamUpdate) -> StreamUpdated:
        self._unanswered = update
        updated = await self._store.update(update)
        self._unanswered = None
        return updated

    # The end

    async def _quiet(self, pump: "asyncio.Future[Ending]") -> None:
        """No more messages, no more keep-alives. A handler that does not let itself be cancelled is left behind."""
        self._is_quiet = True
        pump.cancel()
        _, stuck = await asyncio.wait({pump}, timeout=CANCEL_SECONDS)
        if stuck:
            log.warning("stream.handler_stuck", session_id=self.session.session_id)
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
        await self._tell(reason, last)
        code = CloseCode.REPLACED if reason is None else ending.code
        await self._socket.close(code)

    async def _stamp(self, reason: str) -> str | None:
        """What the database says why the session is over: somebody may have been faster. None if it is not."""
        updated = await self._save_at_last(end=reason)
        if updated is None or updated.session is None:
            return reason
        return None if updated.found is Found.REPLACED else updated.session.close_reason

    async def _save_at_last(self, *, end: str | None = None, finished: bool = False) -> StreamUpdated | None:
        """A few tries. If none succeeds, the lease will run out, and the sweep will write that down."""
        for _ in range(SAVE_TRIES):
            try:
                return await self._save(end=end, finished=finished)
            except Unavailable as error:
                last = error.detail
            except Exception as error:
                log.exception("stream.crashed", session_id=self.session.session_id)
                last = repr(error)
            await asyncio.sleep(RETRY_SECONDS)
        log.warning("stream.not_saved", session_id=self.session.session_id, end=end, error=last)
        return None

    async def _finish(self) -> None:
        if self._handler is None:
            return
        finishing = asyncio.ensure_future(self._called(_finish(self._handler)))
        _, stuck = await asyncio.wait({finishing}, timeout=FINISH_SECONDS)
        if stuck:
            finishing.cancel()
            log.warning("stream.handler_stuck", session_id=self.session.session_id)

    async def _tell(self, reason: str | None, last: StreamUpdated | None) -> None:
        if reason is None:
            await _in_time(self._socket.send(as_json({"type": "replaced"})))
            return
        session = self.session if last is None or last.session is None else last.session
        end = as_json({"type": "session_end", "reason": reason, "metrics": session.stream})
        await _in_time(self._socket.send(end))


def _interval(session: Session) -> float:
    """Seconds between two keep-alives. A client may be told to come more seldom than a short lease can bear."""
    heartbeat = session.heartbeat_microseconds or MICROSECONDS
    lease = (session.lease_microseconds or MICROSECONDS) // LEASE_PARTS
    idle = (session.idle_microseconds or MICROSECONDS) // IDLE_PARTS
    return min(heartbeat, lease, idle) / MICROSECONDS


async def _in_time(telling: Coroutine[Any, Any, None]) -> None:
    """A client that does not read must not hold up the end of its stream."""
    with suppress(TimeoutError):
        async with asyncio.timeout(TELL_SECONDS):
            await telling


async def _chunk(handler: StreamHandler, message: Message) -> bool:
    await handler.chunk(message)
    return True


async def _finish(handler: StreamHandler) -> bool:
    await handler.finish()
    return True


def _check_cancelled() -> None:
    """A handler may swallow its cancelling, or raise one that nobody asked for."""
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
