"""The faults of a run. Each is injected, lasts for a while, and is healed; then the recovery is measured.

Two lanes run concurrently: `processes` (instances and database) and `surroundings` (links, receivers, commits). Each
lane injects one fault after the other, so at most two faults overlap. The seed decides which fault is injected, when,
where and for how long. Two disturbances that are not faults of a lane last for the whole run: clients revoke API keys,
and on PostgreSQL the host clocks of all instances but one are wrong.

A recovery ends when the affected instances answer an open request with 200 or 201. No recovery is measured for faults
of receivers, late commits and resignations.
"""

import asyncio
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from proof.clients import World
from proof.ensemble import SOMETIMES_SLOW, Instance, Process, set_faults
from proof.history import ClockStep, Fault, now
from proof.network import Link
from tests.support.databases import PostgresServer
from tests.support.processes import frozen

PROBE_SECONDS = 0.05
RECOVERED_SECONDS = 30.0
LEAST_PAUSE_SECONDS = 0.3
FAIL_OVER, DISK_FULL = "fail-over", "disk-full"
CRASH_SHARE = 0.5
"""The share of the faults `disk-full` that make PostgreSQL begin new segments of its write-ahead log, and so crash."""
LEADER_SHARE = 0.5
"""The share of the faults of an instance that are aimed at the leader. The others hit a random instance."""
EXPIRY_SHARE = 0.6
"""The share of stalls of a database link that last until the executor's lease has expired."""
STALL_SECONDS = 5.0
"""The longest stall of a database link."""
SEGMENTS = 8
"""How many segments of the write-ahead log to begin: more than PostgreSQL keeps for reuse."""

Inject = Callable[["Injector", Fault], Awaitable[None]]


class Kind(NamedTuple):
    inject: Inject
    lane: str
    engines: tuple[str, ...] = ("postgresql", "sqlite")
    what: str = ""


class Injector:
    """Injects the faults of one lane."""

    def __init__(self, world: World, lane: str) -> None:
        self.world = world
        self.ensemble = world.ensemble
        self.source = world.random(f"faults {lane}")
        self._kinds = [name for name in allowed_faults(world) if KINDS[name].lane == lane]

    async def run(self) -> None:
        # Every kind occurs before any kind occurs again, so that a short run has as many kinds as possible.
        waiting: list[str] = []
        while self._kinds and not self.world.stopping.is_set():
            pause = self.world.plan.fault_pause_seconds
            await self.world.pause(LEAST_PAUSE_SECONDS + self.source.uniform(0, 2 * pause))
            if self.world.stopping.is_set():
                return
            if not waiting:
                waiting = self.source.sample(self._kinds, len(self._kinds))
            name = waiting.pop()
            if name in reasons_to_skip(self.world):
                continue  # after a fail-over, there is no standby and no file system to fill
            fault = Fault(kind=name, target="", began_at=now())
            self.world.history.faults.append(fault)
            await KINDS[name].inject(self, fault)
            fault.healed_at = fault.healed_at or now()

    async def lasts(self, low: float, high: float) -> None:
        await self.world.pause(self.source.uniform(low, high))

    async def instance(self, fault: Fault) -> Instance:
        """Chooses the target of a fault: the leader with a chance of LEADER_SHARE, otherwise a random instance."""
        chosen = self.source.choice(self.ensemble.instances)
        if self.source.random() < LEADER_SHARE:
            chosen = await self._leader() or chosen
        fault.target = chosen.name
        return chosen

    async def _leader(self) -> Instance | None:
        """The instance that sends submissions; None if there is none, or while the database is unavailable."""
        with suppress(Exception):
            (lease,) = await self.ensemble.rows("SELECT holder FROM leases WHERE name = 'submission-executor'")
            # The name of a holder is host name, process id and a random part.
            pid = int(lease["holder"].split("-")[-2])
            return next((each for each in self.ensemble.instances if each.pid == pid), None)
        return None

    async def lease_expires(self) -> None:
        """Waits until the executor's lease has expired, but for about STALL_SECONDS at most. After the expiry, the
        stalled writes of its holder arrive too late.

        Returns at once when the lease has expired: the next leader soon repairs the effect of a late write, and after
        that the checks cannot see that the write was wrongly accepted.
        """
        expired = "SELECT 1 FROM leases WHERE name = 'submission-executor' AND expires_at <= clock_timestamp()"
        for _ in range(int(2 * STALL_SECONDS / PROBE_SECONDS)):
            with suppress(Exception):
                if await self.ensemble.rows(expired):
                    return
            await asyncio.sleep(PROBE_SECONDS / 2)

    async def probe(self, fault: Fault, instances: list[Instance]) -> None:
        """Waits until each of these instances has opened a session, and records that instant as the recovery.

        If the fault set `healed_at` before it restarted a process, the recovery includes the restart.
        """
        fault.healed_at = fault.healed_at or now()
        try:
            async with asyncio.timeout(RECOVERED_SECONDS):
                await asyncio.gather(*(self._probe(each) for each in instances))
        except TimeoutError:
            what = f"{fault.kind} of {fault.target}: no service {RECOVERED_SECONDS:g} s after the fault was healed"
            self.world.history.unsettled.append(what)
        else:
            fault.recovered_at = now()

    async def _probe(self, instance: Instance) -> None:
        client = self.world.client("probe", self.world.credentials.client, instance)
        try:
            while True:
                key = (self.world.unlimited, next(self.world.ids))
                body = {"capacityId": key[0], "userObjectId": key[1], "tenantObjectId": self.world.tenants[0]}
                opened = await client.send(
                    "PUT", "/sessions", {**body, "sessionKind": 1}, action="open", key=key, kind=1
                )
                if opened.status in (200, 201):
                    return
                await asyncio.sleep(PROBE_SECONDS)
        finally:
            client.close()


