"""Submissions: the rate of accepting, the rate of sending, and the time that a new leader needs to build its schedule.

- Accepting: the baseline is pgbench, which inserts the same rows. The receiver never responds, so the service sends
  almost nothing while it accepts.
- Sending: the baseline is aiohttp without a database. It sends to the same receiver with the same number of requests in
  flight.
- Building: the schedule has a million pending submissions. There is no baseline.
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

from bench import PAIRS, Postgres, check_bar, measure_pairs, median, postgres, service, wrk
from tenure.config import GatewayConfig
from tenure.domain.submissions import SubmitRequest
from tenure.ids import new_id
from tenure.store.engines import open_store
from tenure.store.limits import BATCH_MAX
from tenure.submissions.gateways import Gateway
from tenure.submissions.intake import Intake, ServerClock
from tenure.submissions.payloads import PayloadSources

PAYLOAD = json.dumps({"event": "opened", "text": "x" * 170}).encode()
SENT = 20_000
IN_FLIGHT = 64
PENDING = 1_000_000
MEGABYTE = 1_000_000

PENDING_ROWS = f"""
INSERT INTO submissions (
    submission_id, gateway, caller, idempotency_key, delivery_key, payload, digest, contract, state, attempts, failures,
    next_attempt_at, created_at, last_modified_at)
SELECT gen_random_uuid(), 'bench', '', n::text, n::text, convert_to('{{"n":' || n || '}}', 'UTF8'),
       decode(repeat('ab', 32), 'hex'), '{{}}', 'pending', 0, 0, now() + interval '1 hour', now(),
       now() - n * interval '1 millisecond'
  FROM generate_series(1, {PENDING}) AS n;
VACUUM ANALYZE submissions;
"""


@contextlib.contextmanager
def silent_receiver() -> Iterator[int]:
    """A socket that clients can connect to and that never responds. Yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def receiver() -> Iterator[int]:
    """Runs `tenure receiver` and yields its port."""
    folder = Path(tempfile.mkdtemp(prefix="trecv"))
    port = _free_port()
    command = [sys.executable, "-m", "tenure", "receiver", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        while not _received(port, unreachable=-1) >= 0:
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _received(port: int, unreachable: int = 0) -> int:
    """Returns the number of delivery keys that the receiver has counted, or `unreachable`."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_totals") as response:
            return int(json.load(response)["keys"])
    except OSError:
        return unreachable


def configure_gateway(port: int) -> None:
    os.environ["TENURE_GATEWAYS__BENCH__URL"] = f"http://127.0.0.1:{port}/in"
    os.environ["TENURE_GATEWAYS__BENCH__CONCURRENCY"] = str(IN_FLIGHT)


def measure_accepting(server: Postgres) -> tuple[float, float]:
    """Returns the rate at which the service accepts, divided by the rate of pgbench, and the p99 of a request in ms."""
    with silent_receiver() as port:
        configure_gateway(port)
        with service(server.create_database("accepted")) as running:
            wrk(running.address, "accepted", 2)
            ratio, loads = measure_pairs(
                lambda: wrk(running.address, "accepted"), lambda: server.pgbench("accepted", "accepted")
            )
    return ratio, median([load.p99_ms for load in loads])


async def send_without_database(port: int) -> float:
    """Returns the requests per second of aiohttp alone."""
    remaining = iter(range(SENT))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def send() -> None:
            for _ in remaining:
                headers = {"idempotency-key": str(uuid.uuid4()), "content-type": "application/json"}
                async with client.post(f"http://127.0.0.1:{port}/in", data=PAYLOAD, headers=headers) as response:
                    await response.read()

        began = time.monotonic()
        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
        return SENT / (time.monotonic() - began)


async def accept_all(url: str) -> None:
    """Stores the submissions that the service will send."""
    store = open_store(url, 10)
    await store.migrate()
    contract = Gateway("bench", GatewayConfig(url="http://127.0.0.1:1/"), PayloadSources()).contract
    requests = [
        SubmitRequest(new_id(), "bench", "", str(number), PAYLOAD, sha256(PAYLOAD).digest(), contract)
        for number in range(SENT)
    ]
    for start in range(0, SENT, BATCH_MAX):
        await store.accept_submissions(requests[start : start + BATCH_MAX])
    await store.close()


def send_with_service(server: Postgres, port: int) -> float:
    """Returns the submissions per second, between the first and the last delivery that the receiver counted."""
    url = server.create_database("sent")
    asyncio.run(accept_all(url))
    server.sql("sent", "VACUUM ANALYZE submissions")
    before = _received(port)
    with service(url, workers=1):
        began, start = time.monotonic(), _received(port)
        while (received := _received(port)) < before + SENT:
            if start == before and received > before:
                began, start = time.monotonic(), received
            time.sleep(0.05)
        seconds = time.monotonic() - began
    return (before + SENT - start) / seconds


def measure_sending(server: Postgres) -> float:
    import uvloop  # noqa: PLC0415 - the service uses it too

    ratios = []
    with receiver() as port:
        configure_gateway(port)
        for number in range(1, PAIRS + 1):
            base = uvloop.run(send_without_database(port))
            speed = send_with_service(server, port)
            ratios.append(speed / base)
            print(f"  pair {number}: {speed:8.0f}/s against {base:8.0f}/s = {ratios[-1]:.2f}")
    return median(ratios)


async def build_schedule(url: str) -> tuple[float, float]:
    """Builds a schedule of a million submissions. Returns the seconds and the memory in MB that this took."""
    store = open_store(url, 10)
    await store.list_pending(None, 1)
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.monotonic()
    intake = Intake(store, ServerClock())
    await intake.build()
    seconds = time.monotonic() - began
    grown = (process.memory_info().rss - before) / MEGABYTE
    if len(intake.schedule) != PENDING:
        raise AssertionError(f"the schedule has {len(intake.schedule)} submissions")
    await store.close()
    return seconds, grown


async def measure_building(server: Postgres) -> tuple[float, float]:
    url = server.create_database("rebuilt")
    store = open_store(url, 4)
    await store.migrate()
    await store.close()
    server.sql("rebuilt", PENDING_ROWS)
    return await build_schedule(url)


def main() -> None:
    with postgres() as server:
        seconds, grown = asyncio.run(measure_building(server))
        check_bar("schedule of a million built", seconds, 10, "s", at_most=True)
        check_bar("schedule of a million, memory", grown, 300, "MB", at_most=True)
        accepted, p99 = measure_accepting(server)
        check_bar("accepting", accepted, 1.0)
        print(f"     p99 {p99:.1f} ms")
        check_bar("sending", measure_sending(server), 0.7)


if __name__ == "__main__":
    main()
