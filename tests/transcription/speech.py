"""Speech synthesised by espeak-ng, and the number of recognition errors."""

import ctypes
import io
import wave
from array import array
from collections.abc import Sequence

import espeakng_loader

from tenure.transcription.wav import SAMPLE_RATE

WORDS_PER_MINUTE = 140
PAUSE = bytes(SAMPLE_RATE)
"""Half a second of silence."""

_SYNCHRONOUS, _UTF8, _RATE_PARAMETER = 2, 1, 1
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def speak(text: str, voice: str = "en-us") -> bytes:
    """Returns 16 kHz, 16 bit, mono PCM, which begins and ends with a pause."""
    samples_bytes = bytearray()

    @_Callback
    def keep(samples: "ctypes._Pointer[ctypes.c_short]", count: int, _events: object) -> int:
        if count:
            samples_bytes.extend(ctypes.string_at(samples, 2 * count))
        return 0

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    library.espeak_SetSynthCallback(keep)
    assert library.espeak_SetVoiceByName(voice.encode()) == 0, voice
    library.espeak_SetParameter(_RATE_PARAMETER, WORDS_PER_MINUTE, 0)
    content = text.encode()
    assert library.espeak_Synth(content, len(content) + 1, 0, 1, 0, _UTF8, None, None) == 0
    library.espeak_Terminate()
    return PAUSE + _resampled(array("h", bytes(samples_bytes)), rate) + PAUSE


def _resampled(samples: "array[int]", rate: int) -> bytes:
    """Interpolates linearly, without a filter: the speech of espeak-ng has little energy above 8 kHz."""
    made = array("h")
    for number in range((len(samples) - 1) * SAMPLE_RATE // rate):
        before, part = divmod(number * rate, SAMPLE_RATE)
        step = samples[before + 1] - samples[before]
        made.append(samples[before] + step * part // SAMPLE_RATE)
    return made.tobytes()


def wav(pcm: bytes, *, channels: int = 1, rate: int = SAMPLE_RATE, width: int = 2) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setframerate(rate)
        file.setsampwidth(width)
        file.writeframes(pcm)
    return content.getvalue()


def errors(spoken: Sequence[str], recognized: Sequence[str]) -> int:
    """The number of words to insert, delete or replace to turn `spoken` into `recognized`."""
    row = list(range(len(recognized) + 1))
    for number, word in enumerate(spoken, start=1):
        before, row[0] = row[0], number
        for column, other in enumerate(recognized, start=1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (word != other))
    return row[-1]
