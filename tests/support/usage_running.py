"""Instances that cut and send usage every second, users that open and end sessions, and clocks that jump by days."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from tenure.domain.jobs import JobCommand
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.deliveries import TIMING, Fleet, gateways, poll
from tests.support.expected_usage import find_usage_faults, run_audit
from tests.support.instances import RunningInstance
from tests.support.load import Client, Key, some_keys
from tests.support.waiting import Logged, all_logs

DELIVERED_WITHIN_SECONDS = 40
USERS = 4
KEYS = 100
PAUSE_SECONDS = 0.03
END_SHARE = 0.3
MICROSECOND = timedelta(microseconds=1)
CUTTING = {
    **TIMING,
    "TENURE_JOBS__EMIT_USAGE__INTERVAL_SECONDS": "1",
    "TENURE_JOBS__EMIT_USAGE__LOCK_TIMEOUT_SECONDS": "2",
    "TENURE_USAGE__FACTORS__1": "1000",
    "TENURE_USAGE__FACTORS__2": "31415.926535",
    "TENURE_USAGE__FACTORS__3": "1000000",
}
"""High factors, so that the usage of a second is above zero."""
SHORT_SCHEDULE = {"schedule": [0.2, 0.5, 1], "timeout_seconds": 5}


def cutting_environment(address: str, secret: str | None = None, **environment: str) -> dict[str, str]:
    gateway = {"url": address, **SHORT_SCHEDULE} | ({} if secret is None else {"secret": secret})
    return {**CUTTING, **environment, **gateways(usages=gateway)}


def instance_of(fleet: Fleet, pid: int) -> RunningInstance:
    (instance,) = [each for each in fleet.running if each.process.pid == pid]
    return instance


# Users


@asynccontextmanager
async def session_load(addresses: Sequence[str], seed: int) -> AsyncIterator[None]:
    """Opens, upgrades and ends sessions, each on a random instance, until the block exits."""
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(USERS):
            tasks.create_task(_use(addresses, some_keys(KEYS, seed), random.Random(seed + number), stopping))
        try:
            yield
        finally:
            stopping.set()


async def _use(addresses: Sequence[str], keys: Sequence[Key], source: random.Random, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        client, key = Client(source.choice(addresses), []), source.choice(keys)
        opened = await client.open(key, source.choice((1, 2, 3)))
        if opened.status in (200, 201) and source.random() < END_SHARE:
            await client.end(key, opened.answer["sessionId"])
        client.close()
        await asyncio.sleep(PAUSE_SECONDS)


async def open_some(instance: RunningInstance, count: int, seed: int) -> list[str]:
    """Opens sessions of all kinds and returns their ids."""
    client = Client(instance.address, [])
    opened = [await client.open(key, 1 + number % 3) for number, key in enumerate(some_keys(count, seed))]
    client.close()
    assert {each.status for each in opened} == {201}, opened
    return [each.answer["sessionId"] for each in opened]


# The end


async def windows_delivered(database: Database, count: int, processes: Sequence[Logged], after: int = 0) -> None:
    """Waits until at least `count` windows with sessions, after window `after`, are delivered."""

    async def enough() -> bool:
        (row,) = await database.rows(
            "SELECT count(*) AS count FROM usage_windows "
            f"WHERE delivered_at IS NOT NULL AND sessions > 0 AND window_id > {after}"
        )
        return bool(row["count"] >= count)

    await poll(enough, DELIVERED_WITHIN_SECONDS, f"{count} windows are delivered", processes)


async def last_window(database: Database) -> int:
    (row,) = await database.rows("SELECT max(window_id) AS last FROM usage_windows")
    return row["last"] or 0


async def settle(database: Database, instances: Sequence[RunningInstance]) -> None:
    """Waits until all windows are delivered, and pauses the job `emit-usage`, which cuts windows. Then waits until the
    windows that were cut in the meantime are delivered too.
    """
    await _all_delivered(database, f"window_id <= {await last_window(database)}", instances)
    await database.store.command_job("emit-usage", JobCommand.PAUSE, ACTOR)
    await poll(lambda: _no_run_is_open(database, instances), DELIVERED_WITHIN_SECONDS, "no run is open", instances)
    await _all_delivered(database, "window_id > 0", instances)


async def _no_run_is_open(database: Database, instances: Sequence[RunningInstance]) -> bool:
    """Whether all runs of living instances have ended. Ignores runs of killed instances, because these stay open."""
    rows = await database.rows("SELECT holder FROM job_runs WHERE job = 'emit-usage' AND ended_at IS NULL")
    alive = {instance.process.pid for instance in instances if instance.process.poll() is None}
    return alive.isdisjoint(int(row["holder"].split("-")[-2]) for row in rows)


async def _all_delivered(database: Database, which: str, processes: Sequence[Logged]) -> None:
    async def none_is_undelivered() -> bool:
        (row,) = await database.rows(
            f"SELECT count(*) AS count FROM usage_windows WHERE delivered_at IS NULL AND {which}"
        )
        return bool(row["count"] == 0)

    await poll(none_is_undelivered, DELIVERED_WITHIN_SECONDS, "every window is delivered", processes)


async def assert_billed_once(database: Database, ledger: Path, fleet: Fleet, context: str = "") -> None:
    """Stops the instances, and asserts that all usage is correct to the last digit and that `tenure audit` agrees."""
    await settle(database, fleet.all)
    await fleet.stop()
    wrong = await find_usage_faults(database, ledger)
    assert wrong == [], f"{context}\n{wrong}\n{all_logs(fleet.all)}"
    audited = await run_audit(database, ledger)
    assert audited.returncode == 0, f"{context}\n{audited.stdout}{audited.stderr}\n{all_logs(fleet.all)}"
    assert fleet.logged("usage.withheld") == [], all_logs(fleet.all)


# Clocks


class Shift:
    """Sets the database's clock ahead for all instances. The clock keeps running. On SQLite, this is the clock of the
    instances.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._by = timedelta()

    async def install(self) -> dict[str, str]:
        """Makes the clock movable, and returns the environment for the instances."""
        if self._database.engine == "sqlite":
            await self._move()
            return _shifting(self._folder)
        await self._database.execute("CREATE TABLE test_shift AS SELECT interval '0' AS ahead")
        await self._database.execute(
            "CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
            "AS 'SELECT clock_timestamp() + (SELECT ahead FROM test_shift)'"
        )
        return {}

    async def ahead(self, **by: float) -> None:
        self._by += timedelta(**by)
        await self._move()

    async def _move(self) -> None:
        if self._database.engine == "sqlite":
            path = self._folder / "shift"
            path.with_suffix(".new").write_text(str(self._by // MICROSECOND))
            path.with_suffix(".new").replace(path)
        else:
            seconds = self._by.total_seconds()
            await self._database.execute(f"UPDATE test_shift SET ahead = make_interval(secs => {seconds})")


def _shifting(folder: Path) -> dict[str, str]:
    """Returns environment variables that make instances add the microseconds in a file to the host's clock."""
    code = folder / "shifting"
    code.mkdir()
    (code / "sitecustomize.py").write_text(
        "import pathlib\nimport tenure.clock as c\nreal = c.wall_microseconds\n"
        f"c.wall_microseconds = lambda: real() + int(pathlib.Path({str(folder / 'shift')!r}).read_text())\n"
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))}
