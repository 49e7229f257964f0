"""The handler recognises synthesised speech with the recogniser of the extra `transcription`."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pocketsphinx
import pytest

from tenure.transcription import recognizers
from tenure.transcription.handler import TranscriptionHandler, transcribe
from tenure.transcription.recognizers import Pocketsphinx
from tests.transcription.outputs import NO_SESSION, Recorder
from tests.transcription.speech import PAUSE, errors, speak

pytestmark = pytest.mark.slow

DIGITS = str(recognizers.GRAMMARS / "digits.gram")
SPOKEN = ("four two nine one five", "eight three six zero one two", "two two zero five eight", "six one three nine")
CHUNK_BYTES = 3200


@pytest.fixture(scope="module")
def spoken() -> bytes:
    return b"".join(speak(text) for text in SPOKEN)


@pytest.fixture(scope="module")
async def streamed(spoken: bytes) -> Recorder:
    return await stream(spoken)


def test_spoken_digits_are_mostly_recognized(streamed: Recorder) -> None:
    words = " ".join(SPOKEN).split()
    recognized = " ".join(streamed.texts("final")).split()
    wrong = errors(words, recognized)
    assert wrong <= len(words) // 4, f"{wrong} of {len(words)} wrong:\nspoken     {words}\nrecognized {recognized}"


async def test_transcribe_returns_same_text_as_stream(spoken: bytes, streamed: Recorder) -> None:
    assert await transcribe(spoken, grammar="digits") == " ".join(streamed.texts("final"))


async def test_dictation_works_without_grammar() -> None:
    """Without a grammar, the whole vocabulary is used.

    The recogniser gets different words wrong in different runs, so the test expects only one of the spoken words.
    """
    text = await transcribe(speak("one two three four five six"))
    assert "three" in text.split()


async def test_final_is_sent_when_speaker_pauses(spoken: bytes) -> None:
    output = Recorder()
    handler = await opened(output)
    await handler.chunk(spoken + PAUSE)
    before_finish = output.texts("final")
    await handler.finish()
    assert len(before_finish) == len(SPOKEN), output.sent


async def test_last_utterance_is_final_at_finish() -> None:
    output = await stream(speak("four two nine").removesuffix(PAUSE))
    assert len(output.texts("final")) == 1, output.sent


def test_partial_is_sent_only_when_changed(streamed: Recorder) -> None:
    sent = streamed.sent
    assert len(sent) > len(SPOKEN)
    assert [(a, b) for a, b in pairwise(sent) if a == b] == []


async def test_silence_sends_no_text() -> None:
    assert (await stream(6 * PAUSE)).sent == []


async def test_message_size_does_not_change_recognized_text() -> None:
    pcm = speak("four two")
    finals = (await stream(pcm)).texts("final")
    assert finals
    for size in (7, 961, 100_001):
        assert (await stream(pcm, size)).texts("final") == finals, size


async def test_concurrent_streams_return_same_text_as_separate_streams() -> None:
    recordings = [speak(text) for text in SPOKEN[:2]]
    alone = [(await stream(pcm)).sent for pcm in recordings]
    together = await asyncio.gather(*(stream(pcm) for pcm in recordings))
    assert [output.sent for output in together] == alone
    assert alone[0] != alone[1]


def test_long_utterance_without_pause_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognizers, "UTTERANCE_SECONDS_MAX", 1)
    recognizer = Pocketsphinx(model="", grammar=DIGITS)
    assert len(recognizer.accept(speak("one two three four five six seven eight nine"))) > 1


def test_pocketsphinx_loads_model_from_folder(tmp_path: Path) -> None:
    own = Path(pocketsphinx.get_model_path("en-us"))
    (tmp_path / "acoustic").symlink_to(own / "en-us")
    (tmp_path / "words.dict").write_text("four F AO R\nunused F AO R\n")
    (tmp_path / "only.gram").write_text("#JSGF V1.0;\ngrammar only;\npublic <only> = four+;\n")
    recognizer = Pocketsphinx(model=str(tmp_path), grammar=str(tmp_path / "only.gram"))
    assert set(" ".join(recognizer.accept(speak("four four four"))).split()) == {"four"}


def test_pocketsphinx_loads_language_model_from_folder(tmp_path: Path) -> None:
    own = Path(pocketsphinx.get_model_path("en-us"))
    (tmp_path / "acoustic").symlink_to(own / "en-us")
    (tmp_path / "words.dict").symlink_to(own / "cmudict-en-us.dict")
    (tmp_path / "language.lm.bin").symlink_to(own / "en-us.lm.bin")
    assert Pocketsphinx(model=str(tmp_path), grammar="").accept(speak("four four four")) != []


async def stream(pcm: bytes, size: int = CHUNK_BYTES) -> Recorder:
    output = Recorder()
    handler = await opened(output)
    for start in range(0, len(pcm), size):
        await handler.chunk(pcm[start : start + size])
    await handler.finish()
    return output


async def opened(output: Recorder) -> TranscriptionHandler:
    handler = TranscriptionHandler(grammar="digits")
    await handler.open(NO_SESSION, output)
    return handler
