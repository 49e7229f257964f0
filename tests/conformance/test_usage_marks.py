"""Marks: running sums of usage at full hours. Sums with marks equal sums from sessions alone, to the last digit.

`tests/model/test_usage_model.py` compares the same sums while sessions open, end, are upgraded and lapse between cuts.
"""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.domain.scope import Scope
from tenure.domain.sessions import Session
from tenure.domain.usage import (
    Factors,
    GroupBy,
    Mark,
    MarkState,
    MarkSums,
    UsageFilter,
    UsageGroup,
    UsageSumQuery,
    UsageSums,
)
from tenure.errors import LeaseLost
from tenure.telemetry.events import Telemetry, UsageMarkSkipped
from tests.support.databases import Database
from tests.support.leases import read_table
from tests.support.open_requests import NOON, some_id
from tests.support.usage import ALL, FACTORS, MICROSECOND, cut, insert_sessions, install, session_between
from tests.support.usage_marks import mark_usage, marker_fence, sum_without_marks

BEGIN = NOON.replace(minute=17)
OTHER_FACTORS = (333_333, 999_999_999_999, 0)
TENANTS = [some_id() for _ in range(3)]
CAPACITIES = [some_id() for _ in range(4)]
GROUPS = [None, GroupBy.TENANT, GroupBy.CAPACITY, GroupBy.KIND]
KEYS = "tenure.usage.mark.MARK_KEYS_MAX"
EDGE = "tenure.store.reads.usage_sums.EDGE_SESSIONS_MAX"


def hour(number: float) -> datetime:
    """Returns the instant `number` hours after noon."""
    return NOON.replace(microsecond=0) + timedelta(hours=number)


@pytest.fixture(autouse=True)
async def installed(database: Database) -> None:
    await database.clock.set(BEGIN)
    await install(database, BEGIN)


async def marks(database: Database) -> list[datetime]:
    found = (await database.store.list_marks()).marks
    return [mark.at for mark in found if mark.state is MarkState.COMPLETE]


