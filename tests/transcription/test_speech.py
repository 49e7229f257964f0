"""What espeak-ng says comes back as text, through the handler and the recogniser of the extra."""

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
SAID = ("four two nine one five", "eight three six zero one two", "two two zero five eight", "six one three nine")
CHUNK_BYTES = 3200


@pytest.fixture(scope="module")
def spoken() -> bytes:
    return b"".join(speak(text) for text in SAID)


async def test_gives_most_digits_back(spoken: bytes) -> None:
    said = " ".join(SAID).split()
    heard = " ".join((await stream(spoken)).texts("final")).split()
    wrong = errors(said, heard)
    assert wrong <= len(said) // 4, f"{wrong} of {len(said)} wrong:\nsaid  {said}\nheard {heard}"


async def test_gives_the_whole_text_of_a_recording(spoken: bytes) -> None:
    assert await transcribe(spoken, grammar="digits") == " ".join((await stream(spoken)).texts("final"))


async def test_takes_dictation_without_a_grammar() -> None:
    """Of all words there are: which it takes for others differs a little from run to run."""
    heard = await transcribe(speak("one two three four five six"))
    assert "three" in heard.split()


async def test_says_an_utterance_final_when_the_speaker_pauses(spoken: bytes) -> None:
    output = Recorder()
    handler = await opened(output)
    await handler.chunk(spoken + PAUSE)
    before_the_end = output.texts("final")
    await handler.finish()
    assert len(before_the_end) == len(SAID), output.sent


async def test_says_the_last_utterance_final_at_the_end() -> None:
    output = await stream(speak("four two nine").removesuffix(PAUSE))
    assert len(output.texts("final")) == 1, output.sent


async def test_says_a_partial_only_when_it_changed(spoken: bytes) -> None:
    sent = (await stream(spoken)).sent
    assert len(sent) > len(SAID)
    assert [(a, b) for a, b in pairwise(sent) if a == b] == []


async def test_silence_says_nothing() -> None:
    assert (await stream(6 * PAUSE)).sent == []


@pytest.mark.parametrize("size", [1, 7, 961, 100_001])
async def test_hears_the_same_however_the_bytes_are_cut(size: int) -> None:
    pcm = speak("four two nine")
    finals = (await stream(pcm, size)).texts("final")
    assert finals == (await stream(pcm)).texts("final") != []


async def test_two_streams_at_once_hear_what_each_hears_alone() -> None:
    recordings = [speak(text) for text in SAID[:2]]
    alone = [(await stream(pcm)).sent for pcm in recordings]
    together = await asyncio.gather(*(stream(pcm) for pcm in recordings))
    assert [output.sent for output in together] == alone
    assert alone[0] != alone[1]


def test_a_speaker_who_never_pauses_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognizers, "UTTERANCE_SECONDS_MAX", 1)
    recognizer = Pocketsphinx(model="", grammar=DIGITS)
    assert len(recognizer.accept(speak("one two three four five six seven eight nine"))) > 1


def test_takes_a_model_from_a_folder(tmp_path: Path) -> None:
    own = Path(pocketsphinx.get_model_path("en-us"))
    (tmp_path / "acoustic").symlink_to(own / "en-us")
    (tmp_path / "words.dict").write_text("four F AO R\nunused F AO R\n")
    (tmp_path / "only.gram").write_text("#JSGF V1.0;\ngrammar only;\npublic <only> = four+;\n")
    recognizer = Pocketsphinx(model=str(tmp_path), grammar=str(tmp_path / "only.gram"))
    assert set(" ".join(recognizer.accept(speak("four four four"))).split()) == {"four"}


def test_takes_dictation_with_the_language_model_of_a_folder(tmp_path: Path) -> None:
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
