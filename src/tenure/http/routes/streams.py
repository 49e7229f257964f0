"""The WebSocket routes: one opens a session and streams, the other streams within an existing session."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from tenure.access.grants import CLIENTS, CLIENTS_OR_SESSION_TOKEN, narrowed
from tenure.domain.sessions import OpenOutcome, OpenResult, Session
from tenure.errors import (
    Draining,
    FieldError,
    Internal,
    Invalid,
    NotFound,
    Problem,
    SessionLimit,
    SessionOver,
    TooLarge,
    Unavailable,
)
from tenure.http.decoding import Decoding, decoder_for
from tenure.http.pipeline import Call, StreamRoute
from tenure.http.routes.sessions import (
    OpenBody,
    SignToken,
    TokenSigner,
    check_scope,
    open_answer,
    open_request,
    refusal_of,
    refusal_of_open,
)
from tenure.ids import canonical_id
from tenure.sessions.open import Opener
from tenure.streams.handlers import Message
from tenure.streams.output import as_json
from tenure.streams.registry import Admission, Streams
from tenure.streams.sockets import CloseCode, Socket, SocketGone, UnreadableMessage

FIRST_MESSAGE_SECONDS = 10.0


class StreamRoutes:
    def __init__(
        self,
        streams: Streams,
        opener: Opener,
        token_signer: TokenSigner,
        decoding: Decoding = Decoding(),  # noqa: B008 - immutable
    ) -> None:
        self._streams = streams
        self._opener = opener
        self._token_signer = token_signer
        self._decode_open = decoder_for(OpenBody, decoding)

    def routes(self) -> Sequence[StreamRoute]:
        return [
            StreamRoute(
                path="/sessions/stream",
                serve=self.serve,
                grants=narrowed(CLIENTS),
                tag="streams",
                summary="Open a session and stream",
                description='The client first sends `{"type": "open", …}` with the fields of `PUT /sessions`.',
                first_message=OpenBody,
            ),
            StreamRoute(
                path="/sessions/{sessionId}/stream",
                serve=self.serve,
                grants=narrowed(CLIENTS_OR_SESSION_TOKEN),
                tag="streams",
                summary="Stream within an existing session",
                description="A newer stream replaces an older one of the same session.",
            ),
        ]

    async def serve(self, socket: Socket, call: Call) -> None:
        """Attaches to the session in the path; if the path has none, opens a session first."""
        session_id = canonical_id(call.path.get("sessionId", ""))
        await serve_admitted(self._streams, self._run, socket, call, lambda session: session.session_id == session_id)

    async def _run(self, socket: Socket, call: Call) -> None:
        session_id = call.path.get("sessionId")
        scope = call.caller.scope
        sign: SignToken | None = None
        if session_id is None:
            body = self._decode_open(msgspec.json.encode(await _first_message(socket)))
            check_scope(scope, body.tenant_object_id, body.user_object_id)
            sign = self._token_signer() if body.with_token else None
            opened = await self._opener.open(open_request(self._opener, body))
            if (problem := refusal_of_open(opened, scope)) is not None:
                raise problem
            session_id = opened.session.session_id if opened.session is not None else ""
        else:
            opened = OpenResult(OpenOutcome.EXISTING)
            session_id = _canonical(session_id)
        attached = await self._streams.attach(session_id, scope)
        if (problem := refusal_of(attached, session_id)) is not None:
            raise problem
        answer = open_answer(OpenResult(opened.outcome, attached.session), sign)
        greeting = as_json({"type": "session_start", **call.names.builtins(answer)})
        await self._streams.run(socket, attached, greeting, names=call.names)


async def serve_admitted(
    streams: Streams,
    run: Callable[[Socket, Call], Awaitable[None]],
    socket: Socket,
    call: Call,
    replaces: Callable[[Session], bool],
) -> None:
    """Calls `run` if the instance has room for one more stream, or if the stream replaces one of the instance's
    streams. If a problem is raised, sends the problem as the last message and closes the connection.

    The client may send before it reads. So `Socket.close` continues to read for a while, so that the client can read
    the problem.
    """
    try:
        # A full instance must not show whether it has streams of sessions that the caller may not see.
        admits = call.caller.scope.admits
        with streams.admit(
            lambda each: admits(each.tenant_object_id, each.user_object_id) and replaces(each)
        ) as admission:
            check_admission(admission, streams)
            await run(socket, call)
    except SocketGone:
        pass
    except UnreadableMessage as error:
        await _refuse(socket, error.code, error.detail, error.close_code)
    except Problem as problem:
        await _refuse(socket, problem.code, call.names.text(problem.detail), _close_code(problem))


def check_admission(admission: Admission, streams: Streams) -> None:
    if admission is Admission.STOPPING:
        raise Draining("this instance is stopping")
    if admission is Admission.FULL:
        raise SessionLimit(f"this instance already has {streams.max} stream{'s' if streams.max > 1 else ''}")


def _canonical(session_id: str) -> str:
    """Returns the canonical form of the id. Raises `NotFound` for a malformed id: no session can have it."""
    canonical = canonical_id(session_id)
    if canonical is None:
        raise NotFound(f"session {session_id[:64]} does not exist")
    return canonical


async def _first_message(socket: Socket) -> dict[str, Any]:
    """Returns the first message without its type."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            message = await socket.receive()
    except TimeoutError as error:
        raise Invalid(
            FieldError("type", f"must be `open`, in a message sent within {FIRST_MESSAGE_SECONDS:g} seconds")
        ) from error
    content = _as_object(message)
    if content.pop("type", None) != "open":
        raise Invalid(FieldError("type", "must be `open` in the first message"))
    return content


def _as_object(message: Message) -> dict[str, Any]:
    content: Any = None
    if isinstance(message, str):
        try:
            content = msgspec.json.decode(message)
        except (msgspec.DecodeError, RecursionError):
            content = None
    if not isinstance(content, dict):
        raise Invalid(FieldError("type", "must be `open`, and the first message must be a JSON object"))
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
