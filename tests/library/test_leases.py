"""Leases as an application sees them."""

import asyncio
import time
from datetime import datetime, timedelta

import pytest

from tenure.config import LeasesConfig
from tenure.ensemble import Ensemble
from tenure.errors import ConfigurationError, LeaseLost
from tenure.leases.held import HeldLease
from tenure.leases.keeping import KeptLease
from tests.library.conftest import QUICK, Join
from tests.support.databases import Database
from tests.support.lease_stores import LeaseStore

DEAF = LeasesConfig(duration_seconds=60.0, renew_seconds=20.0, acquire_seconds=30.0, refresh_seconds=30.0)
"""Who only looks every half minute gets things sooner by notification alone."""
BOUND_SECONDS = 20.0
RENEWAL = timedelta(seconds=QUICK.renew_seconds)


async def acquired(ensemble: Ensemble, name: str = "import") -> KeptLease:
    lease = await ensemble.try_acquire(name)
    assert lease is not None
    return lease


# Acquiring.


async def test_gets_what_is_free(join: Join) -> None:
    lease = await acquired(await join(holder="importer-1"))
    assert (lease.epoch, lease.fence.name, lease.fence.holder, lease.fence.epoch) == (1, "import", "importer-1", 1)
    await lease.release()


async def test_does_not_get_what_another_holds(join: Join) -> None:
    one, other = await join(), await join()
    lease = await acquired(one)
    assert await other.try_acquire("import") is None
    await lease.release()


async def test_does_not_get_twice_what_it_holds_itself(join: Join) -> None:
    ensemble = await join()
    lease = await acquired(ensemble)
    assert await ensemble.try_acquire("import") is None
    await lease.release()


async def test_leases_of_different_names_have_nothing_to_do_with_each_other(join: Join) -> None:
    one, other = await join(), await join()
    leases = await acquired(one, "import"), await acquired(other, "Import")
    assert [lease.epoch for lease in leases] == [1, 1]
    for lease in leases:
        await lease.release()


async def test_every_acquire_is_a_new_epoch(join: Join) -> None:
    ensemble = await join()
    epochs = []
    for _ in range(3):
        async with await acquired(ensemble) as lease:
            epochs.append(lease.epoch)
    assert epochs == [1, 2, 3]


async def test_many_who_try_at_once_are_one_who_gets_it(join: Join) -> None:
    ensembles = [await join() for _ in range(4)]
    leases = await asyncio.gather(*(ensemble.try_acquire("import") for ensemble in ensembles for _ in range(5)))
    (lease,) = [lease for lease in leases if lease is not None]
    await lease.release()


# Waiting.


async def test_who_waits_gets_it_once_it_is_released(join: Join) -> None:
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


async def test_who_waits_on_postgresql_is_told(empty_postgres_database: Database) -> None:
    url = empty_postgres_database.url
    async with Ensemble(url, timing=DEAF) as one, Ensemble(url, timing=DEAF) as other, asyncio.timeout(BOUND_SECONDS):
        lease = await acquired(one)
        while not other._store._watching._free:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it listens once it has looked
        waiting = asyncio.create_task(other.try_acquire("import", wait_seconds=BOUND_SECONDS))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await lease.release()
        got = await waiting
        assert got is not None
        assert time.monotonic() - began < BOUND_SECONDS / 2
        await got.release()


async def test_who_waits_in_vain_gets_nothing_when_the_wait_is_over(join: Join) -> None:
    one, other = await join(), await join()
    lease = await acquired(one)
    began = time.monotonic()
    assert await other.try_acquire("import", wait_seconds=0.2) is None
    assert 0.2 <= time.monotonic() - began < BOUND_SECONDS
    await lease.release()


@pytest.mark.slow
async def test_who_waits_gets_what_its_holder_let_run_out(join: Join) -> None:
    one, other = await join(), await join()
    lease = await one.try_acquire("import", duration_seconds=0.2)
    assert lease is not None
    lease._keeping.cancel()
    got = await other.try_acquire("import", wait_seconds=BOUND_SECONDS)
    assert got is not None
    assert got.epoch == 2
    with pytest.raises(LeaseLost):
        _ = lease.fence
    await got.release()


async def test_a_try_that_was_cancelled_leaves_no_lease_behind() -> None:
    """The database has carried it out; only the answer came too late."""
    store = LeaseStore()
    ensemble = Ensemble(store, timing=QUICK)  # type: ignore[arg-type]
    may_answer = store.hold_back("acquire_lease")
    trying = asyncio.create_task(ensemble.try_acquire("import"))
    async with asyncio.timeout(BOUND_SECONDS):
        while not store.is_held("import"):  # noqa: ASYNC110 - the store must not know of it
            await asyncio.sleep(0.001)
    trying.cancel()
    await asyncio.sleep(0.005)
    may_answer.set()
    await asyncio.wait({trying})
    async with asyncio.timeout(BOUND_SECONDS):
        while store.is_held("import"):  # noqa: ASYNC110 - the store must not know of it
            await asyncio.sleep(0.001)


