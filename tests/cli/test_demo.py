"""`tenure demo` shows what happens in a temporary installation, and leaves nothing behind."""

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

COMMAND = [sys.executable, "-m", "tenure", "demo"]
SECONDS = 60
CONTROL_C = b"\x03"
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")

pytestmark = pytest.mark.slow


class Terminal:
    """A process on a terminal of its own, and the output of the process."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._written = b""

    @property
    def text(self) -> str:
        return _ESCAPES.sub(b"", self._written).decode(errors="replace")

    @property
    def frame(self) -> str:
        """The screen of the terminal: all output since the cursor last returned to the upper left corner."""
        return _ESCAPES.sub(b"", self._written.rpartition(b"\x1b[H")[2]).decode(errors="replace")

    def wait_for(self, *words: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not all(word in self.text for word in words):
            assert time.monotonic() < deadline, self.text[-3000:]
            assert self._read(), self.text[-3000:]

    def press(self, key: bytes) -> None:
        os.write(self._descriptor, key)

    def wait_for_exit(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        """Reads the available output, and returns whether the process still has the terminal open."""
        if select.select([self._descriptor], [], [], 0.2)[0]:
            try:
                read = os.read(self._descriptor, 65_536)
            except OSError:  # the other end is closed
                return False
            self._written += read
            return bool(read)
        return True


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "TMPDIR": str(folder)}
        os.execv(sys.executable, COMMAND)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
    try:
        yield Terminal(pid, descriptor)
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
        os.close(descriptor)


def test_terminal_shows_events_and_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with terminal(tmp_path) as shown:
        shown.wait_for("opened ", "upgraded ", "lapsed ", "evicted ", "refused ", "billed ", "units: delivered")
        children = psutil.Process(shown.pid).children(recursive=True)
        addresses = set(re.findall(r"http://127\.0\.0\.1:(\d+)/", shown.text))
        assert len(children) >= 1
        assert len(addresses) == 2
        assert len(list(tmp_path.iterdir())) == 1
        assert "Tenure demo" in shown.frame
        assert re.search(r"Studio +\d+ +8 +reject", shown.frame)
        shown.press(CONTROL_C)
        assert shown.wait_for_exit() == 0
    assert shown.text.rstrip().endswith("stopped; no process, file or port is left")
    assert list(tmp_path.iterdir()) == []
    psutil.wait_procs(children, 5)
    assert [process for process in children if process.is_running()] == []
    for port in addresses:
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", int(port))) != 0


def test_demo_prints_lines_to_a_pipe_and_its_service_stops_if_the_demo_is_killed(tmp_path: Path) -> None:
    """The user's own settings in environment variables have no effect on the demo."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TENURE_DATABASE": "postgresql://nobody@127.0.0.1:1/none"}
    done = subprocess.run(
        [*COMMAND, "--seconds", "1.5"], capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^\d\d:\d\d:\d\d  opened +user-\d{3} on Library, kind [12]$", done.stdout, re.MULTILINE)
    assert re.search(r"^console +http://127\.0\.0\.1:\d+/console$", done.stdout, re.MULTILINE)
    assert re.search(r"^API +http://127\.0\.0\.1:\d+/docs$", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []

    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert "opened" in next(line for line in process.stdout if "opened" in line)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, 20)
    assert alive == []
