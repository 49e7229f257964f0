"""How a recogniser is chosen, what a wrong choice is told, and how vosk fits the protocol."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.transcription import recognizers
from tenure.transcription.recognizers import GRAMMARS, Options, Vosk, check_options, make_recognizer, words_in

DIGITS = str(GRAMMARS / "digits.gram")
TEN = "zero one two three four five six seven eight nine"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "not.gram").write_text("grammar not;")
    return str(tmp_path)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that are installed, of those that recognisers need."""
    installed: set[str] = set()
    monkeypatch.setattr(recognizers, "find_spec", lambda name: object() if name in installed else None)
    return installed


def test_the_default_is_pocketsphinx_and_free_dictation() -> None:
    assert check_options() == Options("tenure.transcription.recognizers:Pocketsphinx", "", "")


def test_digits_is_a_grammar_of_the_package() -> None:
    assert check_options(grammar="digits").grammar == DIGITS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"recognizer": "sphinx"},
            "streams.options.recognizer: must be pocketsphinx, vosk or module:Class, not sphinx",
        ),
        ({"recognizer": "no.such:Thing"}, "streams.options.recognizer: there is no module 'no.such'"),
        ({"recognizer": ":Thing"}, "streams.options.recognizer: there is no module ''"),
        ({"model": "nowhere"}, "streams.options.model: must be a folder, and nowhere is none"),
        ({"grammar": "letters"}, "streams.options.grammar: must be digits or a JSGF file, not letters"),
        ({"grammar": "{folder}/not.gram"}, "streams.options.grammar: {folder}/not.gram does not begin with #JSGF"),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else "",
)
def test_says_what_is_wrong_with_an_option(folder: str, options: dict[str, str], message: str) -> None:
    given = {name: value.replace("{folder}", folder) for name, value in options.items()}
    with pytest.raises(ConfigurationError) as caught:
        check_options(**given)
    assert str(caught.value) == message.replace("{folder}", folder)


@pytest.mark.parametrize(
    ("recognizer", "command"), [("pocketsphinx", "pip install 'tenure[transcription]'"), ("vosk", "pip install vosk")]
)
def test_says_how_to_install_what_is_missing(only: set[str], recognizer: str, command: str) -> None:
    assert only == set()
    with pytest.raises(ConfigurationError) as caught:
        check_options(recognizer=recognizer)
    assert str(caught.value) == f"streams.options.recognizer: {recognizer} is missing: {command}"


def test_vosk_needs_a_model(only: set[str]) -> None:
    only.add("vosk")
    with pytest.raises(ConfigurationError, match=r"streams\.options\.model: vosk brings no model"):
        check_options(recognizer="vosk")


def test_choosing_a_recogniser_does_not_load_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pocketsphinx", raising=False)
    check_options(grammar="digits")
    assert importlib.util.find_spec("pocketsphinx") is not None
    assert "pocketsphinx" not in sys.modules


def test_finds_the_words_of_a_grammar() -> None:
    grammar = """#JSGF V1.0;
    grammar order; // not these words
    public <order> = [please] (/0.7/ bring | /0.3/ fetch {an action}) <thing>+ /* nor these */;
    <thing> = tea | coffee | o'clock-tea | tea;"""
    assert words_in(grammar) == ["please", "bring", "fetch", "tea", "coffee", "o'clock-tea"]


def test_vosk_as_a_stand_in_module_is_given_model_rate_and_words(standing_in_for_vosk: list[Any], folder: str) -> None:
    Vosk(model=folder, grammar=DIGITS)
    assert standing_in_for_vosk == [folder, 16000.0, json.dumps([TEN, "[unk]"])]


def test_vosk_as_a_stand_in_module_takes_dictation_without_a_grammar(
    standing_in_for_vosk: list[Any], folder: str
) -> None:
    Vosk(model=folder, grammar="")
    assert standing_in_for_vosk == [folder, 16000.0]


def test_vosk_as_a_stand_in_module_fits_the_protocol(
    standing_in_for_vosk: list[Any], only: set[str], folder: str
) -> None:
    only.add("vosk")
    recognizer = make_recognizer(check_options(recognizer="vosk", model=folder))
    assert standing_in_for_vosk
    heard = [(recognizer.accept(pcm), recognizer.partial()) for pcm in (b"one ", b"[unk]two", b".", b"three ")]
    assert heard == [([], "one"), ([], "one two"), (["one two"], ""), ([], "three")]
    assert recognizer.finish() == "three"


@pytest.fixture
def standing_in_for_vosk(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A module with vosk's interface, as its version 0.3.45 has it; the list is what its recogniser was made with.

    It hears ASCII, and a full stop as the end of an utterance.
    """
    given: list[Any] = []

    class Model:
        def __init__(
            self, model_path: str | None = None, model_name: str | None = None, lang: str | None = None
        ) -> None:
            del model_name, lang
            given.append(model_path)

    class KaldiRecognizer:
        def __init__(self, _model: Model, rate: float, *grammar: str) -> None:
            given.extend([rate, *grammar])
            self._heard = ""

        def AcceptWaveform(self, data: bytes) -> int:  # noqa: N802
            self._heard += data.decode().replace("[unk]", "[unk] ")
            return int(self._heard.endswith("."))

        def PartialResult(self) -> str:  # noqa: N802
            return json.dumps({"partial": self._heard})

        def Result(self) -> str:  # noqa: N802
            text, self._heard = self._heard.removesuffix("."), ""
            return json.dumps({"text": text})

        FinalResult = Result

    module = ModuleType("vosk")
    vars(module).update(Model=Model, KaldiRecognizer=KaldiRecognizer, SetLogLevel=lambda _level: None)
    monkeypatch.setitem(sys.modules, "vosk", module)
    return given
