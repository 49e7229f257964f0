"""`tenure explain` prints the facts that the service returns about a session or a capacity, as text and as JSON."""

import asyncio
import json
import re
from typing import Any

import pytest

from tenure.config import JOBS, JobConfig
from tenure.domain.sessions import CloseReason
from tests.cli.conftest import Result, Tenure
from tests.http.local import LocalService
from tests.support.databases import Database
from tests.support.histories import end_in_every_way
from tests.support.open_requests import some_id
from tests.support.submissions import executor_fence
from tests.support.usage import install, minute


@pytest.fixture
async def service(sqlite_database: Database) -> Any:
    await sqlite_database.clock.set(minute(0))
    await install(sqlite_database, minute(0))
    await executor_fence(sqlite_database.store)
    jobs = {name: JobConfig(paused=True) for name in JOBS}
    async with LocalService.on(sqlite_database, "usages", jobs=jobs).running() as running:
        yield running


async def explained(tenure: Tenure, service: LocalService, *arguments: str) -> Result:
    url = f"http://127.0.0.1:{service.port}"
    result = await asyncio.to_thread(tenure, "explain", *arguments, "--url", url)
    # Remove the log lines: the service runs in this process and logs to the same output.
    printed = [line for line in result.out.splitlines() if not re.match(r"\d{4}-\d\d-\d\d \d\d:", line)]
    return result._replace(out="\n".join(printed))


async def test_every_end_is_explained_by_the_facts_of_the_service(tenure: Tenure, service: LocalService) -> None:
    ids = await end_in_every_way(service.database)
    assert {*CloseReason, "live", "unrecorded", "third"} <= ids.keys()
    for name, session_id in ids.items():
        facts = (await service.http.get(f"/sessions/{session_id}/history", params={"limit": 500})).json()["facts"]
        lines = (await explained(tenure, service, session_id)).out.splitlines()
        assert len(lines) == len(facts), name
        for line, fact in zip(lines, facts, strict=True):
            assert line.startswith(f"{fact['at'][:19]}Z (")
            assert line.endswith(f")  {fact['text']}")
        printed = json.loads((await explained(tenure, service, session_id, "--json")).out)
        assert printed["facts"] == facts
        assert printed["session"]["sessionId"] == session_id
    ended = (await explained(tenure, service, ids["TERMINATED"])).out
    assert "ended as TERMINATED: an operator ended it; requested by ops (4fJ0aQz81LmN, request request-1)" in ended
    assert "so far" not in ended
    live = await service.open(leaseSeconds=600)
    await service.database.clock.set(minute(11, 40))
    await service.http.post(f"/sessions/{live['sessionId']}/heartbeat")
    assert "the last heartbeat so far arrived; it renewed" in (await explained(tenure, service, live["sessionId"])).out


async def test_full_capacity_is_explained_by_seats_sessions_and_next_lapse(
    tenure: Tenure, service: LocalService
) -> None:
    capacity, tenant = some_id(), some_id()
    unset = await explained(tenure, service, "--capacity", capacity)
    assert "has no settings" in unset.out
    assert json.loads((await explained(tenure, service, "--capacity", capacity, "--json")).out)["capacity"] is None
    await service.http.put(f"/capacities/{capacity}", json={"maxSessions": 2, "tenantObjectId": tenant})
    assert "no session holds a seat" in (await explained(tenure, service, "--capacity", capacity)).out
    late, soon = [
        await service.open(tenantObjectId=tenant, capacityId=capacity, leaseSeconds=seconds) for seconds in (90, 60)
    ]
    printed = (await explained(tenure, service, "--capacity", capacity)).out
    assert "2 of 2 seats are taken: an open request is refused with SESSION_LIMIT" in printed
    assert f"only tenant {tenant} can open sessions on it" in printed
    assert (
        f"session {soon['sessionId']} of user {soon['userObjectId']} lapses next, at {soon['leaseExpiresAt'][:19]}Z"
        in printed
    )
    assert printed.index(soon["sessionId"]) < printed.index(late["sessionId"])
    printed = json.loads((await explained(tenure, service, "--capacity", capacity, "--json")).out)
    assert [each["sessionId"] for each in printed["sessions"]] == [soon["sessionId"], late["sessionId"]]
    next_lapse = {"sessionId": soon["sessionId"], "deadline": soon["leaseExpiresAt"]}
    assert printed["capacity"]["nextLapse"] == next_lapse
    for settings, expected in (
        ({"maxSessions": 2, "whenFull": "evictOldest"}, "an open request evicts the session with the oldest activity"),
        ({"maxSessions": 3}, "an open request gets a free one"),
        ({}, "there is no limit"),
    ):
        await service.http.put(f"/capacities/{capacity}", json=settings)
        assert expected in (await explained(tenure, service, "--capacity", capacity)).out


async def test_wrong_arguments_and_unknown_sessions_are_refused(tenure: Tenure, service: LocalService) -> None:
    assert (await explained(tenure, service)).code != 0
    assert (await explained(tenure, service, some_id(), "--capacity", some_id())).code != 0
    unknown = await explained(tenure, service, some_id())
    assert unknown.code != 0
    assert "does not exist" in unknown.err
    for part in ((some_id()[-12:],), ("--capacity", some_id()[:8])):
        incomplete = await explained(tenure, service, *part)
        assert (incomplete.code, "give the whole id" in incomplete.err) == (2, True)
