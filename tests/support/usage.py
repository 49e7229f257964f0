"""Usage for tests: an installation of a given age, windows cut at given instants, and their expected contents."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, insert, update

from tenure.domain.leases import JOB_LOCK, Fence
from tenure.domain.meter import usage_between
from tenure.domain.sessions import Session
from tenure.domain.submissions import Contract
from tenure.domain.usage import BillableInterval, Chunk, ChunkBounds, Cut, CutRules, Era, Factors, Window
from tenure.store.contract import Store
from tenure.store.tables import installation, sessions
from tests.support.databases import Database
from tests.support.leases import hold_lease, read_table
from tests.support.open_requests import NOON, SECOND, some_id

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND
FACTORS = (1_000_000, 2_000_000, 3_000_000)
"""1, 2 and 3, in millionths."""
CONTRACT = Contract((2.5, 40.0), 0, (208,), 17.5, "tenure")
WINDOWS_MAX = 50
ALL = 1000
MICROSECOND = timedelta(microseconds=1)


def minute(number: int, seconds: float = 0) -> datetime:
    """`number` minutes and `seconds` after noon. A whole minute is a tick of a job whose interval is one minute."""
    return NOON.replace(microsecond=0) + timedelta(minutes=number, seconds=seconds)


def rules(interval: int = MINUTE, factors: Factors = FACTORS, contract: Contract | None = None) -> CutRules:
    return CutRules(interval, factors, contract)


async def emitter_fence(store: Store) -> Fence:
    """The fence of the lock of job `emit-usage`, acquired for a century if the lock is free."""
    return await hold_lease(store, JOB_LOCK + "emit-usage", "emitter")


async def install(database: Database, at: datetime) -> None:
    """Changes the database as if it had been migrated at this instant."""

    def write(connection: Connection) -> None:
        connection.execute(update(installation).values(created_at=at, last_cut_at=at, usage_kept_from=at))
        connection.commit()

    await database.run_sync(write)


async def cut(database: Database, at: datetime, limit: int = WINDOWS_MAX, **given: Any) -> Cut:
    """Stops the database's clock at this instant, and cuts at most `limit` windows."""
    await database.clock.set(at)
    return await database.store.cut_usage(await emitter_fence(database.store), rules(**given), limit)


async def cut_one(database: Database, at: datetime, **given: Any) -> Window:
    assert (await cut(database, at, **given)).windows == 1
    return await newest_window(database)


async def windows(database: Database) -> Sequence[Window]:
    """Returns all windows, oldest first."""
    return list(reversed(await database.store.list_windows(None, ALL)))


async def newest_window(database: Database) -> Window:
    (window,) = await database.store.list_windows(None, 1)
    return window


async def read_window(database: Database, window_id: int) -> tuple[Window, Sequence[Chunk]]:
    found = await database.store.get_window(window_id)
    assert found is not None, window_id
    return found


async def divide(database: Database, window: Window, limit: int = 9) -> Sequence[ChunkBounds]:
    return await database.store.divide_window(window, None, limit)


def limit_chunks(monkeypatch: pytest.MonkeyPatch, sessions_max: int) -> None:
    """Makes chunks smaller, on every engine."""
    for module in ("tenure.store.reads.intervals", "tenure.store.engines.postgres.windows"):
        monkeypatch.setattr(f"{module}.CHUNK_MAX", sessions_max)


async def save(
    database: Database, window: Window, bounds: Sequence[ChunkBounds], *, first: int = 1, complete: bool = True
) -> Sequence[Chunk]:
    """Saves the chunks and returns all chunks of the window."""
    fence = await emitter_fence(database.store)
    await database.store.save_chunks(fence, window.window_id, first, bounds, complete=complete)
    return (await read_window(database, window.window_id))[1]


async def chunk_all(database: Database) -> Sequence[Chunk]:
    """Divides all undivided windows, as job `emit-usage` does after a cut. Returns their chunks."""
    chunks: list[Chunk] = []
    for undivided in await database.store.list_undivided_windows(ALL):
        chunks += await save(database, undivided.window, await divide(database, undivided.window))
    return chunks


