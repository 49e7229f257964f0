"""A well-behaved neighbour of hostile clients: `python -m tests.edge.neighbour PORT CONTROL_PORT PID`.

The program sends each request at the same time to an attacked instance, which listens on PORT and has the process id
PID, and to another instance, which listens on CONTROL_PORT. It compares the response times. Other load on the machine
slows both instances, so this load does not distort the comparison. The program stops when its standard input is closed,
and prints its measurements as JSON.
"""

import contextlib
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from uuid import uuid4

import msgspec
import psutil

PAUSE_SECONDS = 0.05
TIMEOUT_SECONDS = 20.0


class Seen(msgspec.Struct):
    answers: int = 0
    slowest: float = 0.0
    """By how many seconds, at most, the attacked instance answered a request later than the other instance."""
    wrong: list[str] = []
    memory: int = 0
    """The resident memory of the attacked instance after the first request, in bytes."""
    most_memory: int = 0
    """The highest resident memory of the attacked instance after a request, in bytes."""


class Client:
    """Keeps its connection, except after `GET /healthz`. Opens a new one if the instance has closed the old one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)

    def request(self, kind: int) -> tuple[float, str]:
        """Sends `GET /healthz` if `kind` is 0, `PUT /sessions` if it is 1, or `GET /readyz` if it is 2.

        Returns the seconds until the response, and what is wrong with the response; an empty text if nothing is.
        """
        began = time.monotonic()
        try:
            answer = self._send(kind)
        except (OSError, HTTPException):
            self._connection.close()
            try:
                answer = self._send(kind)
            except (OSError, HTTPException) as error:
                answer = repr(error)
        if kind == 0:
            self._connection.close()
        return time.monotonic() - began, answer

    def _send(self, kind: int) -> str:
        if kind == 1:
            ids = {name: str(uuid4()) for name in ("userObjectId", "tenantObjectId", "capacityId")}
            body = json.dumps({**ids, "sessionKind": 1})
            self._connection.request("PUT", "/sessions", body, {"Content-Type": "application/json"})
        else:
            self._connection.request("GET", "/healthz" if kind == 0 else "/readyz")
        response = self._connection.getresponse()
        content = response.read()
        return "" if response.status in (200, 201) else f"{response.status} {content!r}"


def watch(port: int, control_port: int, process: psutil.Process, stopped: threading.Event) -> Seen:
    attacked, control = Client(port), Client(control_port)
    seen = Seen()
    with ThreadPoolExecutor(1) as other:
        while not stopped.wait(PAUSE_SECONDS):
            kind = seen.answers % 3
            comparing = other.submit(control.request, kind)
            took, wrong = attacked.request(kind)
            seen.slowest = max(seen.slowest, took - comparing.result()[0])
            if wrong:
                seen.wrong.append(wrong)
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info().rss
                seen.memory = seen.memory or memory
                seen.most_memory = max(seen.most_memory, memory)
            seen.answers += 1
    return seen


def main() -> None:
    port, control_port, pid = map(int, sys.argv[1:])
    stopped = threading.Event()

    def wait_for_stop() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=wait_for_stop, daemon=True).start()
    sys.stdout.buffer.write(msgspec.json.encode(watch(port, control_port, psutil.Process(pid), stopped)))


if __name__ == "__main__":
    main()
