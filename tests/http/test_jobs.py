"""`/jobs`: the list of jobs, their runs, and the commands run, pause and resume."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from tenure.domain.jobs import JobCommand, RunOutcome
from tests.http.client import TIMEOUT_SECONDS, Client, Json
from tests.http.local import LocalService
from tests.http.test_leases import FORGED
from tests.support.audit_log import ACTOR
from tests.support.databases import Database
from tests.support.leases import begin_due_run, job_every
from tests.support.open_requests import NOON, SECOND

JOB_FIELDS = [
    "name",
    "intervalSeconds",
    "lockTimeoutSeconds",
    "nextRunAt",
    "retryAt",
    "lastStartAt",
    "lastSuccessAt",
    "lastDurationSeconds",
    "runCount",
    "failuresInARow",
    "lastError",
    "paused",
]
RUN_FIELDS = ["startedAt", "endedAt", "holder", "epoch", "outcome", "error"]
COMMANDS = ["run", "pause", "resume"]


@pytest.fixture
def job() -> str:
    """The name of a new job. The instance does not know the job, so only the test runs it."""
    return f"tidy-{uuid4().hex}"


async def register(local: LocalService, *names: str, **given: Any) -> None:
    await local.database.store.register_jobs([job_every(60 * SECOND, name, **given) for name in names])


async def run(local: LocalService, job: str, outcome: RunOutcome, error: str | None = None) -> None:
    store = local.database.store
    await store.command_job(job, JobCommand.RUN, ACTOR)
    await store.finish_run(await begin_due_run(store, job, "batch-1"), outcome, error, 7 * SECOND)


async def read_job(local: LocalService, name: str) -> Json:
    response = await local.http.get("/jobs", params={"limit": 500})
    (found,) = [each for each in response.json()["jobs"] if each["name"] == name]
    return found  # type: ignore[no-any-return]


async def command(local: LocalService, name: str, command: str, prefix: str = "") -> httpx.Response:
    return await local.http.post(f"{prefix}/jobs/{quote(name, safe='')}/{command}")


async def runs(local: LocalService, name: str, **query: Any) -> Json:
    response = await local.http.get(f"/jobs/{quote(name, safe='')}/runs", params=query)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


# The list.


def test_list_contains_built_in_jobs(client: Client) -> None:
    jobs = {job["name"]: job for job in client.http.get("/jobs").json()["jobs"]}
    assert {"expire-sessions", "prune"} <= set(jobs)
    facts = [(jobs[name]["intervalSeconds"], jobs[name]["lockTimeoutSeconds"]) for name in ("expire-sessions", "prune")]
    assert facts == [(10, 120), (3600, 120)]


async def test_job_that_never_ran_is_listed_with_all_fields(local: LocalService, job: str) -> None:
    await local.clock.set(NOON)
    await register(local, job, timeout=1_500_000, paused=True)
    found = await read_job(local, job)
    assert list(found) == JOB_FIELDS
    assert found == {
        "name": job,
        "intervalSeconds": 60,
        "lockTimeoutSeconds": 1.5,
        "nextRunAt": found["nextRunAt"],
        "retryAt": None,
        "lastStartAt": None,
        "lastSuccessAt": None,
        "lastDurationSeconds": None,
        "runCount": 0,
        "failuresInARow": 0,
        "lastError": None,
        "paused": True,
    }
    assert datetime.fromisoformat(found["nextRunAt"]).timestamp() % 60 == 0
    assert await runs(local, job) == {"runs": [], "count": 0, "nextCursor": None}


async def test_successful_run_updates_job(local: LocalService, job: str) -> None:
    await register(local, job)
    await run(local, job, RunOutcome.SUCCEEDED)
    found = await read_job(local, job)
    assert (found["runCount"], found["failuresInARow"], found["lastError"], found["retryAt"]) == (1, 0, None, None)
    assert found["lastStartAt"] <= found["lastSuccessAt"]
    assert 0 <= found["lastDurationSeconds"] < TIMEOUT_SECONDS


async def test_failed_run_updates_job(local: LocalService, job: str) -> None:
    await local.clock.set(NOON)
    await register(local, job)
    await run(local, job, RunOutcome.FAILED, "ValueError: no such file")
    found = await read_job(local, job)
    assert (found["runCount"], found["failuresInARow"], found["lastError"]) == (1, 1, "ValueError: no such file")
    assert datetime.fromisoformat(found["retryAt"]) == NOON + timedelta(seconds=7)
    assert found["lastSuccessAt"] is None


async def test_list_is_paginated_in_name_order(own_local: LocalService) -> None:
    mine = [f"tidy{letter}" for letter in "dbca"]
    await register(own_local, *mine)
    for limit in (1, 2, 500):
        seen: list[str] = []
        url = f"/jobs?limit={limit}"
        while url:
            response = await own_local.http.get(url)
            page = response.json()
            assert (page["count"], set(page)) == (len(page["jobs"]), {"jobs", "count", "nextCursor"})
            seen += [job["name"] for job in page["jobs"]]
            url = response.links["next"]["url"] if page["nextCursor"] else ""
        assert [name for name in seen if name in mine] == sorted(mine), limit
        assert len(seen) == len(set(seen)), limit


LISTS = ["/jobs", "/jobs/prune/runs"]


def test_forged_cursor_returns_400(client: Client) -> None:
    for path, cursor in product(LISTS, FORGED):
        response = client.http.get(path, params={"cursor": cursor})
        assert response.status_code == 400, (path, cursor)
        assert [error["field"] for error in response.json()["errors"]] == ["cursor"], (path, cursor)


def test_runs_cursor_that_is_not_a_valid_epoch_returns_400(client: Client) -> None:
    """The cursors encode -1, 1.5, x, twenty digits, a superscript two and 1e3."""
    for cursor in ("LTE", "MS41", "eA", "MTIzNDU2Nzg5MDEyMzQ1Njc4OTA", "wrI", "MWUz"):
        response = client.http.get("/jobs/prune/runs", params={"cursor": cursor})
        assert response.status_code == 400, cursor
        assert [error["field"] for error in response.json()["errors"]] == ["cursor"], cursor


def test_list_with_invalid_parameter_returns_400(any_client: Client) -> None:
    queries = ("limit=0", "limit=501", "limit=1e2", "limit=", "paused=true", "outcome=failed")
    for path, query in product(LISTS, queries):
        response = any_client.http.get(f"{path}?{query}")
        assert response.status_code == 400, (path, query)
        assert response.json()["errors"][0]["field"] == query.partition("=")[0], (path, query)


def test_list_accepts_limit_of_500(client: Client) -> None:
    assert [client.http.get(f"{path}?limit=500").status_code for path in LISTS] == [200, 200]


# Runs.


async def test_running_run_has_no_end_or_outcome(local: LocalService, job: str) -> None:
    await register(local, job)
    await local.database.store.command_job(job, JobCommand.RUN, ACTOR)
    await begin_due_run(local.database.store, job, "batch-1")
    (found,) = (await runs(local, job))["runs"]
    assert list(found) == RUN_FIELDS
    assert {**found, "startedAt": None} == {
        "startedAt": None,
        "endedAt": None,
        "holder": "batch-1",
        "epoch": 1,
        "outcome": None,
        "error": None,
    }


async def test_ended_run_shows_outcome_and_error(local: LocalService, job: str) -> None:
    await register(local, job)
    for outcome, error in (
        (RunOutcome.SUCCEEDED, None),
        (RunOutcome.FAILED, "ValueError: é ☃"),
        (RunOutcome.ABANDONED, "the instance is stopping"),
    ):
        await run(local, job, outcome, error)
        newest, *_ = (await runs(local, job))["runs"]
        assert (newest["outcome"], newest["error"]) == (outcome.value, error)
        assert newest["startedAt"] <= newest["endedAt"], outcome


async def test_runs_are_paginated_newest_first(local: LocalService, job: str) -> None:
    await register(local, job, f"{job}-other")
    for number in range(5):
        await run(local, job, RunOutcome.SUCCEEDED)
        if number == 2:
            await run(local, f"{job}-other", RunOutcome.SUCCEEDED)
    epochs: list[int] = []
    url = f"/jobs/{job}/runs?limit=2"
    while url:
        response = await local.http.get(url)
        page = response.json()
        assert page["count"] == len(page["runs"]) <= 2
        epochs += [found["epoch"] for found in page["runs"]]
        url = response.links["next"]["url"] if page["nextCursor"] else ""
    assert epochs == [5, 4, 3, 2, 1]


async def test_runs_pagination_is_stable_when_new_runs_are_added(local: LocalService, job: str) -> None:
    await register(local, job)
    for _ in range(3):
        await run(local, job, RunOutcome.SUCCEEDED)
    first = await runs(local, job, limit=1)
    await run(local, job, RunOutcome.SUCCEEDED)
    second = await runs(local, job, limit=2, cursor=first["nextCursor"])
    assert [found["epoch"] for page in (first, second) for found in page["runs"]] == [3, 2, 1]


async def test_next_link_escapes_job_name(any_local: LocalService) -> None:
    for name in ("a?b", "a#b", "a%2Fb", "a&b", "a<b>"):
        await register(any_local, name)
        for _ in range(2):
            await run(any_local, name, RunOutcome.SUCCEEDED)
        first = await any_local.http.get(f"/jobs/{quote(name, safe='')}/runs?limit=1")
        second = await any_local.http.get(first.links["next"]["url"])
        assert (second.status_code, [found["epoch"] for found in second.json()["runs"]]) == (200, [1]), name


# Commands.


async def test_command_returns_202_with_job(local: LocalService, job: str) -> None:
    await register(local, job)
    for each in COMMANDS:
        response = await command(local, job, each)
        assert (response.status_code, list(response.json()), response.json()["name"]) == (202, JOB_FIELDS, job), each
        assert response.json() == await read_job(local, job), each


async def test_pause_and_resume_are_idempotent(local: LocalService, job: str) -> None:
    await register(local, job)
    commands = ("pause", "pause", "resume", "resume")
    paused = [(await command(local, job, each)).json()["paused"] for each in commands]
    assert paused == [True, True, False, False]


async def test_pause_does_not_affect_other_jobs(local: LocalService, job: str) -> None:
    await register(local, job, f"{job}-other")
    before = await read_job(local, f"{job}-other")
    await command(local, job, "pause")
    assert await read_job(local, f"{job}-other") == before


async def test_resume_keeps_missed_tick(local: LocalService, job: str) -> None:
    await register(local, job, paused=True)
    before = await read_job(local, job)
    await local.move_to(before["nextRunAt"], hours=1)
    assert (await command(local, job, "resume")).json()["nextRunAt"] == before["nextRunAt"]


async def test_run_command_starts_paused_job(local: LocalService) -> None:
    await command(local, "prune", "pause")
    before = (await read_job(local, "prune"))["runCount"]
    assert (await command(local, "prune", "run")).status_code == 202
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (found := await read_job(local, "prune"))["runCount"] == before:  # noqa: ASYNC110 - polled over HTTP
            await asyncio.sleep(0.02)
    assert (found["runCount"], found["paused"]) == (before + 1, True)


async def test_run_command_keeps_next_run_at(local: LocalService, job: str) -> None:
    await register(local, job)
    before = await read_job(local, job)
    assert (await command(local, job, "run")).json()["nextRunAt"] == before["nextRunAt"]


async def test_run_command_ignores_retry_delay_after_failure(local: LocalService, job: str) -> None:
    await register(local, job)
    await run(local, job, RunOutcome.FAILED, "ValueError: no such file")
    assert (await read_job(local, job))["retryAt"] is not None
    await command(local, job, "run")
    await begin_due_run(local.database.store, job, "batch-2")


async def test_repeated_run_commands_start_one_run(local: LocalService, job: str) -> None:
    await register(local, job, paused=True)
    for _ in range(2):
        await command(local, job, "run")
    store = local.database.store
    await store.finish_run(await begin_due_run(store, job), RunOutcome.SUCCEEDED, None, 0)
    assert (await store.begin_run(job, "batch-2", "01890000-0000-7000-8000-000000000000")).fence is None


# Rejected requests.

UNKNOWN = [
    "nothing",
    "PRUNE",
    "job:prune",
    "x" * 201,
    "x" * 5000,
    "%00",
    "%FF",
    "%C3%A9",
    "%20",
    "a%0Ab",
    "%27%20OR%201=1",
]


def test_unknown_job_returns_404(client: Client) -> None:
    for name, (method, action) in product(UNKNOWN, [("GET", "runs"), *(("POST", each) for each in COMMANDS)]):
        url = client.http.base_url.copy_with(raw_path=f"/jobs/{name}/{action}".encode())
        response = client.http.request(method, url)
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), (name[:20], action)


def test_unknown_jobs_path_returns_404(any_client: Client) -> None:
    for path in ("/jobs/", "/jobs/prune", "/jobs//run", "/jobs/prune/stop", "/jobs/a/b/run", "/jobs/run"):
        url = any_client.http.base_url.copy_with(raw_path=path.encode())
        assert any_client.http.post(url).status_code == 404, path


def test_command_with_query_parameter_returns_400(any_client: Client) -> None:
    for each in COMMANDS:
        response = any_client.http.post(f"/jobs/prune/{each}?now=true")
        assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "now"), each


def test_unsupported_method_returns_405(any_client: Client) -> None:
    for path in LISTS:
        assert any_client.http.post(path).status_code == 405, path
    for each in COMMANDS:
        assert any_client.http.get(f"/jobs/prune/{each}").status_code == 405, each


# Prefix and version.


@pytest.fixture
async def prefixed(database: Database) -> AsyncIterator[LocalService]:
    async with LocalService.on(database, prefix="/api/v3").running() as service:
        yield service


async def statuses(local: LocalService, prefix: str, job: str) -> list[int]:
    reads = [await local.http.get(f"{prefix}{path}") for path in ("/jobs", f"/jobs/{job}/runs")]
    return [
        response.status_code for response in (*reads, *[await command(local, job, each, prefix) for each in COMMANDS])
    ]


async def test_routes_are_available_with_and_without_version(local: LocalService, job: str) -> None:
    await register(local, job)
    for version in ("", "/v1"):
        assert await statuses(local, version, job) == [200, 200, 202, 202, 202], version


async def test_routes_and_next_links_are_available_only_below_prefix(prefixed: LocalService) -> None:
    await register(prefixed, "tidy")
    for _ in range(2):
        await run(prefixed, "tidy", RunOutcome.SUCCEEDED)
    for version in ("", "/v1"):
        assert await statuses(prefixed, f"/api/v3{version}", "tidy") == [200, 200, 202, 202, 202], version
        assert await statuses(prefixed, version, "tidy") == [404] * 5, version
    for path in ("/jobs", "/jobs/tidy/runs"):
        link = (await prefixed.http.get(f"/api/v3{path}?limit=1")).links["next"]["url"]
        assert link.partition("?")[0] == f"/api/v3{path}"
        assert (await prefixed.http.get(link)).status_code == 200, link