# Instances


async def _kill(injector: Injector, fault: Fault) -> None:
    instance = await injector.instance(fault)
    await instance.kill()
    await injector.lasts(0, 1)
    fault.healed_at = now()
    instance.start()
    await instance.ready()
    await injector.probe(fault, [instance])


async def _pause(injector: Injector, fault: Fault) -> None:
    instance = await injector.instance(fault)
    instance.send(signal.SIGSTOP)
    await injector.lasts(0.5, 4.5)
    instance.send(signal.SIGCONT)
    await injector.probe(fault, [instance])


async def _terminate(injector: Injector, fault: Fault) -> None:
    instance = await injector.instance(fault)
    await instance.stop()
    fault.healed_at = now()
    instance.start()
    await instance.ready()
    await injector.probe(fault, [instance])


async def _rolling_restart(injector: Injector, fault: Fault) -> None:
    fault.target = "all instances"
    for instance in injector.ensemble.instances:
        await instance.stop()
        instance.start()
        await instance.ready()
    await injector.probe(fault, injector.ensemble.instances)


async def _rolling_upgrade(injector: Injector, fault: Fault) -> None:
    """Upgrades as the manual says: migrates with the new version, then replaces the instances one after the other."""
    fault.target = "all instances"
    source = await injector.ensemble.next_release()
    for instance in injector.ensemble.instances:
        await instance.stop()
        instance.run_from(source)
        instance.start()
        await instance.ready()
    await injector.probe(fault, injector.ensemble.instances)


async def _resign(injector: Injector, fault: Fault) -> None:
    """Resigns a lease, as an operator does."""
    fault.target = injector.source.choice(("submission-executor", "events"))
    client = injector.world.client("operator", injector.world.credentials.operator)
    await client.send("POST", f"/leases/{fault.target}/resign", action="resign")
    client.close()


# The database


