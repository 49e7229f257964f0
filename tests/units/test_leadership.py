"""The leadership of one instance, with a store whose failures and delays a test controls."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from tenure.config import LeasesConfig
from tenure.domain.jobs import Board
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.leases.held import HeldLease
from tenure.leases.leadership import Leadership
from tenure.telemetry.events import LeaderAcquireFailed, Telemetry
from tenure.telemetry.logs import log_events
from tests.support.lease_stores import HostClock, LeaseStore, unavailable
from tests.support.telemetry import RecordedTelemetry

NAME = "executor"
TICK = 0.005
TIMING = LeasesConfig(duration_seconds=60.0, renew_seconds=TICK, acquire_seconds=TICK, refresh_seconds=TICK)
BOUND_SECONDS = 20.0


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not holds():  # noqa: ASYNC110 - the code under test sets no event
            await asyncio.sleep(0.001)


class Harness:
    """A leadership, its work, and methods that pass boards to the leadership."""

    def __init__(
        self, store: LeaseStore, timing: LeasesConfig = TIMING, holder: str = "us", grace_seconds: float = 0.0
    ) -> None:
        self.store = store
        self.terms: list[HeldLease] = []
        self.telemetry = RecordedTelemetry()
        self.cancelled = 0
        self.work_fails: Exception | None = None
        self.leadership = Leadership(
            store,  # type: ignore[arg-type]
            NAME,
            holder,
            timing,
            self.telemetry,
            self.work,
            grace_seconds,
        )
        self._showing: asyncio.Task[None] | None = None
        self._working: list[asyncio.Task[object] | None] = []

    async def work(self, lease: HeldLease) -> None:
        self._working.append(asyncio.current_task())
        self.terms.append(lease)
        if self.work_fails is not None:
            raise self.work_fails
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def show_board(self, board: Board | None = None) -> float | None:
        """Passes `board`, or the current board of the store, to the leadership."""
        return self.leadership.on_board(board if board is not None else self.store.board(NAME))

    async def lead(self) -> HeldLease:
        """Passes boards until the next term starts, and returns the lease of this term."""
        before = len(self.terms)
        async with asyncio.timeout(BOUND_SECONDS):
            # Pass many boards: a board is ignored while the lease of the previous term is still being released.
            while len(self.terms) == before:
                self.show_board()
                await asyncio.sleep(0.001)
        return self.terms[-1]

    def show_boards(self) -> None:
        """Passes a board every TICK from now on."""
        self._showing = asyncio.create_task(self._show_boards())

    async def stop(self) -> None:
        async with asyncio.timeout(BOUND_SECONDS):
            await self.leadership.stop()

    async def close(self) -> None:
        """Cancels all tasks."""
        for task in (self._showing, self.leadership._running, *self._working):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    async def _show_boards(self) -> None:
        while True:
            self.show_board()
            await asyncio.sleep(TICK)


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


@pytest.fixture
async def harness(store: LeaseStore, clock: HostClock) -> AsyncIterator[Harness]:
    del clock
    harness = Harness(store)
    harness.leadership.start()
    yield harness
    await harness.close()


def reasons(logs: list[dict[str, object]]) -> list[object]:
    return [entry["reason"] for entry in logs if entry["event"] == "leader_lost"]


# Leading.


async def test_leadership_acquires_free_lease(harness: Harness, store: LeaseStore) -> None:
    held = await harness.lead()
    assert (harness.leadership.is_leading, held.fence) == (True, store.leases[NAME].fence)


async def test_leadership_does_not_acquire_before_first_board(harness: Harness, store: LeaseStore) -> None:
    await asyncio.sleep(5 * TICK)
    assert (store.calls, harness.terms) == ([], [])


async def test_leadership_does_not_acquire_held_lease(harness: Harness, store: LeaseStore) -> None:
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    assert harness.show_board() is None
    await asyncio.sleep(5 * TICK)
    assert store.calls.count("acquire_lease") == 1


async def test_leadership_stays_follower_after_losing_race_for_lease(harness: Harness, store: LeaseStore) -> None:
    free = store.board(NAME)
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    harness.show_board(free)
    await eventually(lambda: store.calls.count("acquire_lease") == 2)
    await asyncio.sleep(TICK)
    assert (harness.terms, harness.leadership.is_leading) == ([], False)


async def test_leader_renews_lease_periodically(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    await eventually(lambda: store.calls.count("renew_lease") >= 3)
    assert harness.leadership.is_leading


@pytest.mark.parametrize(
    "failure", [unavailable, lambda: RuntimeError("no space left on device")], ids=["unavailable", "unexpected"]
)
async def test_leadership_retries_failed_acquire(
    harness: Harness, store: LeaseStore, failure: Callable[[], Exception]
) -> None:
    store.errors_before["acquire_lease"] = [failure]
    harness.show_board()
    await eventually(lambda: store.calls == ["acquire_lease"])
    await asyncio.sleep(TICK)
    assert [event.holder for event in harness.telemetry.of(LeaderAcquireFailed)] == ["us"]
    await harness.lead()
    assert harness.leadership.is_leading


# The board.


async def test_failed_acquire_is_not_retried_before_next_refresh(store: LeaseStore) -> None:
    """While a database refuses writes, every board shows that the lease is free. So the instance pauses after a failed
    try, and the boards in this pause cause no further try.
    """
    store.always_raise = unavailable
    harness = Harness(store, LeasesConfig(refresh_seconds=3600.0))
    harness.leadership.start()
    try:
        for _ in range(20):
            harness.show_board()
            await asyncio.sleep(0.001)
        assert store.calls == ["acquire_lease"]
        await harness.stop()
    finally:
        await harness.close()


async def test_board_read_before_term_does_not_end_term(harness: Harness, store: LeaseStore) -> None:
    before = store.board(NAME)
    await harness.lead()
    harness.show_board(before)
    await asyncio.sleep(3 * TICK)
    assert (harness.cancelled, harness.leadership.is_leading) == (0, True)


async def test_board_with_earlier_epoch_does_not_end_term(harness: Harness, store: LeaseStore) -> None:
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    await store.release_lease(store.leases[NAME].fence)
    before = store.board(NAME)
    await harness.lead()
    harness.show_board(before)
    await asyncio.sleep(3 * TICK)
    assert (harness.cancelled, harness.leadership.is_leading) == (0, True)


async def test_board_read_before_term_does_not_trigger_acquire_after_term(harness: Harness, store: LeaseStore) -> None:
    free = store.board(NAME)
    await harness.lead()
    harness.show_board(free)
    store.resign(NAME)
    harness.show_board()
    await eventually(lambda: harness.cancelled == 1)
    await asyncio.sleep(3 * TICK)
    assert store.calls.count("acquire_lease") == 1


async def test_board_with_later_epoch_ends_term_immediately(store: LeaseStore, clock: HostClock) -> None:
    """The term ends long before the next renewal."""
    del clock
    harness = Harness(store, LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=TICK))
    harness.leadership.start()
    held = await harness.lead()
    store.steal(NAME)
    with capture_logs() as logs:
        harness.show_board()
        with pytest.raises(LeaseLost):
            _ = held.fence
        await eventually(lambda: harness.cancelled == 1)
    assert reasons(logs) == ["lost"]
    await harness.close()


async def test_board_with_expired_lease_ends_term(store: LeaseStore, clock: HostClock) -> None:
    del clock
    harness = Harness(store, LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=TICK))
    harness.leadership.start()
    await harness.lead()
    with capture_logs() as logs:
        store.now = store.leases[NAME].expires_at
        harness.show_board()
        await eventually(lambda: harness.cancelled == 1)
    assert reasons(logs) == ["lost"]
    await harness.close()


# Failures of the database.


async def test_failed_renewal_ends_term(harness: Harness, store: LeaseStore) -> None:
    held = await harness.lead()
    with capture_logs() as logs:
        store.errors_before["renew_lease"] = [unavailable]
        await eventually(lambda: harness.cancelled == 1)
    assert reasons(logs) == ["database"]
    with pytest.raises(LeaseLost):
        _ = held.fence


async def test_unavailable_board_ends_term(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    with capture_logs() as logs:
        harness.leadership.on_board_unavailable(DatabaseUnavailable("the database did not answer in time"))
        assert not harness.leadership.is_leading
        await eventually(lambda: harness.cancelled == 1 and not store.is_held(NAME))
    assert reasons(logs) == ["database"]


async def test_follower_logs_nothing_when_board_is_unavailable(harness: Harness) -> None:
    with capture_logs() as logs:
        harness.leadership.on_board_unavailable(DatabaseUnavailable("the database did not answer in time"))
    assert logs == []


async def test_leadership_retries_release_until_database_is_back(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    store.always_raise = unavailable
    await eventually(lambda: store.calls.count("release_lease") >= 3)
    assert store.is_held(NAME)
    store.always_raise = None
    await eventually(lambda: not store.is_held(NAME))


async def test_leadership_does_not_lead_while_release_is_pending(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    store.always_raise = unavailable
    await eventually(lambda: store.calls.count("release_lease") >= 2)
    harness.show_board()
    assert not harness.leadership.is_leading


async def test_release_with_lost_response_is_not_retried_indefinitely(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    store.errors_before["renew_lease"] = [unavailable]
    store.errors_after["release_lease"] = [unavailable]
    await eventually(lambda: store.calls.count("release_lease") >= 2)
    await harness.lead()
    assert [held.epoch for held in harness.terms] == [1, 2]


async def test_leadership_acquires_new_epoch_after_database_failure(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    store.errors_before["renew_lease"] = [unavailable]
    await eventually(lambda: not store.is_held(NAME))
    await harness.lead()
    assert [held.epoch for held in harness.terms] == [1, 2]


async def test_unexpected_renewal_error_ends_term(harness: Harness, store: LeaseStore) -> None:
    """After any error, it is unknown whether this instance still holds the lease."""
    await harness.lead()
    store.errors_before["renew_lease"] = [lambda: RuntimeError("cannot execute UPDATE in a read-only transaction")]
    await eventually(lambda: harness.cancelled == 1)
    await harness.lead()
    assert harness.leadership.is_leading


# Trust.


async def test_term_expires_when_not_renewed_in_time(store: LeaseStore, clock: HostClock) -> None:
    """The moved clock simulates a pause of the process."""
    harness = Harness(store, LeasesConfig(duration_seconds=60.0, renew_seconds=0.1, refresh_seconds=TICK))
    harness.leadership.start()
    held = await harness.lead()
    with capture_logs() as logs:
        clock.move(54)
        assert not harness.leadership.is_leading
        await eventually(lambda: harness.cancelled == 1)
    assert reasons(logs) == ["expired"]
    with pytest.raises(LeaseLost):
        _ = held.fence
    await harness.close()


async def test_expired_term_is_not_renewed(harness: Harness, store: LeaseStore, clock: HostClock) -> None:
    await harness.lead()
    renewals = store.calls.count("renew_lease")
    clock.move(54)
    await eventually(lambda: harness.cancelled == 1)
    assert store.calls.count("renew_lease") == renewals


async def test_work_is_cancelled_when_trust_ends_while_renewal_hangs(store: LeaseStore) -> None:
    """The test uses the real clock: trust ends after 450 ms, and the renewal never returns."""
    timing = LeasesConfig(duration_seconds=0.5, renew_seconds=TICK, acquire_seconds=TICK, refresh_seconds=TICK)
    harness = Harness(store, timing)
    harness.leadership.start()
    store.hold_back("renew_lease")
    await harness.lead()
    with suppress(TimeoutError):
        await eventually(lambda: harness.cancelled > 0)
    found = harness.cancelled, harness.leadership.is_leading
    await harness.close()
    assert found == (1, False)


async def test_unavailable_board_ends_term_while_renewal_hangs(harness: Harness, store: LeaseStore) -> None:
    store.hold_back("renew_lease")
    await harness.lead()
    await eventually(lambda: "renew_lease" in store.calls)
    harness.leadership.on_board_unavailable(DatabaseUnavailable("the database did not answer in time"))
    await eventually(lambda: harness.cancelled == 1)


async def test_late_renewal_response_does_not_revive_ended_term(harness: Harness, store: LeaseStore) -> None:
    may_return = store.hold_back("renew_lease")
    held = await harness.lead()
    await eventually(lambda: "renew_lease" in store.calls)
    harness.leadership.on_board_unavailable(DatabaseUnavailable("the database did not answer in time"))
    may_return.set()
    await eventually(lambda: not store.is_held(NAME))
    assert not harness.leadership.is_leading
    with pytest.raises(LeaseLost):
        _ = held.fence


# Resigning.


async def test_resign_ends_term(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    with capture_logs() as logs:
        store.resign(NAME)
        harness.show_board()
        await eventually(lambda: harness.cancelled == 1)
    assert reasons(logs) == ["resigned"]


async def test_resigned_holder_has_longer_cooldown_than_followers(
    store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 100.0
    monkeypatch.setattr("tenure.leases.leadership.monotonic", lambda: seconds)
    del clock
    timing = LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=1.0)
    resigned, other = Harness(store, timing), Harness(store, timing, "another")
    resigned.leadership.start()
    await resigned.lead()
    store.resign(NAME)
    resigned.show_board()
    await eventually(lambda: resigned.cancelled == 1)
    delays = resigned.show_board(), other.show_board()
    assert delays == (5.0, 1.5)
    seconds = 101.5
    assert (resigned.show_board(), other.show_board()) == (3.5, None)
    await resigned.close()


async def test_resigned_holder_leads_again_if_lease_stays_free(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    store.resign(NAME)
    harness.show_boards()
    await eventually(lambda: len(harness.terms) == 2)
    assert harness.leadership.is_leading


async def test_released_lease_is_acquired_without_cooldown(harness: Harness, store: LeaseStore) -> None:
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    await store.release_lease(store.leases[NAME].fence)
    assert harness.show_board() is None
    await eventually(lambda: harness.leadership.is_leading)


# The work.


async def test_failing_work_ends_term_and_releases_lease(harness: Harness, store: LeaseStore) -> None:
    harness.work_fails = ValueError("the work cannot be done")
    with capture_logs() as logs:
        await harness.lead()
        await eventually(lambda: store.calls.count("release_lease") == 1)
    assert reasons(logs) == ["failed"]
    assert not store.is_held(NAME)


@pytest.mark.parametrize(
    "failure",
    [ValueError("the work cannot be done"), DatabaseUnavailable("a table is missing")],
    ids=["work", "database"],
)
async def test_failing_work_starts_cooldown(
    store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The cool-down lasts for the time of five refreshes, even if many more boards are read in this time."""
    seconds = 100.0
    monkeypatch.setattr("tenure.leases.leadership.monotonic", lambda: seconds)
    del clock
    harness = Harness(store, LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=1.0))
    harness.work_fails = failure
    harness.leadership.start()
    await harness.lead()
    await eventually(lambda: not store.is_held(NAME))
    harness.show_boards()
    await asyncio.sleep(20 * TICK)
    terms = len(harness.terms)
    seconds = 105.0
    await eventually(lambda: len(harness.terms) > terms)
    assert (terms, len(harness.terms)) == (1, 2)
    await harness.close()


