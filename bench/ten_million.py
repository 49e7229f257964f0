"""Ten million live sessions: the latency of opens and heartbeats, and the disk space of a session.

The baseline is the same load on twenty thousand sessions, on another database of the same server. The load alternates
between both databases. pgbench updates one row per transaction on both, to show how much slower PostgreSQL itself
becomes with more sessions. Caches are warm: every script runs once before it is measured.

The script needs about 10 GB of free memory, so that the large database, 5 GB with its indexes, stays in the page cache.
"""

import argparse

from bench import EXISTING, Postgres, check_bar, median, postgres, service, wrk
from heartbeats import SESSIONS

SMALL, LARGE = 10_000, 10_000_000
SCRIPTS = ("created", "existing", "heartbeat")
ROUNDS = 5
SECONDS = 5

# A thousand tenants, five thousand capacities. A session that starts later has a greater id, as in the service.
ROWS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, lease_microseconds,
                      heartbeat_microseconds, kind, state, lapse_reason)
SELECT (lpad(to_hex((extract(epoch FROM s) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid,
       md5('t' || n % 1000)::uuid, md5('u' || n)::uuid, md5('c' || n % 5000)::uuid,
       s, s + interval '30 days', now() + interval '1 day', now() + interval '1 day', s,
       86400000000, 5000000, n % 3 + 1, 'created', 'LEASE_EXPIRED'
  FROM (SELECT n, now() - (:sessions - n) * interval '1 millisecond' AS s
          FROM generate_series(1, :sessions) AS n) AS made;
VACUUM ANALYZE sessions;
"""
SIZE = "SELECT count(*), pg_table_size('sessions'), pg_indexes_size('sessions') FROM sessions"


def fill(server: Postgres, database: str, sessions: int) -> None:
    """Inserts `sessions` sessions: the 2 * SMALL sessions that the scripts use, and others."""
    server.sql(database, f"\\set sessions {sessions - 2 * SMALL}\n{ROWS}" if sessions > 2 * SMALL else "SELECT 1")
    server.sql(database, SESSIONS)
    server.sql(database, EXISTING)
    server.sql(database, "CHECKPOINT")


def bytes_per_session(server: Postgres, database: str) -> tuple[float, float]:
    """Returns the bytes per session in the table and in its indexes.

    The indexes existed before the sessions were inserted, so their pages are as full as in the service.
    """
    count, heap, indexes = map(int, server.sql(database, SIZE).split("|"))
    return heap / count, indexes / count


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--large", type=int, default=LARGE)
    large = arguments.parse_args().large
    with postgres() as server:
        urls = {name: server.create_database(name) for name in ("small", "large")}
        p50s: dict[tuple[str, str], list[float]] = {}
        plain: dict[str, list[float]] = {name: [] for name in urls}
        with service(urls["small"]) as small, service(urls["large"]) as big:
            fill(server, "small", 2 * SMALL)
            fill(server, "large", large)
            heap, indexes = bytes_per_session(server, "large")
            print(f"  {heap:.0f} bytes of a session are in the table, {indexes:.0f} in its indexes", flush=True)
            for number in range(ROUNDS + 1):
                for name, running in (("small", small), ("large", big)):
                    plain[name].append(server.pgbench(name, "heartbeat", SECONDS))
                    for script in SCRIPTS:
                        p50 = wrk(running.address, script, SECONDS).p50_ms
                        p50s.setdefault((name, script), []).append(p50)
                        print(f"  round {number}, {name}: {script} p50 {p50:.2f} ms", flush=True)
    # The first round only warms the caches.
    for script in SCRIPTS:
        before, after = (median(p50s[name, script][1:]) for name in ("small", "large"))
        check_bar(f"{script}, p50 at {large} against {2 * SMALL}", after / before, 1.15, at_most=True)
    slower = median(plain["small"][1:]) / median(plain["large"][1:])
    print(f"  pgbench, one update per transaction: takes {slower:.2f} times as long with more sessions")
    check_bar("disk of a live session", heap + indexes, 350, "bytes", at_most=True)


if __name__ == "__main__":
    main()
