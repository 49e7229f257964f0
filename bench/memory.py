"""The memory of an idle instance, and whether a million requests leave any behind."""

import argparse

import psutil

from bench import postgres, service, verdict, wrk

REQUESTS = 1_000_000


def resident_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--requests", type=int, default=REQUESTS)
    wanted = arguments.parse_args().requests
    with postgres() as server, service(server.fresh("memory"), workers=1) as running:
        process = psutil.Process(running.process.pid)
        idle = resident_mb(process)
        sent, sizes = 0, []
        while sent < wanted:
            load = wrk(running.address, "created", 10)
            sent += round(load.per_second * 10)
            sizes.append(resident_mb(process))
            print(f"  after {sent:8d} requests: {sizes[-1]:.1f} MB")
    verdict("idle instance", idle, 120, "MB", at_most=True)
    # The first tenth fills caches and buffers; after that nothing may grow.
    verdict("growth over the last nine tenths", sizes[-1] - sizes[len(sizes) // 10], 5, "MB", at_most=True)


if __name__ == "__main__":
    main()
