"""Options of recognisers, the errors for invalid options, and the adapter to vosk."""

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
    """Pretends that only the packages in this set are installed."""
    installed: set[str] = set()
    monkeypatch.setattr(recognizers, "find_spec", lambda name: object() if name in installed else None)
    return installed


def test_default_options_are_pocketsphinx_without_grammar() -> None:
    assert check_options() == Options("tenure.transcription.recognizers:Pocketsphinx", "", "")


def test_digits_resolves_to_bundled_grammar() -> None:
    assert check_options(grammar="digits").grammar == DIGITS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"recognizer": "sphinx"},
            "streams.options.recognizer: must be pocketsphinx, vosk or module:Class, not sphinx",
        ),
        ({"recognizer": "no.such:Thing"}, "streams.options.recognizer: module 'no.such' was not found"),
        ({"recognizer": ":Thing"}, "streams.options.recognizer: module '' was not found"),
        ({"model": "nowhere"}, "streams.options.model: must be a folder, but nowhere is not one"),
        ({"grammar": "letters"}, "streams.options.grammar: must be digits or a JSGF file, not letters"),
        ({"grammar": "{folder}/not.gram"}, "streams.options.grammar: {folder}/not.gram does not begin with #JSGF"),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else "",
)
def test_invalid_option_raises_configuration_error(folder: str, options: dict[str, str], message: str) -> None:
    given = {name: value.replace("{folder}", folder) for name, value in options.items()}
    with pytest.raises(ConfigurationError) as caught:
        check_options(**given)
    assert str(caught.value) == message.replace("{folder}", folder)


@pytest.mark.parametrize(
    ("recognizer", "command"), [("pocketsphinx", "pip install 'tenure[transcription]'"), ("vosk", "pip install vosk")]
)
def test_missing_package_error_contains_install_command(only: set[str], recognizer: str, command: str) -> None:
    assert only == set()
    with pytest.raises(ConfigurationError) as caught:
        check_options(recognizer=recognizer)
    assert str(caught.value) == f"streams.options.recognizer: {recognizer} is not installed: {command}"


def test_vosk_without_model_raises_configuration_error(only: set[str]) -> None:
    only.add("vosk")
    with pytest.raises(ConfigurationError, match=r"streams\.options\.model: is required for vosk"):
        check_options(recognizer="vosk")


def test_check_options_does_not_import_recognizer_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pocketsphinx", raising=False)
    check_options(grammar="digits")
    assert importlib.util.find_spec("pocketsphinx") is not None
    assert "pocketsphinx" not in sys.modules


def test_words_in_returns_words_of_grammar() -> None:
    grammar = """#JSGF V1.0;
    grammar order; // not these words
    public <order> = [please] (/0.7/ bring | /0.3/ fetch {an action}) <thing>+ /* nor these */;
    <thing> = tea | coffee | o'clock-tea | tea;"""
    assert words_in(grammar) == ["please", "bring", "fetch", "tea", "coffee", "o'clock-tea"]


def test_vosk_adapter_passes_model_rate_and_words_to_library(fake_vosk: list[Any], folder: str) -> None:
    Vosk(model=folder, grammar=DIGITS)
    assert fake_vosk == [folder, 16000.0, json.dumps([TEN, "[unk]"])]


def test_vosk_adapter_passes_no_words_without_grammar(fake_vosk: list[Any], folder: str) -> None:
    Vosk(model=folder, grammar="")
    assert fake_vosk == [folder, 16000.0]


def test_vosk_adapter_implements_recognizer_protocol(fake_vosk: list[Any], only: set[str], folder: str) -> None:
    only.add("vosk")
    recognizer = make_recognizer(check_options(recognizer="vosk", model=folder))
    assert fake_vosk
    results = [(recognizer.accept(pcm), recognizer.partial()) for pcm in (b"one ", b"[unk]two", b".", b"three ")]
    assert results == [([], "one"), ([], "one two"), (["one two"], ""), ([], "three")]
    assert recognizer.finish() == "three"


@pytest.fixture
def fake_vosk(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Installs a module with the interface of vosk 0.3.45. Returns a list, to which the model and the recogniser of the
    module add the arguments that they get.

    The audio of the recogniser is ASCII text, and a full stop ends an utterance.
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
            self._text = ""

        def AcceptWaveform(self, data: bytes) -> int:  # noqa: N802
            self._text += data.decode().replace("[unk]", "[unk] ")
            return int(self._text.endswith("."))

        def PartialResult(self) -> str:  # noqa: N802
            return json.dumps({"partial": self._text})

        def Result(self) -> str:  # noqa: N802
            text, self._text = self._text.removesuffix("."), ""
            return json.dumps({"text": text})

        FinalResult = Result

    module = ModuleType("vosk")
    vars(module).update(Model=Model, KaldiRecognizer=KaldiRecognizer, SetLogLevel=lambda _level: None)
    monkeypatch.setitem(sys.modules, "vosk", module)
    return given
