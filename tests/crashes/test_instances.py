"""Instances that are killed or stopped, as `GET /instances` and `GET /activity` show them."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tenure.errors import ConfigurationError
from tests.http.client import Json, open_body
from tests.support.databases import Database
from tests.support.instances import RunningInstance, kill_all

pytestmark = pytest.mark.slow
TIMEOUT_SECONDS = 30

Start = Callable[..., RunningInstance]


def test_stopped_and_killed_instances_are_distinguished(postgres_database: Database, tmp_path: Path) -> None:
    """`tenure serve` is started three times. The process group that is stopped saves the counts of its two workers."""
    running = [RunningInstance(postgres_database.url, tmp_path, "--workers", workers) for workers in ("2", "1", "1")]
    stopped, killed, observer = running
    try:
        for instance in running:
            instance.wait_until_ready()
        with httpx.Client(base_url=observer.address) as http:
            rows = _wait_for(http, lambda rows: len(rows) == 4)
            assert all(row["alive"] for row in rows)
            assert sorted(row["worker"] for row in rows) == [0, 0, 0, 1]
            assert {row["pid"] for row in rows} >= {killed.process.pid, observer.process.pid}
            assert sum("submission-executor" in row["leads"] for row in rows) == 1
            for _ in range(7):
                assert httpx.put(f"{stopped.address}/sessions", json=open_body()).status_code == 201
            killed.process.send_signal(signal.SIGSTOP)  # a paused instance must not be marked as stopped
            stopped.process.send_signal(signal.SIGTERM)
            assert stopped.process.wait(TIMEOUT_SECONDS) == 0
            killed.process.kill()
            killed.process.wait(TIMEOUT_SECONDS)
            rows = _wait_for(http, lambda rows: sum(row["stoppedAt"] is not None for row in rows) == 2)
            ended = {row["pid"]: row["stoppedAt"] for row in rows}
            assert ended[killed.process.pid] is None
            assert ended[observer.process.pid] is None
            points = http.get("/activity").json()["points"]
            assert sum(point["opened"] for point in points) == 7
    finally:
        kill_all(running)


def test_instance_exits_if_running_instance_has_another_executor_lease(sqlite_database: Database, start: Start) -> None:
    first = start(sqlite_database.url).wait_until_ready()
    other = {"TENURE_LEASES__EXECUTOR_LEASE": "other"}
    refused = start(sqlite_database.url, **other)
    assert refused.process.wait(TIMEOUT_SECONDS) == ConfigurationError.exit_code
    assert "leases.executor_lease: is other, but submission-executor on instance" in refused.log()
    assert first.stop() == 0
    start(sqlite_database.url, **other).wait_until_ready()


def _wait_for(http: httpx.Client, condition: Callable[[list[Json]], bool]) -> list[Json]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        rows: list[Json] = http.get("/instances").json()["instances"]
        if condition(rows):
            return rows
        time.sleep(0.05)
    raise AssertionError(rows)
