"""Sums of usage with a million live sessions on ten thousand capacities, and the job that writes marks.

There is no baseline: the first page of a quick sum must be answered within 100 ms, with every `groupBy`. A quick sum
(`quick=true`) ends at the last mark. For comparison, the benchmark prints how long each sum takes without `quick`, how
long a run of the job `mark-usage` takes, and the rate and the p99 of opens without and during such a run.
"""

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import Load, Service, check_bar, postgres, service, wrk

CAPACITIES = 10_000
TENANTS = 100
ROUNDS = 5
CONNECTIONS = 8
RARELY = {f"TENURE_JOBS__{job}_USAGE__INTERVAL_SECONDS": "1000000000" for job in ("MARK", "EMIT")}
"""Settings with which the jobs `mark-usage` and `emit-usage` run on request only."""
GROUPS = ["", "tenant", "capacity", "kind", "user"]
SESSIONS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, last_activity_at, modified_at, kind, state, lapse_reason)
{series}
SELECT {id_1}, {id_2}, {id_3}, {id_4}, {start}, {end}, {end}, {end}, {start}, {start}, {start}, 1 + g % 3, 'created',
       'EXPIRED'
  FROM made
"""
MARK = """
INSERT INTO usage_mark_sums (marked_at, tenant_object_id, capacity_id, kind, usage_millionths, started, live)
SELECT {at}, tenant_object_id, capacity_id, kind, 0, 0, count(*) FROM sessions
 GROUP BY tenant_object_id, capacity_id, kind
