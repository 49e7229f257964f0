"""Usage on its way to whoever wants it: receivers that are away for days, factors that change, another format."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from tenure.clock import wall_microseconds
from tenure.receiver.ledger import Delivery, Ledger
from tests.support.databases import Database
from tests.support.deliveries import Fleet, found, received, set_faults
from tests.support.instances import RunningInstance, stop_all
from tests.support.load import Client
from tests.support.receivers import RunningReceiver
from tests.support.usage_running import (
    CUTTING,
    Shift,
    assert_billed_once,
    cutting,
    gateways,
    last_window,
    open_some,
    settle,
    windows_delivered,
)
from tests.support.usage_truth import audit, read_books, read_ledger, wrong_usage

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

PATIENT = {"schedule": [0.2, 3600], "max_attempts": 2, "timeout_seconds": 5}
"""Who fails twice is left alone for an hour; and more than two attempts no other submission would be given."""
FACTORS = "TENURE_USAGE__FACTORS__"
LAST_ANSWER_TO_THE_OLDEST = """
SELECT a.status FROM submission_attempts a JOIN usage_chunks c ON c.submission_id = a.submission_id
 WHERE c.window_id = (SELECT min(window_id) FROM usage_chunks) AND c.chunk = 1 AND a.ended_at IS NOT NULL
 ORDER BY a.number DESC LIMIT 1
"""


# A receiver that is away


@pytest.mark.timeout(120)
async def test_a_receiver_that_was_away_for_three_days_gets_everything_once(
    database: Database, start: Start, tmp_path: Path, seed: int
) -> None:
    """A day nobody listens, a day it says that it is gone for ever, a day it fails."""
    shift, port = Shift(database, tmp_path), free_port()
    environment = {**CUTTING, **await shift.install()}
    gateway = gateways(usages={"url": f"http://127.0.0.1:{port}", **PATIENT})
    fleet = await Fleet(start, database.url, {**environment, **gateway}, 1).ready()
    sessions = await open_some(fleet.running[0], 9, seed)
    await failing(database, 2, fleet)
    receiver = RunningReceiver(tmp_path, "--fail", json.dumps(always(410)), port=port)
    try:
        # Not before it listens: who is refused once more waits for another hour.
        await asyncio.to_thread(lambda: receiver.address)
        await shift.ahead(days=1)
        await failing(database, 4, fleet, 410)
        await end(fleet.running[0], sessions[0])
        await set_faults(receiver, always(500))
        await shift.ahead(days=2)
        await failing(database, 6, fleet, 500)
        waiting = await states(database)
        await set_faults(receiver, {"share": 0})
        await windows_delivered(database, 2, fleet.all)
        early = list(received(receiver))
        await shift.ahead(hours=2)
        await assert_billed_once(database, receiver.ledger, fleet, f"seed {seed}")
    finally:
        stop_all([receiver])
    assert set(waiting) == {"pending"}, waiting
    assert not any(key.endswith("-1-1") for key in early), "the oldest did not wait for its time"


def always(status: int) -> dict[str, Any]:
    return {"share": 1, "ways": [{"way": "status", "status": status}]}


async def failing(database: Database, count: int, fleet: Fleet, status: int | None = None) -> None:
    """Waits until so many have failed twice and wait for an hour, the oldest of them after this answer."""

    async def enough() -> bool:
        waiting = await database.rows("SELECT 1 FROM submissions WHERE state = 'pending' AND failures >= 2")
        answers = await database.rows(LAST_ANSWER_TO_THE_OLDEST)
        return len(waiting) >= count and [row["status"] for row in answers] == [status]

    await found(enough, 20, f"{count} have failed twice", fleet.all)


async def states(database: Database) -> Sequence[str]:
    return [row["state"] for row in await database.rows("SELECT state FROM submissions")]


async def end(instance: RunningInstance, session_id: str) -> None:
    client = Client(instance.address, [])
    assert (await client.end(("", ""), session_id)).status == 200
    client.close()


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# Factors that change


async def test_each_window_keeps_the_factors_it_was_cut_with(database: Database, start: Start, tmp_path: Path) -> None:
    receiver = RunningReceiver(tmp_path)
    given = [("1000", "2000.000001", "3"), ("0", "2000.000001", "999999.999999"), ("1000", "2000.000001", "3")]
    last = 0
    try:
        for number, factors in enumerate(given, 1):
            environment = {FACTORS + str(kind): factor for kind, factor in enumerate(factors, 1)}
            fleet = await Fleet(start, database.url, cutting(receiver.address, **environment), 1).ready()
            if number == 1:
                await open_some(fleet.running[0], 7, 7)
            await windows_delivered(database, 2, fleet.all, after=last)
            if number < len(given):
                await fleet.stop()
                last = await last_window(database)
        await assert_billed_once(database, receiver.ledger, fleet)
    finally:
        stop_all([receiver])
    books = await read_books(database)
    assert [era.factors for era in books.eras] == [tuple(map(Fraction, factors)) for factors in given]
    assert min(Counter(window.era for window in books.windows).values()) >= 2, "an era without windows proves nothing"


# Another format


class Arrived(NamedTuple):
    media_type: str
    events: Sequence[Any]


@asynccontextmanager
async def listening(path: Path, arrived: list[Arrived]) -> AsyncIterator[str]:
    """A receiver in this process that keeps what comes, beside the same ledger as any other."""
    with closing(Ledger(path)) as ledger:

        async def take(request: web.Request) -> web.Response:
            body = await request.read()
            arrived.append(Arrived(request.headers["content-type"], json.loads(body, parse_float=Decimal)))
            ledger.record([Delivery(request.headers["idempotency-key"], "/", body, wall_microseconds())])
            return web.Response(status=202)

        application = web.Application(client_max_size=10_000_000)
        application.router.add_post("/", take)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
        finally:
            await runner.cleanup()


async def test_cloud_events_come_in_batches_with_ids_of_their_own_and_add_up(
    sqlite_database: Database, start: Start, tmp_path: Path
) -> None:
    arrived: list[Arrived] = []
    path = tmp_path / "ledger.db"
    async with listening(path, arrived) as address:
        environment = cutting(address, TENURE_USAGE__FORMAT="cloudevents")
        fleet = await Fleet(start, sqlite_database.url, environment, 1).ready()
        await open_some(fleet.running[0], 5, 5)
        await windows_delivered(sqlite_database, 3, fleet.all)
        await settle(sqlite_database, fleet.all)
        await fleet.stop()
    assert await wrong_usage(sqlite_database, path, "cloudevents") == []
    audited = await audit(sqlite_database, path)
    assert audited.returncode == 0, audited
    assert {each.media_type for each in arrived} == {"application/cloudevents-batch+json"}
    events = [event for each in arrived for event in each.events]
    assert len({(event["source"], event["id"]) for event in events}) == len(events)
    assert sum(event["data"]["usage"] for event in events) == read_ledger(path)[1] > 0
