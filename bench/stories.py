"""The reads of the console and of `tenure explain`, at a million sessions, on PostgreSQL and SQLite.

The reads are not compared with a baseline: every read must take less than 100 ms. On PostgreSQL, the benchmark also
measures the latency of opens while an action of `POST /sessions/end` ends 12 000 sessions.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from bench import check_bar, median, postgres, service, wrk

sys.path.insert(0, str(Path(__file__).parent.parent))
from sqlalchemy import insert

from tenure.clock import from_microseconds
from tenure.domain.history import View, facts_of
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import SessionFilter
from tenure.ids import new_id
from tenure.store.engines import open_store
from tenure.store.reads.submissions import contract_text
from tenure.store.tables import installation, sessions, usage_chunks, usage_eras, usage_windows
from tests.plans.test_lists import hashed
from tests.support.databases import Database, PostgresClock, sqlite_store
from tests.support.rows import fill_postgres, fill_sqlite
from tests.support.usage import CONTRACT, session_between

ROUNDS = 7
LIMIT = 101
TO_END = 12_000
MINUTE_MICROSECONDS = 60_000_000
WINDOWS = 30 * 24 * 60
"""How many windows a session of 30 days is in, if the job `emit-usage` cuts a window every minute."""
CHUNKS = 4
ALL = View(audit=True, usage=True, deliveries=True)


async def took_ms(call: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await call()
        times.append((time.perf_counter() - began) * 1000)
    return median(times)


async def fill_windows(database: Database, waiting: int) -> str:
    """Inserts a session of 30 days with its windows and chunks. The last `waiting` windows are not delivered.

    Returns the id of the session.
    """
    now = int(time.time()) * 1_000_000 // MINUTE_MICROSECONDS * MINUTE_MICROSECONDS
    start = now - WINDOWS * MINUTE_MICROSECONDS
    session = session_between(from_microseconds(start + 7), from_microseconds(now + MINUTE_MICROSECONDS), closed=False)
    names = set(sessions.c.keys()) & set(session.__struct_fields__)
    windows, chunks = [], []
    for number in range(1, WINDOWS + 1):
        from_at, to_at = (from_microseconds(start + each * MINUTE_MICROSECONDS) for each in (number - 1, number))
        delivered_at = to_at if number <= WINDOWS - waiting else None
        windows.append(
            {
                "window_id": number,
                "installation_id": new_id(),
                "started_at": from_at,
                "ended_at": to_at,
                "cut_at": to_at,
                "chunked_at": to_at,
                "delivered_at": delivered_at,
                "usage_millionths": 1,
                "sessions": 1,
                "era": 1,
                "contract": contract_text(CONTRACT),
            }
        )
        chunks += [
            {
                "window_id": number,
                "chunk": chunk + 1,
                "sessions": 1,
                "first_session_id": f"{'048c'[chunk]}0000000-0000-0000-0000-000000000000",
                "last_session_id": f"{'37bf'[chunk]}fffffff-ffff-ffff-ffff-ffffffffffff",
                "delivered_at": delivered_at,
                "usage_millionths": 1,
            }
            for chunk in range(CHUNKS)
        ]

    def write(connection: Any) -> None:
        row = {name: getattr(session, name) for name in names}
        connection.execute(insert(sessions), [{**row, "check_at": session.deadline_at}])
        factors = {f"factor_{kind}": kind for kind in (1, 2, 3)}
        connection.execute(insert(usage_eras), [{"era": 1, "started_at": from_microseconds(start), **factors}])
        connection.execute(insert(usage_windows), windows)
        connection.execute(insert(usage_chunks), chunks)
        connection.execute(installation.update().values(last_window_id=WINDOWS, last_cut_at=from_microseconds(now)))
        connection.commit()

    await database.run_sync(write)
    return session.session_id


async def measure(database: Database, name: str) -> dict[str, float]:
    """Returns the milliseconds of each read, by the name of the engine and of the read."""
    store = database.store
    session_id = await fill_windows(database, waiting=200)
    if name == "PostgreSQL":
        # In a real installation, autovacuum soon vacuums and analyses these tables.
        for table in ("usage_windows", "usage_chunks"):
            await database.execute(f"VACUUM ANALYZE {table}")

    async def read_history() -> None:
        history = await store.read_history(session_id, EVERYTHING, ALL, None)
        assert history is not None
        facts_of(history)

    sqlite = name == "SQLite"
    capacity = "00000000-0000-4000-8000-00000000000c" if sqlite else hashed("c0")
    tenant = "00000007-0000-4000-8000-00000000000a" if sqlite else hashed("t7")
    filters = {
        "all": SessionFilter(),
        "live": SessionFilter(active=True),
        "a big capacity": SessionFilter(capacity=capacity, active=True),
        "a tenant": SessionFilter(tenant=tenant, active=True),
        "a tenant on a big capacity": SessionFilter(tenant=tenant, capacity=capacity, kind=2, active=True),
    }
    reads: dict[str, Callable[[], Awaitable[Any]]] = {f"history, {WINDOWS} windows": read_history}
    for what, criteria in filters.items():
        reads[f"next to lapse, {what}"] = partial(store.list_next_lapses, criteria, None, LIMIT, EVERYTHING)
        reads[f"count, {what}"] = partial(store.count_matches, criteria, EVERYTHING)
    return {f"{name}, {read}": await took_ms(call) for read, call in reads.items()}


def measure_opens_during_end(url: str) -> float:
    """Returns the p99 in ms of opens while an action ends TO_END sessions of one capacity."""
    capacity = "00000000-0000-4000-8000-0000000000ee"
    with service(url) as running:
        body = ROWS.format(capacity=capacity, count=TO_END)
        asyncio.run(_execute(url, body))
        wrk(running.address, "created", 2)
        ending = threading.Thread(target=end_all, args=(running.address, capacity))
        ending.start()
        load = wrk(running.address, "created", 5)
        ending.join()
        print(f"  {load.per_second:.0f} opens per second, p50 {load.p50_ms:.1f} ms, {load.errors} errors")
    return load.p99_ms


ROWS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, kind, state, lapse_reason)
SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), '{capacity}', now(), now() + interval '30 days',
       now() + interval '30 days', now() + interval '30 days', now(), 1, 'created', 'EXPIRED'
  FROM generate_series(1, {count}) AS n;
"""


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