# Keeping.


async def expires_at(database: Database) -> datetime:
    (lease,) = [lease for lease in await database.store.list_leases(None, 10) if lease.name == "import"]
    return lease.expires_at


async def test_is_renewed_for_as_long_as_it_is_used(join: Join, empty_database: Database) -> None:
    """By what the database has of it: one that is short enough to be waited for would be lost in any pause."""
    ensemble, other = await join(), await join()
    async with await acquired(ensemble) as lease, asyncio.timeout(BOUND_SECONDS):
        at_first = await expires_at(empty_database)
        while await expires_at(empty_database) < at_first + 5 * RENEWAL:  # noqa: ASYNC110 - asked of the database
            await asyncio.sleep(0.02)
        assert await other.try_acquire("import") is None
        assert lease.fence.epoch == 1


async def test_is_released_at_the_end(join: Join) -> None:
    ensemble, other = await join(), await join()
    async with await acquired(ensemble) as lease:
        pass
    with pytest.raises(LeaseLost):
        _ = lease.fence
    async with await acquired(other) as next_lease:
        assert next_lease.epoch == 2


async def test_is_released_when_what_is_inside_fails(join: Join) -> None:
    ensemble, other = await join(), await join()
    with pytest.raises(ValueError, match="no such file"):
        async with await acquired(ensemble):
            raise ValueError("no such file")
    await (await acquired(other)).release()


async def test_may_be_released_early(join: Join) -> None:
    ensemble, other = await join(), await join()
    async with await acquired(ensemble) as lease:
        await lease.release()
        await (await acquired(other)).release()


async def test_may_be_released_twice(join: Join) -> None:
    lease = await acquired(await join())
    await lease.release()
    await lease.release()


async def test_an_ensemble_that_ends_gives_up_what_it_holds(join: Join, empty_database: Database) -> None:
    other = await join()
    async with Ensemble(empty_database.url, timing=QUICK) as ensemble:
        lease = await acquired(ensemble)
    got = await other.try_acquire("import")
    lease._keeping.cancel()
    assert got is not None
    await got.release()


# Losing it.


async def use_until_resigned(lease: KeptLease, database: Database) -> None:
    async with lease:
        await database.store.resign_lease("import")
        await asyncio.sleep(BOUND_SECONDS)


async def test_what_is_inside_is_cancelled_when_the_lease_is_resigned(join: Join, empty_database: Database) -> None:
    lease = await acquired(await join())
    began = time.monotonic()
    with pytest.raises(LeaseLost, match="import"):
        await use_until_resigned(lease, empty_database)
    assert time.monotonic() - began < BOUND_SECONDS / 2


async def test_nothing_of_the_cancellation_is_left_over(join: Join, empty_database: Database) -> None:
    """A task that caught `LeaseLost` goes on like any other."""
    lease = await acquired(await join())
    with pytest.raises(LeaseLost):
        await use_until_resigned(lease, empty_database)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_loss_that_nothing_inside_noticed_comes_out_at_the_end(join: Join, empty_database: Database) -> None:
    async def stubborn() -> None:
        await empty_database.store.resign_lease("import")
        try:
            await asyncio.sleep(BOUND_SECONDS)
        except asyncio.CancelledError:
            return

    with pytest.raises(LeaseLost):
        async with await acquired(await join()):
            await stubborn()


async def test_an_error_inside_is_not_hidden_by_the_loss(join: Join, empty_database: Database) -> None:
    async def use(lease: KeptLease) -> None:
        async with lease:
            await empty_database.store.resign_lease("import")
            try:
                await asyncio.sleep(BOUND_SECONDS)
            finally:
                raise ValueError("while cleaning up")

    lease = await acquired(await join())
    with pytest.raises(ValueError, match="while cleaning up"):
        await use(lease)


async def test_a_cancellation_from_outside_stays_one(join: Join) -> None:
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


async def test_a_cancellation_from_outside_counts_even_if_the_lease_is_lost_too(
    join: Join, empty_database: Database
) -> None:
    async def use(lease: KeptLease) -> None:
        async with lease:
            try:
                await empty_database.store.resign_lease("import")
                await asyncio.sleep(BOUND_SECONDS)
            except asyncio.CancelledError:
                using.cancel()
                await asyncio.sleep(BOUND_SECONDS)

    using = asyncio.create_task(use(await acquired(await join())))
    with pytest.raises(asyncio.CancelledError):
        await using


