"""Speech in, texts out: 16 kHz, 16 bit, mono PCM in binary messages of any size, `partial` and `final` back."""

from collections.abc import Iterator

from tenure.model.sessions import Session
from tenure.streams.handlers import Message, Output
from tenure.transcription.decoding import PIECE_BYTES, Decoding
from tenure.transcription.recognizers import check_options
from tenure.transcription.wav import SAMPLE_BYTES
from tenure.transcription.worker import Result


class TranscriptionHandler:
    """The handler `transcription`; its options are those of `[streams] options`."""

    _output: Output

    def __init__(self, **options: str) -> None:
        self._decoding = Decoding(check_options(**options))
        self._odd = b""

    async def open(self, session: Session, output: Output) -> None:
        del session
        self._output = output
        try:
            await self._decoding.start()
        except BaseException:
            await self._decoding.close()
            raise

    async def chunk(self, message: Message) -> None:
        if isinstance(message, str):
            await self._output.error("UNSUPPORTED", "a transcription takes binary messages: 16 kHz, 16 bit, mono PCM")
        else:
            await self._hear(message)

    async def finish(self) -> None:
        try:
            await self._send(await self._decoding.finish())
        finally:
            await self._decoding.close()

    async def _hear(self, message: bytes) -> None:
        whole, self._odd = _whole_samples(self._odd + message)
        for piece in _pieces(whole):
            await self._send(await self._decoding.hear(piece))

    async def _send(self, results: list[Result]) -> None:
        for result in results:
            await (self._output.final if result.is_final else self._output.partial)(result.text)


async def transcribe(pcm: bytes, **options: str) -> str:
    """The text of a whole recording. Takes the options of the handler, and like it a process while it runs."""
    decoding = Decoding(check_options(**options))
    try:
        await decoding.start()
        results = [result for piece in _pieces(_whole_samples(pcm)[0]) for result in await decoding.hear(piece)]
        results += await decoding.finish()
    finally:
        await decoding.close()
    return " ".join(result.text for result in results if result.is_final and result.text)


def _whole_samples(pcm: bytes) -> tuple[bytes, bytes]:
    end = len(pcm) // SAMPLE_BYTES * SAMPLE_BYTES
    return pcm[:end], pcm[end:]


def _pieces(pcm: bytes) -> Iterator[bytes]:
    return (pcm[start : start + PIECE_BYTES] for start in range(0, len(pcm), PIECE_BYTES))
