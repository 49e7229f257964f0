"""Reads the audio in a WAV file. Only one format is accepted, because Tenure does not resample audio."""

import io
import wave

from tenure.errors import FieldError, Invalid

SAMPLE_RATE = 16_000
SAMPLE_BYTES = 2
BYTES_PER_SECOND = SAMPLE_RATE * SAMPLE_BYTES


def read_pcm(content: bytes) -> bytes:
    """Return the samples of a WAV file; raise `Invalid` unless it contains mono PCM with 16 kHz and 16 bits."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            _check_format(file)
            pcm: bytes = file.readframes(file.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:
        reason = str(error) or "the file is truncated or damaged"
        raise _invalid(f"must be a WAV file with PCM samples: {reason}") from error
    return pcm[: len(pcm) // SAMPLE_BYTES * SAMPLE_BYTES]


def _check_format(file: wave.Wave_read) -> None:
    channels, rate, width = file.getnchannels(), file.getframerate(), file.getsampwidth()
    if (channels, rate, width) != (1, SAMPLE_RATE, SAMPLE_BYTES):
        raise _invalid(f"must be mono, 16000 Hz and 16 bits, not {channels} channel(s), {rate} Hz and {8 * width} bits")


def _invalid(message: str) -> Invalid:
    return Invalid(FieldError("body", message))
