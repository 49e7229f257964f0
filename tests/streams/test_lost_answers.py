"""A save whose response was lost may have been executed or not. It is retried, and counted once."""

import pytest

import tenure.streams.stream
from tenure.errors import DatabaseUnavailable
from tests.streams.conftest import ServeLocally
from tests.streams.stores import FailingStore
from tests.support.databases import Database
from tests.support.streams import Client

pytestmark = pytest.mark.slow  # keep-alives in real time


def lost() -> Exception:
    return DatabaseUnavailable("the response was lost")


async def talk(client: Client) -> None:
    await client.send("hello")
    assert await client.receive() == "hello"


async def test_keep_alive_with_lost_response_is_counted_once(database: Database, serve: ServeLocally) -> None:
    store = FailingStore(database.another_store())
    clients = (await serve(database, store=store, lease_seconds=5)).clients
    # The response of the first save is lost, whenever the save happens.
    store.errors_after = [lost]
    client, start = await clients.open()
    await talk(client)
    await clients.until(start["sessionId"], lambda session: session["stream"]["chunks"] == 1)
    await talk(client)
    end, _ = await client.stop()
    assert (end["metrics"]["chunks"], end["metrics"]["bytesReceived"]) == (2, 10)
    assert store.saved[0] == store.saved[1]


async def test_last_counts_are_added_once_if_save_or_its_response_is_lost(
    database: Database, serve: ServeLocally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure.streams.stream, "RETRY_SECONDS", 0.1)
    store = FailingStore(database.another_store())
    clients = (await serve(database, store=store)).clients
    for before, after in ((1, 0), (0, 1), (0, 2)):
        client, start = await clients.open()
        await talk(client)
        store.errors_before, store.errors_after = [lost] * before, [lost] * after
        end, code = await client.stop()
        shown = f"{before} saves and {after} responses lost: {end}"
        assert (end["reason"], end["metrics"]["chunks"], code) == ("STOPPED", 1, 1000), shown
        ended = await clients.get(start["sessionId"])
        assert (ended["state"], ended["closeReason"], ended["stream"]["chunks"]) == ("closed", "STOPPED", 1), shown
