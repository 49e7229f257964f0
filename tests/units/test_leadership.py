"""One lease as one instance sees it, with a store that does what no real database can be made to do in time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from tenure.config import LeasesConfig
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.leases.counters import LeaseCounters
from tenure.leases.held import HeldLease
from tenure.leases.leadership import Leadership
from tenure.model.leases import Board
from tests.support.lease_stores import HostClock, LeaseStore, away

NAME = "executor"
TICK = 0.005
TIMING = LeasesConfig(duration_seconds=60.0, renew_seconds=TICK, acquire_seconds=TICK, refresh_seconds=TICK)
BOUND_SECONDS = 20.0


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for must not know of it
            await asyncio.sleep(0.001)


class Office:
    """A leadership, the work that is done in it, and a board that is shown when a test says so."""

    def __init__(
        self, store: LeaseStore, timing: LeasesConfig = TIMING, holder: str = "us", grace_seconds: float = 0.0
    ) -> None:
        self.store = store
        self.terms: list[HeldLease] = []
        self.cancelled = 0
        self.work_fails: Exception | None = None
        self.leadership = Leadership(
            store,  # type: ignore[arg-type]
            NAME,
            holder,
            timing,
            LeaseCounters(),
            self.work,
            grace_seconds,
        )
        self._looking: asyncio.Task[None] | None = None
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

    def look(self, board: Board | None = None) -> float | None:
        return self.leadership.look(board if board is not None else self.store.board(NAME))

    async def lead(self) -> HeldLease:
        """Leads for the first time, or again."""
        before = len(self.terms)
        self.look()
        await eventually(lambda: len(self.terms) > before)
        return self.terms[-1]

    def keep_looking(self) -> None:
        self._looking = asyncio.create_task(self._look_always())

    async def stop(self) -> None:
        async with asyncio.timeout(BOUND_SECONDS):
            await self.leadership.stop()

    async def close(self) -> None:
        """Leaves nothing behind, whatever the test found out."""
        for task in (self._looking, self.leadership._running, *self._working):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    async def _look_always(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(TICK)


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


@pytest.fixture
async def office(store: LeaseStore, clock: HostClock) -> AsyncIterator[Office]:
    del clock
    office = Office(store)
    office.leadership.start()
    yield office
    await office.close()


def reasons(logs: list[dict[str, object]]) -> list[object]:
    return [entry["reason"] for entry in logs if entry["event"] == "leader_lost"]


# Leading.


async def test_leads_what_nobody_holds(office: Office, store: LeaseStore) -> None:
    held = await office.lead()
    assert (office.leadership.is_leading, held.fence) == (True, store.leases[NAME].fence)


async def test_asks_for_nothing_before_it_has_seen_the_board(office: Office, store: LeaseStore) -> None:
    await asyncio.sleep(5 * TICK)
    assert (store.asked, office.terms) == ([], [])


async def test_does_not_ask_for_what_somebody_holds(office: Office, store: LeaseStore) -> None:
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    assert office.look() is None
    await asyncio.sleep(5 * TICK)
    assert store.asked.count("acquire_lease") == 1


async def test_follows_when_another_was_faster(office: Office, store: LeaseStore) -> None:
    nobody = store.board(NAME)
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    office.look(nobody)
    await eventually(lambda: store.asked.count("acquire_lease") == 2)
    await asyncio.sleep(TICK)
    assert (office.terms, office.leadership.is_leading) == ([], False)


async def test_renews_again_and_again(office: Office, store: LeaseStore) -> None:
    await office.lead()
    await eventually(lambda: store.asked.count("renew_lease") >= 3)
    assert office.leadership.is_leading


async def test_tries_again_when_acquiring_failed(office: Office, store: LeaseStore) -> None:
    store.before["acquire_lease"] = [away]
    office.look()
    await eventually(lambda: store.asked == ["acquire_lease"])
    await asyncio.sleep(TICK)
    await office.lead()
    assert office.leadership.is_leading


async def test_an_unexpected_error_in_acquiring_is_not_the_end_of_it(office: Office, store: LeaseStore) -> None:
    store.before["acquire_lease"] = [lambda: RuntimeError("no space left on device")]
    office.look()
    await eventually(lambda: store.asked == ["acquire_lease"])
    await asyncio.sleep(TICK)
    await office.lead()
    assert office.leadership.is_leading


# The board.


async def test_a_board_that_was_read_before_the_term_began_does_not_end_it(office: Office, store: LeaseStore) -> None:
    before = store.board(NAME)
    await office.lead()
    office.look(before)
    await asyncio.sleep(3 * TICK)
    assert (office.cancelled, office.leadership.is_leading) == (0, True)


async def test_a_board_of_an_earlier_epoch_does_not_end_the_term(office: Office, store: LeaseStore) -> None:
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    await store.release_lease(store.leases[NAME].fence)
    before = store.board(NAME)
    await office.lead()
    office.look(before)
    await asyncio.sleep(3 * TICK)
    assert (office.cancelled, office.leadership.is_leading) == (0, True)


async def test_what_a_board_promised_before_the_term_ended_is_forgotten(office: Office, store: LeaseStore) -> None:
    nobody = store.board(NAME)
    await office.lead()
    office.look(nobody)
    store.resign(NAME)
    office.look()
    await eventually(lambda: office.cancelled == 1)
    await asyncio.sleep(3 * TICK)
    assert store.asked.count("acquire_lease") == 1


async def test_a_board_with_a_later_epoch_ends_the_term_at_once(store: LeaseStore, clock: HostClock) -> None:
    """Long before the next renewal would tell."""
    del clock
    office = Office(store, LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=TICK))
    office.leadership.start()
    held = await office.lead()
    store.steal(NAME)
    with capture_logs() as logs:
        office.look()
        with pytest.raises(LeaseLost):
            _ = held.fence
        await eventually(lambda: office.cancelled == 1)
    assert reasons(logs) == ["lost"]
    await office.close()


async def test_a_board_on_which_the_own_epoch_ran_out_ends_the_term(store: LeaseStore, clock: HostClock) -> None:
    del clock
    office = Office(store, LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=TICK))
    office.leadership.start()
    await office.lead()
    with capture_logs() as logs:
        store.now = store.leases[NAME].expires_at
        office.look()
        await eventually(lambda: office.cancelled == 1)
    assert reasons(logs) == ["lost"]
    await office.close()


# The database fails.


async def test_one_renewal_that_fails_ends_the_term(office: Office, store: LeaseStore) -> None:
    held = await office.lead()
    with capture_logs() as logs:
        store.before["renew_lease"] = [away]
        await eventually(lambda: office.cancelled == 1)
    assert reasons(logs) == ["database"]
    with pytest.raises(LeaseLost):
        _ = held.fence


async def test_a_board_that_cannot_be_read_ends_the_term(office: Office, store: LeaseStore) -> None:
    await office.lead()
    with capture_logs() as logs:
        office.leadership.lose_sight(DatabaseUnavailable("the database took too long to answer"))
        assert not office.leadership.is_leading
        await eventually(lambda: office.cancelled == 1 and not store.is_held(NAME))
    assert reasons(logs) == ["database"]


async def test_a_follower_that_cannot_read_the_board_says_nothing(office: Office) -> None:
    with capture_logs() as logs:
        office.leadership.lose_sight(DatabaseUnavailable("the database took too long to answer"))
    assert logs == []


async def test_releases_as_soon_as_the_database_answers(office: Office, store: LeaseStore) -> None:
    await office.lead()
    store.is_away = away
    await eventually(lambda: store.asked.count("release_lease") >= 3)
    assert store.is_held(NAME)
    store.is_away = None
    await eventually(lambda: not store.is_held(NAME))


async def test_does_not_lead_while_it_could_not_release(office: Office, store: LeaseStore) -> None:
    await office.lead()
    store.is_away = away
    await eventually(lambda: store.asked.count("release_lease") >= 2)
    office.look()
    assert not office.leadership.is_leading


async def test_a_release_whose_answer_was_lost_is_not_repeated_for_ever(office: Office, store: LeaseStore) -> None:
    await office.lead()
    store.before["renew_lease"] = [away]
    store.after["release_lease"] = [away]
    await eventually(lambda: store.asked.count("release_lease") >= 2)
    await office.lead()
    assert [held.epoch for held in office.terms] == [1, 2]


async def test_leads_again_in_a_new_epoch_once_the_database_is_back(office: Office, store: LeaseStore) -> None:
    await office.lead()
    store.before["renew_lease"] = [away]
    await eventually(lambda: not store.is_held(NAME))
    await office.lead()
    assert [held.epoch for held in office.terms] == [1, 2]


async def test_an_unexpected_error_in_a_renewal_ends_the_term(office: Office, store: LeaseStore) -> None:
    """Whatever it is, leadership is not proved any more."""
    await office.lead()
    store.before["renew_lease"] = [lambda: RuntimeError("cannot execute UPDATE in a read-only transaction")]
    await eventually(lambda: office.cancelled == 1)
    await office.lead()
    assert office.leadership.is_leading


# Trust.


async def test_a_term_that_was_not_renewed_in_time_has_expired(store: LeaseStore, clock: HostClock) -> None:
    """As after a pause of the whole process."""
    office = Office(store, LeasesConfig(duration_seconds=60.0, renew_seconds=0.1, refresh_seconds=TICK))
    office.leadership.start()
    held = await office.lead()
    with capture_logs() as logs:
        clock.move(54)
        assert not office.leadership.is_leading
        await eventually(lambda: office.cancelled == 1)
    assert reasons(logs) == ["expired"]
    with pytest.raises(LeaseLost):
        _ = held.fence
    await office.close()


async def test_an_expired_term_is_not_renewed(office: Office, store: LeaseStore, clock: HostClock) -> None:
    await office.lead()
    renewals = store.asked.count("renew_lease")
    clock.move(54)
    await eventually(lambda: office.cancelled == 1)
    assert store.asked.count("renew_lease") == renewals


async def test_work_stops_when_trust_ends_while_a_renewal_hangs(store: LeaseStore) -> None:
    """On the real clock: trust ends after 450 ms, and the answer never comes."""
    timing = LeasesConfig(duration_seconds=0.5, renew_seconds=TICK, acquire_seconds=TICK, refresh_seconds=TICK)
    office = Office(store, timing)
    office.leadership.start()
    store.hold_back("renew_lease")
    await office.lead()
    with suppress(TimeoutError):
        await eventually(lambda: office.cancelled > 0)
    found = office.cancelled, office.leadership.is_leading
    await office.close()
    assert found == (1, False)


async def test_a_lost_board_ends_the_term_while_a_renewal_hangs(office: Office, store: LeaseStore) -> None:
    store.hold_back("renew_lease")
    await office.lead()
    await eventually(lambda: "renew_lease" in store.asked)
    office.leadership.lose_sight(DatabaseUnavailable("the database took too long to answer"))
    await eventually(lambda: office.cancelled == 1)


async def test_a_renewal_that_answers_after_the_term_is_over_changes_nothing(office: Office, store: LeaseStore) -> None:
    may_answer = store.hold_back("renew_lease")
    held = await office.lead()
    await eventually(lambda: "renew_lease" in store.asked)
    office.leadership.lose_sight(DatabaseUnavailable("the database took too long to answer"))
    may_answer.set()
    await eventually(lambda: not store.is_held(NAME))
    assert not office.leadership.is_leading
    with pytest.raises(LeaseLost):
        _ = held.fence


# Resigning.


async def test_resigning_ends_the_term(office: Office, store: LeaseStore) -> None:
    await office.lead()
    with capture_logs() as logs:
        store.resign(NAME)
        office.look()
        await eventually(lambda: office.cancelled == 1)
    assert reasons(logs) == ["resigned"]


async def test_who_resigned_stands_back_for_longer_than_others_wait(
    store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 100.0
    monkeypatch.setattr("tenure.leases.patience.monotonic", lambda: seconds)
    del clock
    timing = LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=1.0)
    resigned, other = Office(store, timing), Office(store, timing, "others")
    resigned.leadership.start()
    await resigned.lead()
    store.resign(NAME)
    resigned.look()
    await eventually(lambda: resigned.cancelled == 1)
    waits = resigned.look(), other.look()
    assert waits == (5.0, 1.5)
    seconds = 101.5
    assert (resigned.look(), other.look()) == (3.5, None)
    await resigned.close()


async def test_who_resigned_leads_again_if_nobody_else_does(office: Office, store: LeaseStore) -> None:
    await office.lead()
    store.resign(NAME)
    office.keep_looking()
    await eventually(lambda: len(office.terms) == 2)
    assert office.leadership.is_leading


async def test_what_was_released_rather_than_resigned_is_taken_at_once(office: Office, store: LeaseStore) -> None:
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    await store.release_lease(store.leases[NAME].fence)
    assert office.look() is None
    await eventually(lambda: office.leadership.is_leading)


# The work itself.


async def test_work_that_fails_ends_the_term_and_frees_the_lease(office: Office, store: LeaseStore) -> None:
    office.work_fails = ValueError("the work cannot be done")
    with capture_logs() as logs:
        await office.lead()
        await eventually(lambda: store.asked.count("release_lease") == 1)
    assert reasons(logs) == ["failed"]
    assert not store.is_held(NAME)


@pytest.mark.parametrize(
    "failure",
    [ValueError("the work cannot be done"), DatabaseUnavailable("a table is missing")],
    ids=["work", "database"],
)
async def test_work_that_fails_at_once_does_not_flap(
    store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """It waits five refreshes, however often it looks."""
    seconds = 100.0
    monkeypatch.setattr("tenure.leases.patience.monotonic", lambda: seconds)
    del clock
    office = Office(store, LeasesConfig(duration_seconds=60.0, renew_seconds=30.0, refresh_seconds=1.0))
    office.work_fails = failure
    office.leadership.start()
    await office.lead()
    await eventually(lambda: not store.is_held(NAME))
    office.keep_looking()
    await asyncio.sleep(20 * TICK)
    terms = len(office.terms)
    seconds = 105.0
    await eventually(lambda: len(office.terms) > terms)
    assert (terms, len(office.terms)) == (1, 2)
    await office.close()


async def test_work_that_is_no_coroutine_does_not_stop_the_leadership(store: LeaseStore, clock: HostClock) -> None:
    del clock
    leadership = Leadership(store, NAME, "us", TIMING, LeaseCounters(), lambda _lease: None)  # type: ignore[arg-type,return-value]
    leadership.start()
    leadership.look(store.board(NAME))
    await eventually(lambda: store.asked.count("release_lease") == 1)
    async with asyncio.timeout(BOUND_SECONDS):
        await leadership.stop()


async def test_a_term_that_ended_because_the_work_did_says_so_without_an_error(store: LeaseStore) -> None:
    async def nothing(_lease: HeldLease) -> None:
        pass

    leadership = Leadership(store, NAME, "us", TIMING, LeaseCounters(), nothing)  # type: ignore[arg-type]
    leadership.start()
    with capture_logs() as logs:
        leadership.look(store.board(NAME))
        await eventually(lambda: store.asked.count("release_lease") == 1)
    assert leadership._running is not None
    leadership._running.cancel()
    (lost,) = [entry for entry in logs if entry["event"] == "leader_lost"]
    assert (lost["reason"], lost.get("error")) == ("failed", None)


async def test_a_lease_under_which_work_goes_on_is_not_released(
    store: LeaseStore, clock: HostClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that will not stop may still reach the outside world: the lease must run out by itself."""
    del clock
    monkeypatch.setattr("tenure.leases.cancelling.PATIENCE_SECONDS", TICK)
    may_end = asyncio.Event()

    async def stubborn(_lease: HeldLease) -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    leadership = Leadership(store, NAME, "us", TIMING, LeaseCounters(), stubborn)  # type: ignore[arg-type]
    leadership.start()
    leadership.look(store.board(NAME))
    await eventually(lambda: "renew_lease" in store.asked)
    with capture_logs() as logs:
        leadership.lose_sight(DatabaseUnavailable("the database took too long to answer"))
        await eventually(lambda: any(entry["event"] == "work_will_not_stop" for entry in logs))
        await asyncio.sleep(5 * TICK)
    held = store.is_held(NAME)
    may_end.set()
    assert leadership._running is not None
    leadership._running.cancel()
    await asyncio.wait({leadership._running})
    assert held


