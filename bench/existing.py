"""Asking for a session that is live against pgbench's select-for-update transaction without any HTTP."""

from bench import EXISTING, in_turns, median, postgres, service, verdict, wrk


def main() -> None:
    with postgres() as server:
        database = server.fresh("existing")
        with service(database) as running:
            server.sql("existing", EXISTING)
            wrk(running.address, "existing", 2)
            ratio, loads = in_turns(
                lambda: wrk(running.address, "existing"), lambda: server.pgbench("existing", "existing")
            )
    verdict("existing", ratio, 1.3)
    print(f"     p99 {median([load.p99_ms for load in loads]):.1f} ms")


if __name__ == "__main__":
    main()
