"""A stream ends as soon as its instance knows that the session has ended. Messages after the end are not counted.

Except in the last test, the next regular keep-alive of a stream is minutes away, so no stream learns of the end from
its regular keep-alive.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.open_requests import NOON
from tests.support.streams import Client, Json, Streaming, key_of, read, streaming

LONG = {"leaseSeconds": 3600, "idleSeconds": 3600}
"""With these limits, a stream sends a keep-alive every five minutes: once per heartbeat interval, which is a twelfth of
the lease."""
HANDLED = 3
LATE = 50

End = Callable[[Streaming, Json], Awaitable[Any]]


async def talk(client: Client, message: str = "hello") -> None:
    await client.send(message)
    assert await client.receive() == message


async def handle_messages(client: Client) -> None:
    for _ in range(HANDLED):
        await talk(client)


async def delete(clients: Streaming, session: Json) -> None:
    assert (await clients.http.delete(f"/sessions/{session['sessionId']}")).status_code == 200


async def upgrade(clients: Streaming, session: Json) -> None:
    assert (await clients.put(**key_of(session) | {"sessionKind": 3}))["status"] == "upgraded"


async def evict(clients: Streaming, session: Json) -> None:
    await clients.put(capacityId=session["capacityId"])


ENDS: dict[str, End] = {"TERMINATED": delete, "UPGRADED": upgrade, "EVICTED": evict}


async def open_streams(clients: Streaming) -> dict[str, tuple[Client, Json]]:
    """Opens a stream for each close reason in ENDS, and sends HANDLED messages on each stream. The session that will be
    evicted has the only seat of its capacity.
    """
    full = str(uuid4())
    await clients.http.put(f"/capacities/{full}", json={"maxSessions": 1, "whenFull": "evictOldest"})
    opened = {
        reason: await clients.open(**LONG, capacityId=full if reason == "EVICTED" else str(uuid4())) for reason in ENDS
    }
    for client, _ in opened.values():
        await handle_messages(client)
    return opened


async def send_late(client: Client) -> None:
    """Sends messages as a client does before it reads that its session has ended."""
    with suppress(ConnectionError):
        for _ in range(LATE):
            await client.send("late")


async def check_ended(clients: Streaming, client: Client, session: Json, reason: str) -> None:
    messages, code = await client.read_to_end()
    assert len(messages) == 1, f"{reason}: {messages[:-1]} after the end"
    end = read(messages[-1])
    assert (end["type"], end["reason"], end["metrics"]["chunks"], code) == ("session_end", reason, HANDLED, 1000)
    ended = await clients.get(session["sessionId"])
    assert (ended["state"], ended["closeReason"], ended["stream"]) == ("closed", reason, end["metrics"])


@pytest.mark.slow  # starts instances
async def test_stream_handles_and_counts_nothing_after_its_instance_ended_the_session(clients: Streaming) -> None:
    for reason, (client, session) in (await open_streams(clients)).items():
        await ENDS[reason](clients, session)
        await send_late(client)
        await check_ended(clients, client, session, reason)


@pytest.mark.slow  # starts instances
async def test_stream_ends_by_notification_when_another_instance_ends_the_session(
    postgresql_service: Any, postgresql_neighbour: Any
) -> None:
    async with streaming(postgresql_service.port) as clients, streaming(postgresql_neighbour.port) as neighbour:
        for reason, (client, session) in (await open_streams(clients)).items():
            await ENDS[reason](neighbour, session)
            await check_ended(clients, client, session, reason)


@pytest.mark.parametrize("recorded_by", ["heartbeat", "attach"])
async def test_stream_ends_when_its_instance_records_a_lapse(
    database: Database, serve: ServeLocally, recorded_by: str
) -> None:
    """The database's clock jumps by an hour, so the stream itself still expects the deadline in an hour."""
    await database.clock.set(NOON)
    clients = (await serve(database, store=database.store)).clients
    client, session = await clients.open(**LONG)
    await handle_messages(client)
    await clients.until(session["sessionId"], lambda shown: shown["state"] == "active")
    await database.clock.set(NOON + timedelta(hours=1))
    if recorded_by == "heartbeat":
        await clients.http.post(f"/sessions/{session['sessionId']}/heartbeat")
    else:
        await clients.connect(f"/sessions/{session['sessionId']}/stream")
    await check_ended(clients, client, session, "LEASE_EXPIRED")


