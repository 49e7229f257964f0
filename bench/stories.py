"""What the console and `tenure explain` read, at a million sessions, on PostgreSQL and SQLite.

There is no yardstick: every read must take less than 100 ms, however many sessions there are.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import check_bar, median, postgres

sys.path.insert(0, str(Path(__file__).parent.parent))
from sqlalchemy import insert

from tenure.clock import from_microseconds
from tenure.domain.history import View, facts_of
from tenure.domain.scope import EVERYTHING
from tenure.ids import new_id
from tenure.store.engines import open_store
from tenure.store.reads.submissions import contract_text
from tenure.store.tables import installation, sessions, usage_chunks, usage_eras, usage_windows
from tests.support.databases import Database, PostgresClock, sqlite_store
from tests.support.rows import fill_postgres, fill_sqlite
from tests.support.usage import CONTRACT, session_between

ROUNDS = 7
MINUTE_MICROSECONDS = 60_000_000
WINDOWS = 30 * 24 * 60
"""A session of 30 days, billed every minute."""
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
    """Inserts a session of 30 days with its windows and chunks, the last ones undelivered. Returns its id."""
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
    """The milliseconds of each read."""
    session_id = await fill_windows(database, waiting=200)

    async def read_history() -> None:
        history = await database.store.read_history(session_id, EVERYTHING, ALL, None)
        assert history is not None
        facts_of(history)

    reads = {f"history, {WINDOWS} windows": read_history}
    return {f"{name}, {read}": await took_ms(call) for read, call in reads.items()}


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
    for name, milliseconds in found.items():
        print(f"  {milliseconds:6.1f} ms  {name}")
    check_bar(f"reads of the console, slowest of {count} sessions", max(found.values()), 100, "ms", at_most=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sessions", type=int, default=1_000_000)
    asyncio.run(main(arguments.parse_args().sessions))
