"""Members of an ensemble: processes that use Tenure as a library and log each step of their work.

The events are `member.ready`, `work.begun`, `work.step_open`, `work.step`, `work.fenced_off`, `work.refused`,
`work.cancelled` and `work.done`.
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
from tenure.domain.leases import Fence
from tenure.ensemble import Ensemble
from tenure.errors import LeaseLost
from tenure.jobs.job import ActiveRun
from tenure.leases.held import HeldLease
from tenure.store.contract import Store
from tenure.store.engines import open_store
from tenure.store.engines.postgres.connections import SETTINGS, connect
from tenure.telemetry.logs import configure_logs
from tests.support.terms import logged

log = structlog.get_logger()

ROOT = Path(__file__).parents[2]
STEPS = "CREATE TABLE steps (epoch bigint, holder text, step int, at timestamptz DEFAULT clock_timestamp())"
CHECK = "SELECT tenure_check_fence_1($1, $2, $3)"
NOTE = "INSERT INTO steps (epoch, holder, step) VALUES ($2, $1, $3)"
POOL_SIZE = 4
END_SECONDS = 12

Held = ActiveRun | HeldLease
"""A job run or a held lease. Both have a fence."""


class Task(msgspec.Struct, kw_only=True):
    """The work of a job, or of a leadership if `interval_seconds` is not set."""

    name: str
    does: Literal["wait", "fail", "write", "write_late", "sweep"] = "wait"
    interval_seconds: float = 0.0
    lock_timeout_seconds: float = 2.0
    seconds: float = 0.0
    """How long `wait` takes, how long a step of `write` keeps its transaction open, or how long a step of `write_late`
    waits before its transaction.
    """
    pause_seconds: float = 0.05
    """The pause between two steps of `write` or `sweep`."""


class MemberConfig(msgspec.Struct, kw_only=True):
    database: str
    tasks: list[Task]
    duration_seconds: float = 3.0
    refresh_seconds: float = 0.2


class Member:
    """The handle of one member process."""

    def __init__(self, folder: Path, config: MemberConfig) -> None:
        self._log_path = folder / f"member-{time.monotonic_ns()}.log"
        with self._log_path.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.members", msgspec.json.encode(config).decode()],
                stderr=file,
                cwd=ROOT,
                env=dict(os.environ),
            )

    def log(self) -> str:
        return self._log_path.read_text()

    def logged(self, *events: str) -> list[dict[str, Any]]:
        return logged(self.log(), *events)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_SECONDS)


@contextmanager
def members(folder: Path) -> Iterator[Callable[[MemberConfig], Member]]:
    """Starts members, and kills all of them on exit."""
    started: list[Member] = []

    def start(config: MemberConfig) -> Member:
        started.append(Member(folder, config))
        return started[-1]

    try:
        yield start
    finally:
        for member in started:
            member.kill()


# The program


class Worker:
    """Does the work of a task, in a run of a job or as the leader."""

    def __init__(self, config: MemberConfig, store: Store, task: Task) -> None:
        self._config = config
        self._store = store
        self._task = task

    async def work(self, held: Held) -> None:
        fence = held.fence
        log.info("work.begun", job=self._task.name, epoch=fence.epoch, holder=fence.holder)
        try:
            await getattr(self, f"_{self._task.does}")(held)
        except (LeaseLost, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            log.info("work.refused", job=self._task.name, epoch=fence.epoch, error=repr(error))
            raise
        except asyncio.CancelledError:
            log.info("work.cancelled", lease=fence.name, epoch=fence.epoch)
            raise
        log.info("work.done", job=self._task.name, epoch=fence.epoch)

    async def _wait(self, _held: Held) -> None:
        await asyncio.sleep(self._task.seconds)

    async def _fail(self, _held: Held) -> None:
        raise ValueError(f"{self._task.name} always fails")

    async def _write(self, held: Held) -> None:
        """Repeats a step without end: a transaction of the application that begins with a check of the fence."""
        connection = await connect(self._config.database, SETTINGS)
        try:
            for step in range(1_000_000):
                await self._write_step(connection, held, step)
                await asyncio.sleep(self._task.pause_seconds)
        finally:
            connection.terminate()

    async def _write_step(self, connection: asyncpg.Connection, held: Held, step: int) -> None:
        fence = held.fence
        async with connection.transaction():
            await connection.execute(CHECK, fence.name, fence.holder, fence.epoch)
            await connection.execute(NOTE, fence.holder, fence.epoch, step)
            log.info("work.step_open", epoch=fence.epoch, step=step)
            await asyncio.sleep(self._task.seconds)
        log.info("work.step", epoch=fence.epoch, step=step)

    async def _write_late(self, held: Held) -> None:
        """Repeats a step without end. Each step takes a fence, waits, and only then checks this fence and writes.

        A step that has begun continues even if the work is cancelled.
        """
        connection = await connect(self._config.database, SETTINGS)
        for step in range(1_000_000):
            await asyncio.shield(asyncio.create_task(self._write_late_step(connection, held.fence, step)))

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

    async def _sweep(self, held: Held) -> None:
        """Repeats a step without end: a fenced write of the store that closes at most one lapsed session."""
        for step in range(1_000_000):
            swept = await self._store.expire_sessions(held.fence, 1)
            ended = [closing.session_id for closing in swept.closed_sessions]
            log.info("work.step", epoch=held.fence.epoch, step=step, ended=ended)
            await asyncio.sleep(self._task.pause_seconds)


async def run(config: MemberConfig) -> None:
    store = open_store(config.database, POOL_SIZE)
    refresh = config.refresh_seconds
    timing = LeasesConfig(
        duration_seconds=config.duration_seconds,
        renew_seconds=config.duration_seconds / 3,
        acquire_seconds=refresh,
        refresh_seconds=refresh,
    )
    ensemble = Ensemble(store, timing=timing)
    for task in config.tasks:
        _add(ensemble, task, Worker(config, store, task).work)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with ensemble:
        log.info("member.ready", holder=ensemble.holder)
        await stopping.wait()
    await store.close()


def _add(ensemble: Ensemble, task: Task, work: Callable[[Held], Awaitable[None]]) -> None:
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
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=MemberConfig)))
