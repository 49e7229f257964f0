"""The sweep: its time when no session is due and when 100 000 are due, and the latency of opens during a sweep.

A session is due if its deadline has passed and its end is not recorded yet. Baseline for 100 000 due sessions: one
UPDATE that closes the same number of sessions with the same values.
"""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import asyncpg

from bench import Postgres, check_bar, median, postgres, service, wrk
from tenure.clock import boottime
from tenure.ids import new_id
from tenure.jobs.job import ActiveRun
from tenure.leases.held import HeldLease
from tenure.sessions.ends import SessionEnds
from tenure.sessions.expire import ExpireSessions
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tenure.telemetry.counters import Counters
from tenure.telemetry.events import Telemetry
from tenure.telemetry.logs import configure_logs, log_events
from tenure.telemetry.siblings import Siblings

LIVE = 1_000_000
DUE = 100_000
ROUNDS = 3
HOUR_MICROSECONDS = 3_600_000_000

ROWS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, lease_microseconds,
                      heartbeat_microseconds, kind, state, lapse_reason)
SELECT gen_random_uuid(), '00000000-0000-4000-8000-0000000000aa', gen_random_uuid(),
       '00000000-0000-4000-8000-0000000000{number}', now() - interval '1 hour', now() + interval '30 days',
       now() + interval '{deadline}', now() + interval '{deadline}', now(),
       86400000000, 5000000, 1, 'created', 'LEASE_EXPIRED'
  FROM generate_series(1, {count}) AS n;
"""
UPDATE = """
UPDATE sessions SET state = 'closed', check_at = NULL, closed_at = deadline_at,
                    close_reason = 'LEASE_EXPIRED'
 WHERE closed_at IS NULL AND deadline_at <= now()
"""


def insert_due(server: Postgres, count: int) -> None:
    server.sql("sweep", ROWS.format(number="02", deadline="-1 minute", count=count))
    server.sql("sweep", "VACUUM ANALYZE sessions")
    server.sql("sweep", "CHECKPOINT")


DEV_NULL = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends


async def sweep(store: Store, run: ActiveRun) -> float:
    """Runs the job as an instance does: telemetry logs and counts each session. Returns how many seconds it took."""
    telemetry = log_events(Telemetry())
    Counters(telemetry, Siblings())
    began = time.monotonic()
    with contextlib.redirect_stderr(DEV_NULL):
        configure_logs()
        await ExpireSessions(store, SessionEnds(telemetry)).run(run)
    return time.monotonic() - began


async def begin_run(store: Store) -> ActiveRun:
    acquired = await store.acquire_lease("bench", "me", new_id(), HOUR_MICROSECONDS)
    held = HeldLease(store, acquired.lease.fence, HOUR_MICROSECONDS, boottime())
    return ActiveRun("expire-sessions", held, acquired.lease.acquired_at, None)


async def update(url: str) -> float:
    """Runs the baseline. Returns how many seconds it took."""
    connection = await asyncpg.connect(url)
    began = time.monotonic()
    await connection.execute(UPDATE)
    seconds = time.monotonic() - began
    await connection.close()
    return seconds


async def measure_none_due(store: Store, run: ActiveRun) -> float:
    """Returns the median time in ms of a sweep that finds no due session."""
    await sweep(store, run)
    return median([await sweep(store, run) for _ in range(20)]) * 1000


async def measure_many_due(server: Postgres, store: Store, run: ActiveRun, url: str) -> float:
    """Returns the median ratio of the time of a sweep to the time of one UPDATE."""
    ratios = []
    for number in range(1, ROUNDS + 1):
        insert_due(server, DUE)
        base = await update(url)
        insert_due(server, DUE)
        seconds = await sweep(store, run)
        ratios.append(seconds / base)
        print(f"  pair {number}: {seconds:.2f} s against {base:.2f} s = {ratios[-1]:.2f}")
    return median(ratios)


def measure_opens_during_sweep(server: Postgres, url: str) -> float:
    """Returns the p99 in ms of opens while one of the workers sweeps."""
    os.environ["TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS"] = "1"
    with service(url) as running:
        wrk(running.address, "created", 2)
        insert_due(server, 2 * DUE)
        load = wrk(running.address, "created", 5)
        remaining = server.sql(
            "sweep", "SELECT count(*) FROM sessions WHERE closed_at IS NULL AND deadline_at <= now()"
        )
        print(f"  {load.per_second:.0f} opens per second, p50 {load.p50_ms:.1f} ms; {remaining.strip()} still due")
    return load.p99_ms


async def main() -> None:
    with postgres() as server:
        url = server.create_database("sweep")
        store = open_store(url, 10)
        await store.migrate()
        server.sql("sweep", ROWS.format(number="01", deadline="1 day", count=LIVE))
        server.sql("sweep", "VACUUM ANALYZE sessions")
        run = await begin_run(store)
        idle = await measure_none_due(store, run)
        ratio = await measure_many_due(server, store, run, url)
        await store.close()
        p99 = measure_opens_during_sweep(server, url)
    check_bar("sweep, none due of a million live sessions", idle, 5, "ms", at_most=True)
    check_bar("sweep, 100 000 due, against one UPDATE", ratio, 3, at_most=True)
    check_bar("opens during a sweep, p99", p99, 50, "ms", at_most=True)


if __name__ == "__main__":
    asyncio.run(main())