"""
LATER_MARK = """
INSERT INTO usage_mark_sums (marked_at, tenant_object_id, capacity_id, kind, usage_millionths, started, live)
SELECT {at}, tenant_object_id, capacity_id, kind, 0, 0, live FROM usage_mark_sums WHERE marked_at = {first}
"""


class Dialect:
    """How an engine writes ids and instants, and runs statements."""

    def __init__(self, run: Callable[[str], object], *, is_sqlite: bool) -> None:
        self.run = run
        self._is_sqlite = is_sqlite

    def series(self, count: int) -> str:
        if self._is_sqlite:
            return f"WITH RECURSIVE made (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM made WHERE g < {count})"
        return f"WITH made AS (SELECT g FROM generate_series(1::bigint, {count}) AS g)"

    def id(self, number: str, last: int) -> str:
        if self._is_sqlite:
            return f"printf('%08x-0000-4000-8000-00000000000{last}', {number})"
        return f"(lpad(to_hex({number}), 8, '0') || '-0000-4000-8000-00000000000{last}')::uuid"

    def instant(self, at: datetime, minus: str = "0") -> str:
        """Returns SQL for the instant `at` minus a number of seconds, which is the SQL expression `minus`."""
        if self._is_sqlite:
            return f"{round(at.timestamp())} * 1000000 - {minus} * 1000000"
        return f"timestamptz '{at.isoformat()}' - {minus} * interval '1 second'"


def fill(dialect: Dialect, count: int, now: datetime) -> None:
    """Inserts live sessions that started in the last 30 days, and the marks of these days except the newest mark, which
    `run_job` lets the service write.

    The values of the marks are made up; a sum takes as long with these values as with real ones.
    """
    begun, hour = now - timedelta(days=31), now.replace(minute=0, second=0, microsecond=0)
    dialect.run(
        f"UPDATE installation SET created_at = {dialect.instant(begun)}, usage_kept_from = {dialect.instant(begun)}, "
        f"last_cut_at = {dialect.instant(now.replace(second=0, microsecond=0))}"
    )
    dialect.run(f"INSERT INTO usage_eras VALUES (1, {dialect.instant(begun)}, 1000000, 2000000, 3000000)")
    scattered = "(g * 2654435761) % 4294967296"
    ids = [
        dialect.id(number, last)
        for last, number in enumerate([scattered, f"g % {CAPACITIES} % {TENANTS}", scattered, f"g % {CAPACITIES}"])
    ]
    start = dialect.instant(now, f"(g * 7919 % {30 * 86_400})")
    names = {f"id_{number}": text for number, text in enumerate(ids, 1)}
    end = dialect.instant(now + timedelta(days=30))
    dialect.run(SESSIONS.format(series=dialect.series(count), start=start, end=end, **names))
    midnight = hour.replace(hour=0)
    marks = {midnight - timedelta(days=days) for days in range(31)}
    marks |= {hour - timedelta(hours=hours) for hours in range(1, 73)}
    first = dialect.instant(min(marks))
    for number, at in enumerate(sorted(marks)):
        dialect.run(f"INSERT INTO usage_marks VALUES ({dialect.instant(at)}, 1, 'complete')")
        dialect.run((LATER_MARK if number else MARK).format(at=dialect.instant(at), first=first))


def request_json(running: Service, path: str, method: str = "GET") -> dict:
    request = urllib.request.Request(f"{running.address}{path}", method=method)
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def measure_sums(running: Service, query: str) -> dict[str, float]:
    """Returns the median time in ms of the sum with each `groupBy`."""
    found = {}
    for group_by in GROUPS:
        path = f"/usage?limit=100{query}" + (f"&groupBy={group_by}" if group_by else "")
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            answer = request_json(running, path)
            times.append((time.perf_counter() - began) * 1000)
        found[group_by] = statistics.median(times)
        print(f"  {found[group_by]:8.1f} ms  {path}  {answer['from'][:16]} to {answer['to'][:16]}", flush=True)
    return found


def run_job(running: Service) -> float:
    """Runs `mark-usage`, which writes one mark, and returns the seconds that it took."""
    began = datetime.now(UTC)
    request_json(running, "/jobs/mark-usage/run", "POST")
    while True:
        time.sleep(0.2)
        runs = request_json(running, "/jobs/mark-usage/runs")["runs"]
        if runs and runs[0]["endedAt"] is not None and datetime.fromisoformat(runs[0]["startedAt"]) > began:
            started, ended = (datetime.fromisoformat(runs[0][name]) for name in ("startedAt", "endedAt"))
            return (ended - started).total_seconds()


def measure_opens(running: Service, seconds: int) -> Load:
    return wrk(running.address, "created", seconds, CONNECTIONS)


def measure(name: str, url: str, delete_mark: Callable[[], object]) -> dict[str, float]:
    print(name)
    with service(url, 1, **RARELY) as running:
        print(f"  {run_job(running):8.2f} s   a run of mark-usage")
        found = measure_sums(running, "&quick=true")
        measure_sums(running, "")
        delete_mark()
        alone = measure_opens(running, 8)
        with ThreadPoolExecutor() as pool:
            beside = pool.submit(measure_opens, running, 8)
            time.sleep(1)
            seconds = run_job(running)
            during = beside.result()
    for text, load in (("alone", alone), (f"beside a run of {seconds:.2f} s", during)):
        print(f"  created {text}: {load.per_second:.0f}/s, p99 {load.p99_ms:.1f} ms, errors {load.errors}")
    return found


def main(count: int, engines: list[str]) -> None:
    now = datetime.now(UTC)
    last = now.replace(minute=0, second=0, microsecond=0)
    found: dict[str, float] = {}
    if "postgresql" in engines:
        with postgres() as server:
            url = server.create_database("sums")
            with service(url):
                pass  # migrates the schema
            dialect = Dialect(lambda statement: server.sql("sums", statement), is_sqlite=False)
            fill(dialect, count, now)
            dialect.run("VACUUM ANALYZE")
            delete = f"DELETE FROM usage_mark_sums WHERE marked_at = {dialect.instant(last)};"
            delete += f"DELETE FROM usage_marks WHERE marked_at = {dialect.instant(last)};"
            found |= {f"p {key}": ms for key, ms in measure("PostgreSQL", url, lambda: dialect.run(delete)).items()}
    if "sqlite" in engines:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sums.db"
            with service(f"sqlite:///{path}", 1):
                pass
            with sqlite3.connect(path, isolation_level=None) as connection:
                other = Dialect(connection.executescript, is_sqlite=True)
                fill(other, count, now)
                other.run("ANALYZE")
            delete = f"DELETE FROM usage_mark_sums WHERE marked_at = {other.instant(last)};"
            delete += f"DELETE FROM usage_marks WHERE marked_at = {other.instant(last)};"

            def delete_mark() -> None:
                with sqlite3.connect(path, isolation_level=None, timeout=30) as again:
                    again.executescript(delete)

            found |= {f"s {key}": ms for key, ms in measure("SQLite", f"sqlite:///{path}", delete_mark).items()}
    check_bar(f"quick sums with {count} sessions, slowest", max(found.values()), 100, "ms", at_most=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sessions", type=int, default=1_000_000)
    arguments.add_argument("--engine", choices=["postgresql", "sqlite"], action="append")
    given = arguments.parse_args()
    main(given.sessions, given.engine or ["postgresql", "sqlite"])
