"""For tests of deliveries: clients that submit, receivers, instances that send, and the checks at the end of a test."""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.receivers import RunningReceiver
from tests.support.terms import leads
from tests.support.waiting import Logged, all_logs

Start = Callable[..., RunningInstance]

LEASE = "submission-executor"
ACCEPTED, UNAVAILABLE = 202, 503
ANSWER_SECONDS = 5
ACCEPTED_WITHIN_SECONDS = 30
STARTED_WITHIN_SECONDS = 30
REPEAT_PAUSE_SECONDS = 0.05
POLL_SECONDS = 0.05
TIMING = {
    "TENURE_LEASES__DURATION_SECONDS": "2",
    "TENURE_LEASES__RENEW_SECONDS": "1",
    "TENURE_LEASES__ACQUIRE_SECONDS": "1",
    "TENURE_LEASES__REFRESH_SECONDS": "1",
    "TENURE_JOBS__EXPIRE_SESSIONS__PAUSED": "true",
}
LONG_LEASE = {**TIMING, "TENURE_LEASES__DURATION_SECONDS": "60", "TENURE_LEASES__RENEW_SECONDS": "20"}


def gateways(**named: dict[str, Any]) -> dict[str, str]:
    return {"TENURE_GATEWAYS": json.dumps(named)}


def comparing_often(folder: Path) -> dict[str, str]:
    """Returns environment variables that make the executor compare its schedule with the database every second."""
    path = folder / "comparing_often"
    path.mkdir(exist_ok=True)
    (path / "sitecustomize.py").write_text("import tenure.submissions.executor as e\ne.COMPARE_SECONDS = 1.0\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))}


# Submit


class Submitter:
    """Submits payloads. After a lost response or a 503, retries with the same idempotency key at the next instance."""

    def __init__(self, client: aiohttp.ClientSession, addresses: Sequence[str], gateway: str = "orders") -> None:
        self._client = client
        self._addresses = addresses
        self._gateway = gateway
        self.repeated = 0

    async def submit(self, number: int) -> str:
        """Submits a payload with an idempotency key that contains this number, and returns the id of the submission."""
        turn = number
        async with asyncio.timeout(ACCEPTED_WITHIN_SECONDS):
            while (submission_id := await self._post(number, turn)) is None:
                turn += 1
                self.repeated += 1
                await asyncio.sleep(REPEAT_PAUSE_SECONDS)
        return submission_id

    async def submit_all(self, numbers: Iterable[int], at_once: int = 1, pause_seconds: float = 0) -> list[str]:
        """Submits all numbers in `at_once` concurrent tasks, each of which pauses after each submission.

        Returns the ids of the submissions in the order of acceptance.
        """
        left, submission_ids = iter(numbers), list[str]()

        async def work() -> None:
            for number in left:
                submission_ids.append(await self.submit(number))
                await asyncio.sleep(pause_seconds)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(work())
        return submission_ids

    async def retry(self, submission_id: str) -> None:
        async with self._client.post(f"{self._addresses[0]}/submissions/{submission_id}/retry") as result:
            assert result.status == 200, await result.text()

    async def _post(self, number: int, turn: int) -> str | None:
        address = self._addresses[turn % len(self._addresses)]
        body = {"gateway": self._gateway, "payload": {"number": number}}
        headers = {"idempotency-key": f"{self._gateway} {number}"}
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._client.post(f"{address}/submissions", json=body, headers=headers) as result:
                content = await result.json()
                if result.status == ACCEPTED:
                    return str(content["submissionId"])
                assert result.status == UNAVAILABLE, content
        return None


@asynccontextmanager
async def submitter(addresses: Sequence[str], gateway: str = "orders") -> AsyncIterator[Submitter]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        yield Submitter(client, addresses, gateway)


async def submission(address: str, submission_id: str) -> Any:
    async with aiohttp.ClientSession() as client, client.get(f"{address}/submissions/{submission_id}") as result:
        return await result.json()


async def wait_for_state(
    address: str, submission_id: str, state: str, seconds: float, processes: Sequence[Logged] = ()
) -> Any:
    """Waits until the submission is in this state, and returns it."""

    async def in_state() -> Any:
        shown = await submission(address, submission_id)
        return shown if shown["state"] == state else None

    return await poll(in_state, seconds, f"{submission_id} is {state}", processes)


async def poll(
    condition: Callable[[], Awaitable[Any]], seconds: float, what: str, processes: Sequence[Logged] = ()
) -> Any:
    """Calls `condition` until its result is true, and returns the result."""
    deadline = time.monotonic() + seconds
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}\n{all_logs(processes)}")
        await asyncio.sleep(POLL_SECONDS)
    return value


