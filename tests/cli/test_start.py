"""Commands start fast because they import only what they need. If the port is in use, the error says what to do."""

import os
import socket
import subprocess
import sys

import pytest

from tenure.errors import ConfigurationError
from tenure.server.process import bind

HEAVY = ("sqlalchemy", "alembic", "asyncpg", "structlog", "uvicorn", "rich", "joserfc", "tenure.store", "tenure.server")


def imported_by(*arguments: str) -> set[str]:
    """The modules that a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tenure", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "TENURE_URL": "http://127.0.0.1:9"},
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("arguments", [["--help"], ["sessions", "list"], ["usage", "--csv"], ["contexts", "list"]])
def test_command_imports_neither_server_nor_database(arguments: list[str]) -> None:
    imported = imported_by(*arguments)
    assert "tenure.cli.main" in imported
    assert [name for name in HEAVY if name in imported] == []


def test_help_imports_no_command_and_no_client() -> None:
    imported = imported_by("--help")
    assert [name for name in ("tenure_client", "httpx2", "tenure.cli.sessions") if name in imported] == []


def test_error_for_port_in_use_names_flag_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError) as refused:
            bind("127.0.0.1", port)
    reason = "Address already in use; choose another port with --port"
    assert str(refused.value) == f"host, port: cannot listen on 127.0.0.1:{port}: {reason}"
