"""Runs a receiver: listens, serves connections, and stops on SIGTERM or SIGINT.

When it stops, a receiver answers the requests in progress, aborts faults in progress, and returns its totals.
"""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from tenure.clock import monotonic
from tenure.errors import ConfigurationError
from tenure.receiver.fault_playback import play_fault
from tenure.receiver.faults import Faults, Way
from tenure.receiver.ledger import Ledger, Totals
from tenure.receiver.messages import (
    HEAD_MAX_BYTES,
    Request,
    Response,
    Unreadable,
    read_request,
    render,
    send,
    text_response,
)
from tenure.receiver.receiver import CONTROL, Receiver
from tenure.receiver.recorder import Recorder

log = structlog.get_logger()

BACKLOG = 2048
IDLE_SECONDS = 75.0
"""How long a connection may take to send its next request."""
LINGER_SECONDS = 1.0
STOP_SECONDS = 2.0
"""How long the requests in progress may still take when the receiver stops."""
LOGGED_PER_SECOND = 10
"""The most deliveries that are logged in a second. Under load, a line for every delivery would take more time than the
deliveries themselves."""
LOGGED_PATH_MAX = 100

OnDelivery: TypeAlias = Callable[[Request, Response, Way | None], None]


class ReceiverSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    ledger: Path
    secrets: Sequence[str]
    faults: Faults

    def __repr__(self) -> str:
        # The secrets are left out, because settings may be printed, logged or part of a traceback.
        return f"ReceiverSettings(host={self.host!r}, port={self.port!r}, ledger={self.ledger!r})"


def run(settings: ReceiverSettings) -> Totals:
    """Serve until a signal stops the receiver. Return the totals since the ledger was created."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings))


async def _run(settings: ReceiverSettings) -> Totals:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = Server(settings, DeliveryLog().add)
    address = await server.start()
    log.info("listening", address=address)
    sys.stderr.flush()
    await stop.wait()
    return await server.stop()


class Server:
    """Serves connections. Calls `on_delivery` with each delivery and its result, before the response is sent."""

    def __init__(self, settings: ReceiverSettings, on_delivery: OnDelivery | None = None) -> None:
        self._settings = settings
        self._recorder = Recorder(Ledger(settings.ledger))
        self._receiver = Receiver(self._recorder, settings.secrets, settings.faults)
        self._on_delivery = on_delivery
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._listener: asyncio.Server

    async def start(self) -> str:
        """Listen, and return the address."""
        host, port = self._settings.host, self._settings.port
        try:
            self._listener = await asyncio.start_server(self._serve, host, port, limit=HEAD_MAX_BYTES, backlog=BACKLOG)
        except OSError as error:
            await self._recorder.close()
            raise ConfigurationError(f"host, port: cannot listen on {host}:{port}: {_reason(error)}") from error
        return _address(self._listener.sockets[0])

    async def stop(self) -> Totals:
        """Stop listening, finish the requests in progress, and close the ledger. Faults in progress are aborted."""
        self._listener.close()
        for task, connection in self._connections.items():
            connection.stop(task)
        if self._connections:
            _, late = await asyncio.wait(list(self._connections), timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return await self._recorder.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._connections[task] = connection = _Connection(self._receiver, self._on_delivery, reader, writer)
        try:
            # Log nothing if the sender closes the connection: it may do so at any time.
            with suppress(OSError, asyncio.CancelledError):
                await connection.serve()
        finally:
            del self._connections[task]
            writer.close()


class DeliveryLog:
    """Logs up to LOGGED_PER_SECOND deliveries in a second, with their results. If deliveries were skipped, the next
    line contains their number.
    """

    def __init__(self) -> None:
        self._second = 0
        self._logged = 0
        self._left_out = 0

    def add(self, request: Request, response: Response, fault: Way | None) -> None:
        second = int(monotonic())
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged == LOGGED_PER_SECOND:
            self._left_out += 1
            return
        self._logged += 1
        path = request.path[:LOGGED_PATH_MAX]
        fields: dict[str, str | int] = {"path": path if path.isprintable() else ascii(path), "bytes": len(request.body)}
        if fault is None:
            fields |= {"status": response.status, "result": response.content.decode().strip()}
        else:
            fields["fault"] = str(fault.__struct_config__.tag)
        if self._left_out:
            fields["not_logged_before"] = self._left_out
            self._left_out = 0
        # If the log goes to a pipe whose reader has ended, the receiver must still answer.
        with suppress(OSError):
            log.info("delivery", **fields)


class _Connection:
    """Serves the requests of a connection, one after the other."""

    def __init__(
        self,
        receiver: Receiver,
        on_delivery: OnDelivery | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._receiver = receiver
        self._on_delivery = on_delivery
        self._reader = reader
        self._writer = writer
        self._busy = False
        self._stopping = False

    def stop(self, task: asyncio.Task[None]) -> None:
        """End the connection after the response in progress, or immediately if there is none."""
        self._stopping = True
        if not self._busy:
            task.cancel()

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                pass
        except Unreadable as refusal:
            self._receiver.count_unreadable()
            send(self._writer, render(text_response(refusal.status, str(refusal)), keep_alive=False))
            await self._linger()
        except TimeoutError:
            pass

    async def _serve_one(self) -> bool:
        """Serve the next request, and return whether another one may follow."""
        async with asyncio.timeout(IDLE_SECONDS):
            request = await read_request(self._reader, self._writer)
        if request is None:
            return False
        self._busy = True
        response, fault = await self._receiver.handle(request)
        if self._on_delivery is not None and not request.path.startswith(CONTROL):
            self._on_delivery(request, response, fault)
        # A connection that plays a fault is not busy: `stop` cancels the fault, because some faults never end.
        self._busy = fault is None
        request = request._replace(keep_alive=request.keep_alive and not self._stopping)
        if fault is not None:
            keep_alive = await play_fault(fault, response, request, self._writer)
        else:
            keep_alive = request.keep_alive
            send(self._writer, render(response, keep_alive=keep_alive))
        await self._writer.drain()
        self._busy = False
        return keep_alive and not self._stopping

    async def _linger(self) -> None:
        """Read and discard the rest of the sender's input.

        Closing immediately would reset the connection while the sender is still sending, and lose the response.
        """
        self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._reader.read(HEAD_MAX_BYTES):
                    pass


def _reason(error: OSError) -> str:
    """Return the system's text for the error. The message of asyncio would repeat the address."""
    if error.errno == errno.EADDRINUSE:
        return f"{os.strerror(error.errno)}; choose another port with --port"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or "the host was not found"


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not available on every platform
    except ImportError:
        return None
    return uvloop.Loop
