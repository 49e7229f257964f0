"""While its socket lives, a session lives: keep-alives, idle limits, and ends that come from elsewhere."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from websockets.frames import Opcode

import tenure.streams.stream
from tenure.errors import DatabaseUnavailable, Overloaded
from tenure.streams.handlers import EchoHandler
from tests.streams.conftest import ServeLocally
from tests.streams.stores import TroubledStore
from tests.support.databases import Database
from tests.support.streams import STOP, Client, Json, Streaming, as_text, eventually, key_of, wish

pytestmark = pytest.mark.slow  # they wait for real leases and limits to run out

KEEP_ALIVE_SECONDS = 1.0
"""Of a lease of five seconds."""
PROMPTLY_SECONDS = 2.0
"""A tick, a transaction, and a machine with other things to do; but long before a lease of five seconds runs out."""


async def talk(client: Client, message: str | bytes = "hello") -> None:
    await client.say(message)
    assert await client.receive() == message


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)) / timedelta(seconds=1)


async def test_renews_the_lease_of_a_silent_client(database: Database, serve: ServeLocally) -> None:
    clients = (await serve(database, lease_seconds=3)).clients
    _, start = await clients.open()
    later = await clients.until(start["sessionId"], lambda session: session["lastHeartbeat"] > start["leaseExpiresAt"])
    assert (later["isActive"], later["lastActivity"], later["state"]) == (True, start["lastActivity"], "created")


async def test_a_message_is_activity(database: Database, serve: ServeLocally) -> None:
    clients = (await serve(database, lease_seconds=3)).clients
    client, start = await clients.open()
    await talk(client)
    active = await clients.until(start["sessionId"], lambda session: session["state"] == "active")
    assert active["lastActivity"] > start["lastActivity"]


async def test_a_stop_at_once_is_no_activity(clients: Streaming) -> None:
    client, start = await clients.open()
    await client.stop()
    over = await clients.get(start["sessionId"])
    assert over["lastActivity"] == start["lastActivity"]


async def test_writes_the_counters_while_the_stream_runs(database: Database, serve: ServeLocally) -> None:
    clients = (await serve(database, lease_seconds=3)).clients
    client, start = await clients.open()
    for _ in range(3):
        await talk(client, b"x" * 3200)
    session = await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 3)
    assert session["stream"] == {
        "bytesReceived": 9600,
        "chunks": 3,
        "messagesSent": 3,
        "partialsSent": 0,
        "finalsSent": 0,
        "errorsSent": 0,
        "audioDurationMs": 300,
    }


async def test_sums_the_counters_of_all_streams(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    for number in (1, 2):
        client, _ = await clients.open()
        await talk(client, b"x" * 32 * number)
        await client.stop()
    metrics = await clients.metrics()
    names = ("totalBytesReceived", "totalChunks", "totalMessagesSent", "totalAudioDurationMs", "totalErrorsSent")
    assert [metrics[name] for name in names] == [96, 2, 2, 3, 0]
    assert metrics["closedByReason"]["STOPPED"] == 2


async def test_adds_up_pieces_of_audio_without_loss(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    client, _ = await clients.open()
    for _ in range(10):
        await talk(client, b"x" * 33)
    end, _ = await client.stop()
    assert end["metrics"]["audioDurationMs"] == 330 // 32


async def test_a_stream_that_is_ending_is_kept_alive_no_more(sqlite_database: Database, serve: ServeLocally) -> None:
    class Finishing(EchoHandler):
        async def finish(self) -> None:
            await asyncio.sleep(1.5)

    store, clients = await troubled(serve, sqlite_database, handler=Finishing, lease_seconds=3)
    client, _ = await clients.open()
    store.may_answer.clear()
    await eventually(lambda: store.saved, "a keep-alive is under way")
    await client.say(STOP)
    asyncio.get_running_loop().call_later(0.2, store.may_answer.set)
    await client.last_words()
    assert [(save.end, save.finished) for save in store.saved] == [(None, False), ("STOPPED", False), (None, True)]


# Idle


async def test_tells_an_idle_client_promptly(database: Database, serve: ServeLocally) -> None:
    clients = (await serve(database, idle_seconds=1)).clients
    asked = time.monotonic()
    client, start = await clients.open()
    began = time.monotonic()
    end, code = await client.last_words()
    told = time.monotonic()
    assert (end["type"], end["reason"], code) == ("session_end", "IDLE_TIMEOUT", 1000)
    assert told - asked > 0.9
    assert told - began < 1 + PROMPTLY_SECONDS
    over = await clients.get(start["sessionId"])
    assert (over["state"], over["closeReason"]) == ("closed", "IDLE_TIMEOUT")
    assert seconds_between(start["lastActivity"], over["sessionEndUtc"]) == 1


async def test_counts_what_an_idle_client_had_said(database: Database, serve: ServeLocally) -> None:
    clients = (await serve(database, idle_seconds=1)).clients
    client, start = await clients.open()
    await talk(client)
    end, _ = await client.last_words()
    over = await clients.get(start["sessionId"])
    assert (end["metrics"]["chunks"], over["stream"]["chunks"]) == (1, 1)


async def test_a_message_shortly_before_the_idle_limit_keeps_the_session(
    database: Database, serve: ServeLocally
) -> None:
    clients = (await serve(database, idle_seconds=4)).clients
    client, start = await clients.open()
    ends_at = datetime.fromisoformat(start["leaseExpiresAt"]).timestamp()
    # Less than the quarter of the limit that lies between two keep-alives, and enough for a busy machine.
    await asyncio.sleep(max(ends_at - time.time() - 0.9, 0))
    await talk(client)
    assert (await clients.until(start["sessionId"], _renewed_since(start)))["isActive"]


async def test_a_message_during_the_last_save_before_the_idle_limit_keeps_the_session(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    store, clients = await troubled(serve, sqlite_database, idle_seconds=3)
    client, start = await clients.open()
    store.may_answer.clear()
    await eventually(lambda: store.saved, "a save is under way")
    await talk(client)
    ends_at = datetime.fromisoformat(start["leaseExpiresAt"]).timestamp()
    # Too late for the next keep-alive; and sooner than a save is given up.
    await asyncio.sleep(ends_at - time.time() - 0.7)
    store.may_answer.set()
    session = await clients.until(start["sessionId"], _renewed_since(start))
    assert session["isActive"], session


def _renewed_since(earlier: Json) -> Callable[[Json], bool]:
    return lambda session: session["lastActivity"] > earlier["lastActivity"]


async def test_frames_without_a_message_do_not_keep_it_from_being_idle(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    clients = (await serve(sqlite_database, idle_seconds=1)).clients
    client, _ = await clients.open()
    pinging = asyncio.ensure_future(_ping_on(client))
    try:
        assert (await client.last_words())[0]["reason"] == "IDLE_TIMEOUT"
    finally:
        pinging.cancel()


async def _ping_on(client: Client) -> None:
    while True:
        await client.send_frame(Opcode.PING, b"")
        await asyncio.sleep(0.1)


# Ended from elsewhere


async def test_tells_that_an_operator_ended_it(clients: Streaming) -> None:
    client, start = await clients.open()
    await clients.http.delete(f"/sessions/{start['sessionId']}")
    assert await _told_in_time(client) == ("TERMINATED", 1000)


async def test_tells_that_it_was_upgraded(clients: Streaming) -> None:
    client, start = await clients.open()
    await clients.put(**key_of(start) | {"sessionKind": 2})
    assert await _told_in_time(client) == ("UPGRADED", 1000)


async def test_tells_that_it_was_evicted(clients: Streaming) -> None:
    capacity = str(uuid4())
    await clients.http.put(f"/capacities/{capacity}", json={"maxSessions": 1, "whenFull": "evictOldest"})
    client, _ = await clients.open(capacityId=capacity)
    await clients.put(capacityId=capacity)
    assert await _told_in_time(client) == ("EVICTED", 1000)


async def test_counts_what_was_said_until_it_was_told(clients: Streaming) -> None:
    client, start = await clients.open()
    await talk(client)
    await clients.http.delete(f"/sessions/{start['sessionId']}")
    await talk(client)
    await client.last_words()
    over = await clients.get(start["sessionId"])
    assert (over["closeReason"], over["stream"]["chunks"]) == ("TERMINATED", 2)


async def _told_in_time(client: Client) -> tuple[Any, int]:
    began = time.monotonic()
    end, code = await client.last_words()
    assert time.monotonic() - began < KEEP_ALIVE_SECONDS + PROMPTLY_SECONDS
    return end["reason"], code


# Trouble


async def troubled(serve: ServeLocally, database: Database, **streams: Any) -> tuple[TroubledStore, Streaming]:
    store = TroubledStore(database.another_store())
    service = await serve(database, store=store, **streams)
    return store, service.clients


def gone() -> Exception:
    return DatabaseUnavailable("away")


async def test_outlives_a_database_that_is_away_for_a_while(sqlite_database: Database, serve: ServeLocally) -> None:
    store, clients = await troubled(serve, sqlite_database, lease_seconds=5)
    client, start = await clients.open()
    store.is_away = gone
    await talk(client)
    await asyncio.sleep(1.5)
    store.is_away = None
    session = await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 1)
    assert (session["isActive"], session["state"]) == (True, "active")
    assert (await client.stop())[0]["metrics"]["chunks"] == 1


async def test_tells_that_the_lease_ran_out_while_the_database_was_away(
    database: Database, serve: ServeLocally
) -> None:
    store, clients = await troubled(serve, database, lease_seconds=1)
    client, start = await clients.open()
    store.is_away = gone
    await clients.until(start["sessionId"], lambda session: not session["isActive"])
    store.is_away = None
    end, code = await client.last_words()
    assert (end["reason"], code) == ("LEASE_EXPIRED", 1000)


@pytest.mark.parametrize("trouble", [Overloaded, RuntimeError])
async def test_goes_on_after_a_keep_alive_that_went_wrong(
    sqlite_database: Database, serve: ServeLocally, trouble: type[Exception]
) -> None:
    store, clients = await troubled(serve, sqlite_database, lease_seconds=10)
    _, start = await clients.open()
    store.before = [lambda: trouble("on purpose")]
    session = await clients.until(
        start["sessionId"], lambda session: session["lastHeartbeat"] > start["lastHeartbeat"], 9
    )
    assert (session["isActive"], store.before) == (True, [])


@pytest.mark.parametrize("trouble", [Overloaded, RuntimeError])
async def test_tries_again_to_write_down_an_end_that_went_wrong(
    sqlite_database: Database, serve: ServeLocally, trouble: type[Exception]
) -> None:
    store, clients = await troubled(serve, sqlite_database)
    client, start = await clients.open()
    store.before = [lambda: trouble("on purpose")]
    end, code = await client.stop()
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.get(start["sessionId"]))["closeReason"] == "STOPPED"


async def test_tells_its_client_even_if_the_end_cannot_be_written(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.streams.stream, "RETRY_SECONDS", 0.1)
    store, clients = await troubled(serve, sqlite_database, lease_seconds=1)
    client, start = await clients.open()
    store.is_away = gone
    end, code = await client.stop()
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.until_closed(start["sessionId"]))["closeReason"] == "LEASE_EXPIRED"


async def test_refuses_a_stream_while_the_database_is_away(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clients = await troubled(serve, sqlite_database)

    async def away(*_: Any) -> Any:
        raise gone()

    monkeypatch.setattr(store, "attach_streams", away, raising=False)
    client = await clients.connect("/sessions/stream")
    await client.say(as_text({"type": "open", **wish()}))
    error, code = await client.last_words()
    assert (error["type"], error["code"], code) == ("error", "DATABASE_UNAVAILABLE", 1013)
