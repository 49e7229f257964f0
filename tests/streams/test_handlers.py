"""Handlers are loaded by entry point and created per stream."""

from pathlib import Path
from typing import Any

import pytest

from tenure.errors import ConfigurationError
from tenure.streams.handlers import DiscardHandler, EchoHandler, handler_factory

MODULE = """
from tenure.streams.handlers import DiscardHandler

class Recorder(DiscardHandler):
    def __init__(self, folder="here"):
        if folder == "nowhere":
            raise ValueError("there is no such folder")
        self.folder = folder

NOT_CALLABLE = 1
"""
ENTRY_POINTS = """
[tenure.stream_handlers]
recorder = tenure_test_recorder:Recorder
lost = tenure_test_nowhere:Lost
nameless = tenure_test_recorder:Nameless
constant = tenure_test_recorder:NOT_CALLABLE
broken = tenure_test_broken:Broken
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package with valid and invalid handlers, registered by entry point."""
    facts = tmp_path / "tenure_test_recorder-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: tenure-test-recorder\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "tenure_test_recorder.py").write_text(MODULE)
    (tmp_path / "tenure_test_broken.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(("name", "made"), [("echo", EchoHandler), ("discard", DiscardHandler)])
def test_factory_creates_built_in_handler(name: str, made: type) -> None:
    assert isinstance(handler_factory(name, {})(), made)


def test_factory_creates_new_handler_per_stream() -> None:
    make = handler_factory("echo", {})
    assert make() is not make()


@pytest.mark.usefixtures("installed")
def test_factory_loads_entry_point_and_passes_options() -> None:
    made: Any = handler_factory("recorder", {"folder": "there"})()
    assert (type(made).__name__, made.folder) == ("Recorder", "there")


@pytest.mark.usefixtures("installed")
def test_unknown_handler_error_lists_available_handlers() -> None:
    with pytest.raises(ConfigurationError, match=r"^streams\.handler: must be one of .*discard.*echo.*, not nonsense$"):
        handler_factory("nonsense", {})


@pytest.mark.parametrize("name", ["lost", "nameless", "broken"])
@pytest.mark.usefixtures("installed")
def test_unloadable_handler_raises_configuration_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^streams\.handler: {name} cannot be loaded: ."):
        handler_factory(name, {})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("echo", {"loud": "yes"}),
        ("recorder", {"volume": "11"}),
        ("recorder", {"folder": "nowhere"}),
        ("constant", {}),
    ],
)
@pytest.mark.usefixtures("installed")
def test_handler_that_cannot_be_created_with_options_raises_configuration_error(
    name: str, options: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^streams\.options: the handler {name} refuses these options: ."):
        handler_factory(name, options)
