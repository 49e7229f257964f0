"""Starts and stops the processes of a run: a database, instances, HAProxy and receivers, all on loopback.

Instances reach the database, and clients reach the instances and HAProxy, through links that can break (`network.py`).
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import msgspec
import psutil

from proof.network import Link, Network
from proof.plan import GRACE_SECONDS, LEASE_SECONDS, Plan
from tests.deployment.proxies import DEPLOY, free_port, listens
from tests.support.databases import PostgresServer, postgres_server
from tests.support.processes import family

SOURCE = Path(__file__).parents[1] / "src"
T = TypeVar("T")

SECRET = "whsec_dGhlLXByb29mLW9mLXRlbnVyZS1zZWNyZXQ="
READY_SECONDS = 120.0
"""How long a process may take to start. An idle machine needs a few seconds, a busy machine far longer."""
EXIT_SECONDS = 15.0
POLL_SECONDS = 0.05
RESTART_SECONDS = 0.5
FILE_SYSTEM_MIB = {"sqlite": 48, "postgresql": 256}
FILE_SYSTEM_MIB_PER_MINUTE = 12
"""Added to FILE_SYSTEM_MIB for each minute of the run. A database grows less than this, so only a fault fills the
disk."""
EVENTS = ["session.opened", "session.upgraded", "session.closed"]
RECEIVERS = ("usages", "orders", "hooks")
SOMETIMES_SLOW = {"share": 0.3, "ways": [{"way": "delay", "seconds": 0.4}]}
"""What a receiver does while the run injects no fault into it: it delays some responses. So attempts are in progress
when another fault, such as the crash of an instance, begins."""
LATE_COMMITS = """
CREATE TABLE proof_delay AS SELECT 0.0::float AS share, 0.0::float AS seconds;
CREATE FUNCTION proof_delay() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v proof_delay;
BEGIN
    SELECT * INTO v FROM proof_delay;
    IF random() < v.share THEN
        PERFORM pg_sleep(v.seconds * random());
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER proof_delay AFTER INSERT OR UPDATE ON sessions FOR EACH STATEMENT EXECUTE FUNCTION proof_delay();
CREATE TRIGGER proof_delay AFTER INSERT ON submissions FOR EACH STATEMENT EXECUTE FUNCTION proof_delay();
CREATE FUNCTION proof_delay_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(seconds * random() / 20) FROM proof_delay WHERE random() < share;
    RETURN NEW;
END
$$;
CREATE TRIGGER proof_delay_row BEFORE INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION proof_delay_row();
"""
"""Delays commits of writes to `sessions` and `submissions`. After a write has read the clock, triggers sleep before
each new row of `sessions` and at the end of each statement, so the commit comes later."""

STEPPED_CLOCK = """
CREATE TABLE IF NOT EXISTS proof_clock AS SELECT interval '0' AS ahead;
CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql VOLATILE
AS 'SELECT clock_timestamp() + ahead FROM proof_clock';
"""
"""Replaces the function from which all stored instants come. A migration installs the original function again, so each
step of the clock executes these statements.
"""
NEXT_REVISION = """
from alembic import op
import sqlalchemy as sa

revision = "{revision}"
down_revision = "{previous}"


def upgrade() -> None:
    op.create_table("proof_{revision}", sa.Column("id", sa.Integer, primary_key=True))
