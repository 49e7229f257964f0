"""The process in which a recogniser runs: samples come in on stdin, answers go out on stdout.

A message is its length, four bytes, and that many bytes of whole samples; one of no length says that no more will come.
Each is answered by one line of JSON, and so is the start. The end of stdin ends the process: an instance that is killed
leaves none behind. Signals to the whole group do not: what is still to be said is asked for first.
"""

import os
import signal
import struct
import sys
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from tenure.transcription.recognizers import Options, Recognizer, make_recognizer

LENGTH = struct.Struct(">I")
NICENESS = 5
"""Text may be late; a heartbeat of the instance beside it may not."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    is_final: bool
    text: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`failure` says why there will be no others."""

    results: list[Result] = []
    failure: str | None = None


class Transcript:
    """Says a partial only when it changed, and a final after every utterance that anything was said of."""

    def __init__(self, recognizer: Recognizer) -> None:
        self._recognizer = recognizer
        self._partial = ""

    def hear(self, pcm: bytes) -> list[Result]:
        finals = [result for text in self._recognizer.accept(pcm) for result in self._final(text)]
        return [*finals, *self._changed(self._recognizer.partial())]

    def finish(self) -> list[Result]:
        return self._final(self._recognizer.finish())

    def _final(self, text: str) -> list[Result]:
        """Also where a partial turned out to be nothing: it has to be taken back."""
        said = bool(text or self._partial)
        self._partial = ""
        return [Result(is_final=True, text=text)] if said else []

    def _changed(self, partial: str) -> list[Result]:
        if not partial or partial == self._partial:
            return []
        self._partial = partial
        return [Result(is_final=False, text=partial)]


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    with _take_stdout() as answers:
        for answer in _answers(Options(*sys.argv[1:])):
            answers.write(msgspec.json.encode(answer) + b"\n")
            answers.flush()


def _take_stdout() -> BinaryIO:
    """What a library prints must not come between the answers."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _answers(options: Options) -> Iterator[Answer]:
    try:
        transcript = Transcript(make_recognizer(options))
        yield Answer()
        for pcm in _messages():
            yield Answer(transcript.hear(pcm) if pcm else transcript.finish())
    except Exception as error:  # noqa: BLE001 - whatever a library raises, the instance is to know it
        yield Answer(failure=f"{type(error).__name__}: {error}")


def _messages() -> Iterator[bytes]:
    """Up to the one of no length, which is the last."""
    length = LENGTH.size
    while len(header := sys.stdin.buffer.read(LENGTH.size)) == LENGTH.size and length:
        (length,) = LENGTH.unpack(header)
        pcm = sys.stdin.buffer.read(length)
        if len(pcm) == length:
            yield pcm


if __name__ == "__main__":
    main()