# Stopping.


async def test_stopping_releases_the_lease(office: Office, store: LeaseStore) -> None:
    await office.lead()
    with capture_logs() as logs:
        stopping = asyncio.create_task(office.stop())
        await eventually(lambda: not store.is_held(NAME))
    assert (reasons(logs), office.cancelled) == (["released"], 1)
    stopping.cancel()


async def test_stopping_ends_though_nobody_looks_at_the_board_any_more(office: Office) -> None:
    await office.lead()
    async with asyncio.timeout(BOUND_SECONDS):
        await office.leadership.stop()


async def test_stopping_ends_though_another_one_leads_at_once(office: Office, store: LeaseStore) -> None:
    await office.lead()
    stopping = asyncio.create_task(office.stop())
    await eventually(lambda: not store.is_held(NAME))
    await store.acquire_lease(NAME, "another", "attempt", 60_000_000)
    office.keep_looking()
    async with asyncio.timeout(BOUND_SECONDS):
        await stopping


async def test_stopping_ends_though_the_database_is_away(office: Office, store: LeaseStore) -> None:
    await office.lead()
    store.is_away = away
    async with asyncio.timeout(BOUND_SECONDS):
        await office.leadership.stop()


async def test_stopping_ends_while_a_release_is_tried_again(office: Office, store: LeaseStore) -> None:
    await office.lead()
    store.is_away = away
    await eventually(lambda: store.asked.count("release_lease") >= 2)
    async with asyncio.timeout(BOUND_SECONDS):
        await office.leadership.stop()


