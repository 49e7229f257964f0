"""Usage reaches its receiver exactly once: after days of outage, with changed factors, and as CloudEvents."""

import asyncio
import json
import socket
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
from tests.support.deliveries import Fleet, all_delivered, poll, set_faults
from tests.support.expected_usage import find_usage_faults, read_ledger, read_usage_tables, run_audit
from tests.support.instances import RunningInstance, stop_all
from tests.support.load import Client
from tests.support.receivers import RunningReceiver
from tests.support.usage_running import (
    CUTTING,
    Shift,
    assert_billed_once,
    cutting_environment,
    gateways,
    last_window,
    open_some,
    settle,
    windows_delivered,
)

pytestmark = pytest.mark.slow

Start = Callable[..., RunningInstance]

CONTRACT = {"schedule": [0.2, 3600], "timeout_seconds": 5}
"""With this schedule, usage is sent again an hour after its second failure."""
FACTORS = "TENURE_USAGE__FACTORS__"
LAST_STATUS_OF_OLDEST = """
SELECT a.status FROM submission_attempts a JOIN usage_chunks c ON c.submission_id = a.submission_id
 WHERE c.window_id = (SELECT min(window_id) FROM usage_chunks) AND c.chunk = 1 AND a.ended_at IS NOT NULL
 ORDER BY a.number DESC LIMIT 1
"""


# Outage


@pytest.mark.timeout(120)
async def test_receiver_gets_all_usage_once_after_three_days_of_outage(
    database: Database, start: Start, tmp_path: Path, seed: int
) -> None:
    """On the first day the port is closed, on the second the receiver responds with 410, on the third with 500.

    When the receiver works again, the windows are sent at once, although their next attempts are not due yet.
    """
    shift, port = Shift(database, tmp_path), free_port()
    environment = {**CUTTING, **await shift.install()}
    gateway = gateways(usages={"url": f"http://127.0.0.1:{port}", **CONTRACT})
    fleet = await Fleet(start, database.url, {**environment, **gateway}, 1).ready()
    sessions = await open_some(fleet.running[0], 9, seed)
    await failing(database, 1, fleet)
    receiver = RunningReceiver(tmp_path, "--fail", json.dumps(always(410)), port=port)
    try:
        # Wait until the receiver listens, and only then move the clock. Otherwise the next attempt could be refused as
        # well, and the attempt after it would be an hour later.
        await asyncio.to_thread(lambda: receiver.address)
        await shift.ahead(days=1)
        await failing(database, 2, fleet, 410)
        await end(fleet.running[0], sessions[0])
        await set_faults(receiver, always(500))
        await shift.ahead(days=2)
        await failing(database, 3, fleet, 500)
        pending = await states(database)
        await set_faults(receiver, {"share": 0})
        await all_delivered(database, 20, fleet.all)
        await assert_billed_once(database, receiver.ledger, fleet, f"seed {seed}")
    finally:
        stop_all([receiver])
    assert set(pending) == {"pending"}, pending


def always(status: int) -> dict[str, Any]:
    return {"share": 1, "ways": [{"way": "status", "status": status}]}


async def failing(database: Database, count: int, fleet: Fleet, status: int | None = None) -> None:
    """Waits until at least `count` submissions have failed twice, and the last attempt for the oldest chunk got this
    status (None: no response).
    """

    async def enough() -> bool:
        failed_twice = await database.rows("SELECT 1 FROM submissions WHERE state = 'pending' AND failures >= 2")
        responses = await database.rows(LAST_STATUS_OF_OLDEST)
        return len(failed_twice) >= count and [row["status"] for row in responses] == [status]

    await poll(enough, 20, f"{count} submissions have failed twice", fleet.all)


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


# Changed factors


async def test_windows_keep_factors_of_their_cut(database: Database, start: Start, tmp_path: Path) -> None:
    receiver = RunningReceiver(tmp_path)
    given = [("1000", "2000.000001", "3"), ("0", "2000.000001", "999999.999999"), ("1000", "2000.000001", "3")]
    last = 0
    try:
        for number, factors in enumerate(given, 1):
            environment = {FACTORS + str(kind): factor for kind, factor in enumerate(factors, 1)}
            fleet = await Fleet(start, database.url, cutting_environment(receiver.address, **environment), 1).ready()
            if number == 1:
                await open_some(fleet.running[0], 7, 7)
            await windows_delivered(database, 1, fleet.all, after=last)
            if number < len(given):
                await fleet.stop()
                last = await last_window(database)
        await assert_billed_once(database, receiver.ledger, fleet)
    finally:
        stop_all([receiver])
    books = await read_usage_tables(database)
    assert [era.factors for era in books.eras] == [tuple(map(Fraction, factors)) for factors in given]
    assert len({window.era for window in books.windows}) == len(given), "an era has no window"


# CloudEvents


class Batch(NamedTuple):
    media_type: str
    events: Sequence[Any]


@asynccontextmanager
async def listening(path: Path, batches: list[Batch]) -> AsyncIterator[str]:
    """Runs a receiver in this process that keeps every request, and records it in a ledger."""
    with closing(Ledger(path)) as ledger:

        async def receive(request: web.Request) -> web.Response:
            body = await request.read()
            batches.append(Batch(request.headers["content-type"], json.loads(body, parse_float=Decimal)))
            ledger.record([Delivery(request.headers["idempotency-key"], "/", body, wall_microseconds())])
            return web.Response(status=202)

        application = web.Application(client_max_size=10_000_000)
        application.router.add_post("/", receive)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
        finally:
            await runner.cleanup()


async def test_cloudevents_arrive_in_batches_with_unique_ids_and_correct_sum(
    sqlite_database: Database, start: Start, tmp_path: Path
) -> None:
    batches: list[Batch] = []
    path = tmp_path / "ledger.db"
    async with listening(path, batches) as address:
        environment = cutting_environment(address, TENURE_USAGE__FORMAT="cloudevents")
        fleet = await Fleet(start, sqlite_database.url, environment, 1).ready()
        await open_some(fleet.running[0], 5, 5)
        await windows_delivered(sqlite_database, 2, fleet.all)
        await settle(sqlite_database, fleet.all)
        await fleet.stop()
    assert await find_usage_faults(sqlite_database, path, "cloudevents") == []
    audited = await run_audit(sqlite_database, path)
    assert audited.returncode == 0, audited
    assert {batch.media_type for batch in batches} == {"application/cloudevents-batch+json"}
    events = [event for batch in batches for event in batch.events]
    assert len({(event["source"], event["id"]) for event in events}) == len(events)
    assert sum(event["data"]["usage"] for event in events) == read_ledger(path)[1] > 0
