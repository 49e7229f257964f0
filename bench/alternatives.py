"""Other programs that keep sessions with a time to live, compared with Tenure on the same machine and with durable
writes.

This benchmark has no bar, because these programs make other promises than Tenure: see docs/comparison.md. Redis is
skipped if `redis-server` is not on PATH, and etcd if `etcd` is not. Etcd and Tenure need the load generator `wrk`.

- Redis: `SET key value NX PX 60000` opens, `SET key value XX PX 60000` renews; `appendfsync always`.
- etcd, one member: to open a session, one request grants a lease, and a transaction creates a key with this lease. A
  keep-alive of the lease renews the session. The requests use etcd's JSON gateway.
- Tenure on PostgreSQL: `PUT /sessions` and heartbeats.
"""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench import CONNECTIONS, SECONDS, environment, postgres, service, wrk
from heartbeats import SESSIONS
from sight import cpu_seconds

REDIS_REQUESTS = 200_000
MANY, FEW = 1_000_000_000, 10_000
"""Numbers of possible keys. With MANY keys, a randomly chosen key hardly ever exists already. With FEW keys, nearly all
exist after REDIS_REQUESTS requests."""
READY_SECONDS = 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[psutil.Process]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="talt"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def show(name: str, processes: list[psutil.Process], run: Callable[[], tuple[float, float]]) -> None:
    """Calls `run`, which returns operations per second and p99 in milliseconds.

    Prints both, and the CPU time of the processes and their children per operation.
    """
    before, began = cpu_seconds(processes), time.monotonic()
    rate, p99 = run()
    operations = rate * (time.monotonic() - began)
    used = (cpu_seconds(processes) - before) / operations * 1e6
    print(f"  {name}: {rate:8.0f}/s, p99 {p99:.1f} ms, {used:.0f} µs of CPU time of the servers", flush=True)


def redis() -> None:
    with folder() as path:
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always"]
        with running(["redis-server", *options, "--save", ""], path, port) as process:
            show("Redis, open", [process], lambda: redis_benchmark(port, "open", MANY, "NX"))
            redis_benchmark(port, "renew", FEW)
            show("Redis, renew", [process], lambda: redis_benchmark(port, "renew", FEW, "XX"))


def redis_benchmark(port: int, prefix: str, keys: int, *condition: str) -> tuple[float, float]:
    """Sets keys that are chosen at random from `keys` possible keys. Returns operations per second and p99 in ms."""
    command = ["redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-n", str(REDIS_REQUESTS), "-r", str(keys)]
    command += ["SET", f"{prefix}:__rand_int__", "0123456789abcdef" * 8, *condition, "PX", "60000"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.replace("\r", "\n")
    rate = float(re.search(r"throughput summary: ([\d.]+)", output)[1])  # type: ignore[index]
    columns = output.partition("latency summary (msec):")[2].split("\n")[2].split()
    return rate, float(columns[4])


def etcd() -> None:
    with folder() as path:
        port, peers = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
        options = ["--data-dir", str(path / "data"), "--listen-client-urls", client, "--advertise-client-urls", client]
        options += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        options += ["--initial-cluster", f"default={peer}", "--logger", "zap"]
        with running(["etcd", *options], path, port) as process:
            for _ in range(READY_SECONDS * 10):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{client}/health"):
                    break
                time.sleep(0.1)
            show("etcd, open", [process], lambda: etcd_load(client, 2))
            show("etcd, renew", [process], lambda: etcd_load(client, 1, KEEP_ALIVE="1"))


def etcd_load(address: str, requests: int, **variables: str) -> tuple[float, float]:
    load = wrk(address, "etcd", **variables)
    if load.errors:
        print(f"  {load.errors} errors")
    return load.per_second / requests, load.p99_ms


def tenure() -> None:
    with postgres() as server, service(server.create_database("alternatives")) as instance:
        processes = [psutil.Process(instance.process.pid), psutil.Process(server.pid)]
        wrk(instance.address, "created", 2)
        show("Tenure, open", processes, lambda: rate_of(instance.address, "created"))
        server.sql("alternatives", SESSIONS)
        show("Tenure, renew", processes, lambda: rate_of(instance.address, "heartbeat"))


def rate_of(address: str, script: str) -> tuple[float, float]:
    load = wrk(address, script, SECONDS)
    return load.per_second, load.p99_ms


def main() -> None:
    print(environment())
    for program, measure in (("redis-server", redis), ("etcd", etcd), ("wrk", tenure)):
        if shutil.which(program) is None:
            print(f"  {program} is not on PATH")
        else:
            measure()


if __name__ == "__main__":
    main()
