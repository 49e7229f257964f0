"""Usage for tests: an installation of a given age, windows cut at given instants, and what each must contain."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, update

from tenure.domain.leases import JOB_LOCK, Fence
from tenure.domain.meter import usage_between
from tenure.domain.sessions import Session
from tenure.domain.submissions import Contract
from tenure.domain.usage import BillableInterval, Chunk, ChunkBounds, Cut, CutRules, Era, Factors, Window
from tenure.store.contract import Store
from tenure.store.tables import installation, sessions
from tests.support.databases import Database
from tests.support.leases import held, table
from tests.support.open_requests import NOON, SECOND, some_id

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND
FACTORS = (1_000_000, 2_000_000, 3_000_000)
"""1, 2 and 3."""
CONTRACT = Contract((2.5, 40.0), 0, (208,), 17.5, "tenure")
WINDOWS_MAX = 50
ALL = 1000
MICROSECOND = timedelta(microseconds=1)


def minute(number: int, seconds: float = 0) -> datetime:
    """As many after noon, on the grid."""
    return NOON.replace(microsecond=0) + timedelta(minutes=number, seconds=seconds)


def rules(interval: int = MINUTE, factors: Factors = FACTORS, contract: Contract | None = None) -> CutRules:
    return CutRules(interval, factors, contract)


async def emitter(store: Store) -> Fence:
    """Of whoever runs the job, wherever the clock is moved."""
    return await held(store, JOB_LOCK + "emit-usage", "emitter")


async def install(database: Database, at: datetime) -> None:
    """As if the database had been migrated then, and nothing cut since."""

    def write(connection: Connection) -> None:
        connection.execute(update(installation).values(created_at=at, last_cut_at=at, usage_kept_from=at))
        connection.commit()

    await database.run_sync(write)


async def cut(database: Database, at: datetime, limit: int = WINDOWS_MAX, **given: Any) -> Cut:
    """By a clock that stands there."""
    await database.clock.set(at)
    return await database.store.cut_usage(await emitter(database.store), rules(**given), limit)


async def cut_one(database: Database, at: datetime, **given: Any) -> Window:
    assert (await cut(database, at, **given)).windows == 1
    return await newest(database)


async def windows(database: Database) -> Sequence[Window]:
    """Oldest first."""
    return list(reversed(await database.store.list_windows(None, ALL)))


async def newest(database: Database) -> Window:
    (window,) = await database.store.list_windows(None, 1)
    return window


async def read_window(database: Database, window_id: int) -> tuple[Window, Sequence[Chunk]]:
    found = await database.store.get_window(window_id)
    assert found is not None, window_id
    return found


async def divide(database: Database, window: Window, limit: int = 9) -> Sequence[ChunkBounds]:
    return await database.store.divide_window(window, None, limit)


async def save(
    database: Database, window: Window, bounds: Sequence[ChunkBounds], *, first: int = 1, complete: bool = True
) -> Sequence[Chunk]:
    """The chunks that are there then."""
    fence = await emitter(database.store)
    await database.store.save_chunks(fence, window.window_id, first, bounds, complete=complete)
    return (await read_window(database, window.window_id))[1]


async def chunk_all(database: Database) -> Sequence[Chunk]:
    """Whatever is cut and not divided: the job's other half."""
    chunks: list[Chunk] = []
    for undivided in await database.store.list_undivided_windows(ALL):
        chunks += await save(database, undivided.window, await divide(database, undivided.window))
    return chunks


def whole(window: Window) -> Chunk:
    """Everything in it, as if it were one chunk."""
    return Chunk(
        window_id=window.window_id,
        chunk=1,
        first_session_id="00000000-0000-0000-0000-000000000000",
        last_session_id="ffffffff-ffff-ffff-ffff-ffffffffffff",
        sessions=0,
        usage_millionths=0,
    )


async def intervals(database: Database, window: Window) -> Sequence[BillableInterval]:
    return await database.store.read_intervals(window, whole(window))


def some_window(started_at: datetime, ended_at: datetime, era: Era) -> Window:
    """That nobody has cut: what was lived of a window is asked for without a look at its row."""
    return Window(
        window_id=1, installation_id=some_id(), started_at=started_at, ended_at=ended_at, era=era, contract=None
    )


def life_of(session: Session, window: Window) -> BillableInterval | None:
    """What it lived of the window; None if nothing."""
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


def lives_of(found: Iterable[Session], window: Window) -> Sequence[BillableInterval]:
    """In the order of ids. Only SQL Server has another, and sorts them as it likes."""
    of_all = (life_of(session, window) for session in found)
    return sorted(life for life in of_all if life is not None)


def used(life: BillableInterval, factors: Factors) -> int:
    return usage_between(life.before_microseconds, life.total_microseconds, factors[life.kind - 1])


def sum_of(found: Iterable[BillableInterval], factors: Factors) -> int:
    return sum(used(life, factors) for life in found)


async def eras(database: Database) -> Sequence[Mapping[str, Any]]:
    return await table(database, "usage_eras")


async def put_sessions(database: Database, made: Sequence[Session]) -> None:
    """Behind the store's back, many at once."""

    def put(connection: Connection) -> None:
        connection.execute(insert(sessions), [_row(session) for session in made])
        connection.commit()

    await database.run_sync(put)


def _row(session: Session) -> Mapping[str, Any]:
    names = set(sessions.c.keys()) & set(Session.__struct_fields__)
    check_at = None if session.closed_at is not None else session.deadline_at
    return {name: getattr(session, name) for name in names} | {"check_at": check_at}


def lived(started_at: datetime, ended_at: datetime, *, closed: bool = True, **given: Any) -> Session:
    """A session that was closed, or is to lapse, then."""
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