async def test_stream_checks_its_session_after_the_listening_connection_was_lost(
    postgres_database: Database, serve: ServeLocally
) -> None:
    """Notifications sent while the connection is down never arrive."""
    clients = (await serve(postgres_database)).clients
    client, session = await clients.open(**LONG)
    await handle_messages(client)
    await clients.until(session["sessionId"], lambda shown: shown["stream"]["chunks"] > 0)
    # This ends the session without a notification.
    await postgres_database.execute(
        "UPDATE sessions SET state = 'closed', check_at = NULL, close_reason = 'TERMINATED', closed_at = tenure_now()"
    )
    await postgres_database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    end, code = await client.final_message()
    assert (end["reason"], code) == ("TERMINATED", 1000)


async def send_and_count(client: Client) -> tuple[int, Json]:
    """Sends messages until the session ends. Returns the number of handled messages, and `session_end`."""
    handled = 0
    await client.send("hello")
    while (message := await client.receive()) == "hello":
        handled += 1
        await client.send("hello")
    assert message is not None
    return handled, read(message)


async def check_counters_of_busy_sessions(clients: Streaming, ending: Streaming) -> None:
    """Ends busy sessions at different times, so that messages, saves and ends happen in different orders."""
    busy = [await clients.open(**LONG) for _ in range(10)]
    counting = [asyncio.ensure_future(send_and_count(client)) for client, _ in busy]
    for number, (_, session) in enumerate(busy):
        await asyncio.sleep(0.01 * (number % 5))
        await delete(ending, session)
    for (_, session), (handled, end) in zip(busy, await asyncio.gather(*counting), strict=True):
        ended = await clients.get(session["sessionId"])
        assert (end["reason"], end["metrics"]["chunks"]) == ("TERMINATED", handled)
        assert ended["stream"]["chunks"] == handled


@pytest.mark.slow  # starts instances
async def test_counters_equal_handled_messages_when_busy_sessions_end(clients: Streaming) -> None:
    await check_counters_of_busy_sessions(clients, clients)


@pytest.mark.slow  # starts instances
async def test_counters_equal_handled_messages_when_another_instance_ends_busy_sessions(
    postgresql_service: Any, postgresql_neighbour: Any
) -> None:
    async with streaming(postgresql_service.port) as clients, streaming(postgresql_neighbour.port) as neighbour:
        await check_counters_of_busy_sessions(clients, neighbour)


@pytest.mark.slow  # a keep-alive in real time
async def test_messages_after_an_end_found_by_keep_alive_are_not_counted(
    sqlite_service: Any, sqlite_neighbour: Any
) -> None:
    """SQLite has no notifications: the instance handles messages until its next keep-alive, but does not count the
    messages that arrived after the end.
    """
    async with streaming(sqlite_service.port) as clients, streaming(sqlite_neighbour.port) as neighbour:
        client, session = await clients.open()
        await handle_messages(client)
        # The stream estimates when the session ended. The error is at most SLICE_SECONDS (0.1) plus the duration of a
        # database call, so no message may arrive shortly before or after the end.
        await asyncio.sleep(0.3)
        await delete(neighbour, session)
        await asyncio.sleep(0.3)
        await talk(client, "late")
        while "session_end" not in str(message := await client.receive()):
            await client.send("late")
        assert message is not None
        assert read(message)["metrics"]["chunks"] == HANDLED
        assert (await clients.get(session["sessionId"]))["stream"]["chunks"] == HANDLED
