"""Streams over WebSockets."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from tenure_client import models
from tenure_client._async import _io
from tenure_client._core import Options, transport_error
from tenure_client._messages import (
    Final,
    Message,
    Partial,
    SessionEnd,
    StreamError,
    error_of,
    parsed,
    socket_options,
    socket_url,
)
from tenure_client.errors import NotSent, SessionOver, StreamClosed, StreamReplaced, TimedOut, problem_of

STOP = '{"type": "stop"}'
STOP_SECONDS = 10.0


class AsyncStream:
    """A stream of messages, bound to a session. Use it in a `with` block (`async with` in the async client): leaving
    the block stops the stream and ends the session.

    Iterate over the stream to get the messages: `str` and `bytes` from the handler, `Partial`, `Final` and
    `StreamError`. The iteration ends after the stream was stopped. The iteration raises `StreamReplaced` if a newer
    stream took over, the `Problem` for the last `StreamError` if the server closed the stream because of that error,
    `SessionOver` if the session ended for another reason, and `StreamClosed` if the connection broke.
    """

    def __init__(self, options: Options, path: str, body: models.OpenBody | None) -> None:
        self._options = options
        self._path = path
        self._body = body
        self._socket: _io.Connection | None = None
        self._last_error: StreamError | None = None
        self._session: models.OpenedSession | None = None
        self.end: SessionEnd | None = None
        """The close reason and the counters of the session. None until the server has sent them."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    @property
    def session(self) -> models.OpenedSession:
        if self._session is None:
            raise StreamClosed("the stream is not open")
        return self._session

    async def open(self) -> None:
        """Connect, and wait until the server has confirmed the start of the session."""
        url = socket_url(self._options, self._path)
        try:
            self._socket = await _io.open_socket(url, **socket_options(self._options))
        except InvalidStatus as error:
            response = error.response
            raise problem_of(response.status_code, response.headers, bytes(response.body or b"")) from None
        except TimeoutError as error:
            raise TimedOut(f"the handshake: {error}") from None
        except (InvalidHandshake, OSError) as error:
            raise NotSent(str(transport_error(error))) from None
        try:
            if self._body is not None:
                opening = {"type": "open", **msgspec.to_builtins(self._body)}
                # If the server has closed the connection already, its last message says why: `_start` reads it.
                with suppress(ConnectionClosed):
                    await self._socket.send(msgspec.json.encode(opening).decode())
            await self._start()
        except BaseException:
            await self._socket.close()
            raise

    async def _start(self) -> None:
        while self._session is None:
            message = await self._next(self._options.timeout)
            if isinstance(message, models.OpenedSession):
                self._session = message
            elif message is None:
                raise StreamClosed("the server ended the stream before the session started")

    async def send(self, message: str | bytes) -> None:
        if self._socket is None:
            raise StreamClosed("the stream is not open")
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise self._closed(error) from None

    async def stop(self) -> None:
        """End the stream and the session. Continue to iterate to get the remaining messages."""
        await self.send(STOP)

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            message = await self._next(None)
            if message is None:
                return
            if isinstance(message, str | bytes | Partial | Final | StreamError):
                yield message

    async def aclose(self) -> None:
        """Stop the stream if it is open, and close the connection. Further messages are discarded."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        try:
            if self.end is None:
                await socket.send(STOP)
                while self.end is None:
                    self._note(parsed(await _io.receive(socket, STOP_SECONDS)))
        except (ConnectionClosed, TimeoutError, OSError):
            pass
        finally:
            await socket.close()

    async def _next(self, timeout: float | None) -> Any:
        """Return the next message, or None at the end of the stream."""
        if self._socket is None:
            raise StreamClosed("the stream is not open")
        try:
            message = parsed(await _io.receive(self._socket, timeout))
        except TimeoutError:
            raise TimedOut("the server sent nothing in time") from None
        except ConnectionClosed as error:
            if self.end is not None and self.end.reason == "STOPPED":
                return None
            raise self._closed(error) from None
        self._note(message)
        return message

    def _note(self, message: Any) -> None:
        if isinstance(message, SessionEnd):
            self.end = message
        elif isinstance(message, StreamError):
            self._last_error = message

    def _closed(self, error: ConnectionClosed) -> Exception:
        code = None if error.rcvd is None else error.rcvd.code
        if code == StreamCodes.REPLACED:
            return StreamReplaced("a newer stream of this session has taken over", close_code=code)
        if self._last_error is not None and code != StreamCodes.NORMAL:
            return error_of(self._last_error, self.end)
        if self.end is not None:
            detail = f"the session has ended: {self.end.reason}"
            return SessionOver(detail, status=410, code="SESSION_OVER", close_reason=self.end.reason)
        return StreamClosed(f"the connection was closed: {code or 'no close frame'}", close_code=code)


class StreamCodes:
    NORMAL = 1000
    REPLACED = 4409
