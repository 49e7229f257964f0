"""Billable intervals of a window, its division into chunks, and their submissions."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import CloseReason, Session
from tenure.domain.submissions import SubmissionFilter
from tenure.domain.usage import CHUNK_MAX, BillableInterval, Chunk, ChunkBounds, UndividedWindow, Window
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import all_tables, read_table, sweep_some
from tests.support.open_requests import NOON, end_one, open_one, request, same_key_request, some_id
from tests.support.session_calls import evicting_seats, heartbeat_one
from tests.support.sessions import open_new_session, read_session
from tests.support.submissions import (
    ids_of,
    list_all_pending,
    read_submission,
)
from tests.support.usage import (
    CONTRACT,
    FACTORS,
    MICROSECOND,
    MINUTE,
    billable_intervals,
    chunk_all,
    cut,
    cut_one,
    divide,
    insert_sessions,
    intervals,
    minute,
    newest_window,
    read_window,
    save,
    session_between,
    sum_of,
    windows,
)

WINDOW = (minute(1), minute(2))


pytestmark = pytest.mark.usefixtures("installed")


async def second_window(database: Database, **given: object) -> Window:
    """Cuts two windows, and returns the second one, from minute one to minute two."""
    await cut_one(database, minute(1), **given)
    return await cut_one(database, minute(2), **given)


# Billable intervals of a window


def in_every_way() -> list[Session]:
    """Sessions that begin and end before, in or after the second window. Half are closed, half have only a deadline."""
    edges = [minute(0, 30), minute(1), minute(1, 20), minute(1, 40), minute(2), minute(2, 30)]
    return [
        session_between(started_at, ended_at, closed=closed, kind=1 + number % 3)
        for number, started_at in enumerate(edges)
        for ended_at in edges[number + 1 :]
        for closed in (True, False)
    ]


async def test_read_intervals__returns_billable_interval_of_each_session(database: Database) -> None:
    made = in_every_way()
    await insert_sessions(database, made)
    window = await second_window(database)
    found = await intervals(database, window)
    assert sorted(found) == billable_intervals(made, window)
    assert len(found) == 2 * (4 + 4 + 3 + 2), "26 of the 30 sessions were live in the window"


async def test_read_intervals__omits_bounds_that_reach_window_bounds(database: Database) -> None:
    spans = {
        "all of it": (minute(0, 30), minute(3)),
        "exactly all of it": WINDOW,
        "its beginning": (minute(0, 30), minute(1, 20)),
        "its end": (minute(1, 20), minute(2, 1)),
        "a part": (minute(1, 20), minute(1, 40)),
    }
    made = {name: session_between(*span) for name, span in spans.items()}
    await insert_sessions(database, list(made.values()))
    found = {
        interval.session_id: (interval.from_at, interval.to_at)
        for interval in await intervals(database, await second_window(database))
    }
    assert {name: found[session.session_id] for name, session in made.items()} == {
        "all of it": (None, None),
        "exactly all of it": (None, None),
        "its beginning": (None, minute(1, 20)),
        "its end": (minute(1, 20), None),
        "a part": (minute(1, 20), minute(1, 40)),
    }


async def test_read_intervals__counts_microseconds_from_start_of_era(database: Database) -> None:
    session = session_between(NOON, minute(9))
    await insert_sessions(database, [session])
    await cut(database, minute(1))
    await cut(database, minute(2), factors=(7, 8, 9))
    await cut(database, minute(4), factors=(7, 8, 9))
    found = [(await intervals(database, window))[0] for window in await windows(database)]
    assert [(interval.before_microseconds, interval.total_microseconds) for interval in found] == [
        (0, (minute(1) - NOON) // MICROSECOND),
        (0, MINUTE),
        (MINUTE, 3 * MINUTE),
    ]


async def test_read_intervals__includes_sessions_of_one_microsecond(database: Database) -> None:
    made = [
        session_between(minute(1), minute(1) + MICROSECOND),
        session_between(minute(1, 7), minute(1, 7) + MICROSECOND),
        session_between(minute(2) - MICROSECOND, minute(2)),
    ]
    outside = [session_between(minute(1) - MICROSECOND, minute(1)), session_between(minute(2), minute(2) + MICROSECOND)]
    await insert_sessions(database, [*made, *outside])
    found = await intervals(database, await second_window(database))
    assert {interval.session_id: (interval.before_microseconds, interval.total_microseconds) for interval in found} == {
        session.session_id: (0, 1) for session in made
    }


async def test_read_intervals__ends_unrecorded_lapse_at_its_deadline(database: Database) -> None:
    session = await open_new_session(database, lease_microseconds=(minute(1, 15) - NOON) // MICROSECOND)
    window = await second_window(database)
    third = await cut_one(database, minute(3))
    before = await intervals(database, window)
    assert [(interval.session_id, interval.from_at, interval.to_at) for interval in before] == [
        (session.session_id, None, minute(1, 15))
    ]
    await sweep_some(database.store, 9)
    assert (await read_session(database, session.session_id)).closed_at == minute(1, 15)
    assert await intervals(database, window) == before
    assert await intervals(database, third) == []


async def test_read_intervals__returns_only_sessions_of_chunk(database: Database) -> None:
    made = [session_between(NOON, minute(3), closed=number % 2 == 0) for number in range(7)]
    await insert_sessions(database, made)
    window = await second_window(database)
    every = await intervals(database, window)
    assert len(every) == 7
    chunk = chunk_of(window, every[2:5])
    assert await database.store.read_intervals(window, chunk) == every[2:5]


def chunk_of(window: Window, found: Sequence[BillableInterval]) -> Chunk:
    return Chunk(
        window_id=window.window_id,
        chunk=1,
        first_session_id=found[0].session_id,
        last_session_id=found[-1].session_id,
        sessions=len(found),
        usage_millionths=0,
    )


async def test_read_intervals__is_unchanged_by_later_session_changes(database: Database) -> None:
    """All five sessions are live in the whole second window. In the third window, one of them is upgraded, one ended,
    one evicted and one renewed, and the sweep records that one has lapsed.
    """
    lease = {"lease_microseconds": (minute(2, 30) - NOON) // MICROSECOND}
    upgraded, ended, evicted, kept = [request(kind=1 + n % 2, **lease) for n in range(4)]
    for each in (upgraded, ended, evicted, kept):
        await open_one(database.store, each)
    swept = await open_new_session(database, **lease)
    window = await second_window(database)
    before = await intervals(database, window)
    assert len(before) == 5
    await database.clock.set(minute(2, 10))
    new = (await open_one(database.store, same_key_request(upgraded, kind=3))).session
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await database.store.put_capacity(evicted.capacity_id, evicting_seats(1), EVERYTHING, ACTOR)
    newcomer = await open_new_session(database, capacity_id=evicted.capacity_id)
    await heartbeat_one(database.store, kept.session_id)
    await database.clock.set(minute(2, 50))
    await sweep_some(database.store, 9)
    assert await intervals(database, window) == before
    third = await cut_one(database, minute(3))
    assert new is not None
    found = {interval.session_id: (interval.from_at, interval.to_at) for interval in await intervals(database, third)}
    assert found == {
        upgraded.session_id: (None, minute(2, 10)),
        new.session_id: (minute(2, 10), None),
        ended.session_id: (None, minute(2, 10)),
        evicted.session_id: (None, minute(2, 10)),
        newcomer.session_id: (minute(2, 10), None),
        kept.session_id: (None, None),
        swept.session_id: (None, minute(2, 30)),
    }


async def test_list_intervals__returns_same_intervals_as_read_intervals_in_pages(database: Database) -> None:
    await insert_sessions(database, in_every_way())
    window = await second_window(database)
    pages, after = [], None
    while page := await database.store.list_intervals(window, after, 10):
        pages.append(page)
        after = page[-1].session_id
    assert list(map(len, pages)) == [10, 10, 6]
    assert [interval for page in pages for interval in page] == await intervals(database, window)


async def test_list_intervals__accepts_any_span_of_an_era(database: Database) -> None:
    """The span need not be a window."""
    made = [
        session_between(NOON, minute(3), closed=False),
        session_between(minute(1, 20), minute(4, 30)),
        session_between(NOON, minute(1)),
    ]
    await insert_sessions(database, made)
    await cut(database, minute(6))
    span = replace(await newest_window(database), started_at=minute(1), ended_at=minute(5))
    assert sorted(await database.store.list_intervals(span, None, 9)) == billable_intervals(made, span)


# Dividing


async def live_through(database: Database, count: int) -> Sequence[BillableInterval]:
    """Inserts `count` sessions of all kinds that end in the second window. The end of every second session is recorded.
    Cuts two windows, and returns the billable intervals of the second one.
    """
    made = [
        session_between(NOON, minute(1, 1 + number % 58), closed=number % 2 == 0, kind=1 + number % 3)
        for number in range(count)
    ]
    await insert_sessions(database, made)
    return await intervals(database, await second_window(database))


def expected_bounds(found: Sequence[BillableInterval], size: int) -> list[ChunkBounds]:
    parts = [found[start : start + size] for start in range(0, len(found), size)]
    return [ChunkBounds(part[0].session_id, part[-1].session_id, len(part), sum_of(part, FACTORS)) for part in parts]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.usefixtures("small")
async def test_divide_window__makes_chunks_in_id_order(database: Database, count: int) -> None:
    found = await live_through(database, count)
    assert await divide(database, await newest_window(database)) == expected_bounds(found, 3)


async def test_divide_window__returns_no_chunks_for_window_without_live_sessions(database: Database) -> None:
    await insert_sessions(
        database, [session_between(NOON, minute(1)), session_between(minute(2), minute(3), closed=False)]
    )
    assert await divide(database, await second_window(database)) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [5, 6, 7, 12, 13])
async def test_divide_window__continues_after_last_session_of_previous_page(database: Database, count: int) -> None:
    """Each page has up to two chunks. A page that is not full is the last one."""
    found = await live_through(database, count)
    window = await newest_window(database)
    pages: list[Sequence[ChunkBounds]] = []
    after = None
    while not pages or len(pages[-1]) == 2:
        pages.append(await database.store.divide_window(window, after, 2))
        after = pages[-1][-1].last_session_id if pages[-1] else after
    assert [chunk_bounds for page in pages for chunk_bounds in page] == expected_bounds(found, 3)


@pytest.mark.parametrize("count", [CHUNK_MAX - 1, CHUNK_MAX, CHUNK_MAX + 1, 2 * CHUNK_MAX + 1])
async def test_divide_window__puts_at_most_1000_sessions_in_a_chunk(database: Database, count: int) -> None:
    found = await live_through(database, count)
    bounds = await divide(database, await newest_window(database))
    assert bounds == expected_bounds(found, 1000)


@pytest.mark.usefixtures("small")
async def test_divide_window__is_unchanged_after_sessions_end(database: Database) -> None:
    for _ in range(7):
        await open_new_session(database)
    window = await second_window(database)
    before = await divide(database, window)
    for row in (await read_table(database, "sessions"))[::2]:
        await end_one(database.store, row["session_id"], CloseReason.TERMINATED)
    assert [chunk_bounds.sessions for chunk_bounds in before] == [3, 3, 1]
    assert await divide(database, window) == before


# Saving


PIECES = [ChunkBounds(some_id(), some_id(), 1000 + number, 10**15 + 7**number) for number in range(5)]


def as_chunk(window: Window, number: int, chunk_bounds: ChunkBounds, **given: object) -> Chunk:
    values = {
        "window_id": window.window_id,
        "chunk": number,
        "first_session_id": chunk_bounds.first_session_id,
        "last_session_id": chunk_bounds.last_session_id,
        "sessions": chunk_bounds.sessions,
        "usage_millionths": chunk_bounds.usage_millionths,
    }
    return Chunk(**{**values, **given})  # type: ignore[arg-type]


def without_submissions(chunks: Sequence[Chunk]) -> list[Chunk]:
    return [replace(chunk, submission_id=None) for chunk in chunks]


async def test_save_chunks__stores_chunks_and_window_sums(database: Database) -> None:
    window = await cut_one(database, minute(1))
    await database.clock.set(minute(1, 5))
    assert await save(database, window, PIECES) == [
        as_chunk(window, n, chunk_bounds) for n, chunk_bounds in enumerate(PIECES, 1)
    ]
    sums = {"sessions": 5010, "usage_millionths": 5 * 10**15 + 1 + 7 + 49 + 343 + 2401}
    assert await newest_window(database) == replace(window, chunked_at=minute(1, 5), **sums)


async def test_save_chunks__creates_submission_with_unique_key_per_chunk(database: Database) -> None:
    await cut(database, minute(1), contract=CONTRACT)
    window = await cut_one(database, minute(2), contract=CONTRACT)
    await database.clock.set(minute(2, 5))
    chunks = await save(database, window, PIECES[:3])
    (row,) = await read_table(database, "installation")
    keys = [f"{row['installation_id']}-2-{number}" for number in (1, 2, 3)]
    rows = {each["submission_id"]: each for each in await read_table(database, "submissions")}
    assert len(rows) == 3
    stored = [rows[chunk.submission_id] for chunk in chunks]
    assert [each["delivery_key"] for each in stored] == [each["idempotency_key"] for each in stored] == keys
    envelopes = {envelope.submission_id: envelope for envelope in await database.store.read_envelopes(list(rows))}
    for chunk, key in zip(chunks, keys, strict=True):
        envelope = envelopes[str(chunk.submission_id)]
        assert (envelope.delivery_key, envelope.payload, envelope.contract) == (key, b"", CONTRACT)


async def test_save_chunks__makes_submissions_due_now(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await database.clock.set(minute(1, 5))
    chunks = await save(database, window, PIECES[:2])
    waiting = await list_all_pending(database.store, 10)
    assert sorted(ids_of(waiting)) == sorted(str(chunk.submission_id) for chunk in chunks)
    (first, _second) = await database.store.list_submissions(SubmissionFilter(), None, 9)
    assert (first.gateway, first.state, first.attempts, first.failures) == ("usages", "pending", 0, 0)
    assert (first.next_attempt_at, first.created_at, first.last_modified_at) == (minute(1, 5),) * 3


async def test_save_chunks__creates_no_submissions_without_contract(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=None)
    chunks = await save(database, window, PIECES)
    assert {chunk.submission_id for chunk in chunks} == {None}
    assert await read_table(database, "submissions") == []
    assert (await newest_window(database)).delivered_at is None


async def test_save_chunks__uses_contract_of_own_window(database: Database) -> None:
    sent = await cut_one(database, minute(1), contract=CONTRACT)
    kept = await cut_one(database, minute(2), contract=None)
    assert [chunk.submission_id for chunk in await save(database, kept, PIECES[:1])] == [None]
    (chunk,) = await save(database, sent, PIECES[1:2])
    assert await read_submission(database, str(chunk.submission_id)) is not None


async def test_save_chunks__changes_nothing_when_repeated_for_incomplete_window(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES[:2], complete=False)
    before = await all_tables(database)
    await database.clock.set(minute(1, 9))
    await save(database, window, PIECES[:2], complete=False)
    assert await all_tables(database) == before


async def test_save_chunks__changes_nothing_when_repeated_for_completed_window(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES)
    before = await all_tables(database)
    await database.clock.set(minute(1, 9))
    await save(database, window, PIECES)
    assert await all_tables(database) == before


async def test_save_chunks__continues_partly_saved_window(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES[:2], complete=False)
    (left,) = await database.store.list_undivided_windows(9)
    assert (left.chunks, left.last_session_id) == (2, PIECES[1].last_session_id)
    chunks = await save(database, window, PIECES[2:], first=3)
    assert without_submissions(chunks) == [
        as_chunk(window, n, chunk_bounds) for n, chunk_bounds in enumerate(PIECES, 1)
    ]
    assert (await newest_window(database)).sessions == 5010
    assert len(await read_table(database, "submissions")) == 5


async def test_save_chunks__completes_window_without_further_chunks(database: Database) -> None:
    """If the last page of chunks was full, an empty page completes the window."""
    window = await cut_one(database, minute(1))
    await save(database, window, PIECES[:2], complete=False)
    assert (await newest_window(database)).chunked_at is None
    await save(database, window, [], first=3)
    assert (await newest_window(database)).sessions == 2001


async def test_save_chunks__raises_on_gap_in_chunk_numbers(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES[:1], complete=False)
    before = await all_tables(database)
    with pytest.raises(Exception, match=r"chunk 3 of window 1 would follow chunk 1"):
        await save(database, window, PIECES[2:], first=3)
    assert await all_tables(database) == before


async def test_save_chunks__marks_empty_window_delivered(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await database.clock.set(minute(1, 5))
    assert await save(database, window, []) == []
    expected = replace(window, chunked_at=minute(1, 5), delivered_at=minute(1, 5), sessions=0, usage_millionths=0)
    assert await newest_window(database) == expected
    assert await read_table(database, "submissions") == []


async def test_save_chunks__accepts_full_batch(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    bounds = [ChunkBounds(some_id(), some_id(), 1 + number, 2**number % 10**9) for number in range(128)]
    chunks = await save(database, window, bounds)
    assert without_submissions(chunks) == [
        as_chunk(window, n, chunk_bounds) for n, chunk_bounds in enumerate(bounds, 1)
    ]


@pytest.mark.usefixtures("small")
async def test_save_chunks__stores_sums_of_billable_intervals(database: Database) -> None:
    found = await live_through(database, 8)
    window = await newest_window(database)
    await save(database, window, await divide(database, window))
    window_read = await newest_window(database)
    assert (window_read.sessions, window_read.usage_millionths) == (8, sum_of(found, FACTORS))


# Reading windows and chunks


async def test_list_undivided_windows__returns_oldest_window_first(database: Database) -> None:
    for number in range(1, 5):
        await cut(database, minute(number), contract=CONTRACT)
    first, second, third, fourth = await windows(database)
    await save(database, second, [])
    await save(database, third, PIECES[:2], complete=False)
    expected = [
        UndividedWindow(first, 0, None),
        UndividedWindow(third, 2, PIECES[1].last_session_id),
        UndividedWindow(fourth, 0, None),
    ]
    assert await database.store.list_undivided_windows(9) == expected
    assert await database.store.list_undivided_windows(2) == expected[:2]


async def test_list_undivided_windows__is_empty_when_all_windows_are_divided(database: Database) -> None:
    await cut(database, minute(1))
    await chunk_all(database)
    assert await database.store.list_undivided_windows(9) == []


async def test_list_windows__returns_newest_window_first(database: Database) -> None:
    for number in range(1, 6):
        await cut(database, minute(number))
    found = await database.store.list_windows(None, 2)
    assert [window.window_id for window in found] == [5, 4]
    assert [window.window_id for window in await database.store.list_windows(4, 2)] == [3, 2]
    assert [window.window_id for window in await database.store.list_windows(1, 2)] == []


async def test_get_window__returns_chunks_in_order(database: Database) -> None:
    await cut(database, minute(1), contract=CONTRACT)
    window = await cut_one(database, minute(2), contract=CONTRACT)
    other = (await windows(database))[0]
    await save(database, other, PIECES[3:])
    await save(database, window, PIECES[:2], complete=False)
    await save(database, window, PIECES[2:3], first=3)
    window_read, chunks = await read_window(database, 2)
    assert window_read == await newest_window(database)
    assert without_submissions(chunks) == [
        as_chunk(window, n, chunk_bounds) for n, chunk_bounds in enumerate(PIECES[:3], 1)
    ]


async def test_get_window__returns_none_for_unknown_window(database: Database) -> None:
    assert await database.store.get_window(1) is None


async def test_get_window__returns_divided_window_only_with_its_chunks(database: Database) -> None:
    """A reader sees each window either before or after its division."""
    for number in range(1, 31):
        await cut(database, minute(number))
    seen: set[tuple[bool, int]] = set()

    async def watch() -> None:
        for number in range(1, 31):
            divided = False
            while not divided:
                window_read, chunks = await read_window(database, number)
                divided = window_read.chunked_at is not None
                seen.add((divided, len(chunks)))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for window in await windows(database):
            await save(database, window, PIECES[:1])
    assert (True, 1) in seen
    assert seen <= {(False, 0), (True, 1)}


async def test_find_chunks__returns_window_and_chunk_of_submission(database: Database) -> None:
    for number in (1, 2):
        await cut(database, minute(number), contract=CONTRACT, factors=(number, 2, 3))
    for window in await windows(database):
        await save(database, window, PIECES[window.window_id :])
    (first, of_first), (second, of_second) = [await read_window(database, number) for number in (1, 2)]
    wanted = [str(of_second[1].submission_id), some_id(), str(of_first[2].submission_id)]
    found = await database.store.find_chunks(wanted)
    assert sorted(found, key=lambda each: each[0].window_id) == [(first, of_first[2]), (second, of_second[1])]


async def test_find_chunks__returns_nothing_for_submission_without_chunk(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=None)
    await save(database, window, PIECES)
    assert await database.store.find_chunks([some_id()]) == []
    assert await database.store.find_chunks([]) == []
