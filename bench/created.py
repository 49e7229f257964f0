"""Opening new sessions over HTTP against pgbench's textbook transaction without any HTTP."""

from bench import in_turns, median, postgres, service, verdict, wrk


def main() -> None:
    with postgres() as server:
        database = server.fresh("created")
        with service(database) as running:
            wrk(running.address, "created", 2)
            ratio, loads = in_turns(
                lambda: wrk(running.address, "created"), lambda: server.pgbench("created", "created")
            )
    verdict("created", ratio, 1.6)
    verdict("created, p99", median([load.p99_ms for load in loads]), 25, "ms", at_most=True)


if __name__ == "__main__":
    main()
