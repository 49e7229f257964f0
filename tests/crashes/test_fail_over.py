"""Fail-over to a standby whose clock is behind: service resumes, and with a synchronous standby nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tenure.clock import wall_microseconds
from tenure.store.engines import open_store
from tests.support.databases import POOL_SIZE, Clock, Database, PostgresServer, postgres_server
from tests.support.deliveries import Fleet, all_delivered, find_violations, gateways, poll, submitter
from tests.support.expected_usage import run_audit
from tests.support.history import find_violations as find_session_violations
from tests.support.history import read_sessions
from tests.support.instances import RunningInstance, stop_all
from tests.support.load import TENANT, Client, Exchange, some_keys, steady_load
from tests.support.processes import eventually
from tests.support.receivers import RunningReceiver
from tests.support.usage_running import (
    CUTTING,
    SHORT_SCHEDULE,
    assert_billed_once,
    last_window,
    open_some,
    windows_delivered,
)
from tests.support.waiting import all_logs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

Start = Callable[..., RunningInstance]

INSTANCES = 3
KEYS = 200
HELD = 20
"""The number of sessions per instance that get heartbeats."""
LEASE_SECONDS = 120
RESUMED_WITHIN_SECONDS = 5
FAIL_OVERS = [(0.3, timedelta(milliseconds=300)), (2.5, timedelta(seconds=4))]
"""Seconds from the kill to the promotion, and how far the standby's clock is behind that of its primary.

The first outage is shorter than a lease of the instances, the second one longer. The second standby is so far behind
that its clock has not reached the last writes and cuts of its primary when the first requests arrive.
"""
LOADED_SECONDS = 1.5
PAUSE_SECONDS = 0.02
DELAYED_CLOCK = """
CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() - current_setting('tenure_test.behind')::interval $$
"""
"""The standby has the same function, because functions are replicated. Settings are not replicated, so each server has
its own delay."""


class Pair:
    """A primary and its standby, which change places at each fail-over."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, name: str) -> None:
        self.url = f"postgresql://postgres@{primary.tcp_host},{standby.tcp_host}/{name}?target_session_attrs=read-write"
        self.behind = self._standby_behind = timedelta()
        """How far the primary's clock is behind that of the host."""
        self._primary, self._standby, self._name = primary, standby, name
        self._standby_runs = True

    async def synchronise(self, behind: timedelta) -> None:
        """Sets the standby's clock back, so that it is behind the primary's clock by `behind`. After this call, every
        commit waits for the standby.
        """
        self._standby_behind = self.behind + behind
        await change(self._standby, "tenure_test.behind", str(self._standby_behind))
        await change(self._primary, "synchronous_standby_names", "*")
        database = self.database()

        async def is_synchronous() -> bool:
            rows = await database.rows("SELECT sync_state FROM pg_stat_replication")
            return [row["sync_state"] for row in rows] == ["sync"]

        try:
            await poll(is_synchronous, 10, "the standby is synchronous")
        finally:
            await database.close()

    async def disconnect_standby(self) -> None:
        """Stops the standby, so that it misses all later commits."""
        await asyncio.to_thread(self._standby.stop, "fast")
        self._standby_runs = False

    async def fail_over(self, down_seconds: float) -> None:
        await asyncio.to_thread(self._primary.kill)
        await asyncio.sleep(down_seconds)
        if not self._standby_runs:
            await asyncio.to_thread(self._standby.start)
        # The new primary has no standby yet, so its commits must not wait for one.
        await change(self._standby, "synchronous_standby_names", "")
        await asyncio.to_thread(self._standby.control, "promote")
        self._primary, self._standby = self._standby, self._primary
        self._standby_runs = False
        self.behind = self._standby_behind

    async def rebuild_standby(self) -> None:
        await asyncio.to_thread(self._standby.rebuild, self._primary)
        self._standby_runs = True

    def database(self) -> Database:
        url = self._primary.url(self._name)
        return Database(url, open_store(url, POOL_SIZE), Clock())


async def change(server: PostgresServer, setting: str, value: str) -> None:
    await server.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
    await server.execute("SELECT pg_reload_conf()")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with postgres_server() as primary:
        await asyncio.to_thread(primary.listen)
        await change(primary, "tenure_test.behind", "0")
        name = await primary.create_database()
        store = open_store(primary.url(name), POOL_SIZE)
        await store.migrate()
        await store.close()
        await primary.execute(DELAYED_CLOCK, name)
        with postgres_server(standby_of=primary) as standby:
            await asyncio.to_thread(standby.listen)
            yield Pair(primary, standby, name)


