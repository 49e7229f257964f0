"""Several streams of one session: the newest replaces the others, and only the newest can end the session."""

import asyncio
import time

import pytest

import tenure.server.websocket
import tenure.streams.stream
from tenure.domain.keys import Role, new_api_key
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import Session
from tenure.domain.streams import AttachResult
from tenure.streams.handlers import Message
from tenure.streams.registry import Admission
from tenure.streams.sockets import CloseCode
from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.keys import create_key
from tests.support.open_requests import some_id
from tests.support.streams import STOP, Client, LocalService, Streaming, eventually, read

pytestmark = pytest.mark.slow

MEBIBYTE = 1_048_576
WITHIN_SECONDS = 3.0
"""Long enough for the next keep-alive (after at most 1.25 s) on a busy machine, but shorter than a lease (5 s)."""


async def talk(client: Client) -> None:
    await client.send("hello")
    assert await client.receive() == "hello"


# On the same instance


async def test_older_stream_is_replaced_immediately(clients: Streaming) -> None:
    """The replacement does not wait for the next keep-alive, which is minutes away."""
    older, start = await clients.open(leaseSeconds=3600, idleSeconds=3600)
    await clients.attach(start["sessionId"])
    assert await older.final_message() == ({"type": "replaced"}, 4409)


async def test_open_with_same_key_replaces_older_stream(clients: Streaming) -> None:
    older, start = await clients.open()
    same = {name: start[name] for name in ("userObjectId", "tenantObjectId", "capacityId")}
    _, again = await clients.open(**same)
    assert again["sessionId"] == start["sessionId"]
    assert await older.final_message() == ({"type": "replaced"}, 4409)


