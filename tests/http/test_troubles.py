"""When the service itself cannot do what it is asked: no database yet, too much to do, a defect."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import pytest

from tenure.config import Config
from tests.http.client import wish
from tests.http.local import LocalService, eventually
from tests.http.test_connections import Gate
from tests.http.test_refusals import PROBLEM_KEYS
from tests.support.databases import Clock, Database, PostgresServer

LANES = {"hot": "/sessions", "ordinary": "/%73essions"}


@pytest.fixture(params=LANES)
def path(request: pytest.FixtureRequest) -> str:
    return LANES[request.param]


# No database yet.


class Absent:
    """A database that is not there, and how to make it."""

    def __init__(self, url: str, name: str, appear: Callable[[], Awaitable[None]]) -> None:
        self.url = url
        self.name = name
        self.appear = appear


@pytest.fixture
def absent_sqlite(tmp_path: Path) -> Absent:
    name = f"later_{uuid4().hex}"

    async def appear() -> None:
        (tmp_path / name).mkdir()

    return Absent(f"sqlite:///{tmp_path / name / 'tenure.db'}", name, appear)


@pytest.fixture
def absent_postgresql(postgres: PostgresServer) -> Absent:
    name = f"later_{uuid4().hex}"

    async def appear() -> None:
        await postgres.execute(f"CREATE DATABASE {name}")

    return Absent(postgres.url(name), name, appear)


@pytest.fixture(params=["sqlite", "postgresql"])
def absent(request: pytest.FixtureRequest) -> Absent:
    return request.getfixturevalue(f"absent_{request.param}")  # type: ignore[no-any-return]


@pytest.fixture
async def early(absent: Absent, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    """An instance that was started before its database."""
    monkeypatch.setattr("tenure.app._settle_memory", lambda: None)
    service = LocalService(Config(database=absent.url), Clock())
    await service.start()
    yield service
    await service.stop()


async def test_without_a_database_the_process_is_alive_but_not_ready(early: LocalService) -> None:
    alive, ready = await early.http.get("/healthz"), await early.http.get("/readyz")
    assert (alive.status_code, ready.status_code) == (200, 503)


async def test_without_a_database_every_request_is_told_to_come_again(early: LocalService) -> None:
    answers = [
        await early.put(wish()),
        await early.http.put("/%73essions", json=wish()),
        await early.http.get("/sessions"),
        await early.http.get("/sessions/00000000-0000-0000-0000-000000000000"),
        await early.http.delete("/sessions/00000000-0000-0000-0000-000000000000"),
        await early.http.get("/sessions/metrics"),
        await early.http.get("/health"),
        *[await early.http.get(path) for path in ("/leases", "/jobs", "/jobs/prune/runs")],
        *[await early.http.post(f"/jobs/prune/{command}") for command in ("run", "pause", "resume")],
        await early.http.post("/leases/submission-executor/resign"),
    ]
    told = {(answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) for answer in answers}
    assert told == {(503, "DATABASE_UNAVAILABLE", "1")}


async def test_without_a_database_wrong_requests_are_still_refused(early: LocalService) -> None:
    answers = [
        await early.put({}),
        await early.http.get("/nothing"),
        await early.http.post("/sessions"),
        await early.http.get("/leases?limit=501"),
        await early.http.get("/jobs?cursor=!"),
        await early.http.post("/jobs/prune/run?now=true"),
    ]
    assert [answer.status_code for answer in answers] == [400, 404, 405, 400, 400, 400]


async def test_the_same_request_works_once_the_database_is_there(early: LocalService, absent: Absent) -> None:
    body = wish()
    before = await early.put(body)
    await absent.appear()
    await early.until_ready()
    after = await early.put(body)
    assert (before.status_code, after.status_code, after.json()["status"]) == (503, 201, "created")


async def test_a_problem_of_the_database_does_not_show_its_address(early: LocalService, absent: Absent) -> None:
    answer = await early.put(wish())
    assert set(answer.json()) == PROBLEM_KEYS
    assert absent.name not in answer.text


# Too much to do.


async def test_a_full_queue_refuses_and_says_when_to_come_again(
    any_local: LocalService, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    gate = Gate(sqlite_database, monkeypatch)
    monkeypatch.setattr("tenure.coalescer.WAITING_MAX", 1)
    first = asyncio.create_task(any_local.put(wish()))
    await gate.reached.wait()
    waiting = asyncio.create_task(any_local.put(wish()))
    await eventually(lambda: any_local.in_flight == 2)
    refused = await any_local.http.put(path, json=wish())
    gate.open.set()
    answers = await asyncio.gather(first, waiting)
    assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (503, "OVERLOADED", "1")
    assert [answer.status_code for answer in answers] == [201, 201]


# A defect.


@pytest.fixture
def defect(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whoever opens or lists sessions runs into a defect; returns what it says."""
    message = "the secret of the defect"

    async def fail(*_arguments: Any) -> NoReturn:
        raise RuntimeError(message)

    monkeypatch.setattr(sqlite_database.store, "open_sessions", fail)
    monkeypatch.setattr(sqlite_database.store, "list_sessions", fail)
    return message


async def test_a_defect_is_answered_as_a_problem(any_local: LocalService, defect: str, path: str) -> None:
    answer = await any_local.http.put(path, json=wish())
    assert (answer.status_code, answer.json()["code"], set(answer.json())) == (500, "INTERNAL", PROBLEM_KEYS)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert defect not in answer.text


async def test_a_defect_in_a_list_is_answered_as_a_problem(any_local: LocalService, defect: str) -> None:
    answer = await any_local.http.get("/sessions")
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert defect not in answer.text


async def test_no_stack_trace_leaves_the_process(any_local: LocalService, defect: str, path: str) -> None:
    del defect
    answer = await any_local.http.put(path, json=wish())
    assert [word for word in ("Traceback", "RuntimeError", ".py", "line ") if word in answer.text] == []


async def test_a_defect_leaves_nothing_in_flight(any_local: LocalService, defect: str, path: str) -> None:
    del defect
    await any_local.http.put(path, json=wish())
    await eventually(lambda: any_local.in_flight == 0)


async def test_one_request_that_fails_does_not_fail_its_batch(
    any_local: LocalService, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = wish()
    open_sessions = sqlite_database.store.open_sessions

    async def fail_for_one(lane: Any, wishes: Any, limits: Any) -> Any:
        if any(each.user_object_id == bad["userObjectId"] for each in wishes):
            raise RuntimeError("this one")
        return await open_sessions(lane, wishes, limits)

    monkeypatch.setattr(sqlite_database.store, "open_sessions", fail_for_one)
    answers = await asyncio.gather(*(any_local.put(body) for body in (wish(), bad, wish(), wish())))
    assert [answer.status_code for answer in answers] == [201, 500, 201, 201]


DEFECT_WITH_A_SECRET = """
from tenure.http.routing import failure
from tenure.logs import configure_logs

def connect(password):
    raise RuntimeError("a defect")

configure_logs()
try:
    connect("hunter" + str(2))
except RuntimeError as error:
    failure(error)
"""


def test_the_log_of_a_defect_has_its_trace_but_no_values() -> None:
    """A frame's variables may be a password, a token or a customer's data."""
    process = subprocess.run(
        [sys.executable, "-c", DEFECT_WITH_A_SECRET], capture_output=True, text=True, timeout=30, check=True
    )
    assert "RuntimeError" in process.stderr
    assert "connect" in process.stderr
    assert "hunter2" not in process.stderr
