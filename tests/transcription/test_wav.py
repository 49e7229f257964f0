"""WAV files that are accepted, and the errors for all other files."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import Invalid
from tenure.transcription.wav import read_pcm
from tests.transcription.speech import wav

PCM = bytes(range(100))


def test_read_pcm_returns_samples() -> None:
    assert read_pcm(wav(PCM)) == PCM


def test_read_pcm_accepts_file_shorter_than_its_header_states() -> None:
    assert read_pcm(wav(PCM)[:-3]) == PCM[:-4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wav(PCM, channels=2), "must be mono, 16000 Hz and 16 bits, not 2 channel(s), 16000 Hz and 16 bits"),
        (wav(PCM, rate=22050), "must be mono, 16000 Hz and 16 bits, not 1 channel(s), 22050 Hz and 16 bits"),
        (wav(PCM, width=1), "must be mono, 16000 Hz and 16 bits, not 1 channel(s), 16000 Hz and 8 bits"),
        (wav(PCM).replace(b"\x01\x00", b"\x03\x00", 1), "must be a WAV file with PCM samples: unknown format: 3"),
        (b"ID3 not a WAV file", "must be a WAV file with PCM samples: file does not start with RIFF id"),
        (b"", "must be a WAV file with PCM samples: the file is truncated or damaged"),
    ],
    ids=["stereo", "22050 Hz", "8 bits", "floats", "no WAV", "empty"],
)
def test_unsupported_wav_raises_invalid_body(content: bytes, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_pcm(content)
    assert [(error.field, error.message) for error in caught.value.errors] == [("body", message)]


@given(st.integers(0, 60), st.integers(0, 43), st.binary(min_size=1, max_size=4))
def test_damaged_file_is_read_or_raises_invalid(length: int, place: int, damage: bytes) -> None:
    content = wav(PCM)[:length]
    with suppress(Invalid):
        read_pcm(content[:place] + damage + content[place + len(damage) :])
