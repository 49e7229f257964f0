"""Up to a thousand concurrent streams keep their counters apart, and thousands of streams in turn leak nothing."""

import asyncio
import gc
from collections import Counter

import psutil
import pytest

from tenure.server import websocket as websockets
from tests.streams.conftest import ServeLocally
from tests.support.databases import Database
from tests.support.deliveries import poll
from tests.support.instances import RunningInstance
from tests.support.processes import eventually as eventually_in
from tests.support.streams import Client, Json, Streaming, eventually, streaming

pytestmark = pytest.mark.slow

AT_ONCE = {"postgresql": 1000}
AT_ONCE_ELSEWHERE = 300
CYCLES = 4_000
CONCURRENT = 100
WARM_UP = 2_000
MEMORY_TOLERANCE = 5 * 1_048_576
"""How many bytes a process may grow: allocators keep some freed memory, so a small growth does not prove a leak."""
CHUNK = b"x" * 320


async def feed(client: Client, chunks: int) -> None:
    for _ in range(chunks):
        await client.send(CHUNK)
        assert await client.receive() == CHUNK


async def all_closed(clients: Streaming, ids: list[str]) -> list[Json]:
    """Waits until all sessions are closed, and returns those with these ids, in this order."""
    for _ in range(100):
        shown = {session["sessionId"]: session for session in await listed(clients)}
        if all(session["state"] == "closed" for session in shown.values()):
            return [shown[session_id] for session_id in ids]
        await asyncio.sleep(0.2)
    raise AssertionError(f"still open: {Counter(session['state'] for session in shown.values())}")


async def listed(clients: Streaming) -> list[Json]:
    sessions: list[Json] = []
    page: Json = {"nextCursor": None}
    while not sessions or page["nextCursor"] is not None:
        cursor = {} if page["nextCursor"] is None else {"cursor": page["nextCursor"]}
        page = (await clients.http.get("/sessions", params={"limit": 500, **cursor})).json()
        sessions += page["sessions"]
    return sessions


async def test_many_streams_end_correctly_when_half_disconnect(
    start: type[RunningInstance], database: Database
) -> None:
    count = AT_ONCE.get(database.engine, AT_ONCE_ELSEWHERE)
    instance = start(database.url).wait_until_ready()  # type: ignore[call-arg]
    async with streaming(instance.port) as clients:
        opened = [
            await asyncio.gather(*(clients.open() for _ in range(CONCURRENT))) for _ in range(count // CONCURRENT)
        ]
        streams = [each for some in opened for each in some]
        await asyncio.gather(*(feed(client, 1 + number % 3) for number, (client, _) in enumerate(streams)))
        assert (await clients.metrics())["opened"] == count
        stopped, disconnected = streams[0::2], streams[1::2]
        ends = await asyncio.gather(*(client.stop() for client, _ in stopped))
        for client, _ in disconnected:
            client.disconnect()
        assert Counter((end["reason"], code) for end, code in ends) == {("STOPPED", 1000): count // 2}
        sessions = await all_closed(clients, [session["sessionId"] for _, session in streams])
        expected = [("STOPPED", "DISCONNECTED")[number % 2] for number in range(count)]
        assert [session["closeReason"] for session in sessions] == expected
        chunks = [1 + number % 3 for number in range(count)]
        assert [session["stream"]["chunks"] for session in sessions] == chunks
        assert [session["stream"]["messagesSent"] for session in sessions] == chunks
        assert [session["stream"]["audioDurationMs"] for session in sessions] == [10 * each for each in chunks]
        # The instance counts an end only when the database has responded, so the list of sessions may show the end
        # before the metrics do.
        for _ in range(100):
            metrics = await clients.metrics()
            closed = (metrics["closedByReason"]["STOPPED"], metrics["closedByReason"]["DISCONNECTED"])
            if closed == (count // 2, count // 2):
                break
            await asyncio.sleep(0.05)
        assert closed == (count // 2, count // 2)
        assert (metrics["totalChunks"], metrics["totalBytesReceived"]) == (sum(chunks), 320 * sum(chunks))


async def cycle(port: int, number: int) -> None:
    """Opens a stream, sends a message, and stops or disconnects the stream."""
    client = await Client.connect(port, "/sessions/stream")
    await client.open()
    await client.send(CHUNK)
    assert await client.receive() == CHUNK
    if number % 2:
        client.disconnect()
    else:
        assert (await client.stop())[1] == 1000


async def cycles(port: int, count: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await cycle(port, number)

    await asyncio.gather(*(work() for _ in range(CONCURRENT)))


async def test_thousands_of_streams_leak_no_sockets_or_memory(
    start: type[RunningInstance], postgres_database: Database
) -> None:
    instance = start(postgres_database.url).wait_until_ready()  # type: ignore[call-arg]
    process = psutil.Process(instance.process.pid)

    async def settled() -> int:
        await eventually_in(lambda: not established(process), 10, "no connection is left")
        return int(process.memory_info().rss)

    await cycles(instance.port, WARM_UP)
    before = await settled()
    files = open_files(process)
    await cycles(instance.port, CYCLES)
    after = await settled()
    assert after - before < MEMORY_TOLERANCE, f"{(after - before) / 1_048_576:.1f} MiB more than {before} bytes"
    assert open_files(process) <= files
    assert process.num_threads() < 50
    # The connection of a client that disconnects is closed before the end of its session is recorded.
    await poll(lambda: _none_is_open(postgres_database), 10, "all sessions are closed", [instance])
    assert "error" not in instance.log(), instance.log()


async def _none_is_open(database: Database) -> bool:
    return not await database.rows("SELECT 1 FROM sessions WHERE state <> 'closed'")


def open_files(process: psutil.Process) -> int:
    """Returns the number of open files, without Unix sockets. The connections to the database are Unix sockets, and the
    pool opens them on demand, so their number changes.
    """
    return int(process.num_fds()) - len(process.net_connections("unix"))


def established(process: psutil.Process) -> list[object]:
    return [one for one in process.net_connections("tcp") if one.status != psutil.CONN_LISTEN]


async def test_streams_leak_no_tasks_or_objects(sqlite_database: Database, serve: ServeLocally) -> None:
    service = await serve(sqlite_database)
    await cycles(service.clients.port, CONCURRENT)
    await service.settled()
    tasks, sockets = len(asyncio.all_tasks()), len(_sockets())
    await cycles(service.clients.port, 5 * CONCURRENT)
    await service.settled()
    # The sweep runs every second, and its tasks count too while it runs.
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, f"no more than {tasks} tasks are left")
    # The keep-alive loop may still refer to the last stream.
    assert len(_sockets()) <= sockets + 1


def _sockets() -> list[websockets.WebSocketProtocol]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, websockets.WebSocketProtocol)]
