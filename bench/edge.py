"""What attacks on the edge cost an instance: the memory that it takes, and how long another client waits meanwhile.

Each attack runs against a new instance on SQLite. Meanwhile, a well-behaved client, the neighbour, sends up to ten
requests per second, each on a new connection. For each attack, the output shows how much the memory of the instance
grew at its peak, and the slowest answer that the neighbour got. `--attack` runs one attack only. To measure another
version of Tenure, set PYTHONPATH to its `src`.
"""

import argparse
import base64
import contextlib
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil

from bench import service

MEBIBYTE = 1 << 20
NEIGHBOUR_SECONDS = 0.1
NEIGHBOUR_TIMEOUT_SECONDS = 5.0
SEND_TIMEOUT_SECONDS = 5.0
HALF_REQUESTS = 21_000
"""The number of requests of which only the beginning of the head is sent."""
ATTACKERS = 3
HANDSHAKE = (
    b"GET /sessions/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(b"0123456789abcdef") + b"\r\n\r\n"
)
EMPTY_PING = b"\x89\x80\x00\x00\x00\x00"
FULL_PING = b"\x89\xfd\x00\x00\x00\x00" + b"x" * 125


class Watcher(threading.Thread):
    """Sends the requests of the neighbour, and records its slowest response and the peak memory of the instance."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._process = process
        self._stopped = threading.Event()
        self.before = self.peak = process.memory_info().rss
        self.slowest = 0.0
        self.answered = 0
        self.failed = 0

    def run(self) -> None:
        while not self._stopped.wait(NEIGHBOUR_SECONDS):
            began = time.monotonic()
            try:
                with socket.create_connection(("127.0.0.1", self._port), NEIGHBOUR_TIMEOUT_SECONDS) as neighbour:
                    neighbour.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    good = neighbour.recv(65536).startswith(b"HTTP/1.1 200")
            except OSError:
                good = False
            self.answered += good
            self.failed += not good
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.peak = max(self.peak, self._process.memory_info().rss)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SEND_TIMEOUT_SECONDS)


def send_much(target: socket.socket, piece: bytes, total: int) -> int:
    """Sends pieces until at least `total` bytes are sent or the connection fails. Returns the number of bytes sent."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < total:
            target.sendall(piece)
            sent += len(piece)
    return sent


def huge_headers(port: int) -> str:
    with connect(port) as attacker:
        attacker.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        sent = send_much(attacker, b"x" * MEBIBYTE, 256 * MEBIBYTE)
        time.sleep(1)
    return f"{sent // MEBIBYTE} MB of one header taken"


def half_requests(port: int) -> str:
    # More than one process, because the limit on open files applies to attackers as well.
    with ProcessPoolExecutor(ATTACKERS) as attackers:
        kept = sum(attackers.map(_hold_half_requests, [port] * ATTACKERS))
    return f"{kept} of {HALF_REQUESTS} half requests open after 5 s"


def _hold_half_requests(port: int) -> int:
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(HALF_REQUESTS // ATTACKERS):
            with contextlib.suppress(OSError):
                opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 0.5)))
                opened[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        time.sleep(5)
        return sum(_is_open(each) for each in opened)


def _is_open(attacker: socket.socket) -> bool:
    attacker.setblocking(False)
    try:
        return bool(attacker.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def closed_requests(port: int) -> str:
    head = b"PUT /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for _ in range(45):
        with connect(port) as attacker:
            attacker.sendall(head + b"Content-Length: 8388608\r\nX-Long: ")
            send_much(attacker, b"x" * MEBIBYTE, 8 * MEBIBYTE)
            with contextlib.suppress(OSError):
                attacker.sendall(b"\r\n\r\n")
                attacker.sendall(b"{")
                time.sleep(0.05)
    time.sleep(1)
    return "45 requests with 8 MB of headers, each closed before the end of its body"


def unread_pings(port: int) -> str:
    with connect(port) as attacker:
        attacker.sendall(HANDSHAKE)
        attacker.recv(4096)
        sent = send_much(attacker, FULL_PING * 8000, 256 * MEBIBYTE)
        time.sleep(1)
    return f"{sent // MEBIBYTE} MB of pings taken"


def empty_pings(port: int) -> str:
    with connect(port) as attacker:
        attacker.sendall(HANDSHAKE)
        attacker.recv(4096)
        discard = threading.Thread(target=_discard, args=(attacker,), daemon=True)
        discard.start()
        sent = send_much(attacker, EMPTY_PING * (MEBIBYTE // 6), 8 * MEBIBYTE)
        time.sleep(3)
    return f"{sent // MEBIBYTE} MB of empty pings taken"


def _discard(source: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while source.recv(65536):
            pass


ATTACKS: dict[str, Callable[[int], str]] = {
    "headers": huge_headers,
    "half-requests": half_requests,
    "closed-requests": closed_requests,
    "unread-pings": unread_pings,
    "empty-pings": empty_pings,
}


@contextlib.contextmanager
def instance() -> Iterator[tuple[int, psutil.Process]]:
    folder = tempfile.mkdtemp(prefix="tedge")
    with service(f"sqlite:///{Path(folder) / 'edge.db'}", workers=1) as running:
        yield int(running.address.rpartition(":")[2]), psutil.Process(running.process.pid)
    shutil.rmtree(folder)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--attack", choices=ATTACKS)
    chosen = arguments.parse_args().attack
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name, attack in ATTACKS.items():
        if chosen not in (None, name):
            continue
        with instance() as (port, process):
            watcher = Watcher(port, process)
            watcher.start()
            time.sleep(0.5)
            result = attack(port)
            watcher.stop()
            grown = (watcher.peak - watcher.before) / 1e6
            print(
                f"{name}: {result}; memory +{grown:.0f} MB; neighbour: {watcher.answered} answered, "
                f"{watcher.failed} failed, slowest {watcher.slowest:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
