"""The state of a session follows its stream."""

from tests.streams.conftest import ServeLocally
from tests.streams.stores import FailingStore
from tests.support.databases import Database
from tests.support.streams import Client, eventually

LONG = {"leaseSeconds": 3600, "idleSeconds": 3600}
"""With these limits, the keep-alive interval is five minutes: a twelfth of the lease. No test runs that long, so a
keep-alive is sent only after the first message, or if the test requests one."""
MORE = 50
"""The number of messages after the first one."""


async def talk(client: Client) -> None:
    await client.send("hello")
    assert await client.receive() == "hello"


async def test_state_is_active_after_first_message_without_a_write_per_message(
    database: Database, serve: ServeLocally
) -> None:
    store = FailingStore(database.another_store())
    clients = (await serve(database, store=store)).clients
    client, session = await clients.open(**LONG)
    assert (await clients.get(session["sessionId"]))["state"] == "created"
    await talk(client)
    active = await clients.until(session["sessionId"], lambda shown: shown["state"] == "active")
    assert (active["stream"]["chunks"], active["lastActivity"] > session["lastActivity"]) == (1, True)
    for _ in range(MORE):
        await talk(client)
    assert len(store.saved) == 1, "only the first message is saved immediately"


async def test_first_message_during_a_save_is_saved_right_after_it(
    sqlite_database: Database, serve: ServeLocally
) -> None:
    store = FailingStore(sqlite_database.another_store())
    service = await serve(sqlite_database, store=store)
    client, session = await service.clients.open(**LONG)
    store.may_answer.clear()
    (stream,) = service.instance.streams._running
    stream.keep_alive()
    await eventually(lambda: store.saved, "a save is in progress")
    await talk(client)
    store.may_answer.set()
    await service.clients.until(session["sessionId"], lambda shown: shown["state"] == "active")
