"""Leases that an application acquires from an ensemble."""

import asyncio
import time
from datetime import datetime, timedelta

import pytest

from tenure.config import LeasesConfig
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError, LeaseLost
from tenure.leases.held import AcquiredLease, HeldLease
from tenure.telemetry.events import HeldLeaseLost
from tests.library.conftest import QUICK, Join
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.lease_stores import LeaseStore
from tests.support.telemetry import RecordedTelemetry

SLOW_POLLING = LeasesConfig(duration_seconds=60.0, renew_seconds=20.0, acquire_seconds=30.0, refresh_seconds=30.0)
"""With this timing, an instance that waits for a lease tries again only every 30 seconds, or when a notification wakes
it."""
BOUND_SECONDS = 20.0
RENEWAL = timedelta(seconds=QUICK.renew_seconds)


async def acquired(ensemble: Ensemble, name: str = "import") -> AcquiredLease:
    lease = await ensemble.try_acquire(name)
    assert lease is not None
    return lease


# Acquiring.


async def test_try_acquire_returns_free_lease(join: Join) -> None:
    lease = await acquired(await join(holder="importer-1"))
    assert (lease.epoch, lease.fence.name, lease.fence.holder, lease.fence.epoch) == (1, "import", "importer-1", 1)
    await lease.release()


async def test_try_acquire_returns_none_when_another_holds_lease(join: Join) -> None:
    one, other = await join(), await join()
    lease = await acquired(one)
    assert await other.try_acquire("import") is None
    await lease.release()


async def test_try_acquire_returns_none_when_already_held_by_caller(join: Join) -> None:
    ensemble = await join()
    lease = await acquired(ensemble)
    assert await ensemble.try_acquire("import") is None
    await lease.release()


async def test_leases_with_different_names_are_independent(join: Join) -> None:
    one, other = await join(), await join()
    leases = await acquired(one, "import"), await acquired(other, "Import")
    assert [lease.epoch for lease in leases] == [1, 1]
    for lease in leases:
        await lease.release()


async def test_every_acquire_increments_epoch(join: Join) -> None:
    ensemble = await join()
    epochs = []
    for _ in range(3):
        async with await acquired(ensemble) as lease:
            epochs.append(lease.epoch)
    assert epochs == [1, 2, 3]


async def test_concurrent_try_acquire_returns_one_lease(join: Join) -> None:
    ensembles = [await join() for _ in range(4)]
    leases = await asyncio.gather(*(ensemble.try_acquire("import") for ensemble in ensembles for _ in range(5)))
    (lease,) = [lease for lease in leases if lease is not None]
    await lease.release()


# Waiting for a lease.


async def test_waiting_try_acquire_returns_lease_after_release(join: Join) -> None:
    one, other = await join(), await join()
    lease = await acquired(one)
    waiting = asyncio.create_task(other.try_acquire("import", wait_seconds=BOUND_SECONDS))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    began = time.monotonic()
    await lease.release()
    got = await waiting
    assert got is not None
    assert (got.epoch, time.monotonic() - began < BOUND_SECONDS / 2) == (2, True)
    await got.release()


async def test_waiting_try_acquire_is_notified_on_postgresql(postgres_database: Database) -> None:
    url = postgres_database.url
    async with (
        Ensemble(url, timing=SLOW_POLLING) as one,
        Ensemble(url, timing=SLOW_POLLING) as other,
        asyncio.timeout(BOUND_SECONDS),
    ):
        lease = await acquired(one)
        while not other._store._watching._free:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the instance listens after its first read of the board
        waiting = asyncio.create_task(other.try_acquire("import", wait_seconds=BOUND_SECONDS))
        await asyncio.sleep(0.1)  # until `try_acquire` waits
        began = time.monotonic()
        await lease.release()
        got = await waiting
        assert got is not None
        assert time.monotonic() - began < BOUND_SECONDS / 2
        await got.release()


async def test_waiting_try_acquire_returns_none_after_timeout(join: Join) -> None:
    one, other = await join(), await join()
    lease = await acquired(one)
    began = time.monotonic()
    assert await other.try_acquire("import", wait_seconds=0.2) is None
    assert 0.2 <= time.monotonic() - began < BOUND_SECONDS
    await lease.release()


async def test_waiting_try_acquire_acquires_lease_after_it_expires(join: Join) -> None:
    one, other = await join(), await join()
    lease = await one.try_acquire("import", duration_seconds=0.2)
    assert lease is not None
    lease._renewing.cancel()
    got = await other.try_acquire("import", wait_seconds=BOUND_SECONDS)
    assert got is not None
    assert got.epoch == 2
    with pytest.raises(LeaseLost):
        _ = lease.fence
    await got.release()


