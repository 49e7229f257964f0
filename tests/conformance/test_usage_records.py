"""The records of a chunk: on every engine, they are exactly the bytes that `usage_records.py` renders from the billable
intervals of the chunk.

PostgreSQL renders the records in SQL. So on PostgreSQL, the tests compare two independent computations.
"""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tenure.clock import instant_text
from tenure.domain.meter import PERIOD_MICROSECONDS
from tenure.domain.sessions import CloseReason, Session
from tenure.domain.usage import Chunk, ChunkBounds, Era, Factors, Window
from tenure.domain.usage_records import Field, Records, Template, render_records
from tenure.usage.formats import FORMATS
from tests.conformance.test_usage_chunks import in_every_way, live_through, second_window
from tests.conformance.test_usage_sums import ALL_FACTORS, HALF, LONG_AGO, spread
from tests.support.databases import Database
from tests.support.open_requests import end_one
from tests.support.sessions import open_new_session
from tests.support.usage import (
    FACTORS,
    MICROSECOND,
    billable_intervals,
    divide,
    insert_sessions,
    intervals,
    newest_window,
    session_between,
    single_chunk,
    uncut_window,
)

pytestmark = pytest.mark.usefixtures("installed")

FORMS = list(FORMATS)


def template_of(name: str, window: Window) -> Template:
    return FORMATS[name].template(window)


def chunks_of(window: Window, bounds: Sequence[ChunkBounds]) -> list[Chunk]:
    return [
        Chunk(
            window_id=window.window_id,
            chunk=number,
            first_session_id=each.first_session_id,
            last_session_id=each.last_session_id,
            sessions=each.sessions,
            usage_millionths=each.usage_millionths,
        )
        for number, each in enumerate(bounds, 1)
    ]


async def rendered(database: Database, window: Window, name: str = "tenure") -> Sequence[Records]:
    """Returns the records of all chunks. Checks that their sums equal those that were computed when the window was
    divided, and that `divide_and_render` returns the same records and bounds in one call.
    """
    chunks = chunks_of(window, await divide(database, window, 500))
    found = await database.store.render_chunks(window, chunks, template_of(name, window))
    assert [each[1:] for each in found] == [(chunk.sessions, chunk.usage_millionths) for chunk in chunks]
    together = await database.store.divide_and_render(window, None, 500, template_of(name, window))
    assert [each.records for each in together] == found
    assert [each.bounds for each in together] == await divide(database, window, 500)
    return found


async def check(database: Database, made: Sequence[Session], window: Window, name: str, seed: int = 0) -> None:
    found = await intervals(database, window)
    assert sorted(found) == billable_intervals(made, window), f"seed {seed}"
    expected = render_records(template_of(name, window), window, found)
    assert await rendered(database, window, name) == [expected], f"seed {seed}"


@pytest.mark.parametrize("name", FORMS)
async def test_render_chunks__renders_sessions_that_begin_and_end_anywhere(database: Database, name: str) -> None:
    made = in_every_way()
    await insert_sessions(database, made)
    await check(database, made, await second_window(database), name)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("factors", ALL_FACTORS)
async def test_render_chunks__renders_any_length_and_factor(
    database: Database, seed: int, name: str, factors: Factors
) -> None:
    made = spread(seed, 200)
    await insert_sessions(database, made)
    days = [0, 900, 9_000, 9_031, 26_000]
    for first, last in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4)):
        started_at, ended_at = (
            LONG_AGO + timedelta(days=days[each], microseconds=each * HALF) for each in (first, last)
        )
        await check(database, made, uncut_window(started_at, ended_at, Era(LONG_AGO, factors)), name, seed)


PERIOD = timedelta(microseconds=PERIOD_MICROSECONDS)


