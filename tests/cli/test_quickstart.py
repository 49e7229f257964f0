"""The commands of `docs/quickstart.md` run, with other ports and shorter usage windows, and the session is billed."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deployment.proxies import free_port, listens

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
SECONDS = 60

pytestmark = pytest.mark.slow


def steps() -> dict[int, str]:
    """Returns the shell commands of each section of the page, by the number of the section."""
    _, *parts = re.split(r"^## (\d)\. .*\n", PAGE, flags=re.MULTILINE)
    sections = dict(zip(map(int, parts[::2]), parts[1::2], strict=True))
    blocks = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return {number: "\n".join(blocks.findall(text)) for number, text in sections.items()}


class Reader:
    """A user who follows the page, on free ports instead of 8080 and 9090."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {"8080": free_port(), "9090": free_port()}
        bin_folder = str(Path(sys.executable).parent)
        self._environment: Mapping[str, str] = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "TENURE_PORT": str(self._ports["8080"]),
            "TENURE_URL": f"http://127.0.0.1:{self._ports['8080']}",
            "TENURE_CONTEXTS": str(folder / "contexts.toml"),
        }

    def _script(self, text: str, session: str) -> list[str]:
        for port, free in self._ports.items():
            text = text.replace(port, str(free))
        # Usage windows of 2 seconds instead of 10 save time, and change nothing else.
        text = text.replace("SESSION", session).replace("interval_seconds = 10", "interval_seconds = 2")
        return ["bash", "-euc", text]

    def run(self, text: str, session: str = "") -> str:
        done = subprocess.run(
            self._script(text, session),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def runs(self, text: str, port: str, log: Path) -> Iterator[None]:
        """Runs commands in the background until the `with` block exits. The last command is a server."""
        with log.open("w") as output:
            # With `exec`, the server replaces the shell, so that the signal of `terminate` reaches the server.
            script = self._script(re.sub(r"^(tenure (?:serve|receiver))", r"exec \1", text, flags=re.MULTILINE), "")
            process = subprocess.Popen(script, cwd=self._folder, env=self._environment, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + SECONDS
            while not listens(self._ports[port]):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(SECONDS)


def test_quickstart_bills_a_session_without_warnings(tmp_path: Path) -> None:
    reader, commands = Reader(tmp_path), steps()
    assert sorted(commands) == [1, 2, 3, 4, 5, 6]
    assert "pip install ." in commands[1]
    service = tmp_path / "service.log"
    with reader.runs(commands[2], "9090", tmp_path / "receiver.log"), reader.runs(commands[3], "8080", service):
        listed = reader.run(commands[4])
        session = re.findall(r"^session +(\S+)$", listed, re.MULTILINE)[0]
        assert re.search(rf"^{session} +created", listed, re.MULTILINE)
        curl, usage = commands[5].split("\n", 1)
        deadline = time.monotonic() + SECONDS
        while not (totals := json.loads(reader.run(curl)))["keys"]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert float(totals["usage"]) > 0
        assert "0190b0a0-0000-7000-8000-000000000012" in reader.run(usage)
        checked = reader.run(commands[6], session)
        assert re.search(r"^fine: \d+ checks, nothing found$", checked, re.MULTILINE)
        assert checked.rstrip().endswith("no faults")
    # The output that the page shows has the same fields as the real output of the receiver.
    (shown,) = re.findall(r'^\{"keys".*\}$', PAGE, re.MULTILINE)
    assert list(json.loads(shown)) == list(totals)
    assert '"level":"warning"' not in service.read_text()
    assert '"level":"error"' not in service.read_text()
