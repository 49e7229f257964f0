"""Metrics of two process groups with two workers each: they agree with what clients saw, and with the database."""

import asyncio
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping

import aiohttp
import psutil
import pytest

from tests.support.databases import Database
from tests.support.instances import RunningInstance
from tests.support.open_requests import some_id
from tests.support.processes import eventually

REQUESTS = 2000
AT_ONCE = 8
WAIT_SECONDS = 60
SHORT_LEASES = {
    "TENURE_LEASES__DURATION_SECONDS": "6",
    "TENURE_LEASES__RENEW_SECONDS": "2",
    "TENURE_LEASES__ACQUIRE_SECONDS": "3",
}
"""The worker that is killed may be the leader. Another one leads as soon as its lease has expired."""


def series(text: str) -> dict[tuple[str, str], float]:
    """The values by the name of the series and its labels."""
    found = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)
    return {(name, labels): float(value) for name, labels, value in found}


def total(scraped: Mapping[tuple[str, str], float], name: str, *labels: str) -> float:
    return sum(
        value for (each, found), value in scraped.items() if each == name and all(label in found for label in labels)
    )


def workers_of(instance: RunningInstance) -> list[psutil.Process]:
    """The children of the supervisor, without the one that tracks its resources."""
    children = psutil.Process(instance.process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


class Clients:
    """Sends requests one after the other on connections of its own, and counts the answers."""

    def __init__(self, address: str, seed: int) -> None:
        self._address = address
        self._random = random.Random(seed)
        self.seen: Counter[tuple[str, int]] = Counter()
        self.opened: Counter[str] = Counter()

    async def run(self, requests: int) -> None:
        async with aiohttp.ClientSession(self._address) as http:
            sessions: list[str] = []
            for _ in range(requests):
                await self._one(http, sessions)

    async def _one(self, http: aiohttp.ClientSession, sessions: list[str]) -> None:
        choice = self._random.random()
        if choice < 0.5 or not sessions:
            names = ("userObjectId", "tenantObjectId", "capacityId")
            body = {**{name: some_id() for name in names}, "sessionKind": self._random.randint(1, 3)}
            answer = await self._send(http, "PUT /sessions", "PUT", "/sessions", json=body)
            sessions.append(answer["sessionId"])
            self.opened[answer["status"]] += 1
        elif choice < 0.8:
            route = "POST /sessions/{sessionId}/heartbeat"
            await self._send(http, route, "POST", f"/sessions/{self._random.choice(sessions)}/heartbeat")
        elif choice < 0.9:
            session_id = sessions.pop(self._random.randrange(len(sessions)))
            await self._send(http, "DELETE /sessions/{sessionId}", "DELETE", f"/sessions/{session_id}")
        else:
            await self._send(http, "unmatched", "GET", f"/{some_id()}")

    async def _send(self, http: aiohttp.ClientSession, route: str, method: str, path: str, **given: object) -> dict:  # type: ignore[type-arg]
        async with http.request(method, path, **given) as response:  # type: ignore[arg-type]
            self.seen[route, response.status] += 1
            return await response.json()  # type: ignore[no-any-return]


async def scrape(address: str) -> dict[tuple[str, str], float]:
    async with aiohttp.ClientSession() as http, http.get(f"{address}/metrics") as response:
        assert response.status == 200
        return series(await response.text())


@pytest.mark.slow
async def test_metrics_equal_what_clients_saw_while_workers_die_and_hang(
    start: type[RunningInstance], postgres_database: Database, seed: int
) -> None:
    database = postgres_database
    groups = [start(database.url, "--workers", "2", **SHORT_LEASES) for _ in range(2)]
    for group in groups:
        group.wait_until_ready()
        await all_up(group.address)
    # One worker is killed before the clients begin: its counters would be lost.
    victim = workers_of(groups[0])[0]
    victim.kill()
    await eventually(lambda: "supervisor.worker_died" in groups[0].log(), WAIT_SECONDS, "the worker is replaced")
    await all_up(groups[0].address)

    clients = [Clients(group.address, seed + number) for number in range(AT_ONCE // 2) for group in groups]
    await asyncio.gather(*(each.run(REQUESTS // AT_ONCE) for each in clients))
    seen: Counter[tuple[str, int]] = sum((each.seen for each in clients), Counter())
    opened: Counter[str] = sum((each.opened for each in clients), Counter())
    scraped = [await scrape(group.address) for group in groups]
    for (route, status), count in seen.items():
        labels = f'route="{route}"', f'status="{status}"'
        counted = sum(total(each, "tenure_http_request_seconds_count", *labels) for each in scraped)
        assert counted == count, (route, status)
    for status, count in opened.items():
        counted = sum(total(each, "tenure_sessions_opened_total", f'status="{status}"') for each in scraped)
        assert counted == count, status
    ended = seen["DELETE /sessions/{sessionId}", 200]
    assert sum(total(each, "tenure_sessions_closed_total") for each in scraped) == ended
    beats = seen["POST /sessions/{sessionId}/heartbeat", 200]
    assert sum(total(each, "tenure_sessions_heartbeat_total") for each in scraped) == beats
    async with asyncio.timeout(WAIT_SECONDS):
        while sum([await leads(group.address) for group in groups]) != 1:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.5)

    rows = await database.rows("SELECT kind, count(*) AS live FROM sessions WHERE closed_at IS NULL GROUP BY kind")
    live = {str(row["kind"]): row["live"] for row in rows}
    for group in groups:
        await eventually_active(group.address, live)

    # A worker that hangs costs a second, and not the scrape.
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
    """A scrape that the other worker has answered. A connection that the stuck worker accepted waits for ever."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                async with asyncio.timeout(5):
                    return await scrape(address)
            except TimeoutError:
                continue


async def all_up(address: str) -> None:
    """Waits until both workers answer."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            scraped = await answered_scrape(address)
            if total(scraped, "tenure_worker_up") == 2:
                return
            await asyncio.sleep(0.05)


async def eventually_active(address: str, live: Mapping[str, int]) -> None:
    """The gauges of the installation are read every ten seconds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            scraped = await scrape(address)
            found = {kind: total(scraped, "tenure_sessions_active", f'kind="{kind}"') for kind in live}
            if found == dict(live):
                return
            await asyncio.sleep(0.2)