async def all_delivered(database: Database, seconds: float, processes: Sequence[Logged]) -> None:
    async def none_is_pending() -> bool:
        (row,) = await database.rows("SELECT count(*) AS count FROM submissions WHERE state <> 'delivered'")
        return bool(row["count"] == 0)

    await poll(none_is_pending, seconds, "all submissions are delivered", processes)


# Receive


class SilentReceiver:
    """A receiver that reads every request, and responds only when `accept_all` is called."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._server: asyncio.Server
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    def accept_all(self) -> None:
        """Responds with 202 on every open connection."""
        for writer in self._open:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError):
            while line := await reader.readline():
                name, _, value = line.decode("latin-1").partition(":")
                if name.lower() == "idempotency-key":
                    self.keys.append(value.strip())
        self._open.discard(writer)
        writer.close()


async def set_faults(receiver: RunningReceiver, faults: object) -> None:
    address = f"{receiver.address}/_faults"
    async with aiohttp.ClientSession() as client, client.put(address, data=msgspec.json.encode(faults)) as result:
        assert result.status == 200, await result.text()


async def totals(receiver: RunningReceiver) -> Any:
    async with aiohttp.ClientSession() as client, client.get(f"{receiver.address}/_totals") as result:
        return await result.json(content_type=None)


def received(receiver: RunningReceiver) -> dict[str, int]:
    """Returns when each delivery key was first received, in microseconds since 1970."""
    return {row["key"]: row["received_at"] for row in _ledger(receiver, "SELECT * FROM deliveries")}


def _ledger(receiver: RunningReceiver, statement: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(receiver.ledger, timeout=10)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(statement)]


# Send


class Fleet:
    """Instances that a test can kill and replace. A replacement has a new address."""

    def __init__(self, start: Start, url: str, environment: dict[str, str], count: int) -> None:
        self._start, self._url, self._environment = start, url, environment
        self.running = [self._one() for _ in range(count)]
        self.all = list(self.running)
        self.addresses: list[str] = []

    async def ready(self) -> "Fleet":
        for instance in self.running:
            await asyncio.to_thread(instance.wait_until_ready)
        self.addresses[:] = [instance.address for instance in self.running]
        return self

    async def leader(self) -> RunningInstance:
        async def leading() -> RunningInstance | None:
            return next((instance for instance in self.running if leads(instance.log())), None)

        leader: RunningInstance = await poll(leading, STARTED_WITHIN_SECONDS, "an instance leads", self.all)
        return leader

    async def followers(self) -> list[RunningInstance]:
        leader = await self.leader()
        return [instance for instance in self.running if instance is not leader]

    async def kill_and_replace(self, victim: RunningInstance) -> None:
        place = self.running.index(victim)
        victim.kill()
        self.running[place] = self._one()
        self.all.append(self.running[place])
        self.addresses[place] = await asyncio.to_thread(lambda: self.running[place].wait_until_ready().address)

    async def stop(self) -> None:
        for instance in self.running:
            instance.terminate()
        for instance in self.running:
            await asyncio.to_thread(instance.wait_for_exit)

    def kill(self) -> None:
        """Kills all instances. This is faster than `stop`, for tests that do not check how instances stop."""
        for instance in self.running:
            instance.kill()

    def logged(self, event: str) -> list[str]:
        return [line for instance in self.all for line in instance.log().splitlines() if event in line]

    def _one(self) -> RunningInstance:
        return self._start(self._url, **self._environment)


# Checks at the end


STATES = "SELECT state, count(*) AS count FROM submissions GROUP BY state"
NUMBERS_WITH_GAPS = """
SELECT s.submission_id, s.attempts, count(a.number) AS kept, min(a.number) AS first, max(a.number) AS last
  FROM submissions s LEFT JOIN submission_attempts a ON a.submission_id = s.submission_id
 GROUP BY s.submission_id, s.attempts
