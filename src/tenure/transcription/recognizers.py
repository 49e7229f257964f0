"""What turns samples into words: the protocol, two implementations of it, and how one is chosen.

A recogniser belongs to one stream and runs in a process of its own, so it may compute as long as it likes and keep
state as it likes. Its library is imported where it is made, there and nowhere else.
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
"""An utterance without a pause is ended here: what a decoder keeps grows with it."""


class Recognizer(Protocol):
    """Made with the options `model` and `grammar`, both of which may be empty."""

    def accept(self, pcm: bytes) -> list[str]:
        """Takes whole samples, and gives the texts of the utterances that ended in them."""

    def partial(self) -> str:
        """The text so far of the utterance that is under way, empty if none is."""

    def finish(self) -> str:
        """The text of what is left. Nothing is called after it."""


class Options(msgspec.Struct, frozen=True):
    """A checked choice; `recognizer` is `module:Class`, `grammar` the path of a file."""

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
    """What can be known without loading anything; raises `ConfigurationError`."""
    name = _check_recognizer(recognizer)
    if model and not Path(model).is_dir():
        raise ConfigurationError(f"{OPTIONS}.model: must be a folder, and {model} is none")
    if recognizer == "vosk" and not model:
        raise ConfigurationError(f"{OPTIONS}.model: vosk brings no model, so this must be the folder of one")
    return Options(name, model, _check_grammar(grammar))


def make_recognizer(options: Options) -> Recognizer:
    module, _, name = options.recognizer.partition(":")
    made: Recognizer = getattr(importlib.import_module(module), name)(model=options.model, grammar=options.grammar)
    return made


def _check_recognizer(name: str) -> str:
    if ":" in name:
        return _check_module(name)
    if name not in BUILT_IN:
        raise ConfigurationError(f"{OPTIONS}.recognizer: must be {', '.join(BUILT_IN)} or module:Class, not {name}")
    if find_spec(BUILT_IN[name].package) is None:
        raise ConfigurationError(f"{OPTIONS}.recognizer: {name} is missing: pip install {BUILT_IN[name].install}")
    return BUILT_IN[name].name


def _check_module(name: str) -> str:
    module = name.partition(":")[0]
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ConfigurationError(f"{OPTIONS}.recognizer: there is no module {module!r}")
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


WITH_A_GRAMMAR: Mapping[str, Any] = {"bestpath": False, "wip": 0.01}
"""Of 480 digits spoken by espeak-ng, 90 come back wrong with the library's defaults; 56 without its second pass, which
also takes 2 s after 20 s of speech; and 22 if a word costs more to insert (0.65 by default; at 0.00001 words get lost).
"""


class Pocketsphinx:
    """Ends an utterance where the speaker pauses, as the library's own voice detection hears it.

    `model` is a folder with `acoustic`, `words.dict` and `language.lm.bin`; without it, English as the package has it.
    """

    def __init__(self, *, model: str, grammar: str) -> None:
        import pocketsphinx  # noqa: PLC0415 - an extra

        files = _sphinx_files(model, grammar)
        self._decoder = pocketsphinx.Decoder(loglevel="FATAL", **files, **(WITH_A_GRAMMAR if grammar else {}))
        self._endpointer = pocketsphinx.Endpointer(sample_rate=SAMPLE_RATE)
        self._waiting = bytearray()
        self._heard_bytes = 0

    def accept(self, pcm: bytes) -> list[str]:
        self._waiting += pcm
        size = self._endpointer.frame_bytes
        texts = []
        while len(self._waiting) > size:  # the last frame stays for `finish`: the endpointer takes no empty one
            frame = bytes(self._waiting[:size])
            del self._waiting[:size]
            if self._decode(self._endpointer.process(frame)):
                texts.append(self._end())
        return texts

    def partial(self) -> str:
        return self._text() if self._heard_bytes else ""

    def finish(self) -> str:
        if self._endpointer.in_speech:
            self._decode(self._endpointer.end_stream(bytes(self._waiting)))
        return self._end() if self._heard_bytes else ""

    def _decode(self, speech: bytes | None) -> bool:
        """Whether the utterance is over."""
        if speech:
            if not self._heard_bytes:
                self._decoder.start_utt()
            self._decoder.process_raw(speech)
            self._heard_bytes += len(speech)
        too_long = self._heard_bytes >= UTTERANCE_SECONDS_MAX * BYTES_PER_SECOND
        return self._heard_bytes > 0 and (too_long or not self._endpointer.in_speech)

    def _end(self) -> str:
        self._decoder.end_utt()
        self._heard_bytes = 0
        return self._text()

    def _text(self) -> str:
        heard = self._decoder.hyp()
        return str(heard.hypstr) if heard else ""


def _sphinx_files(model: str, grammar: str) -> dict[str, str]:
    files = {"jsgf": grammar} if grammar else {}
    if model:
        files |= {"hmm": f"{model}/acoustic", "dict": f"{model}/words.dict"}
        if not grammar:
            files["lm"] = f"{model}/language.lm.bin"
    return files


class Vosk:
    """`model` is the folder of a model, `grammar` a JSGF file of which only the words are used, in any order."""

    def __init__(self, *, model: str, grammar: str) -> None:
        import vosk  # noqa: PLC0415 - only where it was asked for

        vosk.SetLogLevel(-1)
        words = (
            [json.dumps([" ".join(words_in(Path(grammar).read_text(encoding="utf-8"))), UNKNOWN])] if grammar else []
        )
        self._recognizer = vosk.KaldiRecognizer(vosk.Model(model_path=model), float(SAMPLE_RATE), *words)

    def accept(self, pcm: bytes) -> list[str]:
        return [_said(self._recognizer.Result())] if self._recognizer.AcceptWaveform(pcm) else []

    def partial(self) -> str:
        return _said(self._recognizer.PartialResult())

    def finish(self) -> str:
        return _said(self._recognizer.FinalResult())


UNKNOWN = "[unk]"
"""What vosk says for a word that its grammar does not have."""


def _said(result: str) -> str:
    answer: dict[str, Any] = json.loads(result)
    text = str(answer.get("text") or answer.get("partial") or "")
    return " ".join(word for word in text.split() if word != UNKNOWN)


def words_in(grammar: str) -> list[str]:
    """The words of a JSGF grammar, each once, without its rules' names, weights, tags and comments."""
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", " ", grammar, flags=re.DOTALL)
    rules = re.findall(r"=([^;]*);", bare)
    words = re.findall(r"[\w'-]+", re.sub(r"<[^>]*>|\{[^}]*\}|/[^/]*/", " ", " ".join(rules)))
    return list(dict.fromkeys(words))
