"""`/jobs`: what the ensemble does by itself, what it did, and having it done now or not at all."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tenure.model.leases import JobCommand, RunOutcome
from tests.http.client import TIMEOUT_SECONDS, Client, Json
from tests.http.local import LocalService
from tests.http.test_leases import FORGED
from tests.support.databases import Database
from tests.support.leases import begun, every
from tests.support.wishes import NOON, SECOND

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


async def register(database: Database, *names: str, **given: Any) -> None:
    """Jobs that no instance knows of: they are run when the test does it."""
    await database.store.register_jobs([every(60 * SECOND, name, **given) for name in names])


async def run(database: Database, job: str, outcome: RunOutcome, error: str | None = None) -> None:
    await database.store.command_job(job, JobCommand.RUN)
    await database.store.finish_run(await begun(database.store, job, "batch-1"), outcome, error, 7 * SECOND)


async def shown(local: LocalService, name: str) -> Json:
    answer = await local.http.get("/jobs", params={"limit": 500})
    (job,) = [job for job in answer.json()["jobs"] if job["name"] == name]
    return job  # type: ignore[no-any-return]


async def command(local: LocalService, name: str, what: str, prefix: str = "") -> httpx.Response:
    return await local.http.post(f"{prefix}/jobs/{quote(name, safe='')}/{what}")


async def runs(local: LocalService, name: str, **query: Any) -> Json:
    answer = await local.http.get(f"/jobs/{quote(name, safe='')}/runs", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


# The list.


def test_the_jobs_of_the_service_are_there(client: Client) -> None:
    jobs = {job["name"]: job for job in client.http.get("/jobs").json()["jobs"]}
    assert {"expire-sessions", "prune"} <= set(jobs)
    facts = [(jobs[name]["intervalSeconds"], jobs[name]["lockTimeoutSeconds"]) for name in ("expire-sessions", "prune")]
    assert facts == [(10, 120), (3600, 120)]


async def test_a_job_that_never_ran_is_shown_with_all_of_it(local: LocalService, database: Database) -> None:
    await local.clock.set(NOON)
    await register(database, "tidy", timeout=1_500_000, paused=True)
    job = await shown(local, "tidy")
    assert list(job) == JOB_FIELDS
    assert job == {
        "name": "tidy",
        "intervalSeconds": 60,
        "lockTimeoutSeconds": 1.5,
        "nextRunAt": job["nextRunAt"],
        "retryAt": None,
        "lastStartAt": None,
        "lastSuccessAt": None,
        "lastDurationSeconds": None,
        "runCount": 0,
        "failuresInARow": 0,
        "lastError": None,
        "paused": True,
    }
    assert datetime.fromisoformat(job["nextRunAt"]).timestamp() % 60 == 0


async def test_a_run_that_succeeded_is_told(local: LocalService, database: Database) -> None:
    await register(database, "tidy")
    await run(database, "tidy", RunOutcome.SUCCEEDED)
    job = await shown(local, "tidy")
    assert (job["runCount"], job["failuresInARow"], job["lastError"], job["retryAt"]) == (1, 0, None, None)
    assert job["lastStartAt"] <= job["lastSuccessAt"]
    assert 0 <= job["lastDurationSeconds"] < TIMEOUT_SECONDS


async def test_a_run_that_failed_is_told(local: LocalService, database: Database) -> None:
    await local.clock.set(NOON)
    await register(database, "tidy")
    await run(database, "tidy", RunOutcome.FAILED, "ValueError: no such thing")
    job = await shown(local, "tidy")
    assert (job["runCount"], job["failuresInARow"], job["lastError"]) == (1, 1, "ValueError: no such thing")
    assert datetime.fromisoformat(job["retryAt"]) == NOON + timedelta(seconds=7)
    assert job["lastSuccessAt"] is None


@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_the_list_goes_page_by_page_in_the_order_of_names(
    local: LocalService, database: Database, limit: int
) -> None:
    mine = [f"tidy{letter}" for letter in "dbca"]
    await register(database, *mine)
    seen: list[str] = []
    url = f"/jobs?limit={limit}"
    while url:
        answer = await local.http.get(url)
        page = answer.json()
        assert (page["count"], set(page)) == (len(page["jobs"]), {"jobs", "count", "nextCursor"})
        seen += [job["name"] for job in page["jobs"]]
        url = answer.links["next"]["url"] if page["nextCursor"] else ""
    assert [name for name in seen if name in mine] == sorted(mine)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("path", ["/jobs", "/jobs/prune/runs"])
@pytest.mark.parametrize("cursor", FORGED)
def test_a_cursor_that_was_never_given_out_is_refused(client: Client, path: str, cursor: str) -> None:
    answer = client.http.get(path, params={"cursor": cursor})
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, ["cursor"])


@pytest.mark.parametrize("cursor", ["LTE", "MS41", "eA", "MTIzNDU2Nzg5MDEyMzQ1Njc4OTA", "wrI", "MWUz"])
def test_a_cursor_of_runs_that_is_no_number_is_refused(client: Client, cursor: str) -> None:
    """-1, 1.5, x, twenty digits, a superscript two and 1e3."""
    answer = client.http.get("/jobs/prune/runs", params={"cursor": cursor})
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, ["cursor"])


@pytest.mark.parametrize("path", ["/jobs", "/jobs/prune/runs"])
@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=1e2", "limit=", "paused=true", "outcome=failed"])
def test_the_lists_refuse_what_they_do_not_know(client: Client, path: str, query: str) -> None:
    answer = client.http.get(f"{path}?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize("path", ["/jobs", "/jobs/prune/runs"])
def test_a_page_may_have_five_hundred(client: Client, path: str) -> None:
    assert client.http.get(f"{path}?limit=500").status_code == 200


# Runs.


async def test_a_job_that_never_ran_has_no_runs(local: LocalService, database: Database) -> None:
    await register(database, "tidy")
    assert await runs(local, "tidy") == {"runs": [], "count": 0, "nextCursor": None}


async def test_a_run_under_way_has_no_end_yet(local: LocalService, database: Database) -> None:
    await register(database, "tidy")
    await database.store.command_job("tidy", JobCommand.RUN)
    await begun(database.store, "tidy", "batch-1")
    (found,) = (await runs(local, "tidy"))["runs"]
    assert list(found) == RUN_FIELDS
    assert {**found, "startedAt": None} == {
        "startedAt": None,
        "endedAt": None,
        "holder": "batch-1",
        "epoch": 1,
        "outcome": None,
        "error": None,
    }


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (RunOutcome.SUCCEEDED, None),
        (RunOutcome.FAILED, "ValueError: é ☃"),
        (RunOutcome.ABANDONED, "the instance stops"),
    ],
)
async def test_a_run_that_ended_tells_how(
    local: LocalService, database: Database, outcome: RunOutcome, error: str | None
) -> None:
    await register(database, "tidy")
    await run(database, "tidy", outcome, error)
    (found,) = (await runs(local, "tidy"))["runs"]
    assert (found["outcome"], found["error"]) == (outcome.value, error)
    assert found["startedAt"] <= found["endedAt"]


async def test_runs_go_page_by_page_newest_first(local: LocalService, database: Database) -> None:
    await register(database, "tidy", "other")
    for number in range(5):
        await run(database, "tidy", RunOutcome.SUCCEEDED)
        if number == 2:
            await run(database, "other", RunOutcome.SUCCEEDED)
    epochs: list[int] = []
    url = "/jobs/tidy/runs?limit=2"
    while url:
        answer = await local.http.get(url)
        page = answer.json()
        assert page["count"] == len(page["runs"]) <= 2
        epochs += [found["epoch"] for found in page["runs"]]
        url = answer.links["next"]["url"] if page["nextCursor"] else ""
    assert epochs == [5, 4, 3, 2, 1]


async def test_pages_of_runs_are_stable_while_the_job_goes_on(local: LocalService, database: Database) -> None:
    await register(database, "tidy")
    for _ in range(3):
        await run(database, "tidy", RunOutcome.SUCCEEDED)
    first = await runs(local, "tidy", limit=1)
    await run(database, "tidy", RunOutcome.SUCCEEDED)
    second = await runs(local, "tidy", limit=2, cursor=first["nextCursor"])
    assert [found["epoch"] for page in (first, second) for found in page["runs"]] == [3, 2, 1]


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%2Fb", "a&b", "a<b>"])
async def test_the_link_leads_to_the_next_page_whatever_the_name(
    any_local: LocalService, sqlite_database: Database, name: str
) -> None:
    await register(sqlite_database, name)
    for _ in range(2):
        await run(sqlite_database, name, RunOutcome.SUCCEEDED)
    first = await any_local.http.get(f"/jobs/{quote(name, safe='')}/runs?limit=1")
    second = await any_local.http.get(first.links["next"]["url"])
    assert (second.status_code, [found["epoch"] for found in second.json()["runs"]]) == (200, [1])


# Commands.


@pytest.mark.parametrize("what", COMMANDS)
async def test_a_command_is_accepted_and_shows_the_job(local: LocalService, database: Database, what: str) -> None:
    await register(database, "tidy")
    answer = await command(local, "tidy", what)
    assert (answer.status_code, list(answer.json()), answer.json()["name"]) == (202, JOB_FIELDS, "tidy")
    assert answer.json() == await shown(local, "tidy")


async def test_pause_and_resume_rule(local: LocalService, database: Database) -> None:
    await register(database, "tidy")
    told = [(await command(local, "tidy", what)).json()["paused"] for what in ("pause", "pause", "resume", "resume")]
    assert told == [True, True, False, False]


async def test_pause_and_resume_touch_no_other_job(local: LocalService, database: Database) -> None:
    await register(database, "tidy", "other")
    before = await shown(local, "other")
    await command(local, "tidy", "pause")
    assert await shown(local, "other") == before


async def test_resuming_keeps_the_tick_that_was_missed(local: LocalService, database: Database) -> None:
    await register(database, "tidy", paused=True)
    before = await shown(local, "tidy")
    await local.move_to(before["nextRunAt"], hours=1)
    assert (await command(local, "tidy", "resume")).json()["nextRunAt"] == before["nextRunAt"]


async def run_count(local: LocalService, name: str) -> int:
    return int((await shown(local, name))["runCount"])


async def test_run_has_it_run_soon_even_while_it_is_paused(local: LocalService) -> None:
    await command(local, "prune", "pause")
    before = await run_count(local, "prune")
    assert (await command(local, "prune", "run")).status_code == 202
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await run_count(local, "prune") == before:  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.02)
    job = await shown(local, "prune")
    assert (job["runCount"], job["paused"]) == (before + 1, True)


async def test_run_does_not_move_the_tick(local: LocalService, database: Database) -> None:
    await register(database, "tidy")
    before = await shown(local, "tidy")
    assert (await command(local, "tidy", "run")).json()["nextRunAt"] == before["nextRunAt"]


async def test_run_does_not_wait_for_the_pause_after_a_failure(local: LocalService, database: Database) -> None:
    await register(database, "tidy")
    await run(database, "tidy", RunOutcome.FAILED, "ValueError: no such thing")
    assert (await shown(local, "tidy"))["retryAt"] is not None
    await command(local, "tidy", "run")
    await begun(database.store, "tidy", "batch-2")


async def test_two_requests_are_answered_by_one_run(local: LocalService, database: Database) -> None:
    await register(database, "tidy", paused=True)
    for _ in range(2):
        await command(local, "tidy", "run")
    await database.store.finish_run(await begun(database.store, "tidy"), RunOutcome.SUCCEEDED, None, 0)
    assert (await database.store.begin_run("tidy", "batch-2", "01890000-0000-7000-8000-000000000000")).fence is None


# What is refused.

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


@pytest.mark.parametrize("what", COMMANDS)
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_job_that_is_not_there_cannot_be_commanded(client: Client, name: str, what: str) -> None:
    answer = client.http.post(client.http.base_url.copy_with(raw_path=f"/jobs/{name}/{what}".encode()))
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_job_that_is_not_there_has_no_list_of_runs(client: Client, name: str) -> None:
    answer = client.http.get(client.http.base_url.copy_with(raw_path=f"/jobs/{name}/runs".encode()))
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "path", ["/jobs/", "/jobs/prune", "/jobs//run", "/jobs/prune/stop", "/jobs/a/b/run", "/jobs/run"]
)
def test_there_is_nothing_beside_these_addresses(client: Client, path: str) -> None:
    assert client.http.post(client.http.base_url.copy_with(raw_path=path.encode())).status_code == 404


@pytest.mark.parametrize("what", COMMANDS)
def test_commands_take_no_parameters(client: Client, what: str) -> None:
    answer = client.http.post(f"/jobs/prune/{what}?now=true")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "now")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/jobs"), ("POST", "/jobs/prune/runs"), *(("GET", f"/jobs/prune/{what}") for what in COMMANDS)],
)
def test_a_method_that_is_not_taken_is_refused(client: Client, method: str, path: str) -> None:
    assert client.http.request(method, path).status_code == 405


# Addresses.


@pytest.fixture
async def prefixed(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalService]:
    async with LocalService.on(database, monkeypatch, prefix="/api/v3").running() as service:
        yield service


async def statuses(local: LocalService, below: str) -> list[int]:
    reads = [await local.http.get(f"{below}{path}") for path in ("/jobs", "/jobs/tidy/runs")]
    return [
        answer.status_code for answer in (*reads, *[await command(local, "tidy", what, below) for what in COMMANDS])
    ]


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_with_and_without_the_version(local: LocalService, database: Database, version: str) -> None:
    await register(database, "tidy")
    assert await statuses(local, version) == [200, 200, 202, 202, 202]


@pytest.mark.parametrize("version", ["", "/v1"])
async def test_answers_below_the_prefix_and_nowhere_else(
    prefixed: LocalService, database: Database, version: str
) -> None:
    await register(database, "tidy")
    assert await statuses(prefixed, f"/api/v3{version}") == [200, 200, 202, 202, 202]
    assert await statuses(prefixed, version) == [404] * 5


async def test_the_links_carry_the_prefix(prefixed: LocalService, database: Database) -> None:
    await register(database, "tidy")
    for _ in range(2):
        await run(database, "tidy", RunOutcome.SUCCEEDED)
    links = [
        (await prefixed.http.get(f"/api/v3{path}?limit=1")).links["next"]["url"]
        for path in ("/jobs", "/jobs/tidy/runs")
    ]
    assert [link.partition("?")[0] for link in links] == ["/api/v3/jobs", "/api/v3/jobs/tidy/runs"]
    assert [(await prefixed.http.get(link)).status_code for link in links] == [200, 200]