HAVING count(a.number) <> s.attempts OR min(a.number) <> 1 OR max(a.number) <> s.attempts
"""
OUTSIDE_THEIR_EPOCH = f"""
SELECT a.*, h.holder AS leader, h.acquired_at, h.ended_at AS epoch_ended_at
  FROM submission_attempts a
  LEFT JOIN lease_history h ON h.name = '{LEASE}' AND h.epoch = a.epoch
 WHERE h.epoch IS NULL OR h.holder <> a.holder OR a.started_at < h.acquired_at OR a.started_at >= h.ended_at
"""
RECORDED_OUTSIDE_THEIR_EPOCH = f"""
SELECT a.*, h.ended_at AS epoch_ended_at
  FROM submission_attempts a JOIN lease_history h ON h.name = '{LEASE}' AND h.epoch = a.epoch
 WHERE a.outcome IN ('delivered', 'failed', 'abandoned') AND a.ended_at > h.ended_at
"""
LEFT_OPEN = "SELECT * FROM submission_attempts WHERE ended_at IS NULL"
ENDED_BEFORE_START = "SELECT * FROM submission_attempts WHERE ended_at < started_at"
SIDE_BY_SIDE = """
SELECT a.*, b.started_at AS next_started_at FROM submission_attempts a
  JOIN submission_attempts b ON b.submission_id = a.submission_id AND b.number = a.number + 1
 WHERE b.started_at < a.ended_at
"""
AFTER_A_LATER_EPOCH = """
SELECT b.* FROM submission_attempts a
  JOIN submission_attempts b ON b.submission_id = a.submission_id AND b.number = a.number + 1
 WHERE b.epoch < a.epoch
"""
AFTER_A_DELIVERY = """
SELECT a.* FROM submission_attempts a JOIN submissions s ON s.submission_id = a.submission_id
 WHERE a.outcome = 'delivered' AND a.number <> s.attempts
"""


async def find_violations(
    database: Database,
    receiver: RunningReceiver,
    submission_ids: Sequence[str],
    *,
    elsewhere: int = 0,
    clock_went_back: bool = False,
) -> list[str]:
    """Returns the violations of the guarantees for deliveries, as texts. All instances must have stopped.

    `elsewhere` is the number of submissions that were delivered to other receivers. If `clock_went_back`, the
    database's clock was set back, so the checks that compare instants are skipped.
    """
    wrong = {
        "submissions with missing attempts": NUMBERS_WITH_GAPS,
        "attempts in an earlier epoch than the attempt before": AFTER_A_LATER_EPOCH,
        "attempts left open": LEFT_OPEN,
        "delivered attempts that are not the last": AFTER_A_DELIVERY,
    }
    if not clock_went_back:
        wrong |= {
            "attempts begun outside their epoch": OUTSIDE_THEIR_EPOCH,
            "attempts recorded outside their epoch": RECORDED_OUTSIDE_THEIR_EPOCH,
            "attempts that ended before their start": ENDED_BEFORE_START,
            "attempts that ended after the next one began": SIDE_BY_SIDE,
        }
    counted = [(what, await database.rows(statement)) for what, statement in wrong.items()]
    broken = [f"{len(rows)} {what}: {rows[:3]}" for what, rows in counted if rows]
    states = {row["state"]: row["count"] for row in await database.rows(STATES)}
    accepted = len(set(submission_ids)) + elsewhere
    if states != {"delivered": accepted}:
        broken.append(f"states {states}, accepted {accepted}")
    return broken + await _ledger_violations(database, receiver, submission_ids)


async def _ledger_violations(database: Database, receiver: RunningReceiver, submission_ids: Sequence[str]) -> list[str]:
    ledger = received(receiver).keys()
    missing, too_many = set(submission_ids) - ledger, ledger - set(submission_ids)
    (attempts,) = await database.rows("SELECT count(*) AS count FROM submission_attempts WHERE outcome <> 'abandoned'")
    (seen,) = _ledger(receiver, "SELECT keys, requests, conflicts FROM totals")
    broken = [
        f"{len(ids)} {what}: {sorted(ids)[:3]}" for what, ids in (("missing", missing), ("extra", too_many)) if ids
    ]
    if seen["keys"] != len(set(submission_ids)) or seen["conflicts"]:
        broken.append(f"totals {seen}")
    if seen["requests"] > attempts["count"]:
        broken.append(f"{seen['requests']} requests were received, but at most {attempts['count']} were sent")
    return broken
