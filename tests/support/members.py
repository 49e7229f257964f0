"""Members of an ensemble: processes of their own that use Tenure as a library, with work that a test can look into.

What a member does is told in its log: `member.ready`, `work.begun`, `work.step`, `work.refused`, `work.done`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import asyncpg
import msgspec
import structlog

from tenure.config import LeasesConfig
from tenure.ensemble import Ensemble
from tenure.errors import LeaseLost
from tenure.jobs.jobs import ActiveRun
from tenure.leases.held import HeldLease
from tenure.logs import configure_logs
from tenure.model.leases import Fence
from tenure.store.engines import open_store
from tenure.store.engines.postgres.connections import SETTINGS, connect
from tenure.store.store import Store
from tests.support.terms import told

log = structlog.get_logger()

ROOT = Path(__file__).parents[2]
STEPS = "CREATE TABLE steps (epoch bigint, holder text, step int, at timestamptz DEFAULT clock_timestamp())"
CHECK = "SELECT tenure_check_fence_1($1, $2, $3)"
NOTE = "INSERT INTO steps (epoch, holder, step) VALUES ($2, $1, $3)"
POOL_SIZE = 4
END_SECONDS = 12

Right = ActiveRun | HeldLease
"""What work is done under: either has a fence."""


class Task(msgspec.Struct, kw_only=True):
    """A job, or with no interval a lease to lead under, and what is done."""

    name: str
    does: Literal["wait", "fail", "write", "write_late", "sweep"] = "wait"
    interval_seconds: float = 0.0
    lock_timeout_seconds: float = 2.0
    seconds: float = 0.0
    """How long it waits, or how long each step has its transaction open, or pauses."""
    pause_seconds: float = 0.05
    """Between two steps."""


class Orders(msgspec.Struct, kw_only=True):
    database: str
    tasks: list[Task]
    duration_seconds: float = 3.0
    refresh_seconds: float = 0.2


class Member:
    """One such process, as the test sees it."""

    def __init__(self, folder: Path, orders: Orders) -> None:
        self._log_path = folder / f"member-{time.monotonic_ns()}.log"
        with self._log_path.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.members", msgspec.json.encode(orders).decode()],
                stderr=file,
                cwd=ROOT,
                env=dict(os.environ),
            )

    def log(self) -> str:
        return self._log_path.read_text()

    def told(self, *events: str) -> list[dict[str, Any]]:
        return told(self.log(), *events)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_SECONDS)


@contextmanager
def members(folder: Path) -> Iterator[Callable[[Orders], Member]]:
    """Starts them, and leaves none behind."""
    started: list[Member] = []

    def start(orders: Orders) -> Member:
        started.append(Member(folder, orders))
        return started[-1]

    try:
        yield start
    finally:
        for member in started:
            member.kill()


# The program


class Worker:
    """Does what a task says, under whatever right it is given."""

    def __init__(self, orders: Orders, store: Store, task: Task) -> None:
        self._orders = orders
        self._store = store
        self._task = task

    async def work(self, right: Right) -> None:
        fence = right.fence
        log.info("work.begun", job=self._task.name, epoch=fence.epoch, holder=fence.holder)
        try:
            await getattr(self, f"_{self._task.does}")(right)
        except (LeaseLost, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            log.info("work.refused", job=self._task.name, epoch=fence.epoch, error=repr(error))
            raise
        except asyncio.CancelledError:
            log.info("work.cancelled", lease=fence.name, epoch=fence.epoch)
            raise
        log.info("work.done", job=self._task.name, epoch=fence.epoch)

    async def _wait(self, _right: Right) -> None:
        await asyncio.sleep(self._task.seconds)

    async def _fail(self, _right: Right) -> None:
        raise ValueError(f"{self._task.name} always fails")

    async def _write(self, right: Right) -> None:
        """Steps without end, each a transaction of the application's own that begins with the fence."""
        connection = await connect(self._orders.database, SETTINGS)
        try:
            for step in range(1_000_000):
                await self._write_step(connection, right, step)
                await asyncio.sleep(self._task.pause_seconds)
        finally:
            connection.terminate()

    async def _write_step(self, connection: asyncpg.Connection, right: Right, step: int) -> None:
        fence = right.fence
        async with connection.transaction():
            await connection.execute(CHECK, fence.name, fence.holder, fence.epoch)
            await connection.execute(NOTE, fence.holder, fence.epoch, step)
            log.info("work.step_open", epoch=fence.epoch, step=step)
            await asyncio.sleep(self._task.seconds)
        log.info("work.step", epoch=fence.epoch, step=step)

    async def _write_late(self, right: Right) -> None:
        """Steps whose fence is old when it is shown, and which go on though they are cancelled."""
        connection = await connect(self._orders.database, SETTINGS)
        for step in range(1_000_000):
            await asyncio.shield(asyncio.create_task(self._write_late_step(connection, right.fence, step)))

    async def _write_late_step(self, connection: asyncpg.Connection, fence: Fence, step: int) -> None:
        log.info("work.step_open", epoch=fence.epoch, step=step)
        await asyncio.sleep(self._task.seconds)
        try:
            async with connection.transaction():
                await connection.execute(CHECK, fence.name, fence.holder, fence.epoch)
                await connection.execute(NOTE, fence.holder, fence.epoch, step)
        except asyncpg.PostgresError as error:
            log.info("work.fenced_off", epoch=fence.epoch, step=step, sqlstate=error.sqlstate)
            raise
        log.info("work.step", epoch=fence.epoch, step=step)

    async def _sweep(self, right: Right) -> None:
        """Steps without end, each a fenced write of the store, for one lapsed session."""
        for step in range(1_000_000):
            swept = await self._store.expire_sessions(right.fence, 1)
            ended = [closing.session_id for closing in swept.closings]
            log.info("work.step", epoch=right.fence.epoch, step=step, ended=ended)
            await asyncio.sleep(self._task.pause_seconds)


async def run(orders: Orders) -> None:
    store = open_store(orders.database, POOL_SIZE)
    refresh = orders.refresh_seconds
    timing = LeasesConfig(
        duration_seconds=orders.duration_seconds,
        renew_seconds=orders.duration_seconds / 3,
        acquire_seconds=refresh,
        refresh_seconds=refresh,
    )
    ensemble = Ensemble(store, timing=timing)
    for task in orders.tasks:
        _add(ensemble, task, Worker(orders, store, task).work)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with ensemble:
        log.info("member.ready", holder=ensemble.holder)
        await stopping.wait()
    await store.close()


def _add(ensemble: Ensemble, task: Task, work: Callable[[Right], Awaitable[None]]) -> None:
    if task.interval_seconds:
        ensemble.add_job(
            task.name,
            work,
            interval_seconds=task.interval_seconds,
            lock_timeout_seconds=task.lock_timeout_seconds,
        )
    else:
        ensemble.lead(task.name, work)


if __name__ == "__main__":
    configure_logs()
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Orders)))
