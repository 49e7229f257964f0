"""A stream renews its session: keep-alives, idle limits, and database outages."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from websockets.frames import Opcode

import tenure.streams.stream
from tenure.errors import DatabaseUnavailable, Overloaded
from tenure.streams.handlers import EchoHandler
from tests.streams.conftest import ServeLocally
from tests.streams.stores import FailingStore
from tests.support.databases import Database
from tests.support.streams import STOP, Client, Json, Streaming, as_text, eventually, request

pytestmark = pytest.mark.slow  # real leases and limits expire

PROMPTLY_SECONDS = 2.0
"""Long enough for a keep-alive and a transaction on a busy machine, but much shorter than the lease of 60 seconds."""


async def talk(client: Client, message: str | bytes = "hello") -> None:
    await client.send(message)
    assert await client.receive() == message


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)) / timedelta(seconds=1)


async def test_stream_renews_lease_without_activity_and_saves_counters_and_activity(
    database: Database, serve: ServeLocally
) -> None:
    clients = (await serve(database, lease_seconds=2)).clients
    client, start = await clients.open()
    renewed = await clients.until(
        start["sessionId"], lambda session: session["lastHeartbeat"] > start["leaseExpiresAt"]
    )
    assert (renewed["isActive"], renewed["lastActivity"], renewed["state"]) == (True, start["lastActivity"], "created")
    for _ in range(3):
        await talk(client, b"x" * 3200)
    active = await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 3)
    assert (active["state"], active["lastActivity"] > start["lastActivity"]) == ("active", True)
    assert active["stream"] == {
        "bytesReceived": 9600,
        "chunks": 3,
        "messagesSent": 3,
        "partialsSent": 0,
        "finalsSent": 0,
        "errorsSent": 0,
        "audioDurationMs": 300,
    }


async def test_immediate_stop_is_not_activity(clients: Streaming) -> None:
    client, start = await clients.open()
    await client.stop()
    ended = await clients.get(start["sessionId"])
    assert ended["lastActivity"] == start["lastActivity"]


async def test_metrics_sum_counters_of_all_streams(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    for number in (1, 2):
        client, _ = await clients.open()
        await talk(client, b"x" * 32 * number)
        await client.stop()
    metrics = await clients.metrics()
    names = ("totalBytesReceived", "totalChunks", "totalMessagesSent", "totalAudioDurationMs", "totalErrorsSent")
    assert [metrics[name] for name in names] == [96, 2, 2, 3, 0]
    assert metrics["closedByReason"]["STOPPED"] == 2


async def test_audio_duration_sums_fractions_without_loss(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database)).clients
    client, _ = await clients.open()
    for _ in range(10):
        await talk(client, b"x" * 33)
    end, _ = await client.stop()
    assert end["metrics"]["audioDurationMs"] == 330 // 32


async def test_ending_stream_sends_no_more_keep_alives(sqlite_database: Database, serve: ServeLocally) -> None:
    class Finishing(EchoHandler):
        async def finish(self) -> None:
            await asyncio.sleep(1)

    store, clients = await serve_failing(serve, sqlite_database, handler=Finishing, lease_seconds=2)
    client, _ = await clients.open()
    store.may_answer.clear()
    await eventually(lambda: store.saved, "a keep-alive is in progress")
    await client.send(STOP)
    asyncio.get_running_loop().call_later(0.2, store.may_answer.set)
    await client.final_message()
    assert [(save.end, save.finished) for save in store.saved] == [(None, False), ("STOPPED", False), (None, True)]


# Idle


async def test_idle_client_receives_session_end_promptly_with_its_counters(
    database: Database, serve: ServeLocally
) -> None:
    clients = (await serve(database, idle_seconds=1)).clients
    requested = time.monotonic()
    client, start = await clients.open()
    began = time.monotonic()
    talking, talking_start = await clients.open()
    await talk(talking)
    end, code = await client.final_message()
    received = time.monotonic()
    assert (end["type"], end["reason"], code) == ("session_end", "IDLE_TIMEOUT", 1000)
    assert received - requested > 0.9
    assert received - began < 1 + PROMPTLY_SECONDS
    ended = await clients.get(start["sessionId"])
    assert (ended["state"], ended["closeReason"]) == ("closed", "IDLE_TIMEOUT")
    assert seconds_between(start["lastActivity"], ended["sessionEndUtc"]) == 1
    end, _ = await talking.final_message()
    ended = await clients.get(talking_start["sessionId"])
    assert (end["reason"], end["metrics"]["chunks"], ended["stream"]["chunks"]) == ("IDLE_TIMEOUT", 1, 1)


async def test_message_shortly_before_idle_limit_keeps_session_alive(database: Database, serve: ServeLocally) -> None:
    clients = (await serve(database, idle_seconds=3)).clients
    client, start = await clients.open()
    ends_at = datetime.fromisoformat(start["leaseExpiresAt"]).timestamp()
    # Wait until 0.65 s before the limit: less than a keep-alive interval (0.75 s), but enough for a busy machine.
    await asyncio.sleep(max(ends_at - time.time() - 0.65, 0))
    await talk(client)
    assert (await clients.until(start["sessionId"], _renewed_since(start)))["isActive"]


async def test_message_during_last_keep_alive_before_idle_limit_keeps_session_alive(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    store, clients = await serve_failing(serve, sqlite_database, idle_seconds=3)
    client, start = await clients.open()
    store.may_answer.clear()
    await eventually(lambda: store.saved, "a save is in progress")
    await talk(client)
    ends_at = datetime.fromisoformat(start["leaseExpiresAt"]).timestamp()
    # Wait until the next keep-alive would be due, but not until the save times out.
    await asyncio.sleep(ends_at - time.time() - 0.7)
    store.may_answer.set()
    session = await clients.until(start["sessionId"], _renewed_since(start))
    assert session["isActive"], session


def _renewed_since(earlier: Json) -> Callable[[Json], bool]:
    return lambda session: session["lastActivity"] > earlier["lastActivity"]


async def test_ping_frames_do_not_reset_idle_limit(sqlite_database: Database, serve: ServeLocally) -> None:
    clients = (await serve(sqlite_database, idle_seconds=1)).clients
    client, _ = await clients.open()
    pinging = asyncio.ensure_future(_keep_pinging(client))
    try:
        assert (await client.final_message())[0]["reason"] == "IDLE_TIMEOUT"
    finally:
        pinging.cancel()


async def _keep_pinging(client: Client) -> None:
    while True:
        await client.send_frame(Opcode.PING, b"")
        await asyncio.sleep(0.1)


# Database outages


async def serve_failing(serve: ServeLocally, database: Database, **streams: Any) -> tuple[FailingStore, Streaming]:
    store = FailingStore(database.another_store())
    service = await serve(database, store=store, **streams)
    return store, service.clients


def unavailable() -> Exception:
    return DatabaseUnavailable("on purpose")


async def test_stream_survives_short_database_outage(sqlite_database: Database, serve: ServeLocally) -> None:
    store, clients = await serve_failing(serve, sqlite_database, lease_seconds=5)
    client, start = await clients.open()
    store.unavailable = unavailable
    await talk(client)
    await asyncio.sleep(1.5)
    store.unavailable = None
    session = await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 1)
    assert (session["isActive"], session["state"]) == (True, "active")
    assert (await client.stop())[0]["metrics"]["chunks"] == 1


async def test_client_receives_lease_expired_after_database_outage(database: Database, serve: ServeLocally) -> None:
    store, clients = await serve_failing(serve, database, lease_seconds=1)
    client, start = await clients.open()
    store.unavailable = unavailable
    await clients.until(start["sessionId"], lambda session: not session["isActive"])
    store.unavailable = None
    end, code = await client.final_message()
    assert (end["reason"], code) == ("LEASE_EXPIRED", 1000)


@pytest.mark.parametrize("error", [Overloaded, RuntimeError])
async def test_stream_continues_after_failed_keep_alive(
    sqlite_database: Database, serve: ServeLocally, error: type[Exception]
) -> None:
    store, clients = await serve_failing(serve, sqlite_database, lease_seconds=5)
    _, start = await clients.open()
    store.errors_before = [lambda: error("on purpose")]
    session = await clients.until(
        start["sessionId"], lambda session: session["lastHeartbeat"] > start["lastHeartbeat"], 4
    )
    assert (session["isActive"], store.errors_before) == (True, [])


@pytest.mark.parametrize("error", [Overloaded, RuntimeError])
async def test_failed_save_of_stream_end_is_retried(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(tenure.streams.stream, "RETRY_SECONDS", 0.1)
    store, clients = await serve_failing(serve, sqlite_database)
    client, start = await clients.open()
    store.errors_before = [lambda: error("on purpose")]
    end, code = await client.stop()
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.get(start["sessionId"]))["closeReason"] == "STOPPED"


async def test_client_receives_session_end_when_end_cannot_be_saved(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.streams.stream, "RETRY_SECONDS", 0.1)
    store, clients = await serve_failing(serve, sqlite_database, lease_seconds=1)
    client, start = await clients.open()
    store.unavailable = unavailable
    end, code = await client.stop()
    assert (end["reason"], code) == ("STOPPED", 1000)
    assert (await clients.until_closed(start["sessionId"]))["closeReason"] == "LEASE_EXPIRED"


async def test_open_during_database_outage_is_rejected(
    sqlite_database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clients = await serve_failing(serve, sqlite_database)

    async def attach(*_: Any) -> Any:
        raise unavailable()

    monkeypatch.setattr(store, "attach_streams", attach, raising=False)
    client = await clients.connect("/sessions/stream")
    await client.send(as_text({"type": "open", **request()}))
    error, code = await client.final_message()
    assert (error["type"], error["code"], code) == ("error", "DATABASE_UNAVAILABLE", 1013)
