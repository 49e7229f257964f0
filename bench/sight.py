"""The cost of observability: metrics and logs on the path of a request, reading the gauges of the installation, and a
scrape.

To measure requests, two services run at the same time, with one worker each: one with all telemetry, and one without
(`switched.py`). The load alternates between them, in changing order. On PostgreSQL, the service with telemetry is
measured twice in each round: while the horizon of events stands still, and while the horizon moves, as it does when
clients follow the feed. So the cost of reporting events and the cost of the moving horizon are measured separately. The
benchmark also prints the CPU time per request: of the service alone, and of the service and PostgreSQL together.
"""

import argparse
import contextlib
import signal
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence

import psutil

from bench import Load, Postgres, Service, check_bar, median, postgres, service, wrk
from events import PUBLISHER, running
from heartbeats import SESSIONS

PAIR_SECONDS = 1
"""The duration of one load. Short, so that there are many rounds: other work on the machine changes a single round more
than telemetry does.
"""
WARM_SECONDS = 2
START_SECONDS = 2
LIVE = 1_000_000
SCRAPES = 20
WORKERS = 4
GAUGES_SECONDS = 12

MANY = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, kind, state, lapse_reason)
SELECT gen_random_uuid(), '00000000-0000-4000-8000-0000000000aa', gen_random_uuid(),
       '00000000-0000-4000-8000-000000000001', now(), now() + interval '30 days', now() + interval '30 days',
       now() + interval '30 days', now(), 1, 'created', 'EXPIRED'
  FROM generate_series(1, {count}) AS n;
"""


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Returns the CPU time of these processes and of all their running children."""
    family = {child for process in processes for child in [process, *process.children(recursive=True)]}
    return sum(sum(process.cpu_times()[:2]) for process in family)


class Measured:
    """The loads of one service, and the CPU time per request of the service and of the `others`, in microseconds."""

    def __init__(self, running: Service, others: Sequence[psutil.Process]) -> None:
        self._address = running.address
        self._service, self._others = [psutil.Process(running.process.pid)], others
        self.loads: list[Load] = []
        self.cpu: list[float] = []
        self.others_cpu: list[float] = []

    def run(self, script: str) -> None:
        own, others = cpu_seconds(self._service), cpu_seconds(self._others)
        load = wrk(self._address, script, PAIR_SECONDS)
        requests = load.per_second * PAIR_SECONDS
        self.loads.append(load)
        self.cpu.append((cpu_seconds(self._service) - own) / requests * 1e6)
        self.others_cpu.append((cpu_seconds(self._others) - others) / requests * 1e6)


def alternate(name: str, script: str, first: Service, other: Service, server: Postgres | None, pairs: int) -> None:
    """Measures both services alternately, and checks the bar. `first` has telemetry, and `other` has none.

    `server` is None on SQLite. Then the horizon does not move.
    """
    backends = [] if server is None else [psutil.Process(server.pid)]
    off, reporting, moving = Measured(other, backends), Measured(first, backends), Measured(first, backends)
    arms = [off, reporting] if server is None else [off, reporting, moving]
    with publisher(server) as publishing:
        for number in range(pairs):
            turned = arms[number % len(arms) :] + arms[: number % len(arms)]
            for measured in turned if number % 2 else reversed(turned):
                with publishing if measured is moving else contextlib.nullcontext():
                    measured.run(script)
    compare(f"{name}, reporting", reporting, off)
    if server is not None:
        compare(f"{name}, horizon", moving, reporting)
    check_bar(f"{name}, rate with all telemetry relative to the rate without", median(ratios(arms[-1], off)), 0.95)


@contextlib.contextmanager
def publisher(server: Postgres | None) -> Iterator[contextlib.AbstractContextManager[None]]:
    """Starts a process that moves the horizon. Yields a context manager: the process runs only inside of it.

    The process is paused between rounds and not started anew, because each start would take as much CPU time as a
    minute of moving the horizon.
    """
    if server is None:
        yield contextlib.nullcontext()
        return
    with running(PUBLISHER, server.url("with_all")) as started:
        process = psutil.Process(started.pid)
        time.sleep(START_SECONDS)
        process.suspend()
        yield Resumed(process)
        process.resume()


