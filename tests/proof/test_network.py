"""Links of the proof forward data. A link can be cut, and it can swallow, hold back or delay the data."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proof.network import Link, Network

TIMEOUT_SECONDS = 5


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@asynccontextmanager
async def server(network: Network) -> AsyncIterator[tuple[Link, list[bytes]]]:
    """Yields a link to a server that answers `yes`, and the list of what the server received."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            received.append(data)
            writer.write(b"yes")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield network.link("test", ("127.0.0.1", listening.sockets[0].getsockname()[1])), received


async def ask(link: Link, seconds: float = TIMEOUT_SECONDS) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        writer.write(b"hello")
        async with asyncio.timeout(seconds):
            return await reader.read(100)
    finally:
        writer.transport.abort()


async def until_received(received: list[bytes], expected: list[bytes]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while received != expected:  # noqa: ASYNC110 - the server offers no event
            await asyncio.sleep(0.01)


async def test_cut_link_closes_and_refuses_connections_until_it_is_restored(network: Network) -> None:
    async with server(network) as (link, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"hello")
        assert await reader.read(100) == b"yes"
        await asyncio.to_thread(link.cut)
        with pytest.raises(ConnectionError):
            await ask(link)
        with pytest.raises((ConnectionError, EOFError)):
            await reader.readexactly(1)
        writer.close()
        await asyncio.to_thread(link.restore)
        assert await ask(link) == b"yes"


async def test_black_hole_accepts_connections_and_forwards_nothing(network: Network) -> None:
    async with server(network) as (link, received):
        link.swallow()
        with pytest.raises(TimeoutError):
            await ask(link, 0.1)
        assert received == []
        await asyncio.to_thread(link.restore)
        assert await ask(link) == b"yes"


async def test_black_hole_that_resumes_keeps_connections_and_loses_data(network: Network) -> None:
    async with server(network) as (link, received):
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        link.swallow()
        writer.write(b"lost")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(100)
        link.resume()
        writer.write(b"hello")
        assert await reader.read(100) == b"yes"
        assert received == [b"hello"]
        writer.close()


async def test_link_forwards_to_unix_socket(network: Network, tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        writer.close()

    path = str(tmp_path / "socket")
    async with await asyncio.start_unix_server(serve, path):
        assert await ask(network.link("test", path)) == b"hello"


async def test_stalled_link_delivers_data_after_its_sender_gave_up(network: Network) -> None:
    async with server(network) as (link, received):
        assert await ask(link) == b"yes"
        link.stall()
        with pytest.raises(TimeoutError):
            await ask(link, 0.1)
        assert received == [b"hello"]
        await asyncio.to_thread(link.restore)
        await until_received(received, [b"hello", b"hello"])


async def test_slow_link_delays_each_direction(network: Network) -> None:
    async with server(network) as (link, _):
        link.slow(0.1)
        with pytest.raises(TimeoutError):
            await ask(link, 0.15)
        assert await ask(link) == b"yes"
