"""What a window consists of, how it is divided, and how its chunks are handed over."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tenure.model.sessions import CloseReason, Session
from tenure.model.submissions import SubmissionFilter
from tenure.model.usage import CHUNK_MAX, Chunk, Life, Piece, Unchunked, Window
from tests.support.databases import Database
from tests.support.keeping import evicting, keep_one
from tests.support.leases import all_tables, sweep_some, table
from tests.support.sessions import opened, recorded
from tests.support.submissions import (
    all_waiting,
    ids_of,
    one,
)
from tests.support.usage import (
    CONTRACT,
    FACTORS,
    MICROSECOND,
    MINUTE,
    chunk_all,
    cut,
    cut_one,
    divide,
    lived,
    lives,
    lives_of,
    minute,
    newest,
    put_sessions,
    read_window,
    save,
    sum_of,
    windows,
)
from tests.support.wishes import NOON, again, end_one, open_one, some_id, wish

WINDOW = (minute(1), minute(2))


pytestmark = pytest.mark.usefixtures("installed")


async def second_window(database: Database, **given: object) -> Window:
    """From minute one to minute two."""
    await cut_one(database, minute(1), **given)
    return await cut_one(database, minute(2), **given)


# Who lived


def in_every_way() -> list[Session]:
    """To begin before, in or after the second window, and to end so, by a close and by a deadline."""
    edges = [minute(0, 30), minute(1), minute(1, 20), minute(1, 40), minute(2), minute(2, 30)]
    return [
        lived(started_at, ended_at, closed=closed, kind=1 + number % 3)
        for number, started_at in enumerate(edges)
        for ended_at in edges[number + 1 :]
        for closed in (True, False)
    ]


async def test_read_lives__tells_what_each_lived_of_the_window(database: Database) -> None:
    made = in_every_way()
    await put_sessions(database, made)
    window = await second_window(database)
    found = await lives(database, window)
    assert sorted(found) == lives_of(made, window)
    assert len(found) == 2 * (4 + 4 + 3 + 2), "of 30"


async def test_read_lives__says_from_and_to_only_where_it_was_not_the_whole_window(database: Database) -> None:
    spans = {
        "all of it": (minute(0, 30), minute(3)),
        "exactly all of it": WINDOW,
        "its beginning": (minute(0, 30), minute(1, 20)),
        "its end": (minute(1, 20), minute(2, 1)),
        "a part": (minute(1, 20), minute(1, 40)),
    }
    made = {name: lived(*span) for name, span in spans.items()}
    await put_sessions(database, list(made.values()))
    found = {
        life.session_id: (life.from_at, life.to_at) for life in await lives(database, await second_window(database))
    }
    assert {name: found[session.session_id] for name, session in made.items()} == {
        "all of it": (None, None),
        "exactly all of it": (None, None),
        "its beginning": (None, minute(1, 20)),
        "its end": (minute(1, 20), None),
        "a part": (minute(1, 20), minute(1, 40)),
    }


async def test_read_lives__counts_from_the_beginning_of_the_era(database: Database) -> None:
    session = lived(NOON, minute(9))
    await put_sessions(database, [session])
    await cut(database, minute(1))
    await cut(database, minute(2), factors=(7, 8, 9))
    await cut(database, minute(4), factors=(7, 8, 9))
    found = [(await lives(database, window))[0] for window in await windows(database)]
    assert [(life.before_microseconds, life.total_microseconds) for life in found] == [
        (0, (minute(1) - NOON) // MICROSECOND),
        (0, MINUTE),
        (MINUTE, 3 * MINUTE),
    ]


async def test_read_lives__finds_a_session_of_a_microsecond(database: Database) -> None:
    made = [
        lived(minute(1), minute(1) + MICROSECOND),
        lived(minute(1, 7), minute(1, 7) + MICROSECOND),
        lived(minute(2) - MICROSECOND, minute(2)),
    ]
    outside = [lived(minute(1) - MICROSECOND, minute(1)), lived(minute(2), minute(2) + MICROSECOND)]
    await put_sessions(database, [*made, *outside])
    found = await lives(database, await second_window(database))
    assert {life.session_id: (life.before_microseconds, life.total_microseconds) for life in found} == {
        session.session_id: (0, 1) for session in made
    }


async def test_read_lives__takes_one_that_nobody_has_recorded_as_over_for_over(database: Database) -> None:
    session = await opened(database, lease_microseconds=(minute(1, 15) - NOON) // MICROSECOND)
    window = await second_window(database)
    third = await cut_one(database, minute(3))
    before = await lives(database, window)
    assert [(life.session_id, life.from_at, life.to_at) for life in before] == [
        (session.session_id, None, minute(1, 15))
    ]
    await sweep_some(database.store, 9)
    assert (await recorded(database, session.session_id)).closed_at == minute(1, 15)
    assert await lives(database, window) == before
    assert await lives(database, third) == []


async def test_read_lives__reads_the_range_of_its_chunk(database: Database) -> None:
    made = [lived(NOON, minute(3), closed=number % 2 == 0) for number in range(7)]
    await put_sessions(database, made)
    window = await second_window(database)
    every = await lives(database, window)
    assert len(every) == 7
    chunk = chunk_of(window, every[2:5])
    assert await database.store.read_lives(window, chunk) == every[2:5]


def chunk_of(window: Window, found: Sequence[Life]) -> Chunk:
    return Chunk(
        window_id=window.window_id,
        chunk=1,
        first_session_id=found[0].session_id,
        last_session_id=found[-1].session_id,
        sessions=len(found),
        usage_millionths=0,
    )


async def test_read_lives__is_the_same_before_and_after_everything_that_can_happen(database: Database) -> None:
    """Upgraded, ended, evicted, lapsed and swept after the window; in the one after that each has its own part."""
    lease = {"lease_microseconds": (minute(2, 30) - NOON) // MICROSECOND}
    upgraded, ended, evicted, kept = [wish(kind=1 + n % 2, **lease) for n in range(4)]
    for each in (upgraded, ended, evicted, kept):
        await open_one(database.store, each)
    swept = await opened(database, **lease)
    window = await second_window(database)
    before = await lives(database, window)
    assert len(before) == 5
    await database.clock.set(minute(2, 10))
    new = (await open_one(database.store, again(upgraded, kind=3))).session
    await end_one(database.store, ended.session_id, CloseReason.STOPPED)
    await database.store.put_capacity(evicted.capacity_id, evicting(1))
    newcomer = await opened(database, capacity_id=evicted.capacity_id)
    await keep_one(database.store, kept.session_id)
    await database.clock.set(minute(2, 50))
    await sweep_some(database.store, 9)
    assert await lives(database, window) == before
    third = await cut_one(database, minute(3))
    assert new is not None
    found = {life.session_id: (life.from_at, life.to_at) for life in await lives(database, third)}
    assert found == {
        upgraded.session_id: (None, minute(2, 10)),
        new.session_id: (minute(2, 10), None),
        ended.session_id: (None, minute(2, 10)),
        evicted.session_id: (None, minute(2, 10)),
        newcomer.session_id: (minute(2, 10), None),
        kept.session_id: (None, None),
        swept.session_id: (None, minute(2, 30)),
    }


async def test_list_lives__tells_page_by_page_what_read_lives_tells_of_chunks(database: Database) -> None:
    await put_sessions(database, in_every_way())
    window = await second_window(database)
    pages, after = [], None
    while page := await database.store.list_lives(window, after, 10):
        pages.append(page)
        after = page[-1].session_id
    assert list(map(len, pages)) == [10, 10, 6]
    assert [life for page in pages for life in page] == await lives(database, window)


async def test_list_lives__is_of_any_span_of_an_era(database: Database) -> None:
    """Though it is no window that was cut."""
    made = [lived(NOON, minute(3), closed=False), lived(minute(1, 20), minute(4, 30)), lived(NOON, minute(1))]
    await put_sessions(database, made)
    await cut(database, minute(6))
    span = replace(await newest(database), started_at=minute(1), ended_at=minute(5))
    assert sorted(await database.store.list_lives(span, None, 9)) == lives_of(made, span)


# Dividing


async def live_through(database: Database, count: int) -> Sequence[Life]:
    """As many sessions, closed ones and live ones by turns, of all kinds; in the order of the engine."""
    made = [
        lived(NOON, minute(1, 1 + number % 58), closed=number % 2 == 0, kind=1 + number % 3) for number in range(count)
    ]
    await put_sessions(database, made)
    return await lives(database, await second_window(database))


def pieces_of(found: Sequence[Life], size: int) -> list[Piece]:
    parts = [found[start : start + size] for start in range(0, len(found), size)]
    return [Piece(part[0].session_id, part[-1].session_id, len(part), sum_of(part, FACTORS)) for part in parts]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.usefixtures("small")
async def test_divide_window__makes_chunks_in_the_order_of_ids(database: Database, count: int) -> None:
    found = await live_through(database, count)
    assert await divide(database, await newest(database)) == pieces_of(found, 3)


async def test_divide_window__finds_nothing_where_nobody_lived(database: Database) -> None:
    await put_sessions(database, [lived(NOON, minute(1)), lived(minute(2), minute(3), closed=False)])
    assert await divide(database, await second_window(database)) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [5, 6, 7, 12, 13])
async def test_divide_window__goes_on_where_it_was(database: Database, count: int) -> None:
    """In pages of two chunks; a page that is not full is the last."""
    found = await live_through(database, count)
    window = await newest(database)
    pages: list[Sequence[Piece]] = []
    after = None
    while not pages or len(pages[-1]) == 2:
        pages.append(await database.store.divide_window(window, after, 2))
        after = pages[-1][-1].last_session_id if pages[-1] else after
    assert [piece for page in pages for piece in page] == pieces_of(found, 3)


@pytest.mark.parametrize("count", [CHUNK_MAX - 1, CHUNK_MAX, CHUNK_MAX + 1, 2 * CHUNK_MAX + 1])
async def test_divide_window__puts_up_to_a_thousand_into_a_chunk(database: Database, count: int) -> None:
    found = await live_through(database, count)
    pieces = await divide(database, await newest(database))
    assert pieces == pieces_of(found, 1000)


@pytest.mark.usefixtures("small")
async def test_divide_window__is_the_same_after_sessions_have_ended(database: Database) -> None:
    for _ in range(7):
        await opened(database)
    window = await second_window(database)
    before = await divide(database, window)
    for row in (await table(database, "sessions"))[::2]:
        await end_one(database.store, row["session_id"], CloseReason.TERMINATED)
    assert [piece.sessions for piece in before] == [3, 3, 1]
    assert await divide(database, window) == before


# Saving


PIECES = [Piece(some_id(), some_id(), 1000 + number, 10**15 + 7**number) for number in range(5)]


def as_chunk(window: Window, number: int, piece: Piece, **given: object) -> Chunk:
    values = {
        "window_id": window.window_id,
        "chunk": number,
        "first_session_id": piece.first_session_id,
        "last_session_id": piece.last_session_id,
        "sessions": piece.sessions,
        "usage_millionths": piece.usage_millionths,
    }
    return Chunk(**{**values, **given})  # type: ignore[arg-type]


def without_submissions(chunks: Sequence[Chunk]) -> list[Chunk]:
    return [replace(chunk, submission_id=None) for chunk in chunks]


async def test_save_chunks__keeps_what_it_is_given_and_adds_it_up(database: Database) -> None:
    window = await cut_one(database, minute(1))
    await database.clock.set(minute(1, 5))
    assert await save(database, window, PIECES) == [as_chunk(window, n, piece) for n, piece in enumerate(PIECES, 1)]
    sums = {"sessions": 5010, "usage_millionths": 5 * 10**15 + 1 + 7 + 49 + 343 + 2401}
    assert await newest(database) == replace(window, chunked_at=minute(1, 5), **sums)


async def test_save_chunks__submits_each_under_a_key_that_no_other_chunk_has(database: Database) -> None:
    await cut(database, minute(1), contract=CONTRACT)
    window = await cut_one(database, minute(2), contract=CONTRACT)
    await database.clock.set(minute(2, 5))
    chunks = await save(database, window, PIECES[:3])
    (row,) = await table(database, "installation")
    keys = [f"{row['installation_id']}-2-{number}" for number in (1, 2, 3)]
    rows = {each["submission_id"]: each for each in await table(database, "submissions")}
    assert len(rows) == 3
    told = [rows[chunk.submission_id] for chunk in chunks]
    assert [each["delivery_key"] for each in told] == [each["idempotency_key"] for each in told] == keys
    parcels = {parcel.submission_id: parcel for parcel in await database.store.read_parcels(list(rows))}
    for chunk, key in zip(chunks, keys, strict=True):
        parcel = parcels[str(chunk.submission_id)]
        assert (parcel.delivery_key, parcel.payload, parcel.contract) == (key, b"", CONTRACT)


async def test_save_chunks__has_them_sent_at_once(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await database.clock.set(minute(1, 5))
    chunks = await save(database, window, PIECES[:2])
    waiting = await all_waiting(database.store, 10)
    assert sorted(ids_of(waiting)) == sorted(str(chunk.submission_id) for chunk in chunks)
    (first, _second) = await database.store.list_submissions(SubmissionFilter(), None, 9)
    assert (first.gateway, first.state, first.attempts, first.failures) == ("usages", "pending", 0, 0)
    assert (first.next_attempt_at, first.created_at, first.last_modified_at) == (minute(1, 5),) * 3


async def test_save_chunks__submits_nothing_that_is_to_be_sent_to_nobody(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=None)
    chunks = await save(database, window, PIECES)
    assert {chunk.submission_id for chunk in chunks} == {None}
    assert await table(database, "submissions") == []
    assert (await newest(database)).delivered_at is None


async def test_save_chunks__goes_by_the_contract_of_the_window_and_not_of_the_last(database: Database) -> None:
    sent = await cut_one(database, minute(1), contract=CONTRACT)
    kept = await cut_one(database, minute(2), contract=None)
    assert [chunk.submission_id for chunk in await save(database, kept, PIECES[:1])] == [None]
    (chunk,) = await save(database, sent, PIECES[1:2])
    assert await one(database, str(chunk.submission_id)) is not None


async def test_save_chunks__saves_once_what_is_saved_again_after_a_lost_answer(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES[:2], complete=False)
    before = await all_tables(database)
    await database.clock.set(minute(1, 9))
    await save(database, window, PIECES[:2], complete=False)
    assert await all_tables(database) == before


async def test_save_chunks__completes_once_what_is_completed_again_after_a_lost_answer(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES)
    before = await all_tables(database)
    await database.clock.set(minute(1, 9))
    await save(database, window, PIECES)
    assert await all_tables(database) == before


async def test_save_chunks__goes_on_where_somebody_has_left_off(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES[:2], complete=False)
    (left,) = await database.store.list_unchunked(9)
    assert (left.chunks, left.last_session_id) == (2, PIECES[1].last_session_id)
    chunks = await save(database, window, PIECES[2:], first=3)
    assert without_submissions(chunks) == [as_chunk(window, n, piece) for n, piece in enumerate(PIECES, 1)]
    assert (await newest(database)).sessions == 5010
    assert len(await table(database, "submissions")) == 5


async def test_save_chunks__completes_where_only_the_end_was_left(database: Database) -> None:
    """The last page was full: the one after it is empty."""
    window = await cut_one(database, minute(1))
    await save(database, window, PIECES[:2], complete=False)
    assert (await newest(database)).chunked_at is None
    await save(database, window, [], first=3)
    assert (await newest(database)).sessions == 2001


async def test_save_chunks__leaves_no_gap(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await save(database, window, PIECES[:1], complete=False)
    before = await all_tables(database)
    with pytest.raises(Exception, match=r"chunk 3 of window 1 would follow chunk 1"):
        await save(database, window, PIECES[2:], first=3)
    assert await all_tables(database) == before


async def test_save_chunks__has_nothing_to_deliver_of_an_empty_window(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    await database.clock.set(minute(1, 5))
    assert await save(database, window, []) == []
    expected = replace(window, chunked_at=minute(1, 5), delivered_at=minute(1, 5), sessions=0, usage_millionths=0)
    assert await newest(database) == expected
    assert await table(database, "submissions") == []


async def test_save_chunks__saves_as_many_as_fit_a_batch(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=CONTRACT)
    pieces = [Piece(some_id(), some_id(), 1 + number, 2**number % 10**9) for number in range(128)]
    chunks = await save(database, window, pieces)
    assert without_submissions(chunks) == [as_chunk(window, n, piece) for n, piece in enumerate(pieces, 1)]


@pytest.mark.usefixtures("small")
async def test_save_chunks__adds_up_what_was_lived(database: Database) -> None:
    found = await live_through(database, 8)
    window = await newest(database)
    await save(database, window, await divide(database, window))
    told = await newest(database)
    assert (told.sessions, told.usage_millionths) == (8, sum_of(found, FACTORS))


# Reading windows and chunks


async def test_list_unchunked__begins_with_the_oldest(database: Database) -> None:
    for number in range(1, 5):
        await cut(database, minute(number), contract=CONTRACT)
    first, second, third, fourth = await windows(database)
    await save(database, second, [])
    await save(database, third, PIECES[:2], complete=False)
    expected = [
        Unchunked(first, 0, None),
        Unchunked(third, 2, PIECES[1].last_session_id),
        Unchunked(fourth, 0, None),
    ]
    assert await database.store.list_unchunked(9) == expected
    assert await database.store.list_unchunked(2) == expected[:2]


async def test_list_unchunked__has_none_when_all_are_divided(database: Database) -> None:
    await cut(database, minute(1))
    await chunk_all(database)
    assert await database.store.list_unchunked(9) == []


async def test_list_windows__begins_with_the_newest(database: Database) -> None:
    for number in range(1, 6):
        await cut(database, minute(number))
    found = await database.store.list_windows(None, 2)
    assert [window.window_id for window in found] == [5, 4]
    assert [window.window_id for window in await database.store.list_windows(4, 2)] == [3, 2]
    assert [window.window_id for window in await database.store.list_windows(1, 2)] == []


async def test_get_window__tells_its_chunks_in_their_order(database: Database) -> None:
    await cut(database, minute(1), contract=CONTRACT)
    window = await cut_one(database, minute(2), contract=CONTRACT)
    other = (await windows(database))[0]
    await save(database, other, PIECES[3:])
    await save(database, window, PIECES[:2], complete=False)
    await save(database, window, PIECES[2:3], first=3)
    told, chunks = await read_window(database, 2)
    assert told == await newest(database)
    assert without_submissions(chunks) == [as_chunk(window, n, piece) for n, piece in enumerate(PIECES[:3], 1)]


async def test_get_window__knows_none_that_was_never_cut(database: Database) -> None:
    assert await database.store.get_window(1) is None


async def test_get_window__never_tells_of_a_division_without_its_chunks(database: Database) -> None:
    """Whoever reads while windows are divided sees each before or after, not between."""
    for number in range(1, 31):
        await cut(database, minute(number))
    seen: set[tuple[bool, int]] = set()

    async def watch() -> None:
        for number in range(1, 31):
            divided = False
            while not divided:
                told, chunks = await read_window(database, number)
                divided = told.chunked_at is not None
                seen.add((divided, len(chunks)))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for window in await windows(database):
            await save(database, window, PIECES[:1])
    assert (True, 1) in seen
    assert seen <= {(False, 0), (True, 1)}


async def test_find_chunks__finds_the_window_and_the_chunk_of_a_submission(database: Database) -> None:
    for number in (1, 2):
        await cut(database, minute(number), contract=CONTRACT, factors=(number, 2, 3))
    for window in await windows(database):
        await save(database, window, PIECES[window.window_id :])
    (first, of_first), (second, of_second) = [await read_window(database, number) for number in (1, 2)]
    wanted = [str(of_second[1].submission_id), some_id(), str(of_first[2].submission_id)]
    found = await database.store.find_chunks(wanted)
    assert sorted(found, key=lambda each: each[0].window_id) == [(first, of_first[2]), (second, of_second[1])]


async def test_find_chunks__finds_nothing_of_a_submission_that_is_not_usage(database: Database) -> None:
    window = await cut_one(database, minute(1), contract=None)
    await save(database, window, PIECES)
    assert await database.store.find_chunks([some_id()]) == []
    assert await database.store.find_chunks([]) == []