async def test_cancelled_try_acquire_releases_lease() -> None:
    """The database has granted the lease; the caller was cancelled before the response arrived."""
    store = LeaseStore()
    ensemble = Ensemble(store, timing=QUICK)  # type: ignore[arg-type]
    may_answer = store.hold_back("acquire_lease")
    trying = asyncio.create_task(ensemble.try_acquire("import"))
    async with asyncio.timeout(BOUND_SECONDS):
        while not store.is_held("import"):  # noqa: ASYNC110 - the store offers no event to wait for
            await asyncio.sleep(0.001)
    trying.cancel()
    await asyncio.sleep(0.005)
    may_answer.set()
    await asyncio.wait({trying})
    async with asyncio.timeout(BOUND_SECONDS):
        while store.is_held("import"):  # noqa: ASYNC110 - the store offers no event to wait for
            await asyncio.sleep(0.001)


# Renewal and release.


async def expires_at(database: Database) -> datetime:
    (lease,) = [lease for lease in await database.store.list_leases(None, 10) if lease.name == "import"]
    return lease.expires_at


async def test_lease_is_renewed_while_in_use(join: Join, database: Database) -> None:
    """The test reads the expiry from the database. If it waited until a short lease would have expired, it would fail
    whenever the machine paused.
    """
    ensemble, other = await join(), await join()
    async with await acquired(ensemble) as lease, asyncio.timeout(BOUND_SECONDS):
        at_first = await expires_at(database)
        while await expires_at(database) < at_first + 5 * RENEWAL:  # noqa: ASYNC110 - polled in the database
            await asyncio.sleep(0.02)
        assert await other.try_acquire("import") is None
        assert lease.fence.epoch == 1


async def test_lease_is_released_on_exit(join: Join) -> None:
    ensemble, other = await join(), await join()
    async with await acquired(ensemble) as lease:
        pass
    with pytest.raises(LeaseLost):
        _ = lease.fence
    async with await acquired(other) as next_lease:
        assert next_lease.epoch == 2


async def test_lease_is_released_when_body_raises(join: Join) -> None:
    ensemble, other = await join(), await join()
    with pytest.raises(ValueError, match="no such file"):
        async with await acquired(ensemble):
            raise ValueError("no such file")
    await (await acquired(other)).release()


async def test_lease_can_be_released_early(join: Join) -> None:
    ensemble, other = await join(), await join()
    async with await acquired(ensemble) as lease:
        await lease.release()
        await (await acquired(other)).release()


async def test_release_is_idempotent(join: Join) -> None:
    lease = await acquired(await join())
    await lease.release()
    await lease.release()


async def test_exit_of_instance_releases_its_leases(join: Join, database: Database) -> None:
    other = await join()
    async with Ensemble(database.url, timing=QUICK) as ensemble:
        lease = await acquired(ensemble)
    got = await other.try_acquire("import")
    lease._renewing.cancel()
    assert got is not None
    await got.release()


# Lease loss.


async def use_until_resigned(lease: AcquiredLease, database: Database) -> None:
    async with lease:
        await database.store.resign_lease("import", ACTOR)
        await asyncio.sleep(BOUND_SECONDS)


async def test_body_is_cancelled_when_lease_is_resigned(join: Join, database: Database) -> None:
    """The task that catches `LeaseLost` continues, and can acquire the lease again."""
    telemetry = RecordedTelemetry()
    ensemble = await join(telemetry=telemetry)
    lease = await acquired(ensemble)
    began = time.monotonic()
    with pytest.raises(LeaseLost, match="import"):
        await use_until_resigned(lease, database)
    assert [event.lease for event in telemetry.of(HeldLeaseLost)] == ["import"]
    assert time.monotonic() - began < BOUND_SECONDS / 2
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)
    async with await acquired(ensemble) as lease:
        assert lease.epoch == 2


async def test_lease_loss_raises_on_exit_even_if_body_ignores_cancellation(join: Join, database: Database) -> None:
    async def ignore_cancellation() -> None:
        await database.store.resign_lease("import", ACTOR)
        try:
            await asyncio.sleep(BOUND_SECONDS)
        except asyncio.CancelledError:
            return

    with pytest.raises(LeaseLost):
        async with await acquired(await join()):
            await ignore_cancellation()


async def test_error_in_body_is_not_hidden_by_lease_loss(join: Join, database: Database) -> None:
    async def use(lease: AcquiredLease) -> None:
        async with lease:
            try:
                await database.store.resign_lease("import", ACTOR)
                await asyncio.sleep(BOUND_SECONDS)
            finally:
                raise ValueError("while cleaning up")

    lease = await acquired(await join())
    with pytest.raises(ValueError, match="while cleaning up"):
        await use(lease)


