"""How many sessions of a capacity were live at every instant, from their starts and ends alone; and users who want one.

A session lives from its start until just before its end, or, if nobody has recorded that yet, until its deadline.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

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
    return [(_microseconds(row["started_at"]), _microseconds(row["ended_at"])) for row in rows]


def most_at_once(lived: Iterable[tuple[int, int]]) -> int:
    """A seat that is left and taken in the same instant is one seat."""
    changes: Counter[int] = Counter()
    for start, end in lived:
        changes[start] += 1
        changes[end] -= 1
    return max(accumulate(changes[instant] for instant in sorted(changes)), default=0)


class Users:
    """Open, upgrade, end, say that they are there, or just walk away, at random."""

    def __init__(self, capacity_id: str, users: Sequence[str], seed: int) -> None:
        self._capacity_id = capacity_id
        self._users = users
        self._random = random.Random(seed)

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
            path, chance = f"/sessions/{opened.answer['sessionId']}", self._random.random()
            if chance < 0.9:
                await member.send("DELETE", path)
            elif chance < 0.95:
                await member.send("POST", f"{path}/heartbeat", {"active": chance < 0.93})

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
