"""A handler that raises, hangs or floods harms only its own stream."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psutil
import pytest

import tenure.http.websockets
import tenure.streams.stream
from tenure.model.sessions import Session
from tenure.streams.handlers import DiscardHandler, EchoHandler, Message, Output
from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.streams import STOP, Client, Json, LocalService, Streaming, eventually, read

pytestmark = pytest.mark.slow  # they wait for real leases and limits to run out

NEIGHBOUR_SECONDS = 1.0
MEBIBYTE = 1_048_576
MEMORY_MAX = 32 * MEBIBYTE


class Unruly(EchoHandler):
    """An echo, but for streams whose first message names a misdeed: that message, or what follows, brings it about."""

    misdeeds: dict[str, Callable[["Unruly"], Awaitable[None]]]

    async def chunk(self, message: Message) -> None:
        if isinstance(message, str) and message in self.misdeeds:
            await self.misdeeds[message](self)
        else:
            await super().chunk(message)


def unruly(**misdeeds: Callable[[Unruly], Awaitable[None]]) -> type[Unruly]:
    return type("Misbehaving", (Unruly,), {"misdeeds": misdeeds})


class Raising(DiscardHandler):
    """Raises where its class says."""

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
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FINISH_SECONDS", "CANCEL_SECONDS", "DRAIN_SECONDS", "TELL_SECONDS"):
        monkeypatch.setattr(tenure.streams.stream, name, 0.2)
    monkeypatch.setattr(tenure.http.websockets, "GOODBYE_SECONDS", 0.3)


async def talk(client: Client) -> None:
    """A word and its echo."""
    await client.say("hello")
    assert await client.receive() == "hello"


async def wicked_and_good(service: LocalService) -> tuple[Client, Json, Client]:
    wicked, session = await service.clients.open()
    good, _ = await service.clients.open()
    await talk(good)
    return wicked, session, good


async def ended(clients: Streaming, client: Client, session: Json) -> tuple[list[Json], int, Json]:
    messages, code = await client.ending()
    return [read(message) for message in messages], code, await clients.until_closed(session["sessionId"])


FAILED = [
    {"type": "error", "code": "HANDLER_FAILED", "message": "the handler of this stream failed"},
    {"type": "session_end", "reason": "FAILED"},
]


def without_metrics(messages: list[Json]) -> list[Json]:
    return [{name: value for name, value in message.items() if name != "metrics"} for message in messages]


# Raising


@pytest.mark.parametrize("place", ["open", "chunk"])
async def test_that_raises_ends_its_stream_with_failed(
    sqlite_database: Database, serve: ServeLocally, place: str
) -> None:
    clients = (await serve(sqlite_database, raising(place))).clients
    client, session = await clients.open()
    await client.say("anything")
    messages, code, over = await ended(clients, client, session)
    assert (without_metrics(messages), code, over["closeReason"]) == (FAILED, 1011, "FAILED")
    assert over["stream"]["errorsSent"] == 1


async def test_that_raises_as_it_finishes_ends_as_asked(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database, raising("finish"))).clients
    client, session = await clients.open()
    end, code = await client.stop()
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.get(session["sessionId"]))["closeReason"] == "STOPPED"


async def _cancels_itself(_: Unruly) -> None:
    raise asyncio.CancelledError


async def _leaves(_: Unruly) -> None:
    sys.exit(3)


@pytest.mark.parametrize("misdeed", [_cancels_itself, _leaves])
async def test_that_raises_what_nobody_expects_fails_alone(
    sqlite_database: Database, serve: ServeLocally, misdeed: Callable[[Unruly], Awaitable[None]]
) -> None:
    service = await serve(sqlite_database, unruly(now=misdeed))
    wicked, session, good = await wicked_and_good(service)
    await wicked.say("now")
    messages, code, over = await ended(service.clients, wicked, session)
    assert (without_metrics(messages), code, over["closeReason"]) == (FAILED, 1011, "FAILED")
    await talk(good)


async def test_that_cannot_be_made_fails_alone(sqlite_database: Database, serve: ServeLocally) -> None:
    def make() -> EchoHandler:
        raise RuntimeError("on purpose")

    clients = (await serve(sqlite_database, make)).clients
    client, session = await clients.open()
    messages, code, over = await ended(clients, client, session)
    assert (without_metrics(messages), code, over["closeReason"]) == (FAILED, 1011, "FAILED")


async def test_that_raises_before_it_can_be_awaited_fails_alone(sqlite_database: Database, serve: ServeLocally) -> None:
    class Plain(DiscardHandler):
        def chunk(self, message: Message) -> Any:
            raise RuntimeError(message)

    clients = (await serve(sqlite_database, Plain)).clients
    client, session = await clients.open()
    await client.say("anything")
    messages, code, over = await ended(clients, client, session)
    assert (without_metrics(messages), code, over["closeReason"]) == (FAILED, 1011, "FAILED")


@pytest.mark.parametrize("place", ["chunk", "none"])
async def test_is_told_to_finish_however_its_stream_ended(
    sqlite_database: Database, serve: ServeLocally, place: str
) -> None:
    finished: list[str] = []

    class Finishing(raising(place)):  # type: ignore[misc]
        async def finish(self) -> None:
            finished.append(place)

    clients = (await serve(sqlite_database, Finishing)).clients
    client, session = await clients.open()
    await client.say("anything")
    client.vanish()
    await clients.until_closed(session["sessionId"])
    assert finished == [place]


# Hanging


async def _hang(_: Unruly) -> None:
    await asyncio.Event().wait()


async def _hang_against_all_cancelling(_: Unruly) -> None:
    for _attempt in range(3):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


@pytest.mark.parametrize("misdeed", [_hang, _hang_against_all_cancelling])
async def test_that_hangs_can_be_ended(
    sqlite_database: Database, serve: ServeLocally, misdeed: Callable[[Unruly], Awaitable[None]]
) -> None:
    service = await serve(sqlite_database, unruly(hang=misdeed), lease_seconds=5)
    wicked, session, good = await wicked_and_good(service)
    await wicked.say("hang")
    await service.clients.http.delete(f"/sessions/{session['sessionId']}")
    messages, code, over = await ended(service.clients, wicked, session)
    assert (messages[-1]["reason"], code, over["closeReason"]) == ("TERMINATED", 1000, "TERMINATED")
    await talk(good)


async def test_that_hangs_in_open_is_disconnected_with_its_client(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    class HangingOpen(DiscardHandler):
        async def open(self, session: Session, output: Output) -> None:
            del session, output
            await asyncio.Event().wait()

    clients = (await serve(sqlite_database, HangingOpen)).clients
    client, session = await clients.open()
    client.vanish()
    assert (await clients.until_closed(session["sessionId"]))["closeReason"] == "DISCONNECTED"


async def test_that_hangs_is_kept_alive(sqlite_database: Database, serve: ServeLocally) -> None:
    """It may be thinking; only its client and the idle limit decide."""
    clients = (await serve(sqlite_database, unruly(hang=_hang), lease_seconds=3)).clients
    client, session = await clients.open()
    await client.say("hang")
    first = await clients.get(session["sessionId"])
    later = await clients.until(session["sessionId"], lambda now: now["lastHeartbeat"] > first["leaseExpiresAt"])
    assert later["isActive"]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_that_hangs_as_it_finishes_is_left_behind(
    sqlite_database: Database, serve: ServeLocally, stubborn: bool
) -> None:
    class HangingFinish(DiscardHandler):
        async def finish(self) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3)
            if stubborn:
                await asyncio.sleep(1)

    clients = (await serve(sqlite_database, HangingFinish)).clients
    client, session = await clients.open()
    end, code = await client.stop()
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.get(session["sessionId"]))["state"] == "closed"


async def test_that_swallows_its_cancelling_gets_no_more_messages(
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
        await client.say(message)
    await clients.http.delete(f"/sessions/{session['sessionId']}")
    await client.ending()
    assert got == ["first"]


async def test_while_it_finishes_the_session_is_closing_and_its_key_is_free(
    database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.streams.stream, "FINISH_SECONDS", 30.0)
    may_finish = asyncio.Event()

    class Finishing(EchoHandler):
        async def finish(self) -> None:
            await self._output.message("one more thing")
            await may_finish.wait()

    clients = (await serve(database, Finishing)).clients
    client, session = await clients.open()
    await client.say(STOP)
    assert await client.receive() == "one more thing"
    closing = await clients.get(session["sessionId"])
    assert (closing["state"], closing["isActive"], closing["closeReason"]) == ("closing", False, "STOPPED")
    again = await clients.put(**{name: session[name] for name in ("userObjectId", "tenantObjectId", "capacityId")})
    assert again["status"] == "created"
    may_finish.set()
    end, _ = await client.last_words()
    assert end["metrics"]["messagesSent"] == 1
    closed = await clients.get(session["sessionId"])
    assert (closed["state"], closed["sessionEndUtc"]) == ("closed", closing["sessionEndUtc"])


# Flooding


async def _flood(handler: Unruly) -> None:
    while True:
        await handler._output.message(b"x" * 10_000)


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


async def test_that_floods_a_client_that_does_not_read_fills_no_memory(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    wicked, _, good = await wicked_and_good(service)
    wicked.read_nothing()
    before = rss()
    await wicked.say("flood")
    for _ in range(50):
        await talk(good)
        await asyncio.sleep(0.01)
    assert rss() - before < MEMORY_MAX


async def test_that_floods_can_be_ended_though_its_client_does_not_read(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood), lease_seconds=5)
    wicked, session, _ = await wicked_and_good(service)
    wicked.read_nothing()
    await wicked.say("flood")
    await service.clients.http.delete(f"/sessions/{session['sessionId']}")
    await eventually(lambda: service.instance.streams._places == 1, "the stream has given up its place", 5)


async def test_that_floods_a_client_that_says_goodbye_and_reads_nothing_is_disconnected(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    wicked, session, _ = await wicked_and_good(service)
    wicked.read_nothing()
    await wicked.say("flood")
    await asyncio.sleep(0.3)
    wicked.writer.write_eof()
    over = await service.clients.until_closed(session["sessionId"], 5)
    assert over["closeReason"] == "DISCONNECTED"


async def test_that_floods_leaves_the_others_their_turn(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    wicked, _, good = await wicked_and_good(service)
    await wicked.say("flood")
    reading = asyncio.ensure_future(_read_on(wicked))
    began = time.monotonic()
    for _ in range(10):
        await talk(good)
    reading.cancel()
    assert time.monotonic() - began < NEIGHBOUR_SECONDS


async def _read_on(client: Client) -> None:
    while await client.receive() is not None:
        pass


async def test_that_floods_after_its_client_has_gone_is_stopped(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database, unruly(flood=_flood))
    wicked, session, good = await wicked_and_good(service)
    await wicked.say("flood")
    await wicked.receive()
    wicked.vanish()
    over = await service.clients.until_closed(session["sessionId"])
    assert over["closeReason"] == "DISCONNECTED"
    await talk(good)
