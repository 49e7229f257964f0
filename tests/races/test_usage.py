"""Every instant is billed once when windows are cut while sessions are opened, renewed, upgraded, ended and swept."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.clock import MICROSECOND
from tenure.domain.usage import ChunkBounds, PrunedUsage
from tenure.store.engines.postgres.rows import draft_text
from tenure.store.limits import USAGE_KEPT
from tenure.store.reads.submissions import contract_text
from tests.support.audit_log import draft
from tests.support.databases import Database
from tests.support.deliveries import LONG_LEASE, Fleet, gateways, poll
from tests.support.expected_usage import find_usage_faults, read_usage_tables, run_audit
from tests.support.instances import RunningInstance, stop_all
from tests.support.leases import hold_lease, read_table
from tests.support.load import TENANT, Client, Key, clients, some_keys
from tests.support.locks import CUT_LOCK, holding
from tests.support.open_requests import some_id
from tests.support.receivers import RunningReceiver
from tests.support.usage import CONTRACT, cut_one, install, minute, save

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

ROOT = Path(__file__).parents[2]
RACE_SECONDS = 7
RACES_WITHOUT_LOCK_MAX = 3
"""The most races without the lock. On a busy machine, one race may cause no fault, because too few
writes race with a cut."""
RACE_WITHOUT_LOCK_SECONDS = 4
INTERVAL_MICROSECONDS = 20_000
KEYS = 150
CLIENTS_EACH = 8
DELIVERED_WITHIN_SECONDS = 30
WINDOWS_MIN, SESSIONS_MIN = 20, 100
"""The test must have more windows and sessions than this to prove anything."""
ENVIRONMENT = {
    **LONG_LEASE,
    "TENURE_JOBS__EXPIRE_SESSIONS__PAUSED": "false",
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
    "TENURE_JOBS__EMIT_USAGE__PAUSED": "true",
    "TENURE_SESSIONS__LEASE_SECONDS": "1",
}
WIDENED = """
CREATE FUNCTION test_delay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(0.04 * random());
    RETURN NULL;
END
$$;
CREATE TRIGGER test_delay AFTER INSERT OR UPDATE ON sessions FOR EACH STATEMENT EXECUTE FUNCTION test_delay();
"""
"""Delays each session write between its clock reading and its commit, often by more than the interval of the
windows."""
TAKES_THE_LOCK = f"SELECT proname FROM pg_proc WHERE prosrc LIKE '%pg_advisory_xact_lock_shared({CUT_LOCK})%'"
"""Finds the function with which session writes wait for the cut lock."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path)
    yield started
    stop_all([started])