async def test_outer_cancellation_raises_cancelled_error(join: Join) -> None:
    ensemble, other = await join(), await join()
    entered = asyncio.Event()

    async def use() -> None:
        async with await acquired(ensemble):
            entered.set()
            await asyncio.sleep(BOUND_SECONDS)

    using = asyncio.create_task(use())
    await entered.wait()
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    await (await acquired(other)).release()


async def test_outer_cancellation_takes_precedence_over_lease_loss(join: Join, database: Database) -> None:
    async def use(lease: AcquiredLease) -> None:
        async with lease:
            try:
                await database.store.resign_lease("import", ACTOR)
                await asyncio.sleep(BOUND_SECONDS)
            except asyncio.CancelledError:
                using.cancel()
                await asyncio.sleep(BOUND_SECONDS)

    using = asyncio.create_task(use(await acquired(await join())))
    with pytest.raises(asyncio.CancelledError):
        await using


async def test_outer_timeout_raises_timeout_error(join: Join) -> None:
    ensemble = await join()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), await acquired(ensemble):
            await asyncio.sleep(BOUND_SECONDS)


async def test_inner_timeout_does_not_turn_lease_loss_into_timeout_error(join: Join, database: Database) -> None:
    async def use(lease: AcquiredLease) -> None:
        async with lease, asyncio.timeout(BOUND_SECONDS):
            await database.store.resign_lease("import", ACTOR)
            await asyncio.sleep(BOUND_SECONDS)

    lease = await acquired(await join())
    with pytest.raises(LeaseLost):
        await use(lease)


async def test_lost_lease_raises_on_enter_and_when_fence_is_read(join: Join, database: Database) -> None:
    lease = await acquired(await join())
    await database.store.resign_lease("import", ACTOR)
    async with asyncio.timeout(BOUND_SECONDS):
        await asyncio.wait({lease._renewing})
    with pytest.raises(LeaseLost):
        async with lease:
            raise AssertionError("entered")
    with pytest.raises(LeaseLost):
        _ = lease.fence


# Names.

INVALID = ["", " ", "a b", "a\n", "\n", "é", "a\x00", "a\x7f", "job:", "job:tidy", "x" * 197, "a/b"]
VALID = ["x", "x" * 196, "Import-EU.2", "jobs:tidy", "a:b", "JOB:x", "~!#$%"]


async def test_invalid_names_of_leases_jobs_and_holders_raise(any_ensemble: Ensemble) -> None:
    async def nothing(_run: object) -> None:
        pass

    for name in INVALID:
        with pytest.raises(ConfigurationError, match="lease"):
            await any_ensemble.try_acquire(name)
        with pytest.raises(ConfigurationError, match="lease"):
            any_ensemble.lead(name)
        with pytest.raises(ConfigurationError, match="job"):
            any_ensemble.add_job(name, nothing, interval_seconds=1)
    for name in set(INVALID) - {"", "a/b"}:
        with pytest.raises(ConfigurationError, match="holder"):
            Ensemble("sqlite:///never-opened.db", holder=name)


async def test_valid_lease_name_is_accepted(any_ensemble: Ensemble) -> None:
    for name in VALID:
        async with await acquired(any_ensemble, name) as lease:
            assert lease.fence.name == name


def test_default_holder_is_unique() -> None:
    assert len({Ensemble("sqlite:///never-opened.db").holder for _ in range(100)}) == 100


@pytest.fixture
async def any_ensemble(sqlite_database: Database) -> Ensemble:
    return Ensemble(sqlite_database.store, timing=QUICK)


# Leading.


async def test_second_instance_takes_over_when_leader_exits(join: Join, database: Database) -> None:
    terms: list[tuple[str, int]] = []
    began = asyncio.Event()

    async def work(lease: HeldLease) -> None:
        terms.append((lease.holder, lease.epoch))
        began.set()
        await asyncio.Event().wait()

    first = Ensemble(database.url, holder="first", timing=QUICK)
    first.lead("importer", work)
    async with first, asyncio.timeout(BOUND_SECONDS):
        await began.wait()
        began.clear()
        await join(lambda ensemble: ensemble.lead("importer", work), holder="second")
        await asyncio.sleep(4 * QUICK.acquire_seconds)
        assert terms == [("first", 1)]
    async with asyncio.timeout(BOUND_SECONDS):
        await began.wait()
    assert terms == [("first", 1), ("second", 2)]


async def test_ensemble_does_not_close_given_store(sqlite_database: Database) -> None:
    async with Ensemble(sqlite_database.store, timing=QUICK):
        pass
    assert await sqlite_database.store.list_leases(None, 1) == []
