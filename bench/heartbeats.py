"""Heartbeats over HTTP, one session or a hundred sessions per request.

Baseline: pgbench updates one row per transaction, without HTTP. Then the benchmark sends heartbeats for some minutes
(`--minutes`), and after each minute reads the share of HOT updates from PostgreSQL's statistics. HOT updates are those
that write no index.
"""

import argparse

from bench import Load, Postgres, check_bar, measure_pairs, median, postgres, service, wrk

SESSIONS_PER_REQUEST = 100

SESSIONS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, lease_microseconds,
                      heartbeat_microseconds, kind, state, lapse_reason)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '00000000-0000-4000-8000-0000000000aa',
       gen_random_uuid(), '00000000-0000-4000-8000-000000000001',
       now(), now() + interval '30 days', now() + interval '1 day', now() + interval '1 day', now(),
       86400000000, 5000000, 1, 'created', 'LEASE_EXPIRED'
  FROM generate_series(1, 10000) AS n;
VACUUM ANALYZE sessions;
SELECT pg_stat_reset();
"""


def bulk(address: str) -> Load:
    """Returns the load in sessions, not requests, per second."""
    load = wrk(address, "heartbeats")
    return load._replace(per_second=load.per_second * SESSIONS_PER_REQUEST)


def hot_share(server: Postgres) -> float:
    """Returns the percentage of HOT updates since the last reset of the statistics."""
    server.sql("heartbeats", "SELECT pg_stat_force_next_flush()")
    counts = server.sql(
        "heartbeats", "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'sessions'"
    )
    updates, hot = map(int, counts.split("|"))
    return hot / updates * 100


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--minutes", type=int, default=10, help="how long to measure the share of HOT updates")
    minutes = arguments.parse_args().minutes
    with postgres() as server, service(server.create_database("heartbeats")) as running:
        server.sql("heartbeats", SESSIONS)
        wrk(running.address, "heartbeat", 2)
        ratio, loads = measure_pairs(
            lambda: wrk(running.address, "heartbeat"), lambda: server.pgbench("heartbeats", "heartbeat")
        )
        bulk_ratio, _ = measure_pairs(lambda: bulk(running.address), lambda: server.pgbench("heartbeats", "heartbeat"))
        server.sql("heartbeats", "SELECT pg_stat_reset()")
        shares = []
        for minute in range(1, minutes + 1):
            wrk(running.address, "heartbeat", 60)
            shares.append(hot_share(server))
            print(f"  minute {minute}: {shares[-1]:.1f} % HOT")
    check_bar("heartbeats", ratio, 1.6)
    check_bar("heartbeats, p99", median([load.p99_ms for load in loads]), 20, "ms", at_most=True)
    check_bar("heartbeats in bulk", bulk_ratio, 8)
    check_bar("HOT updates after the first minute", shares[0], 95, "%")
    check_bar(f"HOT updates after {minutes} minutes", shares[-1], 95, "%")


if __name__ == "__main__":
    main()
