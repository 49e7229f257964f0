from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.transcription.handler import TranscriptionHandler
from tests.transcription import stand_ins

MakeHandler = Callable[[type], TranscriptionHandler]


@pytest.fixture
def with_stand_in(monkeypatch: pytest.MonkeyPatch) -> MakeHandler:
    """Returns a function that makes a handler with a stand-in as its recogniser.

    Like every recogniser, the stand-in runs in a separate process. PYTHONPATH lets this process import the stand-in.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    def make(recognizer: type) -> TranscriptionHandler:
        return TranscriptionHandler(recognizer=f"{stand_ins.__name__}:{recognizer.__name__}")

    return make
