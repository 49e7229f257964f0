"""Runs a recogniser in a separate process: reads samples from stdin and writes replies to stdout.

A message is a four-byte length, followed by that many bytes of whole samples. The last message has length 0. The
process writes one line of JSON when the recogniser is ready, and one in reply to each message.

The process exits when stdin ends, so an instance that is killed leaves no process behind. The process ignores SIGTERM
and SIGINT: these signals may be sent to the instance and its child processes together, and an instance that stops still
needs the last results.
"""

import os
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import msgspec

from tenure.transcription.recognizers import Options, Recognizer, make_recognizer

LENGTH = struct.Struct(">I")
NICENESS = 5
"""Lowers the priority of the process: texts can be late, but the keep-alives and lease renewals of the instance must
not be late."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    is_final: bool
    text: str


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the output. After a reply with a `failure`, the process exits."""

    results: list[Result] = []
    failure: str | None = None


class Transcript:
    """Turns the texts of a recogniser into results.

    A partial result is returned only if its text has changed. A final result is returned for each utterance that has a
    text or had a partial result.
    """

    def __init__(self, recognizer: Recognizer) -> None:
        self._recognizer = recognizer
        self._partial = ""

    def decode(self, pcm: bytes) -> list[Result]:
        finals = [result for text in self._recognizer.accept(pcm) for result in self._final(text)]
        return [*finals, *self._changed(self._recognizer.partial())]

    def finish(self) -> list[Result]:
        return self._final(self._recognizer.finish())

    def _final(self, text: str) -> list[Result]:
        # If an utterance with a partial result ends without a text, an empty final result revokes the partial result.
        is_needed = bool(text or self._partial)
        self._partial = ""
        return [Result(is_final=True, text=text)] if is_needed else []

    def _changed(self, partial: str) -> list[Result]:
        if not partial or partial == self._partial:
            return []
        self._partial = partial
        return [Result(is_final=False, text=partial)]


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    # If the instance was killed, no process reads the replies: exit without a traceback in the log.
    with suppress(BrokenPipeError), _claim_stdout() as output:
        for reply in _replies(Options(*sys.argv[1:])):
            output.write(msgspec.json.encode(reply) + b"\n")
            output.flush()


def _claim_stdout() -> BinaryIO:
    """Redirect stdout to stderr, so that output of a library cannot mix with the replies. Return the real stdout."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def _replies(options: Options) -> Iterator[Reply]:
    try:
        transcript = Transcript(make_recognizer(options))
        yield Reply()
        for pcm in _messages():
            yield Reply(transcript.decode(pcm) if pcm else transcript.finish())
    except Exception as error:  # noqa: BLE001 - a library may raise anything; the instance must get the reason
        yield Reply(failure=f"{type(error).__name__}: {error}")


def _messages() -> Iterator[bytes]:
    """Yield messages up to and including the one of length 0. Stop early at the end of stdin."""
    length = LENGTH.size
    while len(header := sys.stdin.buffer.read(LENGTH.size)) == LENGTH.size and length:
        (length,) = LENGTH.unpack(header)
        pcm = sys.stdin.buffer.read(length)
        if len(pcm) == length:
            yield pcm


if __name__ == "__main__":
    main()
