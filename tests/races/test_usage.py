"""Windows that are cut while sessions are opened, kept, upgraded, ended and swept: every instant is billed once."""

import asyncio
import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.deliveries import LONG_LEASE, Fleet, found, gateways
from tests.support.instances import RunningInstance, stop_all
from tests.support.load import TENANT, Client, Key, clients, some_keys
from tests.support.locks import CUT_LOCK
from tests.support.receivers import RunningReceiver
from tests.support.usage_truth import audit, read_books, wrong_usage

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

ROOT = Path(__file__).parents[2]
RACE_SECONDS = 15
SHORT_RACE_SECONDS = 4
INTERVAL_MICROSECONDS = 20_000
KEYS = 150
CLIENTS_EACH = 8
DELIVERED_WITHIN_SECONDS = 30
WINDOWS_MIN, SESSIONS_MIN = 50, 200
"""Without so many nothing is proved."""
ENVIRONMENT = {
    **LONG_LEASE,
    "TENURE_JOBS__EXPIRE_SESSIONS__PAUSED": "false",
    "TENURE_JOBS__EXPIRE_SESSIONS__INTERVAL_SECONDS": "1",
    "TENURE_JOBS__EMIT_USAGE__PAUSED": "true",
    "TENURE_SESSIONS__LEASE_SECONDS": "1",
}
WIDENED = """
CREATE FUNCTION test_dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(0.04 * random());
    RETURN NULL;
END
$$;
CREATE TRIGGER test_dawdle AFTER INSERT OR UPDATE ON sessions FOR EACH STATEMENT EXECUTE FUNCTION test_dawdle();
"""
"""Between reading the clock and the commit every write takes longer than it takes to cut and divide a window."""
TAKES_THE_LOCK = f"""
SELECT pg_get_functiondef(oid) AS text FROM pg_proc WHERE prosrc LIKE '%pg_advisory_xact_lock_shared({CUT_LOCK})%'
"""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path)
    yield started
    stop_all([started])


@pytest.mark.timeout(150)
async def test_no_instant_is_lost_or_doubled_however_writes_and_cuts_race(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    await widen(postgres_database)
    fleet, did = await race(postgres_database, start, receiver, RACE_SECONDS, seed)
    await found(lambda: all_delivered(postgres_database), DELIVERED_WITHIN_SECONDS, "all is delivered", fleet.all)
    await fleet.stop()
    shown = f"seed {seed}, {did}"
    assert await wrong_usage(postgres_database, receiver.ledger) == [], shown
    audited = await audit(postgres_database, receiver.ledger)
    assert audited.returncode == 0, f"{shown}\n{audited.stdout}\n{audited.stderr}"
    books = await read_books(postgres_database)
    assert len(books.windows) > WINDOWS_MIN, shown
    assert len(books.sessions) > SESSIONS_MIN, shown
    assert await reasons(postgres_database) >= {"UPGRADED", "TERMINATED", "LEASE_EXPIRED"}, shown


async def test_without_the_shared_lock_the_same_race_loses_or_doubles_instants(
    postgres_database: Database, start: Start, receiver: RunningReceiver, seed: int
) -> None:
    """The test above could otherwise not fail."""
    await widen(postgres_database)
    await forget_the_lock(postgres_database)
    fleet, did = await race(postgres_database, start, receiver, SHORT_RACE_SECONDS, seed)
    fleet.kill()
    wrong = await wrong_usage(postgres_database, receiver.ledger)
    assert any(sentence.startswith("saved") for sentence in wrong), f"seed {seed}, {did}\n{wrong}"


async def widen(database: Database) -> None:
    for statement in WIDENED.split("\n$$;\n"):
        await database.execute(statement + ("\n$$" if "plpgsql" in statement else ""))


async def forget_the_lock(database: Database) -> None:
    """Of every function that takes it, a version that does not."""
    functions = await database.rows(TAKES_THE_LOCK)
    assert functions
    for function in functions:
        await database.execute(re.sub(rf"PERFORM pg_advisory_xact_lock_shared\({CUT_LOCK}\);", "", function["text"]))
    assert await database.rows(TAKES_THE_LOCK) == []


async def race(
    database: Database, start: Start, receiver: RunningReceiver, seconds: float, seed: int
) -> tuple[Fleet, Counter[str]]:
    """Until the last window is cut and divided; instances may still be sending."""
    environment = {**ENVIRONMENT, **gateways(usages={"url": receiver.address, "schedule": [0.2, 1]})}
    fleet = await Fleet(start, database.url, environment, 2).ready()
    await fleet.leader()
    did: Counter[str] = Counter()
    async with cutting(database), clients(fleet.addresses, CLIENTS_EACH) as members:
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, over.set)
        async with asyncio.TaskGroup() as tasks:
            for number, member in enumerate(members):
                user = User(member, some_keys(KEYS, seed), random.Random(seed + number), did)
                tasks.create_task(user.use(over))
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
    """Opens sessions, and keeps, ends or forgets them."""

    def __init__(self, client: Client, keys: Sequence[Key], source: random.Random, did: Counter[str]) -> None:
        self._client, self._keys, self._random, self._did = client, keys, source, did

    async def use(self, over: asyncio.Event) -> None:
        while not over.is_set():
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
        answer = await self._do("PUT", "/sessions", body)
        return answer["sessionId"] if answer is not None else None

    async def _do(self, method: str, path: str, body: Any = None) -> Any:
        done = await self._client.send(method, path, body)
        self._did[f"{method} {done.status}"] += 1
        return done.answer if done.status in (200, 201) else None


async def all_delivered(database: Database) -> bool:
    (row,) = await database.rows("SELECT count(*) AS count FROM usage_windows WHERE delivered_at IS NULL")
    return bool(row["count"] == 0)


async def reasons(database: Database) -> set[str]:
    return {row["close_reason"] for row in await database.rows("SELECT DISTINCT close_reason FROM sessions")}
