"""The stream handler `transcription`. It receives 16 kHz, 16 bit, mono PCM in binary messages, and sends `partial` and
`final` texts.
"""

from collections.abc import Iterator

from tenure.domain.sessions import Session
from tenure.streams.handlers import Message, Output
from tenure.transcription.recognizer_process import MESSAGE_MAX_BYTES, RecognizerProcess
from tenure.transcription.recognizers import check_options
from tenure.transcription.wav import SAMPLE_BYTES
from tenure.transcription.worker import Result


class TranscriptionHandler:
    """Takes the settings in `[streams] options` as arguments."""

    _output: Output

    def __init__(self, **options: str) -> None:
        self._recognizer = RecognizerProcess(check_options(**options))
        self._half_sample = b""

    async def open(self, session: Session, output: Output) -> None:
        del session
        self._output = output
        try:
            await self._recognizer.start()
        except BaseException:
            await self._recognizer.close()
            raise

    async def chunk(self, message: Message) -> None:
        if isinstance(message, str):
            detail = "transcription accepts only binary messages: 16 kHz, 16 bit, mono PCM"
            await self._output.error("UNSUPPORTED", detail)
        else:
            await self._decode(message)

    async def finish(self) -> None:
        try:
            await self._send(await self._recognizer.finish())
        finally:
            await self._recognizer.close()

    async def _decode(self, message: bytes) -> None:
        # A message may end in the middle of a sample. The half sample is kept for the next message.
        samples, self._half_sample = _split_samples(self._half_sample + message)
        for pcm in _messages(samples):
            await self._send(await self._recognizer.decode(pcm))

    async def _send(self, results: list[Result]) -> None:
        for result in results:
            await (self._output.final if result.is_final else self._output.partial)(result.text)


async def transcribe(pcm: bytes, **options: str) -> str:
    """Return the text of a whole recording. Takes the same options as the handler. Like the handler, runs the
    recogniser in a separate process.
    """
    recognizer = RecognizerProcess(check_options(**options))
    try:
        await recognizer.start()
        samples, _ = _split_samples(pcm)
        results = [result for message in _messages(samples) for result in await recognizer.decode(message)]
        results += await recognizer.finish()
    finally:
        await recognizer.close()
    return " ".join(result.text for result in results if result.is_final and result.text)


def _split_samples(pcm: bytes) -> tuple[bytes, bytes]:
    """Split into the whole samples and the remaining bytes."""
    end = len(pcm) // SAMPLE_BYTES * SAMPLE_BYTES
    return pcm[:end], pcm[end:]


def _messages(samples: bytes) -> Iterator[bytes]:
    return (samples[start : start + MESSAGE_MAX_BYTES] for start in range(0, len(samples), MESSAGE_MAX_BYTES))
