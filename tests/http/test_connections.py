"""Connections: split requests, pipelines, malformed requests, and clients that disconnect."""

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest

from tenure.store.contract.sessions import OpenLane
from tests.http.client import Client, Json, chunked, connected, open_body, request, same_key
from tests.http.local import LocalService, eventually
from tests.support.databases import Database
from tests.support.instances import RunningInstance

LANES = {"hot": "/sessions", "ordinary": "/%73essions"}


@pytest.fixture(params=LANES)
def path(request: pytest.FixtureRequest) -> str:
    return LANES[request.param]


# Split requests.


def test_body_sent_byte_by_byte_is_accepted(any_service: RunningInstance, path: str) -> None:
    message = request(open_body(), path=path)
    with connected(any_service.port) as connection:
        connection.send(*(bytes([byte]) for byte in message))
        assert connection.read().status == 201


def test_chunked_body_split_inside_chunks_is_accepted(any_service: RunningInstance, path: str) -> None:
    content = msgspec.json.encode(open_body())
    body = chunked(*(bytes([byte]) for byte in content))
    with connected(any_service.port) as connection:
        connection.send(
            request(b"", "Transfer-Encoding: chunked", path=path),
            *(body[at : at + 7] for at in range(0, len(body), 7)),
        )
        assert connection.read().status == 201


def test_expect_100_continue_is_answered_before_body(any_service: RunningInstance) -> None:
    content = msgspec.json.encode(open_body())
    with connected(any_service.port) as connection:
        connection.send(request(b"", "Expect: 100-continue", length=len(content)))
        assert connection.read_interim() == 100
        connection.send(content)
        assert connection.read().status == 201


# Many requests on one connection.


def test_connection_is_kept_alive(any_service: RunningInstance, path: str) -> None:
    with connected(any_service.port) as connection:
        for _ in range(3):
            connection.send(request(open_body(), path=path))
            response = connection.read()
            assert (response.status, response.headers.get("connection")) == (201, None)


def test_connection_alternates_between_lanes(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        for path in ("/sessions", "/sessions?", "/sessions", "/v1/sessions"):
            connection.send(request(open_body(), path=path))
            assert connection.read().status == 201


@pytest.mark.parametrize("body", [open_body(), {}], ids=["accepted", "rejected"])
def test_connection_close_header_closes_connection(any_service: RunningInstance, path: str, body: Json) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(body, "Connection: close", path=path))
        assert connection.read().headers["connection"] == "close"
        assert connection.is_closed_by_peer()


def test_http_1_0_request_is_answered_then_connection_closed(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(open_body(), version="1.0"))
        assert connection.read().status == 201
        assert connection.is_closed_by_peer()


def _mixed(bodies: Sequence[Json]) -> bytes:
    """Requests that open sessions, with paths of the hot and of the ordinary lane, each followed by `GET /healthz`."""
    paths = itertools.cycle(["/sessions", "/sessions?", "/v1/sessions", "/sessions"])
    probe = request(method="GET", path="/healthz", media_type=None)
    return b"".join(request(body, path=path) + probe for body, path in zip(bodies, paths, strict=False))


def test_pipelined_requests_are_answered_in_order(any_service: RunningInstance) -> None:
    bodies = [open_body() for _ in range(20)]
    with connected(any_service.port) as connection:
        connection.send(_mixed(bodies))
        responses = [connection.read().json() for _ in range(2 * len(bodies))]
    assert [response["userObjectId"] for response in responses[::2]] == [body["userObjectId"] for body in bodies]
    assert responses[1::2] == [{"status": "ok"}] * len(bodies)


def test_pipelined_requests_are_parsed_when_split_at_any_byte(any_service: RunningInstance) -> None:
    bodies = [open_body() for _ in range(4)]
    message = _mixed(bodies)
    for size in (1, 7, 100, 333):
        with connected(any_service.port) as connection:
            connection.send(*(message[at : at + size] for at in range(0, len(message), size)))
            responses = [connection.read() for _ in range(2 * len(bodies))]
        assert {response.status for response in responses} <= {200, 201}


