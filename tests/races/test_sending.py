"""How soon submissions are sent, whoever accepts them, however late they are committed, and whoever does not answer."""

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenure.clock import wall_microseconds
from tenure.model.submissions import Submit
from tenure.store.submissions import contract_text
from tenure.submissions.intake import PAGE
from tests.support.databases import Database
from tests.support.deliveries import (
    LONG_LEASE,
    BlackHole,
    Fleet,
    Submitter,
    all_delivered,
    broken_promises,
    comparing_often,
    found,
    gateways,
    received,
    set_faults,
    submission,
    submitter,
    totals,
)
from tests.support.instances import RunningInstance, stop_all
from tests.support.receivers import RunningReceiver
from tests.support.submissions import submit
from tests.support.waiting import all_logs, until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

SECOND = 1_000_000
TWO_REFRESHES_SECONDS = 2.0
NOTIFIED_WITHIN_SECONDS = 0.2
LATE_SECONDS = 3
"""Longer than two refreshes, shorter than what a refresh looks back."""
SILENT = """
CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS '';
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$;
"""
"""From then on everybody who connects calls this one instead of PostgreSQL's own."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path)
    yield started
    stop_all([started])


# Accepted by a follower


async def test_what_a_follower_accepts_is_sent_within_two_refreshes_on_a_file(
    sqlite_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    delays = await delays_by_a_follower(sqlite_database, start, receiver, 5)
    assert max(delays) <= TWO_REFRESHES_SECONDS, delays


async def test_what_a_follower_accepts_is_sent_within_two_refreshes_without_notification(
    postgres_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    await run_script(postgres_database.url, SILENT)
    delays = await delays_by_a_follower(postgres_database, start, receiver, 5)
    assert max(delays) <= TWO_REFRESHES_SECONDS, delays
    assert max(delays) > NOTIFIED_WITHIN_SECONDS, f"somebody was notified: {delays}"


async def test_what_a_follower_accepts_is_sent_at_once_with_notification(
    postgres_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    delays = await delays_by_a_follower(postgres_database, start, receiver, 9)
    assert statistics.median(delays) <= NOTIFIED_WITHIN_SECONDS, delays
    assert max(delays) <= TWO_REFRESHES_SECONDS, delays


async def delays_by_a_follower(
    database: Database, start: Start, receiver: RunningReceiver, count: int
) -> Sequence[float]:
    """From before it is submitted until it is received, each after a pause in which nothing else happens."""
    async with sending(database, start, receiver.address, 2) as fleet:
        (follower,) = await fleet.followers()
        async with submitter([follower.address]) as submitting:
            return [await delay(submitting, receiver, number, fleet) for number in range(count)]


async def delay(submitting: Submitter, receiver: RunningReceiver, number: int, fleet: Fleet) -> float:
    await asyncio.sleep(0.07 * (number % 10))  # not in step with the refreshes
    submitted_at = wall_microseconds()
    submission_id = await submitting.submit(number)
    await until(lambda: submission_id in received(receiver), 5, "it is received", fleet.all)
    return (received(receiver)[submission_id] - submitted_at) / SECOND


# Committed late


async def test_what_is_committed_seconds_late_is_sent(
    postgres_database: Database, start: Start, receiver: RunningReceiver, tmp_path: Path
) -> None:
    """All of it at one instant, and several pages of it, while others are accepted and sent."""
    late = [submit(gateway="shop", caller="") for _ in range(PAGE * 5 // 2)]
    async with sending(postgres_database, start, receiver.address, 2, comparing_often(tmp_path)) as fleet:
        async with submitter(fleet.addresses) as submitting, committed_late(postgres_database, late):
            others = await submitting.submit_all(range(200), at_once=2)
            await all_delivered(postgres_database, 5, fleet.all)
        wanted = {each.submission_id for each in late}
        await until(lambda: wanted <= received(receiver).keys(), 5, "all are received", fleet.all)
        await all_delivered(postgres_database, 5, fleet.all)
        instants = await postgres_database.rows(
            "SELECT last_modified_at FROM submissions GROUP BY 1 HAVING count(*) > 1000"
        )
        # Until whoever compares has looked at what lies behind every refresh.
        await asyncio.sleep(LATE_SECONDS + 1)
        await fleet.stop()
    assert len(instants) == 1, "they were to be of one instant"
    assert fleet.told("submissions.found_late") == []
    broken = await broken_promises(postgres_database, receiver, [*others, *wanted])
    assert broken == [], all_logs(fleet.all)


@asynccontextmanager
async def committed_late(database: Database, wishes: Sequence[Submit]) -> AsyncIterator[None]:
    """Accepted before what is done meanwhile, and seen by nobody until seconds after that."""
    connection = await asyncpg.connect(database.url)
    try:
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT tenure_accept_submissions_1($1::text[]::uuid[], $2, $3, $4, $5, $6, $7)",
            [wish.submission_id for wish in wishes],
            [wish.gateway for wish in wishes],
            [wish.caller for wish in wishes],
            [wish.key for wish in wishes],
            [wish.payload for wish in wishes],
            [wish.digest for wish in wishes],
            [contract_text(wish.contract) for wish in wishes],
        )
        waited = asyncio.create_task(asyncio.sleep(LATE_SECONDS))
        yield
        await waited
        await connection.execute("COMMIT")
    finally:
        connection.terminate()


# Beside a receiver that does not answer


async def test_a_dead_receiver_delays_only_its_own(
    postgres_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    async with BlackHole() as dead:
        named: dict[str, dict[str, Any]] = {
            "shop": {"url": receiver.address},
            "dead": {"url": dead.address, "concurrency": 8},
        }
        fleet = await Fleet(start, postgres_database.url, {**LONG_LEASE, **gateways(**named)}, 2).ready()
        await fleet.leader()
        async with submitter(fleet.addresses, "dead") as burying, submitter(fleet.addresses) as submitting:
            await burying.submit_all(range(500), at_once=8)
            await until(lambda: len(dead.keys) == 8, 3, "as many are under way as may be", fleet.all)
            delays = [await delay(submitting, receiver, number, fleet) for number in range(9)]
        assert len(dead.keys) == 8, "more at once than allowed"
        fleet.kill()
    assert statistics.median(delays) <= NOTIFIED_WITHIN_SECONDS, delays
    assert max(delays) <= TWO_REFRESHES_SECONDS, delays


# Asked for again while it is sent


async def test_what_is_retried_by_hand_is_not_sent_twice_at_once(
    database: Database, start: Start, receiver: RunningReceiver
) -> None:
    """It waited for its next attempt, is sent before that as asked for, and is still on the way at that instant."""
    await set_faults(receiver, {"share": 1, "times": 1, "ways": [{"way": "status", "status": 500, "counted": True}]})
    async with sending(database, start, receiver.address, 1, schedule=[2]) as fleet:
        address = fleet.addresses[0]
        async with submitter([address]) as submitting:
            submission_id = await submitting.submit(1)
            await attempted(fleet, submission_id, 1)
            await set_faults(receiver, {"share": 1, "ways": [{"way": "delay", "seconds": 4}]})
            await submitting.retry(submission_id)
        await attempted(fleet, submission_id, 2)
        await all_delivered(database, 10, fleet.all)
        await fleet.stop()
    assert (await totals(receiver))["requests"] == 2, all_logs(fleet.all)
    assert await broken_promises(database, receiver, [submission_id]) == [], all_logs(fleet.all)


async def test_what_is_retried_while_it_is_sent_is_sent_again_as_soon_as_that_has_failed(
    database: Database, start: Start
) -> None:
    """By its contract that attempt was the last one, and a next one would have to wait for an hour."""
    async with (
        BlackHole() as hole,
        sending(database, start, hole.address, 1, timeout_seconds=1, schedule=[3600], max_attempts=1) as fleet,
        submitter(fleet.addresses) as submitting,
    ):
        submission_id = await submitting.submit(1)
        await until(lambda: hole.keys == [submission_id], 3, "it is under way", fleet.all)
        await submitting.retry(submission_id)
        await until(lambda: hole.keys == [submission_id] * 2, 4, "it is sent again", fleet.all)


async def attempted(fleet: Fleet, submission_id: str, count: int) -> None:
    """As many have begun, and all but the last have ended."""

    async def enough() -> bool:
        shown = await submission(fleet.addresses[0], submission_id)
        return len(shown["attempts"]) == count and (count > 1 or shown["nextAttemptAt"] is not None)

    await found(enough, 5, f"{count} attempts", fleet.all)


# What is used above


@asynccontextmanager
async def sending(
    database: Database, start: Start, address: str, count: int, more: Mapping[str, str] | None = None, **contract: Any
) -> AsyncIterator[Fleet]:
    """Instances of which one leads, with a gateway to this receiver."""
    shop = {"url": address, "concurrency": 64, **contract}
    environment = {**LONG_LEASE, **(more or {}), **gateways(shop=shop)}
    fleet = await Fleet(start, database.url, environment, count).ready()
    try:
        await until(lambda: fleet.told("executor.started"), 5, "its leader works", fleet.all)
        yield fleet
    finally:
        fleet.kill()


async def run_script(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(script)
    await connection.close()
