"""Measures pages of the list of sessions, for every filter and pair of filters: the first page and one in the middle.

The result has no baseline: the slowest page must take at most 50 ms, however many sessions there are.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from bench import check_bar, median, postgres

sys.path.insert(0, str(Path(__file__).parent.parent))
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import Position, SessionFilter
from tenure.ids import new_id
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tests.plans.test_lists import MIDDLE, VALUES, pairs
from tests.support.rows import fill_postgres

LIMIT = 101
ROUNDS = 3


async def page_ms(store: Store, criteria: SessionFilter, after: Position | None) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await store.list_sessions(criteria, after, LIMIT, EVERYTHING)
        times.append((time.perf_counter() - began) * 1000)
    return median(times)


async def measure(url: str, sessions: int) -> list[tuple[float, str]]:
    store = open_store(url, 10)
    await store.migrate()
    await fill_postgres(url, sessions)
    found = [
        (await page_ms(store, SessionFilter(**criteria), after), f"{criteria}{' from the middle' if after else ''}")
        for criteria in pairs(VALUES)
        for after in (None, Position(MIDDLE, new_id()))
    ]
    await store.close()
    return sorted(found, reverse=True)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sessions", type=int, default=1_000_000)
    sessions = arguments.parse_args().sessions
    with postgres() as server:
        found = asyncio.run(measure(server.create_database("lists"), sessions))
    for milliseconds, name in found[:10]:
        print(f"  {milliseconds:6.1f} ms  {name}")
    print(f"  {median([milliseconds for milliseconds, _ in found]):.1f} ms is the median of {len(found)} pages")
    check_bar(f"lists, slowest page of {sessions} sessions", found[0][0], 50, "ms", at_most=True)


if __name__ == "__main__":
    main()
