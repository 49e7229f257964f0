"""Usage: the delivery of a million sessions, the time of a cut, sums over a month, and opens during cuts.

- Delivery: the service cuts a window, divides it, renders it and sends it to `tenure receiver`, which checks and counts
  every chunk. The measurement ends when the last chunk is recorded as delivered. The baseline is a COPY of the same
  sessions to a file, with the columns that the delivery reads.
- Sums: the baseline is the same sum in plain SQL.
- Opens: the baseline is the same load with only one cut and one sweep per hour.

`--delivery` measures only the delivery. `--sessions` changes the number of sessions, and `--pairs` the number of
measurements of the delivery.
"""

import argparse
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

from bench import PAIRS, Postgres, Service, check_bar, median, postgres, service, wrk
from submissions import MEGABYTE, receiver
from tenure.domain.usage import CutRules
from tenure.ids import new_id
from tenure.store.engines import open_store

LIVE = 1_000_000
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FACTORS = (1_000_000, 2_000_000, 3_000_000)
HOUR_MICROSECONDS = 3_600_000_000
CUTS = 20

# A session that starts later has a greater id, as in the service.
ROWS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, kind, state, lapse_reason)
SELECT (lpad(to_hex((extract(epoch FROM s) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid,
       ('00000000-0000-4000-8000-' || lpad(to_hex(n % 1000), 12, '0'))::uuid,
       ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       ('00000000-0000-4000-9000-' || lpad(to_hex(n % 5000), 12, '0'))::uuid,
       s, s + interval '30 days', s + interval '30 days', s + interval '30 days', s,
       n % 3 + 1, 'created', 'EXPIRED'
  FROM (SELECT n, now() - (:sessions - n)::bigint * :apart * interval '1 microsecond' AS s
          FROM generate_series(1, :sessions) AS n) AS made;
UPDATE installation SET created_at = now() - interval '31 days', last_cut_at = date_trunc('second', now());
VACUUM ANALYZE;
CHECKPOINT;
"""
COLUMNS = "session_id, user_object_id, tenant_object_id, capacity_id, kind, started_at, deadline_at, closed_at"
PLAIN_SUM = """
SELECT tenant_object_id,
       sum(round(kind * extract(epoch FROM least(coalesce(closed_at, deadline_at), now())
                                           - greatest(started_at, now() - interval '30 days')) / 2592000, 6)), count(*)
  FROM sessions
 WHERE started_at < now() AND coalesce(closed_at, deadline_at) > now() - interval '30 days'
 GROUP BY tenant_object_id ORDER BY tenant_object_id
"""


async def create_filled(server: Postgres, name: str, sessions: int = LIVE) -> str:
    """Creates a database with this many live sessions, started in the last 23 days, and returns its URL."""
    url = server.create_database(name)
    store = open_store(url, 4)
    await store.migrate()
    await store.close()
    variables = f"\\set sessions {sessions}\n\\set apart {2_000_000 * LIVE // sessions}\n"
    server.sql(name, variables + ROWS)
    return url


def copy(server: Postgres, name: str) -> float:
    """Copies the sessions to a file. Returns the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the server may run as another user
        began = time.monotonic()
        server.sql(name, f"COPY (SELECT {COLUMNS} FROM sessions) TO '{folder}/sessions'")
        return time.monotonic() - began


def request_json(running: Service, path: str, method: str = "GET") -> dict:
    request = urllib.request.Request(f"{running.address}{path}", method=method)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


@contextlib.contextmanager
def sampled_memory(pid: int) -> Iterator[list[int]]:
    """Samples the resident memory of a process ten times per second."""
    process, sizes, stopped = psutil.Process(pid), [], threading.Event()

    def sample() -> None:
        while not stopped.wait(0.1):
            sizes.append(process.memory_info().rss)

    sizes.append(process.memory_info().rss)
    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield sizes
    finally:
        stopped.set()
        sampler.join()


def deliver(running: Service, sessions: int = LIVE) -> float:
    """Runs the job `emit-usage`. Returns the seconds until its whole window is delivered."""
    began = time.monotonic()
    before = request_json(running, "/usage/windows?limit=1")["windows"]
    last = before[0]["windowId"] if before else 0
    request_json(running, "/jobs/emit-usage/run", "POST")
    while True:
        newest = request_json(running, "/usage/windows?limit=1")["windows"]
        if newest and newest[0]["windowId"] > last and newest[0]["deliveredAt"] is not None:
            break
        time.sleep(0.05)
    if newest[0]["sessions"] != sessions:
        raise AssertionError(f"the window has {newest[0]['sessions']} sessions")
    return time.monotonic() - began


def measure_delivery(server: Postgres, sessions: int = LIVE, pairs: int = PAIRS) -> tuple[float, float, float]:
    """Returns the median ratio to COPY, the longest delivery in seconds and the largest growth of memory in MB."""
    url = asyncio.run(create_filled(server, "delivered", sessions))
    os.environ["TENURE_JOBS__EMIT_USAGE__INTERVAL_SECONDS"] = "1"
    os.environ["TENURE_JOBS__EMIT_USAGE__PAUSED"] = "true"
    ratios, times, grown = [], [], []
    with receiver() as port:
        os.environ["TENURE_GATEWAYS__USAGES__URL"] = f"http://127.0.0.1:{port}/usages"
        os.environ["TENURE_GATEWAYS__USAGES__SECRET"] = SECRET
        with service(url, workers=1) as running:
            for number in range(1, pairs + 1):
                base = copy(server, "delivered")
                with sampled_memory(running.process.pid) as sizes:
                    seconds = deliver(running, sessions)
                times.append(seconds)
                ratios.append(seconds / base)
                grown.append((max(sizes) - sizes[0]) / MEGABYTE)
                print(f"  pair {number}: {seconds:.1f} s against {base:.2f} s = {ratios[-1]:.1f}, {grown[-1]:.0f} MB")
    del os.environ["TENURE_GATEWAYS__USAGES__URL"], os.environ["TENURE_GATEWAYS__USAGES__SECRET"]
    return median(ratios), max(times), max(grown)


async def measure_cut(url: str) -> float:
    """Returns the median time in ms of a whole cut. The cut holds its lock for a shorter time."""
    store = open_store(url, 10)
    fence = (await store.acquire_lease("bench", "me", new_id(), HOUR_MICROSECONDS)).lease.fence
    times = []
    for _ in range(CUTS):
        await asyncio.sleep(0.05)
        began = time.monotonic()
        cut = await store.cut_usage(fence, CutRules(1000, FACTORS, None), 128)
        times.append((time.monotonic() - began) * 1000)
        if cut.windows == 0:
            raise AssertionError("the cut created no window")
    await store.close()
    return median(times)


def measure_opens(server: Postgres, name: str, interval: str) -> float:
    """Returns the p99 in ms of opens, with cuts and sweeps at this interval in seconds."""
    os.environ["TENURE_JOBS__EMIT_USAGE__PAUSED"] = "false"
    for job in ("EMIT_USAGE", "EXPIRE_SESSIONS"):
        os.environ[f"TENURE_JOBS__{job}__INTERVAL_SECONDS"] = interval
    with service(server.create_database(name)) as running:
        wrk(running.address, "created", 3)
        load = wrk(running.address, "created", 10)
    print(f"  cuts and sweeps every {interval} s: {load.per_second:.0f} opens per second, p99 {load.p99_ms:.1f} ms")
    return load.p99_ms


async def sum_in_plain_sql(url: str) -> float:
    """Runs the baseline. Returns the seconds."""
    connection = await asyncpg.connect(url, server_settings={"jit": "off"})
    began = time.monotonic()
    rows = await connection.fetch(PLAIN_SUM)
    seconds = time.monotonic() - began
    await connection.close()
    if len(rows) != 1000:
        raise AssertionError(f"the sum has {len(rows)} tenants")
    return seconds


def measure_sum(url: str) -> float:
    """Returns the median ratio of the time of `GET /usage` to the time of the sum in plain SQL."""
    ratios = []
    with service(url, workers=1) as running:
        for number in range(1, PAIRS + 1):
            base = asyncio.run(sum_in_plain_sql(url))
            began = time.monotonic()
            usage = request_json(running, "/usage?groupBy=tenant&limit=500")
            seconds = time.monotonic() - began
            if usage["count"] != 500:
                raise AssertionError(f"the response has {usage['count']} groups")
            ratios.append(seconds / base)
            print(f"  pair {number}: {seconds:.2f} s against {base:.2f} s = {ratios[-1]:.2f}")
    return median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=LIVE)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--delivery", action="store_true")
    options = parser.parse_args()
    with postgres() as server:
        ratio, slowest, grown = measure_delivery(server, options.sessions, options.pairs)
        if options.delivery:
            print(f"  median {ratio:.1f}, slowest {slowest:.1f} s, {grown:.0f} MB")
            return
        url = server.url("delivered")
        cut = asyncio.run(measure_cut(url))
        sums = measure_sum(url)
        pairs = [(measure_opens(server, "often", "1"), measure_opens(server, "seldom", "3600")) for _ in range(3)]
    check_bar("delivery of a million sessions, against COPY", ratio, 4, at_most=True)
    check_bar("delivery, slowest", slowest, 30, "s", at_most=True)
    check_bar("delivery, memory", grown, 100, "MB", at_most=True)
    check_bar("cut", cut, 20, "ms", at_most=True)
    check_bar("sum over a month by tenant, against plain SQL", sums, 3, at_most=True)
    check_bar("opens with cuts and sweeps every second, p99", median([a / b for a, b in pairs]), 3, at_most=True)


if __name__ == "__main__":
    main()
