"""An instance in the process of the test: served on a real socket, with a clock that the test can move."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Self

import httpx
import pytest

from tenure.app import Instance
from tenure.config import Config, GatewayConfig
from tenure.server.process import _Server, bind
from tenure.server.workers import certificate_of
from tenure.store.retries import Retries
from tests.http.client import TIMEOUT_SECONDS, Json, RawResponse, open_body
from tests.support.databases import Clock, Database
from tests.support.telemetry import RecordedTelemetry

POLL_SECONDS = 0.01
LAPSES: list[tuple[Json, str]] = [
    ({"leaseSeconds": 60}, "LEASE_EXPIRED"),
    ({"idleSeconds": 60}, "IDLE_TIMEOUT"),
    ({}, "EXPIRED"),
]
"""Fields that limit a session, and its close reason when it lapses. Without such fields, only its term limits it."""
UNREACHABLE = "http://127.0.0.1:9/"
"""A URL on which no server listens."""


class LocalService:
    database: Database

    def __init__(self, config: Config, clock: Clock) -> None:
        self.telemetry = RecordedTelemetry()
        self.instance = Instance(config, self.telemetry)
        self.clock = clock
        certificate = certificate_of(config)
        self._server = _Server(self.instance, config, self.telemetry, certificate)
        self._listener = bind("127.0.0.1", 0)
        # Accepted connections inherit this option. Without it, a response in two writes could take 40 ms.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._listener.getsockname()[1]
        # Without `verify=False`, each client would spend 40 ms on reading certificates.
        scheme = "http" if certificate is None else "https"
        address = f"{scheme}://127.0.0.1:{self.port}"
        self.http = httpx.AsyncClient(base_url=address, timeout=TIMEOUT_SECONDS, verify=False)

    @classmethod
    def on(cls, database: Database, *gateways: str, **settings: Any) -> Self:
        """An instance that uses the store of the test. `gateways` are the names of gateways that cannot be reached."""
        unreachable = {name: GatewayConfig(url=UNREACHABLE) for name in gateways}
        config = Config(database=database.url, **{"gateways": unreachable, **settings})
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("tenure.app.open_store", lambda *_, **__: database.store)
            service = cls(config, database.clock)
        service.database = database
        return service

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        await self.start()
        try:
            await self.until_ready()
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        """Does not call uvicorn's `serve`, which would replace the signal handlers of the test run."""
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

    async def reset(self) -> None:
        """Prepares this instance for the next test that shares it."""
        if self.clock.now() is not None:
            await self.clock.release()
        self.telemetry.events.clear()

    @property
    def in_flight(self) -> int:
        return self.instance.pipeline.in_flight

    async def put(self, body: Json) -> httpx.Response:
        return await self.http.put("/sessions", json=body)

    async def open(self, **fields: Any) -> Json:
        response = await self.put(open_body(**fields))
        assert response.status_code in (200, 201), response.text
        return response.json()  # type: ignore[no-any-return]

    async def get(self, session_id: str) -> Json:
        response = await self.http.get(f"/sessions/{session_id}")
        assert response.status_code == 200, response.text
        return response.json()  # type: ignore[no-any-return]

    async def move_to(self, instant: str, **later: float) -> None:
        """Stops the database clock at an instant from a response, plus `later` (the arguments of a `timedelta`)."""
        await self.clock.set(datetime.fromisoformat(instant) + timedelta(**later))


def prepare_process(patched: pytest.MonkeyPatch) -> None:
    """Keeps the garbage collector as it is, looks for plug-ins once, and lets requests survive a pause of the machine.

    Without the longer timeouts, a pause of two seconds would count as an unavailable database.
    """
    patched.setattr("tenure.app._settle_memory", lambda: None)
    for module in ("jobs.job", "streams.handlers"):
        patched.setattr(f"tenure.{module}.entry_points", _entry_points)
    for timeout in (
        "batching.coalescer.PATIENCE_SECONDS",
        "sessions.counts.PATIENCE_SECONDS",
        "batching.contention.CONTENTION_SECONDS",
    ):
        patched.setattr(f"tenure.{timeout}", TIMEOUT_SECONDS)
    patched.setattr(Retries.run, "__defaults__", (TIMEOUT_SECONDS,))


@cache
def _entry_points(group: str) -> EntryPoints:
    """Cached, because searching all installed packages takes half as long as creating an instance."""
    return entry_points(group=group)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - the service offers no event to wait for
            await asyncio.sleep(POLL_SECONDS)


async def call(application: Any, scope: Mapping[str, Any], *messages: Mapping[str, Any]) -> RawResponse:
    """Calls an ASGI application with these messages, followed by a disconnect."""
    pending = [*messages, {"type": "http.disconnect"}]
    response = RawResponse(headers={})

    async def receive() -> Mapping[str, Any]:
        return pending.pop(0) if len(pending) > 1 else pending[0]

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.headers.update({name.decode(): value.decode() for name, value in message["headers"]})
        else:
            response.body += message.get("body", b"")
            response.complete = not message.get("more_body", False)

    await application(scope, receive, send)
    return response


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
        "headers": [(b"host", b"localhost"), *headers],
        "client": None,
        "server": None,
    }