class Resumed(contextlib.AbstractContextManager[None]):
    """Resumes the process on entry and pauses it on exit. Can be entered any number of times."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    def __enter__(self) -> None:
        self._process.resume()

    def __exit__(self, *_error: object) -> None:
        self._process.suspend()


def ratios(some: Measured, others: Measured) -> Sequence[float]:
    return [one.per_second / other.per_second for one, other in zip(some.loads, others.loads, strict=True)]


def compare(name: str, on: Measured, off: Measured) -> None:
    rates = ratios(on, off)
    used = [sum(pair) for pair in zip(on.cpu, on.others_cpu, strict=True)]
    unused = [sum(pair) for pair in zip(off.cpu, off.others_cpu, strict=True)]
    lower, _, upper = statistics.quantiles(rates, n=4)
    print(
        f"  {name}: {median([load.per_second for load in on.loads]):.0f}/s against "
        f"{median([load.per_second for load in off.loads]):.0f}/s, median of the ratios {median(rates):.3f}, half of "
        f"them {lower:.2f} to {upper:.2f}, all {min(rates):.2f} to {max(rates):.2f}; CPU of the service "
        f"{median(on.cpu):.1f} µs against {median(off.cpu):.1f} µs, with the database {median(used):.1f} µs against "
        f"{median(unused):.1f} µs",
        flush=True,
    )


def on_postgres(server: Postgres, pairs: int) -> None:
    databases = [server.create_database(name) for name in ("with_all", "without")]
    with service(databases[0], 1) as first, service(databases[1], 1, BENCH_OFF="telemetry,gauges") as second:
        for name in ("with_all", "without"):
            server.sql(name, SESSIONS)
        for name, script in (("created", "created"), ("heartbeats", "heartbeat")):
            for each in (first, second):
                wrk(each.address, script, WARM_SECONDS)
            alternate(f"PostgreSQL, {name}", script, first, second, server, pairs)


def on_sqlite(pairs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tsight") as folder:
        urls = [f"sqlite:///{folder}/{name}.db" for name in ("with_all", "without")]
        with service(urls[0], 1) as first, service(urls[1], 1, BENCH_OFF="telemetry,gauges") as second:
            alternate("SQLite, created", "created", first, second, None, pairs)


def measure_gauges(server: Postgres, pairs: int) -> None:
    """Measures requests that open sessions: on a service that reads the gauges of half a million sessions, and on a
    service that does not.
    """
    database = server.create_database("gauges")
    with service(database, 1, BENCH_OFF="none") as reading, service(database, 1, BENCH_OFF="gauges") as other:
        server.sql("gauges", MANY.format(count=LIVE // 2))
        found: dict[str, list[Load]] = {"reading": [], "not reading": []}
        for number in range(pairs):
            both = [("reading", reading), ("not reading", other)]
            for name, each in both if number % 2 else reversed(both):
                if name == "reading":
                    each.process.send_signal(signal.SIGCONT)
                    with urllib.request.urlopen(f"{each.address}/metrics") as response:
                        response.read()
                found[name].append(wrk(each.address, "created", GAUGES_SECONDS))
                if name == "reading":
                    each.process.send_signal(signal.SIGSTOP)
        reading.process.send_signal(signal.SIGCONT)
        seconds = took(reading.address, "read_gauges")
    for name, loads in found.items():
        p99 = [load.p99_ms for load in loads]
        print(f"  {name}: p99 {median(p99):.1f} ms ({min(p99):.1f} to {max(p99):.1f}), {len(p99)} runs")
    print(f"  one read took {seconds * 1000:.0f} ms on average")


def took(address: str, operation: str) -> float:
    """Returns the mean duration of a store operation in seconds, from the metrics of the service."""
    with urllib.request.urlopen(f"{address}/metrics") as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[0] != "#")
    total = sum(
        float(value)
        for name, value in lines.items()
        if name.startswith(f'tenure_store_seconds_sum{{operation="{operation}"')
    )
    count = sum(
        float(value)
        for name, value in lines.items()
        if name.startswith(f'tenure_store_seconds_count{{operation="{operation}"')
    )
    return total / count if count else 0.0


def reads(address: str) -> str:
    with urllib.request.urlopen(f"{address}/metrics") as response:
        text = response.read().decode()
    return next(
        line for line in text.splitlines() if line.startswith('tenure_store_seconds_count{operation="read_gauges"')
    )


@contextlib.contextmanager
def paused(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def measure_scrape(server: Postgres) -> None:
    database = server.create_database("scraped")
    with service(database, WORKERS) as scraped:
        server.sql("scraped", MANY.format(count=LIVE))
        wrk(scraped.address, "created", 2)
        parent = psutil.Process(scraped.process.pid)
        workers = [child for child in parent.children() if "spawn_main" in " ".join(child.cmdline())]
        time.sleep(1)
        before, began = reads(scraped.address), time.monotonic()
        own, times, sizes = cpu_seconds(workers), [], []
        for _ in range(SCRAPES):
            sent = time.monotonic()
            with urllib.request.urlopen(f"{scraped.address}/metrics") as response:
                sizes.append(len(response.read()))
            times.append(time.monotonic() - sent)
        used = (cpu_seconds(workers) - own) / SCRAPES * 1000
        counted = int(float(reads(scraped.address).rsplit(" ", 1)[1]) - float(before.rsplit(" ", 1)[1]))
        print(
            f"  {SCRAPES} scrapes in {time.monotonic() - began:.1f} s: p50 {statistics.median(times) * 1000:.1f} ms, "
            f"{sizes[-1]} bytes, {counted} reads of the gauges meanwhile"
        )
        stuck = []
        with paused(workers[-1]):
            while len(stuck) < 3:
                sent = time.monotonic()
                with contextlib.suppress(TimeoutError, OSError):
                    urllib.request.urlopen(f"{scraped.address}/metrics", timeout=3).read()
                    stuck.append(time.monotonic() - sent)
        print(f"  with a stuck worker: {', '.join(f'{seconds:.2f} s' for seconds in stuck)}")
    check_bar(f"scrape of {WORKERS} workers and {LIVE} sessions, CPU time of the service", used, 50, "ms", at_most=True)
    check_bar("scrape with a stuck worker", median(stuck), 1.5, "s", at_most=True)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pairs", type=int, default=24)
    arguments.add_argument("--only", choices=["requests", "sqlite", "gauges", "scrape"])
    given = arguments.parse_args()
    with postgres() as server:
        if given.only in (None, "requests"):
            on_postgres(server, given.pairs)
        if given.only in (None, "sqlite"):
            on_sqlite(given.pairs)
        if given.only in (None, "gauges"):
            measure_gauges(server, max(2, given.pairs // 8))
        if given.only in (None, "scrape"):
            measure_scrape(server)


if __name__ == "__main__":
    main()
