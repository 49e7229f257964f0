"""A handler that raises, hangs or floods affects only its own stream."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psutil
import pytest

import tenure.server.websocket
import tenure.streams.stream
from tenure.domain.sessions import Session
from tenure.streams.handlers import DiscardHandler, EchoHandler, Message, Output
from tenure.telemetry.events import StreamHandlerFailed, StreamHandlerStuck
from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.streams import STOP, Client, Json, LocalService, Streaming, eventually, read

pytestmark = pytest.mark.slow  # real timeouts expire

NEIGHBOUR_SECONDS = 1.0
"""How long ten messages of another stream may take while a handler floods its own stream."""
MEBIBYTE = 1_048_576
MEMORY_MAX = 32 * MEBIBYTE


class Unruly(EchoHandler):
    """An echo handler that misbehaves when a message is a key of `misdeeds`."""

    misdeeds: dict[str, Callable[["Unruly"], Awaitable[None]]]

    async def chunk(self, message: Message) -> None:
        if isinstance(message, str) and message in self.misdeeds:
            await self.misdeeds[message](self)
        else:
            await super().chunk(message)


def unruly(**misdeeds: Callable[[Unruly], Awaitable[None]]) -> type[Unruly]:
    return type("Misbehaving", (Unruly,), {"misdeeds": misdeeds})


class Raising(DiscardHandler):
    """Raises in the method that `at` names."""

    at = "chunk"

    async def open(self, session: Session, output: Output) -> None:
        await super().open(session, output)
        self._raise("open")

    async def chunk(self, message: Message) -> None:
        del message
        self._raise("chunk")

    async def finish(self) -> None:
        self._raise("finish")

    def _raise(self, place: str) -> None:
        if self.at == place:
            raise RuntimeError("on purpose")


def raising(place: str) -> type[Raising]:
    return type("RaisingThere", (Raising,), {"at": place})


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FINISH_SECONDS", "CANCEL_SECONDS", "DRAIN_SECONDS", "LAST_MESSAGE_SECONDS"):
        monkeypatch.setattr(tenure.streams.stream, name, 0.2)
    monkeypatch.setattr(tenure.server.websocket, "GOODBYE_SECONDS", 0.3)


async def talk(client: Client) -> None:
    """Sends a message and receives its echo."""
    await client.send("hello")
    assert await client.receive() == "hello"


async def bad_and_good(service: LocalService) -> tuple[Client, Json, Client]:
    bad, session = await service.clients.open()
    good, _ = await service.clients.open()
    await talk(good)
    return bad, session, good


async def ended(clients: Streaming, client: Client, session: Json) -> tuple[list[Json], int, Json]:
    messages, code = await client.read_to_end()
    return [read(message) for message in messages], code, await clients.until_closed(session["sessionId"])


FAILED = [
    {"type": "error", "code": "HANDLER_FAILED", "message": "the handler of this stream failed"},
    {"type": "session_end", "reason": "FAILED"},
]


def without_metrics(messages: list[Json]) -> list[Json]:
    return [{name: value for name, value in message.items() if name != "metrics"} for message in messages]


# Raising


@pytest.mark.parametrize("place", ["open", "chunk"])
async def test_exception_in_handler_ends_stream_as_failed(
    sqlite_database: Database, serve: ServeLocally, place: str
) -> None:
    service = await serve(sqlite_database, raising(place))
    clients = service.clients
    client, session = await clients.open()
    await client.send("anything")
    messages, code, shown = await ended(clients, client, session)
    assert [event.session_id for event in service.telemetry.of(StreamHandlerFailed)] == [session["sessionId"]]
    assert (without_metrics(messages), code, shown["closeReason"]) == (FAILED, 1011, "FAILED")
    assert shown["stream"]["errorsSent"] == 1


async def test_exception_in_finish_ends_stream_as_stopped(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database, raising("finish"))).clients
    client, session = await clients.open()
    end, code = await client.stop()
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.get(session["sessionId"]))["closeReason"] == "STOPPED"


async def _cancel(_: Unruly) -> None:
    raise asyncio.CancelledError


async def _exit(_: Unruly) -> None:
    sys.exit(3)


@pytest.mark.parametrize("misdeed", [_cancel, _exit])
async def test_base_exception_in_handler_fails_only_its_stream(
    sqlite_database: Database, serve: ServeLocally, misdeed: Callable[[Unruly], Awaitable[None]]
) -> None:
    service = await serve(sqlite_database, unruly(now=misdeed))
    bad, session, good = await bad_and_good(service)
    await bad.send("now")
    messages, code, shown = await ended(service.clients, bad, session)
    assert (without_metrics(messages), code, shown["closeReason"]) == (FAILED, 1011, "FAILED")
    await talk(good)


async def test_exception_in_handler_factory_ends_stream_as_failed(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    def make() -> EchoHandler:
        raise RuntimeError("on purpose")

    clients = (await serve(sqlite_database, make)).clients
    client, session = await clients.open()
    messages, code, shown = await ended(clients, client, session)
    assert (without_metrics(messages), code, shown["closeReason"]) == (FAILED, 1011, "FAILED")


async def test_exception_in_synchronous_chunk_ends_stream_as_failed(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    class Plain(DiscardHandler):
        def chunk(self, message: Message) -> Any:
            raise RuntimeError(message)

    clients = (await serve(sqlite_database, Plain)).clients
    client, session = await clients.open()
    await client.send("anything")
    messages, code, shown = await ended(clients, client, session)
    assert (without_metrics(messages), code, shown["closeReason"]) == (FAILED, 1011, "FAILED")


@pytest.mark.parametrize("place", ["chunk", "none"])
async def test_finish_is_called_after_failure_and_after_disconnect(
    sqlite_database: Database, serve: ServeLocally, place: str
) -> None:
    finished: list[str] = []

    class Finishing(raising(place)):  # type: ignore[misc]
        async def finish(self) -> None:
            finished.append(place)

    clients = (await serve(sqlite_database, Finishing)).clients
    client, session = await clients.open()
    await client.send("anything")
    client.disconnect()
    await clients.until_closed(session["sessionId"])
    assert finished == [place]


# Hanging


async def _hang(_: Unruly) -> None:
    await asyncio.Event().wait()


async def _hang_despite_cancellation(_: Unruly) -> None:
    for _attempt in range(3):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


@pytest.mark.parametrize("misdeed", [_hang, _hang_despite_cancellation])
async def test_hanging_handler_can_be_ended_by_delete(
    sqlite_database: Database, serve: ServeLocally, misdeed: Callable[[Unruly], Awaitable[None]]
) -> None:
    service = await serve(sqlite_database, unruly(hang=misdeed), lease_seconds=5)
    bad, session, good = await bad_and_good(service)
    await bad.send("hang")
    await service.clients.http.delete(f"/sessions/{session['sessionId']}")
    messages, code, shown = await ended(service.clients, bad, session)
    assert (messages[-1]["reason"], code, shown["closeReason"]) == ("TERMINATED", 1000, "TERMINATED")
    await talk(good)


async def test_stream_with_handler_hanging_in_open_ends_when_client_disconnects(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    class HangingOpen(DiscardHandler):
        async def open(self, session: Session, output: Output) -> None:
            del session, output
            await asyncio.Event().wait()

    clients = (await serve(sqlite_database, HangingOpen)).clients
    client, session = await clients.open()
    client.disconnect()
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "DISCONNECTED"


async def test_stream_with_hanging_handler_renews_its_lease(sqlite_database: Database, serve: ServeLocally) -> None:
    """A handler that seems to hang may be busy computing, so its stream must not end."""
    clients = (await serve(sqlite_database, unruly(hang=_hang), lease_seconds=2)).clients
    client, session = await clients.open()
    await client.send("hang")
    first = await clients.get(session["sessionId"])
    later = await clients.until(session["sessionId"], lambda now: now["lastHeartbeat"] > first["leaseExpiresAt"])
    assert later["isActive"]


@pytest.mark.parametrize("ignores_cancellation", [False, True])
async def test_handler_hanging_in_finish_does_not_block_stream_end(
    sqlite_database: Database, serve: ServeLocally, ignores_cancellation: bool
) -> None:
    class HangingFinish(DiscardHandler):
        async def finish(self) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3)
            if ignores_cancellation:
                await asyncio.sleep(1)

    service = await serve(sqlite_database, HangingFinish)
    clients = service.clients
    client, session = await clients.open()
    end, code = await client.stop()
    assert [event.session_id for event in service.telemetry.of(StreamHandlerStuck)] == [session["sessionId"]]
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.get(session["sessionId"]))["state"] == "closed"


async def test_handler_that_suppresses_cancellation_gets_no_more_messages(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    got: list[Message] = []

    class Swallowing(DiscardHandler):
        async def chunk(self, message: Message) -> None:
            got.append(message)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

    clients = (await serve(sqlite_database, Swallowing, lease_seconds=5)).clients
    client, session = await clients.open()
    for message in ("first", "second"):
        await client.send(message)
    await clients.http.delete(f"/sessions/{session['sessionId']}")
    await client.read_to_end()
    assert got == ["first"]


async def test_session_is_closing_and_its_key_free_while_handler_finishes(
    database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.streams.stream, "FINISH_SECONDS", 30.0)
    may_finish = asyncio.Event()

    class Finishing(EchoHandler):
        async def finish(self) -> None:
            await self._output.message("last message")
            await may_finish.wait()

    clients = (await serve(database, Finishing)).clients
    client, session = await clients.open()
    await client.send(STOP)
    assert await client.receive() == "last message"
    closing = await clients.get(session["sessionId"])
    assert (closing["state"], closing["isActive"], closing["closeReason"]) == ("closing", False, "STOPPED")
    again = await clients.put(**{name: session[name] for name in ("userObjectId", "tenantObjectId", "capacityId")})
    assert again["status"] == "created"
    may_finish.set()
    end, _ = await client.final_message()
    assert end["metrics"]["messagesSent"] == 1
    closed = await clients.get(session["sessionId"])
    assert (closed["state"], closed["sessionEndUtc"]) == ("closed", closing["sessionEndUtc"])


# Flooding


async def _flood(handler: Unruly) -> None:
    while True:
        await handler._output.message(b"x" * 10_000)


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


async def test_flooding_handler_does_not_grow_memory_when_client_reads_nothing(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    bad, _, good = await bad_and_good(service)
    bad.stop_reading()
    before = rss()
    await bad.send("flood")
    for _ in range(50):
        await talk(good)
        await asyncio.sleep(0.01)
    assert rss() - before < MEMORY_MAX


async def test_flooding_handler_can_be_ended_when_client_reads_nothing(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood), lease_seconds=5)
    bad, session, _ = await bad_and_good(service)
    bad.stop_reading()
    await bad.send("flood")
    await service.clients.http.delete(f"/sessions/{session['sessionId']}")
    await eventually(lambda: service.instance.streams._admitted == 1, "the stream has ended", 5)


async def test_stream_of_flooding_handler_ends_after_half_close_by_client(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    bad, session, _ = await bad_and_good(service)
    bad.stop_reading()
    await bad.send("flood")
    await asyncio.sleep(0.3)
    bad.writer.write_eof()
    ended_session = await service.clients.until_closed(session["sessionId"], 5)
    assert ended_session["closeReason"] == "DISCONNECTED"


async def test_flooding_handler_does_not_delay_other_streams(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    bad, _, good = await bad_and_good(service)
    await bad.send("flood")
    reading = asyncio.ensure_future(_keep_reading(bad))
    began = time.monotonic()
    for _ in range(10):
        await talk(good)
    reading.cancel()
    assert time.monotonic() - began < NEIGHBOUR_SECONDS


async def _keep_reading(client: Client) -> None:
    while await client.receive() is not None:
        pass


async def test_flooding_handler_is_stopped_after_client_disconnects(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    bad, session, good = await bad_and_good(service)
    await bad.send("flood")
    await bad.receive()
    bad.disconnect()
    ended_session = await service.clients.until_closed(session["sessionId"])
    assert ended_session["closeReason"] == "DISCONNECTED"
    await talk(good)
