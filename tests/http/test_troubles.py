"""Failures of the service: no database yet, a full queue, and unexpected exceptions."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import pytest

from tenure.config import Config
from tests.http.client import open_body
from tests.http.local import LocalService, eventually
from tests.http.test_connections import Gate
from tests.http.test_refusals import PROBLEM_KEYS
from tests.support.databases import Clock, PostgresServer

LANES = ["/sessions", "/%73essions"]
"""Two forms of one path: the hot lane serves the first, and the ordinary lane serves the encoded form."""


# No database yet.


class MissingDatabase:
    """The URL of a database that does not exist, the part of the URL that names the database, and a function that makes
    the database available. For SQLite, this function creates only the folder: the instance creates the file itself once
    the folder exists.
    """

    def __init__(self, url: str, name: str, create: Callable[[], Awaitable[None]]) -> None:
        self.url = url
        self.name = name
        self.create = create


@pytest.fixture
def missing_sqlite(tmp_path: Path) -> MissingDatabase:
    name = f"later_{uuid4().hex}"

    async def create() -> None:
        (tmp_path / name).mkdir()

    return MissingDatabase(f"sqlite:///{tmp_path / name / 'tenure.db'}", name, create)


@pytest.fixture
def missing_postgresql(postgres: PostgresServer) -> MissingDatabase:
    name = f"later_{uuid4().hex}"

    async def create() -> None:
        await postgres.execute(f"CREATE DATABASE {name}")

    return MissingDatabase(postgres.url(name), name, create)


@pytest.fixture(params=["sqlite", "postgresql"])
def missing(request: pytest.FixtureRequest) -> MissingDatabase:
    return request.getfixturevalue(f"missing_{request.param}")  # type: ignore[no-any-return]


@pytest.fixture
async def waiting(missing: MissingDatabase) -> AsyncIterator[LocalService]:
    """An instance that was started before its database existed."""
    service = LocalService(Config(database=missing.url), Clock())
    await service.start()
    yield service
    await service.stop()


async def test_requests_without_database_return_503_with_retry_after(
    waiting: LocalService, missing: MissingDatabase
) -> None:
    alive, ready = await waiting.http.get("/healthz"), await waiting.http.get("/readyz")
    assert (alive.status_code, ready.status_code) == (200, 503)
    responses = [
        *[await waiting.http.put(path, json=open_body()) for path in LANES],
        await waiting.http.get("/sessions"),
        await waiting.http.get("/sessions/00000000-0000-0000-0000-000000000000"),
        await waiting.http.delete("/sessions/00000000-0000-0000-0000-000000000000"),
        await waiting.http.get("/sessions/metrics"),
        await waiting.http.get("/health"),
        *[await waiting.http.get(path) for path in ("/leases", "/jobs", "/jobs/prune/runs")],
        *[await waiting.http.post(f"/jobs/prune/{command}") for command in ("run", "pause", "resume")],
        await waiting.http.post("/leases/submission-executor/resign"),
    ]
    for response in responses:
        problem = response.json()
        assert (response.status_code, problem["code"]) == (503, "DATABASE_UNAVAILABLE"), response.url
        assert (response.headers["Retry-After"], set(problem)) == ("1", PROBLEM_KEYS), response.url
        assert missing.name not in response.text


async def test_invalid_requests_without_database_return_503_if_route_exists(waiting: LocalService) -> None:
    """Only the database knows whether API keys exist, so no caller can be identified without it. The caller is
    identified before the request is decoded, so an invalid request gets 503, too. Of the requests below, only those
    with an unknown path (404) or a method that the path does not have (405) are refused before the caller is
    identified.
    """
    responses = [
        await waiting.put({}),
        await waiting.http.get("/nothing"),
        await waiting.http.post("/sessions"),
        await waiting.http.get("/leases?limit=501"),
        await waiting.http.get("/jobs?cursor=!"),
        await waiting.http.post("/jobs/prune/run?now=true"),
    ]
    assert [response.status_code for response in responses] == [503, 404, 405, 503, 503, 503]


async def test_request_succeeds_once_database_is_available(waiting: LocalService, missing: MissingDatabase) -> None:
    body = open_body()
    before = await waiting.put(body)
    await missing.create()
    await waiting.until_ready()
    after = await waiting.put(body)
    assert (before.status_code, after.status_code, after.json()["status"]) == (503, 201, "created")


# A full queue.


async def test_full_queue_returns_503_with_retry_after(
    any_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(any_local.database, monkeypatch)
    monkeypatch.setattr("tenure.batching.coalescer.WAITING_MAX", 1)
    first = asyncio.create_task(any_local.put(open_body()))
    await gate.reached.wait()
    queued = asyncio.create_task(any_local.put(open_body()))
    await eventually(lambda: any_local.in_flight == 2)
    rejected = [await any_local.http.put(path, json=open_body()) for path in LANES]
    gate.open.set()
    responses = await asyncio.gather(first, queued)
    for response in rejected:
        assert (response.status_code, response.json()["code"], response.headers["Retry-After"]) == (
            503,
            "OVERLOADED",
            "1",
        )
    assert [response.status_code for response in responses] == [201, 201]


# Unexpected exceptions.


async def test_unexpected_exception_returns_500_problem_without_details(
    any_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_arguments: Any) -> NoReturn:
        raise RuntimeError("the secret message")

    monkeypatch.setattr(any_local.database.store, "open_sessions", fail)
    monkeypatch.setattr(any_local.database.store, "list_sessions", fail)
    responses = [await any_local.http.put(path, json=open_body()) for path in LANES]
    for response in [*responses, await any_local.http.get("/sessions")]:
        assert (response.status_code, response.json()["code"], set(response.json())) == (500, "INTERNAL", PROBLEM_KEYS)
        assert response.headers["Content-Type"] == "application/problem+json"
        details = ("the secret message", "Traceback", "RuntimeError", ".py", "line ")
        assert [word for word in details if word in response.text] == []
    await eventually(lambda: any_local.in_flight == 0)


async def test_failing_request_does_not_fail_rest_of_batch(
    any_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = open_body()
    store = any_local.database.store
    open_sessions = store.open_sessions

    async def fail_for_one(lane: Any, requests: Any, limits: Any) -> Any:
        if any(each.user_object_id == failing["userObjectId"] for each in requests):
            raise RuntimeError("the batch contains the failing request")
        return await open_sessions(lane, requests, limits)

    monkeypatch.setattr(store, "open_sessions", fail_for_one)
    bodies = (open_body(), failing, open_body(), open_body())
    responses = await asyncio.gather(*map(any_local.put, bodies))
    assert [response.status_code for response in responses] == [201, 500, 201, 201]


EXCEPTION_WITH_A_SECRET = """
from tenure.http.answers import failure
from tenure.telemetry.events import Telemetry
from tenure.telemetry.logs import configure_logs, log_events

def connect(password):
    raise RuntimeError("an exception")

configure_logs()
try:
    connect("hunter" + str(2))
except RuntimeError as error:
    failure(error, log_events(Telemetry()))
"""


def test_exception_log_has_traceback_without_local_values() -> None:
    """Local variables may contain a password, a token or data of a customer."""
    process = subprocess.run(
        [sys.executable, "-c", EXCEPTION_WITH_A_SECRET], capture_output=True, text=True, timeout=30, check=True
    )
    assert "RuntimeError" in process.stderr
    assert "connect" in process.stderr
    assert "hunter2" not in process.stderr