async def test_full_instance_admits_one_stream_that_replaces_another(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    """A client whose connection broke attaches again, before the instance has noticed the break."""
    service = await serve(sqlite_database, max_per_instance=1)
    older, start = await service.clients.open()
    unknown = await service.clients.connect(f"/sessions/{some_id()}/stream")
    assert (await unknown.final_message())[0]["code"] == "SESSION_LIMIT"
    newer, _ = await service.clients.attach(start["sessionId"])
    assert await older.final_message() == ({"type": "replaced"}, 4409)
    await eventually(lambda: service.instance.streams.open_count == 1, "the older stream has ended")
    newest, _ = await service.clients.attach(start["sessionId"])
    assert await newer.final_message() == ({"type": "replaced"}, 4409)
    await talk(newest)
    other = await service.clients.connect("/sessions/stream")
    assert (await other.final_message())[0]["code"] == "SESSION_LIMIT"


async def test_full_instance_does_not_reveal_streams_of_other_tenants(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    """A stream to another tenant's session is refused like a stream to an unknown session, even if the session has a
    stream on this instance.
    """
    service = await serve(sqlite_database, max_per_instance=1)
    _, start = await service.clients.open()
    keys = {tenant: new_api_key(Role.CLIENT) for tenant in (start["tenantObjectId"], some_id())}
    for tenant, key in keys.items():
        await create_key(service.instance._store, key, tenant_object_id=tenant)
    await eventually(lambda: not service.instance._authenticator.is_open, "credentials are required")
    own, foreign = (f"Authorization: Bearer {key.text}" for key in keys.values())
    for session_id in (start["sessionId"], some_id()):
        refused = await service.clients.connect(f"/sessions/{session_id}/stream", foreign)
        assert (await refused.final_message())[0]["code"] == "SESSION_LIMIT"
    replacing = await service.clients.connect(f"/sessions/{start['sessionId']}/stream", own)
    assert (await replacing.receive_start())["sessionId"] == start["sessionId"]


async def test_full_instance_admits_replacing_streams_of_a_session_one_at_a_time(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, max_per_instance=1)
    _, start = await service.clients.open()
    streams = service.instance.streams

    def replaces(session: Session) -> bool:
        return session.session_id == start["sessionId"]

    with streams.admit(replaces) as first, streams.admit(replaces) as second:
        assert (first, second) == (Admission.ADMITTED, Admission.FULL)
    with streams.admit(replaces) as third:
        assert third is Admission.ADMITTED


async def test_counters_of_both_streams_are_added(clients: Streaming) -> None:
    older, start = await clients.open()
    await talk(older)
    newer, _ = await clients.attach(start["sessionId"])
    await older.final_message()
    await talk(newer)
    end, _ = await newer.stop()
    assert (end["metrics"]["chunks"], end["metrics"]["messagesSent"]) == (2, 2)


@pytest.mark.parametrize("how", ["disconnect", "stop"])
async def test_replaced_stream_does_not_end_session(clients: Streaming, how: str) -> None:
    older, start = await clients.open()
    newer, _ = await clients.attach(start["sessionId"])
    if how == "disconnect":
        older.disconnect()
    else:
        await older.send(STOP)
        await older.read_to_end()
    await asyncio.sleep(0.3)
    await talk(newer)
    assert (await clients.get(start["sessionId"]))["isActive"]


async def test_repeated_reattach_keeps_session(clients: Streaming) -> None:
    client, start = await clients.open()
    for _ in range(20):
        client, again = await clients.attach(start["sessionId"])
        await talk(client)
        assert again["sessionId"] == start["sessionId"]
    await client.stop()
    # The streams that were replaced last may still be saving their counters.
    await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 20)


async def test_concurrent_attaches_leave_one_stream(clients: Streaming) -> None:
    _, start = await clients.open()
    path = f"/sessions/{start['sessionId']}/stream"
    many = await asyncio.gather(*(clients.connect(path) for _ in range(20)))
    ending = [asyncio.ensure_future(client.read_to_end()) for client in many]
    await eventually(lambda: sum(one.done() for one in ending) == len(many) - 1, "all but one were replaced")
    (left,) = [client for client, one in zip(many, ending, strict=True) if not one.done()]
    await left.send(STOP)
    ends = [read(messages[-1]).get("reason") for messages, _ in await asyncio.gather(*ending)]
    assert sorted(ends, key=str) == [None] * 19 + ["STOPPED"]


async def test_replaced_stream_is_dropped_if_its_client_does_not_read(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.server.websocket, "GOODBYE_SECONDS", 0.2)
    monkeypatch.setattr(tenure.streams.stream, "LAST_MESSAGE_SECONDS", 0.2)
    service = await serve(sqlite_database)
    older, start = await service.clients.open()
    older.stop_reading()
    await older.fill(64 * MEBIBYTE)
    newer, _ = await service.clients.attach(start["sessionId"])
    await eventually(lambda: service.instance.streams._admitted == 1, "the older stream no longer counts as open", 6)
    await talk(newer)


# Streams that start out of order


class RecordingSocket:
    """A socket that records the messages that are sent to it, and never delivers a message."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent: list[Message] = []
        self.closed_with: CloseCode | None = None

    async def receive(self) -> Message:
        await self.gone
        raise AssertionError("never")

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def close(self, code: CloseCode) -> None:
        self.closed_with = code


async def test_stream_with_higher_attachment_wins_when_started_first(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database)
    session = await service.clients.put()
    first, second = [await service.instance.streams.attach(session["sessionId"], EVERYTHING) for _ in range(2)]
    late, current = await _run(service, second), await _run(service, first)
    await eventually(lambda: current.closed_with, "the stream with the lower attachment is closed")
    assert (current.closed_with, late.closed_with) == (CloseCode.REPLACED, None)


async def _run(service: LocalService, attached: AttachResult) -> RecordingSocket:
    recorder = RecordingSocket()
    running = asyncio.ensure_future(service.instance.streams.run(recorder, attached, "{}"))
    running.add_done_callback(lambda _: None)
    await eventually(lambda: recorder.sent, "session_start is sent")
    return recorder


# On another instance


async def test_older_stream_on_another_instance_is_replaced(
    clients: Streaming, clients_of_neighbour: Streaming
) -> None:
    older, session = await clients.open()
    await talk(older)
    newer, _ = await clients_of_neighbour.attach(session["sessionId"])
    began = time.monotonic()
    assert await older.final_message() == ({"type": "replaced"}, 4409)
    assert time.monotonic() - began < WITHIN_SECONDS
    await talk(newer)
    end, _ = await newer.stop()
    assert (end["reason"], end["metrics"]["chunks"]) == ("STOPPED", 2)


async def test_reattach_on_another_instance_before_disconnect_keeps_session(
    clients: Streaming, clients_of_neighbour: Streaming
) -> None:
    older, session = await clients.open()
    await talk(older)
    newer, _ = await clients_of_neighbour.attach(session["sessionId"])
    older.disconnect()
    await clients.until(session["sessionId"], lambda shown: shown["stream"]["chunks"] == 1)
    await talk(newer)
    assert (await clients.get(session["sessionId"]))["isActive"]
