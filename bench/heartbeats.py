"""Heartbeats over HTTP, one by one and a hundred at once, against pgbench's single-row update without any HTTP.

Afterwards PostgreSQL tells how many of the updates were HOT, that is, touched no index.
"""

import argparse

from bench import Load, Postgres, in_turns, median, postgres, service, verdict, wrk

BULK = 100

SESSIONS = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, last_activity_at, modified_at, lease_microseconds,
                      heartbeat_microseconds, kind, state, lapse_reason)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '00000000-0000-4000-8000-0000000000aa',
       gen_random_uuid(), '00000000-0000-4000-8000-000000000001',
       now(), now() + interval '30 days', now() + interval '1 day', now() + interval '1 day', now(), now(), now(),
       86400000000, 5000000, 1, 'created', 'LEASE_EXPIRED'
  FROM generate_series(1, 10000) AS n;
VACUUM ANALYZE sessions;
SELECT pg_stat_reset();
"""


def bulk(address: str) -> Load:
    load = wrk(address, "heartbeats")
    return load._replace(per_second=load.per_second * BULK)


def hot_share(server: Postgres) -> float:
    server.sql("heartbeats", "SELECT pg_stat_force_next_flush()")
    counts = server.sql(
        "heartbeats", "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'sessions'"
    )
    updates, hot = map(int, counts.split("|"))
    return hot / updates * 100


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--minutes", type=int, default=10, help="how long to go on for the share of HOT updates")
    minutes = arguments.parse_args().minutes
    with postgres() as server, service(server.fresh("heartbeats")) as running:
        server.sql("heartbeats", SESSIONS)
        wrk(running.address, "heartbeat", 2)
        ratio, loads = in_turns(
            lambda: wrk(running.address, "heartbeat"), lambda: server.pgbench("heartbeats", "heartbeat")
        )
        many, _ = in_turns(lambda: bulk(running.address), lambda: server.pgbench("heartbeats", "heartbeat"))
        server.sql("heartbeats", "SELECT pg_stat_reset()")
        shares = []
        for minute in range(1, minutes + 1):
            wrk(running.address, "heartbeat", 60)
            shares.append(hot_share(server))
            print(f"  minute {minute}: {shares[-1]:.1f} % HOT")
    verdict("heartbeats", ratio, 1.25)
    verdict("heartbeats, p99", median([load.p99_ms for load in loads]), 20, "ms", at_most=True)
    verdict("heartbeats in bulk", many, 5)
    verdict("HOT updates after the first minute", shares[0], 95, "%")
    verdict(f"HOT updates after {minutes} minutes", shares[-1], 95, "%")


if __name__ == "__main__":
    main()
