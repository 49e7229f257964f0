"""Submissions: how fast they are accepted, how fast they are sent, and how soon a new leader knows a million of them.

Accepting is measured against pgbench inserting the same rows, with a receiver that never answers, so that nothing but
accepting goes on. Sending is measured against the same HTTP client without a database, to the same receiver, with as
many requests in flight.
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import aiohttp
import psutil

from bench import PAIRS, Postgres, in_turns, median, postgres, service, verdict, wrk
from tenure.config import GatewayConfig
from tenure.ids import new_id
from tenure.model.submissions import Submit
from tenure.store.engines import open_store
from tenure.store.store import BATCH_MAX
from tenure.submissions.gateways import Gateway
from tenure.submissions.intake import Intake, ServerClock

PAYLOAD = json.dumps({"event": "opened", "text": "x" * 170}).encode()
SENT = 20_000
IN_FLIGHT = 64
WAITING = 1_000_000
MEGABYTE = 1_000_000

MILLION = f"""
INSERT INTO submissions (
    submission_id, gateway, caller, idempotency_key, delivery_key, payload, digest, contract, state, attempts, failures,
    next_attempt_at, created_at, last_modified_at)
SELECT gen_random_uuid(), 'bench', '', n::text, n::text, convert_to('{{"n":' || n || '}}', 'UTF8'),
       decode(repeat('ab', 32), 'hex'), '{{}}', 'pending', 0, 0, now() + interval '1 hour', now(),
       now() - n * interval '1 millisecond'
  FROM generate_series(1, {WAITING}) AS n;
VACUUM ANALYZE submissions;
"""


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A receiver that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def receiver() -> Iterator[int]:
    folder = Path(tempfile.mkdtemp(prefix="trecv"))
    port = _free_port()
    command = [sys.executable, "-m", "tenure", "receiver", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        while not _counted(port, missing=-1) >= 0:
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _counted(port: int, missing: int = 0) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_totals") as answer:
            return int(json.load(answer)["keys"])
    except OSError:
        return missing


def gateway(port: int) -> None:
    os.environ["TENURE_GATEWAYS__BENCH__URL"] = f"http://127.0.0.1:{port}/in"
    os.environ["TENURE_GATEWAYS__BENCH__CONCURRENCY"] = str(IN_FLIGHT)


def accepting(server: Postgres) -> tuple[float, float]:
    with silent() as port:
        gateway(port)
        with service(server.fresh("accepted")) as running:
            wrk(running.address, "accepted", 2)
            ratio, loads = in_turns(
                lambda: wrk(running.address, "accepted"), lambda: server.pgbench("accepted", "accepted")
            )
    return ratio, median([load.p99_ms for load in loads])


async def bare(port: int) -> float:
    """Requests a second by the HTTP client alone."""
    left = iter(range(SENT))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def send() -> None:
            for _ in left:
                headers = {"idempotency-key": str(uuid.uuid4()), "content-type": "application/json"}
                async with client.post(f"http://127.0.0.1:{port}/in", data=PAYLOAD, headers=headers) as answer:
                    await answer.read()

        began = time.monotonic()
        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
        return SENT / (time.monotonic() - began)


async def fill(url: str) -> None:
    store = open_store(url, 10)
    await store.migrate()
    contract = Gateway("bench", GatewayConfig(url="http://127.0.0.1:1/")).contract
    wishes = [
        Submit(new_id(), "bench", "", str(number), PAYLOAD, sha256(PAYLOAD).digest(), contract)
        for number in range(SENT)
    ]
    for start in range(0, SENT, BATCH_MAX):
        await store.accept_submissions(wishes[start : start + BATCH_MAX])
    await store.close()


def sent(server: Postgres, port: int) -> float:
    """Submissions a second, from the first to the last that the receiver counted."""
    url = server.fresh("sent")
    asyncio.run(fill(url))
    server.sql("sent", "VACUUM ANALYZE submissions")
    before = _counted(port)
    with service(url, workers=1):
        began, start = time.monotonic(), _counted(port)
        while (counted := _counted(port)) < before + SENT:
            if start == before and counted > before:
                began, start = time.monotonic(), counted
            time.sleep(0.05)
        seconds = time.monotonic() - began
    return (before + SENT - start) / seconds


def sending(server: Postgres) -> float:
    import uvloop  # noqa: PLC0415 - the service runs on it, too

    ratios = []
    with receiver() as port:
        gateway(port)
        for number in range(1, PAIRS + 1):
            base = uvloop.run(bare(port))
            speed = sent(server, port)
            ratios.append(speed / base)
            print(f"  pair {number}: {speed:8.0f}/s against {base:8.0f}/s = {ratios[-1]:.2f}")
    return median(ratios)


async def rebuild(url: str) -> tuple[float, float]:
    """Seconds and megabytes for a schedule of a million."""
    store = open_store(url, 10)
    await store.list_waiting(None, 1)
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.monotonic()
    intake = Intake(store, ServerClock())
    await intake.build()
    seconds = time.monotonic() - began
    grown = (process.memory_info().rss - before) / MEGABYTE
    if len(intake.schedule) != WAITING:
        raise AssertionError(f"{len(intake.schedule)} are in the schedule")
    await store.close()
    return seconds, grown


async def rebuilding(server: Postgres) -> tuple[float, float]:
    url = server.fresh("rebuilt")
    store = open_store(url, 4)
    await store.migrate()
    await store.close()
    server.sql("rebuilt", MILLION)
    return await rebuild(url)


def main() -> None:
    with postgres() as server:
        seconds, grown = asyncio.run(rebuilding(server))
        verdict("a schedule of a million rebuilt", seconds, 10, "s", at_most=True)
        verdict("its memory", grown, 300, "MB", at_most=True)
        accepted, p99 = accepting(server)
        verdict("accepted", accepted, 1.0)
        print(f"     p99 {p99:.1f} ms")
        verdict("sent", sending(server), 0.5)


if __name__ == "__main__":
    main()
