"""Open requests over HTTP for sessions that are already live.

Baseline: pgbench, without HTTP. Each of its transactions selects a live session FOR UPDATE and commits.
"""

from bench import EXISTING, check_bar, measure_pairs, median, postgres, service, wrk


def main() -> None:
    with postgres() as server:
        database = server.create_database("existing")
        with service(database) as running:
            server.sql("existing", EXISTING)
            wrk(running.address, "existing", 2)
            ratio, loads = measure_pairs(
                lambda: wrk(running.address, "existing"), lambda: server.pgbench("existing", "existing")
            )
    check_bar("existing", ratio, 2.0)
    print(f"     p99 {median([load.p99_ms for load in loads]):.1f} ms")


if __name__ == "__main__":
    main()
