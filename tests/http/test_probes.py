"""`/healthz`, `/readyz` and `/health`: what a load balancer, an orchestrator and a person look at."""

import pytest

from tenure import __version__
from tests.http.client import Client, wish
from tests.http.local import LocalService
from tests.support.databases import Database


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