"""


class Process:
    """A process that can be killed, paused and started again on the same port."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self.port = free_port()
        self.log_path = folder / f"{name.replace(' ', '-')}.log"
        self._folder = folder
        self._arguments = arguments
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure", *self._arguments, "--port", str(self.port)],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **self._environment},
            )

    async def ready(self) -> None:
        """Waits until the port accepts connections. A process that exits is started again, as a supervisor does."""
        deadline = time.monotonic() + READY_SECONDS
        while not await asyncio.to_thread(listens, self.port):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.log_path.read_text()[-4000:]}")
            if not self.is_running:
                await asyncio.sleep(RESTART_SECONDS)
                self.start()
            await asyncio.sleep(POLL_SECONDS)

    def run_from(self, source: Path) -> None:
        """From its next start on, the process runs the copy of the package in the folder `source`."""
        others = self._environment.get("PYTHONPATH", "").split(os.pathsep)
        kept = [path for path in others if path and Path(path).name != "src"]
        self._environment = {**self._environment, "PYTHONPATH": os.pathsep.join([*kept, str(source)])}

    def send(self, number: signal.Signals) -> None:
        for process in family(self.pid):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    async def kill(self) -> None:
        if self.is_running:
            self._running().kill()
        await asyncio.to_thread(self._running().wait, EXIT_SECONDS)

    async def stop(self) -> int:
        """Sends SIGTERM and returns the exit code. Kills the process if it does not exit in time."""
        running = self._running()
        if self.is_running:
            running.send_signal(signal.SIGCONT)
            running.terminate()
        try:
            return await asyncio.to_thread(running.wait, EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            await asyncio.to_thread(running.wait, EXIT_SECONDS)
            return -9

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process


class Instance(Process):
    """`tenure serve`, with links to the database, and the link `front` for clients that do not use HAProxy."""

    def __init__(
        self, number: int, folder: Path, url: str, environment: dict[str, str], databases: Sequence[Link]
    ) -> None:
        """`databases`: the link to the primary, then the link to the standby if there is one. Empty for SQLite."""
        super().__init__(f"instance {number}", folder, ["serve", "--database", url], environment)
        self.number = number
        self.databases = list(databases)
        self.front: Link


class Ensemble:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.network = Network()
        self.url = ""
        self.server: PostgresServer | None = None
        self.standby: PostgresServer | None = None
        """None if the plan has no standby, and after the fail-over."""
        self.database_file: Path | None = None
        self.file_system: Path | None = None
        """The mount point of the small file system of the database, which a fault can fill; None if there is none."""
        self.no_file_system = ""
        """The reason why the database has no file system of its own; empty if it has one."""
        self.instances: list[Instance] = []
        self.receivers: dict[str, Process] = {}
        self.front: Link | None = None
        """The link to HAProxy; None if HAProxy is not installed."""
        self.operator = ""
        """The operator's API key."""
        self._releases = 0

    def ledger(self, name: str) -> Path:
        """The SQLite file in which the receiver `name` stores the deliveries that it accepted."""
        return self.folder / f"{name}.db"

    def logs(self) -> str:
        return "\n".join(each.log_path.read_text() for each in self.instances)

    async def fail_over(self) -> None:
        """Crashes the primary, which stays down for the rest of the run, and promotes the standby."""
        if self.server is None or self.standby is None:
            raise RuntimeError("there is no standby")
        await asyncio.to_thread(self.server.stop, "immediate")
        await self.standby.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await asyncio.to_thread(self.standby.control, "promote")
        self.server, self.standby = self.standby, None
        self.file_system, self.no_file_system = None, "the standby has no file system of its own"
        self.url = self.server.url("proof")
        for instance in self.instances:
            instance.databases.pop(0)

    async def step_clock(self, microseconds: int) -> None:
        """Sets the clock of PostgreSQL ahead of the real time by this much, or behind it if negative."""
        if self.server is None:
            raise RuntimeError("SQLite reads the clock of the host")
        await self.server.execute(STEPPED_CLOCK, "proof")
        await self.server.execute(f"UPDATE proof_clock SET ahead = interval '{microseconds} microseconds'", "proof")

    async def next_release(self) -> Path:
        """Simulates a release with a new schema revision: copies the package and migrates the database with the copy.

        Each copy is made from the original package, which lacks the revisions of earlier releases of this run. So these
        revisions are written to the copy again.
        Returns the folder of the copy.
        """
        self._releases += 1
        source = self.folder / f"release-{self._releases}" / "src"
        old = SOURCE if self.plan.source is None else self.plan.source
        await asyncio.to_thread(shutil.copytree, old, source, ignore=shutil.ignore_patterns("__pycache__"))
        versions = source / "tenure" / "store" / "migrations" / "versions"
        last = max(int(path.name.partition("_")[0]) for path in versions.glob("0*.py"))
        for number in range(last + 1, last + 1 + self._releases):
            text = NEXT_REVISION.format(revision=f"{number:04}", previous=f"{number - 1:04}")
            (versions / f"{number:04}_proof.py").write_text(text)
        await self.command(["migrate", "--database", self.url], source)
        return source

    async def command(self, arguments: Sequence[str], source: Path | None) -> str:
        """Runs `tenure` and returns its output. `source`: the copy of the package to run; None: this package."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tenure", *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, **({} if source is None else {"PYTHONPATH": str(source)})},
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    async def rows(self, statement: str) -> list[dict[str, Any]]:
        """Executes SQL in the database directly, not through a link."""
        if self.database_file is not None:
            return await asyncio.to_thread(self._sqlite_rows, self.database_file, statement)
        connection = await asyncpg.connect(self.url, timeout=5)
        try:
            return [dict(row) for row in await connection.fetch(statement)]
        finally:
            connection.terminate()

    def ledger_rows(self, name: str, statement: str) -> list[dict[str, Any]]:
        """Executes SQL in the ledger of a receiver."""
        return self._sqlite_rows(self.ledger(name), statement)

    @staticmethod
    def _sqlite_rows(path: Path, statement: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement)]


@asynccontextmanager
async def running_ensemble(plan: Plan) -> AsyncIterator[Ensemble]:
    """Starts the database and all processes of a run, and ends them on exit."""
    folder = await asyncio.to_thread(_new_folder)
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ensemble = Ensemble(plan, folder)
        stack.callback(ensemble.network.close)
        if plan.engine == "sqlite":
            _prepare_sqlite(ensemble, stack)
        else:
            await _prepare_postgres(ensemble, stack)
        ensemble.operator = await _first_key(ensemble)
        if ensemble.server is not None:
            await ensemble.server.execute(LATE_COMMITS, "proof")
        await _start_processes(ensemble, stack)
        yield ensemble


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="proof"))
    folder.chmod(0o755)
    return folder


def _mount(ensemble: Ensemble, stack: AsyncExitStack) -> Path:
    """Creates a folder for the database, and mounts a small file system there if this process is allowed to."""
    place = ensemble.folder / "database"
    place.mkdir()
    plan = ensemble.plan
    size = FILE_SYSTEM_MIB[plan.engine] + int(FILE_SYSTEM_MIB_PER_MINUTE * plan.seconds / 60)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=755", "none", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode == 0:
        ensemble.file_system = place
        stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False, capture_output=True)
    else:
        ensemble.no_file_system = "a small file system could not be mounted; mounting needs root"
    return place


def _prepare_sqlite(ensemble: Ensemble, stack: AsyncExitStack) -> None:
    place = _mount(ensemble, stack)
    ensemble.database_file = place / "tenure.db"
    ensemble.url = f"sqlite:///{ensemble.database_file}"


async def _prepare_postgres(ensemble: Ensemble, stack: AsyncExitStack) -> None:
    place = await asyncio.to_thread(_mount, ensemble, stack)
    context = postgres_server(place=None if ensemble.file_system is None else place)
    ensemble.server = await asyncio.to_thread(context.__enter__)
    stack.push_async_callback(asyncio.to_thread, context.__exit__, None, None, None)
    await ensemble.server.execute("ALTER SYSTEM SET fsync = off")
    # Keep the write-ahead log smaller than the file system, and keep few segments for reuse. PostgreSQL then soon needs
    # space for a new segment, so a full file system also stops the log.
    await ensemble.server.execute("ALTER SYSTEM SET max_wal_size = '64MB'")
    await ensemble.server.execute("ALTER SYSTEM SET min_wal_size = '32MB'")
    # The instances wait at most a second for a lock. The server must notice and count a deadlock before they give up.
    await ensemble.server.execute("ALTER SYSTEM SET deadlock_timeout = '100ms'")
    await ensemble.server.execute("SELECT pg_reload_conf()")
    await ensemble.server.execute("CREATE DATABASE proof")
    ensemble.url = ensemble.server.url("proof")
    if ensemble.plan.standby:
        follower = postgres_server(standby_of=ensemble.server)
        ensemble.standby = await asyncio.to_thread(follower.__enter__)
        stack.push_async_callback(asyncio.to_thread, follower.__exit__, None, None, None)
        await ensemble.server.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await ensemble.server.execute("SELECT pg_reload_conf()")


async def _first_key(ensemble: Ensemble) -> str:
    """Creates an API key with the command that an operator uses; the command also migrates the database."""
    command = ["keys", "create", "--name", "proof", "--role", "operator", "--database", ensemble.url]
    return await ensemble.command(command, ensemble.plan.source)


async def _start_processes(ensemble: Ensemble, stack: AsyncExitStack) -> None:
    for name in RECEIVERS:
        arguments = ["receiver", "--ledger", str(ensemble.ledger(name)), "--secret", SECRET]
        ensemble.receivers[name] = Process(f"receiver {name}", ensemble.folder, arguments, {})
    environment = _environment(ensemble)
    for number in range(ensemble.plan.instances):
        servers = {"database": ensemble.server, "standby": ensemble.standby}
        links = [
            ensemble.network.link(f"{name} of instance {number}", f"{server.socket_folder}/.s.PGSQL.5432")
            for name, server in servers.items()
            if server is not None
        ]
        hosts = ",".join(f"127.0.0.1:{link.port}" for link in links)
        url = f"postgresql://postgres@{hosts}/proof" if links else ensemble.url
        own = {**environment, **_wrong_clock(ensemble, number)}
        instance = Instance(number, ensemble.folder, url, own, links)
        instance.front = ensemble.network.link(instance.name, ("127.0.0.1", instance.port))
        ensemble.instances.append(instance)
    for process in (*ensemble.receivers.values(), *ensemble.instances):
        process.start()
        stack.push_async_callback(_end, process)
    for process in (*ensemble.receivers.values(), *ensemble.instances):
        await process.ready()
    for receiver in ensemble.receivers.values():
        await asyncio.to_thread(set_faults, receiver, SOMETIMES_SLOW)
    if shutil.which("haproxy"):
        port = await _start_haproxy(ensemble, stack)
        ensemble.front = ensemble.network.link("HAProxy", ("127.0.0.1", port))


async def _end(process: Process) -> None:
    with suppress(psutil.NoSuchProcess, RuntimeError):
        if process.is_running:
            process.send(signal.SIGCONT)
        await process.kill()


def _environment(ensemble: Ensemble) -> dict[str, str]:
    gateways = {
        name: {
            "url": f"http://127.0.0.1:{ensemble.receivers[name].port}/{name}",
            "secret": SECRET,
            "schedule": [0.2, 0.5, 1],
            "timeout_seconds": 4,
        }
        for name in RECEIVERS
    }
    gateways["orders"]["max_attempts"] = 1000
    gateways["hooks"]["events"] = EVENTS
    return {
        **_source(ensemble.plan),
        "TENURE_GATEWAYS": json.dumps(gateways),
        "TENURE_LEASES__DURATION_SECONDS": "2",
        "TENURE_LEASES__RENEW_SECONDS": "1",
        "TENURE_LEASES__ACQUIRE_SECONDS": "1",
        "TENURE_LEASES__REFRESH_SECONDS": "1",
        "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
        "TENURE_JOBS__EXPIRE_SESSIONS__LOCK_TIMEOUT_SECONDS": "3",
        "TENURE_JOBS__EMIT_USAGE__INTERVAL_SECONDS": "1",
        "TENURE_JOBS__EMIT_USAGE__LOCK_TIMEOUT_SECONDS": "3",
        "TENURE_USAGE__FACTORS__1": "1000",
        "TENURE_USAGE__FACTORS__2": "31415.926535",
        "TENURE_USAGE__FACTORS__3": "1000000",
        "TENURE_SESSIONS__LEASE_SECONDS": f"{LEASE_SECONDS:g}",
        "TENURE_STREAMS__LEASE_SECONDS": f"{LEASE_SECONDS:g}",
        "TENURE_ACCESS__GRACE_SECONDS": f"{GRACE_SECONDS:g}",
        "TENURE_ACCESS__FAILURES_PER_MINUTE": "0",
        "TENURE_HTTP__DRAIN_SECONDS": "1",
        "TENURE_HTTP__TRUSTED_PROXIES": '["127.0.0.1"]',
    }


def _source(plan: Plan) -> dict[str, str]:
    return {} if plan.source is None else {"PYTHONPATH": str(plan.source)}


def _wrong_clock(ensemble: Ensemble, number: int) -> dict[str, str]:
    """Returns the environment in which an instance reads a host clock that is wrong by at least 7 seconds.

    Empty for the first instance, and on SQLite, because there the host clock is also the clock of the database.
    """
    if ensemble.server is None or number == 0:
        return {}
    seconds = (-1) ** number * 7 * number
    place = ensemble.folder / f"clock-{number}"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import tenure.clock as clock\n"
        "real = clock.wall_microseconds\n"
        f"clock.wall_microseconds = lambda: real() + {seconds * 1_000_000}\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(place), *_source(ensemble.plan).values()])}


async def _start_haproxy(ensemble: Ensemble, stack: AsyncExitStack) -> int:
    """Starts HAProxy with the configuration in `deploy/`, in which only the addresses are changed."""
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    servers = [f"instance{each.number} 127.0.0.1:{each.port}" for each in ensemble.instances]
    tracked = [f"{server} track requests/{server.split()[0]}" for server in servers]
    for names in (servers, tracked):
        lines = "".join(f"    server {name}\n" for name in names)
        text = re.sub(r"(?:^    server \w+ tenure-\d:8080.*\n)+", lines, text, count=1, flags=re.MULTILINE)
    port = free_port()
    text = text.replace("bind :8080", f"bind 127.0.0.1:{port}")
    text = text.replace("bind 127.0.0.1:8404", f"bind 127.0.0.1:{free_port()}")
    path = ensemble.folder / "haproxy.cfg"
    path.write_text(text)
    with (ensemble.folder / "haproxy.log").open("w") as log:
        process = await asyncio.to_thread(subprocess.Popen, ["haproxy", "-db", "-f", str(path)], stdout=log, stderr=log)
    stack.callback(process.wait, EXIT_SECONDS)
    stack.callback(process.terminate)
    await until(lambda: listens(port), READY_SECONDS, "HAProxy listens")
    return port


async def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds} s: {what}")
        await asyncio.sleep(POLL_SECONDS)


def set_faults(receiver: Process, faults: object) -> None:
    """Sets the faults of a receiver. Blocks until it responds."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{receiver.port}/_faults", data=msgspec.json.encode(faults), method="PUT"
    )
    with urllib.request.urlopen(request, timeout=5):
        pass
