"""Concurrent acquires of a lease: only one succeeds, and no holder writes in the term of another holder."""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import cycle, pairwise
from pathlib import Path

import asyncpg
import pytest

from tenure.clock import MICROSECOND, to_microseconds
from tenure.domain.jobs import BeginRunOutcome, RunOutcome
from tenure.domain.leases import Fence, Lease
from tenure.errors import DatabaseUnavailable, LeaseLost
from tenure.store.contract import Store
from tenure.store.engines.postgres.errors import LEASE_LOST
from tests.support.audit_log import ACTOR, ACTOR_JSON
from tests.support.databases import Database
from tests.support.lease_contest import LeaseCall
from tests.support.leases import (
    acquire,
    acquire_free_lease,
    begin_due_run,
    begin_run,
    job_every,
    read_table,
    sibling_store,
)
from tests.support.locks import holding, locked_file
from tests.support.open_requests import NOON, SECOND

SECONDS = timedelta(seconds=1)
ROOT = Path(__file__).parents[2]
BRIEF = 300_000
"""In microseconds: the duration of a lease that expires while another transaction keeps a lock."""
ROUNDS = {"postgresql": 100}
"""The number of rounds by engine; 20 on other engines. The test of a job's runs does half as many."""
MORE_ROUNDS = 10
"""If no renewal or no acquire has succeeded after the usual number of rounds, as on a busy machine, a test runs up to
ten times as many rounds in all."""