async def test_a_follower_stops_at_once(office: Office, store: LeaseStore) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        await office.leadership.stop()
    assert store.asked == []


async def test_what_was_acquired_after_the_stop_is_released(office: Office, store: LeaseStore) -> None:
    may_answer = store.hold_back("acquire_lease")
    office.look()
    await eventually(lambda: store.is_held(NAME))
    stopping = asyncio.create_task(office.stop())
    await asyncio.sleep(0)
    may_answer.set()
    await eventually(lambda: not store.is_held(NAME))
    stopping.cancel()


async def test_no_work_begins_after_the_stop(office: Office, store: LeaseStore) -> None:
    may_answer = store.hold_back("acquire_lease")
    office.look()
    await eventually(lambda: store.is_held(NAME))
    stopping = asyncio.create_task(office.stop())
    await asyncio.sleep(0)
    may_answer.set()
    await eventually(lambda: not store.is_held(NAME))
    stopping.cancel()
    assert office.terms == []


# The grace of a stop.


class Finishing(Office):
    """Work that is told when its instance stops, and needs a moment then: as long as the test says."""

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


async def finishing(store: LeaseStore, grace_seconds: float = BOUND_SECONDS) -> Finishing:
    """Leads already."""
    office = Finishing(store, grace_seconds)
    office.leadership.start()
    await office.lead()
    return office


