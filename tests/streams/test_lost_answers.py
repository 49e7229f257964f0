"""A save whose answer was lost may have been carried out or not. It is sent again, and counts once."""

import pytest

from tenure.errors import DatabaseUnavailable
from tests.streams.conftest import ServeLocally
from tests.streams.stores import TroubledStore
from tests.support.databases import Database
from tests.support.streams import Client

pytestmark = pytest.mark.slow  # they wait for real leases and limits to run out


def lost() -> Exception:
    return DatabaseUnavailable("the answer was lost")


async def talk(client: Client) -> None:
    await client.say("hello")
    assert await client.receive() == "hello"


async def test_of_a_keep_alive_counts_once(database: Database, serve: ServeLocally) -> None:
    store = TroubledStore(database.another_store())
    clients = (await serve(database, store=store, lease_seconds=5)).clients
    # Of the first, whenever that is.
    store.after = [lost]
    client, start = await clients.open()
    await talk(client)
    await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 1)
    await talk(client)
    end, _ = await client.stop()
    assert (end["metrics"]["chunks"], end["metrics"]["bytesReceived"]) == (2, 10)
    assert store.saved[0] == store.saved[1]


@pytest.mark.parametrize("answers_lost", [1, 2])
async def test_of_an_end_counts_once_and_keeps_its_instant(
    database: Database, serve: ServeLocally, answers_lost: int
) -> None:
    store = TroubledStore(database.another_store())
    clients = (await serve(database, store=store)).clients
    client, start = await clients.open()
    await talk(client)
    store.after = [lost] * answers_lost
    end, code = await client.stop()
    assert (end["reason"], end["metrics"]["chunks"], code) == ("STOPPED", 1, 1000)
    over = await clients.get(start["sessionId"])
    assert (over["state"], over["closeReason"], over["stream"]["chunks"]) == ("closed", "STOPPED", 1)


async def test_before_it_was_carried_out_is_made_good(database: Database, serve: ServeLocally) -> None:
    store = TroubledStore(database.another_store())
    clients = (await serve(database, store=store)).clients
    client, _ = await clients.open()
    await talk(client)
    store.before = [lost]
    end, _ = await client.stop()
    assert end["metrics"]["chunks"] == 1
