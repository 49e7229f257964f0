"""Exchanges *figures* between the workers of a process group. A figure is a byte string with a name: for example, the
encoded counters of a worker.

`tenure serve --workers n` runs n processes on one port, and a client cannot choose the process that answers. So a
worker that needs the figures of the whole group asks the other workers, its *siblings*.

Each worker has a slot, from 0 to n - 1, and listens on the Unix socket of its slot. The sockets are in a folder that
the supervisor creates and that only the user of the service can enter. A request is the name of a figure and a line
feed; the answer is the length of the figure in four bytes, and the figure. The code that registers a figure and asks
for it determines its format.

A worker asks all siblings at once, and leaves out those that do not answer within ASK_SECONDS. What can happen to a
sibling:

- A sibling that died or has not started yet: the connection is refused, or breaks.
- A sibling that is paused, or whose event loop is blocked: the kernel accepts the connection, but no answer comes.
- A sibling that was replaced: the new worker takes over the slot and its socket. The figures of its predecessor are
  lost, so every figure counts from the start of its worker.

The supervisor deletes the folder when it stops. If the supervisor dies, its workers stop, each deletes its own socket,
and the last one deletes the folder.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tenure.errors import ConfigurationError

ASK_SECONDS = 1.0
"""The time limit for an answer, and also for the arrival of a request."""
NAME_MAX_BYTES = 64
FIGURE_MAX_BYTES = 1024 * 1024
LENGTH_BYTES = 4
PATH_MAX_BYTES = 99
"""The longest path of the folder. Operating systems limit the length of the path of a socket. The lowest limit is 104
bytes. Besides the folder, the path contains a slash, the slot (up to three digits) and a terminating zero."""

Source = Callable[[], bytes]


def create_folder() -> Path:
    """Create the folder of the sockets, which only this user can enter."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="tenure-"))
    except OSError as error:
        raise ConfigurationError(
            "workers: several workers need a folder for temporary files that can be written; set TMPDIR"
        ) from error
    if len(bytes(folder)) > PATH_MAX_BYTES:
        folder.rmdir()
        raise ConfigurationError(f"workers: the path of TMPDIR must be shorter, so that {folder}/0 can be a socket")
    return folder


def delete_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


class Siblings:
    """This worker's place in its process group. Without a folder, it is the only worker, and there is no socket."""

    def __init__(self, folder: Path | None = None, slot: int = 0, workers: int = 1) -> None:
        self.workers = workers
        self.slot = slot
        self.is_first = slot == 0
        self._own_path = None if folder is None else _socket_path(folder, slot)
        slots = range(workers if folder is not None else 0)
        self._sibling_paths = {
            other: _socket_path(folder, other) for other in slots if folder is not None and other != slot
        }
        self._sources: dict[str, Source] = {}
        self._server: asyncio.Server | None = None

    def register(self, name: str, source: Source) -> None:
        """Add a figure. `source` returns the figure of this worker; it is called for each request, and must be fast."""
        self._sources[name] = source

    async def start(self) -> None:
        if self._own_path is not None:
            self._own_path.unlink(missing_ok=True)  # the socket of a predecessor that died
            self._server = await asyncio.start_unix_server(self._answer, self._own_path, limit=NAME_MAX_BYTES)

    async def stop(self) -> None:
        if self._server is not None and self._own_path is not None:
            self._server.close()
            self._own_path.unlink(missing_ok=True)

    async def ask(self, name: str) -> Sequence[bytes]:
        """Return the figure of this worker, followed by those of the siblings that answered in time."""
        own, *others = (await self.ask_slots(name)).values()
        return [figure for figure in (own, *others) if figure is not None]

    async def ask_slots(self, name: str) -> Mapping[int, bytes | None]:
        """Return the figures by slot, this worker's first; None for a sibling that did not answer in time."""
        answers = await asyncio.gather(*(_ask(path, name) for path in self._sibling_paths.values()))
        return {self.slot: self._sources[name](), **dict(zip(self._sibling_paths, answers, strict=True))}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Ignore a sibling that stops before it gets the answer, and a name that only another version knows.
            with suppress(TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(ASK_SECONDS):
                    source = self._sources.get((await reader.readuntil(b"\n"))[:-1].decode())
                    if source is not None:
                        figure = source()
                        writer.write(len(figure).to_bytes(LENGTH_BYTES) + figure)
                        await writer.drain()
        finally:
            writer.close()


def _socket_path(folder: Path, slot: int) -> Path:
    return folder / str(slot)


async def _ask(path: Path, name: str) -> bytes | None:
    with suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(ASK_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(name.encode() + b"\n")
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                return await reader.readexactly(length) if length <= FIGURE_MAX_BYTES else None
            finally:
                writer.close()
    return None
