"""Flags, exit codes, and error messages of one line on stderr."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.config import Config
from tenure.store.contract import Store
from tests.config.conftest import Run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that `tenure serve` was started with."""
    configs: list[Config] = []
    monkeypatch.setattr("tenure.server.workers.serve", configs.append)
    return configs


def test_serve_flags_override_variables(run: Run, served: list[Config]) -> None:
    flags = ["--host", "0.0.0.0", "--port", "81", "--database", "sqlite:///a.db", "--workers", "2", "--prefix", "/api"]
    run("serve", *flags, "--insecure", TENURE_PORT="82", TENURE_PREFIX="/other")
    assert served == [
        Config(host="0.0.0.0", port=81, database="sqlite:///a.db", workers=2, prefix="/api", insecure=True)
    ]


def test_serve_without_flags_uses_file_and_variables(run: Run, served: list[Config], empty_folder: Path) -> None:
    (empty_folder / "other.toml").write_text("port = 81\nworkers = 3\n")
    run("serve", "--config", "other.toml", TENURE_WORKERS="2")
    assert served == [Config(port=81, workers=2)]


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--port", "http", "port (from --port): must be a whole number from 0 to 65535"),
        ("--port", "-1", "port (from --port): must be a whole number from 0 to 65535"),
        ("--port", "\uff18\uff10", "port (from --port): must be a whole number from 0 to 65535"),
        ("--workers", "0", "workers (from --workers): must be a whole number from 1 to 256"),
        ("--config", "nowhere.toml", "config (from --config): nowhere.toml cannot be read: No such file or directory"),
    ],
)
def test_invalid_flag_prints_error_of_its_setting(
    flag: str, value: str, message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run("serve", flag, value)
    assert (code, *capsys.readouterr()) == (2, "", f"tenure: {message}\n")


def test_migrate_accepts_public_host_without_insecure(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def migrate(store: Store, *, dry_run: bool) -> str:
        file = store.describe_file()
        assert file is not None
        return f"{Path(file.path).name} {dry_run}"

    monkeypatch.setattr("tenure.cli.migrate._migrate", migrate)
    code = run("migrate", "--database", "sqlite:///a.db", "--dry-run", TENURE_HOST="0.0.0.0")
    assert (code, capsys.readouterr().out) == (0, "a.db True\n")


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_invalid_setting_stops_start_with_one_line_error(command: str, empty_folder: Path) -> None:
    (empty_folder / "tenure.toml").write_text("[sessions]\nlease_second = 5\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    ended = subprocess.run(
        [sys.executable, "-m", "tenure", command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "tenure: sessions.lease_second (from tenure.toml): unknown setting; did you mean sessions.lease_seconds?\n"
    )