@pytest.mark.timeout(150)
async def test_every_instant_is_billed_once_while_writes_race_with_cuts(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    await widen(postgres_database)
    fleet, did = await race(postgres_database, start, receiver, RACE_SECONDS, seed)
    await poll(
        lambda: all_delivered(postgres_database), DELIVERED_WITHIN_SECONDS, "every window is delivered", fleet.all
    )
    await fleet.stop()
    shown = f"seed {seed}, {did}"
    assert await find_usage_faults(postgres_database, receiver.ledger) == [], shown
    audited = await run_audit(postgres_database, receiver.ledger)
    assert audited.returncode == 0, f"{shown}\n{audited.stdout}\n{audited.stderr}"
    books = await read_usage_tables(postgres_database)
    assert len(books.windows) > WINDOWS_MIN, shown
    assert len(books.sessions) > SESSIONS_MIN, shown
    assert await reasons(postgres_database) >= {"UPGRADED", "TERMINATED", "LEASE_EXPIRED"}, shown


async def test_race_without_shared_lock_loses_or_doubles_instants(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    """Proves that the test above can fail: if session writes do not acquire the cut lock, its check finds faults."""
    await widen(postgres_database)
    await remove_lock(postgres_database)
    wrong: list[str] = []
    for number in range(RACES_WITHOUT_LOCK_MAX):
        fleet, _ = await race(postgres_database, start, receiver, RACE_WITHOUT_LOCK_SECONDS, seed + number)
        fleet.kill()
        wrong = await find_usage_faults(postgres_database, receiver.ledger)
        if any(sentence.startswith("saved") for sentence in wrong):
            return
    pytest.fail(f"no fault, seed {seed}\n{wrong}")


async def test_prune_keeps_window_that_is_being_sent(postgres_database: Database) -> None:
    """The sending transaction reads the clock before the retention time of the window ends. It commits after the job
    `prune` has selected the window for deletion, and waits for its row.
    """
    database, ended_at = postgres_database, minute(1)
    await install(database, minute(0))
    for number in (1, 2):
        window = await cut_one(database, minute(number), contract=None)
        await save(database, window, [ChunkBounds(some_id(), some_id(), 1, 1)])
    fence = await hold_lease(database.store, "job:prune")
    await database.clock.set(ended_at + USAGE_KEPT)
    arguments = f"{USAGE_KEPT // MICROSECOND}, ARRAY[1], ARRAY[1], ARRAY[gen_random_uuid()]"
    async with holding(database) as sending:
        await sending.execute(
            f"SELECT * FROM tenure_send_windows_1('{contract_text(CONTRACT)}', {arguments}, '{draft_text(draft())}')"
        )
        await database.clock.set(ended_at + USAGE_KEPT + MICROSECOND)
        pruning = asyncio.create_task(database.store.prune_usage(fence, 100))
        await sending.wait_for_blocked()
        await sending.commit()
        assert await pruning == PrunedUsage(0, 0, 0)
    chunks = await read_table(database, "usage_chunks")
    assert [(row["window_id"], row["submission_id"] is None) for row in chunks] == [(1, False), (2, True)]


async def widen(database: Database) -> None:
    for statement in WIDENED.split("\n$$;\n"):
        await database.execute(statement + ("\n$$" if "plpgsql" in statement else ""))


async def remove_lock(database: Database) -> None:
    """Replaces the function with which session writes wait for the cut lock with one that does nothing."""
    (function,) = await database.rows(TAKES_THE_LOCK)
    await database.execute(f"CREATE OR REPLACE FUNCTION {function['proname']}() RETURNS void LANGUAGE sql AS ''")
    assert await database.rows(TAKES_THE_LOCK) == []


async def race(
    database: Database, start: Start, receiver: RunningReceiver, seconds: float, seed: int
) -> tuple[Fleet, Counter[str]]:
    """Runs users for `seconds` while windows are cut. Returns the fleet, and how often each method got each status.

    When this function returns, the instances may still be sending usage.
    """
    environment = {**ENVIRONMENT, **gateways(usages={"url": receiver.address, "schedule": [0.2, 1]})}
    fleet = await Fleet(start, database.url, environment, 2).ready()
    await fleet.leader()
    did: Counter[str] = Counter()
    async with cutting(database), clients(fleet.addresses, CLIENTS_EACH) as members:
        stopping = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, stopping.set)
        async with asyncio.TaskGroup() as tasks:
            for number, member in enumerate(members):
                user = User(member, some_keys(KEYS, seed), random.Random(seed + number), did)
                tasks.create_task(user.run(stopping))
    return fleet, did


@asynccontextmanager
async def cutting(database: Database) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.usage_cutting", database.url, str(INTERVAL_MICROSECONDS)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield
        _, errors = await process.communicate(b"")
        assert process.returncode == 0, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class User:
    """Opens sessions, and renews, ends or abandons them."""

    def __init__(self, client: Client, keys: Sequence[Key], source: random.Random, did: Counter[str]) -> None:
        self._client, self._keys, self._random, self._did = client, keys, source, did

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            session_id = await self._open(self._random.choice(self._keys))
            if session_id is None:
                continue
            for _ in range(self._random.randrange(3)):
                await self._do("POST", f"/sessions/{session_id}/heartbeat")
            if self._random.random() < 0.4:
                await self._do("DELETE", f"/sessions/{session_id}")

    async def _open(self, key: Key) -> str | None:
        body = {
            "capacityId": key[0],
            "userObjectId": key[1],
            "tenantObjectId": TENANT,
            "sessionKind": self._random.choice((1, 2, 3)),
        }
        result = await self._do("PUT", "/sessions", body)
        return result["sessionId"] if result is not None else None

    async def _do(self, method: str, path: str, body: Any = None) -> Any:
        done = await self._client.send(method, path, body)
        self._did[f"{method} {done.status}"] += 1
        return done.answer if done.status in (200, 201) else None


async def all_delivered(database: Database) -> bool:
    (row,) = await database.rows("SELECT count(*) AS count FROM usage_windows WHERE delivered_at IS NULL")
    return bool(row["count"] == 0)


async def reasons(database: Database) -> set[str]:
    return {row["close_reason"] for row in await database.rows("SELECT DISTINCT close_reason FROM sessions")}
