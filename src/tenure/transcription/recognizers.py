"""Recognisers turn audio samples into text. This module has their protocol, two implementations, and the functions that
check the options and create the chosen recogniser.

A recogniser belongs to one stream and runs in a separate process, so it may block and keep state. The library of a
recogniser is imported only in that process, when the recogniser is created.
"""

import importlib
import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tenure.errors import ConfigurationError
from tenure.transcription.wav import BYTES_PER_SECOND, SAMPLE_RATE

OPTIONS = "streams.options"
GRAMMARS = Path(__file__).parent / "grammars"
UTTERANCE_SECONDS_MAX = 20
"""`Pocketsphinx` divides speech without a pause into utterances of this length: longer ones need more memory."""


class Recognizer(Protocol):
    """A recogniser is created with the options `model` and `grammar`, either of which may be empty."""

    def accept(self, pcm: bytes) -> list[str]:
        """Decode `pcm`, which contains only whole samples. Return the texts of the utterances that ended in it."""

    def partial(self) -> str:
        """Return the text of the current utterance so far, or an empty string if there is no utterance."""

    def finish(self) -> str:
        """Return the text of the utterance that has not ended yet, or an empty string. This is the last call."""


class Options(msgspec.Struct, frozen=True):
    """Validated options. `recognizer` is `module:Class`, `model` a folder or empty, and `grammar` a file or empty."""

    recognizer: str
    model: str
    grammar: str


class _BuiltIn(msgspec.Struct, frozen=True):
    name: str
    package: str
    install: str


BUILT_IN: Mapping[str, _BuiltIn] = {
    "pocketsphinx": _BuiltIn(f"{__name__}:Pocketsphinx", "pocketsphinx", "'tenure[transcription]'"),
    "vosk": _BuiltIn(f"{__name__}:Vosk", "vosk", "vosk"),
}


def check_options(*, recognizer: str = "pocketsphinx", model: str = "", grammar: str = "") -> Options:
    """Validate the options. Raise `ConfigurationError` if one is invalid. Loads no model and no built-in recogniser. If
    `recognizer` is `module:Class`, checks only that the module exists. This check imports the module's parent packages.
    """
    name = _check_recognizer(recognizer)
    if model and not Path(model).is_dir():
        raise ConfigurationError(f"{OPTIONS}.model: must be a folder, but {model} is not one")
    if recognizer == "vosk" and not model:
        raise ConfigurationError(f"{OPTIONS}.model: is required for vosk, and must be the folder of a model")
    return Options(name, model, _check_grammar(grammar))


def make_recognizer(options: Options) -> Recognizer:
    module, _, name = options.recognizer.partition(":")
    factory = getattr(importlib.import_module(module), name)
    recognizer: Recognizer = factory(model=options.model, grammar=options.grammar)
    return recognizer


def _check_recognizer(name: str) -> str:
    if ":" in name:
        return _check_module(name)
    if name not in BUILT_IN:
        raise ConfigurationError(f"{OPTIONS}.recognizer: must be {', '.join(BUILT_IN)} or module:Class, not {name}")
    if find_spec(BUILT_IN[name].package) is None:
        raise ConfigurationError(f"{OPTIONS}.recognizer: {name} is not installed: pip install {BUILT_IN[name].install}")
    return BUILT_IN[name].name


def _check_module(name: str) -> str:
    module = name.partition(":")[0]
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ConfigurationError(f"{OPTIONS}.recognizer: module {module!r} was not found")
    return name


def _check_grammar(grammar: str) -> str:
    if not grammar:
        return ""
    path = GRAMMARS / f"{grammar}.gram"
    if grammar.isidentifier() and path.is_file():
        return str(path)
    if not Path(grammar).is_file():
        known = ", ".join(sorted(known.stem for known in GRAMMARS.glob("*.gram")))
        raise ConfigurationError(f"{OPTIONS}.grammar: must be {known} or a JSGF file, not {grammar}")
    if not Path(grammar).read_bytes().startswith(b"#JSGF"):
        raise ConfigurationError(f"{OPTIONS}.grammar: {grammar} does not begin with #JSGF")
    return grammar


GRAMMAR_SETTINGS: Mapping[str, Any] = {"bestpath": False, "wip": 0.01}
"""The reasons for these settings, measured with 480 digits spoken by espeak-ng:

- With the library's defaults, 90 digits are wrong.
- Without the library's second pass (`bestpath`), 56 digits are wrong. After 20 s of speech, this pass also takes 2 s.
- `wip`, the word insertion penalty, is a factor below 1 on the score of each word: with a smaller factor, fewer words
  are inserted by mistake. With 0.01 instead of the default 0.65 as well, 22 digits are wrong. At 0.00001, words get
  lost.
"""