def random_sessions(seed: int, count: int, hours: float) -> list[Session]:
    """Returns sessions of random lengths: live, closed, and lapsed but not closed. Some begin or end at a full hour."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        begins, ends = sorted(
            chance.choice([chance.uniform(-1, hours), float(chance.randrange(int(hours)))]) for _ in range(2)
        )
        started_at = hour(begins) + chance.choice([MICROSECOND, 0 * MICROSECOND])
        ids = {"tenant_object_id": chance.choice(TENANTS), "capacity_id": chance.choice(CAPACITIES)}
        ended_at = max(hour(ends), started_at + MICROSECOND)
        closed, kind = chance.random() < 0.5, chance.randrange(1, 4)
        made.append(session_between(started_at, ended_at, closed=closed, kind=kind, **ids))
    return made


async def cut_eras(database: Database, *eras: tuple[float, Factors]) -> None:
    for number, factors in eras:
        await cut(database, hour(number), factors=factors)


def query(from_at: datetime | None, to_at: datetime | None, **given: Any) -> UsageSumQuery:
    return UsageSumQuery(from_at=from_at, to_at=to_at, **{"factors": FACTORS, **given})


async def check(database: Database, sum_query: UsageSumQuery, after: str | None = None, limit: int = ALL) -> UsageSums:
    """Returns the sum. It must equal the sum without marks over the same span."""
    found = await database.store.sum_usage(sum_query, after, limit)
    same_span = replace(sum_query, from_at=found.from_at, to_at=found.to_at)
    assert found == await sum_without_marks(database.store, same_span, after, limit), sum_query
    return found


# Sums


async def test_sum_usage__is_the_same_with_and_without_marks(database: Database, seed: int) -> None:
    """The usage has three eras, and goes on after the last cut. The spans begin and end at a mark, one microsecond
    before or after a mark, or elsewhere.
    """
    chance = random.Random(seed)
    await insert_sessions(database, random_sessions(seed, 120, 30))
    await cut_eras(database, (7.5, FACTORS), (13.2, OTHER_FACTORS), (26.02, FACTORS))
    await mark_usage(database.store)
    found = await marks(database)
    assert len(found) == 26
    await database.clock.set(hour(28))
    instants = [*found, *(mark + chance.choice([-1, 1]) * MICROSECOND for mark in found), BEGIN, hour(27.7)]
    for group_by, quick in product(GROUPS, [False, True]):
        factors = chance.choice([FACTORS, OTHER_FACTORS])
        begins, ends = sorted(chance.sample(instants, 2))
        for criteria in (
            UsageFilter(),
            UsageFilter(tenant=chance.choice(TENANTS)),
            UsageFilter(tenant=TENANTS[0], capacity=chance.choice(CAPACITIES)),
        ):
            given = {"criteria": criteria, "group_by": group_by, "quick": quick, "factors": factors}
            await check(database, query(begins, ends, **given))
            await check(database, query(begins, None, **given))
        scoped = query(begins, ends, group_by=group_by, scope=Scope(TENANTS[1]), factors=factors)
        assert (await check(database, scoped)).from_at == begins


async def test_sum_usage__returns_groups_of_marks_in_pages(database: Database) -> None:
    await insert_sessions(database, random_sessions(3, 60, 9))
    await cut(database, hour(9.5))
    await mark_usage(database.store)
    whole = await check(database, query(hour(2.5), hour(8.5), group_by=GroupBy.CAPACITY))
    assert len(whole.groups) == len(CAPACITIES)
    pages: list[UsageGroup] = []
    while page := (
        await check(
            database, query(hour(2.5), hour(8.5), group_by=GroupBy.CAPACITY), pages[-1].key if pages else None, 3
        )
    ).groups:
        pages += page
    assert pages == whole.groups


async def test_sum_usage__leaves_out_groups_without_sessions_in_span(database: Database) -> None:
    """The marks of later hours still have the sums of a session that has ended."""
    await insert_sessions(database, [session_between(hour(0.5), hour(1.5))])
    await cut(database, hour(6.5))
    await mark_usage(database.store)
    assert len((await check(database, query(hour(1), hour(6), group_by=GroupBy.TENANT))).groups) == 1
    assert (await check(database, query(hour(2), hour(6), group_by=GroupBy.TENANT))).groups == []
    assert (await check(database, query(hour(2), hour(6)))).groups == [UsageGroup(None, 0, 0)]


async def test_sum_usage__counts_session_that_ended_at_a_mark(database: Database) -> None:
    await insert_sessions(database, [session_between(hour(0.5), hour(2)), session_between(hour(2), hour(3))])
    await cut(database, hour(6.5))
    await mark_usage(database.store)
    counts = [(await check(database, query(*span))).groups[0].sessions for span in pairwise(map(hour, range(1, 5)))]
    assert counts == [1, 1, 0]


async def test_sum_usage__quick_sum_begins_and_ends_at_marks_if_the_rest_has_many_sessions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest: the parts of the span before its first mark and after its last mark."""
    await insert_sessions(database, [session_between(hour(0.5), hour(99), closed=False) for _ in range(3)])
    await cut(database, hour(9.5))
    await mark_usage(database.store)
    await database.clock.set(hour(9.6))
    for most, quick, span in (
        (3, True, (hour(1.5), hour(9.6))),
        (2, True, (hour(2), hour(9))),
        (2, False, (hour(1.5), hour(9.6))),
    ):
        monkeypatch.setattr(EDGE, most)
        found = await check(database, query(hour(1.5), None, quick=quick, group_by=GroupBy.KIND))
        assert (found.from_at, found.to_at) == span, most
        assert [group.sessions for group in found.groups] == [3]
    short = await check(database, query(hour(8.7), None, quick=True))
    assert (short.from_at, short.to_at) == (hour(8), hour(9)), "the last whole hour"
    between = await check(database, query(hour(8.3), hour(8.7), quick=True))
    assert (between.from_at, between.to_at) == (hour(8.3), hour(8.7))
    of_users = await check(database, query(hour(1.5), None, quick=True, group_by=GroupBy.USER))
    assert (of_users.from_at, of_users.to_at) == (hour(1.5), hour(9.6))


