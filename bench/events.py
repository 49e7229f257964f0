"""The cost of the feed: how much the moving horizon slows opens and heartbeats, and the CPU time of many followers.

Events become readable when the horizon moves past them. Opens and heartbeats are measured on one service, alternately
with and without a process that moves the horizon every 250 ms. An instance moves the horizon equally often while
clients follow its feed; during these measurements, no client follows the feed. Then FOLLOWERS clients read Server-Sent
Events from one worker, while sessions are opened at a steady rate.
"""

import argparse
import contextlib
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psutil

from bench import Load, check_bar, median, postgres, service, wrk
from heartbeats import SESSIONS

FOLLOWERS = 1000
EVENTS_PER_SECOND = 1000
SECONDS = 15
SETTLE_SECONDS = 3
START_SECONDS = 0.5
PAIR_SECONDS = 2

PUBLISHER = """
import asyncio, sys, asyncpg
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    while True:
        _, after = await connection.fetchrow("SELECT * FROM tenure_begin_publishing_1(0)")
        await connection.fetchval("SELECT tenure_finish_publishing_1($1)", after)
        await asyncio.sleep(0.25)
asyncio.run(main())
"""
OPENER = """
import asyncio, sys, time, uuid, asyncpg
OPEN = '''SELECT * FROM tenure_open_create_1($1, $2, $3, $4, $5, $6, $6, $6, 86400000000, NULL, NULL, NULL)'''
async def main():
    connection, batch = await asyncpg.connect(sys.argv[1]), int(sys.argv[2]) // 20
    begins = time.monotonic()
    for turn in range(100000):
        ids = [[uuid.uuid4() for _ in range(batch)] for _ in range(4)]
        ids[0].sort()
        await connection.fetch(OPEN, ids[0], ids[1], ids[2], [1] * batch, ids[3], [None] * batch)
        await asyncio.sleep(max(0, begins + turn / 20 - time.monotonic()))
asyncio.run(main())
"""


@contextlib.contextmanager
def running(program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", program, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def alternate(name: str, database: str, load: Callable[[], Load], pairs: int) -> None:
    """Measures pairs of short runs, one with the process that moves the horizon and one without, in alternating order,
    and checks the median ratio. A single pair says little: other work on the machine changes its ratio more than the
    moving horizon does.
    """
    ratios = []
    for number in range(1, pairs + 1):
        without = load() if number % 2 else None
        with running(PUBLISHER, database):
            time.sleep(START_SECONDS)
            moving = load()
        without = without or load()
        ratios.append(moving.per_second / without.per_second)
        print(
            f"  pair {number}: {moving.per_second:8.0f}/s against {without.per_second:8.0f}/s = {ratios[-1]:.2f}   "
            f"p99 {moving.p99_ms:.1f} ms against {without.p99_ms:.1f} ms"
        )
    check_bar(f"{name} while the horizon moves", median(ratios), 0.95)


def follow(address: str, count: int) -> Callable[[float], int]:
    """Connects `count` followers. Returns a function that reads from all of them for a given number of seconds, and
    returns how many bytes it has read.
    """
    parts = urlsplit(address)
    request = f"GET /events?after=latest HTTP/1.1\r\nhost: {parts.netloc}\r\naccept: text/event-stream\r\n\r\n"
    selector = selectors.DefaultSelector()
    for _ in range(count):
        follower = socket.create_connection((str(parts.hostname), int(parts.port or 0)))
        follower.sendall(request.encode())
        follower.setblocking(False)
        selector.register(follower, selectors.EVENT_READ)

    buffer = bytearray(1 << 18)

    def read(seconds: float) -> int:
        received, ends = 0, time.monotonic() + seconds
        while time.monotonic() < ends:
            for key, _ in selector.select(0.1):
                received += key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
        return received

    return read


def measure_followers() -> None:
    with postgres() as server, service(server.create_database("followers"), workers=1) as running_service:
        process = psutil.Process(running_service.process.pid)
        read = follow(running_service.address, FOLLOWERS)
        with running(OPENER, server.url("followers"), str(EVENTS_PER_SECOND)):
            read(SETTLE_SECONDS)
            before, opened = process.cpu_times(), count(server)
            received = read(SECONDS)
            after, opened = process.cpu_times(), count(server) - opened
        used = (after.user + after.system - before.user - before.system) / SECONDS
        print(
            f"  {opened / SECONDS:.0f} events per second, {received / SECONDS / 1e6:.0f} MB per second to followers, "
            f"{used:.2f} cores, {process.memory_info().rss / 1e6:.0f} MB"
        )
        per_follower = received / FOLLOWERS / max(opened, 1)
        check_bar("bytes per event and follower", per_follower, 300, "bytes")
        check_bar(f"{FOLLOWERS} followers", used, 0.5, "cores", at_most=True)


def count(server: object) -> int:
    return int(server.sql("followers", "SELECT count(*) FROM sessions"))  # type: ignore[attr-defined]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pairs", type=int, default=15)
    arguments.add_argument("--only", choices=["created", "heartbeats", "followers"])
    given = arguments.parse_args()
    if given.only in (None, "created"):
        with postgres() as server:
            database = server.create_database("created")
            with service(database) as each:
                wrk(each.address, "created", 2)
                alternate("created", database, lambda: wrk(each.address, "created", PAIR_SECONDS), given.pairs)
    if given.only in (None, "heartbeats"):
        with postgres() as server:
            database = server.create_database("heartbeats")
            with service(database) as each:
                server.sql("heartbeats", SESSIONS)
                wrk(each.address, "heartbeat", 2)
                alternate("heartbeats", database, lambda: wrk(each.address, "heartbeat", PAIR_SECONDS), given.pairs)
    if given.only in (None, "followers"):
        measure_followers()


if __name__ == "__main__":
    main()
