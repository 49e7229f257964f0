"""Alerts on two instances: each is raised once and cleared once, and both changes reach the gateway `oncall`.

The tests cause the alerts: they move the clock of the database, let the receiver refuse usage, pause and kill
instances, and make leaders resign. All jobs are paused and run only when a test requests it, so nothing else can raise
an alert. `http/test_alerts.py` tests the alert of a failing job, and `conformance/test_alerts.py` tests every alert on
every engine.
"""

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest

from tests.support.databases import Database
from tests.support.deliveries import gateways
from tests.support.instances import RunningInstance
from tests.support.locks import Holder, holding
from tests.support.open_requests import some_id

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WAIT_SECONDS = 60
CLIENTS = 120
JUMP = ("usage-lagging", "job-lock-held")
"""Alerts that a jump of the clock may raise for a moment."""
MINUTE = timedelta(minutes=1)
JOBS = ("EXPIRE_SESSIONS", "EMIT_USAGE", "MARK_USAGE", "PRUNE", "WATCH")
ENVIRONMENT = {
    "TENURE_LEASES__DURATION_SECONDS": "7200",
    "TENURE_LEASES__RENEW_SECONDS": "5",
    "TENURE_LEASES__ACQUIRE_SECONDS": "1",
    "TENURE_LEASES__REFRESH_SECONDS": "1",
    **{f"TENURE_JOBS__{job}__PAUSED": "true" for job in JOBS},
    **{f"TENURE_JOBS__{job}__LOCK_TIMEOUT_SECONDS": "3600" for job in JOBS},
}


