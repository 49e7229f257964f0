"""Keeps the table of the other service up to date, for reports that read it.

    python examples/coming_from/capacity_sessions/report_table.py old-capacity.db --url http://127.0.0.1:8080

It follows the events of Tenure, and writes each session that has been opened or has ended into `CapacitySessions`. It
stores its position in the feed in the same transaction as the rows, so it misses nothing and can be stopped at any
time. The first run begins with the events of the last 7 days. The jobs of the other service must be off: they would
expire these sessions and bill them, although Tenure bills them too.
"""

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from tenure_client import Client
from tenure_client.models import EventList, Session

TYPES = {1: "Basic", 2: "Pro", 3: "Premium"}
LAST_WAIT_SECONDS = 2
"""How long `--once` waits for more events before it stops. An event appears in the feed within about half a second."""

WRITE = """
INSERT INTO CapacitySessions (
    Id, UserObjectId, TenantObjectId, CapacityId, SessionType, SessionStartUtc, SessionEndUtc, IsActive
) VALUES (?, ?, ?, ?, ?, datetime(?), datetime(?), ?)
ON CONFLICT (Id) DO UPDATE SET SessionEndUtc = excluded.SessionEndUtc, IsActive = excluded.IsActive
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Keeps the table of the other service up to date, for reports.")
    parser.add_argument("old", type=Path, help="the database of the other service, a SQLite file")
    parser.add_argument("--url", help="the URL of Tenure  [TENURE_URL]")
    parser.add_argument("--once", action="store_true", help="stop when the table is up to date")
    arguments = parser.parse_args()
    with closing(sqlite3.connect(arguments.old)) as old, Client(arguments.url) as client:
        old.execute(
            "CREATE TABLE IF NOT EXISTS TenureFeed (Id INTEGER PRIMARY KEY CHECK (Id = 1), Cursor TEXT NOT NULL)"
        )
        (after,) = old.execute("SELECT max(Cursor) FROM TenureFeed").fetchone()
        for page in _pages(client, after, once=arguments.once):
            # Read and write the present state of each session, so that a repeated event changes nothing.
            sessions = [client.sessions.get(session_id) for session_id in {event.session_id for event in page.events}]
            with old:
                old.executemany(WRITE, map(_row, sessions))
                old.execute("INSERT OR REPLACE INTO TenureFeed VALUES (1, ?)", (page.next_cursor,))
            print(f"sessions written: {len(sessions)}")
    return 0


def _pages(client: Client, after: str | None, *, once: bool) -> Iterator[EventList]:
    if not once:
        yield from client.events.follow(after=after).pages()
    page = client.events.list(after=after, wait=LAST_WAIT_SECONDS)
    while page.events:
        yield page
        page = client.events.list(after=page.next_cursor, wait=LAST_WAIT_SECONDS)


def _row(session: Session) -> tuple[str | int, ...]:
    ids = (session.session_id, session.user_object_id, session.tenant_object_id, session.capacity_id)
    return (
        *(f"{{{each.upper()}}}" for each in ids),
        TYPES[session.session_kind],
        session.session_start_utc.isoformat(),
        session.session_end_utc.isoformat(),
        int(session.is_active),
    )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
