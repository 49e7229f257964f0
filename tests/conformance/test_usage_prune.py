"""Pruning of usage keeps all rows that are needed to render and deliver the windows that are kept."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from msgspec.structs import astuple

from tenure.domain.leases import Fence
from tenure.domain.sessions import CloseReason
from tenure.domain.usage import BillableInterval, PrunedUsage, UsageSumQuery
from tenure.store.reads import usage_sums as store_lives
from tests.support.databases import Database
from tests.support.leases import all_tables, hold_lease, read_table
from tests.support.open_requests import NOON, end_one
from tests.support.session_calls import attach_one, update_one
from tests.support.sessions import open_new_session
from tests.support.submissions import DELIVERED, executor_fence, make_attempt
from tests.support.usage import (
    CONTRACT,
    FACTORS,
    MICROSECOND,
    chunk_all,
    cut,
    divide,
    insert_sessions,
    install,
    intervals,
    limit_chunks,
    newest_window,
    save,
    session_between,
    sum_of,
    windows,
)

KEPT = timedelta(days=400)
MIDNIGHT = NOON.replace(hour=0, minute=0, second=0, microsecond=0)


def midnight(days: int) -> datetime:
    return MIDNIGHT + timedelta(days=days)


@pytest.fixture(autouse=True)
async def installed(database: Database) -> None:
    """Stops the clock at midnight, when the first window begins. So each window that a cut adds is a whole day."""
    await database.clock.set(midnight(0))
    await install(database, midnight(0))


async def pruner(database: Database) -> Fence:
    return await hold_lease(database.store, "job:prune", "pruner")


async def prune(database: Database, at: datetime, limit: int = 100) -> PrunedUsage:
    await database.clock.set(at)
    return await database.store.prune_usage(await pruner(database), limit)


async def window_ids(database: Database) -> list[int]:
    return [window.window_id for window in await windows(database)]


async def session_ids(database: Database) -> set[str]:
    return {row["session_id"] for row in await read_table(database, "sessions")}


async def deliver(database: Database, *window_ids: int) -> None:
    fence = await executor_fence(database.store)
    for row in await read_table(database, "usage_chunks"):
        if row["window_id"] in window_ids:
            await make_attempt(database.store, fence, row["submission_id"], DELIVERED)


async def chunked_days(database: Database, days: int, **given: object) -> None:
    """Inserts a session that is live on all days, cuts one window per day, and divides the windows into chunks."""
    await insert_sessions(database, [session_between(midnight(0), midnight(999), closed=False)])
    await cut(database, midnight(days), **given)
    await chunk_all(database)


async def test_prune_usage__keeps_windows_for_400_days_after_end(database: Database) -> None:
    await chunked_days(database, 4)
    assert await prune(database, midnight(2) + KEPT) == PrunedUsage(chunks=1, windows=1, sessions=0)
    assert await window_ids(database) == [2, 3, 4]
    assert await prune(database, midnight(2) + KEPT + MICROSECOND) == PrunedUsage(1, 1, 0)
    assert await window_ids(database) == [3, 4]
    assert [row["window_id"] for row in await read_table(database, "usage_chunks")] == [3, 4]


async def test_prune_usage__keeps_undelivered_window_and_all_later_windows(database: Database) -> None:
    await chunked_days(database, 4, contract=CONTRACT)
    await deliver(database, 1, 3, 4)
    assert await prune(database, midnight(999)) == PrunedUsage(chunks=1, windows=1, sessions=0)
    assert await window_ids(database) == [2, 3, 4]
    await deliver(database, 2)
    assert await prune(database, midnight(999)) == PrunedUsage(chunks=3, windows=3, sessions=0)


async def test_prune_usage__keeps_undivided_window_and_all_later_windows(database: Database) -> None:
    await cut(database, midnight(3))
    first, second, third = await windows(database)
    await save(database, first, [])
    await save(database, third, [])
    assert await prune(database, midnight(999)) == PrunedUsage(0, 1, 0)
    assert await window_ids(database) == [2, 3]
    assert second.window_id == 2


async def test_prune_usage__treats_window_without_contract_as_delivered(database: Database) -> None:
    await chunked_days(database, 2, contract=None)
    assert await prune(database, midnight(999)) == PrunedUsage(2, 2, 0)
    assert await read_table(database, "usage_chunks") == []


async def test_prune_usage__deletes_at_most_limit_rows_per_table(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window is deleted only after its chunks."""
    limit_chunks(monkeypatch, 2)
    await insert_sessions(
        database, [session_between(midnight(0), midnight(2) + number * MICROSECOND) for number in range(1, 6)]
    )
    await cut(database, midnight(3))
    await chunk_all(database)
    assert len(await read_table(database, "usage_chunks")) == 9
    pruned: list[PrunedUsage] = []
    while not pruned or pruned[-1] != PrunedUsage(0, 0, 0):
        pruned.append(await prune(database, midnight(999), limit=2))
        left = {row["window_id"] for row in await read_table(database, "usage_chunks")}
        assert left <= set(await window_ids(database)), "chunks without their window"
    counts = [astuple(each) for each in pruned]
    assert max(max(each) for each in counts) == 2, counts
    assert tuple(map(sum, zip(*counts, strict=True))) == (9, 3, 5)


