"""For how long a holder may believe that it holds its lease."""

import asyncio
import time

import pytest

from tenure import clock as host_clock
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.leases.held import HeldLease
from tests.support.lease_stores import HostClock, LeaseStore, away
from tests.support.wishes import SECOND

DURATION = 60 * SECOND


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


async def acquired(store: LeaseStore, clock: HostClock, *, took: float = 0.0) -> HeldLease:
    """A lease whose answer took so many seconds."""
    asked_at = clock.seconds
    lease = (await store.acquire_lease("lead", "us", "attempt", DURATION)).lease
    clock.move(took)
    return HeldLease(store, lease.fence, DURATION, asked_at)  # type: ignore[arg-type]


async def test_is_trusted_for_nine_tenths_of_its_duration(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(53.999)
    assert held.fence == store.leases["lead"].fence
    clock.move(0.001)
    with pytest.raises(LeaseLost):
        _ = held.fence


async def test_trust_counts_from_before_the_request(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock, took=10)
    assert held.trusted_seconds == pytest.approx(44)


async def test_an_answer_that_took_too_long_is_never_trusted(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock, took=54)
    with pytest.raises(LeaseLost, match="may no longer be trusted in epoch 1"):
        _ = held.fence


async def test_a_renewal_is_trusted_from_before_it_was_sent(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(20)
    may_answer = store.hold_back("renew_lease")
    renewing = asyncio.create_task(held.renew())
    await asyncio.sleep(0)
    clock.move(7)
    may_answer.set()
    await renewing
    assert held.trusted_seconds == pytest.approx(47)


async def test_an_untrusted_lease_is_not_even_renewed(store: LeaseStore, clock: HostClock) -> None:
    """The database might still do it: it would renew what this process has stopped to work under."""
    held = await acquired(store, clock)
    clock.move(54)
    with pytest.raises(LeaseLost):
        await held.renew()
    assert "renew_lease" not in store.asked


async def test_a_renewal_that_fails_changes_no_trust(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(20)
    store.after["renew_lease"] = [away]
    with pytest.raises(DatabaseUnavailable):
        await held.renew()
    assert held.trusted_seconds == pytest.approx(34)


async def test_what_was_given_up_is_never_trusted_again(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    may_answer = store.hold_back("renew_lease")
    renewing = asyncio.create_task(held.renew())
    await asyncio.sleep(0)
    held.give_up()
    may_answer.set()
    await renewing
    with pytest.raises(LeaseLost):
        _ = held.fence


async def test_gives_up_before_it_asks_the_database_to_end_it(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    store.hold_back("release_lease")
    releasing = asyncio.create_task(held.release())
    await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        _ = held.fence
    releasing.cancel()


async def test_an_untrusted_lease_can_still_be_released(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(54)
    await held.release()
    assert not store.is_held("lead")


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this host cannot tell how long it was suspended")
def test_trust_runs_on_while_the_host_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= host_clock.boottime() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert host_clock._BOOTTIME.args == (time.CLOCK_BOOTTIME,)  # type: ignore[attr-defined]