def end_all(address: str, capacity: str) -> None:
    began, calls, answer = time.monotonic(), 0, {"actionId": new_id(), "done": False}
    while not answer["done"]:
        body = json.dumps({"capacity": capacity, "actionId": answer["actionId"]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/sessions/end", body, headers, method="POST")
        with urllib.request.urlopen(request) as response:
            answer, calls = json.load(response), calls + 1
    print(f"  {answer['totalEnded']} sessions ended in {time.monotonic() - began:.1f} s by {calls} requests")


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tenure.db"
        database = Database(f"sqlite:///{path}", *sqlite_store(path))
        await database.store.migrate()
        await fill_sqlite(database, count)
        found = await measure(database, "SQLite")
        await database.close()
    with postgres() as server:
        url = server.create_database("stories")
        database = Database(url, open_store(url, 10), PostgresClock(url))
        await database.store.migrate()
        await fill_postgres(url, count)
        found |= await measure(database, "PostgreSQL")
        await database.close()
        p99 = await asyncio.to_thread(measure_opens_during_end, url)
    for name, milliseconds in found.items():
        print(f"  {milliseconds:6.1f} ms  {name}")
    check_bar(f"reads of the console, slowest of {count} sessions", max(found.values()), 100, "ms", at_most=True)
    check_bar(f"opens while {TO_END} sessions are ended, p99", p99, 50, "ms", at_most=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sessions", type=int, default=1_000_000)
    asyncio.run(main(arguments.parse_args().sessions))