async def test_a_timeout_around_it_stays_a_timeout(join: Join) -> None:
    ensemble = await join()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), await acquired(ensemble):
            await asyncio.sleep(BOUND_SECONDS)


async def test_a_timeout_inside_it_does_not_take_the_loss_for_its_own(join: Join, empty_database: Database) -> None:
    async def use(lease: KeptLease) -> None:
        async with lease, asyncio.timeout(BOUND_SECONDS):
            await empty_database.store.resign_lease("import")
            await asyncio.sleep(BOUND_SECONDS)

    lease = await acquired(await join())
    with pytest.raises(LeaseLost):
        await use(lease)


async def test_what_was_lost_before_it_was_used_cannot_be_entered(join: Join, empty_database: Database) -> None:
    lease = await acquired(await join())
    await empty_database.store.resign_lease("import")
    async with asyncio.timeout(BOUND_SECONDS):
        await asyncio.wait({lease._keeping})
    with pytest.raises(LeaseLost):
        async with lease:
            raise AssertionError("entered")


async def test_what_was_lost_gives_out_no_fence(join: Join, empty_database: Database) -> None:
    lease = await acquired(await join())
    await empty_database.store.resign_lease("import")
    async with asyncio.timeout(BOUND_SECONDS):
        await asyncio.wait({lease._keeping})
    with pytest.raises(LeaseLost):
        _ = lease.fence


async def test_who_lost_it_can_try_again(join: Join, empty_database: Database) -> None:
    ensemble = await join()
    lease = await acquired(ensemble)
    with pytest.raises(LeaseLost):
        await use_until_resigned(lease, empty_database)
    async with await acquired(ensemble) as lease:
        assert lease.epoch == 2


# Names.

REFUSED = ["", " ", "a b", "a\n", "\n", "é", "a\x00", "a\x7f", "job:", "job:tidy", "x" * 197, "a/b"]
TAKEN = ["x", "x" * 196, "Import-EU.2", "jobs:tidy", "a:b", "JOB:x", "~!#$%"]


@pytest.mark.parametrize("name", REFUSED)
async def test_a_name_that_no_lease_can_have_is_refused(any_ensemble: Ensemble, name: str) -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        await any_ensemble.try_acquire(name)
    with pytest.raises(ConfigurationError, match="lease"):
        any_ensemble.lead(name)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_name_that_no_job_can_have_is_refused(any_ensemble: Ensemble, name: str) -> None:
    async def nothing(_run: object) -> None:
        pass

    with pytest.raises(ConfigurationError, match="job"):
        any_ensemble.add_job(name, nothing, interval_seconds=1)


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("", "a/b")])
def test_a_name_that_no_holder_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="holder"):
        Ensemble("sqlite:///never-opened.db", holder=name)


@pytest.mark.parametrize("name", TAKEN)
async def test_every_other_name_is_taken(any_ensemble: Ensemble, name: str) -> None:
    async with await acquired(any_ensemble, name) as lease:
        assert lease.fence.name == name


def test_without_a_name_a_holder_is_somebody_else_each_time() -> None:
    assert len({Ensemble("sqlite:///never-opened.db").holder for _ in range(100)}) == 100


@pytest.fixture
async def any_ensemble(sqlite_database: Database) -> Ensemble:
    return Ensemble(sqlite_database.store, timing=QUICK)


# Leading.


async def test_one_of_two_leads_and_the_other_takes_over(join: Join, empty_database: Database) -> None:
    terms: list[tuple[str, int]] = []
    began = asyncio.Event()

    async def work(lease: HeldLease) -> None:
        terms.append((lease.holder, lease.epoch))
        began.set()
        await asyncio.Event().wait()

    first = Ensemble(empty_database.url, holder="first", timing=QUICK)
    first.lead("importer", work)
    async with first, asyncio.timeout(BOUND_SECONDS):
        await began.wait()
        began.clear()
        await join(lambda ensemble: ensemble.lead("importer", work), holder="second")
        await asyncio.sleep(0.2)
        assert terms == [("first", 1)]
    async with asyncio.timeout(BOUND_SECONDS):
        await began.wait()
    assert terms == [("first", 1), ("second", 2)]


async def test_an_ensemble_on_a_store_leaves_it_open(sqlite_database: Database) -> None:
    async with Ensemble(sqlite_database.store, timing=QUICK):
        pass
    assert await sqlite_database.store.list_leases(None, 1) == []
