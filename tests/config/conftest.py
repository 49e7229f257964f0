import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.cli.main import main
from tenure.config import load
from tenure.errors import ConfigurationError

Refusal = Callable[..., str]
Run = Callable[..., int]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No `tenure.toml` but the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refusal() -> Refusal:
    """The message by which a start is refused. Variables are given as such, the file as its text."""

    def _refusal(*, flags: dict[str, object] | None = None, toml: str | None = None, **environment: str) -> str:
        if toml is not None:
            Path("tenure.toml").write_text(toml, encoding="utf-8")
        with pytest.raises(ConfigurationError) as refused:
            print(load(flags or {}, environment))  # noqa: T201 - what was loaded although it is wrong
        return str(refused.value)

    return _refusal


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process and returns its exit code."""

    def _run(*arguments: str, **environment: str) -> int:
        for name in [name for name in os.environ if name.startswith("TENURE_")]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["tenure", *arguments])
        monkeypatch.setattr("tenure.cli.main.configure_logs", lambda: None)
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return _run
