"""Requests share connections, batches and a database file. A request that fails or waits must not affect the others."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from tenure.domain.sessions import CloseReason
from tenure.store.contract import Store
from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.load import Client, Exchange, clients, open_body, request_bytes, some_keys
from tests.support.locks import holding, locked_file, other_store
from tests.support.open_requests import end_one, open_one, request

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

DELAYED_SECONDS = 3
"""The longest time for which a response may take although another request fails or waits."""
GATHERING_SECONDS = 0.2
"""Time for requests to arrive and form a batch while the file is locked."""


async def test_other_clients_get_responses_after_one_client_sends_garbage(
    sqlite_database: Database, start: Start
) -> None:
    """The client sends two requests and then garbage. The garbage is refused after the two responses."""
    instance = start(sqlite_database.url).wait_until_ready()
    ahead, first, second, *keys = some_keys(33, 0)
    requests = b"".join(request_bytes("PUT", "/sessions", open_body(key, 1)) for key in (first, second))
    async with clients([instance.address], 31) as (busy, *members):
        with locked_file(sqlite_database):
            opening = [asyncio.create_task(busy.open(ahead, 1))]
            await asyncio.sleep(GATHERING_SECONDS)
            reader, writer = await asyncio.open_connection("127.0.0.1", instance.port)
            writer.write(requests + b"GARBAGE\r\n\r\n")
            opening += [asyncio.create_task(member.open(key, 1)) for member, key in zip(members, keys, strict=True)]
            await asyncio.sleep(GATHERING_SECONDS)
        _, unanswered = await asyncio.wait(opening, timeout=DELAYED_SECONDS)
        for task in unanswered:
            task.cancel()
        async with asyncio.timeout(DELAYED_SECONDS):
            statuses = re.findall(rb"HTTP/1.1 (\d+) ", await reader.read())
        writer.close()
    assert len(unanswered) == 0, instance.log()
    assert statuses == [b"201", b"201", b"400"]


async def test_other_clients_get_responses_after_some_clients_disconnect(
    sqlite_database: Database, start: Start
) -> None:
    instance = start(sqlite_database.url).wait_until_ready()
    keys = some_keys(60, 0)
    async with clients([instance.address], 60) as members:
        opening = [asyncio.create_task(member.open(key, 1)) for member, key in zip(members, keys, strict=True)]
        await asyncio.sleep(0.002)
        for member in members[::2]:
            member.close()
        results = await asyncio.gather(*opening)
    assert {one.status for one in results[1::2]} == {201}


async def test_held_row_does_not_fail_other_upgrades_in_batch(postgres_database: Database, start: Start) -> None:
    """Upgrades of many keys share batches, and another transaction holds the session of one key."""
    instance = start(postgres_database.url).wait_until_ready()
    keys = some_keys(30, 0)
    async with clients([instance.address], 30) as members, holding(postgres_database) as holder:
        opened = await asyncio.gather(*(member.open(key, 1) for member, key in zip(members, keys, strict=True)))
        await holder.lock_session(opened[15].answer["sessionId"])
        upgrades = await asyncio.gather(*(member.open(key, 2) for member, key in zip(members, keys, strict=True)))
    assert {one.status for one in (*upgrades[:15], *upgrades[16:])} == {201}
    assert longest(upgrades) < DELAYED_SECONDS


async def test_requests_waiting_for_held_row_leave_connections_for_others(
    postgres_database: Database, start: Start
) -> None:
    instance = start(postgres_database.url).wait_until_ready()
    held, *keys = some_keys(5, 0)
    async with (
        clients([instance.address], 12) as waiting,
        clients([instance.address], 4) as others,
        holding(postgres_database) as holder,
    ):
        session_id = (await waiting[0].open(held, 1)).answer["sessionId"]
        await holder.lock_session(session_id)
        enough = asyncio.Event()
        ending = [asyncio.create_task(_end_until(enough, client, session_id)) for client in waiting]
        # None of these requests waits in the database: each finds the row held and retries.
        await asyncio.sleep(0.1)
        results = [
            await asyncio.gather(*(c.open(key, 1) for c, key in zip(others, keys, strict=True))) for _ in range(3)
        ]
        enough.set()
        await holder.rollback()
        await asyncio.gather(*ending)
    statuses = [one.status for several in results for one in several]
    assert set(statuses) <= {200, 201}, statuses
    assert max(longest(several) for several in results) < 1


async def _end_until(enough: asyncio.Event, client: Client, session_id: str) -> None:
    while not enough.is_set():
        await client.end(("", ""), session_id)


async def test_concurrent_sqlite_writers_are_not_starved(sqlite_database: Database) -> None:
    """Two instances write without a pause. A writer that sleeps too long between two attempts would never get the lock
    of the file.
    """
    enough = asyncio.Event()
    async with other_store(sqlite_database) as other:
        writing = [_write_until(enough, store) for _ in range(8) for store in (sqlite_database.store, other)]
        stop = asyncio.get_running_loop().call_later(3, enough.set)
        writers = await asyncio.gather(*writing)
        stop.cancel()
    assert max(after - before for instants in writers for before, after in pairwise(instants)) < 1


async def _write_until(enough: asyncio.Event, store: Store) -> list[float]:
    """Returns the time before, between and after the writes, in seconds."""
    instants = [time.monotonic()]
    while not enough.is_set():
        one = request()
        await open_one(store, one)
        instants.append(time.monotonic())
        await end_one(store, one.session_id, CloseReason.TERMINATED)
        instants.append(time.monotonic())
    return instants


def longest(exchanges: Sequence[Exchange]) -> float:
    return max(one.seconds for one in exchanges)