async def test_work_is_told_of_the_stop_and_keeps_its_lease_until_it_has_ended(store: LeaseStore) -> None:
    office = await finishing(store)
    stopping = asyncio.create_task(office.stop())
    await asyncio.wait_for(office.is_ending.wait(), BOUND_SECONDS)
    renewed = store.asked.count("renew_lease")
    await eventually(lambda: store.asked.count("renew_lease") > renewed + 2)
    assert (office.leadership.is_leading, store.is_held(NAME), stopping.done()) == (True, True, False)
    office.may_end.set()
    await stopping
    assert (office.leadership.is_leading, store.is_held(NAME), office.cancelled) == (False, False, 0)


async def test_work_can_write_until_it_has_ended(store: LeaseStore) -> None:
    office = await finishing(store)
    stopping = asyncio.create_task(office.stop())
    await asyncio.wait_for(office.is_ending.wait(), BOUND_SECONDS)
    assert office.terms[0].fence == store.leases[NAME].fence
    office.may_end.set()
    await stopping
    with pytest.raises(LeaseLost):
        _ = office.terms[0].fence


async def test_work_that_ended_by_itself_at_a_stop_is_told_as_released(store: LeaseStore) -> None:
    office = await finishing(store)
    office.may_end.set()
    with capture_logs() as logs:
        await office.stop()
    assert (reasons(logs), store.asked.count("release_lease")) == (["released"], 1)


