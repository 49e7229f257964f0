"""How many sessions of a capacity were live at every instant, from their starts and ends alone; and users who want one.

A session lives from its start until just before its end, or, if nobody has recorded that yet, until its deadline.
"""

import asyncio
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

from tenure.clock import to_microseconds
from tests.support.databases import Database
from tests.support.load import TENANT, Client

LEASE_SECONDS = 5
PAUSE_SECONDS = 0.02


async def spans(database: Database, capacity_id: str) -> list[tuple[int, int]]:
    rows = await database.rows(
        "SELECT started_at, coalesce(closed_at, deadline_at) AS ended_at FROM sessions "
        f"WHERE capacity_id = '{capacity_id}'"
    )
    return [_span(row) for row in rows]


def most_at_once(lived: Iterable[tuple[int, int]]) -> int:
    """A seat that is left and taken in the same instant is one seat."""
    changes: Counter[int] = Counter()
    for start, end in lived:
        changes[start] += 1
        changes[end] -= 1
    return max(accumulate(changes[instant] for instant in sorted(changes)), default=0)


# Limits that change


class Taken(NamedTuple):
    """A seat that was taken: how many then were, itself among them, and how many might be."""

    instant: int
    live: int
    limit: int


class LimitLog:
    """Notes every limit of every capacity in the database itself, also one whose answer was lost. PostgreSQL only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self) -> None:
        for statement in _LOG_LIMITS:
            await self._database.execute(statement)

    async def limits(self, capacity_id: str) -> list[tuple[int, int]]:
        """Since when, and how many."""
        rows = await self._database.rows(
            f"SELECT since, max_sessions FROM test_limits WHERE capacity_id = '{capacity_id}' ORDER BY since"
        )
        return [(to_microseconds(row["since"]), row["max_sessions"]) for row in rows]


_LOG_LIMITS = (
    "CREATE TABLE test_limits (capacity_id uuid, since timestamptz, max_sessions int)",
    """
    CREATE FUNCTION test_log_limit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO test_limits VALUES (new.capacity_id, new.modified_at, new.max_sessions);
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER test_log_limit AFTER INSERT OR UPDATE OF max_sessions ON capacities
    FOR EACH ROW EXECUTE FUNCTION test_log_limit()
    """,
)


async def seats_taken(database: Database, capacity_id: str, limits: Sequence[tuple[int, int]]) -> list[Taken]:
    """Every start, in order, but for upgrades: these keep their seat however many there may be."""
    rows = await database.rows(
        "SELECT started_at, coalesce(closed_at, deadline_at) AS ended_at, previous_session_id FROM sessions "
        f"WHERE capacity_id = '{capacity_id}'"
    )
    return _taken([(row["previous_session_id"] is None, *_span(row)) for row in rows], limits)


def _taken(lived: Iterable[tuple[bool, int, int]], limits: Sequence[tuple[int, int]]) -> list[Taken]:
    since, live, taken = [instant for instant, _ in limits], 0, []
    for instant, change, is_new in sorted(_changes(lived)):
        live += change
        if is_new:
            taken.append(Taken(instant, live, limits[bisect_right(since, instant) - 1][1]))
    return taken


def _changes(lived: Iterable[tuple[bool, int, int]]) -> Iterable[tuple[int, int, bool]]:
    """Of one instant first the ends, then the upgrades, then those who take a seat: so they sort."""
    for is_new, start, end in lived:
        yield end, -1, False
        yield start, 1, is_new


def _span(row: dict[str, Any]) -> tuple[int, int]:
    return _microseconds(row["started_at"]), _microseconds(row["ended_at"])


# Who wants a seat


class Users:
    """Open, upgrade, end, say that they are there, or just walk away, at random."""

    def __init__(self, capacity_id: str, users: Sequence[str], seed: int, end_share: float = 0.9) -> None:
        self._capacity_id = capacity_id
        self._users = users
        self._random = random.Random(seed)
        self._end_share = end_share

    async def come_and_go(self, members: Sequence[Client], seconds: float) -> None:
        ends_at = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(self._come_and_go(member, ends_at))

    async def _come_and_go(self, member: Client, ends_at: float) -> None:
        while asyncio.get_running_loop().time() < ends_at:
            opened = await member.send("PUT", "/sessions", self._wish())
            if opened.status not in (200, 201):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            path = f"/sessions/{opened.answer['sessionId']}"
            if self._random.random() < self._end_share:
                await member.send("DELETE", path)
            elif self._random.random() < 0.5:
                await member.send("POST", f"{path}/heartbeat", {"active": self._random.random() < 0.6})

    def _wish(self) -> dict[str, Any]:
        kind = self._random.choices((1, 2, 3), (7, 2, 1))[0]
        return open_body(self._capacity_id, self._random.choice(self._users), kind, leaseSeconds=LEASE_SECONDS)


def open_body(capacity_id: str, user: str, kind: int = 1, **limits: int) -> dict[str, Any]:
    return {
        "capacityId": capacity_id,
        "userObjectId": user,
        "tenantObjectId": TENANT,
        "sessionKind": kind,
        **limits,
    }


def _microseconds(value: datetime | int) -> int:
    """An instant as PostgreSQL gives it, or as SQLite keeps it."""
    return value if isinstance(value, int) else to_microseconds(value)