def _postgres(injector: Injector, fault: Fault) -> PostgresServer:
    """Returns the server and makes it the target of the fault. Raises on SQLite, where no such fault is injected."""
    fault.target = "PostgreSQL"
    server = injector.ensemble.server
    if server is None:
        raise RuntimeError("there is no server")
    return server


async def _kill_database(injector: Injector, fault: Fault) -> None:
    server = _postgres(injector, fault)
    await asyncio.to_thread(server.stop, "immediate")
    await injector.lasts(0, 2)
    fault.healed_at = now()
    await asyncio.to_thread(server.start)
    await injector.probe(fault, injector.ensemble.instances)


async def _restart_database(injector: Injector, fault: Fault) -> None:
    server = _postgres(injector, fault)
    await asyncio.to_thread(server.stop, "fast")
    fault.healed_at = now()
    await asyncio.to_thread(server.start)
    await injector.probe(fault, injector.ensemble.instances)


async def _freeze_database(injector: Injector, fault: Fault) -> None:
    server = _postgres(injector, fault)
    with frozen(server.pid):
        await injector.lasts(0.5, 4)
    await injector.probe(fault, injector.ensemble.instances)


async def _fail_over(injector: Injector, fault: Fault) -> None:
    fault.target = "PostgreSQL"
    await injector.ensemble.fail_over()
    await injector.probe(fault, injector.ensemble.instances)


async def _late_commits(injector: Injector, fault: Fault) -> None:
    fault.target = "session writes and submissions"
    await _set_delay(injector, 0.3, 0.8)
    await injector.lasts(2, 4)
    fault.healed_at = now()
    await _set_delay(injector, 0, 0)


async def _set_delay(injector: Injector, share: float, seconds: float) -> None:
    """Sets the share of writes whose commits are late, and the longest delay. Retries while the server is down."""
    for _ in range(200):
        with suppress(Exception):
            await injector.ensemble.rows(f"UPDATE proof_delay SET share = {share}, seconds = {seconds}")
            return
        await asyncio.sleep(0.1)


async def _step_clock(injector: Injector, fault: Fault) -> None:
    """Steps the clock of the database forward or back by 2 to 6 seconds, and sets it right 1 to 3 seconds later."""
    fault.target = "clock of PostgreSQL"
    seconds = injector.source.uniform(2, 6) * injector.source.choice((-1, 1))
    step = ClockStep(offset=int(seconds * 1e6), began_at=now())
    injector.world.history.steps.append(step)
    await injector.ensemble.step_clock(step.offset)
    await injector.lasts(1, 3)
    await injector.ensemble.step_clock(0)
    step.ended_at = now()
    await injector.probe(fault, injector.ensemble.instances)


async def _fill_disk(injector: Injector, fault: Fault) -> None:
    """Fills the file system of the database to the last byte."""
    place = injector.ensemble.file_system
    if place is None:
        raise RuntimeError("the database has no file system of its own")
    fault.target = "file system of the database"
    ballast = place / "ballast"
    await asyncio.to_thread(_fill, ballast)
    try:
        if injector.ensemble.server is not None and injector.source.random() < CRASH_SHARE:
            await _switch_segments(injector)
        await injector.lasts(1, 3)
    finally:
        ballast.unlink()
    fault.healed_at = now()
    if injector.ensemble.server is not None:
        await _revive(injector.ensemble.server)
    await injector.probe(fault, injector.ensemble.instances)


async def _switch_segments(injector: Injector) -> None:
    """Makes PostgreSQL begin new segments of its write-ahead log. The server crashes if it cannot create a segment."""
    with suppress(Exception):
        for _ in range(SEGMENTS):
            await injector.ensemble.rows("SELECT pg_logical_emit_message(false, 'proof', '')")
            await injector.ensemble.rows("SELECT pg_switch_wal()")


