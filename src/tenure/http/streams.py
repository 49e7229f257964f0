"""The WebSocket routes: a stream that opens a session, and one that attaches to it."""

import asyncio
from typing import Any

import msgspec
import structlog

from tenure.errors import (
    Draining,
    FieldError,
    Internal,
    Invalid,
    NotFound,
    Problem,
    SessionOver,
    TooLarge,
    Unavailable,
)
from tenure.http.requests import decoder_for
from tenure.http.routing import VERSION
from tenure.http.shapes import OpenBody, open_answer
from tenure.ids import canonical_id
from tenure.model.sessions import Opened, Outcome
from tenure.sessions.opening import Opener
from tenure.streams.handlers import Message
from tenure.streams.output import as_json
from tenure.streams.sockets import CloseCode, Socket, SocketGone, UnreadableMessage
from tenure.streams.streams import Streams

log = structlog.get_logger()

FIRST_MESSAGE_SECONDS = 10.0

_read_open = decoder_for(OpenBody)


class StreamRoutes:
    def __init__(self, streams: Streams, opener: Opener, prefix: str) -> None:
        self._streams = streams
        self._opener = opener
        self._prefix = prefix

    def find(self, path: str) -> str | None:
        """The id in the path as it stands, None where a session is to be opened; `NotFound` for any other address."""
        path, _, _query = path.partition("?")
        for start in (f"{self._prefix}{VERSION}/sessions/", f"{self._prefix}/sessions/"):
            if path.startswith(start):
                rest = path.removeprefix(start)
                if rest == "stream":
                    return None
                session_id, slash, last = rest.partition("/")
                if slash and last == "stream" and session_id:
                    return session_id
        raise NotFound("there is no stream at this address")

    async def serve(self, socket: Socket, session_id: str | None) -> None:
        try:
            with self._streams.place():
                await self._serve(socket, session_id)
        except SocketGone:
            pass
        except UnreadableMessage as error:
            await _refuse(socket, error.code, error.detail, error.close_code)
        except Problem as problem:
            await _refuse(socket, problem.code, problem.detail, _close_code(problem))

    async def _serve(self, socket: Socket, session_id: str | None) -> None:
        if session_id is None:
            wish = self._opener.wish(await _first_message(socket))
            opened = await self._opener.open(wish)
            if opened.session is None:
                raise Internal("an open without a session")
            session_id = opened.session.session_id
        else:
            opened = Opened(Outcome.EXISTING)
            session_id = _canonical(session_id)
        attached = await self._streams.attach(session_id)
        answer = open_answer(Opened(opened.outcome, attached.session))
        greeting = as_json({"type": "session_start", **msgspec.to_builtins(answer)})
        await self._streams.run(socket, attached, greeting)


def _canonical(session_id: str) -> str:
    """A malformed id is the id of no session."""
    canonical = canonical_id(session_id)
    if canonical is None:
        raise NotFound(f"there is no session {session_id[:64]}")
    return canonical


async def _first_message(socket: Socket) -> OpenBody:
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            message = await socket.receive()
    except TimeoutError as error:
        raise Invalid(FieldError("type", f"must be open, within {FIRST_MESSAGE_SECONDS:g} seconds")) from error
    content = _as_object(message)
    if content.pop("type", None) != "open":
        raise Invalid(FieldError("type", "must be open in the first message"))
    return _read_open(msgspec.json.encode(content))


def _as_object(message: Message) -> dict[str, Any]:
    content: Any = None
    if isinstance(message, str):
        try:
            content = msgspec.json.decode(message)
        except (msgspec.DecodeError, RecursionError):
            content = None
    if not isinstance(content, dict):
        raise Invalid(FieldError("type", "must be open, in a JSON object, in the first message"))
    return content


async def _refuse(socket: Socket, code: str, message: str, close_code: CloseCode) -> None:
    await socket.send(as_json({"type": "error", "code": code, "message": message}))
    await socket.close(close_code)


def _close_code(problem: Problem) -> CloseCode:
    codes: list[tuple[type[Problem], CloseCode]] = [
        (NotFound, CloseCode.UNKNOWN),
        (SessionOver, CloseCode.OVER),
        (TooLarge, CloseCode.TOO_BIG),
        (Draining, CloseCode.SHUTDOWN),
        (Unavailable, CloseCode.TRY_AGAIN_LATER),
        (Internal, CloseCode.FAILED),
    ]
    return next((code for kind, code in codes if isinstance(problem, kind)), CloseCode.REFUSED)