@asynccontextmanager
async def several(database: Database, count: int) -> AsyncIterator[Sequence[Store]]:
    """Yields the stores of `count` instances. Each store has its own connections, and all use the same clock."""
    stores = [sibling_store(database) for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


# One winner


async def test_one_store_wins_every_round_of_concurrent_acquires(database: Database) -> None:
    """Before a round, the lease was never held, was released, or expires at the instant of the acquires."""
    await database.clock.set(NOON)
    async with several(database, 5) as stores:
        for number in range(ROUNDS.get(database.engine, 20)):
            found = await asyncio.gather(*(acquire(store, "leader", f"holder {n}") for n, store in enumerate(stores)))
            winners = [one.lease for one in found if one.taken]
            assert len(winners) == 1, f"round {number}: {found}"
            assert {one.lease.fence for one in found} == {winners[0].fence}, f"round {number}: {found}"
            assert winners[0].epoch == number + 1
            if number % 2:
                await stores[number % 5].release_lease(winners[0].fence)
            else:
                await database.clock.set(winners[0].expires_at)


async def test_renewal_fails_at_instant_of_expiry_and_acquire_fails_just_before(database: Database) -> None:
    await database.clock.set(NOON)
    async with several(database, 4) as (owner, *others):
        for number in range(ROUNDS.get(database.engine, 20)):
            early = number % 2
            fence = await acquire_free_lease(owner, "leader", "owner")
            lease = (await owner.list_leases(None, 1))[0]
            await database.clock.set(lease.expires_at - early * MICROSECOND)
            renewed, *found = await asyncio.gather(
                renews(owner, fence), *(acquire(other, "leader", f"holder {n}") for n, other in enumerate(others))
            )
            winners = [one.lease for one in found if one.taken]
            assert (renewed, len(winners)) == (bool(early), 1 - early), f"round {number}: {found}"
            await owner.resign_lease("leader", ACTOR)


async def renews(store: Store, fence: Fence, length: int = 60 * SECOND) -> bool:
    try:
        await store.renew_lease(fence, length)
    except LeaseLost:
        return False
    return True


async def test_at_most_one_of_renewal_and_concurrent_acquires_succeeds_at_expiry(
    postgres_database: Database, seed: int
) -> None:
    """The calls run on the real clock, shortly before or after the lease expires."""
    rounds = ROUNDS["postgresql"]
    chance, outcomes = random.Random(seed), Counter[tuple[bool, int]]()
    async with several(postgres_database, 4) as (owner, *others):
        for number in range(MORE_ROUNDS * rounds):
            if number >= rounds and outcomes[True, 0] and outcomes[False, 1]:
                break
            fence = await acquire_free_lease(owner, "leader", "owner", 6_000)
            await asyncio.sleep(0.004 * chance.random())
            renewed, *found = await asyncio.gather(
                renews(owner, fence), *(acquire(other, "leader", f"holder {n}") for n, other in enumerate(others))
            )
            outcomes[renewed, sum(one.taken for one in found)] += 1
            await owner.resign_lease("leader", ACTOR)
    shown = f"seed {seed}: {outcomes}"
    assert set(outcomes) <= {(True, 0), (False, 1), (False, 0)}, shown
    assert outcomes[True, 0], f"no renewal succeeded: {shown}"
    assert outcomes[False, 1], f"no acquire succeeded: {shown}"


async def test_exactly_one_of_concurrent_stores_begins_run_of_each_tick(database: Database) -> None:
    await database.clock.set(NOON)
    await database.store.register_jobs([job_every(60 * SECOND)])
    async with several(database, 5) as stores:
        for number in range(ROUNDS.get(database.engine, 20) // 2):
            tick_at = (await database.store.list_jobs(None, 1))[0].next_run_at
            await database.clock.set(tick_at)
            found = await asyncio.gather(*(begin_run(store, "tidy", f"holder {n}") for n, store in enumerate(stores)))
            (run,) = [one for one in found if one.found is BeginRunOutcome.BEGUN]
            assert (run.tick_at, run.reclaimed) == (tick_at, None), f"round {number}"
            assert {one.found for one in found} == {BeginRunOutcome.BEGUN, BeginRunOutcome.HELD}
            assert run.fence is not None
            await stores[number % 5].finish_run(run.fence, RunOutcome.SUCCEEDED, None, 0)


# Processes that contest a lease, with the running clock


PROCESSES = 3


@pytest.mark.slow
async def test_processes_that_contest_lease_never_hold_it_concurrently(database: Database, seed: int) -> None:
    """Each process acquires the lease, renews it, and releases it or lets it expire. No two terms may overlap."""
    tasks, epochs = (3, 900) if database.engine == "postgresql" else (1, 300)
    parts = await asyncio.gather(*(contest(database.url, n, tasks, epochs, seed) for n in range(PROCESSES)))
    calls = [LeaseCall(*call) for part in parts for call in part]
    counts = Counter(call.what for call in calls)
    assert find_violations(await read_table(database, "lease_history"), calls) == [], f"seed {seed}, {counts}"
    assert counts["taken"] > epochs / 2, f"too few to prove anything: {counts}"
    assert min(counts["renewed"], counts["released"]) > epochs / 20, f"too few to prove anything: {counts}"
    assert len({call.holder for call in calls if call.what == "taken"}) == PROCESSES * tasks


async def contest(url: str, number: int, tasks: int, epochs: int, seed: int) -> list[list[object]]:
    numbers = (str(value) for value in (tasks, epochs, seed + 100 * number))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.lease_contest", url, f"process {number}", *numbers),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    *_log, printed = output.splitlines()
    return json.loads(printed)  # type: ignore[no-any-return]


def find_violations(history: Sequence[object], calls: Sequence[LeaseCall]) -> list[str]:
    terms = [_Term(row) for row in history]
    broken = [
        f"epochs are not consecutive: {one} {next_}" for one, next_ in pairwise(terms) if next_.epoch != one.epoch + 1
    ]
    broken += [f"overlap: {one} {next_}" for one, next_ in pairwise(terms) if one.ended > next_.acquired]
    winners = Counter(call.epoch for call in calls if call.what == "taken")
    broken += [f"epoch {epoch} was won {count} times" for epoch, count in winners.items() if count > 1]
    by_epoch = {term.epoch: term for term in terms}
    for call in calls:
        term = by_epoch[call.epoch]
        if call.holder != term.holder or not term.acquired <= call.at <= term.ended:
            broken.append(f"{call} in the term of {term}")
    return broken


class _Term:
    def __init__(self, row: object) -> None:
        values: dict[str, object] = dict(row)  # type: ignore[call-overload]
        self.epoch, self.holder = values["epoch"], values["holder"]
        self.acquired = to_microseconds(values["acquired_at"])  # type: ignore[arg-type]
        ended_at = values["ended_at"]
        self.ended = to_microseconds(ended_at) if isinstance(ended_at, datetime) else sys.maxsize

    def __repr__(self) -> str:
        return f"{self.holder} in epoch {self.epoch} from {self.acquired} to {self.ended}"


# Lock waits on PostgreSQL


CHECK = "SELECT tenure_check_fence_1($1, $2, $3)"


async def fenced(connection: asyncpg.Connection, fence: Fence) -> None:
    await connection.execute(CHECK, fence.name, fence.holder, fence.epoch)


async def test_acquire_waits_for_fenced_write_in_progress(postgres_database: Database) -> None:
    async with holding(postgres_database) as writer:
        fence = await acquire_free_lease(postgres_database.store, "leader", "one", BRIEF)
        await fenced(writer._connection, fence)
        (lease,) = await postgres_database.store.list_leases(None, 1)
        await writer.wait_until(lease.expires_at)
        next_one = asyncio.create_task(acquire(postgres_database.store, "leader", "two"))
        await writer.wait_for_blocked()
        written_at = await writer.now()
        await writer.commit()
        acquired = await next_one
    assert acquired.taken
    assert acquired.lease.acquired_at > written_at, (
        "the next term began before the write of the previous epoch was committed"
    )


async def test_resign_waits_for_fenced_write_in_progress(postgres_database: Database) -> None:
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    async with holding(postgres_database) as writer:
        await fenced(writer._connection, fence)
        end = asyncio.create_task(postgres_database.store.resign_lease("leader", ACTOR))
        await writer.wait_for_blocked()
        written_at = await writer.now()
        await writer.commit()
        ended = await end
    assert ended is not None
    assert ended.expires_at > written_at


async def test_lease_marked_as_resigned_refuses_writes_renewals_and_ends_of_runs(postgres_database: Database) -> None:
    """A resignation first marks the lease and then waits for writes in progress. No other write can begin meanwhile."""
    store = postgres_database.store
    await postgres_database.clock.set(NOON)
    await store.register_jobs([job_every(SECOND)])
    await postgres_database.clock.set(NOON + SECONDS)
    leader, run = await acquire_free_lease(store, "leader", "one"), await begin_due_run(store, "tidy")
    for name in (leader.name, run.name):
        await postgres_database.execute(f"SELECT tenure_mark_resigned_1('{name}', '{ACTOR_JSON}')")
    with pytest.raises(LeaseLost):
        await store.prune(leader, 9)
    with pytest.raises(LeaseLost):
        await store.renew_lease(leader, SECOND)
    with pytest.raises(LeaseLost):
        await store.finish_run(run, RunOutcome.SUCCEEDED, None, SECOND)


async def test_next_run_waits_for_fenced_write_of_previous_run(postgres_database: Database) -> None:
    await postgres_database.clock.set(NOON)
    await postgres_database.store.register_jobs([job_every(60 * SECOND)])
    await postgres_database.clock.set(NOON + 60 * SECONDS)
    fence = await begin_due_run(postgres_database.store, "tidy", "one")
    async with holding(postgres_database) as writer:
        await fenced(writer._connection, fence)
        await postgres_database.clock.set(NOON + 180 * SECONDS)
        next_run = asyncio.create_task(begin_run(postgres_database.store, "tidy", "two"))
        await writer.wait_for_blocked()
        await writer.commit()
        assert (await next_run).reclaimed == fence


async def test_renewal_and_fenced_writes_do_not_block_each_other(postgres_database: Database) -> None:
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    async with holding(postgres_database) as writer, holding(postgres_database) as another:
        await fenced(writer._connection, fence)
        await asyncio.wait_for(fenced(another._connection, fence), 0.8)
        await asyncio.wait_for(postgres_database.store.renew_lease(fence, 60 * SECOND), 0.8)
        await asyncio.wait_for(fenced(another._connection, fence), 0.8)
        await asyncio.wait_for(postgres_database.store.prune(fence, 9), 0.8)


async def test_acquire_waits_for_fenced_write_that_began_before_renewal(
    postgres_database: Database,
) -> None:
    """The renewal has created a new version of the row, but the write holds a lock on the old version."""
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    async with holding(postgres_database) as writer:
        await fenced(writer._connection, fence)
        lease = await postgres_database.store.renew_lease(fence, 1)
        await writer.wait_until(lease.expires_at)
        next_one = asyncio.create_task(acquire(postgres_database.store, "leader", "two"))
        await writer.wait_for_blocked()
        await writer.commit()
        assert (await next_one).taken


async def test_fenced_write_that_waited_for_next_acquire_raises_lease_lost(postgres_database: Database) -> None:
    """When the write starts, the resignation and the next acquire are not committed yet. So the write sees a row that
    still has the epoch of the write's fence.
    """
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    async with holding(postgres_database) as next_one:
        await next_one._connection.execute(f"SELECT FROM tenure_resign_lease_1('leader', '{ACTOR_JSON}')")
        await next_one._connection.execute(
            "SELECT FROM tenure_acquire_lease_1('leader', 'one', gen_random_uuid(), 60000000)"
        )
        write = asyncio.create_task(postgres_database.store.prune(fence, 9))
        await next_one.wait_for_blocked()
        await next_one.commit()
        with pytest.raises(LeaseLost):
            await write


async def test_fenced_write_continues_when_resign_it_waited_for_rolls_back(
    postgres_database: Database,
) -> None:
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    async with holding(postgres_database) as next_one:
        await next_one._connection.execute(f"SELECT FROM tenure_resign_lease_1('leader', '{ACTOR_JSON}')")
        write = asyncio.create_task(postgres_database.store.prune(fence, 9))
        await next_one.wait_for_blocked()
        await next_one.rollback()
        await write


@pytest.mark.parametrize("what", ["fenced write", "renewal", "release"])
async def test_call_raises_lease_lost_when_lease_expires_during_lock_wait(
    postgres_database: Database, what: str
) -> None:
    """Each of these calls must read the clock after it has locked the row."""
    store = postgres_database.store
    fence = await acquire_free_lease(store, "leader", "one", BRIEF)
    (lease,) = await store.list_leases(None, 1)
    calls = {
        "fenced write": lambda: store.prune(fence, 9),
        "renewal": lambda: store.renew_lease(fence, 60 * SECOND),
        "release": lambda: store.release_lease(fence),
    }
    async with holding(postgres_database) as holder:
        await holder._connection.execute("SELECT FROM leases WHERE name = 'leader' FOR UPDATE")
        late = asyncio.ensure_future(calls[what]())
        await holder.wait_for_blocked()
        await holder.wait_until(lease.expires_at)
        await holder.rollback()
        with pytest.raises(LeaseLost):
            await late


async def test_acquire_that_waited_for_renewal_finds_lease_held(postgres_database: Database) -> None:
    """When the acquire starts, the row still shows the lease as expired."""
    await postgres_database.clock.set(NOON)
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    await postgres_database.clock.set(NOON + 60 * SECONDS - MICROSECOND)
    async with holding(postgres_database) as renewal:
        await renewal._connection.execute(
            "SELECT FROM tenure_renew_lease_1($1, $2, $3, 60000000)", fence.name, fence.holder, fence.epoch
        )
        await postgres_database.clock.set(NOON + 60 * SECONDS)
        next_one = asyncio.create_task(acquire(postgres_database.store, "leader", "two"))
        await renewal.wait_for_blocked()
        await renewal.commit()
        assert not (await next_one).taken


async def test_first_acquire_that_waited_for_another_finds_lease_held(postgres_database: Database) -> None:
    """The lease has no row yet, so neither of the two acquires can lock a row."""
    async with holding(postgres_database) as first:
        await first._connection.execute(
            "SELECT FROM tenure_acquire_lease_1('leader', 'one', gen_random_uuid(), 60000000)"
        )
        second = asyncio.create_task(acquire(postgres_database.store, "leader", "two"))
        await first.wait_for_blocked()
        await first.commit()
        acquired = await second
    assert (acquired.taken, acquired.lease.holder, acquired.lease.epoch) == (False, "one", 1)


async def test_run_that_waited_for_another_finds_tick_done(postgres_database: Database) -> None:
    """When the second call starts, the job is still due, because the first transaction is not committed yet."""
    await postgres_database.clock.set(NOON)
    await postgres_database.store.register_jobs([job_every(60 * SECOND)])
    await postgres_database.clock.set(NOON + 60 * SECONDS)
    async with holding(postgres_database) as first:
        await first.execute("SELECT FROM tenure_begin_run_1('tidy', 'one', gen_random_uuid())")
        await first.execute("SELECT tenure_finish_run_1('job:tidy', 'one', 1, 'succeeded', NULL, 0)")
        second = asyncio.create_task(begin_run(postgres_database.store, "tidy", "two"))
        await first.wait_for_blocked()
        await first.commit()
        assert (await second).found is BeginRunOutcome.IDLE


async def test_acquire_that_waited_for_release_begins_after_it(postgres_database: Database) -> None:
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    async with holding(postgres_database) as release:
        await release.execute("SELECT FROM leases FOR UPDATE")
        next_one = asyncio.create_task(acquire(postgres_database.store, "leader", "two"))
        await release.wait_for_blocked()
        await release.execute(f"SELECT FROM tenure_release_lease_1('leader', '{fence.holder}', {fence.epoch})")
        await release.commit()
        assert (await next_one).taken
    first, second = await read_table(postgres_database, "lease_history")
    assert first["ended_at"] <= second["acquired_at"]


async def test_sqlite_acquire_waits_for_writer_and_reads_clock_afterwards(sqlite_database: Database) -> None:
    fence = await acquire_free_lease(sqlite_database.store, "leader", "one", BRIEF)
    (lease,) = await sqlite_database.store.list_leases(None, 1)
    with locked_file(sqlite_database) as release:
        next_one = asyncio.create_task(acquire(sqlite_database.store, "leader", "two"))
        renewal = asyncio.create_task(renews(sqlite_database.another_store(), fence))
        await asyncio.sleep(0.6)  # no event to wait for: both calls poll the file while the lease expires
        assert not next_one.done()
        release()
    acquired = await next_one
    assert (acquired.taken, await renewal) == (True, False)
    assert acquired.lease.acquired_at >= lease.expires_at


# Overlapping fenced writes


class Relay:
    """Begins each fenced write before it commits the previous one, as long as the fence is valid."""

    def __init__(self, database: Database, fence: Fence) -> None:
        self._database, self._fence = database, fence
        self._open: asyncpg.transaction.Transaction | None = None
        self.enough = False

    async def run(self) -> None:
        connections = [await asyncpg.connect(self._database.url) for _ in range(2)]
        for connection in cycle(connections):
            await self._next(connection)
            if self.enough:
                break
        for connection in connections:
            connection.terminate()

    async def _next(self, connection: asyncpg.Connection) -> None:
        next_one = asyncio.create_task(self._begin(connection))
        # This write may have to wait behind a call that waits for the open transaction.
        await asyncio.wait({next_one}, timeout=0.02)
        if self._open is not None:
            await self._open.commit()
        self._open = await next_one
        await asyncio.sleep(0.005)

    async def _begin(self, connection: asyncpg.Connection) -> asyncpg.transaction.Transaction | None:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await fenced(connection, self._fence)
        except asyncpg.PostgresError:
            await transaction.rollback()
            return None
        return transaction


@asynccontextmanager
async def overlapping_writes(database: Database, fence: Fence) -> AsyncIterator[None]:
    relay = Relay(database, fence)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay.run())
        await asyncio.sleep(0.05)
        yield
        relay.enough = True


async def test_overlapping_fenced_writes_do_not_starve_acquire(postgres_database: Database) -> None:
    fence = await acquire_free_lease(postgres_database.store, "leader", "one", BRIEF)
    (lease,) = await postgres_database.store.list_leases(None, 1)
    async with overlapping_writes(postgres_database, fence), holding(postgres_database) as clock:
        await clock.wait_until(lease.expires_at)
        assert (await acquire(postgres_database.store, "leader", "two")).taken


async def test_overlapping_fenced_writes_do_not_starve_resign(postgres_database: Database) -> None:
    """A call that wants a shared row lock must not overtake a call that waits for an exclusive row lock."""
    fence = await acquire_free_lease(postgres_database.store, "leader", "one")
    async with overlapping_writes(postgres_database, fence):
        try:
            resigned = await postgres_database.store.resign_lease("leader", ACTOR)
        except DatabaseUnavailable as error:
            resigned = None
            shown = str(error)
    assert resigned is not None, shown


# Fenced writes while the lease changes hands


class FencedWriters:
    """Writers that use the newest fence in slow transactions, while new epochs begin continuously.

    No write of an old epoch may become visible after the next acquire has returned.
    """

    def __init__(self, database: Database, stores: Sequence[Store], seed: int) -> None:
        self._database, self._stores = database, stores
        self._random = random.Random(seed)
        self._fence: Fence | None = None
        self._enough = False
        self.seen_at_acquire: dict[int, int] = {}
        self.refused = 0

    async def run(self, seconds: float, writers: int) -> None:
        await self._database.execute("CREATE TABLE test_writes (epoch bigint)")
        await self._begin_epoch(0)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(writers):
                tasks.create_task(self._write())
            tasks.create_task(self._change_hands())
            tasks.create_task(self._renew())
            await asyncio.sleep(seconds)
            self._enough = True

    async def _change_hands(self) -> None:
        number = 0
        while not self._enough:
            number += 1
            await asyncio.sleep(0.008 * self._random.random())
            if self._random.random() < 0.7:
                await self._stores[0].resign_lease("leader", ACTOR)
            await self._begin_epoch(number)

    async def _begin_epoch(self, number: int) -> None:
        store = self._stores[number % len(self._stores)]
        acquired = await acquire(store, "leader", f"holder {number}", 15_000)
        if acquired.taken:
            self.seen_at_acquire[acquired.lease.epoch] = await self.visible_before(acquired.lease)
            self._fence = acquired.lease.fence

    async def visible_before(self, lease: Lease) -> int:
        (row,) = await self._database.rows(f"SELECT count(*) AS n FROM test_writes WHERE epoch < {lease.epoch}")
        return int(row["n"])

    async def _renew(self) -> None:
        while not self._enough:
            await asyncio.sleep(0.002)
            if self._fence is not None:
                await renews(self._stores[1], self._fence, self._random.randrange(1, 15_000))

    async def _write(self) -> None:
        connection = await asyncpg.connect(self._database.url)
        while not self._enough:
            fence = self._fence
            assert fence is not None
            try:
                async with connection.transaction():
                    await fenced(connection, fence)
                    await asyncio.sleep(0.003 * self._random.random())
                    await connection.execute("INSERT INTO test_writes VALUES ($1)", fence.epoch)
            except asyncpg.PostgresError as error:
                if error.sqlstate != LEASE_LOST:
                    raise
                self.refused += 1
                await asyncio.sleep(0.002)
        await connection.close()


async def test_no_write_of_old_epoch_is_committed_after_next_acquire(postgres_database: Database, seed: int) -> None:
    seconds = 1.5
    async with several(postgres_database, 3) as stores:
        writers = FencedWriters(postgres_database, stores, seed)
        await writers.run(seconds, writers=6)
    rows = await postgres_database.rows("SELECT epoch, count(*) AS n FROM test_writes GROUP BY epoch ORDER BY epoch")
    written = {row["epoch"]: row["n"] for row in rows}
    late = {
        epoch: sum(n for one, n in written.items() if one < epoch) - seen
        for epoch, seen in writers.seen_at_acquire.items()
    }
    shown = f"seed {seed}: {len(late)} epochs, {sum(written.values())} writes, {writers.refused} refused"
    assert {epoch: n for epoch, n in late.items() if n} == {}, shown
    assert len(written) > 5 * seconds, f"too few to prove anything: {shown}"
    assert writers.refused > seconds, f"too few to prove anything: {shown}"
