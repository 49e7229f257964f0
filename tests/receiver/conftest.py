from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tenure.receiver.faults import Faults
from tenure.receiver.server import ReceiverSettings, Server
from tests.support.instances import stop_all
from tests.support.receivers import RunningReceiver

Receive = Callable[..., Awaitable[str]]
Start = Callable[..., RunningReceiver]


@pytest.fixture
async def receive(tmp_path: Path) -> AsyncIterator[Receive]:
    """A function that starts a receiver in this process with the given secrets and faults, and returns its address."""
    servers: list[Server] = []

    async def _receive(*secrets: str, faults: Faults | None = None) -> str:
        settings = ReceiverSettings(
            host="127.0.0.1", port=0, ledger=tmp_path / "ledger.db", secrets=secrets, faults=faults or Faults()
        )
        servers.append(Server(settings))
        return await servers[-1].start()

    yield _receive
    for server in servers:
        await server.stop()


@pytest.fixture
async def address(receive: Receive) -> str:
    """The address of a receiver that checks no signatures."""
    return await receive()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a receiver as a process. All receivers of a test use the same ledger file. They are
    stopped after the test.
    """
    running: list[RunningReceiver] = []

    def _start(*flags: str, port: int = 0) -> RunningReceiver:
        running.append(RunningReceiver(tmp_path, *flags, port=port))
        return running[-1]

    yield _start
    stop_all(running)
