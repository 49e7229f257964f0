"""One run: start, apply load and faults, heal, settle, stop, read the tables, check."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from proof.checks import run_checks
from proof.checks.outcome import Outcome
from proof.clients import World, all_clients, followers, set_up
from proof.crowding import CrowdingWatch
from proof.ensemble import Ensemble, running_ensemble, set_faults, until
from proof.faults import lanes
from proof.history import History, now
from proof.plan import SETTLE_SECONDS, Plan
from proof.tables import Tables, read_tables

WATCH_SECONDS = 0.5
POLL_SECONDS = 0.1
SUBSCRIBED_SECONDS = 20.0
ACCEPTED = 202


class Run(NamedTuple):
    plan: Plan
    history: History
    tables: Tables
    outcomes: dict[str, Outcome]
    proxy: bool
    """Whether HAProxy ran in front of the instances."""
    logs: str

    @property
    def findings(self) -> list[str]:
        return [f"{name}: {finding}" for name, each in self.outcomes.items() for finding in each.findings]


async def run(plan: Plan, say: Callable[[str], None] = lambda _: None) -> Run:
    """Performs the run. Reports its progress with `say`, one line of text at a time."""
    history = History()
    async with running_ensemble(plan) as ensemble:
        say(f"{len(ensemble.instances)} instances on {plan.engine} are ready")
        world = await set_up(ensemble, history)
        await _subscribed(ensemble)
        following = [asyncio.create_task(each.run()) for each in followers(world)]
        watching = asyncio.create_task(_watch_deadlocks(ensemble, history))
        with CrowdingWatch(history):
            await _load(world, say)
            say(f"{len(history.operations)} requests, {len(history.faults)} faults; waiting until all has settled")
            await _heal(ensemble)
            history.ended_at = now()
            await _Settling(world).run()
            history.ended_at = now()
        for task in (*following, watching):
            task.cancel()
        await asyncio.gather(*following, watching, return_exceptions=True)
        for process in (*ensemble.instances, *ensemble.receivers.values()):
            await process.stop()
        tables = await read_tables(ensemble)
        logs = ensemble.logs()
    outcomes = await asyncio.to_thread(run_checks, history, tables, plan)
    return Run(plan, history, tables, outcomes, ensemble.front is not None, logs)


async def _load(world: World, say: Callable[[str], None]) -> None:
    world.history.began_at = now()
    asyncio.get_running_loop().call_later(world.plan.seconds, world.stopping.set)
    async with asyncio.TaskGroup() as tasks:
        for client in all_clients(world):
            tasks.create_task(_awaited(client))
        for lane in lanes(world):
            tasks.create_task(lane.run())
        say(f"load and faults for {world.plan.seconds:g} s, seed {world.plan.seed}")


async def _awaited(client: Awaitable[None]) -> None:
    await client


async def _subscribed(ensemble: Ensemble) -> None:
    """Waits until the gateway for events is subscribed, because it gets no events from before its subscription."""
    deadline = time.monotonic() + SUBSCRIBED_SECONDS
    while not await ensemble.rows("SELECT 1 FROM event_subscriptions"):
        if time.monotonic() > deadline:
            raise RuntimeError("no instance has subscribed the gateway for events")
        await asyncio.sleep(POLL_SECONDS)


async def _watch_deadlocks(ensemble: Ensemble, history: History) -> None:
    """Adds up the deadlocks that PostgreSQL has resolved. After a crash, the server counts them from zero again."""
    if ensemble.server is None:
        return
    last = 0
    while True:
        with suppress(Exception):
            (row,) = await ensemble.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = 'proof'")
            history.deadlocks += max(row["deadlocks"] - last, 0)
            last = row["deadlocks"]
        await asyncio.sleep(WATCH_SECONDS)


async def _heal(ensemble: Ensemble) -> None:
    """Clears the faults of the receivers, and waits until all instances run. The other faults are healed by now."""
    for receiver in ensemble.receivers.values():
        await asyncio.to_thread(set_faults, receiver, 0)
    await until(lambda: all(each.is_running for each in ensemble.instances), 10, "all instances run")


class _Settling:
    """Waits until all sessions have ended, usage is cut and delivered, submissions are delivered and events are read.
    Records what has not happened in time as unsettled.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ensemble, self._history = world.ensemble, world.history
        self._began, self._began_at = time.monotonic(), now()

    async def run(self) -> None:
        await self._rest("every lapse is recorded", "sessions WHERE closed_at IS NULL")
        await self._rest("all usage is cut", "sessions, installation WHERE closed_at > last_cut_at")
        await self._pause_cuts()
        clock = "clock_timestamp()" if self._ensemble.server is not None else str(now())
        run = f"leases WHERE name = 'job:emit-usage' AND NOT released AND expires_at > {clock}"
        await self._rest("the last run of emit-usage has ended", run)
        await self._rest("all windows are delivered", "usage_windows WHERE delivered_at IS NULL")
        await self._rest("all submissions are delivered", "submissions WHERE state = 'pending'")
        events = 2 * await self._count("sessions")
        await self._until("all events are read", lambda: self._have_read(events))

    async def _rest(self, what: str, rows: str) -> None:
        """Waits until no row matches `rows`: a table and a condition, in SQL."""

        async def holds() -> bool:
            return not await self._count(rows)

        await self._until(what, holds)

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        while not await holds():
            limit = SETTLE_SECONDS * self._history.slowdown(self._began_at, now())
            if time.monotonic() > self._began + limit:
                self._history.unsettled.append(f"not within {limit:.0f} s after the last fault: {what}")
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _count(self, rows: str) -> int:
        (row,) = await self._ensemble.rows(f"SELECT count(*) AS count FROM {rows}")
        return int(row["count"])

    async def _pause_cuts(self) -> None:
        """Pauses the job emit-usage. Otherwise it would cut windows that are still undelivered when instances stop."""
        client = self._world.client("operator", self._world.credentials.operator)

        async def is_paused() -> bool:
            return (await client.send("POST", "/jobs/emit-usage/pause", action="pause")).status == ACCEPTED

        await self._until("the job emit-usage is paused", is_paused)
        client.close()

    async def _have_read(self, events: int) -> bool:
        sent = self._ensemble.ledger_rows("hooks", "SELECT count(*) AS count FROM events")
        seen = [int(sent[0]["count"]), *(len(feed.events) for feed in self._history.feeds)]
        return min(seen) >= events
