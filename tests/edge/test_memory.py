"""A closed connection leaves nothing in memory, even without the garbage collector."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from websockets.frames import Opcode
from websockets.server import ServerProtocol

from tenure.server.http1 import HotProtocol, _HotCycle
from tenure.server.websocket import WebSocketProtocol
from tests.edge.conftest import ServeWith, raw
from tests.http.client import open_body, request
from tests.http.local import LocalService, eventually
from tests.support.streams import as_text, frame, handshake
from tests.support.streams import request as stream_request

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
OPEN = frame(Opcode.TEXT, as_text({"type": "open", **stream_request()}).encode())
WATCHED = (HotProtocol, _HotCycle, RequestResponseCycle, WebSocketProtocol, ServerProtocol)
CUT_SHORT = {
    "nothing sent": b"",
    "in the head": GET + b"X-Long: " + b"x" * 8000,
    "in the hot body": request(b" " * 60_000)[:-1],
    "in the ordinary body": request(b" " * 60_000, path="/%73essions")[:-1],
    "after a hot answer": request(open_body()),
    "after an ordinary answer": GET + b"\r\n",
    "after a hot refusal": request({}),
    "after an ordinary refusal": request({}, path="/%73essions"),
    "after a body that is too large": request(b" " * 70_000),
    "in a pipeline": (request(open_body()) + GET + b"\r\n") * 50,
    "after nonsense": b"nonsense\r\n\r\n",
    "after an upgrade offer": GET + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n" + GET,
    "after a refused handshake": handshake("/nowhere"),
    "after a handshake": handshake("/sessions/stream"),
    "in a stream": handshake("/sessions/stream") + OPEN,
    "in a message": handshake("/sessions/stream") + OPEN + frame(Opcode.BINARY, b"x" * 100_000)[:-1],
    "after a broken frame": handshake("/sessions/stream") + OPEN + b"\x83\x80\x00\x00\x00\x00",
    "after many pings": handshake("/sessions/stream") + OPEN + frame(Opcode.PING, b"") * 1000,
}
"""What the client sends before it closes the connection. `hot` and `ordinary` name the lane of the request."""


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watched:
    """Tracks all new objects of the watched classes except `_HotCycle`, which allows no weak references."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        for kind in WATCHED:
            if kind is not _HotCycle:
                self._watch(kind, monkeypatch)

    def _watch(self, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
        initialise: Any = kind.__init__  # type: ignore[misc]

        def watched(instance: Any, *arguments: Any, **named: Any) -> None:
            self._alive.add(instance)
            initialise(instance, *arguments, **named)

        monkeypatch.setattr(kind, "__init__", watched)

    @property
    def alive(self) -> list[str]:
        return [type(each).__name__ for each in self._alive]


@pytest.fixture
async def service(serve_with: ServeWith) -> LocalService:
    return await serve_with()


@pytest.mark.usefixtures("no_garbage_collector")
@pytest.mark.parametrize("name", CUT_SHORT)
async def test_closed_connection_is_freed_without_garbage_collector(
    service: LocalService, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    watched = Watched(monkeypatch)
    async with raw(service) as client:
        await client.send(CUT_SHORT[name])
        await asyncio.sleep(0.05)
    await eventually(lambda: not service._server.server_state.connections)
    await eventually(lambda: not service.in_flight)
    try:
        await eventually(lambda: not watched.alive)
    except TimeoutError:
        pytest.fail(f"still in memory: {watched.alive}")


def test_hot_request_does_not_refer_to_itself() -> None:
    """`message_event` returns the `_HotCycle` itself. An attribute of that name would make a reference cycle."""
    assert "message_event" not in _HotCycle.__slots__
