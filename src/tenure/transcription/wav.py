"""The audio in a WAV file. Only one form of it is taken, so that nothing is resampled behind the caller's back."""

import io
import wave

from tenure.errors import FieldError, Invalid

SAMPLE_RATE = 16_000
SAMPLE_BYTES = 2
BYTES_PER_SECOND = SAMPLE_RATE * SAMPLE_BYTES


def read_pcm(content: bytes) -> bytes:
    """The samples of a WAV file; raises `Invalid` for anything but mono PCM of 16 kHz and 16 bits."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            _check(file)
            pcm: bytes = file.readframes(file.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:
        raise _invalid(f"must be a WAV file with PCM samples: {str(error) or 'it is cut off or damaged'}") from error
    return pcm[: len(pcm) // SAMPLE_BYTES * SAMPLE_BYTES]


def _check(file: wave.Wave_read) -> None:
    form = (file.getnchannels(), file.getframerate(), file.getsampwidth())
    if form != (1, SAMPLE_RATE, SAMPLE_BYTES):
        channels, rate, width = form
        raise _invalid(f"must be mono, 16000 Hz and 16 bits, not {channels} channels, {rate} Hz and {8 * width} bits")


def _invalid(message: str) -> Invalid:
    return Invalid(FieldError("body", message))
