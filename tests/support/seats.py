"""Counts the live sessions of a capacity at every instant, and simulates users that compete for its seats.

A session is live from its start until just before its end, or until its deadline if no end is recorded.
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


def most_at_once(intervals: Iterable[tuple[int, int]]) -> int:
    """Returns the highest number of simultaneous sessions. A seat freed and taken at the same instant counts once."""
    changes: Counter[int] = Counter()
    for start, end in intervals:
        changes[start] += 1
        changes[end] -= 1
    return max(accumulate(changes[instant] for instant in sorted(changes)), default=0)


# Limits that change


class Taken(NamedTuple):
    """A session that took a seat: the number of live sessions including it, and the limit at that instant."""

    instant: int
    live: int
    limit: int


class LimitLog:
    """A trigger that records every change of a limit, even if the client did not get the response. PostgreSQL only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self) -> None:
        for statement in _LOG_LIMITS:
            await self._database.execute(statement)

    async def limits(self, capacity_id: str) -> list[tuple[int, int]]:
        """The instant of each change, and the new limit."""
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
    """The starts of all sessions, in order, except upgrades: an upgrade keeps the seat of its key under any limit."""
    rows = await database.rows(
        "SELECT started_at, coalesce(closed_at, deadline_at) AS ended_at, previous_session_id FROM sessions "
        f"WHERE capacity_id = '{capacity_id}'"
    )
    return _taken([(row["previous_session_id"] is None, *_span(row)) for row in rows], limits)


def _taken(intervals: Iterable[tuple[bool, int, int]], limits: Sequence[tuple[int, int]]) -> list[Taken]:
    since, live, taken = [instant for instant, _ in limits], 0, []
    for instant, change, is_new in sorted(_changes(intervals)):
        live += change
        if is_new:
            taken.append(Taken(instant, live, limits[bisect_right(since, instant) - 1][1]))
    return taken


def _changes(intervals: Iterable[tuple[bool, int, int]]) -> Iterable[tuple[int, int, bool]]:
    """Yields changes that sort, at the same instant, as ends, then upgrades, then sessions that take a seat."""
    for is_new, start, end in intervals:
        yield end, -1, False
        yield start, 1, is_new


def _span(row: dict[str, Any]) -> tuple[int, int]:
    return _microseconds(row["started_at"]), _microseconds(row["ended_at"])


# Users


class Users:
    """Users that open, upgrade, renew, end or abandon sessions at random."""

    def __init__(self, capacity_id: str, users: Sequence[str], seed: int, end_share: float = 0.9) -> None:
        self._capacity_id = capacity_id
        self._users = users
        self._random = random.Random(seed)
        self._end_share = end_share

    async def run(self, members: Sequence[Client], seconds: float) -> None:
        ends_at = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(self._work(member, ends_at))

    async def _work(self, member: Client, ends_at: float) -> None:
        while asyncio.get_running_loop().time() < ends_at:
            opened = await member.send("PUT", "/sessions", self._body())
            if opened.status not in (200, 201):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            path = f"/sessions/{opened.answer['sessionId']}"
            if self._random.random() < self._end_share:
                await member.send("DELETE", path)
            elif self._random.random() < 0.5:
                await member.send("POST", f"{path}/heartbeat", {"active": self._random.random() < 0.6})

    def _body(self) -> dict[str, Any]:
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
    """`value` is an instant as PostgreSQL returns it, or as SQLite stores it."""
    return value if isinstance(value, int) else to_microseconds(value)