def test_pipelined_requests_see_effects_of_earlier_requests(any_service: RunningInstance) -> None:
    first = open_body()
    bodies = [first, same_key(first), same_key(first, sessionKind=3), same_key(first, sessionKind=2)]
    with connected(any_service.port) as connection:
        connection.send(b"".join(map(request, bodies)))
        outcomes = [connection.read().json()["status"] for _ in bodies]
    assert outcomes == ["created", "existing", "upgraded", "existing"]


def test_invalid_request_does_not_block_pipeline(any_service: RunningInstance) -> None:
    messages = [request(open_body()), request({}), request(b"{", path="/sessions?"), request(open_body())]
    with connected(any_service.port) as connection:
        connection.send(b"".join(messages))
        assert [connection.read().status for _ in messages] == [201, 400, 400, 201]


def test_h2c_upgrade_offer_is_ignored_and_body_read(any_service: RunningInstance) -> None:
    """The HTTP client of Java offers h2c with the first request of each connection."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    message = request(open_body(), *offer)
    for parts in ([message], [message[:-20], message[-20:]], [message[:60], message[60:]]):
        with connected(any_service.port) as connection:
            connection.send(*parts)
            first = connection.read()
            connection.send(request(open_body()))
            assert (first.status in (200, 201), connection.read().status) == (True, 201), first


# Malformed requests.

MALFORMED = {
    "request line": b"NONSENSE\r\n\r\n",
    "method": b"P\xffT /sessions HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "target": b"GET /sess\xffions HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "version": b"GET /sessions HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "header": b"GET /sessions HTTP/1.1\r\nno colon\r\n\r\n",
    "header name": b"GET /sessions HTTP/1.1\r\nbad name: 1\r\n\r\n",
    "header value": b"GET /sessions HTTP/1.1\r\nName: a\x00b\r\n\r\n",
    "negative length": b"PUT /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"PUT /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": request(chunked(b"{}"), "Transfer-Encoding: chunked", "Content-Length: 2"),
    "chunk size": request(b"xyz\r\n", "Transfer-Encoding: chunked"),
    "TLS": bytes.fromhex("16030100f1010000ed0303"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT tenure:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_returns_400_and_closes_connection(any_service: RunningInstance, name: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(MALFORMED[name])
        response = connection.read()
        assert (response.status, response.headers["connection"]) == (400, "close")
        assert connection.is_closed_by_peer()
    assert response.headers["content-type"] == "application/problem+json", response
    assert response.json()["code"] == "INVALID"


def test_malformed_request_does_not_affect_other_connections(any_service: RunningInstance) -> None:
    with connected(any_service.port) as good, connected(any_service.port) as bad:
        message = request(open_body())
        good.send(message[:-10])
        bad.send(MALFORMED["header"])
        assert bad.read().status == 400
        good.send(message[-10:])
        assert good.read().status == 201


# Clients that disconnect.


def _reset(connection: socket.socket) -> None:
    """Ends a connection with RST, as the host of a killed client may do."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextlib.asynccontextmanager
async def _connection(any_local: LocalService) -> AsyncIterator[socket.socket]:
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", any_local.port))
    with connection:
        yield connection


async def _send(connection: socket.socket, message: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, message)


DISCONNECTS: list[Callable[[socket.socket], None]] = [socket.socket.close, _reset]
LANES_AND_DISCONNECTS = list(itertools.product(LANES.values(), DISCONNECTS))


async def test_client_disconnect_during_body_removes_request_from_in_flight(any_local: LocalService) -> None:
    for path, disconnect in LANES_AND_DISCONNECTS:
        async with _connection(any_local) as connection:
            await _send(connection, request(open_body(), path=path)[:-10])
            await eventually(lambda: any_local.in_flight == 1)
            disconnect(connection)
            await eventually(lambda: any_local.in_flight == 0)


