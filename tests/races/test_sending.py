"""The delay of a submission that a follower accepts, that is committed late, or that is retried manually."""

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenure.clock import wall_microseconds
from tenure.domain.submissions import SubmitRequest
from tenure.store.reads.submissions import contract_text
from tenure.submissions.intake import PAGE
from tests.support.databases import Database
from tests.support.deliveries import (
    LONG_LEASE,
    Fleet,
    SilentReceiver,
    Submitter,
    all_delivered,
    comparing_often,
    find_violations,
    gateways,
    poll,
    received,
    set_faults,
    submission,
    submitter,
    totals,
)
from tests.support.instances import RunningInstance, stop_all
from tests.support.receivers import RunningReceiver
from tests.support.submissions import submit_request
from tests.support.waiting import all_logs, until

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

SECOND = 1_000_000
TWO_REFRESHES_SECONDS = 2.0
NOTIFIED_WITHIN_SECONDS = 0.2
LATE_SECONDS = 3
"""Longer than two refreshes, and shorter than five seconds: each refresh of the intake also reads the submissions that
changed in the five seconds before the previous refresh (TRAIL in submissions/intake.py)."""
WITHOUT_NOTIFY = """
CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS '';
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$;
"""
"""After this script, new connections call a function that does nothing instead of PostgreSQL's `pg_notify`."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[RunningReceiver]:
    started = RunningReceiver(tmp_path)
    yield started
    stop_all([started])


# Accepted by a follower


async def test_submission_accepted_by_follower_is_sent_within_two_refreshes_on_sqlite(
    sqlite_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    delays = await delays_by_a_follower(sqlite_database, start, receiver, 5)
    assert max(delays) <= TWO_REFRESHES_SECONDS, delays


async def test_submission_accepted_by_follower_is_sent_within_two_refreshes_without_notify(
    postgres_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    await run_script(postgres_database.url, WITHOUT_NOTIFY)
    delays = await delays_by_a_follower(postgres_database, start, receiver, 5)
    assert max(delays) <= TWO_REFRESHES_SECONDS, delays
    assert max(delays) > NOTIFIED_WITHIN_SECONDS, f"a notification was sent: {delays}"


async def test_submission_is_sent_immediately_with_notify_even_while_another_receiver_is_dead(
    postgres_database: Database, start: Start, receiver: RunningReceiver
) -> None:
    """The dead receiver delays only the submissions of its own gateway."""
    async with (
        SilentReceiver() as dead,
        sending(postgres_database, start, 2, orders=to(receiver), dead=to(dead, concurrency=8)) as fleet,
        submitter([each.address for each in await fleet.followers()]) as submitting,
    ):
        alone = [await delay(submitting, receiver, number, fleet) for number in range(9)]
        async with submitter(fleet.addresses, "dead") as submitting_dead:
            await submitting_dead.submit_all(range(300), at_once=8)
        await until(lambda: len(dead.keys) == 8, 3, "8 requests are in flight", fleet.all)
        beside = [await delay(submitting, receiver, number, fleet) for number in range(9, 18)]
        assert len(dead.keys) == 8, "more than `concurrency` requests are in flight"
    for what, delays in (("alone", alone), ("beside a dead receiver", beside)):
        assert statistics.median(delays) <= NOTIFIED_WITHIN_SECONDS, f"{what}: {delays}"
        assert max(delays) <= TWO_REFRESHES_SECONDS, f"{what}: {delays}"


async def delays_by_a_follower(
    database: Database, start: Start, receiver: RunningReceiver, count: int
) -> Sequence[float]:
    """Submits `count` submissions one after the other, and measures the seconds from the start of each request until
    the receiver has the submission.
    """
    async with sending(database, start, 2, orders=to(receiver)) as fleet:
        (follower,) = await fleet.followers()
        async with submitter([follower.address]) as submitting:
            return [await delay(submitting, receiver, number, fleet) for number in range(count)]


async def delay(submitting: Submitter, receiver: RunningReceiver, number: int, fleet: Fleet) -> float:
    await asyncio.sleep(0.07 * (number % 10))  # so that the requests come at different times between two refreshes
    submitted_at = wall_microseconds()
    submission_id = await submitting.submit(number)
    await until(lambda: submission_id in received(receiver), 5, "the submission is received", fleet.all)
    return (received(receiver)[submission_id] - submitted_at) / SECOND


# Committed late


async def test_submissions_committed_seconds_late_are_sent(
    postgres_database: Database, start: Start, receiver: RunningReceiver, tmp_path: Path
) -> None:
    """The late submissions fill several pages and all have the same time of change. Other submissions are accepted and
    sent meanwhile.
    """
    late = [submit_request(gateway="orders", caller="") for _ in range(PAGE * 5 // 2)]
    async with sending(postgres_database, start, 2, comparing_often(tmp_path), orders=to(receiver)) as fleet:
        async with submitter(fleet.addresses) as submitting, committed_late(postgres_database, late):
            others = await submitting.submit_all(range(200), at_once=2)
            await all_delivered(postgres_database, 5, fleet.all)
        late_ids = {each.submission_id for each in late}
        await until(lambda: late_ids <= received(receiver).keys(), 5, "all are received", fleet.all)
        await all_delivered(postgres_database, 5, fleet.all)
        instants = await postgres_database.rows(
            "SELECT last_modified_at FROM submissions GROUP BY 1 HAVING count(*) > 1000"
        )
        # Wait until the executor has compared its schedule with the changes that are too old for its refreshes.
        await asyncio.sleep(LATE_SECONDS + 1)
        await fleet.stop()
    assert len(instants) == 1, "the late submissions have different instants"
    assert fleet.logged("submissions.found_late") == []
    broken = await find_violations(postgres_database, receiver, [*others, *late_ids])
    assert broken == [], all_logs(fleet.all)


@asynccontextmanager
async def committed_late(database: Database, requests: Sequence[SubmitRequest]) -> AsyncIterator[None]:
    """Accepts the requests before the block of the `async with`. Commits them after the block, at least `LATE_SECONDS`
    after it accepted them.
    """
    connection = await asyncpg.connect(database.url)
    try:
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT tenure_accept_submissions_1($1::text[]::uuid[], $2, $3, $4, $5, $6, $7, '{}', '{}')",
            [request.submission_id for request in requests],
            [request.gateway for request in requests],
            [request.caller for request in requests],
            [request.key for request in requests],
            [request.payload for request in requests],
            [request.digest for request in requests],
            [contract_text(request.contract) for request in requests],
        )
        waited = asyncio.create_task(asyncio.sleep(LATE_SECONDS))
        yield
        await waited
        await connection.execute("COMMIT")
    finally:
        connection.terminate()


# Retried during an attempt


async def test_manual_retry_does_not_overlap_attempt_and_repeats_failed_attempt(
    database: Database, start: Start, receiver: RunningReceiver
) -> None:
    """Gateway `orders`: the manual retry is still in flight at the time at which the failed attempt was to be repeated.
    No other attempt may begin then.

    Gateway `silent`: a retry is requested during the last attempt that the contract allows. When this attempt fails,
    the submission is sent again at once, although the contract has a pause of an hour.
    """
    await set_faults(receiver, {"share": 1, "times": 1, "ways": [{"way": "status", "status": 500, "counted": True}]})
    async with (
        SilentReceiver() as silent,
        sending(
            database,
            start,
            1,
            orders=to(receiver, schedule=[1.5]),
            silent=to(silent, timeout_seconds=1, schedule=[3600], max_attempts=1),
        ) as fleet,
    ):
        async with submitter(fleet.addresses) as submitting:
            submission_id = await submitting.submit(1)
            await attempted(fleet, submission_id, 1)
            await set_faults(receiver, {"share": 1, "ways": [{"way": "delay", "seconds": 3}]})
            await submitting.retry(submission_id)
            await attempted(fleet, submission_id, 2)
        async with submitter(fleet.addresses, "silent") as submitting:
            unanswered = await submitting.submit(1)
            await until(lambda: silent.keys == [unanswered], 3, "the submission is in flight", fleet.all)
            await submitting.retry(unanswered)
            await until(lambda: silent.keys == [unanswered] * 2, 4, "the submission is sent again", fleet.all)
        silent.accept_all()
        await all_delivered(database, 10, fleet.all)
        await fleet.stop()
    assert (await totals(receiver))["requests"] == 2, all_logs(fleet.all)
    assert await find_violations(database, receiver, [submission_id], elsewhere=1) == [], all_logs(fleet.all)


async def attempted(fleet: Fleet, submission_id: str, count: int) -> None:
    """Waits until `count` attempts have begun and, if `count` is 1, until this attempt has ended."""

    async def enough() -> bool:
        shown = await submission(fleet.addresses[0], submission_id)
        return len(shown["attempts"]) == count and (count > 1 or shown["nextAttemptAt"] is not None)

    await poll(enough, 5, f"{count} attempts", fleet.all)


# Helpers


def to(receiver: RunningReceiver | SilentReceiver, **contract: Any) -> dict[str, Any]:
    return {"url": receiver.address, "concurrency": 64, **contract}


@asynccontextmanager
async def sending(
    database: Database, start: Start, count: int, more: Mapping[str, str] | None = None, **named: dict[str, Any]
) -> AsyncIterator[Fleet]:
    """Starts `count` instances with these gateways, and waits until one of them leads."""
    environment = {**LONG_LEASE, **(more or {}), **gateways(**named)}
    fleet = await Fleet(start, database.url, environment, count).ready()
    try:
        await until(lambda: fleet.logged("executor.started"), 5, "the leader works", fleet.all)
        yield fleet
    finally:
        fleet.kill()


async def run_script(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(script)
    await connection.close()
