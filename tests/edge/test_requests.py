"""Requests of unusual form: CONNECT, upgrades, trailers, `Host`, and requests pipelined before an upgrade."""

import asyncio

import pytest
from websockets.frames import Opcode

from tests.edge.conftest import ServeWith, raw, responses
from tests.http.client import chunked, open_body, request
from tests.http.local import LocalService, eventually
from tests.support.streams import as_text, frame, handshake
from tests.support.streams import request as stream_request

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: x\r\n"
LANES = {"hot": "/sessions", "ordinary": "/%73essions"}


@pytest.fixture
async def service(serve_with: ServeWith) -> LocalService:
    return await serve_with()


# CONNECT and upgrades.


async def test_connect_is_refused_without_traceback(service: LocalService, capfd: pytest.CaptureFixture[str]) -> None:
    for target in (b"localhost:80", b"/healthz", b"http://localhost/"):
        for headers in (b"", UPGRADE, b"Upgrade: x\r\n"):
            async with raw(service) as client:
                await client.send(b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\nmore")
                answer = await client.answer()
                assert (answer.status, answer.code) == (400, "INVALID"), (target, headers)
                assert await client.is_closed()
    assert capfd.readouterr().err == ""


async def test_pipelined_upgrade_offers_are_ignored(service: LocalService, capfd: pytest.CaptureFixture[str]) -> None:
    """In an earlier version, this number of upgrade offers exceeded the recursion limit."""
    number = 3000
    async with raw(service) as client:
        reading = asyncio.create_task(client.rest())
        await client.send((GET + UPGRADE + b"\r\n") * number + GET + b"Connection: close\r\n\r\n")
        assert responses(await reading) == [200] * (number + 1)
    assert capfd.readouterr().err == ""


async def test_request_with_upgrade_offer_and_second_connection_header_is_handled_once(service: LocalService) -> None:
    body = open_body()
    async with raw(service) as client:
        offer = ("Connection: upgrade", "Upgrade: x", "Connection: close")
        await client.send(request(body, *offer))
        assert responses(await client.rest()) == [201]
    assert service.in_flight == 0


# Trailers.


async def test_trailers_are_not_headers(service: LocalService) -> None:
    """A submission needs the header `Idempotency-Key`. A trailer of this name does not count."""
    body = chunked(b'{"gateway": "nowhere", "payload": 1}')[:-2] + b"Idempotency-Key: a-key\r\n\r\n"
    for path in ("/submissions", "/submissions?"):
        async with raw(service) as client:
            await client.send(request(body, "Transfer-Encoding: chunked", method="POST", path=path))
            answer = await client.answer()
            assert (answer.status, b"Idempotency-Key" in answer.body) == (400, True), path
            await client.send(request(open_body()))
            assert (await client.answer()).status == 201


async def test_host_in_trailers_is_not_a_second_host(service: LocalService) -> None:
    body = chunked(str(open_body()).replace("'", '"').encode())[:-2] + b"Host: elsewhere.example\r\n\r\n"
    for path in LANES.values():
        async with raw(service) as client:
            await client.send(request(body, "Transfer-Encoding: chunked", path=path))
            assert (await client.answer()).status in (200, 201), path


# Host.


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "elsewhere.example"]], ids=len)
async def test_http_1_1_request_needs_exactly_one_host(service: LocalService, hosts: list[str]) -> None:
    given = "".join(f"Host: {host}\r\n" for host in hosts)
    requests = [f"GET /healthz HTTP/1.1\r\n{given}\r\n", f"GET /nowhere HTTP/1.1\r\n{given}\r\n"]
    requests += [f"PUT {path} HTTP/1.1\r\n{given}Content-Length: 2\r\n\r\n{{}}" for path in LANES.values()]
    requests += [handshake("/sessions/stream").decode().replace("Host: localhost\r\n", given)]
    for message in requests:
        async with raw(service) as client:
            await client.send(message.encode())
            answer = await client.answer()
            assert (answer.status, answer.code) == (400, "INVALID"), message
            assert b"Host: must be given exactly once" in answer.body


async def test_http_1_0_request_needs_no_host(service: LocalService) -> None:
    async with raw(service) as client:
        await client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await client.answer()).status == 200


# Upgrades to WebSocket.


def _is_upgraded(data: bytes) -> bool:
    return b"HTTP/1.1 101" in data


async def test_request_pipelined_before_handshake_is_answered_before_handshake(service: LocalService) -> None:
    for first in (GET + b"\r\n", request(open_body()), (GET + b"\r\n") * 50):
        # Use a new key each time, because the session of the previous stream may still be live.
        open_message = frame(Opcode.TEXT, as_text({"type": "open", **stream_request()}).encode())
        async with raw(service) as client:
            await client.send(first + handshake("/sessions/stream") + open_message)
            async with asyncio.timeout(15):
                received = b""
                while b"session_start" not in received:
                    received += (chunk := await client.reader.read(65536))
                    assert chunk, received
        before, _, after = received.partition(b"HTTP/1.1 101")
        expected = first.count(b" HTTP/1.1")
        assert (len(responses(before)), b"HTTP/1.1" in after) == (expected, False), first
    await eventually(lambda: not service._server.server_state.connections)


async def test_long_handshake_is_answered_with_431(service: LocalService) -> None:
    async with raw(service) as client:
        await client.send(handshake("/sessions/stream", "Cookie: " + "x" * 10_000))
        assert (await client.answer()).status == 431