@pytest.mark.parametrize("around", [3_558_399, 3_000_000, 500_000])
async def test_render_chunks__renders_lengths_around_a_period(database: Database, around: int) -> None:
    """For durations up to one period (30 days) and factors up to 3.558399, PostgreSQL uses a shorter computation in 64
    bits.
    """
    factors = (around - 1, around, around + 1)
    made = [
        session_between(LONG_AGO - early * MICROSECOND, LONG_AGO + PERIOD + late * MICROSECOND, kind=kind)
        for kind in (1, 2, 3)
        for early in range(-2, 2)
        for late in (-1, 0, 1, 30_000_000)
    ]
    await insert_sessions(database, made)
    for starts in (timedelta(0), timedelta(days=29), PERIOD - MICROSECOND):
        window = uncut_window(LONG_AGO + starts, LONG_AGO + PERIOD + timedelta(minutes=1), Era(LONG_AGO, factors))
        await check(database, made, window, "tenure")


EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize("factors", [FACTORS, (0, 1, 999_999_999_999)])
async def test_render_chunks__renders_any_instant(database: Database, seed: int, factors: Factors) -> None:
    """The sessions begin and end in the years 1 to 9999. The windows and eras have any length."""
    chance = random.Random(seed)
    span = (LATEST - EARLIEST) // MICROSECOND

    def instants(count: int) -> list[datetime]:
        """Different instants in order: `count` random ones, about half of them full seconds, and another instant one or
        two microseconds after each of these.
        """
        numbers = {
            chance.choice([chance.randrange(span), chance.randrange(span // 10**6) * 10**6]) for _ in range(count)
        }
        numbers |= {number + chance.randrange(1, 3) for number in numbers}
        return [EARLIEST + timedelta(microseconds=number) for number in sorted(numbers)]

    edges = instants(30)
    made = [
        session_between(*sorted(chance.sample(edges, 2)), closed=bool(number % 2), kind=1 + number % 3)
        for number in range(60)
    ]
    await insert_sessions(database, made)
    for _ in range(8):
        era, started_at, ended_at = sorted(chance.sample(edges, 3))
        window = uncut_window(chance.choice([era, started_at]), ended_at, Era(era, factors))
        if billable_intervals(made, window):
            await check(database, made, window, chance.choice(FORMS), seed)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [1, 3, 4, 20])
async def test_render_chunks__renders_each_chunk_from_its_own_sessions(database: Database, count: int) -> None:
    found = await live_through(database, count)
    window = await newest_window(database)
    parts = [found[start : start + 3] for start in range(0, count, 3)]
    template = template_of("tenure", window)
    assert await rendered(database, window) == [render_records(template, window, part) for part in parts]


async def test_render_chunks__returns_no_records_if_sessions_of_chunk_are_missing(database: Database) -> None:
    window = await second_window(database)
    (found,) = await database.store.render_chunks(window, [single_chunk(window)], template_of("tenure", window))
    assert found == Records("", 0, 0)


async def test_render_chunks__passes_on_texts_of_template_unchanged(database: Database) -> None:
    """No text is mistaken for a placeholder or for SQL."""
    await open_new_session(database)
    window = await second_window(database)
    text = "%s%%{0}$1\\'\";--\n\x7fÄ€😀"
    template = (text, Field.FROM_AT, text, Field.TO_AT)
    (found,) = await database.store.render_chunks(window, [single_chunk(window)], template)
    assert found.text == f"{text}{instant_text(window.started_at)}{text}{instant_text(window.ended_at)}"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [1, 3, 8])
async def test_divide_and_render__continues_after_any_chunk(database: Database, count: int) -> None:
    await live_through(database, count)
    window = await newest_window(database)
    template = template_of("tenure", window)
    whole = await database.store.divide_and_render(window, None, 9, template)
    assert [each.bounds.sessions for each in whole] == {1: [1], 3: [3], 8: [3, 3, 2]}[count]
    for number, each in enumerate(whole, 1):
        after = each.bounds.last_session_id
        assert await database.store.divide_and_render(window, after, 9, template) == whole[number:]
    assert await database.store.divide_and_render(window, None, 2, template) == whole[:2]


@pytest.mark.usefixtures("small")
async def test_render_chunks__is_unchanged_after_sessions_end(database: Database) -> None:
    made = [await open_new_session(database) for _ in range(7)]
    window = await second_window(database)
    before = await rendered(database, window)
    for session in made[::2]:
        await end_one(database.store, session.session_id, CloseReason.TERMINATED)
    assert [each.sessions for each in before] == [3, 3, 1]
    assert await rendered(database, window) == before
