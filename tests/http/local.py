"""A service inside the test's own process: served over a real socket, its clock movable, its counters in sight."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Self

import httpx
import pytest

from tenure.app import Instance
from tenure.config import Config, GatewayConfig
from tenure.serving import _Server, bind
from tenure.store.retries import Retries
from tests.http.client import TIMEOUT_SECONDS, Json, RawAnswer, wish
from tests.support.databases import Clock, Database

POLL_SECONDS = 0.01
NOBODY = "http://127.0.0.1:9/"


class LocalService:
    def __init__(self, config: Config, clock: Clock) -> None:
        self.instance = Instance(config)
        self.clock = clock
        self._server = _Server(self.instance, config.streams.max_message_bytes)
        self._listener = bind("127.0.0.1", 0)
        # Without it, and without uvloop, an answer in two writes takes 40 ms.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._listener.getsockname()[1]
        # To read the certificates that nobody needs here would take 40 ms a client.
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT_SECONDS, verify=False)

    @classmethod
    def on(cls, database: Database, monkeypatch: pytest.MonkeyPatch, prefix: str = "", **settings: Any) -> Self:
        """An instance whose store is that of the test; unless told otherwise, with a gateway where nobody answers."""
        monkeypatch.setattr("tenure.app.open_store", lambda *_: database.store)
        monkeypatch.setattr("tenure.app._settle_memory", lambda: None)
        _be_patient(monkeypatch)
        given = {"gateways": {"billing": GatewayConfig(url=NOBODY)}, **settings}
        return cls(Config(database=database.url, prefix=prefix, **given), database.clock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        await self.start()
        try:
            await self.until_ready()
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        """Without uvicorn's `serve`, which would take the signal handlers of the whole test run."""
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[self._listener])
        self.instance.start()

    async def until_ready(self) -> None:
        await eventually(lambda: self.instance.readiness.started)

    async def stop(self) -> None:
        await self.http.aclose()
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
        await eventually(lambda: not self._server.server_state.connections)
        await self.instance.stop()

    @property
    def in_flight(self) -> int:
        return self.instance.router.in_flight

    async def put(self, body: Json) -> httpx.Response:
        return await self.http.put("/sessions", json=body)

    async def open(self, **fields: Any) -> Json:
        answer = await self.put(wish(**fields))
        assert answer.status_code in (200, 201), answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def get(self, session_id: str) -> Json:
        answer = await self.http.get(f"/sessions/{session_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def move_to(self, instant: str, **later: float) -> None:
        """Stops the database's clock at an instant of an answer, or so much later."""
        await self.clock.set(datetime.fromisoformat(instant) + timedelta(**later))


def _be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that pauses for two seconds is no database that is away: that is tested elsewhere."""
    for bound in ("coalescer.PATIENCE_SECONDS", "sessions.counts.PATIENCE_SECONDS", "sessions.rounds.ROUNDS_SECONDS"):
        monkeypatch.setattr(f"tenure.{bound}", TIMEOUT_SECONDS)
    monkeypatch.setattr(Retries.run, "__defaults__", (TIMEOUT_SECONDS,))


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for belongs to the service, which must not know
            await asyncio.sleep(POLL_SECONDS)


async def call(application: Any, scope: Mapping[str, Any], *messages: Mapping[str, Any]) -> RawAnswer:
    """Calls an ASGI application with exactly these messages, and a disconnect after them."""
    waiting = [*messages, {"type": "http.disconnect"}]
    answer = RawAnswer(headers={})

    async def receive() -> Mapping[str, Any]:
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers.update({name.decode(): value.decode() for name, value in message["headers"]})
        else:
            answer.body += message.get("body", b"")
            answer.complete = not message.get("more_body", False)

    await application(scope, receive, send)
    return answer


def http_scope(method: str, path: str, query: bytes = b"", *headers: tuple[bytes, bytes]) -> Mapping[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": list(headers),
        "client": None,
        "server": None,
    }
