"""Messages and close codes of a stream. Tests with the fixture `clients` run on SQLite and on PostgreSQL, all other
tests only on SQLite.
"""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from websockets.frames import Opcode

import tenure.http.routes.streams
from tests.streams.conftest import MESSAGE_MAX_BYTES, ServeLocally
from tests.support.databases import Database
from tests.support.streams import STOP, Json, Streaming, as_text, key_of, read, request


async def refusal_of(clients: Streaming, first: str | bytes) -> tuple[Json, int]:
    """Opens a stream with the message `first`. Returns the last message that the server sends, and the close code."""
    client = await clients.connect("/sessions/stream")
    await client.send(first)
    return await client.final_message()


def is_error(received: tuple[Json, int], code: str, close_code: int) -> bool:
    error, closed = received
    assert (error.get("type"), error.get("code"), closed) == ("error", code, close_code), received
    return bool(error["message"]) and set(error) == {"type", "code", "message"}


# A stream from open to stop


async def test_session_start_contains_response_of_put(clients: Streaming) -> None:
    # With limits this long, no keep-alive changes the session before the GET.
    _, start = await clients.open(leaseSeconds=3600, idleSeconds=3600)
    shown = await clients.get(start["sessionId"])
    expected = {"type": "session_start", **shown, "status": "created", "wasCreated": True, "wasUpgraded": False}
    assert start == expected


async def test_stream_sets_default_lease_on_session(clients: Streaming) -> None:
    _, start = await clients.open()
    assert (start["heartbeatInterval"], start["stream"]["chunks"]) == (1, 0)


async def test_first_message_sets_lease(clients: Streaming) -> None:
    _, start = await clients.open(leaseSeconds=36)
    assert start["heartbeatInterval"] == 3


