"""`/healthz`, `/readyz` and `/health`: what a load balancer, an orchestrator and a person look at."""

import asyncio
from typing import NoReturn

import pytest

from tenure import __version__
from tenure.errors import DatabaseUnavailable
from tests.http.client import TIMEOUT_SECONDS, Client, Json, wish
from tests.http.local import LocalService
from tests.http.test_leases import FIELDS
from tests.support.databases import Database
from tests.support.leases import acquire, every
from tests.support.wishes import SECOND

EXECUTOR = "submission-executor"


def test_the_process_answers(client: Client) -> None:
    answer = client.http.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_a_started_instance_is_ready(client: Client) -> None:
    answer = client.http.get("/readyz")
    assert (answer.status_code, answer.json()["status"], type(answer.json()["leases"])) == (200, "ready", list)


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_tells_the_version(client: Client, path: str) -> None:
    answer = client.http.get(path).json()
    assert (answer["status"], answer["version"]) == ("ok", __version__)


async def test_a_draining_instance_is_not_ready(any_local: LocalService) -> None:
    any_local.instance.readiness.draining = True
    answer = await any_local.http.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "DRAINING")


async def test_a_draining_instance_is_alive_and_still_answers(any_local: LocalService) -> None:
    any_local.instance.readiness.draining = True
    alive = await any_local.http.get("/healthz")
    assert (alive.status_code, (await any_local.put(wish())).status_code) == (200, 201)


async def test_an_instance_that_has_not_started_is_not_ready(any_local: LocalService) -> None:
    any_local.instance.readiness.started = False
    answer = await any_local.http.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "STARTING")


async def test_an_older_schema_is_not_enough(local: LocalService, database: Database) -> None:
    await database.execute("UPDATE tenure_schema SET version_num = '0000'")
    answer = await local.http.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "SCHEMA_TOO_OLD")


async def test_a_newer_schema_will_do(local: LocalService, database: Database) -> None:
    await database.execute("UPDATE tenure_schema SET version_num = '9999'")
    assert (await local.http.get("/readyz")).status_code == 200


# Leases in `/readyz`.


async def part_in(local: LocalService, name: str) -> Json | None:
    """What the instance says about its part in a lease."""
    answer = await local.http.get("/readyz")
    assert answer.status_code == 200, answer.text
    return next((lease for lease in answer.json()["leases"] if lease["name"] == name), None)


async def away(*_arguments: object) -> NoReturn:
    raise DatabaseUnavailable("the database cannot be reached")


async def leading(local: LocalService) -> Json:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (lease := await part_in(local, EXECUTOR)) is None or lease["role"] != "leader":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return lease


async def test_a_leader_says_so_with_all_of_the_lease(local: LocalService) -> None:
    lease = await leading(local)
    assert list(lease) == [*FIELDS, "role"]
    listed = (await local.http.get("/leases")).json()["leases"]
    assert {name: value for name, value in lease.items() if name != "role"} in listed


async def test_a_follower_says_who_leads_and_is_ready_too(local: LocalService, database: Database) -> None:
    await leading(local)
    await database.execute("UPDATE leases SET holder = 'another', epoch = epoch + 1 WHERE name = 'submission-executor'")
    lease = await part_in(local, EXECUTOR)
    assert lease is not None
    assert (lease["role"], lease["holder"], lease["held"]) == ("follower", "another", True)


async def test_who_may_no_longer_trust_its_lease_does_not_lead(
    local: LocalService, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the database still says that it does."""
    lease = await leading(local)
    # An executor that is just starting notices, and would have the lease released and acquired anew.
    monkeypatch.setattr(database.store, "release_lease", away)
    monkeypatch.setattr("tenure.leases.held.boottime", lambda: float("inf"))
    after = await part_in(local, EXECUTOR)
    assert after is not None
    assert (after["holder"], after["epoch"], after["role"]) == (lease["holder"], lease["epoch"], "follower")


async def test_nobody_leads_what_was_resigned(local: LocalService) -> None:
    await leading(local)
    await local.http.post(f"/leases/{EXECUTOR}/resign")
    lease = await part_in(local, EXECUTOR)
    assert lease is not None
    assert (lease["role"], lease["held"]) == ("follower", False)


async def test_the_lock_of_a_job_that_another_runs_is_shown(local: LocalService, database: Database) -> None:
    await database.store.register_jobs([every(SECOND, paused=True)])
    await acquire(database.store, "job:tidy", "another")
    lease = await part_in(local, "job:tidy")
    assert lease is not None
    assert (lease["role"], lease["holder"]) == ("follower", "another")


async def test_a_lease_that_is_not_its_business_is_not_shown(local: LocalService, database: Database) -> None:
    await acquire(database.store, "nightly", "another")
    assert await part_in(local, "nightly") is None


# Not ready.


async def test_who_is_not_ready_says_when_to_ask_again(any_local: LocalService) -> None:
    any_local.instance.readiness.draining = True
    assert (await any_local.http.get("/readyz")).headers["Retry-After"] == "1"


async def test_health_does_not_count_on_every_call(
    any_local: LocalService, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await any_local.http.get("/health")

    def no_more_counting() -> None:
        raise AssertionError("counted again")

    monkeypatch.setattr(sqlite_database.store, "count_sessions", no_more_counting)
    assert (await any_local.http.get("/health")).status_code == 200
