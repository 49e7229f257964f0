"""WebSocket clients that send too many pings, read slowly or not at all, or send before they read."""

import asyncio
import json
import time

import psutil
import pytest
from websockets.frames import Opcode

from tenure.config import HttpConfig, StreamsConfig
from tests.edge.conftest import ServeWith, refusals
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.streams import Client, frame

EMPTY_PING = frame(Opcode.PING, b"")
FULL_PING = frame(Opcode.PING, b"x" * 125)
MEBIBYTE = 1024 * 1024
NEIGHBOUR_SECONDS = 1.0


async def _stream(service: LocalService) -> Client:
    client = await Client.connect(service.port, "/sessions/stream")
    await client.open()
    return client


async def _slowest_answer(service: LocalService, attack: asyncio.Future[None]) -> float:
    """The longest time for which a well-behaved client waits for a response during the attack."""
    slowest = 0.0
    while not attack.done():
        began = time.monotonic()
        assert (await service.http.get("/healthz")).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.01)
    return slowest


async def _send(client: Client, piece: bytes, total: int) -> None:
    """Sends until `total` is reached, or until the instance stops reading or closes the connection."""
    for _ in range(total // len(piece)):
        try:
            async with asyncio.timeout(10):
                await client.send_raw(piece)
        except (ConnectionError, TimeoutError):
            return


async def test_too_many_pings_close_the_stream_with_1008(serve_with: ServeWith) -> None:
    service = await serve_with()
    client = await _stream(service)
    await client.send_raw(EMPTY_PING * 1000)
    messages, code = await client.read_to_end()
    assert [json.loads(message).get("code") for message in messages] == ["TOO_MANY_PINGS", None]
    assert code == 1008
    assert client.pongs <= 100
    assert await refusals(service, "pings") == 1


async def test_pings_within_the_limit_are_answered(serve_with: ServeWith) -> None:
    client = await _stream(await serve_with())
    await client.send_raw(EMPTY_PING * 90)
    await client.send("still open")
    assert (await client.receive(), client.pongs) == ("still open", 90)
    client.disconnect()


async def test_memory_is_bounded_while_pinging_client_does_not_read(serve_with: ServeWith) -> None:
    service = await serve_with()
    client = await _stream(service)
    client.stop_reading()
    before = psutil.Process().memory_info().rss
    await _send(client, FULL_PING * 8000, 64 * MEBIBYTE)
    assert psutil.Process().memory_info().rss - before < 24 * MEBIBYTE
    client.disconnect()


async def test_buffered_pongs_are_limited_while_client_does_not_read(
    serve_with: ServeWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.server.websocket.CONTROL_FRAMES_PER_SECOND", 1_000_000_000)
    service = await serve_with()
    client = await _stream(service)
    client.stop_reading()
    await _send(client, FULL_PING * 1000, 16 * MEBIBYTE)
    connection = next(iter(service._server.server_state.connections))
    # The buffer holds at most the transport's high-water mark and the pongs for one slice of input.
    assert connection._transport.get_write_buffer_size() < 200_000  # type: ignore[union-attr]
    client.disconnect()


@pytest.mark.parametrize(
    "piece", [EMPTY_PING, frame(Opcode.TEXT, b""), frame(Opcode.PONG, b"")], ids=["ping", "text", "pong"]
)
async def test_empty_frames_do_not_delay_other_clients(serve_with: ServeWith, piece: bytes) -> None:
    service = await serve_with()
    client = await _stream(service)
    discarding = asyncio.ensure_future(client.read_to_end())
    attack = asyncio.ensure_future(_send(client, piece * 20_000, 40_000 * len(piece)))
    slowest = await _slowest_answer(service, attack)
    client.writer.transport.abort()
    await discarding
    assert slowest < NEIGHBOUR_SECONDS


# A client that sends before it reads.


@pytest.fixture
async def full_service(sqlite_database: Database) -> LocalService:
    return LocalService.on(sqlite_database, streams=StreamsConfig(max_per_instance=1), http=HttpConfig())


@pytest.mark.slow
async def test_client_that_sends_before_it_reads_gets_session_limit(full_service: LocalService) -> None:
    """The client sends for longer than GOODBYE_SECONDS, and does not answer the close frame during this time."""
    async with full_service.running() as service:
        first = await _stream(service)
        second = await Client.connect(service.port, "/sessions/stream")
        second.stop_reading()
        for _ in range(30):
            await second.send(b"x" * 10_000)
            await asyncio.sleep(0.1)
        second.writer.transport.resume_reading()  # type: ignore[attr-defined]
        message, code = await second.final_message()
        assert (message["code"], code) == ("SESSION_LIMIT", 1008)
        first.disconnect()


async def test_client_that_sends_much_at_once_gets_session_limit(full_service: LocalService) -> None:
    async with full_service.running() as service:
        first = await _stream(service)
        second = await Client.connect(service.port, "/sessions/stream")
        second.stop_reading()
        await second.send_raw(frame(Opcode.BINARY, b"x" * 100_000) * 100)
        second.writer.transport.resume_reading()  # type: ignore[attr-defined]
        message, code = await second.final_message()
        assert (message["code"], code) == ("SESSION_LIMIT", 1008)
        first.disconnect()


async def test_client_that_keeps_sending_reads_the_reason(serve_with: ServeWith) -> None:
    """The client sends a message that is too large, an unmasked frame or too many pings, and then more bytes."""
    service = await serve_with()
    violations = {1009: frame(Opcode.BINARY, b"x" * (MEBIBYTE + 1)), 1002: b"\x81\x01x", 1008: EMPTY_PING * 1000}
    for code, violation in violations.items():
        client = await _stream(service)
        client.stop_reading()
        await client.send_raw(violation)
        for _ in range(10):
            await asyncio.sleep(0.02)
            await client.send_raw(b"\x00" * 100_000)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await client.read_to_end())[1] == code


async def test_client_that_never_stops_sending_is_disconnected(
    serve_with: ServeWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.server.websocket.LINGER_SECONDS", 0.3)
    client = await _stream(await serve_with())
    await client.send('{"type": "stop"}')
    with pytest.raises(ConnectionError):
        await _send_forever(client)


async def test_bytes_after_the_close_frame_are_limited(serve_with: ServeWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.server.websocket.LINGER_MAX_BYTES", MEBIBYTE)
    client = await _stream(await serve_with())
    await client.send('{"type": "stop"}')
    await client.receive()
    with pytest.raises(ConnectionError):
        await _send_forever(client, frame(Opcode.BINARY, b"x" * 100_000))


async def _send_forever(client: Client, piece: bytes = EMPTY_PING) -> None:
    async with asyncio.timeout(15):
        while True:
            await client.send_raw(piece)
            await asyncio.sleep(0.01)
