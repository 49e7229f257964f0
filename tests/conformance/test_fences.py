"""Every method that takes a fence raises `LeaseLost` for an invalid fence, and then changes nothing. NOT_REFUSED lists
the only exception.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from tenure.domain.alerts import AlertName, Condition
from tenure.domain.events import end_of
from tenure.domain.jobs import RunOutcome
from tenure.domain.leases import Fence
from tenure.domain.usage import ChunkBounds, ChunkDigest, Mark, MarkState, MarkSums
from tenure.errors import LeaseLost
from tenure.store.contract import Store
from tenure.store.engines.postgres.store import PostgresStore
from tenure.store.engines.sqlite.store import SqliteStore
from tenure.store.engines.sqlserver.store import SqlServerStore
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.events import BEFORE, new_batch
from tests.support.leases import all_tables, begin_due_run, hold_lease, insert_row, job_every
from tests.support.open_requests import NOON, SECOND, open_one, request, some_id
from tests.support.submissions import attempt_end, submit_request
from tests.support.usage import rules

TICK = datetime(2041, 3, 1, 12, 1, tzinfo=UTC)
LOCK_SECONDS = 120
EXPIRY = TICK + timedelta(seconds=LOCK_SECONDS)
AGES_AGO = NOON - timedelta(days=999)
DUE, OPEN, ORPHANED = (some_id() for _ in range(3))
"""Ids of the submissions that `prepare_submissions` creates."""
OLD, SENT, UNDIVIDED = range(11, 14)
"""Ids of the windows that `prepare_usage` creates."""
WITHOUT_DIGEST = some_id()
"""The id of the submission of a chunk whose digest is not stored yet."""

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "expire_sessions": {"limit": 9},
    "renew_lease": {"duration_microseconds": 7 * SECOND},
    "release_lease": {},
    "finish_run": {"outcome": RunOutcome.SUCCEEDED, "error": None, "retry_microseconds": 0},
    "prune": {"limit": 9},
    "begin_attempts": {"submission_ids": [DUE]},
    "finish_attempts": {"ends": [attempt_end(OPEN)]},
    "note_waiting_reason": {"submission_ids": [DUE], "error": "its gateway is gone"},
    "cut_usage": {"rules": rules(), "limit": 2},
    "save_chunks": {
        "window_id": UNDIVIDED,
        "first": 1,
        "bounds": [ChunkBounds(some_id(), some_id(), 2, 3)],
        "complete": True,
    },
    "store_digests": {"digests": [ChunkDigest(WITHOUT_DIGEST, b"9" * 32)]},
    "save_mark": {
        "mark": Mark(NOON, 1, MarkState.INCOMPLETE),
        "sums": [MarkSums(some_id(), some_id(), 1, 2, 3, 4)],
    },
    "delete_mark": {"at": AGES_AGO, "limit": 9},
    "prune_usage": {"limit": 9},
    "update_alerts": {"conditions": [Condition(AlertName.JOB_FAILING, "tidy", "broken")], "contract": None},
    "subscribe_gateways": {"gateways": ["new"]},
    "save_event_batch": {"batch": new_batch(1, BEFORE, end_of(NOON))},
}
"""For every method that takes a fence, its arguments after the fence. The fixture `prepared` creates work for each
method.
"""


def fenced_methods() -> list[str]:
    methods = inspect.getmembers(Store, inspect.isfunction)
    return [name for name, method in methods if Fence in get_type_hints(method).values() and not name.startswith("_")]


def test_every_fenced_method_has_test_arguments() -> None:
    assert set(fenced_methods()) == set(ARGUMENTS), "add arguments for the new method, and work for it in `prepared`"


def test_fence_is_first_required_parameter() -> None:
    for engine, name in product([Store, PostgresStore, SqliteStore, SqlServerStore], ARGUMENTS):
        _self, first, *_others = inspect.signature(getattr(engine, name)).parameters.values()
        assert (first.name, first.annotation, first.default) == ("fence", Fence, inspect.Parameter.empty), (
            engine,
            name,
        )


@pytest.fixture
async def prepared(database: Database) -> tuple[Database, Fence]:
    """Creates work for every method, such as open attempts, a lapsed session and rows to prune. Returns the fence of a
    run of the job `tidy`.
    """
    await database.clock.set(NOON)
    await open_one(database.store, request(lease_microseconds=SECOND))
    await insert_row(
        database,
        "lease_history",
        name="archive",
        epoch=1,
        holder="one",
        acquired_at=AGES_AGO,
        ended_at=AGES_AGO,
        how="released",
    )
    await insert_row(database, "job_runs", job="old", epoch=1, holder="one", started_at=AGES_AGO)
    await database.store.register_jobs([job_every(60 * SECOND, timeout=LOCK_SECONDS * SECOND)])
    await hold_lease(database.store, "leader", "two")
    await database.clock.set(TICK)
    fence = await begin_due_run(database.store, "tidy", "one")
    await prepare_submissions(database, fence)
    await prepare_usage(database)
    await insert_row(database, "usage_marks", marked_at=AGES_AGO, series=1, state="complete")
    place = {"position_at": BEFORE.at, "position_rank": BEFORE.rank, "position_id": BEFORE.session_id}
    await insert_row(database, "event_subscriptions", gateway="hooks", number=0, **place)
    return database, fence


async def prepare_submissions(database: Database, fence: Fence) -> None:
    """Creates a submission that is due, one with an open attempt, and one with an attempt that an earlier epoch left
    open.
    """
    await database.store.accept_submissions([submit_request(submission_id=each) for each in (DUE, OPEN, ORPHANED)])
    await database.store.begin_attempts(fence, [OPEN])
    await insert_row(
        database,
        "submission_attempts",
        submission_id=ORPHANED,
        number=1,
        epoch=fence.epoch - 1,
        holder="three",
        started_at=NOON,
    )


async def prepare_usage(database: Database) -> None:
    """Creates three windows past their retention time. OLD is divided, SENT has a chunk without a digest, and UNDIVIDED
    gets chunks from `save_chunks`.
    """
    await insert_row(database, "usage_eras", era=1, started_at=AGES_AGO, factor_1=1, factor_2=2, factor_3=3)
    for window_id in (OLD, SENT, UNDIVIDED):
        ended_at = AGES_AGO + timedelta(days=window_id)
        await insert_row(
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
    await insert_row(
        database,
        "usage_chunks",
        window_id=SENT,
        chunk=1,
        sessions=5,
        first_session_id=some_id(),
        last_session_id=some_id(),
        submission_id=WITHOUT_DIGEST,
        usage_millionths=7,
    )


async def call(store: Store, name: str, fence: Fence) -> None:
    await getattr(store, name)(fence, **ARGUMENTS[name])


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_fenced_methods_write_with_valid_fence(prepared: tuple[Database, Fence], name: str) -> None:
    database, fence = prepared
    await database.clock.set(EXPIRY - timedelta(microseconds=1))
    before = await all_tables(database)
    await call(database.store, name, fence)
    assert await all_tables(database) != before


# Ways to lose a lease. Each function returns the fence that is no longer valid.


async def _expired(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    return fence


async def _acquired_by_another(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    await begin_due_run(database.store, "tidy", "two")
    return fence


async def _reacquired_by_same_holder(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    await begin_due_run(database.store, "tidy", "one")
    return fence


async def _acquired_after_resign(database: Database, fence: Fence) -> Fence:
    await database.store.resign_lease(fence.name, ACTOR)
    await begin_due_run(database.store, "tidy", "one")
    return fence


async def _acquired_and_clock_stepped_back(database: Database, fence: Fence) -> Fence:
    """By the clock, the old epoch has not expired yet. Only the number of the new epoch makes the fence invalid."""
    await database.clock.set(EXPIRY)
    await begin_due_run(database.store, "tidy", "one")
    await database.clock.set(TICK)
    return fence


async def _acquired_and_released(database: Database, fence: Fence) -> Fence:
    await database.clock.set(EXPIRY)
    await database.store.release_lease(await begin_due_run(database.store, "tidy", "one"))
    return fence


async def _released(database: Database, fence: Fence) -> Fence:
    await database.store.resign_lease(fence.name, ACTOR)
    return fence


LOSSES: list[Callable[[Database, Fence], Awaitable[Fence]]] = [
    _expired,
    _acquired_by_another,
    _reacquired_by_same_holder,
    _acquired_after_resign,
    _acquired_and_clock_stepped_back,
    _acquired_and_released,
    _released,
]
NOT_REFUSED = {(_released, "release_lease")}
"""`release_lease` does not raise if the epoch of the fence was already released or resigned, and no later epoch has
begun. So the call can be repeated after a lost response.
"""


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__.strip("_"))
async def test_fenced_methods_raise_lease_lost_and_write_nothing_after_lease_is_lost(
    prepared: tuple[Database, Fence], loss: Callable[[Database, Fence], Awaitable[Fence]]
) -> None:
    database, fence = prepared
    lost = await loss(database, fence)
    before = await all_tables(database)
    for name in ARGUMENTS:
        if (loss, name) not in NOT_REFUSED:
            with pytest.raises(LeaseLost):
                await call(database.store, name, lost)
    assert await all_tables(database) == before


async def test_fenced_methods_raise_lease_lost_and_write_nothing_with_fence_never_issued(
    prepared: tuple[Database, Fence],
) -> None:
    database, fence = prepared
    never_issued = {
        "another holder": replace(fence, holder="two"),
        "next epoch": replace(fence, epoch=fence.epoch + 1),
        "lease that another holder has in an epoch with this number": replace(fence, name="leader"),
        "unknown lease": replace(fence, name="job:unknown"),
    }
    before = await all_tables(database)
    for (case, invalid), name in product(never_issued.items(), ARGUMENTS):
        try:
            await call(database.store, name, invalid)
        except LeaseLost:
            continue
        pytest.fail(f"{name} accepted a fence of: {case}")
    assert await all_tables(database) == before


async def test_lease_lost_names_holder_lease_and_epoch(prepared: tuple[Database, Fence]) -> None:
    database, fence = prepared
    for name in ARGUMENTS:
        with pytest.raises(LeaseLost, match=r"stranger.*job:tidy.* 71"):
            await call(database.store, name, replace(fence, holder="stranger", epoch=71))
