"""The memory of an idle instance, and its growth over a million requests."""

import argparse

import psutil

from bench import check_bar, postgres, service, wrk

REQUESTS = 1_000_000


def resident_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--requests", type=int, default=REQUESTS)
    requests = arguments.parse_args().requests
    with postgres() as server, service(server.create_database("memory"), workers=1) as running:
        process = psutil.Process(running.process.pid)
        idle = resident_mb(process)
        sent, sizes = 0, []
        while sent < requests:
            load = wrk(running.address, "created", 10)
            sent += round(load.per_second * 10)
            sizes.append(resident_mb(process))
            print(f"  after {sent:8d} requests: {sizes[-1]:.1f} MB")
    check_bar("memory of an idle instance", idle, 120, "MB", at_most=True)
    # The first tenth of the requests fills caches and buffers. After that, the memory may grow by at most 5 MB.
    check_bar("memory growth over the last nine tenths", sizes[-1] - sizes[len(sizes) // 10], 5, "MB", at_most=True)


if __name__ == "__main__":
    main()