def single_chunk(window: Window) -> Chunk:
    """One chunk that contains all sessions of the window."""
    return Chunk(
        window_id=window.window_id,
        chunk=1,
        first_session_id="00000000-0000-0000-0000-000000000000",
        last_session_id="ffffffff-ffff-ffff-ffff-ffffffffffff",
        sessions=0,
        usage_millionths=0,
    )


async def intervals(database: Database, window: Window) -> Sequence[BillableInterval]:
    return await database.store.read_intervals(window, single_chunk(window))


def uncut_window(started_at: datetime, ended_at: datetime, era: Era) -> Window:
    """A window without a row. Reads of billable intervals do not need the row."""
    return Window(
        window_id=1, installation_id=some_id(), started_at=started_at, ended_at=ended_at, era=era, contract=None
    )


def billable_interval(session: Session, window: Window) -> BillableInterval | None:
    """The expected billable interval of the session in the window; None if the session was not live in the window."""
    ended_at = session.closed_at or session.deadline_at
    from_at, to_at = max(session.started_at, window.started_at), min(ended_at, window.ended_at)
    if from_at >= to_at:
        return None
    counts_from = max(session.started_at, window.era.started_at)
    return BillableInterval(
        session_id=session.session_id,
        user_object_id=session.user_object_id,
        tenant_object_id=session.tenant_object_id,
        capacity_id=session.capacity_id,
        kind=session.kind,
        from_at=from_at if from_at > window.started_at else None,
        to_at=to_at if to_at < window.ended_at else None,
        before_microseconds=(from_at - counts_from) // MICROSECOND,
        total_microseconds=(to_at - counts_from) // MICROSECOND,
    )


def billable_intervals(found: Iterable[Session], window: Window) -> Sequence[BillableInterval]:
    """The expected billable intervals, in the order of session ids. SQL Server sorts ids in another order."""
    of_all = (billable_interval(session, window) for session in found)
    return sorted(interval for interval in of_all if interval is not None)


def usage_of(interval: BillableInterval, factors: Factors) -> int:
    return usage_between(interval.before_microseconds, interval.total_microseconds, factors[interval.kind - 1])


def sum_of(found: Iterable[BillableInterval], factors: Factors) -> int:
    return sum(usage_of(interval, factors) for interval in found)


async def eras(database: Database) -> Sequence[Mapping[str, Any]]:
    return await read_table(database, "usage_eras")


async def insert_sessions(database: Database, new: Sequence[Session]) -> None:
    """Inserts the sessions directly into the table, not through the store."""

    def put(connection: Connection) -> None:
        connection.execute(insert(sessions), [_row(session) for session in new])
        connection.commit()

    await database.run_sync(put)


def _row(session: Session) -> Mapping[str, Any]:
    names = set(sessions.c.keys()) & set(Session.__struct_fields__)
    check_at = None if session.closed_at is not None else session.deadline_at
    return {name: getattr(session, name) for name in names} | {"check_at": check_at}


def session_between(started_at: datetime, ended_at: datetime, *, closed: bool = True, **given: Any) -> Session:
    """A session that was closed at `ended_at`. If `closed` is false, no end is recorded, and `ended_at` is its
    deadline.
    """
    values: dict[str, Any] = {
        "session_id": some_id(),
        "tenant_object_id": some_id(),
        "user_object_id": some_id(),
        "capacity_id": some_id(),
        "kind": 1,
        "state": "closed" if closed else "active",
        "started_at": started_at,
        "term_ends_at": ended_at,
        "deadline_at": ended_at,
        "lapse_reason": "EXPIRED",
        "lease_microseconds": None,
        "idle_microseconds": None,
        "heartbeat_microseconds": None,
        "last_heartbeat_at": started_at,
        "last_activity_at": started_at,
        "modified_at": started_at,
        "closed_at": ended_at if closed else None,
        "close_reason": "TERMINATED" if closed else None,
    }
    return Session(**{**values, **given})