async def test_prune_usage__keeps_sessions_needed_by_oldest_kept_window(database: Database) -> None:
    """The sessions that ended at the start of the oldest kept window or later are kept."""
    made = [session_between(midnight(0), midnight(2) + off * MICROSECOND) for off in (-1, 0, 1)]
    await insert_sessions(database, made)
    await cut(database, midnight(4))
    await chunk_all(database)
    assert await prune(database, midnight(2) + KEPT + MICROSECOND) == PrunedUsage(2, 2, 1)
    assert await session_ids(database) == {session.session_id for session in made[1:]}


async def test_prune_usage__keeps_sessions_while_all_windows_wait_for_delivery(database: Database) -> None:
    """The windows wait for their delivery, so the sessions are kept, however old they are."""
    made = [session_between(midnight(0), midnight(0) + MICROSECOND), session_between(midnight(1), midnight(2))]
    await insert_sessions(database, made)
    await cut(database, midnight(3), contract=CONTRACT)
    await chunk_all(database)
    assert await prune(database, midnight(999)) == PrunedUsage(0, 0, 0)
    assert len(await session_ids(database)) == 2


async def test_prune_usage__keeps_sessions_that_ended_after_last_cut(database: Database) -> None:
    """After a long time without cuts all windows are pruned, but usage since the last cut is not billed yet."""
    made = [
        session_between(midnight(0), midnight(1)),
        session_between(midnight(1), midnight(2) + MICROSECOND),
        session_between(midnight(3), midnight(4)),
    ]
    await insert_sessions(database, made)
    await cut(database, midnight(2))
    await chunk_all(database)
    assert await prune(database, midnight(999)) == PrunedUsage(2, 2, 1)
    assert await session_ids(database) == {session.session_id for session in made[1:]}


async def test_prune_usage__keeps_lapsed_session_until_its_end_is_recorded(database: Database) -> None:
    """The session is kept even if its deadline is long past."""
    await insert_sessions(database, [session_between(midnight(0), midnight(1), closed=False)])
    await cut(database, midnight(3))
    await chunk_all(database)
    assert await prune(database, midnight(999)) == PrunedUsage(1, 3, 0)
    assert len(await session_ids(database)) == 1


async def test_prune_usage__keeps_closing_session(database: Database) -> None:
    session = await open_new_session(database)
    await attach_one(database.store, session.session_id)
    await update_one(database.store, session.session_id, end="STOPPED", finished=False)
    await cut(database, midnight(3))
    await chunk_all(database)
    assert await prune(database, midnight(999)) == PrunedUsage(1, 3, 0)
    assert await session_ids(database) == {session.session_id}


async def test_prune_usage__deletes_sessions_in_order_of_their_ends(database: Database) -> None:
    made = [session_between(midnight(0), midnight(1) - days * MICROSECOND) for days in (2, 5, 1, 4, 3)]
    await insert_sessions(database, made)
    await cut(database, midnight(2))
    await chunk_all(database)
    await prune(database, midnight(999), limit=2)
    assert (await prune(database, midnight(999), limit=1)).sessions == 1
    assert await session_ids(database) == {made[0].session_id, made[2].session_id}


async def rendered(database: Database) -> dict[int, tuple[Sequence[BillableInterval], object]]:
    found = await windows(database)
    return {one.window_id: (await intervals(database, one), await divide(database, one)) for one in found}


