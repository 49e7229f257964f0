import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.cli.main import main
from tenure.config import load
from tenure.errors import ConfigurationError

ErrorMessage = Callable[..., str]
Run = Callable[..., int]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, without a `tenure.toml` unless the test writes one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def error_message() -> ErrorMessage:
    """Loads an invalid configuration and returns the message of the error."""

    def load_invalid(*, flags: dict[str, object] | None = None, toml: str | None = None, **environment: str) -> str:
        if toml is not None:
            Path("tenure.toml").write_text(toml, encoding="utf-8")
        with pytest.raises(ConfigurationError) as raised:
            print(load(flags or {}, environment))  # noqa: T201 - shows the loaded configuration if nothing is raised
        return str(raised.value)

    return load_invalid


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process and returns its exit code."""

    def _run(*arguments: str, **environment: str) -> int:
        for name in [name for name in os.environ if name.startswith("TENURE_")]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["tenure", *arguments])
        monkeypatch.setattr("tenure.telemetry.logs.configure_logs", lambda *_level: None)
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return _run
