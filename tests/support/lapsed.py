"""Lapsed sessions that no sweep has recorded yet."""

from tests.support.databases import Database
from tests.support.rows import fill_postgres, fill_sqlite

AGO = "- interval '40 days'"
"""A live session whose instants are all moved back by this interval has lapsed: its term is 30 days."""
INSTANTS = (
    "started_at",
    "term_ends_at",
    "deadline_at",
    "check_at",
    "last_heartbeat_at",
    "last_activity_at",
    "modified_at",
)


async def insert_lapsed_sessions(database: Database, count: int) -> None:
    """Inserts `count` lapsed sessions and as many closed ones. On SQLite, all of them started in 1970."""
    if database.engine == "sqlite":
        await fill_sqlite(database, 2 * count)
        return
    await fill_postgres(database.url, 2 * count)
    earlier = ", ".join(f"{column} = {column} {AGO}" for column in INSTANTS)
    await database.execute(f"UPDATE sessions SET {earlier} WHERE state = 'created'")