class Receiver:
    """Receives usage and alerts. While `fails` is true, the receiver refuses usage, but not alerts."""

    def __init__(self) -> None:
        self.fails = False
        self.oncall: list[dict[str, Any]] = []
        self.usages = 0
        self.port = 0

    def seen(self) -> set[tuple[str, str]]:
        """Returns the distinct changes of alerts that arrived. A change may arrive twice if a leader resigns."""
        return {(body["type"], body["data"]["alertId"]) for body in self.oncall}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            refused = receiver.fails and self.path == "/usages"
            if self.path == "/oncall":
                receiver.oncall.append(body)
            elif not refused:
                receiver.usages += 1
            self.send_response(500 if refused else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


class World:
    """Two instances, the clock of their database, and helpers of the test."""

    def __init__(
        self, database: Database, instances: dict[str, RunningInstance], http: aiohttp.ClientSession, now: datetime
    ) -> None:
        """`now` is the instant at which the clock of the database stands."""
        self._database, self._http = database, http
        self.instances = instances
        self.asked = next(iter(instances))
        """The name of the instance to which the test sends its requests."""
        self.now = now

    async def move(self, by: timedelta) -> datetime:
        self.now += by
        await self._database.clock.set(self.now)
        return self.now

    async def call(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        address = self.instances[self.asked].address
        async with self._http.request(method, f"{address}{path}", **given) as response:
            assert response.status < 300, await response.text()
            return await response.json()  # type: ignore[no-any-return]

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        """Waits until `holds` returns true. Meanwhile advances the database's clock by a second at a time, so that
        retries become due after their pauses.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not await holds():
                    await self.move(timedelta(seconds=1))
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logs = "\n".join(instance.log() for instance in self.instances.values())
            shown = [await self.call("GET", path) for path in ("/jobs", "/leases", "/alerts")]
            raise AssertionError(f"not within {WAIT_SECONDS} s: {what}\n{self.now} {shown}\n{logs}") from None

    async def job(self, name: str) -> dict[str, Any]:
        (found,) = [job for job in (await self.call("GET", "/jobs"))["jobs"] if job["name"] == name]
        return found

    async def run(self, name: str) -> None:
        count = (await self.job(name))["runCount"]
        # The database's clock is stopped. Without this second, the new request could have the same instant as the
        # request of the previous run, and the end of the previous run would then clear the new request, too.
        await self.move(timedelta(seconds=1))
        await self.call("POST", f"/jobs/{name}/run")

        async def has_run() -> bool:
            return bool((await self.job(name))["runCount"] > count)

        await self.until(has_run, f"{name} runs")

    async def alerts(self, state: str) -> set[str]:
        return {alert["name"] for alert in (await self.call("GET", f"/alerts?state={state}&limit=100"))["alerts"]}

    async def raised(self, *names: str) -> None:
        await self._watched(lambda active: set(names) <= active, f"{names} are raised")

    async def cleared(self, *names: str) -> None:
        await self._watched(lambda active: not set(names) & active, f"{names} are cleared")

    async def _watched(self, holds: Callable[[set[str]], bool], what: str) -> None:
        async def seen() -> bool:
            await self.run("watch")
            return holds(await self.alerts("active"))

        await self.until(seen, what)

    async def emitted(self, receiver: Receiver) -> None:
        """Cuts usage, and waits until it is delivered."""
        before = receiver.usages
        await self.run("emit-usage")

        async def delivered() -> bool:
            return receiver.usages > before

        await self.until(delivered, "usage is delivered")

    async def holder_of(self, job: str) -> str | None:
        for lease in (await self.call("GET", "/leases"))["leases"]:
            if lease["name"] == f"job:{job}" and lease["held"]:
                return str(lease["holder"])
        return None


@asynccontextmanager
async def world(start: Any, database: Database, receiver: Receiver) -> AsyncIterator[World]:
    # A little later than the real time, because the first usage window begins at the real time at which the database
    # was created.
    begins_at = datetime.now(UTC) + MINUTE
    await database.clock.set(begins_at)
    address = f"http://127.0.0.1:{receiver.port}"
    sent = gateways(
        oncall={"url": f"{address}/oncall", "schedule": [0.5]}, usages={"url": f"{address}/usages", "schedule": [0.5]}
    )
    instances = {
        name: start(database.url, **ENVIRONMENT, **sent, TENURE_LEASES__HOLDER=name) for name in ("first", "second")
    }
    for instance in instances.values():
        instance.wait_until_ready()
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        yield World(database, instances, http, begins_at)


async def open_session(world: World, lease_seconds: int) -> None:
    names = ("userObjectId", "tenantObjectId", "capacityId")
    body = {**{name: some_id() for name in names}, "sessionKind": 1, "leaseSeconds": lease_seconds}
    await world.call("PUT", "/sessions", json=body)


async def test_alerts_follow_clients_receiver_and_clock(start: Any, postgres_database: Database) -> None:
    with receiving() as receiver:
        async with world(start, postgres_database, receiver) as installation:
            await clients_vanish(installation, receiver)
            await receiver_fails(installation, receiver)
            await clock_steps_back(installation)
            await check_deliveries(
                installation, receiver, "lapses-exceed-openings", "usage-failing", "usage-lagging", "clock-behind"
            )


async def clients_vanish(installation: World, receiver: Receiver) -> None:
    """Clients open sessions and disappear. Eleven minutes later, the leases of the sessions expire."""
    await asyncio.gather(*(open_session(installation, 660) for _ in range(CLIENTS)))
    for _ in range(2):
        await installation.move(6 * MINUTE)
        await installation.emitted(receiver)
    await installation.run("expire-sessions")
    await installation.raised("lapses-exceed-openings")
    await installation.move(11 * MINUTE)
    await installation.run("emit-usage")
    await installation.cleared("lapses-exceed-openings")


async def receiver_fails(installation: World, receiver: Receiver) -> None:
    """The receiver of usage refuses all usage for more than 20 minutes."""
    await open_session(installation, 86400)
    receiver.fails = True
    await installation.move(MINUTE)
    await installation.run("emit-usage")
    await installation.raised("usage-failing")
    await installation.move(20 * MINUTE)
    await installation.raised("usage-lagging")
    receiver.fails = False
    await installation.emitted(receiver)
    await installation.cleared("usage-failing", "usage-lagging")


async def clock_steps_back(installation: World) -> None:
    await installation.move(-10 * MINUTE)
    await installation.raised("clock-behind")
    await installation.move(11 * MINUTE)
    await installation.run("emit-usage")
    await installation.cleared("clock-behind")


async def test_alerts_follow_instances_that_pause_die_and_resign(start: Any, postgres_database: Database) -> None:
    with receiving() as receiver:
        async with world(start, postgres_database, receiver) as installation:
            async with holding(postgres_database) as holder:
                await instance_stops(installation, holder)
            await leaders_resign(installation)
            async with holding(postgres_database) as holder:
                await instance_dies(installation, holder)
            await check_deliveries(installation, receiver, "job-lock-held", "leadership-flapping", "lock-reclaimed")


async def begin_run(installation: World, holder: Holder) -> tuple[RunningInstance, str]:
    """Starts a run of `emit-usage`, which waits for a lock of `holder`. Returns the instance of this run, and the name
    of the other instance.
    """
    await holder.lock_cut()
    await installation.move(MINUTE)  # so that there is a window to cut
    await installation.call("POST", "/jobs/emit-usage/run")
    found: list[str] = []

    async def is_held() -> bool:
        found[:] = filter(None, [await installation.holder_of("emit-usage")])
        return bool(found)

    await installation.until(is_held, "an instance holds the lock of the job")
    (other,) = set(installation.instances) - set(found)
    return installation.instances[found[0]], other


async def instance_stops(installation: World, holder: Holder) -> None:
    """An instance is paused while it holds the lock of a job."""
    running, installation.asked = await begin_run(installation, holder)
    running.send(signal.SIGSTOP)
    try:
        await holder.rollback()
        await installation.move(6 * MINUTE)
        await installation.raised("job-lock-held")
    finally:
        running.send(signal.SIGCONT)
    await installation.cleared("job-lock-held")


async def leaders_resign(installation: World) -> None:
    for _ in range(6):
        await installation.until(lambda: leader(installation), "an instance leads")
        await installation.call("POST", "/leases/submission-executor/resign")
    await installation.raised("leadership-flapping")
    await installation.move(11 * MINUTE)
    await installation.run("emit-usage")
    await installation.cleared("leadership-flapping")


async def leader(installation: World) -> bool:
    leases = (await installation.call("GET", "/leases"))["leases"]
    return any(lease["name"] == "submission-executor" and lease["held"] for lease in leases)


async def instance_dies(installation: World, holder: Holder) -> None:
    """An instance is killed while it holds the lock of a job. The other instance runs the job once the lock has
    expired.
    """
    running, installation.asked = await begin_run(installation, holder)
    running.process.kill()
    await holder.rollback()
    await installation.move(130 * MINUTE)
    await installation.until(lambda: leader(installation), "the other instance leads")
    await installation.run("emit-usage")
    await installation.raised("lock-reclaimed")
    await installation.move(16 * MINUTE)
    await installation.run("emit-usage")
    await installation.cleared("lock-reclaimed")


async def check_deliveries(installation: World, receiver: Receiver, *expected: str) -> None:
    """Asserts that each expected alert was raised once and cleared once, and that no other alert was raised.

    The alerts of JUMP are allowed: `watch` may run after a jump of the clock and before the next cut, or while a job
    runs that began before the jump. If the instance that died was also the leader, there is one alert for the lock of
    its job and one for its lease.
    """
    for name in JUMP:
        await installation.cleared(name)
    found = (await installation.call("GET", "/alerts?limit=100"))["alerts"]
    shown = [alert for alert in found if alert["name"] in expected or alert["name"] not in JUMP]
    assert len({(alert["name"], alert["subject"]) for alert in shown}) == len(shown)
    assert {alert["name"] for alert in shown} == set(expected)
    assert {alert["state"] for alert in found} == {"cleared"}

    wanted = {(kind, alert["alertId"]) for kind in ("alert.raised", "alert.cleared") for alert in found}

    async def all_arrived() -> bool:
        return len(receiver.seen()) >= len(wanted)

    await installation.until(all_arrived, "all alerts have arrived")
    assert receiver.seen() == wanted