async def test_non_coroutine_work_does_not_break_leadership(store: LeaseStore, clock: HostClock) -> None:
    del clock
    leadership = Leadership(store, NAME, "us", TIMING, log_events(Telemetry()), lambda _lease: None)  # type: ignore[arg-type,return-value]
    leadership.start()
    leadership.on_board(store.board(NAME))
    await eventually(lambda: store.calls.count("release_lease") == 1)
    async with asyncio.timeout(BOUND_SECONDS):
        await leadership.stop()


async def test_returning_work_ends_term_as_failed_without_error(store: LeaseStore) -> None:
    async def return_immediately(_lease: HeldLease) -> None:
        pass

    leadership = Leadership(store, NAME, "us", TIMING, log_events(Telemetry()), return_immediately)  # type: ignore[arg-type]
    leadership.start()
    with capture_logs() as logs:
        leadership.on_board(store.board(NAME))
        await eventually(lambda: store.calls.count("release_lease") == 1)
    assert leadership._running is not None
    leadership._running.cancel()
    (lost,) = [entry for entry in logs if entry["event"] == "leader_lost"]
    assert (lost["reason"], lost.get("error")) == ("failed", None)


async def test_lease_is_not_released_while_work_ignores_cancellation(
    store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that does not stop may still have effects, so the instance keeps the lease until the lease expires."""
    del clock
    monkeypatch.setattr("tenure.leases.waiting.CANCEL_SECONDS", TICK)
    may_end = asyncio.Event()

    async def ignore_cancellation(_lease: HeldLease) -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    leadership = Leadership(store, NAME, "us", TIMING, log_events(Telemetry()), ignore_cancellation)  # type: ignore[arg-type]
    leadership.start()
    leadership.on_board(store.board(NAME))
    await eventually(lambda: "renew_lease" in store.calls)
    with capture_logs() as logs:
        leadership.on_board_unavailable(DatabaseUnavailable("the database did not answer in time"))
        await eventually(lambda: any(entry["event"] == "work_will_not_stop" for entry in logs))
        await asyncio.sleep(5 * TICK)
    held = store.is_held(NAME)
    may_end.set()
    assert leadership._running is not None
    leadership._running.cancel()
    await asyncio.wait({leadership._running})
    assert held


# Stopping.


async def test_stop_releases_lease(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    with capture_logs() as logs:
        stopping = asyncio.create_task(harness.stop())
        await eventually(lambda: not store.is_held(NAME))
    assert (reasons(logs), harness.cancelled) == (["released"], 1)
    stopping.cancel()


async def test_stop_returns_without_further_boards(harness: Harness) -> None:
    await harness.lead()
    async with asyncio.timeout(BOUND_SECONDS):
        await harness.leadership.stop()


async def test_stop_returns_when_another_instance_acquires_immediately(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    stopping = asyncio.create_task(harness.stop())
    await eventually(lambda: not store.is_held(NAME))
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    harness.show_boards()
    async with asyncio.timeout(BOUND_SECONDS):
        await stopping


async def test_stop_returns_while_database_is_unavailable(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    store.always_raise = unavailable
    async with asyncio.timeout(BOUND_SECONDS):
        await harness.leadership.stop()


async def test_stop_returns_while_release_is_retried(harness: Harness, store: LeaseStore) -> None:
    await harness.lead()
    store.always_raise = unavailable
    await eventually(lambda: store.calls.count("release_lease") >= 2)
    async with asyncio.timeout(BOUND_SECONDS):
        await harness.leadership.stop()


async def test_follower_stops_immediately(harness: Harness, store: LeaseStore) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        await harness.leadership.stop()
    assert store.calls == []


async def test_lease_acquired_during_stop_is_released_and_starts_no_work(harness: Harness, store: LeaseStore) -> None:
    may_return = store.hold_back("acquire_lease")
    harness.show_board()
    await eventually(lambda: store.is_held(NAME))
    stopping = asyncio.create_task(harness.stop())
    await asyncio.sleep(0)
    may_return.set()
    await eventually(lambda: not store.is_held(NAME))
    stopping.cancel()
    assert harness.terms == []


# The grace period of a stop.


class GracefulHarness(Harness):
    """A harness whose work is notified of a stop, and ends once the test allows it."""

    def __init__(self, store: LeaseStore, grace_seconds: float = BOUND_SECONDS) -> None:
        super().__init__(store, grace_seconds=grace_seconds)
        self.may_end = asyncio.Event()
        self.is_ending = asyncio.Event()
        self.fails_with: Exception | None = None

    async def work(self, lease: HeldLease) -> None:
        self._working.append(asyncio.current_task())
        self.terms.append(lease)
        try:
            await lease.ending.wait()
            self.is_ending.set()
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails_with is not None:
            raise self.fails_with


async def leading(store: LeaseStore, grace_seconds: float = BOUND_SECONDS) -> GracefulHarness:
    """Returns a harness whose leadership has acquired the lease."""
    harness = GracefulHarness(store, grace_seconds)
    harness.leadership.start()
    await harness.lead()
    return harness


async def test_stop_signals_work_and_renews_lease_until_work_ends(store: LeaseStore) -> None:
    harness = await leading(store)
    stopping = asyncio.create_task(harness.stop())
    await asyncio.wait_for(harness.is_ending.wait(), BOUND_SECONDS)
    renewed = store.calls.count("renew_lease")
    await eventually(lambda: store.calls.count("renew_lease") > renewed + 2)
    assert (harness.leadership.is_leading, store.is_held(NAME), stopping.done()) == (True, True, False)
    harness.may_end.set()
    await stopping
    assert (harness.leadership.is_leading, store.is_held(NAME), harness.cancelled) == (False, False, 0)


async def test_fence_is_valid_until_work_ends_during_stop(store: LeaseStore) -> None:
    harness = await leading(store)
    stopping = asyncio.create_task(harness.stop())
    await asyncio.wait_for(harness.is_ending.wait(), BOUND_SECONDS)
    assert harness.terms[0].fence == store.leases[NAME].fence
    harness.may_end.set()
    await stopping
    with pytest.raises(LeaseLost):
        _ = harness.terms[0].fence


async def test_work_that_ends_during_stop_is_logged_as_released(store: LeaseStore) -> None:
    harness = await leading(store)
    harness.may_end.set()
    with capture_logs() as logs:
        await harness.stop()
    assert (reasons(logs), store.calls.count("release_lease")) == (["released"], 1)


async def test_work_is_cancelled_and_lease_released_after_grace(store: LeaseStore) -> None:
    harness = await leading(store, grace_seconds=0.05)
    with capture_logs() as logs:
        await harness.stop()
    assert (reasons(logs), harness.cancelled, store.is_held(NAME)) == (["released"], 1, False)


async def test_work_raising_lease_lost_during_stop_is_logged_as_lost(store: LeaseStore) -> None:
    harness = await leading(store)
    harness.fails_with = LeaseLost("another epoch")
    harness.may_end.set()
    with capture_logs() as logs:
        await harness.stop()
    assert (reasons(logs), store.calls.count("release_lease")) == (["lost"], 0)


async def test_work_that_fails_during_stop_is_logged_as_failed_and_lease_released(store: LeaseStore) -> None:
    harness = await leading(store)
    harness.fails_with = ValueError("no space left on device")
    harness.may_end.set()
    with capture_logs() as logs:
        await harness.stop()
    assert (reasons(logs), store.is_held(NAME)) == (["failed"], False)


async def test_lease_lost_during_grace_cancels_work_immediately(store: LeaseStore) -> None:
    harness = await leading(store)
    with capture_logs() as logs:
        stopping = asyncio.create_task(harness.stop())
        await asyncio.wait_for(harness.is_ending.wait(), BOUND_SECONDS)
        store.steal(NAME)
        await stopping
    assert (reasons(logs), harness.cancelled) == (["lost"], 1)


async def test_stopped_leadership_does_not_acquire_again(store: LeaseStore) -> None:
    harness = await leading(store)
    harness.may_end.set()
    await harness.stop()
    harness.show_board()
    await asyncio.sleep(3 * TICK)
    assert (len(harness.terms), store.calls.count("acquire_lease")) == (1, 1)


async def test_work_without_grace_is_cancelled_without_signal(store: LeaseStore) -> None:
    harness = await leading(store, grace_seconds=0.0)
    await harness.stop()
    assert (harness.is_ending.is_set(), harness.cancelled, store.is_held(NAME)) == (False, 1, False)


async def test_follower_with_grace_stops_immediately(store: LeaseStore) -> None:
    harness = GracefulHarness(store)
    harness.leadership.start()
    await harness.stop()
    assert (harness.terms, store.calls) == ([], [])


async def test_term_expires_if_wait_for_renewal_returns_early(
    harness: Harness, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timers of uvloop fire up to a millisecond early, so a wait for the end of trust may return too early."""
    await harness.lead()
    wait, held = asyncio.wait, asyncio.Event()

    async def hang(*_args: object) -> None:
        await held.wait()

    async def wait_briefly(tasks: Any, *, timeout: float | None = None, **options: Any) -> Any:  # noqa: ASYNC109
        return await wait(tasks, timeout=None if timeout is None else min(timeout, 0.05), **options)

    with monkeypatch.context() as patched:
        patched.setattr(store, "renew_lease", hang)
        patched.setattr("tenure.leases.leadership.asyncio.wait", wait_briefly)
        await eventually(lambda: harness.cancelled == 1)
    await harness.lead()
    assert harness.leadership.is_leading
