"""What a connection may carry: pieces, pipelines, nonsense, and clients that go away."""

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from tenure.store.store import Lane
from tests.http.client import Client, Json, chunked, connected, request, same_key, wish
from tests.http.local import LocalService, eventually
from tests.support.databases import Database
from tests.support.instances import RunningInstance

LANES = {"hot": "/sessions", "ordinary": "/%73essions"}


@pytest.fixture(params=LANES)
def path(request: pytest.FixtureRequest) -> str:
    return LANES[request.param]


# Pieces.


def test_a_body_may_come_byte_by_byte(any_service: RunningInstance, path: str) -> None:
    message = request(wish(), path=path)
    with connected(any_service.port) as connection:
        connection.send(*(bytes([byte]) for byte in message))
        assert connection.read().status == 201


def test_a_chunked_body_may_come_byte_by_byte(any_service: RunningInstance, path: str) -> None:
    content = msgspec.json.encode(wish())
    pieces = chunked(*(bytes([byte]) for byte in content))
    with connected(any_service.port) as connection:
        connection.send(
            request(b"", "Transfer-Encoding: chunked", path=path),
            *(pieces[at : at + 7] for at in range(0, len(pieces), 7)),
        )
        assert connection.read().status == 201


def test_a_body_waits_for_its_100_continue(any_service: RunningInstance) -> None:
    content = msgspec.json.encode(wish())
    with connected(any_service.port) as connection:
        connection.send(request(b"", "Expect: 100-continue", length=len(content)))
        assert connection.read_interim() == 100
        connection.send(content)
        assert connection.read().status == 201


# Many requests on one connection.


def test_a_connection_is_kept_alive(any_service: RunningInstance, path: str) -> None:
    with connected(any_service.port) as connection:
        for _ in range(3):
            connection.send(request(wish(), path=path))
            answer = connection.read()
            assert (answer.status, answer.headers.get("connection")) == (201, None)


def test_lanes_may_take_turns_on_a_connection(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        for path in ("/sessions", "/sessions?", "/sessions", "/v1/sessions"):
            connection.send(request(wish(), path=path))
            assert connection.read().status == 201


@pytest.mark.parametrize("body", [wish(), {}], ids=["taken", "refused"])
def test_a_connection_is_closed_if_asked(any_service: RunningInstance, path: str, body: Json) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(body, "Connection: close", path=path))
        assert connection.read().headers["connection"] == "close"
        assert connection.is_closed_by_peer()


def test_http_1_0_is_answered_and_closed(any_service: RunningInstance) -> None:
    with connected(any_service.port) as connection:
        connection.send(request(wish(), version="1.0"))
        assert connection.read().status == 201
        assert connection.is_closed_by_peer()


def _mixed(bodies: Sequence[Json]) -> bytes:
    """Hot and ordinary requests, one after the other, with probes between them."""
    paths = itertools.cycle(["/sessions", "/sessions?", "/v1/sessions", "/sessions"])
    probe = request(method="GET", path="/healthz", media_type=None)
    return b"".join(request(body, path=path) + probe for body, path in zip(bodies, paths, strict=False))


def test_pipelined_requests_are_answered_in_order(any_service: RunningInstance) -> None:
    bodies = [wish() for _ in range(20)]
    with connected(any_service.port) as connection:
        connection.send(_mixed(bodies))
        answers = [connection.read().json() for _ in range(2 * len(bodies))]
    assert [answer["userObjectId"] for answer in answers[::2]] == [body["userObjectId"] for body in bodies]
    assert answers[1::2] == [{"status": "ok"}] * len(bodies)


def test_pipelined_requests_may_be_cut_anywhere(any_service: RunningInstance) -> None:
    bodies = [wish() for _ in range(4)]
    message = _mixed(bodies)
    for size in (1, 7, 100, 333):
        with connected(any_service.port) as connection:
            connection.send(*(message[at : at + size] for at in range(0, len(message), size)))
            answers = [connection.read() for _ in range(2 * len(bodies))]
        assert {answer.status for answer in answers} <= {200, 201}


