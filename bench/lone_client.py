"""The latency of a lone client that creates sessions over HTTP. Baseline: the same insert and commit with asyncpg."""

import asyncio
import json
import socket
import time
import uuid
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import asyncpg

from bench import PAIRS, check_bar, median, postgres, service

REQUESTS = 600
INSERT = """
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, kind, state, lapse_reason)
VALUES ($1, $2, $3, $4, $5, $6, $6, $6, $5, 1, 'created', 'EXPIRED')
"""


async def insert_with_asyncpg(url: str) -> float:
    """Returns the median time in ms of one insert and its commit."""
    connection = await asyncpg.connect(url)
    insert = await connection.prepare(INSERT)
    times = []
    for _ in range(REQUESTS):
        now = datetime.now(UTC)
        values = (uuid.uuid4(), uuid.uuid4(), uuid.uuid4(), uuid.uuid4(), now, now + timedelta(days=30))
        start = time.perf_counter()
        await insert.fetch(*values)
        times.append(time.perf_counter() - start)
    await connection.close()
    return median(times) * 1000


def create_over_http(address: str) -> float:
    """Returns the median time in ms of one PUT on a persistent connection.

    The client is a plain socket, so that it adds little to the measured time.
    """
    host, port = urlsplit(address).netloc.split(":")
    times = []
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(REQUESTS):
            request = _request()
            start = time.perf_counter()
            client.sendall(request)
            response = _read_response(client)
            times.append(time.perf_counter() - start)
            assert response.startswith(b"HTTP/1.1 201"), response
    return median(times) * 1000


def _request() -> bytes:
    names = ("userObjectId", "tenantObjectId", "capacityId")
    body = json.dumps({**{name: str(uuid.uuid4()) for name in names}, "sessionKind": 1}).encode()
    return (
        b"PUT /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def _read_response(client: socket.socket) -> bytes:
    response = client.recv(8192)
    while not response.endswith(b"}"):
        response += client.recv(8192)
    return response


def main() -> None:
    with postgres() as server:
        database = server.create_database("lone_client")
        with service(database, workers=1) as running:
            create_over_http(running.address)
            ratios = []
            for number in range(1, PAIRS + 1):
                base = asyncio.run(insert_with_asyncpg(database))
                measured = create_over_http(running.address)
                ratios.append(measured / base)
                print(f"  pair {number}: {measured:.3f} ms against {base:.3f} ms = {ratios[-1]:.2f}")
    check_bar("a lone client, p50", median(ratios), 2, at_most=True)


if __name__ == "__main__":
    main()
