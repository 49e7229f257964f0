"""The sweep: what it costs when nothing is due, how fast it is when much is, and what others notice of it."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import asyncpg

from bench import Postgres, median, postgres, service, verdict, wrk
from tenure.clock import boottime
from tenure.ids import new_id
from tenure.jobs.expire_sessions import ExpireSessions
from tenure.jobs.jobs import ActiveRun
from tenure.leases.held import HeldLease
from tenure.logs import configure_logs
from tenure.sessions.counters import Counters
from tenure.store import Store
from tenure.store.engines import open_store

LIVE = 1_000_000
DUE = 100_000
ROUNDS = 3
HOUR = 3_600_000_000

ROWS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, last_activity_at, modified_at, lease_microseconds,
                      heartbeat_microseconds, kind, state, lapse_reason)
SELECT gen_random_uuid(), '00000000-0000-4000-8000-0000000000aa', gen_random_uuid(),
       '00000000-0000-4000-8000-0000000000{number}', now() - interval '1 hour', now() + interval '30 days',
       now() + interval '{deadline}', now() + interval '{deadline}', now(), now(), now(),
       86400000000, 5000000, 1, 'created', 'LEASE_EXPIRED'
  FROM generate_series(1, {count}) AS n;
"""
BY_HAND = """
UPDATE sessions SET state = 'closed', check_at = NULL, closed_at = deadline_at, modified_at = deadline_at,
                    close_reason = lapse_reason
 WHERE closed_at IS NULL AND deadline_at <= now()
"""


def due(server: Postgres, count: int) -> None:
    server.sql("sweep", ROWS.format(number="02", deadline="-1 minute", count=count))
    server.sql("sweep", "VACUUM ANALYZE sessions")
    server.sql("sweep", "CHECKPOINT")


NOWHERE = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process


async def sweep(store: Store, run: ActiveRun) -> float:
    """As the job does it, with a line in the log for every session."""
    began = time.monotonic()
    with contextlib.redirect_stderr(NOWHERE):
        configure_logs()
        await ExpireSessions(store, Counters()).run(run)
    return time.monotonic() - began


async def begin(store: Store) -> ActiveRun:
    acquired = await store.acquire_lease("bench", "me", new_id(), HOUR)
    held = HeldLease(store, acquired.lease.fence, HOUR, boottime())
    return ActiveRun("expire-sessions", held, acquired.lease.acquired_at, None)


async def by_hand(url: str) -> float:
    connection = await asyncpg.connect(url)
    began = time.monotonic()
    await connection.execute(BY_HAND)
    seconds = time.monotonic() - began
    await connection.close()
    return seconds


async def nothing_due(store: Store, run: ActiveRun) -> float:
    await sweep(store, run)
    return median([await sweep(store, run) for _ in range(20)]) * 1000


async def much_due(server: Postgres, store: Store, run: ActiveRun, url: str) -> float:
    ratios = []
    for number in range(1, ROUNDS + 1):
        due(server, DUE)
        base = await by_hand(url)
        due(server, DUE)
        seconds = await sweep(store, run)
        ratios.append(seconds / base)
        print(f"  pair {number}: {seconds:.2f} s against {base:.2f} s = {ratios[-1]:.2f}")
    return median(ratios)


def opening_meanwhile(server: Postgres, url: str) -> float:
    """p99 of opens while one of the workers sweeps."""
    os.environ["TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS"] = "1"
    with service(url) as running:
        wrk(running.address, "created", 2)
        due(server, 2 * DUE)
        load = wrk(running.address, "created", 5)
        left = server.sql("sweep", "SELECT count(*) FROM sessions WHERE closed_at IS NULL AND deadline_at <= now()")
        print(f"  {load.per_second:.0f} opens a second, p50 {load.p50_ms:.1f} ms; {left.strip()} left to sweep")
    return load.p99_ms


async def main() -> None:
    with postgres() as server:
        url = server.fresh("sweep")
        store = open_store(url, 10)
        await store.migrate()
        server.sql("sweep", ROWS.format(number="01", deadline="1 day", count=LIVE))
        server.sql("sweep", "VACUUM ANALYZE sessions")
        run = await begin(store)
        idle = await nothing_due(store, run)
        ratio = await much_due(server, store, run, url)
        await store.close()
        p99 = opening_meanwhile(server, url)
    verdict("a sweep with a million live and none due", idle, 5, "ms", at_most=True)
    verdict("a sweep of 100 000 against one UPDATE", ratio, 3, at_most=True)
    verdict("p99 of opens meanwhile", p99, 50, "ms", at_most=True)


if __name__ == "__main__":
    asyncio.run(main())
