"""The database computes the same sums of usage as `domain/meter.py`, to the last digit, for any span and grouping."""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tenure.domain.meter import PERIOD_MICROSECONDS
from tenure.domain.sessions import Session
from tenure.domain.usage import Era, Factors, GroupBy, UsageFilter, UsageGroup, UsageSumQuery, UsageSums
from tests.support.databases import Database
from tests.support.open_requests import NOON, some_id
from tests.support.sessions import open_new_session
from tests.support.usage import (
    ALL,
    FACTORS,
    MICROSECOND,
    billable_interval,
    billable_intervals,
    chunk_all,
    cut,
    divide,
    emitter_fence,
    insert_sessions,
    install,
    minute,
    rules,
    session_between,
    sum_of,
    uncut_window,
    usage_of,
    windows,
)

LONG_AGO = datetime(1970, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
HALF = 1_296_000
"""The microseconds after which a session has a usage of half a millionth, if the factor of its kind is 1.0."""
FACTOR_MAX = 1_000_000_000_000
"""The largest factor, 1000000, in millionths."""
LARGE = 999_999_999_999
"""The factor 999999.999999 in millionths, the largest one below FACTOR_MAX."""


pytestmark = pytest.mark.usefixtures("installed")


# Digits


def spread(seed: int, count: int) -> list[Session]:
    """Sessions of every kind, from a microsecond to over seventy years long. With a factor of 1.0, the usage of many of
    them ends in exactly half a millionth before it is rounded.
    """
    chance = random.Random(seed)
    made = []
    for number in range(count):
        starts = chance.randrange(70 * 365 * 86_400) * 1_000_000 + chance.choice([0, chance.randrange(1_000_000)])
        length = chance.choice(
            [
                1,
                HALF * chance.randrange(1, 100),
                PERIOD_MICROSECONDS * chance.randrange(1, 900),
                chance.randrange(1, 10**15),
            ]
        )
        started_at = LONG_AGO + timedelta(microseconds=starts)
        ended_at = started_at + timedelta(microseconds=length)
        made.append(session_between(started_at, ended_at, closed=bool(number % 2), kind=1 + number % 3))
    return made


ALL_FACTORS: Sequence[Factors] = [
    FACTORS,
    (0, 1, FACTOR_MAX),
    (LARGE, LARGE - 1, FACTOR_MAX - 500_000),
    (333_333_333_333, 1_500_000, 999_999),
]


@pytest.mark.parametrize("factors", ALL_FACTORS)
async def test_divide_window__sums_match_the_meter(database: Database, seed: int, factors: Factors) -> None:
    """Four adjacent windows of one era. Their lengths are between 31 days and 46 years."""
    made = spread(seed, 300)
    await insert_sessions(database, made)
    edges = [LONG_AGO + timedelta(days=days, microseconds=days * HALF) for days in (0, 900, 9_000, 9_031, 26_000)]
    for started_at, ended_at in pairwise(edges):
        window = uncut_window(started_at, ended_at, Era(LONG_AGO, factors))
        (chunk_bounds,) = await divide(database, window) or [None]
        assert chunk_bounds is not None, f"no session was live from {started_at} to {ended_at}, seed {seed}"
        assert chunk_bounds.usage_millionths == sum_of(billable_intervals(made, window), factors), f"seed {seed}"


@pytest.mark.parametrize("factors", ALL_FACTORS)
async def test_sum_usage__matches_the_meter_for_each_session(database: Database, seed: int, factors: Factors) -> None:
    """Grouped by session, over a span whose bounds are not cuts."""
    await install(database, LONG_AGO)
    made = spread(seed, 300)
    await insert_sessions(database, made)
    span = (LONG_AGO + timedelta(days=4_000, microseconds=7), LONG_AGO + timedelta(days=24_000, microseconds=HALF))
    sums = await sum_usage(database, *span, group_by=GroupBy.SESSION, factors=factors)
    window = uncut_window(*span, Era(LONG_AGO, factors))
    expected = {interval.session_id: (usage_of(interval, factors), 1) for interval in billable_intervals(made, window)}
    assert {group.key: (group.usage_millionths, group.sessions) for group in sums.groups} == expected, f"seed {seed}"
    assert len(expected) > 100


async def test_sum_usage__counts_sessions_of_any_duration(database: Database) -> None:
    """On SQLite and PostgreSQL, one search finds the closed sessions whose start and end are at most 31 days outside
    the span. Another search finds the other closed sessions, which all lasted longer than 31 days.
    """
    await install(database, LONG_AGO)
    tenant = some_id()
    days = timedelta(days=1)
    durations = [days, *(31 * days + off * MICROSECOND for off in (-1, 0, 1)), 100 * days, 900 * days]
    made = [
        session_between(NOON - before, NOON - before + duration, tenant_object_id=tenant)
        for duration in durations
        for before in (duration - MICROSECOND, duration / 2, timedelta(), -3 * days)
    ]
    await insert_sessions(database, made)
    await database.clock.set(NOON + 1_000 * days)
    for from_at, to_at in ((NOON, NOON + days), (NOON - 2 * days, NOON), (NOON - 900 * days, NOON + 900 * days)):
        expected = sum(from_at < (session.closed_at or NOON) and session.started_at < to_at for session in made)
        assert (await total(database, from_at, to_at)).sessions == expected
        assert (await total(database, from_at, to_at, criteria=UsageFilter(tenant=tenant))).sessions == expected


@pytest.mark.parametrize("factor", [1, 500_000, 1_000_000, 3_000_000, LARGE, FACTOR_MAX])
async def test_sum_usage__rounds_half_to_even(database: Database, factor: int) -> None:
    """Some sessions last HALF * n microseconds: with a factor of 1.0, their usage before rounding is n / 2 millionths.
    Others are a microsecond shorter or longer.
    """
    lengths = [max(1, HALF * number + off) for number in range(12) for off in (-1, 0, 1)]
    lengths += [PERIOD_MICROSECONDS * number + HALF * 3 for number in (1, 2, 11)]
    made = [session_between(NOON, NOON + length * MICROSECOND) for length in lengths]
    await insert_sessions(database, made)
    await database.clock.set(NOON + timedelta(days=999))
    sums = await sum_usage(database, NOON, NOON + timedelta(days=999), group_by=GroupBy.SESSION, factors=(factor, 0, 0))
    found = {group.key: group.usage_millionths for group in sums.groups}
    assert [found[session.session_id] for session in made] == [
        round(Fraction(factor * length, PERIOD_MICROSECONDS)) for length in lengths
    ]


# Any span


async def sum_usage(database: Database, from_at: datetime | None, to_at: datetime | None, **given: Any) -> UsageSums:
    after, limit = given.pop("after", None), given.pop("limit", ALL)
    values: dict[str, Any] = {"factors": FACTORS, **given}
    return await database.store.sum_usage(UsageSumQuery(from_at=from_at, to_at=to_at, **values), after, limit)


async def total(database: Database, from_at: datetime, to_at: datetime, **given: Any) -> UsageGroup:
    (group,) = (await sum_usage(database, from_at, to_at, **given)).groups
    return group


OTHER_FACTORS = (7_000_001, LARGE, 0)


async def three_eras(database: Database) -> Sequence[Session]:
    """Inserts sessions, some of them not closed, and cuts six windows of a minute each. The third and the fourth window
    have other factors than the rest.
    """
    made = [
        session_between(
            minute(0, 3 + 13 * number % 300),
            minute(0, 10 + (13 * number % 300) + 37 * number % 200),
            closed=number % 3 > 0,
            kind=1 + number % 3,
            tenant_object_id=TENANTS[number % 2],
            user_object_id=some_id(),
            capacity_id=CAPACITIES[number % 5],
        )
        for number in range(40)
    ]
    await insert_sessions(database, made)
    for number, factors in enumerate((FACTORS, FACTORS, OTHER_FACTORS, OTHER_FACTORS, FACTORS, FACTORS), start=1):
        await cut(database, minute(number), factors=factors)
    return made


TENANTS = [some_id() for _ in range(2)]
CAPACITIES = [some_id() for _ in range(5)]


@pytest.mark.parametrize(("first", "last"), [(0, 6), (0, 2), (2, 4), (1, 5), (3, 4), (4, 6)])
async def test_sum_usage__equals_sum_of_windows_between_cuts(database: Database, first: int, last: int) -> None:
    made = await three_eras(database)
    await chunk_all(database)
    found = (await windows(database))[first:last]
    group = await total(database, found[0].started_at, found[-1].ended_at)
    assert group.usage_millionths == sum(window.usage_millionths or 0 for window in found) > 0
    session_ids = {interval.session_id for window in found for interval in billable_intervals(made, window)}
    assert group.sessions == len(session_ids)


async def test_sum_usage__clips_usage_to_requested_span(database: Database) -> None:
    """The span begins within the first of three eras and ends within the last."""
    made = await three_eras(database)
    span = (minute(1, 17.5), minute(5, 20.25))
    group = await total(database, *span)
    eras = [Era(NOON, FACTORS), Era(minute(2), OTHER_FACTORS), Era(minute(4), FACTORS)]
    parts = zip(eras, pairwise([span[0], minute(2), minute(4), span[1]]), strict=True)
    of_eras = [(era, billable_intervals(made, uncut_window(*part, era))) for era, part in parts]
    assert group.usage_millionths == sum(sum_of(intervals, era.factors) for era, intervals in of_eras)
    assert group.sessions == len({interval.session_id for _era, intervals in of_eras for interval in intervals})


async def test_sum_usage__returns_last_cut_as_final_until(database: Database) -> None:
    await open_new_session(database)
    assert (await sum_usage(database, NOON, minute(9))).final_until == NOON
    await cut(database, minute(3, 7))
    assert (await sum_usage(database, NOON, minute(9))).final_until == minute(3)


async def test_sum_usage__uses_given_factors_after_last_cut(database: Database) -> None:
    await insert_sessions(database, [session_between(NOON, minute(9))])
    await cut(database, minute(2))
    await database.clock.set(minute(4))
    same = await total(database, minute(1), minute(3))
    changed = await total(database, minute(1), minute(3), factors=(LARGE, 2, 3))
    era = Era(NOON, FACTORS)
    assert same.usage_millionths == _used(minute(1), minute(3), era)
    assert changed.usage_millionths == _used(minute(1), minute(2), era) + _used(
        minute(2), minute(3), Era(minute(2), (LARGE, 2, 3))
    )
    assert (same.sessions, changed.sessions) == (1, 1)


def _used(from_at: datetime, to_at: datetime, era: Era) -> int:
    """The usage, between these two instants, of a session of kind 1 that is live from NOON to minute nine."""
    interval = billable_interval(session_between(NOON, minute(9)), uncut_window(from_at, to_at, era))
    assert interval is not None
    return usage_of(interval, era.factors)


async def test_sum_usage__ignores_usage_before_installation(database: Database) -> None:
    await insert_sessions(database, [session_between(NOON - timedelta(days=3), minute(1))])
    await database.clock.set(minute(9))
    assert await total(database, NOON - timedelta(days=9), NOON) == UsageGroup(None, 0, 0)
    whole = await total(database, NOON - timedelta(days=9), minute(9))
    assert whole == UsageGroup(None, _used(NOON, minute(1), Era(NOON, FACTORS)), 1)


async def test_sum_usage__does_not_count_future_usage(database: Database) -> None:
    await insert_sessions(database, [session_between(NOON, minute(9), closed=False)])
    await database.clock.set(minute(3))
    sums = await sum_usage(database, NOON, minute(9))
    assert (sums.from_at, sums.to_at) == (NOON, minute(3))
    assert sums.groups == [UsageGroup(None, _used(NOON, minute(3), Era(NOON, FACTORS)), 1)]


async def test_sum_usage__includes_cut_windows_while_clock_is_behind_last_cut(database: Database) -> None:
    await insert_sessions(database, [session_between(NOON, minute(9), closed=False)])
    await cut(database, minute(5))
    await database.clock.set(minute(3))
    sums = await sum_usage(database, NOON, minute(9))
    assert (sums.to_at, sums.final_until) == (minute(5), minute(5))
    assert sums.groups == [UsageGroup(None, _used(NOON, minute(5), Era(NOON, FACTORS)), 1)]


async def test_sum_usage__defaults_to_last_thirty_days(database: Database) -> None:
    await insert_sessions(database, [session_between(NOON, minute(9), closed=False)])
    await database.clock.set(minute(3))
    sums = await sum_usage(database, None, None)
    assert (sums.from_at, sums.to_at) == (minute(3) - timedelta(days=30), minute(3))
    assert sums.groups == [UsageGroup(None, _used(NOON, minute(3), Era(NOON, FACTORS)), 1)]
    assert (await sum_usage(database, None, minute(2))).from_at == minute(2) - timedelta(days=30)


@pytest.mark.parametrize("cuts", [0, 1])
async def test_sum_usage__returns_zero_for_span_without_live_sessions(database: Database, cuts: int) -> None:
    await insert_sessions(database, [session_between(minute(1), minute(2))])
    if cuts:
        await cut(database, minute(4))
    for span in ((NOON, minute(1)), (minute(2), minute(3)), (minute(3), minute(3))):
        assert await total(database, *span) == UsageGroup(None, 0, 0), span
        assert (await sum_usage(database, *span, group_by=GroupBy.TENANT)).groups == []


async def test_sum_usage__counts_lapsed_session_until_its_deadline(database: Database) -> None:
    session = await open_new_session(database, lease_microseconds=(minute(2, 30) - NOON) // MICROSECOND)
    await cut(database, minute(5))
    expected = UsageGroup(None, _used(NOON, minute(2, 30), Era(NOON, FACTORS)), 1)
    assert await total(database, NOON, minute(5)) == expected
    assert await total(database, minute(2, 30), minute(5)) == UsageGroup(None, 0, 0)
    assert session.closed_at is None


# Groups

KEYS: Mapping[GroupBy, Callable[[Session], str]] = {
    GroupBy.TENANT: lambda session: session.tenant_object_id,
    GroupBy.CAPACITY: lambda session: session.capacity_id,
    GroupBy.USER: lambda session: session.user_object_id,
    GroupBy.KIND: lambda session: str(session.kind),
    GroupBy.SESSION: lambda session: session.session_id,
}


async def grouped(database: Database, made: Sequence[Session], key: Callable[[Session], str]) -> list[UsageGroup]:
    """The expected group of each key that `key` returns: its usage in all windows, and its number of sessions there."""
    sessions = {session.session_id: session for session in made}
    usage: defaultdict[str, int] = defaultdict(int)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for window in await windows(database):
        for interval in billable_intervals(made, window):
            name = key(sessions[interval.session_id])
            usage[name] += usage_of(interval, window.era.factors)
            found[name].add(interval.session_id)
    return [UsageGroup(name, usage[name], len(found[name])) for name in usage]


def test_keys_contain_every_group_by() -> None:
    assert set(KEYS) == set(GroupBy)


def in_order(groups: Sequence[UsageGroup]) -> list[UsageGroup]:
    """Sorts the groups by their keys as text, because SQL Server returns ids in another order."""
    return sorted(groups, key=lambda group: str(group.key))


@pytest.mark.parametrize("group_by", GroupBy)
async def test_sum_usage__groups_by_each_key(database: Database, group_by: GroupBy) -> None:
    made = await three_eras(database)
    sums = await sum_usage(database, NOON, minute(6), group_by=group_by)
    assert in_order(sums.groups) == in_order(await grouped(database, made, KEYS[group_by]))


@pytest.mark.parametrize("group_by", GroupBy)
async def test_sum_usage__returns_groups_in_pages(database: Database, group_by: GroupBy) -> None:
    await three_eras(database)
    whole = (await sum_usage(database, NOON, minute(6), group_by=group_by)).groups
    size = 2 if len(whole) < 9 else 9
    pages: list[UsageGroup] = []
    after = None
    while page := (await sum_usage(database, NOON, minute(6), group_by=group_by, after=after, limit=size)).groups:
        assert len(page) <= size
        pages += page
        after = page[-1].key
    assert pages == whole
    assert len(whole) > 1


@pytest.mark.parametrize("name", ["tenant", "capacity", "user"])
async def test_sum_usage__counts_only_sessions_that_match_filter(database: Database, name: str) -> None:
    made = await three_eras(database)
    key = KEYS[GroupBy(name)]
    wanted = key(made[7])
    (expected,) = await grouped(database, [session for session in made if key(session) == wanted], key)
    group = await total(database, NOON, minute(6), criteria=UsageFilter(**{name: wanted}))
    assert group == UsageGroup(None, expected.usage_millionths, expected.sessions)


async def test_sum_usage__groups_filtered_sessions(database: Database) -> None:
    made = await three_eras(database)
    some = [each for each in made if (each.tenant_object_id, each.capacity_id) == (TENANTS[1], CAPACITIES[3])]
    criteria = UsageFilter(tenant=TENANTS[1], capacity=CAPACITIES[3])
    sums = await sum_usage(database, NOON, minute(6), criteria=criteria, group_by=GroupBy.KIND)
    assert in_order(sums.groups) == in_order(await grouped(database, some, KEYS[GroupBy.KIND]))
    assert len(sums.groups) > 1


async def test_sum_usage__returns_zero_for_unknown_filter_value(database: Database) -> None:
    await three_eras(database)
    for name in ("tenant", "capacity", "user"):
        criteria = UsageFilter(**{name: some_id()})
        assert await total(database, NOON, minute(6), criteria=criteria) == UsageGroup(None, 0, 0)


@pytest.mark.parametrize("group_by", [None, GroupBy.USER])
async def test_sum_usage__returns_same_sums_when_eras_need_several_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch, group_by: GroupBy | None
) -> None:
    """A statement sums at most SPANS_MAX spans, one per era. With more eras, a group is the sum of several results."""
    await insert_sessions(database, [session_between(minute(0, number), minute(20)) for number in range(6)])
    fence = await emitter_fence(database.store)
    for number in range(1, 10):
        await database.clock.set(minute(number))
        await database.store.cut_usage(fence, rules(factors=(number * LARGE, 1, 1)), 1)
    sum_query = UsageSumQuery(from_at=minute(0, 3), to_at=minute(9), group_by=group_by, factors=(9 * LARGE, 1, 1))
    together = await database.store.sum_usage(sum_query, None, 4)
    monkeypatch.setattr("tenure.store.reads.usage_sums.SPANS_MAX", 2)
    assert await database.store.sum_usage(sum_query, None, 4) == together
    assert together.groups[0].usage_millionths > 0
