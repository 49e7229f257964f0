"""Commands on a pseudo-terminal, as a person sees them."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

SECONDS = 30.0


class Terminal:
    """Runs a `tenure` command whose standard input, output and error are a pseudo-terminal of this size."""

    def __init__(
        self, *arguments: str, columns: int = 100, lines: int = 30, cwd: Path | None = None, **environment: str
    ) -> None:
        self._parent, child = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(child)
        self._child = child
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenure", *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            cwd=cwd,
            env={**_without_size(os.environ), "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        self.shown = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._parent, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resized(self, columns: int, lines: int) -> None:
        """Resizes the terminal, and notifies the command, as a real terminal does."""
        self.resize(columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def read_until(self, text: str, *, after: int = 0) -> str:
        """Waits until the output, from character `after` on, contains the text. Returns all output.

        Fails if the command ends without printing the text, or if the text does not appear within SECONDS.
        """
        deadline = time.monotonic() + SECONDS
        while text not in self.shown[after:] and time.monotonic() < deadline:
            if not self._read(0.05) and self.process.poll() is not None:
                break
        assert text in self.shown[after:], self.shown
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._parent, text.encode())

    def end(self) -> int:
        """Waits for the end of the command, and returns its exit code."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        while self._read(0.05):
            pass
        self.after = termios.tcgetattr(self._child)
        return self.process.wait(1)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._parent], [], [], seconds)
        if not ready:
            return False
        with suppress(OSError):
            self.shown += os.read(self._parent, 65_536).decode(errors="replace").replace("\r\n", "\n")
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(5)
        os.close(self._parent)
        os.close(self._child)


def on_terminal(*arguments: str, columns: int = 100, **environment: str) -> tuple[int, str]:
    """Runs a command on a terminal until the command ends. Returns its exit code and its output."""
    with Terminal(*arguments, columns=columns, **environment) as terminal:
        code = terminal.end()
        return code, terminal.shown


def _without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """Removes COLUMNS and LINES, which would take precedence over the size of the terminal.

    GNU readline, which some libraries load, sets both variables.
    """
    return {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
