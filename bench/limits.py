"""What a limit costs: opening sessions on a capacity of 100 000 seats against opening them on one without a limit."""

import urllib.request

from bench import Load, in_turns, median, postgres, service, verdict, wrk

CAPACITY = "00000000-0000-4000-8000-000000000002"
SEATS = b'{"maxSessions": 100000}'
CONNECTIONS = 16
SECONDS = 3


def limit(address: str) -> None:
    request = urllib.request.Request(
        f"{address}/capacities/{CAPACITY}", SEATS, {"Content-Type": "application/json"}, method="PUT"
    )
    urllib.request.urlopen(request).close()


def main() -> None:
    with postgres() as server, service(server.fresh("limits")) as running:
        limit(running.address)

        def limited() -> Load:
            # Seats enough for this round, and as many live sessions in every round.
            server.sql("limits", "DELETE FROM sessions")
            server.sql("limits", "VACUUM ANALYZE sessions")
            return wrk(running.address, "limited", SECONDS, CONNECTIONS)

        def unlimited() -> float:
            server.sql("limits", "DELETE FROM sessions")
            server.sql("limits", "VACUUM ANALYZE sessions")
            return wrk(running.address, "created", SECONDS, CONNECTIONS).per_second

        limited()
        unlimited()
        ratio, loads = in_turns(limited, unlimited)
    verdict("creates on a limited capacity", ratio, 0.4)
    print(f"     p99 {median([load.p99_ms for load in loads]):.1f} ms")


if __name__ == "__main__":
    main()
