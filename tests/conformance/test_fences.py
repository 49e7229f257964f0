"""Whatever takes a fence refuses one that does not hold, and then changes nothing anywhere."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from tenure.errors import LeaseLost
from tenure.model.leases import Fence, RunOutcome
from tenure.model.usage import Piece, Seal
from tenure.store import Store
from tenure.store.engines.postgres.store import PostgresStore
from tenure.store.engines.sqlite.store import SqliteStore
from tenure.store.engines.sqlserver.store import SqlServerStore
from tests.support.databases import Database
from tests.support.leases import all_tables, begun, every, held, put_row
from tests.support.submissions import end, submit
from tests.support.usage import rules
from tests.support.wishes import NOON, SECOND, open_one, some_id, wish

TICK = datetime(2041, 3, 1, 12, 1, tzinfo=UTC)
LOCK_SECONDS = 120
EXPIRY = TICK + timedelta(seconds=LOCK_SECONDS)
AGES_AGO = NOON - timedelta(days=999)
DUE, UNDER_WAY, LEFT_OPEN = (some_id() for _ in range(3))
"""Submissions."""
OLD, SENT, UNDIVIDED = range(11, 14)
"""Windows."""
UNSEALED = some_id()
"""The submission of a chunk."""

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "expire_sessions": {"limit": 9},
    "renew_lease": {"duration_microseconds": 7 * SECOND},
    "release_lease": {},
    "finish_run": {"outcome": RunOutcome.SUCCEEDED, "error": None, "retry_microseconds": 0},
    "prune": {"limit": 9},
    "begin_attempts": {"submission_ids": [DUE]},
    "finish_attempts": {"ends": [end(UNDER_WAY)]},
    "close_unknown": {"limit": 9},
    "explain_waiting": {"submission_ids": [DUE], "error": "its gateway is gone"},
    "cut_usage": {"rules": rules(), "limit": 2},
    "save_chunks": {
        "window_id": UNDIVIDED,
        "first": 1,
        "pieces": [Piece(some_id(), some_id(), 2, 3)],
        "complete": True,
    },
    "seal_chunks": {"seals": [Seal(UNSEALED, b"9" * 32)]},
    "prune_usage": {"limit": 9},
}
"""Of every method that takes a fence, what else it takes. `prepared` has work for each of them."""


def fenced_methods() -> list[str]:
    methods = inspect.getmembers(Store, inspect.isfunction)
    return [name for name, method in methods if Fence in get_type_hints(method).values() and not name.startswith("_")]


def test_every_method_that_takes_a_fence_is_tried() -> None:
    assert set(fenced_methods()) == set(ARGUMENTS), "say what to call it with, and give it something to do"


@pytest.mark.parametrize("engine", [Store, PostgresStore, SqliteStore, SqlServerStore])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_nobody_can_forget_the_fence(engine: type, name: str) -> None:
    _self, first, *_others = inspect.signature(getattr(engine, name)).parameters.values()
    assert (first.name, first.annotation, first.default) == ("fence", Fence, inspect.Parameter.empty)


@pytest.fixture
async def prepared(database: Database) -> tuple[Database, Fence]:
    """A run and attempts under way, a session that has lapsed, rows to prune: something to do for every method."""
    await database.clock.set(NOON)
    await open_one(database.store, wish(lease_microseconds=SECOND))
    await put_row(
        database,
        "lease_history",
        name="archive",
        epoch=1,
        holder="one",
        acquired_at=AGES_AGO,
        ended_at=AGES_AGO,
        how="released",
    )
    await put_row(database, "job_runs", job="old", epoch=1, holder="one", started_at=AGES_AGO)
    await database.store.register_jobs([every(60 * SECOND, timeout=LOCK_SECONDS * SECOND)])
    await held(database.store, "leader", "two")
    await database.clock.set(TICK)
    fence = await begun(database.store, "tidy", "one")
    await prepare_submissions(database, fence)
    await prepare_usage(database)
    return database, fence


async def prepare_submissions(database: Database, fence: Fence) -> None:
    """One that is due, one that is being sent, one of which an executor before has left an attempt open."""
    await database.store.accept_submissions([submit(submission_id=each) for each in (DUE, UNDER_WAY, LEFT_OPEN)])
    await database.store.begin_attempts(fence, [UNDER_WAY])
    await put_row(
        database,
        "submission_attempts",
        submission_id=LEFT_OPEN,
        number=1,
        epoch=fence.epoch - 1,
        holder="three",
        started_at=NOON,
    )


async def prepare_usage(database: Database) -> None:
    """A window that was kept long enough, one with a chunk that was never sent, and one that is not divided."""
    await put_row(database, "usage_eras", era=1, started_at=AGES_AGO, factor_1=1, factor_2=2, factor_3=3)
    for window_id in (OLD, SENT, UNDIVIDED):
        ended_at = AGES_AGO + timedelta(days=window_id)
        await put_row(
            database,
            "usage_windows",
            window_id=window_id,
            installation_id=some_id(),
            era=1,
            started_at=ended_at - timedelta(days=1),
            ended_at=ended_at,
            cut_at=NOON,
            chunked_at=NOON if window_id == OLD else None,
        )
    await put_row(
        database,
        "usage_chunks",
        window_id=SENT,
        chunk=1,
        sessions=5,
        first_session_id=some_id(),
        last_session_id=some_id(),
        submission_id=UNSEALED,
        usage_millionths=7,
    )


async def call(store: Store, name: str, fence: Fence) -> None:
    await getattr(store, name)(fence, **ARGUMENTS[name])


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_with_a_fence_that_holds_each_has_something_to_do(prepared: tuple[Database, Fence], name: str) -> None:
    database, fence = prepared
    await database.clock.set(EXPIRY - timedelta(microseconds=1))
    before = await all_tables(database)
    await call(database.store, name, fence)
    assert await all_tables(database) != before


# What makes a fence that held not hold. Each returns the one to show.


async def _run_out(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    return fence


async def _taken_by_another(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    await begun(database.store, "tidy", "two")
    return fence


async def _taken_again_by_its_own_holder(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    await begun(database.store, "tidy", "one")
    return fence


async def _taken_after_it_was_resigned(database: Database, fence: Fence) -> Fence:
    await database.store.resign_lease(fence.name)
    await begun(database.store, "tidy", "one")
    return fence


async def _taken_and_the_clock_stepped_back(database: Database, fence: Fence) -> Fence:
    """By the clock alone, the old epoch would have its lease back."""
    await database.clock.set(EXPIRY)
    await begun(database.store, "tidy", "one")
    await database.clock.set(TICK)
    return fence


async def _taken_and_given_up(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    await database.store.release_lease(await begun(database.store, "tidy", "one"))
    return fence


async def _of_another_holder(_database: Database, fence: Fence) -> Fence:
    return replace(fence, holder="two")


async def _of_an_epoch_to_come(_database: Database, fence: Fence) -> Fence:
    return replace(fence, epoch=fence.epoch + 1)


async def _of_another_lease(_database: Database, fence: Fence) -> Fence:
    """Which somebody else holds, in an epoch of the same number."""
    return replace(fence, name="leader")


async def _that_never_existed(_database: Database, fence: Fence) -> Fence:
    return replace(fence, name="job:nobody")


async def _given_up(database: Database, fence: Fence) -> Fence:
    await database.store.resign_lease(fence.name)
    return fence


LOSSES: list[Callable[[Database, Fence], Awaitable[Fence]]] = [
    _run_out,
    _taken_by_another,
    _taken_again_by_its_own_holder,
    _taken_after_it_was_resigned,
    _taken_and_the_clock_stepped_back,
    _taken_and_given_up,
    _of_another_holder,
    _of_an_epoch_to_come,
    _of_another_lease,
    _that_never_existed,
    _given_up,
]
QUIET = {(_given_up, "release_lease")}
"""To release what was released before is no loss: the answer was."""


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__.strip("_"))
async def test_with_a_fence_that_does_not_hold_nothing_is_done(
    prepared: tuple[Database, Fence], loss: Callable[[Database, Fence], Awaitable[Fence]]
) -> None:
    database, fence = prepared
    lost = await loss(database, fence)
    before = await all_tables(database)
    for name in ARGUMENTS:
        if (loss, name) not in QUIET:
            with pytest.raises(LeaseLost):
                await call(database.store, name, lost)
            assert await all_tables(database) == before, name


async def test_a_refused_write_says_whose_fence_it_was(prepared: tuple[Database, Fence]) -> None:
    database, fence = prepared
    for name in ARGUMENTS:
        with pytest.raises(LeaseLost, match=r"nobody.*job:tidy.* 71"):
            await call(database.store, name, replace(fence, holder="nobody", epoch=71))