class Receivers(NamedTuple):
    usages: RunningReceiver
    orders: RunningReceiver

    @property
    def gateways(self) -> dict[str, str]:
        return gateways(**{name: {"url": each.address, **SHORT_SCHEDULE} for name, each in self._asdict().items()})


@pytest.fixture
def receivers(tmp_path: Path) -> Iterator[Receivers]:
    folders = [tmp_path / name for name in Receivers._fields]
    for folder in folders:
        folder.mkdir()
    started = Receivers(*map(RunningReceiver, folders))
    yield started
    stop_all(started)


class Load:
    """Clients of every instance, and what the instances have acknowledged to them."""

    def __init__(self, addresses: Sequence[str], seed: int) -> None:
        self._addresses, self._seed = addresses, seed
        self._opens: dict[str, list[Exchange]] = {}
        self._others: list[Exchange] = []
        self._stopping = asyncio.Event()
        self._served_at: dict[str, int] = {}
        """When each operation last succeeded, in microseconds of the host's clock."""
        self.deadlines: dict[str, datetime] = {}
        """The latest acknowledged deadline of each session that gets heartbeats."""
        self.windows: dict[int, tuple[datetime, datetime]] = {}
        self.submission_ids: list[str] = []

    @property
    def opens(self) -> list[Exchange]:
        return [exchange for exchanges in self._opens.values() for exchange in exchanges]

    @property
    def other_statuses(self) -> set[int]:
        return {exchange.status for exchange in self._others}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            for number, address in enumerate(self._addresses):
                load = steady_load([address], 1, keys=some_keys(KEYS, self._seed), seed=self._seed + number)
                self._opens[address] = await stack.enter_async_context(load)
                tasks.create_task(self._hold(number, address))
                tasks.create_task(self._read(address))
            tasks.create_task(self._submit())
            try:
                yield
            finally:
                self._stopping.set()

    def unserved_since(self, instant: int) -> list[str]:
        """Returns the kinds of operations of which none has succeeded since `instant`."""
        for address, exchanges in self._opens.items():
            succeeded = (one.received_at for one in reversed(exchanges) if one.status in (200, 201))
            self._served_at[f"open {address}"] = next(succeeded, 0)
        each = [f"{what} {address}" for what in ("open", "heartbeat", "read") for address in self._addresses]
        return [operation for operation in (*each, "submit", "cut") if self._served_at.get(operation, 0) <= instant]

    async def _hold(self, number: int, address: str) -> None:
        client, session_ids = Client(address, self._others), list[str]()
        for key in some_keys(HELD, self._seed + KEYS + number):
            body = {"capacityId": key[0], "userObjectId": key[1], "tenantObjectId": TENANT, "sessionKind": 2}
            opened = await client.send("PUT", "/sessions", {**body, "leaseSeconds": LEASE_SECONDS})
            session_ids.append(opened.answer["sessionId"])
        while not self._stopping.is_set():
            for session_id in session_ids:
                renewed = await client.send("POST", f"/sessions/{session_id}/heartbeat")
                if renewed.status == 200:
                    until = datetime.fromisoformat(renewed.answer["leaseExpiresAt"])
                    self.deadlines[session_id] = max(until, self.deadlines.get(session_id, until))
                    self._served_at[f"heartbeat {address}"] = wall_microseconds()
                await asyncio.sleep(PAUSE_SECONDS)
        client.close()

    async def _read(self, address: str) -> None:
        client = Client(address, self._others)
        while not self._stopping.is_set():
            listed = await client.get("/usage/windows")
            if listed.status == 200:
                self._served_at[f"read {address}"] = wall_microseconds()
                for window in listed.answer["windows"]:
                    if window["windowId"] not in self.windows:
                        self._served_at["cut"] = wall_microseconds()
                    bounds = datetime.fromisoformat(window["startAt"]), datetime.fromisoformat(window["endAt"])
                    assert self.windows.setdefault(window["windowId"], bounds) == bounds
            await asyncio.sleep(5 * PAUSE_SECONDS)
        client.close()

    async def _submit(self) -> None:
        async with submitter(self._addresses) as submitting:
            for number in count():
                if self._stopping.is_set():
                    break
                self.submission_ids.append(await submitting.submit(number))
                self._served_at["submit"] = wall_microseconds()
                await asyncio.sleep(PAUSE_SECONDS)


