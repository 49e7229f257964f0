"""Opens sessions that are already live, over HTTP. Baseline: pgbench selects for update and commits, without HTTP."""

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