class Pocketsphinx:
    """Ends an utterance where the library's voice detection finds a pause, or after UTTERANCE_SECONDS_MAX.

    `model` is a folder with `acoustic`, `words.dict` and `language.lm.bin`; by default, the package's English model.
    """

    def __init__(self, *, model: str, grammar: str) -> None:
        import pocketsphinx  # noqa: PLC0415 - an optional dependency

        files = _sphinx_files(model, grammar)
        self._decoder = pocketsphinx.Decoder(loglevel="FATAL", **files, **(GRAMMAR_SETTINGS if grammar else {}))
        self._endpointer = pocketsphinx.Endpointer(sample_rate=SAMPLE_RATE)
        self._buffer = bytearray()
        self._utterance_bytes = 0

    def accept(self, pcm: bytes) -> list[str]:
        self._buffer += pcm
        size = self._endpointer.frame_bytes
        texts = []
        # Keep at least one byte for `finish`, because the endpointer rejects an empty last frame.
        while len(self._buffer) > size:
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            if self._decode(self._endpointer.process(frame)):
                texts.append(self._end())
        return texts

    def partial(self) -> str:
        return self._text() if self._utterance_bytes else ""

    def finish(self) -> str:
        if self._endpointer.in_speech:
            self._decode(self._endpointer.end_stream(bytes(self._buffer)))
        return self._end() if self._utterance_bytes else ""

    def _decode(self, speech: bytes | None) -> bool:
        """Decode speech, and return whether the utterance has ended."""
        if speech:
            if not self._utterance_bytes:
                self._decoder.start_utt()
            self._decoder.process_raw(speech)
            self._utterance_bytes += len(speech)
        too_long = self._utterance_bytes >= UTTERANCE_SECONDS_MAX * BYTES_PER_SECOND
        return self._utterance_bytes > 0 and (too_long or not self._endpointer.in_speech)

    def _end(self) -> str:
        self._decoder.end_utt()
        self._utterance_bytes = 0
        return self._text()

    def _text(self) -> str:
        hypothesis = self._decoder.hyp()
        return str(hypothesis.hypstr) if hypothesis else ""


def _sphinx_files(model: str, grammar: str) -> dict[str, str]:
    files = {"jsgf": grammar} if grammar else {}
    if model:
        files |= {"hmm": f"{model}/acoustic", "dict": f"{model}/words.dict"}
        if not grammar:
            files["lm"] = f"{model}/language.lm.bin"
    return files


class Vosk:
    """`model` is the folder of a model. `grammar` is a JSGF file. Vosk ignores the rules of the grammar: it recognises
    the words of the grammar in any order.
    """

    def __init__(self, *, model: str, grammar: str) -> None:
        import vosk  # noqa: PLC0415 - an optional dependency

        vosk.SetLogLevel(-1)
        words = (
            [json.dumps([" ".join(words_in(Path(grammar).read_text(encoding="utf-8"))), UNKNOWN])] if grammar else []
        )
        self._recognizer = vosk.KaldiRecognizer(vosk.Model(model_path=model), float(SAMPLE_RATE), *words)

    def accept(self, pcm: bytes) -> list[str]:
        return [_text_of(self._recognizer.Result())] if self._recognizer.AcceptWaveform(pcm) else []

    def partial(self) -> str:
        return _text_of(self._recognizer.PartialResult())

    def finish(self) -> str:
        return _text_of(self._recognizer.FinalResult())


UNKNOWN = "[unk]"
"""Vosk returns this for a word that is not in the grammar."""


def _text_of(result: str) -> str:
    content: dict[str, Any] = json.loads(result)
    text = str(content.get("text") or content.get("partial") or "")
    return " ".join(word for word in text.split() if word != UNKNOWN)


def words_in(grammar: str) -> list[str]:
    """Return the distinct words of a JSGF grammar, without rule names, weights, tags and comments."""
    uncommented = re.sub(r"/\*.*?\*/|//[^\n]*", " ", grammar, flags=re.DOTALL)
    rules = re.findall(r"=([^;]*);", uncommented)
    words = re.findall(r"[\w'-]+", re.sub(r"<[^>]*>|\{[^}]*\}|/[^/]*/", " ", " ".join(rules)))
    return list(dict.fromkeys(words))