async def _revive(server: PostgresServer) -> None:
    """Starts the server if it has exited: PostgreSQL exits if the disk is still full during crash recovery."""
    deadline = time.monotonic() + RECOVERED_SECONDS
    while time.monotonic() < deadline:
        with suppress(Exception):
            await server.execute("SELECT 1")
            return
        if not await asyncio.to_thread(server.is_running):
            with suppress(subprocess.CalledProcessError):
                await asyncio.to_thread(server.start)
        await asyncio.sleep(PROBE_SECONDS)
    raise RuntimeError("PostgreSQL does not start after its disk was full")


def _fill(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


# Links


async def _link(injector: Injector, fault: Fault, *, database: bool) -> tuple[Link, Instance | None]:
    if database:
        instance = await injector.instance(fault)
        link = instance.databases[0]
        fault.target = link.name
        return link, instance
    fronts: list[tuple[Link, Instance | None]] = [(each.front, each) for each in injector.ensemble.instances]
    if injector.ensemble.front is not None:
        fronts.append((injector.ensemble.front, None))
    link, chosen = injector.source.choice(fronts)
    fault.target = f"clients of {link.name}"
    return link, chosen


def _break_link(how: str, *, database: bool) -> Inject:
    async def inject(injector: Injector, fault: Fault) -> None:
        link, instance = await _link(injector, fault, database=database)
        if how == "cut":
            await asyncio.to_thread(link.cut)
        elif how == "slow":
            link.slow(injector.source.uniform(0.02, 0.3))
        elif how == "stall":
            link.stall()
        else:
            link.swallow()
        if how == "stall" and database and injector.source.random() < EXPIRY_SHARE:
            await injector.lease_expires()
        else:
            await injector.lasts(0.5, 6 if how == "slow" else 4)
        await asyncio.to_thread(link.restore)
        await injector.probe(fault, injector.ensemble.instances if instance is None else [instance])

    return inject


# Receivers


def _fail_receiver(*ways: dict[str, object]) -> Inject:
    async def inject(injector: Injector, fault: Fault) -> None:
        receiver = _receiver(injector, fault)
        share = injector.source.uniform(0.3, 1)
        faults = {"share": share, "seed": injector.source.getrandbits(16), "ways": list(ways)}
        await asyncio.to_thread(set_faults, receiver, faults)
        await injector.lasts(1, 5)
        await asyncio.to_thread(set_faults, receiver, SOMETIMES_SLOW)

    return inject


async def _hang_receiver(injector: Injector, fault: Fault) -> None:
    receiver = _receiver(injector, fault)
    receiver.send(signal.SIGSTOP)
    await injector.lasts(1, 5)
    receiver.send(signal.SIGCONT)


async def _kill_receiver(injector: Injector, fault: Fault) -> None:
    receiver = _receiver(injector, fault)
    await receiver.kill()
    await injector.lasts(0, 2)
    receiver.start()
    await receiver.ready()


def _receiver(injector: Injector, fault: Fault) -> Process:
    name = injector.source.choice(sorted(injector.ensemble.receivers))
    fault.target = f"receiver {name}"
    return injector.ensemble.receivers[name]


_POSTGRES = ("postgresql",)
_PROCESSES, _SURROUNDINGS = "processes", "surroundings"

KINDS: dict[str, Kind] = {
    "kill": Kind(_kill, _PROCESSES, what="SIGKILL of an instance, and its restart"),
    "pause": Kind(_pause, _PROCESSES, what="SIGSTOP of an instance for up to 4.5 s"),
    "terminate": Kind(_terminate, _PROCESSES, what="SIGTERM of an instance, and its restart"),
    "rolling-restart": Kind(_rolling_restart, _PROCESSES, what="all instances are restarted, one after the other"),
    "rolling-upgrade": Kind(
        _rolling_upgrade, _PROCESSES, what="a migration; then all instances run another copy of the package"
    ),
    "resign": Kind(_resign, _PROCESSES, what="an operator ends a lease"),
    "database-kill": Kind(_kill_database, _PROCESSES, _POSTGRES, "PostgreSQL crashes, and recovers"),
    "database-restart": Kind(_restart_database, _PROCESSES, _POSTGRES, "PostgreSQL is restarted"),
    "database-freeze": Kind(_freeze_database, _PROCESSES, _POSTGRES, "PostgreSQL stands still for up to 4 s"),
    FAIL_OVER: Kind(
        _fail_over, _PROCESSES, _POSTGRES, "the primary is lost, and its standby is promoted (--standby; once)"
    ),
    "clock-step": Kind(
        _step_clock, _PROCESSES, _POSTGRES, "PostgreSQL's clock is up to 6 s ahead or behind, for 1 to 3 s"
    ),
    DISK_FULL: Kind(_fill_disk, _PROCESSES, what="the file system of the database is full (only as root)"),
    "late-commits": Kind(
        _late_commits, _SURROUNDINGS, _POSTGRES, "writes commit up to 0.8 s after they read the clock"
    ),
    "database-link-cut": Kind(
        _break_link("cut", database=True), _SURROUNDINGS, _POSTGRES, "an instance loses its database"
    ),
    "database-link-slow": Kind(
        _break_link("slow", database=True), _SURROUNDINGS, _POSTGRES, "packets arrive up to 0.3 s late"
    ),
    "database-link-stall": Kind(
        _break_link("stall", database=True), _SURROUNDINGS, _POSTGRES, "packets arrive up to 5 s late, all at once"
    ),
    "database-link-drop": Kind(_break_link("drop", database=True), _SURROUNDINGS, _POSTGRES, "packets are lost"),
    "client-link-cut": Kind(
        _break_link("cut", database=False), _SURROUNDINGS, what="clients lose an instance or HAProxy"
    ),
    "client-link-slow": Kind(
        _break_link("slow", database=False), _SURROUNDINGS, what="packets arrive up to 0.3 s late"
    ),
    "client-link-stall": Kind(
        _break_link("stall", database=False), _SURROUNDINGS, what="packets arrive up to 4 s late"
    ),
    "client-link-drop": Kind(_break_link("drop", database=False), _SURROUNDINGS, what="packets are lost"),
    "receiver-fails": Kind(
        _fail_receiver({"way": "status", "status": 503}, {"way": "status", "status": 500}, {"way": "garbage"}),
        _SURROUNDINGS,
        what="a receiver answers 500, 503 or garbage",
    ),
    "receiver-counts-and-fails": Kind(
        _fail_receiver({"way": "drop", "counted": True}, {"way": "status", "status": 502, "counted": True}),
        _SURROUNDINGS,
        what="a receiver counts a delivery and then fails",
    ),
    "receiver-hangs": Kind(_hang_receiver, _SURROUNDINGS, what="SIGSTOP of a receiver"),
    "receiver-kill": Kind(_kill_receiver, _SURROUNDINGS, what="SIGKILL of a receiver, and its restart"),
}


def allowed_faults(world: World) -> list[str]:
    """The kinds that the plan asks for, without those that this engine does not have or that this run cannot inject.

    The history records why this run cannot inject a kind.
    """
    plan = world.plan
    asked = list(KINDS) if plan.faults is None else plan.faults
    names = [name for name in asked if plan.engine in KINDS[name].engines]
    skipped = {name: reason for name, reason in reasons_to_skip(world).items() if name in names}
    world.history.skipped.update(skipped)
    return [name for name in names if name not in skipped]


def reasons_to_skip(world: World) -> dict[str, str]:
    """The kinds that cannot be injected now, and why."""
    ensemble = world.ensemble
    reasons = {
        DISK_FULL: ensemble.no_file_system if ensemble.file_system is None else "",
        FAIL_OVER: "PostgreSQL has no standby" if ensemble.standby is None else "",
    }
    return {name: reason for name, reason in reasons.items() if reason}


def lanes(world: World) -> list[Injector]:
    return [Injector(world, lane) for lane in (_PROCESSES, _SURROUNDINGS)]
