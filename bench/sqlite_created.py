"""Creates sessions over HTTP on SQLite. Baseline: one commit per insert with the standard library."""

import sqlite3
import tempfile
import time
import uuid
from pathlib import Path

from bench import SECONDS, check_bar, measure_pairs, service, wrk

COLUMNS = (
    "session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at, check_at, "
    "last_heartbeat_at, last_activity_at, modified_at, kind, state, lapse_reason"
)
INSERT = f"INSERT INTO sessions ({COLUMNS}) VALUES ({', '.join('?' * 14)})"
TERM_MICROSECONDS = 30 * 86_400 * 1_000_000


def insert_one_by_one(path: Path) -> float:
    """Returns inserts per second. Each insert has its own durable commit."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        now = time.time_ns() // 1000
        ids = [str(uuid.uuid4()) for _ in range(4)]
        end = now + TERM_MICROSECONDS
        connection.execute(INSERT, (*ids, now, end, end, end, now, now, now, 1, "created", "EXPIRED"))
        count += 1
    connection.close()
    return count / (time.perf_counter() - start)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="tsqlite"))
    subject, baseline = folder / "ours.db", folder / "plain.db"
    with service(f"sqlite:///{baseline}", workers=1):
        pass  # starting the service gives the baseline the same tables and indexes
    with service(f"sqlite:///{subject}", workers=1) as running:
        wrk(running.address, "created", 2)
        ratio, _ = measure_pairs(lambda: wrk(running.address, "created"), lambda: insert_one_by_one(baseline))
    check_bar("SQLite, created", ratio, 2.5)


if __name__ == "__main__":
    main()