def test_pipelined_requests_see_what_those_before_them_did(any_service: RunningInstance) -> None:
    first = wish()
    bodies = [first, same_key(first), same_key(first, sessionKind=3), same_key(first, sessionKind=2)]
    with connected(any_service.port) as connection:
        connection.send(b"".join(map(request, bodies)))
        outcomes = [connection.read().json()["status"] for _ in bodies]
    assert outcomes == ["created", "existing", "upgraded", "existing"]


def test_a_refused_request_does_not_hold_up_the_pipeline(any_service: RunningInstance) -> None:
    messages = [request(wish()), request({}), request(b"{", path="/sessions?"), request(wish())]
    with connected(any_service.port) as connection:
        connection.send(b"".join(messages))
        assert [connection.read().status for _ in messages] == [201, 400, 400, 201]


def test_an_offered_upgrade_is_declined_and_the_body_read(any_service: RunningInstance) -> None:
    """Java's client offers h2c with every first request."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    message = request(wish(), *offer)
    for pieces in ([message], [message[:-20], message[-20:]], [message[:60], message[60:]]):
        with connected(any_service.port) as connection:
            connection.send(*pieces)
            first = connection.read()
            connection.send(request(wish()))
            assert (first.status in (200, 201), connection.read().status) == (True, 201), first


# Nonsense.

MALFORMED = {
    "request line": b"NONSENSE\r\n\r\n",
    "method": b"P\xffT /sessions HTTP/1.1\r\nHost: tenure\r\n\r\n",
    "target": b"GET /sess\xffions HTTP/1.1\r\nHost: tenure\r\n\r\n",
    "version": b"GET /sessions HTTP/9.9\r\nHost: tenure\r\n\r\n",
    "header": b"GET /sessions HTTP/1.1\r\nno colon\r\n\r\n",
    "header name": b"GET /sessions HTTP/1.1\r\nbad name: 1\r\n\r\n",
    "header value": b"GET /sessions HTTP/1.1\r\nName: a\x00b\r\n\r\n",
    "negative length": b"PUT /sessions HTTP/1.1\r\nHost: tenure\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"PUT /sessions HTTP/1.1\r\nHost: tenure\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": request(chunked(b"{}"), "Transfer-Encoding: chunked", "Content-Length: 2"),
    "chunk size": request(b"xyz\r\n", "Transfer-Encoding: chunked"),
    "TLS": bytes.fromhex("16030100f1010000ed0303"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT tenure:80 HTTP/1.1\r\nHost: tenure\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_nonsense_is_refused_with_a_problem_and_the_connection_closed(any_service: RunningInstance, name: str) -> None:
    with connected(any_service.port) as connection:
        connection.send(MALFORMED[name])
        answer = connection.read()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert connection.is_closed_by_peer()
    assert answer.headers["content-type"] == "application/problem+json", answer
    assert answer.json()["code"] == "INVALID"


def test_nonsense_on_one_connection_disturbs_no_other(any_service: RunningInstance) -> None:
    with connected(any_service.port) as good, connected(any_service.port) as bad:
        message = request(wish())
        good.send(message[:-10])
        bad.send(MALFORMED["header"])
        assert bad.read().status == 400
        good.send(message[-10:])
        assert good.read().status == 201


# Clients that go away.


def _reset(connection: socket.socket) -> None:
    """Ends a connection by RST, as a killed client's host does."""
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


@pytest.fixture(params=["close", "reset"])
def leave(request: pytest.FixtureRequest) -> Any:
    return socket.socket.close if request.param == "close" else _reset


