"""How long a holder may trust its lease."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from tenure import clock as host_clock
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.leases.held import HeldLease
from tests.support.lease_stores import HostClock, LeaseStore, unavailable
from tests.support.open_requests import SECOND

DURATION = 60 * SECOND


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


async def acquired(store: LeaseStore, clock: HostClock, *, took: float = 0.0) -> HeldLease:
    """A lease whose acquire request took `took` seconds."""
    requested_at = clock.seconds
    lease = (await store.acquire_lease("lead", "us", "attempt", DURATION)).lease
    clock.move(took)
    return HeldLease(store, lease.fence, DURATION, requested_at)  # type: ignore[arg-type]


async def test_lease_is_trusted_for_nine_tenths_of_its_duration(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(53.999)
    assert held.fence == store.leases["lead"].fence
    clock.move(0.001)
    with pytest.raises(LeaseLost):
        _ = held.fence


async def test_lease_trust_starts_when_acquire_request_is_sent(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock, took=10)
    assert held.trusted_seconds == pytest.approx(44)


async def test_lease_acquired_too_slowly_is_never_trusted(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock, took=54)
    with pytest.raises(LeaseLost, match="can no longer be trusted in epoch 1"):
        _ = held.fence


async def test_renewed_trust_starts_when_renew_request_is_sent(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(20)
    may_return = store.hold_back("renew_lease")
    renewing = asyncio.create_task(held.renew())
    await asyncio.sleep(0)
    clock.move(7)
    may_return.set()
    await renewing
    assert held.trusted_seconds == pytest.approx(47)


async def test_untrusted_lease_is_not_renewed(store: LeaseStore, clock: HostClock) -> None:
    """The lease has not expired in the database yet, so the database would renew it. But this process has already
    stopped its work.
    """
    held = await acquired(store, clock)
    clock.move(54)
    with pytest.raises(LeaseLost):
        await held.renew()
    assert "renew_lease" not in store.calls


async def test_failed_renewal_does_not_extend_trust(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(20)
    store.errors_after["renew_lease"] = [unavailable]
    with pytest.raises(DatabaseUnavailable):
        await held.renew()
    assert held.trusted_seconds == pytest.approx(34)


async def test_withdrawn_lease_is_not_trusted_after_late_renewal(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    may_return = store.hold_back("renew_lease")
    renewing = asyncio.create_task(held.renew())
    await asyncio.sleep(0)
    held.withdraw()
    may_return.set()
    await renewing
    with pytest.raises(LeaseLost):
        _ = held.fence


async def test_release_withdraws_lease_before_database_responds(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    store.hold_back("release_lease")
    releasing = asyncio.create_task(held.release())
    await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        _ = held.fence
    releasing.cancel()


async def test_untrusted_lease_can_be_released(store: LeaseStore, clock: HostClock) -> None:
    held = await acquired(store, clock)
    clock.move(54)
    await held.release()
    assert not store.is_held("lead")


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this host has no clock that includes suspension")
def test_trust_clock_includes_host_suspension() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= host_clock.boottime() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert host_clock._BOOTTIME.args == (time.CLOCK_BOOTTIME,)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shown", "is_over"),
    [
        ({}, False),
        ({"resigned": True}, True),  # the first step of a resignation: the lease is marked, but not ended yet
        ({"held": False}, True),
        ({"epoch": 2}, True),
        ({"epoch": 0, "held": False, "resigned": True}, False),
    ],
)
async def test_lease_is_withdrawn_if_board_shows_its_end_or_a_later_epoch(
    store: LeaseStore, clock: HostClock, shown: dict[str, Any], is_over: bool
) -> None:
    held = await acquired(store, clock)
    held.compare(replace(store.leases["lead"], **shown))
    assert held.withdrawn.is_set() is is_over
