"""`/healthz`, `/readyz` and `/health`."""

import asyncio
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pytest

from tenure import __version__
from tenure.config import LeasesConfig
from tenure.errors import DatabaseUnavailable
from tenure.telemetry.events import LeaderAcquired
from tests.http.client import TIMEOUT_SECONDS, Client, Json, open_body
from tests.http.local import LocalService, eventually
from tests.http.test_leases import FIELDS
from tests.support.databases import Database
from tests.support.leases import acquire, job_every
from tests.support.open_requests import SECOND

EXECUTOR = "submission-executor"


def test_healthz_returns_ok(client: Client) -> None:
    response = client.http.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_started_instance_is_ready(client: Client) -> None:
    response = client.http.get("/readyz")
    assert (response.status_code, response.json()["status"], type(response.json()["leases"])) == (200, "ready", list)


def test_health_returns_version(client: Client) -> None:
    for path in ("/health", "/v1/health"):
        response = client.http.get(path).json()
        assert (response["status"], response["version"]) == ("ok", __version__), path


async def test_readyz_reads_no_folder(any_local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance without free file descriptors must stay ready: it can still serve its open connections."""

    def glob(*_: object) -> NoReturn:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "glob", glob)
    response = await any_local.http.get("/readyz")
    assert response.status_code == 200, response.text


async def test_draining_instance_is_healthy_and_serves_requests_but_is_not_ready(any_local: LocalService) -> None:
    any_local.instance.readiness.draining = True
    ready, alive = await any_local.http.get("/readyz"), await any_local.http.get("/healthz")
    assert (ready.status_code, ready.json()["code"], ready.headers["Retry-After"]) == (503, "DRAINING", "1")
    assert (alive.status_code, (await any_local.put(open_body())).status_code) == (200, 201)


async def test_starting_instance_is_not_ready(any_local: LocalService) -> None:
    any_local.instance.readiness.started = False
    response = await any_local.http.get("/readyz")
    assert (response.status_code, response.json()["code"]) == (503, "STARTING")


async def test_readyz_returns_503_on_older_schema_but_not_on_newer(own_local: LocalService) -> None:
    await own_local.database.execute("UPDATE tenure_schema SET version_num = '9999'")
    assert (await own_local.http.get("/readyz")).status_code == 200
    await own_local.database.execute("UPDATE tenure_schema SET version_num = '0000'")
    response = await own_local.http.get("/readyz")
    assert (response.status_code, response.json()["code"]) == (503, "SCHEMA_TOO_OLD")


async def test_readyz_names_the_instance_and_its_mode(sqlite_database: Database) -> None:
    leases = LeasesConfig(holder="node-1", executor_lease="submission-manager")
    async with LocalService.on(sqlite_database, leases=leases).running() as local:
        await eventually(lambda: local.telemetry.of(LeaderAcquired) != [])
        ready = (await local.http.get("/readyz")).json()
        assert (ready["instance"], ready["mode"]) == ("node-1", "leader")
        (lease,) = [each for each in ready["leases"] if each["name"] == "submission-manager"]
        as_text = await local.http.get("/readyz", headers={"Accept": "text/plain"})
        assert as_text.headers["content-type"] == "text/plain; charset=utf-8"
        assert as_text.text == f"mode=leader holder_id=node-1 lease_expires_at={lease['expiresAt']}\n"
        for accept in ("application/json, text/plain, */*", "*/*", ""):
            assert (await local.http.get("/readyz", headers={"Accept": accept})).json()["status"] == "ready"


async def test_follower_names_itself_and_the_leader(sqlite_database: Database) -> None:
    await acquire(sqlite_database.store, EXECUTOR, "node-2", 100 * SECOND)
    async with LocalService.on(sqlite_database, leases=LeasesConfig(holder="node-1")).running() as local:
        assert (await local.http.get("/readyz")).json()["mode"] == "follower"
        line = (await local.http.get("/readyz", headers={"Accept": "text/plain"})).text
        assert line.startswith("mode=follower holder_id=node-1 lease_expires_at=2")
        assert line.endswith("Z leader_id=node-2\n")


# Leases in `/readyz`.


async def find_lease(local: LocalService, name: str) -> Json | None:
    """The entry of a lease in `/readyz`, or None if the lease is not listed."""
    response = await local.http.get("/readyz")
    assert response.status_code == 200, response.text
    return next((lease for lease in response.json()["leases"] if lease["name"] == name), None)


async def fail(*_arguments: object) -> NoReturn:
    raise DatabaseUnavailable("the database cannot be reached")


async def leading(local: LocalService) -> Json:
    """Waits until the instance holds the lease of the executor, and returns the entry of this lease in `/readyz`."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (lease := await find_lease(local, EXECUTOR)) is None or lease["role"] != "leader":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return lease


async def test_readyz_of_leader_returns_role_and_lease(own_local: LocalService) -> None:
    lease = await leading(own_local)
    assert list(lease) == [*FIELDS, "role"]
    listed = (await own_local.http.get("/leases")).json()["leases"]
    assert {name: value for name, value in lease.items() if name != "role"} in listed


async def test_readyz_of_follower_returns_current_holder(own_local: LocalService) -> None:
    await leading(own_local)
    await own_local.database.execute(
        "UPDATE leases SET holder = 'another', epoch = epoch + 1 WHERE name = 'submission-executor'"
    )
    lease = await find_lease(own_local, EXECUTOR)
    assert lease is not None
    assert (lease["role"], lease["holder"], lease["held"]) == ("follower", "another", True)


async def test_readyz_reports_follower_when_lease_is_no_longer_trusted(
    own_local: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database still names the instance as the holder."""
    lease = await leading(own_local)
    # Releasing the lease must fail. Otherwise, an executor that is still starting could notice the loss of trust,
    # release the lease and acquire it again.
    monkeypatch.setattr(own_local.database.store, "release_lease", fail)
    monkeypatch.setattr("tenure.leases.held.boottime", lambda: float("inf"))
    after = await find_lease(own_local, EXECUTOR)
    assert after is not None
    assert (after["holder"], after["epoch"], after["role"]) == (lease["holder"], lease["epoch"], "follower")


async def test_readyz_reports_follower_after_resign(own_local: LocalService) -> None:
    await leading(own_local)
    await own_local.http.post(f"/leases/{EXECUTOR}/resign")
    lease = await find_lease(own_local, EXECUTOR)
    assert lease is not None
    assert (lease["role"], lease["held"]) == ("follower", False)


async def test_readyz_lists_job_lock_held_by_another_instance_and_omits_other_leases(local: LocalService) -> None:
    job, unrelated = f"tidy-{uuid4()}", f"nightly-{uuid4()}"
    store = local.database.store
    await store.register_jobs([job_every(SECOND, job, paused=True)])
    await acquire(store, f"job:{job}", "another")
    await acquire(store, unrelated, "another")
    lease = await find_lease(local, f"job:{job}")
    assert lease is not None
    assert (lease["role"], lease["holder"]) == ("follower", "another")
    assert await find_lease(local, unrelated) is None
