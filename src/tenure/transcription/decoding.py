"""The instance's side of a recogniser: a process that is asked and answers, one message at a time."""

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
from tenure.transcription.worker import LENGTH, Answer, Result

T = TypeVar("T")

PIECE_BYTES = BYTES_PER_SECOND
"""At most a second of audio in a message, so that texts come while a long one is decoded."""
START_SECONDS_MAX = 60.0
ANSWER_SECONDS_MAX = 60.0
"""For one piece. A recogniser that needs longer will never catch up."""
EXIT_SECONDS_MAX = 1.0
ANSWER_BYTES_MAX = 1_048_576


class RecognizerFailed(TenureError):
    """It cannot be started, does not answer, or has ended."""


class Decoding:
    """A recogniser for one stream. `close` must be called, however it ends; it may be without a `start`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._process: Process | None = None
        self._unanswered = 0
        self._has_failed = False

    async def start(self) -> None:
        """Returns when the model is loaded."""
        # -P: the instance's working folder is no place for modules.
        command = (sys.executable, "-P", "-m", "tenure.transcription.worker", *astuple(self._options))
        self._process = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=ANSWER_BYTES_MAX)
        self._unanswered = 1
        await self._collect(self._process, START_SECONDS_MAX, "load its model")

    async def hear(self, pcm: bytes) -> list[Result]:
        """Takes whole samples, at most `PIECE_BYTES`."""
        return await self._ask(pcm) if pcm else []

    async def finish(self) -> list[Result]:
        """Nothing, if it failed before: whoever called then was told."""
        return [] if self._process is None or self._has_failed else await self._ask(b"")

    async def close(self) -> None:
        """Gives the process a moment to end by itself."""
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

    async def _ask(self, pcm: bytes) -> list[Result]:
        if self._process is None:
            raise RecognizerFailed("the recogniser was not started")
        # Written whole before anything waits: a caller that is cancelled leaves answers behind, but no half message.
        _pipe(self._process.stdin).write(LENGTH.pack(len(pcm)) + pcm)
        self._unanswered += 1
        return await self._collect(self._process, ANSWER_SECONDS_MAX, f"decode {len(pcm)} bytes")

    async def _collect(self, process: Process, seconds: float, what: str) -> list[Result]:
        """All answers that are still to come, those to a call that was cancelled included."""
        results: list[Result] = []
        try:
            async with asyncio.timeout(seconds):
                while self._unanswered:
                    results += await _answer(process)
                    self._unanswered -= 1
        except TimeoutError as error:
            _kill(process)
            self._has_failed = True
            raise RecognizerFailed(f"the recogniser did not {what} within {seconds:g} s") from error
        except RecognizerFailed:
            self._has_failed = True
            raise
        return results


async def _answer(process: Process) -> list[Result]:
    line = await _pipe(process.stdout).readline()
    if not line:
        raise RecognizerFailed(f"the recogniser's process ended with {await process.wait()}")
    answer = msgspec.json.decode(line, type=Answer)
    if answer.failure is not None:
        raise RecognizerFailed(f"the recogniser failed: {answer.failure}")
    return answer.results


def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()


def _pipe(pipe: T | None) -> T:
    """A process has only the pipes it was started with; these have both."""
    if pipe is None:
        raise RecognizerFailed("the recogniser's process has no pipe")
    return pipe