async def test_a_client_that_leaves_in_the_middle_of_a_body_is_forgotten(
    any_local: LocalService, path: str, leave: Any
) -> None:
    async with _connection(any_local) as connection:
        await _send(connection, request(wish(), path=path)[:-10])
        await eventually(lambda: any_local.in_flight == 1)
        leave(connection)
        await eventually(lambda: any_local.in_flight == 0)


async def test_a_body_that_was_never_finished_opens_nothing(any_local: LocalService, path: str) -> None:
    """Even where what has arrived reads as a whole request."""
    body = wish()
    async with _connection(any_local) as connection:
        await _send(connection, request(body, path=path, length=1000))
        await eventually(lambda: any_local.in_flight == 1)
    await eventually(lambda: any_local.in_flight == 0)
    answer = await any_local.http.get("/sessions", params={"tenant": body["tenantObjectId"]})
    assert answer.json()["count"] == 0


async def test_a_body_that_turns_into_nonsense_is_forgotten(any_local: LocalService, path: str) -> None:
    async with _connection(any_local) as connection:
        await _send(connection, request(b"2\r\n{}\r\n", "Transfer-Encoding: chunked", path=path))
        await eventually(lambda: any_local.in_flight == 1)
        await _send(connection, b"nonsense\r\n")
        await eventually(lambda: any_local.in_flight == 0)


class Gate:
    """Stands before the database: who wants to open a session waits here."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self._open_sessions = database.store.open_sessions
        monkeypatch.setattr(database.store, "open_sessions", self._wait)

    async def _wait(self, lane: Lane, *arguments: Any) -> Any:
        self.reached.set()
        await self.open.wait()
        return await self._open_sessions(lane, *arguments)


@pytest.fixture
def gate(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(sqlite_database, monkeypatch)


async def test_a_client_that_leaves_before_its_answer_still_gets_its_session(
    any_local: LocalService, gate: Gate, path: str, leave: Any
) -> None:
    body = wish()
    async with _connection(any_local) as connection:
        await _send(connection, request(body, path=path))
        await gate.reached.wait()
        leave(connection)
    gate.open.set()
    await eventually(lambda: any_local.in_flight == 0)
    assert (await any_local.put(body)).json()["status"] == "existing"


async def test_a_client_that_leaves_a_whole_pipeline_is_forgotten(
    any_local: LocalService, gate: Gate, leave: Any
) -> None:
    async with _connection(any_local) as connection:
        await _send(connection, _mixed([wish() for _ in range(4)]))
        await gate.reached.wait()
        leave(connection)
    gate.open.set()
    await eventually(lambda: any_local.in_flight == 0)
    assert (await any_local.put(wish())).status_code == 201


async def test_a_client_that_left_does_not_hold_up_its_batch(any_local: LocalService, gate: Gate, leave: Any) -> None:
    """The next batch gathers behind the gate: one of its members is gone when it is answered."""
    first = asyncio.create_task(any_local.put(wish()))
    await gate.reached.wait()
    others = [asyncio.create_task(any_local.put(wish())) for _ in range(3)]
    async with _connection(any_local) as connection:
        await _send(connection, request(wish()))
        await eventually(lambda: any_local.in_flight == 5)
        leave(connection)
    gate.open.set()
    answers = await asyncio.gather(first, *others)
    assert [answer.status_code for answer in answers] == [201] * 4
    await eventually(lambda: any_local.in_flight == 0)


async def test_nothing_is_in_flight_after_answers_and_refusals(any_local: LocalService, path: str) -> None:
    for body in (wish(), {}, wish(sessionKind=9)):
        await any_local.http.put(path, json=body)
    await any_local.http.get("/nothing")
    await eventually(lambda: any_local.in_flight == 0)


def test_a_service_that_was_left_often_is_still_well(any_service: RunningInstance, any_client: Client) -> None:
    message = request(wish())
    for at in range(1, len(message), 20):
        with connected(any_service.port) as connection:
            connection.send(message[:at])
    assert any_client.put(wish()).status_code == 201
