"""Runs a receiver: listens, serves connections, and on SIGTERM or SIGINT finishes, tells its totals and ends."""

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from tenure.errors import ConfigurationError
from tenure.receiver.faults import Faults
from tenure.receiver.ledger import Ledger, Totals
from tenure.receiver.messages import HEAD_MAX_BYTES, Unreadable, read_request, rendered, send, text
from tenure.receiver.playing import play
from tenure.receiver.receiver import Receiver
from tenure.receiver.recorder import Recorder

log = structlog.get_logger()

BACKLOG = 2048
IDLE_SECONDS = 75.0
"""How long a connection may take to bring its next request."""
LINGER_SECONDS = 1.0
STOP_SECONDS = 2.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    ledger: Path
    secrets: Sequence[str]
    faults: Faults

    def __repr__(self) -> str:
        return f"Settings(host={self.host!r}, port={self.port!r}, ledger={self.ledger!r})"


def run(settings: Settings) -> Totals:
    """Until it is told to stop; what it has counted by then, since the ledger began."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings))


async def _run(settings: Settings) -> Totals:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = Server(settings)
    address = await server.start()
    log.info("listening", address=address)
    sys.stderr.flush()
    await stop.wait()
    return await server.stop()


class Server:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._recorder = Recorder(Ledger(settings.ledger))
        self._receiver = Receiver(self._recorder, settings.secrets, settings.faults)
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._listening: asyncio.Server

    async def start(self) -> str:
        """Listens, and says where."""
        host, port = self._settings.host, self._settings.port
        try:
            self._listening = await asyncio.start_server(self._serve, host, port, limit=HEAD_MAX_BYTES, backlog=BACKLOG)
        except OSError as error:
            await self._recorder.close()
            reason = error.strerror or "it cannot be found"
            raise ConfigurationError(f"host, port: cannot listen on {host}:{port}: {reason}") from error
        return _address(self._listening.sockets[0])

    async def stop(self) -> Totals:
        """Requests under way get their answers, but for those that are being failed."""
        self._listening.close()
        for task, connection in self._connections.items():
            connection.leave(task)
        if self._connections:
            _, late = await asyncio.wait(list(self._connections), timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return await self._recorder.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it is running
        self._connections[task] = connection = _Connection(self._receiver, reader, writer)
        try:
            # A sender that goes away is no event here.
            with suppress(OSError, asyncio.CancelledError):
                await connection.serve()
        finally:
            del self._connections[task]
            writer.close()


class _Connection:
    """One request after the other."""

    def __init__(self, receiver: Receiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._receiver = receiver
        self._reader = reader
        self._writer = writer
        self._busy = False
        self._leaving = False

    def leave(self, task: asyncio.Task[None]) -> None:
        self._leaving = True
        if not self._busy:
            task.cancel()

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                pass
        except Unreadable as refusal:
            self._receiver.note_unreadable()
            send(self._writer, rendered(text(refusal.status, str(refusal)), keeps_alive=False))
            await self._linger()
        except TimeoutError:
            pass

    async def _serve_one(self) -> bool:
        async with asyncio.timeout(IDLE_SECONDS):
            request = await read_request(self._reader, self._writer)
        if request is None:
            return False
        self._busy = True
        answer, way = await self._receiver.react(request)
        # On leaving, a fault may be cut short: the sender is to get no proper answer anyway.
        self._busy = way is None
        request = request._replace(keeps_alive=request.keeps_alive and not self._leaving)
        if way is not None:
            goes_on = await play(way, answer, request, self._writer)
        else:
            goes_on = request.keeps_alive
            send(self._writer, rendered(answer, keeps_alive=goes_on))
        await self._writer.drain()
        self._busy = False
        return goes_on and not self._leaving

    async def _linger(self) -> None:
        """Throws away what still comes: to close at once would reset the connection under a sender that is still
        sending, and take the answer with it.
        """
        self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._reader.read(HEAD_MAX_BYTES):
                    pass


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none for every platform
    except ImportError:
        return None
    return uvloop.Loop