async def test_incomplete_body_opens_no_session(any_local: LocalService) -> None:
    """The bytes that arrive are a valid JSON body, but fewer than Content-Length says."""
    for path in LANES.values():
        body = open_body()
        async with _connection(any_local) as connection:
            await _send(connection, request(body, path=path, length=1000))
            await eventually(lambda: any_local.in_flight == 1)
        await eventually(lambda: any_local.in_flight == 0)
        response = await any_local.http.get("/sessions", params={"tenant": body["tenantObjectId"]})
        assert response.json()["count"] == 0, path


async def test_malformed_chunk_removes_request_from_in_flight(any_local: LocalService) -> None:
    for path in LANES.values():
        async with _connection(any_local) as connection:
            await _send(connection, request(b"2\r\n{}\r\n", "Transfer-Encoding: chunked", path=path))
            await eventually(lambda: any_local.in_flight == 1)
            await _send(connection, b"nonsense\r\n")
            await eventually(lambda: any_local.in_flight == 0)


class Gate:
    """Holds back calls of `open_sessions` until the gate is opened."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.close()
        self._open_sessions = database.store.open_sessions
        monkeypatch.setattr(database.store, "open_sessions", self._wait)

    def close(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def _wait(self, lane: OpenLane, *arguments: Any) -> Any:
        self.reached.set()
        await self.open.wait()
        return await self._open_sessions(lane, *arguments)


@pytest.fixture
def gate(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(sqlite_database, monkeypatch)


async def test_client_disconnect_before_response_still_opens_session(any_local: LocalService, gate: Gate) -> None:
    for path, disconnect in LANES_AND_DISCONNECTS:
        body = open_body()
        gate.close()
        async with _connection(any_local) as connection:
            await _send(connection, request(body, path=path))
            await gate.reached.wait()
            disconnect(connection)
        gate.open.set()
        await eventually(lambda: any_local.in_flight == 0)
        assert (await any_local.put(body)).json()["status"] == "existing", (path, disconnect)


async def test_client_disconnect_removes_whole_pipeline_from_in_flight(any_local: LocalService, gate: Gate) -> None:
    for disconnect in DISCONNECTS:
        gate.close()
        async with _connection(any_local) as connection:
            await _send(connection, _mixed([open_body() for _ in range(4)]))
            await gate.reached.wait()
            disconnect(connection)
        gate.open.set()
        await eventually(lambda: any_local.in_flight == 0)
        assert (await any_local.put(open_body())).status_code == 201, disconnect


async def test_client_disconnect_does_not_affect_rest_of_batch(any_local: LocalService, gate: Gate) -> None:
    """The first batch waits at the gate. A client of the second batch disconnects before that batch runs."""
    for disconnect in DISCONNECTS:
        gate.close()
        first = asyncio.create_task(any_local.put(open_body()))
        await gate.reached.wait()
        others = [asyncio.create_task(any_local.put(open_body())) for _ in range(3)]
        async with _connection(any_local) as connection:
            await _send(connection, request(open_body()))
            await eventually(lambda: any_local.in_flight == 5)
            disconnect(connection)
        gate.open.set()
        responses = await asyncio.gather(first, *others)
        assert [response.status_code for response in responses] == [201] * 4, disconnect
        await eventually(lambda: any_local.in_flight == 0)


async def test_in_flight_is_zero_after_successful_and_rejected_requests(any_local: LocalService) -> None:
    for path, body in itertools.product(LANES.values(), (open_body(), {}, open_body(sessionKind=9))):
        await any_local.http.put(path, json=body)
    await any_local.http.get("/nothing")
    await eventually(lambda: any_local.in_flight == 0)


def test_service_answers_after_many_partial_requests(any_service: RunningInstance, any_client: Client) -> None:
    message = request(open_body())
    for at in range(1, len(message), 20):
        with connected(any_service.port) as connection:
            connection.send(message[:at])
    assert any_client.put(open_body()).status_code == 201
