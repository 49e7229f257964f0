"""Usage: a million sessions cut, divided, rendered and delivered; what openings notice of cuts; sums over a month.

Delivering is measured against COPY writing the same columns of the same sessions to a file; it ends when the last chunk
is recorded as delivered, to `tenure receiver`, which checks and counts all of it. A sum is measured against the same
sum in plain SQL.
"""

import asyncio
import contextlib
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil

from bench import PAIRS, Postgres, Service, median, postgres, service, verdict, wrk
from submissions import MEGABYTE, receiver
from tenure.ids import new_id
from tenure.model.usage import CutRules
from tenure.store.engines import open_store

LIVE = 1_000_000
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FACTORS = (1_000_000, 2_000_000, 3_000_000)
HOUR = 3_600_000_000
CUTS = 20

# Ids in the order of their starts, as the service makes them.
ROWS = f"""
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, last_activity_at, modified_at, kind, state, lapse_reason)
SELECT (lpad(to_hex((extract(epoch FROM s) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid,
       ('00000000-0000-4000-8000-' || lpad(to_hex(n % 1000), 12, '0'))::uuid,
       ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       ('00000000-0000-4000-9000-' || lpad(to_hex(n % 5000), 12, '0'))::uuid,
       s, s + interval '30 days', s + interval '30 days', s + interval '30 days', s, s, s,
       n % 3 + 1, 'created', 'EXPIRED'
  FROM (SELECT n, now() - ({LIVE} - n) * interval '2 seconds' AS s FROM generate_series(1, {LIVE}) AS n) AS made;
UPDATE installation SET created_at = now() - interval '31 days', last_cut_at = date_trunc('second', now());
VACUUM ANALYZE;
CHECKPOINT;
"""
COLUMNS = "session_id, user_object_id, tenant_object_id, capacity_id, kind, started_at, deadline_at, closed_at"
PLAIN = """
SELECT tenant_object_id,
       sum(round(kind * extract(epoch FROM least(coalesce(closed_at, deadline_at), now())
                                           - greatest(started_at, now() - interval '30 days')) / 2592000, 6)), count(*)
  FROM sessions
 WHERE started_at < now() AND coalesce(closed_at, deadline_at) > now() - interval '30 days'
 GROUP BY tenant_object_id ORDER BY tenant_object_id
"""


async def filled(server: Postgres, name: str) -> str:
    url = server.fresh(name)
    store = open_store(url, 4)
    await store.migrate()
    await store.close()
    server.sql(name, ROWS)
    return url


