"""Fixtures: the sync and the async client behind one interface, and real instances of the service."""

import asyncio
import inspect
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tenure_client import AsyncClient, Client
from tenure_client.testing import FakeServer
from tests.support.instances import start_tenure

START_SECONDS = 60


def ids(**more: Any) -> dict[str, Any]:
    """Return the arguments of `hold` for a new user and tenant on a new capacity."""
    new = {name: str(uuid.uuid4()) for name in ("user", "tenant", "capacity")}
    return {**new, "kind": 2, **more}


class Kind:
    """Lets a test use the sync and the async client in the same way."""

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async
        self._loop = asyncio.new_event_loop() if is_async else None

    def client(self, *args: Any, **options: Any) -> Any:
        return AsyncClient(*args, **options) if self.is_async else Client(*args, **options)

    def of(self, server: FakeServer, **options: Any) -> Any:
        return server.async_client(**options) if self.is_async else server.client(**options)

    def run(self, value: Any) -> Any:
        """Return the result of a call. With the async client, await it, and collect an async iterator in a list."""
        if self._loop is None:
            return value
        if inspect.isasyncgen(value) or hasattr(value, "__aiter__"):
            return self._loop.run_until_complete(_collected(value))
        return self._loop.run_until_complete(_awaited(value)) if inspect.isawaitable(value) else value

    def all(self, pages: Any) -> list[Any]:
        """Return all items of a sync or async iteration."""
        return self.run(pages) if self.is_async else list(pages)

    @contextmanager
    def entered(self, block: Any) -> Iterator[Any]:
        if self._loop is None:
            with block as value:
                yield value
            return
        value = self._loop.run_until_complete(block.__aenter__())
        try:
            yield value
        except BaseException as error:
            self._loop.run_until_complete(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop.run_until_complete(block.__aexit__(None, None, None))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def _awaited(value: Any) -> Any:
    return await value


async def _collected(values: Any) -> list[Any]:
    return [value async for value in values]


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    made = Kind(is_async=request.param == "async")
    yield made
    made.close()


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


class Service:
    """`tenure serve` in its own process, on its own SQLite file."""

    def __init__(self, folder: Path, *flags: str, port: int = 0, **environment: str) -> None:
        self._folder = folder
        self._flags = flags
        self._environment = environment
        self._port = port
        self.start()

    def start(self) -> None:
        """Start, or start again on the same port after `kill`."""
        self._log_path = self._folder / f"log-{time.monotonic_ns()}"
        database = f"sqlite:///{self._folder / 'tenure.db'}"
        arguments = ["serve", "--port", str(self._port), *self._flags, "--database", database]
        with self._log_path.open("w") as log:
            self.process = start_tenure(arguments, self._folder, log, environment=self._environment)
        self.url = self._address()
        self._port = urlsplit(self.url).port or 0
        self._wait_until_ready()

    def _address(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"http://[\d.]+:\d+", self._log_path.read_text()):
                return found.group()
            time.sleep(0.02)
        raise AssertionError(f"did not start:\n{self._log_path.read_text()}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            connection = HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)
            with closing(connection), suppress(OSError):
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.02)
        raise AssertionError(f"not ready:\n{self._log_path.read_text()}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


StartService = Callable[..., Service]


@pytest.fixture
def start_service(tmp_path: Path) -> Iterator[StartService]:
    """A function that starts services. They are killed after the test."""
    running: list[Service] = []

    def start(*flags: str, **environment: str) -> Service:
        folder = tmp_path / str(len(running))
        folder.mkdir()
        running.append(Service(folder, *flags, **environment))
        return running[-1]

    yield start
    for service in running:
        service.kill()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An instance that all tests share. Each test uses its own users and capacities."""
    running = Service(tmp_path_factory.mktemp("service"))
    yield running
    running.kill()


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
