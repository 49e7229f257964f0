"""An ensemble: the statements that ten idle instances send, the time until another instance leads after the leader was
stopped, and the number of calls to the database that acquire and release a lease.

Each call of Tenure to the database is one statement in one transaction, so PostgreSQL's number of transactions is the
number of statements.
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

from bench import Postgres, Service, check_bar, median, postgres, service
from tenure.ids import new_id
from tenure.store.contract import Store
from tenure.store.engines import open_store

INSTANCES = 10
SECONDS = 60
HAND_OVERS = 5
LEASE_ROUNDS = 50
STATISTICS_DELAY_SECONDS = 12
"""After this time, PostgreSQL's statistics include the transactions of idle connections."""
LEASE_MICROSECONDS = 60_000_000
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'idle'"
LEASE = "submission-executor"


def transactions(server: Postgres) -> int:
    return int(server.sql("postgres", TRANSACTIONS))


def idle_statements(server: Postgres) -> float:
    """Returns the statements per second and instance."""
    time.sleep(STATISTICS_DELAY_SECONDS)
    before = transactions(server)
    time.sleep(SECONDS)
    return (transactions(server) - before) / SECONDS / INSTANCES


def leader(running: Service) -> str:
    with urllib.request.urlopen(f"{running.address}/leases") as response:
        leases = json.load(response)["leases"]
    return next((lease["holder"] for lease in leases if lease["name"] == LEASE and lease["held"]), "")


def hand_over(instances: list[Service]) -> float:
    """Stops the leader. Returns the seconds from the signal until another instance leads."""
    previous = leader(instances[0])
    pid = re.search(r"-(\d+)-\w+$", previous)
    stopped = next(instance for instance in instances if str(instance.process.pid) == (pid and pid[1]))
    instances.remove(stopped)
    began = time.monotonic()
    stopped.process.send_signal(signal.SIGTERM)
    while leader(instances[0]) in ("", previous):
        time.sleep(0.005)
    seconds = time.monotonic() - began
    stopped.process.wait(20)
    return seconds


async def round_trips(url: str) -> float:
    """Returns how many calls to the database acquire and release a free lease once."""
    store = open_store(url, 10)
    await store.migrate()
    await _acquire_and_release(store)  # prepares the statements
    calls = Counter[str]()
    with patch.object(asyncpg.Connection, "fetch", _count_calls(asyncpg.Connection.fetch, calls)):
        for _ in range(LEASE_ROUNDS):
            await _acquire_and_release(store)
    await store.close()
    return calls.total() / LEASE_ROUNDS


def _count_calls(fetch: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    async def counting_fetch(connection: asyncpg.Connection, statement: str, *arguments: Any) -> Any:
        calls[statement] += 1
        return await fetch(connection, statement, *arguments)

    return counting_fetch


async def _acquire_and_release(store: Store) -> None:
    acquired = await store.acquire_lease("bench", "me", new_id(), LEASE_MICROSECONDS)
    await store.release_lease(acquired.lease.fence)


def main() -> None:
    with postgres() as server:
        trips = asyncio.run(round_trips(server.create_database("idle")))
        with contextlib.ExitStack() as stack:
            url = server.create_database("idle")
            instances = [stack.enter_context(service(url, workers=1)) for _ in range(INSTANCES)]
            statements = idle_statements(server)
            hand_overs = [hand_over(instances) for _ in range(HAND_OVERS)]
    print(f"  hand-overs: {', '.join(f'{seconds * 1000:.0f} ms' for seconds in hand_overs)}")
    check_bar("acquire and release of a free lease", trips, 3, "round trips", at_most=True)
    check_bar("an idle ensemble of ten instances, statements per instance", statements, 5, "per second", at_most=True)
    check_bar("hand-over after a clean stop", median(hand_overs), 1.5, "s", at_most=True)


if __name__ == "__main__":
    main()
