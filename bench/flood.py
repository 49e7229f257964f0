"""Measures the latency of `/healthz` and the memory of the leader while a receiver sends `100 Continue` without end."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import psutil

from bench import check_bar, postgres, service

SECONDS = 15
SUBMISSIONS = 8
MEGABYTE = 1_000_000
RECEIVER = """
import socket, threading
FLOOD = b"HTTP/1.1 100 Continue\\r\\n\\r\\n" * 4000
def serve(connection):
    try:
        connection.recv(65536)
        while True:
            connection.sendall(FLOOD)
    except OSError:
        connection.close()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""


@contextlib.contextmanager
def flooding_receiver() -> Iterator[int]:
    """Yields the port of a receiver that reads a request and then sends interim responses without end."""
    process = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def submit(address: str, number: int) -> None:
    body = json.dumps({"gateway": "bench", "payload": {"number": number}}).encode()
    headers = {"content-type": "application/json", "idempotency-key": str(number)}
    request = urllib.request.Request(f"{address}/submissions", body, headers)
    urllib.request.urlopen(request, timeout=30).read()


def measure(address: str) -> tuple[float, float]:
    """Returns the p99 of `/healthz` in ms, and by how many MB the memory of the service grew.

    The memory is that of the largest process of the service.
    """
    before, latencies = memory(), []
    for number in range(SUBMISSIONS):
        submit(address, number)
    end, most = time.monotonic() + SECONDS, before
    while time.monotonic() < end:
        began = time.monotonic()
        urllib.request.urlopen(f"{address}/healthz", timeout=30).read()
        latencies.append((time.monotonic() - began) * 1000)
        most = max(most, memory())
        time.sleep(0.05)
    return sorted(latencies)[len(latencies) * 99 // 100], most - before


def memory() -> float:
    processes = psutil.Process().children(recursive=True)
    return max((each.memory_info().rss for each in processes if "serve" in each.cmdline()), default=0) / MEGABYTE


def main() -> None:
    with postgres() as server, flooding_receiver() as port:
        os.environ["TENURE_GATEWAYS__BENCH__URL"] = f"http://127.0.0.1:{port}/"
        os.environ["TENURE_GATEWAYS__BENCH__SCHEDULE"] = "[0.1]"
        os.environ["TENURE_GATEWAYS__BENCH__MAX_ATTEMPTS"] = "100000"
        with service(server.create_database("flood"), workers=1) as running:
            time.sleep(3)  # until the instance is the leader
            p99, growth = measure(running.address)
    check_bar("/healthz during a flood, p99", p99, 100, "ms", at_most=True)
    check_bar("memory during a flood", growth, 64, "MB", at_most=True)


if __name__ == "__main__":
    main()
