"""An ensemble that does nothing: what ten instances cost the database, and how soon another one leads.

Every call of Tenure is a transaction of its own, so PostgreSQL's count of transactions is the count of its statements.
"""

import asyncio
import contextlib
import json
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import asyncpg

from bench import Postgres, Service, median, postgres, service, verdict
from tenure.ids import new_id
from tenure.store import Store
from tenure.store.engines import open_store

INSTANCES = 10
SECONDS = 60
HAND_OVERS = 5
ROUNDS = 50
COUNTED_SECONDS = 12
"""After which PostgreSQL has surely added what an idle connection did to its counts."""
DURATION = 60_000_000
COUNT = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'idle'"
LEASE = "submission-executor"


def transactions(server: Postgres) -> int:
    return int(
        server.sql("postgres", "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'idle'")
    )


def idle(server: Postgres) -> float:
    """Statements a second and instance."""
    time.sleep(COUNTED_SECONDS)
    before = transactions(server)
    time.sleep(SECONDS)
    return (transactions(server) - before) / SECONDS / INSTANCES


def leader(running: Service) -> str:
    with urllib.request.urlopen(f"{running.address}/leases") as answer:
        leases = json.load(answer)["leases"]
    return next((lease["holder"] for lease in leases if lease["name"] == LEASE and lease["held"]), "")


def hand_over(instances: list[Service]) -> float:
    """Seconds from the signal until another one leads."""
    led = leader(instances[0])
    pid = re.search(r"-(\d+)-\w+$", led)
    stopped = next(each for each in instances if str(each.process.pid) == (pid and pid[1]))
    instances.remove(stopped)
    began = time.monotonic()
    stopped.process.send_signal(signal.SIGTERM)
    while leader(instances[0]) in ("", led):
        time.sleep(0.005)
    seconds = time.monotonic() - began
    stopped.process.wait(20)
    return seconds


async def round_trips(url: str) -> float:
    """Messages that are answered, for one acquire and one release of a free lease."""
    store = open_store(url, 10)
    await store.migrate()
    await _take_and_release(store)  # prepares the statements
    sent = Counter[str]()
    with patch.object(asyncpg.Connection, "fetch", _counted(asyncpg.Connection.fetch, sent)):
        for _ in range(ROUNDS):
            await _take_and_release(store)
    await store.close()
    return sent.total() / ROUNDS


def _counted(fetch: Callable[..., Any], sent: Counter[str]) -> Callable[..., Any]:
    async def counted(connection: asyncpg.Connection, statement: str, *arguments: Any) -> Any:
        sent[statement] += 1
        return await fetch(connection, statement, *arguments)

    return counted


async def _take_and_release(store: Store) -> None:
    acquired = await store.acquire_lease("bench", "me", new_id(), DURATION)
    await store.release_lease(acquired.lease.fence)


def main() -> None:
    with postgres() as server:
        trips = asyncio.run(round_trips(server.fresh("idle")))
        with contextlib.ExitStack() as stack:
            url = server.fresh("idle")
            instances = [stack.enter_context(service(url, workers=1)) for _ in range(INSTANCES)]
            statements = idle(server)
            hand_overs = [hand_over(instances) for _ in range(HAND_OVERS)]
    print(f"  hand-overs: {', '.join(f'{seconds * 1000:.0f} ms' for seconds in hand_overs)}")
    verdict("acquire and release of a free lease", trips, 3, "round trips", at_most=True)
    verdict("statements of an idle instance of ten", statements, 5, "a second", at_most=True)
    verdict("hand-over after a clean stop", median(hand_overs), 1.5, "s", at_most=True)


if __name__ == "__main__":
    main()