async def test_echo_handler_returns_every_message(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    for message in ("grüße", b"\x00\xff", "", b""):
        await client.send(message)
        assert await client.receive() == message


async def test_stop_ends_stream_and_returns_metrics(clients: Streaming) -> None:
    client, start = await clients.open()
    for message in (b"x" * 64, "äb"):
        await client.send(message)
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
async def test_stop_with_any_whitespace_is_accepted(any_clients: Streaming, stop: str) -> None:
    client, _ = await any_clients.open()
    await client.send(stop)
    assert (await client.final_message())[0]["reason"] == "STOPPED"


@pytest.mark.parametrize("message", ['{"type":"stop","x":1}', '{"type":"Stop"}', '"stop"', "[" * 60, STOP.encode()])
async def test_message_that_only_resembles_stop_is_passed_to_handler(
    any_clients: Streaming, message: str | bytes
) -> None:
    client, _ = await any_clients.open()
    await client.send(message)
    assert await client.receive() == message


async def test_messages_sent_before_stop_are_answered(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    for number in range(100):
        await client.send(str(number))
    await client.send(STOP)
    messages, code = await client.read_to_end()
    assert (messages[:-1], code) == ([str(number) for number in range(100)], 1000)


async def test_attach_to_live_session_returns_existing(clients: Streaming) -> None:
    session = await clients.put()
    _, start = await clients.attach(session["sessionId"])
    assert (start["sessionId"], start["status"], start["wasCreated"]) == (session["sessionId"], "existing", False)


async def test_attach_sets_limits_on_session_without_limits(clients: Streaming) -> None:
    before = await clients.put()
    await clients.attach(before["sessionId"])
    after = await clients.get(before["sessionId"])
    assert (before["heartbeatInterval"], after["heartbeatInterval"]) == (None, 1)
    assert before["leaseExpiresAt"] > after["leaseExpiresAt"]


async def test_open_returns_existing_session(clients: Streaming) -> None:
    session = await clients.put()
    _, start = await clients.open(**key_of(session))
    assert (start["sessionId"], start["status"]) == (session["sessionId"], "existing")


async def test_open_with_higher_kind_upgrades_session(clients: Streaming) -> None:
    session = await clients.put()
    _, start = await clients.open(**key_of(session) | {"sessionKind": 3})
    assert (start["status"], start["previousSessionId"]) == ("upgraded", session["sessionId"])


# Errors


@pytest.mark.parametrize(
    "first",
    [
        "{}",
        "nonsense",
        "[]",
        b"{}",
        as_text(request()),
        as_text({"type": "stop"}),
        as_text({"type": "open"}),
        as_text({"type": "open", **request(sessionKind=9)}),
        as_text({"type": "open", **request(surprise=1)}),
        "[" * 5000,
    ],
)
async def test_invalid_first_message_closes_with_1008(any_clients: Streaming, first: str | bytes) -> None:
    assert is_error(await refusal_of(any_clients, first), "INVALID", 1008)


async def test_error_message_names_invalid_field(any_clients: Streaming) -> None:
    error, _ = await refusal_of(any_clients, as_text({"type": "open", **request(sessionKind=9)}))
    assert error["message"] == "sessionKind: must be 1, 2 or 3"


async def test_missing_first_message_closes_with_1008(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.http.routes.streams, "FIRST_MESSAGE_SECONDS", 0.2)
    client = await (await serve(sqlite_database)).clients.connect("/sessions/stream")
    assert is_error(await client.final_message(), "INVALID", 1008)


async def test_attach_to_unknown_session_closes_with_4404(clients: Streaming) -> None:
    for session_id in ("5f0a4f5e-0000-4000-8000-0000000000aa", "nonsense", "%00", "x" * 500):
        client = await clients.connect(f"/sessions/{session_id}/stream")
        assert is_error(await client.final_message(), "NOT_FOUND", 4404), session_id


async def test_attach_to_ended_session_closes_with_4410(clients: Streaming) -> None:
    session = await clients.put()
    await clients.http.delete(f"/sessions/{session['sessionId']}")
    client = await clients.connect(f"/sessions/{session['sessionId']}/stream")
    error, code = await client.final_message()
    assert is_error((error, code), "SESSION_OVER", 4410)
    assert "TERMINATED" in error["message"]


@pytest.mark.parametrize("message", ["x", b"x"])
async def test_message_of_maximum_size_is_accepted(any_clients: Streaming, message: Any) -> None:
    client, _ = await any_clients.open()
    await client.send(message * MESSAGE_MAX_BYTES)
    assert await client.receive() == message * MESSAGE_MAX_BYTES


@pytest.mark.parametrize(("message", "size"), [("x", MESSAGE_MAX_BYTES + 1), (b"x", 50 * MESSAGE_MAX_BYTES)])
async def test_oversized_message_closes_with_1009(clients: Streaming, message: Any, size: int) -> None:
    client, start = await clients.open()
    await client.send(message * size)
    messages, code = await client.read_to_end()
    error, end = (read(each) for each in messages)
    assert is_error((error, code), "TOO_LARGE", 1009)
    assert (end["type"], end["reason"]) == ("session_end", "FAILED")
    assert (await clients.get(start["sessionId"]))["closeReason"] == "FAILED"


async def test_fragments_over_size_limit_close_with_1009(any_clients: Streaming) -> None:
    client, _ = await any_clients.open()
    await client.send_frame(Opcode.BINARY, b"x" * MESSAGE_MAX_BYTES, fin=False)
    await client.send_frame(Opcode.CONT, b"x")
    messages, code = await client.read_to_end()
    assert is_error((read(messages[0]), code), "TOO_LARGE", 1009)


async def test_oversized_first_message_closes_with_1009(any_clients: Streaming) -> None:
    assert is_error(await refusal_of(any_clients, "x" * (MESSAGE_MAX_BYTES + 1)), "TOO_LARGE", 1009)


async def test_text_that_is_not_utf8_closes_with_1007(clients: Streaming) -> None:
    client, start = await clients.open()
    await client.send_frame(Opcode.TEXT, b"\xff\xfe")
    messages, code = await client.read_to_end()
    assert is_error((read(messages[0]), code), "INVALID", 1007)
    assert (await clients.get(start["sessionId"]))["closeReason"] == "FAILED"


async def test_first_text_that_is_not_utf8_closes_with_1007(any_clients: Streaming) -> None:
    client = await any_clients.connect("/sessions/stream")
    await client.send_frame(Opcode.TEXT, b"\xff\xfe")
    assert is_error(await client.final_message(), "INVALID", 1007)


async def test_stream_over_instance_limit_is_rejected(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database, max_per_instance=2)).clients
    for _ in range(2):
        await clients.open()
    client = await clients.connect("/sessions/stream")
    assert is_error(await client.final_message(), "SESSION_LIMIT", 1008)


async def test_ended_stream_no_longer_counts_towards_instance_limit(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    clients = (await serve(sqlite_database, max_per_instance=1)).clients
    for _ in range(3):
        client, _ = await clients.open()
        await client.stop()
        await asyncio.wait_for(client.writer.wait_closed(), 5)
        await asyncio.sleep(0)


async def test_open_without_free_seat_is_rejected(clients: Streaming) -> None:
    capacity = str(uuid4())
    await clients.http.put(f"/capacities/{capacity}", json={"maxSessions": 1})
    await clients.open(capacityId=capacity)
    received = await refusal_of(clients, as_text({"type": "open", **request(capacityId=capacity)}))
    assert is_error(received, "SESSION_LIMIT", 1008)


async def test_open_with_key_of_another_tenant_is_rejected(clients: Streaming) -> None:
    session = await clients.put()
    received = await refusal_of(clients, as_text({"type": "open", **key_of(session), "tenantObjectId": str(uuid4())}))
    assert is_error(received, "TENANT_MISMATCH", 1008)


async def test_open_on_capacity_of_another_tenant_is_rejected(clients: Streaming) -> None:
    capacity = str(uuid4())
    await clients.http.put(f"/capacities/{capacity}", json={"tenantObjectId": str(uuid4())})
    received = await refusal_of(clients, as_text({"type": "open", **request(capacityId=capacity)}))
    assert is_error(received, "CAPACITY_OF_ANOTHER_TENANT", 1008)
