"""The WebSocket protocol: frames, close handshakes, pings, back-pressure and paths."""

import asyncio
import json
import struct

import pytest
from websockets.frames import Frame, Opcode

import tenure.server.websocket
from tenure.streams.handlers import DiscardHandler, EchoHandler, Message
from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.streams import STOP, Client, Refused, Streaming, as_text, frame, handshake, read, request

MEBIBYTE = 1_048_576


@pytest.fixture
def fast_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure.server.websocket, "PING_SECONDS", 0.2)
    monkeypatch.setattr(tenure.server.websocket, "PONG_GRACE_SECONDS", 0.3)


# Messages and frames


async def test_fragmented_message_is_reassembled(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    first, second = "grüße".encode()[:3], "grüße".encode()[3:]
    await client.send_frame(Opcode.TEXT, first, fin=False)
    await client.send_frame(Opcode.PING, b"between")
    await client.send_frame(Opcode.CONT, b"", fin=False)
    await client.send_frame(Opcode.CONT, second)
    assert (await client.receive(), client.pongs) == ("grüße", 1)


async def test_fragmented_message_is_counted_once(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.BINARY, b"x" * 20, fin=False)
    await client.send_frame(Opcode.CONT, b"x" * 12)
    end = read((await _messages_until_stop(client))[-1])
    assert (end["metrics"]["chunks"], end["metrics"]["audioDurationMs"]) == (1, 1)


async def test_open_message_sent_with_handshake_is_accepted(any_clients: Streaming) -> None:
    first = frame(Opcode.TEXT, as_text({"type": "open", **request()}).encode())
    client = await any_clients.connect("/sessions/stream", at_once=first)
    assert (await client.receive_start())["wasCreated"]


async def test_burst_larger_than_queue_is_processed(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    sent = [str(number) for number in range(500)]
    await client.send_raw(b"".join(frame(Opcode.TEXT, each.encode()) for each in [*sent, STOP]))
    messages, code = await client.read_to_end()
    assert (messages[:-1], code) == (sent, 1000)


async def test_message_with_too_many_fragments_is_rejected_once(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.TEXT, b"x", fin=False)
    await client.send_raw(frame(Opcode.CONT, b"", fin=False) * 5000)
    messages, code = await client.read_to_end()
    assert [(each["type"], each.get("code")) for each in map(read, messages)] == [
        ("error", "INVALID"),
        ("session_end", None),
    ]
    assert code == 1008


@pytest.mark.parametrize(
    "data",
    [
        Frame(Opcode.TEXT, b"not masked").serialize(mask=False),
        b"\x83\x80\x00\x00\x00\x00",
        frame(Opcode.CONT, b"of nothing"),
    ],
    ids=["unmasked", "unknown opcode", "continues nothing"],
)
async def test_protocol_violation_closes_with_1002(clients: Streaming, data: bytes) -> None:
    client, session = await clients.open()
    await client.send_raw(data)
    _, code = await client.read_to_end()
    assert code == 1002
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "DISCONNECTED"


async def test_compression_is_declined(any_clients: Streaming) -> None:
    client = await any_clients.connect("/sessions/stream", "Sec-WebSocket-Extensions: permessage-deflate")
    assert "sec-websocket-extensions" not in client.head.lower()
    await client.open()
    await client.send("plain")
    assert await client.receive() == "plain"


# Disconnects


async def test_close_frame_without_stop_ends_session_as_disconnected(clients: Streaming) -> None:
    client, session = await clients.open()
    await client.send_frame(Opcode.CLOSE, struct.pack("!H", 1001))
    _, code = await client.read_to_end()
    assert code == 1001
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "DISCONNECTED"


@pytest.mark.parametrize("how", ["reset", "half close"])
async def test_lost_connection_ends_session_immediately(clients: Streaming, how: str) -> None:
    """The session does not stay live until its lease expires."""
    client, session = await clients.open(leaseSeconds=3600, idleSeconds=3600)
    if how == "reset":
        client.disconnect()
    else:
        client.writer.write_eof()
    ended = await clients.until_closed(session["sessionId"])
    assert ended["closeReason"] == "DISCONNECTED"


async def test_messages_before_lost_connection_are_counted(clients: Streaming) -> None:
    client, session = await clients.open()
    await client.send(b"x" * 320)
    await client.receive()
    client.disconnect()
    ended = await clients.until_closed(session["sessionId"])
    assert (ended["stream"]["bytesReceived"], ended["stream"]["messagesSent"]) == (320, 1)


async def test_stop_before_lost_connection_ends_session_as_stopped(clients: Streaming) -> None:
    client, session = await clients.open()
    await client.send(STOP)
    client.writer.close()
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "STOPPED"


async def test_disconnect_before_open_creates_no_session(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database)
    client = await service.clients.connect("/sessions/stream")
    client.disconnect()
    await service.settled()
    assert (await service.clients.http.get("/sessions")).json()["count"] == 0


async def test_disconnect_during_open_leaves_no_live_session(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database)
    first = frame(Opcode.TEXT, as_text({"type": "open", **request()}).encode())
    for _ in range(10):
        client = await service.clients.connect("/sessions/stream", at_once=first)
        client.disconnect()
    await service.settled()
    assert (await service.clients.http.get("/sessions", params={"active": "true"})).json()["count"] == 0


async def test_connection_is_dropped_when_client_sends_no_close_frame(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.server.websocket, "GOODBYE_SECONDS", 0.2)
    service = await serve(sqlite_database)
    client, _ = await service.clients.open()
    await client.send(STOP)
    assert read(await client.receive() or "")["reason"] == "STOPPED"
    assert (await client.receive(), client.close_code) == (None, 1000)
    assert (await client.receive(), client.close_code) == (None, 1006)


# Pings


async def test_ping_is_answered_with_pong(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.PING, b"are you there?")
    while (got := await client._next())[0] is not Opcode.PONG:
        pass
    assert got[1] == b"are you there?"


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_client_without_pong_is_disconnected(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    client, session = await clients.open()
    client.answers_pings = False
    assert await client.receive() is None
    ended = await clients.until_closed(session["sessionId"])
    assert ended["closeReason"] == "DISCONNECTED"


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_client_with_pong_stays_connected(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    client, session = await clients.open()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.receive(), 1)
    assert (await clients.get(session["sessionId"]))["isActive"]


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_client_with_late_pong_stays_connected(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late pong must count: when an instance continues after a pause, its due timers run before it reads a pong that
    arrived during the pause.
    """
    monkeypatch.setattr(tenure.server.websocket, "PONG_GRACE_SECONDS", 1.5)
    clients = (await serve(sqlite_database)).clients
    client, session = await clients.open()
    client.answers_pings = False
    async with asyncio.timeout(30):
        await _receive_ping(client)
        await asyncio.sleep(0.5)
        await client.send_frame(Opcode.PONG, b"")
        # Two more pings follow.
        for _ in range(2):
            await _receive_ping(client)
            await client.send_frame(Opcode.PONG, b"")
    assert (await clients.get(session["sessionId"]))["isActive"]


async def _receive_ping(client: Client) -> None:
    opcode = None
    while opcode is not Opcode.PING:
        opcode, _ = await client._next()
        assert opcode is not Opcode.CLOSE


@pytest.mark.slow
async def test_client_sending_frame_slowly_stays_connected(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interval of pings is much longer than the pauses of 0.2 s below, because a busy machine prolongs the pauses.
    monkeypatch.setattr(tenure.server.websocket, "PING_SECONDS", 0.8)
    clients = (await serve(sqlite_database)).clients
    client, _ = await clients.open()
    data = frame(Opcode.BINARY, b"x" * 1000)
    for start in range(0, len(data), 100):
        await client.send_raw(data[start : start + 100])
        await asyncio.sleep(0.2)
    assert await client.receive() == b"x" * 1000


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_client_stays_connected_while_server_pauses_reading(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    may_continue = asyncio.Event()

    class Waiting(EchoHandler):
        async def chunk(self, message: Message) -> None:
            await may_continue.wait()
            await super().chunk(message)

    clients = (await serve(sqlite_database, Waiting)).clients
    client, _ = await clients.open()
    for number in range(100):
        await client.send(str(number))
    asyncio.get_running_loop().call_later(1, may_continue.set)
    assert [await client.receive() for _ in range(100)] == [str(number) for number in range(100)]


# Back-pressure


@pytest.mark.slow
async def test_reading_pauses_while_handler_is_slow(sqlite_database: Database, serve: ServeLocally) -> None:
    class Stuck(DiscardHandler):
        async def chunk(self, message: Message) -> None:
            if isinstance(message, bytes):
                await asyncio.Event().wait()

    service = await serve(sqlite_database, Stuck)
    client, _ = await service.clients.open()
    sent = await client.fill(64 * MEBIBYTE)
    assert sent < 32 * MEBIBYTE
    other, _ = await service.clients.open()
    assert (await other.stop())[1] == 1000


# Paths


@pytest.mark.parametrize("prefix", ["", "/api/v3"])
async def test_streams_are_available_below_prefix_and_version(
    sqlite_database: Database, serve: ServeLocally, prefix: str
) -> None:
    clients = (await serve(sqlite_database, prefix=prefix)).clients
    for version in ("", "/v1"):
        client = await clients.connect(f"{version}/sessions/stream")
        session = await client.open()
        again = await clients.connect(f"{version}/sessions/{session['sessionId']}/stream?anything=1")
        assert (await again.receive_start())["sessionId"] == session["sessionId"], version


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/", "/sessions", "/sessions/", "/sessions//stream", "/sessions/stream/", "/v2/sessions/stream"],
)
async def test_handshake_at_unknown_path_returns_404(any_clients: Streaming, path: str) -> None:
    with pytest.raises(Refused) as refused:
        await any_clients.connect(path)
    assert refused.value.status == 404
    assert "content-type: application/problem+json" in refused.value.head.lower()
    assert json.loads(refused.value.body)["code"] == "NOT_FOUND"


async def test_handshake_outside_prefix_returns_404(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database, prefix="/api/v3")
    with pytest.raises(Refused, match="404"):
        await Client.connect(service.clients.port, "/sessions/stream")


@pytest.mark.parametrize("path", ["/sessions/stream", "/sessions/5f0a4f5e-0000-4000-8000-0000000000aa/stream"])
async def test_plain_get_on_stream_path_returns_404(any_clients: Streaming, path: str) -> None:
    response = await any_clients.http.get(path)
    assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("given", "instead"),
    [("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 12"), ("Sec-WebSocket-Key: ", "X-Key: ")],
)
async def test_malformed_handshake_is_rejected(any_clients: Streaming, given: str, instead: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", any_clients.port)
    writer.write(handshake("/sessions/stream").replace(given.encode(), instead.encode()))
    status = (await asyncio.wait_for(reader.readline(), 5)).split()[1]
    writer.close()
    assert status in (b"400", b"426")


async def _messages_until_stop(client: Client) -> list[Message]:
    await client.send(STOP)
    messages, _ = await client.read_to_end()
    return list(messages)
