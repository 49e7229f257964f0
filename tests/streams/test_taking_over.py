"""Streams of one session: the newest takes over, and only the newest can end it."""

import asyncio
import time

import pytest

import tenure.http.websockets
import tenure.streams.stream
from tenure.model.sessions import Attached
from tenure.streams.handlers import Message
from tenure.streams.sockets import CloseCode
from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.streams import STOP, Client, LocalService, Streaming, eventually, read

pytestmark = pytest.mark.slow

MEBIBYTE = 1_048_576
WITHIN_SECONDS = 3.0
"""A keep-alive of a second, a tick, and a machine with other things to do; but not a lease of five."""


async def talk(client: Client) -> None:
    await client.say("hello")
    assert await client.receive() == "hello"


# On the same instance


async def test_tells_the_older_one_at_once(clients: Streaming) -> None:
    """And not with the next keep-alive, which is minutes away."""
    older, start = await clients.open(leaseSeconds=3600, idleSeconds=3600)
    await clients.attach(start["sessionId"])
    assert await older.last_words() == ({"type": "replaced"}, 4409)


async def test_opening_the_same_key_takes_over(clients: Streaming) -> None:
    older, start = await clients.open()
    same = {name: start[name] for name in ("userObjectId", "tenantObjectId", "capacityId")}
    _, again = await clients.open(**same)
    assert again["sessionId"] == start["sessionId"]
    assert await older.last_words() == ({"type": "replaced"}, 4409)


async def test_adds_the_counters_of_both(clients: Streaming) -> None:
    older, start = await clients.open()
    await talk(older)
    newer, _ = await clients.attach(start["sessionId"])
    await older.last_words()
    await talk(newer)
    end, _ = await newer.stop()
    assert (end["metrics"]["chunks"], end["metrics"]["messagesSent"]) == (2, 2)


@pytest.mark.parametrize("leaving", ["vanishes", "stops"])
async def test_the_older_one_ends_nothing_as_it_leaves(clients: Streaming, leaving: str) -> None:
    older, start = await clients.open()
    newer, _ = await clients.attach(start["sessionId"])
    if leaving == "vanishes":
        older.vanish()
    else:
        await older.say(STOP)
        await older.ending()
    await asyncio.sleep(0.3)
    await talk(newer)
    assert (await clients.get(start["sessionId"]))["isActive"]


async def test_a_client_that_comes_back_again_and_again_keeps_its_session(clients: Streaming) -> None:
    client, start = await clients.open()
    for _ in range(20):
        client, again = await clients.attach(start["sessionId"])
        await talk(client)
        assert again["sessionId"] == start["sessionId"]
    await client.stop()
    # Those that were replaced last may still be saving what they counted.
    await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 20)


async def test_of_many_at_once_one_is_left(clients: Streaming) -> None:
    _, start = await clients.open()
    path = f"/sessions/{start['sessionId']}/stream"
    many = await asyncio.gather(*(clients.connect(path) for _ in range(20)))
    asked = [asyncio.ensure_future(client.ending()) for client in many]
    await eventually(lambda: sum(one.done() for one in asked) == len(many) - 1, "all but one were replaced")
    (left,) = [client for client, one in zip(many, asked, strict=True) if not one.done()]
    await left.say(STOP)
    ends = [read(messages[-1]).get("reason") for messages, _ in await asyncio.gather(*asked)]
    assert sorted(ends, key=str) == [None] * 19 + ["STOPPED"]


async def test_an_older_one_that_reads_nothing_is_dropped(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.http.websockets, "GOODBYE_SECONDS", 0.2)
    monkeypatch.setattr(tenure.streams.stream, "TELL_SECONDS", 0.2)
    service = await serve(sqlite_database)
    older, start = await service.clients.open()
    older.read_nothing()
    await older.fill(64 * MEBIBYTE)
    newer, _ = await service.clients.attach(start["sessionId"])
    await eventually(lambda: service.instance.streams._places == 1, "the older one has given up its place", 6)
    await talk(newer)


# Whatever the order of the answers


class Ear:
    """A socket that hears, and says nothing."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.heard: list[Message] = []
        self.closed_with: CloseCode | None = None

    async def receive(self) -> Message:
        await self.gone
        raise AssertionError("never")

    async def send(self, message: Message) -> None:
        self.heard.append(message)

    async def close(self, code: CloseCode) -> None:
        self.closed_with = code


async def test_the_higher_number_wins_though_it_came_first(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database)
    session = await service.clients.put()
    first, second = [await service.instance.streams.attach(session["sessionId"]) for _ in range(2)]
    late, current = await _run(service, second), await _run(service, first)
    await eventually(lambda: current.closed_with, "the stream with the lower number is told")
    assert (current.closed_with, late.closed_with) == (CloseCode.REPLACED, None)


async def _run(service: LocalService, attached: Attached) -> Ear:
    ear = Ear()
    running = asyncio.ensure_future(service.instance.streams.run(ear, attached, "{}"))
    running.add_done_callback(lambda _: None)
    await eventually(lambda: ear.heard, "greeted")
    return ear


# On another instance


async def test_tells_the_older_one_on_another_instance(clients: Streaming, clients_elsewhere: Streaming) -> None:
    older, session = await clients.open()
    await talk(older)
    newer, _ = await clients_elsewhere.attach(session["sessionId"])
    began = time.monotonic()
    assert await older.last_words() == ({"type": "replaced"}, 4409)
    assert time.monotonic() - began < WITHIN_SECONDS
    await talk(newer)
    end, _ = await newer.stop()
    assert (end["reason"], end["metrics"]["chunks"]) == ("STOPPED", 2)


async def test_a_client_that_comes_back_elsewhere_before_its_old_socket_is_noticed_dead_keeps_its_session(
    clients: Streaming, clients_elsewhere: Streaming
) -> None:
    older, session = await clients.open()
    await talk(older)
    newer, _ = await clients_elsewhere.attach(session["sessionId"])
    older.vanish()
    await clients.until(session["sessionId"], lambda shown: shown["stream"]["chunks"] == 1)
    await talk(newer)
    assert (await clients.get(session["sessionId"]))["isActive"]
