"""The costs of each operation: CPU time of the service and of PostgreSQL, WAL, and the disk space of sessions.

The script checks no bar (performance target). docs/sizing.md has the figures, per core and per million sessions.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil

from bench import Postgres, Service, environment, postgres, service, wrk
from heartbeats import SESSIONS, SESSIONS_PER_REQUEST
from sight import cpu_seconds

LEASE_SECONDS = 5
CLOSED_WITHIN_SECONDS = 60
WITH_LEASE = {
    "TENURE_SESSIONS__LEASE_SECONDS": str(LEASE_SECONDS),
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
}
SIZE = """
SELECT count(*), pg_table_size('sessions'), pg_indexes_size('sessions'), count(closed_at) FROM sessions
"""


class Table(NamedTuple):
    sessions: int
    heap: int
    indexes: int
    closed: int


class Cost:
    """Measures CPU time and WAL from the creation of this object on. `show` prints both per operation."""

    def __init__(self, server: Postgres, running: Service) -> None:
        self._server = server
        self._processes = [psutil.Process(running.process.pid)], [psutil.Process(server.pid)]
        self._before = self._now()

    def show(self, name: str, operations: float) -> None:
        own, database, wal = (after - before for before, after in zip(self._before, self._now(), strict=True))
        own, database = own / operations * 1e6, database / operations * 1e6
        print(
            f"  {name}: {own:.1f} µs of the service, {database:.1f} µs of PostgreSQL, "
            f"{wal / operations:.0f} bytes of WAL",
            flush=True,
        )

    def _now(self) -> tuple[float, float, float]:
        wal = float(self._server.sql("postgres", "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"))
        own, database = (cpu_seconds(processes) for processes in self._processes)
        return own, database, wal


def table(server: Postgres, database: str) -> Table:
    return Table(*map(int, server.sql(database, SIZE).split("|")))


@contextmanager
def one_service(server: Postgres, database: str, **settings: str) -> Iterator[Service]:
    with service(server.create_database(database), **settings) as running:
        yield running


def measure(server: Postgres, running: Service, script: str, name: str, per_request: int = 1) -> None:
    wrk(running.address, script, 2)
    cost, began = Cost(server, running), time.monotonic()
    load = wrk(running.address, script)
    operations = load.per_second * (time.monotonic() - began) * per_request
    cost.show(
        f"{name}, {load.per_second * per_request:.0f}/s, p99 {load.p99_ms:.1f} ms, errors {load.errors}", operations
    )


def show_size(what: str, before: Table, after: Table) -> None:
    sessions = after.sessions - before.sessions
    heap, indexes = (after.heap - before.heap) / sessions, (after.indexes - before.indexes) / sessions
    print(f"  {what}: {heap:.0f} bytes in the table, {indexes:.0f} in indexes, of {sessions} sessions", flush=True)


def main() -> None:
    print(environment())
    with postgres() as server:
        with one_service(server, "opens") as running:
            before = table(server, "opens")
            measure(server, running, "created", "created")
            show_size("a live session", before, table(server, "opens"))
        with one_service(server, "beats") as running:
            server.sql("beats", SESSIONS)
            measure(server, running, "heartbeat", "heartbeat")
            measure(server, running, "heartbeats", "heartbeat in bulk", SESSIONS_PER_REQUEST)
        with one_service(server, "ends", **WITH_LEASE) as running:
            before = table(server, "ends")
            wrk(running.address, "created")
            cost, opened = Cost(server, running), table(server, "ends")
            deadline = time.monotonic() + CLOSED_WITHIN_SECONDS
            while (after := table(server, "ends")).closed < after.sessions and time.monotonic() < deadline:
                time.sleep(0.5)
            cost.show("lapse, recorded by the sweep", after.closed - opened.closed)
            show_size("a closed session", before, after)
            server.sql("ends", "VACUUM FULL sessions")
            show_size("a closed session, rewritten", before, table(server, "ends"))


if __name__ == "__main__":
    main()