async def test_sum_usage__quick_sum_is_complete_without_marks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new installation has no marks in its first hour."""
    monkeypatch.setattr(EDGE, 0)
    await insert_sessions(database, [session_between(BEGIN, hour(9), closed=False)])
    await database.clock.set(hour(0.7))
    found = await check(database, query(None, None, quick=True))
    assert (found.to_at, found.groups[0].sessions) == (hour(0.7), 1)


async def test_sum_usage__reads_ranges_of_users_until_page_is_full(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most users have no session in the span. Together, the pages have the same groups as one sum over all users."""
    made = [session_between(hour(1), hour(1.1 + number % 7), closed=bool(number % 3)) for number in range(40)]
    await insert_sessions(database, made)
    await cut(database, hour(9.5))
    sum_query = query(hour(5), hour(9), group_by=GroupBy.USER)
    whole = await database.store.sum_usage(sum_query, None, ALL)
    assert len(whole.groups) == 16
    monkeypatch.setattr(EDGE, 0)
    for entries, rounds, limit in ((1, 1, 4), (1, 4, 4), (3, 4, 1), (3, 1, 99), (50, 4, 4)):
        monkeypatch.setattr("tenure.store.reads.usage_sums.USER_ENTRIES_MIN", entries)
        monkeypatch.setattr("tenure.store.reads.usage_sums.USER_ROUNDS", rounds)
        pages: list[UsageGroup] = []
        after = None
        while page := (await database.store.sum_usage(sum_query, after, limit)).groups:
            assert len(page) <= limit
            pages += page
            after = page[-1].key
        assert pages == whole.groups, (entries, rounds, limit)


