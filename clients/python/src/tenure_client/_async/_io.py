"""What differs between the async and the sync client. `_sync/_io.py` has the same names, and is also hand-written."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx2
from websockets.asyncio.client import ClientConnection, connect

from tenure_client._core import Options
from tenure_client._lease import Loss

P = TypeVar("P")

Connection = ClientConnection
Http = httpx2.AsyncClient
Fetch = Callable[[str | None], Awaitable[P]]


def make_http(options: Options) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=options.transport, verify=options.verify)


async def sleep(options: Options, seconds: float) -> None:
    if options.clock.manual:
        options.clock.pass_time(seconds)
    else:
        await asyncio.sleep(seconds)


async def finished(future: "Future[bool]") -> bool:
    return await asyncio.wrap_future(future)


def bind(loss: Loss) -> None:
    """Let the running event loop call the callbacks of the loss."""
    loss.deliver_in(asyncio.get_running_loop())


async def open_socket(url: str, **options: Any) -> ClientConnection:
    return await connect(url, **options)


async def receive(socket: ClientConnection, timeout: float | None) -> str | bytes:
    async with asyncio.timeout(timeout):
        return await socket.recv()


async def run_blocking(call: Any, *args: Any) -> Any:
    """Run a call that may wait for the keeper's thread, without blocking the event loop."""
    return await asyncio.to_thread(call, *args)
