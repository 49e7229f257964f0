"""Creates sessions over HTTP.

Baseline: pgbench creates sessions without HTTP, one per transaction: begin, select for update, insert, commit.
"""

from bench import check_bar, measure_pairs, median, postgres, service, wrk


def main() -> None:
    with postgres() as server:
        database = server.create_database("created")
        with service(database) as running:
            wrk(running.address, "created", 2)
            ratio, loads = measure_pairs(
                lambda: wrk(running.address, "created"), lambda: server.pgbench("created", "created")
            )
    check_bar("created", ratio, 1.9)
    check_bar("created, p99", median([load.p99_ms for load in loads]), 25, "ms", at_most=True)


if __name__ == "__main__":
    main()
