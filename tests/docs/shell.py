"""Simulates a reader who types the commands of a document. The commands run in a temporary folder, with free ports in
place of the ports of the document.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tenure.cli.main import all_commands
from tenure.config import load
from tests.deployment.proxies import free_port, listens
from tests.docs.blocks import ROOT, Block

PORTS = ("8080", "8081", "9090", "8000")
SECONDS = 60
PRELUDE = 'curl() { command curl -sS --fail-with-body "$@"; }\n'
"""Makes `curl`, and thus the block, fail if the response is an error."""
SERVER = re.compile(r"^(?P<variables>(?:[A-Z_0-9]+=(?:'[^']*'|\S+) )*)tenure (?P<words>(?:serve|receiver|demo)\b.*)$")
DATABASE = re.compile(r"postgresql://[^\s'\"]+")
STOPPED = 124
"""The exit code of `timeout` after it has stopped the command."""


class Reader:
    """Runs blocks of documents, with free ports in place of the documents' ports, and SQLite in place of PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.for_servers: dict[str, str] = {}
        """Environment variables that only the servers get."""
        self._ports = {port: free_port() for port in PORTS}
        self._session: str | None = None
        self._servers: list[subprocess.Popen[bytes]] = []
        for name in ("examples", "clients", "deploy"):
            if not (folder / name).exists():
                (folder / name).symlink_to(ROOT / name)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
            "TENURE_URL": f"http://127.0.0.1:{self._ports['8080']}",
            "TENURE_CONTEXTS": str(folder / "contexts.toml"),
        }

    def at(self, port: str) -> str:
        return self._translated(f"http://127.0.0.1:{port}")

    def run(self, block: Block) -> str:
        """Runs a block of shell commands, without those that start a server, and returns its output."""
        lines = [line for line in _joined(block.text) if not SERVER.match(line)]
        return self.shell("\n".join(lines), block.place, block.seconds)

    def shell(self, text: str, place: str, seconds: float | None = None) -> str:
        """Runs shell commands and returns their output. If `seconds` is given, the commands must not end by themselves:
        they are stopped after this time. `place` names the commands in error messages.
        """
        done = subprocess.run(
            ["timeout", str(seconds or SECONDS), "bash", "-euo", "pipefail", "-c", PRELUDE + self._translated(text)],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        expected = STOPPED if seconds else 0
        assert done.returncode == expected, f"{place}: {done.returncode}\n{text}\n{done.stdout}\n{done.stderr}"
        # A document writes SESSION for the last session id that the reader has seen.
        for shown in re.findall(r'"sessionId": ?"([^"]+)"', done.stdout):
            self._session = shown
        return done.stdout

    def output(self, command: str) -> str:
        """The standard output and error of a command, even if the command fails."""
        done = subprocess.run(
            ["bash", "-c", self._translated(command)],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.stdout

    def python(self, text: str, place: str) -> None:
        done = subprocess.run(
            # Shorter pauses save time, and change nothing else for a reader.
            [sys.executable, "-c", self._translated(text).replace("time.sleep(1)", "time.sleep(0.01)")],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{place}:\n{text}\n{done.stdout}\n{done.stderr}"

    def serve(self, block: Block) -> None:
        """Starts the servers of a block, and waits until each is ready."""
        for line in servers(block):
            self.start(line)

    def start(self, line: str) -> None:
        text = self._translated(line if "--port" in line or " receiver" in line else f"{line} --port 8080")
        port = int(re.findall(r"--port (\d+)", text)[0])
        with (self._folder / f"server-{port}.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-c", re.sub(r"\btenure (serve|receiver)", r"exec tenure \1", text)],
                cwd=self._folder,
                env=self._environment | self.for_servers,
                stdout=log,
                stderr=log,
            )
        self._servers.append(process)
        deadline = time.monotonic() + SECONDS
        while not (is_ready(port) if " serve" in line else listens(port)):
            assert process.poll() is None, f"{line}\n{Path(log.name).read_text()}"
            assert time.monotonic() < deadline, line
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._servers:
            process.send_signal(signal.SIGTERM)
        for process in self._servers:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def _translated(self, text: str) -> str:
        for port, free in self._ports.items():
            text = re.sub(rf"(?<=127\.0\.0\.1:){port}\b|(?<=--port ){port}\b", str(free), text)
        if self._session is not None:
            text = re.sub(r"(?<=/sessions/)SESSION\b", self._session, text)
        return DATABASE.sub("sqlite:///tenure.db", text)


def is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == HTTPStatus.OK
    return False


def servers(block: Block) -> list[str]:
    return [line for line in _joined(block.text) if SERVER.match(line)]


def check_server(line: str, folder: Path) -> None:
    """Parses the flags of a server, and loads its settings, without starting it."""
    found = SERVER.match(line)
    assert found
    name, *arguments = shlex.split(found["words"], comments=True)
    given = all_commands()[name].make_context(name, arguments).params
    if name != "serve":
        return
    flags = {key: value for key, value in given.items() if value is not None and key not in ("config", "version")}
    variables = dict(assignment.split("=", 1) for assignment in shlex.split(found["variables"]))
    config = given.get("config")
    load(_as_text(flags), variables, folder / config if config else None)


def _as_text(flags: dict[str, object]) -> dict[str, str]:
    """Converts flags to text, as `load` expects them, and leaves out switches that are off."""
    shown = {True: "true"}
    return {name: shown.get(value, str(value)) for name, value in flags.items() if value is not False}  # type: ignore[call-overload]


def _joined(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()
