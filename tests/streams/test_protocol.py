"""WebSocket as clients speak it, well and badly."""

import asyncio
import json
import struct

import pytest
from websockets.frames import Frame, Opcode

import tenure.http.websockets
from tenure.streams.handlers import DiscardHandler, EchoHandler, Message
from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.streams import STOP, Client, Refused, Streaming, as_text, frame, handshake, read, wish

MEBIBYTE = 1_048_576


@pytest.fixture
def fast_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure.http.websockets, "PING_SECONDS", 0.2)
    monkeypatch.setattr(tenure.http.websockets, "LAST_LOOK_SECONDS", 0.3)


# Messages and frames


async def test_puts_a_message_in_pieces_together(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    first, second = "grüße".encode()[:3], "grüße".encode()[3:]
    await client.send_frame(Opcode.TEXT, first, fin=False)
    await client.send_frame(Opcode.PING, b"between")
    await client.send_frame(Opcode.CONT, b"", fin=False)
    await client.send_frame(Opcode.CONT, second)
    assert (await client.receive(), client.pongs) == ("grüße", 1)


async def test_counts_a_message_in_pieces_once(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.BINARY, b"x" * 20, fin=False)
    await client.send_frame(Opcode.CONT, b"x" * 12)
    end = read((await _ending_of(client))[-1])
    assert (end["metrics"]["chunks"], end["metrics"]["audioDurationMs"]) == (1, 1)


async def test_takes_an_open_that_comes_with_the_handshake(any_clients: Streaming) -> None:
    first = frame(Opcode.TEXT, as_text({"type": "open", **wish()}).encode())
    client = await any_clients.connect("/sessions/stream", at_once=first)
    assert (await client.greeted())["wasCreated"]


async def test_takes_more_messages_at_once_than_may_wait(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    said = [str(number) for number in range(500)]
    await client.send_raw(b"".join(frame(Opcode.TEXT, each.encode()) for each in [*said, STOP]))
    messages, code = await client.ending()
    assert (messages[:-1], code) == (said, 1000)


async def test_refuses_a_message_in_too_many_pieces_once(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.TEXT, b"x", fin=False)
    await client.send_raw(frame(Opcode.CONT, b"", fin=False) * 5000)
    messages, code = await client.ending()
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
async def test_closes_on_frames_against_the_protocol(clients: Streaming, data: bytes) -> None:
    client, session = await clients.open()
    await client.send_raw(data)
    _, code = await client.ending()
    assert code == 1002
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "DISCONNECTED"


async def test_declines_compression(any_clients: Streaming) -> None:
    client = await any_clients.connect("/sessions/stream", "Sec-WebSocket-Extensions: permessage-deflate")
    assert "sec-websocket-extensions" not in client.head.lower()
    await client.open()
    await client.say("plain")
    assert await client.receive() == "plain"


# Goodbyes


async def test_a_goodbye_without_a_stop_disconnects(clients: Streaming) -> None:
    client, session = await clients.open()
    await client.send_frame(Opcode.CLOSE, struct.pack("!H", 1001))
    _, code = await client.ending()
    assert code == 1001
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "DISCONNECTED"


@pytest.mark.parametrize("how", ["vanish", "half close"])
async def test_a_lost_connection_disconnects_at_once(clients: Streaming, how: str) -> None:
    """And not when its lease runs out."""
    client, session = await clients.open(leaseSeconds=3600, idleSeconds=3600)
    if how == "vanish":
        client.vanish()
    else:
        client.writer.write_eof()
    over = await clients.until_closed(session["sessionId"])
    assert over["closeReason"] == "DISCONNECTED"


async def test_counts_what_came_before_the_connection_was_lost(clients: Streaming) -> None:
    client, session = await clients.open()
    await client.say(b"x" * 320)
    await client.receive()
    client.vanish()
    over = await clients.until_closed(session["sessionId"])
    assert (over["stream"]["bytesReceived"], over["stream"]["messagesSent"]) == (320, 1)


async def test_a_stop_just_before_the_connection_is_lost_stops(clients: Streaming) -> None:
    client, session = await clients.open()
    await client.say(STOP)
    client.writer.close()
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "STOPPED"


async def test_a_client_that_leaves_before_it_opens_leaves_nothing(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database)
    client = await service.clients.connect("/sessions/stream")
    client.vanish()
    await service.settled()
    assert (await service.clients.http.get("/sessions")).json()["count"] == 0


async def test_a_client_that_leaves_while_it_opens_leaves_no_live_session(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database)
    first = frame(Opcode.TEXT, as_text({"type": "open", **wish()}).encode())
    for _ in range(10):
        client = await service.clients.connect("/sessions/stream", at_once=first)
        client.vanish()
    await service.settled()
    assert (await service.clients.http.get("/sessions", params={"active": "true"})).json()["count"] == 0


async def test_a_client_that_does_not_say_goodbye_is_hung_up_on(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.http.websockets, "GOODBYE_SECONDS", 0.2)
    service = await serve(sqlite_database)
    client, _ = await service.clients.open()
    await client.say(STOP)
    assert read(await client.receive() or "")["reason"] == "STOPPED"
    assert (await client.receive(), client.close_code) == (None, 1000)
    assert (await client.receive(), client.close_code) == (None, 1006)


# Signs of life


async def test_answers_a_ping(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.PING, b"are you there?")
    while (got := await client._next())[0] is not Opcode.PONG:
        pass
    assert got[1] == b"are you there?"


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_cuts_off_a_client_that_answers_no_ping(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    client, session = await clients.open()
    client.answers_pings = False
    assert await client.receive() is None
    over = await clients.until_closed(session["sessionId"])
    assert over["closeReason"] == "DISCONNECTED"


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_keeps_a_client_that_answers_pings(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    client, session = await clients.open()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.receive(), 1)
    assert (await clients.get(session["sessionId"]))["isActive"]


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_keeps_a_client_whose_answer_was_there_but_not_read_yet(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the instance stood still: timers that are due then run before what has arrived is read."""
    monkeypatch.setattr(tenure.http.websockets, "LAST_LOOK_SECONDS", 3.0)
    clients = (await serve(sqlite_database)).clients
    client, session = await clients.open()
    client.answers_pings = False
    async with asyncio.timeout(30):
        await _asked(client)
        await asyncio.sleep(0.5)
        await client.send_frame(Opcode.PONG, b"")
        # It is asked again, and again.
        for _ in range(2):
            await _asked(client)
            await client.send_frame(Opcode.PONG, b"")
    assert (await clients.get(session["sessionId"]))["isActive"]


async def _asked(client: Client) -> None:
    opcode = None
    while opcode is not Opcode.PING:
        opcode, _ = await client._next()
        assert opcode is not Opcode.CLOSE


@pytest.mark.slow
async def test_keeps_a_client_that_is_in_the_middle_of_a_long_frame(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So much longer than the pauses below that a busy machine does not matter.
    monkeypatch.setattr(tenure.http.websockets, "PING_SECONDS", 1.0)
    clients = (await serve(sqlite_database)).clients
    client, _ = await clients.open()
    data = frame(Opcode.BINARY, b"x" * 1000)
    for start in range(0, len(data), 100):
        await client.send_raw(data[start : start + 100])
        await asyncio.sleep(0.25)
    assert await client.receive() == b"x" * 1000


@pytest.mark.slow
@pytest.mark.usefixtures("fast_pings")
async def test_keeps_a_client_whose_reading_it_has_paused(sqlite_database: Database, serve: ServeLocally) -> None:
    go_on = asyncio.Event()

    class Waiting(EchoHandler):
        async def chunk(self, message: Message) -> None:
            await go_on.wait()
            await super().chunk(message)

    clients = (await serve(sqlite_database, Waiting)).clients
    client, _ = await clients.open()
    for number in range(100):
        await client.say(str(number))
    asyncio.get_running_loop().call_later(1, go_on.set)
    assert [await client.receive() for _ in range(100)] == [str(number) for number in range(100)]


# Back-pressure


@pytest.mark.slow
async def test_stops_reading_while_the_handler_is_slow(sqlite_database: Database, serve: ServeLocally) -> None:
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


# Addresses


@pytest.mark.parametrize("prefix", ["", "/api/v3"])
@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_below_prefix_and_version(
    sqlite_database: Database, serve: ServeLocally, prefix: str, version: str
) -> None:
    clients = (await serve(sqlite_database, prefix=prefix)).clients
    client = await clients.connect(f"{version}/sessions/stream")
    session = await client.open()
    again = await clients.connect(f"{version}/sessions/{session['sessionId']}/stream?anything=1")
    assert (await again.greeted())["sessionId"] == session["sessionId"]


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/", "/sessions", "/sessions/", "/sessions//stream", "/sessions/stream/", "/v2/sessions/stream"],
)
async def test_refuses_a_handshake_at_an_unknown_address(any_clients: Streaming, path: str) -> None:
    with pytest.raises(Refused) as refused:
        await any_clients.connect(path)
    assert refused.value.status == 404
    assert "content-type: application/problem+json" in refused.value.head.lower()
    assert json.loads(refused.value.body)["code"] == "NOT_FOUND"


async def test_does_not_answer_without_its_prefix(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database, prefix="/api/v3")
    with pytest.raises(Refused, match="404"):
        await Client.connect(service.clients.port, "/sessions/stream")


@pytest.mark.parametrize("path", ["/sessions/stream", "/sessions/5f0a4f5e-0000-4000-8000-0000000000aa/stream"])
async def test_answers_an_ordinary_request_with_a_problem(any_clients: Streaming, path: str) -> None:
    answer = await any_clients.http.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("given", "instead"),
    [("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 12"), ("Sec-WebSocket-Key: ", "X-Key: ")],
)
async def test_refuses_a_broken_handshake(any_clients: Streaming, given: str, instead: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", any_clients.port)
    writer.write(handshake("/sessions/stream").replace(given.encode(), instead.encode()))
    status = (await asyncio.wait_for(reader.readline(), 5)).split()[1]
    writer.close()
    assert status in (b"400", b"426")


async def _ending_of(client: Client) -> list[Message]:
    await client.say(STOP)
    messages, _ = await client.ending()
    return list(messages)
