"""What a client is told: the messages and close codes of a stream, on every engine where the database has a part."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from websockets.frames import Opcode

import tenure.http.streams
from tests.streams.conftest import MESSAGE_MAX_BYTES, ServeLocally
from tests.support.databases import Database
from tests.support.streams import STOP, Json, Streaming, as_text, key_of, read, wish


async def refusal_of(clients: Streaming, first: str | bytes) -> tuple[Json, int]:
    """What comes of a first message."""
    client = await clients.connect("/sessions/stream")
    await client.say(first)
    return await client.last_words()


def is_error(told: tuple[Json, int], code: str, close_code: int) -> bool:
    error, closed = told
    assert (error.get("type"), error.get("code"), closed) == ("error", code, close_code), told
    return bool(error["message"]) and set(error) == {"type", "code", "message"}


# The course of a stream


async def test_starts_with_the_answer_to_a_put(clients: Streaming) -> None:
    # With limits so long that no keep-alive comes in between.
    _, start = await clients.open(leaseSeconds=3600, idleSeconds=3600)
    shown = await clients.get(start["sessionId"])
    expected = {"type": "session_start", **shown, "status": "created", "wasCreated": True, "wasUpgraded": False}
    assert start == expected


async def test_gives_a_session_a_lease_and_an_idle_limit(clients: Streaming) -> None:
    _, start = await clients.open()
    assert (start["heartbeatInterval"], start["stream"]["chunks"]) == (1, 0)


async def test_takes_the_limits_of_the_first_message(clients: Streaming) -> None:
    _, start = await clients.open(leaseSeconds=36)
    assert start["heartbeatInterval"] == 3


async def test_sends_every_message_back(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    for message in ("grüße", b"\x00\xff", "", b""):
        await client.say(message)
        assert await client.receive() == message


async def test_ends_with_a_stop(clients: Streaming) -> None:
    client, start = await clients.open()
    for message in (b"x" * 64, "äb"):
        await client.say(message)
        await client.receive()
    end, code = await client.stop()
    counted = {
        "bytesReceived": 67,
        "chunks": 2,
        "messagesSent": 2,
        "partialsSent": 0,
        "finalsSent": 0,
        "errorsSent": 0,
        "audioDurationMs": 2,
    }
    assert (end, code) == ({"type": "session_end", "reason": "STOPPED", "metrics": counted}, 1000)
    session = await clients.get(start["sessionId"])
    assert (session["state"], session["closeReason"], session["stream"]) == ("closed", "STOPPED", counted)


@pytest.mark.parametrize("stop", ['{"type":"stop"}', ' {\n "type" :\t"stop" }\n'])
async def test_takes_a_stop_with_any_white_space(any_clients: Streaming, stop: str) -> None:
    client, _ = await any_clients.open()
    await client.say(stop)
    assert (await client.last_words())[0]["reason"] == "STOPPED"


@pytest.mark.parametrize("message", ['{"type":"stop","x":1}', '{"type":"Stop"}', '"stop"', "[" * 60, STOP.encode()])
async def test_takes_nothing_else_for_a_stop(any_clients: Streaming, message: str | bytes) -> None:
    client, _ = await any_clients.open()
    await client.say(message)
    assert await client.receive() == message


async def test_what_was_said_before_a_stop_is_still_answered(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    for number in range(100):
        await client.say(str(number))
    await client.say(STOP)
    messages, code = await client.ending()
    assert (messages[:-1], code) == ([str(number) for number in range(100)], 1000)


async def test_attaches_to_a_live_session(clients: Streaming) -> None:
    session = await clients.put()
    _, start = await clients.attach(session["sessionId"])
    assert (start["sessionId"], start["status"], start["wasCreated"]) == (session["sessionId"], "existing", False)


async def test_gives_a_lease_and_an_idle_limit_to_a_session_that_had_none(clients: Streaming) -> None:
    before = await clients.put()
    await clients.attach(before["sessionId"])
    after = await clients.get(before["sessionId"])
    assert (before["heartbeatInterval"], after["heartbeatInterval"]) == (None, 1)
    assert before["leaseExpiresAt"] > after["leaseExpiresAt"]


async def test_opens_the_session_that_is_there(clients: Streaming) -> None:
    session = await clients.put()
    _, start = await clients.open(**key_of(session))
    assert (start["sessionId"], start["status"]) == (session["sessionId"], "existing")


async def test_upgrades_a_session_with_its_first_message(clients: Streaming) -> None:
    session = await clients.put()
    _, start = await clients.open(**key_of(session) | {"sessionKind": 3})
    assert (start["status"], start["previousSessionId"]) == ("upgraded", session["sessionId"])


# Refusals


@pytest.mark.parametrize(
    "first",
    [
        "{}",
        "nonsense",
        "[]",
        b"{}",
        as_text(wish()),
        as_text({"type": "stop"}),
        as_text({"type": "open"}),
        as_text({"type": "open", **wish(sessionKind=9)}),
        as_text({"type": "open", **wish(surprise=1)}),
        "[" * 5000,
    ],
)
async def test_refuses_a_wrong_first_message(any_clients: Streaming, first: str | bytes) -> None:
    assert is_error(await refusal_of(any_clients, first), "INVALID", 1008)


async def test_names_the_field_that_is_wrong(any_clients: Streaming) -> None:
    error, _ = await refusal_of(any_clients, as_text({"type": "open", **wish(sessionKind=9)}))
    assert error["message"] == "sessionKind: must be 1, 2 or 3"


async def test_refuses_a_client_that_says_nothing(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.http.streams, "FIRST_MESSAGE_SECONDS", 0.2)
    client = await (await serve(sqlite_database)).clients.connect("/sessions/stream")
    assert is_error(await client.last_words(), "INVALID", 1008)


@pytest.mark.parametrize("session_id", ["5f0a4f5e-0000-4000-8000-0000000000aa", "nonsense", "%00", "x" * 500])
async def test_knows_no_unknown_session(clients: Streaming, session_id: str) -> None:
    client = await clients.connect(f"/sessions/{session_id}/stream")
    assert is_error(await client.last_words(), "NOT_FOUND", 4404)


async def test_refuses_a_session_that_is_over(clients: Streaming) -> None:
    session = await clients.put()
    await clients.http.delete(f"/sessions/{session['sessionId']}")
    client = await clients.connect(f"/sessions/{session['sessionId']}/stream")
    error, code = await client.last_words()
    assert is_error((error, code), "SESSION_OVER", 4410)
    assert "TERMINATED" in error["message"]


@pytest.mark.parametrize("message", ["x", b"x"])
async def test_takes_a_message_of_the_largest_size(any_clients: Streaming, message: Any) -> None:
    client, _ = await any_clients.open()
    await client.say(message * MESSAGE_MAX_BYTES)
    assert await client.receive() == message * MESSAGE_MAX_BYTES


@pytest.mark.parametrize("size", [MESSAGE_MAX_BYTES + 1, 50 * MESSAGE_MAX_BYTES])
@pytest.mark.parametrize("message", ["x", b"x"])
async def test_refuses_a_message_over_the_limit(clients: Streaming, message: Any, size: int) -> None:
    client, start = await clients.open()
    await client.say(message * size)
    messages, code = await client.ending()
    error, end = (read(each) for each in messages)
    assert is_error((error, code), "TOO_LARGE", 1009)
    assert (end["type"], end["reason"]) == ("session_end", "FAILED")
    assert (await clients.get(start["sessionId"]))["closeReason"] == "FAILED"


async def test_refuses_pieces_that_add_up_to_more_than_the_limit(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.BINARY, b"x" * MESSAGE_MAX_BYTES, fin=False)
    await client.send_frame(Opcode.CONT, b"x")
    messages, code = await client.ending()
    assert is_error((read(messages[0]), code), "TOO_LARGE", 1009)


async def test_refuses_a_first_message_over_the_limit(any_clients: Streaming) -> None:
    assert is_error(await refusal_of(any_clients, "x" * (MESSAGE_MAX_BYTES + 1)), "TOO_LARGE", 1009)


async def test_refuses_a_text_that_is_not_utf8(clients: Streaming) -> None:
    client, start = await clients.open()
    await client.send_frame(Opcode.TEXT, b"\xff\xfe")
    messages, code = await client.ending()
    assert is_error((read(messages[0]), code), "INVALID", 1007)
    assert (await clients.get(start["sessionId"]))["closeReason"] == "FAILED"


async def test_refuses_a_first_text_that_is_not_utf8(any_clients: Streaming) -> None:
    client = await any_clients.connect("/sessions/stream")
    await client.send_frame(Opcode.TEXT, b"\xff\xfe")
    assert is_error(await client.last_words(), "INVALID", 1007)


async def test_refuses_a_stream_too_many(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database, max_per_instance=2)).clients
    for _ in range(2):
        await clients.open()
    client = await clients.connect("/sessions/stream")
    assert is_error(await client.last_words(), "SESSION_LIMIT", 1008)


async def test_has_room_again_once_a_stream_is_over(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database, max_per_instance=1)).clients
    for _ in range(3):
        client, _ = await clients.open()
        await client.stop()
        await asyncio.wait_for(client.writer.wait_closed(), 5)
        await asyncio.sleep(0)


async def test_refuses_a_stream_without_a_seat(clients: Streaming) -> None:
    capacity = str(uuid4())
    await clients.http.put(f"/capacities/{capacity}", json={"maxSessions": 1})
    await clients.open(capacityId=capacity)
    told = await refusal_of(clients, as_text({"type": "open", **wish(capacityId=capacity)}))
    assert is_error(told, "SESSION_LIMIT", 1008)


async def test_refuses_the_session_of_another_tenant(clients: Streaming) -> None:
    session = await clients.put()
    told = await refusal_of(clients, as_text({"type": "open", **key_of(session), "tenantObjectId": str(uuid4())}))
    assert is_error(told, "TENANT_MISMATCH", 1008)


async def test_refuses_a_capacity_of_another_tenant(clients: Streaming) -> None:
    capacity = str(uuid4())
    await clients.http.put(f"/capacities/{capacity}", json={"tenantObjectId": str(uuid4())})
    told = await refusal_of(clients, as_text({"type": "open", **wish(capacityId=capacity)}))
    assert is_error(told, "CAPACITY_OF_ANOTHER_TENANT", 1008)