async def test_sum_usage__retries_when_mark_was_deleted_during_sum(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await insert_sessions(database, [session_between(hour(0.5), hour(9))])
    await cut(database, hour(9.5))
    await mark_usage(database.store)
    pairs = iter([(hour(1), hour(9)), (hour(2), hour(9)), None, (hour(2), hour(9))])
    monkeypatch.setattr("tenure.store.reads.usage_sums._marks_in", lambda *_: next(pairs))
    found = await database.store.sum_usage(query(hour(1), hour(9)), None, ALL)
    assert found == await sum_without_marks(database.store, query(hour(1), hour(9)), None, ALL)
    assert list(pairs) == [(hour(2), hour(9))]


# Marks


async def test_list_marks__returns_marks_with_last_cut_and_begin(database: Database) -> None:
    found = await database.store.list_marks()
    assert (found.last_cut_at, found.begins_at, found.marks) == (BEGIN, BEGIN, [])
    fence = await marker_fence(database.store)
    made = [Mark(hour(2), 1, MarkState.SKIPPED), Mark(hour(1), 1, MarkState.INCOMPLETE)]
    for mark in made:
        await database.store.save_mark(fence, mark, [])
    await cut(database, hour(3))
    found = await database.store.list_marks()
    assert (found.last_cut_at, found.begins_at, found.marks) == (hour(3), BEGIN, made[::-1])


async def test_sum_mark__returns_rows_with_usage_and_counts_of_started_and_live_sessions(database: Database) -> None:
    ids = {"tenant_object_id": TENANTS[0], "capacity_id": CAPACITIES[0]}
    spans = [(0.5, 1.5), (0.5, 3), (1.5, 2), (1.5, 1.75), (2, 3), (0.5, 1)]
    await insert_sessions(
        database,
        [session_between(hour(begins), hour(ends), closed=bool(begins % 1), **ids) for begins, ends in spans],
    )
    await cut_eras(database, (1.25, FACTORS), (4, (2_000_000, 2, 3)))
    first = (2 * 15 + 0) * 60 * 10**6 // 2_592_000
    second = (15 + 45 + 30 + 15) * 60 * 2 * 10**6 // 2_592_000
    (sums,) = await database.store.sum_mark(hour(1), hour(2), 9) or []
    assert sums[:3] == (TENANTS[0], CAPACITIES[0], 1)
    assert (sums.started, sums.live) == (2, 1)
    assert abs(sums.usage_millionths - first - second) < 9
    whole = await sum_without_marks(database.store, query(hour(1), hour(2)), None, 1)
    assert sums.usage_millionths == whole.groups[0].usage_millionths


async def test_sum_mark__returns_none_if_there_are_too_many_rows(database: Database) -> None:
    await insert_sessions(database, [session_between(hour(0.5), hour(9)) for _ in range(3)])
    await cut(database, hour(2))
    assert len(await database.store.sum_mark(hour(1), hour(2), 3) or []) == 3
    assert await database.store.sum_mark(hour(1), hour(2), 2) is None


async def test_sum_mark__is_the_same_when_eras_need_several_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await insert_sessions(database, random_sessions(5, 40, 4))
    for number in range(8):
        await cut(database, hour(1 + number / 8), factors=(10**9 + number, 5, 6))
    await cut(database, hour(2.1))
    whole = await database.store.sum_mark(hour(1), hour(2), ALL)
    monkeypatch.setattr("tenure.store.reads.usage_sums.SPANS_MAX", 3)
    assert sorted(await database.store.sum_mark(hour(1), hour(2), ALL) or []) == sorted(whole or [])
    assert whole


ROWS = [MarkSums(tenant, some_id(), 1 + number % 3, number, 2, 3) for number, tenant in enumerate(TENANTS)]


async def test_save_mark__keeps_rows_that_were_saved_before(database: Database) -> None:
    """The first call stands for a run that was interrupted, or for a call whose answer was lost."""
    fence = await marker_fence(database.store)
    mark = Mark(hour(1), 1, MarkState.INCOMPLETE)
    await database.store.save_mark(fence, mark, ROWS[:2])
    await database.store.save_mark(fence, mark, ROWS[1:])
    assert sorted(await database.store.read_mark(hour(1))) == sorted(ROWS)
    complete = replace(mark, state=MarkState.COMPLETE)
    for _ in range(2):
        await database.store.save_mark(fence, complete, [])
    assert (await database.store.list_marks()).marks == [complete]


async def test_save_mark__does_not_change_complete_mark(database: Database) -> None:
    fence = await marker_fence(database.store)
    complete = Mark(hour(1), 1, MarkState.COMPLETE)
    await database.store.save_mark(fence, complete, ROWS[:1])
    await database.store.save_mark(fence, Mark(hour(1), 2, MarkState.INCOMPLETE), ROWS)
    assert (await database.store.list_marks()).marks == [complete]
    assert await database.store.read_mark(hour(1)) == ROWS[:1]


async def test_read_mark__returns_rows_of_this_mark_only(database: Database) -> None:
    fence = await marker_fence(database.store)
    for number, row in enumerate(ROWS):
        await database.store.save_mark(fence, Mark(hour(number), 1, MarkState.COMPLETE), [row])
    assert await database.store.read_mark(hour(1)) == [ROWS[1]]
    assert await database.store.read_mark(hour(9)) == []


async def test_delete_mark__deletes_rows_in_batches_and_then_the_mark(database: Database) -> None:
    fence = await marker_fence(database.store)
    for number in (1, 2):
        await database.store.save_mark(fence, Mark(hour(number), 1, MarkState.COMPLETE), ROWS)
    assert await database.store.delete_mark(fence, hour(1), 2) == 2
    assert (await database.store.list_marks()).marks[0] == Mark(hour(1), 1, MarkState.INCOMPLETE)
    assert await database.store.delete_mark(fence, hour(1), 2) == 1
    assert await marks(database) == [hour(2)]
    assert len(await read_table(database, "usage_mark_sums")) == len(ROWS)
    assert await database.store.delete_mark(fence, hour(1), 2) == 0


# The job


async def test_job_mark_usage_writes_mark_of_each_hour_before_last_cut_once(database: Database) -> None:
    await insert_sessions(database, random_sessions(1, 20, 5))
    assert await mark_usage(database.store) == {}
    await cut(database, hour(3))
    assert await mark_usage(database.store) == {"marks": 2}
    rows = await read_table(database, "usage_mark_sums")
    assert await mark_usage(database.store) == {}
    assert await read_table(database, "usage_mark_sums") == rows
    await cut(database, hour(3) + timedelta(minutes=1))
    assert await mark_usage(database.store) == {"marks": 1}
    assert await marks(database) == [hour(1), hour(2), hour(3)]


async def test_job_mark_usage_keeps_midnights_after_three_days(database: Database) -> None:
    """After ten days without a run, the job writes only the marks that it keeps."""
    await insert_sessions(database, random_sessions(1, 20, 240))
    await cut(database, hour(4.5))
    await mark_usage(database.store)
    await cut(database, hour(240.5))
    assert await mark_usage(database.store) == {"marks": 7 + 72}
    found = await marks(database)
    assert found == [*(hour(12 + 24 * day) for day in range(7)), *(hour(169 + each) for each in range(72))]
    await check(database, query(hour(12), hour(240), group_by=GroupBy.CAPACITY))
    assert {row["marked_at"] for row in await read_table(database, "usage_mark_sums")} == set(found)


async def test_job_mark_usage_deletes_marks_of_pruned_usage(database: Database) -> None:
    await insert_sessions(database, random_sessions(1, 20, 240))
    await cut(database, hour(240.5))
    await mark_usage(database.store)
    await install(database, hour(100))
    await cut(database, hour(241.5))
    assert await mark_usage(database.store) == {"marks": 1}
    assert (await marks(database))[0] == hour(108)
    await check(database, query(hour(0), hour(241), group_by=GroupBy.TENANT))


async def test_job_mark_usage_continues_after_interruption_at_each_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the interrupted writes were executed, others were not."""
    monkeypatch.setattr("tenure.usage.mark.MARK_BATCH_MAX", 2)
    await insert_sessions(database, random_sessions(2, 30, 5))
    await cut(database, hour(3.5))
    save, writes = database.store.save_mark, 0

    async def interrupted(*arguments: Any) -> None:
        nonlocal writes
        writes += 1
        if writes % 3:
            await save(*arguments)
        if writes % 2 or writes % 3 == 0:
            raise LeaseLost("mark-usage", "marker", 1)

    monkeypatch.setattr(database.store, "save_mark", interrupted)
    for _ in range(99):
        try:
            await mark_usage(database.store)
            break
        except LeaseLost:
            pass
    monkeypatch.undo()
    assert await mark_usage(database.store) in ({}, {"marks": 1}, {"marks": 2}, {"marks": 3})
    assert await marks(database) == [hour(1), hour(2), hour(3)]
    for group_by in GROUPS:
        await check(database, query(hour(1), hour(3), group_by=group_by))


async def test_job_mark_usage_begins_new_series_if_continued_mark_has_too_many_rows(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KEYS, 3)
    old = [session_between(hour(0.5), hour(1.5)) for _ in range(2)]
    new = [session_between(hour(2.5), hour(9), closed=False) for _ in range(2)]
    await insert_sessions(database, [*old, *new])
    await cut(database, hour(5.5))
    await mark_usage(database.store)
    assert [mark.series for mark in (await database.store.list_marks()).marks] == [1, 1, 2, 2, 2]
    spans: Sequence[tuple[float, float]] = [(1, 2), (1, 5), (2, 3), (3, 5), (0.5, 4.5)]
    for span in spans:
        await check(database, query(*map(hour, span), group_by=GroupBy.CAPACITY))


async def test_job_mark_usage_skips_mark_if_usage_since_last_mark_has_too_many_rows(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KEYS, 2)
    await insert_sessions(database, [session_between(hour(0.5), hour(9))])
    await insert_sessions(database, [session_between(hour(1.2), hour(1.7)) for _ in range(2)])
    await cut(database, hour(5.5))
    telemetry, reported = Telemetry(), list[Any]()
    telemetry.subscribe(UsageMarkSkipped, reported.append)
    await mark_usage(database.store, telemetry)
    states = [(mark.at, mark.state) for mark in (await database.store.list_marks()).marks]
    assert states[:3] == [
        (hour(1), MarkState.COMPLETE),
        (hour(2), MarkState.SKIPPED),
        (hour(3), MarkState.COMPLETE),
    ]
    assert reported == [UsageMarkSkipped(hour(2), 2)]
    for span in ((1, 5), (1, 2), (2, 5), (3, 5)):
        await check(database, query(*map(hour, span), group_by=GroupBy.TENANT))
