"""Requests with an API key. Baseline: the same requests to a service without keys, on another database of one server.

At the end, ten thousand different keys are used in turn by an authenticator alone, to show what its cache takes.
"""

import argparse
import asyncio
import subprocess
import sys
import tracemalloc

from bench import SECONDS, check_bar, measure_pairs, postgres, service, wrk
from heartbeats import SESSIONS
from tenure.access.authenticator import CACHE_MAX, Authenticator
from tenure.domain.audit_log import Actor
from tenure.domain.keys import NewKey, Role, new_api_key
from tenure.store.engines import open_store
from tenure.telemetry.events import Telemetry

KEYS = 10_000


def create_key(database: str) -> str:
    command = [*(sys.executable, "-m", "tenure", "keys", "create"), "--name", "bench", "--role", "client"]
    return subprocess.run([*command, "--database", database], check=True, capture_output=True, text=True).stdout.strip()


async def cache_megabytes(database: str) -> float:
    """Returns how much memory the authenticator needs after each of KEYS keys was used once."""
    store = open_store(database, 4)
    try:
        keys = [new_api_key(Role.CLIENT) for _ in range(KEYS)]
        for number, key in enumerate(keys):
            new = NewKey(public_id=key.public_id, name=f"key-{number}", role=key.role, digest=key.digest)
            await store.create_key(new, Actor("bench", "bench"))
        authenticator = Authenticator(store, Telemetry(), 300.0)
        await authenticator.refresh()
        values = [(b"authorization", f"Bearer {key.text}".encode()) for key in keys]
        tracemalloc.start()
        for header in values:
            # The cache is trusted for two seconds after a read of the version.
            await authenticator.refresh()
            await asyncio.gather(authenticator.identify([header]))  # type: ignore[arg-type]
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    finally:
        await store.close()
    return used / 1e6


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--seconds", type=int, default=SECONDS)
    given = arguments.parse_args()
    with postgres() as server:
        open_url, closed_url = server.create_database("open"), server.create_database("closed")
        key = create_key(closed_url)
        with service(open_url) as without, service(closed_url) as with_key:
            for database in ("open", "closed"):
                server.sql(database, SESSIONS)
            ratios = {}
            for script in ("created", "heartbeat"):
                wrk(without.address, script, 2)
                wrk(with_key.address, script, 2, key=key)
                ratios[script], loads = measure_pairs(
                    lambda script=script: wrk(with_key.address, script, given.seconds, key=key),  # type: ignore[misc]
                    lambda script=script: wrk(without.address, script, given.seconds).per_second,  # type: ignore[misc]
                    given.pairs,
                )
                if any(load.errors for load in loads):
                    sys.exit("some requests with the key were refused")
        megabytes = asyncio.run(cache_megabytes(closed_url))
    check_bar("created with a key", ratios["created"], 0.95)
    check_bar("heartbeats with a key", ratios["heartbeat"], 0.95)
    check_bar(f"cache of {KEYS} keys, of at most {CACHE_MAX}", megabytes, 20, "MB", at_most=True)


if __name__ == "__main__":
    main()
