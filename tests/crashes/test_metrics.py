"""The metrics of two process groups with two workers each agree with the responses to clients and with the database."""

import asyncio
import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.open_requests import some_id
from tests.support.processes import eventually

REQUESTS = 20_000
AT_ONCE = 16
PIPELINED = 20
SCRAPES_AT_ONCE = 8
OPEN, HEARTBEAT, END = "PUT /sessions", "POST /sessions/{sessionId}/heartbeat", "DELETE /sessions/{sessionId}"
WAIT_SECONDS = 60
SHORT_LEASES = {
    "TENURE_LEASES__DURATION_SECONDS": "6",
    "TENURE_LEASES__RENEW_SECONDS": "2",
    "TENURE_LEASES__ACQUIRE_SECONDS": "3",
}
"""The leases are short, because the killed worker may be the leader, and another worker leads only when the lease has
expired."""


def series(text: str) -> dict[tuple[str, str], float]:
    """Returns the values by the name of the metric and its labels."""
    found = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)
    return {(name, labels): float(value) for name, labels, value in found}


def total(scraped: Mapping[tuple[str, str], float], name: str, *labels: str) -> float:
    return sum(
        value for (each, found), value in scraped.items() if each == name and all(label in found for label in labels)
    )


def workers_of(instance: RunningInstance) -> list[psutil.Process]:
    """Returns the worker processes. Their supervisor has another child process, which tracks resources."""
    children = psutil.Process(instance.process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


class Held:
    """A session that a client holds, and the body of the request that opened it."""

    def __init__(self, session_id: str, body: dict[str, Any]) -> None:
        self.session_id = session_id
        self.body = body


class Clients:
    """Sends PIPELINED requests at a time over one connection, and counts the responses of each worker.

    A request id begins with a prefix that each worker chooses at its start, so each response shows its worker. A
    connection breaks only if its worker was killed. Requests without a response are not counted.
    """

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._sessions: list[Held] = []
        self._worker = ""
        self.answered = 0
        self.seen: Counter[tuple[str, str, int]] = Counter()
        """The number of responses by worker, route and status code."""
        self.opened: Counter[tuple[str, str]] = Counter()
        """The number of responses to `PUT /sessions` by worker and `status` in the body, such as `created`."""
        self.killed: set[str] = set()

    async def run(self, requests: int) -> None:
        while self.answered < requests:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                with closing(writer):
                    while self.answered < requests:
                        await self._exchange(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.killed.add(self._worker)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        batch = [self._next() for _ in range(PIPELINED)]
        writer.write(b"".join(head_and_body for _, head_and_body, _ in batch))
        for route, _, held in batch:
            head = await reader.readuntil(b"\r\n\r\n")
            status, length, self._worker = int(head[9:12]), int(_length(head)[1]), _worker(head)[1].decode()  # type: ignore[index]
            body = await reader.readexactly(length)
            self.answered += 1
            self.seen[self._worker, route, status] += 1
            self._take(route, held, body)

    def _next(self) -> tuple[str, bytes, Held | None]:
        """Returns the route and the bytes of the next request, and the session that it leaves live, if any.

        A batch has at most one request per session, so each response is predictable.
        """
        choice = self._random.random()
        if choice < 0.1:
            return "unmatched", request("GET", f"/{some_id()}"), None
        if choice < 0.5 or not self._sessions:
            names = ("userObjectId", "tenantObjectId", "capacityId")
            held = Held("", {**{name: some_id() for name in names}, "sessionKind": self._random.randint(1, 3)})
            return OPEN, request("PUT", "/sessions", held.body), held
        held = self._sessions.pop(self._random.randrange(len(self._sessions)))
        if choice < 0.6:
            held.body["sessionKind"] = self._random.randint(1, 3)
            return OPEN, request("PUT", "/sessions", held.body), held
        if choice < 0.9:
            return HEARTBEAT, request("POST", f"/sessions/{held.session_id}/heartbeat"), held
        return END, request("DELETE", f"/sessions/{held.session_id}"), None

    def _take(self, route: str, held: Held | None, body: bytes) -> None:
        if held is None:
            return
        self._sessions.append(held)
        if route == OPEN:
            answer = json.loads(body)
            self.opened[self._worker, answer["status"]] += 1
            held.session_id = answer["sessionId"]


def request(method: str, path: str, body: object = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + content


_length = re.compile(rb"content-length: (\d+)").search
_worker = re.compile(rb"x-request-id: (\w+)-").search


async def scrape(address: str) -> dict[tuple[str, str], float]:
    async with aiohttp.ClientSession() as http, http.get(f"{address}/metrics") as response:
        assert response.status == 200
        return series(await response.text())


@pytest.mark.slow
async def test_metrics_equal_responses_to_clients_after_worker_was_killed(
    start: type[RunningInstance], postgres_database: Database, seed: int
) -> None:
    database = postgres_database
    groups: list[RunningInstance] = []
    for _ in range(2):
        # The groups start one after the other, because six processes that start at once would be too slow.
        groups.append(start(database.url, "--workers", "2", **SHORT_LEASES).wait_until_ready())
        await all_up(groups[-1].address)
    clients = [Clients(group.port, seed + number) for number in range(AT_ONCE // 2) for group in groups]
    running = asyncio.gather(*(each.run(REQUESTS // AT_ONCE) for each in clients))
    half = REQUESTS // 2
    await eventually(lambda: sum(each.answered for each in clients) > half, WAIT_SECONDS, "half have responses")
    workers_of(groups[0])[0].kill()
    await running
    # If all connections of the group went to the other worker, no client noticed the kill.
    killed = set().union(*(each.killed for each in clients))
    assert len(killed) <= 1
    await all_up(groups[0].address)
    assert '"supervisor.worker_died"' in groups[0].log()

    seen: Counter[tuple[str, int]] = Counter()
    opened: Counter[str] = Counter()
    for each in clients:
        for (worker, route, status), count in each.seen.items():
            seen[route, status] += count if worker not in killed else 0
        for (worker, status_of_session), count in each.opened.items():
            opened[status_of_session] += count if worker not in killed else 0
    assert sum(each.answered for each in clients) >= REQUESTS
    assert half / 2 < seen.total() < REQUESTS
    scraped = [await scrape(group.address) for group in groups]
    for (route, status), count in seen.items():
        labels = f'route="{route}"', f'status="{status}"'
        counted = sum(total(each, "tenure_http_request_seconds_count", *labels) for each in scraped)
        assert counted == count, (route, status)
    for status_of_session, count in opened.items():
        counted = sum(total(each, "tenure_sessions_opened_total", f'status="{status_of_session}"') for each in scraped)
        assert counted == count, status_of_session
    assert set(opened) == {"created", "existing", "upgraded"}
    ended = seen[END, 200] + opened["upgraded"]
    assert sum(total(each, "tenure_sessions_closed_total") for each in scraped) == ended
    assert sum(total(each, "tenure_sessions_heartbeat_total") for each in scraped) == seen[HEARTBEAT, 200]
    async with asyncio.timeout(WAIT_SECONDS):
        while sum([await leads(group.address) for group in groups]) != 1:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.5)

    rows = await database.rows("SELECT kind, count(*) AS live FROM sessions WHERE closed_at IS NULL GROUP BY kind")
    live = {str(row["kind"]): row["live"] for row in rows}
    for group in groups:
        await eventually_active(group.address, live)

    # A worker that hangs delays the scrape by a second, but the scrape succeeds.
    stuck = workers_of(groups[1])[1]
    stuck.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        hanging = await answered_scrape(groups[1].address)
        assert total(hanging, "tenure_worker_up") == 1
        assert len([key for key in hanging if key[0] == "tenure_worker_up"]) == 2
        assert time.monotonic() - began < WAIT_SECONDS
    finally:
        stuck.send_signal(signal.SIGCONT)
    await all_up(groups[1].address)


async def leads(address: str) -> float:
    return total(await scrape(address), "tenure_leader", 'lease="submission-executor"')


async def answered_scrape(address: str) -> dict[tuple[str, str], float]:
    """Scrapes over several connections, and returns the first response: a connection that a stuck worker has accepted
    gets none.
    """
    scrapes = [asyncio.create_task(scrape(address)) for _ in range(SCRAPES_AT_ONCE)]
    try:
        done, _ = await asyncio.wait(scrapes, timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for each in scrapes:
            each.cancel()


async def all_up(address: str) -> None:
    """Waits until both workers answer."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            scraped = await answered_scrape(address)
            if total(scraped, "tenure_worker_up") == 2:
                return
            await asyncio.sleep(0.05)


async def eventually_active(address: str, live: Mapping[str, int]) -> None:
    """Waits until the gauges, which are updated every ten seconds, show the live sessions of each kind."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            scraped = await scrape(address)
            found = {kind: total(scraped, "tenure_sessions_active", f'kind="{kind}"') for kind in live}
            if found == dict(live):
                return
            await asyncio.sleep(0.2)
