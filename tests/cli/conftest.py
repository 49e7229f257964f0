import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tenure.cli.main import main
from tenure.store.retries import Retries


class Result(NamedTuple):
    code: int
    out: str
    err: str


Tenure = Callable[..., Result]
BOUND_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the time limit of database operations. If the machine pauses for two seconds, commands must not fail."""
    monkeypatch.setattr(Retries.run, "__defaults__", (BOUND_SECONDS,))


@pytest.fixture(autouse=True)
def _no_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps commands from using the contexts of the person who runs the tests."""
    monkeypatch.setenv("TENURE_CONTEXTS", str(tmp_path / "contexts.toml"))


@pytest.fixture
def tenure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tenure:
    """Returns a function that runs a command in this process, which is faster than a new process. Asynchronous tests
    call the function in a thread.
    """

    def run(*arguments: str) -> Result:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["tenure", *arguments])
        monkeypatch.setattr("tenure.telemetry.logs.configure_logs", lambda *_level: None)
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run