async def test_prune_usage__does_not_change_rendering_of_kept_windows(database: Database) -> None:
    """The sessions have many different lengths, and the factors change after day four. Each round prunes one day."""
    made = [
        session_between(
            midnight(start) + timedelta(hours=start),
            midnight(end) + timedelta(minutes=end),
            closed=(start + end) % 3 > 0,
        )
        for start in range(8)
        for end in range(start + 1, 9)
    ]
    await insert_sessions(database, made)
    await cut(database, midnight(4))
    await cut(database, midnight(9), factors=(7, 8, 9))
    await chunk_all(database)
    before = await rendered(database)
    for day in range(1, 9):
        await prune(database, midnight(day) + KEPT + MICROSECOND)
        left = await rendered(database)
        assert list(left) == list(range(day + 1, 10))
        assert left == {window_id: before[window_id] for window_id in left}
    assert len(await session_ids(database)) < len(made)


async def test_prune_usage__does_not_change_sums_of_kept_windows(database: Database) -> None:
    ended = await open_new_session(database)
    await database.clock.set(midnight(1))
    await end_one(database.store, ended.session_id, CloseReason.TERMINATED)
    await chunked_days(database, 3)
    window = await newest_window(database)
    await prune(database, midnight(2) + KEPT + MICROSECOND)
    assert ended.session_id not in await session_ids(database)
    found = await intervals(database, window)
    assert await newest_window(database) == window
    assert window.usage_millionths == sum_of(found, FACTORS)
    assert len(found) == 1


async def test_prune_usage__limits_span_of_sums_to_retained_usage(database: Database) -> None:
    """If a part of the span was pruned, the result starts where the retained usage starts."""
    ended = await open_new_session(database)
    await database.clock.set(midnight(1))
    await end_one(database.store, ended.session_id, CloseReason.TERMINATED)
    await chunked_days(database, 3)
    spans = {}
    for at in (9, 400, 402, 999):
        await prune(database, midnight(at) + timedelta(hours=1))
        for ends in (1, 3):
            sum_query = UsageSumQuery(from_at=midnight(-1), to_at=midnight(ends), factors=FACTORS)
            sums = await database.store.sum_usage(sum_query, None, 1)
            spans[at, ends] = (sums.from_at, sums.to_at, sums.groups[0].sessions)
    assert spans == {
        (9, 1): (midnight(-1), midnight(1), 2),
        (9, 3): (midnight(-1), midnight(3), 2),
        (400, 1): (midnight(-1), midnight(1), 2),
        (400, 3): (midnight(-1), midnight(3), 2),
        (402, 1): (midnight(2), midnight(2), 0),
        (402, 3): (midnight(2), midnight(3), 1),
        (999, 1): (midnight(3), midnight(3), 0),
        (999, 3): (midnight(3), midnight(3), 0),
    }


async def test_sum_usage__retries_when_usage_was_pruned_during_sum(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chunked_days(database, 3)
    kept = iter([midnight(0), midnight(1), midnight(1), midnight(1)])
    monkeypatch.setattr(store_lives, "_kept", lambda _: (midnight(3), next(kept)))
    sum_query = UsageSumQuery(from_at=midnight(0), to_at=midnight(3), factors=FACTORS)
    assert (await database.store.sum_usage(sum_query, None, 1)).from_at == midnight(1)
    assert list(kept) == []


async def test_prune_usage__records_start_of_retained_usage(database: Database) -> None:
    await chunked_days(database, 3)
    for at, kept_from in ((9, 0), (400, 0), (401, 1), (402, 2), (999, 3)):
        await prune(database, midnight(at) + timedelta(hours=1))
        (row,) = await read_table(database, "installation")
        assert row["usage_kept_from"] == midnight(kept_from), at


async def test_prune_usage__changes_only_windows_chunks_and_start_of_retained_usage(database: Database) -> None:
    await open_new_session(database)
    await chunked_days(database, 2, contract=CONTRACT)
    await deliver(database, 1, 2)
    await database.clock.set(midnight(999))
    fence = await pruner(database)
    before = await all_tables(database)
    assert await database.store.prune_usage(fence, 100) == PrunedUsage(2, 2, 0)
    (row,) = before["installation"]
    kept = {"usage_windows": [], "usage_chunks": [], "installation": [{**row, "usage_kept_from": midnight(2)}]}
    assert await all_tables(database) == {**before, **kept}


async def test_prune_usage__deletes_nothing_before_first_cut(database: Database) -> None:
    assert await prune(database, midnight(999)) == PrunedUsage(0, 0, 0)