async def test_fail_overs_to_standbys_with_late_clocks_lose_nothing(
    pair: Pair, start: Start, receivers: Receivers, seed: int
) -> None:
    fleet = await Fleet(start, pair.url, {**CUTTING, **receivers.gateways}, INSTANCES).ready()
    load = Load(fleet.addresses, seed)
    async with load.running():
        began = wall_microseconds()
        await eventually(lambda: not load.unserved_since(began), 20, "the load has begun")
        for turn, (down_seconds, behind) in enumerate(FAIL_OVERS):
            if turn:
                await pair.rebuild_standby()
            await pair.synchronise(behind)
            await asyncio.sleep(LOADED_SECONDS)
            await pair.fail_over(down_seconds)
            await served_again(load, fleet, f"seed {seed}, turn {turn}")
    database = pair.database()
    try:
        await all_delivered(database, 30, fleet.all)
        await assert_billed_once(database, receivers.usages.ledger, fleet, f"seed {seed}")
        faults = await differences(database, receivers.orders, load, pair.behind)
        assert faults == [], f"seed {seed}\n{all_logs(fleet.all)}"
    finally:
        await database.close()


async def served_again(load: Load, fleet: Fleet, context: str) -> None:
    promoted = wall_microseconds()
    while unserved := load.unserved_since(promoted):
        late = wall_microseconds() > promoted + RESUMED_WITHIN_SECONDS * 1_000_000
        assert not late, f"{context}: {unserved}\n{all_logs(fleet.all)}"
        await asyncio.sleep(PAUSE_SECONDS)


async def differences(database: Database, orders: RunningReceiver, load: Load, behind: timedelta) -> list[str]:
    """Returns the differences between the answers that clients got and the tables. All instances must have stopped."""
    # The database's clock is behind that of the clients, so a session may start up to `behind` before its request.
    earlier = behind // timedelta(microseconds=1)
    opens = [msgspec.structs.replace(one, sent_at=one.sent_at - earlier) for one in load.opens]
    opened = [session for session in await read_sessions(database) if session.session_id not in load.deadlines]
    faults = find_session_violations(opens, opened, also=[503])
    if not load.other_statuses <= {200, 201, 503}:
        faults.append(f"statuses {load.other_statuses}")
    rows = await database.rows("SELECT session_id, deadline_at FROM sessions")
    deadlines = {str(row["session_id"]): row["deadline_at"] for row in rows}
    for session_id, until in load.deadlines.items():
        if session_id not in deadlines or deadlines[session_id] < until:
            faults.append(f"{session_id} was acknowledged until {until}, but lasts until {deadlines.get(session_id)}")
    rows = await database.rows("SELECT window_id, started_at, ended_at FROM usage_windows")
    windows = {row["window_id"]: (row["started_at"], row["ended_at"]) for row in rows}
    faults += [f"window {each} was {seen}" for each, seen in load.windows.items() if windows.get(each) != seen]
    (usage,) = await database.rows("SELECT count(*) AS count FROM submissions WHERE gateway = 'usages'")
    return faults + await find_violations(
        database, orders, load.submission_ids, elsewhere=usage["count"], clock_went_back=True
    )


async def test_audit_reports_windows_lost_by_asynchronous_standby(
    pair: Pair, start: Start, receivers: Receivers, seed: int
) -> None:
    """The new primary reuses the delivery keys of lost windows, and the receiver has other usage under these keys."""
    fleet = await Fleet(start, pair.url, {**CUTTING, **receivers.gateways}, 1).ready()
    (instance,) = fleet.running
    await open_some(instance, 10, seed)
    await windows_delivered(former := pair.database(), 1, fleet.all)
    await pair.disconnect_standby()
    known = await last_window(former)
    lost = await open_some(instance, 10, seed + 1)
    await windows_delivered(former, 2, fleet.all, after=known)
    sent = await last_window(former)
    await former.close()
    await pair.fail_over(0)
    database = pair.database()
    try:
        await windows_delivered(database, 1, fleet.all, after=sent)
        await fleet.stop()
        audited = await run_audit(database, receivers.usages.ledger)
        assert audited.returncode == 1
        assert f"chunk 1 of window {known + 1} has a different digest in the ledger" in audited.stdout, audited.stdout
        kept = {session.session_id for session in await read_sessions(database)}
        assert kept.isdisjoint(lost)
    finally:
        await database.close()
