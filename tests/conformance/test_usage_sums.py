"""Usage added up by the database: the same as the meter's to the last digit, for any span and by any key."""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tenure.meter import PERIOD_MICROSECONDS
from tenure.model.sessions import Session
from tenure.model.usage import Era, Factors, GroupBy, UsageFilter, UsageGroup, UsageQuestion, UsageSums
from tests.support.databases import Database
from tests.support.sessions import opened
from tests.support.usage import (
    ALL,
    FACTORS,
    MICROSECOND,
    chunk_all,
    cut,
    divide,
    emitter,
    install,
    life_of,
    lived,
    lives_of,
    minute,
    put_sessions,
    rules,
    some_window,
    sum_of,
    used,
    windows,
)
from tests.support.wishes import NOON, some_id

LONG_AGO = datetime(1970, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
HALF = 1_296_000
"""Microseconds that a session of factor 1 lives for half a millionth."""
FACTOR_MAX = 1_000_000_000_000
LARGE = 999_999_999_999
"""999999.999999, in millionths: as many digits as there can be."""


pytestmark = pytest.mark.usefixtures("installed")


# Digits


def spread(seed: int, count: int) -> list[Session]:
    """Of every kind and of every length, from a microsecond to seventy years; many such that amounts come to a half."""
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
        made.append(lived(started_at, ended_at, closed=bool(number % 2), kind=1 + number % 3))
    return made


ALL_FACTORS: Sequence[Factors] = [
    FACTORS,
    (0, 1, FACTOR_MAX),
    (LARGE, LARGE - 1, FACTOR_MAX - 500_000),
    (333_333_333_333, 1_500_000, 999_999),
]


@pytest.mark.parametrize("factors", ALL_FACTORS)
async def test_divide_window__adds_up_as_the_meter_does(database: Database, seed: int, factors: Factors) -> None:
    """Windows of any length, in eras that began long ago."""
    made = spread(seed, 300)
    await put_sessions(database, made)
    edges = [LONG_AGO + timedelta(days=days, microseconds=days * HALF) for days in (0, 900, 9_000, 9_031, 26_000)]
    for started_at, ended_at in pairwise(edges):
        window = some_window(started_at, ended_at, Era(LONG_AGO, factors))
        (piece,) = await divide(database, window) or [None]
        assert piece is not None, f"nobody lived from {started_at} to {ended_at}, seed {seed}"
        assert piece.usage_millionths == sum_of(lives_of(made, window), factors), f"seed {seed}"


@pytest.mark.parametrize("factors", ALL_FACTORS)
async def test_sum_usage__adds_up_as_the_meter_does(database: Database, seed: int, factors: Factors) -> None:
    """Each session by itself, and from and to instants that are no cuts."""
    await install(database, LONG_AGO)
    made = spread(seed, 300)
    await put_sessions(database, made)
    span = (LONG_AGO + timedelta(days=4_000, microseconds=7), LONG_AGO + timedelta(days=24_000, microseconds=HALF))
    sums = await ask(database, *span, group_by=GroupBy.SESSION, factors=factors)
    window = some_window(*span, Era(LONG_AGO, factors))
    expected = {life.session_id: (used(life, factors), 1) for life in lives_of(made, window)}
    assert {group.key: (group.usage_millionths, group.sessions) for group in sums.groups} == expected, f"seed {seed}"
    assert len(expected) > 100


@pytest.mark.parametrize("factor", [1, 500_000, 1_000_000, 3_000_000, LARGE, FACTOR_MAX])
async def test_sum_usage__rounds_a_half_to_what_is_even(database: Database, factor: int) -> None:
    """Of lengths at which the amount is a half, or a microsecond more or less."""
    lengths = [max(1, HALF * number + off) for number in range(12) for off in (-1, 0, 1)]
    lengths += [PERIOD_MICROSECONDS * number + HALF * 3 for number in (1, 2, 11)]
    made = [lived(NOON, NOON + length * MICROSECOND) for length in lengths]
    await put_sessions(database, made)
    await database.clock.set(NOON + timedelta(days=999))
    sums = await ask(database, NOON, NOON + timedelta(days=999), group_by=GroupBy.SESSION, factors=(factor, 0, 0))
    found = {group.key: group.usage_millionths for group in sums.groups}
    assert [found[session.session_id] for session in made] == [
        round(Fraction(factor * length, PERIOD_MICROSECONDS)) for length in lengths
    ]


# Any span


async def ask(database: Database, from_at: datetime | None, to_at: datetime | None, **given: Any) -> UsageSums:
    after, limit = given.pop("after", None), given.pop("limit", ALL)
    values: dict[str, Any] = {"factors": FACTORS, **given}
    return await database.store.sum_usage(UsageQuestion(from_at=from_at, to_at=to_at, **values), after, limit)


async def total(database: Database, from_at: datetime, to_at: datetime, **given: Any) -> UsageGroup:
    (group,) = (await ask(database, from_at, to_at, **given)).groups
    return group


OTHER_FACTORS = (7_000_001, LARGE, 0)


async def three_eras(database: Database) -> Sequence[Session]:
    """Cut every minute for six minutes, with other factors in the third and fourth; some sessions live on."""
    made = [
        lived(
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
    await put_sessions(database, made)
    for number, factors in enumerate((FACTORS, FACTORS, OTHER_FACTORS, OTHER_FACTORS, FACTORS, FACTORS), start=1):
        await cut(database, minute(number), factors=factors)
    return made


TENANTS = [some_id() for _ in range(2)]
CAPACITIES = [some_id() for _ in range(5)]


@pytest.mark.parametrize(("first", "last"), [(0, 6), (0, 2), (2, 4), (1, 5), (3, 4), (4, 6)])
async def test_sum_usage__is_the_sum_of_the_windows_from_one_cut_to_another(
    database: Database, first: int, last: int
) -> None:
    made = await three_eras(database)
    await chunk_all(database)
    found = (await windows(database))[first:last]
    group = await total(database, found[0].started_at, found[-1].ended_at)
    assert group.usage_millionths == sum(window.usage_millionths or 0 for window in found) > 0
    lived_in = {life.session_id for window in found for life in lives_of(made, window)}
    assert group.sessions == len(lived_in)


async def test_sum_usage__is_cut_where_the_span_begins_and_ends(database: Database) -> None:
    """Over three eras, from within the first to within the last."""
    made = await three_eras(database)
    span = (minute(1, 17.5), minute(5, 20.25))
    group = await total(database, *span)
    eras = [Era(NOON, FACTORS), Era(minute(2), OTHER_FACTORS), Era(minute(4), FACTORS)]
    parts = zip(eras, pairwise([span[0], minute(2), minute(4), span[1]]), strict=True)
    of_eras = [(era, lives_of(made, some_window(*part, era))) for era, part in parts]
    assert group.usage_millionths == sum(sum_of(lives, era.factors) for era, lives in of_eras)
    assert group.sessions == len({life.session_id for _era, lives in of_eras for life in lives})


async def test_sum_usage__says_up_to_which_instant_it_is_final(database: Database) -> None:
    await opened(database)
    assert (await ask(database, NOON, minute(9))).final_until == NOON
    await cut(database, minute(3, 7))
    assert (await ask(database, NOON, minute(9))).final_until == minute(3)


async def test_sum_usage__goes_on_beyond_the_last_cut_with_the_factors_of_the_next(database: Database) -> None:
    await put_sessions(database, [lived(NOON, minute(9))])
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
    """By a session of kind 1 that lives from noon on."""
    life = life_of(lived(NOON, minute(9)), some_window(from_at, to_at, era))
    assert life is not None
    return used(life, era.factors)


async def test_sum_usage__knows_nothing_from_before_the_installation(database: Database) -> None:
    await put_sessions(database, [lived(NOON - timedelta(days=3), minute(1))])
    await database.clock.set(minute(9))
    assert await total(database, NOON - timedelta(days=9), NOON) == UsageGroup(None, 0, 0)
    whole = await total(database, NOON - timedelta(days=9), minute(9))
    assert whole == UsageGroup(None, _used(NOON, minute(1), Era(NOON, FACTORS)), 1)


async def test_sum_usage__does_not_say_what_will_be_used(database: Database) -> None:
    await put_sessions(database, [lived(NOON, minute(9), closed=False)])
    await database.clock.set(minute(3))
    sums = await ask(database, NOON, minute(9))
    assert (sums.from_at, sums.to_at) == (NOON, minute(3))
    assert sums.groups == [UsageGroup(None, _used(NOON, minute(3), Era(NOON, FACTORS)), 1)]


async def test_sum_usage__has_what_is_cut_also_while_the_clock_is_behind(database: Database) -> None:
    await put_sessions(database, [lived(NOON, minute(9), closed=False)])
    await cut(database, minute(5))
    await database.clock.set(minute(3))
    sums = await ask(database, NOON, minute(9))
    assert (sums.to_at, sums.final_until) == (minute(5), minute(5))
    assert sums.groups == [UsageGroup(None, _used(NOON, minute(5), Era(NOON, FACTORS)), 1)]


async def test_sum_usage__is_of_the_last_thirty_days_unless_told_otherwise(database: Database) -> None:
    await put_sessions(database, [lived(NOON, minute(9), closed=False)])
    await database.clock.set(minute(3))
    sums = await ask(database, None, None)
    assert (sums.from_at, sums.to_at) == (minute(3) - timedelta(days=30), minute(3))
    assert sums.groups == [UsageGroup(None, _used(NOON, minute(3), Era(NOON, FACTORS)), 1)]
    assert (await ask(database, None, minute(2))).from_at == minute(2) - timedelta(days=30)


@pytest.mark.parametrize("cuts", [0, 1])
async def test_sum_usage__is_nothing_where_nobody_lived(database: Database, cuts: int) -> None:
    await put_sessions(database, [lived(minute(1), minute(2))])
    if cuts:
        await cut(database, minute(4))
    for span in ((NOON, minute(1)), (minute(2), minute(3)), (minute(3), minute(3))):
        assert await total(database, *span) == UsageGroup(None, 0, 0), span
        assert (await ask(database, *span, group_by=GroupBy.TENANT)).groups == []


async def test_sum_usage__takes_one_that_nobody_has_recorded_as_over_for_over(database: Database) -> None:
    session = await opened(database, lease_microseconds=(minute(2, 30) - NOON) // MICROSECOND)
    await cut(database, minute(5))
    expected = UsageGroup(None, _used(NOON, minute(2, 30), Era(NOON, FACTORS)), 1)
    assert await total(database, NOON, minute(5)) == expected
    assert await total(database, minute(2, 30), minute(5)) == UsageGroup(None, 0, 0)
    assert session.closed_at is None


# By key

KEYS: Mapping[GroupBy, Callable[[Session], str]] = {
    GroupBy.TENANT: lambda session: session.tenant_object_id,
    GroupBy.CAPACITY: lambda session: session.capacity_id,
    GroupBy.USER: lambda session: session.user_object_id,
    GroupBy.KIND: lambda session: str(session.kind),
    GroupBy.SESSION: lambda session: session.session_id,
}


async def grouped(database: Database, made: Sequence[Session], key: Callable[[Session], str]) -> list[UsageGroup]:
    """By windows: what a span from cut to cut must come to."""
    sessions = {session.session_id: session for session in made}
    usage: defaultdict[str, int] = defaultdict(int)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for window in await windows(database):
        for life in lives_of(made, window):
            name = key(sessions[life.session_id])
            usage[name] += used(life, window.era.factors)
            found[name].add(life.session_id)
    return [UsageGroup(name, usage[name], len(found[name])) for name in usage]


def test_every_way_to_group_is_tried() -> None:
    assert set(KEYS) == set(GroupBy)


def in_order(groups: Sequence[UsageGroup]) -> list[UsageGroup]:
    """SQL Server has an order of its own for ids."""
    return sorted(groups, key=lambda group: str(group.key))


@pytest.mark.parametrize("group_by", GroupBy)
async def test_sum_usage__groups_by_any_key(database: Database, group_by: GroupBy) -> None:
    made = await three_eras(database)
    sums = await ask(database, NOON, minute(6), group_by=group_by)
    assert in_order(sums.groups) == in_order(await grouped(database, made, KEYS[group_by]))


@pytest.mark.parametrize("group_by", GroupBy)
async def test_sum_usage__tells_groups_page_by_page(database: Database, group_by: GroupBy) -> None:
    await three_eras(database)
    whole = (await ask(database, NOON, minute(6), group_by=group_by)).groups
    size = 2 if len(whole) < 9 else 9
    pages: list[UsageGroup] = []
    after = None
    while page := (await ask(database, NOON, minute(6), group_by=group_by, after=after, limit=size)).groups:
        assert len(page) <= size
        pages += page
        after = page[-1].key
    assert pages == whole
    assert len(whole) > 1


@pytest.mark.parametrize("name", ["tenant", "capacity", "user"])
async def test_sum_usage__counts_only_what_is_asked_for(database: Database, name: str) -> None:
    made = await three_eras(database)
    key = KEYS[GroupBy(name)]
    wanted = key(made[7])
    (expected,) = await grouped(database, [session for session in made if key(session) == wanted], key)
    group = await total(database, NOON, minute(6), criteria=UsageFilter(**{name: wanted}))
    assert group == UsageGroup(None, expected.usage_millionths, expected.sessions)


async def test_sum_usage__groups_what_is_asked_for(database: Database) -> None:
    made = await three_eras(database)
    some = [each for each in made if (each.tenant_object_id, each.capacity_id) == (TENANTS[1], CAPACITIES[3])]
    criteria = UsageFilter(tenant=TENANTS[1], capacity=CAPACITIES[3])
    sums = await ask(database, NOON, minute(6), criteria=criteria, group_by=GroupBy.KIND)
    assert in_order(sums.groups) == in_order(await grouped(database, some, KEYS[GroupBy.KIND]))
    assert len(sums.groups) > 1


async def test_sum_usage__is_nothing_for_somebody_unknown(database: Database) -> None:
    await three_eras(database)
    for name in ("tenant", "capacity", "user"):
        criteria = UsageFilter(**{name: some_id()})
        assert await total(database, NOON, minute(6), criteria=criteria) == UsageGroup(None, 0, 0)


@pytest.mark.parametrize("group_by", [None, GroupBy.USER])
async def test_sum_usage__takes_any_number_of_eras(
    database: Database, monkeypatch: pytest.MonkeyPatch, group_by: GroupBy | None
) -> None:
    """More than fit into one statement, with a page of groups that none of the statements could tell alone."""
    await put_sessions(database, [lived(minute(0, number), minute(20)) for number in range(6)])
    fence = await emitter(database.store)
    for number in range(1, 10):
        await database.clock.set(minute(number))
        await database.store.cut_usage(fence, rules(factors=(number * LARGE, 1, 1)), 1)
    question = UsageQuestion(from_at=minute(0, 3), to_at=minute(9), group_by=group_by, factors=(9 * LARGE, 1, 1))
    together = await database.store.sum_usage(question, None, 4)
    monkeypatch.setattr("tenure.store.lives.SPANS_MAX", 2)
    assert await database.store.sum_usage(question, None, 4) == together
    assert together.groups[0].usage_millionths > 0
