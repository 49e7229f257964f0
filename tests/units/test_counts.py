"""Requests share counts of sessions: a request uses a count that began at most a second before it arrived, or later."""

import asyncio

import pytest

from tenure.errors import DatabaseUnavailable
from tenure.sessions import counts
from tenure.sessions.counts import FRESH_SECONDS, SharedCount
from tenure.telemetry.events import SessionsCountFailed
from tests.support.telemetry import RecordedTelemetry

PATIENT = 30.0


class Counting:
    """Counts that finish when the test calls `end`. The first count returns 1, the second 2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.begun = 0
        self.running: list[asyncio.Future[int]] = []
        self.telemetry = RecordedTelemetry()
        self.shared = SharedCount(self._count, self.telemetry)
        monkeypatch.setattr(counts, "monotonic", lambda: self.now)

    async def _count(self) -> int:
        self.begun += 1
        self.running.append(asyncio.get_running_loop().create_future())
        return await self.running[-1]

    async def ask(self) -> "asyncio.Task[int]":
        request = asyncio.create_task(self.shared.fresh(PATIENT))
        await self.settle()
        return request

    async def end(self, error: Exception | None = None) -> None:
        count = self.running.pop()
        if error is None:
            count.set_result(self.begun)
        else:
            count.set_exception(error)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


async def test_requests_within_a_second_share_a_count(counting: Counting) -> None:
    first = await counting.ask()
    counting.now += FRESH_SECONDS * 0.9
    second = await counting.ask()
    await counting.end()
    third = await counting.ask()
    assert ([await each for each in (first, second, third)], counting.begun) == ([1, 1, 1], 1)


async def test_count_that_began_a_second_ago_is_not_reused(counting: Counting) -> None:
    first = await counting.ask()
    counting.now += FRESH_SECONDS
    await counting.end()
    second = await counting.ask()
    await counting.end()
    assert ((await first, await second), counting.begun) == ((1, 2), 2)


async def test_request_waits_for_the_next_count_if_the_running_one_began_too_early(counting: Counting) -> None:
    await counting.ask()
    counting.now += FRESH_SECONDS
    late = await counting.ask()
    assert counting.begun == 1  # at most one count runs at a time
    await counting.end()
    assert (late.done(), counting.begun) == (False, 2)
    await counting.end()
    assert await late == 2


async def test_request_that_times_out_fails_and_the_count_continues(counting: Counting) -> None:
    with pytest.raises(DatabaseUnavailable, match="still being counted"):
        await counting.shared.fresh(0.01)
    later = await counting.ask()
    await counting.end()
    assert (await later, counting.begun) == (1, 1)


async def test_failed_count_fails_its_requests_and_reports_only_unexpected_error(counting: Counting) -> None:
    for error, reported in ((DatabaseUnavailable("gone"), 0), (ValueError("broken"), 1)):
        request = await counting.ask()
        await counting.end(error)
        with pytest.raises(type(error)):
            await request
        assert len(counting.telemetry.of(SessionsCountFailed)) == reported


@pytest.mark.timeout(20)
async def test_request_that_arrives_just_as_a_count_ends_does_not_stop_the_event_loop(counting: Counting) -> None:
    """The request runs after the task of the count has ended, and before the callbacks of that task."""
    first = await counting.ask()
    counting.running.pop().set_result(1)
    second = asyncio.create_task(counting.shared.fresh(PATIENT))
    await counting.settle()
    assert (await first, await second) == (1, 1)