def copied(server: Postgres, name: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the server may run as somebody else
        began = time.monotonic()
        server.sql(name, f"COPY (SELECT {COLUMNS} FROM sessions) TO '{folder}/sessions'")
        return time.monotonic() - began


def ask(running: Service, path: str, method: str = "GET") -> dict:
    request = urllib.request.Request(f"{running.address}{path}", method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@contextlib.contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """The resident memory of a process, ten times a second."""
    process, sizes, over = psutil.Process(pid), [], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            sizes.append(process.memory_info().rss)

    sizes.append(process.memory_info().rss)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield sizes
    finally:
        over.set()
        looking.join()


def delivered(running: Service) -> float:
    """Seconds from the wish to have usage emitted until all of it is delivered."""
    began = time.monotonic()
    before = ask(running, "/usage/windows?limit=1")["windows"]
    last = before[0]["windowId"] if before else 0
    ask(running, "/jobs/emit-usage/run", "POST")
    while True:
        newest = ask(running, "/usage/windows?limit=1")["windows"]
        if newest and newest[0]["windowId"] > last and newest[0]["deliveredAt"] is not None:
            break
        time.sleep(0.05)
    if newest[0]["sessions"] != LIVE:
        raise AssertionError(f"{newest[0]['sessions']} sessions were in the window")
    return time.monotonic() - began


def delivering(server: Postgres) -> tuple[float, float, float]:
    url = asyncio.run(filled(server, "delivered"))
    os.environ["TENURE_JOBS__EMIT_USAGE__INTERVAL_SECONDS"] = "1"
    os.environ["TENURE_JOBS__EMIT_USAGE__PAUSED"] = "true"
    ratios, times, grown = [], [], []
    with receiver() as port:
        os.environ["TENURE_GATEWAYS__USAGES__URL"] = f"http://127.0.0.1:{port}/usages"
        os.environ["TENURE_GATEWAYS__USAGES__SECRET"] = SECRET
        with service(url, workers=1) as running:
            for number in range(1, PAIRS + 1):
                base = copied(server, "delivered")
                with watched(running.process.pid) as sizes:
                    seconds = delivered(running)
                times.append(seconds)
                ratios.append(seconds / base)
                grown.append((max(sizes) - sizes[0]) / MEGABYTE)
                print(f"  pair {number}: {seconds:.1f} s against {base:.2f} s = {ratios[-1]:.1f}, {grown[-1]:.0f} MB")
    del os.environ["TENURE_GATEWAYS__USAGES__URL"], os.environ["TENURE_GATEWAYS__USAGES__SECRET"]
    return median(ratios), max(times), max(grown)


async def cutting(url: str) -> float:
    """Milliseconds for a whole cut: its lock is held for less."""
    store = open_store(url, 10)
    fence = (await store.acquire_lease("bench", "me", new_id(), HOUR)).lease.fence
    times = []
    for _ in range(CUTS):
        await asyncio.sleep(0.05)
        began = time.monotonic()
        cut = await store.cut_usage(fence, CutRules(1000, FACTORS, None), 128)
        times.append((time.monotonic() - began) * 1000)
        if cut.windows == 0:
            raise AssertionError("nothing was cut")
    await store.close()
    return median(times)


def opening_meanwhile(server: Postgres, name: str, interval: str) -> float:
    os.environ["TENURE_JOBS__EMIT_USAGE__PAUSED"] = "false"
    for job in ("EMIT_USAGE", "EXPIRE_SESSIONS"):
        os.environ[f"TENURE_JOBS__{job}__INTERVAL_SECONDS"] = interval
    with service(server.fresh(name)) as running:
        wrk(running.address, "created", 3)
        load = wrk(running.address, "created", 10)
    print(f"  every {interval} s: {load.per_second:.0f} opens a second, p99 {load.p99_ms:.1f} ms")
    return load.p99_ms


async def plainly(url: str) -> float:
    connection = await asyncpg.connect(url, server_settings={"jit": "off"})
    began = time.monotonic()
    lines = await connection.fetch(PLAIN)
    seconds = time.monotonic() - began
    await connection.close()
    if len(lines) != 1000:
        raise AssertionError(f"{len(lines)} tenants")
    return seconds


def summing(url: str) -> float:
    ratios = []
    with service(url, workers=1) as running:
        for number in range(1, PAIRS + 1):
            base = asyncio.run(plainly(url))
            began = time.monotonic()
            answer = ask(running, "/usage?groupBy=tenant&limit=500")
            seconds = time.monotonic() - began
            if answer["count"] != 500:
                raise AssertionError(f"{answer['count']} groups")
            ratios.append(seconds / base)
            print(f"  pair {number}: {seconds:.2f} s against {base:.2f} s = {ratios[-1]:.2f}")
    return median(ratios)


def main() -> None:
    with postgres() as server:
        ratio, slowest, grown = delivering(server)
        url = server.url("delivered")
        lock = asyncio.run(cutting(url))
        sums = summing(url)
        pairs = [
            (opening_meanwhile(server, "often", "1"), opening_meanwhile(server, "seldom", "3600")) for _ in range(3)
        ]
    verdict("a million sessions delivered, against COPY", ratio, 15, at_most=True)
    verdict("the slowest", slowest, 30, "s", at_most=True)
    verdict("its memory", grown, 100, "MB", at_most=True)
    verdict("a cut", lock, 20, "ms", at_most=True)
    verdict("a month by tenant, against plain SQL", sums, 3, at_most=True)
    verdict("p99 of opens with cuts and sweeps every second", median([a / b for a, b in pairs]), 3, at_most=True)


if __name__ == "__main__":
    main()
