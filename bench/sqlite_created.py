"""Opening new sessions over HTTP on SQLite against one commit per insert through the standard library."""

import sqlite3
import tempfile
import time
import uuid
from pathlib import Path

from bench import SECONDS, in_turns, service, verdict, wrk

COLUMNS = (
    "session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at, check_at, "
    "last_heartbeat_at, last_activity_at, modified_at, kind, state, lapse_reason"
)
INSERT = f"INSERT INTO sessions ({COLUMNS}) VALUES ({', '.join('?' * 14)})"
TERM = 30 * 86_400 * 1_000_000


def one_by_one(path: Path) -> float:
    """Inserts a second, each with its commit, fully durable."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        now = time.time_ns() // 1000
        ids = [str(uuid.uuid4()) for _ in range(4)]
        end = now + TERM
        connection.execute(INSERT, (*ids, now, end, end, end, now, now, now, 1, "created", "EXPIRED"))
        count += 1
    connection.close()
    return count / (time.perf_counter() - start)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="tsqlite"))
    ours, plain = folder / "ours.db", folder / "plain.db"
    with service(f"sqlite:///{plain}", workers=1):
        pass  # the same tables and indexes, made by the same migrations
    with service(f"sqlite:///{ours}", workers=1) as running:
        wrk(running.address, "created", 2)
        ratio, _ = in_turns(lambda: wrk(running.address, "created"), lambda: one_by_one(plain))
    verdict("SQLite, created", ratio, 2.5)


if __name__ == "__main__":
    main()