async def test_work_that_does_not_end_in_its_time_is_cancelled_and_its_lease_released(store: LeaseStore) -> None:
    office = await finishing(store, grace_seconds=0.05)
    with capture_logs() as logs:
        await office.stop()
    assert (reasons(logs), office.cancelled, store.is_held(NAME)) == (["released"], 1, False)


async def test_work_that_loses_its_lease_while_it_ends_is_told_as_lost(store: LeaseStore) -> None:
    office = await finishing(store)
    office.fails_with = LeaseLost("another epoch")
    office.may_end.set()
    with capture_logs() as logs:
        await office.stop()
    assert (reasons(logs), store.asked.count("release_lease")) == (["lost"], 0)


async def test_work_that_fails_while_it_ends_is_told_as_failed_and_its_lease_released(store: LeaseStore) -> None:
    office = await finishing(store)
    office.fails_with = ValueError("no space left on device")
    office.may_end.set()
    with capture_logs() as logs:
        await office.stop()
    assert (reasons(logs), store.is_held(NAME)) == (["failed"], False)


async def test_a_lease_that_is_lost_during_the_grace_ends_the_work_at_once(store: LeaseStore) -> None:
    office = await finishing(store)
    with capture_logs() as logs:
        stopping = asyncio.create_task(office.stop())
        await asyncio.wait_for(office.is_ending.wait(), BOUND_SECONDS)
        store.steal(NAME)
        await stopping
    assert (reasons(logs), office.cancelled) == (["lost"], 1)


async def test_does_not_lead_again_after_its_work_has_ended_at_a_stop(store: LeaseStore) -> None:
    office = await finishing(store)
    office.may_end.set()
    await office.stop()
    office.look()
    await asyncio.sleep(3 * TICK)
    assert (len(office.terms), store.asked.count("acquire_lease")) == (1, 1)


async def test_work_without_a_grace_is_not_told_and_not_waited_for(store: LeaseStore) -> None:
    office = await finishing(store, grace_seconds=0.0)
    await office.stop()
    assert (office.is_ending.is_set(), office.cancelled, store.is_held(NAME)) == (False, 1, False)


async def test_a_follower_that_stops_has_nothing_to_wait_for(store: LeaseStore) -> None:
    office = Finishing(store)
    office.leadership.start()
    await office.stop()
    assert (office.terms, store.asked) == ([], [])
