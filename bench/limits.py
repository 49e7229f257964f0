"""Creates sessions on a capacity with 100 000 seats. Baseline: the same load on a capacity without a limit."""

import urllib.request

from bench import Load, check_bar, measure_pairs, median, postgres, service, wrk

CAPACITY = "00000000-0000-4000-8000-000000000002"
SEATS = b'{"maxSessions": 100000}'
CONNECTIONS = 16
SECONDS = 3


def set_limit(address: str) -> None:
    request = urllib.request.Request(
        f"{address}/capacities/{CAPACITY}", SEATS, {"Content-Type": "application/json"}, method="PUT"
    )
    urllib.request.urlopen(request).close()


def main() -> None:
    with postgres() as server, service(server.create_database("limits")) as running:
        set_limit(running.address)

        def limited() -> Load:
            # Each round starts with an empty session table, so the seats suffice and all rounds start from the same
            # state.
            server.sql("limits", "DELETE FROM sessions")
            server.sql("limits", "VACUUM ANALYZE sessions")
            return wrk(running.address, "limited", SECONDS, CONNECTIONS)

        def unlimited() -> float:
            server.sql("limits", "DELETE FROM sessions")
            server.sql("limits", "VACUUM ANALYZE sessions")
            return wrk(running.address, "created", SECONDS, CONNECTIONS).per_second

        limited()
        unlimited()
        ratio, loads = measure_pairs(limited, unlimited)
    check_bar("creates on a limited capacity", ratio, 0.6)
    print(f"     p99 {median([load.p99_ms for load in loads]):.1f} ms")


if __name__ == "__main__":
    main()
