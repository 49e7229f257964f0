"""Starts the process of a recogniser and exchanges messages with it, one at a time. `worker.py` is the other side."""

import asyncio
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec.structs import astuple

from tenure.errors import TenureError
from tenure.transcription.recognizers import Options
from tenure.transcription.wav import BYTES_PER_SECOND
from tenure.transcription.worker import LENGTH, Reply, Result

T = TypeVar("T")

MESSAGE_MAX_BYTES = BYTES_PER_SECOND
"""At most one second of audio per message, so that texts arrive while a long recording is still being decoded."""
START_SECONDS_MAX = 60.0
REPLY_SECONDS_MAX = 60.0
"""The time limit for the reply to one message, including the replies that are still due after calls that were
cancelled. A recogniser that needs longer cannot keep up with speech."""
EXIT_SECONDS_MAX = 1.0
REPLY_MAX_BYTES = 1_048_576


class RecognizerFailed(TenureError):
    """The recogniser could not be started, raised an error, did not reply in time, or exited."""


class RecognizerProcess:
    """A recogniser for one stream. The caller must call `close` after `start`, even if `start` has raised."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._process: Process | None = None
        self._replies_due = 0
        self._has_failed = False

    async def start(self) -> None:
        """Return when the model is loaded."""
        # -P: do not import modules from the working directory of the instance.
        command = (sys.executable, "-P", "-m", "tenure.transcription.worker", *astuple(self._options))
        self._process = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=REPLY_MAX_BYTES)
        self._replies_due = 1
        await self._read_replies(self._process, START_SECONDS_MAX, "load its model")

    async def decode(self, pcm: bytes) -> list[Result]:
        """Decode whole samples, at most `MESSAGE_MAX_BYTES`."""
        return await self._request(pcm) if pcm else []

    async def finish(self) -> list[Result]:
        """Return the remaining results; empty if the recogniser was not started or has failed."""
        return [] if self._process is None or self._has_failed else await self._request(b"")

    async def close(self) -> None:
        """Wait up to EXIT_SECONDS_MAX for the process to exit. If the process is still running then, kill it."""
        if self._process is None:
            return
        _pipe(self._process.stdin).close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS_MAX):
                    await self._process.wait()
        finally:
            _kill(self._process)
            await self._process.wait()

    async def _request(self, pcm: bytes) -> list[Result]:
        if self._process is None:
            raise RecognizerFailed("the recogniser was not started")
        # Write without an await: if the caller is cancelled, a reply may stay unread, but every message is complete.
        _pipe(self._process.stdin).write(LENGTH.pack(len(pcm)) + pcm)
        self._replies_due += 1
        return await self._read_replies(self._process, REPLY_SECONDS_MAX, f"decode {len(pcm)} bytes")

    async def _read_replies(self, process: Process, seconds: float, action: str) -> list[Result]:
        """Read all replies that are due, including those to calls that were cancelled."""
        results: list[Result] = []
        try:
            async with asyncio.timeout(seconds):
                while self._replies_due:
                    results += await _read_reply(process)
                    self._replies_due -= 1
        except TimeoutError as error:
            _kill(process)
            self._has_failed = True
            raise RecognizerFailed(f"the recogniser did not {action} within {seconds:g} s") from error
        except RecognizerFailed:
            self._has_failed = True
            raise
        return results


async def _read_reply(process: Process) -> list[Result]:
    line = await _pipe(process.stdout).readline()
    if not line:
        raise RecognizerFailed(f"the process of the recogniser exited with {await process.wait()}")
    reply = msgspec.json.decode(line, type=Reply)
    if reply.failure is not None:
        raise RecognizerFailed(f"the recogniser failed: {reply.failure}")
    return reply.results


def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()


def _pipe(pipe: T | None) -> T:
    """Narrow the type: a process that was started with pipes has them."""
    if pipe is None:
        raise RecognizerFailed("the process of the recogniser has no pipe")
    return pipe
