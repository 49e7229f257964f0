"""The memory of an instance on SQLite under a mixed load of opens, heartbeats, reads and lists.

Each SQLite connection has its own page cache. This benchmark has its own load generator, because only a mix of all
kinds of requests uses all connections and fills all their caches.
"""

import argparse
import asyncio
import itertools
import json
import random
import tempfile
import time
import uuid
from urllib.parse import urlsplit

import psutil

from bench import check_bar, service
from memory import resident_mb

SECONDS = 420
CLIENTS = 16
SAMPLES = 12
BOUND_MB = 160
"""The bound that docs/operating.md names."""
GROWTH_MB = 10
"""How much the memory may grow in the last quarter of the run, when all caches are full."""
TENANT = str(uuid.UUID(int=1))


async def load(address: str, seconds: float) -> int:
    ends_at = time.monotonic() + seconds
    return sum(await asyncio.gather(*(client(address, ends_at) for _ in range(CLIENTS))))


async def client(address: str, ends_at: float) -> int:
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    source, session_ids = random.Random(), [str(uuid.UUID(int=0))]
    for count in itertools.count():
        if time.monotonic() > ends_at:
            writer.close()
            return count
        method, path, body = request(source, session_ids)
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        answer = await response(reader)
        if method == "PUT":
            session_ids.append(answer["sessionId"])
    raise AssertionError("unreachable")


def request(source: random.Random, session_ids: list[str]) -> tuple[str, str, str]:
    known = source.choice(session_ids)
    match source.choices(("open", "heartbeat", "read", "list"), (6, 2, 2, 0.2))[0]:
        case "open":
            names = ("capacityId", "userObjectId")
            ids = {name: str(uuid.UUID(int=source.getrandbits(128))) for name in names}
            return "PUT", "/sessions", json.dumps({**ids, "tenantObjectId": TENANT, "sessionKind": 1})
        case "heartbeat":
            return "POST", f"/sessions/{known}/heartbeat", ""
        case "read":
            return "GET", f"/sessions/{known}", ""
        case _:
            return "GET", "/sessions?limit=50", ""


async def response(reader: asyncio.StreamReader) -> dict[str, str]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    answer: dict[str, str] = json.loads(await reader.readexactly(length))
    return answer


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=int, default=SECONDS)
    seconds = arguments.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, service(f"sqlite:///{folder}/tenure.db", workers=1) as running:
        process = psutil.Process(running.process.pid)
        sent, sizes = 0, [resident_mb(process)]
        print(f"  idle: {sizes[0]:.1f} MB")
        for _ in range(SAMPLES):
            sent += asyncio.run(load(running.address, seconds / SAMPLES))
            sizes.append(resident_mb(process))
            print(f"  after {sent:8d} requests: {sizes[-1]:.1f} MB", flush=True)
    check_bar("memory on SQLite under load", max(sizes), BOUND_MB, "MB", at_most=True)
    growth = sizes[-1] - sizes[SAMPLES * 3 // 4]
    check_bar("memory growth over the last quarter", growth, GROWTH_MB, "MB", at_most=True)


if __name__ == "__main__":
    main()
