"""The parts in which the sync client differs from the async one. The same module in `_async` is written by hand too."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx2
from websockets.sync.client import ClientConnection, connect

from tenure_client._core import Options
from tenure_client._lease import Loss

P = TypeVar("P")

Connection = ClientConnection
Http = httpx2.Client
Fetch = Callable[[str | None], P]


def make_http(options: Options) -> httpx2.Client:
    return httpx2.Client(transport=options.transport, verify=options.verify)


def sleep(options: Options, seconds: float) -> None:
    if options.clock.manual:
        options.clock.pass_time(seconds)
    else:
        time.sleep(seconds)


def finished(future: "Future[bool]") -> bool:
    return future.result()


def bind(_loss: Loss) -> None:
    """Nothing: the thread that notices the loss calls the callbacks."""


def open_socket(url: str, **options: Any) -> ClientConnection:
    # Newer versions of the library want the connection to be entered. Leaving it is the same as closing it.
    connection: ClientConnection = connect(url, **options).__enter__()
    return connection


def receive(socket: ClientConnection, timeout: float | None) -> str | bytes:
    return socket.recv(timeout)


def run_blocking(call: Any, *args: Any) -> Any:
    return call(*args)
